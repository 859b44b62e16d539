// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package erasure

import (
	"context"
	"io"
)

// Source gives the bytes of one shard file. The memory that it is asked to fill
// is often registered for RDMA and written to a peer soon after, so the contract
// is strict where io.ReaderAt is not:
//
//   - ReadAt fills p from byte off of the file and returns len(p) and nil, or the
//     number of bytes that it filled from the start of p, and why no more came:
//     io.EOF or io.ErrUnexpectedEOF at the end of the file, an error that is
//     [ErrMissing] or fs.ErrNotExist when there is no file.
//   - When ReadAt has returned, nothing writes to p any more. Not a helper
//     goroutine, not a request that was given up, not a device.
//   - ReadAt returns soon after ctx is done. A [Reader] waits for every read that
//     it has started, so a source that cannot be interrupted holds it up; [Detach]
//     makes an interruptible one of any other, for the price of a copy.
//
// A Reader asks a source for one thing at a time, at rising offsets. A source
// that is given to several Readers must allow calls from several goroutines.
type Source interface {
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
}

// VectorSource is a [Source] that can fill several pieces of memory by one read,
// as preadv(2) does. A Reader uses it to put a run of shard blocks in place with
// one call: hashes, shards and padding each land where they belong.
type VectorSource interface {
	Source

	// ReadVAt fills bufs one after the other from byte off of the file, as
	// ReadAt would fill their concatenation. It neither changes nor keeps bufs.
	ReadVAt(ctx context.Context, bufs [][]byte, off int64) (int, error)
}

// Allocator lends scratch memory: for parity shards, and for shards of which only
// a part is wanted. The memory need not be registered, nor zero, nor aligned
// (64-byte alignment makes rebuilding a little faster). Both methods may be
// called from several goroutines.
type Allocator interface {
	// Alloc returns n bytes that are the caller's until Free.
	Alloc(n int) ([]byte, error)
	// Free takes back a slice that Alloc returned, with its length unchanged.
	Free(p []byte)
}

// heap is the Allocator of those who bring none.
type heap struct{}

func (heap) Alloc(n int) ([]byte, error) { return make([]byte, n), nil }
func (heap) Free([]byte)                 {}

// FromReaderAt makes a [Source] of an io.ReaderAt that does not write to its
// buffer after it has returned. ctx is looked at before each read only. Without
// [VectorSource] the pieces of a run are read one by one.
func FromReaderAt(r io.ReaderAt) Source { return readerAt{r} }

type readerAt struct{ r io.ReaderAt }

func (s readerAt) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	n, err := s.r.ReadAt(p, off)
	if n == len(p) {
		err = nil // an io.ReaderAt may report io.EOF together with the last bytes
	}
	return n, err
}

// Bytes is a shard file in memory, as MinIO keeps the shards of small objects
// inside the metadata. The slice must not change while it is in use.
type Bytes []byte

var _ VectorSource = Bytes(nil)

// ReadAt implements [Source]. It never waits and does not look at ctx.
func (s Bytes) ReadAt(_ context.Context, p []byte, off int64) (int, error) {
	if off < 0 || off >= int64(len(s)) {
		return 0, io.EOF
	}
	n := copy(p, s[off:])
	if n < len(p) {
		return n, io.ErrUnexpectedEOF
	}
	return n, nil
}

// ReadVAt implements [VectorSource].
func (s Bytes) ReadVAt(ctx context.Context, bufs [][]byte, off int64) (total int, err error) {
	for _, b := range bufs {
		n, err := s.ReadAt(ctx, b, off)
		total += n
		off += int64(n)
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// readEach fills bufs by one ReadAt each.
func readEach(ctx context.Context, s Source, bufs [][]byte, off int64) (total int, err error) {
	for _, b := range bufs {
		n, err := s.ReadAt(ctx, b, off)
		total += n
		off += int64(n)
		if n < len(b) {
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
			return total, err
		}
	}
	return total, nil
}

func vecLen(bufs [][]byte) (n int) {
	for _, b := range bufs {
		n += len(b)
	}
	return n
}
