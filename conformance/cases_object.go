// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/base64"
	"encoding/xml"
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

// upload is a multipart upload of a case.
type upload struct {
	e       *Env
	key, id string
	parts   []uploadedPart
}

type uploadedPart struct {
	XMLName        xml.Name `xml:"Part"`
	PartNumber     int
	ETag           string
	ChecksumCRC32C string `xml:",omitempty"`
}

// startUpload begins an upload, which is aborted at the case's end if it still is.
func (e *Env) startUpload(ctx context.Context, key string, h http.Header) *upload {
	resp := e.do(ctx, rawhttp.Request{Method: "POST", Bucket: e.bucket(), Key: key, Query: query("uploads", ""), Header: h})
	e.want(resp, 200)
	var answer struct {
		UploadID string `xml:"UploadId"`
	}
	if err := xml.Unmarshal(resp.Body, &answer); err != nil || answer.UploadID == "" {
		e.failf("CreateMultipartUpload answered no UploadId")
	}
	u := &upload{e: e, key: key, id: answer.UploadID}
	bucket := e.bucket()
	e.onEnd(func(ctx context.Context) {
		e.runner.client.Do(ctx, rawhttp.Request{Method: "DELETE", Bucket: bucket, Key: key, Query: query("uploadId", u.id)})
	})
	return u
}

// request makes an UploadPart, with a descriptor unless token is "".
func (u *upload) request(number int, token string, h http.Header) rawhttp.Request {
	r := rawhttp.Request{Method: "PUT", Bucket: u.e.bucket(), Key: u.key, Query: query("uploadId", u.id, "partNumber", itoa(number)), Header: http.Header{}}
	if token != "" {
		r.Header[headerToken] = []string{token}
	}
	for name, values := range h {
		r.Header[name] = values
	}
	return r
}

func (u *upload) note(number int, resp *rawhttp.Response) {
	p := uploadedPart{PartNumber: number, ETag: resp.Header.Get("Etag"), ChecksumCRC32C: resp.Header.Get("X-Amz-Checksum-Crc32c")}
	for i := range u.parts {
		if u.parts[i].PartNumber == number {
			u.parts[i] = p
			return
		}
	}
	u.parts = append(u.parts, p)
}

func (u *upload) addHTTP(ctx context.Context, number int, data []byte) {
	r := u.request(number, "", nil)
	r.Body = data
	resp := u.e.do(ctx, r)
	u.e.want(resp, 200)
	u.note(number, resp)
}

func (u *upload) addRDMA(ctx context.Context, number int, data []byte, h http.Header) {
	resp := u.e.do(ctx, u.request(number, u.e.filled(data).token(), h))
	u.e.wantPut(resp, len(data))
	u.note(number, resp)
}

func (u *upload) complete(ctx context.Context) *rawhttp.Response {
	body, err := xml.Marshal(struct {
		XMLName xml.Name `xml:"CompleteMultipartUpload"`
		Part    []uploadedPart
	}{Part: u.parts})
	if err != nil {
		panic(err) // a fixed type
	}
	resp := u.e.do(ctx, rawhttp.Request{Method: "POST", Bucket: u.e.bucket(), Key: u.key, Query: query("uploadId", u.id), Body: body})
	u.e.want(resp, 200)
	if bytes.Contains(resp.Body, []byte("<Error>")) { // S3 may find out after the 200
		u.e.failf("CompleteMultipartUpload answered 200 with an error: %s", resp.Error().Code)
	}
	return resp
}

// wantParts checks that exactly parts of these sizes are there, in order.
func (u *upload) wantParts(ctx context.Context, sizes ...int64) {
	resp := u.e.do(ctx, rawhttp.Request{Method: "GET", Bucket: u.e.bucket(), Key: u.key, Query: query("uploadId", u.id)})
	u.e.want(resp, 200)
	var answer struct {
		Part []struct {
			PartNumber int
			Size       int64
		}
	}
	if err := xml.Unmarshal(resp.Body, &answer); err != nil {
		u.e.failf("ListParts: %v", err)
	}
	if len(answer.Part) != len(sizes) {
		u.e.failf("ListParts shows %d parts, want %d", len(answer.Part), len(sizes))
	}
	for i, p := range answer.Part {
		if p.Size != sizes[i] {
			u.e.failf("part %d has %d bytes, want %d", p.PartNumber, p.Size, sizes[i])
		}
	}
}

