// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/base64"
	"net/http"
	"strings"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

func metadataCases() []Case {
	return []Case{
		{ID: "metadata/headers", Level: Must, Needs: []Need{NeedFabric}, Source: srcS3,
			Rule: "Content-Type, Cache-Control, Content-Disposition, Content-Language and x-amz-meta-* of a PUT by descriptor are kept",
			Run: func(ctx context.Context, e *Env) {
				data, key := pattern(110, 5000), e.key("o")
				h := http.Header{"Content-Type": {"application/x-case"}, "Cache-Control": {"no-store"}, "Content-Disposition": {`attachment; filename="x"`},
					"Content-Language": {"de"}, "X-Amz-Meta-One": {"1"}, "X-Amz-Meta-Two-Words": {"a value, with comma"}}
				e.wantPut(e.putRDMA(ctx, key, e.filled(data), h), len(data))
				m := mismatch{resp: e.headHTTP(ctx, key, nil, nil)}
				for name := range h {
					m.header(name, h.Get(name))
				}
				if m.resp.Length != int64(len(data)) {
					m.addf("content-length is %d, want %d", m.resp.Length, len(data))
				}
				e.report("HEAD differs from what was sent", m)
			}},
		{ID: "metadata/no-descriptor-kept", Level: Must, Needs: []Need{NeedFabric}, Source: srcCapable,
			Rule: "nothing of the descriptor is kept with the object",
			Run: func(ctx context.Context, e *Env) {
				data, key := pattern(111, 5000), e.key("o")
				e.wantPut(e.putRDMA(ctx, key, e.filled(data), nil), len(data))
				for name := range e.headHTTP(ctx, key, nil, nil).Header {
					if strings.Contains(strings.ToLower(name), "rdma") {
						e.failf("HEAD shows %s", strings.ToLower(name))
					}
				}
			}},
		{ID: "metadata/tags", Level: Must, Needs: []Need{NeedFabric}, Source: srcS3,
			Rule: "x-amz-tagging of a PUT by descriptor is kept, and GET by descriptor counts the tags",
			Run: func(ctx context.Context, e *Env) {
				data, key := pattern(112, 5000), e.key("o")
				tags := http.Header{"X-Amz-Tagging": {"colour=blue&size=7"}}
				if resp := e.do(ctx, rawhttp.Request{Method: "PUT", Bucket: e.bucket(), Key: e.key("probe"), Header: tags, Body: data}); resp.Status != 200 {
					e.skipf("the server takes no tags over HTTP either (HTTP %d)", resp.Status)
				}
				w := e.filled(data)
				e.wantPut(e.putRDMA(ctx, key, w, tags), len(data))
				resp := e.do(ctx, rawhttp.Request{Method: "GET", Bucket: e.bucket(), Key: key, Query: query("tagging", "")})
				e.want(resp, 200)
				for _, want := range []string{"<Key>colour</Key><Value>blue</Value>", "<Key>size</Key><Value>7</Value>"} {
					if !strings.Contains(string(resp.Body), want) {
						e.failf("GetObjectTagging does not show %s", want)
					}
				}
				plain := e.do(ctx, rawhttp.Request{Method: "GET", Bucket: e.bucket(), Key: key})
				if got, want := e.getRDMA(ctx, key, w, nil).Header.Get("X-Amz-Tagging-Count"), plain.Header.Get("X-Amz-Tagging-Count"); got != want {
					e.failf("x-amz-tagging-count is %q by descriptor, %q by HTTP", got, want)
				}
			}},
		{ID: "metadata/response-overrides", Level: Should, Needs: []Need{NeedFabric}, Source: srcS3,
			Rule: "response-content-type and its like work on a GET by descriptor as on any GET",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(113, 5000)
				key, w := e.stored(ctx, "o", data), e.window(5000)
				q := query("response-content-type", "text/x-override")
				plain := e.do(ctx, rawhttp.Request{Method: "GET", Bucket: e.bucket(), Key: key, Query: q})
				req := e.withToken("GET", key, w.token(), nil)
				req.Query = q
				resp := e.do(ctx, req)
				e.wantGet(resp, len(data))
				w.wantReceived(data)
				m := mismatch{resp: resp}
				m.header("Content-Type", plain.Header.Get("Content-Type"))
				e.report("differs from a plain GET", m)
			}},
		{ID: "metadata/compressible", Level: Must, Needs: []Need{NeedFabric}, Source: srcS3StayS3,
			Rule: "text that a server may compress comes back as it was, whole and by range, either way round",
			Run: func(ctx context.Context, e *Env) {
				data := bytes.Repeat([]byte("a line that compresses well, again and again\n"), 40_000)
				text := http.Header{"Content-Type": {"text/plain"}}
				byFabric, byHTTP := e.key("fabric.txt"), e.key("http.txt")
				e.wantPut(e.putRDMA(ctx, byFabric, e.filled(data), text), len(data))
				e.putHTTP(ctx, byHTTP, data, text)
				e.wantStored(ctx, byFabric, data)
				for _, key := range []string{byFabric, byHTTP} {
					if n := e.headHTTP(ctx, key, nil, nil).Length; n != int64(len(data)) {
						e.failf("HEAD says %d bytes, want %d", n, len(data))
					}
					w := e.window(len(data))
					e.wantGet(e.getRDMA(ctx, key, w, nil), len(data))
					w.wantReceived(data)
					w.poison()
					e.wantPartial(e.getRDMA(ctx, key, w, http.Header{"Range": {"bytes=1234567-1299999"}}), 1234567, 1299999, len(data))
					w.wantReceived(data[1234567:1300000])
				}
			}},
	}
}

