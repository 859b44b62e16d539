// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// model is what a table should be, in the plainest terms.
type model struct {
	table    *Table[*thing]
	clock    *fakeClock
	sessions []*modelSession
	closed   bool
}

type modelSession struct {
	id       rdmaio.SessionID
	owner    string
	unowned  bool // at first
	secret   Secret
	thing    *thing // nil until claimed
	leases   []*Lease[*thing]
	deadline time.Time
	ended    bool
}

const (
	modelMax      = 5
	modelPerOwner = 3
	modelConnect  = 10 * time.Second
	modelIdle     = time.Minute
	modelUnowned  = 30 * time.Second
)

// counts tells whether a session takes a place.
func (s *modelSession) counts() bool { return !s.ended || len(s.leases) > 0 }

// settle ends what has run out of time.
func (m *model) settle() {
	now := m.clock.Now()
	for _, s := range m.sessions {
		if !s.ended && len(s.leases) == 0 && !now.Before(s.deadline) {
			s.ended = true
		}
	}
}

func (m *model) places(owner string) (all, own int) {
	for _, s := range m.sessions {
		if s.counts() {
			all++
			if s.owner == owner {
				own++
			}
		}
	}
	return all, own
}

func (m *model) offer(t *rapid.T) {
	owner := rapid.SampledFrom([]string{"a", "b", "c", ""}).Draw(t, "owner")
	all, own := m.places(owner)
	id, secret, err := m.table.Offer(owner)
	switch {
	case m.closed:
		is(t, "offer", err, rdmaio.ErrClosed)
	case all >= modelMax || own >= modelPerOwner:
		is(t, "offer", err, rdmaio.ErrTooMany)
	default:
		is(t, "offer", err, nil)
		m.sessions = append(m.sessions, &modelSession{id: id, owner: owner, unowned: owner == "", secret: secret, deadline: m.clock.Now().Add(modelConnect)})
	}
}

func (m *model) some(t *rapid.T) *modelSession {
	if len(m.sessions) == 0 {
		t.Skip("no sessions yet")
	}
	return rapid.SampledFrom(m.sessions).Draw(t, "session")
}

func (m *model) claim(t *rapid.T) {
	s := m.some(t)
	th := new(thing)
	_, err := m.table.Claim(s.secret, th)
	switch {
	case m.closed:
		is(t, "claim", err, rdmaio.ErrClosed)
	case s.ended || s.thing != nil:
		is(t, "claim", err, rdmaio.ErrNoSession)
	default:
		is(t, "claim", err, nil)
		s.thing = th
		s.deadline = m.clock.Now().Add(modelIdle)
		if s.owner == "" {
			s.deadline = m.clock.Now().Add(modelUnowned)
		}
	}
}

func (m *model) acquire(t *rapid.T) {
	s := m.some(t)
	owner := rapid.SampledFrom([]string{s.owner, s.owner, s.owner, "x", "a", ""}).Draw(t, "as")
	_, own := m.places(owner)
	l, err := m.table.Acquire(s.id, owner)
	switch {
	case !s.counts():
		is(t, "acquire", err, rdmaio.ErrNoSession)
	case owner == "", owner != s.owner && s.owner != "":
		is(t, "acquire", err, rdmaio.ErrNotOwner)
	case s.ended || s.thing == nil:
		is(t, "acquire", err, rdmaio.ErrNoSession)
	case s.owner == "" && own >= modelPerOwner:
		is(t, "acquire", err, rdmaio.ErrTooMany)
	default:
		is(t, "acquire", err, nil)
		s.owner = owner
		if l.Value() != s.thing {
			t.Fatal("acquired another value")
		}
		s.leases = append(s.leases, l)
	}
}

func (m *model) release(t *rapid.T) {
	s := m.some(t)
	if len(s.leases) == 0 {
		t.Skip("no leases")
	}
	l := s.leases[0]
	s.leases = s.leases[1:]
	l.Release()
	if rapid.Bool().Draw(t, "twice") {
		l.Release()
	}
	if len(s.leases) == 0 && !s.ended {
		s.deadline = m.clock.Now().Add(modelIdle)
	}
}

func (m *model) end(t *rapid.T) {
	s := m.some(t)
	if rapid.Bool().Draw(t, "drop") {
		m.table.Drop(s.id)
		s.ended = true
		return
	}
	owner := rapid.SampledFrom([]string{s.owner, s.owner, "x", ""}).Draw(t, "as")
	err := m.table.End(s.id, owner)
	switch {
	case !s.counts():
		is(t, "end", err, rdmaio.ErrNoSession)
	case owner != s.owner && s.owner != "" && !(owner == "" && s.unowned):
		is(t, "end", err, rdmaio.ErrNotOwner)
	case s.ended:
		is(t, "end", err, rdmaio.ErrNoSession)
	default:
		is(t, "end", err, nil)
		s.ended = true
	}
}

func (m *model) pass(t *rapid.T) {
	m.clock.advance(rapid.SampledFrom([]time.Duration{1, time.Second, modelConnect, modelConnect - 1, modelIdle - 1, modelIdle}).Draw(t, "time"))
	m.settle()
}

func (m *model) check(t *rapid.T) {
	all, _ := m.places("")
	if n := m.table.Len(); n != all {
		t.Fatalf("%d sessions, want %d", n, all)
	}
	for i, s := range m.sessions {
		if s.thing == nil {
			continue
		}
		var aborted, closed int32
		if s.ended {
			aborted = 1
		}
		if !s.counts() {
			closed = 1
		}
		if a, c := s.thing.aborted.Load(), s.thing.closed.Load(); a != aborted || c != closed {
			t.Fatalf("session %d was aborted %d times and closed %d times, want %d and %d", i, a, c, aborted, closed)
		}
	}
}

func is(t *rapid.T, what string, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("%s: error %v, want %v", what, err, kind)
	}
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{clock: newFakeClock()}
		m.table = New(Options[*thing]{
			Max: modelMax, MaxPerOwner: modelPerOwner, ConnectWithin: modelConnect, IdleAfter: modelIdle, UnownedFor: modelUnowned,
			Clock: m.clock,
			Abort: func(th *thing) { th.aborted.Add(1) },
			Close: func(th *thing) { th.closed.Add(1) },
		})
		rt.Repeat(map[string]func(*rapid.T){
			"offer": m.offer, "claim": m.claim, "acquire": m.acquire, "release": m.release,
			"end": m.end, "pass": m.pass, "": m.check,
		})
		m.table.Close()
		m.closed = true
		for _, s := range m.sessions {
			s.ended = true
		}
		m.check(rt)
		m.offer(rt)
		for _, s := range m.sessions {
			for _, l := range s.leases {
				l.Release()
			}
			s.leases = nil
		}
		m.check(rt)
		if m.clock.pending() != 0 {
			rt.Fatal("a closed table left a timer")
		}
	})
}
