// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"encoding/base64"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// The bounds of block-wise checksums.
const (
	// MinBlock and MaxBlock bound the block size that can be asked for, in bytes.
	MinBlock = 4 << 10
	MaxBlock = 4 << 30

	// MaxListBytes bounds a list's checksums before base64, so that the header that
	// carries them has at most 4096 characters: proxies and servers bound all headers
	// together to 8 KiB or more. It is room for 768 values of 32 bits or 384 of 64,
	// which is a block of 8 or 16 MiB in the largest window.
	MaxListBytes = 3072
)

// List is the block-wise form of a checksum: one for each block of Block bytes, of
// which the last may be shorter. A receiver can verify blocks in parallel, or only
// those that it uses, and tell which one is damaged. The algorithm is a CRC, so that
// the checksum of the whole follows from the list ([List.Whole]).
type List struct {
	// Block is the size of a block in bytes, Bytes that of the whole region.
	Block, Bytes int64
	// Sums has one entry a block, none for an empty region.
	Sums []Sum
}

// ListLen is the number of blocks of a region of n bytes.
func ListLen(n, block int64) int64 {
	count := n / block
	if n%block != 0 {
		count++
	}
	return count
}

// maxSums is how many checksums of alg a list can have; it is even.
func maxSums(alg Algorithm) int { return MaxListBytes / alg.Size() }

// checkBlock refuses what cannot be done block by block.
func checkBlock(alg Algorithm, block int64) error {
	if !alg.Combinable() {
		return fmt.Errorf("block-wise checksums need a CRC, not %v: %w", alg, ErrUnknownAlgorithm)
	}
	if block < MinBlock || block > MaxBlock {
		return fmt.Errorf("%w: block size %d is not %d to %d", ErrMalformed, block, MinBlock, MaxBlock)
	}
	return nil
}

