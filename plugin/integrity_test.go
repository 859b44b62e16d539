// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio/staging"
)

// signAll makes the signature claim to cover every header but those named.
func signAll(req *http.Request, but ...string) *http.Request {
	list := []string{"host"}
	for name := range req.Header {
		name = strings.ToLower(name)
		if name != "authorization" && name != "test-user" && !strings.Contains(strings.Join(but, " "), name) {
			list = append(list, name)
		}
	}
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders="+strings.Join(list, ";")+", Signature=00")
	return req
}

// proof reads the answer to a transfer of p.
func proof(t *testing.T, res *http.Response, p []byte) checksum.RegionProof {
	t.Helper()
	got, found, err := checksum.ParseRegionProof(res.Header, int64(len(p)))
	if err != nil || !found {
		t.Fatalf("proof %+v, %v in %s %v", got, err, res.Status, res.Header)
	}
	if !got.Sum.IsZero() && got.Sum != checksum.Of(got.Sum.Algorithm(), p) {
		t.Errorf("%v is not of the bytes that moved", got.Sum)
	}
	if err := got.List.Verify(p); len(got.List.Sums) > 0 && err != nil {
		t.Errorf("the list: %v", err)
	}
	return got
}

func policies(get, put checksum.Policy) func(*Config, *staging.Options) {
	return func(c *Config, _ *staging.Options) { c.ChecksumGet, c.ChecksumPut = get, put }
}

// TestRegionGet: a sum of exactly the bytes written, whatever the lengths of leases,
// posts and ranges.
func TestRegionGet(t *testing.T) {
	for _, device := range []bool{false, true} {
		for _, n := range append([]int{0}, sizes...) {
			r := newRig(t, n+100, policies(checksum.PolicyRegion, checksum.PolicyNone))
			r.fab.device = device
			data := pattern(n + 50)
			r.store.put("/b/k", data[:n])
			res := r.do(r.request("GET", "/b/k", r.token(0, n+100)))
			if p := proof(t, res, data[:n]); p.Policy != checksum.PolicyRegion || p.Sum.Algorithm() != checksum.CRC64NVME {
				t.Errorf("%d bytes: %+v", n, p)
			}
			for _, alg := range checksum.Algorithms() {
				req := signAll(r.request("GET", "/b/k", r.token(0, n+100), checksum.HeaderAlgorithm, alg.String()))
				if p := proof(t, r.do(req), data[:n]); p.Sum.Algorithm() != alg {
					t.Errorf("%d bytes: %+v, want %v", n, p, alg)
				}
			}
			if n < 100 {
				continue
			}
			req := signAll(r.request("GET", "/b/k", r.token(0, n), "Range", "bytes=10-"+strconv.Itoa(n-20), checksum.HeaderBlock, "4096"))
			if p := proof(t, r.do(req), data[10:n-19]); len(p.List.Sums) != (n-29+4095)/4096 {
				t.Errorf("%d bytes: a list of %d", n, len(p.List.Sums))
			}
		}
	}
}

// TestPolicyJoins: the server's and the request's policies, the stronger of each.
func TestPolicyJoins(t *testing.T) {
	all := []checksum.Policy{checksum.PolicyNone, checksum.PolicyRegion, checksum.PolicyEnvelope, checksum.PolicyBoth}
	empty := checksum.Empty(checksum.SHA256).Hex()
	for _, server := range all {
		r := newRig(t, 1000, policies(server, server))
		data := pattern(1000)
		copy(r.fab.mem, data)
		for _, asked := range all {
			want := server.With(asked)
			for _, method := range []string{"PUT", "GET"} {
				req := signAll(r.request(method, "/b/k", r.token(0, 1000), checksum.HeaderPolicy, asked.String(), "x-amz-content-sha256", empty))
				p := proof(t, r.do(req), data)
				if p.Policy != want || p.Sum.IsZero() == want.Region() {
					t.Errorf("%s at a server with %v that asks for %v: %+v", method, server, asked, p)
				}
				req = signAll(r.request(method, "/b/k", r.token(0, 1000), checksum.HeaderPolicy, asked.String(), "x-amz-content-sha256", "UNSIGNED-PAYLOAD"))
				if res := r.do(req); (res.StatusCode == 200) == want.Envelope() {
					t.Errorf("%s without a payload's hash at %v that asks for %v: %s", method, server, asked, res.Status)
				}
			}
		}
	}
}

