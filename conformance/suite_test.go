// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/s3rdma/s3rdma/conformance/broken"
	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start serves a broken server, and returns the options to test it over a fabric, "" if it
// is switched off. What the suite leaves behind on it fails the test.
func start(t *testing.T, o broken.Options, fabric string) Options {
	t.Helper()
	s, err := broken.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		buckets, uploads, sessions := s.Leftovers()
		// A handler may not have noticed yet that its client has gone.
		for end := time.Now().Add(10 * time.Second); len(o.Broken) == 0 && sessions > 0 && time.Now().Before(end); _, _, sessions = s.Leftovers() {
			time.Sleep(5 * time.Millisecond)
		}
		if len(o.Broken) == 0 && buckets+uploads+sessions > 0 {
			t.Errorf("%d buckets, %d uploads and %d sessions were left behind", buckets, uploads, sessions)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return Options{Endpoint: s.Endpoint, AccessKey: broken.AccessKey, SecretKey: broken.SecretKey, Fabric: fabric, Off: o.Off,
		Second: &rawhttp.Credentials{AccessKey: broken.SecondAccessKey, SecretKey: broken.SecondSecretKey}, MaxObject: 6 << 20}
}

// TestACorrectServerPasses, and what can't be tested says why.
func TestACorrectServerPasses(t *testing.T) {
	for _, fabric := range []string{"shm", "tcp", ""} {
		t.Run(fabric, func(t *testing.T) {
			o := start(t, broken.Options{Off: fabric == ""}, fabric)
			if fabric == "tcp" { // hundreds of combinations, among which the fabric is none
				o.Select = topicsBut("integrity")
			}
			report, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range report.Results {
				switch {
				case r.Status == Failed:
					t.Error(r.Detail())
				case r.Status == Skipped && !strings.HasPrefix(r.ID, "encryption/sse-c") && r.Reason != ReasonNoPairs && !strings.Contains(r.Reason, "bounded") && !strings.HasPrefix(r.ID, "size/huge/"):
					t.Errorf("%s was skipped: %s", r.ID, r.Reason)
				}
			}
			if fabric != "" && report.Passed < 300 || fabric == "" && report.Passed < 60 {
				t.Errorf("only %s", report.Summary())
			}
		})
	}
}

// topicsBut selects all topics but one.
func topicsBut(left string) string {
	var topics []string
	for _, c := range Cases() {
		if topic := c.Topic() + "/"; topic != left+"/" && !slices.Contains(topics, topic) {
			topics = append(topics, topic)
		}
	}
	return strings.Join(topics, ",")
}

// TestEachSwitchIsCaught breaks the server in one way at a time. The suite is worth what
// it finds here.
func TestEachSwitchIsCaught(t *testing.T) {
	fabrics := []string{"shm", "tcp"}
	for i, sw := range broken.Switches() {
		t.Run(sw.Name, func(t *testing.T) {
			fabric := fabrics[i%len(fabrics)] // the suite does not know the difference
			if sw.Off {
				fabric = ""
			}
			o := start(t, broken.Options{Broken: []string{sw.Name}, Off: sw.Off}, fabric)
			o.Select = strings.Join(sw.Cases, ",")
			expectAllFail(t, o)
		})
	}
}

func expectAllFail(t *testing.T, o Options) {
	t.Helper()
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range strings.Split(o.Select, ",") {
		if !slices.ContainsFunc(report.Results, func(r Result) bool { ok, _ := path.Match(p, r.ID); return ok }) {
			t.Errorf("no case is called %s", p)
		}
	}
	for _, r := range report.Results {
		exact := slices.ContainsFunc(strings.Split(o.Select, ","), func(p string) bool { ok, _ := path.Match(p, r.ID); return ok })
		if exact && r.Status != Failed {
			t.Errorf("%s did not notice: %s %s", r.ID, r.Status, r.Reason)
		}
		if r.Status == Failed && (r.Reason == "" || r.Rule == "" || strings.Contains(r.Reason, "panicked")) {
			t.Errorf("%s: %s", r.ID, r.Reason)
		}
	}
}

// TestCasesAreNamedAndReasoned keeps the list fit for comparing reports.
func TestCasesAreNamedAndReasoned(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Cases() {
		if seen[c.ID] {
			t.Errorf("two cases are called %s", c.ID)
		}
		seen[c.ID] = true
		if c.ID != strings.ToLower(c.ID) || strings.ContainsAny(c.ID, " ,*") || !strings.Contains(c.ID, "/") {
			t.Errorf("%q is no good name", c.ID)
		}
		if c.Rule == "" || c.Source == "" || c.Level == 0 || c.Run == nil {
			t.Errorf("%s lacks a rule, a source, a level or a body", c.ID)
		}
	}
	if len(seen) < 300 {
		t.Errorf("only %d cases", len(seen))
	}
}

// TestReports: nothing confidential, and both machine formats can be read.
func TestReports(t *testing.T) {
	o := start(t, broken.Options{Broken: []string{"token-in-error"}}, "shm")
	o.Select = "descriptor/hidden,descriptor/malformed/short,put/size/1,encryption/sse-c"
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	var table, js, junit, page, expect bytes.Buffer
	for _, f := range []struct {
		to    *bytes.Buffer
		write func(io.Writer) error
	}{{&table, report.WriteTable}, {&js, report.WriteJSON}, {&junit, report.WriteJUnit}, {&page, report.WriteHTML}, {&expect, report.WriteExpectation}} {
		if err := f.write(f.to); err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{bareExample[:40], o.SecretKey, "Signature="} {
			if strings.Contains(f.to.String(), secret) {
				t.Errorf("a report shows %q:\n%s", secret, f.to)
			}
		}
	}
	var back struct {
		Passed, Failed, Skipped int
		Results                 []struct{ ID, Status, Reason, Rule string }
	}
	if err := json.Unmarshal(js.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if back.Failed == 0 || back.Passed == 0 || back.Skipped == 0 || len(back.Results) != back.Failed+back.Passed+back.Skipped {
		t.Errorf("JSON: %+v", back)
	}
	var suites junitSuites
	if err := xml.Unmarshal(junit.Bytes(), &suites); err != nil {
		t.Fatal(err)
	}
	if suites.Failures != back.Failed || suites.Tests != len(back.Results) || suites.Skipped != back.Skipped {
		t.Errorf("JUnit: %+v", suites)
	}
	var sum junitSuite
	for _, x := range suites.Suites {
		sum.Tests, sum.Failures, sum.Skipped = sum.Tests+x.Tests, sum.Failures+x.Failures, sum.Skipped+x.Skipped
		if x.Tests != len(x.Cases) {
			t.Errorf("JUnit: suite %s has %d tests and %d cases", x.Name, x.Tests, len(x.Cases))
		}
	}
	if sum.Tests != suites.Tests || sum.Failures != suites.Failures || sum.Skipped != suites.Skipped {
		t.Errorf("JUnit: the suites add up to %+v", sum)
	}
	for _, want := range []string{"<!DOCTYPE html>", `id="descriptor/hidden"`, "sent: PUT /", "This server speaks S3 over RDMA."} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	for _, foreign := range []string{"<script", "src=", "@import", "url("} {
		if strings.Contains(page.String(), foreign) {
			t.Errorf("the page is not whole by itself: %s", foreign)
		}
	}
	for _, want := range []string{"This server speaks S3 over RDMA.", "rule:", "source:", "sent:", "got:", "passed="} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table does not say %q:\n%s", want, table.String())
		}
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{
		{Endpoint: "http://h"},
		{Endpoint: "nowhere", AccessKey: "a", SecretKey: "s"},
		{Endpoint: "http://h", AccessKey: "a", SecretKey: "s", Fabric: "ether"},
		{Endpoint: "http://h", AccessKey: "a", SecretKey: "s", Fabric: "shm", Off: true},
		{Endpoint: "http://h", AccessKey: "a", SecretKey: "s", Select: "["},
		{Endpoint: "http://h", AccessKey: "a", SecretKey: "s", MaxObject: -1},
	} {
		if _, err := Run(t.Context(), o); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: error %v, want ErrOptions", o, err)
		}
	}
	server := httptest.NewServer(nil)
	server.Close()
	if _, err := Run(t.Context(), Options{Endpoint: server.URL, AccessKey: "a", SecretKey: "s"}); !errors.Is(err, ErrUnreachable) {
		t.Errorf("error %v, want ErrUnreachable", err)
	}
}

