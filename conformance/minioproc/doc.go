// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package minioproc runs a MinIO server as a child process: over drives in a folder,
// on a free port of 127.0.0.1, with or without TLS and encryption, until it is
// ready; and stops it for sure. [StartCluster] runs several as one, on addresses of
// their own.
//
// It knows MinIO from outside only: its command line, its environment, its health
// endpoint, and of its admin API the two calls that make a user.
//
// # Caveats
//
// The drives lie on one disk, which MinIO refuses outside its own CI; the harness
// sets the variable that lifts this (MINIO_CI_CD). It is for tests and
// demonstrations, not for data that matters.
//
// MinIO decides by address and port which drives of a cluster are a process's own,
// and takes all loopback addresses for its own: the nodes have different ports. In a
// container it refuses loopback addresses of others as well, unless a variable of
// MinIO's (_MINIO_SERVER_LOCAL) names its own, as is done here. A cluster has no TLS.
// Addresses other than 127.0.0.1 exist on Linux only.
package minioproc
