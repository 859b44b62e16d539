// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

package forktest

import (
	"net/http"
	"strings"
	"testing"

	"github.com/minio/madmin-go/v3"
	"github.com/minio/minio-go/v7/pkg/signer"
)

// A descriptor as cuObject makes it, and its telling part.
const (
	token  = "00007f1234567000:00001000:aabbccdd:0000:000042:1:00000000000000000000ffff0a0a30d0"
	secret = "00007f1234567000"
)

var (
	emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	descriptor  = headers{"x-amz-rdma-token", token, "x-amz-content-sha256", "UNSIGNED-PAYLOAD"}
	unsigned    = headers{"x-amz-content-sha256", "UNSIGNED-PAYLOAD"}
)

// descriptorIs returns the request headers for a descriptor in any header.
func descriptorIs(header, value string) headers {
	return headers{header, value, "x-amz-content-sha256", "UNSIGNED-PAYLOAD"}
}

// TestOff: switched off, the plugin is in the path and declines.
func TestOff(t *testing.T) {
	s := start(t, nil)
	s.put(t, "there", []byte("content"))
	traces := s.trace(t, func() {
		for _, h := range []string{"x-amz-rdma-token", "x-rdma-info", "x-amz-rdma-future", "x-scal-rdma"} {
			s.send(t, http.MethodPut, "/bucket/new-"+h, signV4, descriptorIs(h, token), nil).declined(t)
			s.absent(t, "new-"+h)
		}
		s.send(t, http.MethodPut, "/bucket/new", signV4, headers{"x-amz-rdma-token", token, "x-amz-content-sha256", emptySHA256}, nil).declined(t)
		s.send(t, http.MethodPut, "/bucket/new", anonymous, descriptor, nil).declined(t)
		s.send(t, http.MethodPut, "/bucket/new", signV4, unsigned, headers{"x-amz-rdma-token", token}).declined(t)
		s.send(t, http.MethodPut, "/bucket/new", presign, headers{"x-amz-rdma-token", token}, nil).declined(t)
		// Presigners move x-amz headers into the query.
		s.send(t, http.MethodPut, "/bucket/new?X-Amz-Rdma-Token="+token, presign, nil, nil).declined(t)
		s.send(t, http.MethodPut, "/bucket/new?partNumber=1&uploadId=x", signV4, descriptor, nil).declined(t)
		s.send(t, http.MethodPut, "/bucket/new.tar", signV4, append(headers{"x-amz-meta-snowball-auto-extract", "true"}, descriptor...), nil).declined(t)
		s.send(t, http.MethodGet, "/bucket/there", signV4, descriptor, nil).declined(t)
		s.send(t, http.MethodPost, "/.s3rdma-shm/connect", signV4, headers{"x-amz-rdma-token", "1"}, nil).declined(t)
	})
	s.absent(t, "new")
	s.hides(t, traces, secret)
	others(t, s)
	unmatched(t, s)
}

