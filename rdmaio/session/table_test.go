// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/s3rdma/s3rdma/rdmaio"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeClock runs its timers on the goroutine that advances it.
type fakeClock struct {
	mu     sync.Mutex
	now    time.Time
	timers map[*fakeTimer]struct{}
}

type fakeTimer struct {
	at time.Time
	f  func()
}

func newFakeClock() *fakeClock {
	return &fakeClock{now: time.Unix(1e9, 0), timers: make(map[*fakeTimer]struct{})}
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) AfterFunc(d time.Duration, f func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &fakeTimer{c.now.Add(d), f}
	c.timers[t] = struct{}{}
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		_, was := c.timers[t]
		delete(c.timers, t)
		return was
	}
}

// advance moves time on and runs what is due, in order.
func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	end := c.now.Add(d)
	for {
		var next *fakeTimer
		for t := range c.timers {
			if !t.at.After(end) && (next == nil || t.at.Before(next.at)) {
				next = t
			}
		}
		if next == nil {
			break
		}
		if next.at.After(c.now) {
			c.now = next.at
		}
		delete(c.timers, next)
		c.mu.Unlock()
		next.f()
		c.mu.Lock()
	}
	c.now = end
	c.mu.Unlock()
}

func (c *fakeClock) pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers)
}

// thing is what the tests keep in a table: it counts what happens to it.
type thing struct{ aborted, closed atomic.Int32 }

func (th *thing) is(t testing.TB, aborted, closed int32) {
	t.Helper()
	if a, c := th.aborted.Load(), th.closed.Load(); a != aborted || c != closed {
		t.Errorf("aborted %d times and closed %d times, want %d and %d", a, c, aborted, closed)
	}
}

func newTable(t testing.TB, o Options[*thing]) (*Table[*thing], *fakeClock) {
	clock := newFakeClock()
	o.Clock = clock
	if o.Abort == nil {
		o.Abort = func(th *thing) { th.aborted.Add(1) }
	}
	o.Close = func(th *thing) {
		if th.aborted.Load() != 1 {
			t.Error("closed before it was aborted")
		}
		th.closed.Add(1)
	}
	table := New(o)
	t.Cleanup(func() {
		table.Close()
		if n := clock.pending(); n != 0 {
			t.Errorf("%d timers left by a closed table", n)
		}
	})
	return table, clock
}

func connect(t testing.TB, table *Table[*thing], owner string) (rdmaio.SessionID, *thing) {
	t.Helper()
	id, secret, err := table.Offer(owner)
	if err != nil {
		t.Fatal(err)
	}
	th := new(thing)
	got, err := table.Claim(secret, th)
	if err != nil {
		t.Fatal(err)
	}
	if got != id {
		t.Fatal("claimed another session than was offered")
	}
	return id, th
}

func acquire(t testing.TB, table *Table[*thing], id rdmaio.SessionID, owner string) *Lease[*thing] {
	t.Helper()
	l, err := table.Acquire(id, owner)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func wantErr(t testing.TB, what string, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: error %v, want %v", what, err, kind)
	}
}

func TestLife(t *testing.T) {
	table, _ := newTable(t, Options[*thing]{})
	id, secret, err := table.Offer("a")
	if err != nil {
		t.Fatal(err)
	}
	_, err = table.Acquire(id, "a")
	wantErr(t, "acquire before the claim", err, rdmaio.ErrNoSession)
	th := new(thing)
	if _, err := table.Claim(secret, th); err != nil {
		t.Fatal(err)
	}
	_, err = table.Claim(secret, new(thing))
	wantErr(t, "claim again", err, rdmaio.ErrNoSession)
	_, err = table.Claim(Secret{}, new(thing))
	wantErr(t, "claim with a wrong secret", err, rdmaio.ErrNoSession)

	l := acquire(t, table, id, "a")
	if l.Value() != th {
		t.Error("lease of another value")
	}
	_, err = table.Acquire(id, "b")
	wantErr(t, "acquire as another", err, rdmaio.ErrNotOwner)
	_, err = table.Acquire(rdmaio.NewSessionID(), "a")
	wantErr(t, "acquire an unknown session", err, rdmaio.ErrNoSession)

	wantErr(t, "end as another", table.End(id, "b"), rdmaio.ErrNotOwner)
	wantErr(t, "end an unknown session", table.End(rdmaio.NewSessionID(), "a"), rdmaio.ErrNoSession)
	th.is(t, 0, 0)
	if err := table.End(id, "a"); err != nil {
		t.Fatal(err)
	}
	th.is(t, 1, 0) // a lease is out
	_, err = table.Acquire(id, "a")
	wantErr(t, "acquire after the end", err, rdmaio.ErrNoSession)
	wantErr(t, "end again", table.End(id, "a"), rdmaio.ErrNoSession)
	if table.Len() != 1 {
		t.Error("an ended session with a lease does not count")
	}
	l.Release()
	l.Release()
	th.is(t, 1, 1)
	if table.Len() != 0 {
		t.Error("a closed session counts")
	}
}

