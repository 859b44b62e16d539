// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package broken is an S3-over-RDMA server that can be told to break one rule at a
// time. The conformance suite is worth what it finds on it.
//
//	s, err := broken.Start(broken.Options{Broken: []string{"get-byte-too-many"}})
//	defer s.Close()
//	report, err := conformance.Run(ctx, conformance.Options{Endpoint: s.Endpoint, Fabric: "shm", ...})
//
// [Switches] is the table: each switch names the rule that it breaks and the cases of
// the suite that have to fail then. Without a switch the server is correct, and every
// case passes.
//
// It is a second implementation of PROTOCOL.md, over the fabrics shm and tcp, and
// shares no code with the plugin: what the suite demands is the text's, not what one
// implementation happens to do. Behind it is as much of S3, in memory, as the suite
// touches.
//
// # Caveats
//
// It is for tests. It keeps objects on the heap, trusts whoever knows one of its two
// pairs of keys, and remembers which key an object is encrypted with but encrypts
// nothing. It listens on 127.0.0.1.
//
// A switch that breaks several rules is not meant to break one only: a server that
// loses the last byte fails many cases. The table names those that must notice.
package broken
