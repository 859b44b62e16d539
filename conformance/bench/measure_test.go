// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bench

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeMover is a server and its client in one.
type fakeMover struct {
	memory  [][]byte
	pattern pattern
	wrong   int  // the byte that GETs get wrong, -1 none
	lazy    bool // GETs do nothing
	fail    error
	gets    atomic.Int64
	puts    atomic.Int64
}

func (f *fakeMover) mem(w int) []byte { return f.memory[w] }

func (f *fakeMover) get(_ context.Context, w int, _ string, n int) error {
	f.gets.Add(1)
	if f.lazy {
		return nil
	}
	f.pattern.fill(f.memory[w][:n])
	if f.wrong >= 0 {
		f.memory[w][f.wrong] ^= 1
	}
	return f.fail
}

func (f *fakeMover) put(_ context.Context, w int, _ string, n int) error {
	f.puts.Add(1)
	if at := f.pattern.differs(f.memory[w][:n]); at >= 0 {
		return errors.New("the memory is not the pattern")
	}
	return f.fail
}

func (f *fakeMover) ways() ways    { return ways{"http": f.gets.Load() + f.puts.Load()} }
func (f *fakeMover) byHTTP() int64 { return 10 * (f.gets.Load() + f.puts.Load()) }
func (f *fakeMover) close() error  { return nil }

func testPattern() pattern {
	p := make(pattern, 10007)
	rand.NewChaCha8([32]byte{}).Read(p)
	return p
}

// newFake is a side whose server is this process.
func newFake(workers, size int) (*side, *fakeMover, measurer) {
	f := &fakeMover{pattern: testPattern(), wrong: -1}
	for range workers {
		f.memory = append(f.memory, make([]byte, size))
	}
	return &side{name: "fake", server: &server{pid: os.Getpid()}, mover: f}, f,
		measurer{length: 5 * time.Millisecond, pattern: f.pattern, serial: new(atomic.Int64)}
}

func TestWindow(t *testing.T) {
	const workers, size = 3, 50_000
	s, f, m := newFake(workers, size)
	var order []string
	s.before = func(context.Context) error { order = append(order, "before"); return nil }
	s.after = func(context.Context) error { order = append(order, "after"); return nil }
	for _, op := range []Op{Get, Put} {
		w, err := m.run(t.Context(), s, cell{op: op, size: size, workers: workers, keys: 2})
		if err != nil {
			t.Fatal(err)
		}
		n := f.gets.Load()
		if op == Put {
			n = f.puts.Load()
			keys := map[string]bool{}
			for _, k := range w.written {
				keys[k] = true
			}
			if int64(len(keys)) != n {
				t.Errorf("%d different keys were written by %d operations", len(keys), n)
			}
		}
		if int64(w.ops) != n || len(w.latencies) != w.ops || w.ops < workers {
			t.Errorf("%s: %d operations, %d latencies, the mover saw %d", op, w.ops, len(w.latencies), n)
		}
		if w.took < m.length || w.client <= 0 || w.server <= 0 {
			t.Errorf("%s: took %v, client %v, server %v", op, w.took, w.client, w.server)
		}
		if diff := cmp.Diff(ways{"http": n}, w.ways); diff != "" || w.byHTTP != 10*n || w.overFabric != 0 {
			t.Errorf("%s: %d bytes by HTTP, %d over the fabric, ways: %s", op, w.byHTTP, w.overFabric, diff)
		}
	}
	if diff := cmp.Diff([]string{"before", "after", "before", "after"}, order); diff != "" {
		t.Error(diff)
	}
}

func TestWindowSeesWrongBytes(t *testing.T) {
	const size = 30_000
	s, f, m := newFake(2, size)
	restored := 0
	s.after = func(context.Context) error { restored++; return nil }
	for _, at := range []int{0, 12_345, size - 1} {
		f.wrong = at
		if _, err := m.run(t.Context(), s, cell{op: Get, size: size, workers: 2, keys: 1}); !errors.Is(err, ErrWrongBytes) {
			t.Errorf("byte %d is wrong: error %v", at, err)
		}
	}
	// What an earlier window has left in the memory must not pass for an object.
	f.wrong = -1
	f.pattern.fill(f.memory[0])
	f.pattern.fill(f.memory[1])
	f.lazy = true
	if _, err := m.run(t.Context(), s, cell{op: Get, size: size, workers: 2, keys: 1}); !errors.Is(err, ErrWrongBytes) {
		t.Errorf("nothing was received: error %v", err)
	}
	f.lazy, f.fail = false, errors.New("no such thing")
	if _, err := m.run(t.Context(), s, cell{op: Get, size: size, workers: 2, keys: 1}); !errors.Is(err, f.fail) {
		t.Errorf("error %v, want the mover's", err)
	}
	if restored != 5 {
		t.Errorf("the side's state was put back %d times of 5", restored)
	}
}

func TestWindowEndsWithItsContext(t *testing.T) {
	s, _, m := newFake(1, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var after error
	s.after = func(ctx context.Context) error { after = ctx.Err(); return nil }
	if _, err := m.run(ctx, s, cell{op: Get, size: 1000, workers: 1, keys: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if after != nil {
		t.Errorf("the state is put back with a context that has ended: %v", after)
	}
}

func TestPattern(t *testing.T) {
	p := testPattern()
	b := make([]byte, 3*len(p)+17)
	p.fill(b)
	if at := p.differs(b); at != -1 {
		t.Errorf("a filled buffer differs at %d", at)
	}
	for _, at := range []int{0, len(p), len(b) - 1} {
		b[at] ^= 1
		if got := p.differs(b); got != at {
			t.Errorf("byte %d is wrong, found %d", at, got)
		}
		b[at] ^= 1
	}
	// Whatever page was not written anew must show.
	for _, n := range []int{1, 4096, 4097, 3 * len(p)} {
		b := make([]byte, n)
		p.fill(b)
		was := bytes.Clone(b)
		spoil(b)
		for page := 0; page < n; page += 4096 {
			if bytes.Equal(b[page:min(page+4096, n)], was[page:min(page+4096, n)]) {
				t.Errorf("%d bytes: the page at %d is not spoilt", n, page)
			}
		}
		if b[n-1] == was[n-1] {
			t.Errorf("%d bytes: the last one is not spoilt", n)
		}
	}
}
