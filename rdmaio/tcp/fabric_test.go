// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/fabrictest"
)

func TestMain(m *testing.M) {
	if os.Getenv(victimEnv) != "" {
		os.Exit(victim())
	}
	goleak.VerifyTestMain(m)
}

// quick are options under which nothing in a test has to wait long.
func quick() Options {
	return Options{
		Listen:        "127.0.0.1:0",
		PeerTimeout:   2 * time.Second,
		FenceLimit:    time.Second,
		ConnectWithin: 5 * time.Second,
	}
}

func newFabric(tb testing.TB, o Options) *Fabric {
	tb.Helper()
	f, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := f.Close(); err != nil {
			tb.Errorf("close the fabric: %v", err)
		}
	})
	return f
}

func harness(o Options) fabrictest.Harness {
	return fabrictest.Harness{
		Fabric: func(tb testing.TB) rdmaio.Fabric {
			f, err := New(o)
			if err != nil {
				tb.Fatal(err)
			}
			return f
		},
		Target: func(testing.TB, rdmaio.Fabric) rdmaio.Target { return NewTarget(o) },
		Kill: func(tb testing.TB, t rdmaio.Target) {
			tt := t.(*Target)
			tt.mu.RLock()
			s := tt.present
			tt.mu.RUnlock()
			for _, a := range s.lanes {
				reset(a.conn)
			}
		},
		Live: func(f rdmaio.Fabric) int { return f.(*Fabric).live() },
	}
}

func TestFabric(t *testing.T) {
	t.Run("lanes=2", func(t *testing.T) { fabrictest.Run(t, harness(quick())) })
	t.Run("lanes=1", func(t *testing.T) {
		o := quick()
		o.Lanes = 1
		fabrictest.Run(t, harness(o))
	})
}

func BenchmarkFabric(b *testing.B) { fabrictest.Benchmark(b, harness(quick())) }