// others: on calls that move no object bytes a descriptor has no effect.
func others(t *testing.T, s *server) {
	t.Helper()
	for _, kind := range []struct {
		name string
		sign signing
	}{{"header", signV4}, {"presigned", presign}} {
		with := headers{"x-amz-rdma-token", token}
		if kind.name == "header" {
			with = descriptor
		}
		for _, c := range []struct {
			method, path string
			status       int
			extra        headers
		}{
			{http.MethodHead, "/bucket/there", 200, nil},
			{http.MethodGet, "/bucket/there?tagging", 200, nil},
			{http.MethodGet, "/bucket?location", 200, nil},
			{http.MethodGet, "/bucket?list-type=2", 200, nil},
			{http.MethodGet, "/bucket/?versions", 200, nil},
			{http.MethodPut, "/bucket/copy-" + kind.name, 200, headers{"x-amz-copy-source", "/bucket/there"}},
			{http.MethodPost, "/bucket/mp?uploads", 200, nil},
			{http.MethodDelete, "/bucket/nothing", 204, nil},
			{http.MethodHead, "/bucket/nothing", 404, nil},
		} {
			extra := append(headers{}, with...)
			a := s.send(t, c.method, c.path, kind.sign, append(extra, c.extra...), nil)
			a.want(t, c.status, "")
			if a.Header.Get("x-amz-rdma-reply") != "" {
				t.Errorf("%s %s: a reply header", c.method, c.path)
			}
			if c.path == "/bucket?list-type=2" && !strings.Contains(a.body, "<Key>there</Key>") {
				t.Errorf("list: %s", a.body)
			}
			wrong := func(r *http.Request) *http.Request {
				if kind.name == "header" {
					return signer.SignV4(*r, rootUser, "wrong secret", "", region)
				}
				return presignAs(r, rootUser, "wrong secret")
			}
			s.send(t, c.method, c.path, wrong, append(append(headers{}, with...), c.extra...), nil).want(t, 403, "")
		}
		// Unsigned, it has no effect either.
		var signed headers
		if kind.name == "header" {
			signed = unsigned
		}
		s.send(t, http.MethodHead, "/bucket/there", kind.sign, signed, headers{"x-amz-rdma-token", token}).want(t, 200, "")
	}
	if got := string(s.get(t, "copy-header")); got != "content" {
		t.Errorf("copy: %q", got)
	}
	s.hides(t, nil, secret)
}

// unmatched: POSTs that no route takes are answered as by stock MinIO.
func unmatched(t *testing.T, s *server) {
	t.Helper()
	for _, path := range []string{"/bucket", "/bucket/", "/bucket/object", "/bucket/object?nonsense", "/.invalid/object", "/nothing/connect"} {
		for _, sign := range []signing{signV4, anonymous} {
			a := s.send(t, http.MethodPost, path, sign, nil, nil)
			a.want(t, http.StatusBadRequest, "BadRequest")
			if a.Header.Get("x-amz-request-id") != "" {
				t.Errorf("POST %s: passed middlewares that unmatched requests do not meet", path)
			}
		}
	}
}