func TestEndAnOffer(t *testing.T) {
	table, _ := newTable(t, Options[*thing]{})
	id, secret, err := table.Offer("a")
	if err != nil {
		t.Fatal(err)
	}
	if err := table.End(id, "a"); err != nil {
		t.Fatal(err)
	}
	_, err = table.Claim(secret, new(thing))
	wantErr(t, "claim what has ended", err, rdmaio.ErrNoSession)
}

func TestBounds(t *testing.T) {
	table, _ := newTable(t, Options[*thing]{Max: 3, MaxPerOwner: 2})
	a, _ := connect(t, table, "a")
	if _, _, err := table.Offer("a"); err != nil { // only offered, and counts
		t.Fatal(err)
	}
	_, _, err := table.Offer("a")
	wantErr(t, "third of one owner", err, rdmaio.ErrTooMany)
	connect(t, table, "b")
	_, _, err = table.Offer("c")
	wantErr(t, "fourth of all", err, rdmaio.ErrTooMany)
	l := acquire(t, table, a, "a")
	if err := table.End(a, "a"); err != nil {
		t.Fatal(err)
	}
	_, _, err = table.Offer("c")
	wantErr(t, "while an ended one is in use", err, rdmaio.ErrTooMany)
	l.Release()
	if _, _, err := table.Offer("c"); err != nil {
		t.Errorf("after that: %v", err)
	}
}

func TestTimes(t *testing.T) {
	table, clock := newTable(t, Options[*thing]{Max: 2, ConnectWithin: 10 * time.Second, IdleAfter: time.Minute})
	_, early, err := table.Offer("a")
	if err != nil {
		t.Fatal(err)
	}
	_, late, err := table.Offer("a")
	if err != nil {
		t.Fatal(err)
	}
	clock.advance(10*time.Second - 1)
	used := new(thing)
	id, err := table.Claim(early, used)
	if err != nil {
		t.Fatalf("claim in the last moment: %v", err)
	}
	clock.advance(1)
	_, err = table.Claim(late, new(thing))
	wantErr(t, "claim too late", err, rdmaio.ErrNoSession)
	if table.Len() != 1 {
		t.Errorf("%d sessions, want 1: an offer that is too old counts", table.Len())
	}

	// In use, it is never idle; then it is, from the last release on.
	l := acquire(t, table, id, "a")
	clock.advance(time.Hour)
	used.is(t, 0, 0)
	m := acquire(t, table, id, "a")
	l.Release()
	clock.advance(time.Hour)
	used.is(t, 0, 0)
	m.Release()
	clock.advance(time.Minute - 1)
	acquire(t, table, id, "a").Release()
	clock.advance(time.Minute - 1)
	used.is(t, 0, 0)
	clock.advance(1)
	used.is(t, 1, 1)
	_, err = table.Acquire(id, "a")
	wantErr(t, "acquire what was idle", err, rdmaio.ErrNoSession)
	if n := clock.pending(); n != 0 {
		t.Errorf("%d timers for an empty table", n)
	}
}

