// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package erasure

import (
	"errors"
	"fmt"
)

// ErrScratch reports scratch memory that is too small for the call.
var ErrScratch = errors.New("erasure: scratch memory too small")

// Vec is a piece of a shard file as it lies in memory: pieces to be written one
// after the other.
type Vec [][]byte

// Len is the number of bytes.
func (v Vec) Len() int { return vecLen(v) }

// CopyAt copies bytes of v from byte off on to p and returns how many: less than
// len(p) only at the end of v. It is for writers that need the bytes in memory of
// their own, such as the aligned buffers of O_DIRECT.
func (v Vec) CopyAt(p []byte, off int) (n int) {
	for _, b := range v {
		if off >= len(b) {
			off -= len(b)
			continue
		}
		m := copy(p[n:], b[off:])
		n, off = n+m, 0
		if n == len(p) {
			break
		}
	}
	return n
}

// Encoder turns the bytes of a part into shard files, stripe by stripe. The data is
// neither copied nor changed: data shards are pieces of it. Make it by
// [Code.NewEncoder]; it holds no memory but small tables and needs no closing.
//
// # Ownership
//
// The slices of [Encoder.Shard] point into the data and the scratch memory of the
// last Encode. Both must stay as they are until they are written; give another
// scratch to the next Encode if that is before. The Encoder itself touches them
// within Encode only.
//
// # Concurrency
//
// An Encoder belongs to one goroutine at a time. To encode several stripes of one
// part at once, use an Encoder for each: nothing carries over from stripe to
// stripe but the check that only the last one ends in a short block.
type Encoder struct {
	code  *Code
	ended bool // a short block was the last
	hash  hasher
	vecs  []Vec
	zeros []byte // padding
	cells [][]byte
}

// NewEncoder returns an Encoder for one part.
func (c *Code) NewEncoder() *Encoder {
	return &Encoder{
		code:  c,
		hash:  hasher{key: c.key},
		vecs:  make([]Vec, c.g.Shards()),
		zeros: make([]byte, c.g.Data),
		cells: make([][]byte, 0, c.g.Shards()),
	}
}

// ScratchSize is the number of bytes of scratch memory that Encode needs for n
// bytes of data: the parity, and the hashes of all shards.
func (c *Code) ScratchSize(n int) int {
	blocks, full, last := c.split(n)
	size := blocks * HashSize * c.g.Data
	return size + c.g.Parity*(blocks*HashSize+full*c.g.ShardSize()+last)
}

// split says how many blocks n bytes of data are, how many of them are full, and
// how long the shards of the last one are if it is not.
func (c *Code) split(n int) (blocks, full, last int) {
	full = n / int(c.g.BlockSize)
	blocks, last = full, ceilDiv(n%int(c.g.BlockSize), c.g.Data)
	if last > 0 {
		blocks++
	}
	return blocks, full, last
}

// Reset prepares for another part. It drops all references to the data and the
// scratch memory, so call it before these are unmapped.
func (e *Encoder) Reset() {
	e.ended = false
	for i, v := range e.vecs {
		clear(v[:cap(v)])
		e.vecs[i] = v[:0]
	}
	clear(e.cells[:cap(e.cells)])
}

// Encode codes the next len(data) bytes of the part: any number of full blocks,
// and in the last call of a part a shorter one behind them. scratch is at least
// [Code.ScratchSize] bytes that do not overlap data; it need not be zero, and is
// best aligned to 64 bytes. The shards are then given by [Encoder.Shard].
//
// The error is [ErrScratch], or [ErrRange] for data behind a short block. Nothing
// is allocated once the tables have grown to the number of blocks.
func (e *Encoder) Encode(data, scratch []byte) error {
	g := e.code.g
	if need := e.code.ScratchSize(len(data)); len(scratch) < need {
		return fmt.Errorf("%w: %d bytes for the parity and hashes of %d in %v, need %d",
			ErrScratch, len(scratch), len(data), g, need)
	}
	if e.ended && len(data) > 0 {
		return fmt.Errorf("%w: %d bytes behind a block shorter than %d", ErrRange, len(data), g.BlockSize)
	}
	blocks, full, last := e.code.split(len(data))
	e.ended = e.ended || last > 0
	for i := range e.vecs {
		e.vecs[i] = e.vecs[i][:0]
	}
	// Parity first: there each shard file is whole, hashes and shards in turn, and
	// goes out as one piece. Then the hashes of the data shards.
	file := blocks*HashSize + full*g.ShardSize() + last
	sums := scratch[g.Parity*file:]
	for j := range g.Parity {
		if file > 0 {
			e.vecs[g.Data+j] = append(e.vecs[g.Data+j], scratch[j*file:(j+1)*file:(j+1)*file])
		}
	}
	for at := 0; at < file; {
		block := data[:min(len(data), int(g.BlockSize))]
		data = data[len(block):]
		n := ceilDiv(len(block), g.Data)
		if err := e.parity(block, n, scratch, file, at); err != nil {
			return err
		}
		for i := range g.Data {
			cell, pad := e.data(block, n, i)
			sum := sums[:HashSize:HashSize]
			sums = sums[HashSize:]
			copy(sum, e.hash.of(cell, pad)[:])
			e.vecs[i] = append(e.vecs[i], sum)
			if len(cell) > 0 {
				e.vecs[i] = append(e.vecs[i], cell)
			}
			if len(pad) > 0 {
				e.vecs[i] = append(e.vecs[i], pad)
			}
		}
		for j := range g.Parity {
			cell := scratch[j*file+at:][:HashSize+n]
			copy(cell, e.hash.of(cell[HashSize:], nil)[:])
		}
		at += HashSize + n
	}
	return nil
}

// data is data shard i of a block with shards of n bytes: object bytes, then
// padding.
func (e *Encoder) data(block []byte, n, i int) (cell, pad []byte) {
	from, to := min(i*n, len(block)), min((i+1)*n, len(block))
	return block[from:to:to], e.zeros[:n-(to-from)]
}

// parity computes the parity of one block, in up to two sets of columns: before
// and behind the place where the data ends within a shard.
func (e *Encoder) parity(block []byte, n int, scratch []byte, file, at int) error {
	g := e.code.g
	if g.Parity == 0 {
		return nil
	}
	cut := n
	if rest := len(block) % n; rest > 0 {
		cut = rest
	}
	for lo := 0; lo < n; {
		hi := cut
		if lo == cut {
			hi = n
		}
		e.cells = e.cells[:0]
		for i := range g.Data {
			cell, pad := e.data(block, n, i)
			if hi <= len(cell) {
				e.cells = append(e.cells, cell[lo:hi:hi])
			} else {
				e.cells = append(e.cells, pad[:hi-lo])
			}
		}
		for j := range g.Parity {
			cell := scratch[j*file+at+HashSize:][:n:n]
			e.cells = append(e.cells, cell[lo:hi:hi])
		}
		if err := e.code.enc.Encode(e.cells); err != nil {
			return fmt.Errorf("erasure: parity of a block of %d bytes: %w", len(block), err)
		}
		lo = hi
	}
	return nil
}

// Shard is what the last Encode adds to the file of shard i (data first): hash,
// shard, hash, shard, and so on. All shards are of equal length. The result is
// valid until the next Encode or Reset, and empty if there was no data. See
// [WriteVAt] and [Vec.CopyAt] for two ways to write it.
func (e *Encoder) Shard(i int) Vec { return e.vecs[i] }
