// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package checksum

import "golang.org/x/sys/cpu"

var canFold = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512VPCLMULQDQ

// fold folds the first blocks*foldBlock bytes of p, blocks being 1 or more, into 16: the
// earlier and the later 8, little-endian. crc is the state that the CRC begins with,
// which is added to the first bytes.
//
//go:noescape
func fold(p *byte, blocks int, crc uint64, k *foldFactors) (early, late uint64)
