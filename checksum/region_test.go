// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func TestRegionRequest(t *testing.T) {
	for _, c := range []struct {
		h    http.Header
		want RegionRequest
	}{
		{headers(), RegionRequest{Policy: PolicyNone}},
		{headers(HeaderPolicy, "none"), RegionRequest{Policy: PolicyNone}},
		{headers(HeaderPolicy, "both"), RegionRequest{Policy: PolicyBoth}},
		{headers(HeaderAlgorithm, "sha256"), RegionRequest{Policy: PolicyRegion, Algorithm: SHA256}},
		{headers(HeaderPolicy, "envelope", HeaderBlock, "65536"), RegionRequest{Policy: PolicyBoth, Block: 65536}},
		{headers(HeaderAlgorithm, "CRC32C", HeaderBlock, "4096", HeaderBlocks, "AAAA"),
			RegionRequest{Policy: PolicyRegion, Algorithm: CRC32C, Block: 4096, Blocks: "AAAA"}},
	} {
		got, err := ParseRegionRequest(c.h)
		if err != nil || got != c.want {
			t.Errorf("%v: %+v, %v", c.h, got, err)
		}
		back := headers(HeaderBlock, "77", HeaderPolicy, "x")
		got.Set(back)
		if again, err := ParseRegionRequest(back); err != nil || again != got {
			t.Errorf("%+v comes back as %+v, %v", got, again, err)
		}
	}
	for _, c := range []struct {
		h    http.Header
		want error
	}{
		{headers(HeaderPolicy, ""), ErrRegionRequest},
		{headers(HeaderPolicy, "Region"), ErrUnknownPolicy},
		{headers(HeaderPolicy, "none", HeaderPolicy, "none"), ErrRegionRequest},
		{headers(HeaderAlgorithm, "CRC99"), ErrUnknownAlgorithm},
		{headers(HeaderBlock, "4095"), ErrRegionRequest},
		{headers(HeaderBlock, "4294967297"), ErrRegionRequest},
		{headers(HeaderBlock, "+5000"), ErrRegionRequest},
		{headers(HeaderBlock, "05000"), ErrRegionRequest},
		{headers(HeaderBlock, "1MiB"), ErrRegionRequest},
		{headers(HeaderBlock, "4096", HeaderAlgorithm, "SHA1"), ErrUnknownAlgorithm},
		{headers(HeaderBlocks, "AAAA", HeaderAlgorithm, "CRC32"), ErrRegionRequest},
		{headers(HeaderBlocks, "AAAA", HeaderBlock, "4096"), ErrRegionRequest},
	} {
		if got, err := ParseRegionRequest(c.h); !errors.Is(err, c.want) {
			t.Errorf("%v: %+v, %v, want %v", c.h, got, err, c.want)
		}
	}
}

func TestRegionProof(t *testing.T) {
	data := randomBytes(10_000)
	b, _ := NewBlocks(CRC64NVME, MinBlock)
	b.Write(data)
	for _, want := range []RegionProof{
		{Policy: PolicyNone}, {Policy: PolicyEnvelope},
		{Policy: PolicyRegion, Sum: Of(SHA256, data)}, {Policy: PolicyRegion, Sum: Of(XXH64, data)}, {Policy: PolicyRegion, Sum: Of(MD5, nil)},
		{Policy: PolicyBoth, Sum: b.Sum(), List: b.List()},
	} {
		h := http.Header{}
		want.Set(h)
		for name := range h {
			if !strings.HasPrefix(strings.ToLower(name), RegionPrefix) {
				t.Errorf("header %s", name)
			}
		}
		got, found, err := ParseRegionProof(h, int64(len(data)))
		if err != nil || !found || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v comes back as %+v, %v", want, got, err)
		}
	}
	if p, found, err := ParseRegionProof(headers("x-amz-checksum-crc32", "AAAAAA=="), 5); found || err != nil || p.Policy != PolicyNone {
		t.Errorf("an answer without: %v, %v", found, err)
	}
	crc := Of(CRC32, data).Base64()
	for name, h := range map[string]http.Header{
		"unknown policy": headers(HeaderPolicy, "most"),
		"no sum":         headers(HeaderPolicy, "region"),
		"unpromised":     headers(HeaderPolicy, "none", CRC32.RegionHeader(), crc),
		"two":            headers(HeaderPolicy, "region", CRC32.RegionHeader(), crc, CRC32.RegionHeader(), crc),
		"two algorithms": headers(HeaderPolicy, "region", CRC32.RegionHeader(), crc, CRC32C.RegionHeader(), crc),
		"malformed":      headers(HeaderPolicy, "region", CRC32.RegionHeader(), crc[1:]),
		"block":          headers(HeaderPolicy, "region", CRC32.RegionHeader(), crc, HeaderBlocks, crc),
		"other list":     headers(HeaderPolicy, "region", CRC32.RegionHeader(), crc, HeaderBlocks, "AAAAAA==", HeaderBlock, "16384"),
		"no crc":         headers(HeaderPolicy, "region", SHA1.RegionHeader(), Of(SHA1, data).Base64(), HeaderBlocks, crc, HeaderBlock, "16384"),
	} {
		if p, found, err := ParseRegionProof(h, int64(len(data))); err == nil || !found {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
}

func TestRegionHeader(t *testing.T) {
	seen := map[string]bool{HeaderPolicy: true, HeaderAlgorithm: true, HeaderBlock: true, HeaderBlocks: true}
	for _, a := range Algorithms() {
		name := a.RegionHeader()
		if seen[name] || name != RegionPrefix+strings.ToLower(a.String()) {
			t.Errorf("%v has the header %q", a, name)
		}
		seen[name] = true
	}
	if Algorithm(0).RegionHeader() != "" {
		t.Error("no algorithm has a header")
	}
}

func FuzzRegionHeaders(f *testing.F) {
	f.Add("region", "CRC32", "4096", "AAAAAA==", "AAAAAA==", int64(0))
	f.Add("both", "CRC64NVME", "1048576", "", "AAAAAAAAAAA=", int64(1<<32))
	f.Add("none", "XXHASH64", "9223372036854775807", "A", "", int64(-1))
	f.Fuzz(func(t *testing.T, policy, alg, block, blocks, sum string, n int64) {
		h := http.Header{}
		for name, v := range map[string]string{HeaderPolicy: policy, HeaderAlgorithm: alg, HeaderBlock: block, HeaderBlocks: blocks,
			CRC32.RegionHeader(): sum, CRC64NVME.RegionHeader(): sum} {
			if v != "" {
				h.Set(name, v)
			}
		}
		if q, err := ParseRegionRequest(h); err == nil {
			back := http.Header{}
			q.Set(back)
			if again, err := ParseRegionRequest(back); err != nil || again != q {
				t.Errorf("%+v comes back as %+v, %v", q, again, err)
			}
		}
		h.Del(CRC32.RegionHeader())
		if p, found, err := ParseRegionProof(h, n); err == nil && found {
			back := http.Header{}
			p.Set(back)
			if again, _, err := ParseRegionProof(back, n); err != nil || again.Sum != p.Sum {
				t.Errorf("%+v comes back as %+v, %v", p, again, err)
			}
		}
	})
}
