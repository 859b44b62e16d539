// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
	"github.com/s3rdma/s3rdma/rdmaio"
)

// bareExample is a well-formed bare descriptor of memory that exists nowhere: the
// address in its GID is 192.0.2.1, which RFC 5737 keeps free for documentation.
const bareExample = "00007f1234567000:00100000:aabbccdd:0000:000042:1:00000000000000000000ffffc0000201"

// sessionExample is a well-formed session descriptor of a session that exists
// nowhere.
func sessionExample(transport string) string {
	return transport + ":" + rdmaio.NewSessionID().Hex() + ":00007f1234567000:00100000:aabbccdd"
}

// hipExample is the 88-digit form of the same memory (transport 0 DC, 1 RC): little
// endian transport, qpn, gid, rkey, addr, len, port and lid.
func hipExample(transport byte) string {
	return fmt.Sprintf("%02x", transport) + "42000000" + "00000000000000000000ffffc0000201" +
		"ddccbbaa" + "00705634127f0000" + "0000100000000000" + "01" + "0000"
}

// base64Example is the bare form in base64.
func base64Example() string { return base64.StdEncoding.EncodeToString([]byte(bareExample)) }

func descriptorCases() []Case {
	bare := bareExample
	malformed := []struct{ id, what, token string }{
		{"empty", "an empty header", ""},
		{"text", "a word", "descriptor"},
		{"short", "a bare form that lacks its last digit", bare[:80]},
		{"long", "a bare form with a digit too many", bare + "0"},
		{"digit", "a bare form with a digit that is none", strings.Replace(bare, "7f", "7g", 1)},
		{"colon", "a bare form with a colon at the wrong place", strings.Replace(bare, "00:0010", "0:00010", 1)},
		{"gid-flag", "a bare form with gid_present 2", strings.Replace(bare, ":1:", ":2:", 1)},
		{"overflow", "a bare form whose address plus size overflows", "ffffffffffffff00" + bare[16:]},
		{"space", "a bare form with a space inside", bare[:20] + " " + bare[21:]},
		{"huge", "4000 characters", strings.Repeat("0", 4000)},
		{"suffix-widens", "a suffix that widens the window", bare + ":00007f1234567000:0000000000200000"},
		{"suffix-moves", "a suffix that leaves the window", bare + ":00007f1234500000:0000000000001000"},
		{"session-short", "a session form that ends early", "shm:0123"},
		{"session-zero", "a session form whose session is all zeros", "tcp:" + strings.Repeat("0", 32) + ":00007f1234567000:00100000:aabbccdd"},
		{"session-overflow", "a session form whose address plus size overflows", "tcp:" + strings.Repeat("1", 32) + ":ffffffffffffff00:00100000:aabbccdd"},
	}
	var all []Case
	for _, m := range malformed {
		all = append(all, Case{ID: "descriptor/malformed/" + m.id, Level: Must, Source: srcDraft + " (400 InvalidRDMAToken, no reply header)",
			Rule: m.what + " is malformed: 400 InvalidRDMAToken without x-amz-rdma-reply, on GET and PUT, nothing stored",
			Run: func(ctx context.Context, e *Env) {
				key := e.key("never")
				e.wantMalformed(e.do(ctx, e.withToken("PUT", key, m.token, nil)))
				e.wantAbsent(ctx, key)
				e.wantMalformed(e.do(ctx, e.withToken("GET", e.stored(ctx, "o", pattern(70, 100)), m.token, nil)))
			}})
	}
	return append(all, []Case{
		{ID: "descriptor/malformed/upper-case", Level: Should, Source: srcDraft,
			Rule: "a bare form in upper case is malformed: the fields are lower-case hex",
			Run: func(ctx context.Context, e *Env) {
				key := e.key("never")
				e.wantMalformed(e.do(ctx, e.withToken("PUT", key, strings.ToUpper(bare), nil)))
				e.wantAbsent(ctx, key)
			}},
		{ID: "descriptor/twice", Level: Must, Needs: []Need{NeedFabric}, Source: srcCapable,
			Rule: "two different descriptors in one request are a 400: which one is meant is not for the server to guess",
			Run: func(ctx context.Context, e *Env) {
				w, v := e.filled(pattern(71, 5000)), e.filled(pattern(72, 5000))
				key := e.key("never")
				req := e.withToken("PUT", key, w.token(), nil)
				req.Header[headerToken] = []string{w.token(), v.token()}
				e.wantRefused(e.do(ctx, req), 400)
				e.wantAbsent(ctx, key)
				req = e.withToken("PUT", key, w.token(), http.Header{headerAlias: {v.token()}})
				e.wantRefused(e.do(ctx, req), 400)
				e.wantAbsent(ctx, key)
			}},
		{ID: "descriptor/alias", Level: May, Needs: []Need{NeedFabric}, Source: "x-rdma-info (Dell ObjectScale, NIXL type=dell)",
			Rule: "x-rdma-info means the same as x-amz-rdma-token",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(73, 70_000)
				w, key := e.filled(data), e.key("o")
				req := rawhttp.Request{Method: "PUT", Bucket: e.bucket(), Key: key, Header: http.Header{headerAlias: {w.token()}}}
				resp := e.do(ctx, req)
				if resp.Status == 501 {
					e.wantDeclined(resp)
					e.wantAbsent(ctx, key)
					e.skipf("the server declines x-rdma-info, as it may")
				}
				e.wantPut(resp, len(data))
				e.wantStored(ctx, key, data)
				w.poison()
				req.Method = "GET"
				e.wantGet(e.do(ctx, req), len(data))
				w.wantReceived(data)
			}},
		{ID: "descriptor/unknown-dialect", Level: Must, Source: "versitygw 2306",
			Rule: "a descriptor of a form that exists but is not served is declined with 501 and reply 501, so that the client uses HTTP",
			Run: func(ctx context.Context, e *Env) {
				for _, token := range []string{
					bare + ":00100000:ofi1:tcp:00112233:44556677",
					"ucx:" + strings.Repeat("ab", 16) + ":00007f1234567000:00100000:aabbccdd",
				} {
					key := e.key("never")
					e.wantDeclined(e.do(ctx, e.withToken("PUT", key, token, nil)))
					e.wantAbsent(ctx, key)
					e.wantDeclined(e.do(ctx, e.withToken("GET", e.stored(ctx, "o", pattern(74, 100)), token, nil)))
				}
			}},
		{ID: "descriptor/other-transport", Level: Should, Needs: []Need{NeedFabric}, Source: srcMatrix,
			Rule: "a well-formed descriptor of a transport that the server does not serve is declined with 501 and reply 501",
			Run: func(ctx context.Context, e *Env) {
				for _, token := range []string{bare, sessionExample("rc")} {
					key := e.key("never")
					resp := e.do(ctx, e.withToken("PUT", key, token, nil))
					e.wantAbsent(ctx, key)
					e.wantDeclined(resp)
				}
			}},
		{ID: "descriptor/third-host", Level: Should, Source: srcCapable + " (a signed descriptor could point at a third machine's memory)",
			Rule: "a descriptor that names the memory of a host that is not the client is refused or declined, and not tried",
			Run: func(ctx context.Context, e *Env) {
				key := e.key("never")
				for _, token := range []string{bareExample, hipExample(0)} {
					resp := e.do(ctx, e.withToken("PUT", key, token, nil))
					if resp.Status == 501 {
						e.wantDeclined(resp)
					} else {
						e.wantRefused(resp, 400, 403)
					}
					e.wantAbsent(ctx, key)
				}
			}},
		{ID: "descriptor/unsigned-put", Level: Must, Needs: []Need{NeedFabric}, Source: srcCapable + "; Ceph RFC 71209",
			Rule: "a descriptor outside SignedHeaders is refused with 403: anyone on the way could have put it there; nothing stored",
			Run: func(ctx context.Context, e *Env) {
				for _, name := range []string{headerToken, headerAlias} {
					key := e.key("never")
					w := e.filled(pattern(75, 5000))
					e.wantRefused(e.do(ctx, rawhttp.Request{Method: "PUT", Bucket: e.bucket(), Key: key, Unsigned: http.Header{name: {w.token()}}}), 403)
					e.wantAbsent(ctx, key)
				}
			}},
		{ID: "descriptor/unsigned-get", Level: Must, Needs: []Need{NeedFabric}, Source: srcCapable + "; Ceph RFC 71209",
			Rule: "a descriptor outside SignedHeaders is refused with 403, nothing written",
			Run: func(ctx context.Context, e *Env) {
				key, w := e.stored(ctx, "o", pattern(76, 5000)), e.window(5000)
				e.wantRefused(e.do(ctx, rawhttp.Request{Method: "GET", Bucket: e.bucket(), Key: key, Unsigned: http.Header{headerToken: {w.token()}}}), 403)
				w.wantUntouched()
			}},
		{ID: "descriptor/anonymous", Level: Must, Needs: []Need{NeedFabric}, Source: srcCapable,
			Rule: "an anonymous request with a descriptor is refused with 403, also where the bucket lets everybody read and write",
			Run: func(ctx context.Context, e *Env) {
				bucket := e.newBucket(ctx)
				policy := `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"AWS":["*"]},"Action":["s3:GetObject","s3:PutObject"],"Resource":["arn:aws:s3:::` + bucket + `/*"]}]}`
				open := e.do(ctx, rawhttp.Request{Method: "PUT", Bucket: bucket, Query: query("policy", ""), Body: []byte(policy)}).Status < 300
				data := pattern(77, 5000)
				e.want(e.do(ctx, rawhttp.Request{Method: "PUT", Bucket: bucket, Key: "o", Body: data}), 200)
				if open {
					e.want(e.do(ctx, rawhttp.Request{Method: "GET", Bucket: bucket, Key: "o", Anonymous: true}), 200)
				}
				w := e.window(5000)
				req := e.withToken("GET", "o", w.token(), nil)
				req.Bucket, req.Anonymous = bucket, true
				e.wantRefused(e.do(ctx, req), 403)
				w.wantUntouched()
				req.Method, req.Key = "PUT", "never"
				e.wantRefused(e.do(ctx, req), 403)
				e.want(e.do(ctx, rawhttp.Request{Method: "HEAD", Bucket: bucket, Key: "never"}), 404)
			}},
		{ID: "descriptor/presigned-unsigned", Level: Must, Needs: []Need{NeedFabric}, Source: srcCapable,
			Rule: "a presigned request whose signature does not cover the descriptor is refused with 403: the URL's holder could point it anywhere",
			Run: func(ctx context.Context, e *Env) {
				key, w := e.stored(ctx, "o", pattern(78, 5000)), e.window(5000)
				req := rawhttp.Request{Method: "GET", Bucket: e.bucket(), Key: key, Presign: time.Minute, Unsigned: http.Header{headerToken: {w.token()}}}
				e.wantRefused(e.do(ctx, req), 403)
				w.wantUntouched()
				req.Method, req.Key = "PUT", e.key("never")
				e.wantRefused(e.do(ctx, req), 403)
				e.wantAbsent(ctx, req.Key)
			}},
		{ID: "descriptor/presigned-signed", Level: May, Needs: []Need{NeedFabric}, Source: srcCapable,
			Rule: "a presigned request whose signature covers the descriptor is served (or refused with 403, or declined)",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(79, 70_000)
				key, w := e.stored(ctx, "o", data), e.window(len(data))
				req := e.withToken("GET", key, w.token(), nil)
				req.Presign = time.Minute
				resp := e.do(ctx, req)
				if resp.Status == 403 || resp.Status == 501 {
					w.wantUntouched()
					e.skipf("the server refuses presigned requests with a descriptor (HTTP %d), as it may", resp.Status)
				}
				e.wantGet(resp, len(data))
				w.wantReceived(data)
			}},
		{ID: "descriptor/hidden", Level: Must, Source: srcCapable + "; NooBaa's parser (leak)",
			Rule: "no answer shows a descriptor, not even as part of an error message",
			Run: func(ctx context.Context, e *Env) {
				// Env.do searches every answer; here are the ones that tempt.
				key := e.key("never")
				for _, token := range []string{bare, bare + "zz", strings.ToUpper(bare), sessionExample("shm"), sessionExample("tcp") + "!"} {
					for _, method := range []string{"GET", "PUT", "HEAD", "DELETE"} {
						e.do(ctx, e.withToken(method, key, token, nil))
					}
					bad := e.withToken("GET", key, token, nil)
					bad.Credentials = e.wrongSecret()
					e.do(ctx, bad)
				}
			}},
	}...)
}

