// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func TestFromHeader(t *testing.T) {
	abc := []byte("abc")
	for name, c := range map[string]struct {
		h    http.Header
		want []Sum
	}{
		"nil":     {nil, nil},
		"nothing": {header("Content-Type", "text/plain", "x-amz-date", "now"), nil},
		"all, ascending": {
			header("Content-MD5", Of(MD5, abc).Base64(),
				"X-Amz-Checksum-XXHash64", Of(XXH64, abc).Base64(),
				"x-amz-checksum-sha256", Of(SHA256, abc).Base64(),
				"x-amz-checksum-sha1", Of(SHA1, abc).Base64(),
				"x-amz-checksum-crc64nvme", Of(CRC64NVME, abc).Base64(),
				"x-amz-checksum-crc32c", Of(CRC32C, abc).Base64(),
				"x-amz-checksum-crc32", Of(CRC32, abc).Base64()),
			[]Sum{Of(CRC32, abc), Of(CRC32C, abc), Of(CRC64NVME, abc), Of(SHA1, abc), Of(SHA256, abc), Of(MD5, abc), Of(XXH64, abc)},
		},
		"not values": {
			header("x-amz-checksum-algorithm", "CRC64NVME", "x-amz-checksum-type", "FULL_OBJECT",
				"x-amz-checksum-mode", "ENABLED", "x-amz-sdk-checksum-algorithm", "CRC32", "x-amz-trailer", "x-amz-checksum-crc32"),
			nil,
		},
		"key in another form": {http.Header{"x-AMZ-checksum-crc32": {"y/Q5Jg=="}}, []Sum{Of(CRC32, []byte("123456789"))}},
		"repeated":            {header("x-amz-checksum-crc32", "y/Q5Jg==", "x-amz-checksum-crc32", "y/Q5Jg=="), []Sum{Of(CRC32, []byte("123456789"))}},
		"MD5 by both names":   {header("content-md5", Of(MD5, abc).Base64(), "x-amz-checksum-md5", Of(MD5, abc).Base64()), []Sum{Of(MD5, abc)}},
		"MD5 by the new name": {header("x-amz-checksum-md5", Of(MD5, abc).Base64()), []Sum{Of(MD5, abc)}},
		"no values":           {http.Header{"Content-Md5": nil, "X-Amz-Checksum-Crc32": {}}, nil},
		"sum of nothing":      {header("x-amz-checksum-crc32", "AAAAAA=="), []Sum{Empty(CRC32)}},
	} {
		got, err := FromHeader(c.h)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b Sum) bool { return a == b })); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

func TestFromHeaderRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		h        http.Header
		header   string
		is       error
		contains string
	}{
		"empty value":           {header("x-amz-checksum-crc32", ""), "x-amz-checksum-crc32", ErrMalformed, "8 characters, not 0"},
		"hex":                   {header("x-amz-checksum-crc32", "cbf43926"), "x-amz-checksum-crc32", ErrMalformed, "cbf43926"},
		"wrong algorithm":       {header("x-amz-checksum-crc64nvme", "y/Q5Jg=="), "x-amz-checksum-crc64nvme", ErrMalformed, "CRC64NVME"},
		"MD5 in hex":            {header("content-md5", "900150983cd24fb0d6963f7d28e17f72"), "content-md5", ErrMalformed, "24 characters, not 32"},
		"list":                  {header("x-amz-checksum-crc32", "y/Q5Jg==, y/Q5Jg=="), "x-amz-checksum-crc32", ErrMalformed, ""},
		"composite":             {header("x-amz-checksum-crc32c", "4waSgw==-3"), "x-amz-checksum-crc32c", ErrComposite, "3 parts"},
		"composite is bad":      {header("x-amz-checksum-crc32c", "4waSgw==-3"), "x-amz-checksum-crc32c", ErrMalformed, ""},
		"composite of no parts": {header("x-amz-checksum-crc32c", "4waSgw==-0"), "x-amz-checksum-crc32c", ErrMalformed, ""},
		"given twice":           {header("x-amz-checksum-crc32", "y/Q5Jg==", "x-amz-checksum-crc32", "AAAAAA=="), "x-amz-checksum-crc32", ErrConflict, "CRC32:y/Q5Jg=="},
		"in two spellings":      {http.Header{"X-Amz-Checksum-Crc32": {"y/Q5Jg=="}, "x-amz-checksum-crc32": {"AAAAAA=="}}, "x-amz-checksum-crc32", ErrConflict, ""},
		"MD5 by both names": {header("content-md5", Of(MD5, nil).Base64(), "x-amz-checksum-md5", Of(MD5, []byte("a")).Base64()),
			"x-amz-checksum-md5", ErrConflict, "MD5:1B2M2Y8AsgTpgAmY7PhCfg=="},
		"SHA512":       {header("x-amz-checksum-sha512", "AAAA"), "x-amz-checksum-sha512", ErrUnknownAlgorithm, ""},
		"XXH3":         {header("x-amz-checksum-xxhash3", "AAAA"), "x-amz-checksum-xxhash3", ErrUnknownAlgorithm, ""},
		"no algorithm": {http.Header{"X-Amz-Checksum-": {"x"}}, "x-amz-checksum-", ErrUnknownAlgorithm, ""},
		// The first name in order is reported, whatever the map's order.
		"two faults": {header("x-amz-checksum-sha1", "bad", "x-amz-checksum-crc32", "bad", "content-md5", "bad"), "content-md5", ErrMalformed, ""},
	} {
		got, err := FromHeader(c.h)
		var he *HeaderError
		if got != nil || !errors.As(err, &he) || !errors.Is(err, c.is) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, c.is)
			continue
		}
		if he.Header != c.header || !strings.Contains(err.Error(), c.header) || !strings.Contains(err.Error(), c.contains) {
			t.Errorf("%s: error %q names header %q, want %q and %q", name, err, he.Header, c.header, c.contains)
		}
	}
}

func TestErrorTextIsBounded(t *testing.T) {
	long := strings.Repeat("A", 1<<16)
	_, err := FromHeader(http.Header{"X-Amz-Checksum-" + long: {long}})
	if err == nil || len(err.Error()) > 500 {
		t.Errorf("%d characters", len(err.Error()))
	}
	_, err = FromHeader(http.Header{"Content-Md5": {"a\nb\x00"}})
	if err == nil || strings.ContainsAny(err.Error(), "\n\x00") {
		t.Errorf("control characters in %q", err)
	}
}

func TestDecodeIsStrict(t *testing.T) {
	for _, text := range []string{
		"", "=", "AAAAAA", "AAAAAA=", "AAAAAA===", "AAAAAAA=", "AAAAAAAA", "AAAA====",
		"y/Q5Jh==",             // padding bits set
		"y_Q5Jg==", "-_Q5Jg==", // URL alphabet
		" y/Q5Jg=", "y/Q5Jg==\n", "y/Q5\nJg=", "y/Q5Jg=\n", "\r\ny/Q5==", // spaces, breaks
		"y/Q5Jg==y/Q5Jg==", "y/Q5Jg==-", "y/Q5Jg==-0", "y/Q5Jg==-01", "y/Q5Jg==-10001", "y/Q5Jg==-+1", "y/Q5Jg==--1",
	} {
		if got, err := Decode(CRC32, text); !errors.Is(err, ErrMalformed) || errors.Is(err, ErrComposite) || !got.IsZero() {
			t.Errorf("Decode(%q) = %v, %v", text, got, err)
		}
	}
	if _, err := Decode(0, "AAAAAA=="); !errors.Is(err, ErrUnknownAlgorithm) {
		t.Errorf("Decode of no algorithm: %v", err)
	}
	if _, err := NewSum(CRC32, make([]byte, 5)); !errors.Is(err, ErrMalformed) {
		t.Errorf("NewSum of 5 bytes: %v", err)
	}
	if _, err := NewSum(99, nil); !errors.Is(err, ErrUnknownAlgorithm) {
		t.Errorf("NewSum of no algorithm: %v", err)
	}
}

