// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package rdmaio

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// Encoding is a published text form of a descriptor.
type Encoding uint8

const (
	// EncodingBare: 81 characters, seven lower-case hex fields of fixed width
	// addr16:size8:rkey8:lid4:dctn6:gidpresent1:gid32. What cuObject makes and
	// most servers take. DC only. A trailing ";" is tolerated.
	EncodingBare Encoding = iota + 1
	// EncodingSuffix: bare, then ":addr16:size16", which may narrow the window
	// (clients of MinIO before August 2026). A trailing ";" is tolerated.
	EncodingSuffix
	// EncodingSession: "rc:", "shm:" or "tcp:", then session32:addr16:size8:rkey8.
	// rc is what elbencho's shim sends; shm and tcp are ours.
	EncodingSession
	// EncodingHipObject: 88 hex digits, 44 bytes little-endian (transport u8, qpn
	// u32, gid 16 bytes, rkey u32, addr u64, len u64, port u8, lid u16), optionally
	// followed by ":addr:size" in hex, which may narrow (AMD hipObject).
	EncodingHipObject
	// EncodingBase64: standard base64 of the bare form (Sirius).
	EncodingBase64
)

// String returns the encoding's name, for metrics and reports.
func (e Encoding) String() string {
	switch e {
	case EncodingBare:
		return "bare"
	case EncodingSuffix:
		return "suffix"
	case EncodingSession:
		return "session"
	case EncodingHipObject:
		return "hipobject"
	case EncodingBase64:
		return "base64"
	}
	return fmt.Sprintf("encoding(%d)", uint8(e))
}

// The widths of the encodings, in characters.
const (
	bareLen    = 81
	suffixLen  = 1 + 16 + 1 + 16
	hipLen     = 88
	hipBytes   = hipLen / 2
	maxEncoded = 512 // longer than any known form; anything beyond is refused unread
)

// Where the fields of the bare form start, and how wide they are.
var bareFields = [7]struct{ at, width int }{
	{0, 16}, {17, 8}, {26, 8}, {35, 4}, {40, 6}, {47, 1}, {49, 32},
}

// ParseOptions switch encodings on that are off by default.
type ParseOptions struct {
	// Base64 accepts EncodingBase64. Off, such a value is ErrUnsupported.
	Base64 bool
}

// Parse reads a descriptor in any known encoding and tells which one it was.
// ErrMalformed means no known form, ErrUnsupported a form that exists elsewhere
// but is not served. Errors never show the text. s is not kept.
func Parse(s string, o ParseOptions) (Descriptor, Encoding, error) {
	if len(s) > maxEncoded {
		return Descriptor{}, 0, malformed("%d characters long, no known form is longer than %d", len(s), maxEncoded)
	}
	for _, t := range [...]Transport{TransportRC, TransportSHM, TransportTCP} {
		name := t.String()
		if len(s) > len(name) && s[len(name)] == ':' && s[:len(name)] == name {
			d, err := parseSession(t, s[len(name)+1:])
			return d, EncodingSession, err
		}
	}
	trimmed := strings.TrimSuffix(s, ";")
	switch {
	case len(trimmed) == bareLen:
		d, err := parseBare(trimmed)
		return d, EncodingBare, err
	case len(trimmed) == bareLen+suffixLen && isBareShape(trimmed[:bareLen]):
		d, err := parseBare(trimmed[:bareLen])
		if err != nil {
			return Descriptor{}, EncodingSuffix, err
		}
		d, err = narrowTo(d, trimmed[bareLen:], 16)
		return d, EncodingSuffix, err
	}
	if len(s) >= hipLen && isHex(s[:hipLen]) && (len(s) == hipLen || s[hipLen] == ':') {
		d, err := parseHipObject(s)
		return d, EncodingHipObject, err
	}
	if inner, ok := decodeBase64Bare(s); ok {
		if !o.Base64 {
			return Descriptor{}, EncodingBase64, fmt.Errorf("base64 form is switched off: %w", ErrUnsupported)
		}
		d, err := parseBare(inner)
		return d, EncodingBase64, err
	}
	if name := foreignForm(s); name != "" {
		return Descriptor{}, 0, fmt.Errorf("%s form is not served: %w", name, ErrUnsupported)
	}
	return Descriptor{}, 0, malformed("%d characters in no known form (want 81 characters of addr:size:rkey:lid:dctn:gid_present:gid, or rc:/shm:/tcp: with a session)", len(s))
}

