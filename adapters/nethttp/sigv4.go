// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package nethttp

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/s3rdma/s3rdma/plugin"
)

const (
	algorithm         = "AWS4-HMAC-SHA256"
	dateFormat        = "20060102T150405Z"
	headerPayloadHash = "X-Amz-Content-Sha256"
	unsignedPayload   = "UNSIGNED-PAYLOAD"

	// maxExpires is the longest life of a presigned URL.
	maxExpires = 7 * 24 * 60 * 60

	// DefaultMaxSkew is what S3 allows a client's clock to differ.
	DefaultMaxSkew = 15 * time.Minute
)

// Secret is what an access key stands for.
type Secret struct {
	// Key is the secret access key.
	Key string
	// SessionToken is that of temporary credentials; a request must then bear it,
	// and otherwise must bear none.
	SessionToken string
	// Name is the identity's name; "" is the access key. Sessions belong to a name:
	// give temporary credentials of one user the same.
	Name string
}

// String shows nothing.
func (s Secret) String() string { return "secret(hidden)" }

// GoString is String, so that %#v leaks nothing either.
func (s Secret) GoString() string { return s.String() }

// ErrUnknownKey is what [SigV4].Lookup returns for an access key that does not
// exist.
var ErrUnknownKey = errors.New("unknown access key")

// SigV4 verifies AWS Signature Version 4, in the Authorization header and in the
// query (presigned), as the S3 API defines it:
// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-authenticating-requests.html
//
// It computes the canonical request from what arrived and does not re-sign with an
// SDK's signer, which cannot sign a Content-Length of 0 or a User-Agent; clients of
// this protocol sign both. It does not compare x-amz-content-sha256 with a body.
type SigV4 struct {
	// Lookup finds the secret of an access key. Errors: ErrUnknownKey is answered
	// with 403 InvalidAccessKeyId, any other with 500 InternalError, without its
	// text.
	Lookup func(ctx context.Context, accessKey string) (Secret, error)

	// Region is the only one that requests may be signed for; "" accepts any.
	Region string

	// MaxSkew is how much the clocks may differ; 0 is DefaultMaxSkew.
	MaxSkew time.Duration

	// Now tells the time; nil is time.Now.
	Now func() time.Time
}

// signature is what a request says about its signature.
type signature struct {
	presigned bool
	accessKey string
	scope     string // date/region/service/aws4_request
	day       string
	region    string
	service   string
	date      time.Time
	expires   time.Duration // presigned only
	headers   []string      // signed ones, lower-case
	value     string        // hex
	token     string        // of temporary credentials, or empty
	hash      string        // x-amz-content-sha256
}

// Authenticate implements [Authenticator]. All its errors are [*plugin.Error].
func (v *SigV4) Authenticate(r *http.Request) (plugin.Identity, error) {
	sig, query, err := parseSignature(r)
	if err != nil {
		return plugin.Identity{}, err
	}
	if err := v.checkScope(sig); err != nil {
		return plugin.Identity{}, err
	}
	if err := checkSignedHeaders(r, sig); err != nil {
		return plugin.Identity{}, err
	}
	secret, lookupErr := v.Lookup(r.Context(), sig.accessKey)
	switch {
	case errors.Is(lookupErr, ErrUnknownKey):
		return plugin.Identity{}, refuse(http.StatusForbidden, "InvalidAccessKeyId", "The access key does not exist.")
	case lookupErr != nil:
		return plugin.Identity{}, refuse(http.StatusInternalServerError, "InternalError", "The access key could not be looked up.")
	case secret.Key == "":
		// An empty key would be one that everybody knows.
		return plugin.Identity{}, refuse(http.StatusForbidden, "InvalidAccessKeyId", "The access key has no secret.")
	case subtle.ConstantTimeCompare([]byte(sig.token), []byte(secret.SessionToken)) != 1:
		return plugin.Identity{}, refuse(http.StatusForbidden, "InvalidToken", "The security token is missing or wrong.")
	}
	name := secret.Name
	if name == "" {
		name = sig.accessKey
	}
	// The standard encodes the path in one way. Signers that leave that to their
	// caller sign what is on the wire, which is the same path.
	for _, path := range []string{uriEncode(r.URL.Path, true), r.URL.EscapedPath()} {
		canonical, err := canonicalRequest(r, sig, path, query)
		if err != nil {
			return plugin.Identity{}, err
		}
		if subtle.ConstantTimeCompare([]byte(sign(secret.Key, sig, canonical)), []byte(sig.value)) == 1 {
			return plugin.Identity{Name: name}, nil
		}
	}
	return plugin.Identity{}, refuse(http.StatusForbidden, "SignatureDoesNotMatch",
		"The signature that the request bears is not the one computed here. Check the secret key and the signing method.")
}

