// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// ErrConflict is the error for two different checksums of one algorithm.
var ErrConflict = errors.New("two different checksums of one algorithm")

// HeaderError tells which header of a request is at fault. Err is or wraps
// ErrMalformed, ErrComposite, ErrConflict or ErrUnknownAlgorithm.
type HeaderError struct {
	// Header is the lower-case name.
	Header string
	// Value is what was sent, whole.
	Value string
	// Err is what is wrong with it.
	Err error
}

// Error names the header, the (shortened) value and the problem.
func (e *HeaderError) Error() string {
	return fmt.Sprintf("request header %q with value %q: %v", clip(e.Header), clip(e.Value), e.Err)
}

// Unwrap returns e.Err.
func (e *HeaderError) Unwrap() error { return e.Err }

// FromHeader returns the checksums that a request declares: the values of its
// x-amz-checksum-* headers and of Content-MD5, one an algorithm, ascending by
// algorithm; nil if there is none. Names are matched in any case. Headers that
// speak about checksums without being one (x-amz-checksum-algorithm, -type,
// -mode, x-amz-sdk-checksum-algorithm) are skipped.
//
// A value that is repeated is taken once. The error is a [*HeaderError], about
// the first header at fault in the order of their names: a value that is not
// the canonical base64 of the right length (ErrMalformed; with ErrComposite if
// it is a multipart object's "value-N", which no single upload can have), two
// different values of one algorithm (ErrConflict), a header of an algorithm
// that is not implemented (ErrUnknownAlgorithm). An unknown one is not skipped,
// for the client counts on its being verified.
//
// h is only read.
func FromHeader(h http.Header) ([]Sum, error) {
	type named struct {
		header string // lower-case
		key    string // as in h
		alg    Algorithm
	}
	var found []named
	for key := range h {
		name := strings.ToLower(key)
		if alg, is := headerAlgorithm(name); is {
			found = append(found, named{name, key, alg})
		}
	}
	// A map has no order, the answer must have one.
	slices.SortFunc(found, func(a, b named) int {
		return cmp.Or(strings.Compare(a.header, b.header), strings.Compare(a.key, b.key))
	})

	var have [algorithmEnd]Sum
	for _, f := range found {
		for _, value := range h[f.key] {
			if !f.alg.Valid() {
				return nil, &HeaderError{f.header, value, ErrUnknownAlgorithm}
			}
			sum, err := Decode(f.alg, value)
			if err != nil {
				return nil, &HeaderError{f.header, value, err}
			}
			if old := have[f.alg]; !old.IsZero() && old != sum {
				return nil, &HeaderError{f.header, value, fmt.Errorf("%w: %s was given before", ErrConflict, old)}
			}
			have[f.alg] = sum
		}
	}
	var sums []Sum
	for _, sum := range have {
		if !sum.IsZero() {
			sums = append(sums, sum)
		}
	}
	return sums, nil
}

// headerAlgorithm reports whether the header with this lower-case name carries a
// checksum, and of which algorithm; 0 if it is not implemented.
func headerAlgorithm(name string) (Algorithm, bool) {
	if name == headerContentMD5 {
		return MD5, true
	}
	suffix, is := strings.CutPrefix(name, headerPrefix)
	if !is {
		return 0, false
	}
	switch suffix {
	case "algorithm", "type", "mode":
		return 0, false
	case "md5":
		return MD5, true
	}
	for a := CRC32; a < algorithmEnd; a++ {
		if algorithms[a].header == name {
			return a, true
		}
	}
	return 0, true
}
