// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/s3rdma/s3rdma/conformance"
	"github.com/s3rdma/s3rdma/conformance/broken"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTryOne: a switch is caught if all its cases fail, and else it is said which do not.
func TestTryOne(t *testing.T) {
	for _, tt := range []struct {
		sw     broken.Switch
		missed []string
	}{
		{broken.Switch{Name: "get-cut", Cases: []string{"get/window-too-small"}}, nil},
		{broken.Switch{Name: "get-cut", Cases: []string{"get/window-too-small", "put/size/1", "get/window*", "no/such"}}, []string{"put/size/1", "get/window*", "no/such"}},
		{broken.Switch{Name: "off-passes-through", Off: true, Cases: []string{"trap/put/bare"}}, nil},
	} {
		missed, err := tryOne(t.Context(), tt.sw, "shm")
		if err != nil || !slices.Equal(missed, tt.missed) {
			t.Errorf("%v: missed %v, %v", tt.sw, missed, err)
		}
	}
	if _, err := tryOne(t.Context(), broken.Switch{Name: "no-such"}, "shm"); err == nil {
		t.Error("no error for a switch that does not exist")
	}
}

// unwitting is a report of a server that knows nothing, as the files expect it.
func unwitting(t *testing.T, name string) conformance.Report {
	t.Helper()
	text, err := expectations.ReadFile("expect/" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	e, err := conformance.ReadExpectation(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	r := conformance.Report{Fabric: "none"}
	r.Speaks.RDMA = "no"
	for _, c := range conformance.Cases() {
		if s, ok := e[c.ID]; ok {
			r.Results = append(r.Results, conformance.Result{ID: c.ID, Status: s})
		}
	}
	for _, m := range conformance.Models() {
		c := conformance.ClientVerdict{Name: m.Name, Verdict: conformance.Fails}
		if slices.Contains(LosersAtStock, m.Name) {
			c.Verdict = conformance.LosesData
		}
		r.Clients = append(r.Clients, c)
	}
	return r
}

// TestKnowsNothing: whatever differs from what is expected of such a server is a problem.
func TestKnowsNothing(t *testing.T) {
	for _, name := range []string{"stock", "versitygw"} {
		for _, tt := range []struct {
			what   string
			change func(r *conformance.Report)
			failed int
			says   string // "" is no problem
		}{
			{"nothing", func(*conformance.Report) {}, 0, ""},
			{"speaks RDMA", func(r *conformance.Report) { r.Speaks.RDMA = "yes" }, 0, "found out RDMA yes"},
			{"does not trap", func(r *conformance.Report) {
				for i := range r.Results {
					if r.Results[i].ID == "trap/put/bare" {
						r.Results[i].Status = conformance.Passed
					}
				}
			}, 1, "the empty-object trap is not shown"},
			{"fails a plain case", func(r *conformance.Report) { r.Results[0].Status = conformance.Failed }, 1, "plain/put-get: FAIL, want pass"},
			{"loses nothing", func(r *conformance.Report) { r.Clients[1].Verdict = conformance.Fails }, 0, "client nixl-early: fails, want LOSES DATA"},
			{"loses more", func(r *conformance.Report) { r.Clients[0].Verdict = conformance.LosesData }, 0, "client nixl: LOSES DATA"},
			{"lacks a client", func(r *conformance.Report) { r.Clients = r.Clients[1:] }, 0, "clients were tried"},
		} {
			report := unwitting(t, name)
			tt.change(&report)
			r := &run{out: io.Discard}
			if err := r.knowsNothing(name, report, LosersAtStock); err != nil {
				t.Fatal(err)
			}
			if r.OK() != (tt.says == "") || r.Failed != tt.failed || r.Cases != r.Passed+r.Failed || r.Cases < 30 || !strings.Contains(strings.Join(r.Problems, "\n"), tt.says) {
				t.Errorf("%s %s: %s %q", name, tt.what, r.Line(), r.Problems)
			}
		}
	}
}

// TestAbsent: what is not there is left out, and said.
func TestAbsent(t *testing.T) {
	var said bytes.Buffer
	r := &run{out: &said}
	if r.there("a", "") || r.there("b", filepath.Join(t.TempDir(), "b")) || len(r.Absent) != 2 || !strings.Contains(said.String(), "NOT TESTED: b:") {
		t.Errorf("%q %s", r.Absent, said.String())
	}
	self, err := os.Executable()
	if err != nil || !r.there("c", self) || !r.OK() {
		t.Errorf("%q %v", r.Absent, err)
	}
}
