// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/s3rdma/s3rdma/conformance/minioproc"
)

// S3TestsVariable is the environment variable that names a checkout of ceph/s3-tests.
// Python's packages that it needs must be installed; PYTHON names another python3.
const S3TestsVariable = "S3TESTS"

// s3testsMarks leaves out what waits for lifecycle rules or needs a second cloud.
const s3testsMarks = "not lifecycle and not lifecycle_expiration and not lifecycle_transition and not cloud_transition and not cloud_restore"

//go:embed s3tests_prefix.py
var s3testsPrefix []byte

// s3testsConfig is what the suite wants to know (s3tests.conf.SAMPLE in the checkout).
// Its own names and ids of users are MinIO's: one owner has all. The accounts for which
// MinIO has nothing are there because the suite reads them whatever it runs.
var s3testsConfig = template.Must(template.New("").Parse(`[DEFAULT]
host = {{.Host}}
port = {{.Port}}
is_secure = True
ssl_verify = False

[fixtures]
bucket prefix = s3rdma-{random}-
iam name prefix = s3rdma-
iam path prefix = /s3rdma/
{{range .Users}}
[{{.Section}}]
display_name = minio
user_id = 02d6176db174dc93cb1b899f7c6078f08654445fe8cf1b6ce98d8855f66bdbf4
email = {{.AccessKey}}@localhost
api_name = us-east-1
access_key = {{.AccessKey}}
secret_key = {{.SecretKey}}
kms_keyid = test-key
{{end}}
[webidentity]
token = none
aud = none
sub = none
azp = none
user_token = none
thumbprint = none
KC_REALM = none
`))

type s3testsUser struct{ Section, AccessKey, SecretKey string }

// prepareS3Tests finds the checkout and its tests.
func prepareS3Tests(ctx context.Context, dir string, out io.Writer) (runner, error) {
	root := os.Getenv(S3TestsVariable)
	if root == "" {
		return nil, fmt.Errorf("%w: %s names no checkout of ceph/s3-tests", ErrAbsent, S3TestsVariable)
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	// The package has had two names.
	var files []string
	for _, name := range []string{"s3tests_boto3", "s3tests"} {
		for _, file := range []string{"test_s3.py", "test_headers.py"} {
			rel := filepath.Join(name, "functional", file)
			if _, err := os.Stat(filepath.Join(root, rel)); err == nil {
				files = append(files, rel)
			}
		}
		if len(files) > 0 {
			break
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%w: %s=%s: no s3tests/functional/test_s3.py there", ErrAbsent, S3TestsVariable, root)
	}
	python, err := findPython(ctx)
	if err != nil {
		return nil, err
	}
	plugins := filepath.Join(dir, "plugins")
	if err := os.MkdirAll(plugins, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(plugins, "s3tests_prefix.py"), s3testsPrefix, 0o644); err != nil {
		return nil, err
	}
	return func(ctx context.Context, s *minioproc.Server, dir string, only []string) ([]Outcome, error) {
		config, results := filepath.Join(dir, "s3tests.conf"), filepath.Join(dir, "junit.xml")
		if err := writeS3TestsConfig(ctx, config, s); err != nil {
			return nil, fmt.Errorf("write the tests' configuration: %w", err)
		}
		args := []string{"-m", "pytest", "-q", "-p", "s3tests_prefix", "-p", "no:cacheprovider", "-m", s3testsMarks,
			"-W", "ignore", "--junitxml=" + results}
		if only == nil {
			only = files
		}
		cmd := exec.CommandContext(ctx, python, append(args, only...)...)
		cmd.Dir = root
		cmd.Env = environment("S3TEST_CONF="+config, "PYTHONPATH="+plugins, "PYTHONDONTWRITEBYTECODE=1")
		cmd.WaitDelay = 10 * time.Second
		var said tail
		cmd.Stdout, cmd.Stderr = &said, &said
		rerr := cmd.Run()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		// Exit status 1 is a failed test; what else there is leaves no usable file.
		var exit *exec.ExitError
		if rerr != nil && !(errors.As(rerr, &exit) && exit.ExitCode() == 1) {
			return nil, fmt.Errorf("the tests broke off: %w; they say: %s", rerr, said)
		}
		f, err := os.Open(results)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		all, err := readJUnit(f)
		if err == nil && len(all) == 0 {
			err = fmt.Errorf("%w: they say: %s", ErrNoTests, said)
		}
		return all, err
	}, nil
}

// findPython returns the interpreter if it has what s3-tests needs.
func findPython(ctx context.Context) (string, error) {
	python := cmp.Or(os.Getenv("PYTHON"), "python3")
	check := exec.CommandContext(ctx, python, "-c", "import pytest, boto3, munch")
	if said, err := check.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s lacks what s3-tests needs (its requirements.txt): %s", ErrAbsent, python, oneLine(cmp.Or(string(said), err.Error())))
	}
	return python, nil
}

func writeS3TestsConfig(ctx context.Context, file string, s *minioproc.Server) (err error) {
	u, err := url.Parse(s.Endpoint)
	if err != nil {
		return err
	}
	users := []s3testsUser{{"s3 main", s.Root.AccessKey, s.Root.SecretKey}}
	for _, section := range []string{"s3 alt", "s3 tenant", "iam", "iam root", "iam alt root"} {
		user, err := s.AddUser(ctx)
		if err != nil {
			return err
		}
		users = append(users, s3testsUser{section, user.AccessKey, user.SecretKey})
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return s3testsConfig.Execute(f, struct {
		Host, Port string
		Users      []s3testsUser
	}{u.Hostname(), u.Port(), users})
}

// readJUnit reads pytest's report in JUnit's form. A test's name is pytest's id of it,
// by which it can be run alone.
func readJUnit(r io.Reader) ([]Outcome, error) {
	type problem struct {
		Message string `xml:"message,attr"`
	}
	var doc struct {
		Cases []struct {
			Class   string   `xml:"classname,attr"`
			Name    string   `xml:"name,attr"`
			Failure *problem `xml:"failure"`
			Error   *problem `xml:"error"`
			Skipped *problem `xml:"skipped"`
		} `xml:"testsuite>testcase"`
	}
	if err := xml.NewDecoder(r).Decode(&doc); err != nil {
		return nil, fmt.Errorf("read pytest's report: %w", err)
	}
	all := map[string]Outcome{}
	for _, c := range doc.Cases {
		o := Outcome{Name: strings.ReplaceAll(c.Class, ".", "/") + ".py::" + c.Name, Status: Pass}
		switch {
		case c.Failure != nil:
			o.Status, o.Message = Fail, c.Failure.Message
		case c.Error != nil:
			o.Status, o.Message = Fail, c.Error.Message
		case c.Skipped != nil:
			o.Status, o.Message = NA, c.Skipped.Message
		}
		// A test that fails to be cleaned up after is reported twice.
		if before, ok := all[o.Name]; !ok || severity(o.Status) > severity(before.Status) {
			all[o.Name] = o
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b Outcome) int { return cmp.Compare(a.Name, b.Name) }), nil
}
