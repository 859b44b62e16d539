// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"testing"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

func TestPulse(t *testing.T) {
	newPulse := func(t *testing.T) (*fakeEndpoint, *pulse, func() *link, rdmaio.Region) {
		e, open, r := newFake(t, 16)
		p := new(pulse)
		p.init(e.q)
		e.with(p.look) // what happened before nobody knows
		return e, p, open, r
	}
	beats := func(t *testing.T, e *fakeEndpoint, want int) {
		t.Helper()
		if len(e.posted) != want || want > 0 && e.posted[0].length != 0 {
			t.Fatalf("%d requests in flight, want %d empty ones", len(e.posted), want)
		}
	}

	t.Run("Answered", func(t *testing.T) {
		e, p, _, _ := newPulse(t)
		for range 3 {
			e.with(func() {
				beats(t, e, 0)
				p.look()
				beats(t, e, 1)
				p.look() // one at a time
				beats(t, e, 1)
				e.armed = false // what the device tells is not needed here
				e.complete(1, ibv.WCSuccess)
				p.seen = e.q.tail
			})
		}
		e.with(func() {
			if p.look(); e.q.state != up || !p.out || e.q.sleepers != 1 {
				t.Errorf("state %d, out %v, %d sleepers after three answers", e.q.state, p.out, e.q.sleepers)
			}
		})
	})

	t.Run("Busy", func(t *testing.T) {
		e, p, open, r := newPulse(t)
		l := open()
		ctx := context.Background()
		for range 3 {
			if err := l.Write(ctx, rdmaio.Slice{Region: r, Len: 5}, 0); err != nil {
				t.Fatal(err)
			}
			e.with(p.look) // in flight
			e.with(func() { e.complete(1, ibv.WCSuccess) })
			if err := ended(t, fenced(l)); err != nil {
				t.Fatal(err)
			}
		}
		e.with(func() {
			if e.posts != 3 {
				t.Errorf("%d posts, want the link's 3", e.posts)
			}
			p.look()
			beats(t, e, 1)
			e.complete(1, ibv.WCSuccess)
		})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})

	// The peer cannot mend a connection: its silence is the end.
	t.Run("Silent", func(t *testing.T) {
		e, p, open, _ := newPulse(t)
		e.hopeless = true
		l := open()
		e.with(p.look)
		e.with(func() { e.complete(1, ibv.WCRetryExc) })
		if err := ended(t, fenced(l)); err == nil { // polls, and learns of it
			t.Error("a link on a queue whose peer is gone is up")
		}
		e.with(func() {
			if e.q.state != dead || e.deaths != 1 {
				t.Errorf("state %d after %d deaths, want dead once", e.q.state, e.deaths)
			}
			p.look() // of a dead one does nothing
			beats(t, e, 0)
			if p.out || e.q.sleepers != 0 {
				t.Errorf("out %v, %d sleepers, want none", p.out, e.q.sleepers)
			}
		})
		l.Close()
	})

	// A peer that mends the connection is there; the beat is repeated.
	t.Run("Mended", func(t *testing.T) {
		e, p, _, _ := newPulse(t)
		e.with(p.look)
		e.with(func() { e.complete(1, ibv.WCRetryExc) })
		e.with(e.q.poll)
		e.with(func() {
			if e.lives != 1 || e.q.state != up {
				t.Fatalf("state %d after %d restarts", e.q.state, e.lives)
			}
			beats(t, e, 1)
			e.complete(1, ibv.WCSuccess)
			p.look()
			if p.beat.inflight != 0 || e.q.state != up {
				t.Errorf("%d beats in flight in state %d", p.beat.inflight, e.q.state)
			}
		})
	})
}
