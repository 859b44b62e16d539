// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// exposed is a region of a target.
type exposed struct {
	target *Target
	mem    []byte
	base   uint64 // mem's address, the one that descriptors bear
	access rdmaio.Access
	owned  bool // we mapped mem

	// mu is held for reading while an agent moves one piece between mem and a
	// socket (it never waits with it), and for writing to change the rest. So
	// whoever has had it for writing knows that no piece under an old key is, or
	// ever will be, moved.
	mu     sync.RWMutex
	key    uint32 // 0: withdrawn
	closed bool
}

func newExposed(t *Target, mem []byte, access rdmaio.Access, owned bool) *exposed {
	return &exposed{
		target: t,
		mem:    mem,
		base:   uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))),
		access: access,
		owned:  owned,
	}
}

// Bytes is the memory, always the same slice.
func (e *exposed) Bytes() []byte { return e.mem }

// find returns the n bytes at address addr of the region, if a transfer of this
// direction may have them. The slice may be used only while e.mu is held for
// reading and e.key is still the key.
func (e *exposed) find(addr uint64, n uint32, need rdmaio.Access) ([]byte, status) {
	if e == nil || e.access&need == 0 {
		return nil, statusStaleKey
	}
	if addr < e.base || rdmaio.CheckBounds(uint64(len(e.mem)), addr-e.base, uint64(n)) != nil {
		return nil, statusOutOfBounds
	}
	off := addr - e.base
	return e.mem[off : off+uint64(n) : off+uint64(n)], statusOK
}

// Describe names n bytes at offset off.
func (e *exposed) Describe(off, n int) (rdmaio.Descriptor, error) {
	if off < 0 || n < 0 {
		return rdmaio.Descriptor{}, fmt.Errorf("tcp target: describe %d bytes at offset %d: %w", n, off, rdmaio.ErrOutOfBounds)
	}
	if err := rdmaio.CheckBounds(uint64(len(e.mem)), uint64(off), uint64(n)); err != nil {
		return rdmaio.Descriptor{}, fmt.Errorf("tcp target: describe %w", err)
	}
	if uint64(n) > rdmaio.MaxWindow {
		return rdmaio.Descriptor{}, fmt.Errorf("tcp target: describe %d bytes, at most %d fit in a descriptor: %w", n, uint64(rdmaio.MaxWindow), rdmaio.ErrOutOfBounds)
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.closed {
		return rdmaio.Descriptor{}, fmt.Errorf("tcp target: describe: %w", rdmaio.ErrClosed)
	}
	id, err := e.target.current()
	if err != nil {
		return rdmaio.Descriptor{}, fmt.Errorf("tcp target: describe: %w", err)
	}
	return rdmaio.Descriptor{
		Transport: rdmaio.TransportTCP,
		Session:   id,
		Addr:      e.base + uint64(off),
		Size:      uint64(n),
		RKey:      e.key,
	}, nil
}

// Rekey withdraws all descriptors made so far. It waits for no peer: at most for
// the pieces (see pieceSize) that are being copied.
func (e *exposed) Rekey(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("tcp target: rekey: %w", err)
	}
	if err := e.rekey(); err != nil {
		return fmt.Errorf("tcp target: rekey: %w", err)
	}
	return nil
}

func (e *exposed) rekey() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return rdmaio.ErrClosed
	}
	t := e.target
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byKey, e.key)
	e.key = 0
	key, err := t.keys.Next()
	if err != nil {
		return err
	}
	e.key = key
	t.byKey[key] = e
	return nil
}

// Close withdraws the region and unmaps it if Alloc made it. A second call does
// nothing.
func (e *exposed) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	t := e.target
	t.mu.Lock()
	delete(t.byKey, e.key)
	delete(t.regions, e)
	t.mu.Unlock()
	e.key = 0
	e.closed = true
	if e.owned {
		if err := unix.Munmap(e.mem); err != nil {
			return fmt.Errorf("tcp target: unmap %d bytes: %w", len(e.mem), err)
		}
	}
	return nil
}
