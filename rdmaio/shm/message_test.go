// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/session"
)

var sampleSecret = session.Secret{0: 1, 7: 0xab, 15: 0xff}

var sampleMessages = []message{
	{kind: kindHello, seq: 1, secret: sampleSecret},
	{kind: kindAdd, seq: 2, rkey: 0xdeadbeef, access: rdmaio.RemoteRead | rdmaio.RemoteWrite, base: 0x7f0000001000, size: 4096},
	{kind: kindAdd, seq: math.MaxUint32, rkey: 1, access: rdmaio.RemoteRead, base: math.MaxUint64 - 1, size: 1},
	{kind: kindRevoke, seq: 3, rkey: 7},
	{kind: kindRekey, seq: 4, rkey: 7, fresh: 8},
	{kind: kindAck, seq: 5},
	{kind: kindAck, seq: 6, status: statusTooMany, text: "too many regions"},
}

func TestMessageRoundTrip(t *testing.T) {
	for _, m := range sampleMessages {
		got, err := parseMessage(m.append(nil))
		if err != nil {
			t.Errorf("message of kind %#x: %v", byte(m.kind), err)
		}
		if diff := cmp.Diff(m, got, cmp.AllowUnexported(message{})); diff != "" {
			t.Errorf("message of kind %#x (-want +got):\n%s", byte(m.kind), diff)
		}
	}
}

// What is on the wire must not change within a version.
func TestMessageGolden(t *testing.T) {
	for _, c := range []struct {
		m    message
		want string
	}{
		{sampleMessages[0], "010000000100000053335244" + "4d53484d" + "01000000" + "01000000000000ab00000000000000ff"},
		{sampleMessages[1], "0203000002000000efbeadde" + "00100000007f0000" + "0010000000000000"},
		{sampleMessages[3], "030000000300000007000000"},
		{sampleMessages[4], "04000000040000000700000008000000"},
		{message{kind: kindAck, seq: 9, status: statusRefused, text: "no"}, "80020000090000006e6f"},
	} {
		if got := fmt.Sprintf("%x", c.m.append(nil)); got != c.want {
			t.Errorf("message of kind %#x is %s, want %s", byte(c.m.kind), got, c.want)
		}
	}
}

func TestLongAckIsCut(t *testing.T) {
	m := message{kind: kindAck, text: strings.Repeat("x", 1000)}
	if b := m.append(nil); len(b) != maxMessage {
		t.Errorf("ack of %d bytes, want %d", len(b), maxMessage)
	}
}

// brokenPackets are malformed each in one way. The server's tests send them too.
func brokenPackets() map[string][]byte {
	add := sampleMessages[1].append(nil)
	change := func(b []byte, at int, v ...byte) []byte {
		b = bytes.Clone(b)
		copy(b[at:], v)
		return b
	}
	hello := sampleMessages[0].append(nil)
	all := bytes.Repeat([]byte{0xff}, 8)
	return map[string][]byte{
		"one byte":             {2},
		"only a head":          add[:headLen],
		"cut by one":           add[:len(add)-1],
		"longer by one":        append(bytes.Clone(add), 0),
		"unknown kind":         change(add, 0, 0x55),
		"kind zero":            change(add, 0, 0),
		"reserved byte":        change(add, 2, 1),
		"other reserved byte":  change(add, 3, 1),
		"no access":            change(add, 1, 0),
		"unknown access":       change(add, 1, 7),
		"size zero":            change(add, 20, make([]byte, 8)...),
		"size too large":       change(add, 20, all...),
		"wrapping around":      change(add, 12, all...),
		"hello without magic":  change(hello, headLen, 'X'),
		"hello of version 2":   change(hello, headLen+8, 2),
		"hello with an arg":    change(hello, 1, 1),
		"ack that is too long": append([]byte{byte(kindAck)}, make([]byte, maxMessage)...),
		"revoke cut":           sampleMessages[3].append(nil)[:headLen+3],
	}
}

func TestBrokenMessages(t *testing.T) {
	for what, b := range brokenPackets() {
		if _, err := parseMessage(b); !errors.Is(err, errProtocol) {
			t.Errorf("%s: error %v, want errProtocol", what, err)
		}
	}
	if _, err := parseMessage(nil); !errors.Is(err, errProtocol) {
		t.Errorf("nothing: error %v, want errProtocol", err)
	}
}

// FuzzMessage: whatever parses says the same again, byte for byte.
func FuzzMessage(f *testing.F) {
	for _, m := range sampleMessages {
		f.Add(m.append(nil))
	}
	for _, b := range brokenPackets() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMessage(b)
		if err != nil {
			if !errors.Is(err, errProtocol) {
				t.Errorf("error %v does not wrap errProtocol", err)
			}
			return
		}
		if again := m.append(nil); !bytes.Equal(again, b) {
			t.Errorf("%x became %x", b, again)
		}
		if m.kind == kindAdd && m.base+m.size < m.base {
			t.Error("a region that wraps around was parsed")
		}
		if m.kind == kindAck && (m.status == statusOK) != (m.err() == nil) {
			t.Error("status and error do not agree")
		}
	})
}

func FuzzWelcome(f *testing.F) {
	f.Add(welcomeToken(sampleSecret, "/run/s3rdma.sock"))
	f.Add("00:")
	f.Add(strings.Repeat("0", 32) + ":L3J1bg==")
	f.Add(strings.Repeat("0", 32) + ":")
	f.Add(strings.Repeat("0", 32) + ":L3J1\nbg")
	f.Fuzz(func(t *testing.T, s string) {
		secret, path, err := parseWelcome(s)
		if err != nil {
			if !errors.Is(err, rdmaio.ErrMalformed) {
				t.Errorf("error %v does not wrap ErrMalformed", err)
			}
			if len(s) > 40 && strings.Contains(err.Error(), s) {
				t.Error("the error shows the welcome")
			}
			return
		}
		if path == "" || len(path) > maxPath || welcomeToken(secret, path) != s {
			t.Error("a welcome parsed as something else than it says")
		}
	})
}

func TestStatus(t *testing.T) {
	for _, kind := range []error{rdmaio.ErrNoSession, rdmaio.ErrRefused, rdmaio.ErrTooMany, rdmaio.ErrUnsupported} {
		m := message{status: statusOf(fmt.Errorf("so: %w", kind)), text: "so"}
		if !errors.Is(m.err(), kind) {
			t.Errorf("%v came back as %v", kind, m.err())
		}
	}
	for _, m := range []message{{status: statusOf(errors.New("other"))}, {status: 200}} {
		if m.err() == nil {
			t.Error("a failure came back as none")
		}
	}
}

func TestOptions(t *testing.T) {
	for setting, o := range map[string]Options{
		"Path":                {Path: "/tmp/" + strings.Repeat("x", 103)},
		"Mode":                {Mode: 0o2000000},
		"MaxSessions":         {MaxSessions: -1},
		"MaxSessionsPerOwner": {MaxSessionsPerOwner: -1},
		"ConnectWithin":       {ConnectWithin: -1},
		"MaxRegions":          {MaxRegions: -1},
		"MaxBytes":            {MaxBytes: -1},
		"MaxTotalRegions":     {MaxTotalRegions: -1},
		"MaxTotalBytes":       {MaxTotalBytes: -1},
	} {
		_, err := New(o)
		if err == nil || !strings.Contains(err.Error(), setting) {
			t.Errorf("bad %s: error %v, want one that names it", setting, err)
		}
	}
}
