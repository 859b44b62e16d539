// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package erasure

import (
	"fmt"

	"github.com/klauspost/reedsolomon"
)

// run is what is read at a time: a few consecutive whole blocks, or one block of
// which only a part is wanted. All shards of a run are read by one call each.
//
// A cell is one shard of one block. Every cell that is read or rebuilt has a home.
// The home of a data cell that is wanted whole is its final place in dst, and its
// padding, if it has any, goes to pads; every other cell's home is scratch.
type run struct {
	g      Geometry
	part   Part
	first  int64 // the block number of blocks[0]
	blocks []runBlock
	whole  bool // all data cells are at home in dst

	scratch [][]byte // one shard each, or nil if not yet needed
}

type runBlock struct {
	dst    []byte // where the bytes [lo, hi) of the block go
	lo, hi int
	shard  int    // length of a cell
	pad    []byte // where the padding of the only cell that has both data and padding goes
	ok     []bool // by shard: read and verified
	sound  int    // number of ok

	// The rebuild of the block: while it is queued or under way, the worker's.
	want []int // the shards that are wanted and missing, in rising order
	from []int // the shards they are computed from, likewise
	dec  reedsolomon.Encoder
	cut  int // the column at which a cell with padding is cut, or shard if none is
	code [][]byte
	err  error
}

func (u *run) init(g Geometry, depth int) {
	n := g.Shards()
	*u = run{
		g:       g,
		blocks:  make([]runBlock, depth),
		scratch: make([][]byte, max(depth*g.Parity, n)),
	}
	ok, pads := make([]bool, depth*n), make([]byte, depth*g.Data)
	for x := range u.blocks {
		k := &u.blocks[x]
		k.ok, k.pad = ok[x*n:(x+1)*n], pads[x*g.Data:(x+1)*g.Data]
		k.want, k.from, k.code = make([]int, 0, g.Data), make([]int, 0, g.Data), make([][]byte, 0, n)
	}
}

func (u *run) free(a Allocator) {
	for i, p := range u.scratch {
		if p != nil {
			a.Free(p)
			u.scratch[i] = nil
		}
	}
}

// forget drops all references to dst.
func (u *run) forget() {
	for x := range u.blocks[:cap(u.blocks)] {
		k := &u.blocks[:cap(u.blocks)][x]
		k.dst = nil
		clear(k.code[:cap(k.code)])
	}
}

// begin lays out the run that starts at off of the part, and returns how many
// bytes of dst it fills.
func (u *run) begin(p Part, dst []byte, off int64) int {
	u.part, u.first, u.blocks = p, off/p.g.BlockSize, u.blocks[:0]
	lo := int(off % p.g.BlockSize)
	done := 0
	for len(u.blocks) < cap(u.blocks) && done < len(dst) {
		b := u.first + int64(len(u.blocks))
		hi := min(p.BlockLen(b), lo+len(dst)-done)
		// A block so short that its last shards are all padding is read as if it
		// were wanted in part only: those shards have no place in dst.
		whole := lo == 0 && hi == p.BlockLen(b) && p.DataLen(b, p.g.Data-1) > 0
		if !whole && len(u.blocks) > 0 {
			break
		}
		u.blocks = u.blocks[:len(u.blocks)+1]
		k := &u.blocks[len(u.blocks)-1]
		k.dst, k.lo, k.hi = dst[done:done+hi-lo:done+hi-lo], lo, hi
		k.shard, k.sound = p.ShardLen(b), 0
		clear(k.ok)
		done += hi - lo
		lo = 0
		if u.whole = whole; !whole {
			break
		}
	}
	return done
}

// data is the place of the object bytes of data shard i in block x: they are
// [from, to) of the block. Empty for parity and for cells that are all padding.
func (u *run) data(x, i int) (from, to int) {
	if i >= u.g.Data {
		return 0, 0
	}
	from = i * u.blocks[x].shard
	return from, from + u.part.DataLen(u.first+int64(x), i)
}

// wants says whether any byte of cell (x, i) is asked for.
func (u *run) wants(x, i int) bool {
	from, to := u.data(x, i)
	return from < min(to, u.blocks[x].hi) && to > u.blocks[x].lo
}

// inPlace says whether the home of cell (x, i) is in dst.
func (u *run) inPlace(x, i int) bool {
	from, to := u.data(x, i)
	return from < to && from >= u.blocks[x].lo && to <= u.blocks[x].hi
}

