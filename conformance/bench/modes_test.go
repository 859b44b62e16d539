// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
	"github.com/s3rdma/s3rdma/conformance/tensors"
)

// The search finds the edge of whatever is faster from some size on, to the precision.
func TestBisect(t *testing.T) {
	const from, to, within = 1000, 1_000_000, 1.1
	for _, edge := range []int64{1001, 4096, 65_000, 999_999} {
		tried := 0
		got, err := bisect(from, to, within, func(n int64) (bool, error) {
			if tried++; n < from || n > to {
				t.Errorf("%d bytes are tried", n)
			}
			return n >= edge, nil
		})
		if f := float64(got) / float64(edge); err != nil || f > within || f < 1/within {
			t.Errorf("edge %d: found %d, %v", edge, got, err)
		}
		if tried > searchSteps+2 {
			t.Errorf("%d sizes were tried", tried)
		}
	}
	for edge, want := range map[int64]int64{1: from, to + 1: to + 1} {
		if got, err := bisect(from, to, within, func(n int64) (bool, error) { return n >= edge, nil }); got != want || err != nil {
			t.Errorf("edge %d: %d, %v", edge, got, err)
		}
	}
	broken := errors.New("broken")
	for _, at := range []int{0, 1, 2} {
		if _, err := bisect(from, to, within, func(n int64) (bool, error) {
			if at--; at < 0 {
				return false, broken
			}
			return n == to, nil
		}); !errors.Is(err, broken) {
			t.Errorf("error %v", err)
		}
	}
}

func TestCrossoverTexts(t *testing.T) {
	for _, c := range []struct {
		found []int64
		value string
		text  string
	}{
		{[]int64{2000, 3000, 4000}, "3000", "3000 bytes (2000..4000)"},
		{[]int64{2000, 1024, 1024}, "1024", "at or below 1 KiB"},
		{[]int64{mib + 1, mib + 1, 5000}, "none", "above 1 MiB"},
		{nil, "none", "not searched"},
	} {
		x := &Crossover{From: kib, To: mib}
		var found []float64
		for _, n := range c.found {
			found = x.add(found, n)
		}
		if got := x.value(); got != c.value || !strings.HasPrefix(x.text(), c.text) {
			t.Errorf("%v: %s, %q", c.found, got, x.text())
		}
	}
	if got := (*Crossover)(nil).value(); got != "none" {
		t.Errorf("no search: %q", got)
	}
}

