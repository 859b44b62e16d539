// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"net/http"
	"strings"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

const srcPolicy = "s3rdma wire protocol, integrity"

// asking makes the headers that ask for checksums over the region.
func asking(q checksum.RegionRequest) http.Header {
	h := http.Header{}
	q.Set(h)
	return h
}

// region asks for a checksum of alg.
func region(alg checksum.Algorithm) http.Header {
	return asking(checksum.RegionRequest{Policy: checksum.PolicyRegion, Algorithm: alg})
}

// wantProof checks what an answer says of the bytes that moved. A server that says
// nothing knows no policies: the case is skipped.
func (e *Env) wantProof(resp *rawhttp.Response, policy checksum.Policy, alg checksum.Algorithm, moved []byte) checksum.RegionProof {
	p, found, err := checksum.ParseRegionProof(resp.Header, int64(len(moved)))
	switch {
	case !found:
		e.skipf("the server knows no checksum policies")
	case err != nil:
		e.failf("what the answer says of the bytes cannot be read: %v", err)
	case p.Policy.With(policy) != p.Policy:
		e.failf("the policy is %v, %v was asked for", p.Policy, policy)
	case !policy.Region():
		return p
	case p.Sum.Algorithm() != alg:
		e.failf("the region's checksum is %v, %v was asked for", p.Sum.Algorithm(), alg)
	case p.Sum != checksum.Of(alg, moved):
		e.failf("the region's %v is not that of the %d bytes that moved", alg, len(moved))
	}
	if err := p.List.Verify(moved); len(p.List.Sums) > 0 && err != nil {
		e.failf("the list is not that of the bytes that moved: %v", err)
	}
	return p
}

// knowsPolicies skips the case if the server does not. A server is asked until it has
// shown once that it does.
func (e *Env) knowsPolicies(ctx context.Context) {
	if e.runner.policies {
		return
	}
	data := pattern(150, 100)
	key, w := e.stored(ctx, "policies", data), e.window(len(data))
	e.wantProof(e.getRDMA(ctx, key, w, region(checksum.CRC32)), checksum.PolicyRegion, checksum.CRC32, data)
	e.runner.policies = true
}

