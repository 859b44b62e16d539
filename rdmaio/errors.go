// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package rdmaio

import "errors"

// The kinds of failure that callers tell apart with errors.Is. Every fabric wraps
// one of them together with what was attempted; none of them carries a key.
var (
	// ErrMalformed: the bytes are no descriptor in any known encoding, or one whose
	// fields contradict each other. The sender's fault (HTTP 400).
	ErrMalformed = errors.New("malformed descriptor")

	// ErrUnsupported: a descriptor of a kind that exists but that this process does
	// not serve. The sender should use plain HTTP (HTTP 501).
	ErrUnsupported = errors.New("unsupported descriptor")

	// ErrOutOfBounds: a transfer would leave the descriptor's window, the region
	// registered by the target, or the initiator's own slice. No byte was moved.
	ErrOutOfBounds = errors.New("outside the window")

	// ErrStaleKey: the key names no region (any more), or one that does not allow
	// this direction. No byte was moved by the refused transfer.
	ErrStaleKey = errors.New("key is not valid")

	// ErrNoSession: the descriptor names a session that does not exist (any more).
	// The target should connect again, and may use plain HTTP meanwhile.
	ErrNoSession = errors.New("no such session")

	// ErrNotOwner: the session belongs to another identity.
	ErrNotOwner = errors.New("session belongs to another identity")

	// ErrPeerGone: the target went away, or stopped answering in time.
	ErrPeerGone = errors.New("peer is gone")

	// ErrLinkDown: an earlier failure has ended this link; open another one.
	ErrLinkDown = errors.New("link is down")

	// ErrTooMany: a bound on sessions, regions or connections is reached.
	ErrTooMany = errors.New("too many")

	// ErrRefused: the peer's address or credentials are not on the allow-list.
	ErrRefused = errors.New("peer is not allowed")

	// ErrClosed: the fabric, target, region or pool has been closed.
	ErrClosed = errors.New("closed")
)
