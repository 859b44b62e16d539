// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package fabrictest_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/fabrictest"
	"github.com/s3rdma/s3rdma/rdmaio/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	size  = 1 << 20
	owner = "a"
	both  = rdmaio.RemoteRead | rdmaio.RemoteWrite
)

// rig is a faulty fabric over a real one, with memory at both ends.
type rig struct {
	t      *testing.T
	f      rdmaio.Fabric
	d      rdmaio.Descriptor
	remote []byte
	local  rdmaio.Slice
	ctx    context.Context
}

func newRig(t *testing.T, plan fabrictest.Plan) *rig {
	t.Helper()
	inner, err := shm.New(shm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := fabrictest.Faulty(inner, plan)
	t.Cleanup(func() { f.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	a, ok := f.(rdmaio.Acceptor)
	if !ok {
		t.Fatal("the faulty fabric hides that peers connect")
	}
	w, err := a.Accept(ctx, rdmaio.Hello{Token: "1", Owner: owner})
	if err != nil {
		t.Fatal(err)
	}
	target := shm.NewTarget(shm.TargetOptions{})
	t.Cleanup(func() { target.Close() })
	if err := target.Connect(ctx, w); err != nil {
		t.Fatal(err)
	}
	x, err := target.Alloc(size, both)
	if err != nil {
		t.Fatal(err)
	}
	d, err := x.Describe(0, size)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(mem) })
	r, err := f.Register(mem)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	for i := range mem {
		mem[i] = byte(i*7+i>>8) | 1 // never what the target begins with
	}
	return &rig{t, f, d, x.Bytes(), rdmaio.Slice{Region: r, Len: size}, ctx}
}

func (r *rig) open() rdmaio.Link {
	r.t.Helper()
	l, err := r.f.Open(r.ctx, r.d, owner)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := l.Close(); err != nil {
			r.t.Errorf("close: %v", err)
		}
	})
	return l
}

// moved is how many leading bytes of the target's memory are those of the
// initiator's.
func (r *rig) moved() int {
	local := r.local.Bytes()
	for i := range local {
		if r.remote[i] != local[i] {
			return i
		}
	}
	return len(local)
}

func want(t *testing.T, what string, err error, kinds ...error) {
	t.Helper()
	if len(kinds) == 0 && err != nil {
		t.Errorf("%s: %v", what, err)
	}
	for _, k := range kinds {
		if !errors.Is(err, k) {
			t.Errorf("%s: error %v, want %v", what, err, k)
		}
	}
}

func one(kind fabrictest.Kind) fabrictest.Plan {
	return fabrictest.Plan{Faults: []fabrictest.Fault{{Kind: kind, Nth: 2}}}
}

// down checks that a link is down for good.
func (r *rig) down(l rdmaio.Link, kind error) {
	r.t.Helper()
	want(r.t, "fence", l.Fence(r.ctx), kind)
	want(r.t, "write", l.Write(r.ctx, r.local, 0), rdmaio.ErrLinkDown)
	want(r.t, "read", l.Read(r.ctx, r.local, 0), rdmaio.ErrLinkDown)
	want(r.t, "close", l.Close())
	want(r.t, "close again", l.Close())
	want(r.t, "write on a closed link", l.Write(r.ctx, r.local, 0), rdmaio.ErrClosed)
	want(r.t, "fence a closed link", l.Fence(r.ctx), rdmaio.ErrClosed)
	m := r.open()
	want(r.t, "write on another link", m.Write(r.ctx, r.local, 0))
	want(r.t, "fence another link", m.Fence(r.ctx))
	if r.moved() != size {
		r.t.Error("another link moved wrong bytes")
	}
}

func TestNoFaults(t *testing.T) {
	r := newRig(t, fabrictest.Plan{})
	l := r.open()
	want(t, "write", l.Write(r.ctx, r.local, 0))
	want(t, "fence", l.Fence(r.ctx))
	if r.moved() != size {
		t.Error("bytes differ")
	}
}

func TestShort(t *testing.T) {
	r := newRig(t, one(fabrictest.Short))
	l := r.open()
	want(t, "first", l.Write(r.ctx, rdmaio.Slice{Region: r.local.Region, Len: 1}, 0))
	want(t, "second", l.Write(r.ctx, r.local, 0))
	want(t, "fence", l.Fence(r.ctx), rdmaio.ErrPeerGone, fabrictest.ErrInjected)
	if n := r.moved(); n != size/2 {
		t.Errorf("%d bytes moved, want %d", n, size/2)
	}
	r.down(l, rdmaio.ErrPeerGone)
}