func multipartCases() []Case {
	const part = 5 << 20
	return []Case{
		{ID: "multipart/by-descriptor", Level: Must, Needs: []Need{NeedFabric}, Source: srcMatrix,
			Rule: "parts by descriptor, one each, make the object that their bytes are",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(100, 2*part+12_345)
				u := e.startUpload(ctx, e.key("o"), nil)
				for i := range 3 {
					u.addRDMA(ctx, i+1, data[i*part:min((i+1)*part, len(data))], nil)
				}
				u.wantParts(ctx, part, part, 12_345)
				u.complete(ctx)
				e.wantStored(ctx, u.key, data)
				w := e.window(len(data))
				e.wantGet(e.getRDMA(ctx, u.key, w, nil), len(data))
				w.wantReceived(data)
			}},
		{ID: "multipart/mixed", Level: Must, Needs: []Need{NeedFabric}, Source: srcMatrix + "; minio-cpp 226",
			Rule: "parts by descriptor and by HTTP can be mixed in one upload, in any order",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(101, 3*part+777)
				u := e.startUpload(ctx, e.key("o"), nil)
				u.addRDMA(ctx, 3, data[2*part:3*part], nil)
				u.addHTTP(ctx, 2, data[part:2*part])
				u.addHTTP(ctx, 4, data[3*part:])
				u.addRDMA(ctx, 1, data[:part], nil)
				u.parts = []uploadedPart{u.parts[3], u.parts[1], u.parts[0], u.parts[2]}
				u.complete(ctx)
				e.wantStored(ctx, u.key, data)
			}},
		{ID: "multipart/one-small-part", Level: Must, Needs: []Need{NeedFabric}, Source: srcS3,
			Rule: "an upload of one part of one byte by descriptor works",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(102, 1)
				u := e.startUpload(ctx, e.key("o"), nil)
				u.addRDMA(ctx, 1, data, nil)
				u.complete(ctx)
				e.wantStored(ctx, u.key, data)
			}},
		{ID: "multipart/replace-part", Level: Must, Needs: []Need{NeedFabric}, Source: srcS3,
			Rule: "a part by descriptor replaces the part of the same number, whichever way that came",
			Run: func(ctx context.Context, e *Env) {
				u := e.startUpload(ctx, e.key("o"), nil)
				u.addHTTP(ctx, 1, pattern(103, 5000))
				data := pattern(104, 6000)
				u.addRDMA(ctx, 1, data, nil)
				u.wantParts(ctx, 6000)
				u.complete(ctx)
				e.wantStored(ctx, u.key, data)
			}},
		{ID: "multipart/zero-window", Level: Must, Needs: []Need{NeedFabric}, Source: srcTrap,
			Rule: "a part whose descriptor names no bytes is a 400 and makes no part",
			Run: func(ctx context.Context, e *Env) {
				u := e.startUpload(ctx, e.key("never"), nil)
				d := e.window(4096).descriptor()
				d.Size = 0
				e.wantRefused(e.do(ctx, u.request(1, e.encode(d), nil)), 400)
				u.wantParts(ctx)
			}},
		{ID: "multipart/wrong-key", Level: Must, Needs: []Need{NeedFabric}, Source: srcShort + "; ceph 70458",
			Rule: "a part whose remote key is not valid is a 500 and makes no part, not even a shorter one",
			Run: func(ctx context.Context, e *Env) {
				u := e.startUpload(ctx, e.key("never"), nil)
				d := e.filled(pattern(105, 70_000)).descriptor()
				d.RKey ^= 0x5a5a5a5a
				e.wantFailed(e.do(ctx, u.request(1, e.encode(d), nil)))
				u.wantParts(ctx)
			}},
		{ID: "multipart/unknown-upload", Level: Must, Needs: []Need{NeedFabric}, Source: srcS3,
			Rule: "a part by descriptor for an upload that does not exist is a 404 NoSuchUpload without RDMA headers",
			Run: func(ctx context.Context, e *Env) {
				u := e.startUpload(ctx, e.key("never"), nil)
				e.want(e.do(ctx, rawhttp.Request{Method: "DELETE", Bucket: e.bucket(), Key: u.key, Query: query("uploadId", u.id)}), 204)
				resp := e.do(ctx, u.request(1, e.filled(pattern(106, 5000)).token(), nil))
				e.wantRefused(resp, 404)
				if code := resp.Error().Code; code != "NoSuchUpload" {
					e.failf("the error code is %q, want NoSuchUpload", code)
				}
			}},
		{ID: "multipart/wrong-checksum", Level: Must, Needs: []Need{NeedFabric}, Source: srcMatrix,
			Rule: "a part with a wrong checksum, or that of nothing, is a 400 and makes no part",
			Run: func(ctx context.Context, e *Env) {
				u := e.startUpload(ctx, e.key("never"), http.Header{"X-Amz-Checksum-Algorithm": {"CRC32C"}})
				data := pattern(107, 70_000)
				token := e.filled(data).token()
				e.wantRefused(e.do(ctx, u.request(1, token, sumHeader("CRC32C", data[1:]))), 400)
				e.wantRefused(e.do(ctx, u.request(1, token, sumHeader("CRC32C", nil))), 400)
				u.wantParts(ctx)
			}},
		{ID: "multipart/checksums", Level: Must, Needs: []Need{NeedFabric}, Source: "minio-cpp 226 (InvalidPart at Complete)",
			Rule: "parts by descriptor with checksums answer those, and CompleteMultipartUpload with the checksums of all parts works",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(108, part+70_000)
				u := e.startUpload(ctx, e.key("o"), http.Header{"X-Amz-Checksum-Algorithm": {"CRC32C"}})
				u.addRDMA(ctx, 1, data[:part], sumHeader("CRC32C", data[:part]))
				r := u.request(2, "", sumHeader("CRC32C", data[part:]))
				r.Body = data[part:]
				resp := e.do(ctx, r)
				e.want(resp, 200)
				u.note(2, resp)
				for i, p := range u.parts {
					if p.ChecksumCRC32C == "" {
						e.failf("the answer to part %d bears no x-amz-checksum-crc32c", i+1)
					}
				}
				u.complete(ctx)
				e.wantStored(ctx, u.key, data)
			}},
		{ID: "multipart/abort", Level: Must, Needs: []Need{NeedFabric}, Source: srcS3,
			Rule: "an upload with parts by descriptor can be aborted, and leaves nothing",
			Run: func(ctx context.Context, e *Env) {
				u := e.startUpload(ctx, e.key("never"), nil)
				u.addRDMA(ctx, 1, pattern(109, 70_000), nil)
				e.want(e.do(ctx, rawhttp.Request{Method: "DELETE", Bucket: e.bucket(), Key: u.key, Query: query("uploadId", u.id)}), 204)
				e.wantAbsent(ctx, u.key)
			}},
	}
}

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
