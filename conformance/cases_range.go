// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

func rangeCases() []Case {
	const total = 3<<20 + 17
	ranged := func(id, header string, first, last int) Case {
		return Case{ID: "range/" + id, Level: Must, Needs: []Need{NeedFabric}, Source: srcMatrix,
			Rule: fmt.Sprintf("Range %q by descriptor: those bytes at the window's start, 206 with reply 206 (NIXL refuses 206 with reply 200) and Content-Range", header),
			Run: func(ctx context.Context, e *Env) {
				data := pattern(50, total)
				key, w := e.stored(ctx, "o", data), e.window(total)
				e.wantPartial(e.getRDMA(ctx, key, w, http.Header{"Range": {header}}), first, last, total)
				w.wantReceived(data[first : last+1])
			}}
	}
	return []Case{
		ranged("first-byte", "bytes=0-0", 0, 0),
		ranged("last-byte", fmt.Sprintf("bytes=%d-%d", total-1, total-1), total-1, total-1),
		ranged("middle", "bytes=1048570-2097160", 1048570, 2097160),
		ranged("open-ended", "bytes=3000000-", 3000000, total-1),
		ranged("suffix", "bytes=-100001", total-100001, total-1),
		ranged("suffix-longer-than-object", "bytes=-99999999", 0, total-1),
		ranged("whole", fmt.Sprintf("bytes=0-%d", total-1), 0, total-1),
		ranged("end-beyond-object", "bytes=3145700-99999999", 3145700, total-1),
		{ID: "range/exact-window", Level: Must, Needs: []Need{NeedFabric}, Source: srcBounds,
			Rule: "the window need only hold the range, not the object, and the range's offset is none in the window",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(51, total)
				key, w := e.stored(ctx, "o", data), e.window(70_000)
				e.wantPartial(e.getRDMA(ctx, key, w, http.Header{"Range": {"bytes=2000000-2069999"}}), 2000000, 2069999, total)
				w.wantReceived(data[2000000:2070000])
			}},
		{ID: "range/window-too-small", Level: Must, Needs: []Need{NeedFabric}, Source: srcShort,
			Rule: "a range larger than the window is a client error, nothing written",
			Run: func(ctx context.Context, e *Env) {
				key, w := e.stored(ctx, "o", pattern(52, total)), e.window(69_999)
				e.wantClientError(e.getRDMA(ctx, key, w, http.Header{"Range": {"bytes=2000000-2069999"}}))
				w.wantUntouched()
			}},
		{ID: "range/unsatisfiable", Level: Must, Needs: []Need{NeedFabric}, Source: srcS3,
			Rule: "a range behind the object's end is a 416 without RDMA headers, nothing written",
			Run: func(ctx context.Context, e *Env) {
				key, w := e.stored(ctx, "o", pattern(53, 1000)), e.window(4096)
				e.wantRefused(e.getRDMA(ctx, key, w, http.Header{"Range": {"bytes=1000-1999"}}), 416)
				w.wantUntouched()
			}},
		{ID: "range/of-empty-object", Level: Should, Needs: []Need{NeedFabric}, Source: srcS3,
			Rule: "a range of an empty object is answered as without a descriptor",
			Run: func(ctx context.Context, e *Env) {
				key, w := e.stored(ctx, "o", nil), e.window(4096)
				h := http.Header{"Range": {"bytes=0-9"}}
				plain := e.do(ctx, rawhttp.Request{Method: "GET", Bucket: e.bucket(), Key: key, Header: h})
				e.want(e.getRDMA(ctx, key, w, h), plain.Status)
				w.wantUntouched()
			}},
		{ID: "range/several", Level: Must, Needs: []Need{NeedFabric}, Source: srcDraft,
			Rule: "several ranges at once are refused, declined, or answered with the whole object; never with a multipart body in the window",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(54, 10_000)
				key, w := e.stored(ctx, "o", data), e.window(20_000)
				resp := e.getRDMA(ctx, key, w, http.Header{"Range": {"bytes=0-9,100-199"}})
				switch resp.Status {
				case 200:
					e.wantGet(resp, len(data))
					w.wantReceived(data)
				case 501:
					e.wantDeclined(resp)
					w.wantUntouched()
				default:
					e.wantClientError(resp)
					w.wantUntouched()
				}
			}},
		{ID: "range/part-number", Level: Must, Needs: []Need{NeedFabric}, Source: srcMatrix + "; versitygw 2074",
			Rule: "GET with partNumber by descriptor: that part's bytes, 206 with reply 206, Content-Range, x-amz-mp-parts-count",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(55, 5<<20+100_000)
				key := e.key("o")
				u := e.startUpload(ctx, key, nil)
				u.addHTTP(ctx, 1, data[:5<<20])
				u.addHTTP(ctx, 2, data[5<<20:])
				u.complete(ctx)
				w := e.window(5 << 20)
				req := e.withToken("GET", key, w.token(), nil)
				req.Query = query("partNumber", "2")
				resp := e.do(ctx, req)
				e.wantPartial(resp, 5<<20, len(data)-1, len(data))
				w.wantReceived(data[5<<20:])
				if got := resp.Header.Get("X-Amz-Mp-Parts-Count"); got != "2" {
					e.failf("x-amz-mp-parts-count is %q, want 2", got)
				}
				w.poison()
				req.Query = query("partNumber", "1")
				e.wantPartial(e.do(ctx, req), 0, 5<<20-1, len(data))
				w.wantReceived(data[:5<<20])
			}},
		{ID: "range/part-number-single", Level: Should, Needs: []Need{NeedFabric}, Source: srcMatrix + "; versitygw 2074",
			Rule: "GET with partNumber=1 of an object without parts gives the whole object with 206 and reply 206",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(56, 70_000)
				key, w := e.stored(ctx, "o", data), e.window(70_000)
				req := e.withToken("GET", key, w.token(), nil)
				req.Query = query("partNumber", "1")
				e.wantPartial(e.do(ctx, req), 0, len(data)-1, len(data))
				w.wantReceived(data)
			}},
		{ID: "range/part-number-unknown", Level: Must, Needs: []Need{NeedFabric}, Source: srcS3,
			Rule: "GET with the number of a part that does not exist is a client error, nothing written",
			Run: func(ctx context.Context, e *Env) {
				w := e.window(4096)
				req := e.withToken("GET", e.stored(ctx, "o", pattern(57, 1000)), w.token(), nil)
				req.Query = query("partNumber", "7")
				e.wantClientError(e.do(ctx, req))
				w.wantUntouched()
			}},
	}
}

