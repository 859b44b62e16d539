// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package rdmaio

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// gid4 is the IPv4-mapped form of a RoCE v2 address.
func gid4(a, b, c, d byte) [16]byte {
	return [16]byte{10: 0xff, 11: 0xff, 12: a, 13: b, 14: c, 15: d}
}

// The published values: a live mlx5 probe, the golden value of an independent
// encoder, and the test value of an independent parser.
const (
	bareProbe    = "000073967e5ff000:00400000:01f2e973:0000:007a03:1:00000000000000000000ffff0f0f0fdf"
	bareScality  = "00007f1234567890:00100000:aabbccdd:0000:000042:1:00000000000000000000ffff0a0a30d0"
	bareElbencho = "0000000000001000:00100000:00000001:0000:000001:1:00000000000000000000ffffc0a80001"
	// InfiniBand, at the edges of the fields.
	bareEdge = "fffffffdfffffffe:ffffffff:ffffffff:ffff:ffffff:0:00000000000000000000000000000000"
	bareZero = "0000000000000000:00000000:00000000:0000:000000:0:00000000000000000000000000000000"

	sessionHex  = "0123456789abcdef0f1e2d3c4b5a6978"
	sessionTail = sessionHex + ":00007f1234567890:00100000:aabbccdd"

	// By hand from the byte layout, field by field.
	hipRest = "34127a00" + // qpn 0x7a1234
		"00000000000000000000ffff0a0a30d0" + // gid, network order
		"ddccbbaa" + // rkey 0xaabbccdd
		"9078563412fe0100" + // addr 0x0001fe1234567890
		"0000100001000000" + // len 0x100100000: beyond 32 bits
		"02" + // port
		"0301" // lid 0x0103
	hipDC = "00" + hipRest
	hipRC = "01" + hipRest
)

func scality() Descriptor {
	return Descriptor{
		Transport: TransportDC, Addr: 0x7f1234567890, Size: 1 << 20, RKey: 0xaabbccdd, QPN: 0x42,
		GID: gid4(10, 10, 48, 208), GIDPresent: true,
	}
}

func sessionOf(t Transport) Descriptor {
	return Descriptor{
		Transport: t, Addr: 0x7f1234567890, Size: 1 << 20, RKey: 0xaabbccdd,
		Session: SessionID{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x0f, 0x1e, 0x2d, 0x3c, 0x4b, 0x5a, 0x69, 0x78},
	}
}

func hip(t Transport) Descriptor {
	return Descriptor{
		Transport: t, Addr: 0x0001fe1234567890, Size: 0x100100000, RKey: 0xaabbccdd, QPN: 0x7a1234,
		GID: gid4(10, 10, 48, 208), GIDPresent: true, LID: 0x0103, Port: 2,
	}
}

