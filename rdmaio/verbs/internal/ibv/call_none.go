// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !(linux && (amd64 || arm64) && !noverbs)

package ibv

import (
	"fmt"
	"runtime"
	"syscall"
)

// Call is never reached: no Lib exists here.
func Call(uintptr, ...uintptr) uintptr { panic("ibv: no library is open") }

func (l *Lib) callErrno(uintptr, ...uintptr) (uintptr, syscall.Errno) {
	panic("ibv: no library is open")
}

func dlopen(name string) (uintptr, error) {
	return 0, fmt.Errorf("this program was built without verbs (for %s/%s, or with the tag noverbs): %w", runtime.GOOS, runtime.GOARCH, ErrUnavailable)
}

func symbols(string, uintptr, map[string]*uintptr, map[string]*uintptr) error { return nil }