func conditionCases() []Case {
	const wrongTag = `"00000000000000000000000000000000"`
	past := time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC).Format(http.TimeFormat)

	get := func(id, rule string, status int, header func(stored http.Header) http.Header) Case {
		return Case{ID: "condition/" + id, Level: Must, Needs: []Need{NeedFabric}, Source: srcS3 + "; multi-storage-client 87", Rule: rule,
			Run: func(ctx context.Context, e *Env) {
				data, key := pattern(60, 70_000), e.key("o")
				e.putHTTP(ctx, key, data, nil)
				w := e.window(len(data))
				resp := e.getRDMA(ctx, key, w, header(e.headHTTP(ctx, key, nil, nil).Header))
				if status == 200 {
					e.wantGet(resp, len(data))
					w.wantReceived(data)
					return
				}
				m := mismatch{resp: resp}
				m.status(status)
				m.header(headerReply, "")
				m.header(headerBytes, "")
				e.report("the condition was not honoured", m)
				w.wantUntouched()
			}}
	}
	put := func(id, rule string, statuses []int, header http.Header) Case {
		return Case{ID: "condition/" + id, Level: Must, Needs: []Need{NeedFabric}, Source: srcS3, Rule: rule,
			Run: func(ctx context.Context, e *Env) {
				before := pattern(61, 5000)
				key := e.stored(ctx, "o", before)
				plain := e.do(ctx, rawhttp.Request{Method: "PUT", Bucket: e.bucket(), Key: key, Header: header, Body: []byte("plain")})
				if plain.Status < 400 {
					e.skipf("the server does not honour this condition over HTTP either (HTTP %d)", plain.Status)
				}
				e.wantRefused(e.putRDMA(ctx, key, e.filled(pattern(62, 6000)), header), statuses...)
				e.wantStored(ctx, key, before)
			}}
	}
	return []Case{
		get("get-if-match", "If-Match that holds: as without it", 200, func(h http.Header) http.Header { return http.Header{"If-Match": h["Etag"]} }),
		get("get-if-match-fails", "If-Match that fails: 412, nothing written, no RDMA headers", 412, func(http.Header) http.Header { return http.Header{"If-Match": {wrongTag}} }),
		get("get-if-none-match", "If-None-Match that fails: 304, nothing written, no RDMA headers", 304, func(h http.Header) http.Header { return http.Header{"If-None-Match": h["Etag"]} }),
		get("get-if-none-match-holds", "If-None-Match that holds: as without it", 200, func(http.Header) http.Header { return http.Header{"If-None-Match": {wrongTag}} }),
		get("get-if-modified-since", "If-Modified-Since that fails: 304, nothing written", 304, func(h http.Header) http.Header { return http.Header{"If-Modified-Since": h["Last-Modified"]} }),
		get("get-if-unmodified-since", "If-Unmodified-Since that fails: 412, nothing written", 412, func(http.Header) http.Header { return http.Header{"If-Unmodified-Since": {past}} }),
		get("get-range-if-match-fails", "If-Match that fails beside a Range: 412, nothing written", 412, func(http.Header) http.Header {
			return http.Header{"If-Match": {wrongTag}, "Range": {"bytes=0-99"}}
		}),
		put("put-if-none-match", "PUT with If-None-Match: * onto an object: 412, the object stays", []int{412}, http.Header{"If-None-Match": {"*"}}),
		put("put-if-match-fails", "PUT with an If-Match that fails: 412, the object stays", []int{412}, http.Header{"If-Match": {wrongTag}}),
		{ID: "condition/put-if-none-match-new", Level: Must, Needs: []Need{NeedFabric}, Source: srcS3,
			Rule: "PUT with If-None-Match: * of a new object works",
			Run: func(ctx context.Context, e *Env) {
				data, key := pattern(63, 6000), e.key("o")
				e.wantPut(e.putRDMA(ctx, key, e.filled(data), http.Header{"If-None-Match": {"*"}}), len(data))
				e.wantStored(ctx, key, data)
			}},
	}
}
