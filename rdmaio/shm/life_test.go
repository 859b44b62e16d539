// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// pair is a fabric, a target and one region, from both sides.
type pair struct {
	f  *Fabric
	t  *Target
	id rdmaio.SessionID
	x  *exposed
	r  *region
	d  rdmaio.Descriptor
}

const pairSize = 64 << 10

func newPair(t *testing.T, o TargetOptions) *pair {
	t.Helper()
	p := &pair{f: newFabric(t, Options{}), t: NewTarget(o)}
	t.Cleanup(func() { p.t.Close() })
	w := welcome(t, p.f)
	p.id = w.Session
	if err := p.t.Connect(context.Background(), w); err != nil {
		t.Fatal(err)
	}
	x, err := p.t.Alloc(pairSize, rdmaio.RemoteRead|rdmaio.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	p.x = x.(*exposed)
	if p.d, err = x.Describe(0, pairSize); err != nil {
		t.Fatal(err)
	}
	lease, err := p.f.table.Acquire(p.id, owner)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	if p.r, err = lease.Value().find(p.d.RKey); err != nil {
		t.Fatal(err)
	}
	return p
}

// While a piece is being copied, nothing that promises quiet may come back.
func TestWithdrawalWaitsForThePiece(t *testing.T) {
	for what, withdraw := range map[string]func(*pair) error{
		"rekey":        func(p *pair) error { return p.x.Rekey(context.Background()) },
		"close region": func(p *pair) error { return p.x.Close() },
		"close target": func(p *pair) error { return p.t.Close() },
		"hang up":      func(p *pair) error { return p.f.Hangup(context.Background(), p.id, owner) },
		"close fabric": func(p *pair) error { return p.f.Close() },
		"connect again": func(p *pair) error {
			return p.t.Connect(context.Background(), welcome(t, p.f))
		},
	} {
		p := newPair(t, TargetOptions{})
		p.r.mu.RLock() // as a copy does
		var back atomic.Bool
		ended := make(chan error, 1)
		go func() {
			err := withdraw(p)
			back.Store(true)
			ended <- err
		}()
		time.Sleep(20 * time.Millisecond) // it cannot be seen to wait, only not to come back
		if back.Load() {
			t.Errorf("%s came back while a piece was being copied", what)
		}
		p.r.mu.RUnlock()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := transfer(p.f, p.d, make([]byte, 10), true); err == nil {
			t.Errorf("%s: the descriptor is still good", what)
		}
	}
}

// A server that does not answer costs the session, and Rekey promises nothing until
// the server has hung up.
func TestRekeyGivesUp(t *testing.T) {
	p := newPair(t, TargetOptions{})
	p.r.mu.RLock()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if err := p.x.Rekey(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("rekey: error %v, want context.DeadlineExceeded", err)
	}
	if _, err := p.x.Describe(0, 1); !errors.Is(err, rdmaio.ErrNoSession) {
		t.Errorf("describe: error %v, want ErrNoSession", err)
	}
	again, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if err := p.x.Rekey(again); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("rekey again: error %v, want context.DeadlineExceeded", err)
	}
	p.r.mu.RUnlock()
	if err := p.x.Rekey(context.Background()); err != nil {
		t.Errorf("rekey once the server has hung up: %v", err)
	}
	if err := transfer(p.f, p.d, make([]byte, 10), true); !errors.Is(err, rdmaio.ErrNoSession) {
		t.Errorf("old descriptor: error %v, want ErrNoSession", err)
	}
	if err := p.t.Connect(context.Background(), welcome(t, p.f)); err != nil {
		t.Fatalf("connect again: %v", err)
	}
	d, err := p.x.Describe(0, pairSize)
	if err != nil {
		t.Fatal(err)
	}
	if err := transfer(p.f, d, make([]byte, 10), true); err != nil {
		t.Errorf("new descriptor: %v", err)
	}
}

// Whether a server that does not answer has taken a region is unknown: the region
// is without a session then, and the session is given up.
func TestAllocGivesUp(t *testing.T) {
	p := newPair(t, TargetOptions{Timeout: 10 * time.Millisecond})
	lease, err := p.f.table.Acquire(p.id, owner)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	lease.Value().mu.Lock() // the server cannot take a region now
	x, err := p.t.Alloc(1, rdmaio.RemoteRead)
	lease.Value().mu.Unlock()
	if err != nil {
		t.Fatalf("alloc: %v", err)
	}
	for _, x := range []rdmaio.Exposed{x, p.x} {
		if _, err := x.Describe(0, 1); !errors.Is(err, rdmaio.ErrNoSession) {
			t.Errorf("describe: error %v, want ErrNoSession", err)
		}
	}
	until(t, "the server lets go", func() bool { return p.f.Stats().Regions == 0 })
}

