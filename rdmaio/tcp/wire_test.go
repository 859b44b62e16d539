// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/s3rdma/s3rdma/rdmaio"
)

func TestRequestLayout(t *testing.T) {
	var b [requestSize]byte
	b[31] = 9 // what was there before
	request{op: opRead, length: 0x30201, id: 0x1122334455667788, addr: 0x99aabbccddeeff00, rkey: 0xdeadbeef}.put(&b)
	want := [requestSize]byte{2, 0, 0, 0, 1, 2, 3, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
		0, 0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99, 0xef, 0xbe, 0xad, 0xde}
	if b != want {
		t.Errorf("request is\n% x, want\n% x", b, want)
	}
	var a [answerSize]byte
	answer{op: opDone, status: statusOutOfBounds, id: 0x1122334455667788}.put(&a)
	if want := [answerSize]byte{1, 2, 0, 0, 0, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11}; a != want {
		t.Errorf("answer is\n% x, want\n% x", a, want)
	}
}

func FuzzParseRequest(f *testing.F) {
	var b [requestSize]byte
	f.Add(b[:])
	request{op: opWrite, length: maxFrame, id: 1, addr: ^uint64(0), rkey: ^uint32(0)}.put(&b)
	f.Add(b[:])
	request{op: opRead, length: maxFrame + 1}.put(&b)
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, in []byte) {
		var b, again [requestSize]byte
		copy(b[:], in)
		r, err := parseRequest(&b)
		if err != nil {
			if !errors.Is(err, errProtocol) {
				t.Fatalf("error %v is not errProtocol", err)
			}
			return
		}
		if r.length == 0 || r.length > maxFrame || r.op != opWrite && r.op != opRead {
			t.Fatalf("accepted %+v", r)
		}
		if r.put(&again); b != again {
			t.Fatalf("% x came back as % x", b, again)
		}
	})
}

func FuzzParseAnswer(f *testing.F) {
	var b [answerSize]byte
	f.Add(b[:])
	for _, a := range []answer{
		{op: opDone, status: statusStaleKey, id: 77}, {op: opData, length: maxFrame, id: 1}, {op: opData, length: maxFrame + 1},
		{op: opDone, length: 1}, {op: opDone, status: statusEnd}, {op: opData}, {op: opData, length: 1, status: 1},
	} {
		a.put(&b)
		f.Add(b[:])
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var b, again [answerSize]byte
		copy(b[:], in)
		a, err := parseAnswer(&b)
		if err != nil {
			if !errors.Is(err, errProtocol) {
				t.Fatalf("error %v is not errProtocol", err)
			}
			return
		}
		if a.op == opData && (a.length == 0 || a.length > maxFrame || a.status != 0) || a.op == opDone && (a.length != 0 || a.status >= statusEnd) {
			t.Fatalf("accepted %+v", a)
		}
		if a.put(&again); b != again {
			t.Fatalf("% x came back as % x", b, again)
		}
	})
}

func FuzzParsePlace(f *testing.F) {
	secret := strings.Repeat("0123456789abcdef", 2)
	for _, s := range []string{
		secret + ":2:10.0.0.1:9000", secret + ":16:[fe80::1]:1", secret + ":1:host.example:65535",
		secret + ":0:10.0.0.1:1", secret + ":17:10.0.0.1:1", secret + ":+1:h:1", secret + ":02:h:1", secret + ":2:10.0.0.1:0",
		secret + ":2:0.0.0.0:1", secret + ":2:[::]:1", secret + ":2:", secret + ":", "", "::::", strings.ToUpper(secret) + ":1:h:1",
		secret + ":2:fe80::1:1", secret + ":2:a/b:1", secret + ":2::1", secret + ":2:[::ffff:1.2.3.4]:5",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parsePlace(s)
		if err != nil {
			if !errors.Is(err, rdmaio.ErrMalformed) {
				t.Fatalf("error %v is not ErrMalformed", err)
			}
			if i := strings.IndexByte(s, ':'); i >= 32 {
				hides(t, err, s[:i])
			}
			return
		}
		if p.lanes < 1 || p.lanes > maxLanes || p.addr.IsValid() && p.addr.Addr().IsUnspecified() || !p.addr.IsValid() && (p.host == "" || p.port == 0) {
			t.Fatalf("accepted %d lanes to %q", p.lanes, p.target())
		}
		again, err := parsePlace(p.encode())
		if err != nil || again != p {
			t.Fatalf("what was parsed does not come back: %v", err)
		}
	})
}

func FuzzParseJoin(f *testing.F) {
	j := join{session: rdmaio.SessionID{1}, lane: 1, lanes: 2, nonce: [nonceSize]byte{3}, proof: [32]byte{4}}
	b := j.encode()
	f.Add(b[:])
	f.Add(bytes.Repeat([]byte{0xff}, joinSize))
	g := newGreeting().encode()
	f.Add(g[:])
	f.Fuzz(func(t *testing.T, in []byte) {
		var b [joinSize]byte
		copy(b[:], in)
		if j, err := parseJoin(&b); err == nil {
			if again := j.encode(); again != b || int(j.lane) >= int(j.lanes) || j.lanes > maxLanes || j.session.IsZero() {
				t.Fatalf("accepted lane %d of %d", j.lane, j.lanes)
			}
		} else if !errors.Is(err, rdmaio.ErrMalformed) {
			t.Fatalf("error %v is not ErrMalformed", err)
		}
		var gb [greetingSize]byte
		copy(gb[:], in)
		if _, err := parseGreeting(&gb); err != nil && !errors.Is(err, rdmaio.ErrMalformed) && !errors.Is(err, rdmaio.ErrUnsupported) {
			t.Fatalf("greeting: error %v", err)
		}
	})
}
