// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
	"github.com/s3rdma/s3rdma/conformance/wirecount"
)

// Status is how a case went.
type Status string

const (
	Passed  Status = "pass"
	Failed  Status = "FAIL"
	Skipped Status = "skip" // it could not run; Result.Reason says why
)

// MarshalText makes statuses lower-case in JSON.
func (s Status) MarshalText() ([]byte, error) { return []byte(strings.ToLower(string(s))), nil }

// Result is how one case went.
type Result struct {
	ID     string `json:"id"`
	Level  Level  `json:"level"`
	Status Status `json:"status"`
	// Verdict is what comes of a known client (cases client/*), "" in other cases.
	Verdict Verdict `json:"verdict,omitempty"`
	// Reason is why it failed or was skipped: what was expected and what came. With a
	// verdict, why that.
	Reason string `json:"reason,omitempty"`
	Rule   string `json:"rule"`
	Source string `json:"source"`
	// Exchanges are the last requests and answers of a case that failed. Nothing
	// confidential is in them.
	Exchanges []rawhttp.Exchange `json:"exchanges,omitempty"`
	Seconds   float64            `json:"seconds"`
}

// Report is what a run found. Nothing confidential is in it.
type Report struct {
	Endpoint string `json:"endpoint"`
	Server   string `json:"server,omitempty"` // as the server calls itself
	Fabric   string `json:"fabric"`
	Off      bool   `json:"off,omitempty"`
	// Speaks is what the server makes of S3 over RDMA.
	Speaks  Speaks    `json:"speaks"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	Passed  int       `json:"passed"`
	Failed  int       `json:"failed"`
	Skipped int       `json:"skipped"`
	// Wire is all HTTP traffic of the run, bodies sent on purpose included.
	Wire wirecount.Traffic `json:"wire"`
	// Clients are what becomes of the known clients, as far as their cases were run.
	Clients []ClientVerdict `json:"clients,omitempty"`
	Results []Result        `json:"results"`
}

func (r *Report) add(x Result) {
	r.Results = append(r.Results, x)
	switch x.Status {
	case Passed:
		r.Passed++
	case Failed:
		r.Failed++
	case Skipped:
		r.Skipped++
	}
}

// Summary is the last line of a table.
func (r *Report) Summary() string {
	return fmt.Sprintf("passed=%d failed=%d skipped=%d in %.1f s", r.Passed, r.Failed, r.Skipped, r.Seconds)
}

// WriteTable writes what the server speaks, one line a case, what each failing case sent,
// got and expected, what becomes of the known clients, and the summary.
func (r *Report) WriteTable(w io.Writer) error {
	out := &errWriter{w: w}
	r.Speaks.write(out)
	fmt.Fprintln(out)
	tw := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "RESULT\tCASE\tLEVEL\tTIME\tNOTE")
	for _, x := range r.Results {
		fmt.Fprintln(tw, x.line())
	}
	tw.Flush()
	for _, x := range r.Results {
		if x.Status == Failed {
			fmt.Fprint(out, "\n"+x.Detail())
		}
	}
	r.writeClients(out)
	fmt.Fprintf(out, "\n%s\n", r.Summary())
	return out.err
}

// writeClients writes one line a client, and why where it does not work.
func (r *Report) writeClients(w io.Writer) {
	if len(r.Clients) == 0 {
		return
	}
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(tw, "\nCLIENT\t%s\n", strings.ToUpper(strings.Join(clientOperations, "\t")))
	for _, c := range r.Clients {
		fmt.Fprint(tw, c.Name)
		for _, op := range clientOperations {
			v := c.Operations[op]
			if v == "" {
				v = "-"
			}
			fmt.Fprintf(tw, "\t%s", v)
		}
		fmt.Fprintln(tw)
	}
	tw.Flush()
	fmt.Fprintln(w, "(unserved: with a descriptor of another kind than the server serves)")
	for _, c := range r.Clients {
		if c.Verdict != Works {
			fmt.Fprintf(w, "%s (%s): %s: %s\n", c.Name, c.Client, c.Verdict, firstLine(c.Why, 300))
		}
	}
}

func (x Result) line() string {
	return fmt.Sprintf("%s\t%s\t%s\t%.2fs\t%s", x.Status, x.ID, x.Level, x.Seconds, firstLine(x.Reason, 90))
}

// Line is the case's line of a table, for showing progress as it happens.
func (x Result) Line() string {
	return fmt.Sprintf("%-4s  %-38s %5.2fs  %s", x.Status, x.ID, x.Seconds, firstLine(x.Reason, 90))
}

// Detail is everything about a failing case: the rule, what was sent, what came.
func (x Result) Detail() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s (%s)\n  rule:     %s\n  source:   %s\n  finding:  %s\n", x.Status, x.ID, x.Level, x.Rule, x.Source, indent(x.Reason))
	for _, e := range x.Exchanges {
		fmt.Fprintf(&b, "  sent:     %s\n  got:      %s\n", e.Sent, e.Got)
	}
	return b.String()
}

func indent(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n            ") }

func firstLine(s string, n int) string {
	s, _, _ = strings.Cut(s, "\n")
	if len(s) > n {
		return s[:n-3] + "..."
	}
	return s
}

// errWriter keeps the first error, so that callers can check once.
type errWriter struct {
	w   io.Writer
	err error
}

func (e *errWriter) Write(p []byte) (int, error) {
	if e.err == nil {
		_, e.err = e.w.Write(p)
	}
	return len(p), nil
}

// WriteJSON writes the report as one indented JSON object.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

// The part of JUnit's XML that its readers agree on.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Skipped  int          `xml:"skipped,attr"`
		Time     string       `xml:"time,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name      string      `xml:"name,attr"`
		Tests     int         `xml:"tests,attr"`
		Failures  int         `xml:"failures,attr"`
		Skipped   int         `xml:"skipped,attr"`
		Time      string      `xml:"time,attr"`
		Timestamp string      `xml:"timestamp,attr"`
		Cases     []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name    string        `xml:"name,attr"`
		Class   string        `xml:"classname,attr"`
		Time    string        `xml:"time,attr"`
		Failure *junitMessage `xml:"failure"`
		Skipped *junitMessage `xml:"skipped"`
		Out     string        `xml:"system-out,omitempty"`
	}
	junitMessage struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes the report as JUnit XML, one test suite a topic.
