// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package rdmaio moves bytes between memories by one-sided transfers.
//
// There are two ends. The target owns memory and does nothing while bytes move:
// it registers a region, describes a window of it, and hands that description
// (a [Descriptor]) to the other end, in our case inside an HTTP request header.
// The initiator parses the descriptor, opens a [Link] to the window and posts
// RDMA WRITE (bytes to the target) or RDMA READ (bytes from it). An S3 client is
// a target, an S3 server is an initiator.
//
//	target (client)                      initiator (server)
//	Target.Hello ---- HTTP connect ----> Acceptor.Accept
//	Target.Connect <- Welcome ----------
//	Target.Register
//	Exposed.Describe -- descriptor ----> Parse, Fabric.Open
//	  (idle)        <== Write / Read === Link.Write, Link.Read
//	                <-- response ------- Link.Fence, Link.Close
//
// The packages below rdmaio are fabrics: shm (same host, over a sealed memfd),
// tcp (any host, user space on both sides) and, on RDMA NICs, verbs. All pass the
// same suite, package fabrictest. Package staging holds the initiator's registered
// memory, package session the table that ties a connected peer to an identity.
//
// # Caveats
//
// A descriptor is a capability: whoever holds it can have its memory read or
// written. Nothing in this module prints one; [Descriptor.String] and every error
// show the transport and the size only. Use [Descriptor.Encode] to put one on the
// wire.
//
// The fence rule governs every fabric: once [Link.Fence] or [Link.Close] has
// returned, with or without an error, no byte of any transfer posted before on
// that link can move any more.
package rdmaio
