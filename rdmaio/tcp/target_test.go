// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

const both = rdmaio.RemoteRead | rdmaio.RemoteWrite

func newTarget(tb testing.TB) *Target {
	tb.Helper()
	t := NewTarget(quick())
	tb.Cleanup(func() {
		if err := t.Close(); err != nil {
			tb.Errorf("close the target: %v", err)
		}
	})
	return t
}

func expose(tb testing.TB, t *Target, n int, access rdmaio.Access) *exposed {
	tb.Helper()
	x, err := t.Alloc(n, access)
	if err != nil {
		tb.Fatal(err)
	}
	return x.(*exposed)
}

func (e *exposed) currentKey() uint32 {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.key
}

// A target that is told nonsense does not serve it, and does not lose its place in
// the stream.
func TestTargetRefuses(t *testing.T) {
	tgt := newTarget(t)
	const size = 64 << 10
	rw, ro, wo := expose(t, tgt, size, both), expose(t, tgt, size, rdmaio.RemoteRead), expose(t, tgt, size, rdmaio.RemoteWrite)
	for _, x := range []*exposed{rw, ro, wo} {
		set(x.mem, 0x55)
	}
	e := newEvilInitiator(t, tgt)
	payload := bytes.Repeat([]byte{0xaa}, maxFrame)
	for i, c := range []struct {
		what string
		r    request
		want status
	}{
		{"no key", request{op: opWrite, length: 10, addr: rw.base}, statusStaleKey},
		{"read, no key", request{op: opRead, length: 10, addr: rw.base}, statusStaleKey},
		{"wrong key", request{op: opWrite, length: 10, addr: rw.base, rkey: rw.currentKey() ^ 1}, statusStaleKey},
		{"write what is for reading", request{op: opWrite, length: 10, addr: ro.base, rkey: ro.currentKey()}, statusStaleKey},
		{"read what is for writing", request{op: opRead, length: 10, addr: wo.base, rkey: wo.currentKey()}, statusStaleKey},
		{"before", request{op: opWrite, length: 10, addr: rw.base - 1, rkey: rw.currentKey()}, statusOutOfBounds},
		{"beyond", request{op: opWrite, length: 10, addr: rw.base + size - 9, rkey: rw.currentKey()}, statusOutOfBounds},
		{"longer", request{op: opWrite, length: size + 1, addr: rw.base, rkey: rw.currentKey()}, statusOutOfBounds},
		{"longest", request{op: opWrite, length: maxFrame, addr: rw.base, rkey: rw.currentKey()}, statusOutOfBounds},
		{"read beyond", request{op: opRead, length: 10, addr: rw.base + size - 9, rkey: rw.currentKey()}, statusOutOfBounds},
		{"wraps", request{op: opWrite, length: 10, addr: ^uint64(0) - 3, rkey: rw.currentKey()}, statusOutOfBounds},
		{"zero", request{op: opRead, length: 10, addr: 0, rkey: rw.currentKey()}, statusOutOfBounds},
	} {
		c.r.id = uint64(i) + 100
		e.request(c.r)
		if c.r.op == opWrite {
			e.send(payload[:c.r.length])
		}
		if a := e.answer(); a.op != opDone || a.status != c.want || a.id != c.r.id {
			t.Errorf("%s: answer %+v, want DONE with status %d", c.what, a, c.want)
		}
	}
	for _, x := range []*exposed{rw, ro, wo} {
		only(t, "region", x.mem, 0x55)
	}
	e.request(request{op: opWrite, length: size, id: 5, addr: rw.base, rkey: rw.currentKey()})
	e.send(payload[:size])
	if a := e.answer(); a != (answer{op: opDone, id: 5}) {
		t.Fatalf("a good write: %+v", a)
	}
	only(t, "region after a good write", rw.mem, 0xaa)
}

// What is no frame ends the session, at once and without a byte written.
func TestTargetEndsSession(t *testing.T) {
	for what, f := range map[string]func(x *exposed) []byte{
		"unknown request": func(x *exposed) []byte {
			return frame(request{op: 3, length: 8, addr: x.base, rkey: x.currentKey()})
		},
		"too long": func(x *exposed) []byte {
			return frame(request{op: opWrite, length: maxFrame + 1, addr: x.base, rkey: x.currentKey()})
		},
		"empty": func(x *exposed) []byte {
			return frame(request{op: opRead, addr: x.base, rkey: x.currentKey()})
		},
		"garbage": func(*exposed) []byte { return bytes.Repeat([]byte{0xff}, 100) },
	} {
		t.Run(what, func(t *testing.T) {
			tgt := newTarget(t)
			x := expose(t, tgt, 4096, both)
			e := newEvilInitiator(t, tgt)
			if _, err := x.Describe(0, 1); err != nil {
				t.Fatal(err)
			}
			e.send(f(x))
			eventually(t, "session is lost", func() bool {
				_, err := x.Describe(0, 1)
				return errors.Is(err, rdmaio.ErrNoSession)
			})
			only(t, "region", x.mem, 0)
		})
	}
}

func frame(r request) []byte {
	var b [requestSize]byte
	r.put(&b)
	return append(b[:], make([]byte, 64)...)
}