func (r *Report) WriteJUnit(w io.Writer) error {
	seconds := func(s float64) string { return fmt.Sprintf("%.3f", s) }
	all := junitSuites{Name: "s3rdma conformance", Tests: len(r.Results), Failures: r.Failed, Skipped: r.Skipped, Time: seconds(r.Seconds)}
	times := map[string]float64{}
	for _, x := range r.Results {
		topic := Case{ID: x.ID}.Topic()
		i := slices.IndexFunc(all.Suites, func(s junitSuite) bool { return s.Name == topic })
		if i < 0 {
			i = len(all.Suites)
			all.Suites = append(all.Suites, junitSuite{Name: topic, Timestamp: r.Started.UTC().Format("2006-01-02T15:04:05")})
		}
		s := &all.Suites[i]
		c := junitCase{Name: x.ID, Class: "conformance." + topic, Time: seconds(x.Seconds)}
		if x.Verdict != "" {
			c.Out = string(x.Verdict)
			if x.Status == Passed && x.Reason != "" {
				c.Out += ": " + x.Reason
			}
		}
		switch x.Status {
		case Failed:
			c.Failure = &junitMessage{Message: firstLine(x.Reason, 200), Text: x.Detail()}
			s.Failures++
		case Skipped:
			c.Skipped = &junitMessage{Message: x.Reason}
			s.Skipped++
		}
		s.Tests++
		times[topic] += x.Seconds
		s.Time = seconds(times[topic])
		s.Cases = append(s.Cases, c)
	}
	out := &errWriter{w: w}
	io.WriteString(out, xml.Header)
	enc := xml.NewEncoder(out)
	enc.Indent("", "  ")
	if err := enc.Encode(all); err != nil {
		return err
	}
	io.WriteString(out, "\n")
	return out.err
}