// A connection that was cut on this side proves nothing about the other.
func TestCutProvesNothing(t *testing.T) {
	p := newPair(t, TargetOptions{})
	p.t.conn.cut()
	if err := p.x.Rekey(context.Background()); !errors.Is(err, rdmaio.ErrPeerGone) {
		t.Errorf("rekey: error %v, want ErrPeerGone", err)
	}
}

// Where the target does not wait for ever, it frees its memory all the same.
func TestCloseGivesUp(t *testing.T) {
	p := newPair(t, TargetOptions{Timeout: 5 * time.Millisecond})
	p.r.mu.RLock()
	if err := p.x.Close(); err != nil {
		t.Errorf("close the region: %v", err)
	}
	if err := p.t.Close(); err != nil {
		t.Errorf("close the target: %v", err)
	}
	p.r.mu.RUnlock()
	until(t, "the server lets go", func() bool { return p.f.Stats() == Stats{} })
}

func TestFaultBecomesError(t *testing.T) {
	const size = 64 << 10
	// What the seals rule out: a file that shrinks under its mapping.
	fd := memfd(t, size, 0)
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	r := &region{size: size, access: rdmaio.RemoteRead | rdmaio.RemoteWrite, key: 1, mem: mem}
	defer r.withdraw(rdmaio.ErrStaleKey)
	local := make([]byte, size)
	for _, write := range []bool{true, false} {
		if err := r.move(1, local, 0, write); err != nil {
			t.Fatalf("before: %v", err)
		}
	}
	if err := unix.Ftruncate(fd, size/2); err != nil {
		t.Fatal(err)
	}
	for _, write := range []bool{true, false} {
		if err := r.move(1, local, 0, write); !errors.Is(err, rdmaio.ErrPeerGone) {
			t.Errorf("write %v: error %v, want ErrPeerGone", write, err)
		}
		if err := r.move(1, local[:size/2], 0, write); err != nil {
			t.Errorf("write %v: the half that is there: %v", write, err)
		}
	}
	// Our own side: memory that was unmapped before its time.
	gone, err := unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(gone)
	for _, write := range []bool{true, false} {
		if err := r.move(1, gone[:size/2], 0, write); !errors.Is(err, rdmaio.ErrClosed) {
			t.Errorf("write %v: error %v, want ErrClosed", write, err)
		}
	}
	// The lock is free again.
	if !r.mu.TryLock() {
		t.Fatal("a fault kept the region's lock")
	}
	r.mu.Unlock()
}

// Only faults are turned into errors.
func TestOtherPanicsPass(t *testing.T) {
	defer func() {
		if p := recover(); p != "something else" {
			t.Errorf("recovered %v", p)
		}
	}()
	faulted("something else", nil)
}

