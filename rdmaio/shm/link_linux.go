// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/session"
)

// memory is a rdmaio.Region: a CPU copies from and to any mapped memory, so there
// is nothing to register.
type memory struct {
	f      *Fabric
	mem    []byte
	closed atomic.Bool
}

func (m *memory) Bytes() []byte { return m.mem }

func (m *memory) Close() error {
	m.closed.Store(true)
	return nil
}

// link copies in the calling goroutine: what a post has returned from has moved.
type link struct {
	f     *Fabric
	lease *session.Lease[*peer]
	r     *region
	key   uint32
	start uint64 // of the window, from the region's first byte
	size  uint64

	err    error // the first failure
	closed bool
}

func (l *link) Write(ctx context.Context, src rdmaio.Slice, at uint64) error {
	return l.post(ctx, src, at, true)
}

func (l *link) Read(ctx context.Context, dst rdmaio.Slice, at uint64) error {
	return l.post(ctx, dst, at, false)
}

func (l *link) post(ctx context.Context, s rdmaio.Slice, at uint64, write bool) error {
	verb := "read"
	if write {
		verb = "write"
	}
	if l.closed {
		return fmt.Errorf("shm: %s on a link that is %w", verb, rdmaio.ErrClosed)
	}
	if l.err != nil {
		return fmt.Errorf("shm: %s after an earlier failure: %w", verb, rdmaio.ErrLinkDown)
	}
	if err := l.copy(ctx, s, at, write); err != nil {
		l.err = fmt.Errorf("shm: %s %d bytes at %d of a window of %d: %w", verb, s.Len, at, l.size, err)
		return l.err
	}
	return nil
}

func (l *link) copy(ctx context.Context, s rdmaio.Slice, at uint64, write bool) error {
	local, err := l.local(s)
	if err != nil {
		return err
	}
	if err := rdmaio.CheckBounds(l.size, at, uint64(len(local))); err != nil {
		return err
	}
	need := rdmaio.RemoteRead
	if write {
		need = rdmaio.RemoteWrite
	}
	if l.r.access&need == 0 {
		return fmt.Errorf("the region does not allow this direction: %w", rdmaio.ErrStaleKey)
	}
	for off := l.start + at; ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(len(local), piece)
		if err := l.r.move(l.key, local[:n], off, write); err != nil {
			return err
		}
		local = local[n:]
		off += uint64(n)
		if len(local) == 0 {
			return nil
		}
	}
}

// local is the memory of s, if that lies inside a region of this fabric.
func (l *link) local(s rdmaio.Slice) ([]byte, error) {
	m, ok := s.Region.(*memory)
	if !ok || m.f != l.f {
		return nil, fmt.Errorf("the slice is not of a region of this fabric: %w", rdmaio.ErrUnsupported)
	}
	if m.closed.Load() {
		return nil, fmt.Errorf("the slice's region is %w", rdmaio.ErrClosed)
	}
	if s.Off < 0 || s.Len < 0 || s.Off > len(m.mem) || s.Len > len(m.mem)-s.Off {
		return nil, fmt.Errorf("slice of %d bytes at %d of a region of %d: %w", s.Len, s.Off, len(m.mem), rdmaio.ErrOutOfBounds)
	}
	return m.mem[s.Off : s.Off+s.Len], nil
}

// Fence has nothing to wait for.
func (l *link) Fence(context.Context) error {
	if l.closed {
		return fmt.Errorf("shm: fence a link that is %w", rdmaio.ErrClosed)
	}
	return l.err
}

func (l *link) Close() error {
	if !l.closed {
		l.closed = true
		l.lease.Release()
	}
	return nil
}
