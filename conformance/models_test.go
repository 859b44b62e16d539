// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/s3rdma/s3rdma/conformance/broken"
	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

// reply makes an answer from its status, reply, byte count and ETag; "-" is absent.
func reply(status int, code, count, etag string) *rawhttp.Response {
	h := http.Header{}
	for name, v := range map[string]string{headerReply: code, headerBytes: count, "Etag": etag} {
		if v != "-" {
			h.Set(name, v)
		}
	}
	return &rawhttp.Response{Status: status, Header: h}
}

// TestAcceptance is the matrix of what each client takes for a success.
func TestAcceptance(t *testing.T) {
	answers := map[string]*rawhttp.Response{
		"profile":      reply(200, "200", "100", `"e"`),
		"stock":        reply(200, "-", "-", `"e"`),
		"no etag":      reply(200, "200", "100", "-"),
		"empty etag":   reply(200, "200", "100", `""`),
		"204":          reply(200, "204", "100", `"e"`),
		"text":         reply(200, "200 OK", "100", `"e"`),
		"no count":     reply(200, "200", "-", `"e"`),
		"n/total":      reply(200, "200", "100/100", `"e"`),
		"zero":         reply(200, "200", "0", `"e"`),
		"too many":     reply(200, "200", "101", `"e"`),
		"partial":      reply(206, "206", "100", `"e"`),
		"unpaired":     reply(206, "200", "100", `"e"`),
		"declined":     reply(501, "501", "-", "-"),
		"polite":       reply(200, "501", "-", `"e"`),
		"polite, bare": reply(200, "501", "-", "-"),
		"failed":       reply(500, "-", "-", "-"),
		"http 204":     reply(204, "200", "100", `"e"`),
	}
	put := map[string][]string{
		"nixl":                 {"profile", "no count", "n/total", "zero", "too many"},
		"nixl-early":           {"profile", "stock", "204", "text", "no count", "n/total", "zero", "too many", "polite"},
		"nixl-dell":            {"profile", "stock", "no etag", "empty etag", "204", "text", "no count", "n/total", "zero", "too many", "polite", "polite, bare", "http 204"},
		"minio-cpp":            {"profile", "stock", "no etag", "empty etag", "204", "text", "no count", "n/total", "zero", "too many", "polite", "unpaired", "http 204"},
		"noobaa":               {"profile", "no etag", "empty etag", "204", "zero", "too many"},
		"multi-storage-client": {"profile", "stock", "no etag", "empty etag", "204", "no count", "n/total", "zero", "too many", "http 204"},
		"versitygw":            {"profile", "no etag", "empty etag", "204", "no count", "n/total", "zero", "too many"},
		"elbencho":             {"profile", "stock", "empty etag", "204", "text", "no count", "n/total", "zero", "too many", "polite"},
	}
	put["minio-rs"], put["minio-go"] = put["minio-cpp"], put["minio-cpp"]
	// Bytes that a GET of 100 is believed to have brought.
	get := map[string]map[string]int{
		"nixl":                 {"profile": 100, "no etag": 100, "empty etag": 100, "zero": 0, "partial": 100},
		"nixl-early":           {"profile": 100, "no etag": 100, "empty etag": 100, "text": 100, "no count": 100, "n/total": 100, "zero": 0, "partial": 100, "unpaired": 100, "http 204": 100},
		"nixl-dell":            {"profile": 100, "stock": 100, "no etag": 100, "empty etag": 100, "204": 100, "text": 100, "no count": 100, "n/total": 100, "zero": 100, "too many": 100, "partial": 100, "unpaired": 100, "polite": 100, "polite, bare": 100},
		"minio-rs":             {"profile": 100, "no etag": 100, "empty etag": 100, "text": 100, "no count": 100, "zero": 100, "partial": 100, "unpaired": 100, "http 204": 100},
		"noobaa":               {"profile": 100, "no etag": 100, "empty etag": 100, "204": 100, "zero": 0, "partial": 100, "unpaired": 100},
		"multi-storage-client": {"profile": 100, "no etag": 100, "empty etag": 100, "zero": 0, "partial": 100, "unpaired": 100},
		"versitygw":            {"profile": 100, "no etag": 100, "empty etag": 100, "204": 100, "no count": 100, "zero": 0, "partial": 100, "unpaired": 100},
		"elbencho":             {"profile": 100, "no etag": 100, "empty etag": 100, "no count": 100, "n/total": 100, "zero": 0, "partial": 100, "unpaired": 100, "http 204": 100},
	}
	get["minio-cpp"] = get["nixl-early"]
	get["minio-go"] = get["nixl-early"]
	for _, m := range Models() {
		var accepted []string
		believed := map[string]int{}
		for _, name := range slices.Sorted(maps.Keys(answers)) {
			if m.succeeded(m.put, answers[name]) == "" {
				accepted = append(accepted, name)
			}
			if n, why := m.received(answers[name], 100); why == "" {
				believed[name] = n
			}
		}
		slices.Sort(put[m.Name])
		want := slices.Compact(slices.Clone(put[m.Name]))
		if diff := cmp.Diff(want, accepted); diff != "" {
			t.Errorf("%s, PUT (-want +got):\n%s", m.Name, diff)
		}
		if diff := cmp.Diff(get[m.Name], believed); diff != "" {
			t.Errorf("%s, GET (-want +got):\n%s", m.Name, diff)
		}
	}
}