// TestRefusals: what is refused before any byte moves, with RDMA on.
func TestRefusals(t *testing.T) {
	s := start(t, nil, "--rdma=on", "--rdma-fabric=tcp", "--rdma-staging-size=16MiB")
	s.put(t, "there", []byte("content"))
	svc, err := s.admin(t).AddServiceAccount(t.Context(), madmin.AddServiceAccountReq{})
	if err != nil {
		t.Fatal(err)
	}
	dead := "tcp:00112233445566778899aabbccddeeff:" + "00007f1234567000:00001000:aabbccdd"
	session := descriptorIs("x-amz-rdma-token", dead)
	traces := s.trace(t, func() {
		for _, method := range []string{http.MethodPut, http.MethodGet} {
			s.send(t, method, "/bucket/unsigned", signV4, unsigned, headers{"x-amz-rdma-token", token}).want(t, 403, "AccessDenied")
			s.send(t, method, "/bucket/anonymous", anonymous, descriptor, nil).want(t, 403, "AccessDenied")
			s.send(t, method, "/bucket/sigv2", signV2, headers{"x-amz-rdma-token", token}, nil).want(t, 403, "AccessDenied")
			s.send(t, method, "/bucket/presigned-unsigned", presign, nil, headers{"x-amz-rdma-token", token}).want(t, 403, "AccessDenied")
			s.send(t, method, "/bucket/query?x-amz-rdma-token="+token, presign, nil, nil).want(t, 403, "AccessDenied")
			s.send(t, method, "/bucket/query?x-amz-rdma-token="+token, signV4, unsigned, nil).want(t, 403, "AccessDenied")
			s.send(t, method, "/bucket/wrong-key", signV4As(rootUser, "wrong secret", ""), descriptor, nil).want(t, 403, "SignatureDoesNotMatch")
			s.send(t, method, "/bucket/no-such-key", signV4As("nobody", "wrong secret", ""), descriptor, nil).want(t, 403, "InvalidAccessKeyId")
			s.send(t, method, "/bucket/malformed", signV4, descriptorIs("x-amz-rdma-token", "xyz:"+secret), nil).want(t, 400, "InvalidRDMAToken")
			s.send(t, method, "/bucket/dc", signV4, descriptor, nil).declined(t)
			s.send(t, method, "/bucket/no-session", signV4, session, nil).declined(t)
			s.send(t, method, "/bucket/no-session-svc", signV4As(svc.AccessKey, svc.SecretKey, ""), session, nil).declined(t)
			s.send(t, method, "/bucket/no-session-presigned", presign, headers{"x-amz-rdma-token", dead}, nil).declined(t)
		}
		s.send(t, http.MethodPut, "/bucket/chunked", signV4, headers{"x-amz-rdma-token", dead, "x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
			"x-amz-decoded-content-length", "0", "x-amz-trailer", "x-amz-checksum-crc32c"}, nil).want(t, 400, "InvalidRequest")
		s.send(t, http.MethodPut, "/bucket/empty-checksum", signV4, append(headers{"x-amz-checksum-crc32", "AAAAAA=="}, session...), nil).want(t, 400, "BadDigest")
		s.send(t, http.MethodPost, "/.s3rdma-tcp/connect", anonymous, headers{"x-amz-rdma-token", "1"}, nil).want(t, 403, "AccessDenied")
		s.send(t, http.MethodPost, "/.s3rdma-tcp/connect", signV4, nil, headers{"x-amz-rdma-token", "1"}).want(t, 403, "AccessDenied")
		s.send(t, http.MethodPost, "/.s3rdma-tcp/connect", signV4As(rootUser, "wrong secret", ""), headers{"x-amz-rdma-token", "1"}, nil).want(t, 403, "SignatureDoesNotMatch")
		s.send(t, http.MethodPost, "/.s3rdma-shm/connect", signV4, headers{"x-amz-rdma-token", "1"}, nil).declined(t)
		s.send(t, http.MethodGet, "/.s3rdma-tcp/connect", signV4, headers{"x-amz-rdma-token", "1"}, nil).want(t, 405, "MethodNotAllowed")
		s.send(t, http.MethodPut, "/.s3rdma-tcp/connect", signV4, headers{"x-amz-rdma-token", "1"}, nil).want(t, 405, "MethodNotAllowed")
	})
	for _, key := range []string{"unsigned", "anonymous", "sigv2", "presigned-unsigned", "query", "wrong-key", "malformed", "dc", "no-session", "chunked", "empty-checksum"} {
		s.absent(t, key)
	}
	s.hides(t, traces, secret, "00112233445566778899aabbccddeeff")
	for object, status := range map[string]float64{"unsigned": 403, "anonymous": 403, "malformed": 400, "dc": 501} {
		for _, api := range []string{"PutObject", "GetObject"} {
			entries := s.auditOf(t, api, object)
			if got := entries[0]["api"].(map[string]any)["statusCode"]; len(entries) != 1 || got != status {
				t.Errorf("audit of %s %s: %d entries, status %v, want one of %v", api, object, len(entries), got, status)
			}
			seen := false
			for _, i := range traces {
				if i.FuncName == "s3."+api && strings.HasSuffix(i.Path, "/"+object) {
					seen = true
					if got := i.HTTP.RespInfo.StatusCode; float64(got) != status {
						t.Errorf("trace of %s %s: status %d, want %v", api, object, got, status)
					}
					if i.HTTP.ReqInfo.Headers.Get("x-amz-rdma-token") != "*REDACTED*" {
						t.Errorf("trace of %s %s does not show that there was a descriptor", api, object)
					}
				}
			}
			if !seen {
				t.Errorf("no trace of %s %s", api, object)
			}
		}
	}
	others(t, s)
	unmatched(t, s)
}
