// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"hash/crc32"
	"hash/crc64"
	"sync"

	"github.com/minio/crc64nvme"
)

// Where the processor multiplies polynomials 64 bytes at a time, the CRCs are computed
// by folding: bytes that lie D bits before the end are worth as much as their product
// with x^D, modulo the polynomial, at the end. So 256 bytes are multiplied by x^2048 and
// added to the next 256, over and over, and in the end made into 16 bytes whose CRC is
// that of them all. The same instructions serve all three polynomials.

const (
	foldBlock = 256 // bytes folded at a time
	foldLeast = 4 * foldBlock
)

// foldFactors are what fold multiplies by, for distances of 2048, 512 and 128 bits: each
// the factor of the earlier and of the later 8 of 16 bytes, in reflected order, the
// highest bit being the coefficient of x^0.
type foldFactors [6]uint64

// factors computes the foldFactors of t's polynomial. The earlier 8 bytes are 64 bits
// further away. A product of two reflected numbers of 64 bits comes out one bit too low,
// which is a factor of x that is left out here.
func (t *powers) factors() *foldFactors {
	power := func(n int) uint64 {
		v := uint64(1) << (t.width - 1)
		for range n {
			v = v>>1 ^ t.poly&-(v&1)
		}
		return v << (64 - t.width)
	}
	var f foldFactors
	for i, distance := range [...]int{2048, 512, 128} {
		f[2*i], f[2*i+1] = power(distance+63), power(distance-1)
	}
	return &f
}

var (
	foldIEEE       = sync.OnceValue(func() *foldFactors { return powersIEEE().factors() })
	foldCastagnoli = sync.OnceValue(func() *foldFactors { return powersCastagnoli().factors() })
	foldNVME       = sync.OnceValue(func() *foldFactors { return powersNVME().factors() })
	tableNVME      = sync.OnceValue(func() *crc64.Table { return crc64.MakeTable(crc64nvme.NVME) })
)

// update32 returns the CRC of what crc is of, followed by p; table is the IEEE or the
// Castagnoli one.
func update32(crc uint32, table *crc32.Table, p []byte) uint32 {
	if canFold && len(p) >= foldLeast {
		k := foldIEEE
		if table == castagnoli {
			k = foldCastagnoli
		}
		n := len(p) / foldBlock
		early, late := fold(&p[0], n, uint64(^crc), k())
		crc = ^remainder((*[256]uint32)(table), early, late)
		p = p[n*foldBlock:]
	}
	return crc32.Update(crc, table, p)
}

// update64 is update32 for CRC64NVME.
func update64(crc uint64, p []byte) uint64 {
	if canFold && len(p) >= foldLeast {
		n := len(p) / foldBlock
		early, late := fold(&p[0], n, ^crc, foldNVME())
		crc = ^remainder((*[256]uint64)(tableNVME()), early, late)
		p = p[n*foldBlock:]
	}
	return crc64nvme.Update(crc, p)
}

// remainder is the CRC, not inverted, of the 16 bytes that folding has left.
func remainder[T uint32 | uint64](table *[256]T, early, late uint64) (crc T) {
	for _, v := range [...]uint64{early, late} {
		for range 8 {
			crc = table[byte(crc)^byte(v)] ^ crc>>8
			v >>= 8
		}
	}
	return crc
}
