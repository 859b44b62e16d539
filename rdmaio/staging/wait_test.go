// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// testing/synctest came with Go 1.25.

//go:build go1.25

package staging

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// told is what OnWait said.
type told struct {
	sync.Mutex
	waits []time.Duration
	ok    []bool
}

func (o *told) wait(d time.Duration, granted bool) {
	o.Lock()
	defer o.Unlock()
	o.waits, o.ok = append(o.waits, d), append(o.ok, granted)
}

// waitingPool has slabs slabs and waits two seconds.
func waitingPool(t *testing.T, slabs int) (*Pool, *told) {
	var o told
	opt := small(slabs)
	opt.Wait, opt.OnWait = 2*time.Second, o.wait
	return newPool(t, opt), &o
}

// result of an Acquire in another goroutine.
type result struct {
	l   *Lease
	err error
}

func start(p *Pool, ctx context.Context, caller string, slabs int) <-chan result {
	c := make(chan result, 1)
	go func() {
		l, err := p.Acquire(ctx, caller, int64(slabs)*slab)
		c <- result{l, err}
	}()
	synctest.Wait()
	return c
}

func TestWaitTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, o := waitingPool(t, 4)
		a := acquire(t, p, "a", 1)
		began := time.Now()
		b := start(p, context.Background(), "b", 4)
		c := start(p, context.Background(), "c", 1) // fits, but not before b
		if s := p.Stats(); s.Waiting != 2 || s.Callers != 3 || s.Refused != 0 {
			t.Errorf("while waiting: %+v", s)
		}
		r := <-b
		if !errors.Is(r.err, ErrBusy) || errors.Is(r.err, context.DeadlineExceeded) {
			t.Errorf("%v", r.err)
		}
		if d := time.Since(began); d != 2*time.Second {
			t.Errorf("waited %v, want 2s", d)
		}
		// b's leaving lets c in, in the same instant.
		rc := <-c
		if rc.err != nil && !errors.Is(rc.err, ErrBusy) {
			t.Error(rc.err)
		}
		rc.l.Release()
		a.Release()
		if s := p.Stats(); s.Waiting != 0 || s.Waited != 2 || s.WaitTotal != 4*time.Second || s.Granted+s.Refused != 3 || s.Refused == 0 {
			t.Errorf("%+v", s)
		}
		if len(o.waits) != 2 || o.waits[0] != 2*time.Second || o.ok[0] && o.ok[1] {
			t.Errorf("told %v, %v", o.waits, o.ok)
		}
	})
}

// A waiter that gives up is gone from the queue: what it waited for goes to the
// next, who is not made to wait until a release.
func TestGivingUpLetsOthersIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, o := waitingPool(t, 4)
		a := acquire(t, p, "a", 1)
		began := time.Now()
		ctx, cancel := context.WithCancel(context.Background())
		b := start(p, ctx, "b", 4)
		time.Sleep(time.Second)
		c := start(p, context.Background(), "c", 2)
		d := start(p, context.Background(), "d", 1)
		time.Sleep(time.Second / 2)
		cancel()
		r := <-b
		if !errors.Is(r.err, ErrBusy) || !errors.Is(r.err, context.Canceled) {
			t.Errorf("%v", r.err)
		}
		rc, rd := <-c, <-d
		if rc.err != nil || rd.err != nil || time.Since(began) != 1500*time.Millisecond {
			t.Fatalf("%v, %v after %v", rc.err, rd.err, time.Since(began))
		}
		if s := p.Stats(); s.InUse != 4 || s.Waiting != 0 || s.Granted != 3 || s.Refused != 1 || s.WaitTotal != 2500*time.Millisecond {
			t.Errorf("%+v", s)
		}
		if len(o.waits) != 3 {
			t.Errorf("told %v", o.waits)
		}
		for _, l := range []*Lease{a, rc.l, rd.l} {
			l.Release()
		}
	})
}

func TestWaitEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := waitingPool(t, 1)
		a := acquire(t, p, "a", 1)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := p.Acquire(ctx, "b", 1)
		if !errors.Is(err, ErrBusy) || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		a.Release()
		acquire(t, p, "c", 1).Release()
	})
}

// A release wakes whom it serves, and nobody else.
func TestReleaseWakesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, o := waitingPool(t, 2)
		a, b := acquire(t, p, "a", 1), acquire(t, p, "b", 1)
		c := start(p, context.Background(), "c", 1)
		d := start(p, context.Background(), "d", 1)
		e := start(p, context.Background(), "e", 1)
		time.Sleep(time.Second)
		a.Release()
		synctest.Wait()
		if s := p.Stats(); len(c) != 1 || len(d) != 0 || len(e) != 0 || s.Waiting != 2 || s.InUse != 2 {
			t.Fatalf("%+v", s)
		}
		b.Release()
		synctest.Wait()
		if len(d) != 1 || len(e) != 0 {
			t.Fatal("not in turn")
		}
		(<-c).l.Release()
		(<-d).l.Release()
		r := <-e
		if r.err != nil {
			t.Fatal(r.err)
		}
		r.l.Release()
		if s := p.Stats(); s.WaitTotal != 3*time.Second || s.Waited != 3 || s.Peak != 2 {
			t.Errorf("%+v", s)
		}
		for i := range o.waits {
			if o.waits[i] != time.Second || !o.ok[i] {
				t.Errorf("told %v, %v", o.waits, o.ok)
			}
		}
	})
}

// Close refuses those who wait at once, and waits for those who hold.
func TestCloseRefusesWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, o := waitingPool(t, 2)
		a := acquire(t, p, "a", 2)
		b := start(p, context.Background(), "b", 1)
		c := start(p, context.Background(), "b", 1)
		closed := make(chan error, 1)
		go func() { closed <- p.Close(context.Background()) }()
		for _, ch := range []<-chan result{b, c} {
			if r := <-ch; !errors.Is(r.err, rdmaio.ErrClosed) || errors.Is(r.err, ErrBusy) {
				t.Errorf("%v", r.err)
			}
		}
		synctest.Wait()
		if len(closed) != 0 {
			t.Error("closed under a lease")
		}
		a.Bytes(1)[0] = 1
		time.Sleep(time.Hour)
		a.Release()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if s := p.Stats(); s.Refused != 2 || s.Waited != 2 || s.WaitTotal != 0 {
			t.Errorf("%+v", s)
		}
		if len(o.ok) != 2 || o.ok[0] || o.ok[1] {
			t.Errorf("told %v", o.ok)
		}
	})
}

func TestCloseGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := waitingPool(t, 1)
		a := acquire(t, p, "a", 1)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		began := time.Now()
		if err := p.Close(ctx); !errors.Is(err, ErrLeaked) || time.Since(began) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		a.Release()
	})
}
