// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64) && !noverbs

package ibv

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"
)

// frame carries a C call to the trampoline and its result back. The trampoline
// knows the order of the fields.
type frame struct {
	fn      uintptr
	args    [6]uintptr
	ret     uintptr
	errnoFn uintptr // called after fn if not 0: returns where errno is
	errno   uintptr
}

// trampolineAddr is set in assembly: a C function that takes a *frame.
var trampolineAddr uintptr

// runtimeCall runs fn(arg) on the thread's system stack, as every cgo call does. The
// runtime lets packages that call C without cgo link to it by name.
//
//go:linkname runtimeCall runtime.cgocall
//go:noescape
func runtimeCall(fn uintptr, arg unsafe.Pointer) int32

// Call calls a C function. Pointers among the arguments must be to memory that
// neither moves nor goes away: C's, or Go heap that is kept alive; never Go's stack.
// It allocates nothing. fn must not call back into Go.
func Call(fn uintptr, args ...uintptr) uintptr {
	f := frame{fn: fn}
	copy(f.args[:], args)
	runtimeCall(trampolineAddr, unsafe.Pointer(&f))
	return f.ret
}

// callErrno is Call, and errno as fn left it on its thread.
func (l *Lib) callErrno(fn uintptr, args ...uintptr) (uintptr, syscall.Errno) {
	f := frame{fn: fn, errnoFn: l.errnoFn}
	copy(f.args[:], args)
	runtimeCall(trampolineAddr, unsafe.Pointer(&f))
	return f.ret, syscall.Errno(f.errno)
}

// dlopen opens a shared library for good: verbs providers register themselves with
// libibverbs and cannot be taken out again.
func dlopen(name string) (uintptr, error) {
	h, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return 0, fmt.Errorf("open the library %s: %w: %w", name, ErrUnavailable, err)
	}
	return h, nil
}

// symbols fills in function addresses by name. Those in optional may be missing.
func symbols(lib string, h uintptr, required, optional map[string]*uintptr) error {
	var errs []error
	for name, p := range required {
		a, err := purego.Dlsym(h, name)
		if err != nil {
			errs = append(errs, fmt.Errorf("the library %s has no %s, it is too old: %w", lib, name, ErrUnavailable))
			continue
		}
		*p = a
	}
	for name, p := range optional {
		if a, err := purego.Dlsym(h, name); err == nil {
			*p = a
		}
	}
	return errors.Join(errs...)
}
