// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && !noverbs

#include "textflag.h"

GLOBL ·trampolineAddr(SB), NOPTR, $8
DATA ·trampolineAddr(SB)/8, $trampoline(SB)

// void trampoline(struct frame *f), called by the AAPCS64 convention: f in R0.
TEXT trampoline(SB), NOSPLIT|NOFRAME, $0
	STP.W (R19, R30), -16(RSP)
	MOVD  R0, R19
	MOVD  0(R19), R9
	MOVD  8(R19), R0
	MOVD  16(R19), R1
	MOVD  24(R19), R2
	MOVD  32(R19), R3
	MOVD  40(R19), R4
	MOVD  48(R19), R5
	BL    (R9)
	MOVD  R0, 56(R19)
	MOVD  64(R19), R9
	CBZ   R9, done
	BL    (R9)
	MOVWU (R0), R0
	MOVD  R0, 72(R19)
done:
	MOVD  ZR, R0
	LDP.P 16(RSP), (R19, R30)
	RET
