// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package staging

import "time"

// queue is the order in which requests are served. Callers with waiting requests
// form a ring; each has its own requests in line. Its methods need Pool.mu.
type queue struct {
	perCaller   int // slabs that a caller may hold before others go first
	callers     map[string]*caller
	spare       *caller // to be used again, linked by next
	first, last *caller // the ring, opened before whose turn it is
	len         int     // waiters in all
}

// caller is who leases count against. It is in queue.callers while it holds slabs
// or waits for some.
type caller struct {
	name        string
	held        int // slabs
	first, last *waiter
	prev, next  *caller // neighbours in the ring
}

// waiter is a request in line.
type waiter struct {
	lease      *Lease
	caller     *caller
	prev, next *waiter
	since      time.Time // set when the wait begins

	// ready is made when the wait begins, and closed when state is no longer
	// waiting; state and waited do not change after that.
	ready  chan struct{}
	state  state
	waited time.Duration
}

type state uint8

const (
	waiting state = iota
	granted
	denied // the pool was closed
	gone   // the request gave up
)

// caller finds or makes the caller of that name. Whoever calls it adds a hold or a
// waiter, or calls forget.
func (q *queue) caller(name string) *caller {
	if c := q.callers[name]; c != nil {
		return c
	}
	c := q.spare
	if c == nil {
		c = new(caller)
	} else {
		q.spare = c.next
	}
	*c = caller{name: name}
	if q.callers == nil {
		q.callers = make(map[string]*caller)
	}
	q.callers[name] = c
	return c
}

// forget drops c if it neither holds nor waits.
func (q *queue) forget(c *caller) {
	if c.held == 0 && c.first == nil {
		delete(q.callers, c.name)
		*c = caller{next: q.spare}
		q.spare = c
	}
}

// push puts w at the end of its caller's line, and the caller at the end of the ring
// if it was not there.
func (q *queue) push(w *waiter, name string) {
	c := q.caller(name)
	w.caller = c
	w.prev = c.last
	if c.last != nil {
		c.last.next = w
	} else {
		c.first = w
		q.enter(c)
	}
	c.last = w
	q.len++
}

// next is the waiter whose turn it is, or nil: the first in line of the first caller
// that would stay within its share, or if there is none, of the first caller.
func (q *queue) next() *waiter {
	for c := q.first; c != nil; c = c.next {
		if c.held+c.first.lease.want <= q.perCaller {
			return c.first
		}
	}
	if q.first != nil {
		return q.first.first
	}
	return nil
}

// remove takes w out of line. If it was served, its caller's turn is over: it goes
// to the end of the ring.
func (q *queue) remove(w *waiter, served bool) {
	c := w.caller
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		c.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		c.last = w.prev
	}
	w.prev, w.next = nil, nil
	q.len--
	if c.first == nil || served {
		q.leave(c)
	}
	if c.first != nil && served {
		q.enter(c)
	}
}

// enter puts c at the end of the ring.
func (q *queue) enter(c *caller) {
	c.prev = q.last
	if q.last != nil {
		q.last.next = c
	} else {
		q.first = c
	}
	q.last = c
}

// leave takes c out of the ring.
func (q *queue) leave(c *caller) {
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		q.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		q.last = c.prev
	}
	c.prev, c.next = nil, nil
}
