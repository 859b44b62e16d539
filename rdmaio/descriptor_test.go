// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package rdmaio

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/big"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// leakedHex returns a run of eight or more hex digits of secret (a field of a
// descriptor has at least that many) that shows up in shown.
func leakedHex(secret, shown string) string {
	secret, shown = strings.ToLower(secret), strings.ToLower(shown)
	const n = 8
	for i := 0; i+n <= len(secret); i++ {
		if run := secret[i : i+n]; isLowerHex(run) && strings.Contains(shown, run) {
			return run
		}
	}
	return ""
}

// secretsOf lists the ways in which d's address, key and session could be printed.
func secretsOf(d Descriptor) []string {
	var all []string
	number := func(v uint64, width int) {
		if v < 1<<16 || v == d.Size {
			return // not to be told from a length
		}
		all = append(all,
			strconv.FormatUint(v, 10), strconv.FormatUint(v, 16), strconv.FormatUint(v, 8),
			fmt.Sprintf("%0*x", width, v))
	}
	number(d.Addr, 16)
	number(uint64(d.RKey), 8)
	if !d.Session.IsZero() {
		all = append(all,
			hex.EncodeToString(d.Session[:]), fmt.Sprint(d.Session[:4]), fmt.Sprint([16]byte(d.Session)),
			strings.Trim(fmt.Sprintf("%v", d.Session[:4]), "[]"))
	}
	return all
}

func assertHidden(t testing.TB, what, shown string, secrets []string) {
	t.Helper()
	low := strings.ToLower(shown)
	for _, s := range secrets {
		if strings.Contains(low, s) {
			t.Fatalf("%s shows a secret: %q", what, shown)
		}
	}
}

// verbs are those of fmt, with flags that make it print structs in other ways.
var verbs = []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%#x", "%o", "%b", "%c", "%U", "%T", "%t", "%e", "%80v", "%-80s"}

func showDescriptor(t testing.TB, d Descriptor) {
	t.Helper()
	secrets := secretsOf(d)
	type holder struct{ D Descriptor }
	for _, v := range verbs {
		for _, x := range []any{d, &d, holder{d}, []Descriptor{d}, map[string]Descriptor{"d": d}, []any{d}} {
			if v == "%d" || v == "%x" || v == "%X" || v == "%#x" || v == "%o" || v == "%b" || v == "%T" {
				if _, ok := x.(*Descriptor); ok {
					continue // the pointer itself may be printed
				}
			}
			assertHidden(t, fmt.Sprintf("%s of %T", v, x), fmt.Sprintf(v, x), secrets)
		}
	}
	b, err := json.Marshal(holder{d})
	if err != nil {
		t.Fatal(err)
	}
	assertHidden(t, "JSON", string(b), secrets)

	var log bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(h).Info("transfer", "descriptor", d, "held", holder{d}, "pointer", &d)
	}
	assertHidden(t, "log", log.String(), secrets)
}

// Nothing prints an address, a key or a session: no verb, no log, no error.
func TestDescriptorHidesItself(t *testing.T) {
	for _, c := range golden {
		showDescriptor(t, c.want)
		for e := Encoding(0); e <= EncodingBase64+1; e++ {
			if _, err := c.want.Encode(e); err != nil {
				assertHidden(t, "error of Encode", fmt.Sprintf("%v %+v %#v", err, err, err), secretsOf(c.want))
			}
		}
		if _, err := c.want.Narrow(c.want.Size, 1); err == nil {
			t.Errorf("%s: narrowed to a byte behind the end", c.name)
		} else {
			assertHidden(t, "error of Narrow", fmt.Sprintf("%v %+v %#v", err, err, err), secretsOf(c.want))
		}
	}
	id := NewSessionID()
	for _, v := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		assertHidden(t, v+" of a SessionID", fmt.Sprintf(v, id), secretsOf(Descriptor{Session: id}))
	}
}

// mutations returns texts near s, most of which Parse refuses.
func mutations(s string) []string {
	all := []string{s, s + ";", s + ":", s + ":ofi1:efa", strings.ToUpper(s), " " + s, "ud:" + s, b64(s), s + s}
	for i := range s {
		all = append(all, s[:i]+s[i+1:], s[:i]+"z"+s[i+1:], s[:i]+":"+s[i:], s[:i], s[:i]+"F"+s[i+1:], s[:i]+"f"+s[i+1:])
	}
	return all
}

func TestErrorsHideTheText(t *testing.T) {
	seen := 0
	check := func(text string) {
		for _, o := range []ParseOptions{{}, {Base64: true}} {
			d, _, err := Parse(text, o)
			if err == nil {
				assertHidden(t, "descriptor", fmt.Sprintf("%v %+v %#v %s", d, d, d, d), secretsOf(d))
				continue
			}
			seen++
			for shown := err; shown != nil; shown = errors.Unwrap(shown) {
				if s := fmt.Sprintf("%v %+v %#v %s", shown, shown, shown, shown); leakedHex(text, s) != "" {
					t.Fatalf("error repeats digits of the text: %s", s)
				}
			}
		}
		if _, err := ParseSessionID(text); err != nil && leakedHex(text, err.Error()) != "" {
			t.Fatalf("error repeats digits of the text: %v", err)
		}
	}
	for _, c := range golden {
		for _, m := range mutations(c.text) {
			check(m)
		}
	}
	for _, c := range refused {
		check(c.text)
		check(c.text[:len(c.text)/2] + c.text)
	}
	if seen < 1000 {
		t.Errorf("only %d errors were looked at", seen)
	}
}

