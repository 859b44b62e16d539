// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"maps"
	"net/http"
	"strings"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

// sumHeader is the request header that declares data's checksum.
func sumHeader(algorithm string, data []byte) http.Header {
	alg, err := checksum.ParseAlgorithm(algorithm)
	if err != nil {
		panic(err) // the names are constants of this package
	}
	return http.Header{http.CanonicalHeaderKey(alg.Header()): {checksum.Of(alg, data).Base64()}}
}

// s3Algorithms are those that all servers know as request headers.
var s3Algorithms = []string{"CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"}

func checksumCases() []Case {
	var all []Case
	for _, alg := range append([]string{"MD5"}, s3Algorithms...) {
		lower := strings.ToLower(alg)
		all = append(all,
			Case{ID: "checksum/wrong/" + lower, Level: Must, Needs: []Need{NeedFabric}, Source: srcMatrix + "; noobaa 8487",
				Rule: "a declared " + alg + " describes the window's bytes; a wrong one is a 400, and nothing is stored",
				Run: func(ctx context.Context, e *Env) {
					data, key := pattern(90, 70_000), e.key("never")
					e.wantRefused(e.putRDMA(ctx, key, e.filled(data), sumHeader(alg, data[1:])), 400)
					e.wantAbsent(ctx, key)
				}},
			Case{ID: "checksum/of-nothing/" + lower, Level: Must, Needs: []Need{NeedFabric}, Source: "SDK defaults since January 2025 (nixl 1443): the checksum of the empty body leaks in",
				Rule: "the " + alg + " of the empty string with a window that has bytes is a 400, and nothing is stored: a wrong checksum must never be kept",
				Run: func(ctx context.Context, e *Env) {
					data, key := pattern(91, 70_000), e.key("never")
					e.wantRefused(e.putRDMA(ctx, key, e.filled(data), sumHeader(alg, nil)), 400)
					e.wantAbsent(ctx, key)
				}})
		if alg == "MD5" {
			continue
		}
		all = append(all, Case{ID: "checksum/right/" + lower, Level: Must, Needs: []Need{NeedFabric}, Source: srcMatrix + "; " + srcS3,
			Rule: "a right " + alg + " is accepted, kept, and returned by a plain HEAD with x-amz-checksum-mode",
			Run: func(ctx context.Context, e *Env) {
				data, key := pattern(92, 70_000), e.key("o")
				h := sumHeader(alg, data)
				e.wantPut(e.putRDMA(ctx, key, e.filled(data), h), len(data))
				e.wantStored(ctx, key, data)
				m := mismatch{resp: e.headHTTP(ctx, key, http.Header{"X-Amz-Checksum-Mode": {"ENABLED"}}, nil)}
				for name := range h {
					m.header(name, h.Get(name))
				}
				e.report("HEAD does not return the checksum", m)
			}})
	}
	return append(all, []Case{
		{ID: "checksum/right/content-md5", Level: May, Needs: []Need{NeedFabric}, Source: srcDraft,
			Rule: "a right Content-MD5 of the window's bytes is accepted (the draft lets a server refuse any)",
			Run: func(ctx context.Context, e *Env) {
				data, key := pattern(93, 70_000), e.key("o")
				resp := e.putRDMA(ctx, key, e.filled(data), sumHeader("MD5", data))
				if resp.Status == 400 {
					e.wantRefused(resp, 400)
					e.wantAbsent(ctx, key)
					e.skipf("the server refuses Content-MD5 beside a descriptor, as it may")
				}
				e.wantPut(resp, len(data))
				e.wantStored(ctx, key, data)
			}},
		{ID: "checksum/malformed", Level: Must, Needs: []Need{NeedFabric}, Source: srcS3,
			Rule: "a checksum header that is no checksum is a 400, and nothing is stored",
			Run: func(ctx context.Context, e *Env) {
				for _, value := range []string{"", "AAAA", "not base64!"} {
					key := e.key("never")
					e.wantRefused(e.putRDMA(ctx, key, e.filled(pattern(94, 5000)), http.Header{"X-Amz-Checksum-Crc32c": {value}}), 400)
					e.wantAbsent(ctx, key)
				}
			}},
		{ID: "checksum/algorithm-only", Level: Must, Needs: []Need{NeedFabric}, Source: "NIXL sends x-amz-checksum-algorithm: CRC64NVME on each PUT",
			Rule: "x-amz-checksum-algorithm without a value does no harm",
			Run: func(ctx context.Context, e *Env) {
				data, key := pattern(95, 70_000), e.key("o")
				e.wantPut(e.putRDMA(ctx, key, e.filled(data), http.Header{"X-Amz-Checksum-Algorithm": {"CRC64NVME"}}), len(data))
				e.wantStored(ctx, key, data)
			}},
		{ID: "checksum/named", Level: Should, Needs: []Need{NeedFabric}, Source: "NIXL reads x-amz-checksum-crc64nvme of the answer to a PUT that has named the algorithm",
			Rule: "a checksum that a PUT or part names by its algorithm and leaves to the server is in the answer, and kept as S3 keeps it: HEAD and GetObjectAttributes tell it",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(99, 600_007)
				for _, alg := range s3Algorithms {
					named, right := http.Header{"X-Amz-Checksum-Algorithm": {alg}}, sumHeader(alg, data)
					for i, way := range integrityWays() {
						if i > 0 && !e.encrypts(ctx) {
							continue
						}
						key, h := e.key(way.name+"-"+alg), maps.Clone(named)
						maps.Copy(h, way.store)
						resp := e.putRDMA(ctx, key, e.filled(data), h)
						e.wantPut(resp, len(data))
						e.wantSum(resp, right)
						e.wantStored(ctx, key, data)
						e.wantSum(e.headHTTP(ctx, key, http.Header{"X-Amz-Checksum-Mode": {"ENABLED"}}, nil), right)
						attributes := e.do(ctx, rawhttp.Request{Method: "GET", Bucket: e.bucket(), Key: key, Query: query("attributes", ""),
							Header: http.Header{"X-Amz-Object-Attributes": {"Checksum"}}})
						e.want(attributes, 200)
						for name := range right {
							if !strings.Contains(string(attributes.Body), right.Get(name)) {
								e.failf("GetObjectAttributes does not tell the %s that was named", alg)
							}
						}
						u := e.startUpload(ctx, e.key("parts"), way.store)
						resp = e.do(ctx, u.request(1, e.filled(data).token(), named))
						e.wantPut(resp, len(data))
						e.wantSum(resp, right)
					}
				}
			}},
		{ID: "checksum/get-unasked", Level: Should, Needs: []Need{NeedFabric}, Source: "nixl 1443: SDKs check it against the empty body",
			Rule: "a GET by descriptor that does not ask for checksums gets none",
			Run: func(ctx context.Context, e *Env) {
				data, key := pattern(96, 70_000), e.key("o")
				e.putHTTP(ctx, key, data, sumHeader("CRC32C", data))
				w := e.window(len(data))
				resp := e.getRDMA(ctx, key, w, nil)
				e.wantGet(resp, len(data))
				for name := range resp.Header {
					if strings.HasPrefix(name, "X-Amz-Checksum-") {
						e.failf("the answer bears %s", strings.ToLower(name))
					}
				}
			}},
		{ID: "checksum/get-asked", Level: Should, Needs: []Need{NeedFabric}, Source: srcS3,
			Rule: "a GET by descriptor with x-amz-checksum-mode gets the checksum of the object",
			Run: func(ctx context.Context, e *Env) {
				data, key := pattern(97, 70_000), e.key("o")
				h := sumHeader("CRC64NVME", data)
				e.putHTTP(ctx, key, data, h)
				w := e.window(len(data))
				resp := e.getRDMA(ctx, key, w, http.Header{"X-Amz-Checksum-Mode": {"ENABLED"}})
				e.wantGet(resp, len(data))
				m := mismatch{resp: resp}
				for name := range h {
					m.header(name, h.Get(name))
				}
				e.report("no checksum though asked for", m)
			}},
		{ID: "checksum/payload-hash-of-other-bytes", Level: Must, Needs: []Need{NeedFabric}, Source: srcDraft,
			Rule: "a payload hash that is neither UNSIGNED-PAYLOAD nor of the empty body nor of the window's bytes stores nothing",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(98, 5000)
				req := e.withToken("PUT", e.key("never"), e.filled(data).token(), nil)
				req.PayloadHash = checksum.Of(checksum.SHA256, data[1:]).Hex()
				e.wantRefused(e.do(ctx, req), 400)
				e.wantAbsent(ctx, req.Key)
			}},
	}...)
}

// wantSum checks that an answer has the checksum that is in h.
func (e *Env) wantSum(resp *rawhttp.Response, h http.Header) {
	m := mismatch{resp: resp}
	for name := range h {
		m.header(name, h.Get(name))
	}
	e.report("the checksum is not told", m)
}
