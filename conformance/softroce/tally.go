// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// outcome is how a test ended: pass, FAIL, or skip.
type outcome string

const (
	passed  outcome = "pass"
	failed  outcome = "FAIL"
	skipped outcome = "skip"
)

// packageMark begins a line that says which package's tests come next.
const packageMark = "=== PACKAGE "

// result is one test without tests below it. Its name has its package before it. Said is
// what it printed: why it failed, or was skipped.
type result struct {
	name    string
	outcome outcome
	said    []string
}

// tally is what the tests of one boot came to.
type tally struct{ results []result }

func (t tally) count(o outcome) (n int) {
	for _, r := range t.results {
		if r.outcome == o {
			n++
		}
	}
	return n
}

var (
	runLine = regexp.MustCompile(`^=== (?:RUN|CONT|NAME)\s+(\S+)$`)
	endLine = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+) \(`)
)

// read counts the results in what test binaries print with -test.v. A test that has tests
// below it counts only if it failed and none of them did. One that began and has no result
// has failed: its binary did not live to tell.
func read(in io.Reader) (tally, error) {
	type state struct {
		outcome  outcome
		children []string
		said     []string
	}
	tests := map[string]*state{}
	var order []string
	var current, pkg string
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		if name, ok := strings.CutPrefix(line, packageMark); ok {
			pkg, current = name+" ", ""
			continue
		}
		if m := runLine.FindStringSubmatch(line); m != nil {
			current = pkg + m[1]
			if tests[current] == nil {
				tests[current] = &state{}
				order = append(order, current)
				if i := strings.LastIndex(current, "/"); i >= 0 {
					// The parent is the longest prefix that is a test: names have slashes.
					for p := current[:i]; ; p = p[:i] {
						if tests[p] != nil {
							tests[p].children = append(tests[p].children, current)
							break
						}
						if i = strings.LastIndex(p, "/"); i < 0 {
							break
						}
					}
				}
			}
			continue
		}
		if m := endLine.FindStringSubmatch(line); m != nil {
			if s := tests[pkg+m[2]]; s != nil {
				s.outcome = map[string]outcome{"PASS": passed, "FAIL": failed, "SKIP": skipped}[m[1]]
			}
			continue
		}
		if s := tests[current]; s != nil && strings.TrimSpace(line) != "" {
			s.said = append(s.said, line)
		}
	}
	if err := lines.Err(); err != nil {
		return tally{}, fmt.Errorf("read the tests' output: %w", err)
	}
	var t tally
	for _, name := range order {
		s := tests[name]
		if s.outcome == "" {
			s.outcome = failed
			s.said = append(s.said, "it began, and has no result")
		}
		childFailed := slices.ContainsFunc(s.children, func(c string) bool { return tests[c].outcome != passed && tests[c].outcome != skipped })
		if len(s.children) > 0 && (s.outcome != failed || childFailed) {
			continue
		}
		t.results = append(t.results, result{name, s.outcome, s.said})
	}
	return t, nil
}
