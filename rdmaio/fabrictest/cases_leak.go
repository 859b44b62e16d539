// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package fabrictest

import (
	"context"
	"testing"

	"github.com/s3rdma/s3rdma/rdmaio"
)

func testAllocations(t *testing.T, h Harness) {
	if h.PostAllocates != "" {
		t.Skip(h.PostAllocates)
	}
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	e := newEnv(t, h)
	const size = 256 << 10
	x, r := e.expose(e.t, size, both), e.local(size)
	l := e.open(e.describe(x, 0, size))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, dir := range []direction{write, read} {
		n := testing.AllocsPerRun(200, func() {
			if err := dir.post(l, ctx, rdmaio.Slice{Region: r, Len: size}, 0); err != nil {
				t.Fatal(err)
			}
			if err := l.Fence(ctx); err != nil {
				t.Fatal(err)
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations for a post and a fence, want none", dir.name, n)
		}
	}
}

func testFailedOpens(t *testing.T, h Harness) {
	e := newEnv(t, h)
	x := e.expose(e.t, guard, both)
	good := e.describe(x, 0, guard)
	stale, lost := good, good
	stale.RKey ^= 0x5555
	if _, ok := e.f.(rdmaio.Acceptor); ok {
		lost.Session = rdmaio.NewSessionID()
	}
	held := 0
	if h.Live != nil {
		held = h.Live(e.f)
	}
	files, maps := descriptors(t), mappings(t)
	for range 1000 {
		for _, c := range []struct {
			d   rdmaio.Descriptor
			who string
		}{{stale, owner}, {lost, owner}, {good, "somebody else"}} {
			if l, err := e.f.Open(context.Background(), c.d, c.who); err == nil {
				l.Close() // not known before the transfer, or no sessions: as good a cycle
			}
		}
	}
	if now := descriptors(t); now > files+2 {
		t.Errorf("%d open files before, %d after 3000 failed opens", files, now)
	}
	if now := mappings(t); now > maps+slack {
		t.Errorf("%d mappings before, %d after 3000 failed opens", maps, now)
	}
	if h.Live != nil {
		eventually(t, "what failed opens held is given back", patience, func() bool { return h.Live(e.f) == held })
		// What an open holds on to for good shows when its session should go.
		if err := e.t.Close(); err != nil {
			t.Errorf("close the target: %v", err)
		}
		eventually(t, "the session is gone", patience, func() bool { return h.Live(e.f) == 0 })
	}
}

// slack is how many mappings and files the Go runtime may add of its own during a
// case.
const slack = 10

func testCycles(t *testing.T, h Harness) {
	cycle := func(t *testing.T) {
		e := newEnv(t, h)
		for range 2 {
			x, r := e.expose(e.t, guard, both), e.local(guard)
			d := e.describe(x, 0, guard)
			for _, dir := range []direction{write, read} {
				if err := e.try(dir, d, all(r), 0); err != nil {
					t.Fatal(err)
				}
			}
			if err := x.Rekey(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Run("warm", cycle)
	files, maps := descriptors(t), mappings(t)
	for range 3 * slack {
		if !t.Run("cycle", cycle) {
			return
		}
	}
	if now := descriptors(t); now > files+slack {
		t.Errorf("%d open files before, %d after %d cycles", files, now, 3*slack)
	}
	if now := mappings(t); now > maps+slack {
		t.Errorf("%d mappings before, %d after %d cycles", maps, now, 3*slack)
	}
}