// foreignForm names a published form that we know to exist and do not serve. The
// difference matters to the sender: such a client can fall back to HTTP.
func foreignForm(s string) string {
	if strings.Contains(s, ":ofi1:") {
		return "libfabric"
	}
	// A session of some other transport: name:session32:...
	name, rest, ok := strings.Cut(s, ":")
	if ok && len(name) >= 2 && len(name) <= 8 && !isHex(name) && isLowerAlnum(name) &&
		len(rest) > 32 && rest[32] == ':' && isLowerHex(rest[:32]) {
		return "unknown session"
	}
	return ""
}

// Encode returns the text of d in encoding e, from which Parse makes d again. It
// fails, with ErrUnsupported, if e cannot express d whole: a session form without a
// session, a size beyond the field, a field that is set and that e has no place for.
// The result is a secret.
func (d Descriptor) Encode(e Encoding) (string, error) {
	if d.Addr+d.Size < d.Addr {
		return "", malformed("address plus size overflows")
	}
	switch e {
	case EncodingBare, EncodingSuffix, EncodingBase64:
		if d.Transport != TransportDC || d.Size > MaxWindow || d.QPN >= 1<<24 || d.Port != 0 || !d.Session.IsZero() {
			return "", cannot(d, e)
		}
		present := 0
		if d.GIDPresent {
			present = 1
		}
		s := fmt.Sprintf("%016x:%08x:%08x:%04x:%06x:%d:%032x", d.Addr, d.Size, d.RKey, d.LID, d.QPN, present, d.GID[:])
		switch e {
		case EncodingSuffix:
			s += fmt.Sprintf(":%016x:%016x", d.Addr, d.Size)
		case EncodingBase64:
			s = base64.StdEncoding.EncodeToString([]byte(s))
		}
		return s, nil
	case EncodingSession:
		switch d.Transport {
		case TransportRC, TransportSHM, TransportTCP:
		default:
			return "", cannot(d, e)
		}
		kept := Descriptor{Transport: d.Transport, Addr: d.Addr, Size: d.Size, RKey: d.RKey, Session: d.Session}
		if d != kept || d.Session.IsZero() || d.Size > MaxWindow {
			return "", cannot(d, e)
		}
		return fmt.Sprintf("%s:%s:%016x:%08x:%08x", d.Transport, d.Session.Hex(), d.Addr, d.Size, d.RKey), nil
	case EncodingHipObject:
		var code byte
		switch d.Transport {
		case TransportDC:
			code = 0
		case TransportRC:
			code = 1
		default:
			return "", cannot(d, e)
		}
		// The form has no flag for the GID: one that is not zero is present.
		if d.QPN >= 1<<24 || !d.Session.IsZero() || d.GIDPresent != (d.GID != [16]byte{}) {
			return "", cannot(d, e)
		}
		b := make([]byte, 0, hipBytes)
		b = append(b, code)
		b = binary.LittleEndian.AppendUint32(b, d.QPN)
		b = append(b, d.GID[:]...)
		b = binary.LittleEndian.AppendUint32(b, d.RKey)
		b = binary.LittleEndian.AppendUint64(b, d.Addr)
		b = binary.LittleEndian.AppendUint64(b, d.Size)
		b = append(b, d.Port)
		b = binary.LittleEndian.AppendUint16(b, d.LID)
		return hex.EncodeToString(b), nil
	}
	return "", cannot(d, e)
}

func cannot(d Descriptor, e Encoding) error {
	return fmt.Errorf("encode a %s as %s: %w", d, e, ErrUnsupported)
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrMalformed)
}

func parseBare(s string) (Descriptor, error) {
	if !isBareShape(s) {
		return Descriptor{}, malformed("81 characters, but not seven lower-case hex fields of 16:8:8:4:6:1:32 digits")
	}
	field := func(i int) uint64 {
		f := bareFields[i]
		v, _ := strconv.ParseUint(s[f.at:f.at+f.width], 16, 64) // digits and width checked by isBareShape
		return v
	}
	d := Descriptor{
		Transport: TransportDC,
		Addr:      field(0), Size: field(1), RKey: uint32(field(2)),
		LID: uint16(field(3)), QPN: uint32(field(4)),
	}
	switch s[bareFields[5].at] {
	case '0':
	case '1':
		d.GIDPresent = true
	default:
		return Descriptor{}, malformed("gid_present is neither 0 nor 1")
	}
	gid := bareFields[6]
	hex.Decode(d.GID[:], []byte(s[gid.at:gid.at+gid.width]))
	return checked(d)
}

