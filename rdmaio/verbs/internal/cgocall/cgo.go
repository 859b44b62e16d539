// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package cgocall

/*
#include <stdint.h>

static uintptr_t call3(uintptr_t fn, uintptr_t a, uintptr_t b, uintptr_t c) {
	return ((uintptr_t (*)(uintptr_t, uintptr_t, uintptr_t))fn)(a, b, c);
}
*/
import "C"

// Available tells whether this program was built with cgo.
const Available = true

// Call3 calls a C function of three word-sized arguments.
func Call3(fn, a, b, c uintptr) uintptr {
	return uintptr(C.call3(C.uintptr_t(fn), C.uintptr_t(a), C.uintptr_t(b), C.uintptr_t(c)))
}