func TestSplit(t *testing.T) {
	for _, c := range []struct{ cpus, server, client []int }{{[]int{0, 1}, []int{0}, []int{1}}, {[]int{0, 4, 1, 5}, []int{0, 4}, []int{1, 5}}, {[]int{3, 4, 5}, []int{3}, []int{4, 5}}} {
		p, err := split(c.cpus)
		if err != nil || !slices.Equal(p.Server, c.server) || !slices.Equal(p.Client, c.client) {
			t.Errorf("%v: %v, %v", c.cpus, p, err)
		}
	}
	if _, err := split([]int{7}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("one CPU: %v", err)
	}
	for text, want := range map[string][]int{"0": {0}, "0-3,8": {0, 1, 2, 3, 8}, "1,3": {1, 3}} {
		if got, err := parseCPUs(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "a", "3-1", "-1", "1-", "1-99999999"} {
		if got, err := parseCPUs(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

// affinity is what the kernel says of a process, or a thread.
func affinity(t *testing.T, status string) string {
	t.Helper()
	b, err := os.ReadFile(status)
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(b), "Cpus_allowed_list:\t")
	list, _, _ := strings.Cut(after, "\n")
	return list
}

// Every thread is pinned, those made later, and processes; and all is put back.
func TestPinning(t *testing.T) {
	cpus, err := allowedCPUs()
	if err != nil {
		t.Fatal(err)
	}
	if len(cpus) < 2 {
		t.Skip("NOT TESTED: pinning needs two CPUs")
	}
	was := affinity(t, "/proc/self/status")
	one, two := cpus[len(cpus)-1], cpus[0]
	undo, err := pinSelf([]int{one})
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks(t) {
		if got := affinity(t, task+"/status"); got != strconv.Itoa(one) {
			t.Errorf("thread %s may run on %s, want %d", task, got, one)
		}
	}
	cmd := exec.Command("sleep", "60")
	if err := launchOn([]int{two})(cmd); err != nil {
		t.Fatal(err)
	}
	if got := affinity(t, "/proc/"+strconv.Itoa(cmd.Process.Pid)+"/status"); got != strconv.Itoa(two) {
		t.Errorf("the process may run on %s, want %d", got, two)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if got := affinity(t, "/proc/self/status"); got != strconv.Itoa(one) {
		t.Errorf("after a start this process may run on %s, want %d", got, one)
	}
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks(t) {
		if got := affinity(t, task+"/status"); got != was {
			t.Errorf("at the end thread %s may run on %s, want %s", task, got, was)
		}
	}
}

func tasks(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("/proc/self/task/*")
	if err != nil || len(all) == 0 {
		t.Fatal("no threads", err)
	}
	return all
}

func TestEnergy(t *testing.T) {
	root := t.TempDir()
	if m := newEnergyMeter(root); m.why == nil || !strings.HasPrefix(m.text(), "not exposed here") {
		t.Errorf("nothing there: %+v", m)
	} else if j, err := m.joules(); j != 0 || err != nil {
		t.Errorf("%v, %v", j, err)
	}
	set := func(zone, file, text string) {
		dir := filepath.Join(root, zone)
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, file), []byte(text+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for zone, name := range map[string]string{"intel-rapl:0": "package-0", "intel-rapl:1": "package-1", "intel-rapl:0:0": "core"} {
		set(zone, "name", name)
		set(zone, "energy_uj", "5000000")
		set(zone, "max_energy_range_uj", "10000000")
	}
	m := newEnergyMeter(root)
	if m.why != nil || len(m.zones) != 2 {
		t.Fatalf("%+v", m)
	}
	set("intel-rapl:0", "energy_uj", "9000000")
	set("intel-rapl:0:0", "energy_uj", "9000000") // is in the package's
	if j, err := m.joules(); j != 4 || err != nil {
		t.Errorf("%v J, %v", j, err)
	}
	set("intel-rapl:0", "energy_uj", "1000000") // begun again
	set("intel-rapl:1", "energy_uj", "5500000")
	if j, err := m.joules(); j != 4+2+0.5 || err != nil {
		t.Errorf("%v J, %v", j, err)
	}
	set("intel-rapl:1", "energy_uj", "much")
	if _, err := m.joules(); err == nil {
		t.Error("no error for what is no number")
	}
	if m := newEnergyMeter(root); m.why == nil {
		t.Error("no reason, though a counter cannot be read")
	}
}

// rangeServer serves one object and its ranges, as S3 does.
func rangeServer(t *testing.T, file []byte) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"e"`)
		// All but the first range must be of the object that the first one was of.
		if m := r.Header.Get("If-Match"); m != `"e"` && (m != "" || !strings.HasPrefix(r.Header.Get("Range"), "bytes=0-")) {
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(file))
	}))
	t.Cleanup(s.Close)
	return s
}

// Tensors come through the bounce buffer aligned and right, also behind a header that is
// longer than was guessed.
func TestLoadByHTTP(t *testing.T) {
	small, err := tensors.Transformer{Layers: 2, Hidden: 64, Heads: 4, Vocab: 20_000}.File(1)
	if err != nil {
		t.Fatal(err)
	}
	var specs []tensors.Spec
	for i := range 2000 {
		specs = append(specs, tensors.Spec{Name: "tensor" + strconv.Itoa(i), DType: "U8", Shape: []int64{int64(i % 5)}})
	}
	head, n, err := tensors.Layout(specs, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(head) <= headerGuess {
		t.Fatalf("the header has only %d bytes", len(head))
	}
	for _, file := range [][]byte{small, append(head, testPattern()[:n]...)} {
		s := rangeServer(t, file)
		h := newPlainHTTP(s.URL, rawhttp.Credentials{AccessKey: "a", SecretKey: "b"}, make([]byte, len(file)+tensorSpare))
		views, err := h.load(t.Context(), 0, "key")
		if err != nil {
			t.Fatal(err)
		}
		if name := wrongTensor(views, file); name != "" {
			t.Errorf("tensor %s is wrong", name)
		}
		if got := h.byHTTP(); got < int64(len(file)-len(head)) || got > int64(len(file))+2*headerGuess {
			t.Errorf("%d bytes are counted for a file of %d", got, len(file))
		}
		views[len(views)-2].Bytes[0] ^= 1
		if name := wrongTensor(views, file); name != views[len(views)-2].Name {
			t.Errorf("the tensor with a wrong byte is said to be %q", name)
		}
		h.memory[0] = make([]byte, len(file)/2)
		if _, err := h.load(t.Context(), 0, "key"); err == nil {
			t.Error("too little memory: no error")
		}
		h.close()
	}
	if wrongTensor(nil, small) == "" {
		t.Error("no tensors at all are right")
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, file := range map[string][]byte{
		"no file":     []byte("hello, this is not a file of tensors"),
		"long header": binary.LittleEndian.AppendUint64(nil, math.MaxInt64),
	} {
		h := newPlainHTTP(rangeServer(t, file).URL, rawhttp.Credentials{AccessKey: "a", SecretKey: "b"}, make([]byte, tensorSpare))
		if _, err := h.load(t.Context(), 0, "key"); !errors.Is(err, tensors.ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
		h.close()
	}
	// The object is replaced between two reads.
	file, err := tensors.Transformer{Layers: 1, Hidden: 32, Heads: 4, Vocab: 100}.File(1)
	if err != nil {
		t.Fatal(err)
	}
	changed := errors.New("changed")
	_, err = loadTensors(t.Context(), make([]byte, tensorSpare+len(file)), func(_ context.Context, _, _, _ int64, _ string) (int64, objectIs, error) {
		return 0, objectIs{}, nil
	})
	if !errors.Is(err, tensors.ErrFormat) {
		t.Errorf("nothing is read: %v", err)
	}
	memory := make([]byte, tensorSpare+len(file))
	_, err = loadTensors(t.Context(), memory, func(_ context.Context, from, n, at int64, etag string) (int64, objectIs, error) {
		if etag == "old" {
			return 0, objectIs{}, changed
		}
		return int64(copy(memory[at:at+n], file[from:])), objectIs{size: int64(len(file)), etag: "old"}, nil
	})
	if !errors.Is(err, changed) {
		t.Errorf("the object has changed: %v", err)
	}
}

// testModes is a report with figures of all kinds.
func testModes() Report {
	windows := func(took, client time.Duration, latency time.Duration, work, alone, joules float64, over, by int64) []window {
		w := window{took: took, server: time.Second, client: client, ops: 4, latencies: slices.Repeat([]time.Duration{latency}, 4),
			ways: ways{"direct": 4}, overFabric: over, byHTTP: by, work: work, alone: alone, joules: joules}
		return []window{w, w, w}
	}
	const ms = time.Millisecond
	var r Report
	for _, c := range []cell{{op: Get, size: 256 * mib, workers: 4, keys: 4}, {op: Load, size: 256 * mib, workers: 4, keys: 4}} {
		shm, inline := &side{name: "shm", fabric: "shm"}, &side{name: sideHTTP}
		workload := map[Op]string{Get: Objects, Load: Tensors}[c.op]
		r.Modes = append(r.Modes, modeRows([]mode{
			{workload, Idle, c, []*rowBuilder{{shm, c, windows(250*ms, 5*ms, 20*ms, 0, 0, 8, gib, 0)}, {inline, c, windows(1000*ms, 200*ms, 90*ms, 0, 0, 20, 0, gib)}}},
			{workload, Busy, c, []*rowBuilder{{shm, c, windows(250*ms, 6*ms, 25*ms, 98, 400, 9, gib, 0)}, {inline, c, windows(2000*ms, 300*ms, 180*ms, 300, 400, 40, 0, gib)}}},
		}, &energyMeter{})...)
	}
	r.Title, r.Started = "title & <b>", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r.Environment = Environment{CPU: "cpu", CPUs: 2, Kernel: "linux", Go: "go", FileSystem: "ext4", Drives: 4, Repeat: 3, Window: 1,
		Versions: map[string]string{"fork": "v1"}, Idle: map[string]float64{"fork": 0.01}, Energy: "2 packages", Pinning: &Pinning{Server: []int{0}, Client: []int{1}}}
	r.Command = "s3rdma bench"
	for i, size := range []int64{4 * kib, 64 * kib, mib, 16 * mib} {
		for j, side := range []string{"shm", sideHTTP} {
			v := float64(i+1) / float64(j+1)
			r.Rows = append(r.Rows, Row{Op: Get, Size: size, Concurrency: 4, Side: side, Ops: 9, Throughput: Spread{3, v / 2, v, v * 2}, ClientCPU: Spread{3, v / 100, v / 90, v / 80},
				ServerCPU: Spread{3, 1, 1, 1}, P50: v, P99: 3 * v, Ways: map[string]int64{"direct": 9}})
		}
	}
	r.Crossover = &Crossover{From: kib, To: 16 * mib, Bytes: Spread{3, 90_000, 100_000, 120_000}, Tried: []Tried{
		{1, kib, Spread{3, 0.4, 0.5, 0.6}}, {1, 16 * mib, Spread{3, 2, 3, 4}}, {1, 100_000, Spread{3, 0.9, 1.01, 1.2}}}}
	r.Result = modesLine(r)
	return r
}

func TestModeRows(t *testing.T) {
	r := testModes()
	const want = "bench: client_cpu_http_over_fabric=40.0 busy_kept=0.980 inline_busy_kept=0.375 crossover_bytes=100000"
	if r.Result != want {
		t.Errorf("got  %s\nwant %s", r.Result, want)
	}
	busy, ok := r.find(Objects, Busy, true)
	same := func(v float64) Spread { return Spread{3, v, v, v} }
	if diff := cmp.Diff(ModeRow{Workload: Objects, Client: Busy, Side: sideHTTP, Size: 256 * mib, Concurrency: 4, Ops: 12, Throughput: same(0.5), Kept: same(0.5), ComputeKept: same(0.375),
		ClientCPU: same(0.3), ServerCPU: same(1), OverHTTP: same(1), HTTPClientOver: same(1), Other: same(0), P50: 180, P90: 180, P99: 180, Max: 180, Energy: same(40),
		Bytes: 3 * gib, ByHTTP: 3 * gib, Ways: map[string]int64{"direct": 12}}, busy); !ok || diff != "" {
		t.Error(diff)
	}
	var b bytes.Buffer
	if err := r.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{
		"object transfer idle shm 256 MiB 4 4.00 (4.00..4.00) 4.00x (4.00x..4.00x) - - 0.0050 (0.0050..0.0050) 40x",
		"tensor load busy shm 256 MiB 4 4.00 (4.00..4.00) 8.00x (8.00x..8.00x) 100.0% (100.0%..100.0%) 98.0% (98.0%..98.0%)",
		"9.00 (9.00..9.00) 3.00 GiB = 100.0% 0 0.00", "GET 64 KiB 4 http", "crossover, one request after the other: 100000 bytes (90000..120000)",
		"server on CPUs [0], client on CPUs [1]", "fork: v1, idle 0.010 cores", "energy: 2 packages",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
	none := modeRows([]mode{{Objects, Idle, cell{size: 1}, []*rowBuilder{{side: &side{name: sideHTTP}}}}}, &energyMeter{why: io.EOF})
	if none[0].Energy.N != 0 {
		t.Errorf("energy %+v, though it is not exposed", none[0].Energy)
	}
}

func TestModesOptions(t *testing.T) {
	good := Options{Fork: "a", Stock: "b", Compute: []string{"c"}}
	if err := good.fillModes(); err != nil {
		t.Fatal(err)
	}
	if good.Sizes[0] != 4*kib || slices.Max(good.Sizes) != 64*mib || good.Concurrency[0] != 4 || good.Model != tensors.Small || good.Searches != 5 {
		t.Errorf("defaults %+v", good)
	}
	for name, bad := range map[string]Options{
		"no command":  {Fork: "a", Stock: "b"},
		"two fabrics": {Fork: "a", Stock: "b", Compute: []string{"c"}, Fabrics: []string{"shm", "tcp"}},
		"searches":    {Fork: "a", Stock: "b", Compute: []string{"c"}, Searches: -1},
		"memory":      {Fork: "a", Stock: "b", Compute: []string{"c"}, Memory: mib},
	} {
		if _, err := Modes(t.Context(), bad); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
