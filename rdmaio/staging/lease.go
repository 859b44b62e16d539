// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package staging

import (
	"fmt"
	"sync/atomic"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// Lease is a hold on slabs. From Acquire until Release they are the holder's alone,
// with whatever was in them: treat them as not initialised. The slabs need not be
// neighbours.
//
// A lease is used by one goroutine at a time; different slabs of it may be used at
// once. It is not pooled: a lease that came back for another request would make a
// second Release, which is harmless, release that other request's memory.
type Lease struct {
	pool     *Pool
	caller   *caller
	want     int
	slabs    []int32
	inline   [8]int32 // room for slabs, usually enough
	released atomic.Bool
}

// newLease sizes a lease for bytes; it has no slabs yet.
func (p *Pool) newLease(bytes int64) *Lease {
	l := &Lease{pool: p, want: 1}
	if bytes > int64(p.slabSize) {
		l.want = int(min((bytes-1)/int64(p.slabSize)+1, int64(p.perLease)))
	}
	l.slabs = l.inline[:0]
	if l.want > len(l.inline) {
		l.slabs = make([]int32, 0, l.want)
	}
	return l
}

// Slabs is the number of slabs, 1 or more.
func (l *Lease) Slabs() int { return l.want }

// Size is the size of all slabs together, in bytes.
func (l *Lease) Size() int { return l.want * l.pool.slabSize }

// Bytes is the memory of slab i, counted from 0. It is valid until Release. Bytes
// panics after Release and if there is no slab i.
func (l *Lease) Bytes(i int) []byte {
	at := l.offset(i)
	return l.pool.mem.bytes[at : at+l.pool.slabSize : at+l.pool.slabSize]
}

// Slab is slab i for transfers on links of f, one of the fabrics that New got. It is
// the same memory as Bytes(i). Slab panics after Release, if there is no slab i, and
// with a foreign fabric.
func (l *Lease) Slab(i int, f rdmaio.Fabric) rdmaio.Slice {
	at := l.offset(i)
	for k, own := range l.pool.fabrics {
		if own == f {
			return rdmaio.Slice{Region: l.pool.regions[k], Off: at, Len: l.pool.slabSize}
		}
	}
	panic("staging: slab wanted for a fabric that the pool is not registered with")
}

func (l *Lease) offset(i int) int {
	if l.released.Load() {
		panic(fmt.Sprintf("staging: slab %d of %d used after Release", i, l.want))
	}
	return int(l.slabs[i]) * l.pool.slabSize
}

// Release gives the slabs back. The holder must have fenced or closed every link
// that it posted one of them to, and drop every Bytes and Slab: the memory is
// somebody else's at once. Further calls do nothing, nor does Release of a nil
// lease.
func (l *Lease) Release() {
	if l == nil || l.released.Swap(true) {
		return
	}
	if l.pool.scrub {
		for _, s := range l.slabs {
			at := int(s) * l.pool.slabSize
			clear(l.pool.mem.bytes[at : at+l.pool.slabSize])
		}
	}
	l.pool.giveBack(l)
}