// TestDiscovery: what the server speaks is found out, and what applies is run.
func TestDiscovery(t *testing.T) {
	for _, tt := range []struct {
		name          string
		server        broken.Options
		rdma          string
		fabrics       []string
		fabric        string
		off           bool
		bare, unknown string // answers
		says          string
	}{
		{"on", broken.Options{}, rdmaYes, []string{"shm", "tcp"}, "shm", false, "declined", "declined", "speaks S3 over RDMA."},
		{"off", broken.Options{Off: true}, rdmaOff, nil, "none", true, "declined", "declined", "declines it"},
		{"ignores a dialect", broken.Options{Broken: []string{"unknown-dialect-passes-through"}}, rdmaYes, []string{"shm", "tcp"}, "shm", false, "declined", ignored, "speaks S3 over RDMA."},
		{"ignores all, but has sessions", broken.Options{Broken: []string{"token-ignored"}}, rdmaYes, []string{"shm", "tcp"}, "shm", false, ignored, ignored, "speaks S3 over RDMA."},
		{"no session can be completed", broken.Options{Broken: []string{"session-id-cut"}}, rdmaYes, []string{"shm", "tcp"}, "none", false, "declined", "declined", "speaks S3 over RDMA."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := start(t, tt.server, FabricAuto)
			o.Off = false
			o.Select = "plain/put-get,trap/get-off"
			told := -1
			o.Discovered = func(_ Speaks, cases int) { told = cases }
			report, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			s := report.Speaks
			if s.RDMA != tt.rdma || !slices.Equal(s.Fabrics, tt.fabrics) || report.Fabric != tt.fabric || report.Off != tt.off {
				t.Errorf("rdma %s, fabrics %v, chosen %s, off=%t", s.RDMA, s.Fabrics, report.Fabric, report.Off)
			}
			answers := map[string]string{}
			for _, a := range s.Answers {
				answers[a.Dialect] = a.Answer
			}
			if answers["bare"] != tt.bare || answers["libfabric"] != tt.unknown || !strings.Contains(s.Sentence(), tt.says) {
				t.Errorf("%s %v", s.Sentence(), answers)
			}
			if want := 1; tt.off && told != 2 || !tt.off && told != want {
				t.Errorf("%d cases were announced", told)
			}
			if (s.PolicyPut == "region" && s.SmallestWindow == 1) != (tt.fabric != "none" && tt.bare != ignored) {
				t.Errorf("smallest window %d, policy %q", s.SmallestWindow, s.PolicyPut)
			}
		})
	}
}

