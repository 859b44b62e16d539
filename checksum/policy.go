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

// Policy says what is checked of a request whose object's bytes travel outside the
// HTTP body: the memory region that they are moved from or to, the HTTP envelope
// (the message, whose body is empty), both, or nothing beyond what S3 itself
// promises. The package's documentation has the table of what each one finds.
//
// The zero value is [PolicyRegion]: published clients of S3 over RDMA declare the
// checksum of the raw buffer, and it is the choice under which a checksum protects
// the bytes.
//
// No policy takes anything away: a checksum that a PUT declares (x-amz-checksum-*,
// Content-MD5) describes the region and is verified under every one of them. S3
// keeps it with the object, and must not keep a wrong one.
type Policy uint8

// The policies.
const (
	// PolicyRegion: each transfer has a checksum over exactly the bytes that the
	// fabric moved, in object order.
	PolicyRegion Policy = iota
	// PolicyEnvelope: the signature covers the whole message, that is every header
	// that says which bytes are meant and where they are, and that the body is empty.
	// The region is covered only by the fabric's own checks.
	PolicyEnvelope
	// PolicyBoth: the region is checked and so is the envelope.
	PolicyBoth
	// PolicyNone: neither.
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

// Region reports whether transfers have a checksum over the memory region.
func (p Policy) Region() bool { return p == PolicyRegion || p == PolicyBoth }

// Envelope reports whether the signature has to cover the whole HTTP message.
func (p Policy) Envelope() bool { return p == PolicyEnvelope || p == PolicyBoth }

// With returns the weakest policy that checks all that p and q check: what comes of
// a server's policy and a request that asks for more. It is never less than p.
func (p Policy) With(q Policy) Policy {
	region, envelope := p.Region() || q.Region(), p.Envelope() || q.Envelope()
	switch {
	case region && envelope:
		return PolicyBoth
	case region:
		return PolicyRegion
	case envelope:
		return PolicyEnvelope
	}
	return PolicyNone
}

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
