// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	_ "embed"
	"html/template"
	"io"
	"strings"
)

//go:embed report.html
var reportPage string

// topicResults are the cases of a topic.
type topicResults struct {
	Name                    string
	Passed, Failed, Skipped int
	Results                 []Result
}

var reportTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	// class names a status or verdict for the style sheet.
	"class": func(s any) string {
		switch s {
		case Passed, Works:
			return "good"
		case Failed, LosesData:
			return "bad"
		case Fails:
			return "poor"
		}
		return "fair"
	},
	"lower": func(s Status) string { return strings.ToLower(string(s)) },
}).Parse(reportPage))

// WriteHTML writes the report as one page that needs nothing else: no script, no font, no
// image from elsewhere.
func (r *Report) WriteHTML(w io.Writer) error {
	var topics []*topicResults
	for _, x := range r.Results {
		name := Case{ID: x.ID}.Topic()
		if len(topics) == 0 || topics[len(topics)-1].Name != name {
			topics = append(topics, &topicResults{Name: name})
		}
		t := topics[len(topics)-1]
		t.Results = append(t.Results, x)
		switch x.Status {
		case Passed:
			t.Passed++
		case Failed:
			t.Failed++
		case Skipped:
			t.Skipped++
		}
	}
	var speaks strings.Builder
	r.Speaks.write(&speaks)
	return reportTemplate.Execute(w, struct {
		*Report
		Speaking   string
		Operations []string
		Topics     []*topicResults
	}{r, speaks.String(), clientOperations, topics})
}
