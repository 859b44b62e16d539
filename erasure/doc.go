// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package erasure reads and writes erasure-coded objects in place: shards go
// straight from their files to their final place in the caller's memory, and from
// there to their files, with no copy in between.
package erasure
