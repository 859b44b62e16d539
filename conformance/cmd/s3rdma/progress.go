// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/s3rdma/s3rdma/conformance"
)

// progress shows cases as they end: on a terminal in one line that is overwritten,
// elsewhere only the failing ones, for the table follows.
type progress struct {
	out      *os.File
	terminal bool
	n        int
}

func newProgress(out *os.File) *progress {
	info, err := out.Stat()
	return &progress{out: out, terminal: err == nil && info.Mode()&os.ModeCharDevice != 0}
}

func (p *progress) result(r conformance.Result) {
	p.n++
	switch {
	case p.terminal && r.Status == conformance.Failed:
		fmt.Fprintf(p.out, "\r\x1b[K%s\n", r.Line())
	case p.terminal:
		fmt.Fprintf(p.out, "\r\x1b[K%3d  %s", p.n, r.ID)
	case r.Status == conformance.Failed:
		fmt.Fprintln(p.out, r.Line())
	}
}

func (p *progress) done() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
