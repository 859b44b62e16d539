// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/s3rdma/s3rdma/conformance"
)

// progress shows how far a run is: on a terminal a bar in one line that is overwritten,
// elsewhere a line a topic. Failing cases have a line of their own on both.
type progress struct {
	out      io.Writer
	terminal bool
	n, total int

	topic                   string
	passed, failed, skipped int // of the topic
}

// barWidth is the bar's, in characters.
const barWidth = 24

func newProgress(out *os.File) *progress {
	info, err := out.Stat()
	return &progress{out: out, terminal: err == nil && info.Mode()&os.ModeCharDevice != 0}
}

// begin is told what the server speaks and how many cases follow.
func (p *progress) begin(s conformance.Speaks, cases int) {
	p.total = cases
	fmt.Fprintf(p.out, "%s\n%d cases.\n", s.Sentence(), cases)
}

func (p *progress) result(r conformance.Result) {
	p.n++
	if topic, _, _ := strings.Cut(r.ID, "/"); topic != p.topic {
		p.endTopic()
		p.topic = topic
	}
	switch r.Status {
	case conformance.Passed:
		p.passed++
	case conformance.Skipped:
		p.skipped++
	case conformance.Failed:
		p.failed++
		if p.terminal {
			fmt.Fprint(p.out, "\r\x1b[K")
		}
		fmt.Fprintln(p.out, r.Line())
	}
	if p.terminal {
		done := barWidth
		if p.total > 0 {
			done = p.n * barWidth / p.total
		}
		fmt.Fprintf(p.out, "\r\x1b[K[%s%s] %d/%d  %s", strings.Repeat("#", done), strings.Repeat(".", barWidth-done), p.n, p.total, r.ID)
	}
}

// endTopic writes the line of a topic.
func (p *progress) endTopic() {
	if !p.terminal && p.topic != "" {
		fmt.Fprintf(p.out, "%-12s passed=%d failed=%d skipped=%d\n", p.topic, p.passed, p.failed, p.skipped)
	}
	p.passed, p.failed, p.skipped = 0, 0, 0
}

func (p *progress) done() {
	p.endTopic()
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
