// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package fabrictest

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// settle is how long a memory is watched in which nothing may change any more. A
// violation in flight shows at once, or not at all.
const settle = 20 * time.Millisecond

// still fails the test if b changes within the settle time, or is not want.
func still(tb testing.TB, what string, b, want []byte) {
	tb.Helper()
	same(tb, what, b, want)
	time.Sleep(settle)
	same(tb, what+", a moment later", b, want)
}

func testCancelledBefore(t *testing.T, h Harness) {
	e := newEnv(t, h)
	const size = 2 << 20
	x, r := e.expose(e.t, size, both), e.local(size)
	d := e.describe(x, 0, size)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if l, err := e.f.Open(ctx, d, owner); err == nil {
		l.Close()
	} else if !errors.Is(err, context.Canceled) {
		t.Errorf("open: error %v, want context.Canceled or none", err)
	}
	for _, dir := range []direction{write, read} {
		fill(x.Bytes(), 1)
		fill(r.Bytes(), 2)
		src, dst := r.Bytes(), x.Bytes()
		if dir.access == rdmaio.RemoteRead {
			src, dst = dst, src
		}
		l := e.open(d)
		err := dir.post(l, ctx, all(r), 0)
		if ferr := l.Fence(ctx); err == nil {
			err = ferr
		}
		switch {
		case err == nil: // it was faster than the cancellation
			same(t, "destination", dst, src)
		case !errors.Is(err, context.Canceled):
			t.Errorf("%s: error %v, want context.Canceled", dir.name, err)
		}
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		after := bytes.Clone(dst)
		fill(src, 3)
		still(t, dir.name+": destination", dst, after)
	}
}

func testCancelledDuring(t *testing.T, h Harness) {
	e := newEnv(t, h)
	const size = 8 << 20
	x, r := e.expose(e.t, size, both), e.local(size)
	d := e.describe(x, 0, size)
	for round := range 6 {
		dir := []direction{write, read}[round%2]
		src, dst := r.Bytes(), x.Bytes()
		if dir.access == rdmaio.RemoteRead {
			src, dst = dst, src
		}
		fill(src, uint64(round)+1)
		clear(dst)
		l := e.open(d)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- pump(ctx, l, dir, all(r), nil) }()
		eventually(t, "bytes arrive", patience, func() bool { return dst[round] == src[round] })
		cancel()
		var err error
		select {
		case err = <-ended:
		case <-time.After(e.fenceLimit()):
			t.Fatalf("%s: still running after FenceLimit", dir.name)
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v, want context.Canceled", dir.name, err)
		}
		// That was the fence: from here on the memory is the caller's again.
		after := bytes.Clone(dst)
		fill(src, uint64(round)+100)
		still(t, dir.name+": destination after the fence", dst, after)
		if err := dir.post(l, context.Background(), all(r), 0); !errors.Is(err, rdmaio.ErrLinkDown) {
			t.Errorf("%s after a cancelled fence: error %v, want ErrLinkDown", dir.name, err)
		}
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		still(t, dir.name+": destination after close", dst, after)
	}
	if err := e.try(write, d, all(r), 0); err != nil {
		t.Errorf("a new link after cancellations: %v", err)
	}
}

// pump makes one transfer after another on one link until one fails, fences, and
// returns the error. It counts those that ended well.
func pump(ctx context.Context, l rdmaio.Link, dir direction, s rdmaio.Slice, done *atomic.Int64) error {
	for {
		err := dir.post(l, ctx, s, 0)
		if ferr := l.Fence(ctx); err == nil {
			err = ferr
		}
		if err != nil {
			return err
		}
		if done != nil {
			done.Add(1)
		}
	}
}

// crowd keeps transfers with d running from several goroutines, each on one link
// after another, so that some are in the middle whatever else happens.
type crowd struct {
	e       *env
	wg      sync.WaitGroup
	moved   atomic.Int64 // transfers that ended well
	refused atomic.Int64 // those that failed
	quit    atomic.Bool
	mu      sync.Mutex
	errs    []error
}

