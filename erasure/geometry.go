// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package erasure

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
)

const (
	// HashSize is the length in bytes of the HighwayHash-256 that stands before
	// every shard block in a shard file.
	HashSize = 32

	// MaxShards is the largest number of data and parity shards together that
	// GF(2^8) can tell apart.
	MaxShards = 256

	// MaxBlockSize bounds the block size that metadata may claim, and with it
	// the memory that a reader takes for one block. MinIO writes 1 MiB blocks,
	// and wrote 10 MiB in its first format.
	MaxBlockSize = 64 << 20
)

var (
	// ErrGeometry reports a geometry or a part size that cannot exist, as
	// damaged or hostile metadata can claim it.
	ErrGeometry = errors.New("erasure: impossible geometry")

	// ErrRange reports a range that does not lie inside the part.
	ErrRange = errors.New("erasure: range outside the part")
)

// Geometry says how a part is cut: into blocks of BlockSize bytes, each block
// into Data shards of equal length (the last bytes zero where the block does not
// divide), with Parity shards computed over them. It comes from metadata: nothing
// in it is trusted before [Geometry.Validate].
type Geometry struct {
	Data      int   // data shards, 1 or more ("k")
	Parity    int   // parity shards, 0 or more ("m")
	BlockSize int64 // bytes of object data in a full block
}

// Validate returns an error that is [ErrGeometry] unless 1 <= Data, 0 <= Parity,
// Data+Parity <= [MaxShards] and 1 <= BlockSize <= [MaxBlockSize].
func (g Geometry) Validate() error {
	switch {
	case g.Data < 1 || g.Data > MaxShards:
		return fmt.Errorf("%w: %d data shards, want 1 to %d", ErrGeometry, g.Data, MaxShards)
	case g.Parity < 0 || g.Parity > MaxShards-g.Data:
		return fmt.Errorf("%w: %d parity shards beside %d data shards, want 0 to %d",
			ErrGeometry, g.Parity, g.Data, MaxShards-g.Data)
	case g.BlockSize < 1 || g.BlockSize > MaxBlockSize:
		return fmt.Errorf("%w: block size %d, want 1 to %d", ErrGeometry, g.BlockSize, MaxBlockSize)
	}
	return nil
}

// String is the geometry as people write it, such as "12+4".
func (g Geometry) String() string { return fmt.Sprintf("%d+%d", g.Data, g.Parity) }

// Shards is the number of shards, data and parity.
func (g Geometry) Shards() int { return g.Data + g.Parity }

// ShardSize is the length in bytes of a shard of a full block: BlockSize divided
// by Data, rounded up.
func (g Geometry) ShardSize() int { return ceilDiv(int(g.BlockSize), g.Data) }

// Part is the layout of one part of an object: where each of its bytes lies, and
// what a shard file holds. It is a small value, made by [Geometry.Part] only, and
// may be used from many goroutines.
//
// A shard file is, for each block in turn, [HashSize] bytes of hash and then the
// block's shard. All blocks but the last have BlockSize bytes. An empty part has
// no blocks and empty shard files.
type Part struct {
	g        Geometry
	size     int64
	blocks   int64
	fileSize int64
}

// Part returns the layout of a part of size bytes. The error is [ErrGeometry] if
// the geometry is not valid, the size negative, or a shard file would be longer
// than an int64 can say.
func (g Geometry) Part(size int64) (Part, error) {
	if err := g.Validate(); err != nil {
		return Part{}, err
	}
	if size < 0 {
		return Part{}, fmt.Errorf("%w: part size %d is negative", ErrGeometry, size)
	}
	p := Part{g: g, size: size}
	full := size / g.BlockSize
	rest := int(size % g.BlockSize)
	p.blocks = full
	hi, lo := bits.Mul64(uint64(full), uint64(g.ShardSize())+HashSize)
	if rest > 0 {
		p.blocks++
		var carry uint64
		lo, carry = bits.Add64(lo, uint64(ceilDiv(rest, g.Data))+HashSize, 0)
		hi += carry
	}
	if hi != 0 || lo > math.MaxInt64 {
		return Part{}, fmt.Errorf("%w: shard file of a part of %d bytes in %v with blocks of %d overflows",
			ErrGeometry, size, g, g.BlockSize)
	}
	p.fileSize = int64(lo)
	return p, nil
}

