// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// defaultTimeout is TargetOptions.Timeout's.
const defaultTimeout = 10 * time.Second

// Target is the client's end: a rdmaio.Target and a rdmaio.Allocator.
type Target struct {
	o TargetOptions

	mu      sync.Mutex
	closed  bool
	conn    *conn // nil before the first Connect, and while one is under way
	last    *conn // the one that Connect is replacing, until it is proven over
	regions map[*exposed]struct{}
}

var (
	_ rdmaio.Target    = (*Target)(nil)
	_ rdmaio.Allocator = (*Target)(nil)
	_ rdmaio.Exposed   = (*exposed)(nil)
)

// NewTarget returns a target without a session. It must be closed.
func NewTarget(o TargetOptions) *Target {
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	return &Target{o: o, regions: make(map[*exposed]struct{})}
}

// Name is "shm".
func (t *Target) Name() string { return name }

// Hello makes the first message, which is just the protocol's version.
func (t *Target) Hello(context.Context) (rdmaio.Hello, error) {
	return rdmaio.Hello{Token: version}, nil
}

// Connect completes a session. A session that the target had before is given up
// first, and Connect waits until the server has confirmed its end.
//
// Errors: rdmaio.ErrMalformed (not our welcome), ErrPeerGone (nobody at the socket,
// or it cannot be opened), ErrNoSession (too late, or used before), ErrRefused (the
// server does not take this user), ErrTooMany (of the live regions), ErrClosed,
// ctx's. After an error there is no session.
func (t *Target) Connect(ctx context.Context, w rdmaio.Welcome) error {
	if err := t.connect(ctx, w); err != nil {
		return fmt.Errorf("shm: connect: %w", err)
	}
	return nil
}

func (t *Target) connect(ctx context.Context, w rdmaio.Welcome) error {
	secret, path, err := parseWelcome(w.Token)
	if err != nil {
		return err
	}
	if err := t.leave(ctx); err != nil {
		return err
	}
	c, err := dial(ctx, w.Session, secret, path, t.o.Timeout)
	if err != nil {
		return err
	}
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		c.cut()
		return fmt.Errorf("the target is %w", rdmaio.ErrClosed)
	}
	t.conn = c
	live := make([]*exposed, 0, len(t.regions))
	for x := range t.regions {
		live = append(live, x)
	}
	t.mu.Unlock()
	for _, x := range live {
		if err := x.announce(ctx, c); err != nil {
			c.hangUp()
			return err
		}
	}
	return nil
}

// leave gives up the session that there is, if any.
func (t *Target) leave(ctx context.Context) error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return fmt.Errorf("the target is %w", rdmaio.ErrClosed)
	}
	if t.conn != nil {
		t.last, t.conn = t.conn, nil
	}
	c := t.last
	t.mu.Unlock()
	if c == nil {
		return nil
	}
	c.hangUp()
	if err := c.drain(ctx); err != nil {
		return err
	}
	t.mu.Lock()
	t.last = nil
	t.mu.Unlock()
	return nil
}

// Register answers ErrUnsupported: memory that is not a memfd cannot be passed to
// another process. Use Alloc.
func (t *Target) Register([]byte, rdmaio.Access) (rdmaio.Exposed, error) {
	return nil, fmt.Errorf("shm: only memory that Alloc made can be shared: %w", rdmaio.ErrUnsupported)
}

// Alloc makes n bytes of memory, n at least 1, and shares them with the server if
// there is a session. Errors: ErrTooMany (the server's bounds), ErrUnsupported
// (the server does not take the memory, or access is empty), ErrOutOfBounds (n),
// ErrClosed.
func (t *Target) Alloc(n int, access rdmaio.Access) (rdmaio.Exposed, error) {
	x, err := t.alloc(n, access)
	if err != nil {
		return nil, fmt.Errorf("shm: allocate %d bytes: %w", n, err)
	}
	return x, nil
}

func (t *Target) alloc(n int, access rdmaio.Access) (*exposed, error) {
	if n <= 0 {
		return nil, fmt.Errorf("a region has one byte at least: %w", rdmaio.ErrOutOfBounds)
	}
	if access == 0 || access&^(rdmaio.RemoteRead|rdmaio.RemoteWrite) != 0 {
		return nil, fmt.Errorf("access is neither RemoteRead nor RemoteWrite nor both: %w", rdmaio.ErrUnsupported)
	}
	mem, fd, err := newMemfd(n, t.o)
	if err != nil {
		return nil, err
	}
	x := &exposed{t: t, mem: mem, fd: fd, access: access}
	t.mu.Lock()
	closed, c := t.closed, t.conn
	if !closed {
		t.regions[x] = struct{}{}
	}
	t.mu.Unlock()
	if closed {
		freeMemfd(mem, fd)
		return nil, fmt.Errorf("the target is %w", rdmaio.ErrClosed)
	}
	// Without a session, or with one that is just being lost, the next Connect
	// announces the region.
	if c != nil && c.alive() {
		if err := x.announce(context.Background(), c); err != nil && c.alive() {
			x.Close()
			return nil, err
		}
	}
	return x, nil
}

// current tells whether c is the target's session, and of use.
func (t *Target) current(c *conn) bool {
	t.mu.Lock()
	now := t.conn
	t.mu.Unlock()
	return c != nil && now == c && c.alive()
}

// Close ends the session, waits (TargetOptions.Timeout at most) until the server
// has confirmed that, and unmaps all regions. Their Bytes must not be used any
// more. A second call does nothing.
func (t *Target) Close() error {
	t.mu.Lock()
	t.closed = true
	conns := [...]*conn{t.conn, t.last}
	t.conn, t.last = nil, nil
	live := make([]*exposed, 0, len(t.regions))
	for x := range t.regions {
		live = append(live, x)
	}
	t.mu.Unlock()
	for _, c := range conns {
		if c == nil {
			continue
		}
		c.hangUp()
		// Without the server's word the memory is unmapped all the same: the pages live
		// on in the server's own mapping, out of this process's sight.
		_ = c.drain(context.Background())
		c.cut()
	}
	for _, x := range live {
		x.Close()
	}
	return nil
}