func versionCases() []Case {
	versioned := func(ctx context.Context, e *Env) string {
		bucket := e.newBucket(ctx)
		resp := e.do(ctx, rawhttp.Request{Method: "PUT", Bucket: bucket, Query: query("versioning", ""),
			Body: []byte(`<VersioningConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Status>Enabled</Status></VersioningConfiguration>`)})
		if resp.Status != 200 {
			e.skipf("the server keeps no versions: HTTP %d %s", resp.Status, resp.Error().Code)
		}
		return bucket
	}
	return []Case{
		{ID: "version/put-get", Level: Must, Needs: []Need{NeedFabric, NeedVersioning}, Source: srcS3,
			Rule: "PUTs by descriptor make versions and answer their ids; GET by descriptor finds each by versionId",
			Run: func(ctx context.Context, e *Env) {
				bucket := versioned(ctx, e)
				var ids []string
				var contents [][]byte
				for i := range 3 {
					data := pattern(uint64(120+i), 10_000+i)
					req := e.withToken("PUT", "o", e.filled(data).token(), nil)
					req.Bucket = bucket
					resp := e.do(ctx, req)
					e.wantPut(resp, len(data))
					id := resp.Header.Get("X-Amz-Version-Id")
					if id == "" {
						e.failf("the answer bears no x-amz-version-id")
					}
					ids, contents = append(ids, id), append(contents, data)
				}
				for i, id := range ids {
					w := e.window(20_000)
					req := e.withToken("GET", "o", w.token(), nil)
					req.Bucket, req.Query = bucket, query("versionId", id)
					resp := e.do(ctx, req)
					e.wantGet(resp, len(contents[i]))
					w.wantReceived(contents[i])
					if got := resp.Header.Get("X-Amz-Version-Id"); got != id {
						e.failf("x-amz-version-id is %q, want %q", got, id)
					}
					e.wantStoredWith(ctx, rawhttp.Request{Bucket: bucket, Key: "o", Query: query("versionId", id)}, contents[i])
				}
			}},
		{ID: "version/unknown", Level: Must, Needs: []Need{NeedFabric, NeedVersioning}, Source: srcS3,
			Rule: "GET by descriptor of a version that does not exist is answered as without it, nothing written",
			Run: func(ctx context.Context, e *Env) {
				bucket := versioned(ctx, e)
				e.want(e.do(ctx, rawhttp.Request{Method: "PUT", Bucket: bucket, Key: "o", Body: pattern(123, 1000)}), 200)
				w := e.window(1000)
				req := e.withToken("GET", "o", w.token(), nil)
				req.Bucket, req.Query = bucket, query("versionId", "3f2c1a5e-0000-4000-8000-000000000000")
				plain := req
				plain.Header = nil
				e.wantRefused(e.do(ctx, req), e.do(ctx, plain).Status)
				w.wantUntouched()
			}},
		{ID: "version/delete-marker", Level: Must, Needs: []Need{NeedFabric, NeedVersioning}, Source: srcS3,
			Rule: "GET by descriptor of a deleted object is a 404 with x-amz-delete-marker, nothing written; the version before is there",
			Run: func(ctx context.Context, e *Env) {
				bucket := versioned(ctx, e)
				data := pattern(124, 1000)
				put := e.do(ctx, rawhttp.Request{Method: "PUT", Bucket: bucket, Key: "o", Body: data})
				e.want(put, 200)
				e.want(e.do(ctx, rawhttp.Request{Method: "DELETE", Bucket: bucket, Key: "o"}), 204)
				w := e.window(1000)
				req := e.withToken("GET", "o", w.token(), nil)
				req.Bucket = bucket
				resp := e.do(ctx, req)
				e.wantRefused(resp, 404)
				if resp.Header.Get("X-Amz-Delete-Marker") != "true" {
					e.failf("the answer bears no x-amz-delete-marker: true")
				}
				w.wantUntouched()
				req.Query = query("versionId", put.Header.Get("X-Amz-Version-Id"))
				e.wantGet(e.do(ctx, req), len(data))
				w.wantReceived(data)
			}},
	}
}

