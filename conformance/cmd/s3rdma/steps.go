// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// steps shows how far something is that says so: on a terminal a bar in one line that is
// overwritten, elsewhere a line every few seconds. Lines that are written to it stay.
type steps struct {
	out      io.Writer
	terminal bool
	shown    bool      // a bar
	last     time.Time // that a line was written
	now      func() time.Time
}

// lineEvery is the time between two lines where there is no terminal.
const lineEvery = 10 * time.Second

func newSteps(out *os.File) *steps {
	info, err := out.Stat()
	return &steps{out: out, terminal: err == nil && info.Mode()&os.ModeCharDevice != 0, now: time.Now}
}

// step shows the step that begins.
func (s *steps) step(done, total int, what string) {
	if !s.terminal {
		if now := s.now(); now.Sub(s.last) >= lineEvery {
			s.last = now
			fmt.Fprintf(s.out, "%d/%d  %s\n", done, total, what)
		}
		return
	}
	filled := min(barWidth*done/max(total, 1), barWidth)
	fmt.Fprintf(s.out, "\r\x1b[K[%s%s] %3d%%  %s", strings.Repeat("#", filled), strings.Repeat(".", barWidth-filled), 100*done/max(total, 1), what)
	s.shown = true
}

// Write writes lines.
func (s *steps) Write(b []byte) (int, error) {
	s.done()
	return s.out.Write(b)
}

// done takes the bar away.
func (s *steps) done() {
	if s.shown {
		fmt.Fprint(s.out, "\r\x1b[K")
		s.shown = false
	}
}