// with returns d after f has changed it.
func with(d Descriptor, f func(*Descriptor)) Descriptor { f(&d); return d }

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// golden are texts and what Parse makes of them. Nothing but the texts themselves
// is taken from the code under test.
var golden = []struct {
	name string
	text string
	o    ParseOptions
	enc  Encoding
	want Descriptor
	// exact: Encode gives the text back, not just an equal descriptor.
	exact bool
}{
	{name: "bare, mlx5 probe", text: bareProbe, enc: EncodingBare, exact: true, want: Descriptor{
		Transport: TransportDC, Addr: 0x73967e5ff000, Size: 4 << 20, RKey: 0x01f2e973, QPN: 0x7a03,
		GID: gid4(15, 15, 15, 223), GIDPresent: true,
	}},
	{name: "bare, scality", text: bareScality, enc: EncodingBare, exact: true, want: scality()},
	{name: "bare, elbencho", text: bareElbencho, enc: EncodingBare, exact: true, want: Descriptor{
		Transport: TransportDC, Addr: 0x1000, Size: 1 << 20, RKey: 1, QPN: 1, GID: gid4(192, 168, 0, 1), GIDPresent: true,
	}},
	{name: "bare, edges", text: bareEdge, enc: EncodingBare, exact: true, want: Descriptor{
		Transport: TransportDC, Addr: 0xfffffffdfffffffe, Size: math.MaxUint32, RKey: math.MaxUint32, LID: 0xffff, QPN: 0xffffff,
	}},
	{name: "bare, zeros", text: bareZero, enc: EncodingBare, exact: true, want: Descriptor{Transport: TransportDC}},
	{name: "bare, last byte of the address space left out", text: "ffffffff00000000:ffffffff" + bareZero[25:], enc: EncodingBare, exact: true,
		want: Descriptor{Transport: TransportDC, Addr: 0xffffffff00000000, Size: math.MaxUint32}},
	{name: "bare, semicolon", text: bareScality + ";", enc: EncodingBare, want: scality()},

	{name: "suffix, whole window", text: bareScality + ":00007f1234567890:0000000000100000", enc: EncodingSuffix, exact: true, want: scality()},
	{name: "suffix, semicolon", text: bareScality + ":00007f1234567890:0000000000100000;", enc: EncodingSuffix, want: scality()},
	{name: "suffix, narrowed", text: bareScality + ":00007f1234567990:0000000000001000", enc: EncodingSuffix,
		want: with(scality(), func(d *Descriptor) { d.Addr += 0x100; d.Size = 0x1000 })},
	{name: "suffix, last byte", text: bareScality + ":00007f123466788f:0000000000000001", enc: EncodingSuffix,
		want: with(scality(), func(d *Descriptor) { d.Addr += 0xfffff; d.Size = 1 })},
	{name: "suffix, empty at the end", text: bareScality + ":00007f1234667890:0000000000000000", enc: EncodingSuffix,
		want: with(scality(), func(d *Descriptor) { d.Addr += 0x100000; d.Size = 0 })},

	{name: "rc session", text: "rc:" + sessionTail, enc: EncodingSession, exact: true, want: sessionOf(TransportRC)},
	{name: "shm session", text: "shm:" + sessionTail, enc: EncodingSession, exact: true, want: sessionOf(TransportSHM)},
	{name: "tcp session", text: "tcp:" + sessionTail, enc: EncodingSession, exact: true, want: sessionOf(TransportTCP)},

	{name: "hipObject DC", text: hipDC, enc: EncodingHipObject, exact: true, want: hip(TransportDC)},
	{name: "hipObject RC", text: hipRC, enc: EncodingHipObject, exact: true, want: hip(TransportRC)},
	{name: "hipObject, upper case", text: strings.ToUpper(hipRC), enc: EncodingHipObject, want: hip(TransportRC)},
	{name: "hipObject, no gid", text: hipDC[:10] + strings.Repeat("0", 32) + hipDC[42:], enc: EncodingHipObject, exact: true,
		want: with(hip(TransportDC), func(d *Descriptor) { d.GID, d.GIDPresent = [16]byte{}, false })},
	{name: "hipObject, suffix", text: hipRC + ":1fe1234567891:2", enc: EncodingHipObject,
		want: with(hip(TransportRC), func(d *Descriptor) { d.Addr++; d.Size = 2 })},

	{name: "base64", text: b64(bareScality), o: ParseOptions{Base64: true}, enc: EncodingBase64, exact: true, want: scality()},
}

func TestParseGolden(t *testing.T) {
	for _, c := range golden {
		t.Run(c.name, func(t *testing.T) {
			d, enc, err := Parse(c.text, c.o)
			if err != nil {
				t.Fatal(err)
			}
			if enc != c.enc {
				t.Errorf("encoding %s, want %s", enc, c.enc)
			}
			if d != c.want {
				t.Errorf("fields differ (-want +got):\n%s", cmp.Diff(fields(c.want), fields(d)))
			}
			text, err := d.Encode(enc)
			if err != nil {
				t.Fatal(err)
			}
			if c.exact && text != c.text {
				t.Errorf("encoded as\n%s, want\n%s", text, c.text)
			}
			if again, _, err := Parse(text, c.o); err != nil || again != d {
				t.Errorf("parsed again: %v, fields differ: %s", err, cmp.Diff(fields(d), fields(again)))
			}
		})
	}
}

// fields shows what a Descriptor's own String hides.
func fields(d Descriptor) map[string]any {
	return map[string]any{
		"transport": d.Transport, "addr": d.Addr, "size": d.Size, "rkey": d.RKey, "session": d.Session.Hex(),
		"qpn": d.QPN, "gid": hex.EncodeToString(d.GID[:]), "present": d.GIDPresent, "lid": d.LID, "port": d.Port,
	}
}

