// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/s3rdma/s3rdma/rdmaio"
)

var (
	_ rdmaio.Target    = (*Target)(nil)
	_ rdmaio.Allocator = (*Target)(nil)
	_ DMABufRegistrar  = (*Target)(nil)
)

// Target is the end that owns the memory, over an RC queue pair. It does nothing while
// bytes move. Its goroutines are the two of its rail, which is opened by the first
// Hello, Register or Alloc and closed by Close.
type Target struct {
	holder

	connecting sync.Mutex // one Hello, Connect or Close at a time

	offered *attachment // what the last Hello named; not connected yet; guarded by mu
	session *attachment // the present one; may be lost already; guarded by mu
}

// NewTarget returns a target without a session. Nothing is opened yet: mistakes in o,
// and a host without verbs, are reported by Hello and Register.
func NewTarget(o Options) *Target {
	t := new(Target)
	t.init(o, t)
	return t
}

// Name is "rc".
func (t *Target) Name() string { return rdmaio.TransportRC.String() }

// Hello makes a queue pair, and names it. The next Hello or Connect does away with it,
// unless it is that Connect's.
func (t *Target) Hello(ctx context.Context) (rdmaio.Hello, error) {
	h, err := t.hello(ctx)
	if err != nil {
		return rdmaio.Hello{}, fmt.Errorf("verbs target: hello: %w", err)
	}
	return h, nil
}

func (t *Target) hello(ctx context.Context) (rdmaio.Hello, error) {
	if err := ctx.Err(); err != nil {
		return rdmaio.Hello{}, err
	}
	t.connecting.Lock()
	defer t.connecting.Unlock()
	r, err := t.open()
	if err != nil {
		return rdmaio.Hello{}, err
	}
	a, err := newAttachment(t, r)
	if err != nil {
		return rdmaio.Hello{}, err
	}
	token, err := a.mine.token()
	if err != nil {
		a.end()
		return rdmaio.Hello{}, err
	}
	t.mu.Lock()
	old := t.offered
	t.offered = a
	t.mu.Unlock()
	if old != nil {
		old.end()
	}
	return rdmaio.Hello{Token: token, PSN: a.mine.psn}, nil
}

// Connect connects the queue pair of the last Hello to the initiator's. On success it
// takes the place of the session before, which is gone then; on an error that one is
// left as it was, and so is the queue pair unless the device has refused. Errors:
// ErrMalformed and ErrUnsupported (no welcome of this transport), ErrNoSession (no Hello
// before it), ErrClosed, ctx's, the device's.
func (t *Target) Connect(ctx context.Context, w rdmaio.Welcome) error {
	if err := t.connect(ctx, w); err != nil {
		return fmt.Errorf("verbs target: connect: %w", err)
	}
	return nil
}

func (t *Target) connect(ctx context.Context, w rdmaio.Welcome) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t.connecting.Lock()
	defer t.connecting.Unlock()
	t.mu.Lock()
	a, old, closed := t.offered, t.session, t.closed
	t.mu.Unlock()
	switch {
	case closed:
		return rdmaio.ErrClosed
	case a == nil:
		return fmt.Errorf("there was no Hello for this welcome: %w", rdmaio.ErrNoSession)
	case w.Session.IsZero():
		return fmt.Errorf("welcome without a session: %w", rdmaio.ErrMalformed)
	}
	peer, err := parseIdentity(w.Token, w.PSN)
	if err != nil {
		return err
	}
	// A session that was lost does not come back: from here on there is none until the
	// regions have keys of the new one.
	if err := a.attach(w.Session, peer); err != nil {
		t.mu.Lock()
		t.offered = nil
		t.mu.Unlock()
		a.end()
		return err
	}
	t.mu.Lock()
	t.offered, t.session = nil, nil
	t.mu.Unlock()
	if old != nil {
		old.end()
	}
	for _, e := range t.live() {
		if err := e.rekey(); err != nil && !errors.Is(err, rdmaio.ErrClosed) {
			a.end()
			return err
		}
	}
	t.mu.Lock()
	t.session = a
	t.mu.Unlock()
	return nil
}

// current returns the session, if there is one that is not known to be lost.
func (t *Target) current() (*attachment, error) {
	t.mu.Lock()
	s, closed := t.session, t.closed
	t.mu.Unlock()
	switch {
	case closed:
		return nil, rdmaio.ErrClosed
	case s == nil || s.isLost():
		return nil, rdmaio.ErrNoSession
	}
	return s, nil
}

// Addr is the IP address of the port that the target uses, once it is open: what the
// HTTP connection is best made from. It is invalid before.
func (t *Target) Addr() netip.Addr {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range []*attachment{t.session, t.offered} {
		if a != nil {
			return a.local.addr()
		}
	}
	return netip.Addr{}
}

// name implements exposer.
func (t *Target) name(e *exposed, d *rdmaio.Descriptor) error {
	s, err := t.current()
	if err != nil {
		return err
	}
	d.Transport, d.Session, d.RKey = rdmaio.TransportRC, s.id, e.mr.RKey
	if e.window != nil {
		d.RKey, err = e.window.bind(s, e)
	}
	return err
}

// windows implements exposer.
func (t *Target) windows(r *rail) bool { return useWindows(t.opt.Windows, r) }

// Close ends the session, withdraws all regions (memory that Alloc made is unmapped) and
// closes the device. A second call does nothing.
func (t *Target) Close() error {
	t.connecting.Lock()
	defer t.connecting.Unlock()
	t.mu.Lock()
	all := []*attachment{t.session, t.offered}
	t.session, t.offered = nil, nil
	t.closed = true
	t.mu.Unlock()
	for _, a := range all {
		if a != nil {
			a.end()
		}
	}
	return t.close()
}