// TestDiscoveryOfPairs: a server that speaks hipobj-rc-v2 is told from one that takes its
// path for a bucket's, and from one that declines it.
func TestDiscoveryOfPairs(t *testing.T) {
	for _, tt := range []struct {
		prepare, other int
		status         string
		pairs          bool
		rdma           string
	}{
		{400, 404, "", true, rdmaYes}, {400, 400, "", false, rdmaNo}, {405, 405, "", false, rdmaNo}, {501, 404, "unsupported", false, rdmaOff},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/.hipobj-rc/prepare":
				w.Header().Set(headerHipStatus, tt.status)
				w.WriteHeader(tt.prepare)
			case strings.HasPrefix(r.URL.Path, "/.hipobj-rc/"):
				w.WriteHeader(tt.other)
			case strings.Count(r.URL.Path, "/") > 1:
				w.WriteHeader(404)
			}
		}))
		report, err := Run(t.Context(), Options{Endpoint: server.URL, AccessKey: "a", SecretKey: "s", Fabric: FabricAuto, Select: "no/such"})
		server.Close()
		if err != nil || report.Speaks.Pairs != tt.pairs || report.Speaks.RDMA != tt.rdma {
			t.Errorf("%+v: %+v, %v", tt, report.Speaks, err)
		}
	}
}

