// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Comparison is what a suite has shown.
type Comparison struct {
	Suite string
	// Stock and Plugin are the outcomes of the first run, by name.
	Stock, Plugin []Outcome
	// Differences ended differently in both runs, alike each time.
	Differences []Pair
	// Unsteady ended differently in the first run, and otherwise in the second: on one
	// server at least the test does not depend on the server alone.
	Unsteady []Pair
}

// Pair is one test on both servers: how it ended in the first run and, if there was
// one, in the second.
type Pair struct {
	Name          string
	Stock, Plugin []Outcome
}

// String tells a pair in a line.
func (p Pair) String() string {
	return fmt.Sprintf("%s: stock %s; plugin %s", p.Name, tell(p.Stock), tell(p.Plugin))
}

func tell(all []Outcome) string {
	var words []string
	for _, o := range all {
		w := o.Status
		if o.Message != "" {
			w += " (" + oneLine(o.Message) + ")"
		}
		if len(words) == 0 || words[len(words)-1] != w {
			words = append(words, w)
		}
	}
	return strings.Join(words, ", then ")
}

func oneLine(message string) string {
	const most = 300
	message = strings.Join(strings.Fields(message), " ")
	if len(message) > most {
		message = message[:most] + "..."
	}
	return message
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

// Print writes the differences, the unsteady tests and, if wanted, what fails on both,
// a line each, and last the summary: what the plugin's server did.
func (c Comparison) Print(w io.Writer, failures bool) error {
	var b strings.Builder
	differs := map[string]bool{}
	for _, p := range c.Differences {
		differs[p.Name] = true
		fmt.Fprintf(&b, "%s: differs: %v\n", c.Suite, p)
	}
	for _, p := range c.Unsteady {
		differs[p.Name] = true
		fmt.Fprintf(&b, "%s: unsteady: %v\n", c.Suite, p)
	}
	for _, o := range c.Plugin {
		if failures && o.Status == Fail && !differs[o.Name] {
			fmt.Fprintf(&b, "%s: fails on both: %s: %s\n", c.Suite, o.Name, oneLine(o.Message))
		}
	}
	fmt.Fprintf(&b, "peers: suite=%s passed=%d failed=%d na=%d differences=%d\n",
		c.Suite, Count(c.Plugin, Pass), Count(c.Plugin, Fail), Count(c.Plugin, NA), len(c.Differences))
	_, err := io.WriteString(w, b.String())
	return err
}

// compare returns the tests that ended differently, or failed for different reasons,
// or are there on one side only.
func compare(stock, plugin []Outcome) []Pair {
	left, right := byName(stock), byName(plugin)
	names := maps.Clone(left)
	maps.Copy(names, right)
	var all []Pair
	for _, name := range slices.Sorted(maps.Keys(names)) {
		s, p := get(left, name), get(right, name)
		if !same(s, p) {
			all = append(all, Pair{name, []Outcome{s}, []Outcome{p}})
		}
	}
	return all
}

// settle tells differences from tests that do not end the same way twice, by their
// outcomes in a second run.
func settle(first []Pair, stock, plugin []Outcome) (differences, unsteady []Pair) {
	left, right := byName(stock), byName(plugin)
	for _, p := range first {
		p.Stock = append(p.Stock, get(left, p.Name))
		p.Plugin = append(p.Plugin, get(right, p.Name))
		status := func(o []Outcome) bool { return o[0].Status == o[1].Status }
		steady := status(p.Stock) && status(p.Plugin)
		if steady && p.Stock[0].Status == p.Plugin[0].Status {
			// Only the reasons differ: they must be steady too.
			steady = same(p.Stock[0], p.Stock[1]) && same(p.Plugin[0], p.Plugin[1])
		}
		if steady {
			differences = append(differences, p)
		} else {
			unsteady = append(unsteady, p)
		}
	}
	return differences, unsteady
}

func byName(all []Outcome) map[string]Outcome {
	m := make(map[string]Outcome, len(all))
	for _, o := range all {
		m[o.Name] = o
	}
	return m
}

func get(m map[string]Outcome, name string) Outcome {
	if o, ok := m[name]; ok {
		return o
	}
	return Outcome{Name: name, Status: Missing}
}

func same(a, b Outcome) bool {
	return a.Status == b.Status && (a.Status != Fail || reason(a.Message) == reason(b.Message))
}

// varying is what differs between two runs of the same server: addresses in memory,
// times, ports, what the suites number, and request ids. Short numbers stay: they are
// status codes and sizes.
var varying = regexp.MustCompile(strings.Join([]string{
	`\b0x[0-9a-f]+`,
	`\d{4}-\d\d-\d\d`,
	`\d\d:\d\d:\d\d(\.\d+)?`,
	`(127\.0\.0\.1|localhost):\d+`,
	`test-bucket-\d+`,
	`s3rdma-[0-9a-z]+-\d*`,
	`\b[0-9A-F]{16}\b`,
}, "|"))

// long finds words of which those with a digit are random: names, ids, sums.
var long = regexp.MustCompile(`[0-9A-Za-z+/=_-]{20,}`)

// reason is a message without what varies. What it leaves is compared, not shown.
func reason(message string) string {
	message = varying.ReplaceAllString(message, "*")
	return long.ReplaceAllStringFunc(message, func(word string) string {
		if strings.ContainsAny(word, "0123456789") {
			return "*"
		}
		return word
	})
}
