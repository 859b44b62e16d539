// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package rdmaio

import (
	"context"
	"net/netip"
	"time"
)

// Fabric is the initiating end of one transport. All methods may be called at
// once from any number of goroutines.
type Fabric interface {
	// Capabilities tells what the fabric is and can do. It is constant for the
	// fabric's life, and costs nothing.
	Capabilities() Capabilities

	// Register makes mem usable as the local side of transfers. mem must be
	// off-heap (or otherwise immovable), stays the caller's, and must stay mapped
	// until Region.Close has returned. Registering is slow on real NICs: do it
	// once, not per request.
	Register(mem []byte) (Region, error)

	// Open prepares transfers with the window that d names, on behalf of owner.
	// owner is the authenticated identity of the request that brought d; a fabric
	// with sessions refuses with ErrNotOwner if the session is somebody else's.
	// Other errors: ErrNoSession, ErrUnsupported (d is of another transport),
	// ErrOutOfBounds and ErrStaleKey (where that is known already), ErrPeerGone,
	// ErrTooMany, ErrClosed, ctx's. An error leaves nothing behind.
	Open(ctx context.Context, d Descriptor, owner string) (Link, error)

	// Close ends all sessions and links, waits until no byte can move any more,
	// and frees what the fabric allocated. Regions must have been closed before.
	// A second call does nothing.
	Close() error
}

// Region is initiator memory registered with a fabric.
type Region interface {
	// Bytes is the registered memory, always the same slice.
	Bytes() []byte

	// Close deregisters the memory. It must not be called while a transfer on
	// any part of it is posted and not fenced. A second call does nothing.
	Close() error
}

// Slice is Len bytes at offset Off of a registered region.
type Slice struct {
	Region   Region
	Off, Len int
}

// Bytes returns the memory of s. It panics, as slicing does, if s does not lie
// inside its region: a Slice comes from our own code, never from outside.
func (s Slice) Bytes() []byte {
	return s.Region.Bytes()[s.Off : s.Off+s.Len : s.Off+s.Len]
}

// Link moves bytes between initiator memory and one descriptor's window. One
// goroutine at a time may use a Link; different Links are independent, also when
// they lead to the same peer or the same window.
//
// Write and Read post: they may return before the bytes have moved. From the post
// until the next Fence (or Close) returns the slice belongs to the fabric: it must
// not be written (Write) or touched at all (Read). Posted transfers complete in
// any order. Posting allocates nothing.
//
// The first error ends the link: it is returned by the call that met it and by
// Fence, and later calls fail with ErrLinkDown. What had been posted before may
// have moved whole, in part or not at all. Whoever sees an error must call Close
// (which fences) before telling the peer anything.
type Link interface {
	// Write posts src to the window, at bytes from its start. ErrOutOfBounds if
	// [at, at+src.Len) is not inside the window; nothing is posted then, and the
	// link is down.
	Write(ctx context.Context, src Slice, at uint64) error

	// Read posts a transfer of dst.Len bytes of the window, at bytes from its
	// start, into dst. Errors as Write.
	Read(ctx context.Context, dst Slice, at uint64) error

	// Fence waits until all posted transfers have ended. nil means that every one
	// moved all its bytes. If ctx ends first the transfers are aborted, Fence
	// waits until no byte can move any more (a time that the fabric bounds, see
	// Capabilities.FenceLimit), and returns ctx's error.
	Fence(ctx context.Context) error

	// Close fences without a context (bounded by FenceLimit), and gives up the
	// link. It returns nil also where an earlier call had failed; a second call
	// does nothing.
	Close() error
}

// Capabilities describe a fabric.
type Capabilities struct {
	// Name is the transport's name: TransportSHM.String() and so on.
	Name string

	// MaxTransfer is the largest Slice.Len of one Write or Read, in bytes.
	MaxTransfer int

	// MaxWindow is the largest descriptor Size that is served, in bytes.
	MaxWindow uint64

	// FenceLimit bounds how long Close and a cancelled Fence take with a peer that
	// has stopped answering.
	FenceLimit time.Duration

	// Software is true where a CPU moves the bytes, false where a NIC does.
	Software bool

	// Immediate is true where Write and Read return when the bytes have moved, so that a
	// Fence behind each of them costs nothing (and still has the last word on success).
	Immediate bool
}

