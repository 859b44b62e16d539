// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bench

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/conformance/tensors"
)

// binaries are the two servers, where the environment names them.
func binaries(t *testing.T) (fork, stock string) {
	t.Helper()
	fork, stock = os.Getenv("S3RDMA_FORK"), os.Getenv("S3RDMA_STOCK")
	if fork == "" || stock == "" {
		t.Skip("S3RDMA_FORK and S3RDMA_STOCK name no MinIO binaries")
	}
	return fork, stock
}

// empty fails if the run has left anything.
func empty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestRunAgainstServers(t *testing.T) {
	fork, stock := binaries(t)
	dir := t.TempDir()
	r, err := Run(t.Context(), Options{Fork: fork, Stock: stock, Dir: dir, Fabrics: []string{"shm", "tcp"}, Sizes: []int64{4 * kib, 2*mib + 5, 64 * mib},
		Concurrency: []int{1, 3}, Repeat: 2, Window: time.Millisecond, Memory: 400 * mib})
	if err != nil {
		t.Fatal(err)
	}
	empty(t, dir)
	// 64 MiB, 3 at once, by 3 clients, is over Memory.
	if want := (3*2 - 1) * 2 * 3; len(r.Rows) != want || len(r.LeftOut) != 1 || len(r.Floors) != 3 {
		t.Errorf("%d rows, want %d; left out %v; %d floors", len(r.Rows), want, r.LeftOut, len(r.Floors))
	}
	for _, x := range r.Rows {
		var ops int64
		for way, n := range x.Ways {
			ops += n
			if (way == "http") != (x.Side == "http") {
				t.Errorf("%s by %s went %q", x.Op, x.Side, way)
			}
		}
		if ops != int64(x.Ops) || x.Ops < 2*x.Concurrency {
			t.Errorf("%+v: %d operations, %d have a way", x, x.Ops, ops)
		}
		if x.Throughput.N != 2 || x.ServerCPU.Min <= 0 || x.ClientCPU.Min <= 0 || x.P50 <= 0 || x.P99 < x.P50 || x.OverHTTP.N != 2 || x.ServerOverFloor <= 0 {
			t.Errorf("incomplete: %+v", x)
		}
	}
}