// The test above must be able to fail.
func TestLeakedHex(t *testing.T) {
	if leakedHex(bareScality, "bad key aabbccdd") == "" || leakedHex(bareScality, "at 00007F1234567890") == "" {
		t.Error("a leak was not found")
	}
	if got := leakedHex(bareScality, "81 characters, but not seven lower-case hex fields"); got != "" {
		t.Errorf("found %q where nothing is", got)
	}
}

// within is CheckBounds in numbers that cannot overflow.
func within(size, off, n uint64) bool {
	end := new(big.Int).Add(new(big.Int).SetUint64(off), new(big.Int).SetUint64(n))
	return end.Cmp(new(big.Int).SetUint64(size)) <= 0
}

func edgy() *rapid.Generator[uint64] {
	return rapid.OneOf(rapid.Uint64Range(0, 16), rapid.Uint64(), rapid.Uint64Range(math.MaxUint64-16, math.MaxUint64))
}

func TestCheckBounds(t *testing.T) {
	const max = math.MaxUint64
	for _, c := range []struct {
		size, off, n uint64
		ok           bool
	}{
		{0, 0, 0, true}, {0, 0, 1, false}, {0, 1, 0, false}, {8, 8, 0, true}, {8, 9, 0, false}, {8, 7, 1, true},
		{8, 7, 2, false}, {8, 4, max, false}, {8, max, 9, false}, {8, max, max, false}, {max, max, 0, true},
		{max, 0, max, true}, {max, 1, max, false}, {max, max, 1, false},
	} {
		err := CheckBounds(c.size, c.off, c.n)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrOutOfBounds) {
			t.Errorf("%d bytes at %d of %d: %v", c.n, c.off, c.size, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		size, off, n := edgy().Draw(t, "size"), edgy().Draw(t, "off"), edgy().Draw(t, "n")
		if err := CheckBounds(size, off, n); (err == nil) != within(size, off, n) {
			t.Fatalf("%d bytes at %d of %d: %v", n, off, size, err)
		}
	})
}

func TestNarrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := anyDescriptor(t)
		d.Addr, d.Size = edgy().Draw(t, "addr"), edgy().Draw(t, "size")
		off, n := edgy().Draw(t, "off"), edgy().Draw(t, "n")
		wraps := d.Addr+d.Size < d.Addr
		got, err := d.Narrow(off, n)
		if err != nil {
			if !wraps && within(d.Size, off, n) {
				t.Fatalf("refused a good window: %v", err)
			}
			if !errors.Is(err, ErrOutOfBounds) || got != (Descriptor{}) {
				t.Fatalf("error %v with a descriptor of %d bytes", err, got.Size)
			}
			return
		}
		if wraps || !within(d.Size, off, n) {
			t.Fatalf("took %d bytes at %d of a window of %d (wraps: %v)", n, off, d.Size, wraps)
		}
		if got.Addr < d.Addr || got.Addr+got.Size < got.Addr || got.Addr+got.Size > d.Addr+d.Size {
			t.Fatal("the window grew")
		}
		if want := with(d, func(w *Descriptor) { w.Addr += off; w.Size = n }); got != want {
			t.Fatal("something else changed")
		}
		// Narrowing twice is narrowing once by the sums.
		if n > 0 {
			twice, err := got.Narrow(n/2, n-n/2)
			once, err2 := d.Narrow(off+n/2, n-n/2)
			if err != nil || err2 != nil || twice != once {
				t.Fatalf("in two steps: %v, in one: %v", err, err2)
			}
		}
	})
}

func TestPeerAddr(t *testing.T) {
	for _, c := range []struct {
		d    Descriptor
		want string
	}{
		{scality(), "10.10.48.208"},
		{with(scality(), func(d *Descriptor) { d.GID = netip.MustParseAddr("fe80::1").As16() }), "fe80::1"},
		{with(scality(), func(d *Descriptor) { d.GIDPresent = false }), ""},
		{sessionOf(TransportSHM), ""},
	} {
		got, ok := c.d.PeerAddr()
		if ok != (c.want != "") || ok && got.String() != c.want {
			t.Errorf("got %v, %v, want %q", got, ok, c.want)
		}
	}
}

func TestNames(t *testing.T) {
	for tr, want := range map[Transport]string{
		TransportDC: "dc", TransportRC: "rc", TransportSHM: "shm", TransportTCP: "tcp", 0: "transport(0)", 9: "transport(9)",
	} {
		if tr.String() != want {
			t.Errorf("transport is called %s, want %s", tr, want)
		}
	}
	for e, want := range map[Encoding]string{
		EncodingBare: "bare", EncodingSuffix: "suffix", EncodingSession: "session", EncodingHipObject: "hipobject",
		EncodingBase64: "base64", 0: "encoding(0)",
	} {
		if e.String() != want {
			t.Errorf("encoding is called %s, want %s", e, want)
		}
	}
}

func TestSessionID(t *testing.T) {
	if !(SessionID{}).IsZero() || NewSessionID().IsZero() || NewSessionID() == NewSessionID() {
		t.Error("ids are not random")
	}
	id, err := ParseSessionID(sessionHex)
	if err != nil || id.Hex() != sessionHex {
		t.Errorf("id does not round-trip: %v", err)
	}
}

func BenchmarkNarrow(b *testing.B) {
	d := scality()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Narrow(4096, 65536); err != nil {
			b.Fatal(err)
		}
	}
}
