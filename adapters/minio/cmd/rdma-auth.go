// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

//go:build s3rdma

package cmd

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/s3rdma/s3rdma/plugin"

	"github.com/minio/minio/internal/auth"
	xhttp "github.com/minio/minio/internal/http"
)

// Authenticate implements plugin.Server with MinIO's own verification of
// Signature Version 4, in the header or presigned. Everything else is refused:
// anonymous requests and Signature Version 2 do not cover the descriptor.
func (rdmaServer) Authenticate(r *http.Request) (plugin.Identity, error) {
	kind := getRequestAuthType(r)
	if !rdmaIsSigV4(kind) {
		return plugin.Identity{}, rdmaError(ErrAccessDenied)
	}
	// MinIO checks this for S3 paths; the session endpoints are none.
	if hasMultipleAuth(r) {
		return plugin.Identity{}, rdmaError(ErrInvalidRequest)
	}
	region := globalSite.Region()
	if code := rdmaVerify(r, region); code != ErrNone {
		return plugin.Identity{}, rdmaError(code)
	}
	cred, _, code := getReqAccessKeyV4(r, region, serviceS3)
	if code != ErrNone {
		return plugin.Identity{}, rdmaError(code)
	}
	rdmaCallOf(r).cred = cred
	return plugin.Identity{Name: rdmaIdentity(cred)}, nil
}

// rdmaIdentity is who owns sessions and has a share of staging. Temporary
// credentials change every hour and stand for the user behind them; service
// accounts stand for themselves.
func rdmaIdentity(cred auth.Credentials) string {
	if cred.IsTemp() && !cred.IsServiceAccount() && cred.ParentUser != "" {
		return cred.ParentUser
	}
	return cred.AccessKey
}

// rdmaIsSigV4 tells whether requests of this kind bear a Signature Version 4 over
// their header. (Those with aws-chunked bodies do; that the body is wrong is for
// the plugin to say.)
func rdmaIsSigV4(kind authType) bool {
	switch kind {
	case authTypeSigned, authTypePresigned,
		authTypeStreamingSigned, authTypeStreamingSignedTrailer, authTypeStreamingUnsignedTrailer:
		return true
	}
	return false
}

// rdmaVerify verifies the signature of r without changing r.
func rdmaVerify(r *http.Request, region string) APIErrorCode {
	c := *r
	c.Header = r.Header.Clone() // the presigned form gets a header added
	return reqSignatureV4Verify(&c, region, serviceS3)
}

// rdmaError is MinIO's error as the plugin passes it on.
func rdmaError(code APIErrorCode) *plugin.Error {
	e := errorCodes.ToAPIErr(code)
	return &plugin.Error{Status: e.HTTPStatusCode, Code: e.Code, Message: e.Description}
}

// rdmaStrip returns r without RDMA headers, for a call on which they have no
// effect. False means that the signature covers them and is wrong.
func rdmaStrip(r *http.Request) (*http.Request, bool) {
	kind := getRequestAuthType(r)
	c := *r
	rdmaStripHeaders(&c)
	if !rdmaIsSigV4(kind) || !slices.ContainsFunc(rdmaSignedNames(r), rdmaIsSignedName) {
		return &c, true
	}
	// Any region: MinIO's handler holds the scope, which stays, against its own.
	if rdmaVerify(r, "") != ErrNone || rdmaResign(&c) != nil {
		return nil, false
	}
	return &c, true
}

// rdmaStripHeaders gives r a header map of its own, without RDMA headers.
func rdmaStripHeaders(r *http.Request) {
	h := r.Header.Clone()
	for name := range h {
		if plugin.IsControlHeader(name) {
			delete(h, name)
		}
	}
	r.Header = h
}

func rdmaIsSignedName(name string) bool { return plugin.IsControlHeader(http.CanonicalHeaderKey(name)) }

// rdmaSignedNames is the list of signed headers in r, nil if there is none.
func rdmaSignedNames(r *http.Request) []string {
	if isRequestSignatureV4(r) {
		v, _ := parseSignV4(r.Header.Get(xhttp.Authorization), "", serviceS3)
		return v.SignedHeaders
	}
	v, _ := parsePreSignV4(r.Form, "", serviceS3)
	return v.SignedHeaders
}

// rdmaResign signs r anew after headers were taken away or changed, with the key,
// the scope and the dates of the signature it has. The caller has verified that
// one on the untouched request. It changes r.Header, r.Form, r.URL, which must be
// r's own or be replaced here.
func rdmaResign(r *http.Request) error {
	if isRequestSignatureV4(r) {
		return rdmaResignHeader(r)
	}
	return rdmaResignQuery(r)
}

func rdmaResignHeader(r *http.Request) error {
	v, code := parseSignV4(r.Header.Get(xhttp.Authorization), "", serviceS3)
	if code != ErrNone {
		return rdmaError(code)
	}
	date := r.Header.Get(xhttp.AmzDate)
	if date == "" {
		date = r.Header.Get(xhttp.Date)
	}
	t, err := time.Parse(iso8601Format, date)
	if err != nil {
		return rdmaError(ErrMalformedDate)
	}
	signed := slices.DeleteFunc(v.SignedHeaders, rdmaIsSignedName)
	signature, code := rdmaSignature(r, v.Credential, signed, t, r.Form)
	if code != ErrNone {
		return rdmaError(code)
	}
	r.Header.Set(xhttp.Authorization, fmt.Sprintf("%s Credential=%s/%s, SignedHeaders=%s, Signature=%s",
		signV4Algorithm, v.Credential.accessKey, v.Credential.getScope(), strings.Join(signed, ";"), signature))
	return nil
}

func rdmaResignQuery(r *http.Request) error {
	v, code := parsePreSignV4(r.Form, "", serviceS3)
	if code != ErrNone {
		return rdmaError(code)
	}
	signed := slices.DeleteFunc(v.SignedHeaders, rdmaIsSignedName)
	query := rdmaCloneValues(r.Form)
	query.Set(xhttp.AmzSignedHeaders, strings.Join(signed, ";"))
	query.Del(xhttp.AmzSignature)
	r.Form = query
	signature, code := rdmaSignature(r, v.Credential, signed, v.Date, query)
	if code != ErrNone {
		return rdmaError(code)
	}
	query.Set(xhttp.AmzSignature, signature)
	u := *r.URL
	u.RawQuery = query.Encode()
	r.URL = &u
	r.RequestURI = u.RequestURI()
	return nil
}

// rdmaSignature computes what MinIO's verification will compute.
func rdmaSignature(r *http.Request, c credentialHeader, signed []string, t time.Time, query url.Values) (string, APIErrorCode) {
	cred, _, code := checkKeyValid(r, c.accessKey)
	if code != ErrNone {
		return "", code
	}
	headers, code := extractSignedHeaders(signed, r)
	if code != ErrNone {
		return "", code
	}
	canonical := getCanonicalRequest(headers, getContentSha256Cksum(r, serviceS3), query.Encode(), r.URL.Path, r.Method)
	key := getSigningKey(cred.SecretKey, c.scope.date, c.scope.region, serviceS3)
	return getSignature(key, getStringToSign(canonical, t, c.getScope())), ErrNone
}

func rdmaCloneValues(v url.Values) url.Values {
	c := make(url.Values, len(v))
	for name, values := range v {
		c[name] = slices.Clone(values)
	}
	return c
}