func TestDirectAgainstServers(t *testing.T) {
	fork, stock := binaries(t)
	dir := t.TempDir()
	r, err := Direct(t.Context(), Options{Fork: fork, Stock: stock, Dir: dir, Sizes: []int64{8 * mib}, Repeat: 1, Window: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	empty(t, dir)
	line := regexp.MustCompile(`^bench-direct: get_cpu_over_floor=(\S+) get_over_http=(\S+) degraded_over_healthy=(\S+) put_cpu_over_floor=(\S+) put_over_http=(\S+) client_cpu_http_over_fabric=(\S+)$`)
	for _, v := range line.FindStringSubmatch(r.Result) {
		if strings.Trim(v, "0.") == "" {
			t.Errorf("a ratio is 0: %s", r.Result)
		}
	}
	if !line.MatchString(r.Result) || len(r.Rows) != 7 {
		t.Errorf("%d rows, %q", len(r.Rows), r.Result)
	}
}

// modesOptions measure next to nothing of everything.
func modesOptions(t *testing.T) Options {
	t.Helper()
	fork, stock := binaries(t)
	if cpus, err := allowedCPUs(); err != nil || len(cpus) < 2 {
		t.Skip("NOT TESTED: the four modes need two CPUs: ", err)
	}
	return Options{Fork: fork, Stock: stock, Dir: t.TempDir(), Sizes: []int64{4 * kib, mib}, Concurrency: []int{2}, Repeat: 2, Window: time.Millisecond, Searches: 1,
		Model: tensors.Transformer{Layers: 2, Hidden: 64, Heads: 4, Vocab: 4000}, Compute: []string{os.Args[0]}, ComputeEnv: []string{computeVariable + "=1"}}
}

func TestModesAgainstServers(t *testing.T) {
	for _, fabric := range []string{"shm", "tcp"} {
		t.Run(fabric, func(t *testing.T) {
			o := modesOptions(t)
			o.Fabrics = []string{fabric}
			steps := 0
			o.Progress = func(done, total int, what string) {
				if steps++; done != steps || total < done || what == "" {
					t.Errorf("step %d is %d of %d, %q", steps, done, total, what)
				}
			}
			was := affinity(t, "/proc/self/status")
			r, err := Modes(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			empty(t, o.Dir)
			if is := affinity(t, "/proc/self/status"); is != was {
				t.Errorf("this process may run on CPUs %s, and before on %s", is, was)
			}
			if len(r.Modes) != 8 || len(r.Rows) != 4 || steps == 0 {
				t.Fatalf("%d modes, %d rows, %d steps", len(r.Modes), len(r.Rows), steps)
			}
			for _, m := range r.Modes {
				inline, busy := m.Side == sideHTTP, m.Client == Busy
				// A load reads the header's neighbourhood as well.
				if moved := m.OverFabric + m.ByHTTP; moved < m.Bytes || (m.Workload == Objects && moved != m.Bytes) || inline && m.OverFabric != 0 || !inline && m.ByHTTP != 0 {
					t.Errorf("%s, %s, %s: %d bytes, %d over the fabric, %d by HTTP", m.Workload, m.Client, m.Side, m.Bytes, m.OverFabric, m.ByHTTP)
				}
				if busy != (m.Kept.N == 2) || busy != (m.ComputeKept.N == 2) || m.Throughput.Min <= 0 || m.ClientCPU.Min <= 0 || m.ServerCPU.Min <= 0 || m.HTTPClientOver.Min <= 0 ||
					m.P50 <= 0 || m.P90 < m.P50 || m.P99 < m.P90 || m.Max < m.P99 {
					t.Errorf("incomplete: %+v", m)
				}
			}
			if !regexp.MustCompile(`^bench: client_cpu_http_over_fabric=\S+ busy_kept=\S+ inline_busy_kept=\S+ crossover_bytes=(\d+|none)$`).MatchString(r.Result) {
				t.Errorf("the last line is %q", r.Result)
			}
			if c := r.Crossover; c.Below+c.Above+c.Bytes.N != 1 || len(c.Tried) == 0 {
				t.Errorf("crossover %+v", c)
			}
			if r.Environment.Pinning == nil || len(r.Environment.Versions) != 2 {
				t.Errorf("environment %+v", r.Environment)
			}
		})
	}
}

// An interrupt leaves nothing, and this process as it was.
func TestModesAreInterrupted(t *testing.T) {
	o := modesOptions(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.Window = time.Hour
	o.Progress = func(_, _ int, what string) {
		if strings.Contains(what, Busy) || strings.Contains(what, Idle) {
			time.AfterFunc(100*time.Millisecond, cancel)
		}
	}
	was := affinity(t, "/proc/self/status")
	if _, err := Modes(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	empty(t, o.Dir)
	if is := affinity(t, "/proc/self/status"); is != was {
		t.Errorf("this process may run on CPUs %s, and before on %s", is, was)
	}
}

func TestProfile(t *testing.T) {
	fork, stock := binaries(t)
	profiles := t.TempDir()
	if _, err := Run(t.Context(), Options{Fork: fork, Stock: stock, Dir: t.TempDir(), Ops: []Op{Get}, Sizes: []int64{mib}, Concurrency: []int{1},
		Repeat: 1, Window: time.Millisecond, Profile: profiles}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"get-1-mib-1-shm.pprof", "get-1-mib-1-http.pprof"} {
		// pprof files are gzip.
		if b, err := os.ReadFile(filepath.Join(profiles, name)); err != nil || !bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
}

// An interrupt leaves nothing.
func TestRunIsInterrupted(t *testing.T) {
	fork, stock := binaries(t)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := Run(ctx, Options{Fork: fork, Stock: stock, Dir: dir, Sizes: []int64{mib}, Window: time.Hour, Out: hook(func(line string) {
		if strings.HasPrefix(line, "GET") {
			time.AfterFunc(100*time.Millisecond, cancel)
		}
	})})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	empty(t, dir)
}

type hook func(string)

func (h hook) Write(p []byte) (int, error) { h(string(p)); return len(p), nil }

// That a drive is lost must be true: with three of four gone there is no object, with
// two there is, and then all is as before.
func TestLostDrives(t *testing.T) {
	fork, _ := binaries(t)
	const size = 3 * mib
	s, err := startServer(t.Context(), serverOptions{name: "fork", binary: fork, dir: t.TempDir(), drives: 4, fabrics: []string{"shm"}, memory: make([]byte, size)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	p := testPattern()
	if err := s.fill(t.Context(), p, size, 1); err != nil {
		t.Fatal(err)
	}
	key := objectKey(size, 0)
	two, err := s.dataDrives(p, 4, key, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	if two[0] == two[1] {
		t.Fatalf("both data shards are on drive %d", two[0])
	}
	third := 0
	for third == two[0] || third == two[1] {
		third++
	}
	for _, c := range []struct {
		lost []int
		ok   bool
	}{{nil, true}, {two[:1], true}, {two, true}, {append(two, third), false}, {nil, true}} {
		if err := s.loseDrives(c.lost); err != nil {
			t.Fatal(err)
		}
		err := s.check(t.Context(), p, key, size)
		if (err == nil) != c.ok || errors.Is(err, ErrWrongBytes) {
			t.Errorf("with drives %v lost: %v", c.lost, err)
		}
		if err := s.restoreDrives(c.lost); err != nil {
			t.Fatal(err)
		}
	}
}
