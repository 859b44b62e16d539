// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || purego

package checksum

const canFold = false

func fold(*byte, int, uint64, *foldFactors) (early, late uint64) { panic("canFold is false") }
