// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package session keeps the table that ties a connected peer to an identity.
//
// A peer introduces itself twice. First in a signed HTTP request, which says who
// it is; then on the fabric's own data socket, which cannot say that. The table
// joins the two by a one-time secret:
//
//	signed connect:   Offer(owner)          -> id and secret, sent to the peer
//	data socket:      Claim(secret, value)  -> the session is live
//	each transfer:    Acquire(id, owner)    -> a lease, released afterwards
//	disconnect:       End(id, owner)
//	socket lost:      Drop(id)
//
// A fabric may have to connect peers of which nobody says who they are: such a session
// is offered to nobody, belongs to the first identity that acquires it, and is short of
// life until then.
//
// A session that is offered and not claimed in time is forgotten, one that nobody
// leases is retired after an idle time, and both kinds count against the bounds.
// What a session holds (T: a socket, a queue pair, mappings) is aborted first,
// which stops the bytes, and closed after the last lease is back.
//
// [Keys] makes the remote keys that the other end names its regions with.
//
// # Caveats
//
// Only a lease keeps a session from being retired: traffic on the data socket does
// not. A session that has ended counts against the bounds until it is closed,
// which is when its last lease is released. Time is the [Clock]'s, so that tests
// need not wait.
package session
