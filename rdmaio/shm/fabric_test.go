// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/fabrictest"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(child())
	}
	goleak.VerifyTestMain(m)
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

var harness = fabrictest.Harness{
	Fabric: func(tb testing.TB) rdmaio.Fabric {
		f, err := New(Options{})
		if err != nil {
			tb.Fatal(err)
		}
		return f
	},
	Target: func(tb testing.TB, f rdmaio.Fabric) rdmaio.Target { return NewTarget(TargetOptions{}) },
	Kill: func(tb testing.TB, t rdmaio.Target) {
		target := t.(*Target)
		target.mu.Lock()
		c := target.conn
		target.mu.Unlock()
		c.cut()
	},
	Live: func(f rdmaio.Fabric) int {
		s := f.(*Fabric).Stats()
		return s.Sessions + s.Regions + int(s.Bytes)
	},
}

func TestSuite(t *testing.T) { fabrictest.Run(t, harness) }

func BenchmarkFabric(b *testing.B) { fabrictest.Benchmark(b, harness) }
