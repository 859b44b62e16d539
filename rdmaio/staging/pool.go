// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package staging

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// Pool is registered memory in slabs. All methods may be called at once.
type Pool struct {
	geometry
	wait    time.Duration
	scrub   bool
	onWait  func(time.Duration, bool)
	fabrics []rdmaio.Fabric

	mem     mapping         // the slabs; not changed until the last lease is back
	regions []rdmaio.Region // of fabrics, in the same order

	closing sync.Mutex // held while memory is given up
	freed   bool       // guarded by closing

	mu     sync.Mutex
	free   []int32 // numbers of free slabs; the last released is leased first, being warm
	queue  queue
	closed bool
	idle   chan struct{} // made by Close, closed when the last lease is back
	leases int
	count  counters
}

type counters struct {
	granted, refused, waited uint64
	waitTotal                time.Duration
	peak                     int
}

// New maps o.Size bytes and registers them once with each of fabrics, which must be
// different and outlive the pool. On an error nothing is left mapped or registered.
//
// Errors: ErrOption for settings that cannot work, else what the system or the
// fabric said.
func New(o Options, fabrics ...rdmaio.Fabric) (*Pool, error) {
	g, err := o.resolve()
	if err != nil {
		return nil, err
	}
	for i, f := range fabrics {
		if f == nil || !reflect.TypeOf(f).Comparable() {
			return nil, optionError("fabric %d of %d is nil or of a type that cannot be compared", i+1, len(fabrics))
		}
		for _, other := range fabrics[:i] {
			if f == other {
				return nil, optionError("fabric %s is given twice", f.Capabilities().Name)
			}
		}
	}
	p := &Pool{
		geometry: g, wait: o.Wait, scrub: o.Scrub, onWait: o.OnWait,
		fabrics: append([]rdmaio.Fabric(nil), fabrics...),
		free:    make([]int32, g.slabs),
	}
	for i := range p.free {
		p.free[i] = int32(g.slabs - 1 - i)
	}
	p.queue.perCaller = g.perCaller
	p.mem, err = mapMemory(g.slabs*g.slabSize, o.HugePages, o.Mlock)
	if err != nil {
		return nil, err
	}
	for _, f := range fabrics {
		r, err := f.Register(p.mem.bytes)
		if err != nil {
			err = fmt.Errorf("staging: register %d bytes with fabric %s: %w", len(p.mem.bytes), f.Capabilities().Name, err)
			return nil, errors.Join(err, p.freeMemory())
		}
		p.regions = append(p.regions, r)
	}
	return p, nil
}

// SlabSize is the size of a slab in bytes.
func (p *Pool) SlabSize() int { return p.slabSize }

// MaxLease is the size of the largest lease in bytes. A larger object goes through
// its lease's slabs in turns.
func (p *Pool) MaxLease() int { return p.perLease * p.slabSize }

// Acquire leases memory for bytes on behalf of caller: as many slabs as hold them,
// but at least one and at most Options.MaxPerLease. The caller is whose share of the
// pool it counts against, usually the request's authenticated identity. The lease
// must be released.
//
// Acquire waits until it is its turn, at most Options.Wait or until ctx ends. A
// lease granted in the instant in which ctx ends is still returned.
//
// Errors: ErrBusy, together with ctx's error if that ended first; rdmaio.ErrClosed.
func (p *Pool) Acquire(ctx context.Context, caller string, bytes int64) (*Lease, error) {
	l := p.newLease(bytes)
	if err := ctx.Err(); err != nil {
		p.mu.Lock()
		p.count.refused++
		p.mu.Unlock()
		return nil, p.busy(l, err)
	}
	p.mu.Lock()
	if p.closed {
		p.count.refused++
		p.mu.Unlock()
		return nil, p.closedError()
	}
	if p.wait < 0 && l.want > len(p.free) { // then the queue is always empty
		p.count.refused++
		p.mu.Unlock()
		return nil, p.busy(l, nil)
	}
	w := p.request(l, caller)
	p.mu.Unlock()
	if w == nil {
		return l, nil
	}

	timer := time.NewTimer(p.wait)
	defer timer.Stop()
	select {
	case <-w.ready:
	case <-timer.C:
	case <-ctx.Done():
	}

	p.mu.Lock()
	if w.state == waiting {
		p.abandon(w)
	}
	p.mu.Unlock()
	if p.onWait != nil {
		p.onWait(w.waited, w.state == granted)
	}
	switch w.state {
	case granted:
		return l, nil
	case denied:
		return nil, p.closedError()
	}
	return nil, p.busy(l, ctx.Err())
}