func TestTargetOptions(t *testing.T) {
	const size = 4 << 20
	for _, o := range []TargetOptions{{}, {HugePages: true}, {Lazy: true}, {HugePages: true, Lazy: true}} {
		target := NewTarget(o)
		x, err := target.Alloc(size-5, rdmaio.RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(x.(*exposed).fd, &st); err != nil {
			t.Fatal(err)
		}
		if populated := st.Blocks*512 >= size; populated == o.Lazy {
			t.Errorf("%+v: %d of %d bytes are there", o, st.Blocks*512, size)
		}
		if n := len(x.Bytes()); n != size-5 {
			t.Errorf("%d bytes, want %d", n, size-5)
		}
		if _, err := x.Describe(0, 1); !errors.Is(err, rdmaio.ErrNoSession) {
			t.Errorf("describe without a session: error %v, want ErrNoSession", err)
		}
		if err := x.Rekey(context.Background()); err != nil {
			t.Errorf("rekey without a session: %v", err)
		}
		if err := target.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := x.Close(); err != nil {
			t.Errorf("close the region of a closed target: %v", err)
		}
		if _, err := x.Describe(0, 1); !errors.Is(err, rdmaio.ErrClosed) {
			t.Errorf("describe after close: error %v, want ErrClosed", err)
		}
	}
}

func TestAllocRefuses(t *testing.T) {
	target := NewTarget(TargetOptions{})
	before := openFiles(t)
	for _, c := range []struct {
		n      int
		access rdmaio.Access
		want   error
	}{{0, rdmaio.RemoteRead, rdmaio.ErrOutOfBounds}, {-1, rdmaio.RemoteRead, rdmaio.ErrOutOfBounds}, {1, 0, rdmaio.ErrUnsupported}, {1, 4, rdmaio.ErrUnsupported}} {
		if _, err := target.Alloc(c.n, c.access); !errors.Is(err, c.want) {
			t.Errorf("%d bytes, access %d: error %v, want %v", c.n, c.access, err, c.want)
		}
	}
	if _, err := target.Register(make([]byte, 1), rdmaio.RemoteRead); !errors.Is(err, rdmaio.ErrUnsupported) {
		t.Errorf("register: error %v, want ErrUnsupported", err)
	}
	target.Close()
	if _, err := target.Alloc(1, rdmaio.RemoteRead); !errors.Is(err, rdmaio.ErrClosed) {
		t.Errorf("alloc when closed: error %v, want ErrClosed", err)
	}
	if err := target.Connect(context.Background(), rdmaio.Welcome{Token: welcomeToken(sampleSecret, "/nowhere")}); !errors.Is(err, rdmaio.ErrClosed) {
		t.Errorf("connect when closed: error %v, want ErrClosed", err)
	}
	if now := openFiles(t); now != before {
		t.Errorf("%d open files, %d before", now, before)
	}
}

func TestConnectFails(t *testing.T) {
	target := NewTarget(TargetOptions{})
	defer target.Close()
	ctx := context.Background()
	for what, c := range map[string]struct {
		token string
		want  error
	}{
		"nobody there": {welcomeToken(sampleSecret, filepath.Join(t.TempDir(), "s")), rdmaio.ErrPeerGone},
		"garbage":      {"garbage", rdmaio.ErrMalformed},
		"no path":      {sampleSecret.Hex() + ":", rdmaio.ErrMalformed},
	} {
		if err := target.Connect(ctx, rdmaio.Welcome{Token: c.token}); !errors.Is(err, c.want) {
			t.Errorf("%s: error %v, want %v", what, err, c.want)
		}
	}
	f := newFabric(t, Options{MaxRegions: 1})
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := target.Connect(cancelled, welcome(t, f)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: error %v, want context.Canceled", err)
	}
	// More live regions than the server takes: no session rather than half of one.
	for range 2 {
		if _, err := target.Alloc(1, rdmaio.RemoteRead); err != nil {
			t.Fatal(err)
		}
	}
	if err := target.Connect(ctx, welcome(t, f)); !errors.Is(err, rdmaio.ErrTooMany) {
		t.Errorf("too many regions: error %v, want ErrTooMany", err)
	}
	until(t, "the server lets go", func() bool { return f.Stats().Regions == 0 })
}

func TestIdleSessionIsRetired(t *testing.T) {
	f := newFabric(t, Options{IdleAfter: 20 * time.Millisecond})
	target := NewTarget(TargetOptions{})
	defer target.Close()
	if err := target.Connect(context.Background(), welcome(t, f)); err != nil {
		t.Fatal(err)
	}
	x, err := target.Alloc(100, rdmaio.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the server lets go", func() bool { return f.Stats() == Stats{} })
	until(t, "the target notices", func() bool {
		_, err := x.Describe(0, 1)
		return errors.Is(err, rdmaio.ErrNoSession)
	})
}

func TestListener(t *testing.T) {
	mode := func(path string) os.FileMode {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	gone := func(path string) {
		t.Helper()
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left behind (%v)", path, err)
		}
	}

	f, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(f.Path())
	if m := mode(dir); m != 0o700 {
		t.Errorf("the directory has mode %o, want 700", m)
	}
	if m := mode(f.Path()); m != 0o600 {
		t.Errorf("the socket has mode %o, want 600", m)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	gone(dir)

	path := filepath.Join(t.TempDir(), "sock")
	first, err := New(Options{Path: path, Mode: 0o666})
	if err != nil {
		t.Fatal(err)
	}
	if m := mode(path); m != 0o666 {
		t.Errorf("the socket has mode %o, want 666", m)
	}
	if _, err := New(Options{Path: path}); err == nil {
		t.Error("two servers on one socket")
	}
	works(t, first)
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	gone(path)

	// Left behind by a server that died.
	stale, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	second := newFabric(t, Options{Path: path})
	works(t, second)

	// A socket that somebody else has put in our place is not ours to remove.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	third := newFabric(t, Options{Path: path})
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	works(t, third)

	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, bad := range map[string]string{
		"a file":               file,
		"no directory":         filepath.Join(t.TempDir(), "none", "s"),
		"a directory":          t.TempDir(),
		"a file as directory":  filepath.Join(file, "s"),
		"a socket of a stream": streamSocket(t),
	} {
		if f, err := New(Options{Path: bad}); err == nil {
			t.Errorf("%s: no error", what)
			f.Close()
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "keep" {
		t.Error("a file in the socket's place was touched")
	}
}

// streamSocket is a socket of another kind that somebody listens on.
func streamSocket(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "stream")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return path
}
