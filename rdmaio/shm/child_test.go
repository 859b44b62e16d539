// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

const childEnv = "S3RDMA_SHM_TEST_CHILD"

func child() int { return 0 }