func (p *Pool) busy(l *Lease, cause error) error {
	s := p.Stats()
	err := fmt.Errorf("staging: %d slabs wanted, %d of %d in use, %d requests waiting: %w",
		l.want, s.InUse, s.Slabs, s.Waiting, ErrBusy)
	if cause != nil {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	return err
}

func (p *Pool) closedError() error {
	return fmt.Errorf("staging: lease memory of a pool that was shut down: %w", rdmaio.ErrClosed)
}

// request grants l at once and returns nil, or queues it. p.mu is held.
func (p *Pool) request(l *Lease, caller string) *waiter {
	if p.queue.len == 0 && l.want <= len(p.free) {
		p.grant(l, p.queue.caller(caller))
		return nil
	}
	w := &waiter{lease: l}
	p.queue.push(w, caller)
	p.serve() // callers beyond their share may be all that waits ahead
	if w.state == granted {
		return nil
	}
	w.since, w.ready = time.Now(), make(chan struct{})
	return w
}

// serve grants what it can to those whose turn it is. p.mu is held.
func (p *Pool) serve() {
	for len(p.free) > 0 {
		w := p.queue.next()
		if w == nil || w.lease.want > len(p.free) {
			return // save up for w
		}
		p.queue.remove(w, true)
		p.grant(w.lease, w.caller)
		p.decide(w, granted)
	}
}

// grant moves free slabs to l. p.mu is held.
func (p *Pool) grant(l *Lease, c *caller) {
	rest := len(p.free) - l.want
	l.slabs = append(l.slabs, p.free[rest:]...)
	p.free = p.free[:rest]
	l.caller = c
	c.held += l.want
	p.leases++
	p.count.granted++
	p.count.peak = max(p.count.peak, p.slabs-len(p.free))
}

// abandon takes w, which waits, out of the queue. p.mu is held.
func (p *Pool) abandon(w *waiter) {
	p.queue.remove(w, false)
	p.queue.forget(w.caller)
	p.decide(w, gone)
	p.serve() // w may have been what others waited behind
}

// decide ends w's wait. p.mu is held.
func (p *Pool) decide(w *waiter, s state) {
	w.state = s
	if s != granted {
		p.count.refused++
	}
	if w.ready == nil {
		return // served without waiting
	}
	w.waited = time.Since(w.since)
	p.count.waited++
	p.count.waitTotal += w.waited
	close(w.ready)
}

// giveBack ends l's hold on its slabs.
func (p *Pool) giveBack(l *Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, l.slabs...)
	l.caller.held -= l.want
	p.queue.forget(l.caller)
	p.leases--
	p.serve()
	if p.leases == 0 && p.idle != nil {
		close(p.idle)
		p.idle = nil
	}
}

// Close refuses all who wait and all who come, waits until ctx ends for the leases
// that are out, and then deregisters and unmaps the memory.
//
// If leases are still out it returns ErrLeaked, with their number and ctx's error,
// and leaves the memory as it is, since a transfer may be under way in it; so it does
// with a fabric's error. Close may be called again then. After a success further
// calls do nothing. The fabrics stay open, and must not be closed before.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	for w := p.queue.next(); w != nil; w = p.queue.next() {
		p.queue.remove(w, false)
		p.queue.forget(w.caller)
		p.decide(w, denied)
	}
	var idle chan struct{}
	if p.leases > 0 {
		if p.idle == nil {
			p.idle = make(chan struct{})
		}
		idle = p.idle
	}
	p.mu.Unlock()

	if idle != nil {
		select {
		case <-idle:
		case <-ctx.Done():
			p.mu.Lock()
			leases, slabs := p.leases, p.slabs-len(p.free)
			p.mu.Unlock()
			if leases > 0 {
				return fmt.Errorf("staging: close: %d leases on %d of %d slabs are out, the memory stays: %w (%w)",
					leases, slabs, p.slabs, ErrLeaked, ctx.Err())
			}
		}
	}
	return p.freeMemory()
}

// freeMemory deregisters, then unmaps. What fails stays as it is.
func (p *Pool) freeMemory() error {
	p.closing.Lock()
	defer p.closing.Unlock()
	if p.freed {
		return nil
	}
	for len(p.regions) > 0 {
		last := len(p.regions) - 1
		if err := p.regions[last].Close(); err != nil {
			return fmt.Errorf("staging: deregister from fabric %s, the memory stays: %w", p.fabrics[last].Capabilities().Name, err)
		}
		p.regions = p.regions[:last]
	}
	if err := p.mem.unmap(); err != nil {
		return err
	}
	p.freed = true
	return nil
}

// Stats are a pool's account. The numbers of one Stats belong to one instant.
type Stats struct {
	Slabs    int // all
	SlabSize int // bytes
	InUse    int // slabs leased
	Peak     int // the most slabs that were ever leased at once
	Leases   int // not released yet
	Waiting  int // requests in the queue
	Callers  int // that hold or wait for slabs

	Granted   uint64        // leases ever granted
	Refused   uint64        // calls of Acquire ever refused, for whatever reason
	Waited    uint64        // requests that ever had to wait and do so no more, granted or not
	WaitTotal time.Duration // what those waited, together

	Pages  PageKind // what the memory is made of
	Locked bool     // it cannot be swapped out
}

// Stats returns the account. It is cheap.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{
		Slabs: p.slabs, SlabSize: p.slabSize, InUse: p.slabs - len(p.free), Peak: p.count.peak,
		Leases: p.leases, Waiting: p.queue.len, Callers: len(p.queue.callers),
		Granted: p.count.granted, Refused: p.count.refused, Waited: p.count.waited, WaitTotal: p.count.waitTotal,
		Pages: p.mem.pages, Locked: p.mem.locked,
	}
}