func bodyCases() []Case {
	refused := func(id, rule string, level Level, change func(r *rawhttp.Request)) Case {
		return Case{ID: "body/" + id, Level: level, Needs: []Need{NeedFabric}, Source: srcDraft + "; versitygw (length past the window)", Rule: rule,
			Run: func(ctx context.Context, e *Env) {
				key := e.key("never")
				req := e.withToken("PUT", key, e.filled(pattern(80, 5000)).token(), nil)
				change(&req)
				e.wantRefused(e.do(ctx, req), 400)
				e.wantAbsent(ctx, key)
			}}
	}
	return []Case{
		refused("with-descriptor", "a body beside a descriptor is a 400: the two contradict each other; nothing stored", Must, func(r *rawhttp.Request) {
			r.Body = []byte("body")
		}),
		refused("as-long-as-window", "a body of the window's length beside a descriptor is a 400, too", Must, func(r *rawhttp.Request) {
			r.Body = pattern(81, 5000)
		}),
		refused("transfer-encoding", "Transfer-Encoding beside a descriptor is a 400, also with no bytes", Must, func(r *rawhttp.Request) {
			r.Chunked = true
		}),
		refused("aws-chunked", "aws-chunked with a trailer beside a descriptor is a 400 (an SDK's default leaked in)", Must, func(r *rawhttp.Request) {
			r.PayloadHash = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
			r.Header.Set("Content-Encoding", "aws-chunked")
			r.Header.Set("X-Amz-Decoded-Content-Length", "0")
			r.Header.Set("X-Amz-Trailer", "x-amz-checksum-crc32")
			r.Body = []byte("0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n")
		}),
		refused("trailer-announced", "x-amz-trailer beside a descriptor is a 400 though no body follows", Should, func(r *rawhttp.Request) {
			r.Header.Set("X-Amz-Trailer", "x-amz-checksum-crc32")
		}),
		refused("decoded-length", "x-amz-decoded-content-length beside a descriptor is a 400", Should, func(r *rawhttp.Request) {
			r.Header.Set("X-Amz-Decoded-Content-Length", "5000")
		}),
		{ID: "body/with-unserved-descriptor", Level: Must, When: Always, Source: srcTrap,
			Rule: "a body beside a descriptor that is not served is refused or declined; it is never stored as if the descriptor were not there",
			Run: func(ctx context.Context, e *Env) {
				key := e.key("never")
				req := e.withToken("PUT", key, bareExample, nil)
				req.Body = []byte("body")
				if resp := e.do(ctx, req); resp.Status < 400 {
					e.failf("HTTP %d, want an error", resp.Status)
				}
				e.wantAbsent(ctx, key)
			}},
	}
}

