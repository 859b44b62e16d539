// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

// exposed is a region of a target. Its key is that of its registration, or of a memory
// window over all of it: then a new key does not need the memory to be pinned anew, and
// is good for this session's queue pair only.
type exposed struct {
	owner  exposer
	mem    []byte
	base   uint64 // the address that descriptors bear
	size   int
	access rdmaio.Access
	owned  bool    // we mapped mem
	buf    *dmaBuf // nil: mem

	mu     sync.Mutex
	rail   *rail
	mr     *ibv.MR
	window *window // nil: the key is mr's
	used   bool    // the key has been told to somebody
	closed bool
}

// dmaBuf is memory that another driver has exported, as a descriptor of our own.
type dmaBuf struct {
	fd  int
	off uint64
}

func addressOf(mem []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
}

// Bytes is the memory, always the same slice; nil for a dma-buf.
func (e *exposed) Bytes() []byte { return e.mem }

// enter registers the memory with a rail, for the first time.
func (e *exposed) enter(r *rail) (err error) {
	e.rail = r
	if e.owner.windows(r) {
		e.window = new(window)
	}
	e.mr, err = e.register(r)
	return err
}

// register registers the memory once more.
func (e *exposed) register(r *rail) (*ibv.MR, error) {
	access := remote(e.access)
	if e.window != nil {
		// The region itself gives nobody access, its window does.
		access = ibv.AccessLocalWrite | ibv.AccessMWBind
	}
	if e.buf == nil {
		return r.register(e.mem, access)
	}
	mr, err := r.pd.RegDMABuf(e.buf.fd, e.buf.off, e.size, e.base, access)
	if err != nil {
		return nil, fmt.Errorf("register %d bytes of a dma-buf with %s: %w", e.size, r.port, r.explain(err))
	}
	return mr, nil
}

// Describe names n bytes at offset off.
func (e *exposed) Describe(off, n int) (rdmaio.Descriptor, error) {
	if off < 0 || n < 0 {
		return rdmaio.Descriptor{}, fmt.Errorf("verbs target: describe %d bytes at offset %d: %w", n, off, rdmaio.ErrOutOfBounds)
	}
	if err := rdmaio.CheckBounds(uint64(e.size), uint64(off), uint64(n)); err != nil {
		return rdmaio.Descriptor{}, fmt.Errorf("verbs target: describe %w", err)
	}
	if uint64(n) > rdmaio.MaxWindow {
		return rdmaio.Descriptor{}, fmt.Errorf("verbs target: describe %d bytes, at most %d fit in a descriptor: %w", n, uint64(rdmaio.MaxWindow), rdmaio.ErrOutOfBounds)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return rdmaio.Descriptor{}, fmt.Errorf("verbs target: describe: %w", rdmaio.ErrClosed)
	}
	d := rdmaio.Descriptor{Addr: e.base + uint64(off), Size: uint64(n)}
	if err := e.owner.name(e, &d); err != nil {
		return rdmaio.Descriptor{}, fmt.Errorf("verbs target: describe: %w", err)
	}
	e.used = true
	return d, nil
}

// Rekey withdraws all descriptors made so far. It waits for the device, which stops what
// is under way under the old key.
func (e *exposed) Rekey(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("verbs target: rekey: %w", err)
	}
	if err := e.rekey(); err != nil {
		return fmt.Errorf("verbs target: rekey: %w", err)
	}
	return nil
}

func (e *exposed) rekey() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return rdmaio.ErrClosed
	}
	if !e.used {
		return nil // nobody knows the key
	}
	e.used = false
	if e.window != nil {
		return e.window.withdraw()
	}
	// The new registration first, so that it cannot get the old one's key.
	fresh, err := e.register(e.rail)
	old := e.mr
	if ibv.IsNoMemory(err) {
		// There is no room for two.
		if err := old.Dereg(); err != nil {
			return fmt.Errorf("withdraw %d bytes: %w", e.size, err)
		}
		e.mr = nil
		if fresh, err = e.register(e.rail); err == nil && fresh.RKey == old.RKey {
			err = errors.Join(errors.New("the device gave the old key again"), fresh.Dereg())
		}
		old = nil
	}
	if err != nil {
		return errors.Join(err, e.lock())
	}
	e.mr = fresh
	if old == nil {
		return nil
	}
	if err := old.Dereg(); err != nil {
		return fmt.Errorf("withdraw %d bytes: %w", e.size, err)
	}
	return nil
}

// lock withdraws the region where it cannot get a new key.
func (e *exposed) lock() error {
	e.closed = true
	e.owner.forget(e)
	var errs []error
	if e.window != nil {
		errs = append(errs, e.window.withdraw())
	}
	if e.mr != nil {
		errs = append(errs, e.mr.Dereg())
		e.mr = nil
	}
	return errors.Join(errs...)
}

// Close withdraws the region and unmaps it if Alloc made it. A second call does nothing.
func (e *exposed) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	if !e.closed {
		errs = append(errs, e.lock())
	}
	if e.owned {
		e.owned = false
		errs = append(errs, unix.Munmap(e.mem))
	}
	if e.buf != nil {
		errs = append(errs, unix.Close(e.buf.fd))
		e.buf = nil
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("verbs target: close %d bytes: %w", e.size, err)
	}
	return nil
}
