// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Level says what it means to fail a case.
type Level uint8

const (
	// Must: data is lost, invented or exposed, or a known client breaks.
	Must Level = iota + 1
	// Should: a known client works worse, or a request for help is inevitable.
	Should
	// May: an optional ability. A server that declines cleanly is skipped.
	May
)

// ErrUnknownLevel is the error for a level that is none of must, should, may.
var ErrUnknownLevel = errors.New("unknown level")

// ParseLevel reads must, should or may.
func ParseLevel(s string) (Level, error) {
	for _, l := range []Level{Must, Should, May} {
		if s == l.String() {
			return l, nil
		}
	}
	return 0, fmt.Errorf("%w %q: want must, should or may", ErrUnknownLevel, s)
}

// String returns must, should or may.
func (l Level) String() string {
	switch l {
	case Must:
		return "must"
	case Should:
		return "should"
	case May:
		return "may"
	}
	return fmt.Sprintf("level(%d)", uint8(l))
}

// MarshalText makes levels readable in reports.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// Need is a condition for running a case.
type Need string

const (
	// NeedFabric: a session with the server, and memory that it can reach.
	NeedFabric Need = "fabric"
	// NeedTLS: an https endpoint (SSE-C keys travel over TLS only).
	NeedTLS Need = "tls"
	// NeedKMS: the server encrypts with keys of its own (SSE-S3).
	NeedKMS Need = "kms"
	// NeedVersioning: buckets can keep versions.
	NeedVersioning Need = "versioning"
	// NeedIdentity: a second pair of keys.
	NeedIdentity Need = "second identity"
)

// When says against which servers a case has a meaning.
type When uint8

const (
	// WhenOn: the server is expected to serve descriptors.
	WhenOn When = iota
	// WhenOff: RDMA is there but switched off.
	WhenOff
	// Always: either.
	Always
)

// Case is one rule, tested.
type Case struct {
	// ID is stable: reports are compared by it. Lower case, topic first.
	ID    string
	Level Level
	// Rule is what the server has to do and why, Source where that comes from.
	Rule, Source string
	Needs        []Need
	When         When
	// Run returns if the case holds. It ends early through Env's methods, as a
	// test does through testing.T.
	Run func(ctx context.Context, e *Env)
}

// Topic is the first part of the ID.
func (c Case) Topic() string {
	topic, _, _ := strings.Cut(c.ID, "/")
	return topic
}

// Cases returns all cases, topic by topic.
func Cases() []Case {
	all := slices.Concat(
		plainCases(), sessionCases(), putCases(), getCases(), rangeCases(), conditionCases(),
		descriptorCases(), bodyCases(), checksumCases(), integrityCases(), matrixCases(), replayCases(), hipobjCases(), multipartCases(), metadataCases(),
		versionCases(), encryptionCases(), otherCases(), trapCases(), clientCases(), lifecycleCases(), hugeCases(),
	)
	first := map[string]int{}
	for i, c := range all {
		if _, seen := first[c.Topic()]; !seen {
			first[c.Topic()] = i
		}
	}
	slices.SortStableFunc(all, func(a, b Case) int { return first[a.Topic()] - first[b.Topic()] })
	return all
}

// Where the rules come from.
const (
	srcMatrix   = "acceptance matrix of known clients (NIXL, minio-cpp, minio-rs, NooBaa)"
	srcDraft    = "draft S3 RDMA protocol 1.0, requirements on requests and responses"
	srcS3       = "Amazon S3 API reference"
	srcWire     = "s3rdma wire protocol, sessions"
	srcRuleOne  = "fence: no answer while bytes can still move"
	srcBounds   = "bounds: a transfer lies inside the descriptor's window"
	srcShort    = "no silent truncation"
	srcTrap     = "empty-object trap (nixl PR 1741; stock MinIO, measured)"
	srcCapable  = "a descriptor is a capability: signed, bound to an identity, never shown"
	srcS3StayS3 = "S3 stays S3: what a descriptor does not concern is as without it"
)
