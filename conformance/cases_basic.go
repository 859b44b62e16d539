// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
	"github.com/s3rdma/s3rdma/rdmaio"
)

// sizes are around the places where implementations change their ways: pages,
// inline data, stripes, parts, staging slabs.
var sizes = []int{1, 4095, 4096, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1<<20 - 1, 1 << 20, 1<<20 + 1, 5 << 20, 64<<20 + 1}

// plainCases check that requests without a descriptor are served at all: every other
// case relies on it.
func plainCases() []Case {
	return []Case{
		{ID: "plain/put-get", Level: Must, When: Always, Source: srcS3StayS3,
			Rule: "a PUT and a GET without a descriptor work and bear no RDMA headers",
			Run: func(ctx context.Context, e *Env) {
				data, key := pattern(1, 100_000), e.key("o")
				for _, resp := range []*rawhttp.Response{
					e.putHTTP(ctx, key, data, nil),
					e.do(ctx, rawhttp.Request{Method: "GET", Bucket: e.bucket(), Key: key}),
				} {
					e.wantRefused(resp, 200)
				}
				e.wantStored(ctx, key, data)
			}},
		{ID: "plain/empty-object", Level: Must, When: Always, Source: srcS3StayS3,
			Rule: "an empty PUT without a descriptor makes an empty object",
			Run: func(ctx context.Context, e *Env) {
				key := e.key("o")
				e.putHTTP(ctx, key, nil, nil)
				e.wantStored(ctx, key, nil)
			}},
		{ID: "plain/range", Level: Must, When: Always, Source: srcS3,
			Rule: "a ranged GET without a descriptor answers 206 with the bytes in the body",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(2, 1000)
				key := e.stored(ctx, "o", data)
				resp := e.do(ctx, rawhttp.Request{Method: "GET", Bucket: e.bucket(), Key: key, Header: http.Header{"Range": {"bytes=10-19"}}})
				e.wantRefused(resp, 206)
				if string(resp.Body) != string(data[10:20]) {
					e.failf("the body is not bytes 10 to 19 of the object")
				}
			}},
	}
}