// trapCases: whatever the server makes of a descriptor, a PUT that bears one must
// not become an empty object.
func trapCases() []Case {
	// judge checks one answer to a write.
	judge := func(e *Env, resp *rawhttp.Response, malformed bool) {
		if resp.Status < 400 {
			e.failf("HTTP %d with ETag %s: the client takes this for success, and its data is lost", resp.Status, resp.Header.Get("Etag"))
		}
		if e.runner.options.Off && !malformed {
			e.wantDeclined(resp)
		}
		if resp.Header.Get("Etag") != "" {
			e.failf("an error answer bears an ETag")
		}
		if reply := resp.Header.Get(headerReply); reply != "" && reply != "501" {
			e.failf("HTTP %d, but x-amz-rdma-reply is %q", resp.Status, reply)
		}
	}
	var all []Case
	for _, d := range dialects() {
		all = append(all, Case{ID: "trap/put/" + d.id, Level: Must, When: Always, Source: srcTrap,
			Rule: "a PUT with a descriptor (" + d.id + ") that is not served is an error without an ETag and makes no object; switched off: 501 with reply 501",
			Run: func(ctx context.Context, e *Env) {
				key := e.key("never")
				judge(e, e.do(ctx, e.withToken("PUT", key, d.token(), nil)), d.malformed)
				e.wantAbsent(ctx, key)
			}})
	}
	return append(all, []Case{
		{ID: "trap/put/alias", Level: Must, When: Always, Source: srcTrap + "; NIXL type=dell looks at nothing but the HTTP status",
			Rule: "a PUT with a descriptor in x-rdma-info is an error without an ETag if it is not served, and makes no object",
			Run: func(ctx context.Context, e *Env) {
				key := e.key("never")
				judge(e, e.do(ctx, rawhttp.Request{Method: "PUT", Bucket: e.bucket(), Key: key, Header: http.Header{headerAlias: {bareExample}}}), false)
				e.wantAbsent(ctx, key)
			}},
		{ID: "trap/put/other-headers", Level: Must, When: Always, Source: srcTrap + "; Scality's x-scal-rdma, versitygw's x-cuobj-rdma-descr, s3rdma wire protocol, headers",
			Rule: "a PUT with a descriptor under another name that clients use, or one that begins as theirs do, is an error without an ETag and makes no object",
			Run: func(ctx context.Context, e *Env) {
				for _, name := range []string{"x-scal-rdma", "x-cuobj-rdma-descr", "x-amz-rdma-descriptor", "x-rdma-token"} {
					key := e.key("never-" + name)
					judge(e, e.do(ctx, rawhttp.Request{Method: "PUT", Bucket: e.bucket(), Key: key, Header: http.Header{name: {bareExample}}}), false)
					e.wantAbsent(ctx, key)
				}
			}},
		{ID: "trap/put/append", Level: Must, When: Always, Source: srcTrap + "; S3's append (x-amz-write-offset-bytes)",
			Rule: "an append with a descriptor is an error without an ETag, and the object stays as it is",
			Run: func(ctx context.Context, e *Env) {
				before := pattern(85, 5000)
				key := e.stored(ctx, "o", before)
				judge(e, e.do(ctx, e.withToken("PUT", key, bareExample, http.Header{"X-Amz-Write-Offset-Bytes": {"5000"}})), true)
				e.wantStored(ctx, key, before)
			}},
		{ID: "trap/put/extract", Level: Must, When: Always, Source: srcTrap + "; MinIO's X-Amz-Meta-Snowball-Auto-Extract",
			Rule: "the upload of an archive to be unpacked, with a descriptor, is an error without an ETag and makes no object",
			Run: func(ctx context.Context, e *Env) {
				key := e.key("never.tar")
				judge(e, e.do(ctx, e.withToken("PUT", key, bareExample, http.Header{"X-Amz-Meta-Snowball-Auto-Extract": {"true"}})), true)
				e.wantAbsent(ctx, key)
			}},
		{ID: "trap/put/over-object", Level: Must, When: Always, Source: srcTrap,
			Rule: "a PUT with a descriptor that is not served leaves the object that is there as it is",
			Run: func(ctx context.Context, e *Env) {
				before := pattern(82, 5000)
				key := e.stored(ctx, "o", before)
				judge(e, e.do(ctx, e.withToken("PUT", key, bareExample, nil)), false)
				e.wantStored(ctx, key, before)
			}},
		{ID: "trap/put/unsigned", Level: Must, When: Always, Source: srcTrap,
			Rule: "a PUT with an unsigned descriptor makes no empty object either",
			Run: func(ctx context.Context, e *Env) {
				key := e.key("never")
				judge(e, e.do(ctx, rawhttp.Request{Method: "PUT", Bucket: e.bucket(), Key: key, Unsigned: http.Header{headerToken: {bareExample}}}), true)
				e.wantAbsent(ctx, key)
			}},
		{ID: "trap/put/checksum", Level: Must, When: Always, Source: srcTrap + "; multi-storage-client 87",
			Rule: "a PUT with a descriptor and the checksum of the real bytes makes no empty object",
			Run: func(ctx context.Context, e *Env) {
				key := e.key("never")
				judge(e, e.do(ctx, e.withToken("PUT", key, bareExample, sumHeader("CRC64NVME", pattern(83, 5000)))), false)
				e.wantAbsent(ctx, key)
			}},
		{ID: "trap/put/presigned", Level: Must, When: Always, Source: srcTrap,
			Rule: "a presigned PUT with a descriptor makes no empty object",
			Run: func(ctx context.Context, e *Env) {
				key := e.key("never")
				req := e.withToken("PUT", key, bareExample, nil)
				req.Presign = time.Minute
				judge(e, e.do(ctx, req), true)
				e.wantAbsent(ctx, key)
			}},
		{ID: "trap/part", Level: Must, When: Always, Source: srcTrap,
			Rule: "an UploadPart with a descriptor that is not served is an error without an ETag and makes no part",
			Run: func(ctx context.Context, e *Env) {
				u := e.startUpload(ctx, e.key("never"), nil)
				for _, d := range dialects() {
					judge(e, e.do(ctx, u.request(1, d.token(), nil)), d.malformed)
				}
				u.wantParts(ctx)
			}},
		{ID: "trap/get-off", Level: Should, When: WhenOff, Source: srcMatrix,
			Rule: "switched off, a GET with a descriptor is declined: 501 with reply 501",
			Run: func(ctx context.Context, e *Env) {
				key := e.stored(ctx, "o", pattern(84, 100))
				for _, token := range []string{bareExample, sessionExample("shm"), sessionExample("tcp")} {
					e.wantDeclined(e.do(ctx, e.withToken("GET", key, token, nil)))
				}
			}},
		{ID: "trap/connect-off", Level: Should, When: WhenOff, Source: srcWire,
			Rule: "switched off, a connect is declined: 501 with reply 501",
			Run: func(ctx context.Context, e *Env) {
				for _, fabric := range []string{"shm", "tcp", "rc"} {
					e.wantDeclined(e.do(ctx, connectRequest(fabric, rdmaio.Hello{Token: "1"})))
				}
			}},
	}...)
}
