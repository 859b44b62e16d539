// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package fabrictest

import (
	"context"
	"math"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// Harness says how to make the two ends of a fabric. Fabric and Target are
// required.
type Harness struct {
	// Fabric returns a fresh initiator, ready for peers. The suite closes it.
	Fabric func(tb testing.TB) rdmaio.Fabric

	// Target returns a fresh target, not yet connected, that can reach f. The suite
	// connects it (over f, if f is an rdmaio.Acceptor) and closes it.
	Target func(tb testing.TB, f rdmaio.Fabric) rdmaio.Target

	// Kill cuts t off as the death of its process would: its connection ends without
	// a word of farewell. The suite still closes t afterwards. nil: cases that need
	// it are skipped.
	Kill func(tb testing.TB, t rdmaio.Target)

	// Live counts what f holds on behalf of its peers at this moment: sessions,
	// regions, mappings, links. It must come back to 0 when all peers have gone. nil:
	// cases that need it are skipped.
	Live func(f rdmaio.Fabric) int

	// PostAllocates says that the fabric cannot be held to zero allocations for a
	// post, and why. Empty: it is held to it.
	PostAllocates string

	// Skip names cases of the suite that cannot apply to the fabric, each with the
	// reason. A name that no case has is an error.
	Skip map[string]string
}

// owner is the identity that the suite connects under.
const owner = "fabrictest-owner"

// env is one fabric with one connected target.
type env struct {
	tb testing.TB
	h  Harness
	f  rdmaio.Fabric
	t  rdmaio.Target

	session rdmaio.SessionID // of t as first connected; zero if the fabric has none
}

func newEnv(tb testing.TB, h Harness) *env {
	tb.Helper()
	e := &env{tb: tb, h: h, f: h.Fabric(tb)}
	tb.Cleanup(func() {
		if err := e.f.Close(); err != nil {
			tb.Errorf("close the fabric: %v", err)
		}
	})
	e.t, e.session = e.target(owner)
	return e
}

// target returns another connected target of the same fabric, and its session.
func (e *env) target(owner string) (rdmaio.Target, rdmaio.SessionID) {
	e.tb.Helper()
	t := e.h.Target(e.tb, e.f)
	e.tb.Cleanup(func() {
		if err := t.Close(); err != nil {
			e.tb.Errorf("close the target: %v", err)
		}
	})
	return t, e.connect(t, owner)
}

// connect runs the exchange that HTTP carries in real life, and returns the
// session, which is zero if the fabric has none.
func (e *env) connect(t rdmaio.Target, owner string) rdmaio.SessionID {
	e.tb.Helper()
	a, ok := e.f.(rdmaio.Acceptor)
	if !ok {
		return rdmaio.SessionID{}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	w := e.welcome(ctx, a, t, owner)
	if err := t.Connect(ctx, w); err != nil {
		e.tb.Fatalf("connect: %v", err)
	}
	return w.Session
}

// welcome is the first half of connect: what t would be answered.
func (e *env) welcome(ctx context.Context, a rdmaio.Acceptor, t rdmaio.Target, owner string) rdmaio.Welcome {
	e.tb.Helper()
	hello, err := t.Hello(ctx)
	if err != nil {
		e.tb.Fatalf("hello: %v", err)
	}
	hello.Owner = owner
	hello.Peer = netip.MustParseAddr("127.0.0.1")
	hello.Local = hello.Peer
	w, err := a.Accept(ctx, hello)
	if err != nil {
		e.tb.Fatalf("accept: %v", err)
	}
	return w
}

// acceptor returns the fabric as one whose peers connect, or skips the case.
func (e *env) acceptor() rdmaio.Acceptor {
	e.tb.Helper()
	a, ok := e.f.(rdmaio.Acceptor)
	if !ok {
		e.tb.Skip("the fabric has no sessions")
	}
	return a
}

// patience bounds what should be immediate, so that a fabric that hangs fails the
// suite and does not block it. Emulated machines that lose packets take their time.
const patience = 2 * time.Minute

// guard is how much memory before and behind what is transferred must not change.
const guard = 64 << 10

// expose makes n bytes of t's memory reachable. If t cannot expose the caller's
// memory, it makes its own.
func (e *env) expose(t rdmaio.Target, n int, access rdmaio.Access) rdmaio.Exposed {
	e.tb.Helper()
	var x rdmaio.Exposed
	var err error
	if a, ok := t.(rdmaio.Allocator); ok {
		x, err = a.Alloc(n, access)
	} else {
		mem := mmap(e.tb, n)
		x, err = t.Register(mem, access)
	}
	if err != nil {
		e.tb.Fatalf("expose %d bytes: %v", n, err)
	}
	e.tb.Cleanup(func() {
		if err := x.Close(); err != nil {
			e.tb.Errorf("close an exposed region: %v", err)
		}
	})
	if len(x.Bytes()) != n {
		e.tb.Fatalf("exposed region has %d bytes, want %d", len(x.Bytes()), n)
	}
	return x
}

// local returns n bytes registered with the fabric.
func (e *env) local(n int) rdmaio.Region {
	e.tb.Helper()
	r, err := e.f.Register(mmap(e.tb, n))
	if err != nil {
		e.tb.Fatalf("register %d bytes: %v", n, err)
	}
	e.tb.Cleanup(func() {
		if err := r.Close(); err != nil {
			e.tb.Errorf("close a region: %v", err)
		}
	})
	return r
}

// mmap returns n bytes off the heap, freed at the end of the test.
func mmap(tb testing.TB, n int) []byte {
	tb.Helper()
	mem, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		tb.Fatalf("mmap %d bytes: %v", n, err)
	}
	tb.Cleanup(func() {
		if err := syscall.Munmap(mem); err != nil {
			tb.Errorf("munmap: %v", err)
		}
	})
	return mem
}

func (e *env) describe(x rdmaio.Exposed, off, n int) rdmaio.Descriptor {
	e.tb.Helper()
	d, err := x.Describe(off, n)
	if err != nil {
		e.tb.Fatalf("describe %d bytes at %d: %v", n, off, err)
	}
	return d
}

// open returns a link that the end of the test closes, if nobody did before.
func (e *env) open(d rdmaio.Descriptor) rdmaio.Link {
	e.tb.Helper()
	l, err := e.f.Open(context.Background(), d, owner)
	if err != nil {
		e.tb.Fatalf("open %v: %v", d, err)
	}
	e.tb.Cleanup(func() { l.Close() })
	return l
}

// all is the slice that covers r.
func all(r rdmaio.Region) rdmaio.Slice { return rdmaio.Slice{Region: r, Len: len(r.Bytes())} }

// direction is one of the two kinds of transfer.
type direction struct {
	name   string
	access rdmaio.Access
	post   func(rdmaio.Link, context.Context, rdmaio.Slice, uint64) error
}

var (
	write = direction{"write", rdmaio.RemoteWrite, rdmaio.Link.Write}
	read  = direction{"read", rdmaio.RemoteRead, rdmaio.Link.Read}
)

// try opens a link, makes one transfer, fences and closes: whatever step the error
// comes from, it is the transfer's.
func (e *env) try(dir direction, d rdmaio.Descriptor, s rdmaio.Slice, at uint64) error {
	e.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l, err := e.f.Open(ctx, d, owner)
	if err != nil {
		return err
	}
	err = dir.post(l, ctx, s, at)
	if ferr := l.Fence(ctx); err == nil {
		err = ferr
	}
	if cerr := l.Close(); cerr != nil {
		e.tb.Errorf("close a link: %v", cerr)
	}
	return err
}

// fill writes a pattern that depends on seed, and has no period that a misplaced
// copy could hide in.
func fill(b []byte, seed uint64) {
	x := seed*0x9e3779b97f4a7c15 + 0x1234567
	for len(b) >= 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[0], b[1], b[2], b[3] = byte(x), byte(x>>8), byte(x>>16), byte(x>>24)
		b[4], b[5], b[6], b[7] = byte(x>>32), byte(x>>40), byte(x>>48), byte(x>>56)
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(x >> (8 * i))
	}
}

// differs returns the first index at which a and b differ, or -1.
func differs(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// mappings counts the memory mappings of this process, descriptors its open files.
func mappings(tb testing.TB) int {
	tb.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		tb.Skipf("no /proc/self/maps here: %v", err)
	}
	return strings.Count(string(b), "\n")
}

func descriptors(tb testing.TB) int {
	tb.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Skipf("no /proc/self/fd here: %v", err)
	}
	return len(d)
}

// eventually waits for cond, which other goroutines bring about.
func eventually(tb testing.TB, what string, within time.Duration, cond func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(within); !cond(); time.Sleep(200 * time.Microsecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("not within %v: %s", within, what)
		}
	}
}

// fenceLimit is what the fabric promises, with room for a slow and busy machine.
func (e *env) fenceLimit() time.Duration {
	l := e.f.Capabilities().FenceLimit
	if l <= 0 || l > math.MaxInt64/2 {
		e.tb.Fatalf("FenceLimit is %v, want a bound", l)
	}
	return l + 30*time.Second
}
