// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package fabrictest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/s3rdma/s3rdma/rdmaio"
)

func testCapabilities(t *testing.T, h Harness) {
	e := newEnv(t, h)
	c := e.f.Capabilities()
	if c.Name == "" || c.Name != e.t.Name() {
		t.Errorf("the fabric is named %q and its target %q, want one name", c.Name, e.t.Name())
	}
	if c.MaxTransfer < 1<<20 || c.MaxWindow < 1<<20 {
		t.Errorf("MaxTransfer %d, MaxWindow %d: want room for 1 MiB at least", c.MaxTransfer, c.MaxWindow)
	}
	e.fenceLimit()
	if again := e.f.Capabilities(); again != c {
		t.Errorf("capabilities changed from %+v to %+v", c, again)
	}
}

// sizes around every boundary that a fabric may cut at.
var sizes = []int{
	0, 1, 4095, 4096, 4097, 64<<10 - 1, 64 << 10, 64<<10 + 1,
	1<<20 - 1, 1 << 20, 1<<20 + 1, 5<<20 + 3,
}

// exact makes transfers of [off, off+n) of x, as the window of one descriptor, and
// looks at every byte of both memories afterwards.
type exact struct {
	*env
	x    rdmaio.Exposed
	r    rdmaio.Region
	seed uint64
}

// post is one transfer of an exact check: n bytes between the window, at bytes from
// its start, and the local region at off.
type post struct{ at, off, n int }

func (c *exact) check(dir direction, winOff, winLen int, posts []post) {
	c.tb.Helper()
	c.seed += 2
	remote, local := c.x.Bytes(), c.r.Bytes()
	fill(remote, c.seed)
	fill(local, c.seed+1)
	wantRemote, wantLocal := bytes.Clone(remote), bytes.Clone(local)
	for _, p := range posts {
		there, here := winOff+p.at, p.off
		if dir.access == rdmaio.RemoteWrite {
			copy(wantRemote[there:there+p.n], local[here:])
		} else {
			copy(wantLocal[here:here+p.n], remote[there:])
		}
	}

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l := c.open(c.describe(c.x, winOff, winLen))
	for _, p := range posts {
		if err := dir.post(l, ctx, rdmaio.Slice{Region: c.r, Off: p.off, Len: p.n}, uint64(p.at)); err != nil {
			c.tb.Fatalf("%s of %d bytes at %d: %v", dir.name, p.n, p.at, err)
		}
	}
	if err := l.Fence(ctx); err != nil {
		c.tb.Fatalf("fence: %v", err)
	}
	same(c.tb, "target's memory", remote, wantRemote)
	same(c.tb, "initiator's memory", local, wantLocal)
	if err := l.Close(); err != nil {
		c.tb.Fatalf("close: %v", err)
	}
	same(c.tb, "target's memory after close", remote, wantRemote)
}

func same(tb testing.TB, what string, got, want []byte) {
	tb.Helper()
	if !bytes.Equal(got, want) {
		i := differs(got, want)
		tb.Fatalf("%s: byte %d of %d is %#x, want %#x", what, i, len(want), got[i], want[i])
	}
}

func testExactBytes(t *testing.T, h Harness) {
	e := newEnv(t, h)
	most := 2*guard + sizes[len(sizes)-1]
	c := &exact{env: e, x: e.expose(e.t, most, rdmaio.RemoteRead|rdmaio.RemoteWrite), r: e.local(most)}
	for _, dir := range []direction{write, read} {
		for _, n := range sizes {
			c.check(dir, guard, n, []post{{0, guard, n}})
			// Neither end aligned, and not alike.
			c.check(dir, guard-3, n, []post{{0, guard - 5, n}})
		}
	}
}