// parseSignature reads the Authorization header or the query of a presigned URL.
func parseSignature(r *http.Request) (*signature, url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, nil, refuse(http.StatusBadRequest, "InvalidArgument", "The query cannot be parsed.")
	}
	auth := r.Header.Values("Authorization")
	_, presigned := query["X-Amz-Signature"]
	var sig *signature
	switch {
	case len(auth) > 1, len(auth) == 1 && presigned:
		return nil, nil, refuse(http.StatusBadRequest, "InvalidArgument", "Only one way of signing is allowed in a request.")
	case len(auth) == 1:
		sig, err = parseHeader(r, auth[0])
	case presigned:
		sig, err = parsePresigned(r, query)
	default:
		return nil, nil, refuse(http.StatusForbidden, "AccessDenied", "The request is anonymous. A memory descriptor needs a signature (AWS Signature Version 4).")
	}
	if err != nil {
		return nil, nil, err
	}
	return sig, query, nil
}

func parseHeader(r *http.Request, auth string) (*signature, error) {
	malformed := func(what string) (*signature, error) {
		return nil, refuse(http.StatusBadRequest, "AuthorizationHeaderMalformed", "The Authorization header is malformed: "+what+".")
	}
	rest, ok := strings.CutPrefix(auth, algorithm+" ")
	if !ok {
		return malformed("only " + algorithm + " is served")
	}
	fields := make(map[string]string, 3)
	for field := range strings.SplitSeq(rest, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(field), "=")
		if _, twice := fields[name]; !ok || twice {
			return malformed("want Credential, SignedHeaders and Signature, once each")
		}
		fields[name] = value
	}
	if len(fields) != 3 || fields["Credential"] == "" || fields["SignedHeaders"] == "" || fields["Signature"] == "" {
		return malformed("want Credential, SignedHeaders and Signature, once each")
	}
	sig := &signature{
		headers: strings.Split(fields["SignedHeaders"], ";"),
		value:   fields["Signature"],
		token:   r.Header.Get("x-amz-security-token"),
		hash:    r.Header.Get(headerPayloadHash),
	}
	if !sig.setCredential(fields["Credential"]) {
		return malformed("Credential is not KEY/DATE/REGION/SERVICE/aws4_request")
	}
	if sig.hash == "" {
		return nil, refuse(http.StatusBadRequest, "InvalidRequest", "The header x-amz-content-sha256 is missing.")
	}
	date, err := headerDate(r)
	if err != nil {
		return nil, refuse(http.StatusForbidden, "AccessDenied", "The request needs a valid x-amz-date or Date header.")
	}
	sig.date = date
	return sig, nil
}

// headerDate reads when a request was signed.
func headerDate(r *http.Request) (time.Time, error) {
	if s := r.Header.Get("x-amz-date"); s != "" {
		return time.Parse(dateFormat, s)
	}
	s := r.Header.Get("Date")
	if t, err := time.Parse(dateFormat, s); err == nil {
		return t, nil
	}
	return http.ParseTime(s)
}

