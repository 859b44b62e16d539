// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"errors"
	"fmt"
)

// ErrMismatch is what a [*MismatchError] is, for errors.Is.
var ErrMismatch = errors.New("checksum mismatch")

// MismatchError tells that bytes do not have the checksum that was declared.
type MismatchError struct {
	// Want was declared, Got was computed; their algorithm is the same.
	Want, Got Sum
	// Bytes is the number of bytes that Got was computed over.
	Bytes int64
	// WantEmpty is set if Want is the checksum of the empty string: it was taken
	// over the HTTP body, not over the object's bytes. SDKs do that by default.
	WantEmpty bool
}

// Algorithm returns the algorithm of both sums.
func (e *MismatchError) Algorithm() Algorithm { return e.Want.alg }

// Error names the algorithm, both values and, where it applies, the likely cause.
func (e *MismatchError) Error() string {
	text := fmt.Sprintf("%v: %v over %d bytes: want %s, got %s",
		ErrMismatch, e.Want.alg, e.Bytes, e.Want.Base64(), e.Got.Base64())
	if e.WantEmpty {
		text += "; the wanted value is the checksum of the empty string: an SDK computed its default checksum over the empty HTTP body" +
			" (declare the checksum of the memory region, or have the SDK compute checksums only when_required)"
	}
	return text
}

// Is reports whether target is [ErrMismatch].
func (e *MismatchError) Is(target error) bool { return target == ErrMismatch }

// Verifier computes the checksums of what is written to it and compares them
// with those that were declared. One goroutine at a time may use it. The zero
// Verifier expects nothing and accepts everything.
type Verifier struct {
	want  []Sum // ascending by algorithm, as in set
	set   Set
	bytes int64
}

// NewVerifier returns a Verifier of the given checksums. With none it computes
// nothing and Verify succeeds. One that is given twice counts once; two
// different ones of an algorithm are ErrConflict, a zero Sum is
// ErrUnknownAlgorithm.
func NewVerifier(want ...Sum) (*Verifier, error) {
	var byAlg [algorithmEnd]Sum
	for _, w := range want {
		if !w.alg.Valid() {
			return nil, fmt.Errorf("%w: a zero Sum cannot be verified", ErrUnknownAlgorithm)
		}
		if old := byAlg[w.alg]; !old.IsZero() && old != w {
			return nil, fmt.Errorf("%w: %v and %v", ErrConflict, old, w)
		}
		byAlg[w.alg] = w
	}
	v := &Verifier{}
	for alg, w := range byAlg {
		if w.IsZero() {
			continue
		}
		h, err := New(Algorithm(alg))
		if err != nil {
			return nil, err
		}
		v.want = append(v.want, w)
		v.set.hashes = append(v.set.hashes, h)
	}
	return v, nil
}

// Write adds p. It never fails, returns len(p), keeps no reference to p and
// allocates nothing.
func (v *Verifier) Write(p []byte) (int, error) {
	v.bytes += int64(len(p))
	return v.set.Write(p)
}

// Verify compares, and returns nil or a [*MismatchError] about the first
// algorithm that differs. It changes nothing: more may be written, and Verify
// called again.
func (v *Verifier) Verify() error {
	for i, want := range v.want {
		if got := v.set.hashes[i].Sum(); got != want {
			return &MismatchError{Want: want, Got: got, Bytes: v.bytes, WantEmpty: want.IsEmpty()}
		}
	}
	return nil
}

// AppendSums appends the checksums of what was written so far to dst, ascending
// by algorithm, and returns the extended slice.
func (v *Verifier) AppendSums(dst []Sum) []Sum { return v.set.AppendSums(dst) }

// Reset forgets what was written, not what is expected: for a transfer that
// starts over.
func (v *Verifier) Reset() {
	v.bytes = 0
	v.set.Reset()
}