// Geometry is the geometry that the part was made with.
func (p Part) Geometry() Geometry { return p.g }

// Size is the number of object bytes in the part.
func (p Part) Size() int64 { return p.size }

// Blocks is the number of blocks, 0 for an empty part.
func (p Part) Blocks() int64 { return p.blocks }

// FileSize is the length in bytes of every shard file of the part, hashes
// included. It is the same for data and parity shards.
func (p Part) FileSize() int64 { return p.fileSize }

// BlockLen is the number of object bytes in block b, with 0 <= b < Blocks.
func (p Part) BlockLen(b int64) int {
	if b == p.blocks-1 {
		return int(p.size - b*p.g.BlockSize)
	}
	return int(p.g.BlockSize)
}

// ShardLen is the length in bytes of each shard of block b, padding included and
// hash not, with 0 <= b < Blocks.
func (p Part) ShardLen(b int64) int { return ceilDiv(p.BlockLen(b), p.g.Data) }

// DataLen is how many of the [Part.ShardLen] bytes of data shard i of block b are
// object bytes; the zeros that follow are padding. In a block shorter than the
// number of data shards the last ones are all padding.
func (p Part) DataLen(b int64, i int) int {
	n := p.ShardLen(b)
	return min(max(p.BlockLen(b)-i*n, 0), n)
}

// FileOffset is where block b begins in a shard file: the offset of its hash. Its
// shard begins [HashSize] bytes further on. For b == Blocks it is [Part.FileSize].
func (p Part) FileOffset(b int64) int64 {
	if b >= p.blocks {
		return p.fileSize
	}
	return b * int64(p.g.ShardSize()+HashSize)
}

// Location names one object byte: byte Offset of data shard Shard of block Block.
type Location struct {
	Block  int64
	Shard  int
	Offset int
}

// Locate says where byte x of the part lies. The error is [ErrRange] unless
// 0 <= x < Size.
func (p Part) Locate(x int64) (Location, error) {
	if x < 0 || x >= p.size {
		return Location{}, fmt.Errorf("%w: byte %d of %d", ErrRange, x, p.size)
	}
	b := x / p.g.BlockSize
	in, n := int(x%p.g.BlockSize), p.ShardLen(b)
	return Location{Block: b, Shard: in / n, Offset: in % n}, nil
}

// Span is what a range of a part needs from the shard files. Hashes cover whole
// shard blocks, so that is what is read, for however few bytes of it.
type Span struct {
	// First and End are the blocks that the range touches: First <= b < End.
	First, End int64
	// Offset and Length are the bytes of a shard file that hold those blocks.
	Offset, Length int64
	// Skip is how many bytes of the first block come before the range, Trim how
	// many of the last block come after it.
	Skip, Trim int
}

// Span says what the range [off, off+n) needs from each shard file that is read.
// The error is [ErrRange] unless 0 <= off, 0 <= n and off+n <= Size; an empty
// range needs nothing.
func (p Part) Span(off, n int64) (Span, error) {
	if off < 0 || n < 0 || off > p.size || n > p.size-off {
		return Span{}, fmt.Errorf("%w: %d bytes at %d of %d", ErrRange, n, off, p.size)
	}
	b := off / p.g.BlockSize
	if n == 0 {
		return Span{First: b, End: b, Offset: p.FileOffset(b)}, nil
	}
	last := (off + n - 1) / p.g.BlockSize
	s := Span{First: b, End: last + 1, Offset: p.FileOffset(b)}
	s.Length = p.FileOffset(s.End) - s.Offset
	s.Skip = int(off - b*p.g.BlockSize)
	s.Trim = int(last*p.g.BlockSize + int64(p.BlockLen(last)) - (off + n))
	return s, nil
}

func ceilDiv(a, b int) int { return a/b + min(a%b, 1) }
