// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tensors

import (
	"fmt"
	"math"
	"math/bits"
)

// Read is a range of the file and where it goes in memory.
type Read struct {
	// From is the first byte in the file, Len their number, more than 0.
	From, Len int64
	// At is the place in memory.
	At int64
}

// Placement is where a file's tensors lie in memory.
type Placement struct {
	// Reads fill the memory. They are disjoint, may be done in any order or at once,
	// and leave gaps where tensors would else not be aligned.
	Reads []Read
	// At is the place of each of Header.Tensors.
	At []int64
	// Bytes is how much memory it takes.
	Bytes int64
}

// View is a tensor in memory, not copied.
type View struct {
	Tensor
	// Bytes are the elements, row by row. They belong to whoever owns the memory.
	Bytes []byte
}

// Place lays the tensors out in memory so that each begins at a multiple of align (a
// power of two) from the memory's start, in reads of at most most bytes each.
func (h *Header) Place(align, most int64) (Placement, error) {
	if align < 1 || bits.OnesCount64(uint64(align)) != 1 || align > 1<<30 || most < 1 {
		return Placement{}, fmt.Errorf("place tensors: alignment %d, reads of %d bytes: want a power of two and at least 1", align, most)
	}
	var p Placement
	var run Read // of tensors that follow one another in the file and in memory
	flush := func() {
		for run.Len > 0 {
			n := min(run.Len, most)
			p.Reads = append(p.Reads, Read{From: run.From, Len: n, At: run.At})
			run = Read{From: run.From + n, Len: run.Len - n, At: run.At + n}
		}
	}
	for _, t := range h.Tensors {
		n := t.End - t.Begin
		if at := run.At + run.Len; run.Len > 0 && at%align == 0 {
			p.At = append(p.At, at)
			run.Len += n
		} else {
			flush()
			if p.Bytes > math.MaxInt64-align-n {
				return Placement{}, fmt.Errorf("place tensors: %w: too large", ErrFormat)
			}
			at := (p.Bytes + align - 1) &^ (align - 1)
			p.At = append(p.At, at)
			run = Read{From: h.Data + t.Begin, Len: n, At: at}
		}
		p.Bytes = run.At + run.Len
	}
	flush()
	return p, nil
}

// Views are the tensors in memory in which p's reads have been done. memory must have at
// least p.Bytes.
func (h *Header) Views(memory []byte, p Placement) []View {
	views := make([]View, len(h.Tensors))
	for i, t := range h.Tensors {
		end := p.At[i] + t.End - t.Begin
		views[i] = View{Tensor: t, Bytes: memory[p.At[i]:end:end]}
	}
	return views
}
