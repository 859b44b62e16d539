// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package rawhttp

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Payload hashes with a meaning of their own.
const (
	// UnsignedPayload leaves the body out of the signature.
	UnsignedPayload = "UNSIGNED-PAYLOAD"
	// EmptySHA256 is the SHA-256 of no bytes, in hex.
	EmptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

const (
	algorithm = "AWS4-HMAC-SHA256"
	timeForm  = "20060102T150405Z"
	dateForm  = "20060102"
)

// Credentials sign requests.
type Credentials struct {
	AccessKey, SecretKey string
	// SessionToken comes with temporary credentials.
	SessionToken string
}

// GoString and String show the access key only.
func (c Credentials) String() string   { return "credentials of " + c.AccessKey }
func (c Credentials) GoString() string { return c.String() }

// signer signs one request. See "Signature Calculations for the Authorization
// Header: Transferring Payload in a Single Chunk" and "Authenticating Requests:
// Using Query Parameters" in the S3 API reference.
type signer struct {
	creds           Credentials
	region, service string
	now             time.Time
}

func (s signer) scope() string {
	return strings.Join([]string{s.now.Format(dateForm), s.region, s.service, "aws4_request"}, "/")
}

// header signs req over the host and all its present header fields, plus
// content-length if signLength, and adds the Authorization header.
func (s signer) header(req *http.Request, payloadHash string, signLength bool) {
	req.Header.Set("X-Amz-Date", s.now.Format(timeForm))
	if s.creds.SessionToken != "" {
		req.Header.Set("X-Amz-Security-Token", s.creds.SessionToken)
	}
	names, canonical := canonicalHeaders(req, signLength)
	signature := s.sign(req, req.URL.Query(), names, canonical, payloadHash)
	req.Header.Set("Authorization", algorithm+" Credential="+s.creds.AccessKey+"/"+s.scope()+
		", SignedHeaders="+names+", Signature="+signature)
}

// query signs req in its query, for the given time of validity.
func (s signer) query(req *http.Request, payloadHash string, validity time.Duration) {
	names, canonical := canonicalHeaders(req, false)
	q := req.URL.Query()
	q.Set("X-Amz-Algorithm", algorithm)
	q.Set("X-Amz-Credential", s.creds.AccessKey+"/"+s.scope())
	q.Set("X-Amz-Date", s.now.Format(timeForm))
	q.Set("X-Amz-Expires", strconv.Itoa(int(validity.Seconds())))
	q.Set("X-Amz-SignedHeaders", names)
	if s.creds.SessionToken != "" {
		q.Set("X-Amz-Security-Token", s.creds.SessionToken)
	}
	q.Set("X-Amz-Signature", s.sign(req, q, names, canonical, payloadHash))
	req.URL.RawQuery = encodeQuery(q)
}

func (s signer) sign(req *http.Request, q url.Values, names, headers, payloadHash string) string {
	canonical := strings.Join([]string{req.Method, req.URL.EscapedPath(), encodeQuery(q), headers, names, payloadHash}, "\n")
	sum := sha256.Sum256([]byte(canonical))
	text := strings.Join([]string{algorithm, s.now.Format(timeForm), s.scope(), hex.EncodeToString(sum[:])}, "\n")
	key := mac([]byte("AWS4"+s.creds.SecretKey), s.now.Format(dateForm))
	for _, part := range []string{s.region, s.service, "aws4_request"} {
		key = mac(key, part)
	}
	return hex.EncodeToString(mac(key, text))
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// canonicalHeaders returns the list of names and the block of lines.
func canonicalHeaders(req *http.Request, signLength bool) (names, block string) {
	lines := map[string]string{"host": req.URL.Host}
	if req.Host != "" {
		lines["host"] = req.Host
	}
	for name, values := range req.Header {
		trimmed := make([]string, len(values))
		for i, v := range values {
			trimmed[i] = strings.Join(strings.Fields(v), " ")
		}
		lines[strings.ToLower(name)] = strings.Join(trimmed, ",")
	}
	if signLength {
		lines["content-length"] = strconv.FormatInt(max(req.ContentLength, 0), 10)
	}
	sorted := make([]string, 0, len(lines))
	for name := range lines {
		sorted = append(sorted, name)
	}
	slices.Sort(sorted)
	var b strings.Builder
	for _, name := range sorted {
		b.WriteString(name + ":" + lines[name] + "\n")
	}
	return strings.Join(sorted, ";"), b.String()
}

// encodeQuery encodes as S3 wants it: sorted, and a space as %20.
func encodeQuery(q url.Values) string {
	return strings.ReplaceAll(q.Encode(), "+", "%20")
}

// EscapePath encodes a bucket or key for a request path: everything but the
// unreserved characters of RFC 3986 and the slash.
func EscapePath(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~/", c) >= 0 {
			b.WriteByte(c)
			continue
		}
		const digits = "0123456789ABCDEF"
		b.WriteByte('%')
		b.WriteByte(digits[c>>4])
		b.WriteByte(digits[c&15])
	}
	return b.String()
}
