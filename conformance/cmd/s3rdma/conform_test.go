// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/s3rdma/s3rdma/conformance"
	"github.com/s3rdma/s3rdma/conformance/broken"
)

// conform makes the command's flags for a broken server.
func conform(t *testing.T, o broken.Options, args ...string) *conformCommand {
	t.Helper()
	s, err := broken.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		buckets, uploads, sessions := s.Leftovers()
		if buckets+uploads+sessions > 0 {
			t.Errorf("%d buckets, %d uploads and %d sessions were left behind", buckets, uploads, sessions)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	parser, err := newParser(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.Parse(append([]string{"conform", "--endpoint", s.Endpoint, "--access-key", broken.AccessKey, "--secret-key", broken.SecretKey}, args...))
	if err != nil {
		t.Fatal(err)
	}
	return &parsed.Model.Target.Addr().Interface().(*commands).Conform
}

// TestConform: the exit status is right, the files are written, and what is expected is
// compared.
func TestConform(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	bad := broken.Options{Broken: []string{"get-cut"}}
	args := []string{"--run", "get/window,put/size/1", "--html", file("r.html"), "--json", file("r.json"), "--junit", file("r.xml")}
	if err := conform(t, broken.Options{}, args...).Run(t.Context()); err != nil {
		t.Errorf("a correct server: %v", err)
	}
	if err := conform(t, bad, args...).Run(t.Context()); !errors.Is(err, errReported) {
		t.Errorf("a broken server: %v", err)
	}
	for _, name := range []string{"r.html", "r.json", "r.xml"} {
		b, err := os.ReadFile(file(name))
		if err != nil || !bytes.Contains(b, []byte("get/window-too-small")) {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	var report struct {
		Fabric string
		Speaks struct{ RDMA string }
		Failed int
	}
	b, err := os.ReadFile(file("r.json"))
	if err == nil {
		err = json.Unmarshal(b, &report)
	}
	if err != nil || report.Fabric != "shm" || report.Speaks.RDMA != "yes" || report.Failed != 1 {
		t.Errorf("%+v %v", report, err)
	}

	expect := append(args[:2:2], "--expect", file("expect.txt"))
	if err := conform(t, bad, expect...).Run(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing to compare with: %v", err)
	}
	if err := conform(t, bad, append(expect, "--update-expect")...).Run(t.Context()); err != nil {
		t.Errorf("write what is expected: %v", err)
	}
	for name, want := range map[string]error{"get-cut": nil, "get-whole-window": errReported} {
		if err := conform(t, broken.Options{Broken: []string{name}}, expect...).Run(t.Context()); !errors.Is(err, want) {
			t.Errorf("%s against the expectation: %v, want %v", name, err, want)
		}
	}

	if err := conform(t, broken.Options{}, "--run", "no/such").Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no case matches") {
		t.Errorf("no case: %v", err)
	}
	if err := conform(t, broken.Options{}, "--update-expect").Run(t.Context()); err == nil {
		t.Error("--update-expect without a file: no error")
	}
	c := conform(t, broken.Options{})
	c.SecretKey += "x"
	if err := c.Run(t.Context()); !errors.Is(err, conformance.ErrUnreachable) {
		t.Errorf("a wrong key: %v", err)
	}
}

// TestProgress: a bar on a terminal, a line a topic elsewhere, and failures on both.
func TestProgress(t *testing.T) {
	results := []conformance.Result{
		{ID: "plain/a", Status: conformance.Passed}, {ID: "put/b", Status: conformance.Failed, Reason: "why"},
		{ID: "put/c", Status: conformance.Skipped}, {ID: "put/d", Status: conformance.Passed},
	}
	for terminal, want := range map[bool][]string{
		false: {"speaks no S3 over RDMA", "4 cases.", "plain        passed=1 failed=0 skipped=0\n", "FAIL  put/b", "put          passed=1 failed=1 skipped=1\n"},
		true:  {"speaks no S3 over RDMA", "4 cases.", "\r\x1b[K[######..................] 1/4  plain/a", "FAIL  put/b", "[########################] 4/4  put/d\r\x1b[K"},
	} {
		var b bytes.Buffer
		p := &progress{out: &b, terminal: terminal}
		p.begin(conformance.Speaks{}, len(results))
		for _, r := range results {
			p.result(r)
		}
		p.done()
		for _, w := range want {
			if !strings.Contains(b.String(), w) {
				t.Errorf("terminal=%t: it does not say %q:\n%q", terminal, w, b.String())
			}
		}
		if terminal == strings.Contains(b.String(), "passed=") || terminal != strings.Contains(b.String(), "\x1b") {
			t.Errorf("terminal=%t: %q", terminal, b.String())
		}
	}
}
