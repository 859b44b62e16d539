// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/s3rdma/s3rdma/conformance"
)

func TestParseCondition(t *testing.T) {
	for text, want := range map[string]Condition{
		"loss=netem loss 1%":  {Name: "loss", Qdisc: "netem loss 1%"},
		"busy/4=":             {Name: "busy", Flows: 4},
		"a/1= tbf rate 1gbit": {Name: "a", Flows: 1, Qdisc: "tbf rate 1gbit"},
	} {
		if got, err := ParseCondition(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "a", "=netem", "a/x=", "a/-1=", "a/9999="} {
		if got, err := ParseCondition(bad); !errors.Is(err, ErrOptions) {
			t.Errorf("%q: %+v, %v", bad, got, err)
		}
	}
	for name, bad := range map[string]Options{
		"shm":      {Fork: "a", Stock: "b", Fabrics: []string{"shm"}},
		"no links": {Fork: "a", Stock: "b", Network: Network{Server: "1.2.3.4"}},
		"no flows": {Fork: "a", Stock: "b"},
	} {
		if _, err := UnderLoad(t.Context(), bad); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// testWire is a network of our own, where there can be one.
func testWire(t *testing.T) *wire {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: a network namespace needs root")
	}
	w, err := newWire(t.Context(), Network{})
	if errors.Is(err, ErrUnsupported) {
		t.Skip("NOT TESTED: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join("/sys/class/net", w.near)); err == nil {
			t.Errorf("interface %s is still there", w.near)
		}
	})
	return w
}

// The far end is another network, reached over the pair only; what is shaped is slow; and
// all that was made is taken away.
func TestWire(t *testing.T) {
	w := testWire(t)
	// In the namespace there is nothing but the pair's end and a loopback of its own.
	cmd := exec.Command("cat", "/proc/net/dev")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := launchIn(w.ns, (*exec.Cmd).Start)(cmd); err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(out)
	cmd.Wait()
	var devices []string
	for _, m := range regexp.MustCompile(`(?m)^ *(\S+):`).FindAllStringSubmatch(string(b), -1) {
		devices = append(devices, m[1])
	}
	if len(devices) < 2 || !strings.Contains(strings.Join(devices, " "), "wire") || strings.Contains(strings.Join(devices, " "), w.near) {
		t.Errorf("the namespace has interfaces %q", devices)
	}
	home, err := net.InterfaceByName(w.near)
	if err != nil || home.Name != w.near {
		t.Errorf("this process is not where it was: %v", err)
	}

	o := Options{Network: Network{Flow: []string{os.Args[0]}, FlowEnv: []string{flowVariable + "=1"}}}
	// flow is what two flows carry within a time.
	flow := func(qdisc string, within time.Duration) int64 {
		t.Helper()
		if err := w.shape(t.Context(), qdisc); err != nil {
			t.Fatal(err)
		}
		stop, err := startFlows(o, 2, w)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		before, err := w.bytes()
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(within)
		after, err := w.bytes()
		if err != nil {
			t.Fatal(err)
		}
		return after - before
	}
	const within = 200 * time.Millisecond
	// A megabit a second, and a burst: the margin is wide.
	if slow := flow("tbf rate 1mbit burst 16kb latency 50ms", within); slow > mib {
		t.Errorf("%d bytes came over a megabit a second in %v", slow, within)
	}
	for began := time.Now(); flow("", within) < 4*mib; {
		if time.Since(began) > time.Minute {
			t.Fatal("flows carry next to nothing over a network that is not shaped")
		}
	}
	if err := w.shape(t.Context(), "no_such_qdisc"); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a qdisc that there is not: %v", err)
	}
	if err := w.shape(t.Context(), "tbf rate nonsense"); err == nil || errors.Is(err, ErrUnsupported) {
		t.Errorf("a qdisc that is wrong: %v", err)
	}
}

