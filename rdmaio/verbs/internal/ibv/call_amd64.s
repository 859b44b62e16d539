// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && !noverbs

#include "textflag.h"

GLOBL ·trampolineAddr(SB), NOPTR, $8
DATA ·trampolineAddr(SB)/8, $trampoline(SB)

// void trampoline(struct frame *f), called by the System V convention: f in DI, the
// stack 8 short of a multiple of 16.
TEXT trampoline(SB), NOSPLIT|NOFRAME, $0
	PUSHQ BX
	MOVQ  DI, BX
	MOVQ  0(BX), R10
	MOVQ  8(BX), DI
	MOVQ  16(BX), SI
	MOVQ  24(BX), DX
	MOVQ  32(BX), CX
	MOVQ  40(BX), R8
	MOVQ  48(BX), R9
	XORL  AX, AX
	CALL  R10
	MOVQ  AX, 56(BX)
	MOVQ  64(BX), R10
	TESTQ R10, R10
	JZ    done
	CALL  R10
	MOVL  (AX), AX
	MOVQ  AX, 72(BX)
done:
	XORL  AX, AX
	POPQ  BX
	RET