func putCases() []Case {
	var all []Case
	for _, n := range sizes {
		all = append(all, Case{ID: fmt.Sprintf("put/size/%d", n), Level: Must, Needs: []Need{NeedFabric}, Source: srcMatrix,
			Rule: "a PUT by descriptor stores exactly the window's bytes and answers 200, reply 200, the byte count, an ETag and no body",
			Run: func(ctx context.Context, e *Env) {
				e.sized(n)
				data := pattern(uint64(n), n)
				w, key := e.filled(data), e.key("o")
				e.wantPut(e.putRDMA(ctx, key, w, nil), n)
				w.wantReceived(data) // a PUT leaves the client's memory alone
				e.wantStored(ctx, key, data)
			}})
	}
	return append(all, []Case{
		{ID: "put/zero-window", Level: Must, Needs: []Need{NeedFabric}, Source: srcTrap,
			Rule: "a PUT whose descriptor names no bytes is a 400: it is a client's mistake, and must not become an empty object",
			Run: func(ctx context.Context, e *Env) {
				d := e.window(4096).descriptor()
				d.Size = 0
				key := e.key("never")
				e.wantRefused(e.do(ctx, e.withToken("PUT", key, e.encode(d), nil)), 400)
				e.wantAbsent(ctx, key)
			}},
		{ID: "put/inside-registration", Level: Must, Needs: []Need{NeedFabric}, Source: srcBounds + "; NIXL rdma_token_range.h",
			Rule: "a window at an odd offset inside a registration is stored without its neighbours",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(11, 100_003)
				w := e.windowOf(e.shared(), len(data), guard+13)
				copy(w.bytes(), data)
				key := e.key("o")
				e.wantPut(e.putRDMA(ctx, key, w, nil), len(data))
				e.wantStored(ctx, key, data)
			}},
		{ID: "put/overwrite", Level: Must, Needs: []Need{NeedFabric}, Source: srcS3,
			Rule: "a shorter PUT by descriptor replaces a longer object whole",
			Run: func(ctx context.Context, e *Env) {
				key := e.stored(ctx, "o", pattern(12, 300_000))
				data := pattern(13, 70_000)
				e.wantPut(e.putRDMA(ctx, key, e.filled(data), nil), len(data))
				e.wantStored(ctx, key, data)
			}},
		{ID: "put/key-names", Level: Must, Needs: []Need{NeedFabric}, Source: srcS3,
			Rule: "keys that need escaping (space, plus, percent, slash, umlaut) are stored under their own name",
			Run: func(ctx context.Context, e *Env) {
				for i, name := range []string{"a b", "a+b", "a%20b", "a/b/c", "größe-日本", "a=b&c;d,e'f(g)!h"} {
					data := pattern(uint64(20+i), 3000)
					key := e.key(name)
					e.wantPut(e.putRDMA(ctx, key, e.filled(data), nil), len(data))
					e.wantStored(ctx, key, data)
				}
			}},
		{ID: "put/etag", Level: Should, Needs: []Need{NeedFabric}, Source: srcS3,
			Rule: "the ETag of a PUT by descriptor is the one that the same bytes get over HTTP, and HEAD repeats it",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(14, 123_456)
				first := e.putHTTP(ctx, e.key("http-1"), data, nil).Header.Get("Etag")
				if again := e.putHTTP(ctx, e.key("http-2"), data, nil).Header.Get("Etag"); again != first {
					e.skipf("the server gives the same bytes different ETags over HTTP, too")
				}
				key := e.key("rdma")
				resp := e.putRDMA(ctx, key, e.filled(data), nil)
				e.wantPut(resp, len(data))
				if got := resp.Header.Get("Etag"); got != first {
					e.failf("the ETag is %s, over HTTP it is %s", got, first)
				}
				if got := e.headHTTP(ctx, key, nil, nil).Header.Get("Etag"); got != first {
					e.failf("HEAD says ETag %s, the PUT said %s", got, first)
				}
			}},
		{ID: "put/wrong-key", Level: Must, Needs: []Need{NeedFabric}, Source: srcShort,
			Rule: "a PUT whose remote key is not valid is a 500 RDMATransferFailed, and nothing is stored",
			Run: func(ctx context.Context, e *Env) {
				d := e.filled(pattern(15, 70_000)).descriptor()
				d.RKey ^= 0x5a5a5a5a
				key := e.key("never")
				e.wantFailed(e.do(ctx, e.withToken("PUT", key, e.encode(d), nil)))
				e.wantAbsent(ctx, key)
			}},
		{ID: "put/stale-key", Level: Must, Needs: []Need{NeedFabric}, Source: srcShort,
			Rule: "a PUT with a descriptor that was withdrawn is a 500, nothing is stored, and an object that was there stays",
			Run: func(ctx context.Context, e *Env) {
				w := e.filled(pattern(16, 70_000))
				token := w.token()
				if err := w.exposed.Rekey(ctx); err != nil {
					e.failf("withdraw the descriptor: %v", err)
				}
				key := e.key("never")
				e.wantFailed(e.do(ctx, e.withToken("PUT", key, token, nil)))
				e.wantAbsent(ctx, key)
				before := pattern(17, 5000)
				present := e.stored(ctx, "there", before)
				e.wantFailed(e.do(ctx, e.withToken("PUT", present, token, nil)))
				e.wantStored(ctx, present, before)
				e.wantPut(e.putRDMA(ctx, key, w, nil), w.n) // the fresh descriptor works
			}},
		{ID: "put/beyond-registration", Level: Must, Needs: []Need{NeedFabric}, Source: srcBounds + "; " + srcShort,
			Rule: "a PUT whose window is longer than the memory behind it fails, and nothing is stored, not even the part that exists",
			Run: func(ctx context.Context, e *Env) {
				w := e.filled(pattern(18, 70_000))
				d := w.descriptor()
				d.Size = uint64(len(w.exposed.Bytes())) + 1<<20
				key := e.key("never")
				e.wantRefused(e.do(ctx, e.withToken("PUT", key, e.encode(d), nil)), 400, 500)
				e.wantAbsent(ctx, key)
			}},
		{ID: "put/largest-window", Level: Must, Needs: []Need{NeedFabric}, Source: srcBounds + "; minio-rs 233, minio-go 2278 (2^32 against 2^32-1)",
			Rule: "a window of 2^32-1 bytes, the most that a descriptor can name, does not wrap into a short object",
			Run: func(ctx context.Context, e *Env) {
				d := e.filled(pattern(23, 70_000)).descriptor()
				d.Size = rdmaio.MaxWindow
				key := e.key("never")
				e.wantRefused(e.do(ctx, e.withToken("PUT", key, e.encode(d), nil)), 400, 500, 503)
				e.wantAbsent(ctx, key)
			}},
		{ID: "put/agent-header", Level: Should, Needs: []Need{NeedFabric}, Source: "NooBaa's client sends x-amz-rdma-agent: cuobj",
			Rule: "x-amz-rdma-agent beside a descriptor does no harm",
			Run: func(ctx context.Context, e *Env) {
				data, key := pattern(24, 5000), e.key("o")
				e.wantPut(e.putRDMA(ctx, key, e.filled(data), http.Header{"X-Amz-Rdma-Agent": {"cuobj"}}), len(data))
				e.wantStored(ctx, key, data)
			}},
		{ID: "put/no-bucket", Level: Must, Needs: []Need{NeedFabric}, Source: srcS3,
			Rule: "a PUT by descriptor into a bucket that does not exist is a 404 without RDMA headers",
			Run: func(ctx context.Context, e *Env) {
				req := e.withToken("PUT", "never", e.filled(pattern(19, 100)).token(), nil)
				req.Bucket = bucketPrefix + randomName()
				e.wantRefused(e.do(ctx, req), 404)
			}},
		{ID: "put/wrong-secret", Level: Must, Needs: []Need{NeedFabric}, Source: srcCapable,
			Rule: "a PUT by descriptor with a wrong signature is a 403, and nothing is stored",
			Run: func(ctx context.Context, e *Env) {
				req := e.withToken("PUT", e.key("never"), e.filled(pattern(20, 100)).token(), nil)
				req.Credentials = e.wrongSecret()
				e.wantRefused(e.do(ctx, req), 403)
				e.wantAbsent(ctx, req.Key)
			}},
		{ID: "put/signed-length", Level: Must, Needs: []Need{NeedFabric}, Source: "NIXL and minio-cpp sign content-length: 0",
			Rule: "content-length: 0 among the signed headers is accepted",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(21, 70_000)
				req := e.withToken("PUT", e.key("o"), e.filled(data).token(), nil)
				req.SignLength = true
				e.wantPut(e.do(ctx, req), len(data))
				e.wantStored(ctx, req.Key, data)
			}},
		{ID: "put/empty-payload-hash", Level: Must, Needs: []Need{NeedFabric}, Source: srcDraft,
			Rule: "the SHA-256 of the empty body is accepted as payload hash, beside UNSIGNED-PAYLOAD",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(22, 70_000)
				req := e.withToken("PUT", e.key("o"), e.filled(data).token(), nil)
				req.PayloadHash = rawhttp.EmptySHA256
				e.wantPut(e.do(ctx, req), len(data))
				e.wantStored(ctx, req.Key, data)
			}},
	}...)
}