func TestDie(t *testing.T) {
	r := newRig(t, one(fabrictest.Die))
	l := r.open()
	want(t, "first", l.Write(r.ctx, rdmaio.Slice{Region: r.local.Region, Len: 1}, 0))
	want(t, "second", l.Write(r.ctx, r.local, 0), rdmaio.ErrPeerGone, fabrictest.ErrInjected)
	if n := r.moved(); n != size/2 {
		t.Errorf("%d bytes moved, want %d", n, size/2)
	}
	r.down(l, rdmaio.ErrPeerGone)
}

func TestRevoke(t *testing.T) {
	r := newRig(t, one(fabrictest.Revoke))
	l := r.open()
	want(t, "first", l.Read(r.ctx, rdmaio.Slice{Region: r.local.Region, Len: 1}, 0))
	before := bytes.Clone(r.remote)
	want(t, "second", l.Write(r.ctx, r.local, 0), rdmaio.ErrStaleKey, fabrictest.ErrInjected)
	if !bytes.Equal(before, r.remote) {
		t.Error("a refused write moved bytes")
	}
	r.down(l, rdmaio.ErrStaleKey)
}

func TestDrop(t *testing.T) {
	r := newRig(t, one(fabrictest.Drop))
	l := r.open()
	want(t, "first", l.Write(r.ctx, rdmaio.Slice{Region: r.local.Region, Len: 1}, 0))
	want(t, "fence", l.Fence(r.ctx))
	want(t, "second", l.Write(r.ctx, r.local, 0))
	ctx, cancel := context.WithCancel(r.ctx)
	ended := make(chan error)
	go func() { ended <- l.Fence(ctx) }()
	select {
	case err := <-ended:
		t.Fatalf("fence ended without its completion: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	cancel()
	want(t, "fence", <-ended, context.Canceled)
	r.down(l, context.Canceled)
}

func TestDropThenClose(t *testing.T) {
	r := newRig(t, fabrictest.Plan{Faults: []fabrictest.Fault{{Kind: fabrictest.Drop}}})
	l := r.open()
	want(t, "write", l.Write(r.ctx, r.local, 0))
	want(t, "close", l.Close())
	if r.moved() != size {
		t.Error("the bytes did not move")
	}
}

func TestFlip(t *testing.T) {
	r := newRig(t, fabrictest.Plan{Faults: []fabrictest.Fault{{Kind: fabrictest.Flip, Nth: 1}, {Kind: fabrictest.Flip, Op: fabrictest.OpRead, Nth: 2}}})
	local := r.local.Bytes()
	source := bytes.Clone(local)
	l := r.open()
	want(t, "write", l.Write(r.ctx, rdmaio.Slice{Region: r.local.Region, Off: 100, Len: 1001}, 50))
	want(t, "fence", l.Fence(r.ctx))
	if !bytes.Equal(local, source) {
		t.Error("the source of a write has changed")
	}
	expect := bytes.Clone(source[100:1101])
	expect[500] ^= 0xff
	if !bytes.Equal(r.remote[50:1051], expect) {
		t.Error("not exactly the middle byte is wrong at the target")
	}
	if r.remote[49] != 0 || r.remote[1051] != 0 {
		t.Error("bytes around the transfer have changed")
	}

	// Once only; and the read counts apart.
	want(t, "write", l.Write(r.ctx, r.local, 0))
	want(t, "fence", l.Fence(r.ctx))
	if r.moved() != size {
		t.Error("the second write is wrong too")
	}
	clear(local)
	want(t, "first read", l.Read(r.ctx, r.local, 0))
	want(t, "fence", l.Fence(r.ctx))
	if !bytes.Equal(local, source) {
		t.Error("the first read is wrong")
	}
	want(t, "second read", l.Read(r.ctx, r.local, 0))
	want(t, "fence", l.Fence(r.ctx))
	local[size/2] ^= 0xff
	if !bytes.Equal(local, source) || !bytes.Equal(r.remote, source) {
		t.Error("not exactly the middle byte of the second read is wrong")
	}
	want(t, "empty", l.Write(r.ctx, rdmaio.Slice{Region: r.local.Region}, 0))
}

func TestDelay(t *testing.T) {
	const d = 15 * time.Millisecond
	for _, op := range []fabrictest.Op{fabrictest.OpOpen, fabrictest.OpWrite, fabrictest.OpFence} {
		r := newRig(t, fabrictest.Plan{Faults: []fabrictest.Fault{{Kind: fabrictest.Delay, Op: op, Delay: d}}})
		start := time.Now()
		l := r.open()
		want(t, "write", l.Write(r.ctx, r.local, 0))
		want(t, "fence", l.Fence(r.ctx))
		if took := time.Since(start); took < d {
			t.Errorf("op %d took %v, want %v at least", op, took, d)
		}
		want(t, "close", l.Close())
	}
	// The context ends the delay.
	r := newRig(t, fabrictest.Plan{Faults: []fabrictest.Fault{{Kind: fabrictest.Delay, Op: fabrictest.OpFence | fabrictest.OpWrite, Delay: time.Hour, Nth: 2}}})
	l := r.open()
	want(t, "write", l.Write(r.ctx, r.local, 0))
	ctx, cancel := context.WithCancel(r.ctx)
	time.AfterFunc(5*time.Millisecond, cancel)
	want(t, "fence", l.Fence(ctx), context.Canceled)
	r.down(l, context.Canceled)
}

func TestRefuse(t *testing.T) {
	r := newRig(t, fabrictest.Plan{Faults: []fabrictest.Fault{
		{Kind: fabrictest.Refuse, Nth: 1},
		{Kind: fabrictest.Refuse, Nth: 2, Err: rdmaio.ErrTooMany},
		{Kind: fabrictest.Refuse, Op: fabrictest.OpFence, Err: rdmaio.ErrPeerGone},
	}})
	_, err := r.f.Open(r.ctx, r.d, owner)
	want(t, "first open", err, rdmaio.ErrNoSession, fabrictest.ErrInjected)
	_, err = r.f.Open(r.ctx, r.d, owner)
	want(t, "second open", err, rdmaio.ErrTooMany)
	l := r.open()
	want(t, "write", l.Write(r.ctx, r.local, 0))
	want(t, "fence", l.Fence(r.ctx), rdmaio.ErrPeerGone)
	want(t, "write", l.Write(r.ctx, r.local, 0), rdmaio.ErrLinkDown)
}

// The same seed hits the same operations, and about as often as it says.
func TestProbability(t *testing.T) {
	run := func(seed uint64) (hits []int) {
		var n atomic.Int64
		at := 0
		r := newRig(t, fabrictest.Plan{
			Seed:    seed,
			Faults:  []fabrictest.Fault{{Kind: fabrictest.Revoke, Prob: 0.25, Op: fabrictest.OpWrite}},
			OnFault: func(fabrictest.Op, fabrictest.Fault) { n.Add(1); hits = append(hits, at) },
		})
		for at = range 400 {
			l := r.open()
			before := n.Load()
			err := l.Write(r.ctx, rdmaio.Slice{Region: r.local.Region, Len: 1}, 0)
			if hit := n.Load() > before; hit != (err != nil) {
				t.Fatalf("operation %d: hit %v, error %v", at, hit, err)
			}
			want(t, "close", l.Close())
		}
		return hits
	}
	a, again, other := run(1), run(1), run(2)
	if !slices.Equal(a, again) {
		t.Error("one seed hit different operations")
	}
	if slices.Equal(a, other) {
		t.Error("two seeds hit the same operations")
	}
	if len(a) < 60 || len(a) > 140 {
		t.Errorf("%d of 400 operations were hit, want about 100", len(a))
	}
}

// A fabric whose peers do not connect must not look as if they did.
func TestNoAcceptor(t *testing.T) {
	inner, err := shm.New(shm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	if _, ok := fabrictest.Faulty(struct{ rdmaio.Fabric }{inner}, fabrictest.Plan{}).(rdmaio.Acceptor); ok {
		t.Error("the faulty fabric is an Acceptor over one that is none")
	}
}

// With nothing going wrong, a faulty fabric is as good as the one below.
func TestFaultySuite(t *testing.T) {
	fabrictest.Run(t, fabrictest.Harness{
		Fabric: func(tb testing.TB) rdmaio.Fabric {
			f, err := shm.New(shm.Options{})
			if err != nil {
				tb.Fatal(err)
			}
			return fabrictest.Faulty(f, fabrictest.Plan{})
		},
		Target:        func(testing.TB, rdmaio.Fabric) rdmaio.Target { return shm.NewTarget(shm.TargetOptions{}) },
		PostAllocates: "a faulty fabric may",
	})
}