// home is the memory of cell (x, i): one piece, or two if it is in dst and has
// padding. A home in scratch must have been provided by reserve.
func (u *run) home(x, i int) (cell, pad []byte) {
	k := &u.blocks[x]
	if u.inPlace(x, i) {
		from, to := u.data(x, i)
		return k.dst[from-k.lo : to-k.lo : to-k.lo], k.pad[:k.shard-(to-from)]
	}
	return u.scratch[u.slot(x, i)][:k.shard:k.shard], nil
}

// slot is the number of the scratch piece of a cell that is not in place. Runs of
// whole blocks put nothing but parity there.
func (u *run) slot(x, i int) int {
	if u.whole {
		return (i-u.g.Data)*cap(u.blocks) + x
	}
	return i
}

// reserve provides the scratch memory of shard i in all blocks.
func (u *run) reserve(a Allocator, i int) error {
	for x := range u.blocks {
		if u.inPlace(x, i) {
			continue
		}
		slot := u.slot(x, i)
		if u.scratch[slot] != nil {
			continue
		}
		n := u.g.ShardSize()
		p, err := a.Alloc(n)
		if err != nil {
			return fmt.Errorf("erasure: %d bytes of scratch memory: %w", n, err)
		}
		if len(p) < n {
			a.Free(p)
			return fmt.Errorf("erasure: scratch memory: got %d bytes of %d", len(p), n)
		}
		u.scratch[slot] = p
	}
	return nil
}

// complete says whether block x needs no more reads.
func (u *run) complete(x int) bool {
	return u.blocks[x].sound >= u.g.Data || u.holds(x, nil)
}

// holds says whether every cell that is wanted of block x is there, or in one of
// the shards that may still come.
func (u *run) holds(x int, coming *shardSet) bool {
	for i := range u.g.Data {
		if u.wants(x, i) && !u.blocks[x].ok[i] && (coming == nil || !coming.has(i)) {
			return false
		}
	}
	return true
}

// plan says whether cells of block x, which is complete, have to be rebuilt, and
// prepares that.
func (u *run) plan(x int, c *Code, a Allocator) (bool, error) {
	k := &u.blocks[x]
	k.want, k.from, k.err = k.want[:0], k.from[:0], nil
	for i := range u.g.Data {
		if u.wants(x, i) && !k.ok[i] {
			k.want = append(k.want, i)
		}
	}
	if len(k.want) == 0 {
		return false, nil
	}
	for i := 0; len(k.from) < u.g.Data; i++ {
		if k.ok[i] {
			k.from = append(k.from, i)
		}
	}
	var err error
	if k.dec, err = c.decoder(k.from, k.want); err != nil {
		return false, err
	}
	k.cut = k.shard
	for _, set := range [...][]int{k.from, k.want} {
		for _, i := range set {
			if err := u.reserve(a, i); err != nil {
				return false, err
			}
			cell, _ := u.home(x, i)
			k.cut = min(k.cut, len(cell))
		}
	}
	return true, nil
}

// rebuild computes the missing cells of block x as planned, at home. Blocks may be
// rebuilt in parallel.
//
// The code works column by column, so a cell whose padding lies apart is no
// obstacle: the columns before and behind the cut are two calls.
func (u *run) rebuild(x int) {
	k := &u.blocks[x]
	k.err = u.columns(x, 0, k.cut)
	if k.err == nil && k.cut < k.shard {
		k.err = u.columns(x, k.cut, k.shard)
	}
}

// columns codes the columns [lo, hi) of block x.
func (u *run) columns(x, lo, hi int) error {
	k := &u.blocks[x]
	k.code = k.code[:0]
	for _, set := range [...][]int{k.from, k.want} {
		for _, i := range set {
			cell, pad := u.home(x, i)
			if lo >= k.cut && len(cell) == k.cut {
				k.code = append(k.code, pad[lo-k.cut:hi-k.cut:hi-k.cut])
			} else {
				k.code = append(k.code, cell[lo:hi:hi])
			}
		}
	}
	if err := k.dec.Encode(k.code); err != nil {
		return fmt.Errorf("erasure: rebuild shards %v of block %d from %v: %w",
			k.want, u.first+int64(x), k.from, err)
	}
	return nil
}

// deliver moves cells of block x that are wanted in part to dst.
func (u *run) deliver(x int) {
	if u.whole {
		return
	}
	k := &u.blocks[x]
	for i := range u.g.Data {
		if u.wants(x, i) && !u.inPlace(x, i) {
			cell, _ := u.home(x, i)
			from, to := u.data(x, i)
			lo, hi := max(from, k.lo), min(to, k.hi)
			copy(k.dst[lo-k.lo:hi-k.lo], cell[lo-from:])
		}
	}
}
