// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package plugin turns S3 requests that bear a descriptor into one-sided
// transfers. It sits in front of an S3 server's own handlers and re-implements
// none of them: authentication, policy, versions, ranges, encryption, the format
// on disk stay the server's. Only the object's bytes take another way.
//
//	request ── no descriptor ─────────────────────────────────▶ server's handler
//	   │
//	   └─ descriptor ─▶ classify ─▶ authenticate ─▶ parse ─▶ admission ─▶ link
//	                       │ other operation: server's handler     │
//	                       │                                       ▼
//	                       │                   server's handler, its body diverted:
//	                       │                   GET: what it writes goes to staging
//	                       │                        and by Link.Write to the client
//	                       │                   PUT: what it reads comes by Link.Read
//	                       ▼                        into staging
//	              declined (501), refused (400, 403), busy (503): nothing moved
//
// A [Plugin] is made from a [Config] (fabrics, staging, limits) or from
// [Settings], which are what a server's flags and environment say. A server is
// fitted to it by a [Server]: how to classify and authenticate a request, how to
// hand a body to the handler, and how to write an error. adapters/nethttp has one
// for any net/http handler, adapters/minio one for MinIO.
//
// A plugin without fabrics is switched off, which is not the same as absent: it
// still declines requests with a descriptor. A server that ignored the header
// would take a PUT for an empty object, and known clients would believe that
// their data is stored.
//
// What checksums are held against when the payload is empty is said by a policy for each
// direction, of which a request may ask more (package checksum has the table,
// integrity.go the doing). The sum of a GET is computed by the goroutine that moves the
// bytes, while they are in its cache and the handler fills the next piece: one core
// hashes what another reads. Splitting it among more would take them from other requests.
//
// hipobj-rc-v2 (hipobj.go) names its object in a header of requests of its own: a server
// that can lead those to its handlers ([Retargeter]) serves it, and all below the link is
// the same.
//
// # Caveats
//
// The descriptor must be among the signed headers, and the request must not be
// anonymous: whoever could add one to somebody else's request would choose where
// the bytes go.
//
// No answer is sent, not even an error, before the link is fenced: when the
// client sees a status, its memory is its own again.
//
// On GET the bytes are written before the status is known to be good. A client
// must not use them unless the answer is a success with the byte count it
// expected.
package plugin
