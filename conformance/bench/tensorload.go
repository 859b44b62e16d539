// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/s3rdma/s3rdma/conformance/tensors"
)

const (
	// tensorAlign is what tensors are aligned to: a cache line, and the widest vector.
	tensorAlign = 64
	// tensorRead is the most that one request reads.
	tensorRead = 64 * mib
	// headerGuess is how much is read at first, in the hope that it is the header. It is
	// a multiple of a page.
	headerGuess = 64 * kib
	// tensorSpare is what a worker's memory has beyond the file's size: for the header,
	// and for gaps between tensors.
	tensorSpare = mib
	// bounceSize is that of the buffer between HTTP's payload and a tensor.
	bounceSize = mib
)

// tensorMover is a mover that loads tensors.
type tensorMover interface {
	mover
	// load reads a safetensors file to aligned tensors in the worker's memory, which
	// must have tensorSpare more than the file. The views are valid until the memory is
	// used again.
	load(ctx context.Context, worker int, key string) ([]tensors.View, error)
}

// rangedRead reads up to n bytes of an object from byte from to the memory at at. etag is
// what the object must have, "" for any. It returns how many bytes there were, and what
// the object is.
type rangedRead func(ctx context.Context, from, n, at int64, etag string) (got int64, o objectIs, err error)

type objectIs struct {
	size int64
	etag string
}

// loadTensors loads a file by ranged reads into memory: the header, and then what the
// placement says, all of one version of the file. It does the same, whatever the way.
func loadTensors(ctx context.Context, memory []byte, read rangedRead) ([]tensors.View, error) {
	// The header goes to the memory's end, where no tensor will be.
	end := int64(len(memory))
	at := end - headerGuess
	if at < 0 {
		return nil, fmt.Errorf("load tensors: %d bytes of memory", end)
	}
	got, file, err := read(ctx, 0, headerGuess, at, "")
	if err != nil {
		return nil, err
	}
	n, err := tensors.HeaderLen(memory[at:at+got], file.size)
	if err != nil {
		return nil, err
	}
	if n += tensors.LenBytes; n > got {
		if at = end - n; at < 0 {
			return nil, fmt.Errorf("load tensors: a header of %d bytes, %d of memory", n, end)
		}
		if got, _, err = read(ctx, 0, n, at, file.etag); err != nil {
			return nil, err
		}
	}
	h, err := tensors.Parse(memory[at+tensors.LenBytes:at+n], file.size)
	if err != nil {
		return nil, err
	}
	p, err := h.Place(tensorAlign, tensorRead)
	if err != nil {
		return nil, err
	}
	if p.Bytes > end {
		return nil, fmt.Errorf("load tensors: they take %d bytes, there are %d", p.Bytes, end)
	}
	for _, r := range p.Reads {
		got, _, err := read(ctx, r.From, r.Len, r.At, file.etag)
		if err != nil {
			return nil, err
		}
		if got != r.Len {
			return nil, fmt.Errorf("load tensors: %d bytes from byte %d, want %d", got, r.From, r.Len)
		}
	}
	return h.Views(memory, p), nil
}

// wrongTensor names a tensor that is not aligned, or not as in the file; "" if all are.
// The file is one of this package's own, so there is at least one.
func wrongTensor(views []tensors.View, file []byte) string {
	n, err := tensors.HeaderLen(file, int64(len(file)))
	if err != nil {
		return err.Error()
	}
	data := file[tensors.LenBytes+n:]
	if len(views) == 0 {
		return "none"
	}
	for _, v := range views {
		if string(v.Bytes) != string(data[v.Begin:v.End]) {
			return v.Name
		}
		if uintptr(unsafe.Pointer(unsafe.SliceData(v.Bytes)))%tensorAlign != 0 {
			return v.Name + " (not aligned)"
		}
	}
	return ""
}