func parsePresigned(r *http.Request, query url.Values) (*signature, error) {
	malformed := func(what string) (*signature, error) {
		return nil, refuse(http.StatusBadRequest, "AuthorizationQueryParametersError", what+".")
	}
	one := func(name string) (string, bool) {
		v := query[name]
		if len(v) != 1 {
			return "", false
		}
		return v[0], true
	}
	alg, ok1 := one("X-Amz-Algorithm")
	cred, ok2 := one("X-Amz-Credential")
	date, ok3 := one("X-Amz-Date")
	expires, ok4 := one("X-Amz-Expires")
	headers, ok5 := one("X-Amz-SignedHeaders")
	value, ok6 := one("X-Amz-Signature")
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || !ok6 {
		return malformed("X-Amz-Algorithm, -Credential, -Date, -Expires, -SignedHeaders and -Signature are needed, once each")
	}
	if alg != algorithm {
		return malformed("X-Amz-Algorithm is not " + algorithm)
	}
	sig := &signature{presigned: true, headers: strings.Split(headers, ";"), value: value, token: query.Get("X-Amz-Security-Token")}
	if !sig.setCredential(cred) {
		return malformed("X-Amz-Credential is not KEY/DATE/REGION/SERVICE/aws4_request")
	}
	var err error
	if sig.date, err = time.Parse(dateFormat, date); err != nil {
		return malformed("X-Amz-Date is not of the form YYYYMMDDTHHMMSSZ")
	}
	seconds, err := strconv.ParseUint(expires, 10, 32)
	if err != nil || seconds < 1 || seconds > maxExpires {
		return malformed(fmt.Sprintf("X-Amz-Expires is not 1 to %d", maxExpires))
	}
	sig.expires = time.Duration(seconds) * time.Second
	// A presigned URL's payload is not hashed, unless it says otherwise.
	switch {
	case query.Get("X-Amz-Content-Sha256") != "":
		sig.hash = query.Get("X-Amz-Content-Sha256")
	case r.Header.Get(headerPayloadHash) != "":
		sig.hash = r.Header.Get(headerPayloadHash)
	default:
		sig.hash = unsignedPayload
	}
	return sig, nil
}

// setCredential reads KEY/DATE/REGION/SERVICE/aws4_request. The key may have
// slashes.
func (s *signature) setCredential(cred string) bool {
	parts := strings.Split(cred, "/")
	if len(parts) < 5 || parts[len(parts)-1] != "aws4_request" {
		return false
	}
	n := len(parts) - 4
	s.accessKey = strings.Join(parts[:n], "/")
	s.day, s.region, s.service = parts[n], parts[n+1], parts[n+2]
	s.scope = strings.Join(parts[n:], "/")
	return s.accessKey != ""
}

// checkScope holds date, region and service against what is served here and now.
func (v *SigV4) checkScope(s *signature) error {
	now := time.Now()
	if v.Now != nil {
		now = v.Now()
	}
	skew := v.MaxSkew
	if skew == 0 {
		skew = DefaultMaxSkew
	}
	malformed := "AuthorizationHeaderMalformed"
	if s.presigned {
		malformed = "AuthorizationQueryParametersError"
	}
	switch {
	case s.service != "s3":
		return refuse(http.StatusBadRequest, malformed, "The credential's service is not s3.")
	case v.Region != "" && s.region != v.Region:
		return refuse(http.StatusBadRequest, malformed, fmt.Sprintf("The credential's region is not %s.", v.Region))
	case s.day != s.date.UTC().Format("20060102"):
		return refuse(http.StatusBadRequest, malformed, "The credential's date is not that of the request.")
	case s.date.Sub(now) > skew, !s.presigned && now.Sub(s.date) > skew:
		return refuse(http.StatusForbidden, "RequestTimeTooSkewed", "The request's time differs too much from the server's.")
	case s.presigned && !now.Before(s.date.Add(s.expires)):
		return refuse(http.StatusForbidden, "AccessDenied", "The presigned URL has expired.")
	}
	return nil
}

