// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// exposed is memory of a Target.
type exposed struct {
	t      *Target
	mem    []byte
	fd     int // of the memfd: a new session needs it again
	access rdmaio.Access

	// talk is held while the server is told something about this region.
	talk sync.Mutex

	mu     sync.Mutex
	conn   *conn  // the session that knows the region, or knew it last
	key    uint32 // under this key
	valid  bool   // and the key may be given away
	closed bool
}

// Bytes is the memory. It is unmapped by Close.
func (x *exposed) Bytes() []byte { return x.mem }

// announce shares the region with the server at the other end of c.
func (x *exposed) announce(ctx context.Context, c *conn) error {
	x.talk.Lock()
	defer x.talk.Unlock()
	x.mu.Lock()
	done := x.closed || x.conn == c
	x.mu.Unlock()
	if done {
		return nil
	}
	key, err := c.keys.Next()
	if err != nil {
		return err
	}
	// From here on the server may know it, whatever the outcome.
	x.set(c, key, false)
	m := message{kind: kindAdd, rkey: key, access: x.access, base: x.base(), size: uint64(len(x.mem))}
	if err := c.call(ctx, m, x.fd); err != nil {
		if c.alive() { // the server answered: it refused
			x.set(nil, 0, false)
		}
		return fmt.Errorf("share %d bytes: %w", len(x.mem), err)
	}
	x.set(c, key, true)
	return nil
}

// base is the memory's address in this process.
func (x *exposed) base() uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(x.mem)))) }

func (x *exposed) set(c *conn, key uint32, valid bool) {
	x.mu.Lock()
	x.conn, x.key, x.valid = c, key, valid
	x.mu.Unlock()
}

// Describe names a window of the memory.
func (x *exposed) Describe(off, n int) (rdmaio.Descriptor, error) {
	x.mu.Lock()
	c, key, valid, closed := x.conn, x.key, x.valid, x.closed
	x.mu.Unlock()
	if closed {
		return rdmaio.Descriptor{}, fmt.Errorf("shm: describe a region that is %w", rdmaio.ErrClosed)
	}
	if off < 0 || n < 0 || off > len(x.mem) || n > len(x.mem)-off || uint64(n) > rdmaio.MaxWindow {
		return rdmaio.Descriptor{}, fmt.Errorf("shm: describe %d bytes at %d of %d (at most %d at a time): %w", n, off, len(x.mem), uint64(rdmaio.MaxWindow), rdmaio.ErrOutOfBounds)
	}
	if !valid || !x.t.current(c) {
		return rdmaio.Descriptor{}, fmt.Errorf("shm: describe a region: the target is not connected: %w", rdmaio.ErrNoSession)
	}
	return rdmaio.Descriptor{
		Transport: rdmaio.TransportSHM,
		Addr:      x.base() + uint64(off), Size: uint64(n),
		RKey: key, Session: c.id,
	}, nil
}

// Rekey withdraws the region's key. If the session has ended, or ends meanwhile,
// it waits for the proof that the server moves no more bytes; the region gets its
// new key with the next session. After an error it is unknown whether the old key
// is withdrawn: the session has been given up, and Rekey may be tried again.
func (x *exposed) Rekey(ctx context.Context) error {
	x.talk.Lock()
	defer x.talk.Unlock()
	x.mu.Lock()
	c, old, closed := x.conn, x.key, x.closed
	x.valid = false
	x.mu.Unlock()
	if closed {
		return fmt.Errorf("shm: rekey a region that is %w", rdmaio.ErrClosed)
	}
	if c == nil {
		return nil // no server has ever known it
	}
	if err := x.rekey(ctx, c, old); err != nil {
		return fmt.Errorf("shm: rekey: %w", err)
	}
	return nil
}

func (x *exposed) rekey(ctx context.Context, c *conn, old uint32) error {
	if c.alive() {
		fresh, err := c.keys.Next()
		if err == nil {
			err = c.call(ctx, message{kind: kindRekey, rkey: old, fresh: fresh}, -1)
		}
		if err == nil {
			x.set(c, fresh, true)
			return nil
		}
		c.hangUp()
		if !errors.Is(err, rdmaio.ErrPeerGone) {
			return err
		}
	}
	return c.drain(ctx)
}

// Close withdraws the region and frees the memory.
func (x *exposed) Close() error {
	x.talk.Lock()
	defer x.talk.Unlock()
	x.mu.Lock()
	if x.closed {
		x.mu.Unlock()
		return nil
	}
	x.closed = true
	c, key, known := x.conn, x.key, x.valid
	x.mu.Unlock()
	x.t.mu.Lock()
	delete(x.t.regions, x)
	x.t.mu.Unlock()
	if c != nil && known && c.alive() {
		// The server's answer is not needed for our promise: what it still maps lives on
		// without us. A session that does not answer is given up by call.
		if err := c.call(context.Background(), message{kind: kindRevoke, rkey: key}, -1); err != nil {
			c.hangUp()
		}
	}
	return freeMemfd(x.mem, x.fd)
}

// newMemfd makes n bytes of zeroed memory that can be shared: the seals keep
// anybody from shrinking it under whoever maps it.
func newMemfd(n int, o TargetOptions) (mem []byte, fd int, err error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err = unix.MemfdCreate("s3rdma", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // kernels before 6.3
		fd, err = unix.MemfdCreate("s3rdma", flags)
	}
	if err != nil {
		return nil, -1, fmt.Errorf("memfd_create: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	page := unix.Getpagesize()
	if err := unix.Ftruncate(fd, (int64(n)+int64(page)-1)&^int64(page-1)); err != nil {
		return nil, -1, fmt.Errorf("size the memfd: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, -1, fmt.Errorf("seal the memfd: %w", err)
	}
	mem, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, -1, fmt.Errorf("map the memfd: %w", err)
	}
	if o.HugePages {
		unix.Madvise(mem, unix.MADV_HUGEPAGE) // advice: a kernel without them has none
	}
	if !o.Lazy {
		// Not by MAP_POPULATE, which would come before the advice.
		if err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE); err != nil { // kernels before 5.14
			for i := 0; i < len(mem); i += page {
				mem[i] = 0
			}
		}
	}
	return mem, fd, nil
}

func freeMemfd(mem []byte, fd int) error {
	err := unix.Munmap(mem)
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("shm: free %d bytes: %w", len(mem), err)
	}
	return nil
}
