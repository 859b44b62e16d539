// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package compute

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

const childVariable = "S3RDMA_COMPUTE_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		n, err := strconv.Atoi(os.Args[len(os.Args)-1])
		if err == nil {
			err = Serve(n)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// The layer against the definition, in float64.
func TestLayer(t *testing.T) {
	l := newLayer(7)
	for range 2 {
		positive := 0
		for _, i := range []int{0, rows - 1} {
			l.row(i)
			for j := range width {
				want := 0.0
				for k := range width {
					want += float64(l.x[i][k]) * float64(l.w[k][j])
				}
				want = max(0, want)
				if d := want - float64(l.y[i][j]); d > 1e-3 || d < -1e-3 {
					t.Fatalf("y[%d][%d] = %v, want %v", i, j, l.y[i][j], want)
				}
				if want > 0 {
					positive++
				}
			}
		}
		if positive < width/4 || positive > 2*width-width/4 {
			t.Errorf("%d of %d outputs are positive", positive, 2*width)
		}
		l.y[1] = [width]float32{}
		l.next()
		for _, i := range []int{0, 1} {
			if got := slices.Max(l.x[i][:]); got != 1 {
				t.Errorf("the largest element of row %d is %v", i, got)
			}
		}
	}
}

func TestLoad(t *testing.T) {
	l, err := Start(Options{Command: []string{os.Args[0]}, Env: []string{childVariable + "=1"}, Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Stop()
	was := l.Work()
	time.Sleep(20 * time.Millisecond) // what must not happen has time to
	if is := l.Work(); is != was || was < 2*rowWork {
		t.Errorf("work %d and, while paused, %d", was, is)
	}
	for range 2 {
		if err := l.Resume(); err != nil {
			t.Fatal(err)
		}
		if err := l.wait("go on", func() (bool, error) { return l.Work() >= was+10*rowWork, nil }); err != nil {
			t.Fatal(err)
		}
		if err := l.Pause(); err != nil {
			t.Fatal(err)
		}
		was = l.Work()
	}
	pid := l.PID()
	l.Stop()
	l.Stop()
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Errorf("the process is still there: %v", err)
	}
}

func TestLoadFails(t *testing.T) {
	if _, err := Start(Options{Command: []string{"false"}, Threads: 1}); err == nil || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("a process that ends: %v", err)
	}
	if _, err := Start(Options{Command: []string{"/nonexistent"}, Threads: 1}); err == nil {
		t.Error("a process that cannot be started: no error")
	}
	for _, n := range []int{0, maxThreads + 1} {
		if _, err := Start(Options{Command: []string{"true"}, Threads: n}); err == nil {
			t.Errorf("%d threads: no error", n)
		}
	}
}

func BenchmarkLayer(b *testing.B) {
	l := newLayer(1)
	b.ReportAllocs()
	b.SetBytes(rows * width * 4)
	for b.Loop() {
		for i := range rows {
			l.row(i)
		}
	}
}