// ParseList reads a list of a region of n bytes from its text form, see
// [List.Text]. The errors wrap ErrMalformed, or ErrUnknownAlgorithm for one that is
// no CRC.
func ParseList(alg Algorithm, block, n int64, text string) (List, error) {
	// A merged block may be larger than what could be asked for.
	if err := checkBlock(alg, min(block, MaxBlock)); err != nil {
		return List{}, err
	}
	count, size := ListLen(n, block), int64(alg.Size())
	if n < 0 || count > int64(maxSums(alg)) {
		return List{}, fmt.Errorf("%w: a list of %d blocks, want at most %d", ErrMalformed, count, maxSums(alg))
	}
	if want := base64.StdEncoding.EncodedLen(int(count * size)); len(text) != want {
		return List{}, fmt.Errorf("%w: the list of %d blocks of %v has %d characters, not %d", ErrMalformed, count, alg, len(text), want)
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || int64(len(raw)) != count*size {
		return List{}, fmt.Errorf("%w: the list is not base64 of %d checksums of %v", ErrMalformed, count, alg)
	}
	l := List{Block: block, Bytes: n, Sums: make([]Sum, count)}
	for i := range l.Sums {
		l.Sums[i].alg = alg
		copy(l.Sums[i].raw[:], raw[int64(i)*size:][:size])
	}
	return l, nil
}

// Text is the list as a header carries it: padded standard base64 of all checksums
// one after the other, each with its most significant byte first.
func (l List) Text() string {
	raw := make([]byte, 0, MaxListBytes)
	for _, s := range l.Sums {
		raw = s.Append(raw)
	}
	return base64.StdEncoding.EncodeToString(raw)
}

// Span returns where block i lies in the region.
func (l List) Span(i int) (off, n int64) {
	off = int64(i) * l.Block
	return off, min(l.Block, l.Bytes-off)
}

// Whole returns the checksum of the region, put together from those of the blocks;
// the zero Sum for an empty list.
func (l List) Whole() Sum {
	if len(l.Sums) == 0 {
		return Sum{}
	}
	whole := l.Sums[0]
	for i, s := range l.Sums[1:] {
		_, n := l.Span(i + 1)
		whole, _ = Combine(whole, s, n) // one algorithm, a CRC, no empty block
	}
	return whole
}

// BlockError tells which block of a region is damaged.
type BlockError struct {
	// Index is the first damaged block, Offset and Length where it lies in the
	// region, in bytes. Damaged is how many blocks are, and Blocks how many there are.
	Index           int
	Offset, Length  int64
	Damaged, Blocks int
	// Want was declared for it, Got was computed.
	Want, Got Sum
}

// Error names the block.
func (e *BlockError) Error() string {
	return fmt.Sprintf("%v: block %d of %d (bytes %d to %d): %v: want %s, got %s; damaged blocks: %d",
		ErrMismatch, e.Index, e.Blocks, e.Offset, e.Offset+e.Length-1, e.Want.alg, e.Want.Base64(), e.Got.Base64(), e.Damaged)
}

// Is reports whether target is [ErrMismatch].
func (e *BlockError) Is(target error) bool { return target == ErrMismatch }

// VerifyBlock compares p, the bytes of block i, with the list. The error is a
// [*BlockError], or ErrMalformed if p has another length than the block.
func (l List) VerifyBlock(i int, p []byte) error {
	off, n := l.Span(i)
	if int64(len(p)) != n {
		return fmt.Errorf("%w: %d bytes for block %d, which has %d", ErrMalformed, len(p), i, n)
	}
	if got := Of(l.Sums[i].alg, p); got != l.Sums[i] {
		return &BlockError{Index: i, Offset: off, Length: n, Damaged: 1, Blocks: len(l.Sums), Want: l.Sums[i], Got: got}
	}
	return nil
}

// Verify compares all of p, the region, with the list, by as many goroutines as
// there are processors. The error is a [*BlockError] about the first damaged block,
// or ErrMalformed if p has another length than the region.
func (l List) Verify(p []byte) error {
	if int64(len(p)) != l.Bytes {
		return fmt.Errorf("%w: %d bytes for a list over %d", ErrMalformed, len(p), l.Bytes)
	}
	var (
		mu    sync.Mutex
		first *BlockError
		count int
	)
	inParallel(len(l.Sums), func(i int) {
		off, n := l.Span(i)
		var bad *BlockError
		if !errors.As(l.VerifyBlock(i, p[off:off+n]), &bad) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		count++
		if first == nil || bad.Index < first.Index {
			first = bad
		}
	})
	if first == nil {
		return nil
	}
	first.Damaged = count
	return first
}

// Compare tells how got, a list over bytes that arrived, differs from l: nil if it
// does not, else a [*BlockError] about the first block. Both must be of one
// algorithm, block size and length, else the error is ErrMalformed.
func (l List) Compare(got List) error {
	if l.Block != got.Block || l.Bytes != got.Bytes || len(l.Sums) != len(got.Sums) {
		return fmt.Errorf("%w: a list of blocks of %d over %d bytes, and one of %d over %d", ErrMalformed, l.Block, l.Bytes, got.Block, got.Bytes)
	}
	var first *BlockError
	for i, want := range l.Sums {
		if got.Sums[i] == want {
			continue
		}
		if first == nil {
			off, n := l.Span(i)
			first = &BlockError{Index: i, Offset: off, Length: n, Blocks: len(l.Sums), Want: want, Got: got.Sums[i]}
		}
		first.Damaged++
	}
	if first == nil {
		return nil
	}
	return first
}

// ListOf computes the list of p, by all processors at once. The block size is the
// one that [Blocks] arrives at: block, times the smallest power of two with which the
// list has room. Errors as of [NewBlocks].
func ListOf(alg Algorithm, block int64, p []byte) (List, error) {
	if err := checkBlock(alg, block); err != nil {
		return List{}, err
	}
	n := int64(len(p))
	for ListLen(n, block) > int64(maxSums(alg)) {
		block *= 2
	}
	return listOf(alg, block, p), nil
}

func listOf(alg Algorithm, block int64, p []byte) List {
	n := int64(len(p))
	l := List{Block: block, Bytes: n, Sums: make([]Sum, ListLen(n, block))}
	inParallel(len(l.Sums), func(i int) {
		off, n := l.Span(i)
		l.Sums[i] = Of(alg, p[off:off+n])
	})
	return l
}

// inParallel calls f(0) to f(n-1) from as many goroutines as there are processors,
// and returns when all have returned.
func inParallel(n int, f func(i int)) {
	workers := min(n, runtime.GOMAXPROCS(0))
	if workers <= 1 {
		for i := range n {
			f(i)
		}
		return
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		}()
	}
	wg.Wait()
}

