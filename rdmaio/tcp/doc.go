// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package tcp is the fabric for hosts without an RDMA NIC: one-sided transfers over
// TCP connections, in user space on both sides.
//
// A [Fabric] listens, and welcomes peers that came by a signed HTTP request. A
// [Target] connects a fixed number of lanes, each proving that it knows the
// welcome's one-time secret (handshake.go). From then on the fabric sends requests
// to write or read at an address under a key, and an agent of the target, a
// goroutine a lane, checks and serves them (wire.go). No frame's payload is copied
// in user space: it goes from registered memory into the socket and from the socket
// into registered memory.
//
//	Link --post--> queue --frame by frame, links in turn--> lane =====> agent
//	Link <-----------------------finish-------------------- lane <===== agent
//
// # The fence
//
// A request is finished when the target has answered it and our own goroutines are
// done with its memory; a target answers after the last byte is in its place. A
// link that is cancelled sends no further frame, and waits for the answers to those
// on the wire, for FenceLimit at most. If they don't come the whole session is
// reset, and its links wait until the lanes' goroutines have left their slices.
//
// That leaves bytes in the target's receive buffer, which a reset does not recall.
// So the target looks at the key again for each piece of at most 64 KiB that it
// moves, under the region's lock, and never waits with the lock held: once Rekey or
// Close of the region has returned, whatever still sits in a buffer is discarded.
// A target that takes its memory back after a failed request has to call one of
// them, as [rdmaio.Exposed] says.
//
// # Dead and hostile peers
//
// TCP keep-alive and TCP_USER_TIMEOUT find a host that is gone; a target that is
// there but for PeerTimeout answers none of the requests in flight (each of 512 KiB
// at most) counts as gone too. A frame that does not fit what was
// asked ends the session. An answer that comes before its request has been sent
// does not free the memory that is being sent.
//
// # Caveats
//
// Nothing is encrypted, as on an RDMA network: whoever can read the wire reads the
// objects, and whoever can alter it alters them. Only the joining of lanes is
// authenticated.
//
// All links of a session share its lanes. A peer that stops answering therefore
// fails all links of its own session, and no other session's.
//
// Overlapping frames of one link may land in any order, on different lanes.
//
// The target's address goes into descriptors, as in real RDMA: it tells the
// initiator's side something about the target's address space.
package tcp