func TestEncodeDecode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		alg := rapid.SampledFrom(Algorithms()).Draw(t, "algorithm")
		raw := rapid.SliceOfN(rapid.Byte(), alg.Size(), alg.Size()).Draw(t, "raw")
		s, err := NewSum(alg, raw)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(s.Append(nil), raw) || string(s.AppendBase64(nil)) != s.Base64() {
			t.Fatalf("%v is not %x", s, raw)
		}
		if got, err := Decode(alg, s.Base64()); err != nil || got != s {
			t.Fatalf("got %v, %v, want %v", got, err, s)
		}
		c := CompositeSum{s, rapid.IntRange(1, maxParts).Draw(t, "parts")}
		if got, err := ParseComposite(alg, c.String()); err != nil || got != c {
			t.Fatalf("got %v, %v, want %v", got, err, c)
		}
		if got, err := FromHeader(header(alg.Header(), s.Base64())); err != nil || len(got) != 1 || got[0] != s {
			t.Fatalf("FromHeader: %v, %v", got, err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	for _, g := range goldens {
		f.Add(uint8(g.alg), g.base64)
		f.Add(uint8(g.alg), g.base64+"-2")
		f.Add(uint8(g.alg), g.hex)
	}
	f.Add(uint8(CRC32), "y/Q5Jh==")
	f.Add(uint8(0), "")
	f.Fuzz(func(t *testing.T, a uint8, text string) {
		alg := Algorithm(a)
		s, err := Decode(alg, text)
		c, cerr := ParseComposite(alg, text)
		if err == nil && (s.Base64() != text || s.Algorithm() != alg) {
			t.Errorf("%q became %v", text, s)
		}
		if cerr == nil && c.String() != text {
			t.Errorf("%q became %v", text, c)
		}
		if err != nil && errors.Is(err, ErrComposite) != (cerr == nil) {
			t.Errorf("%q: %v, but as composite: %v", text, err, cerr)
		}
		for _, err := range []error{err, cerr} {
			if err != nil && !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnknownAlgorithm) {
				t.Errorf("%q: unexpected error %v", text, err)
			}
		}
		if err == nil && cerr == nil {
			t.Errorf("%q is plain and composite", text)
		}
	})
}

func FuzzFromHeader(f *testing.F) {
	for _, g := range goldens {
		f.Add(g.alg.Header(), g.base64, "content-md5", "1B2M2Y8AsgTpgAmY7PhCfg==")
		f.Add(g.alg.Header(), g.base64, strings.ToUpper(g.alg.Header()), "AAAAAA==")
	}
	f.Add("x-amz-checksum-algorithm", "CRC32", "x-amz-checksum-sha512", "AAAA")
	// What SDKs and NIXL add.
	f.Add("x-amz-sdk-checksum-algorithm", "CRC32", "x-amz-checksum-crc32", "AAAAAA==")
	f.Add("x-amz-checksum-algorithm", "CRC64NVME", "x-amz-checksum-crc64nvme", "AAAAAAAAAAA=")
	f.Add("x-amz-checksum-algorithm", "CRC64NVME", "x-amz-checksum-type", "FULL_OBJECT")
	f.Add("x-amz-checksum-mode", "ENABLED", "x-amz-trailer", "x-amz-checksum-crc32")
	f.Add("x-amz-checksum-crc32c", "yZRlqg==-3", "X-Amz-Checksum-Crc32c", "yZRlqg==")
	f.Add("x-amz-checksum-", "", "", "")
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2 string) {
		h := http.Header{}
		h[name1] = append(h[name1], value1)
		h[name2] = append(h[name2], value2)
		sums, err := FromHeader(h)
		if err != nil {
			var he *HeaderError
			if sums != nil || !errors.As(err, &he) {
				t.Fatalf("%v, %v", sums, err)
			}
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrConflict) && !errors.Is(err, ErrUnknownAlgorithm) {
				t.Fatalf("unexpected error %v", err)
			}
			return
		}
		for i, s := range sums {
			if s.Base64() != value1 && s.Base64() != value2 {
				t.Errorf("%v was not given", s)
			}
			if i > 0 && sums[i-1].Algorithm() >= s.Algorithm() {
				t.Errorf("not ascending: %v", sums)
			}
		}
		if _, err := NewVerifier(sums...); err != nil {
			t.Errorf("not verifiable: %v", err)
		}
	})
}
