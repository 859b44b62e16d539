// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"encoding/xml"
	"net/http"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

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
	// S3 does without it where the parts' algorithm is this one; minio-cpp tells it.
	ChecksumCRC64NVME string `xml:",omitempty"`
}

// startUpload begins an upload, which is aborted at the case's end if it still is.
func (e *Env) startUpload(ctx context.Context, key string, h http.Header) *upload {
	resp := e.create(ctx, rawhttp.Request{Method: "POST", Bucket: e.bucket(), Key: key, Query: query("uploads", ""), Header: h})
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
	p := uploadedPart{PartNumber: number, ETag: resp.Header.Get("Etag"), ChecksumCRC32C: resp.Header.Get("X-Amz-Checksum-Crc32c"),
		ChecksumCRC64NVME: resp.Header.Get("X-Amz-Checksum-Crc64nvme")}
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
		{ID: "multipart/beyond-registration", Level: Must, Needs: []Need{NeedFabric}, Source: srcShort + "; ceph 70458",
			Rule: "a part whose window is longer than the memory behind it fails and makes no part, not even of the bytes that exist",
			Run: func(ctx context.Context, e *Env) {
				u := e.startUpload(ctx, e.key("never"), nil)
				w := e.filled(pattern(99, 3<<20))
				d := w.descriptor()
				d.Size = uint64(len(w.exposed.Bytes())) + 1<<20
				e.wantRefused(e.do(ctx, u.request(1, e.encode(d), nil)), 400, 500)
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
		{ID: "multipart/crc64nvme", Level: Must, Needs: []Need{NeedFabric}, Source: "minio-cpp 226: MinIO's SDKs declare each part's CRC64NVME and complete with the whole object's",
			Rule: "parts by descriptor that declare their CRC64NVME make an object with that of the whole",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(96, part+70_000)
				u := e.startUpload(ctx, e.key("o"), http.Header{"X-Amz-Checksum-Algorithm": {"CRC64NVME"}, "X-Amz-Checksum-Type": {"FULL_OBJECT"}})
				u.addRDMA(ctx, 1, data[:part], sumHeader("CRC64NVME", data[:part]))
				u.addRDMA(ctx, 2, data[part:], sumHeader("CRC64NVME", data[part:]))
				for i, p := range u.parts {
					if p.ChecksumCRC64NVME == "" {
						e.failf("the answer to part %d bears no x-amz-checksum-crc64nvme", i+1)
					}
				}
				u.complete(ctx)
				e.wantStored(ctx, u.key, data)
				w := e.window(len(data))
				e.wantGet(e.getRDMA(ctx, u.key, w, nil), len(data))
				w.wantReceived(data)
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
