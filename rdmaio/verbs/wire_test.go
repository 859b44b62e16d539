// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/s3rdma/s3rdma/rdmaio"
)

func v4(s string) [16]byte { return netip.MustParseAddr(s).As16() }

func TestIdentity(t *testing.T) {
	for name, id := range map[string]identity{
		"plain":    {qpn: 0x123456, psn: 7, gid: v4("10.1.2.3"), lid: 9, port: 1},
		"extended": {qpn: 17, psn: 0xffffff, gid: v4("fe80::1"), port: 2, extended: true, ctlQPN: 18, ctlPSN: 0xabcdef, mtu: 5, reads: 16},
	} {
		token, err := id.token()
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseIdentity(token, id.psn)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := cmp.Diff(id, got, cmp.AllowUnexported(identity{})); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// What a client that is not ours sends: hipObject's layout, memory fields zero.
func TestForeignIdentity(t *testing.T) {
	const token = "01" + "11000000" + "00000000000000000000ffff0a4d0001" + "00000000" + "0000000000000000" + "0000000000000000" + "01" + "0000"
	got, err := parseIdentity(token, 0x123)
	want := identity{qpn: 0x11, psn: 0x123, gid: v4("10.77.0.1"), port: 1}
	if err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

func TestIdentityRefused(t *testing.T) {
	good := identity{qpn: 17, psn: 1, gid: v4("10.0.0.1"), extended: true, ctlQPN: 18, ctlPSN: 1, mtu: 5, reads: 16}
	token := func(f func(*identity)) string {
		id := good
		f(&id)
		s, err := id.token()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	same := token(func(*identity) {})
	for name, c := range map[string]struct {
		token string
		psn   uint32
		want  error
	}{
		"empty":           {"", 1, rdmaio.ErrMalformed},
		"short":           {same[1:], 1, rdmaio.ErrMalformed},
		"not hex":         {strings.Repeat("x", 88), 1, rdmaio.ErrMalformed},
		"DC":              {"00" + same[2:], 1, rdmaio.ErrUnsupported},
		"other transport": {"02" + same[2:], 1, rdmaio.ErrUnsupported},
		"no number":       {same, 0, rdmaio.ErrMalformed},
		"large number":    {same, 1 << 24, rdmaio.ErrMalformed},
		"no queue pair":   {token(func(i *identity) { i.qpn = 0 }), 1, rdmaio.ErrMalformed},
		"no address":      {token(func(i *identity) { i.gid = [16]byte{} }), 1, rdmaio.ErrMalformed},
		"no messages":     {token(func(i *identity) { i.ctlQPN = 0 }), 1, rdmaio.ErrMalformed},
		"MTU":             {token(func(i *identity) { i.mtu = 6 }), 1, rdmaio.ErrMalformed},
		"no reads":        {token(func(i *identity) { i.reads = 0 }), 1, rdmaio.ErrMalformed},
	} {
		_, err := parseIdentity(c.token, c.psn)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: error %v, want %v", name, err, c.want)
		}
		if err != nil && len(c.token) > 20 && strings.Contains(err.Error(), c.token[:20]) {
			t.Errorf("%s: the error shows the token", name)
		}
	}
}

func FuzzParseIdentity(f *testing.F) {
	for _, id := range []identity{
		{qpn: 17, psn: 1, gid: v4("10.0.0.1")},
		{qpn: 17, psn: 1, gid: v4("10.0.0.1"), extended: true, ctlQPN: 18, ctlPSN: 1, mtu: 5, reads: 16},
	} {
		s, _ := id.token()
		f.Add(s, id.psn)
	}
	f.Add("rc:00", uint32(1))
	// hipObject's own, in either case and with its suffix, and one of a DC target.
	hip := "014200000000000000000000000000ffff0a0a30d0ddccbbaa90785634127f00000000100000000000010000"
	f.Add(hip, uint32(1))
	f.Add(strings.ToUpper(hip), uint32(0xffffff))
	f.Add(hip+":7f1234567890:1000", uint32(1))
	f.Add("00"+hip[2:], uint32(0))
	f.Fuzz(func(t *testing.T, token string, psn uint32) {
		id, err := parseIdentity(token, psn)
		if err != nil {
			if !errors.Is(err, rdmaio.ErrMalformed) && !errors.Is(err, rdmaio.ErrUnsupported) {
				t.Errorf("error of no kind: %v", err)
			}
			return
		}
		again, err := id.token()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := parseIdentity(again, psn); err != nil || back != id {
			t.Errorf("%+v became %+v, %v", id, back, err)
		}
	})
}

func TestMessages(t *testing.T) {
	for _, m := range []message{msgRearm, msgReady, msgBye} {
		if got, qpn := decodeMessage(encodeMessage(m, 0xabcdef)); got != m || qpn != 0xabcdef {
			t.Errorf("message %d came back as %d, %#x", m, got, qpn)
		}
	}
	id := rdmaio.NewSessionID()
	if a, b := rearmPSN(id, 1), rearmPSN(id, 2); a == b || a > psnMask || b > psnMask {
		t.Errorf("packet numbers %#x and %#x", a, b)
	}
}

// All tries together must end within the limit, whatever the device makes of the
// time-out.
func TestTimeoutCode(t *testing.T) {
	for _, limit := range []time.Duration{500 * time.Millisecond, time.Second, 5 * time.Second, time.Minute} {
		for _, software := range []bool{false, true} {
			code := timeoutCode(limit, dataRetries, software)
			factor := time.Duration(4)
			if software {
				factor = 2
			}
			took := factor * (dataRetries + 1) * 4096 * time.Nanosecond << code
			if took > limit || took < limit/4 {
				t.Errorf("limit %v, software %v: code %d takes up to %v", limit, software, code, took)
			}
		}
	}
	if code := timeoutCode(5*time.Second, dataRetries, true); code != 16 {
		t.Errorf("code %d for Soft-RoCE at the default, want 16", code)
	}
}

func TestChoose(t *testing.T) {
	g := func(i int, a string, k GIDType) gid { return gid{index: i, raw: v4(a), kind: k} }
	table := []gid{
		g(0, "fe80::1", GIDRoCEv1), g(1, "fe80::1", GIDRoCEv2),
		g(2, "10.0.0.1", GIDRoCEv1), g(3, "10.0.0.1", GIDRoCEv2),
		g(4, "10.0.1.1", GIDRoCEv2), g(5, "2001:db8::1", GIDRoCEv2),
	}
	a := netip.MustParseAddr
	for _, c := range []struct {
		what string
		c    choice
		want int
	}{
		{"nothing known", choice{}, 3},
		{"local address", choice{local: a("10.0.1.1")}, 4},
		{"local address, mapped", choice{local: a("::ffff:10.0.1.1")}, 4},
		{"peer of version 6", choice{peer: a("2001:db8::2")}, 5},
		{"peer of version 4, local of 6", choice{local: a("2001:db8::1"), peer: a("10.0.0.9")}, 3},
		{"link-local peer", choice{peer: a("fe80::2")}, 1},
		{"told", choice{index: 2, peer: a("2001:db8::2")}, 2},
	} {
		got, err := choose(table, c.c)
		if err != nil || got.index != c.want {
			t.Errorf("%s: %d, %v; want %d", c.what, got.index, err, c.want)
		}
	}
	if _, err := choose(table, choice{index: 9}); err == nil {
		t.Error("an index that is not in use: no error")
	}
	if _, err := choose(nil, choice{}); err == nil {
		t.Error("an empty table: no error")
	}
	if got, _ := choose(table[:1], choice{}); got.index != 0 {
		t.Error("version 1 is not used where there is nothing else")
	}
}

func TestOptions(t *testing.T) {
	if _, err := (Options{}).withDefaults(); err != nil {
		t.Errorf("zero options: %v", err)
	}
	for field, o := range map[string]Options{
		"Depth":        {Depth: 1},
		"MaxSessions":  {MaxSessions: -1},
		"PeerTimeout":  {PeerTimeout: time.Millisecond},
		"BusyPoll":     {BusyPoll: time.Minute},
		"GIDIndex":     {GIDIndex: 256},
		"AllowPeers":   {AllowPeers: []netip.Prefix{{}}},
		"Windows":      {Windows: 7},
		"FenceLimit":   {FenceLimit: -1},
		"DCInitiators": {DCInitiators: -1},
	} {
		if _, err := o.withDefaults(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: error %v does not name it", field, err)
		}
	}
}
