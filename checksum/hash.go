// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"crypto/md5"
	"crypto/sha1"
	"fmt"
	"hash"
	"hash/crc32"

	"github.com/cespare/xxhash/v2"
	"github.com/minio/sha256-simd"
)

// Hash is a checksum being computed. One goroutine at a time may use it.
type Hash interface {
	// Write adds p. It never fails, returns len(p), and keeps no reference to p.
	Write(p []byte) (int, error)
	// Sum returns the checksum of the bytes written since New or Reset. More
	// may be written afterwards.
	Sum() Sum
	// Reset forgets what was written.
	Reset()
	// Algorithm returns what New was asked for.
	Algorithm() Algorithm
}

// castagnoli holds the table of CRC32C; the package hash/crc32 recognises it by
// its address and then uses the processor's instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// New returns a Hash. The error, for an invalid algorithm, wraps
// [ErrUnknownAlgorithm].
func New(alg Algorithm) (Hash, error) {
	switch alg {
	case CRC32:
		return &crc32Hash{alg: alg, table: crc32.IEEETable}, nil
	case CRC32C:
		return &crc32Hash{alg: alg, table: castagnoli}, nil
	case CRC64NVME:
		return &crc64Hash{}, nil
	case SHA1:
		return &digestHash{alg: alg, h: sha1.New()}, nil
	case SHA256:
		return &digestHash{alg: alg, h: sha256.New()}, nil
	case MD5:
		return &digestHash{alg: alg, h: md5.New()}, nil
	case XXH64:
		h := &xxh64Hash{}
		h.Reset()
		return h, nil
	}
	return nil, fmt.Errorf("%w %v", ErrUnknownAlgorithm, alg)
}

// Of returns the checksum of p; the zero Sum for an invalid algorithm. It
// allocates nothing.
func Of(alg Algorithm, p []byte) Sum {
	s := Sum{alg: alg}
	switch alg {
	case CRC32:
		return sum32(alg, update32(0, crc32.IEEETable, p))
	case CRC32C:
		return sum32(alg, update32(0, castagnoli, p))
	case CRC64NVME:
		return sum64(alg, update64(0, p))
	case XXH64:
		return sum64(alg, xxhash.Sum64(p))
	case SHA1:
		d := sha1.Sum(p)
		copy(s.raw[:], d[:])
	case SHA256:
		d := sha256.Sum256(p)
		copy(s.raw[:], d[:])
	case MD5:
		d := md5.Sum(p)
		copy(s.raw[:], d[:])
	default:
		return Sum{}
	}
	return s
}

type crc32Hash struct {
	alg   Algorithm
	table *crc32.Table
	crc   uint32
}

func (h *crc32Hash) Write(p []byte) (int, error) {
	h.crc = update32(h.crc, h.table, p)
	return len(p), nil
}
func (h *crc32Hash) Sum() Sum             { return sum32(h.alg, h.crc) }
func (h *crc32Hash) Reset()               { h.crc = 0 }
func (h *crc32Hash) Algorithm() Algorithm { return h.alg }

type crc64Hash struct{ crc uint64 }

func (h *crc64Hash) Write(p []byte) (int, error) {
	h.crc = update64(h.crc, p)
	return len(p), nil
}
func (h *crc64Hash) Sum() Sum             { return sum64(CRC64NVME, h.crc) }
func (h *crc64Hash) Reset()               { h.crc = 0 }
func (h *crc64Hash) Algorithm() Algorithm { return CRC64NVME }

type xxh64Hash struct{ d xxhash.Digest }

func (h *xxh64Hash) Write(p []byte) (int, error) { return h.d.Write(p) }
func (h *xxh64Hash) Sum() Sum                    { return sum64(XXH64, h.d.Sum64()) }
func (h *xxh64Hash) Reset()                      { h.d.Reset() }
func (h *xxh64Hash) Algorithm() Algorithm        { return XXH64 }

// digestHash wraps the cryptographic hashes, whose state is behind hash.Hash.
type digestHash struct {
	alg Algorithm
	h   hash.Hash
	// out receives the digest: a buffer on Sum's stack would escape through the
	// interface call and be allocated each time.
	out [maxSize]byte
}

func (h *digestHash) Write(p []byte) (int, error) { return h.h.Write(p) }

func (h *digestHash) Sum() Sum {
	s := Sum{alg: h.alg}
	copy(s.raw[:], h.h.Sum(h.out[:0]))
	return s
}
func (h *digestHash) Reset()               { h.h.Reset() }
func (h *digestHash) Algorithm() Algorithm { return h.alg }
