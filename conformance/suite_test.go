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
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
	"github.com/s3rdma/s3rdma/rdmaio"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start serves a fake with one defect, and returns the options to test it.
func start(t *testing.T, d defect, off bool) Options {
	t.Helper()
	f := &fakeRDMA{s3: newFakeS3(map[string]string{"first": "secret-1", "second": "secret-2"}), defect: d, off: off,
		sessions: map[rdmaio.SessionID]*fakeSession{}}
	server := httptest.NewServer(f)
	t.Cleanup(func() {
		server.Close()
		f.s3.mu.Lock()
		defer f.s3.mu.Unlock()
		if len(f.s3.buckets) > 0 || len(f.s3.uploads) > 0 {
			t.Errorf("%d buckets and %d uploads were left behind", len(f.s3.buckets), len(f.s3.uploads))
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.sessions) > 0 && d == "" {
			t.Errorf("%d sessions were left behind", len(f.sessions))
		}
	})
	o := Options{Endpoint: server.URL, AccessKey: "first", SecretKey: "secret-1", Off: off,
		Second: &rawhttp.Credentials{AccessKey: "second", SecretKey: "secret-2"}, MaxObject: 6 << 20}
	if !off {
		o.NewTarget = func(context.Context) (rdmaio.Target, error) { return newFakeTarget(f), nil }
		o.Fabric = "tcp"
	}
	return o
}

// TestACorrectServerPasses, and what can't be tested says why.
func TestACorrectServerPasses(t *testing.T) {
	for _, off := range []bool{false, true} {
		o := start(t, "", off)
		report, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range report.Results {
			switch {
			case r.Status == Failed:
				t.Errorf("off=%t: %s", off, r.Detail())
			case r.Status == Skipped && !strings.HasPrefix(r.ID, "encryption/") && !strings.HasPrefix(r.ID, "version/") &&
				!strings.Contains(r.Reason, "bounded"):
				t.Errorf("off=%t: %s was skipped: %s", off, r.ID, r.Reason)
			}
		}
		if !off && report.Passed < 120 || off && report.Passed < 25 {
			t.Errorf("off=%t: only %s", off, report.Summary())
		}
	}
}

// TestEachDefectIsFound breaks the server in one way at a time. The suite is worth
// what it finds here.
func TestEachDefectIsFound(t *testing.T) {
	for _, tt := range []struct {
		defect defect
		cases  string // that must fail, patterns separated by commas
	}{
		{"what is not understood is ignored", "trap/put/libfabric,descriptor/unknown-dialect,descriptor/malformed/text"},
		{"unknown sessions are empty objects", "session/unknown,trap/put/session-tcp,trap/part"},
		{"an empty window is an empty object", "put/zero-window,multipart/zero-window"},
		{"short transfers are stored", "put/beyond-registration"},
		{"the last byte is lost", "put/size/4096,multipart/mixed,put/inside-registration"},
		{"a PUT bears no reply", "put/size/1"},
		{"a PUT bears no ETag", "put/size/1"},
		{"checksums are not verified", "checksum/wrong/*,checksum/of-nothing/*,multipart/wrong-checksum"},
		{"checksums are not verified", "checksum/part/*,checksum/never-ignored"},
		{"a range's checksum is another's", "policy/get/crc32,policy/get/sha256,policy/get-part"},
		{"a request can ask for less", "policy/no-less"},
		{"policies need no signature", "policy/unsigned"},
		{"the payload's hash may be missing", "policy/envelope"},
		{"a damaged block is stored", "policy/blocks-put"},
		{"metadata is dropped", "metadata/headers"},
		{"unsigned descriptors are served", "descriptor/unsigned-put,descriptor/unsigned-get,descriptor/presigned-unsigned"},
		{"anonymous descriptors are served", "descriptor/anonymous"},
		{"sessions serve anybody", "session/other-identity"},
		{"connect needs no signature", "session/connect-unsigned"},
		{"disconnect does nothing", "session/disconnect"},
		{"malformed is declined", "descriptor/malformed/*"},
		{"unknown dialects are malformed", "descriptor/unknown-dialect"},
		{"errors show the descriptor", "descriptor/hidden"},
		{"keys are not checked", "put/wrong-key,get/wrong-key,put/stale-key,get/stale-key,multipart/wrong-key"},
		{"a body is ignored", "body/with-descriptor,body/as-long-as-window,body/transfer-encoding,body/aws-chunked"},
		{"the window is not written", "get/size/1,get/size/4096,range/middle"},
		{"a byte too many is written", "get/size/4096,get/window-larger,range/suffix"},
		{"a byte before is written", "get/size/4096,get/inside-registration"},
		{"what does not fit is cut", "get/window-too-small,range/window-too-small"},
		{"a range's offset is the window's", "range/middle,range/suffix,range/part-number"},
		{"a range's reply is 200", "range/middle,range/part-number"},
		{"partNumber answers 200", "range/part-number,range/part-number-single"},
		{"no count for empty objects", "get/size/0"},
		{"failed conditions write", "condition/get-if-match-fails"},
		{"bytes arrive after the answer", "get/no-late-writes"},
		{"the body comes by HTTP, too", "lifecycle/payload,get/size/1"},
		{"HEAD handled as GET", "other/head"},
		{"subresources are taken for objects", "other/subresources,other/tagging"},
		{"copy declined", "other/copy,other/part-copy"},
	} {
		t.Run(string(tt.defect), func(t *testing.T) {
			if raceEnabled && tt.defect == "bytes arrive after the answer" {
				t.Skip("that defect is a data race by nature")
			}
			o := start(t, tt.defect, false)
			o.Select = tt.cases
			expectAllFail(t, o)
		})
	}
	t.Run("passed through when off", func(t *testing.T) {
		o := start(t, "passed through when off", true)
		o.Select = "trap/put/bare,trap/put/alias,trap/put/over-object,trap/part,trap/get-off"
		expectAllFail(t, o)
	})
}

func expectAllFail(t *testing.T, o Options) {
	t.Helper()
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Results) == 0 {
		t.Fatal("no case was run")
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
		if r.Status == Failed && (r.Reason == "" || strings.Contains(r.Reason, "panicked")) {
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
	if len(seen) < 60 {
		t.Errorf("only %d cases", len(seen))
	}
}

// TestReports: nothing confidential, and both machine formats can be read.
func TestReports(t *testing.T) {
	o := start(t, "errors show the descriptor", false)
	o.Select = "descriptor/hidden,descriptor/malformed/short,put/size/1,encryption/sse-s3"
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	var table, js, junit bytes.Buffer
	for _, f := range []struct {
		to    *bytes.Buffer
		write func(io.Writer) error
	}{{&table, report.WriteTable}, {&js, report.WriteJSON}, {&junit, report.WriteJUnit}} {
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
	for _, want := range []string{"rule:", "source:", "sent:", "got:", "passed="} {
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

// TestInterrupted: what was run is reported, and what was made is removed.
func TestInterrupted(t *testing.T) {
	o := start(t, "", false)
	ctx, cancel := context.WithCancel(t.Context())
	o.Progress = func(r Result) {
		if r.ID == "put/size/1" {
			cancel()
		}
	}
	report, err := Run(ctx, o)
	if !errors.Is(err, context.Canceled) || len(report.Results) == 0 || report.Results[len(report.Results)-1].ID != "put/size/1" {
		t.Errorf("%d results, error %v", len(report.Results), err)
	}
}
