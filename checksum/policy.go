// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrUnknownPolicy is the error for a text that names no [Policy].
var ErrUnknownPolicy = errors.New("unknown checksum policy")

// Policy says what the checksums of a request are held against when the
// object's bytes travel outside the HTTP body: the memory region that they were
// read from, the HTTP envelope (the body, which is empty), both, or nothing.
//
// The zero value is [PolicyRegion]. Published clients of S3 over RDMA declare
// the checksum of the raw buffer, and it is the one choice under which a
// declared checksum protects the bytes that are stored: whoever configures
// nothing gets that protection, and an SDK's checksum of the empty body is
// refused instead of stored.
type Policy uint8

// The policies.
const (
	// PolicyRegion: checksums describe the bytes of the memory region.
	PolicyRegion Policy = iota
	// PolicyEnvelope: checksums describe the HTTP body; the memory region is
	// covered only by the fabric's own checks.
	PolicyEnvelope
	// PolicyBoth: the region is checked and so is the envelope.
	PolicyBoth
	// PolicyNone: declared checksums are not verified.
	PolicyNone

	policyEnd
)

var policyNames = [policyEnd]string{
	PolicyRegion:   "region",
	PolicyEnvelope: "envelope",
	PolicyBoth:     "both",
	PolicyNone:     "none",
}

// ParsePolicy returns the policy that text names: "region", "envelope", "both"
// or "none", exactly so. The error wraps [ErrUnknownPolicy] and lists them.
func ParsePolicy(text string) (Policy, error) {
	if i := slices.Index(policyNames[:], text); i >= 0 {
		return Policy(i), nil
	}
	return 0, fmt.Errorf("%w %q: the choices are %s",
		ErrUnknownPolicy, clip(text), strings.Join(policyNames[:], ", "))
}

// Region reports whether the bytes of the memory region are verified.
func (p Policy) Region() bool { return p == PolicyRegion || p == PolicyBoth }

// Envelope reports whether the HTTP body is verified.
func (p Policy) Envelope() bool { return p == PolicyEnvelope || p == PolicyBoth }

// String returns the name that [ParsePolicy] reads, or "Policy(n)".
func (p Policy) String() string {
	if p >= policyEnd {
		return fmt.Sprintf("Policy(%d)", uint8(p))
	}
	return policyNames[p]
}

// MarshalText returns the name. It fails (ErrUnknownPolicy) for a value that is
// none of the constants.
func (p Policy) MarshalText() ([]byte, error) {
	if p >= policyEnd {
		return nil, fmt.Errorf("%w %v", ErrUnknownPolicy, p)
	}
	return []byte(policyNames[p]), nil
}

// UnmarshalText sets p as [ParsePolicy] does; on an error p is unchanged.
func (p *Policy) UnmarshalText(text []byte) error {
	parsed, err := ParsePolicy(string(text))
	if err != nil {
		return err
	}
	*p = parsed
	return nil
}
