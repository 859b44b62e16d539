// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package shm is the fabric for two processes on one host: the client's memory is
// mapped by the server, which moves the bytes. The client copies nothing.
//
// A [Target] (the client) makes its memory as sealed memfds and passes them over a
// unix socket. A [Fabric] (the server) listens on that socket, maps what it is
// passed, and serves Write and Read as copies in the calling goroutine, in pieces
// of 1 MiB. Between pieces it looks whether the context has ended or the key has
// been withdrawn, so that neither waits for more than one piece.
//
// # The protocol, version 1
//
// Hello.Token is "1". Welcome.Token is a one-time secret of 32 hex digits, a colon,
// and the path of the socket in unpadded base64url. The socket is SOCK_SEQPACKET;
// every message is one packet of fixed size, little-endian:
//
//	hello   0x01 0 0 0  seq u32  magic "S3RDMSHM"  version u32  secret 16 bytes
//	add     0x02 access 0 0  seq u32  rkey u32  base u64  size u64  (+ one memfd)
//	revoke  0x03 0 0 0  seq u32  rkey u32
//	rekey   0x04 0 0 0  seq u32  old rkey u32  new rkey u32
//	ack     0x80 status 0 0  seq u32  (+ up to 200 bytes of text for a human)
//
// The client sends, the server acknowledges each message in order. Access has bit
// 0 for RemoteWrite and bit 1 for RemoteRead. base is the memory's address in the
// client, which descriptors refer to. An acknowledged revoke or rekey means that no
// transfer can touch the memory under the old key any more. Either side ends the
// session by closing the socket, the server only after its transfers have stopped.
// A packet that breaks these rules ends the session.
//
// # Caveats
//
// The memfd must carry F_SEAL_SHRINK and F_SEAL_GROW, since a file that shrinks
// under a mapping faults with SIGBUS. memfds of huge pages are refused: their
// pages can be gone at the time of the fault. A fault during a copy, should one
// happen, becomes an error and not a crash.
//
// Pages that the client has not touched are charged to the server's memory cgroup
// when a transfer touches them first. Our target touches them all, see
// [TargetOptions].Lazy.
package shm