func getCases() []Case {
	var all []Case
	for _, n := range append([]int{0}, sizes...) {
		all = append(all, Case{ID: fmt.Sprintf("get/size/%d", n), Level: Must, Needs: []Need{NeedFabric}, Source: srcMatrix,
			Rule: "a GET by descriptor writes exactly the object and answers 200, reply 200, the byte count (0 too) and no body",
			Run: func(ctx context.Context, e *Env) {
				e.sized(n)
				data := pattern(uint64(n)+1, n)
				key, w := e.stored(ctx, "o", data), e.window(max(n, 1))
				e.wantGet(e.getRDMA(ctx, key, w, nil), n)
				w.wantReceived(data)
			}})
	}
	return append(all, []Case{
		{ID: "get/window-larger", Level: Must, Needs: []Need{NeedFabric}, Source: srcBounds,
			Rule: "a window larger than the object is fine; what lies behind the object is not touched",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(30, 100_001)
				key, w := e.stored(ctx, "o", data), e.window(300_000)
				e.wantGet(e.getRDMA(ctx, key, w, nil), len(data))
				w.wantReceived(data)
			}},
		{ID: "get/window-too-small", Level: Must, Needs: []Need{NeedFabric}, Source: srcShort,
			Rule: "an object larger than the window is a client error and nothing is written: clients don't compare lengths",
			Run: func(ctx context.Context, e *Env) {
				for _, n := range []int{5000, 200_000, 3 << 20} {
					key, w := e.stored(ctx, "o"+itoa(n), pattern(31, n)), e.window(n-1)
					e.wantClientError(e.getRDMA(ctx, key, w, nil))
					w.wantUntouched()
				}
			}},
		{ID: "get/zero-window", Level: Should, Needs: []Need{NeedFabric}, Source: srcShort,
			Rule: "a GET of an object that has bytes into a window that has none is a client error",
			Run: func(ctx context.Context, e *Env) {
				key, w := e.stored(ctx, "o", pattern(32, 100)), e.window(4096)
				d := w.descriptor()
				d.Size = 0
				e.wantClientError(e.do(ctx, e.withToken("GET", key, e.encode(d), nil)))
				w.wantUntouched()
			}},
		{ID: "get/inside-registration", Level: Must, Needs: []Need{NeedFabric}, Source: srcBounds + "; NIXL rdma_token_range.h",
			Rule: "a window at an odd offset inside a registration receives the object there and nowhere else",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(33, 100_003)
				key, w := e.stored(ctx, "o", data), e.windowOf(e.shared(), len(data)+7, guard+13)
				e.wantGet(e.getRDMA(ctx, key, w, nil), len(data))
				w.wantReceived(data)
			}},
		{ID: "get/wrong-key", Level: Must, Needs: []Need{NeedFabric}, Source: srcBounds,
			Rule: "a GET whose remote key is not valid is a 500 RDMATransferFailed, and nothing is written",
			Run: func(ctx context.Context, e *Env) {
				key, w := e.stored(ctx, "o", pattern(34, 70_000)), e.window(70_000)
				d := w.descriptor()
				d.RKey ^= 0x5a5a5a5a
				e.wantFailed(e.do(ctx, e.withToken("GET", key, e.encode(d), nil)))
				w.wantUntouched()
			}},
		{ID: "get/stale-key", Level: Must, Needs: []Need{NeedFabric}, Source: srcRuleOne,
			Rule: "a GET with a descriptor that was withdrawn is a 500, and nothing is written",
			Run: func(ctx context.Context, e *Env) {
				key, w := e.stored(ctx, "o", pattern(35, 70_000)), e.window(70_000)
				token := w.token()
				if err := w.exposed.Rekey(ctx); err != nil {
					e.failf("withdraw the descriptor: %v", err)
				}
				e.wantFailed(e.do(ctx, e.withToken("GET", key, token, nil)))
				w.wantUntouched()
			}},
		{ID: "get/beyond-registration", Level: Must, Needs: []Need{NeedFabric}, Source: srcBounds,
			Rule: "a window that claims more memory than there is can't turn a GET that does not fit into a success",
			Run: func(ctx context.Context, e *Env) {
				w := e.window(4096)
				n := len(w.exposed.Bytes()) + 1<<20
				key := e.stored(ctx, "o", pattern(36, n))
				d := w.descriptor()
				d.Size = uint64(n)
				e.wantRefused(e.do(ctx, e.withToken("GET", key, e.encode(d), nil)), 400, 500)
			}},
		{ID: "get/no-such-key", Level: Must, Needs: []Need{NeedFabric}, Source: srcS3,
			Rule: "a GET by descriptor of an object that does not exist is a 404 NoSuchKey without RDMA headers, nothing written",
			Run: func(ctx context.Context, e *Env) {
				w := e.window(4096)
				resp := e.getRDMA(ctx, e.key("never"), w, nil)
				e.wantRefused(resp, 404)
				if code := resp.Error().Code; code != "NoSuchKey" {
					e.failf("the error code is %q, want NoSuchKey", code)
				}
				w.wantUntouched()
			}},
		{ID: "get/no-such-bucket", Level: Must, Needs: []Need{NeedFabric}, Source: srcS3,
			Rule: "a GET by descriptor from a bucket that does not exist is a 404 without RDMA headers, nothing written",
			Run: func(ctx context.Context, e *Env) {
				w := e.window(4096)
				req := e.withToken("GET", "never", w.token(), nil)
				req.Bucket = bucketPrefix + randomName()
				e.wantRefused(e.do(ctx, req), 404)
				w.wantUntouched()
			}},
		{ID: "get/wrong-secret", Level: Must, Needs: []Need{NeedFabric}, Source: srcCapable,
			Rule: "a GET by descriptor with a wrong signature is a 403, nothing written",
			Run: func(ctx context.Context, e *Env) {
				w := e.window(4096)
				req := e.withToken("GET", e.stored(ctx, "o", pattern(37, 100)), w.token(), nil)
				req.Credentials = e.wrongSecret()
				e.wantRefused(e.do(ctx, req), 403)
				w.wantUntouched()
			}},
		{ID: "get/empty-payload-hash", Level: Must, Needs: []Need{NeedFabric}, Source: srcDraft,
			Rule: "the SHA-256 of the empty body is accepted as payload hash of a GET",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(38, 70_000)
				w := e.window(len(data))
				req := e.withToken("GET", e.stored(ctx, "o", data), w.token(), nil)
				req.PayloadHash = rawhttp.EmptySHA256
				e.wantGet(e.do(ctx, req), len(data))
				w.wantReceived(data)
			}},
		{ID: "get/no-late-writes", Level: Must, Needs: []Need{NeedFabric}, Source: srcRuleOne + "; DingoCache 333, Ceph RFC 71209",
			Rule: "when the answer is there, the window is complete and nothing writes to it any more",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(39, 5<<20)
				e.sized(len(data))
				key, w := e.stored(ctx, "o", data), e.window(len(data))
				for range 4 {
					e.wantGet(e.getRDMA(ctx, key, w, nil), len(data))
					w.wantReceived(data)
					w.poison()
					e.pause(ctx, 30*time.Millisecond)
					w.wantUntouched()
				}
			}},
		{ID: "get/headers", Level: Must, Needs: []Need{NeedFabric}, Source: srcDraft,
			Rule: "a GET by descriptor bears the object's headers as a plain GET does (ETag, Last-Modified, Content-Type, metadata)",
			Run: func(ctx context.Context, e *Env) {
				data, key := pattern(40, 70_000), e.key("o")
				e.putHTTP(ctx, key, data, http.Header{"Content-Type": {"text/x-case"}, "Cache-Control": {"max-age=7"}, "X-Amz-Meta-Case": {"Value 1"}})
				plain := e.headHTTP(ctx, key, nil, nil)
				w := e.window(len(data))
				resp := e.getRDMA(ctx, key, w, nil)
				e.wantGet(resp, len(data))
				m := mismatch{resp: resp}
				for _, name := range []string{"Etag", "Last-Modified", "Content-Type", "Cache-Control", "X-Amz-Meta-Case"} {
					m.header(name, plain.Header.Get(name))
				}
				e.report("headers differ from those of a plain HEAD", m)
				w.wantReceived(data)
			}},
	}...)
}

