// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"sync"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// The defaults of Options.
const (
	DefaultMax           = 1024
	DefaultMaxPerOwner   = 64
	DefaultConnectWithin = 10 * time.Second
	DefaultIdleAfter     = 10 * time.Minute
	DefaultUnownedFor    = time.Minute
)

// Options of a Table. The zero value has the defaults and no hooks.
type Options[T any] struct {
	// Max bounds the sessions of the table: offered, connected, and ended ones that
	// still have leases. 0 means DefaultMax.
	Max int

	// MaxPerOwner bounds those of one owner. 0 means DefaultMaxPerOwner.
	MaxPerOwner int

	// ConnectWithin is the time from Offer to Claim. 0 means DefaultConnectWithin.
	ConnectWithin time.Duration

	// IdleAfter retires a session that nobody has leased for so long. 0 means
	// DefaultIdleAfter, less means never.
	IdleAfter time.Duration

	// UnownedFor retires a session that was offered to nobody in particular and that
	// nobody has used for so long. 0 means DefaultUnownedFor; it is never longer than
	// IdleAfter.
	UnownedFor time.Duration

	// Abort is called once for each session that ends, while leases may still be
	// out. When it returns, their holders can move no byte any more. It may block for
	// a bounded time, and must not call End, Drop or Close of the table. nil: nothing
	// to do.
	Abort func(T)

	// Close is called once for each session that has ended, after Abort has returned
	// and the last lease has been released, on the goroutine of whichever came last.
	// It frees what T holds. nil: nothing to do.
	Close func(T)

	// Clock replaces the system's clock, for tests.
	Clock Clock
}

// Clock is the time that a Table goes by.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f on a goroutine of its own after d, unless stop is called
	// before.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }
func (systemClock) AfterFunc(d time.Duration, f func()) func() bool {
	return time.AfterFunc(d, f).Stop
}

// Table holds sessions, each with a value of type T once its peer has connected.
// All methods may be called at once.
type Table[T any] struct {
	o Options[T]

	mu      sync.Mutex
	closed  bool
	entries map[rdmaio.SessionID]*entry[T]
	offers  map[[sha256.Size]byte]*entry[T] // those in state offered
	owners  map[string]int                  // entries of each

	// The timer that runs sweep: its number, when it fires, and how to stop it (nil if
	// none is set). sweeps waits for one that is running.
	timer  uint64
	fires  time.Time
	stop   func() bool
	sweeps sync.WaitGroup
}

type state uint8

const (
	offered state = iota
	live
	ending
)

type entry[T any] struct {
	id      rdmaio.SessionID
	unowned bool // was offered to nobody in particular
	digest  [sha256.Size]byte

	// Guarded by Table.mu.
	owner    string // "" until the first lease of one that was unowned
	state    state
	leases   int
	deadline time.Time // offered: to be claimed by; live without leases: retired at
	aborted  bool
	value    T

	// quiet is closed when Abort has returned; if no lease was out then, when Close
	// has returned too.
	quiet chan struct{}
}

// New returns an empty table. It must be closed.
func New[T any](o Options[T]) *Table[T] {
	if o.Max <= 0 {
		o.Max = DefaultMax
	}
	if o.MaxPerOwner <= 0 {
		o.MaxPerOwner = DefaultMaxPerOwner
	}
	if o.ConnectWithin <= 0 {
		o.ConnectWithin = DefaultConnectWithin
	}
	if o.IdleAfter == 0 {
		o.IdleAfter = DefaultIdleAfter
	}
	if o.UnownedFor <= 0 {
		o.UnownedFor = DefaultUnownedFor
	}
	if o.IdleAfter > 0 {
		o.UnownedFor = min(o.UnownedFor, o.IdleAfter)
	}
	if o.Clock == nil {
		o.Clock = systemClock{}
	}
	return &Table[T]{
		o:       o,
		entries: make(map[rdmaio.SessionID]*entry[T]),
		offers:  make(map[[sha256.Size]byte]*entry[T]),
		owners:  make(map[string]int),
	}
}

// Offer reserves a session for owner. The secret completes it, once, if it comes
// back within Options.ConnectWithin. Without an owner ("") the session becomes that
// of the first who acquires it; those that nobody has acquired yet share one bound, as
// if they had an owner. Errors: rdmaio.ErrTooMany, rdmaio.ErrClosed.
func (t *Table[T]) Offer(owner string) (rdmaio.SessionID, Secret, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return rdmaio.SessionID{}, Secret{}, fmt.Errorf("offer a session: table is %w", rdmaio.ErrClosed)
	}
	t.expireOffers() // the timer may be late, and must not cost anyone a place
	if n := len(t.entries); n >= t.o.Max {
		return rdmaio.SessionID{}, Secret{}, fmt.Errorf("offer a session: %w sessions (%d of %d)", rdmaio.ErrTooMany, n, t.o.Max)
	}
	if n := t.owners[owner]; n >= t.o.MaxPerOwner {
		return rdmaio.SessionID{}, Secret{}, fmt.Errorf("offer a session: %w sessions of this identity (%d of %d)", rdmaio.ErrTooMany, n, t.o.MaxPerOwner)
	}
	secret := newSecret()
	e := &entry[T]{
		id:       rdmaio.NewSessionID(),
		owner:    owner,
		unowned:  owner == "",
		digest:   secret.digest(),
		deadline: t.o.Clock.Now().Add(t.o.ConnectWithin),
		quiet:    make(chan struct{}),
	}
	t.entries[e.id] = e
	t.offers[e.digest] = e
	t.owners[owner]++
	t.schedule(e.deadline)
	return e.id, secret, nil
}