func integrityCases() []Case {
	var all []Case
	for _, alg := range checksum.Algorithms() {
		lower := strings.ToLower(alg.String())
		all = append(all,
			Case{ID: "policy/get/" + lower, Level: May, Needs: []Need{NeedFabric}, Source: srcPolicy,
				Rule: "a GET that asks for the region's " + alg.String() + " gets that of exactly the bytes written: all of them, or a range's",
				Run: func(ctx context.Context, e *Env) {
					data := pattern(151, 1<<20+17)
					key, w := e.stored(ctx, "o", data), e.window(len(data))
					resp := e.getRDMA(ctx, key, w, region(alg))
					e.wantGet(resp, len(data))
					w.wantReceived(data)
					e.wantProof(resp, checksum.PolicyRegion, alg, w.bytes())
					w.poison()
					h := region(alg)
					h.Set("Range", "bytes=1000-700000")
					resp = e.getRDMA(ctx, key, w, h)
					e.wantPartial(resp, 1000, 700_000, len(data))
					w.wantReceived(data[1000:700_001])
					e.wantProof(resp, checksum.PolicyRegion, alg, data[1000:700_001])
				}},
			Case{ID: "policy/put/" + lower, Level: May, Needs: []Need{NeedFabric}, Source: srcPolicy,
				Rule: "a PUT or part that asks for the region's " + alg.String() + " is told that of exactly the bytes read",
				Run: func(ctx context.Context, e *Env) {
					data, key := pattern(152, 1<<20+17), e.key("o")
					resp := e.putRDMA(ctx, key, e.filled(data), region(alg))
					e.wantPut(resp, len(data))
					e.wantStored(ctx, key, data)
					e.wantProof(resp, checksum.PolicyRegion, alg, data)
					u := e.startUpload(ctx, e.key("parts"), nil)
					resp = e.do(ctx, u.request(1, e.filled(data).token(), region(alg)))
					e.wantPut(resp, len(data))
					e.wantProof(resp, checksum.PolicyRegion, alg, data)
				}},
			Case{ID: "checksum/part/" + lower, Level: Must, Needs: []Need{NeedFabric}, Source: srcMatrix + "; minio-cpp 226",
				Rule: "a declared " + alg.String() + " of a part is verified, or the request declined; it is never ignored",
				Run: func(ctx context.Context, e *Env) {
					data := pattern(153, 70_000)
					u := e.startUpload(ctx, e.key("never"), nil)
					for _, wrong := range [][]byte{data[1:], nil} {
						e.wantVerified(e.do(ctx, u.request(1, e.filled(data).token(), sumHeader(alg.String(), wrong))))
					}
					u.wantParts(ctx)
				}})
	}
	return append(all, []Case{
		{ID: "checksum/never-ignored", Level: Must, Needs: []Need{NeedFabric}, Source: srcMatrix,
			Rule: "a wrong checksum of an algorithm that not all servers know, a second one beside a right one, or one beside another algorithm's name, is refused or the request declined; nothing is stored",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(154, 70_000)
				right := sumHeader("CRC32C", data)
				for _, h := range []http.Header{
					sumHeader("XXHASH64", data[1:]),
					{"X-Amz-Checksum-Md5": {checksum.Of(checksum.MD5, data[1:]).Base64()}},
					{"X-Amz-Checksum-Sha512": {strings.Repeat("A", 86) + "=="}},
					{"X-Amz-Checksum-Crc32c": right["X-Amz-Checksum-Crc32c"], "X-Amz-Checksum-Sha1": {checksum.Of(checksum.SHA1, data[1:]).Base64()}},
					{"X-Amz-Checksum-Algorithm": {"CRC32"}, "X-Amz-Checksum-Sha256": {checksum.Of(checksum.SHA256, data[1:]).Base64()}},
				} {
					key := e.key("never")
					e.wantVerified(e.putRDMA(ctx, key, e.filled(data), h))
					e.wantAbsent(ctx, key)
				}
			}},
		{ID: "checksum/sdk-algorithm", Level: Must, Needs: []Need{NeedFabric}, Source: "SDK defaults since January 2025",
			Rule: "x-amz-sdk-checksum-algorithm without a value does no harm",
			Run: func(ctx context.Context, e *Env) {
				data, key := pattern(155, 70_000), e.key("o")
				e.wantPut(e.putRDMA(ctx, key, e.filled(data), http.Header{"X-Amz-Sdk-Checksum-Algorithm": {"CRC32"}}), len(data))
				e.wantStored(ctx, key, data)
			}},
		{ID: "policy/get-part", Level: May, Needs: []Need{NeedFabric}, Source: srcPolicy,
			Rule: "a GET by partNumber that asks for the region's checksum gets that of the part",
			Run: func(ctx context.Context, e *Env) {
				const part = 5 << 20
				data := pattern(156, part+1234)
				u := e.startUpload(ctx, e.key("o"), nil)
				u.addHTTP(ctx, 1, data[:part])
				u.addHTTP(ctx, 2, data[part:])
				u.complete(ctx)
				w := e.window(len(data))
				req := e.withToken("GET", u.key, w.token(), region(checksum.CRC64NVME))
				req.Query = query("partNumber", "2")
				resp := e.do(ctx, req)
				e.wantPartial(resp, part, len(data)-1, len(data))
				e.wantProof(resp, checksum.PolicyRegion, checksum.CRC64NVME, data[part:])
			}},
		{ID: "policy/get-empty", Level: May, Needs: []Need{NeedFabric}, Source: srcPolicy,
			Rule: "the region of an empty object has the checksum of nothing, and no list",
			Run: func(ctx context.Context, e *Env) {
				w := e.window(10)
				resp := e.getRDMA(ctx, e.stored(ctx, "o", nil), w, asking(checksum.RegionRequest{Policy: checksum.PolicyRegion, Algorithm: checksum.CRC32, Block: checksum.MinBlock}))
				e.wantGet(resp, 0)
				e.wantProof(resp, checksum.PolicyRegion, checksum.CRC32, nil)
			}},
		{ID: "policy/damage", Level: May, Needs: []Need{NeedFabric}, Source: srcPolicy,
			Rule: "a byte that changes in the client's memory is found by the region's checksum, and by nothing else of the answer",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(157, 70_000)
				w := e.window(len(data))
				resp := e.getRDMA(ctx, e.stored(ctx, "o", data), w, region(checksum.SHA256))
				e.wantGet(resp, len(data))
				p := e.wantProof(resp, checksum.PolicyRegion, checksum.SHA256, w.bytes())
				w.bytes()[len(data)/2] ^= 1
				if p.Sum == checksum.Of(checksum.SHA256, w.bytes()) {
					e.failf("the checksum of damaged memory is that of the answer")
				}
			}},
		{ID: "policy/no-less", Level: May, Needs: []Need{NeedFabric}, Source: srcPolicy,
			Rule: "a request can ask for more than the server's policy, not for less",
			Run: func(ctx context.Context, e *Env) {
				e.knowsPolicies(ctx)
				data, key := pattern(158, 5000), e.key("o")
				own := e.putRDMA(ctx, key, e.filled(data), nil)
				e.wantPut(own, len(data))
				p, found, err := checksum.ParseRegionProof(own.Header, int64(len(data)))
				if err != nil || !found {
					e.failf("a PUT that asks for nothing is told no policy (%v)", err)
				}
				for _, q := range []checksum.Policy{checksum.PolicyNone, checksum.PolicyRegion} {
					h := http.Header{checksum.HeaderPolicy: {q.String()}}
					resp := e.putRDMA(ctx, key, e.filled(data), h)
					e.wantPut(resp, len(data))
					got, _, err := checksum.ParseRegionProof(resp.Header, int64(len(data)))
					if err != nil || got.Policy != p.Policy.With(q) {
						e.failf("the server's policy is %v, with a request for %v it is %v (%v)", p.Policy, q, got.Policy, err)
					}
				}
			}},
		{ID: "policy/unsigned", Level: May, Needs: []Need{NeedFabric}, Source: srcPolicy + "; " + srcCapable,
			Rule: "a request for checksums that is not among the signed headers is a 403, nothing stored or written",
			Run: func(ctx context.Context, e *Env) {
				e.knowsPolicies(ctx)
				data := pattern(159, 5000)
				for _, name := range []string{checksum.HeaderPolicy, checksum.HeaderAlgorithm, checksum.HeaderBlock} {
					value := map[string]string{checksum.HeaderPolicy: "none", checksum.HeaderAlgorithm: "CRC32", checksum.HeaderBlock: "4096"}[name]
					key, w := e.stored(ctx, "o", data), e.window(len(data))
					for _, method := range []string{"PUT", "GET"} {
						req := e.withToken(method, key, w.token(), nil)
						req.Unsigned = http.Header{name: {value}}
						e.wantRefused(e.do(ctx, req), 403)
					}
					w.wantUntouched()
					e.wantStored(ctx, key, data)
				}
			}},
		{ID: "policy/malformed", Level: May, Needs: []Need{NeedFabric}, Source: srcPolicy,
			Rule: "a request for checksums that cannot be read is a 400; for an algorithm that the server does not know, a decline; nothing is stored",
			Run: func(ctx context.Context, e *Env) {
				e.knowsPolicies(ctx)
				put := func(h http.Header) *rawhttp.Response {
					key := e.key("never")
					resp := e.putRDMA(ctx, key, e.filled(pattern(160, 5000)), h)
					e.wantAbsent(ctx, key)
					return resp
				}
				for _, h := range []http.Header{
					{checksum.HeaderPolicy: {"all"}}, {checksum.HeaderPolicy: {"none", "region"}},
					{checksum.HeaderBlock: {"1"}}, {checksum.HeaderBlock: {"4096 "}, checksum.HeaderAlgorithm: {"CRC32"}, checksum.HeaderBlocks: {"AAAAAA"}},
				} {
					e.wantRefused(put(h), 400)
				}
				e.wantDeclined(put(http.Header{checksum.HeaderAlgorithm: {"CRC128"}}))
				e.wantDeclined(put(http.Header{checksum.HeaderAlgorithm: {"SHA256"}, checksum.HeaderBlock: {"4096"}}))
			}},
		{ID: "policy/envelope", Level: May, Needs: []Need{NeedFabric}, Source: srcPolicy,
			Rule: "under the envelope policy a request needs the signed hash of its empty payload, and a signature over each header that says which bytes are meant",
			Run: func(ctx context.Context, e *Env) {
				e.knowsPolicies(ctx)
				data := pattern(161, 5000)
				key, w := e.stored(ctx, "o", data), e.window(len(data))
				h := asking(checksum.RegionRequest{Policy: checksum.PolicyEnvelope})
				w.poison()
				e.wantRefused(e.getRDMA(ctx, key, w, h), 400) // UNSIGNED-PAYLOAD
				w.wantUntouched()
				req := e.withToken("GET", key, w.token(), h)
				req.PayloadHash = rawhttp.EmptySHA256
				req.Unsigned = http.Header{"Range": {"bytes=0-9"}}
				e.wantRefused(e.do(ctx, req), 403)
				w.wantUntouched()
				req.Unsigned = nil
				resp := e.do(ctx, req)
				e.wantGet(resp, len(data))
				w.wantReceived(data)
				e.wantProof(resp, checksum.PolicyEnvelope, 0, data)
				put := e.withToken("PUT", e.key("put"), e.filled(data).token(), h)
				put.PayloadHash = rawhttp.EmptySHA256
				e.wantPut(e.do(ctx, put), len(data))
				e.wantStored(ctx, put.Key, data)
			}},
		{ID: "policy/blocks-get", Level: May, Needs: []Need{NeedFabric}, Source: srcPolicy,
			Rule: "block by block: the list is of the bytes written, fits its bound, and makes up the checksum of the whole",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(162, 4<<20+99)
				key, w := e.stored(ctx, "o", data), e.window(len(data))
				for _, alg := range []checksum.Algorithm{checksum.CRC32, checksum.CRC32C, checksum.CRC64NVME} {
					for _, block := range []int64{checksum.MinBlock, 1 << 20, 5 << 20} {
						resp := e.getRDMA(ctx, key, w, asking(checksum.RegionRequest{Policy: checksum.PolicyRegion, Algorithm: alg, Block: block}))
						e.wantGet(resp, len(data))
						p := e.wantProof(resp, checksum.PolicyRegion, alg, data)
						if want, err := checksum.ListOf(alg, block, data); err != nil || want.Compare(p.List) != nil {
							e.failf("blocks of %d were asked for, and %d are in the list, of %d", block, len(p.List.Sums), p.List.Block)
						}
					}
				}
			}},
		{ID: "policy/blocks-put", Level: May, Needs: []Need{NeedFabric}, Source: srcPolicy,
			Rule: "a declared list is verified: where a block differs, that is a 400 that names it, and nothing is stored",
			Run: func(ctx context.Context, e *Env) {
				e.knowsPolicies(ctx)
				data, key := pattern(163, 70_000), e.key("o")
				l, err := checksum.ListOf(checksum.CRC32C, checksum.MinBlock, data)
				if err != nil {
					e.failf("%v", err)
				}
				h := asking(checksum.RegionRequest{Policy: checksum.PolicyRegion, Algorithm: checksum.CRC32C, Block: l.Block, Blocks: l.Text()})
				resp := e.putRDMA(ctx, key, e.filled(data), h)
				e.wantPut(resp, len(data))
				e.wantProof(resp, checksum.PolicyRegion, checksum.CRC32C, data)
				e.wantStored(ctx, key, data)
				w := e.filled(data)
				w.bytes()[5*checksum.MinBlock] ^= 1
				never := e.key("never")
				resp = e.putRDMA(ctx, never, w, h)
				e.wantRefused(resp, 400)
				if !strings.Contains(resp.Error().Message, "block 5") {
					e.failf("the answer does not name block 5: %q", resp.Error().Message)
				}
				e.wantAbsent(ctx, never)
			}},
	}...)
}

// wantVerified checks the answer to a PUT with a wrong checksum: refused, or declined.
func (e *Env) wantVerified(resp *rawhttp.Response) {
	if resp.Status == 501 {
		e.wantDeclined(resp)
		return
	}
	e.wantRefused(resp, 400)
}
