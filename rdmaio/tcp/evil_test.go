// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"errors"
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
			if err := l.Fence(ctx); !errors.Is(err, rdmaio.ErrPeerGone) && name != "done twice" {
				t.Errorf("fence: error %v, want ErrPeerGone", err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			only(t, "before the slice", mem[:size], 0x77)
			only(t, "behind the slice", mem[2*size:], 0x77)
			eventually(t, "session is dropped", func() bool { return f.live() == 0 })
		})
	}
}

// Memory that is still being sent is not given back because a target says that it
// has it all.
func TestAnswerBeforeEnd(t *testing.T) {
	f := newFabric(t, oneLane())
	e := newEvilTarget(t, f)
	const size = 64 << 20
	r, err := f.Register(mapped(t, size))
	if err != nil {
		t.Fatal(err)
	}
	l := e.open(f, size)
	if err := l.Write(context.Background(), rdmaio.Slice{Region: r, Len: size}, 0); err != nil {
		t.Fatal(err)
	}
	// The target reads nothing, so the lane gets stuck in the middle of a frame.
	p := l.p
	la := p.lanes[0]
	stuck := func() *slot {
		p.mu.Lock()
		defer p.mu.Unlock()
		for i := range la.slots {
			if s := &la.slots[i]; s.l != nil && !s.sent {
				return s
			}
		}
		return nil
	}
	var s *slot
	var id uint64
	for same := 0; same < 50; time.Sleep(2 * time.Millisecond) {
		now := stuck()
		if now == nil || now != s {
			s, same = now, 0
			continue
		}
		same++
	}
	p.mu.Lock()
	id = s.id
	before := l.inflight
	p.mu.Unlock()
	e.answer(answer{op: opDone, id: id})
	eventually(t, "answer is read", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return s.answered || l.inflight < before
	})
	p.mu.Lock()
	if l.inflight < before || s.id != id {
		t.Error("a request was finished while its memory was being sent")
	}
	p.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Fence(ctx); err == nil {
		t.Error("fence with most of the transfer not sent: no error")
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
	if err := small.Read(ctx, rdmaio.Slice{Region: r, Len: 100}, 0); err != nil {
		t.Fatal(err)
	}
	e.answer(answer{op: opDone, id: first.id, status: statusStaleKey})
	_ = first
	for i := 0; ; i++ {
		if i > linkWindow+1 {
			t.Fatal("the small transfer waits for the large one")
		}
		req := e.request()
		if req.rkey == 8 {
			break
		}
	}
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
		hides(t, err, "10000")
		only(t, "before the slice", mem[:4096], 0x77)
		only(t, "behind the slice", mem[4096+100:], 0x77)
	})
}