// TestEnvelope: what must be signed, and when.
func TestEnvelope(t *testing.T) {
	empty := checksum.Empty(checksum.SHA256).Hex()
	for _, c := range []struct {
		name, header, value string
		none, envelope      int // statuses under these policies if it is not signed
	}{
		{"policy", checksum.HeaderPolicy, "none", 403, 403},
		{"algorithm", checksum.HeaderAlgorithm, "CRC32", 403, 403},
		{"block", checksum.HeaderBlock, "4096", 403, 403},
		{"range", "Range", "bytes=0-9", 206, 403},
		{"condition", "If-Match", etag(pattern(1000)), 200, 403},
		{"checksum mode", "x-amz-checksum-mode", "ENABLED", 200, 403},
		{"payload", "x-amz-content-sha256", empty, 200, 403},
		{"agent", "User-Agent", "x", 200, 200},
		{"encoding", "Accept-Encoding", "identity", 200, 200},
	} {
		for policy, status := range map[checksum.Policy]int{checksum.PolicyNone: c.none, checksum.PolicyRegion: c.none, checksum.PolicyEnvelope: c.envelope, checksum.PolicyBoth: c.envelope} {
			r := newRig(t, 1000, policies(policy, checksum.PolicyNone))
			r.store.put("/b/k", pattern(1000))
			header := []string{"x-amz-content-sha256", empty, c.header, c.value}
			res := r.do(signAll(r.request("GET", "/b/k", r.token(0, 1000), header...), strings.ToLower(c.header)))
			if res.StatusCode != status {
				t.Errorf("%s, not signed, under %v: %s, want %d", c.name, policy, res.Status, status)
			}
			if res.StatusCode == 403 && !bytes.Equal(r.fab.mem, make([]byte, 1000)) {
				t.Errorf("%s: something moved", c.name)
			}
			if res := r.do(signAll(r.request("GET", "/b/k", r.token(0, 1000), header...))); res.StatusCode/100 != 2 {
				t.Errorf("%s, signed, under %v: %s", c.name, policy, res.Status)
			}
		}
	}
}

func TestRegionRefuses(t *testing.T) {
	for _, c := range []struct {
		method string
		header []string
		status int
		reply  string
	}{
		{"GET", []string{checksum.HeaderPolicy, "all"}, 400, ""},
		{"PUT", []string{checksum.HeaderPolicy, ""}, 200, "200"}, // request deletes it
		{"GET", []string{checksum.HeaderAlgorithm, "CRC128"}, 501, "501"},
		{"GET", []string{checksum.HeaderAlgorithm, "SHA1", checksum.HeaderBlock, "4096"}, 501, "501"},
		{"GET", []string{checksum.HeaderBlock, "5"}, 400, ""},
		{"GET", []string{checksum.HeaderBlock, "4096", checksum.HeaderAlgorithm, "CRC32", checksum.HeaderBlocks, "AAAAAA=="}, 400, ""},
		{"PUT", []string{checksum.HeaderBlock, "4096", checksum.HeaderAlgorithm, "CRC32", checksum.HeaderBlocks, "AAAAAA"}, 400, ""},
		{"PUT", []string{checksum.HeaderBlock, "4096", checksum.HeaderBlocks, "AAAAAA=="}, 400, ""},
	} {
		r := newRig(t, 1000, nil)
		r.store.put("/b/old", pattern(1000))
		res := r.do(signAll(r.request(c.method, map[string]string{"GET": "/b/old", "PUT": "/b/k"}[c.method], r.token(0, 1000), c.header...)))
		if res.StatusCode != c.status || res.Header.Get(HeaderReply) != c.reply {
			t.Errorf("%v: %s, reply %q", c.header, res.Status, res.Header.Get(HeaderReply))
		}
		if _, ok := r.store.get("/b/k"); ok != (c.status == 200) {
			t.Errorf("%v: stored %v", c.header, ok)
		}
	}
}