// refused are texts that Parse must not take, and how it must call them.
var refused = []struct {
	name string
	text string
	o    ParseOptions
	want error
}{
	{"empty", "", ParseOptions{}, ErrMalformed},
	{"a semicolon", ";", ParseOptions{}, ErrMalformed},
	{"too long", strings.Repeat("a", maxEncoded+1), ParseOptions{}, ErrMalformed},
	{"upper-case hex in bare", strings.ToUpper(bareScality), ParseOptions{}, ErrMalformed},
	{"one upper-case digit in bare", strings.Replace(bareScality, "7f", "7F", 1), ParseOptions{}, ErrMalformed},
	{"bare, a character short", bareScality[1:], ParseOptions{}, ErrMalformed},
	{"bare, a character long", bareScality + "0", ParseOptions{}, ErrMalformed},
	{"bare, two semicolons", bareScality + ";;", ParseOptions{}, ErrMalformed},
	{"bare, space before", " " + bareScality, ParseOptions{}, ErrMalformed},
	{"bare, newline behind", bareScality + "\n", ParseOptions{}, ErrMalformed},
	{"bare, no digit", strings.Replace(bareScality, "aabb", "aagb", 1), ParseOptions{}, ErrMalformed},
	{"bare, fields of other widths", "00007f123456789:000100000" + bareScality[25:], ParseOptions{}, ErrMalformed},
	{"bare, other separator", strings.ReplaceAll(bareScality, ":", ","), ParseOptions{}, ErrMalformed},
	{"bare, gid_present 2", strings.Replace(bareScality, ":1:", ":2:", 1), ParseOptions{}, ErrMalformed},
	{"bare, window wraps", "ffffffff00000002:ffffffff" + bareScality[25:], ParseOptions{}, ErrMalformed},
	{"bare, window wraps to 0", "ffffffff00000001:ffffffff" + bareScality[25:], ParseOptions{}, ErrMalformed},
	{"seven fields without padding", "7f1234567890:100000:aabbccdd:0:42:1:ffff0a0a30d0", ParseOptions{}, ErrMalformed},

	{"suffix before the window", bareScality + ":00007f123456788f:0000000000000001", ParseOptions{}, ErrMalformed},
	{"suffix behind the window", bareScality + ":00007f1234667891:0000000000000000", ParseOptions{}, ErrMalformed},
	{"suffix over the end", bareScality + ":00007f1234567891:0000000000100000", ParseOptions{}, ErrMalformed},
	{"suffix wider", bareScality + ":00007f1234567890:0000000000100001", ParseOptions{}, ErrMalformed},
	{"suffix wraps", bareScality + ":00007f1234567891:ffffffffffffffff", ParseOptions{}, ErrMalformed},
	{"suffix wraps to the window", bareScality + ":ffffffffffffffff:00007f1234567892", ParseOptions{}, ErrMalformed},
	{"suffix on a wrapping window", "ffffffffffffffff:00000002" + bareScality[25:] + ":ffffffffffffffff:0000000000000001", ParseOptions{}, ErrMalformed},
	{"suffix of other widths", bareScality + ":7f1234567890:00000000000000100000", ParseOptions{}, ErrMalformed},
	{"suffix, one field", bareScality + ":00007f1234567890", ParseOptions{}, ErrMalformed},
	{"suffix, two semicolons", bareScality + ":00007f1234567890:0000000000100000;;", ParseOptions{}, ErrMalformed},
	{"suffix, other separator", bareScality + ":00007f1234567890;0000000000100000", ParseOptions{}, ErrMalformed},
	{"suffix twice", bareScality + strings.Repeat(":00007f1234567890:0000000000100000", 2), ParseOptions{}, ErrMalformed},

	{"session, short id", "rc:" + sessionTail[1:], ParseOptions{}, ErrMalformed},
	{"session, upper case", "rc:" + strings.ToUpper(sessionTail), ParseOptions{}, ErrMalformed},
	{"session, zeros", "shm:" + strings.Repeat("0", 32) + sessionTail[32:], ParseOptions{}, ErrMalformed},
	{"session, semicolon", "tcp:" + sessionTail + ";", ParseOptions{}, ErrMalformed},
	{"session, window wraps", "tcp:" + sessionHex + ":ffffffffffffffff:00000001:aabbccdd", ParseOptions{}, ErrMalformed},
	{"session, nothing behind", "rc:", ParseOptions{}, ErrMalformed},
	{"session, other name with a short id", "ud:" + sessionTail[1:], ParseOptions{}, ErrMalformed},
	{"session, other name", "ud:" + sessionTail, ParseOptions{}, ErrUnsupported},
	{"session, newer name", "rc2:" + sessionTail, ParseOptions{}, ErrUnsupported},
	{"session, no name", ":" + sessionTail, ParseOptions{}, ErrMalformed},
	{"session, name in upper case", "RC:" + sessionTail, ParseOptions{}, ErrMalformed},

	{"hipObject, unknown transport", "02" + hipRest, ParseOptions{}, ErrUnsupported},
	{"hipObject, transport 255", "ff" + hipRest, ParseOptions{}, ErrUnsupported},
	{"hipObject, qpn of 25 bits", "0134127a01" + hipRest[8:], ParseOptions{}, ErrMalformed},
	{"hipObject, a digit short", hipRC[:87], ParseOptions{}, ErrMalformed},
	{"hipObject, a digit long", hipRC + "0", ParseOptions{}, ErrMalformed},
	{"hipObject, no digit", hipRC[:87] + "g", ParseOptions{}, ErrMalformed},
	{"hipObject, window wraps", hipRC[:50] + "ffffffffffffffff" + hipRC[66:], ParseOptions{}, ErrMalformed},
	{"hipObject, suffix before", hipRC + ":1fe123456788f:1", ParseOptions{}, ErrMalformed},
	{"hipObject, suffix wider", hipRC + ":1fe1234567890:100100001", ParseOptions{}, ErrMalformed},
	{"hipObject, suffix wraps", hipRC + ":1fe1234567891:ffffffffffffffff", ParseOptions{}, ErrMalformed},
	{"hipObject, suffix of 17 digits", hipRC + ":1fe1234567890:00000000000000001", ParseOptions{}, ErrMalformed},
	{"hipObject, suffix without size", hipRC + ":1fe1234567890", ParseOptions{}, ErrMalformed},
	{"hipObject, suffix with empty size", hipRC + ":1fe1234567890:", ParseOptions{}, ErrMalformed},
	{"hipObject, suffix of three", hipRC + ":1fe1234567890:1:1", ParseOptions{}, ErrMalformed},
	{"hipObject, bare colon", hipRC + ":", ParseOptions{}, ErrMalformed},

	{"base64, off", b64(bareScality), ParseOptions{}, ErrUnsupported},
	{"base64 of a suffix form", b64(bareScality + ":00007f1234567890:0000000000100000"), ParseOptions{Base64: true}, ErrMalformed},
	{"base64 of a wrapping window", b64("ffffffff00000002:ffffffff" + bareScality[25:]), ParseOptions{Base64: true}, ErrMalformed},
	{"base64 of upper case", b64(strings.ToUpper(bareScality)), ParseOptions{Base64: true}, ErrMalformed},
	{"base64 in the URL alphabet", strings.Repeat("-_", 54), ParseOptions{Base64: true}, ErrMalformed},
	{"base64 of something else", b64(strings.Repeat("x", bareLen)), ParseOptions{Base64: true}, ErrMalformed},
	{"base64 twice", b64(b64(bareScality)), ParseOptions{Base64: true}, ErrMalformed},
	{"base64 with a line break", b64(bareScality)[:54] + "\n" + b64(bareScality)[54:], ParseOptions{Base64: true}, ErrMalformed},

	{"libfabric", bareScality + ":00100000:ofi1:efa:0a0b:0c0d", ParseOptions{}, ErrUnsupported},
	{"scality RC", "10.10.48.208:18515:7f1234567890:1048576:2864434397", ParseOptions{}, ErrMalformed},
	{"query string", "desc=" + bareScality + "&addr=1&size=2&offset=0", ParseOptions{}, ErrMalformed},
	{"words", "there is no descriptor here", ParseOptions{}, ErrMalformed},
	{"no UTF-8", "\xff\xfe:\x00", ParseOptions{}, ErrMalformed},
}

