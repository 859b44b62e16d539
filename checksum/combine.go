// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
	"sync"

	"github.com/minio/crc64nvme"
)

// ErrCombine is the error for two sums that cannot be combined.
var ErrCombine = errors.New("checksums cannot be combined")

// Combine returns the CRC of AB from a, the CRC of A, and b, the CRC of B, where
// lenB is the length of B in bytes. It needs neither A nor B, and takes one
// multiplication of polynomials for each bit that is set in lenB: well under a
// microsecond for a power of two.
//
// It fails (ErrCombine) if the algorithms differ or are not CRCs, if lenB is
// negative, or if lenB is 0 and b is not the CRC of the empty string. That lenB
// is otherwise the length of B cannot be checked.
func Combine(a, b Sum, lenB int64) (Sum, error) {
	switch {
	case a.alg != b.alg:
		return Sum{}, fmt.Errorf("%w: %v with %v", ErrCombine, a.alg, b.alg)
	case !a.alg.Combinable():
		return Sum{}, fmt.Errorf("%w: %v is not a CRC", ErrCombine, a.alg)
	case lenB < 0:
		return Sum{}, fmt.Errorf("%w: length %d of the second part is negative", ErrCombine, lenB)
	case lenB == 0 && !b.IsEmpty():
		return Sum{}, fmt.Errorf("%w: the second part has no bytes, but %v is not the checksum of none", ErrCombine, b)
	}
	if a.alg == CRC64NVME {
		shifted := powersNVME().shift(binary.BigEndian.Uint64(a.raw[:]), uint64(lenB))
		return sum64(a.alg, shifted^binary.BigEndian.Uint64(b.raw[:])), nil
	}
	powers := powersIEEE
	if a.alg == CRC32C {
		powers = powersCastagnoli
	}
	shifted := powers().shift(uint64(binary.BigEndian.Uint32(a.raw[:])), uint64(lenB))
	return sum32(a.alg, uint32(shifted)^binary.BigEndian.Uint32(b.raw[:])), nil
}

// powers holds x^(8*2^k) modulo a CRC's polynomial. A CRC is a remainder modulo
// that polynomial, and n more bytes multiply it by x^(8n); so, with n written in
// binary, appending n zero bytes is one multiplication for each set bit. What a
// CRC adds before and after the division cancels out in the sum of both parts.
//
// Polynomials are bit-reflected, as the CRCs themselves are: the highest bit is
// the coefficient of x^0.
type powers struct {
	poly  uint64
	width uint // of the CRC in bits; bit width-1 is x^0
	x8    [63]uint64
}

var (
	powersIEEE       = sync.OnceValue(func() *powers { return newPowers(crc32.IEEE, 32) })
	powersCastagnoli = sync.OnceValue(func() *powers { return newPowers(crc32.Castagnoli, 32) })
	powersNVME       = sync.OnceValue(func() *powers { return newPowers(crc64nvme.NVME, 64) })
)

func newPowers(poly uint64, width uint) *powers {
	t := &powers{poly: poly, width: width}
	t.x8[0] = 1 << (width - 1 - 8)
	for k := 1; k < len(t.x8); k++ {
		t.x8[k] = t.mul(t.x8[k-1], t.x8[k-1])
	}
	return t
}

// shift returns crc times x^(8n); n is less than 2^63.
func (t *powers) shift(crc, n uint64) uint64 {
	for ; n != 0; n &= n - 1 {
		crc = t.mul(crc, t.x8[bits.TrailingZeros64(n)])
	}
	return crc
}

// mul returns the product of two polynomials modulo t.poly. Masks stand for
// branches, which would be mispredicted: the bits are as good as random.
func (t *powers) mul(a, b uint64) uint64 {
	var product uint64
	for i := t.width; i > 0; i-- {
		product ^= b & -(a >> (i - 1) & 1)
		b = b>>1 ^ t.poly&-(b&1) // b times x
	}
	return product
}
