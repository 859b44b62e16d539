// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/s3rdma/s3rdma/adapters/client"
	"github.com/s3rdma/s3rdma/conformance"
	"github.com/s3rdma/s3rdma/conformance/minioproc"
)

// rail is a network of its own with an RDMA device in it.
type rail struct{ device, netdev, addr string }

// makeRails makes two devices that have nothing in common: one can go down without the
// other. Both ends of their connections are on the same device.
func makeRails(t *testing.T) [2]rail {
	t.Helper()
	sh := func(command string) {
		t.Helper()
		if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	rails := [2]rail{{"railx0", "railnet0", "10.78.0.1"}, {"railx1", "railnet1", "10.79.0.1"}}
	for _, r := range rails {
		sh(fmt.Sprintf("modprobe dummy; ip link add %[2]s mtu 4200 type dummy && ip addr add %[3]s/24 dev %[2]s && ip link set %[2]s up && rdma link add %[1]s type rxe netdev %[2]s",
			r.device, r.netdev, r.addr))
		t.Cleanup(func() { exec.Command("ip", "link", "del", r.netdev).Run() })
	}
	return rails
}

// load is what a client that stores and fetches objects, one after another, has seen.
type load struct {
	rounds, failures atomic.Int64
	late             atomic.Int64 // failures of clients that connected after the rail was shown to be down
	lastErr          atomic.Value
}

// TestVerbsRailGoesDown: a server with two rails under load loses one. Clients of the other one
// notice nothing. Those of this one fail in what was in flight, connect again over the
// rail that is left, and go on. When the rail is back it serves who connects there, and
// the load goes on.
func TestVerbsRailGoesDown(t *testing.T) {
	rdmaDevices(t)
	rails := makeRails(t)
	s := serve(t, minioproc.Options{
		Binary: binary(t, "S3RDMA_FORK"), AnyAddress: true, Ready: soon,
		Args: []string{"--rdma=on", "--rdma-fabric=verbs", "--rdma-device=" + rails[0].device + "," + rails[1].netdev,
			"--rdma-allow-peers=" + everywhere, "--rdma-staging-size=64MiB", "--rdma-peer-timeout=2s"},
		Env: []string{"MINIO_PROMETHEUS_AUTH_TYPE=public"},
	})
	raw := newRaw(t, s)
	railMetric := func(name string, i int) float64 {
		all := metrics(t, raw)
		v, ok := all[fmt.Sprintf(`s3rdma_rail_%s{device="%s",port="1",transport="rc"}`, name, rails[i].device)]
		if !ok {
			t.Fatalf("no metric %s of rail %d: %v", name, i, all)
		}
		return v
	}

	// The client's own devices: of rail 1 the first, so that its end is there; when that
	// is down, the next.
	connect := func(i int) *client.Client {
		target, err := conformance.NewTarget("rc", conformance.Device{Names: []string{rails[i].device, rails[1-i].device}})
		if err != nil {
			t.Fatal(err)
		}
		return newClient(t, s, rails[i].addr, target)
	}
	first := connect(0)
	if err := first.CreateBucket(t.Context(), "rails"); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	var loads [2]load
	var shown atomic.Bool // the rail is known to be down
	for i := range loads {
		l, c := &loads[i], first
		if i > 0 {
			c = connect(i)
		}
		running.Add(1)
		go func() {
			defer running.Done()
			defer func() { c.Close() }()
			knew := false // c connected when the rail was known to be down
			for n := 0; ctx.Err() == nil; n++ {
				err := transfer(ctx, c, "rails", fmt.Sprintf("%d-%d", i, n%3), 2<<20)
				switch {
				case ctx.Err() != nil:
				case err != nil:
					l.failures.Add(1)
					l.lastErr.Store(err)
					if knew {
						l.late.Add(1)
					}
					// Whoever loses a rail at his own end opens another device.
					c.Close()
					knew = shown.Load()
					c = connect(i)
				default:
					l.rounds.Add(1)
				}
			}
		}()
	}
	// rounds waits for more of both loads.
	rounds := func(more int64) {
		t.Helper()
		for i := range loads {
			l := &loads[i]
			from := l.rounds.Load()
			eventually(t, soon, fmt.Sprintf("%d more rounds on rail %d", more, i), func() bool {
				if n := l.late.Load(); n > 0 {
					t.Fatalf("rail %d: %d transfers failed that began when all was settled: %v", i, n, l.lastErr.Load())
				}
				return l.rounds.Load() >= from+more
			})
		}
	}
	sh := func(commands ...string) {
		t.Helper()
		if out, err := exec.Command("sh", "-c", strings.Join(commands, " && ")).CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
	}
	rounds(3)
	for i := range loads {
		if railMetric("up", i) != 1 || railMetric("connections", i) != 1 {
			t.Errorf("rail %d: up %v, %v connections, want the one client whose HTTP came to its address", i, railMetric("up", i), railMetric("connections", i))
		}
	}

	// The address stays reachable for HTTP: it is the RDMA port that goes down.
	t.Cleanup(func() { exec.Command("ip", "addr", "del", rails[1].addr+"/32", "dev", "lo").Run() })
	sh("ip addr add "+rails[1].addr+"/32 dev lo", "ip link set "+rails[1].netdev+" down")
	eventually(t, givenUp, "the rail is shown to be down", func() bool { return railMetric("up", 1) == 0 })
	shown.Store(true)
	rounds(5)
	if f := loads[0].failures.Load(); f != 0 {
		t.Errorf("%d transfers failed on the rail that stayed: %v", f, loads[0].lastErr.Load())
	}
	lost := loads[1].failures.Load()
	if lost == 0 {
		t.Error("no transfer failed: none was in flight on the rail that went down")
	}
	eventually(t, givenUp, "all connections are over the other rail", func() bool {
		return railMetric("connections", 0) == 2 && railMetric("connections", 1) == 0
	})
	if n := railMetric("failures_total", 1); n != 1 {
		t.Errorf("the rail failed %v times, want 1", n)
	}
	t.Logf("rail 1 lost %d transfers (%v)", lost, loads[1].lastErr.Load())

	// It comes back, and is used again by who connects there.
	sh("ip link set "+rails[1].netdev+" up", "ip addr del "+rails[1].addr+"/32 dev lo",
		"ip addr replace "+rails[1].addr+"/24 dev "+rails[1].netdev)
	eventually(t, givenUp, "the rail is up again", func() bool { return railMetric("up", 1) == 1 })
	c := connect(1)
	defer c.Close()
	if err := transfer(t.Context(), c, "rails", "back", 1<<20); err != nil {
		t.Error(err)
	}
	if n := railMetric("connections", 1); n != 1 {
		t.Errorf("%v connections on the rail that is back, want 1", n)
	}
	rounds(3)
	for i, f := range []int64{0, lost} {
		if n := loads[i].failures.Load(); n != f {
			t.Errorf("rail %d: %d transfers failed when the other came back: %v", i, n-f, loads[i].lastErr.Load())
		}
	}
}