// TestUnowned: a session that nobody signed for belongs to the first who uses it.
func TestUnowned(t *testing.T) {
	table, clock := newTable(t, Options[*thing]{MaxPerOwner: 2, IdleAfter: -1})
	id, th := connect(t, table, "")
	_, err := table.Acquire(id, "")
	wantErr(t, "use by nobody", err, rdmaio.ErrNotOwner)
	clock.advance(DefaultUnownedFor - 1)
	acquire(t, table, id, "a").Release()
	_, err = table.Acquire(id, "b")
	wantErr(t, "use by the second", err, rdmaio.ErrNotOwner)
	wantErr(t, "end by the second", table.End(id, "b"), rdmaio.ErrNotOwner)
	clock.advance(1000 * time.Hour)
	th.is(t, 0, 0) // it is a session like any other now

	idle, unused := connect(t, table, "")
	clock.advance(DefaultUnownedFor)
	unused.is(t, 1, 1)
	_, err = table.Acquire(idle, "a")
	wantErr(t, "use of what nobody used in time", err, rdmaio.ErrNoSession)

	// It counts for its owner from the first use on.
	connect(t, table, "a")
	third, _ := connect(t, table, "")
	_, err = table.Acquire(third, "a")
	wantErr(t, "a third session for a", err, rdmaio.ErrTooMany)
	connect(t, table, "")
	_, _, err = table.Offer("")
	wantErr(t, "a third session of nobody", err, rdmaio.ErrTooMany)
	acquire(t, table, third, "b").Release()
	connect(t, table, "")

	// Its peer, which does not sign, may end it; not what somebody signed for.
	if err := table.End(id, ""); err != nil {
		t.Error(err)
	}
	signed, _ := connect(t, table, "c")
	wantErr(t, "end by nobody", table.End(signed, ""), rdmaio.ErrNotOwner)
}

func TestNeverIdle(t *testing.T) {
	table, clock := newTable(t, Options[*thing]{IdleAfter: -1})
	id, th := connect(t, table, "a")
	acquire(t, table, id, "a").Release()
	clock.advance(1000 * time.Hour)
	th.is(t, 0, 0)
}

// A timer that is late must not let a session be used, or an offer count, beyond its
// time.
func TestLateTimer(t *testing.T) {
	table, clock := newTable(t, Options[*thing]{Max: 2})
	id, _ := connect(t, table, "a")
	_, secret, err := table.Offer("a")
	if err != nil {
		t.Fatal(err)
	}
	clock.mu.Lock()
	clock.now = clock.now.Add(DefaultIdleAfter)
	clock.mu.Unlock()
	_, err = table.Acquire(id, "a")
	wantErr(t, "acquire", err, rdmaio.ErrNoSession)
	_, err = table.Claim(secret, new(thing))
	wantErr(t, "claim", err, rdmaio.ErrNoSession)
	if _, _, err = table.Offer("a"); err != nil {
		t.Errorf("offer in the place of one that is too old: %v", err)
	}
}

func TestDrop(t *testing.T) {
	table, _ := newTable(t, Options[*thing]{})
	id, th := connect(t, table, "a")
	table.Drop(id)
	th.is(t, 1, 1)
	table.Drop(id)
	table.Drop(rdmaio.NewSessionID())
	th.is(t, 1, 1)
}

func TestClose(t *testing.T) {
	table, _ := newTable(t, Options[*thing]{})
	id, leased := connect(t, table, "a")
	_, idle := connect(t, table, "a")
	_, secret, err := table.Offer("a")
	if err != nil {
		t.Fatal(err)
	}
	l := acquire(t, table, id, "a")
	for range 2 {
		table.Close()
		leased.is(t, 1, 0)
		idle.is(t, 1, 1)
	}
	_, _, err = table.Offer("a")
	wantErr(t, "offer", err, rdmaio.ErrClosed)
	_, err = table.Claim(secret, new(thing))
	wantErr(t, "claim", err, rdmaio.ErrClosed)
	_, err = table.Acquire(id, "a")
	wantErr(t, "acquire", err, rdmaio.ErrNoSession)
	l.Release()
	leased.is(t, 1, 1)
	if table.Len() != 0 {
		t.Errorf("%d sessions in a closed table", table.Len())
	}
}

