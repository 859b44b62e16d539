// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseMoved(t *testing.T) {
	text := []byte(`# HELP s3rdma_paths_total x
# TYPE s3rdma_paths_total counter
s3rdma_paths_total{op="GetObject",path="direct",reason="",transport="shm"} 12
s3rdma_paths_total{op="PutObject",path="direct",reason="",transport="shm"} 3
s3rdma_paths_total{op="GetObject",path="diverted",reason="encrypted",transport="shm"} 1e+06
s3rdma_paths_total{op="GetObject",path="direct",reason="",transport="tcp"} 99
s3rdma_requests_total{op="GetObject",outcome="served"} 7
s3rdma_bytes_total{op="GetObject",transport="shm"} 1e+09
s3rdma_bytes_total{op="PutObject",transport="shm"} 5
s3rdma_bytes_total{op="GetObject",transport="tcp"} 77
`)
	got, bytes, err := parseMoved(text, "shm")
	if diff := cmp.Diff(ways{"direct": 15, "diverted (encrypted)": 1e6}, got); err != nil || diff != "" || bytes != 1e9+5 {
		t.Errorf("%d bytes, %v %s", bytes, err, diff)
	}
	if _, _, err := parseMoved([]byte(`s3rdma_paths_total{transport="shm"} many`), "shm"); err == nil {
		t.Error("no error for what is no number")
	}
	got.add(ways{"direct": 15, "http": 2}, -1)
	if diff := cmp.Diff(ways{"diverted (encrypted)": 1e6, "http": -2}, got); diff != "" {
		t.Error(diff)
	}
}

func TestFitting(t *testing.T) {
	o := Options{Sizes: []int64{mib, 64 * mib, gib}, Concurrency: []int{1, 4}, Memory: 4 * gib}
	buffers, fits := o.fitting(2)
	// 2 x (1024 + 3 x 64) + 1024 MiB; 4 GiB at once would be far more.
	if diff := cmp.Diff([]int64{gib, 64 * mib, 64 * mib, 64 * mib}, buffers); diff != "" {
		t.Error(diff)
	}
	if len(fits) != 5 || fits[load{gib, 4}] {
		t.Errorf("what fits: %v", fits)
	}
	o.Memory = 3 * gib // as it is without the others
	if buffers, fits = o.fitting(2); buffers[0] != 64*mib || fits[load{gib, 1}] {
		t.Errorf("buffers %v, what fits %v", buffers, fits)
	}
	o.Memory = 100
	if buffers, _ := o.fitting(2); len(buffers) != 0 {
		t.Errorf("100 bytes are enough for %v", buffers)
	}
}

