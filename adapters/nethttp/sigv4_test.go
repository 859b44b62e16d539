// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package nethttp_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/minio/minio-go/v7/pkg/signer"

	"github.com/s3rdma/s3rdma/adapters/nethttp"
	"github.com/s3rdma/s3rdma/plugin"
)

const (
	accessKey = "alice"
	secretKey = "secret-of-alice"
	emptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

var users = map[string]nethttp.Secret{
	accessKey:    {Key: secretKey},
	"bob/team":   {Key: "secret-of-bob"},
	"temporary":  {Key: "secret-of-carol", SessionToken: "token-of-carol", Name: "carol"},
	"broken":     {},
	"unsearched": {Key: "x"},
}

func newSigV4() *nethttp.SigV4 {
	return &nethttp.SigV4{Lookup: func(_ context.Context, key string) (nethttp.Secret, error) {
		if key == "unsearched" {
			return nethttp.Secret{}, errors.New("database at 10.0.0.1 is down")
		}
		s, ok := users[key]
		if !ok {
			return s, nethttp.ErrUnknownKey
		}
		return s, nil
	}}
}

// arrive sends a request through the wire form, as a server would see it.
func arrive(t *testing.T, r *http.Request) *http.Request {
	t.Helper()
	var wire bytes.Buffer
	if err := r.Write(&wire); err != nil {
		t.Fatal(err)
	}
	got, err := http.ReadRequest(bufio.NewReader(&wire))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func request(t *testing.T, method, target string, header ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequest(method, "http://s3.example.com:9000"+target, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

// awsSign signs as the AWS SDK does.
func awsSign(t *testing.T, r *http.Request, key, hash string, at time.Time) {
	t.Helper()
	r.Header.Set("x-amz-content-sha256", hash)
	s := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	u := users[key]
	err := s.SignHTTP(t.Context(), aws.Credentials{AccessKeyID: key, SecretAccessKey: u.Key, SessionToken: u.SessionToken}, r, hash, "s3", "us-east-1", at)
	if err != nil {
		t.Fatal(err)
	}
}

func awsPresign(t *testing.T, r *http.Request, key string, at time.Time, expires int) *http.Request {
	t.Helper()
	q := r.URL.Query()
	q.Set("X-Amz-Expires", fmt.Sprint(expires))
	r.URL.RawQuery = q.Encode()
	s := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping, o.DisableHeaderHoisting = true, true })
	u := users[key]
	text, _, err := s.PresignHTTP(t.Context(), aws.Credentials{AccessKeyID: key, SecretAccessKey: u.Key, SessionToken: u.SessionToken}, r, "UNSIGNED-PAYLOAD", "s3", "us-east-1", at)
	if err != nil {
		t.Fatal(err)
	}
	out := r.Clone(t.Context())
	if out.URL, err = url.Parse(text); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestSigV4Accepts: what two independent signers make is accepted.
func TestSigV4Accepts(t *testing.T) {
	v, now := newSigV4(), time.Now()
	targets := []string{
		"/b/k", "/b/a%20b%2Bc", "/b/%C3%BC/x%3Dy", "/b/k?versionId=a%2Bb%2F%3D&partNumber=1", "/b/k?uploads=",
		"/b/k?z=1&a=1&a=2&A=%20", "/", "/b//double", "/b/k~-._*%27%28%29",
	}
	headers := [][]string{
		nil,
		{"x-amz-rdma-token", "shm:secret", "x-amz-meta-a", "  spaced   out  "},
		{"x-amz-meta-two", "1", "x-amz-meta-two", "2", "range", "bytes=0-1", "user-agent", "not signed"},
	}
	for _, target := range targets {
		for _, h := range headers {
			for _, method := range []string{"GET", "PUT", "POST"} {
				for hash := range map[string]bool{"UNSIGNED-PAYLOAD": true, emptyHash: true} {
					r := request(t, method, target, h...)
					awsSign(t, r, accessKey, hash, now)
					id, err := v.Authenticate(arrive(t, r))
					if err != nil || id.Name != accessKey {
						t.Errorf("aws: %s %s %q: %q, %v", method, target, h, id.Name, err)
					}
				}
				r := awsPresign(t, request(t, method, target, h...), accessKey, now, 60)
				if id, err := v.Authenticate(arrive(t, r)); err != nil || id.Name != accessKey {
					t.Errorf("aws presigned: %s %s %q: %q, %v", method, target, h, id.Name, err)
				}
				r = request(t, method, target, h...)
				r.Header.Set("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
				r = signer.SignV4(*r, accessKey, secretKey, "", "us-east-1")
				if id, err := v.Authenticate(arrive(t, r)); err != nil || id.Name != accessKey {
					t.Errorf("minio-go: %s %s %q: %q, %v", method, target, h, id.Name, err)
				}
			}
		}
	}
	for key, name := range map[string]string{"bob/team": "bob/team", "temporary": "carol"} {
		r := request(t, "GET", "/b/k")
		awsSign(t, r, key, emptyHash, now)
		if id, err := v.Authenticate(arrive(t, r)); err != nil || id.Name != name {
			t.Errorf("%s: %q, %v", key, id.Name, err)
		}
		r = awsPresign(t, request(t, "GET", "/b/k"), key, now, 60)
		if id, err := v.Authenticate(arrive(t, r)); err != nil || id.Name != name {
			t.Errorf("%s presigned: %q, %v", key, id.Name, err)
		}
	}
}

// TestSigV4KnownSignature is the example of the S3 API's documentation
// (sig-v4-header-based-auth, GET Object), also with what SDK signers leave out.
func TestSigV4KnownSignature(t *testing.T) {
	v := &nethttp.SigV4{
		Lookup: func(context.Context, string) (nethttp.Secret, error) {
			return nethttp.Secret{Key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}, nil
		},
		Now: func() time.Time { return time.Date(2013, 5, 24, 0, 5, 0, 0, time.UTC) },
	}
	r := request(t, "GET", "/test.txt", "Range", "bytes=0-9", "x-amz-content-sha256", emptyHash, "x-amz-date", "20130524T000000Z",
		"Authorization", "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"+
			"SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"+
			"Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41")
	r.Host = "examplebucket.s3.amazonaws.com"
	if id, err := v.Authenticate(arrive(t, r)); err != nil || id.Name != "AKIAIOSFODNN7EXAMPLE" {
		t.Errorf("%q, %v", id.Name, err)
	}
}

// TestSigV4Refuses: whatever is changed, missing or out of time.
func TestSigV4Refuses(t *testing.T) {
	now := time.Now()
	signed := func(change func(r *http.Request)) func(*testing.T) *http.Request {
		return func(t *testing.T) *http.Request {
			r := request(t, "PUT", "/b/k?partNumber=1", "x-amz-rdma-token", "shm:x", "x-amz-meta-a", "1")
			awsSign(t, r, accessKey, emptyHash, now)
			change(r)
			return r
		}
	}
	presigned := func(expires int, age time.Duration, change func(q url.Values, h http.Header)) func(*testing.T) *http.Request {
		return func(t *testing.T) *http.Request {
			r := awsPresign(t, request(t, "GET", "/b/k", "x-amz-meta-a", "1"), accessKey, now.Add(-age), expires)
			q := r.URL.Query()
			change(q, r.Header)
			r.URL.RawQuery = q.Encode()
			return r
		}
	}
	at := func(key string, when time.Time) func(*testing.T) *http.Request {
		return func(t *testing.T) *http.Request {
			r := request(t, "GET", "/b/k")
			awsSign(t, r, key, emptyHash, when)
			return r
		}
	}
	auth := func(value string) func(*testing.T) *http.Request {
		return signed(func(r *http.Request) { r.Header.Set("Authorization", value) })
	}
	replace := func(from, to string) func(*testing.T) *http.Request {
		return signed(func(r *http.Request) {
			a := r.Header.Get("Authorization")
			if !strings.Contains(a, from) {
				t.Errorf("nothing to replace: %q", from)
			}
			r.Header.Set("Authorization", strings.Replace(a, from, to, 1))
		})
	}
	nothing := func(url.Values, http.Header) {}
	for name, tt := range map[string]struct {
		request func(*testing.T) *http.Request
		status  int
		code    string
	}{
		"method":             {signed(func(r *http.Request) { r.Method = "GET" }), 403, "SignatureDoesNotMatch"},
		"path":               {signed(func(r *http.Request) { r.URL.Path = "/b/other" }), 403, "SignatureDoesNotMatch"},
		"query":              {signed(func(r *http.Request) { r.URL.RawQuery = "partNumber=2" }), 403, "SignatureDoesNotMatch"},
		"query added":        {signed(func(r *http.Request) { r.URL.RawQuery += "&a=1" }), 403, "SignatureDoesNotMatch"},
		"host":               {signed(func(r *http.Request) { r.Host = "other" }), 403, "SignatureDoesNotMatch"},
		"header changed":     {signed(func(r *http.Request) { r.Header.Set("x-amz-rdma-token", "shm:y") }), 403, "SignatureDoesNotMatch"},
		"header twice":       {signed(func(r *http.Request) { r.Header.Add("x-amz-rdma-token", "shm:y") }), 403, "SignatureDoesNotMatch"},
		"header gone":        {signed(func(r *http.Request) { r.Header.Del("x-amz-meta-a") }), 403, "SignatureDoesNotMatch"},
		"header added":       {signed(func(r *http.Request) { r.Header.Set("x-amz-meta-b", "1") }), 403, "AccessDenied"},
		"header unlisted":    {replace(";x-amz-rdma-token", ""), 403, "AccessDenied"},
		"host unlisted":      {replace("SignedHeaders=host;", "SignedHeaders="), 403, "AccessDenied"},
		"payload hash":       {signed(func(r *http.Request) { r.Header.Set("x-amz-content-sha256", "UNSIGNED-PAYLOAD") }), 403, "SignatureDoesNotMatch"},
		"payload hash gone":  {signed(func(r *http.Request) { r.Header.Del("x-amz-content-sha256") }), 400, "InvalidRequest"},
		"other key":          {replace("Credential=alice/", "Credential=bob/team/"), 403, "SignatureDoesNotMatch"},
		"unknown key":        {replace("Credential=alice/", "Credential=eve/"), 403, "InvalidAccessKeyId"},
		"key without secret": {at("broken", now), 403, "InvalidAccessKeyId"},
		"lookup fails":       {at("unsearched", now), 500, "InternalError"},
		"signature empty":    {replace("Signature=", "Signature=,x="), 400, "AuthorizationHeaderMalformed"},
		"signature cut": {signed(func(r *http.Request) {
			a := r.Header.Get("Authorization")
			r.Header.Set("Authorization", a[:len(a)-1])
		}), 403, "SignatureDoesNotMatch"},
		"signature longer": {signed(func(r *http.Request) { r.Header.Set("Authorization", r.Header.Get("Authorization")+"0") }), 403, "SignatureDoesNotMatch"},
		"anonymous":        {signed(func(r *http.Request) { r.Header.Del("Authorization") }), 403, "AccessDenied"},
		"version 2":        {auth("AWS alice:c2lnbmF0dXJl"), 400, "AuthorizationHeaderMalformed"},
		"bearer":           {auth("Bearer x"), 400, "AuthorizationHeaderMalformed"},
		"two headers":      {signed(func(r *http.Request) { r.Header.Add("Authorization", "Basic x") }), 400, "InvalidArgument"},
		"field twice":      {auth("AWS4-HMAC-SHA256 Credential=a/b/c/s3/aws4_request, Credential=a, SignedHeaders=host, Signature=1"), 400, "AuthorizationHeaderMalformed"},
		"short scope":      {auth("AWS4-HMAC-SHA256 Credential=alice/aws4_request, SignedHeaders=host, Signature=1"), 400, "AuthorizationHeaderMalformed"},
		"both":             {signed(func(r *http.Request) { r.URL.RawQuery += "&X-Amz-Signature=1" }), 400, "InvalidArgument"},
		"other service":    {replace("/s3/", "/sts/"), 400, "AuthorizationHeaderMalformed"},
		"other day": {signed(func(r *http.Request) {
			r.Header.Set("x-amz-date", now.Add(-24*time.Hour).UTC().Format("20060102T150405Z"))
		}), 400, "AuthorizationHeaderMalformed"},
		"no date": {signed(func(r *http.Request) { r.Header.Del("x-amz-date") }), 403, "AccessDenied"},
		"too old": {at(accessKey, now.Add(-16*time.Minute)), 403, "RequestTimeTooSkewed"},
		"too new": {at(accessKey, now.Add(16*time.Minute)), 403, "RequestTimeTooSkewed"},
		"token missing": {func(t *testing.T) *http.Request {
			r := at("temporary", now)(t)
			r.Header.Del("x-amz-security-token")
			return r
		}, 403, "InvalidToken"},
		"token wrong": {func(t *testing.T) *http.Request {
			r := at("temporary", now)(t)
			r.Header.Set("x-amz-security-token", "other")
			return r
		}, 403, "InvalidToken"},
		"token unwanted": {func(t *testing.T) *http.Request {
			r := request(t, "GET", "/b/k", "x-amz-security-token", "x")
			awsSign(t, r, accessKey, emptyHash, now)
			return r
		}, 403, "InvalidToken"},

		"presigned, expired":     {presigned(60, 61*time.Second, nothing), 403, "AccessDenied"},
		"presigned, from future": {presigned(60, -16*time.Minute, nothing), 403, "RequestTimeTooSkewed"},
		"presigned, longer":      {presigned(60, 61*time.Second, func(q url.Values, _ http.Header) { q.Set("X-Amz-Expires", "600") }), 403, "SignatureDoesNotMatch"},
		"presigned, a month":     {presigned(30*24*3600, 0, nothing), 400, "AuthorizationQueryParametersError"},
		"presigned, no time":     {presigned(0, 0, nothing), 400, "AuthorizationQueryParametersError"},
		"presigned, twice":       {presigned(60, 0, func(q url.Values, _ http.Header) { q.Add("X-Amz-Date", q.Get("X-Amz-Date")) }), 400, "AuthorizationQueryParametersError"},
		"presigned, no headers":  {presigned(60, 0, func(q url.Values, _ http.Header) { q.Del("X-Amz-SignedHeaders") }), 400, "AuthorizationQueryParametersError"},
		"presigned, descriptor added": {presigned(60, 0, func(_ url.Values, h http.Header) { h.Set("x-amz-rdma-token", "shm:x") }),
			403, "AccessDenied"},
		"presigned, descriptor listed": {presigned(60, 0, func(q url.Values, h http.Header) {
			h.Set("x-amz-rdma-token", "shm:x")
			q.Set("X-Amz-SignedHeaders", q.Get("X-Amz-SignedHeaders")+";x-amz-rdma-token")
		}), 403, "SignatureDoesNotMatch"},
	} {
		t.Run(name, func(t *testing.T) {
			v := newSigV4()
			v.Now = func() time.Time { return now }
			id, err := v.Authenticate(arrive(t, tt.request(t)))
			var e *plugin.Error
			if !errors.As(err, &e) || id.Name != "" {
				t.Fatalf("%q, %v; want an error", id.Name, err)
			}
			if e.Status != tt.status || e.Code != tt.code {
				t.Errorf("%d %s, want %d %s", e.Status, e.Code, tt.status, tt.code)
			}
			for _, secret := range []string{"shm:", "10.0.0.1", secretKey} {
				if strings.Contains(e.Error(), secret) {
					t.Errorf("the error shows %q", secret)
				}
			}
		})
	}
}

func TestSigV4Region(t *testing.T) {
	v := newSigV4()
	for region, ok := range map[string]bool{"": true, "us-east-1": true, "eu-west-1": false} {
		v.Region = region
		r := request(t, "GET", "/b/k")
		awsSign(t, r, accessKey, emptyHash, time.Now())
		if _, err := v.Authenticate(arrive(t, r)); (err == nil) != ok {
			t.Errorf("region %q: %v", region, err)
		}
	}
}

// TestSigV4SignedLength: NIXL signs content-length, also 0, which SDK signers cannot.
func TestSigV4SignedLength(t *testing.T) {
	r := request(t, "PUT", "/b/k", "x-amz-date", time.Now().UTC().Format("20060102T150405Z"), "x-amz-content-sha256", "UNSIGNED-PAYLOAD", "user-agent", "nixl")
	nethttp.SignForTest(r, accessKey, secretKey, "us-east-1", []string{"content-length", "host", "user-agent", "x-amz-content-sha256", "x-amz-date"})
	if _, err := newSigV4().Authenticate(arrive(t, r)); err != nil {
		t.Error(err)
	}
}

func FuzzSigV4(f *testing.F) {
	f.Add("AWS4-HMAC-SHA256 Credential=alice/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00", "", "20260101T000000Z")
	f.Add("", "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=alice%2F20260101%2Fr%2Fs3%2Faws4_request&X-Amz-Date=20260101T000000Z&X-Amz-Expires=1&X-Amz-SignedHeaders=host&X-Amz-Signature=00", "")
	// NIXL signs each header; SDKs presign with the headers in the query or beside it; a
	// token in the second list is signed by nobody.
	f.Add("AWS4-HMAC-SHA256 Credential=alice/20260101/us-east-1/s3/aws4_request, SignedHeaders=content-length;host;range;x-amz-content-sha256;x-amz-date;x-amz-rdma-token, Signature="+strings.Repeat("0", 64), "", "20260101T000000Z")
	f.Add("AWS4-HMAC-SHA256 Credential=alice/20260101/us-east-1/s3/aws4_request,SignedHeaders=host,SignedHeaders=x-amz-rdma-token,Signature=", "", "20260101T000000Z")
	f.Add("", "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=alice%2F20260101%2Fr%2Fs3%2Faws4_request&X-Amz-Date=20260101T000000Z&X-Amz-Expires=604801&X-Amz-SignedHeaders=host%3Bx-amz-rdma-token&X-Amz-Signature=00&x-amz-rdma-token=1", "")
	f.Add("AWS alice:c2ln", "", "")
	v := newSigV4()
	v.Now = func() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }
	f.Fuzz(func(t *testing.T, auth, query, date string) {
		r := &http.Request{Method: "PUT", Host: "h", URL: &url.URL{Path: "/b/k", RawQuery: query},
			Header: http.Header{"X-Amz-Content-Sha256": {"x"}, "X-Amz-Date": {date}}}
		if auth != "" {
			r.Header["Authorization"] = []string{auth}
		}
		if id, err := v.Authenticate(r); err == nil {
			t.Errorf("accepted as %q", id.Name)
		}
	})
}