// TestGetIsWhatWasStored: the server compares what it sends with the checksum that it
// keeps, before it answers.
func TestGetIsWhatWasStored(t *testing.T) {
	data := pattern(20_000)
	right, wrong := checksum.Of(checksum.CRC64NVME, data).Base64(), checksum.Of(checksum.CRC64NVME, data[1:]).Base64()
	for _, c := range []struct {
		name   string
		policy checksum.Policy
		header []string // of the handler's answer
		ranged bool
		status int
	}{
		{"right", checksum.PolicyRegion, []string{"x-amz-checksum-crc64nvme", right, "x-amz-checksum-type", "FULL_OBJECT"}, false, 200},
		{"wrong", checksum.PolicyRegion, []string{"x-amz-checksum-crc64nvme", wrong, "x-amz-checksum-type", "FULL_OBJECT"}, false, 500},
		{"wrong, no type", checksum.PolicyRegion, []string{"x-amz-checksum-crc64nvme", wrong}, false, 500},
		{"wrong, no policy", checksum.PolicyNone, []string{"x-amz-checksum-crc64nvme", wrong}, false, 200},
		{"of parts", checksum.PolicyRegion, []string{"x-amz-checksum-crc64nvme", wrong + "-2"}, false, 200},
		{"composite", checksum.PolicyRegion, []string{"x-amz-checksum-crc64nvme", wrong, "x-amz-checksum-type", "COMPOSITE"}, false, 200},
		{"another algorithm", checksum.PolicyRegion, []string{"x-amz-checksum-crc32c", "AAAAAA=="}, false, 200},
		{"range", checksum.PolicyRegion, []string{"x-amz-checksum-crc64nvme", wrong}, true, 206},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, len(data), policies(c.policy, c.policy))
			r.store.put("/b/k", data)
			r.store.mangle = func(w http.ResponseWriter, _ *http.Request) bool {
				for i := 0; i < len(c.header); i += 2 {
					w.Header().Set(c.header[i], c.header[i+1])
				}
				return false
			}
			req := r.request("GET", "/b/k", r.token(0, len(data)), "x-amz-checksum-mode", "ENABLED")
			if c.ranged {
				req.Header.Set("Range", "bytes=5-")
			}
			res := r.do(req)
			body := readAll(t, res)
			if res.StatusCode != c.status {
				t.Fatalf("answer %s %s", res.Status, body)
			}
			if c.status == 500 {
				if !strings.Contains(body, CodeChecksumMismatch) || res.Header.Get(HeaderReply) != "" || res.Header.Get(HeaderBytes) != "" || res.Header.Get("ETag") != "" {
					t.Errorf("answer %v %s", res.Header, body)
				}
				if e := r.last(); e.Outcome != OutcomeFailed || e.Reason != reasonChecksum {
					t.Errorf("event %+v", e)
				}
			}
		})
	}
}

// TestRegionPut: what is not declared is computed, what is declared is told, and what
// the server's handler does not know is verified in its stead.
func TestRegionPut(t *testing.T) {
	data := pattern(20_000)
	header := func(s checksum.Sum) string {
		if s.Algorithm() == checksum.MD5 {
			return "x-amz-checksum-md5"
		}
		return s.Algorithm().Header()
	}
	for i := range 4 {
		verifies := i%2 == 0
		r := newRig(t, len(data), nil)
		r.fab.instant = i < 2 // the transfer hashes, not the body's reader
		r.srv = r.plugin.Handler(fakeServer{verifies: verifies}, r.store)
		copy(r.fab.mem, data)
		put := func(pairs ...string) *http.Response {
			return r.do(signAll(r.request("PUT", "/b/k", r.token(0, len(data)), pairs...)))
		}
		if p := proof(t, put(), data); p.Policy != checksum.PolicyRegion || p.Sum.Algorithm() != checksum.CRC64NVME {
			t.Errorf("nothing declared: %+v", p)
		}
		if p := proof(t, put(checksum.HeaderBlock, "4096"), data); len(p.List.Sums) != 5 {
			t.Errorf("blocks: %+v", p)
		}
		for _, alg := range checksum.Algorithms() {
			right, wrong := checksum.Of(alg, data), checksum.Of(alg, data[1:])
			if p := proof(t, put(header(right), right.Base64()), data); p.Sum != right {
				t.Errorf("%v declared: %+v", alg, p)
			}
			if p := proof(t, put(header(right), right.Base64(), checksum.HeaderAlgorithm, "SHA256"), data); p.Sum.Algorithm() != checksum.SHA256 {
				t.Errorf("%v declared, SHA256 asked for: %+v", alg, p)
			}
			delete(r.store.objects, "/b/k")
			other := checksum.Of(checksum.CRC32C, data)
			for _, c := range [][]string{{header(wrong), wrong.Base64()}, {header(wrong), wrong.Base64(), other.Algorithm().Header(), other.Base64()}} {
				if alg == checksum.CRC32C && len(c) > 2 {
					continue
				}
				ours := !verifies || alg == checksum.XXH64 || alg == checksum.MD5 || len(c) > 2
				res := put(c...)
				if _, stored := r.store.get("/b/k"); (res.StatusCode == 400) != ours || stored == ours {
					t.Errorf("wrong %v of %d, the handler verifies: %v: %s, stored %v", alg, len(c)/2, verifies, res.Status, stored)
				}
				delete(r.store.objects, "/b/k")
			}
			// Told of another algorithm, servers look at neither.
			if alg != checksum.MD5 {
				if res := put(header(wrong), wrong.Base64(), "x-amz-checksum-algorithm", "SHA512"); res.StatusCode != 400 {
					t.Errorf("wrong %v beside another algorithm's name: %s", alg, res.Status)
				}
				delete(r.store.objects, "/b/k")
			}
		}
		r.store.put("/b/k", nil)
	}
}