// hugeSizes are around the places where a size no longer fits an integer: of 32 bits with
// a sign, without, and what a descriptor can name.
var hugeSizes = []int64{1<<31 - 1, 1 << 31, 1<<31 + 1, rdmaio.MaxWindow}

// hugeCases move objects of some GiB, which takes as much memory here as at the server's
// drives: they run where Options.MaxObject allows it.
func hugeCases() []Case {
	var all []Case
	for _, n := range hugeSizes {
		all = append(all, Case{ID: "size/huge/" + itoa(n), Level: Must, Needs: []Need{NeedFabric}, Source: "minio-cpp 241 (2 GiB), minio-py 1565, minio-rs 233, minio-go 2278 (4 GiB)",
			Rule: "an object whose size is at an integer's limit is stored and fetched whole by descriptor",
			Run: func(ctx context.Context, e *Env) {
				e.huge(n)
				w, key := e.window(int(n)), e.key("o")
				fill := func(each func(part, data []byte)) { // the pattern repeats: memory is all that is huge here
					block := pattern(41, 1<<20-3)
					for all := w.bytes(); len(all) > 0; all = all[min(len(all), len(block)):] {
						each(all[:min(len(all), len(block))], block)
					}
				}
				fill(func(part, data []byte) { copy(part, data) })
				e.wantPut(e.putRDMA(ctx, key, w, nil), int(n))
				if got := e.headHTTP(ctx, key, nil, nil).Length; got != n {
					e.failf("HEAD says %d bytes, want %d", got, n)
				}
				w.poison()
				e.wantGet(e.getRDMA(ctx, key, w, nil), int(n))
				fill(func(part, data []byte) {
					if at, same := firstDifference(part, data[:len(part)]); !same {
						e.failf("the window differs from the object, at byte %d of some block of %d", at, len(data))
					}
				})
				w.wantPoison(w.off+w.n, len(w.exposed.Bytes()), "behind the object's last byte")
				w.wantPoison(0, w.off, "before the window")
			}})
	}
	return all
}

// pause waits where there is no event to wait for: for something that must not
// happen.
func (e *Env) pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
		e.failf("out of time")
	}
}