func TestParseRefused(t *testing.T) {
	for _, c := range refused {
		t.Run(c.name, func(t *testing.T) {
			d, enc, err := Parse(c.text, c.o)
			if err == nil {
				t.Fatalf("taken as %s", enc)
			}
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if errors.Is(err, ErrMalformed) && errors.Is(err, ErrUnsupported) {
				t.Errorf("%v is both malformed and unsupported", err)
			}
			if d != (Descriptor{}) {
				t.Errorf("an error came with a descriptor")
			}
		})
	}
}

// Every prefix of a good text is refused, unless it is a good text of its own.
func TestParseTruncated(t *testing.T) {
	for _, c := range golden {
		for n := range len(c.text) {
			d, enc, err := Parse(c.text[:n], c.o)
			if err != nil {
				continue
			}
			narrowed := strings.Contains(c.text[n:], ":") || strings.TrimSuffix(c.text[n:], ";") == "" ||
				enc == EncodingHipObject // its suffix has no fixed width
			if !narrowed || d.Transport != c.want.Transport {
				t.Errorf("%s: taken as %s when cut to %d characters", c.name, enc, n)
			}
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	big := with(scality(), func(d *Descriptor) { d.Size = MaxWindow + 1 })
	cases := []struct {
		name string
		d    Descriptor
		e    Encoding
		want error
	}{
		{"zero value", Descriptor{}, EncodingBare, ErrUnsupported},
		{"zero value as a session", Descriptor{}, EncodingSession, ErrUnsupported},
		{"zero value as hipObject", Descriptor{}, EncodingHipObject, ErrUnsupported},
		{"no encoding", scality(), 0, ErrUnsupported},
		{"unknown encoding", scality(), 99, ErrUnsupported},
		{"RC as bare", hip(TransportRC), EncodingBare, ErrUnsupported},
		{"size beyond 32 bits as bare", big, EncodingBare, ErrUnsupported},
		{"size beyond 32 bits as suffix", big, EncodingSuffix, ErrUnsupported},
		{"size beyond 32 bits as base64", big, EncodingBase64, ErrUnsupported},
		{"size beyond 32 bits as session", with(sessionOf(TransportSHM), func(d *Descriptor) { d.Size = MaxWindow + 1 }), EncodingSession, ErrUnsupported},
		{"qpn of 25 bits as bare", with(scality(), func(d *Descriptor) { d.QPN = 1 << 24 }), EncodingBare, ErrUnsupported},
		{"qpn of 25 bits as hipObject", with(scality(), func(d *Descriptor) { d.QPN = 1 << 24 }), EncodingHipObject, ErrUnsupported},
		{"port as bare", with(scality(), func(d *Descriptor) { d.Port = 1 }), EncodingBare, ErrUnsupported},
		{"session as bare", with(scality(), func(d *Descriptor) { d.Session[0] = 1 }), EncodingBare, ErrUnsupported},
		{"session as hipObject", sessionOf(TransportRC), EncodingHipObject, ErrUnsupported},
		{"shm as hipObject", with(sessionOf(TransportSHM), func(d *Descriptor) { d.Session = SessionID{} }), EncodingHipObject, ErrUnsupported},
		{"gid that is not present as hipObject", with(hip(TransportRC), func(d *Descriptor) { d.GIDPresent = false }), EncodingHipObject, ErrUnsupported},
		{"DC as session", scality(), EncodingSession, ErrUnsupported},
		{"no session as session", with(sessionOf(TransportTCP), func(d *Descriptor) { d.Session = SessionID{} }), EncodingSession, ErrUnsupported},
		{"qpn as session", with(sessionOf(TransportRC), func(d *Descriptor) { d.QPN = 7 }), EncodingSession, ErrUnsupported},
		{"unknown transport as session", sessionOf(17), EncodingSession, ErrUnsupported},
		{"wrapping window", with(scality(), func(d *Descriptor) { d.Addr = math.MaxUint64; d.Size = 1 }), EncodingBare, ErrMalformed},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, err := c.d.Encode(c.e)
			if !errors.Is(err, c.want) || s != "" {
				t.Errorf("error %v with %d characters, want %v", err, len(s), c.want)
			}
		})
	}
}