// TestBlocksPut: the damaged block is named, and nothing is stored.
func TestBlocksPut(t *testing.T) {
	data := pattern(20_000)
	b, err := checksum.NewBlocks(checksum.CRC32C, 4096)
	if err != nil {
		t.Fatal(err)
	}
	b.Write(data)
	r := newRig(t, len(data), nil)
	copy(r.fab.mem, data)
	put := func(block, text string) *http.Response {
		return r.do(signAll(r.request("PUT", "/b/k", r.token(0, len(data)),
			checksum.HeaderAlgorithm, "CRC32C", checksum.HeaderBlock, block, checksum.HeaderBlocks, text)))
	}
	if p := proof(t, put("4096", b.List().Text()), data); p.Sum != b.Sum() {
		t.Errorf("%+v", p)
	}
	delete(r.store.objects, "/b/k")
	r.fab.mem[9000] ^= 1
	res := put("4096", b.List().Text())
	if body := readAll(t, res); res.StatusCode != 400 || !strings.Contains(body, "BadDigest") || !strings.Contains(body, "block 2 of 5 (bytes 8192 to 12287)") {
		t.Errorf("answer %s %s", res.Status, body)
	}
	if res := put("8192", b.List().Text()); res.StatusCode != 400 {
		t.Errorf("a list of other blocks: %s", res.Status)
	}
	if len(r.store.objects) != 0 {
		t.Error("stored")
	}
}

// TestSourceVerify: what a handler leaves to the plugin is verified, before the last
// byte, whoever hashes.
func TestSourceVerify(t *testing.T) {
	data := pattern(20_000)
	for _, instant := range []bool{false, true} {
		for _, alg := range checksum.Algorithms() {
			for _, right := range []bool{false, true} {
				r := newRig(t, len(data), nil)
				r.fab.instant = instant
				copy(r.fab.mem, data)
				sum := checksum.Of(alg, data[1:])
				if right {
					sum = checksum.Of(alg, data)
				}
				r.store.mangle = func(w http.ResponseWriter, req *http.Request) bool {
					source, _ := SourceOf(req.Context())
					if err := source.Verify(sum); err != nil {
						t.Fatal(err)
					}
					got, err := io.ReadAll(req.Body)
					if (err == nil) != right || right && !bytes.Equal(got, data) {
						t.Errorf("%v, right %v: %d bytes, %v", alg, right, len(got), err)
					}
					if source.Verify(sum) == nil {
						t.Error("a checksum is to be verified of bytes that have been read")
					}
					w.WriteHeader(200)
					return true
				}
				if res := r.do(signAll(r.request("PUT", "/b/k", r.token(0, len(data))))); (res.StatusCode == 200) != right {
					t.Errorf("%v, right %v: %s", alg, right, res.Status)
				}
			}
		}
	}
}

// announcing is a Server whose handler takes a checksum from the trailer.
type announcing struct {
	fakeServer
	name string
}

func (s announcing) Divert(r *http.Request, id Identity, body io.ReadCloser, size int64) (*http.Request, error) {
	inner, err := s.fakeServer.Divert(r, id, body, size)
	inner.Trailer = http.Header{s.name: nil, "X-Other": nil}
	return inner, err
}

// TestAnnounced: the trailer is there when the body has been read, and not before.
func TestAnnounced(t *testing.T) {
	data := pattern(20_000)
	for _, instant := range []bool{false, true} {
		for _, alg := range checksum.Algorithms() {
			r := newRig(t, len(data), nil)
			r.fab.instant = instant
			copy(r.fab.mem, data)
			name := http.CanonicalHeaderKey(alg.Header())
			r.srv = r.plugin.Handler(announcing{name: name}, r.store)
			r.store.mangle = func(w http.ResponseWriter, req *http.Request) bool {
				if _, err := io.ReadFull(req.Body, make([]byte, len(data)-1)); err != nil || req.Trailer.Get(name) != "" {
					t.Errorf("%v before the end: %q, %v", alg, req.Trailer.Get(name), err)
				}
				if n, err := io.Copy(io.Discard, req.Body); n != 1 || err != nil {
					t.Errorf("%v: %d bytes more, %v", alg, n, err)
				}
				if got := req.Trailer.Get(name); got != checksum.Of(alg, data).Base64() || len(req.Trailer["X-Other"]) > 0 {
					t.Errorf("%v: %q, %v", alg, got, req.Trailer)
				}
				w.WriteHeader(200)
				return true
			}
			if res := r.do(signAll(r.request("PUT", "/b/k", r.token(0, len(data))))); res.StatusCode != 200 {
				t.Errorf("%v: %s", alg, res.Status)
			}
		}
	}
}
