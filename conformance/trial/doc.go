// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package trial holds the suite against servers of which is known what it has to find:
//
//   - MinIO with the plugin, over shm and tcp, and switched off: every case passes;
//   - stock MinIO and versitygw's gateway, which know nothing of RDMA: the suite says so,
//     and the cases of the empty-object trap fail. What is expected of each is in the
//     files of expect/;
//   - the broken server, one switch at a time: the cases that name the rule fail.
//
// [Run] does it all and counts; the command s3rdma trial prints that, make
// test-conformance builds the servers first.
//
// # Caveats
//
// A server whose binary is not there is left out, which the output says in capitals, and
// which is no failure.
package trial
