// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package rdmaio

import "context"

// Pairer is a [Fabric] that also serves peers which bring a queue pair for each transfer
// and take part in it, as the clients of hipobj-rc-v2 do: they push what they send into
// memory of the initiator's, and wait for a word when they have received. A pair is good
// for one transfer.
type Pairer interface {
	// Pair makes the initiator's end, which waits a short time for Claim. Errors are
	// those of Acceptor.Accept; ErrOutOfBounds if there is never so much memory to
	// push into, ErrTooMany if there is none at present, ErrUnsupported if there is
	// none at all.
	Pair(ctx context.Context, h PairHello) (PairWelcome, error)

	// Claim takes a pair that waits. It is the caller's to close. ErrNoSession if there
	// is none (any more), or it has been claimed; ErrNotOwner.
	Claim(id SessionID, owner string) (Pair, error)

	// Unpair ends a pair that waits, or the transfer of one that was claimed; no byte of
	// it can move any more then. ErrNoSession, ErrNotOwner.
	Unpair(id SessionID, owner string) error
}

// PairHello is what a peer says of its queue pair. Token (88 hex digits, without memory)
// and PSN are of the peer, Owner (never ""), Peer and Local of the HTTP end.
type PairHello struct {
	Hello
	// Land is the number of bytes that the peer will push; 0 if it receives.
	Land uint64
	// Note is the caller's. Pair.Note returns it.
	Note any
}

// PairWelcome is the answer. Token is 88 hex digits, of the queue pair and the memory;
// QPN, Addr and RKey say the same again.
type PairWelcome struct {
	Welcome
	QPN uint32
	// Addr and RKey are of the memory that the peer is to write to, which has as many
	// bytes as it asked for; 0 if it did not.
	Addr uint64
	RKey uint32
}

// Pair is one transfer's connection. It is for one goroutine at a time, but Close may be
// called always.
type Pair interface {
	// Note is PairHello.Note.
	Note() any

	// Join connects to the peer's queue pair. If the peer pushes, Join waits until it has
	// said by imm that all of its bytes are there; the link then reads them, from memory
	// that the peer cannot reach any more, and d does not matter. If it receives, the link
	// writes to the window d, of which Addr, Size and RKey matter. To be called once. The
	// pair is to be closed after an error, and by closing the link otherwise.
	Join(ctx context.Context, qpn uint32, d Descriptor, imm uint32) (PairLink, error)

	// Close ends the pair; no byte of it can move any more when it returns. A second
	// call does nothing.
	Close() error
}

// PairLink is the [Link] of a [Pair]. Its Close closes the pair.
type PairLink interface {
	Link
	// Notify tells a peer that receives, by the value given to Join, that all of its
	// bytes are there, and waits until it has been told. It fences.
	Notify(ctx context.Context) error
}

// PairTarget is the other end of a [Pairer]: a [Target] without a session.
type PairTarget interface {
	Target
	// NewPair makes a queue pair for one transfer. It is the caller's to close.
	NewPair(ctx context.Context) (PairEnd, error)
}

// PairEnd is a target's end of one transfer. It is for one goroutine at a time.
type PairEnd interface {
	// Hello says what the initiator has to know: Token and PSN.
	Hello() Hello
	// QPN is the number of the queue pair.
	QPN() uint32
	// Connect connects to the initiator's queue pair, and gets ready to hear from it.
	Connect(ctx context.Context, w PairWelcome) error
	// Push writes n bytes of x, from offset off, to the initiator's memory, says so by
	// imm, and waits until they are there.
	Push(ctx context.Context, x Exposed, off, n int, imm uint32) error
	// Await waits until the initiator says, by imm, that it has written all.
	// ErrMalformed if it says something else.
	Await(ctx context.Context, imm uint32) error
	// Close destroys the queue pair. No byte moves by it afterwards.
	Close() error
}
