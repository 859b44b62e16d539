// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package rawhttp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSignsAsTheSDK compares with an independent implementation: AWS's own.
func TestSignsAsTheSDK(t *testing.T) {
	creds := Credentials{AccessKey: "AKIDEXAMPLE", SecretKey: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}
	now := time.Date(2026, 8, 7, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name, url string
		header    http.Header
	}{
		{"plain", "http://host:9000/bucket/key", nil},
		{"escapes", "http://host:9000/bucket/" + EscapePath("a b+c/é~$.txt"), nil},
		{"query", "http://host:9000/bucket?list-type=2&prefix=a%20b&uploads=", nil},
		{"headers", "http://host:9000/b/k", http.Header{
			"X-Amz-Rdma-Token": {"shm:x"}, "Range": {"bytes=0-1"}, "X-Amz-Meta-A": {"  two   spaces ", "b"}}},
	} {
		for _, token := range []string{"", "session-token"} {
			creds.SessionToken = token
			s := signer{creds: creds, region: "eu-west-1", service: "s3", now: now}
			request := func() *http.Request {
				req, err := http.NewRequest("GET", tt.url, nil)
				if err != nil {
					t.Fatal(err)
				}
				for k, v := range tt.header {
					req.Header[k] = v
				}
				req.Header.Set("X-Amz-Content-Sha256", UnsignedPayload)
				return req
			}
			ours, theirs := request(), request()
			s.header(ours, UnsignedPayload, false)
			sdk := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
			err := sdk.SignHTTP(context.Background(), aws.Credentials{AccessKeyID: creds.AccessKey, SecretAccessKey: creds.SecretKey, SessionToken: token},
				theirs, UnsignedPayload, "s3", "eu-west-1", now)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := ours.Header.Get("Authorization"), theirs.Header.Get("Authorization"); got != want {
				t.Errorf("%s, session token %q:\n got %s\nwant %s", tt.name, token, got, want)
			}

			presigned := request()
			presigned.Header.Del("X-Amz-Content-Sha256")
			sdkRequest := presigned.Clone(context.Background())
			q := sdkRequest.URL.Query()
			q.Set("X-Amz-Expires", "60")
			sdkRequest.URL.RawQuery = q.Encode()
			sdk = v4.NewSigner(func(o *v4.SignerOptions) {
				o.DisableURIPathEscaping, o.DisableHeaderHoisting = true, true
			})
			signed, _, err := sdk.PresignHTTP(context.Background(), aws.Credentials{AccessKeyID: creds.AccessKey, SecretAccessKey: creds.SecretKey, SessionToken: token},
				sdkRequest, UnsignedPayload, "s3", "eu-west-1", now)
			if err != nil {
				t.Fatal(err)
			}
			s.query(presigned, UnsignedPayload, time.Minute)
			u, err := url.Parse(signed)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := presigned.URL.Query().Get("X-Amz-Signature"), u.Query().Get("X-Amz-Signature"); got != want {
				t.Errorf("%s presigned, session token %q: signature %s, want %s", tt.name, token, got, want)
			}
		}
	}
}

func TestEveryHeaderIsTheCallers(t *testing.T) {
	var seen *http.Request
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen, body = r, nil
		body, _ = io.ReadAll(r.Body)
		w.Header().Set("X-Amz-Rdma-Reply", "501")
		w.WriteHeader(501)
		io.WriteString(w, "<Error><Code>C</Code><Message>secret-descriptor</Message></Error>")
	}))
	defer server.Close()
	c, err := New(Config{Endpoint: server.URL, Credentials: Credentials{AccessKey: "ak", SecretKey: "sk"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var log []Exchange
	o := c.Observing(func(e Exchange) { log = append(log, e) })

	resp, err := o.Do(context.Background(), Request{Method: "PUT", Bucket: "b", Key: "a b", SignLength: true, PayloadHash: EmptySHA256,
		Header: http.Header{"x-amz-rdma-token": {"secret-descriptor"}}, Unsigned: http.Header{"x-late": {"1"}}})
	if err != nil {
		t.Fatal(err)
	}
	auth := seen.Header.Get("Authorization")
	if !strings.Contains(auth, "SignedHeaders=content-length;host;x-amz-content-sha256;x-amz-date;x-amz-rdma-token,") {
		t.Errorf("signed: %s", auth)
	}
	if seen.Header.Get("X-Late") != "1" || seen.ContentLength != 0 || len(seen.TransferEncoding) != 0 || seen.URL.EscapedPath() != "/b/a%20b" {
		t.Errorf("got %+v", seen)
	}
	if resp.Status != 501 || resp.Error().Code != "C" {
		t.Errorf("response %+v", resp)
	}
	if len(log) != 1 || strings.Contains(log[0].Sent+log[0].Got, "secret-descriptor") || strings.Contains(log[0].Sent, "Signature=") {
		t.Errorf("the exchange shows a secret: %+v", log)
	}
	if !strings.Contains(log[0].Sent, "x-late: 1 (not signed)") {
		t.Errorf("sent: %s", log[0].Sent)
	}

	if _, err := o.Do(context.Background(), Request{Method: "PUT", Bucket: "b", Key: "k", Chunked: true, Body: []byte("abc"), Anonymous: true}); err != nil {
		t.Fatal(err)
	}
	if seen.Header.Get("Authorization") != "" || string(body) != "abc" || len(seen.TransferEncoding) != 1 {
		t.Errorf("chunked, anonymous: %+v, body %q", seen, body)
	}
	if got := c.Counter().Of("PUT").Sent.Payload; got != 3 {
		t.Errorf("%d bytes of payload sent, want 3", got)
	}
}

func TestEndpoints(t *testing.T) {
	for _, bad := range []string{"", "localhost:9000", "ftp://h", "http://", "http://h/path"} {
		if _, err := New(Config{Endpoint: bad}); !errors.Is(err, ErrEndpoint) {
			t.Errorf("%q: error %v, want ErrEndpoint", bad, err)
		}
	}
}