// TestClients runs the models against servers that are broken in ways of which some
// clients notice nothing.
func TestClients(t *testing.T) {
	all := func(v Verdict, names ...string) map[string]Verdict {
		m := map[string]Verdict{}
		for _, n := range names {
			m[n] = v
		}
		return m
	}
	for _, tt := range []struct {
		broken string
		op     string
		want   map[string]Verdict // others: Works
	}{
		{"", "put", nil},
		{"", "get", nil},
		{"token-ignored", "put", map[string]Verdict{"nixl": Fails, "nixl-early": LosesData, "nixl-dell": LosesData, "minio-cpp": LosesData, "minio-rs": LosesData,
			"minio-go": LosesData, "noobaa": Fails, "multi-storage-client": Fails, "versitygw": Fails, "elbencho": LosesData}},
		{"token-ignored", "part", map[string]Verdict{"nixl": Fails, "nixl-early": LosesData, "minio-cpp": ByHTTP, "minio-rs": ByHTTP,
			"noobaa": Fails, "multi-storage-client": Fails}},
		{"token-ignored", "get", map[string]Verdict{"nixl": Fails, "nixl-early": Fails, "nixl-dell": LosesData, "minio-cpp": ByHTTP, "minio-rs": ByHTTP,
			"minio-go": ByHTTP, "noobaa": Fails, "multi-storage-client": Fails, "versitygw": Fails, "elbencho": Fails}},
		{"range-reply-200", "range", all(Fails, "nixl")},
		{"put-without-reply", "put", all(Fails, "nixl", "noobaa", "versitygw")},
		{"put-reply-204", "put", all(Fails, "nixl")},
		{"put-without-etag", "put", all(Fails, "nixl", "nixl-early", "elbencho")},
		{"put-without-count", "put", all(Fails, "noobaa")},
		{"get-without-count", "get", all(Fails, "nixl", "noobaa", "multi-storage-client")},
		{"get-count-with-total", "get", map[string]Verdict{"nixl": Fails, "noobaa": Fails, "multi-storage-client": Fails, "versitygw": Fails, "minio-rs": ByHTTP}},
		{"get-not-written", "get", all(LosesData, "nixl", "nixl-early", "nixl-dell", "minio-cpp", "minio-rs", "minio-go", "noobaa", "multi-storage-client", "versitygw", "elbencho")},
		{"put-last-byte-lost", "put", map[string]Verdict{"nixl": LosesData, "nixl-early": LosesData, "nixl-dell": LosesData, "minio-cpp": LosesData, "minio-rs": LosesData,
			"minio-go": LosesData, "noobaa": LosesData, "multi-storage-client": Fails, "versitygw": LosesData, "elbencho": LosesData}},
		{"decline-by-200", "put-unserved", map[string]Verdict{"nixl": Fails, "nixl-early": LosesData, "nixl-dell": LosesData, "minio-cpp": LosesData, "minio-rs": LosesData,
			"minio-go": LosesData, "noobaa": Fails, "multi-storage-client": Fails, "versitygw": Fails, "elbencho": LosesData}},
	} {
		t.Run(tt.broken+" "+tt.op, func(t *testing.T) {
			o := broken.Options{}
			if tt.broken != "" {
				o.Broken = []string{tt.broken}
			}
			run := start(t, o, "tcp")
			run.Select = "client/*/" + tt.op
			report, err := Run(t.Context(), run)
			if err != nil {
				t.Fatal(err)
			}
			if len(report.Clients) < 6 {
				t.Errorf("%d clients", len(report.Clients))
			}
			for _, c := range report.Clients {
				want := tt.want[c.Name]
				if want == "" {
					want = Works
				}
				if c.Operations[tt.op] != want || c.Verdict != want || (c.Why == "") != (want == Works) {
					t.Errorf("%s: %s (%s), want %s: %s", c.Name, c.Operations[tt.op], c.Verdict, want, c.Why)
				}
			}
			for _, r := range report.Results {
				if lost := r.Verdict == LosesData; lost && r.Status != Failed {
					t.Errorf("%s: %s, but the case is %s", r.ID, r.Verdict, r.Status)
				}
			}
		})
	}
}
