// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

// maxTransfer is the largest transfer of one post. It is cut into chunks, so that it
// bounds nothing but the account.
const maxTransfer = 1 << 30

// owner is the fabric that a link belongs to.
type owner interface {
	// key returns the local key of a region, at the link's rail, if the region is the
	// fabric's and open.
	key(r rdmaio.Region, rail int) (uint32, error)
	// release is called once, when the link is closed and nothing of it is in flight.
	release(*link)
	options() *Options
}

// link is one window of a peer's memory.
type link struct {
	q     *queue
	owner owner
	rail  int
	d     rdmaio.Descriptor
	extra any // the owner's

	// Guarded by q.mu.
	inflight int
	err      error // the first one
	told     bool  // the caller has seen err
	closed   bool
	w        waiter
}

// newLink joins a queue. It fails if the queue is dead.
func newLink(q *queue, o owner, rail int, d rdmaio.Descriptor, extra any) (*link, error) {
	l := &link{q: q, owner: o, rail: rail, d: d, extra: extra}
	l.w = waiter{link: l, wake: make(chan struct{}, 1)}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == dead {
		return nil, q.why
	}
	if most := o.options().MaxLinks; len(q.links) >= most {
		return nil, fmt.Errorf("%w links on this connection (%d)", rdmaio.ErrTooMany, most)
	}
	q.links[l] = struct{}{}
	return l, nil
}

// Write posts src to the window.
func (l *link) Write(ctx context.Context, src rdmaio.Slice, at uint64) error {
	return l.post(ctx, ibv.WRWrite, src, at)
}

// Read posts a transfer of the window into dst.
func (l *link) Read(ctx context.Context, dst rdmaio.Slice, at uint64) error {
	return l.post(ctx, ibv.WRRead, dst, at)
}

func (l *link) post(ctx context.Context, op int32, s rdmaio.Slice, at uint64) error {
	r, err := l.check(op, s, at)
	if err == nil {
		err = ctx.Err()
	}
	q := l.q
	q.mu.Lock()
	defer q.mu.Unlock()
	left := s.Len
	for {
		if l.err != nil || l.closed {
			return l.down()
		}
		if err != nil {
			l.told = true
			l.fail(fmt.Errorf("verbs: %s %d bytes: %w", opName(op), s.Len, err))
			return l.err
		}
		if left == 0 {
			return nil
		}
		for left > 0 && q.room() {
			r.length = uint32(min(left, chunkSize))
			q.add(r)
			r.local += uint64(r.length)
			r.remote += uint64(r.length)
			left -= int(r.length)
		}
		q.flush()
		if left == 0 {
			return nil
		}
		l.w.what = forRoom
		if !q.wait(&l.w, ctx.Done()) {
			err = ctx.Err()
		}
	}
}

func opName(op int32) string {
	if op == ibv.WRRead {
		return "read"
	}
	return "write"
}

// check returns the request for the memory of s to or from at, whole.
func (l *link) check(op int32, s rdmaio.Slice, at uint64) (request, error) {
	key, err := l.owner.key(s.Region, l.rail)
	if err != nil {
		return request{}, err
	}
	if s.Off < 0 || s.Len < 0 || s.Len > maxTransfer {
		return request{}, fmt.Errorf("slice of %d bytes at %d, want at most %d: %w", s.Len, s.Off, maxTransfer, rdmaio.ErrOutOfBounds)
	}
	mem := s.Region.Bytes()
	if err := rdmaio.CheckBounds(uint64(len(mem)), uint64(s.Off), uint64(s.Len)); err != nil {
		return request{}, fmt.Errorf("slice: %w", err)
	}
	if err := rdmaio.CheckBounds(l.d.Size, at, uint64(s.Len)); err != nil {
		return request{}, fmt.Errorf("window: %w", err)
	}
	return request{
		link: l, op: op, lkey: key,
		local:  uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) + uint64(s.Off),
		remote: l.d.Addr + at, rkey: l.d.RKey,
	}, nil
}

// down is the error of a call on a link that has ended: the reason, if this is the
// first that the caller hears of it. q.mu is held.
func (l *link) down() error {
	switch {
	case l.closed:
		return fmt.Errorf("verbs: %w: it is %w", rdmaio.ErrLinkDown, rdmaio.ErrClosed)
	case l.told:
		return fmt.Errorf("verbs: %w: %w", rdmaio.ErrLinkDown, l.err)
	}
	l.told = true
	return l.err
}

// fail ends the link. What is in flight will end by itself. q.mu is held.
func (l *link) fail(err error) {
	if l.err == nil {
		l.err = err
		l.q.moved = true
	}
}

// Fence waits until all posted transfers have ended.
func (l *link) Fence(ctx context.Context) error {
	q := l.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if l.closed {
		return l.down()
	}
	l.w.what = forIdle
	if !q.wait(&l.w, ctx.Done()) {
		l.fail(fmt.Errorf("verbs: fence: %w", ctx.Err()))
		l.breakOff()
	}
	if l.err != nil {
		l.told = true
	}
	return l.err
}

// breakOff waits until nothing of a failed link is in flight: for half of the limit in
// peace, for the other half by breaking the connection and making it anew, and if the
// peer takes no part in that by giving the connection up. q.mu is held.
func (l *link) breakOff() {
	q, limit := l.q, l.owner.options().FenceLimit
	l.w.what = forIdle
	if q.waitFor(&l.w, limit/2) {
		return
	}
	q.force()
	if q.waitFor(&l.w, limit/2) {
		return
	}
	q.die(fmt.Errorf("verbs: target did not answer within %v: %w", limit, rdmaio.ErrPeerGone))
	if !q.waitFor(&l.w, limit) {
		// The device does not flush. Its owner destroys the queue pair.
		q.wait(&l.w, nil)
	}
}

// Close fences and gives up the link.
func (l *link) Close() error {
	q := l.q
	q.mu.Lock()
	if l.closed {
		q.mu.Unlock()
		return nil
	}
	l.closed = true
	if l.inflight > 0 {
		l.w.what = forIdle
		if !q.waitFor(&l.w, l.owner.options().FenceLimit/2) {
			l.fail(fmt.Errorf("verbs: link is %w", rdmaio.ErrClosed))
			l.breakOff()
		}
	}
	delete(q.links, l)
	q.mu.Unlock()
	l.owner.release(l)
	return nil
}

// region is initiator memory, registered with every rail.
type region struct {
	reg    *registry
	mem    []byte
	keys   []atomic.Uint32 // local keys, a rail
	mrs    []*ibv.MR       // guarded by reg.mu
	closed atomic.Bool
}

// Bytes is the registered memory.
func (r *region) Bytes() []byte { return r.mem }
