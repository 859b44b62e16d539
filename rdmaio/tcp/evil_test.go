// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"errors"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

func oneLane() Options {
	o := quick()
	o.Lanes = 1
	return o
}

// A target that breaks the protocol loses its session, with an error that says so,
// and nothing that it sends gets anywhere but where it was asked for.
func TestTargetBreaksProtocol(t *testing.T) {
	const size = 4096
	cases := map[string]struct {
		op   uint8
		evil func(e *evilTarget, r request)
	}{
		"unknown answer":     {opWrite, func(e *evilTarget, r request) { e.answer(answer{op: 9, id: r.id}) }},
		"wrong id":           {opWrite, func(e *evilTarget, r request) { e.answer(answer{op: opDone, id: r.id + 1}) }},
		"id of a free slot":  {opWrite, func(e *evilTarget, r request) { e.answer(answer{op: opDone, id: r.id - 1}) }},
		"id of no slot":      {opWrite, func(e *evilTarget, r request) { e.answer(answer{op: opDone, id: r.id | 0xff}) }},
		"id of another turn": {opWrite, func(e *evilTarget, r request) { e.answer(answer{op: opDone, id: r.id + 0x100}) }},
		"unknown status":     {opWrite, func(e *evilTarget, r request) { e.answer(answer{op: opDone, status: 99, id: r.id}) }},
		"data for a write":   {opWrite, func(e *evilTarget, r request) { e.answer(answer{op: opData, length: size, id: r.id}) }},
		"garbage":            {opWrite, func(e *evilTarget, r request) { e.send(make([]byte, 1000)) }},
		"done without data":  {opRead, func(e *evilTarget, r request) { e.answer(answer{op: opDone, id: r.id}) }},
		"too much data":      {opRead, func(e *evilTarget, r request) { e.answer(answer{op: opData, length: size + 1, id: r.id}) }},
		"too little data":    {opRead, func(e *evilTarget, r request) { e.answer(answer{op: opData, length: size - 1, id: r.id}) }},
		"data of wrong id":   {opRead, func(e *evilTarget, r request) { e.answer(answer{op: opData, length: size, id: r.id + 0x100}) }},
		"hangs up in the data": {opRead, func(e *evilTarget, r request) {
			e.answer(answer{op: opData, length: size, id: r.id})
			e.send(make([]byte, size/2))
			e.lanes[0].Close()
		}},
		"data twice": {opRead, func(e *evilTarget, r request) {
			for range 2 {
				e.answer(answer{op: opData, length: size, id: r.id})
				e.send(make([]byte, size))
			}
		}},
		"more than the data": {opRead, func(e *evilTarget, r request) {
			e.answer(answer{op: opData, length: size, id: r.id})
			e.send(make([]byte, size+100))
		}},
		"done twice": {opWrite, func(e *evilTarget, r request) {
			e.answer(answer{op: opDone, id: r.id})
			e.answer(answer{op: opDone, id: r.id})
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t, oneLane())
			e := newEvilTarget(t, f)
			mem := mapped(t, 3*size)
			set(mem, 0x77)
			r, err := f.Register(mem)
			if err != nil {
				t.Fatal(err)
			}
			l := e.open(f, size)
			s := rdmaio.Slice{Region: r, Off: size, Len: size}
			ctx := context.Background()
			if c.op == opWrite {
				err = l.Write(ctx, s, 0)
			} else {
				err = l.Read(ctx, s, 0)
			}
			if err != nil {
				t.Fatal(err)
			}
			req := e.request()
			if req.op == opWrite {
				e.skip(req.length)
			}
			c.evil(e, req)
			err = l.Fence(ctx)
			if name == "done twice" { // the first of them was good
				eventually(t, "session fails", func() bool {
					err = l.Write(ctx, s, 0)
					return err != nil
				})
			}
			if !errors.Is(err, rdmaio.ErrPeerGone) || !errors.Is(err, errProtocol) && name != "hangs up in the data" {
				t.Errorf("error %v, want ErrPeerGone for breaking the protocol", err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			only(t, "before the slice", mem[:size], 0x77)
			only(t, "behind the slice", mem[2*size:], 0x77)
			if c.op == opWrite {
				only(t, "what was to be sent", mem[size:2*size], 0x77)
			}
			eventually(t, "session is dropped", func() bool { return f.live() == 0 })
		})
	}
}

// Memory that is still being sent is not given back because a target says that it
// has it all. That may also happen to an honest one, when the kernel is faster to
// deliver than we are to return from the call, and then the lane lives on.
func TestAnswerBeforeEnd(t *testing.T) {
	o := oneLane()
	o.PeerTimeout = 300 * time.Millisecond
	f := newFabric(t, o)
	e := newEvilTarget(t, f)
	r, err := f.Register(mapped(t, frameSize))
	if err != nil {
		t.Fatal(err)
	}
	l := e.open(f, frameSize)
	// Less than a frame, so that the lane gets stuck in the middle of it.
	la := l.p.lanes[0]
	la.conn.SetWriteBuffer(16 << 10)
	ctx := context.Background()
	all := rdmaio.Slice{Region: r, Len: frameSize}
	if err := l.Write(ctx, all, 0); err != nil {
		t.Fatal(err)
	}
	req := e.request()
	e.answer(answer{op: opDone, id: req.id})
	s := &la.slots[req.id&0xff]
	eventually(t, "answer is read", func() bool {
		l.p.mu.Lock()
		defer l.p.mu.Unlock()
		return s.answered || s.l == nil
	})
	l.p.mu.Lock()
	if l.inflight != 1 {
		t.Error("a request was finished while its memory was being sent")
	}
	l.p.mu.Unlock()
	e.skip(req.length)
	if err := l.Fence(ctx); err != nil {
		t.Fatalf("fence: %v", err)
	}
	// Nothing is owed any more, so that no deadline may be running.
	time.Sleep(2 * o.PeerTimeout)
	if err := l.Write(ctx, rdmaio.Slice{Region: r, Len: 1}, 0); err != nil {
		t.Fatalf("write after a pause: %v", err)
	}
	req = e.request()
	e.skip(req.length)
	e.answer(answer{op: opDone, id: req.id})
	if err := l.Fence(ctx); err != nil {
		t.Fatalf("fence after a pause: %v", err)
	}
}

// Memory is given back when both goroutines of a lane have left, not before.
func TestLaneLeaves(t *testing.T) {
	f := newFabric(t, oneLane())
	p := newPeer(f, rdmaio.NewSessionID(), []*net.TCPConn{nil})
	la := p.lanes[0]
	l := &link{p: p, inflight: 1, wake: make(chan struct{}, 1)}
	la.free = la.free[:laneWindow-1]
	la.slots[laneWindow-1] = slot{l: l, id: 1<<8 | laneWindow - 1, sent: true}
	p.outstanding = 1
	p.cause = rdmaio.ErrPeerGone
	p.mu.Lock()
	defer p.mu.Unlock()
	la.leave()
	if l.inflight != 1 {
		t.Fatal("memory is given back when one of two has left")
	}
	la.leave()
	if l.inflight != 0 || p.outstanding != 0 {
		t.Fatal("memory is not given back when both have left")
	}
}

// A target that takes requests and says nothing is given up, in bounded time: by
// itself after PeerTimeout, at a cancellation after FenceLimit, and other sessions
// do not notice.
func TestTargetSaysNothing(t *testing.T) {
	o := oneLane()
	o.PeerTimeout = 300 * time.Millisecond
	o.FenceLimit = 100 * time.Millisecond
	for _, c := range []struct {
		name   string
		size   int
		read   bool
		cancel bool
		want   error
	}{
		{"write, small", 4096, false, false, rdmaio.ErrPeerGone},
		{"write, more than the socket holds", 64 << 20, false, false, rdmaio.ErrPeerGone},
		{"read", 4096, true, false, rdmaio.ErrPeerGone},
		{"write, cancelled", 64 << 20, false, true, context.Canceled},
		{"read, cancelled", 4096, true, true, context.Canceled},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := o
			if c.cancel {
				o.PeerTimeout = time.Hour
			}
			f := newFabric(t, o)
			e := newEvilTarget(t, f)
			r, err := f.Register(mapped(t, c.size))
			if err != nil {
				t.Fatal(err)
			}
			l := e.open(f, c.size)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			s := rdmaio.Slice{Region: r, Len: c.size}
			if c.read {
				err = l.Read(ctx, s, 0)
			} else {
				err = l.Write(ctx, s, 0)
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.cancel {
				e.request() // it is on the wire
				cancel()
			}
			start := time.Now()
			if err := l.Fence(ctx); !errors.Is(err, c.want) {
				t.Errorf("fence: error %v, want %v", err, c.want)
			}
			if took := time.Since(start); took > 3*time.Second {
				t.Errorf("fence took %v", took)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			eventually(t, "session is dropped", func() bool { return f.live() == 0 })
		})
	}
}

// Links of one session take turns: a small transfer does not wait for the end of a
// large one that was posted before.
func TestLinksTakeTurns(t *testing.T) {
	f := newFabric(t, oneLane())
	e := newEvilTarget(t, f)
	const size = 64 << 20
	r, err := f.Register(mapped(t, size))
	if err != nil {
		t.Fatal(err)
	}
	large, small := e.open(f, size), e.open(f, size)
	small.d.RKey = 8
	ctx := context.Background()
	if err := large.Read(ctx, rdmaio.Slice{Region: r, Len: size}, 0); err != nil {
		t.Fatal(err)
	}
	first := e.request()
	for range linkWindow - 1 {
		if req := e.request(); req.rkey != 7 {
			t.Fatalf("key %d, want the large transfer's", req.rkey)
		}
	}
	// Every slot is taken now. The next one that is free is the small one's.
	if err := small.Read(ctx, rdmaio.Slice{Region: r, Len: 100}, 0); err != nil {
		t.Fatal(err)
	}
	e.answer(answer{op: opData, id: first.id, length: first.length})
	e.send(make([]byte, first.length))
	e.answer(answer{op: opDone, id: first.id})
	if req := e.request(); req.rkey != 8 {
		t.Error("the small transfer waits for the large one")
	}
	e.lanes[0].Close()
}

// FuzzLane answers a READ and a WRITE with any stream. The initiator may believe it
// or not; it may write only to the slice that the READ was for, and never hangs.
func FuzzLane(f *testing.F) {
	f.Add([]byte{}, false)
	f.Add(make([]byte, 64), true)
	var b [answerSize]byte
	answer{op: opData, length: 100, id: 0x10f}.put(&b)
	f.Add(append(b[:], make([]byte, 200)...), true)
	answer{op: opDone, id: 0x20e}.put(&b)
	f.Add(b[:], false)
	f.Fuzz(func(t *testing.T, raw []byte, hangUp bool) {
		o := oneLane()
		o.FenceLimit = 50 * time.Millisecond
		o.PeerTimeout = 100 * time.Millisecond
		fab := newFabric(t, o)
		e := newEvilTarget(t, fab)
		mem := mapped(t, 3*4096)
		set(mem, 0x77)
		r, err := fab.Register(mem)
		if err != nil {
			t.Fatal(err)
		}
		l := e.open(fab, 4096)
		ctx := context.Background()
		if err := l.Read(ctx, rdmaio.Slice{Region: r, Off: 4096, Len: 100}, 0); err != nil {
			t.Fatal(err)
		}
		l.Write(ctx, rdmaio.Slice{Region: r, Off: 0, Len: 100}, 0)
		e.lanes[0].Write(raw)
		if hangUp {
			e.lanes[0].CloseWrite()
		}
		err = l.Fence(ctx)
		l.Close()
		hides(t, err, strconv.FormatUint(evilAddr, 16), strconv.FormatUint(evilAddr, 10))
		only(t, "before the slice", mem[:4096], 0x77)
		only(t, "behind the slice", mem[4096+100:], 0x77)
	})
}
