// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package erasure

import (
	"fmt"
	"sync"

	"github.com/klauspost/reedsolomon"
	"github.com/minio/highwayhash"
)

// Key is the key of the HighwayHash-256 before each shard block. It is no secret:
// it makes the hash a checksum.
type Key [32]byte

// MinIOKey is the key of MinIO's bitrot algorithm "highwayhash256S", a fact of its
// on-disk format: the HighwayHash-256, under a key of 32 zero bytes, of the first
// 100 decimals of pi in ASCII ("14159...0679").
func MinIOKey() Key {
	return Key{
		0x4b, 0xe7, 0x34, 0xfa, 0x8e, 0x23, 0x8a, 0xcd, 0x26, 0x3e, 0x83, 0xe6, 0xbb, 0x96, 0x85, 0x52,
		0x04, 0x0f, 0x93, 0x5d, 0xa3, 0x9f, 0x44, 0x14, 0x97, 0xe0, 0x9d, 0x13, 0x22, 0xde, 0x36, 0xa0,
	}
}

// Code is a geometry with all that is computed once for it: the coding matrix,
// and the inverses for the losses met so far. Make one for each geometry and key,
// and keep it: it may be used by any number of readers and encoders at once.
//
// The code is systematic Reed-Solomon over GF(2^8) with the polynomial 0x11d and
// the Vandermonde matrix whose top square is brought to the identity: the one of
// github.com/klauspost/reedsolomon, and so of MinIO.
type Code struct {
	g   Geometry
	key Key
	enc reedsolomon.Encoder // nil without parity

	mu       sync.RWMutex
	decoders map[loss]reedsolomon.Encoder
}

// maxDecoders bounds the memory that ever changing losses can take.
const maxDecoders = 256

// shardSet is a set of shard numbers.
type shardSet [MaxShards / 64]uint64

func (s *shardSet) add(i int)      { s[i/64] |= 1 << (i % 64) }
func (s *shardSet) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }

// loss names one way to rebuild: which shards are read, which are wanted.
type loss struct{ from, want shardSet }

// NewCode returns the code of geometry g, with hashes under key. The error is
// [ErrGeometry].
func NewCode(g Geometry, key Key) (*Code, error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	c := &Code{g: g, key: key, decoders: make(map[loss]reedsolomon.Encoder)}
	if g.Parity > 0 {
		var err error
		if c.enc, err = reedsolomon.New(g.Data, g.Parity, inline(g.Data, g.Parity)...); err != nil {
			return nil, fmt.Errorf("%w: %v: %w", ErrGeometry, g, err)
		}
	}
	return c, nil
}

// Geometry is the geometry that the code was made with.
func (c *Code) Geometry() Geometry { return c.g }

// inline keeps the coding on the goroutine that asks for it: the readers and the
// pipelines around them are what runs in parallel. Up to ten inputs and outputs are
// one pass of the library's kernels, for which one call for all columns allocates
// least; with more its own division into columns that fit the cache is twice as
// fast.
func inline(in, out int) []reedsolomon.Option {
	opts := []reedsolomon.Option{reedsolomon.WithMaxGoroutines(1)}
	if in <= 10 && out <= 10 {
		opts = append(opts, reedsolomon.WithMinSplitSize(MaxBlockSize))
	}
	return opts
}

// decoder returns what computes the shards want from the Data shards from, both
// in rising order: Encode takes the former after the latter.
func (c *Code) decoder(from, want []int) (reedsolomon.Encoder, error) {
	var l loss
	for _, i := range from {
		l.from.add(i)
	}
	for _, i := range want {
		l.want.add(i)
	}
	c.mu.RLock()
	d := c.decoders[l]
	c.mu.RUnlock()
	if d != nil {
		return d, nil
	}
	d, err := c.newDecoder(from, want)
	if err != nil {
		return nil, fmt.Errorf("erasure: rebuild shards %v from %v of %v: %w", want, from, c.g, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.decoders) >= maxDecoders {
		clear(c.decoders)
	}
	c.decoders[l] = d
	return d, nil
}

// newDecoder finds the rows of the decoding matrix by rebuilding from unit
// vectors: what a wanted shard becomes when one shard is 1 and the others are 0
// is its coefficient. A code whose parity is these rows then rebuilds as fast as
// it encodes, without the library's search for what is missing in every call.
func (c *Code) newDecoder(from, want []int) (reedsolomon.Encoder, error) {
	rows := make([][]byte, len(want))
	for r := range rows {
		rows[r] = make([]byte, len(from))
	}
	for col, unit := range from {
		shards := make([][]byte, c.g.Shards())
		for _, i := range from {
			shards[i] = []byte{0}
		}
		shards[unit][0] = 1
		if err := c.enc.ReconstructData(shards); err != nil {
			return nil, err
		}
		for r, i := range want {
			rows[r][col] = shards[i][0]
		}
	}
	return reedsolomon.New(len(from), len(want), append(inline(len(from), len(want)), reedsolomon.WithCustomMatrix(rows))...)
}

// hasher sums shard blocks under the code's key. It belongs to one goroutine.
type hasher struct {
	key [32]byte
	sum [HashSize]byte
	d   interface {
		Reset()
		Write([]byte) (int, error)
		Sum([]byte) []byte
	}
}

// of returns the hash of a followed by b. The result is valid until the next call.
func (h *hasher) of(a, b []byte) *[HashSize]byte {
	if len(b) == 0 {
		h.sum = highwayhash.Sum(a, h.key[:])
		return &h.sum
	}
	if h.d == nil {
		h.d, _ = highwayhash.New(h.key[:]) // fails for another key length only
	}
	h.d.Reset()
	h.d.Write(a)
	h.d.Write(b)
	h.d.Sum(h.sum[:0])
	return &h.sum
}