// anyDescriptor draws descriptors of all shapes, sensible or not.
func anyDescriptor(t *rapid.T) Descriptor {
	d := Descriptor{
		Transport:  Transport(rapid.IntRange(0, 5).Draw(t, "transport")),
		Addr:       rapid.Uint64().Draw(t, "addr"),
		Size:       rapid.OneOf(rapid.Uint64Range(0, MaxWindow), rapid.Uint64()).Draw(t, "size"),
		RKey:       rapid.Uint32().Draw(t, "rkey"),
		GIDPresent: rapid.Bool().Draw(t, "gid present"),
	}
	if rapid.Bool().Draw(t, "with session") {
		copy(d.Session[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "session"))
	}
	if rapid.Bool().Draw(t, "with port") {
		d.QPN = rapid.Uint32Range(0, 1<<24).Draw(t, "qpn")
		copy(d.GID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "gid"))
		d.LID = rapid.Uint16().Draw(t, "lid")
		d.Port = rapid.Uint8Range(0, 2).Draw(t, "port")
	}
	return d
}

// Whatever Encode makes, Parse reads as the same descriptor in the same encoding.
func TestRoundTrip(t *testing.T) {
	made := map[Encoding]int{}
	rapid.Check(t, func(t *rapid.T) {
		d := anyDescriptor(t)
		for e := EncodingBare; e <= EncodingBase64; e++ {
			s, err := d.Encode(e)
			if err != nil {
				if !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrMalformed) {
					t.Fatalf("%s: error of no kind: %v", e, err)
				}
				continue
			}
			made[e]++
			got, enc, err := Parse(s, ParseOptions{Base64: true})
			if err != nil {
				t.Fatalf("%s: %v", e, err)
			}
			if enc != e || got != d {
				t.Fatalf("%s parsed as %s; (-want +got):\n%s", e, enc, cmp.Diff(fields(d), fields(got)))
			}
		}
	})
	for e := EncodingBare; e <= EncodingBase64; e++ {
		if made[e] == 0 {
			t.Errorf("no descriptor was expressed as %s: the test has no teeth", e)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range golden {
		f.Add(c.text, c.o.Base64)
	}
	for _, c := range refused {
		f.Add(c.text, c.o.Base64)
	}
	f.Fuzz(func(t *testing.T, s string, base64On bool) {
		o := ParseOptions{Base64: base64On}
		d, enc, err := Parse(s, o)
		if err != nil {
			if errors.Is(err, ErrMalformed) == errors.Is(err, ErrUnsupported) {
				t.Fatalf("error is not of one kind: %v", err)
			}
			if d != (Descriptor{}) {
				t.Fatal("an error came with a descriptor")
			}
			if run := leakedHex(s, err.Error()); run != "" {
				t.Fatalf("error repeats digits of the text: %v", err)
			}
			return
		}
		if d.Addr+d.Size < d.Addr {
			t.Fatal("window wraps")
		}
		text, err := d.Encode(enc)
		if err != nil {
			t.Fatalf("cannot encode what was parsed: %v", err)
		}
		again, enc2, err := Parse(text, o)
		if err != nil || enc2 != enc || again != d {
			t.Fatalf("parsed again as %s, %v:\n%s", enc2, err, cmp.Diff(fields(d), fields(again)))
		}
		// A suffix never widens what stands before it.
		whole := ""
		switch enc {
		case EncodingSuffix:
			whole = s[:bareLen]
		case EncodingHipObject:
			whole = s[:hipLen]
		default:
			return
		}
		w, _, err := Parse(whole, o)
		if err != nil {
			t.Fatalf("good with a suffix, but not without: %v", err)
		}
		if d.Addr < w.Addr || d.Addr+d.Size > w.Addr+w.Size {
			t.Fatal("suffix widened the window")
		}
		w.Addr, w.Size = d.Addr, d.Size
		if w != d {
			t.Fatal("suffix changed something besides the window")
		}
	})
}

func FuzzParseSessionID(f *testing.F) {
	f.Add(sessionHex)
	f.Add(strings.ToUpper(sessionHex))
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseSessionID(s)
		if err != nil {
			if !errors.Is(err, ErrMalformed) || leakedHex(s, err.Error()) != "" {
				t.Fatalf("bad error: %v", err)
			}
			return
		}
		if id.Hex() != s {
			t.Fatal("does not round-trip")
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for _, c := range []struct{ name, text string }{{"bare", bareScality}, {"session", "shm:" + sessionTail}, {"hipobject", hipRC}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := Parse(c.text, ParseOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
