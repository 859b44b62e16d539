// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// report runs a program that writes mint's report to its standard output and reads it.
// nonzero says whether the program's exit status tells of failed tests, which the
// report tells better, or of its own failure.
func report(ctx context.Context, cmd *exec.Cmd, nonzero bool) ([]Outcome, error) {
	cmd.WaitDelay = 10 * time.Second
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var stderr tail
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the tests: %w", err)
	}
	outcomes, rerr := readMint(stdout)
	werr := cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case rerr != nil:
		return nil, fmt.Errorf("read the tests' report: %w", rerr)
	case werr != nil && !nonzero:
		return nil, fmt.Errorf("the tests broke off: %w; they say: %s", werr, stderr)
	case len(outcomes) == 0:
		return nil, fmt.Errorf("%w: %w; they say: %s", ErrNoTests, errors.Join(werr, errors.New("end of output")), stderr)
	}
	return outcomes, nil
}

// environment is this process's without what would lead AWS's SDKs to settings of the
// user's own, or to certificates that tests do not expect, and with more.
func environment(more ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "AWS_") })
	env = append(env, "AWS_CONFIG_FILE="+os.DevNull, "AWS_SHARED_CREDENTIALS_FILE="+os.DevNull, "AWS_EC2_METADATA_DISABLED=true")
	return append(env, more...)
}

// tail keeps the end of what is written to it.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	const keep = 2000
	*t = append(*t, p...)
	*t = (*t)[max(0, len(*t)-keep):]
	return len(p), nil
}

func (t tail) String() string { return strings.TrimSpace(string(t)) }

// severity orders statuses: of several reports of one test the worst counts.
func severity(status string) int { return slices.Index([]string{Pass, NA, Fail}, status) }

// readMint reads the report that mint's tests write: a JSON object a line, between
// lines of other kinds.
func readMint(r io.Reader) ([]Outcome, error) {
	all := map[string]Outcome{}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		var report struct{ Name, Function, Status, Alert, Message, Error string }
		if strings.HasPrefix(line, "{") && lenient(line, &report) && severity(report.Status) >= 0 {
			o := Outcome{Name: strings.TrimPrefix(report.Name, "minio-go: "), Status: report.Status,
				Message: strings.Join(slices.DeleteFunc([]string{report.Alert, report.Message, report.Error}, func(s string) bool { return s == "" }), ": ")}
			if report.Function != "" {
				o.Name += " " + report.Function
			}
			if before, ok := all[o.Name]; !ok || severity(o.Status) > severity(before.Status) {
				all[o.Name] = o
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b Outcome) int { return cmp.Compare(a.Name, b.Name) }), nil
}

// lenient unmarshals what fits: "error" can be an object.
func lenient(line string, into any) bool {
	err := json.Unmarshal([]byte(line), into)
	var wrongType *json.UnmarshalTypeError
	return err == nil || errors.As(err, &wrongType)
}