func testManyPosts(t *testing.T, h Harness) {
	e := newEnv(t, h)
	const window = 2<<20 + 777
	c := &exact{
		env: e,
		x:   e.expose(e.t, 2*guard+window, rdmaio.RemoteRead|rdmaio.RemoteWrite),
		r:   e.local(2*guard + window),
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, dir := range []direction{write, read} {
		var posts []post
		for at := 0; at < window; {
			n := min(1+rng.IntN(96<<10), window-at)
			posts = append(posts, post{at, guard + at, n})
			at += n
		}
		rng.Shuffle(len(posts), func(i, j int) { posts[i], posts[j] = posts[j], posts[i] })
		c.check(dir, guard, window, posts)
	}
}

func testSubWindow(t *testing.T, h Harness) {
	e := newEnv(t, h)
	const size = 1 << 20
	c := &exact{env: e, x: e.expose(e.t, size, rdmaio.RemoteRead|rdmaio.RemoteWrite), r: e.local(size)}
	for _, dir := range []direction{write, read} {
		c.check(dir, 0, size, []post{{0, 0, size}})
		c.check(dir, 0, 1, []post{{0, size - 1, 1}})
		c.check(dir, size-1, 1, []post{{0, 0, 1}})
		c.check(dir, 12345, 6789, []post{{0, 1, 6789}})
		c.check(dir, 12345, 6789, []post{{6788, 1, 1}, {17, 100, 4096}})
		c.check(dir, size, 0, []post{{0, 0, 0}})
	}
	// A window narrowed by the initiator.
	d, err := e.describe(c.x, 100, 5000).Narrow(1000, 2000)
	if err != nil {
		t.Fatal(err)
	}
	fill(c.x.Bytes(), 1)
	fill(c.r.Bytes(), 2)
	want := bytes.Clone(c.x.Bytes())
	copy(want[1100:3100], c.r.Bytes())
	if err := e.try(write, d, rdmaio.Slice{Region: c.r, Len: 2000}, 0); err != nil {
		t.Fatalf("write a narrowed window: %v", err)
	}
	same(t, "target's memory", c.x.Bytes(), want)
}

func testConcurrent(t *testing.T, h Harness) {
	e := newEnv(t, h)
	const workers, rounds, window = 8, 12, 96<<10 + 13
	x := e.expose(e.t, workers*window, rdmaio.RemoteRead|rdmaio.RemoteWrite)
	shared := e.expose(e.t, window, rdmaio.RemoteWrite)
	local := e.local(2 * workers * window)
	common := e.local(window)
	fill(common.Bytes(), 99)
	sharedWindow := e.describe(shared, 0, window)

	var wg sync.WaitGroup
	for i := range workers {
		d := e.describe(x, i*window, window)
		wg.Add(1)
		go func() {
			defer wg.Done()
			out := rdmaio.Slice{Region: local, Off: 2 * i * window, Len: window}
			back := rdmaio.Slice{Region: local, Off: (2*i + 1) * window, Len: window}
			if err := e.echo(d, sharedWindow, out, back, all(common), uint64(i), rounds); err != nil {
				t.Errorf("worker %d: %v", i, err)
			}
		}()
	}
	wg.Wait()
	if !t.Failed() {
		same(t, "window that all wrote", shared.Bytes(), common.Bytes())
	}
}

// echo writes patterns to a window of its own and reads them back, and writes what
// everybody writes to a common one.
func (e *env) echo(d, shared rdmaio.Descriptor, out, back, common rdmaio.Slice, seed uint64, rounds int) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for round := range rounds {
		l, err := e.f.Open(ctx, d, owner)
		if err != nil {
			return fmt.Errorf("round %d: open: %w", round, err)
		}
		defer l.Close()
		m, err := e.f.Open(ctx, shared, owner)
		if err != nil {
			return fmt.Errorf("round %d: open the common window: %w", round, err)
		}
		defer m.Close()
		fill(out.Bytes(), seed<<32+uint64(round))
		half := rdmaio.Slice{Region: out.Region, Off: out.Off, Len: out.Len / 2}
		rest := rdmaio.Slice{Region: out.Region, Off: out.Off + half.Len, Len: out.Len - half.Len}
		for _, step := range []func() error{
			func() error { return l.Write(ctx, half, 0) },
			func() error { return m.Write(ctx, common, 0) },
			func() error { return l.Write(ctx, rest, uint64(half.Len)) },
			func() error { return l.Fence(ctx) },
			func() error { return l.Read(ctx, back, 0) },
			func() error { return l.Fence(ctx) },
			func() error { return m.Fence(ctx) },
			l.Close,
			m.Close,
		} {
			if err := step(); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
		}
		if i := differs(back.Bytes(), out.Bytes()); i >= 0 {
			return fmt.Errorf("round %d: byte %d came back wrong", round, i)
		}
	}
	return nil
}
