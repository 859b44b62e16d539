// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package checksum computes, encodes, combines and verifies the checksums that
// S3 requests carry, and says what they are about when an object's bytes do not
// travel in the HTTP body.
//
// Seven algorithms stand behind one streaming interface, [Hash]: the three CRCs
// of S3, SHA-1, SHA-256, MD5 and XXH64. Their results are one value type, [Sum]:
// comparable, no larger than a cache line, never on the heap by itself. A Sum's
// text form is the one S3 uses: the big-endian bytes in padded standard base64.
// Reading it is strict ([Decode]): a value is either exactly what [Sum.Base64]
// would write or it is refused.
//
// [FromHeader] collects what a PUT declares; a [Verifier] of it is an io.Writer for the
// bytes, stripe by stripe while they are still in the cache, and then says whether they
// are those that were declared ([ErrMismatch]).
// The mismatch that occurs most has a flag of its own ([MismatchError.WantEmpty]): the
// SDKs' default checksum, taken over the HTTP body, which is empty here.
//
// Pieces can be hashed apart, in any order and in parallel, and their CRCs put
// together ([Combine], [Blocks], [List]). Other algorithms have no such property.
//
// # What is checked: Policy
//
// A [Policy] says it, for each direction, at the server; [Policy.With] is how a
// request asks for more, never for less. The headers are in region.go.
//
//	fault                                              none  region  envelope  found by
//	PUT: fabric, or client's memory after its sum       D     D P     D         server: 400 BadDigest, nothing stored
//	PUT: server's staging before the bytes were hashed  D     D P     D         server, as above
//	GET: fabric, or client's memory before it looks     S     S R     S         client: ErrMismatch
//	GET: staging before the bytes were hashed           S     S C     S         server (C): 500, no success; client (S)
//	GET: on disk                                        bitrot hashes of the server, and S and C
//	a header changed that the signature covers          x     x       x         server: 403
//	another header that says which bytes (Range, If-*)  -     -       x         server: 403
//	a body added to the message                         x     x       x         server: 400
//	somebody else's descriptor, or session              x     x       x         server: 403
//
// D: where the PUT declares a checksum (x-amz-checksum-*, Content-MD5). P: where it
// declares none, the server computes one and the client can compare it, too late to
// keep the object from being stored. R: the region's checksum, computed by the server
// over what it sends. S: the object's own checksum, where the client asks for it
// (x-amz-checksum-mode) and takes the whole object. C: the same, where it is of the
// algorithm that the server computes: it compares before it answers.
//
// # Concurrency and memory
//
// Values may be used from many goroutines at once. A Hash, [Set], [Blocks] or [Verifier]
// belongs to one at a time; Write keeps no reference to its argument, does not change
// it and allocates nothing.
//
// # Caveats
//
// CRCs and XXH64 can be forged, MD5 and SHA-1 have collisions: they find errors, and
// keep nobody out.
//
// Composite checksums ("value-N", of a multipart object) are parsed
// ([ParseComposite]) but cannot be verified from an object's bytes alone.
//
// SHA-512, XXH3 and XXH128, which S3 also defines, are reported as
// [ErrUnknownAlgorithm], never skipped.
package checksum