// TestExpectation: only what has become worse counts.
func TestExpectation(t *testing.T) {
	run := func(sw ...string) Report {
		o := start(t, broken.Options{Broken: sw}, "tcp")
		o.Select = "get/size/,get/window,encryption/sse-c"
		report, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	good, cut := run(), run("get-cut")
	var file bytes.Buffer
	if err := cut.WriteExpectation(&file); err != nil {
		t.Fatal(err)
	}
	text := file.String()
	expected, err := ReadExpectation(&file)
	if err != nil || expected["get/window-too-small"] != Failed || expected["encryption/sse-c"] != Skipped || expected["get/size/1"] != Passed {
		t.Fatalf("%v %v", expected, err)
	}
	if d := cut.Compare(expected); !d.OK() || len(d.New)+len(d.Fixed)+len(d.Gone) > 0 {
		t.Errorf("the same again: %+v", d)
	}
	if d := good.Compare(expected); !d.OK() || !slices.Equal(d.Fixed, []string{"get/window-too-small"}) {
		t.Errorf("a better server: %+v", d)
	}
	worse := run("get-cut", "empty-without-count")
	if d := worse.Compare(expected); d.OK() || !slices.Equal(d.Regressed, []string{"get/size/0"}) {
		t.Errorf("a worse server: %+v", d)
	}
	delete(expected, "get/size/1")
	expected["get/never-was"], expected["encryption/sse-c"] = Passed, Passed
	d := cut.Compare(expected)
	var said bytes.Buffer
	if err := d.Write(&said); err != nil {
		t.Fatal(err)
	}
	if d.OK() || !slices.Equal(d.New, []string{"get/size/1"}) || !slices.Equal(d.Untested, []string{"encryption/sse-c"}) || !slices.Equal(d.Gone, []string{"get/never-was"}) ||
		!strings.Contains(said.String(), "regressed=0 untested=1 fixed=0 new=1 gone=1") {
		t.Errorf("%+v\n%s", d, said.String())
	}
	for _, bad := range []string{"pass", "maybe get/size/1", "pass a b", text + text} {
		if _, err := ReadExpectation(strings.NewReader(bad)); !errors.Is(err, ErrExpectation) {
			t.Errorf("%.20q: error %v", bad, err)
		}
	}
}

// TestInterrupted: what was run is reported, and what was made is removed, wherever it
// was that the run ended.
func TestInterrupted(t *testing.T) {
	for _, after := range []string{"put/size/1", "client/nixl/part", "multipart/mixed", "version/put-get"} {
		o := start(t, broken.Options{}, "tcp")
		o.Select = Case{ID: after}.Topic() + "/"
		ctx, cancel := context.WithCancel(t.Context())
		o.Progress = func(r Result) {
			if r.ID == after {
				cancel()
			}
		}
		report, err := Run(ctx, o)
		if !errors.Is(err, context.Canceled) || len(report.Results) == 0 || report.Results[len(report.Results)-1].ID != after {
			t.Errorf("%d results, error %v", len(report.Results), err)
		}
	}
	for ms := 1; ms < 100; ms += 16 { // in the middle of whatever it is then
		o := start(t, broken.Options{}, "shm")
		o.Select = "multipart/"
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(ms)*time.Millisecond)
		if report, _ := Run(ctx, o); report.Failed > 0 {
			t.Errorf("%s failed because it was interrupted", report.Results[len(report.Results)-1].ID)
		}
		cancel()
	}
}

// TestBucketOfTheUsers: nothing of a run stays, and nothing else goes.
func TestBucketOfTheUsers(t *testing.T) {
	o := start(t, broken.Options{}, "tcp")
	c, err := rawhttp.New(rawhttp.Config{Endpoint: o.Endpoint, Credentials: rawhttp.Credentials{AccessKey: o.AccessKey, SecretKey: o.SecretKey}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	do := func(r rawhttp.Request, want int) *rawhttp.Response {
		t.Helper()
		r.Bucket = "theirs"
		resp, err := c.Do(t.Context(), r)
		if err != nil || resp.Status != want {
			t.Fatalf("%s %s: %+v, %v", r.Method, r.Key, resp, err)
		}
		return resp
	}
	do(rawhttp.Request{Method: "PUT"}, 200)
	do(rawhttp.Request{Method: "PUT", Key: "s3rdma-conformance", Body: []byte("theirs")}, 200)
	do(rawhttp.Request{Method: "POST", Key: "theirs", Query: query("uploads", "")}, 200)
	o.Bucket, o.Select = "theirs", "plain/,put/,multipart/,metadata/,version/,client/nixl"
	report, err := Run(t.Context(), o)
	if err != nil || report.Failed > 0 {
		t.Fatalf("%s, %v", report.Summary(), err)
	}
	if l := do(rawhttp.Request{Method: "GET", Query: query("versions", "")}, 200); strings.Count(string(l.Body), "<Key>") != 1 {
		t.Errorf("there are: %s", l.Body)
	}
	uploads := do(rawhttp.Request{Method: "GET", Query: query("uploads", "")}, 200)
	if strings.Count(string(uploads.Body), "<Key>") != 1 {
		t.Errorf("there are: %s", uploads.Body)
	}
	empty(t.Context(), c, "theirs", "")
	do(rawhttp.Request{Method: "DELETE"}, 204)
}
