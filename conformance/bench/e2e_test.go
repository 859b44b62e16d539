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
	s, err := startServer(t.Context(), "fork", fork, t.TempDir(), 4, []string{"shm"}, make([]byte, size))
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
