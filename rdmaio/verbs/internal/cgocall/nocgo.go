// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package cgocall

// Available tells whether this program was built with cgo.
const Available = false

// Call3 panics: there is no cgo.
func Call3(fn, a, b, c uintptr) uintptr { panic("cgocall: built without cgo") }
