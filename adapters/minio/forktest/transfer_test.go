// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

package forktest

import (
	"bytes"
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/minio/madmin-go/v3"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/shm"
	"github.com/s3rdma/s3rdma/rdmaio/tcp"
)

// target is a fabric's client end that can make memory.
type target interface {
	rdmaio.Target
	rdmaio.Allocator
}

// connect opens a session for whoever sign signs as, and returns what must appear
// in no trace.
func connect(t *testing.T, s *server, tg target, sign signing) (secrets []string) {
	t.Helper()
	hello, err := tg.Hello(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a := s.send(t, http.MethodPost, "/.s3rdma-"+tg.Name()+"/connect", sign,
		append(headers{"x-amz-rdma-token", hello.Token}, unsigned...), nil)
	a.want(t, http.StatusOK, "")
	id, err := rdmaio.ParseSessionID(a.Header.Get("x-amz-rdma-session"))
	if err != nil {
		t.Fatal(err)
	}
	text, ok := strings.CutPrefix(a.Header.Get("x-amz-rdma-reply"), "200:")
	if !ok {
		t.Fatal("connect: no welcome")
	}
	if err := tg.Connect(t.Context(), rdmaio.Welcome{Session: id, Token: text}); err != nil {
		t.Fatal(err)
	}
	return []string{id.Hex(), text}
}

func tcpTarget(t *testing.T) target {
	tg := tcp.NewTarget(tcp.Options{})
	t.Cleanup(func() { tg.Close() })
	return tg
}

// memory is a registered buffer of n bytes.
func memory(t *testing.T, tg target, n int) rdmaio.Exposed {
	t.Helper()
	e, err := tg.Alloc(n, rdmaio.RemoteRead|rdmaio.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// describe is the descriptor of the first n bytes, as a header value.
func describe(t *testing.T, e rdmaio.Exposed, n int) string {
	t.Helper()
	d, err := e.Describe(0, n)
	if err != nil {
		t.Fatal(err)
	}
	text, err := d.Encode(rdmaio.EncodingSession)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	r.Read(b)
	return b
}

func sha(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }

func crc(b []byte) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))))
}

func md5sum(b []byte) string {
	s := md5.Sum(b)
	return base64.StdEncoding.EncodeToString(s[:])
}

// served checks a success and its byte count.
func (a answer) served(t *testing.T, status, n int) {
	t.Helper()
	a.want(t, status, "")
	if a.Header.Get("x-amz-rdma-reply") != strconv.Itoa(status) || a.Header.Get("x-amz-rdma-bytes-transferred") != strconv.Itoa(n) {
		t.Errorf("%s %s: reply %q, bytes %q, want %d and %d", a.Request.Method, a.Request.URL.Path,
			a.Header.Get("x-amz-rdma-reply"), a.Header.Get("x-amz-rdma-bytes-transferred"), status, n)
	}
	if a.ContentLength != 0 || a.body != "" {
		t.Errorf("%s %s: a body of %d bytes", a.Request.Method, a.Request.URL.Path, len(a.body))
	}
}

const size = 3<<20 + 5

// startOn runs a server over four drives with tcp and shm, and a KMS for SSE-S3.
func startOn(t *testing.T, args ...string) (s *server, socket string) {
	t.Helper()
	return startOnDrives(t, 4, nil, args...)
}

func startOnDrives(t *testing.T, drives int, env []string, args ...string) (s *server, socket string) {
	t.Helper()
	o, socket := withRDMA(t, setup{drives: freshDrives(t, drives), env: env, args: args})
	return o.start(t), socket
}

// withRDMA switches the plugin on, with little staging memory.
func withRDMA(t *testing.T, o setup) (on setup, socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "rdma") // short: a socket's path is
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	o.args = append([]string{"--rdma=on", "--rdma-fabric=tcp,shm", "--rdma-shm-socket=" + socket}, o.args...)
	o.env = append([]string{"MINIO_KMS_SECRET_KEY=key:" + base64.StdEncoding.EncodeToString(make([]byte, 32)), "MINIO_RDMA_STAGING_SIZE=32MiB"}, o.env...)
	return o, socket
}