// startCrowd runs n goroutines, each between the window of d and a slice of r of
// its own, and returns when all have moved something.
func (e *env) startCrowd(n int, dir direction, d rdmaio.Descriptor, r rdmaio.Region) *crowd {
	e.tb.Helper()
	c := &crowd{e: e}
	each := len(r.Bytes()) / n
	for i := range n {
		c.wg.Add(1)
		go func() {
			defer c.wg.Done()
			for s := (rdmaio.Slice{Region: r, Off: i * each, Len: each}); !c.quit.Load(); {
				c.once(dir, d, s)
			}
		}()
	}
	eventually(e.tb, "transfers run", patience, func() bool { return c.moved.Load() >= int64(2*n) || c.refused.Load() > 0 })
	return c
}

func (c *crowd) once(dir direction, d rdmaio.Descriptor, s rdmaio.Slice) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l, err := c.e.f.Open(ctx, d, owner)
	if err == nil {
		for range 4 {
			err = dir.post(l, ctx, s, 0)
			if ferr := l.Fence(ctx); err == nil {
				err = ferr
			}
			if err != nil {
				break
			}
			c.moved.Add(1)
		}
		if cerr := l.Close(); cerr != nil {
			err = errors.Join(err, cerr)
		}
	}
	if err != nil {
		c.mu.Lock()
		if len(c.errs) < 1000 {
			c.errs = append(c.errs, err)
		}
		c.mu.Unlock()
		c.refused.Add(1)
	}
}

// outlast waits until more transfers have failed than could have been under way,
// so that the later ones began after the call.
func (c *crowd) outlast(n int) {
	c.e.tb.Helper()
	from := c.refused.Load()
	eventually(c.e.tb, "later transfers are refused", patience, func() bool { return c.refused.Load() >= from+int64(n) })
}

// stop ends the crowd and checks that what failed failed as one of kinds.
func (c *crowd) stop(kinds ...error) {
	c.e.tb.Helper()
	c.quit.Store(true)
	c.wg.Wait()
	for _, err := range c.errs {
		if !isOne(err, kinds...) {
			c.e.tb.Errorf("a transfer failed with %v, want one of %v", err, kinds)
			return
		}
	}
}

func testRekeyDuring(t *testing.T, h Harness) {
	e := newEnv(t, h)
	const n, size = 4, 3<<20 + 5
	x, r := e.expose(e.t, size, both), e.local(n*size)
	for round := range 4 {
		dir := []direction{write, read}[round%2]
		clear(r.Bytes())
		if dir.access == rdmaio.RemoteWrite {
			set(r.Bytes(), 0x11)
		}
		set(x.Bytes(), 0x11)
		old := e.describe(x, 0, size)
		c := e.startCrowd(n, dir, old, r)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := x.Rekey(ctx)
		cancel()
		if err != nil {
			c.stop()
			t.Fatalf("rekey: %v", err)
		}
		// The memory is the target's alone now: what it puts there stays, and stays
		// unseen.
		moved := c.moved.Load()
		set(x.Bytes(), 0xee)
		c.outlast(8 * n)
		for _, b := range x.Bytes() {
			if b != 0xee {
				t.Fatalf("%s: the target's memory changed after Rekey had returned", dir.name)
			}
		}
		c.stop(rdmaio.ErrStaleKey)
		if late := c.moved.Load() - moved; late > n {
			t.Errorf("%s: %d transfers ended well after Rekey had returned", dir.name, late)
		}
		if bytes.IndexByte(r.Bytes(), 0xee) >= 0 {
			t.Errorf("%s: a transfer saw what was written after Rekey had returned", dir.name)
		}
		d := e.describe(x, 0, size)
		if err := e.try(dir, d, rdmaio.Slice{Region: r, Len: size}, 0); err != nil {
			t.Errorf("%s under the new key: %v", dir.name, err)
		}
	}
}

