// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package awssdk has no code but tests of aws-sdk-go-v2 beside this project's client,
// against a MinIO with the plugin: that checksums of objects which went by the fabric
// are those that the SDK verifies by default, and the reverse; and what the SDK's
// defaults do to a request with a descriptor.
//
// It is a module of its own so that nobody else needs the SDK. The tests run where
// S3RDMA_FORK names a MinIO with the plugin ("make test-minio" builds it).
package awssdk
