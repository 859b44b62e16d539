// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// ErrExpectation is the error for a file that is no expectation; it names the line.
var ErrExpectation = errors.New("not an expectation of s3rdma conform")

// Expectation is how each case went at a server before, by its ID. Stored in a file, it
// makes a regression a list: a server that fails some cases for good reasons can still be
// held to the others.
type Expectation map[string]Status

// expectationHead begins every file.
const expectationHead = "# What s3rdma conform found at this server. Compare with --expect, renew with --update-expect.\n"

// ReadExpectation reads what WriteExpectation wrote: lines of a result and a case's ID.
// Lines that begin with # are comments. Errors wrap ErrExpectation, or are r's.
func ReadExpectation(r io.Reader) (Expectation, error) {
	e := Expectation{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		i := slices.IndexFunc([]Status{Passed, Failed, Skipped}, func(s Status) bool { return strings.EqualFold(string(s), f[0]) })
		if len(f) != 2 || i < 0 {
			return nil, fmt.Errorf("%w: line %d: want pass, fail or skip, and a case", ErrExpectation, n)
		}
		if _, twice := e[f[1]]; twice {
			return nil, fmt.Errorf("%w: line %d: %s stands there twice", ErrExpectation, n, f[1])
		}
		e[f[1]] = []Status{Passed, Failed, Skipped}[i]
	}
	return e, lines.Err()
}

// WriteExpectation writes what this run found, for runs to come. Nothing in it changes
// from run to run but results.
func (r *Report) WriteExpectation(w io.Writer) error {
	out := &errWriter{w: w}
	fmt.Fprintf(out, "%s# fabric %s, RDMA %s\n", expectationHead, r.Fabric, r.Speaks.RDMA)
	for _, x := range r.Results {
		fmt.Fprintf(out, "%s %s\n", strings.ToLower(string(x.Status)), x.ID)
	}
	return out.err
}

// Difference is what has changed against an expectation. The members are cases' IDs, in
// the order of the run.
type Difference struct {
	// Regressed fail, and did not; new cases that fail are among them.
	Regressed []string
	// Untested were run before, and are skipped.
	Untested []string
	// Fixed pass or are skipped, and failed before.
	Fixed []string
	// New pass, or are skipped, and were not known before.
	New []string
	// Gone are expected, and no case is called so any more.
	Gone []string
}

// Compare holds the run against e. Cases that were not selected are not compared.
func (r *Report) Compare(e Expectation) Difference {
	var d Difference
	for _, x := range r.Results {
		was, known := e[x.ID]
		switch {
		case x.Status == Failed && was != Failed:
			d.Regressed = append(d.Regressed, x.ID)
		case !known:
			d.New = append(d.New, x.ID)
		case was == Failed && x.Status != Failed:
			d.Fixed = append(d.Fixed, x.ID)
		case was == Passed && x.Status == Skipped:
			d.Untested = append(d.Untested, x.ID)
		}
	}
	all := Cases()
	for id := range e {
		if !slices.ContainsFunc(all, func(c Case) bool { return c.ID == id }) {
			d.Gone = append(d.Gone, id)
		}
	}
	slices.Sort(d.Gone)
	return d
}

// OK tells whether nothing has become worse.
func (d Difference) OK() bool { return len(d.Regressed) == 0 && len(d.Untested) == 0 }

// Write writes one line a case that differs, and a summary.
func (d Difference) Write(w io.Writer) error {
	out := &errWriter{w: w}
	for _, part := range []struct {
		what string
		ids  []string
	}{
		{"REGRESSED, it did not fail before", d.Regressed}, {"UNTESTED, it was run before and is skipped", d.Untested},
		{"fixed", d.Fixed}, {"new", d.New}, {"gone, no such case any more", d.Gone},
	} {
		for _, id := range part.ids {
			fmt.Fprintf(out, "%-40s %s\n", id, part.what)
		}
	}
	fmt.Fprintf(out, "against the expectation: regressed=%d untested=%d fixed=%d new=%d gone=%d\n",
		len(d.Regressed), len(d.Untested), len(d.Fixed), len(d.New), len(d.Gone))
	return out.err
}
