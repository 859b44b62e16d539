// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package cgocall is the road not taken: a thin layer in C, called through cgo. Only
// benchmarks use it, to show what that would gain (see package ibv). Without cgo it
// is empty.
package cgocall
