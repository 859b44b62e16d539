// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// guard is the number of poisoned bytes before and behind each window.
const guard = 4096

// poisonPeriod is after how many bytes the poison repeats.
const poisonPeriod = 1 << 16

// poisoned is one period of poison, computed once: windows are large.
var poisoned = sync.OnceValue(func() []byte {
	b := make([]byte, poisonPeriod)
	for i := range b {
		b[i] = byte(i*167+13) ^ byte(i>>8)
	}
	return b
})

// poison is the byte that memory has at position i before a transfer.
func poison(i int) byte { return poisoned()[i%poisonPeriod] }

// pattern returns n bytes that depend on the seed alone, repeat nowhere, and whose
// first and last byte differ from poison wherever a window begins or ends.
func pattern(seed uint64, n int) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	b := make([]byte, n)
	rand.NewChaCha8(key).Read(b) // never fails
	if n > 0 {
		// A transfer of one byte must be seen, too.
		if b[0] == poison(guard) {
			b[0] ^= 0xff
		}
		if b[n-1] == poison(guard+n-1) {
			b[n-1] ^= 0xff
		}
	}
	return b
}

// window is exposed memory with guards around it.
type window struct {
	e       *Env
	exposed rdmaio.Exposed
	off, n  int
}

// window exposes n poisoned bytes through the run's session until the case ends.
func (e *Env) window(n int) *window { return e.windowOf(e.shared(), n, guard) }

// filled is a window that holds data, for a PUT.
func (e *Env) filled(data []byte) *window {
	w := e.window(len(data))
	copy(w.bytes(), data)
	return w
}

// windowOf exposes n bytes at offset before of a region of p.
func (e *Env) windowOf(p *peer, n, before int) *window {
	total := before + n + guard
	const access = rdmaio.RemoteRead | rdmaio.RemoteWrite
	var (
		exposed rdmaio.Exposed
		err     error
	)
	if a, ok := p.target.(rdmaio.Allocator); ok {
		exposed, err = a.Alloc(total, access)
	} else {
		var mem []byte
		if mem, err = mapMemory(total); err == nil {
			e.onEnd(func(context.Context) { unmapMemory(mem) })
			exposed, err = p.target.Register(mem, access)
		}
	}
	if err != nil {
		e.failf("expose %d bytes: %v", total, err)
	}
	e.onEnd(func(context.Context) { exposed.Close() })
	w := &window{e: e, exposed: exposed, off: before, n: n}
	w.poison()
	return w
}

func (w *window) poison() {
	for all := w.exposed.Bytes(); len(all) > 0; {
		all = all[copy(all, poisoned()):]
	}
}

func (w *window) bytes() []byte { return w.exposed.Bytes()[w.off : w.off+w.n] }

// descriptor names the window.
func (w *window) descriptor() rdmaio.Descriptor {
	d, err := w.exposed.Describe(w.off, w.n)
	if err != nil {
		w.e.failf("describe %d bytes: %v", w.n, err)
	}
	return d
}

// token is the descriptor's text.
func (w *window) token() string { return w.e.encode(w.descriptor()) }

func (e *Env) encode(d rdmaio.Descriptor) string {
	s, err := d.Encode(rdmaio.EncodingSession)
	if err != nil {
		e.failf("encode a %s: %v", d, err)
	}
	return s
}

// wantReceived checks that the window begins with data and is poisoned behind, and
// so are the guards.
func (w *window) wantReceived(data []byte) {
	got := w.bytes()
	if len(data) > len(got) {
		w.e.failf("%d bytes received in a window of %d", len(data), len(got))
	}
	if at, same := firstDifference(got[:len(data)], data); !same {
		if got[at] == poison(w.off+at) {
			w.e.failf("the window was not written at byte %d of %d, though the answer is a success", at, len(data))
		}
		w.e.failf("the window differs from the object at byte %d of %d", at, len(data))
	}
	w.wantPoison(w.off+len(data), len(w.exposed.Bytes()), "behind the object's last byte")
	w.wantPoison(0, w.off, "before the window")
}

// wantUntouched checks that nothing was written anywhere.
func (w *window) wantUntouched() {
	w.wantPoison(0, w.off, "before the window")
	w.wantPoison(w.off, w.off+w.n, "in the window, though nothing may be")
	w.wantPoison(w.off+w.n, len(w.exposed.Bytes()), "behind the window")
}

func (w *window) wantPoison(from, to int, where string) {
	all := w.exposed.Bytes()
	for from < to {
		phase := from % poisonPeriod
		n := min(to-from, poisonPeriod-phase)
		if at, same := firstDifference(all[from:from+n], poisoned()[phase:phase+n]); !same {
			w.e.failf("memory was written %s (offset %d from the window's start, window of %d bytes)", where, from+at-w.off, w.n)
		}
		from += n
	}
}