func set(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

func testCloseRegionDuring(t *testing.T, h Harness) {
	e := newEnv(t, h)
	const n, size = 4, 3 << 20
	r := e.local(n * size)
	for _, dir := range []direction{write, read, write} {
		_, own := e.t.(rdmaio.Allocator) // then Close takes the memory away
		x := e.expose(e.t, size, both)
		c := e.startCrowd(n, dir, e.describe(x, 0, size), r)
		mem := x.Bytes()
		if err := x.Close(); err != nil {
			t.Errorf("close the region: %v", err)
		}
		if !own {
			set(mem, 0xee)
		}
		c.outlast(8 * n)
		if !own && bytes.Count(mem, []byte{0xee}) != len(mem) {
			t.Errorf("%s: the target's memory changed after Close had returned", dir.name)
		}
		c.stop(rdmaio.ErrStaleKey)
	}
}

func testPeerDeath(t *testing.T, h Harness) {
	if h.Kill == nil {
		t.Skip("the harness cannot kill a peer")
	}
	e := newEnv(t, h)
	const n, size = 3, 4 << 20
	r := e.local(n * size)
	x := e.expose(e.t, size, both)
	d := e.describe(x, 0, size)
	links := make([]rdmaio.Link, n)
	ended := make(chan error, n)
	var moved atomic.Int64
	for i := range links {
		links[i] = e.open(d)
		go func() {
			ended <- pump(context.Background(), links[i], []direction{write, read}[i%2],
				rdmaio.Slice{Region: r, Off: i * size, Len: size}, &moved)
		}()
	}
	eventually(t, "transfers run", patience, func() bool { return moved.Load() >= 2*n })
	killed := time.Now()
	e.h.Kill(t, e.t)
	for range n {
		select {
		case err := <-ended:
			if !errors.Is(err, rdmaio.ErrPeerGone) {
				t.Errorf("a transfer with a dead peer: error %v, want ErrPeerGone", err)
			}
		case <-time.After(e.fenceLimit()):
			t.Fatal("a transfer with a dead peer did not end within FenceLimit")
		}
	}
	after := bytes.Clone(r.Bytes())
	for i, l := range links {
		if err := write.post(l, context.Background(), rdmaio.Slice{Region: r, Len: 1}, 0); !errors.Is(err, rdmaio.ErrLinkDown) {
			t.Errorf("link %d: error %v, want ErrLinkDown", i, err)
		}
		if err := l.Close(); err != nil {
			t.Errorf("link %d: close: %v", i, err)
		}
	}
	if took := time.Since(killed); took > e.fenceLimit() {
		t.Errorf("fence and close with a dead peer took %v, limit %v", took, e.fenceLimit())
	}
	still(t, "initiator's memory", r.Bytes(), after)
	if err := e.try(write, d, rdmaio.Slice{Region: r, Len: 1}, 0); !isOne(err, rdmaio.ErrNoSession, rdmaio.ErrPeerGone) {
		t.Errorf("a new link to a dead peer: error %v, want ErrNoSession or ErrPeerGone", err)
	}
	if h.Live != nil {
		eventually(t, "nothing is held for a dead peer", e.fenceLimit(), func() bool { return h.Live(e.f) == 0 })
	}
	next, _ := e.target(owner)
	y := e.expose(next, size, both)
	fill(r.Bytes(), 8)
	if err := e.try(write, e.describe(y, 0, size), rdmaio.Slice{Region: r, Len: size}, 0); err != nil {
		t.Fatalf("the next peer: %v", err)
	}
	same(t, "the next peer's memory", y.Bytes(), r.Bytes()[:size])
}

func testHangup(t *testing.T, h Harness) {
	e := newEnv(t, h)
	a := e.acceptor()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	const n, size = 3, 4 << 20
	x, r := e.expose(e.t, size, both), e.local(n*size)
	d := e.describe(x, 0, size)
	idle := e.open(d)
	set(r.Bytes(), 0x11)
	if err := a.Hangup(ctx, e.session, "somebody else"); !errors.Is(err, rdmaio.ErrNotOwner) {
		t.Errorf("hang up as another: error %v, want ErrNotOwner", err)
	}
	if err := a.Hangup(ctx, rdmaio.NewSessionID(), owner); !errors.Is(err, rdmaio.ErrNoSession) {
		t.Errorf("hang up an unknown session: error %v, want ErrNoSession", err)
	}
	c := e.startCrowd(n, write, d, r)
	if err := a.Hangup(ctx, e.session, owner); err != nil {
		t.Errorf("hang up: %v", err)
	}
	set(x.Bytes(), 0xee)
	c.outlast(8 * n)
	if bytes.Count(x.Bytes(), []byte{0xee}) != size {
		t.Error("the target's memory changed after Hangup had returned")
	}
	c.stop(rdmaio.ErrNoSession, rdmaio.ErrPeerGone, rdmaio.ErrStaleKey)
	err := write.post(idle, ctx, rdmaio.Slice{Region: r, Len: 1}, 0)
	if err == nil {
		err = idle.Fence(ctx)
	}
	if !isOne(err, rdmaio.ErrNoSession, rdmaio.ErrPeerGone) {
		t.Errorf("an idle link after Hangup: error %v, want ErrNoSession or ErrPeerGone", err)
	}
	if err := idle.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := a.Hangup(ctx, e.session, owner); !errors.Is(err, rdmaio.ErrNoSession) {
		t.Errorf("hang up again: error %v, want ErrNoSession", err)
	}
	eventually(t, "the target notices", patience, func() bool {
		_, err := x.Describe(0, 1)
		return errors.Is(err, rdmaio.ErrNoSession)
	})
	if h.Live != nil {
		eventually(t, "nothing is held for who hung up", e.fenceLimit(), func() bool { return h.Live(e.f) == 0 })
	}
}

func testReconnect(t *testing.T, h Harness) {
	e := newEnv(t, h)
	a := e.acceptor()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	const size = 1 << 20
	x, r := e.expose(e.t, size, both), e.local(size)
	session := e.session
	old := e.describe(x, 0, size)
	for _, how := range []string{"lost", "live"} {
		if how == "lost" {
			if err := a.Hangup(ctx, session, owner); err != nil {
				t.Fatalf("hang up: %v", err)
			}
		}
		fill(x.Bytes(), 4)
		before := bytes.Clone(x.Bytes())
		session = e.connect(e.t, owner)
		same(t, "memory of a target that connected again", x.Bytes(), before)
		// A session that was live is given up by the target, which the fabric may
		// learn a moment later; the descriptor is void at once all the same.
		e.refuses("descriptor from before ("+how+")", write, old, all(r), 0, x.Bytes(),
			rdmaio.ErrNoSession, rdmaio.ErrStaleKey, rdmaio.ErrPeerGone)
		fresh := e.describe(x, 0, size)
		if fresh.Session != session {
			t.Errorf("%s: descriptor of another session than the new one", how)
		}
		if fresh.RKey == old.RKey {
			t.Errorf("%s: a new session kept the key", how)
		}
		fill(r.Bytes(), 5)
		if err := e.try(write, fresh, all(r), 0); err != nil {
			t.Fatalf("%s: new descriptor: %v", how, err)
		}
		same(t, "target's memory", x.Bytes(), r.Bytes())
		old = fresh
	}
}

func testClose(t *testing.T, h Harness) {
	e := newEnv(t, h)
	x := e.expose(e.t, guard, both)
	r, err := e.f.Register(mmap(t, guard))
	if err != nil {
		t.Fatal(err)
	}
	d := e.describe(x, 0, guard)
	l := e.open(d)
	for range 2 {
		if err := r.Close(); err != nil {
			t.Errorf("close the region: %v", err)
		}
	}
	for range 2 {
		if err := e.f.Close(); err != nil {
			t.Errorf("close the fabric: %v", err)
		}
	}
	if err := l.Fence(context.Background()); err != nil && !isOne(err, rdmaio.ErrClosed, rdmaio.ErrPeerGone, rdmaio.ErrNoSession) {
		t.Errorf("fence an idle link of a closed fabric: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("close a link of a closed fabric: %v", err)
	}
	if _, err := e.f.Open(context.Background(), d, owner); !errors.Is(err, rdmaio.ErrClosed) {
		t.Errorf("open on a closed fabric: error %v, want ErrClosed", err)
	}
	if _, err := e.f.Register(mmap(t, guard)); !errors.Is(err, rdmaio.ErrClosed) {
		t.Errorf("register with a closed fabric: error %v, want ErrClosed", err)
	}
	if a, ok := e.f.(rdmaio.Acceptor); ok {
		if _, err := a.Accept(context.Background(), rdmaio.Hello{Token: "1", Owner: owner}); !errors.Is(err, rdmaio.ErrClosed) {
			t.Errorf("accept on a closed fabric: error %v, want ErrClosed", err)
		}
		eventually(t, "the target notices", patience, func() bool {
			_, err := x.Describe(0, 1)
			return errors.Is(err, rdmaio.ErrNoSession)
		})
	}
	if h.Live != nil && h.Live(e.f) != 0 {
		t.Errorf("a closed fabric holds %d things", h.Live(e.f))
	}
}
