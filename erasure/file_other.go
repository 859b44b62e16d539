// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package erasure

import (
	"context"
	"os"
)

// File is a shard file on a local drive. Outside Linux its pieces are read one by
// one.
type File struct {
	Source
	f *os.File
}

// OpenFile opens the shard file name. Close it after the [Reader].
func OpenFile(name string) (*File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	return NewFile(f), nil
}

// NewFile makes a source of an open regular file, which it takes over.
func NewFile(f *os.File) *File { return &File{FromReaderAt(f), f} }

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }

// ReadVAt implements [VectorSource].
func (f *File) ReadVAt(ctx context.Context, bufs [][]byte, off int64) (int, error) {
	return readEach(ctx, f, bufs, off)
}

// WriteVAt writes the pieces of v one after the other at byte off of f.
func WriteVAt(f *os.File, v Vec, off int64) error {
	for _, b := range v {
		if _, err := f.WriteAt(b, off); err != nil {
			return err
		}
		off += int64(len(b))
	}
	return nil
}