// checked refuses a window that wraps around the address space.
func checked(d Descriptor) (Descriptor, error) {
	if d.Addr+d.Size < d.Addr {
		return Descriptor{}, malformed("address plus size overflows 64 bits")
	}
	return d, nil
}

// isBareShape tells whether s has the bare form's colons and nothing but
// lower-case hex digits between them.
func isBareShape(s string) bool {
	if len(s) != bareLen {
		return false
	}
	for i, f := range bareFields {
		if i > 0 && s[f.at-1] != ':' || !isLowerHex(s[f.at:f.at+f.width]) {
			return false
		}
	}
	return true
}

// narrowTo applies a suffix ":addr:size", with fields of exactly fixed hex digits,
// or of 1 to 16 if fixed is 0. The suffix names an absolute address, and may only
// narrow.
func narrowTo(d Descriptor, suffix string, fixed int) (Descriptor, error) {
	addr, size, ok := strings.Cut(suffix[1:], ":")
	if suffix[0] != ':' || !ok || !hexField(addr, fixed) || !hexField(size, fixed) {
		return Descriptor{}, malformed("suffix is not :addr:size in hex")
	}
	a, _ := strconv.ParseUint(addr, 16, 64)
	n, _ := strconv.ParseUint(size, 16, 64)
	if a < d.Addr {
		return Descriptor{}, malformed("suffix starts before the window: it may only narrow")
	}
	nd, err := d.Narrow(a-d.Addr, n)
	if err != nil {
		return Descriptor{}, malformed("suffix leaves the window: it may only narrow")
	}
	return nd, nil
}

func hexField(s string, fixed int) bool {
	if fixed > 0 && len(s) != fixed {
		return false
	}
	return len(s) >= 1 && len(s) <= 16 && isHex(s)
}

// parseSession reads session32:addr16:size8:rkey8.
func parseSession(t Transport, s string) (Descriptor, error) {
	const want = 32 + 1 + 16 + 1 + 8 + 1 + 8
	if len(s) != want || s[32] != ':' || s[49] != ':' || s[58] != ':' ||
		!isLowerHex(s[:32]) || !isLowerHex(s[33:49]) || !isLowerHex(s[50:58]) || !isLowerHex(s[59:]) {
		return Descriptor{}, malformed("%s: is not followed by session:addr:size:rkey of 32:16:8:8 lower-case hex digits", t)
	}
	d := Descriptor{Transport: t}
	hex.Decode(d.Session[:], []byte(s[:32]))
	d.Addr, _ = strconv.ParseUint(s[33:49], 16, 64)
	d.Size, _ = strconv.ParseUint(s[50:58], 16, 64)
	key, _ := strconv.ParseUint(s[59:], 16, 32)
	d.RKey = uint32(key)
	if d.Session.IsZero() {
		return Descriptor{}, malformed("session id is all zeros")
	}
	return checked(d)
}

func parseHipObject(s string) (Descriptor, error) {
	var b [hipBytes]byte
	hex.Decode(b[:], []byte(s[:hipLen]))
	d := Descriptor{
		QPN:  binary.LittleEndian.Uint32(b[1:]),
		RKey: binary.LittleEndian.Uint32(b[21:]),
		Addr: binary.LittleEndian.Uint64(b[25:]),
		Size: binary.LittleEndian.Uint64(b[33:]),
		Port: b[41],
		LID:  binary.LittleEndian.Uint16(b[42:]),
	}
	copy(d.GID[:], b[5:21])
	d.GIDPresent = d.GID != [16]byte{}
	switch b[0] {
	case 0:
		d.Transport = TransportDC
	case 1:
		d.Transport = TransportRC
	default:
		return Descriptor{}, fmt.Errorf("hipObject transport code %d is not served: %w", b[0], ErrUnsupported)
	}
	if d.QPN >= 1<<24 {
		return Descriptor{}, malformed("queue pair number has more than 24 bits")
	}
	d, err := checked(d)
	if err != nil || len(s) == hipLen {
		return d, err
	}
	return narrowTo(d, s[hipLen:], 0)
}

// decodeBase64Bare returns the bare form inside s if that is what s encodes.
func decodeBase64Bare(s string) (string, bool) {
	if len(s) != base64.StdEncoding.EncodedLen(bareLen) {
		return "", false
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || !isBareShape(string(b)) {
		return "", false
	}
	return string(b), true
}

func isLowerHex(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func isHex(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return false
		}
	}
	return true
}

func isLowerAlnum(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}