// Whoever ends a session that another call is ending must not come back before the
// bytes have stopped.
func TestEndWaitsForAbort(t *testing.T) {
	aborting, goOn := make(chan struct{}), make(chan struct{})
	table, _ := newTable(t, Options[*thing]{Abort: func(th *thing) {
		close(aborting)
		<-goOn
		th.aborted.Add(1)
	}})
	id, th := connect(t, table, "a")
	var wg sync.WaitGroup
	wg.Add(3)
	go func() { defer wg.Done(); table.Drop(id) }()
	<-aborting
	var early atomic.Bool
	check := func() {
		if th.aborted.Load() == 0 {
			early.Store(true)
		}
	}
	go func() {
		defer wg.Done()
		wantErr(t, "end", table.End(id, "a"), rdmaio.ErrNoSession)
		check()
	}()
	go func() {
		defer wg.Done()
		table.Close()
		check()
	}()
	// Neither can be seen to wait, only not to have come back; give them a chance.
	time.Sleep(5 * time.Millisecond)
	close(goOn)
	wg.Wait()
	if early.Load() {
		t.Error("End or Close came back before the abort was complete")
	}
	th.is(t, 1, 1)
}

// The last lease may come back while the abort is still at work.
func TestReleaseDuringAbort(t *testing.T) {
	aborting, goOn := make(chan struct{}), make(chan struct{})
	table, _ := newTable(t, Options[*thing]{Abort: func(th *thing) {
		close(aborting)
		<-goOn
		th.aborted.Add(1)
	}})
	id, th := connect(t, table, "a")
	l := acquire(t, table, id, "a")
	done := make(chan struct{})
	go func() { defer close(done); table.Drop(id) }()
	<-aborting
	l.Release()
	th.is(t, 0, 0)
	close(goOn)
	<-done
	th.is(t, 1, 1)
}

// A timer that fires while it is being replaced must not undo the replacement.
func TestReplacedTimer(t *testing.T) {
	table, clock := newTable(t, Options[*thing]{ConnectWithin: 2 * time.Hour, IdleAfter: time.Hour})
	_, secret, err := table.Offer("a")
	if err != nil {
		t.Fatal(err)
	}
	var old *fakeTimer
	for old = range clock.timers {
	}
	if _, err := table.Claim(secret, new(thing)); err != nil {
		t.Fatal(err)
	}
	old.f()
	if n := clock.pending(); n != 1 {
		t.Errorf("%d timers, want 1", n)
	}
}

func TestConcurrent(t *testing.T) {
	clock := newFakeClock()
	var opened, closed, inUse atomic.Int64
	table := New(Options[*thing]{
		Max: 8, MaxPerOwner: 4, Clock: clock, ConnectWithin: 3 * time.Millisecond, IdleAfter: 5 * time.Millisecond,
		Abort: func(th *thing) { th.aborted.Add(1) },
		Close: func(th *thing) {
			if th.aborted.Load() != 1 || th.closed.Add(1) != 1 {
				t.Error("closed twice, or before it was aborted")
			}
			closed.Add(1)
		},
	})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			owner := fmt.Sprint(i % 3)
			for round := range 300 {
				id, secret, err := table.Offer(owner)
				if err != nil {
					wantErr(t, "offer", err, rdmaio.ErrTooMany)
					clock.advance(time.Millisecond)
					continue
				}
				th := new(thing)
				if _, err := table.Claim(secret, th); err != nil {
					wantErr(t, "claim", err, rdmaio.ErrNoSession) // others move the clock
					continue
				}
				opened.Add(1)
				var users sync.WaitGroup
				for range 3 {
					users.Add(1)
					go func() {
						defer users.Done()
						l, err := table.Acquire(id, owner)
						if err != nil {
							wantErr(t, "acquire", err, rdmaio.ErrNoSession)
							return
						}
						inUse.Add(1)
						if l.Value().closed.Load() != 0 {
							t.Error("lease of a closed value")
						}
						inUse.Add(-1)
						l.Release()
					}()
				}
				switch round % 4 {
				case 0:
					table.End(id, owner)
				case 1:
					table.Drop(id)
				case 2:
					clock.advance(2 * time.Millisecond)
				}
				users.Wait()
			}
		}()
	}
	wg.Wait()
	table.Close()
	if opened.Load() == 0 || opened.Load() != closed.Load() || table.Len() != 0 {
		t.Errorf("%d sessions opened, %d closed, %d left", opened.Load(), closed.Load(), table.Len())
	}
}