func TestServeFlow(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	sink, source := make(chan error, 1), make(chan error, 1)
	go func() { sink <- ServeFlow(ctx, []string{"sink", "127.0.0.1:0"}, w) }()
	address, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	go func() { source <- ServeFlow(ctx, []string{"source", strings.TrimSpace(address), "3"}, nil) }()
	cancel()
	<-source
	if err := <-sink; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	for _, bad := range [][]string{nil, {"sink"}, {"source", "x"}, {"source", "127.0.0.1:1", "0"}, {"drain", "x"}} {
		if err := ServeFlow(t.Context(), bad, nil); !errors.Is(err, ErrOptions) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// checkNetwork holds a report to what must be true of any.
func checkNetwork(t *testing.T, r Report, conditions int, fabric string) {
	t.Helper()
	var b bytes.Buffer
	if err := r.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s%s", b.String(), r.Result)
	if want := 2 * (conditions - len(r.LeftOut)); len(r.Network) != want {
		t.Errorf("%d rows, want %d; left out %q", len(r.Network), want, r.LeftOut)
	}
	for _, x := range r.Network {
		inline := x.Side == sideHTTP
		if !inline && x.Side != fabric {
			t.Errorf("a row of %q", x.Side)
		}
		if inline && (x.ByHTTP != x.Bytes || x.OverFabric != 0) || !inline && (x.OverFabric != x.Bytes || x.ByHTTP != 0) {
			t.Errorf("%s by %s: %d bytes, %d over the fabric, %d by HTTP", x.Condition, x.Side, x.Bytes, x.OverFabric, x.ByHTTP)
		}
		// Whatever is said to have been moved went over the wire.
		if x.OnWire < x.Bytes {
			t.Errorf("%s by %s: %d bytes, %d on the wire", x.Condition, x.Side, x.Bytes, x.OnWire)
		}
		if x.Throughput.Min <= 0 || x.Kept.N == 0 || x.OverHTTP.N == 0 || x.ClientCPU.Min <= 0 || x.ServerCPU.Min <= 0 || x.P99 < x.P50 {
			t.Errorf("incomplete: %+v", x)
		}
	}
	if !regexp.MustCompile(`^bench-network: conditions=\d+ left_out=\d+ over_http_min=\S+ over_http_median=\S+ kept_min=\S+ inline_kept_min=\S+$`).MatchString(r.Result) {
		t.Errorf("the last line is %q", r.Result)
	}
}

// netBinaries are the two servers; MinIO with the plugin serves HTTP, too, where there is
// no other.
func netBinaries(t *testing.T) (fork, stock string) {
	t.Helper()
	fork, stock = os.Getenv("S3RDMA_FORK"), os.Getenv("S3RDMA_STOCK")
	if fork == "" {
		t.Skip("S3RDMA_FORK names no MinIO binary with the plugin")
	}
	if stock == "" {
		stock = fork
	}
	return fork, stock
}

// slow is for machines such as an emulated one.
const slow = 2 * time.Minute

// TestNetwork moves objects between network namespaces, over the tcp fabric and by HTTP,
// under load, loss, delay and reordering as far as this kernel can make them. The VM's
// kernel (make test-softroce) can.
func TestNetwork(t *testing.T) {
	fork, stock := netBinaries(t)
	testWire(t)
	o := Options{Fork: fork, Stock: stock, Dir: t.TempDir(), Sizes: []int64{mib}, Concurrency: []int{2}, Repeat: 1, Window: time.Millisecond, Timeout: slow, Ready: 3 * time.Minute,
		ForkArgs: []string{"--rdma-stall-timeout=1m"}, Network: Network{Flow: []string{os.Args[0]}, FlowEnv: []string{flowVariable + "=1"}, Conditions: []Condition{
			{Name: clean}, {Name: "narrow, 2 flows", Qdisc: "tbf rate 200mbit burst 256kb latency 50ms", Flows: 2}, {Name: "loss", Qdisc: "netem loss 0.5%"},
			{Name: "reordering", Qdisc: "netem delay 2ms reorder 25% 50%"}}}}
	r, err := UnderLoad(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	empty(t, o.Dir)
	checkNetwork(t, r, len(o.Network.Conditions), "tcp")
	for _, s := range r.LeftOut {
		if os.Getenv("SOFTROCE") != "" {
			t.Errorf("left out, though the VM's kernel has it: %s", s)
		} else {
			t.Logf("NOT TESTED: %s", s)
		}
	}
}

// TestNetworkVerbs is the same over verbs, between two RDMA devices of one host whose
// packets go over a veth pair: the VM has them.
func TestNetworkVerbs(t *testing.T) {
	fork, stock := netBinaries(t)
	if os.Getenv("SOFTROCE_DEV1") == "" || os.Getenv("SOFTROCE_NETNS1") != "" {
		t.Skip("no pair of RDMA devices (make test-softroce has a VM with one)")
	}
	o := Options{Fork: fork, Stock: stock, Dir: t.TempDir(), Fabrics: []string{"rc"}, Device: conformance.Device{Names: []string{os.Getenv("SOFTROCE_DEV1")}},
		Sizes: []int64{mib}, Concurrency: []int{2}, Repeat: 1, Window: time.Millisecond, Timeout: slow, Ready: 3 * time.Minute,
		ForkArgs: []string{"--rdma-device=" + os.Getenv("SOFTROCE_DEV0"), "--rdma-stall-timeout=1m", "--rdma-peer-timeout=1m"},
		Network: Network{Server: os.Getenv("SOFTROCE_ADDR0"), Client: os.Getenv("SOFTROCE_ADDR1"), Links: []string{"veth1", "veth0"},
			Flow: []string{os.Args[0]}, FlowEnv: []string{flowVariable + "=1"},
			Conditions: []Condition{{Name: clean}, {Name: "2 flows", Flows: 2}, {Name: "delay", Qdisc: "netem delay 2ms"}, {Name: "loss", Qdisc: "netem loss 0.2%"}}}}
	r, err := UnderLoad(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	empty(t, o.Dir)
	checkNetwork(t, r, len(o.Network.Conditions), "rc")
	if len(r.LeftOut) > 0 {
		t.Errorf("left out: %q", r.LeftOut)
	}
}

func TestNetRows(t *testing.T) {
	x := cell{op: Get, size: gib, workers: 1, keys: 1}
	of := func(took time.Duration) []window {
		w := window{took: took, ops: 1, client: time.Second, server: time.Second, latencies: []time.Duration{took}, overFabric: gib, ways: ways{"direct": 1}}
		return []window{w, w}
	}
	tcp, inline := &side{name: "tcp", fabric: "tcp"}, &side{name: sideHTTP}
	done := netRows(Condition{Name: clean}, []*rowBuilder{{tcp, x, of(time.Second)}, {inline, x, of(2 * time.Second)}}, []int64{3 * gib, 5}, nil)
	rows := netRows(Condition{Name: "loss", Qdisc: "netem"}, []*rowBuilder{{tcp, x, of(4 * time.Second)}, {inline, x, of(20 * time.Second)}}, []int64{3 * gib, 5}, done)
	if k := done[0].Kept.Median; k != 1 {
		t.Errorf("the clean network keeps %v of itself", k)
	}
	if rows[0].Kept.Median != 0.25 || rows[1].Kept.Median != 0.1 || rows[0].OverHTTP.Median != 5 || rows[0].Bytes != 2*gib || rows[0].OverFabric != 2*gib || rows[0].OnWire != 3*gib {
		t.Errorf("%+v", rows)
	}
	r := Report{Title: "t", Network: append(done, rows...), LeftOut: []string{"that"}}
	if diff := cmp.Diff("bench-network: conditions=2 left_out=1 over_http_min=2.00 over_http_median=3.50 kept_min=0.250 inline_kept_min=0.100", networkLine(r)); diff != "" {
		t.Error(diff)
	}
	var b bytes.Buffer
	if err := r.WriteTable(&b); err != nil || !strings.Contains(b.String(), "left out: that") || !strings.Contains(b.String(), "25.0% (25.0%..25.0%)") {
		t.Errorf("%v\n%s", err, b.String())
	}
	page := string(pageOf(t, r))
	for _, want := range []string{`<figure id="network">`, `<figure id="network-kept">`, "tcp, loss: 0.25", "netem", "<li>that</li>"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}