func TestPut(t *testing.T) {
	s, _ := startOn(t)
	tg := tcpTarget(t)
	secrets := connect(t, s, tg, signV4)
	mem := memory(t, tg, size)
	data := random(size)
	copy(mem.Bytes(), data)
	d := describe(t, mem, size)
	secrets = append(secrets, d)
	dh := headers{"x-amz-rdma-token", d}
	traces := s.trace(t, func() {
		for _, c := range []struct {
			name   string
			sign   signing
			extra  headers
			status int
			code   string
		}{
			{"unsigned-payload", signV4, unsigned, 200, ""},
			{"hash-of-nothing", signV4, headers{"x-amz-content-sha256", emptySHA256}, 200, ""},
			{"hash-of-the-object", signV4, headers{"x-amz-content-sha256", sha(data)}, 200, ""},
			{"wrong-hash", signV4, headers{"x-amz-content-sha256", sha(data[1:])}, 400, "XAmzContentSHA256Mismatch"},
			{"md5", signV4, append(headers{"content-md5", md5sum(data)}, unsigned...), 200, ""},
			{"wrong-md5", signV4, append(headers{"content-md5", md5sum(data[1:])}, unsigned...), 400, "BadDigest"},
			{"crc32c", signV4, append(headers{"x-amz-checksum-crc32c", crc(data)}, unsigned...), 200, ""},
			{"wrong-crc32c", signV4, append(headers{"x-amz-checksum-crc32c", crc(data[1:])}, unsigned...), 400, "BadDigest"},
			{"sse-s3", signV4, append(headers{"x-amz-server-side-encryption", "AES256"}, unsigned...), 200, ""},
			{"presigned", presign, nil, 200, ""},
			{"presigned-hash-of-nothing", presignWith("X-Amz-Content-Sha256", emptySHA256), nil, 200, ""},
			{"presigned-wrong", presignWith("X-Amz-Content-Sha256", sha(data[1:])), nil, 400, "XAmzContentSHA256Mismatch"},
			{"meta", signV4, append(headers{"x-amz-meta-colour", "blue", "content-type", "text/plain", "x-amz-tagging", "a=b"}, unsigned...), 200, ""},
			{"if-none-match", signV4, append(headers{"if-none-match", "*"}, unsigned...), 200, ""},
		} {
			a := s.send(t, http.MethodPut, "/bucket/"+c.name, c.sign, append(append(headers{}, dh...), c.extra...), nil)
			if c.status != 200 {
				a.want(t, c.status, c.code)
				s.absent(t, c.name)
				continue
			}
			a.served(t, 200, size)
			if a.Header.Get("ETag") == "" {
				t.Errorf("%s: no ETag", c.name)
			}
			if !bytes.Equal(s.get(t, c.name), data) {
				t.Errorf("%s: other bytes were stored", c.name)
			}
		}
		s.send(t, http.MethodPut, "/bucket/if-none-match", signV4, append(append(headers{"if-none-match", "*"}, dh...), unsigned...), nil).want(t, 412, "PreconditionFailed")
		s.send(t, http.MethodPut, "/nothing/object", signV4, append(append(headers{}, dh...), unsigned...), nil).want(t, 404, "NoSuchBucket")
	})
	st, err := s.client(t).StatObject(t.Context(), bucket, "meta", minio.StatObjectOptions{})
	if err != nil || st.UserMetadata["Colour"] != "blue" || st.ContentType != "text/plain" || st.UserTagCount != 1 {
		t.Errorf("metadata: %+v, %v", st, err)
	}
	s.hides(t, traces, secrets...)
	checkRecords(t, s, traces, "PutObject", "unsigned-payload", 200, size, 0)
	checkRecords(t, s, traces, "PutObject", "wrong-hash", 400, -1, -1)
	checkRecords(t, s, traces, "PutObject", "object", 404, -1, -1)
	api := s.metrics(t, "/minio/metrics/v3/api/requests")
	if n := sample(t, api, `minio_api_requests_traffic_received_bytes{`, `type="s3"`); n < 8*size {
		t.Errorf("MinIO has counted %v bytes received", n)
	}
	own := s.metrics(t, "/minio/metrics/v3/rdma")
	if n := sample(t, own, `s3rdma_bytes_total{`, `op="PutObject"`, `transport="tcp"`); n < 8*size {
		t.Errorf("the plugin has counted %v bytes", n)
	}
	resp, err := http.Get(s.url + "/minio/metrics/v3/rdma")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("metrics without a token: %s", resp.Status)
	}
}

