// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package fabrictest

import (
	"bytes"
	"context"
	"errors"
	"math"
	"testing"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// refuses makes a transfer that must fail with one of kinds, and sees to it that
// neither memory has changed.
func (e *env) refuses(what string, dir direction, d rdmaio.Descriptor, s rdmaio.Slice, at uint64, memory []byte, kinds ...error) {
	e.tb.Helper()
	local := s.Region.Bytes()
	fill(memory, 5)
	fill(local, 6)
	wantRemote, wantLocal := bytes.Clone(memory), bytes.Clone(local)
	err := e.try(dir, d, s, at)
	if !isOne(err, kinds...) {
		e.tb.Errorf("%s: %s: error %v, want one of %v", what, dir.name, err, kinds)
	}
	same(e.tb, what+": target's memory", memory, wantRemote)
	same(e.tb, what+": initiator's memory", local, wantLocal)
}

func isOne(err error, kinds ...error) bool {
	for _, k := range kinds {
		if errors.Is(err, k) {
			return true
		}
	}
	return false
}

const both = rdmaio.RemoteRead | rdmaio.RemoteWrite

func testDescribe(t *testing.T, h Harness) {
	e := newEnv(t, h)
	const size = 10000
	x := e.expose(e.t, size, both)
	for _, c := range [][2]int{{0, size + 1}, {size, 1}, {-1, 1}, {1, -1}, {size + 1, 0}, {math.MaxInt, math.MaxInt}} {
		if _, err := x.Describe(c[0], c[1]); !errors.Is(err, rdmaio.ErrOutOfBounds) {
			t.Errorf("describe %d bytes at %d of %d: error %v, want ErrOutOfBounds", c[1], c[0], size, err)
		}
	}
	d := e.describe(x, 10, 20)
	if d.Size != 20 || d.Transport.String() != e.t.Name() {
		t.Errorf("descriptor is %v, want a %s one of 20 bytes", d, e.t.Name())
	}
	if err := x.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	if _, err := x.Describe(0, 1); !errors.Is(err, rdmaio.ErrClosed) {
		t.Errorf("describe a closed region: error %v, want ErrClosed", err)
	}
	if err := x.Close(); err != nil {
		t.Errorf("close a region again: %v", err)
	}
}

func testBeyondWindow(t *testing.T, h Harness) {
	e := newEnv(t, h)
	const size, n = 3 * guard, guard
	x, r := e.expose(e.t, size, both), e.local(size)
	d := e.describe(x, guard, n)
	for _, dir := range []direction{write, read} {
		for _, c := range []struct {
			at  uint64
			len int
		}{{0, n + 1}, {1, n}, {n, 1}, {n + 1, 0}, {n - 1, 2}, {math.MaxUint64, 1}, {math.MaxUint64 - 99, 100}, {math.MaxUint64, 2}} {
			e.refuses("beyond the window", dir, d, rdmaio.Slice{Region: r, Len: c.len}, c.at, x.Bytes(), rdmaio.ErrOutOfBounds)
		}
	}
}

// A slice that leaves its own region would read or overwrite the initiator's other
// memory.
func testBeyondSlice(t *testing.T, h Harness) {
	e := newEnv(t, h)
	const size = 3 * guard
	x, r := e.expose(e.t, size, both), e.local(guard)
	d := e.describe(x, 0, size)
	for _, dir := range []direction{write, read} {
		for _, s := range []rdmaio.Slice{
			{Region: r, Len: guard + 1}, {Region: r, Off: guard, Len: 1}, {Region: r, Off: -1, Len: 1},
			{Region: r, Off: 5, Len: -1}, {Region: r, Off: math.MaxInt, Len: 10}, {Region: r, Off: 10, Len: math.MaxInt},
		} {
			e.refuses("beyond the slice", dir, d, s, 0, x.Bytes(), rdmaio.ErrOutOfBounds)
		}
	}
	// Memory of another fabric, and memory that was registered once.
	other := newEnv(t, h)
	gone, err := e.f.Register(mmap(t, guard))
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	for what, s := range map[string]rdmaio.Slice{
		"another fabric's region": all(other.local(guard)),
		"a closed region":         {Region: gone, Len: guard},
		"no region":               {Len: 1},
	} {
		fill(x.Bytes(), 7)
		want := bytes.Clone(x.Bytes())
		if err := e.try(write, d, s, 0); err == nil {
			t.Errorf("write from %s: no error", what)
		}
		same(t, "target's memory", x.Bytes(), want)
	}
}

func testDoctored(t *testing.T, h Harness) {
	e := newEnv(t, h)
	const size = 2 * guard
	x, y, r := e.expose(e.t, size, both), e.expose(e.t, size, both), e.local(size)
	good := e.describe(x, 0, size)
	kinds := []error{rdmaio.ErrOutOfBounds, rdmaio.ErrStaleKey, rdmaio.ErrMalformed}
	change := func(f func(*rdmaio.Descriptor)) rdmaio.Descriptor {
		d := good
		f(&d)
		return d
	}
	for _, c := range []struct {
		what string
		d    rdmaio.Descriptor
		at   uint64
	}{
		{"one byte longer", change(func(d *rdmaio.Descriptor) { d.Size++ }), size},
		{"as long as can be", change(func(d *rdmaio.Descriptor) { d.Size = rdmaio.MaxWindow }), size + 4096},
		{"longer than can be", change(func(d *rdmaio.Descriptor) { d.Size = 1 << 40 }), 1 << 33},
		{"one byte earlier", change(func(d *rdmaio.Descriptor) { d.Addr-- }), 0},
		{"one byte later", change(func(d *rdmaio.Descriptor) { d.Addr++ }), size - 1},
		{"right behind", change(func(d *rdmaio.Descriptor) { d.Addr += size }), 0},
		{"address zero", change(func(d *rdmaio.Descriptor) { d.Addr = 0 }), 0},
		{"end of the address space", change(func(d *rdmaio.Descriptor) { d.Addr = math.MaxUint64 - size + 1 }), 0},
		{"wrapping around", change(func(d *rdmaio.Descriptor) { d.Addr = math.MaxUint64 - 10 }), 100},
		{"wrapping around to the region", change(func(d *rdmaio.Descriptor) { d.Size = math.MaxUint64 }), math.MaxUint64 - good.Addr + 1},
		{"another region's address", change(func(d *rdmaio.Descriptor) { d.Addr = e.describe(y, 0, size).Addr }), 0},
	} {
		for _, dir := range []direction{write, read} {
			fill(y.Bytes(), 9)
			want := bytes.Clone(y.Bytes())
			e.refuses(c.what, dir, c.d, rdmaio.Slice{Region: r, Len: 1}, c.at, x.Bytes(), kinds...)
			same(t, c.what+": neighbour", y.Bytes(), want)
		}
	}
	if err := e.try(write, good, all(r), 0); err != nil {
		t.Errorf("the descriptor itself: %v", err)
	}
}

func testStaleKey(t *testing.T, h Harness) {
	e := newEnv(t, h)
	const size = guard
	x, r := e.expose(e.t, size, both), e.local(size)
	old := e.describe(x, 0, size)
	ctx := context.Background()
	for _, dir := range []direction{write, read} {
		for _, key := range []uint32{old.RKey ^ 1, old.RKey ^ 1<<31, 0, math.MaxUint32} {
			d := old
			d.RKey = key
			e.refuses("wrong key", dir, d, all(r), 0, x.Bytes(), rdmaio.ErrStaleKey)
		}
	}
	// A link opened under the old key must not outlive it.
	writer, reader := e.open(old), e.open(old)
	if err := x.Rekey(ctx); err != nil {
		t.Fatalf("rekey: %v", err)
	}
	fill(x.Bytes(), 1)
	fill(r.Bytes(), 2)
	wantRemote, wantLocal := bytes.Clone(x.Bytes()), bytes.Clone(r.Bytes())
	for _, c := range []struct {
		dir direction
		l   rdmaio.Link
	}{{write, writer}, {read, reader}} {
		err := c.dir.post(c.l, ctx, all(r), 0)
		if err == nil {
			err = c.l.Fence(ctx)
		}
		if !errors.Is(err, rdmaio.ErrStaleKey) {
			t.Errorf("%s on a link from before the rekey: error %v, want ErrStaleKey", c.dir.name, err)
		}
		if err := c.l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	same(t, "target's memory", x.Bytes(), wantRemote)
	same(t, "initiator's memory", r.Bytes(), wantLocal)

	fresh := e.describe(x, 0, size)
	if fresh.RKey == old.RKey {
		t.Error("rekey kept the key")
	}
	for _, dir := range []direction{write, read} {
		e.refuses("key from before the rekey", dir, old, all(r), 0, x.Bytes(), rdmaio.ErrStaleKey)
		if err := e.try(dir, fresh, all(r), 0); err != nil {
			t.Errorf("%s under the new key: %v", dir.name, err)
		}
	}
	if err := x.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	for _, dir := range []direction{write, read} {
		e.refuses("key of a closed region", dir, fresh, all(r), 0, nil, rdmaio.ErrStaleKey)
	}
	if err := x.Rekey(ctx); !errors.Is(err, rdmaio.ErrClosed) {
		t.Errorf("rekey a closed region: error %v, want ErrClosed", err)
	}
}

func testWrongDirection(t *testing.T, h Harness) {
	e := newEnv(t, h)
	const size = guard
	r := e.local(size)
	readable, writable := e.expose(e.t, size, rdmaio.RemoteRead), e.expose(e.t, size, rdmaio.RemoteWrite)
	e.refuses("read-only region", write, e.describe(readable, 0, size), all(r), 0, readable.Bytes(), rdmaio.ErrStaleKey)
	e.refuses("write-only region", read, e.describe(writable, 0, size), all(r), 0, writable.Bytes(), rdmaio.ErrStaleKey)
	if err := e.try(read, e.describe(readable, 0, size), all(r), 0); err != nil {
		t.Errorf("read a readable region: %v", err)
	}
	if err := e.try(write, e.describe(writable, 0, size), all(r), 0); err != nil {
		t.Errorf("write a writable region: %v", err)
	}
}

func testWrongSession(t *testing.T, h Harness) {
	e := newEnv(t, h)
	e.acceptor()
	const size = guard
	x, r := e.expose(e.t, size, both), e.local(size)
	d := e.describe(x, 0, size)
	_, session := e.target(owner)
	for _, dir := range []direction{write, read} {
		unknown := d
		unknown.Session = rdmaio.NewSessionID()
		e.refuses("unknown session", dir, unknown, all(r), 0, x.Bytes(), rdmaio.ErrNoSession)
		zero := d
		zero.Session = rdmaio.SessionID{}
		e.refuses("no session", dir, zero, all(r), 0, x.Bytes(), rdmaio.ErrNoSession)
		other := d
		other.Session = session
		e.refuses("another session of the same identity", dir, other, all(r), 0, x.Bytes(), rdmaio.ErrStaleKey)
	}
}

func testOtherOwner(t *testing.T, h Harness) {
	e := newEnv(t, h)
	e.acceptor()
	x := e.expose(e.t, guard, both)
	d := e.describe(x, 0, guard)
	for _, who := range []string{"somebody else", "", owner + " "} {
		l, err := e.f.Open(context.Background(), d, who)
		if !errors.Is(err, rdmaio.ErrNotOwner) {
			t.Errorf("open as %q: error %v, want ErrNotOwner", who, err)
		}
		if err == nil {
			l.Close()
		}
	}
}

func testOtherTransport(t *testing.T, h Harness) {
	e := newEnv(t, h)
	x, r := e.expose(e.t, guard, both), e.local(guard)
	d := e.describe(x, 0, guard)
	mine := d.Transport
	for _, tr := range []rdmaio.Transport{0, rdmaio.TransportDC, rdmaio.TransportRC, rdmaio.TransportSHM, rdmaio.TransportTCP} {
		if tr == mine {
			continue
		}
		d.Transport = tr
		e.refuses(tr.String(), write, d, all(r), 0, x.Bytes(), rdmaio.ErrUnsupported)
	}
}

func testSticky(t *testing.T, h Harness) {
	e := newEnv(t, h)
	x, r := e.expose(e.t, guard, both), e.local(guard)
	d := e.describe(x, 0, guard)
	ctx := context.Background()
	for _, dir := range []direction{write, read} {
		l := e.open(d)
		if err := dir.post(l, ctx, all(r), 1); !errors.Is(err, rdmaio.ErrOutOfBounds) {
			t.Fatalf("%s beyond the window: error %v, want ErrOutOfBounds from the post", dir.name, err)
		}
		if err := l.Fence(ctx); !errors.Is(err, rdmaio.ErrOutOfBounds) {
			t.Errorf("fence after a failed %s: error %v, want the same again", dir.name, err)
		}
		for _, later := range []direction{write, read} {
			if err := later.post(l, ctx, all(r), 0); !errors.Is(err, rdmaio.ErrLinkDown) {
				t.Errorf("%s on a link that is down: error %v, want ErrLinkDown", later.name, err)
			}
		}
		for range 2 {
			if err := l.Close(); err != nil {
				t.Errorf("close a link that is down: %v", err)
			}
		}
	}
	if err := e.try(write, d, all(r), 0); err != nil {
		t.Errorf("a new link to the same window: %v", err)
	}
}

func testClosedLink(t *testing.T, h Harness) {
	e := newEnv(t, h)
	x, r := e.expose(e.t, guard, both), e.local(guard)
	ctx := context.Background()
	l := e.open(e.describe(x, 0, guard))
	if err := l.Write(ctx, all(r), 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	same(t, "what was posted before close", x.Bytes(), r.Bytes())
	fill(r.Bytes(), 3)
	want := bytes.Clone(x.Bytes())
	for _, dir := range []direction{write, read} {
		if err := dir.post(l, ctx, all(r), 0); err == nil {
			t.Errorf("%s on a closed link: no error", dir.name)
		}
	}
	same(t, "target's memory", x.Bytes(), want)
}

func testAcceptRefuses(t *testing.T, h Harness) {
	e := newEnv(t, h)
	a := e.acceptor()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, token := range []string{"", "999999", "-1", "one", "1 ", string(bytes.Repeat([]byte{'1'}, 1000))} {
		if _, err := a.Accept(ctx, rdmaio.Hello{Token: token, Owner: owner}); !isOne(err, rdmaio.ErrMalformed, rdmaio.ErrUnsupported) {
			t.Errorf("accept a hello of %d characters: error %v, want ErrMalformed or ErrUnsupported", len(token), err)
		}
	}

	fresh := e.h.Target(t, e.f)
	defer fresh.Close()
	w := e.welcome(ctx, a, fresh, owner)
	for what, bad := range map[string]string{
		"no token": "", "garbage": "garbage", "a token cut short": w.Token[:len(w.Token)/2],
		"another secret": flipDigit(w.Token),
	} {
		if err := fresh.Connect(ctx, rdmaio.Welcome{Session: w.Session, Token: bad, PSN: w.PSN}); err == nil {
			t.Errorf("connect with %s: no error", what)
		}
	}
	if err := fresh.Connect(ctx, w); err != nil {
		t.Fatalf("connect after failed attempts: %v", err)
	}
	thief := e.h.Target(t, e.f)
	defer thief.Close()
	if err := thief.Connect(ctx, w); err == nil {
		t.Error("a welcome was good for two peers")
	}
	x := e.expose(fresh, guard, both)
	if err := e.try(write, e.describe(x, 0, guard), all(e.local(guard)), 0); err != nil {
		t.Errorf("transfer with the first of them: %v", err)
	}
}

// flipDigit changes the first character of a token, which stays a hex digit.
func flipDigit(s string) string {
	if s == "" {
		return s
	}
	if s[0] == '0' {
		return "1" + s[1:]
	}
	return "0" + s[1:]
}
