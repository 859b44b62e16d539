// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// Buffer is memory that a server can be pointed at. Its methods may be called
// from any number of goroutines.
type Buffer struct {
	c       *Client
	mem     []byte
	exposed rdmaio.Exposed // nil: a client without a target, plain memory

	mu     sync.Mutex
	idle   sync.Cond // signalled when inUse drops to 0
	inUse  int       // requests that hold the memory
	gen    uint64    // counts withdrawn keys
	lost   error     // why a key could not be withdrawn
	closed bool
	done   chan struct{} // closed when Close has finished
	err    error         // what Close returned
}

// Alloc makes a buffer of n zeroed bytes, which are the caller's until
// [Buffer.Close]. The memory comes from the target; with a target that cannot make
// memory the error wraps [rdmaio.ErrUnsupported] and [Client.Register] is the way.
// A client without a target answers with ordinary memory, so that a program runs
// unchanged where there is no fabric. Allocating is slow (the memory is registered
// with a device): do it once and reuse the buffer.
func (c *Client) Alloc(n int) (*Buffer, error) {
	if n <= 0 {
		return nil, fmt.Errorf("allocate a buffer of %d bytes: %w", n, ErrInvalid)
	}
	if c.target == nil {
		return c.adopt(make([]byte, n), nil)
	}
	a, ok := c.target.(rdmaio.Allocator)
	if !ok {
		return nil, fmt.Errorf("allocate a buffer: a %s target registers only the caller's memory, use Register: %w", c.target.Name(), rdmaio.ErrUnsupported)
	}
	e, err := a.Alloc(n, rdmaio.RemoteRead|rdmaio.RemoteWrite)
	if err != nil {
		return nil, fmt.Errorf("allocate a buffer of %d bytes: %w", n, err)
	}
	return c.adopt(e.Bytes(), e)
}

// Register makes a buffer of the caller's memory, which must be off-heap (made by
// mmap, a GPU library, C) and stay mapped until [Buffer.Close] has returned. With
// a target that exposes only memory of its own making (shm) the error wraps
// [rdmaio.ErrUnsupported] and [Client.Alloc] is the way. A client without a target
// takes any memory.
func (c *Client) Register(mem []byte) (*Buffer, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("register a buffer of no bytes: %w", ErrInvalid)
	}
	if c.target == nil {
		return c.adopt(mem, nil)
	}
	e, err := c.target.Register(mem, rdmaio.RemoteRead|rdmaio.RemoteWrite)
	if err != nil {
		return nil, fmt.Errorf("register a buffer of %d bytes: %w", len(mem), err)
	}
	return c.adopt(e.Bytes(), e)
}

// adopt puts a buffer under the client's care, or frees e if the client is closed.
func (c *Client) adopt(mem []byte, e rdmaio.Exposed) (*Buffer, error) {
	b := &Buffer{c: c, mem: mem, exposed: e, done: make(chan struct{})}
	b.idle.L = &b.mu
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		if e != nil {
			e.Close()
		}
		return nil, fmt.Errorf("make a buffer: client: %w", ErrClosed)
	}
	c.buffers[b] = struct{}{}
	c.mu.Unlock()
	return b, nil
}

// Len is the number of bytes.
func (b *Buffer) Len() int { return len(b.mem) }

// Bytes is the memory, always the same slice. It must not be used after Close.
func (b *Buffer) Bytes() []byte { return b.mem }

// View is n bytes at offset off. It panics if they are not inside the buffer, as
// slicing does.
func (b *Buffer) View(off, n int) View {
	if off < 0 || n < 0 || off > len(b.mem) || n > len(b.mem)-off {
		panic(fmt.Sprintf("client: view of %d bytes at offset %d of a buffer of %d bytes", n, off, len(b.mem)))
	}
	return View{mem: b.mem[off : off+n : off+n], buf: b, off: off}
}

// All is the whole buffer.
func (b *Buffer) All() View { return b.View(0, len(b.mem)) }

// Close waits for the requests on the buffer, withdraws it for good, and frees its
// memory if Alloc made it. A second call waits for the first, and returns the same.
func (b *Buffer) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		<-b.done
		return b.err
	}
	b.closed = true
	for b.inUse > 0 {
		b.idle.Wait()
	}
	b.mu.Unlock()

	if b.exposed != nil {
		if err := b.exposed.Close(); err != nil {
			b.err = fmt.Errorf("close a buffer of %d bytes: %w", len(b.mem), err)
		}
	}
	b.c.mu.Lock()
	delete(b.c.buffers, b)
	b.c.mu.Unlock()
	close(b.done)
	return b.err
}