func TestOptions(t *testing.T) {
	good := Options{Fork: "a", Stock: "b"}
	if err := good.fill(); err != nil {
		t.Fatal(err)
	}
	if good.Sizes[0] != 64*kib || good.Sizes[len(good.Sizes)-1] != gib || len(good.Ops) != 2 {
		t.Errorf("defaults %+v", good)
	}
	for name, bad := range map[string]Options{
		"no binary":    {Stock: "b"},
		"no size":      {Fork: "a", Stock: "b", Sizes: []int64{0}},
		"too large":    {Fork: "a", Stock: "b", Sizes: []int64{4 * gib}},
		"no requests":  {Fork: "a", Stock: "b", Concurrency: []int{0}},
		"three drives": {Fork: "a", Stock: "b", Drives: 3},
		"negative":     {Fork: "a", Stock: "b", Repeat: -1},
	} {
		if err := bad.fill(); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func testReport() Report {
	cpu := func(v float64) Floor { return Floor{CPU: Spread{3, v, v, v}, Rate: Spread{3, 1 / v, 1 / v, 1 / v}} }
	floors := Floors{Size: gib, Data: 2, Parity: 2, Read: cpu(0.25), Hash: cpu(0.125), Copy: cpu(0.125), CopyIn: cpu(0.125),
		Encode: cpu(0.125), HashAll: cpu(0.25), Write: cpu(0.5), MD5: cpu(1), Checksum: cpu(0.1), Gather: cpu(0.1)}
	windows := func(took, server, client time.Duration) []window {
		w := window{took: took, server: server, client: client, ops: 1, latencies: []time.Duration{took}, ways: ways{"direct": 1}}
		return []window{w, w, w}
	}
	b := &bench{report: Report{Title: "title", Environment: Environment{Drives: 4, Repeat: 3, Window: 1}}}
	get, put := cell{op: Get, size: gib, workers: 1}, cell{op: Put, size: gib, workers: 1}
	healthy := &side{name: sideHealthy, fabric: "shm"}
	http := &side{name: sideHTTP}
	const ms = time.Millisecond
	b.finish([]*rowBuilder{
		{side: healthy, cell: get, windows: windows(250*ms, 600*ms, 5*ms)},
		{side: http, cell: get, windows: windows(1000*ms, 900*ms, 200*ms)},
		{side: &side{name: sideOneLost, fabric: "shm", healthy: healthy}, cell: get, windows: windows(275*ms, 650*ms, 5*ms)},
		{side: &side{name: sideTwoLost, fabric: "shm", healthy: healthy}, cell: get, windows: windows(300*ms, 700*ms, 5*ms)},
		{side: &side{name: sideFast, fabric: "shm"}, cell: put, windows: windows(1000*ms, 1500*ms, 50*ms)},
		{side: &side{name: sideMD5, fabric: "shm"}, cell: put, windows: windows(2000*ms, 3000*ms, 50*ms)},
		{side: http, cell: put, windows: windows(3000*ms, 4000*ms, 400*ms)},
	}, floors)
	b.report.Result = directLine(b.report.Rows)
	return b.report
}

func TestResultLine(t *testing.T) {
	const want = "bench-direct: get_cpu_over_floor=1.20 get_over_http=4.00 degraded_over_healthy=0.83 put_cpu_over_floor=1.50 put_over_http=3.00 client_cpu_http_over_fabric=40.0"
	if got := testReport().Result; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestTable(t *testing.T) {
	r := testReport()
	r.LeftOut = []string{"something"}
	var b bytes.Buffer
	if err := r.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{
		"GET 1 GiB 1 shm 4.00 (4.00..4.00) 4.00x (4.00x..4.00x) - 2.00x 0.600 (0.600..0.600) 1.20x 0.0050 (0.0050..0.0050) 0.040x 40x (40x..40x) 250.00 250.00 3",
		"shm, 2 drives lost 3.33 (3.33..3.33) 3.33x (3.33x..3.33x) 0.83x (0.83x..0.83x)",
		"GET: read + hash + copy 0.500 2.00", "PUT: copy in + encode + hash all + write 1.000 1.00", "direct 100%", "left out: something",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
	var lines []string
	for _, l := range strings.Split(b.String(), "\n") {
		if strings.HasPrefix(l, "OP ") || strings.HasPrefix(l, "GET ") || strings.HasPrefix(l, "PUT ") {
			lines = append(lines, l)
		}
	}
	at := strings.Index(lines[0], "SERVER CPU")
	for _, l := range lines[1:] {
		if l[at-1] != ' ' || l[at] == ' ' {
			t.Errorf("the column does not begin where its title does: %q", l)
		}
	}
}

func TestJSON(t *testing.T) {
	r := testReport()
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, back); diff != "" {
		t.Error(diff)
	}
}

func TestTexts(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1: "1 B", 1000: "1000 B", 64 * kib: "64 KiB", 1536: "1.5 KiB", mib + 1: "1048577 B", 256 * mib: "256 MiB", gib: "1 GiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d bytes are %q, want %q", n, got, want)
		}
	}
	if got, want := waysText(map[string]int64{"http": 1, "direct": 3}), "direct 75%, http 25%"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
