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
	"time"

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

// load is a client that stores and fetches objects for as long as it is let.
type load struct {
	rounds, failures atomic.Int64
	lastErr          atomic.Value
}

// TestVerbsRailGoesDown: a server with two rails under load loses one. Clients of the other one
// notice nothing. Those of this one fail in what was in flight, connect again over the
// rail that is left, and go on.
func TestVerbsRailGoesDown(t *testing.T) {
	rdmaDevices(t)
	rails := makeRails(t)
	s := serve(t, minioproc.Options{
		Binary: binary(t, "S3RDMA_FORK"), AnyAddress: true, Ready: 3 * time.Minute,
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
	for i := range loads {
		l, c := &loads[i], first
		if i > 0 {
			c = connect(i)
		}
		running.Add(1)
		go func() {
			defer running.Done()
			defer func() { c.Close() }()
			for n := 0; ctx.Err() == nil; n++ {
				err := transfer(ctx, c, "rails", fmt.Sprintf("%d-%d", i, n%3), 2<<20)
				switch {
				case ctx.Err() != nil:
				case err != nil:
					l.failures.Add(1)
					l.lastErr.Store(err)
					// Whoever loses a rail at his own end opens another device.
					c.Close()
					c = connect(i)
				default:
					l.rounds.Add(1)
				}
			}
		}()
	}
	rounds := func(i int, more int64) {
		t.Helper()
		from := loads[i].rounds.Load()
		eventually(t, 2*time.Minute, fmt.Sprintf("%d more rounds on rail %d (%d failures, last: %v)", more, i, loads[i].failures.Load(), loads[i].lastErr.Load()),
			func() bool { return loads[i].rounds.Load() >= from+more })
	}
	for i := range loads {
		rounds(i, 3)
		if railMetric("up", i) != 1 || railMetric("connections", i) != 1 {
			t.Errorf("rail %d: up %v, %v connections, want the one client whose HTTP came to its address", i, railMetric("up", i), railMetric("connections", i))
		}
	}
	// The address stays reachable for HTTP: it is the RDMA port that goes down.
	if out, err := exec.Command("ip", "link", "set", rails[1].netdev, "down").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if out, err := exec.Command("ip", "addr", "add", rails[1].addr+"/32", "dev", "lo").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	t.Cleanup(func() { exec.Command("ip", "addr", "del", rails[1].addr+"/32", "dev", "lo").Run() })
	eventually(t, 30*time.Second, "the rail is shown to be down", func() bool { return railMetric("up", 1) == 0 })
	for i := range loads {
		rounds(i, 5)
	}
	if f := loads[0].failures.Load(); f != 0 {
		t.Errorf("%d transfers failed on the rail that stayed: %v", f, loads[0].lastErr.Load())
	}
	if f := loads[1].failures.Load(); f > 4 {
		t.Errorf("%d transfers failed on the rail that went down: %v", f, loads[1].lastErr.Load())
	}
	if railMetric("failures_total", 1) < 1 || railMetric("connections", 0) != 2 {
		t.Errorf("failures %v, connections on the other rail %v", railMetric("failures_total", 1), railMetric("connections", 0))
	}
	t.Logf("rail 1 lost %d transfers (%v)", loads[1].failures.Load(), loads[1].lastErr.Load())

	// It comes back, and is used again by who connects there.
	if out, err := exec.Command("sh", "-c", strings.Join([]string{
		"ip addr del " + rails[1].addr + "/32 dev lo", "ip link set " + rails[1].netdev + " up"}, " && ")).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	eventually(t, 30*time.Second, "the rail is up again", func() bool { return railMetric("up", 1) == 1 })
	c := connect(1)
	defer c.Close()
	if err := transfer(t.Context(), c, "rails", "back", 1<<20); err != nil {
		t.Error(err)
	}
	if n := railMetric("connections", 1); n != 1 {
		t.Errorf("%v connections on the rail that is back, want 1", n)
	}
}
