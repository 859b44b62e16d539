// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPick(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, n int) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, bytes.Repeat([]byte("x"), n), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pick(dir, 1, 1); err == nil {
		t.Error("no error though there are no files")
	}
	write("empty", 0)
	for i := range 20 {
		write(filepath.Join("d", string(rune('a'+i))), 100+i)
	}
	if err := os.Symlink("d/a", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	files, err := pick(dir, 3, 5)
	if err != nil {
		t.Fatal(err)
	}
	var names string
	for _, f := range files {
		names += f.name + " "
	}
	// The three largest, and every third or fourth of the rest.
	if names != "d/t d/s d/r d/q d/n d/k d/g d/d " {
		t.Errorf("picked %s", names)
	}
	buf := make([]byte, 200)
	if err := files[0].content(buf); err != nil || !bytes.Equal(buf[:files[0].size], bytes.Repeat([]byte("x"), 119)) {
		t.Errorf("content: %v", err)
	}
}

func TestSameStream(t *testing.T) {
	want := bytes.Repeat([]byte("abc"), 1<<20)
	if err := sameStream(iotest.HalfReader(bytes.NewReader(want)), want); err != nil {
		t.Error(err)
	}
	flipped := bytes.Clone(want)
	flipped[2<<20] ^= 1
	for name, got := range map[string][]byte{"short": want[:len(want)-1], "long": append(bytes.Clone(want), 0), "flipped": flipped, "empty": nil} {
		if sameStream(bytes.NewReader(got), want) == nil {
			t.Errorf("%s: no difference seen", name)
		}
	}
	if err := sameStream(iotest.ErrReader(errors.ErrUnsupported), want); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("error %v", err)
	}
}

func TestResult(t *testing.T) {
	r := Result{Passed: 3, Skipped: 1, Objects: 2, Bytes: 7, Steps: []Step{
		{Name: "moved", Objects: 2, Bytes: 2 << 20, Took: time.Second, CPU: time.Second},
		{Name: "suite", Took: time.Second, Note: "3 passed"}}}
	if got := r.Line(); got != "demo: passed=3 failed=0 skipped=1 objects=2 bytes=7 payload_bytes=0" {
		t.Error(got)
	}
	if !r.OK() {
		t.Error("not OK")
	}
	for _, bad := range []Result{{}, {Passed: 3, Objects: 2, Payload: 1}, {Passed: 3, Objects: 2, Failed: 1}, {Objects: 2}} {
		if bad.OK() {
			t.Errorf("%s is OK", bad.Line())
		}
	}
	var b strings.Builder
	if err := r.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"moved  2        2.0", "512.00", "3 passed"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

func TestInOrderStopsAtTheFirstError(t *testing.T) {
	ran := 0
	ok := func() error { ran++; return nil }
	err := inOrder(ok, func() error { return context.Canceled }, ok)
	if ran != 1 || err != context.Canceled {
		t.Errorf("%d ran, error %v", ran, err)
	}
}

func TestCheckout(t *testing.T) {
	if root, err := Checkout(); err != nil {
		t.Error(err)
	} else if _, err := os.Stat(filepath.Join(root, "conformance", "demo", "demo_test.go")); err != nil {
		t.Error(err)
	}
	t.Chdir(t.TempDir())
	if _, err := Checkout(); !errors.Is(err, ErrNoCheckout) {
		t.Errorf("error %v, want ErrNoCheckout", err)
	}
}