// leastParallel is from how many bytes on OfParallel starts goroutines: below, one
// core is done before the others have begun.
const leastParallel = 4 << 20

// OfParallel is [Of], computed by all processors at once where that pays: for a CRC
// of 4 MiB or more. It is for a client's own memory; a server has better use for its
// cores.
func OfParallel(alg Algorithm, p []byte) Sum {
	if !alg.Combinable() || len(p) < leastParallel {
		return Of(alg, p)
	}
	return listOf(alg, leastParallel/4, p).Whole()
}

// Blocks computes a [List] of a stream whose length need not be known: when there
// would be more blocks than a list can have, neighbours are merged and the block
// size doubles. The size in the end is therefore the one asked for, times the
// smallest power of two with which the list has room. One goroutine at a time may
// use it. It is a [Hash], whose Sum is that of the whole.
type Blocks struct {
	asked, block int64
	h            Hash
	sums         []Sum // of full blocks
	fill         int64 // bytes in h
	limit        int
}

var _ Hash = (*Blocks)(nil)

// NewBlocks returns Blocks of the given size in bytes, MinBlock to MaxBlock (else
// ErrMalformed), of an algorithm that is a CRC (else ErrUnknownAlgorithm).
func NewBlocks(alg Algorithm, block int64) (*Blocks, error) {
	if err := checkBlock(alg, block); err != nil {
		return nil, err
	}
	h, err := New(alg)
	if err != nil {
		return nil, err
	}
	limit := maxSums(alg)
	return &Blocks{asked: block, block: block, h: h, limit: limit, sums: make([]Sum, 0, limit)}, nil
}

// Write adds p. It never fails, returns len(p), keeps no reference to p and
// allocates nothing.
func (b *Blocks) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		if len(b.sums) == b.limit { // and a block more is beginning
			b.merge()
		}
		k := min(int64(len(p)), b.block-b.fill)
		_, _ = b.h.Write(p[:k]) // a Hash never fails
		p = p[k:]
		if b.fill += k; b.fill == b.block {
			b.sums = append(b.sums, b.h.Sum())
			b.h.Reset()
			b.fill = 0
		}
	}
	return n, nil
}

// merge makes one block of each two. All are full.
func (b *Blocks) merge() {
	half := len(b.sums) / 2
	for i := range half {
		b.sums[i], _ = Combine(b.sums[2*i], b.sums[2*i+1], b.block) // one algorithm, a CRC
	}
	b.sums = b.sums[:half]
	b.block *= 2
}

// List returns the list of what was written so far. Its memory is the caller's.
func (b *Blocks) List() List {
	l := List{Block: b.block, Bytes: int64(len(b.sums))*b.block + b.fill}
	l.Sums = append(l.Sums, b.sums...)
	if b.fill > 0 {
		l.Sums = append(l.Sums, b.h.Sum())
	}
	return l
}

// Sum returns the checksum of everything written so far.
func (b *Blocks) Sum() Sum {
	if s := b.List().Whole(); !s.IsZero() {
		return s
	}
	return Empty(b.Algorithm())
}

// Reset forgets what was written.
func (b *Blocks) Reset() {
	b.block, b.fill, b.sums = b.asked, 0, b.sums[:0]
	b.h.Reset()
}

// Algorithm returns what NewBlocks was asked for.
func (b *Blocks) Algorithm() Algorithm { return b.h.Algorithm() }
