// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2e has no code but tests of everything together: the conformance suite,
// the demonstration and the interop check against real MinIO processes.
//
// They run where S3RDMA_FORK names a MinIO with the plugin and S3RDMA_STOCK one
// without ("make test-minio" builds both), and are skipped elsewhere.
package e2e
