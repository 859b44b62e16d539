// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

// Package cmd holds the files that the builder (adapters/minio/fork) lays into
// MinIO's own package cmd. They see MinIO's unexported identifiers, so they
// compile nowhere else: the build tag s3rdma, which only the builder sets,
// keeps them out of every other build.
package cmd
