// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package checksum

import "slices"

// blockSize is how much of a large Write every hash of a Set sees before the
// next block: small enough to stay in a core's second-level cache beside
// everything else, large enough that the calls do not count.
const blockSize = 64 << 10

// Set computes several checksums of the same bytes in one pass over memory. One
// goroutine at a time may use it. The zero Set computes nothing.
type Set struct {
	hashes []Hash // ascending by algorithm, none twice
}

// NewSet returns a Set of the given algorithms, in any order; one that is given
// twice is computed once. The error, for an invalid algorithm, wraps
// [ErrUnknownAlgorithm].
func NewSet(algs ...Algorithm) (*Set, error) {
	algs = slices.Clone(algs)
	slices.Sort(algs)
	algs = slices.Compact(algs)
	s := &Set{hashes: make([]Hash, 0, len(algs))}
	for _, alg := range algs {
		h, err := New(alg)
		if err != nil {
			return nil, err
		}
		s.hashes = append(s.hashes, h)
	}
	return s, nil
}

// Write adds p to every checksum. It never fails, returns len(p), keeps no
// reference to p and allocates nothing.
func (s *Set) Write(p []byte) (int, error) {
	n := len(p)
	if len(s.hashes) == 1 {
		return s.hashes[0].Write(p)
	}
	for len(p) > 0 && len(s.hashes) > 0 {
		block := p[:min(blockSize, len(p))]
		for _, h := range s.hashes {
			// A Hash never fails.
			_, _ = h.Write(block)
		}
		p = p[len(block):]
	}
	return n, nil
}

// Len returns the number of algorithms.
func (s *Set) Len() int { return len(s.hashes) }

// Sum returns the checksum of what was written so far, and whether the set
// computes alg at all.
func (s *Set) Sum(alg Algorithm) (Sum, bool) {
	for _, h := range s.hashes {
		if h.Algorithm() == alg {
			return h.Sum(), true
		}
	}
	return Sum{}, false
}

// AppendSums appends the checksums of what was written so far to dst, ascending
// by algorithm, and returns the extended slice.
func (s *Set) AppendSums(dst []Sum) []Sum {
	for _, h := range s.hashes {
		dst = append(dst, h.Sum())
	}
	return dst
}

// Reset forgets what was written; the algorithms stay.
func (s *Set) Reset() {
	for _, h := range s.hashes {
		h.Reset()
	}
}