// Claim completes the session that secret was made for, and hands v to the table.
// On an error v stays the caller's: rdmaio.ErrNoSession if no such offer is open
// (any more), rdmaio.ErrClosed. Abort may be called with v before Claim returns.
func (t *Table[T]) Claim(secret Secret, v T) (rdmaio.SessionID, error) {
	digest := secret.digest()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return rdmaio.SessionID{}, fmt.Errorf("claim a session: table is %w", rdmaio.ErrClosed)
	}
	e := t.offers[digest]
	if e == nil || subtle.ConstantTimeCompare(e.digest[:], digest[:]) != 1 || !t.o.Clock.Now().Before(e.deadline) {
		return rdmaio.SessionID{}, fmt.Errorf("claim a session: secret is unknown, used or too old: %w", rdmaio.ErrNoSession)
	}
	delete(t.offers, digest)
	e.state = live
	e.value = v
	t.rest(e)
	return e.id, nil
}

// Acquire leases the session id on behalf of owner. While leases are out the
// session is not retired, and its value is not closed; it may be aborted. Errors:
// rdmaio.ErrNoSession (also if the peer has not connected yet), rdmaio.ErrNotOwner
// (nobody, "", owns nothing), and rdmaio.ErrTooMany if the session is to become owner's
// and owner has as many as MaxPerOwner allows.
func (t *Table[T]) Acquire(id rdmaio.SessionID, owner string) (*Lease[T], error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[id]
	switch {
	case e == nil:
		return nil, fmt.Errorf("use a session: %w", rdmaio.ErrNoSession)
	case owner == "" || e.owner != owner && e.owner != "":
		return nil, fmt.Errorf("use a session: %w", rdmaio.ErrNotOwner)
	case e.state == offered:
		return nil, fmt.Errorf("use a session: its peer has not connected: %w", rdmaio.ErrNoSession)
	case e.state == ending:
		return nil, fmt.Errorf("use a session: it has ended: %w", rdmaio.ErrNoSession)
	case t.expired(e, t.o.Clock.Now()):
		return nil, fmt.Errorf("use a session: it has been idle too long: %w", rdmaio.ErrNoSession)
	}
	if e.owner == "" {
		if n := t.owners[owner]; n >= t.o.MaxPerOwner {
			return nil, fmt.Errorf("use a session for the first time: %w sessions of this identity (%d of %d)", rdmaio.ErrTooMany, n, t.o.MaxPerOwner)
		}
		t.disown(e)
		e.owner = owner
		t.owners[owner]++
	}
	e.leases++
	return &Lease[T]{t: t, e: e}, nil
}

// Lease is the right to use a session's value.
type Lease[T any] struct {
	t        *Table[T]
	e        *entry[T]
	released bool // guarded by t.mu
}

// Value is what Claim was given. It must not be used after Release.
func (l *Lease[T]) Value() T { return l.e.value } // set before any lease exists, never again

// Release gives the lease back. If the session has ended and this was the last
// lease, Release closes the value. A second call does nothing.
func (l *Lease[T]) Release() {
	t, e := l.t, l.e
	t.mu.Lock()
	if l.released {
		t.mu.Unlock()
		return
	}
	l.released = true
	e.leases--
	last := e.leases == 0 && e.state == ending && e.aborted
	if e.leases == 0 && e.state == live {
		t.rest(e)
	}
	t.mu.Unlock()
	if last {
		t.bury(e)
	}
}

// End ends the session id of owner: it is not found any more, and its value is
// aborted. When End returns the abort is complete, also if another call had begun
// it. The value is closed when its last lease is released. Nobody ("") may end a
// session that was offered to nobody, whoever uses it now, and anybody one that is
// not used yet: who knows its id is its peer, or has read that peer's requests. Errors:
// rdmaio.ErrNoSession, also if the session was ending already; rdmaio.ErrNotOwner.
func (t *Table[T]) End(id rdmaio.SessionID, owner string) error {
	t.mu.Lock()
	e := t.entries[id]
	if e != nil && e.owner != owner && e.owner != "" && !(owner == "" && e.unowned) {
		t.mu.Unlock()
		return fmt.Errorf("end a session: %w", rdmaio.ErrNotOwner)
	}
	t.mu.Unlock()
	if e == nil || !t.end(e) {
		return fmt.Errorf("end a session: %w", rdmaio.ErrNoSession)
	}
	return nil
}

