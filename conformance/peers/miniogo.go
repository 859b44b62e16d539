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
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/s3rdma/s3rdma/conformance/minioproc"
)

// MinioGoVersion is the version of minio-go whose functional tests are run. It is
// newer than the one that this module requires: tests gain from age only.
const MinioGoVersion = "v7.4.1"

// ErrNoTests: the tests ended without reporting any.
var ErrNoTests = errors.New("the tests reported nothing")

// Outcome is how one test ended.
type Outcome struct {
	// Name is the test's and, where it has several parts, the part's.
	Name string
	// Status is PASS, FAIL or NA. A test that reports more than once has its worst.
	Status string
	// Message is what the test said about a failure.
	Message string
}

// Difference is a test that ended differently.
type Difference struct{ Name, Stock, Plugin, Message string }

// Comparison is what two runs have shown.
type Comparison struct {
	Stock, Plugin []Outcome
	Differences   []Difference
}

// Count returns how many outcomes have the status.
func Count(all []Outcome, status string) int {
	n := 0
	for _, o := range all {
		if o.Status == status {
			n++
		}
	}
	return n
}

// Options say which servers are compared.
type Options struct {
	// Stock and Plugin are MinIO binaries, PluginArgs the second one's flags.
	Stock, Plugin string
	PluginArgs    []string
	// Tests is the built test program; "" builds it.
	Tests string
	// Out gets what happens as it happens, nil nobody.
	Out io.Writer
}

// MinioGo runs minio-go's functional tests against both servers, with TLS and a key
// for encryption, and compares.
func MinioGo(ctx context.Context, o Options) (c Comparison, err error) {
	if o.Out == nil {
		o.Out = io.Discard
	}
	dir, err := os.MkdirTemp("", "s3rdma-peers-")
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if o.Tests == "" {
		fmt.Fprintln(o.Out, "building minio-go's functional tests")
		if o.Tests, err = BuildMinioGo(ctx, dir, o.Out); err != nil {
			return c, err
		}
	}
	once := func() (Comparison, error) {
		var c Comparison
		fmt.Fprintln(o.Out, "running them against stock MinIO")
		if c.Stock, err = o.run(ctx, dir, minioproc.Options{Binary: o.Stock}); err != nil {
			return c, err
		}
		fmt.Fprintln(o.Out, "running them against MinIO with the plugin")
		if c.Plugin, err = o.run(ctx, dir, minioproc.Options{Binary: o.Plugin, Args: o.PluginArgs}); err != nil {
			return c, err
		}
		c.Differences = Compare(c.Stock, c.Plugin)
		return c, nil
	}
	if c, err = once(); err != nil || len(c.Differences) == 0 {
		return c, err
	}
	fmt.Fprintf(o.Out, "%d tests differ; once more, to see whether they do so again\n", len(c.Differences))
	again, err := once()
	if err != nil {
		return c, err
	}
	again.Differences = slices.DeleteFunc(again.Differences, func(d Difference) bool {
		return !slices.ContainsFunc(c.Differences, func(e Difference) bool { return e.Name == d.Name })
	})
	return again, nil
}

// BuildMinioGo builds the test program into dir and returns its path.
func BuildMinioGo(ctx context.Context, dir string, out io.Writer) (string, error) {
	const module = "github.com/minio/minio-go/v7@" + MinioGoVersion
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	download.Dir, download.Stderr = dir, out
	answer, err := download.Output()
	var fetched struct{ Dir, Error string }
	if jerr := json.Unmarshal(answer, &fetched); err == nil {
		err = jerr
	}
	if err != nil || fetched.Dir == "" {
		return "", fmt.Errorf("fetch %s: %w %s", module, errors.Join(err, ctx.Err()), fetched.Error)
	}
	binary := filepath.Join(dir, "minio-go-tests")
	// The file has a build tag that the module's own packages must not see; a file
	// that is named is built whatever its tags are.
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "functional_tests.go")
	build.Dir, build.Stdout, build.Stderr = fetched.Dir, out, out
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly")
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("build the functional tests of %s: %w", module, errors.Join(err, ctx.Err()))
	}
	return binary, nil
}

// run starts a server on fresh drives and the tests against it.
func (o Options) run(ctx context.Context, dir string, server minioproc.Options) ([]Outcome, error) {
	drives, err := os.MkdirTemp(dir, "server-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(drives) // dir goes as a whole in the end
	server.Dir, server.TLS, server.KMS = drives, true, true
	s, err := minioproc.Start(ctx, server)
	if err != nil {
		return nil, err
	}
	defer s.Stop()
	u, err := url.Parse(s.Endpoint)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, o.Tests)
	cmd.Dir = drives
	cmd.Env = append(os.Environ(), "SERVER_ENDPOINT="+u.Host, "ACCESS_KEY="+s.Root.AccessKey, "SECRET_KEY="+s.Root.SecretKey,
		"ENABLE_HTTPS=1", "ENABLE_KMS=1", "RUN_ON_FAIL=1", "MINT_MODE=full", "SSL_CERT_FILE="+s.CertFile)
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
	outcomes, rerr := Read(stdout)
	werr := cmd.Wait() // not 0 if a test failed, which the outcomes tell better
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case rerr != nil:
		return nil, fmt.Errorf("read the tests' report: %w", rerr)
	case len(outcomes) == 0:
		return nil, fmt.Errorf("%w: %w; they say: %s", ErrNoTests, errors.Join(werr, errors.New("end of output")), stderr)
	}
	return outcomes, nil
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
func severity(status string) int { return slices.Index([]string{"PASS", "NA", "FAIL"}, status) }

// Read reads the report that mint's tests write: a JSON object a line, between lines
// of other kinds.
func Read(r io.Reader) ([]Outcome, error) {
	byName := map[string]Outcome{}
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
			if before, ok := byName[o.Name]; !ok || severity(o.Status) > severity(before.Status) {
				byName[o.Name] = o
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	all := make([]Outcome, 0, len(byName))
	for _, o := range byName {
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b Outcome) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// lenient unmarshals what fits: "error" can be an object.
func lenient(line string, into any) bool {
	err := json.Unmarshal([]byte(line), into)
	var wrongType *json.UnmarshalTypeError
	return err == nil || errors.As(err, &wrongType)
}

// Compare returns the tests that ended differently, or are there on one side only.
func Compare(stock, plugin []Outcome) []Difference {
	byName := map[string]*Difference{}
	var names []string
	at := func(name string) *Difference {
		if byName[name] == nil {
			byName[name] = &Difference{Name: name, Stock: "missing", Plugin: "missing"}
			names = append(names, name)
		}
		return byName[name]
	}
	for _, o := range stock {
		at(o.Name).Stock = o.Status
	}
	for _, o := range plugin {
		d := at(o.Name)
		d.Plugin, d.Message = o.Status, o.Message
	}
	slices.Sort(names)
	var all []Difference
	for _, name := range names {
		if d := byName[name]; d.Stock != d.Plugin {
			all = append(all, *d)
		}
	}
	return all
}
