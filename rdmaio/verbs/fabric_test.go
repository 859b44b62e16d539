// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"net/netip"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/fabrictest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// devices returns what the two ends of a test use: what the VM of conformance/softroce
// says, or whatever there is. Without a device the test is skipped.
func devices(tb testing.TB) (initiator, target Options) {
	tb.Helper()
	_, names, err := load()
	if err != nil {
		tb.Skipf("NOT TESTED, no RDMA device (conformance/softroce has a VM with one): %v", err)
	}
	one := os.Getenv("SOFTROCE_DEV0")
	if one == "" {
		one = names[0]
	}
	two := os.Getenv("SOFTROCE_DEV1")
	if two == "" {
		two = one
	}
	anywhere := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	initiator = Options{Devices: []string{one}, AllowPeers: anywhere}
	target = Options{Devices: []string{two}}
	return initiator, target
}

func harness(tb testing.TB) fabrictest.Harness {
	fo, to := devices(tb)
	return harnessOf(fo, to)
}

func harnessOf(fo, to Options) fabrictest.Harness {
	return fabrictest.Harness{
		Fabric: func(tb testing.TB) rdmaio.Fabric {
			f, err := New(fo)
			if err != nil {
				tb.Fatal(err)
			}
			return f
		},
		Target: func(testing.TB, rdmaio.Fabric) rdmaio.Target { return NewTarget(to) },
		Kill: func(tb testing.TB, t rdmaio.Target) {
			tt := t.(*Target)
			tt.mu.Lock()
			s := tt.session
			tt.mu.Unlock()
			s.kill()
		},
		Live: func(f rdmaio.Fabric) int { return f.(*Fabric).live() },
	}
}

func TestFabric(t *testing.T) { fabrictest.Run(t, harness(t)) }

func BenchmarkFabric(b *testing.B) { fabrictest.Benchmark(b, harness(b)) }
