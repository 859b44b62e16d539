// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package erasure

import (
	"context"
	"fmt"
	"sync"
)

// Detached is a [Source] whose reads can be interrupted though those of the source
// under it cannot: see [Detach].
type Detached struct {
	src     Source
	scratch Allocator
	asks    chan detachedRead
	answers chan detachedRead // one deep: the worker never waits for a taker
	ended   chan struct{}     // closed when the worker has ended

	mu     sync.Mutex // held during a read
	strays bool       // the last read was given up and has not been answered yet
	closed bool
	buf    []byte // the worker's, while it reads
}

type detachedRead struct {
	ctx context.Context
	n   int
	off int64
	err error
}

var _ VectorSource = (*Detached)(nil)

// Detach makes an interruptible source of one that is not, such as a [File] on a
// drive that may hang. Its reads go to memory of its own and are copied from there:
// one copy more, in exchange for which a read that is given up never reaches the
// memory of the one who asked.
//
// While a read that was given up has not come back, the source answers further
// reads with [ErrSlow] at once: a drive that hangs costs one goroutine and one
// buffer, not one for each read.
//
// It serves one read at a time; others wait. Its buffer comes from scratch (nil:
// the Go heap), grows to the longest read, and is given back when the source is
// closed and no read is under way.
func Detach(src Source, scratch Allocator) *Detached {
	if scratch == nil {
		scratch = heap{}
	}
	d := &Detached{
		src:     src,
		scratch: scratch,
		asks:    make(chan detachedRead),
		answers: make(chan detachedRead, 1),
		ended:   make(chan struct{}),
	}
	go d.work()
	return d
}

func (d *Detached) work() {
	defer close(d.ended)
	for q := range d.asks {
		q.n, q.err = d.src.ReadAt(q.ctx, d.buf[:q.n], q.off)
		q.ctx = nil
		d.answers <- q
	}
	if d.buf != nil {
		d.scratch.Free(d.buf)
		d.buf = nil
	}
}

// ReadAt implements [Source].
func (d *Detached) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	return d.ReadVAt(ctx, [][]byte{p}, off)
}

// ReadVAt implements [VectorSource]. It returns as soon as ctx is done, with ctx's
// error.
func (d *Detached) ReadVAt(ctx context.Context, bufs [][]byte, off int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return 0, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if d.strays {
		select {
		case <-d.answers:
			d.strays = false
		default:
			return 0, fmt.Errorf("%w: an earlier read has not come back", ErrSlow)
		}
	}
	want := vecLen(bufs)
	if len(d.buf) < want {
		if d.buf != nil {
			d.scratch.Free(d.buf)
			d.buf = nil
		}
		buf, err := d.scratch.Alloc(want)
		if err != nil {
			return 0, fmt.Errorf("erasure: %d bytes to detach a read: %w", want, err)
		}
		d.buf = buf
	}
	d.asks <- detachedRead{ctx: ctx, n: want, off: off}
	select {
	case q := <-d.answers:
		return d.take(bufs, q)
	case <-ctx.Done():
		select {
		case q := <-d.answers: // both at once
			return d.take(bufs, q)
		default:
		}
		d.strays = true
		return 0, ctx.Err()
	}
}

func (d *Detached) take(bufs [][]byte, q detachedRead) (int, error) {
	n, got := 0, d.buf[:min(max(q.n, 0), len(d.buf))]
	for _, b := range bufs {
		n += copy(b, got[n:])
	}
	return n, q.err
}

// Close makes all further reads fail and waits, until ctx is done, for a read that
// was given up. If it returns an error the read is still under way: the source
// under it must stay open, and the goroutine and the buffer go when it ends.
// Further calls wait again.
func (d *Detached) Close(ctx context.Context) error {
	d.mu.Lock()
	if !d.closed {
		d.closed = true
		close(d.asks)
	}
	d.mu.Unlock()
	select {
	case <-d.ended:
		return nil
	default:
	}
	select {
	case <-d.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("erasure: %w: a detached read has not come back: %w", ErrSlow, ctx.Err())
	}
}