// The bytes that are still in a socket when a region is withdrawn never arrive: not
// after a Rekey, and not after a Close, which unmaps.
func TestWithdrawInMidWrite(t *testing.T) {
	for _, how := range []string{"Rekey", "Close"} {
		t.Run(how, func(t *testing.T) {
			tgt := newTarget(t)
			const size = 256 << 10
			mem := mapped(t, size)
			x0, err := tgt.Register(mem, both)
			if err != nil {
				t.Fatal(err)
			}
			x := x0.(*exposed)
			e := newEvilInitiator(t, tgt)
			e.request(request{op: opWrite, length: size, id: 1, addr: x.base, rkey: x.currentKey()})
			first := bytes.Repeat([]byte{1}, size/2)
			e.send(first)
			eventually(t, "first half is placed", func() bool {
				x.mu.Lock()
				defer x.mu.Unlock()
				return mem[size/2-1] == 1
			})
			// The agent waits for the other half now. Nobody may wait for the agent.
			if how == "Rekey" {
				err = x.Rekey(context.Background())
			} else {
				err = x.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			set(mem, 0xee)
			e.send(bytes.Repeat([]byte{2}, size/2))
			if a := e.answer(); a != (answer{op: opDone, status: statusStaleKey, id: 1}) {
				t.Errorf("answer is %+v, want DONE with a stale key", a)
			}
			only(t, "region", mem, 0xee)
		})
	}
}

// The same for a READ: what was announced is filled up, and declared void.
func TestWithdrawInMidRead(t *testing.T) {
	tgt := newTarget(t)
	const size = maxFrame
	x := expose(t, tgt, size, both)
	set(x.mem, 1)
	e := newEvilInitiator(t, tgt)
	// Far less than a frame, so that the agent gets stuck in the first.
	tgt.present.lanes[0].conn.SetWriteBuffer(16 << 10)
	e.conn.(*net.TCPConn).SetReadBuffer(16 << 10)
	for id := range uint64(2) {
		e.request(request{op: opRead, length: size, id: id, addr: x.base, rkey: x.currentKey()})
	}
	if a := e.answer(); a != (answer{op: opData, length: size}) {
		t.Fatalf("answer is %+v, want the DATA of the first read", a)
	}
	buf := make([]byte, size)
	if _, err := io.ReadFull(e.conn, buf[:1]); err != nil {
		t.Fatal(err)
	}
	if err := x.Rekey(context.Background()); err != nil {
		t.Fatal(err)
	}
	set(x.mem, 0xee)
	if _, err := io.ReadFull(e.conn, buf[1:]); err != nil {
		t.Fatal(err)
	}
	if buf[0] != 1 || buf[size-1] != 0 || bytes.IndexByte(buf, 0xee) >= 0 {
		t.Errorf("read begins with %#x and ends with %#x, want 1 and 0, and never what was written after Rekey had returned", buf[0], buf[size-1])
	}
	for id := range uint64(2) {
		if a := e.answer(); a != (answer{op: opDone, status: statusStaleKey, id: id}) {
			t.Errorf("answer is %+v, want DONE of %d with a stale key", a, id)
		}
	}
}

// Withdrawn keys are not remembered.
func TestRekeyLeaksNothing(t *testing.T) {
	tgt := newTarget(t)
	x := expose(t, tgt, 10, both)
	seen := make(map[uint32]bool)
	for range 1000 {
		if err := x.Rekey(context.Background()); err != nil {
			t.Fatal(err)
		}
		if k := x.currentKey(); k == 0 || seen[k] {
			t.Fatal("a key is 0, or came back")
		}
		seen[x.currentKey()] = true
	}
	if len(tgt.byKey) != 1 {
		t.Errorf("target holds %d keys of one region", len(tgt.byKey))
	}
}

// An initiator that stops in the middle of a frame costs the session, not the
// target.
func TestInitiatorStalls(t *testing.T) {
	o := quick()
	o.PeerTimeout = 100 * time.Millisecond
	tgt := NewTarget(o)
	defer tgt.Close()
	x := expose(t, tgt, 4096, both)
	e := newEvilInitiator(t, tgt)
	e.request(request{op: opWrite, length: 4096, id: 1, addr: x.base, rkey: x.currentKey()})
	eventually(t, "session is given up", func() bool {
		_, err := x.Describe(0, 1)
		return errors.Is(err, rdmaio.ErrNoSession)
	})
}

// FuzzAgent feeds a target with any stream. It may answer or hang up; it may write
// only where its key says.
func FuzzAgent(f *testing.F) {
	f.Add([]byte{1, 0}, uint16(8), uint16(0), true)
	f.Add(frame(request{op: opWrite, length: 64, addr: 1, rkey: 1}), uint16(100), uint16(10), true)
	f.Add(frame(request{op: opRead, length: 64}), uint16(4096), uint16(1), false)
	f.Fuzz(func(t *testing.T, raw []byte, length, off uint16, goodKey bool) {
		tgt := newTarget(t)
		mem := mapped(t, 3*4096)
		x0, err := tgt.Register(mem[4096:8192], both)
		if err != nil {
			t.Fatal(err)
		}
		x := x0.(*exposed)
		e := newEvilInitiator(t, tgt)
		r := request{op: opWrite, length: uint32(length), id: 1, addr: x.base + uint64(off), rkey: x.currentKey()}
		if !goodKey {
			r.rkey++
		}
		var b [requestSize]byte
		r.put(&b)
		stream := append(b[:], bytes.Repeat([]byte{9}, int(length))...)
		e.conn.Write(append(stream, raw...))
		e.conn.(interface{ CloseWrite() error }).CloseWrite()
		io.Copy(io.Discard, e.conn)
		eventually(t, "session is over", func() bool {
			_, err := x.Describe(0, 1)
			return errors.Is(err, rdmaio.ErrNoSession)
		})
		only(t, "before the region", mem[:4096], 0)
		only(t, "behind the region", mem[8192:], 0)
		if !goodKey || int(off)+int(length) > 4096 {
			only(t, "region of a refused write", mem[4096:8192], 0)
		}
	})
}
