// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio/verbs"
)

// footprint is what connections take up.
type footprint struct {
	process   int64 // resident bytes of this process, rings of the queue pairs among them
	heap      int64 // bytes of that in Go's heap
	available int64 // bytes that the whole machine has left
	maps      int   // memory mappings of this process
	files     int   // its open files
}

// kib is a value of a file of /proc with lines "NAME: N kB", in bytes.
func kib(t *testing.T, file, name string) int64 {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatalf("%s has no %s", file, name)
	return 0
}

func measure(t *testing.T) footprint {
	t.Helper()
	debug.FreeOSMemory()
	// What the kernel frees late, keeps for later, or has not counted yet, is nobody's.
	for _, name := range []string{"drop_caches", "compact_memory", "drop_caches", "stat_refresh"} {
		if err := os.WriteFile("/proc/sys/vm/"+name, []byte("3"), 0); err != nil && name != "compact_memory" {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return footprint{
		process: kib(t, "/proc/self/status", "VmRSS"), heap: int64(m.HeapAlloc),
		available: kib(t, "/proc/meminfo", "MemAvailable"), maps: bytes.Count(maps, []byte("\n")), files: len(files),
	}
}

// TestVerbsScale measures what a server's end of RC connections costs, and prints the table of
// docs/scale.md. It takes a VM of its own: "go run ./conformance/softroce -scale".
//
// The peer is one queue pair that all connections name: to connect is a matter of the
// server's device alone, so that only its end is measured.
func TestVerbsScale(t *testing.T) {
	d := rdmaDevices(t)
	if os.Getenv("S3RDMA_SCALE") == "" {
		t.Skip("a measurement: go run ./conformance/softroce -scale")
	}
	target := d.target(t)
	defer target.Close()
	hello, err := target.Hello(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hello.Owner = "client"
	var text strings.Builder
	tw := tabwriter.NewWriter(&text, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "connections\tconnect mean\tconnect p99\tmachine KiB each\tprocess KiB each\tGo heap KiB each\tmappings each\tfiles each\t")
	for _, n := range []int{0, 1, 10, 100, 1000} {
		warmUp := n == 0 // whatever is used for the first time is paid for once
		if warmUp {
			n = 50
		}
		f, err := verbs.New(verbs.Options{
			Devices: []string{d.server}, MaxSessions: n, MaxPerOwner: n,
			AllowPeers: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		})
		if err != nil {
			t.Fatal(err)
		}
		before := measure(t)
		took := make([]time.Duration, n)
		for i := range n {
			started := time.Now()
			if _, err := f.Accept(t.Context(), hello); err != nil {
				t.Fatalf("connection %d: %v", i+1, err)
			}
			took[i] = time.Since(started)
		}
		after := measure(t)
		if _, err := f.Accept(t.Context(), hello); err == nil {
			t.Errorf("connection %d of at most %d was accepted", n+1, n)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if warmUp {
			continue
		}
		var sum time.Duration
		for _, d := range took {
			sum += d
		}
		slices.Sort(took)
		each := func(a, b int64) string { return fmt.Sprintf("%.1f", float64(b-a)/1024/float64(n)) }
		per := func(a, b int) string { return fmt.Sprintf("%.1f", float64(b-a)/float64(n)) }
		round := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
		fmt.Fprintf(tw, "%d\t%v\t%v\t%s\t%s\t%s\t%s\t%s\t\n", n, round(sum/time.Duration(n)), round(took[n*99/100]),
			each(after.available, before.available), each(before.process, after.process), each(before.heap, after.heap),
			per(before.maps, after.maps), per(before.files, after.files))
		left := measure(t)
		if n >= 1000 && after.available < before.available && (left.available-after.available)*2 < before.available-after.available {
			t.Errorf("of %d connections that took %d KiB only %d came back", n, (before.available-after.available)>>10, (left.available-after.available)>>10)
		}
	}
	tw.Flush()
	t.Logf("\n%s", text.String())
}