// checkSignedHeaders wants host and every x-amz-* header to be signed, as S3 does:
// one that is not could have been added by anybody on the way.
func checkSignedHeaders(r *http.Request, s *signature) error {
	if !slices.Contains(s.headers, "host") {
		return refuse(http.StatusForbidden, "AccessDenied", "The header host must be signed.")
	}
	for name := range r.Header {
		l := strings.ToLower(name)
		if !strings.HasPrefix(l, "x-amz-") || slices.Contains(s.headers, l) {
			continue
		}
		return refuse(http.StatusForbidden, "AccessDenied", "There are x-amz-* headers that are not signed, "+l+" for one.")
	}
	return nil
}

// canonicalRequest is the text that is signed; path is encoded.
func canonicalRequest(r *http.Request, s *signature, path string, query url.Values) (string, error) {
	var b strings.Builder
	b.WriteString(r.Method)
	b.WriteByte('\n')
	b.WriteString(path)
	b.WriteByte('\n')
	b.WriteString(canonicalQuery(query))
	b.WriteByte('\n')
	for _, name := range s.headers {
		values, ok := headerValues(r, name)
		if !ok {
			return "", refuse(http.StatusForbidden, "SignatureDoesNotMatch", "A signed header is missing.")
		}
		b.WriteString(name)
		b.WriteByte(':')
		for i, v := range values {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(strings.Join(strings.FieldsFunc(v, func(c rune) bool { return c == ' ' || c == '\t' }), " "))
		}
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	b.WriteString(strings.Join(s.headers, ";"))
	b.WriteByte('\n')
	b.WriteString(s.hash)
	return b.String(), nil
}

// headerValues finds a header, also one that net/http keeps elsewhere. name is
// lower-case.
func headerValues(r *http.Request, name string) ([]string, bool) {
	switch name {
	case "host":
		return []string{r.Host}, true
	case "content-length":
		return []string{strconv.FormatInt(r.ContentLength, 10)}, r.ContentLength >= 0
	case "transfer-encoding":
		return r.TransferEncoding, len(r.TransferEncoding) > 0
	}
	values, ok := r.Header[textproto.CanonicalMIMEHeaderKey(name)]
	return values, ok && name == strings.ToLower(name)
}

// canonicalQuery sorts the encoded parameters, without the signature itself.
func canonicalQuery(query url.Values) string {
	var pairs [][2]string
	for name, values := range query {
		if name == "X-Amz-Signature" {
			continue
		}
		for _, v := range values {
			pairs = append(pairs, [2]string{uriEncode(name, false), uriEncode(v, false)})
		}
	}
	slices.SortFunc(pairs, func(a, b [2]string) int {
		if c := strings.Compare(a[0], b[0]); c != 0 {
			return c
		}
		return strings.Compare(a[1], b[1])
	})
	var b strings.Builder
	for i, p := range pairs {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(p[0])
		b.WriteByte('=')
		b.WriteString(p[1])
	}
	return b.String()
}

// uriEncode encodes all bytes but the unreserved characters of RFC 3986, and but the
// slash in a path.
func uriEncode(s string, path bool) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9',
			c == '-', c == '.', c == '_', c == '~', c == '/' && path:
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		}
	}
	return b.String()
}

// sign computes the signature of a canonical request, in hex.
func sign(secret string, s *signature, canonical string) string {
	hash := sha256.Sum256([]byte(canonical))
	text := algorithm + "\n" + s.date.UTC().Format(dateFormat) + "\n" + s.scope + "\n" + hex.EncodeToString(hash[:])
	key := []byte("AWS4" + secret)
	for _, part := range []string{s.day, s.region, s.service, "aws4_request", text} {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	return hex.EncodeToString(key)
}

func refuse(status int, code, message string) error {
	return &plugin.Error{Status: status, Code: code, Message: message}
}