// View is a part of a buffer, or plain memory ([Memory]). The zero View is empty.
// It is a value; copies name the same bytes.
type View struct {
	mem []byte
	buf *Buffer
	off int // of mem in buf
}

// Memory makes a view of memory that is registered with nothing. Its bytes always
// go by HTTP.
func Memory(mem []byte) View { return View{mem: mem[:len(mem):len(mem)]} }

// Len is the number of bytes.
func (v View) Len() int { return len(v.mem) }

// Bytes is the memory of the view.
func (v View) Bytes() []byte { return v.mem }

// Slice is n bytes at offset off of the view. It panics if they are not inside, as
// slicing does.
func (v View) Slice(off, n int) View {
	if off < 0 || n < 0 || off > len(v.mem) || n > len(v.mem)-off {
		panic(fmt.Sprintf("client: slice of %d bytes at offset %d of a view of %d bytes", n, off, len(v.mem)))
	}
	return View{mem: v.mem[off : off+n : off+n], buf: v.buf, off: v.off + off}
}

// registered tells whether a descriptor of the view can be made at all.
func (v View) registered() bool { return v.buf != nil && v.buf.exposed != nil }

// hold keeps the view's memory from being freed until release.
func (v View) hold(c *Client) error {
	b := v.buf
	if b == nil {
		return nil
	}
	if b.c != c {
		return fmt.Errorf("use a buffer of another client: %w", ErrInvalid)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return fmt.Errorf("use a buffer: %w", ErrClosed)
	case b.lost != nil:
		return fmt.Errorf("use a buffer: %w", b.lost)
	}
	b.inUse++
	return nil
}

func (v View) release() {
	b := v.buf
	if b == nil {
		return
	}
	b.mu.Lock()
	b.inUse--
	if b.inUse == 0 {
		b.idle.Broadcast()
	}
	b.mu.Unlock()
}

// lease is a descriptor that was handed out, and the key it was made under.
type lease struct {
	buf   *Buffer
	gen   uint64
	token string // secret
}

// lend describes at most the first limit bytes of the view, which must be
// registered.
func (v View) lend(limit int) (lease, error) {
	b := v.buf
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lost != nil {
		return lease{}, b.lost
	}
	d, err := b.exposed.Describe(v.off, min(len(v.mem), limit))
	if err != nil {
		return lease{}, fmt.Errorf("describe %d bytes: %w", len(v.mem), err)
	}
	token, err := d.Encode(rdmaio.EncodingSession)
	if err != nil {
		return lease{}, err
	}
	return lease{buf: b, gen: b.gen, token: token}, nil
}

// lendPair describes the view, which must be registered, to one peer's queue pair.
func (v View) lendPair() (rdmaio.Descriptor, lease, error) {
	b := v.buf
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lost != nil {
		return rdmaio.Descriptor{}, lease{}, b.lost
	}
	d, err := b.exposed.Describe(v.off, len(v.mem))
	if err != nil {
		return d, lease{}, fmt.Errorf("describe %d bytes: %w", len(v.mem), err)
	}
	return d, lease{buf: b, gen: b.gen}, nil
}

// maxWindow is the largest window that a descriptor can name, as an int.
const maxWindow = min(rdmaio.MaxWindow, math.MaxInt)

// superseded tells whether the lease's key was withdrawn by somebody else.
func (l lease) superseded() bool {
	l.buf.mu.Lock()
	defer l.buf.mu.Unlock()
	return l.buf.gen != l.gen
}

// takeBack withdraws the lease's key unless that happened already. When it returns
// nil no transfer under the lease can touch the memory any more. It must not be
// called with the request's own context, which may be what failed.
func (l lease) takeBack(ctx context.Context) error {
	b := l.buf
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lost != nil {
		return b.lost
	}
	if b.gen != l.gen {
		return nil
	}
	err := b.exposed.Rekey(ctx)
	b.c.stats.rekeys.Add(1)
	if err != nil && !errors.Is(err, rdmaio.ErrClosed) {
		b.lost = fmt.Errorf("%w: its key could not be withdrawn: %w", ErrBufferLost, err)
		return b.lost
	}
	b.gen++
	return nil
}
