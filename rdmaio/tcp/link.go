// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"fmt"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/session"
)

// link is one window of a peer's memory. Everything but the first group is guarded
// by peer.mu.
type link struct {
	p     *peer
	lease *session.Lease[*peer]
	d     rdmaio.Descriptor
	wake  chan struct{} // told when a post has room, or everything has ended

	ring     [linkQueue]transfer // posted and not entirely in flight, from first
	first    int
	queued   int
	inflight int // requests that are not finished

	ready     bool // in peer's list
	nextReady *link

	err    error // the first one
	told   bool  // the caller has seen err
	closed bool
}

// transfer is what is left to send of one post.
type transfer struct {
	op   uint8
	addr uint64 // in the target's address space
	body []byte
}

// Write posts src to the window.
func (l *link) Write(ctx context.Context, src rdmaio.Slice, at uint64) error {
	return l.post(ctx, opWrite, src, at)
}

// Read posts a transfer of the window into dst.
func (l *link) Read(ctx context.Context, dst rdmaio.Slice, at uint64) error {
	return l.post(ctx, opRead, dst, at)
}

func (l *link) post(ctx context.Context, op uint8, s rdmaio.Slice, at uint64) error {
	body, err := l.check(s, at)
	if err == nil {
		err = ctx.Err()
	}
	p := l.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if l.err != nil || l.closed {
			return l.down()
		}
		if err != nil {
			l.told = true
			l.fail(fmt.Errorf("tcp: %s %d bytes: %w", opName(op), s.Len, err))
			return l.err
		}
		if len(body) == 0 {
			return nil
		}
		if l.queued < linkQueue {
			break
		}
		p.mu.Unlock()
		select {
		case <-l.wake:
		case <-ctx.Done():
			err = ctx.Err()
		}
		p.mu.Lock()
	}
	l.ring[(l.first+l.queued)%linkQueue] = transfer{op: op, addr: l.d.Addr + at, body: body}
	l.queued++
	p.pushReady(l)
	p.kick()
	return nil
}

func opName(op uint8) string {
	if op == opWrite {
		return "write"
	}
	return "read"
}

// check returns the memory of s if it may be moved to or from at.
func (l *link) check(s rdmaio.Slice, at uint64) ([]byte, error) {
	r, ok := s.Region.(*region)
	if !ok || r.f != l.p.f {
		return nil, fmt.Errorf("slice is not of a region of this fabric: %w", rdmaio.ErrUnsupported)
	}
	if r.closed.Load() {
		return nil, fmt.Errorf("slice's region: %w", rdmaio.ErrClosed)
	}
	if s.Off < 0 || s.Len < 0 || s.Len > maxTransfer {
		return nil, fmt.Errorf("slice of %d bytes at %d, want at most %d: %w", s.Len, s.Off, maxTransfer, rdmaio.ErrOutOfBounds)
	}
	if err := rdmaio.CheckBounds(uint64(len(r.mem)), uint64(s.Off), uint64(s.Len)); err != nil {
		return nil, fmt.Errorf("slice: %w", err)
	}
	if err := rdmaio.CheckBounds(l.d.Size, at, uint64(s.Len)); err != nil {
		return nil, fmt.Errorf("window: %w", err)
	}
	return s.Bytes(), nil
}

// down is the error of a call on a link that has ended: the reason, if this is the
// first that the caller hears of it. p.mu is held.
func (l *link) down() error {
	switch {
	case l.closed:
		return fmt.Errorf("tcp: %w: it is %w", rdmaio.ErrLinkDown, rdmaio.ErrClosed)
	case l.told:
		return fmt.Errorf("tcp: %w: %w", rdmaio.ErrLinkDown, l.err)
	}
	l.told = true
	return l.err
}

// fail ends the link: what is not in flight never will be. p.mu is held.
func (l *link) fail(err error) {
	if l.err == nil {
		l.err = err
	}
	clear(l.ring[:])
	l.queued = 0
	l.tell()
}

func (l *link) tell() { tell(l.wake) }

// shift drops the first of the queue, all of which is in flight. p.mu is held.
func (l *link) shift() {
	l.ring[l.first] = transfer{}
	l.first = (l.first + 1) % linkQueue
	l.queued--
	l.tell()
}

// Fence waits until all posted transfers have ended.
func (l *link) Fence(ctx context.Context) error {
	p := l.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.closed {
		return l.down()
	}
	if l.settle(ctx.Done()) {
		return l.outcome()
	}
	l.fail(fmt.Errorf("tcp: fence: %w", ctx.Err()))
	l.breakOff(p.f.opt.FenceLimit)
	return l.outcome()
}

// outcome is what Fence returns when all has ended. p.mu is held.
func (l *link) outcome() error {
	if l.err != nil {
		l.told = true
	}
	return l.err
}

// settle waits until nothing is queued and nothing in flight; false if enough
// comes first. p.mu is held, but not while it waits.
func (l *link) settle(enough <-chan struct{}) bool {
	for l.queued > 0 || l.inflight > 0 {
		l.p.mu.Unlock()
		select {
		case <-l.wake:
			l.p.mu.Lock()
		case <-enough:
			l.p.mu.Lock()
			return l.queued == 0 && l.inflight == 0
		}
	}
	return true
}

// breakOff waits until nothing is in flight: for limit in peace, then by breaking
// the session. l has failed, so nothing is queued. p.mu is held, but not while it
// waits.
func (l *link) breakOff(limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if l.settle(ctx.Done()) {
		return
	}
	l.p.fail(fmt.Errorf("target did not acknowledge within %v: %w", limit, rdmaio.ErrPeerGone))
	l.settle(nil)
}

// Close fences and gives up the link. What was posted has half of FenceLimit to get
// through, and what is on the wire then the other half to be acknowledged.
func (l *link) Close() error {
	p := l.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	half := p.f.opt.FenceLimit / 2
	if l.queued > 0 || l.inflight > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), half)
		defer cancel()
		if !l.settle(ctx.Done()) {
			l.fail(fmt.Errorf("tcp: link is %w", rdmaio.ErrClosed))
			l.breakOff(half)
		}
	}
	delete(p.links, l)
	p.f.links.Add(-1)
	// The table may call back, into us too.
	p.mu.Unlock()
	l.lease.Release()
	p.mu.Lock()
	return nil
}