func encryptionCases() []Case {
	sseC := func(seed uint64) http.Header {
		key := pattern(seed, 32)
		sum := md5.Sum(key)
		return http.Header{
			"X-Amz-Server-Side-Encryption-Customer-Algorithm": {"AES256"},
			"X-Amz-Server-Side-Encryption-Customer-Key":       {base64.StdEncoding.EncodeToString(key)},
			"X-Amz-Server-Side-Encryption-Customer-Key-Md5":   {base64.StdEncoding.EncodeToString(sum[:])},
		}
	}
	// bothWays stores by fabric and by HTTP and reads each by the other and by range.
	bothWays := func(ctx context.Context, e *Env, write, read http.Header) {
		data := pattern(130, 2<<20+77)
		byFabric, byHTTP := e.key("fabric"), e.key("http")
		e.wantPut(e.putRDMA(ctx, byFabric, e.filled(data), write), len(data))
		e.putHTTP(ctx, byHTTP, data, write)
		e.wantStoredWith(ctx, rawhttp.Request{Bucket: e.bucket(), Key: byFabric, Header: read}, data)
		for _, key := range []string{byFabric, byHTTP} {
			w := e.window(len(data))
			e.wantGet(e.getRDMA(ctx, key, w, read), len(data))
			w.wantReceived(data)
			w.poison()
			ranged := read.Clone()
			if ranged == nil {
				ranged = http.Header{}
			}
			ranged.Set("Range", "bytes=65530-1048600")
			e.wantPartial(e.getRDMA(ctx, key, w, ranged), 65530, 1048600, len(data))
			w.wantReceived(data[65530:1048601])
		}
	}
	return []Case{
		{ID: "encryption/sse-c", Level: Must, Needs: []Need{NeedFabric, NeedTLS}, Source: srcS3StayS3,
			Rule: "SSE-C works by descriptor: objects of either way are read by the other, whole and by range",
			Run: func(ctx context.Context, e *Env) {
				h := sseC(131)
				bothWays(ctx, e, h, h)
			}},
		{ID: "encryption/sse-c-wrong-key", Level: Must, Needs: []Need{NeedFabric, NeedTLS}, Source: srcS3,
			Rule: "a GET by descriptor without the SSE-C key, or with another, is a client error, nothing written",
			Run: func(ctx context.Context, e *Env) {
				key := e.key("o")
				e.putHTTP(ctx, key, pattern(132, 70_000), sseC(131))
				w := e.window(70_000)
				e.wantClientError(e.getRDMA(ctx, key, w, nil))
				w.wantUntouched()
				e.wantClientError(e.getRDMA(ctx, key, w, sseC(133)))
				w.wantUntouched()
			}},
		{ID: "encryption/sse-s3", Level: Must, Needs: []Need{NeedFabric, NeedKMS}, Source: srcS3StayS3,
			Rule: "SSE-S3 works by descriptor and is answered in the header",
			Run: func(ctx context.Context, e *Env) {
				h := http.Header{"X-Amz-Server-Side-Encryption": {"AES256"}}
				bothWays(ctx, e, h, nil)
				data := pattern(134, 1000)
				resp := e.putRDMA(ctx, e.key("o"), e.filled(data), h)
				e.wantPut(resp, len(data))
				m := mismatch{resp: resp}
				m.header("X-Amz-Server-Side-Encryption", "AES256")
				e.report("the answer does not name the encryption", m)
			}},
		{ID: "encryption/sse-s3-multipart", Level: Must, Needs: []Need{NeedFabric, NeedKMS}, Source: srcS3StayS3,
			Rule: "an SSE-S3 upload takes parts by descriptor and by HTTP, and is read by descriptor",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(135, 5<<20+70_000)
				u := e.startUpload(ctx, e.key("o"), http.Header{"X-Amz-Server-Side-Encryption": {"AES256"}})
				u.addRDMA(ctx, 1, data[:5<<20], nil)
				u.addHTTP(ctx, 2, data[5<<20:])
				u.complete(ctx)
				e.wantStored(ctx, u.key, data)
				w := e.window(len(data))
				e.wantGet(e.getRDMA(ctx, u.key, w, nil), len(data))
				w.wantReceived(data)
			}},
	}
}
