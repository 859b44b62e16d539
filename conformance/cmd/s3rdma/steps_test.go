// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSteps(t *testing.T) {
	var b strings.Builder
	now := time.Unix(1000, 0)
	s := &steps{out: &b, now: func() time.Time { return now }}
	for i := range 25 {
		s.step(i+1, 25, "what")
		now = now.Add(time.Second)
	}
	fmt.Fprintln(s, "a line")
	s.done()
	// Elsewhere: a line now and then.
	if got, want := b.String(), "1/25  what\n11/25  what\n21/25  what\na line\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}

	b.Reset()
	s = &steps{out: &b, terminal: true}
	s.step(1, 2, "one")
	fmt.Fprintln(s, "a line")
	s.step(3, 2, "more than planned")
	s.done()
	s.done()
	const clear = "\r\x1b[K"
	want := clear + "[############............]  50%  one" + clear + "a line\n" + clear + "[########################] 150%  more than planned" + clear
	if b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if newSteps(f).terminal {
		t.Error("a file is taken for a terminal")
	}
}
