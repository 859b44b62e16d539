// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package erasure

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// maxVec is the number of pieces given to the kernel at once. It is what x/sys
// converts without allocating, and four blocks of hash and shard.
const maxVec = 8

// File is a shard file on a local drive, read by preadv(2) straight to the
// pieces' places. It may be used from many goroutines; it must not be closed
// while a read is under way.
//
// A read of a local file cannot be interrupted: ctx is looked at between system
// calls. Where a drive that hangs must not hold up a request, wrap it by
// [Detach].
type File struct{ f *os.File }

var _ VectorSource = (*File)(nil)

// OpenFile opens the shard file name. Close it after the [Reader].
func OpenFile(name string) (*File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	return NewFile(f), nil
}

// NewFile makes a source of an open regular file, which it takes over. The file's
// own offset is neither used nor moved.
func NewFile(f *os.File) *File { return &File{f} }

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }

// ReadAt implements [Source].
func (f *File) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	n, err := f.f.ReadAt(p, off)
	if err == io.EOF && n > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// ReadVAt implements [VectorSource]. It allocates nothing.
func (f *File) ReadVAt(ctx context.Context, bufs [][]byte, off int64) (total int, err error) {
	defer runtime.KeepAlive(f.f)
	fd := int(f.f.Fd())
	for len(bufs) > 0 {
		if err := ctx.Err(); err != nil {
			return total, err
		}
		piece := bufs[:min(len(bufs), maxVec)]
		want := vecLen(piece)
		n, err := unix.Preadv(fd, piece, off)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return total, fmt.Errorf("preadv of %d bytes at %d: %w", want, off, err)
		}
		total += n
		off += int64(n)
		if n == want {
			bufs = bufs[len(piece):]
			continue
		}
		// A short read: the end of the file, or a signal. Fill the piece that was
		// cut, and go on behind it; pread says which it was.
		for n >= len(bufs[0]) {
			n -= len(bufs[0])
			bufs = bufs[1:]
		}
		m, err := f.ReadAt(ctx, bufs[0][n:], off)
		total += m
		off += int64(m)
		if err != nil {
			if err == io.EOF && total > 0 {
				err = io.ErrUnexpectedEOF
			}
			return total, err
		}
		bufs = bufs[1:]
	}
	return total, nil
}

// WriteVAt writes the pieces of v one after the other at byte off of f by
// pwritev(2): all of them, or an error. It allocates nothing.
func WriteVAt(f *os.File, v Vec, off int64) error {
	defer runtime.KeepAlive(f)
	fd := int(f.Fd())
	for len(v) > 0 {
		piece := v[:min(len(v), maxVec)]
		want := vecLen(piece)
		n, err := unix.Pwritev(fd, piece, off)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return fmt.Errorf("pwritev of %d bytes at %d: %w", want, off, err)
		}
		off += int64(n)
		if n == want {
			v = v[len(piece):]
			continue
		}
		for n >= len(v[0]) {
			n -= len(v[0])
			v = v[1:]
		}
		m, err := f.WriteAt(v[0][n:], off)
		if err != nil {
			return err
		}
		off += int64(m)
		v = v[1:]
	}
	return nil
}