// presignWith presigns with one more query parameter.
func presignWith(name, value string) signing {
	return func(r *http.Request) *http.Request {
		q := r.URL.Query()
		q.Set(name, value)
		r.URL.RawQuery = q.Encode()
		// The signer takes the payload's hash from the header.
		r.Header.Set(name, value)
		signed := presign(r)
		return signed
	}
}

// checkRecords looks for one trace and one audit entry of a request, with its
// status and the bytes of the object (-1: not checked).
func checkRecords(t *testing.T, s *server, traces []madmin.TraceInfo, api, object string, status, in, out int) {
	t.Helper()
	n := 0
	for _, i := range traces {
		if i.FuncName != "s3."+api || !strings.HasSuffix(i.Path, "/"+object) {
			continue
		}
		if _, bears := i.HTTP.ReqInfo.Headers["X-Amz-Rdma-Token"]; !bears {
			continue
		}
		n++
		if i.HTTP.RespInfo.StatusCode != status {
			t.Errorf("trace of %s %s: status %d, want %d", api, object, i.HTTP.RespInfo.StatusCode, status)
		}
		if in >= 0 && i.HTTP.CallStats.InputBytes < in {
			t.Errorf("trace of %s %s: %d bytes in, want %d and headers", api, object, i.HTTP.CallStats.InputBytes, in)
		}
		if out >= 0 && i.HTTP.CallStats.OutputBytes != out {
			t.Errorf("trace of %s %s: %d bytes out, want %d", api, object, i.HTTP.CallStats.OutputBytes, out)
		}
	}
	if n != 1 {
		t.Errorf("%d traces of %s %s, want 1", n, api, object)
	}
	n = 0
	for _, e := range s.auditOf(t, api, object) {
		a := e["api"].(map[string]any)
		if ua, _ := e["userAgent"].(string); strings.Contains(ua, "minio-go") {
			continue // the test's own plain HTTP
		}
		n++
		num := func(k string) int { v, _ := a[k].(float64); return int(v) }
		if num("statusCode") != status || in > 0 && num("rx") != in || out > 0 && num("tx") != out {
			t.Errorf("audit of %s %s: %v", api, object, a)
		}
		if e["accessKey"] != rootUser && status != 403 {
			t.Errorf("audit of %s %s: access key %v", api, object, e["accessKey"])
		}
	}
	if n != 1 {
		t.Errorf("%d audit entries of %s %s, want 1", n, api, object)
	}
}

