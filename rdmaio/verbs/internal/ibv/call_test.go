// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64) && !noverbs

package ibv

import (
	"sync"
	"syscall"
	"testing"

	"github.com/ebitengine/purego"

	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/cgocall"
)

// libc returns a function of the C library.
func libc(tb testing.TB, name string) uintptr {
	tb.Helper()
	h, err := dlopen("libc.so.6")
	if err != nil {
		tb.Skip(err)
	}
	var fn uintptr
	if err := symbols("libc", h, map[string]*uintptr{name: &fn}, nil); err != nil {
		tb.Fatal(err)
	}
	return fn
}

func TestCall(t *testing.T) {
	strtol := libc(t, "strtol")
	text := []byte("-12345\x00")
	var got int
	pinned(&text[0], func(p uintptr) { got = int(Call(strtol, p, 0, 10)) })
	if got != -12345 {
		t.Errorf("strtol: %d", got)
	}
	if n := testing.AllocsPerRun(100, func() { Call(strtol, 0, 0, 99) }); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}

// errno belongs to a thread, and the goroutine may move between two calls.
func TestCallErrno(t *testing.T) {
	l := &Lib{errnoFn: libc(t, "__errno_location")}
	closeFn, access := libc(t, "close"), libc(t, "access")
	path := append([]byte("/no/such/file"), 0)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 2000 {
				if i%2 == 0 {
					if _, errno := l.callErrno(closeFn, 1<<30); errno != syscall.EBADF {
						t.Errorf("close: %v", errno)
						return
					}
					continue
				}
				pinned(&path[0], func(p uintptr) {
					if _, errno := l.callErrno(access, p, 0); errno != syscall.ENOENT {
						t.Errorf("access: %v", errno)
					}
				})
			}
		}()
	}
	wg.Wait()
}

func TestMissingLibrary(t *testing.T) {
	if _, err := dlopen("libnosuchthing.so.9"); err == nil {
		t.Error("no error")
	} else {
		t.Log(err)
	}
}

// BenchmarkCall compares the ways to call a C function of three arguments, as post
// and poll have: this package's, cgo's with a thin C layer, and purego's generic one.
func BenchmarkCall(b *testing.B) {
	fn := libc(b, "strtol")
	text := append(make([]byte, 0, 8), 0)
	var p uintptr
	pinned(&text[0], func(a uintptr) { p = a })
	b.Run("trampoline", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Call(fn, p, 0, 10)
		}
	})
	b.Run("cgo", func(b *testing.B) {
		if !cgocall.Available {
			b.Skip("built without cgo")
		}
		b.ReportAllocs()
		for b.Loop() {
			cgocall.Call3(fn, p, 0, 10)
		}
	})
	b.Run("purego", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			purego.SyscallN(fn, p, 0, 10)
		}
	})
	_ = text
}
