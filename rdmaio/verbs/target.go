// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

var (
	_ rdmaio.Target    = (*Target)(nil)
	_ rdmaio.Allocator = (*Target)(nil)
)

// Target is the end that owns the memory, over an RC queue pair. It does nothing while
// bytes move. Its goroutines are the two of its rail, which is opened by the first
// Hello, Register or Alloc and closed by Close.
type Target struct {
	opt Options
	bad error // what is wrong with the options

	connecting sync.Mutex // one Hello, Connect or Close at a time

	// mu guards the rest. Taken after a region's own lock, never before.
	mu      sync.Mutex
	rail    *rail
	offered *attachment // what the last Hello named; not connected yet
	session *attachment // the present one; may be lost already
	regions map[*exposed]struct{}
	closed  bool
}

// NewTarget returns a target without a session. Nothing is opened yet: mistakes in o,
// and a host without verbs, are reported by Hello and Register.
func NewTarget(o Options) *Target {
	o, err := o.withDefaults()
	return &Target{opt: o, bad: err, regions: make(map[*exposed]struct{})}
}

// Name is "rc".
func (t *Target) Name() string { return rdmaio.TransportRC.String() }

// open returns the rail, which it opens the first time.
func (t *Target) open() (*rail, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.bad != nil:
		return nil, t.bad
	case t.closed:
		return nil, rdmaio.ErrClosed
	case t.rail != nil:
		return t.rail, nil
	}
	r, err := openFirst(t.opt)
	if err != nil {
		return nil, err
	}
	t.rail = r
	return r, nil
}

// openFirst opens the first of the options' rails that is up.
func openFirst(o Options) (*rail, error) {
	lib, devices, err := load()
	if err != nil {
		return nil, err
	}
	ports, err := resolve(o.Devices, devices)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, p := range ports {
		r, err := openRail(lib, p, o, func(*rail) {})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if r.isUp() {
			return r, nil
		}
		errs = append(errs, fmt.Errorf("%s: %s", p, r.status().Why))
		r.close()
	}
	return nil, fmt.Errorf("no RDMA device is up: %w: %w", ErrUnavailable, errors.Join(errs...))
}

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
	live := make([]*exposed, 0, len(t.regions))
	for e := range t.regions {
		live = append(live, e)
	}
	t.mu.Unlock()
	if old != nil {
		old.end()
	}
	for _, e := range live {
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

// Register exposes mem, which stays the caller's and must stay mapped until
// Exposed.Close has returned. It is pinned: that is slow, and counts against
// RLIMIT_MEMLOCK. Errors: ErrOutOfBounds (no bytes), ErrClosed, ErrUnavailable, the
// device's.
func (t *Target) Register(mem []byte, access rdmaio.Access) (rdmaio.Exposed, error) {
	e, err := t.register(mem, access, false)
	if err != nil {
		return nil, fmt.Errorf("verbs target: %w", err)
	}
	return e, nil
}

// Alloc makes n bytes and registers them. Errors as Register, and the kernel's where it
// has no memory.
func (t *Target) Alloc(n int, access rdmaio.Access) (rdmaio.Exposed, error) {
	if n <= 0 {
		return nil, fmt.Errorf("verbs target: allocate %d bytes: %w", n, rdmaio.ErrOutOfBounds)
	}
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("verbs target: allocate %d bytes: %w", n, err)
	}
	e, err := t.register(mem, access, true)
	if err != nil {
		unix.Munmap(mem)
		return nil, fmt.Errorf("verbs target: %w", err)
	}
	return e, nil
}

// RegisterDMABuf exposes n bytes at offset off of a dma-buf: memory of a GPU, or of
// another device, that its driver has exported as the descriptor fd. iova is the address
// that descriptors bear, by custom the GPU's own. The descriptor may be closed
// afterwards. Bytes of the result is nil. Errors as Register; syscall.EOPNOTSUPP if the
// kernel, the driver or libibverbs cannot (Soft-RoCE can't).
func (t *Target) RegisterDMABuf(fd int, off uint64, n int, iova uint64, access rdmaio.Access) (rdmaio.Exposed, error) {
	if n <= 0 || iova+uint64(n) < iova {
		return nil, fmt.Errorf("verbs target: register %d bytes of a dma-buf: %w", n, rdmaio.ErrOutOfBounds)
	}
	e, err := t.expose(&exposed{target: t, base: iova, size: n, access: access, buf: &dmaBuf{fd: fd, off: off}})
	if err != nil {
		return nil, fmt.Errorf("verbs target: %w", err)
	}
	return e, nil
}

// DMABufRegistrar is a [rdmaio.Target] that can expose a device's memory.
type DMABufRegistrar interface {
	RegisterDMABuf(fd int, off uint64, n int, iova uint64, access rdmaio.Access) (rdmaio.Exposed, error)
}

var _ DMABufRegistrar = (*Target)(nil)

func (t *Target) register(mem []byte, access rdmaio.Access, owned bool) (*exposed, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("register 0 bytes: %w", rdmaio.ErrOutOfBounds)
	}
	return t.expose(&exposed{target: t, mem: mem, base: addressOf(mem), size: len(mem), access: access, owned: owned})
}

func (t *Target) expose(e *exposed) (*exposed, error) {
	r, err := t.open()
	if err != nil {
		return nil, err
	}
	if err := e.enter(r); err != nil {
		return nil, err
	}
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		e.owned = false // the caller's to free
		e.Close()
		return nil, rdmaio.ErrClosed
	}
	t.regions[e] = struct{}{}
	t.mu.Unlock()
	return e, nil
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

// Close ends the session, withdraws all regions (memory that Alloc made is unmapped) and
// closes the device. A second call does nothing.
func (t *Target) Close() error {
	t.connecting.Lock()
	defer t.connecting.Unlock()
	t.mu.Lock()
	all := []*attachment{t.session, t.offered}
	t.session, t.offered = nil, nil
	t.closed = true
	live := make([]*exposed, 0, len(t.regions))
	for e := range t.regions {
		live = append(live, e)
	}
	r := t.rail
	t.rail = nil
	t.mu.Unlock()
	for _, a := range all {
		if a != nil {
			a.end()
		}
	}
	var errs []error
	for _, e := range live {
		errs = append(errs, e.Close())
	}
	if r != nil {
		errs = append(errs, r.close())
	}
	return errors.Join(errs...)
}

// remote are the access flags of a queue pair or a region.
func remote(a rdmaio.Access) int {
	flags := ibv.AccessLocalWrite // required for remote writes, and wanted anyway
	if a&rdmaio.RemoteWrite != 0 {
		flags |= ibv.AccessRemoteWrite
	}
	if a&rdmaio.RemoteRead != 0 {
		flags |= ibv.AccessRemoteRead
	}
	return flags
}