func TestGet(t *testing.T) {
	s, _ := startOn(t)
	tg := tcpTarget(t)
	secrets := connect(t, s, tg, signV4)
	mem := memory(t, tg, size+100)
	data := random(size)
	text := bytes.Repeat([]byte("compressible "), 10000)
	s.put(t, "object", data)
	s.put(t, "text", text)
	s.put(t, "empty", nil)
	etag := func(key string) string {
		st, err := s.client(t).StatObject(t.Context(), bucket, key, minio.StatObjectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return st.ETag
	}
	d := describe(t, mem, size+100)
	secrets = append(secrets, d)
	poison := byte(0xa5)
	get := func(path string, sign signing, extra ...string) answer {
		t.Helper()
		for i := range mem.Bytes() {
			mem.Bytes()[i] = poison
		}
		h := headers{"x-amz-rdma-token", d}
		if r, _ := http.NewRequest(http.MethodGet, s.url, nil); sign(r).Header.Get("Authorization") != "" {
			h = append(h, unsigned...)
		}
		return s.send(t, http.MethodGet, path, sign, append(h, extra...), nil)
	}
	holds := func(name string, want []byte) {
		t.Helper()
		if !bytes.Equal(mem.Bytes()[:len(want)], want) {
			t.Errorf("%s: other bytes arrived", name)
		}
		for _, b := range mem.Bytes()[len(want):] {
			if b != poison {
				t.Errorf("%s: bytes behind the object were written", name)
				break
			}
		}
	}
	traces := s.trace(t, func() {
		a := get("/bucket/object", signV4)
		a.served(t, 200, size)
		holds("whole", data)
		if a.Header.Get("ETag") != `"`+etag("object")+`"` || a.Header.Get("Accept-Ranges") == "" || a.Header.Get("x-amz-request-id") == "" {
			t.Errorf("headers: %v", a.Header)
		}
		a = get("/bucket/object?x=range", signV4, "range", "bytes=1000-2000999")
		a.served(t, 206, 2000000)
		holds("range", data[1000:2001000])
		if want := fmt.Sprintf("bytes 1000-2000999/%d", size); a.Header.Get("Content-Range") != want {
			t.Errorf("Content-Range %q, want %q", a.Header.Get("Content-Range"), want)
		}
		get("/bucket/object?x=presigned", presign).served(t, 200, size)
		holds("presigned", data)
		get("/bucket/object?x=hash", signV4As(rootUser, rootSecret, ""), "x-amz-content-sha256", emptySHA256).served(t, 200, size)
		holds("hash of nothing", data)
		a = get("/bucket/text", signV4, "accept-encoding", "gzip")
		a.served(t, 200, len(text))
		holds("gzip", text)
		if a.Header.Get("Content-Encoding") != "" {
			t.Error("the answer claims to be compressed")
		}
		get("/bucket/empty", signV4).served(t, 200, 0)
		holds("empty", nil)
		get("/bucket/nothing", signV4).want(t, 404, "NoSuchKey")
		get("/nothing/object", signV4).want(t, 404, "NoSuchBucket")
		get("/bucket/object?x=match", signV4, "if-none-match", etag("object")).want(t, 304, "")
		get("/bucket/object?x=match", signV4, "if-match", "x").want(t, 412, "PreconditionFailed")
		get("/bucket/object?x=range", signV4, "range", "bytes=99999999-").want(t, 416, "InvalidRange")
		holds("errors", nil)
	})
	small := describe(t, mem, 100)
	s.send(t, http.MethodGet, "/bucket/object?x=small", signV4, append(headers{"x-amz-rdma-token", small}, unsigned...), nil).want(t, 400, "RDMAWindowTooSmall")
	s.hides(t, traces, append(secrets, small)...)
	checkRecords(t, s, traces, "GetObject", "text", 200, 0, len(text))
	checkRecords(t, s, traces, "GetObject", "nothing", 404, -1, -1)
	api := s.metrics(t, "/minio/metrics/v3/api/requests")
	if n := sample(t, api, `minio_api_requests_traffic_sent_bytes{`, `type="s3"`); n < 3*size {
		t.Errorf("MinIO has counted %v bytes sent", n)
	}
}

func TestUploadPart(t *testing.T) {
	s, _ := startOn(t)
	tg := tcpTarget(t)
	connect(t, s, tg, signV4)
	const part = 5 << 20
	mem := memory(t, tg, part)
	data := random(2*part + 7)
	core := minio.Core{Client: s.client(t)}
	id, err := core.NewMultipartUpload(t.Context(), bucket, "parts", minio.PutObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var parts []minio.CompletePart
	for i, piece := range [][]byte{data[:part], data[part : 2*part], data[2*part:]} {
		copy(mem.Bytes(), piece)
		path := fmt.Sprintf("/bucket/parts?partNumber=%d&uploadId=%s", i+1, id)
		a := s.send(t, http.MethodPut, path, signV4, append(headers{"x-amz-rdma-token", describe(t, mem, len(piece))}, unsigned...), nil)
		a.served(t, 200, len(piece))
		parts = append(parts, minio.CompletePart{PartNumber: i + 1, ETag: strings.Trim(a.Header.Get("ETag"), `"`)})
	}
	if _, err := core.CompleteMultipartUpload(t.Context(), bucket, "parts", id, parts, minio.PutObjectOptions{}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(s.get(t, "parts"), data) {
		t.Error("other bytes were stored")
	}
	if e := s.auditOf(t, "PutObjectPart", "parts"); len(e) != 3 {
		t.Errorf("%d audit entries, want 3", len(e))
	}
}

// TestIdentities: policies decide on diverted requests as on any other, and
// sessions belong to who opened them.
func TestIdentities(t *testing.T) {
	s, _ := startOn(t)
	admin := s.admin(t)
	policy := `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:PutObject","s3:GetObject"],"Resource":["arn:aws:s3:::bucket/mine/*"]}]}`
	if err := admin.AddCannedPolicy(t.Context(), "mine", []byte(policy)); err != nil {
		t.Fatal(err)
	}
	if err := admin.AddUser(t.Context(), "user", "usersecret"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.AttachPolicy(t.Context(), madmin.PolicyAssociationReq{Policies: []string{"mine"}, User: "user"}); err != nil {
		t.Fatal(err)
	}
	svc, err := admin.AddServiceAccount(t.Context(), madmin.AddServiceAccountReq{TargetUser: "user"})
	if err != nil {
		t.Fatal(err)
	}
	assume := func() signing {
		c, err := credentials.NewSTSAssumeRole(s.url, credentials.STSAssumeRoleOptions{AccessKey: "user", SecretKey: "usersecret"})
		if err != nil {
			t.Fatal(err)
		}
		v, err := c.GetWithContext(&credentials.CredContext{Client: http.DefaultClient})
		if err != nil {
			t.Fatal(err)
		}
		return signV4As(v.AccessKeyID, v.SecretAccessKey, v.SessionToken)
	}
	user := signV4As("user", "usersecret", "")
	for name, sign := range map[string]signing{"user": user, "service": signV4As(svc.AccessKey, svc.SecretKey, ""), "sts": assume()} {
		tg := tcpTarget(t)
		connect(t, s, tg, sign)
		mem := memory(t, tg, 100000)
		data := random(100000)
		copy(mem.Bytes(), data)
		h := append(headers{"x-amz-rdma-token", describe(t, mem, 100000)}, unsigned...)
		s.send(t, http.MethodPut, "/bucket/mine/"+name, sign, h, nil).served(t, 200, 100000)
		if !bytes.Equal(s.get(t, "mine/"+name), data) {
			t.Errorf("%s: other bytes were stored", name)
		}
		s.send(t, http.MethodPut, "/bucket/other/"+name, sign, h, nil).want(t, 403, "AccessDenied")
		s.absent(t, "other/"+name)
		s.send(t, http.MethodGet, "/bucket/other/"+name, sign, h, nil).want(t, 403, "AccessDenied")
		// Somebody else with the same descriptor.
		s.send(t, http.MethodPut, "/bucket/stolen", signV4, h, nil).want(t, 403, "AccessDenied")
		s.send(t, http.MethodGet, "/bucket/mine/"+name, signV4, h, nil).want(t, 403, "AccessDenied")
		if name == "sts" {
			// Fresh credentials of the same user keep the session.
			s.send(t, http.MethodPut, "/bucket/mine/renewed", assume(), h, nil).served(t, 200, 100000)
		}
	}
	s.absent(t, "stolen")
	// A condition on the signature's age sees the client's own date.
	young := `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:PutObject"],"Resource":["arn:aws:s3:::bucket/*"],"Condition":{"StringEquals":{"s3:authType":"REST-QUERY-STRING"}}}]}`
	if err := admin.AddCannedPolicy(t.Context(), "young", []byte(young)); err != nil {
		t.Fatal(err)
	}
	if err := admin.AddUser(t.Context(), "presigner", "presignsecret"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.AttachPolicy(t.Context(), madmin.PolicyAssociationReq{Policies: []string{"young"}, User: "presigner"}); err != nil {
		t.Fatal(err)
	}
	sign := signV4As("presigner", "presignsecret", "")
	tg := tcpTarget(t)
	connect(t, s, tg, sign)
	mem := memory(t, tg, 1000)
	h := headers{"x-amz-rdma-token", describe(t, mem, 1000)}
	s.send(t, http.MethodPut, "/bucket/by-header", sign, append(headers{}, append(h, unsigned...)...), nil).want(t, 403, "AccessDenied")
	pre := func(r *http.Request) *http.Request { return presignAs(r, "presigner", "presignsecret") }
	s.send(t, http.MethodPut, "/bucket/by-query", pre, h, nil).served(t, 200, 1000)
}

// TestSharedMemory: shm, and the end of the server.
func TestSharedMemory(t *testing.T) {
	s, socket := startOn(t)
	tg := shm.NewTarget(shm.TargetOptions{})
	defer tg.Close()
	secrets := connect(t, s, tg, signV4)
	mem := memory(t, tg, size)
	data := random(size)
	copy(mem.Bytes(), data)
	d := describe(t, mem, size)
	h := append(headers{"x-amz-rdma-token", d}, unsigned...)
	traces := s.trace(t, func() {
		s.send(t, http.MethodPut, "/bucket/object", signV4, h, nil).served(t, 200, size)
		clear(mem.Bytes())
		s.send(t, http.MethodGet, "/bucket/object", signV4, h, nil).served(t, 200, size)
		if !bytes.Equal(mem.Bytes(), data) {
			t.Error("other bytes arrived")
		}
		s.send(t, http.MethodPost, "/.s3rdma-shm/disconnect", signV4, append(headers{"x-amz-rdma-session", secrets[0]}, unsigned...), nil).want(t, 204, "")
		s.send(t, http.MethodPut, "/bucket/late", signV4, h, nil).declined(t)
	})
	s.absent(t, "late")
	for _, name := range []string{"s3.RDMADisconnect"} {
		found := false
		for _, i := range traces {
			found = found || i.FuncName == name
		}
		if !found {
			t.Errorf("no trace of %s", name)
		}
	}
	s.auditOf(t, "RDMAConnect", "")
	s.auditOf(t, "RDMADisconnect", "")
	s.hides(t, traces, append(secrets, d)...)
	if _, err := os.Stat(socket); err != nil {
		t.Error(err)
	}
	s.stop(t)
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket is left behind")
	}
}

// metrics reads one of MinIO's metrics pages with a bearer token, as mc admin
// prometheus generate makes it.
func (s *server) metrics(t *testing.T, path string) string {
	t.Helper()
	enc := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	head := enc(map[string]string{"alg": "HS512", "typ": "JWT"}) + "." +
		enc(map[string]any{"exp": time.Now().Add(time.Hour).Unix(), "sub": rootUser, "iss": "prometheus"})
	mac := hmac.New(sha512.New, []byte(rootSecret))
	mac.Write([]byte(head))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+head+"."+base64.RawURLEncoding.EncodeToString(mac.Sum(nil)))
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s %v\n%s", path, resp.Status, err, body)
	}
	return string(body)
}

// sample is the sum of the samples whose line begins with prefix and contains the
// labels.
func sample(t *testing.T, page, prefix string, labels ...string) (sum float64) {
	t.Helper()
	n := 0
next:
	for _, line := range strings.Split(page, "\n") {
		if !strings.HasPrefix(line, prefix) {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(line, l) {
				continue next
			}
		}
		v, err := strconv.ParseFloat(line[strings.LastIndex(line, " ")+1:], 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		sum += v
		n++
	}
	if n == 0 {
		t.Errorf("no sample %s%v in:\n%s", prefix, labels, page)
	}
	return sum
}

// TestRestart: `mc admin service restart` replaces the process in place, without
// the end that it has otherwise. The sockets must be had again.
func TestRestart(t *testing.T) {
	s, _ := startOn(t)
	data := random(1000)
	put := func(key string) (before headers) {
		tg := shm.NewTarget(shm.TargetOptions{})
		t.Cleanup(func() { tg.Close() })
		connect(t, s, tg, signV4)
		mem := memory(t, tg, len(data))
		copy(mem.Bytes(), data)
		h := append(headers{"x-amz-rdma-token", describe(t, mem, len(data))}, unsigned...)
		s.send(t, http.MethodPut, "/bucket/"+key, signV4, h, nil).served(t, 200, len(data))
		return h
	}
	old := put("before")
	if err := s.admin(t).ServiceRestart(t.Context()); err != nil {
		t.Fatal(err)
	}
	within(t, 60*time.Second, func() error {
		if n := strings.Count(s.log.String(), "S3 over RDMA is on"); n != 2 {
			return fmt.Errorf("started %d times, want 2\n%s", n, s.log)
		}
		return nil
	})
	within(t, 60*time.Second, func() error { _, err := s.admin(t).ListUsers(t.Context()); return err })
	s.send(t, http.MethodGet, "/bucket/before", signV4, old, nil).declined(t)
	put("after")
	if !bytes.Equal(s.get(t, "before"), data) || !bytes.Equal(s.get(t, "after"), data) {
		t.Error("other bytes were stored")
	}
}
