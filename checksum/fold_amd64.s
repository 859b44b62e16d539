// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !purego

#include "textflag.h"

// FOLD makes z the sum of next and z moved forward by the distance of the factors k: in
// each 16 bytes, the earlier 8 times k's first factor, the later 8 times its second, and
// next, added without carry.
#define FOLD(z, k, next, t) \
	VPCLMULQDQ $0x00, k, z, t; \
	VPCLMULQDQ $0x11, k, z, z; \
	VPTERNLOGQ $0x96, next, t, z

// func fold(p *byte, blocks int, crc uint64, k *foldFactors) (early, late uint64)
TEXT ·fold(SB), NOSPLIT, $0-48
	MOVQ p+0(FP), SI
	MOVQ blocks+8(FP), CX
	MOVQ k+24(FP), DX

	VBROADCASTI32X4 (DX), Z8   // 2048 bits
	VBROADCASTI32X4 16(DX), Z9 // 512 bits
	VMOVDQU         32(DX), X10 // 128 bits

	VMOVQ     crc+16(FP), X4
	VPXORQ    (SI), Z4, Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	JMP       next

loop:
	ADDQ $256, SI
	FOLD(Z0, Z8, (SI), Z4)
	FOLD(Z1, Z8, 64(SI), Z5)
	FOLD(Z2, Z8, 128(SI), Z6)
	FOLD(Z3, Z8, 192(SI), Z7)

next:
	DECQ CX
	JNZ  loop

	FOLD(Z0, Z9, Z1, Z4)
	FOLD(Z0, Z9, Z2, Z4)
	FOLD(Z0, Z9, Z3, Z4)

	VEXTRACTI32X4 $1, Z0, X1
	VEXTRACTI32X4 $2, Z0, X2
	VEXTRACTI32X4 $3, Z0, X3
	FOLD(X0, X10, X1, X4)
	FOLD(X0, X10, X2, X4)
	FOLD(X0, X10, X3, X4)

	VMOVQ  X0, early+32(FP)
	VPEXTRQ $1, X0, late+40(FP)
	VZEROUPPER
	RET