// The system's clock, which the other tests replace.
func TestRealTime(t *testing.T) {
	gone := make(chan struct{})
	table := New(Options[int]{ConnectWithin: time.Hour, IdleAfter: 2 * time.Millisecond, Close: func(int) { close(gone) }})
	defer table.Close()
	_, secret, err := table.Offer("a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Claim(secret, 1); err != nil {
		t.Fatal(err)
	}
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Error("an idle session was not retired")
	}
}

func TestSecret(t *testing.T) {
	s := newSecret()
	got, err := ParseSecret(s.Hex())
	if err != nil || got != s {
		t.Errorf("a secret did not come back: %v", err)
	}
	for _, bad := range []string{"", "0", strings.Repeat("0", 31), strings.Repeat("0", 33), strings.Repeat("A", 32), strings.Repeat("g", 32), strings.Repeat("é", 16)} {
		_, err := ParseSecret(bad)
		wantErr(t, "parse "+bad, err, rdmaio.ErrMalformed)
		if err != nil && bad != "" && bad != "0" && strings.Contains(err.Error(), bad) {
			t.Error("the error shows the text")
		}
	}
	for _, shown := range []string{fmt.Sprint(s), fmt.Sprintf("%v %+v %#v %s", s, s, s, s), fmt.Sprintf("%v", struct{ S Secret }{s})} {
		if strings.Contains(shown, s.Hex()) || strings.Contains(shown, fmt.Sprint(s[0], s[1])) {
			t.Errorf("a secret shows as %q", shown)
		}
	}
}

func TestKeys(t *testing.T) {
	k, other := NewKeys(), NewKeys()
	const n = 100_000
	seen := make(map[uint32]bool, n)
	alike, nearby := 0, 0
	var last uint32
	for range n {
		key, err := k.Next()
		if err != nil {
			t.Fatal(err)
		}
		if key == 0 || seen[key] {
			t.Fatal("a key is zero or came twice")
		}
		seen[key] = true
		o, err := other.Next()
		if err != nil {
			t.Fatal(err)
		}
		if key == o {
			alike++
		}
		if key-last < 1<<16 {
			nearby++
		}
		last = key
	}
	if alike > 5 {
		t.Errorf("two sequences had %d of %d keys in common places", alike, n)
	}
	if nearby > 20 {
		t.Errorf("%d of %d keys follow closely on the one before", nearby, n)
	}
}

// 0 is somewhere in the permutation, and is left out.
func TestKeysSkipZero(t *testing.T) {
	k := NewKeys()
	var l, r uint16 // of the result 0, taken back round by round
	for n := keyRounds - 1; n >= 0; n-- {
		l, r = r^k.round(byte(n), l), l
	}
	k.next = uint64(l)<<16 | uint64(r)
	if k.permute(uint32(k.next)) != 0 {
		t.Fatal("the test takes the permutation back wrongly")
	}
	if k.next == 1<<32-1 {
		t.Skip("0 would be the very last key")
	}
	if key, err := k.Next(); err != nil || key == 0 {
		t.Errorf("key %d, error %v", key, err)
	}
}

func TestKeysEnd(t *testing.T) {
	k := NewKeys()
	k.next = 1<<32 - 2
	got := 0
	for {
		_, err := k.Next()
		if err != nil {
			wantErr(t, "the end", err, rdmaio.ErrTooMany)
			break
		}
		got++
	}
	if got < 1 || got > 2 {
		t.Errorf("%d keys were left of two", got)
	}
}
