// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

// exposer is a target, as its regions see it.
type exposer interface {
	// name completes a descriptor of e, whose lock is held: the key, and how to get there.
	name(e *exposed, d *rdmaio.Descriptor) error
	// windows tells whether regions get memory windows.
	windows(r *rail) bool
	forget(e *exposed)
}

// holder is what RC and DC targets have in common: a rail, opened when it is first needed,
// and regions.
type holder struct {
	what string // for errors
	self exposer
	dc   bool
	opt  Options
	bad  error // what is wrong with the options

	// mu guards the rest. Taken after a region's own lock, never before.
	mu      sync.Mutex
	rail    *rail
	regions map[*exposed]struct{}
	closed  bool
}

func (t *holder) init(o Options, self exposer) {
	t.opt, t.bad = o.withDefaults()
	t.what, t.self = "verbs target", self
	t.regions = make(map[*exposed]struct{})
}

// open returns the rail, which it opens the first time.
func (t *holder) open() (*rail, error) {
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
	r, err := openFirst(t.opt, t.dc)
	if err != nil {
		return nil, err
	}
	t.rail = r
	return r, nil
}

// openFirst opens the first of the options' rails that is up and, if dc, has DC.
func openFirst(o Options, dc bool) (*rail, error) {
	lib, devices, err := load()
	if err != nil {
		return nil, err
	}
	if dc {
		if err := lib.LoadMlx5(); err != nil {
			return nil, err
		}
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
		switch {
		case dc && !r.ctx.SupportsDC():
			errs = append(errs, withoutDC(p))
		case r.isUp():
			return r, nil
		default:
			errs = append(errs, fmt.Errorf("%s: %s", p, r.status().Why))
		}
		r.close()
	}
	return nil, fmt.Errorf("no RDMA device is up: %w: %w", ErrUnavailable, errors.Join(errs...))
}

// DMABufRegistrar is a [rdmaio.Target] that can expose a device's memory.
type DMABufRegistrar interface {
	RegisterDMABuf(fd int, off uint64, n int, iova uint64, access rdmaio.Access) (rdmaio.Exposed, error)
}

// Register exposes mem, which stays the caller's and must stay mapped until
// Exposed.Close has returned. It is pinned: that is slow, and counts against
// RLIMIT_MEMLOCK. Errors: ErrOutOfBounds (no bytes), ErrClosed, ErrUnavailable, the
// device's.
func (t *holder) Register(mem []byte, access rdmaio.Access) (rdmaio.Exposed, error) {
	e, err := t.register(mem, access, false)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.what, err)
	}
	return e, nil
}

// Alloc makes n bytes and registers them. Errors as Register, and the kernel's where it
// has no memory.
func (t *holder) Alloc(n int, access rdmaio.Access) (rdmaio.Exposed, error) {
	if n <= 0 {
		return nil, fmt.Errorf("%s: allocate %d bytes: %w", t.what, n, rdmaio.ErrOutOfBounds)
	}
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("%s: allocate %d bytes: %w", t.what, n, err)
	}
	e, err := t.register(mem, access, true)
	if err != nil {
		unix.Munmap(mem)
		return nil, fmt.Errorf("%s: %w", t.what, err)
	}
	return e, nil
}

// RegisterDMABuf exposes n bytes at offset off of a dma-buf: memory of a GPU, or of
// another device, that its driver has exported as the descriptor fd. iova is the address
// that descriptors bear, by custom the GPU's own. The descriptor may be closed
// afterwards. Bytes of the result is nil. Errors as Register; syscall.EOPNOTSUPP if the
// kernel, the driver or libibverbs cannot (Soft-RoCE can't).
func (t *holder) RegisterDMABuf(fd int, off uint64, n int, iova uint64, access rdmaio.Access) (rdmaio.Exposed, error) {
	if n <= 0 || iova+uint64(n) < iova {
		return nil, fmt.Errorf("%s: register %d bytes of a dma-buf: %w", t.what, n, rdmaio.ErrOutOfBounds)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) // Rekey needs it again
	if err != nil {
		return nil, fmt.Errorf("%s: register a dma-buf: descriptor %d: %w", t.what, fd, err)
	}
	e, err := t.expose(&exposed{owner: t.self, base: iova, size: n, access: access, buf: &dmaBuf{fd: own, off: off}})
	if err != nil {
		unix.Close(own)
		return nil, fmt.Errorf("%s: %w", t.what, err)
	}
	return e, nil
}

func (t *holder) register(mem []byte, access rdmaio.Access, owned bool) (*exposed, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("register 0 bytes: %w", rdmaio.ErrOutOfBounds)
	}
	return t.expose(&exposed{owner: t.self, mem: mem, base: addressOf(mem), size: len(mem), access: access, owned: owned})
}

func (t *holder) expose(e *exposed) (*exposed, error) {
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
		e.mr.Dereg() // the memory, or the descriptor, is the caller's to free
		return nil, rdmaio.ErrClosed
	}
	t.regions[e] = struct{}{}
	t.mu.Unlock()
	return e, nil
}

// forget implements exposer.
func (t *holder) forget(e *exposed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.regions, e)
}

// live returns the present regions.
func (t *holder) live() []*exposed {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*exposed, 0, len(t.regions))
	for e := range t.regions {
		all = append(all, e)
	}
	return all
}

// close withdraws the regions and closes the rail. Nobody uses it any more.
func (t *holder) close() error {
	var errs []error
	for _, e := range t.live() {
		errs = append(errs, e.Close())
	}
	t.mu.Lock()
	t.closed = true
	r := t.rail
	t.rail = nil
	t.mu.Unlock()
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
