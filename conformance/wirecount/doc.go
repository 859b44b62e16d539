// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package wirecount tells how many bytes of an HTTP/1.1 connection were message
// heads and how many were payload, by watching the bytes themselves.
//
// It is how the claim "the object did not travel in the HTTP payload" is proven: a
// client's own idea of what it sent, or a Content-Length header, proves nothing.
// [Counter.Wrap] puts a scanner in front of a connection. The scanner follows the
// framing of RFC 9112 in both directions (Content-Length, chunked, until close, and
// the responses that have no body) and adds up three kinds of bytes: heads, the
// framing of chunked bodies, and payload.
//
// # Caveats
//
// Bytes that the scanner cannot place (a malformed head, a protocol switch, TLS
// ciphertext) count as payload, so that a mistake can only spoil a proof, never
// fake one. TLS must therefore be undone first: [Counter.Transport] does the TLS
// handshake below the scanner.
package wirecount