// Acceptor is a [Fabric] whose peers connect before they can be transferred with.
// The exchange rides on a signed HTTP request, which is what ties a session to an
// identity.
type Acceptor interface {
	// Accept answers a peer's hello with a welcome, or an error: ErrMalformed,
	// ErrUnsupported (a version we don't speak), ErrRefused, ErrTooMany,
	// ErrClosed. The session counts against the bounds from now on, and is
	// forgotten if the peer does not complete it in time.
	Accept(ctx context.Context, h Hello) (Welcome, error)

	// Hangup ends a session: links on it fail, and when Hangup returns no byte
	// of them can move any more. ErrNoSession, or ErrNotOwner if owner is not who
	// connected.
	Hangup(ctx context.Context, id SessionID, owner string) error
}

// Hello is what a peer says when it connects. Owner, Peer and Local are filled in
// by the HTTP end that received it, never taken from the message.
type Hello struct {
	// Token is the fabric's own text: "1" (the version) for shm and tcp, 88 hex
	// digits for RC queue pairs.
	Token string
	// PSN is the peer's first packet sequence number, RC only, else 0.
	PSN uint32
	// Owner is the authenticated identity of the request. It is "" only where the
	// operator lets peers connect without a signature: the session then belongs to the
	// identity of the first Open that names it, and to no other from there on.
	Owner string
	// Peer and Local are the two addresses of the HTTP connection.
	Peer, Local netip.Addr
}

// Welcome is the answer to a Hello.
type Welcome struct {
	Session SessionID
	// Token is the fabric's own text: where and with which one-time secret to
	// complete the connection. It is as confidential as a descriptor.
	Token string
	PSN   uint32
}

// Access says which transfers a target allows on a region, seen from the
// initiator. Bits may be combined.
type Access uint8

const (
	// RemoteWrite lets the initiator write the region (needed for a GET).
	RemoteWrite Access = 1 << iota
	// RemoteRead lets the initiator read the region (needed for a PUT).
	RemoteRead
)

// Target is the other end: it owns the memory and is passive while bytes move.
// All methods may be called at once, Connect excepted.
type Target interface {
	// Name is the transport's name; the connect endpoint is /.s3rdma-NAME/.
	Name() string

	// Hello makes the message that opens a session.
	Hello(ctx context.Context) (Hello, error)

	// Connect completes the session that w welcomes. Called again, with a new
	// welcome, it replaces a session that was lost: live regions are announced
	// anew under fresh keys, and descriptors made before are void. One call at a
	// time.
	Connect(ctx context.Context, w Welcome) error

	// Register exposes mem, which must be off-heap and stays the caller's; it must
	// stay mapped until Exposed.Close has returned. A target that can expose only
	// memory of its own making (shm) answers ErrUnsupported and is an [Allocator].
	Register(mem []byte, access Access) (Exposed, error)

	// Close revokes all regions and ends the session. Memory of the target's own
	// making is unmapped.
	Close() error
}

// Allocator is a [Target] that makes memory it can expose: n bytes, zeroed, page
// aligned, off-heap, freed by Exposed.Close.
type Allocator interface {
	Alloc(n int, access Access) (Exposed, error)
}

// Exposed is a region that initiators can be pointed at.
type Exposed interface {
	// Bytes is the memory, always the same slice. While a descriptor of it is
	// with a peer, its bytes may change (RemoteWrite) or be read (RemoteRead) at
	// any time.
	Bytes() []byte

	// Describe names n bytes at offset off. Errors: ErrOutOfBounds, ErrClosed,
	// ErrNoSession if the target has none at present.
	Describe(off, n int) (Descriptor, error)

	// Rekey withdraws all descriptors made so far and gives the region a fresh
	// key. When it returns nil, no transfer under the old key can touch the
	// memory: this is how a client takes its buffer back after a failed request.
	Rekey(ctx context.Context) error

	// Close withdraws the region for good, with the promise of Rekey. It frees
	// the memory if the target made it.
	Close() error
}