// Drop ends the session id whoever owns it, as a fabric must when the peer's
// socket closes. A session that does not exist is no error. Otherwise as End.
func (t *Table[T]) Drop(id rdmaio.SessionID) {
	t.mu.Lock()
	e := t.entries[id]
	t.mu.Unlock()
	if e != nil {
		t.end(e)
	}
}

// Len is the number of sessions that count against the bounds.
func (t *Table[T]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.entries)
}

// Close ends all sessions, at once, and waits until their aborts are complete.
// Those without leases are closed by then, the others when theirs are released.
// Offer and Claim fail from now on. A second call waits as the first does.
func (t *Table[T]) Close() {
	t.mu.Lock()
	t.closed = true
	if t.stop != nil {
		t.stop()
		t.stop = nil
	}
	var all []*entry[T]
	for _, e := range t.entries {
		all = append(all, e)
	}
	t.mu.Unlock()
	var wg sync.WaitGroup
	for _, e := range all {
		wg.Add(1)
		go func() {
			defer wg.Done()
			t.end(e)
		}()
	}
	wg.Wait()
	t.sweeps.Wait()
}

// end takes e through its ending, or waits for the call that does. It tells
// whether this call was the one.
func (t *Table[T]) end(e *entry[T]) bool {
	t.mu.Lock()
	if e.state == ending {
		t.mu.Unlock()
		<-e.quiet
		return false
	}
	was := e.state
	e.state = ending
	if was == offered {
		t.remove(e)
		t.mu.Unlock()
		close(e.quiet)
		return true
	}
	t.mu.Unlock()

	if t.o.Abort != nil {
		t.o.Abort(e.value)
	}
	t.mu.Lock()
	e.aborted = true
	last := e.leases == 0
	t.mu.Unlock()
	if last {
		t.bury(e)
	}
	close(e.quiet)
	return true
}

// bury closes the value of e, which nobody can reach any more.
func (t *Table[T]) bury(e *entry[T]) {
	if t.o.Close != nil {
		t.o.Close(e.value)
	}
	t.mu.Lock()
	t.remove(e)
	t.mu.Unlock()
}

// remove takes e off the books. t.mu is held.
func (t *Table[T]) remove(e *entry[T]) {
	delete(t.entries, e.id)
	delete(t.offers, e.digest)
	t.disown(e)
}

// disown takes e off its owner's account. t.mu is held.
func (t *Table[T]) disown(e *entry[T]) {
	if t.owners[e.owner]--; t.owners[e.owner] == 0 {
		delete(t.owners, e.owner)
	}
}

// rest starts the idle time of e. t.mu is held.
func (t *Table[T]) rest(e *entry[T]) {
	after := t.o.IdleAfter
	if e.owner == "" {
		after = t.o.UnownedFor
	}
	if after > 0 {
		e.deadline = t.o.Clock.Now().Add(after)
		t.schedule(e.deadline)
	} else {
		e.deadline = time.Time{}
	}
}

// expired tells whether the time of e is up. t.mu is held.
func (t *Table[T]) expired(e *entry[T], now time.Time) bool {
	return e.state != ending && e.leases == 0 && !e.deadline.IsZero() && !now.Before(e.deadline)
}

// expireOffers forgets the offers that nobody claimed in time. t.mu is held.
func (t *Table[T]) expireOffers() {
	now := t.o.Clock.Now()
	for _, e := range t.offers {
		if t.expired(e, now) {
			e.state = ending
			t.remove(e)
			close(e.quiet)
		}
	}
}

// schedule sees to it that sweep runs at the given time or earlier. t.mu is held.
func (t *Table[T]) schedule(at time.Time) {
	if t.closed || t.stop != nil && !at.Before(t.fires) {
		return
	}
	if t.stop != nil {
		t.stop()
	}
	t.timer++
	timer := t.timer
	t.fires = at
	t.stop = t.o.Clock.AfterFunc(at.Sub(t.o.Clock.Now()), func() { t.sweep(timer) })
}

// sweep ends what has expired and sets the timer for what will. It runs on the
// timer's goroutine. A timer that was replaced too late to be stopped does nothing.
func (t *Table[T]) sweep(timer uint64) {
	t.mu.Lock()
	if t.closed || timer != t.timer {
		t.mu.Unlock()
		return
	}
	t.sweeps.Add(1)
	defer t.sweeps.Done()
	t.stop = nil
	t.expireOffers()
	now := t.o.Clock.Now()
	var idle []*entry[T]
	var next time.Time
	for _, e := range t.entries {
		switch {
		case t.expired(e, now):
			idle = append(idle, e)
		case e.state == ending || e.leases > 0 || e.deadline.IsZero():
		case next.IsZero() || e.deadline.Before(next):
			next = e.deadline
		}
	}
	if !next.IsZero() {
		t.schedule(next)
	}
	t.mu.Unlock()
	// Acquire refuses what has expired, so nobody gets hold of these meanwhile. Their
	// aborts may take long, and must not hold each other up.
	var wg sync.WaitGroup
	for _, e := range idle {
		wg.Add(1)
		go func() {
			defer wg.Done()
			t.end(e)
		}()
	}
	wg.Wait()
}
