// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package nethttp

import (
	"fmt"
	"net/http"
	"strings"
)

// SignForTest signs exactly these headers.
func SignForTest(r *http.Request, accessKey, secretKey, region string, headers []string) {
	date := r.Header.Get("x-amz-date")
	scope := fmt.Sprintf("%s/%s/s3/aws4_request", date[:8], region)
	s := &signature{headers: headers, hash: r.Header.Get(headerPayloadHash)}
	if !s.setCredential(accessKey + "/" + scope) {
		panic("bad credential")
	}
	s.date, _ = headerDate(r)
	text, err := canonicalRequest(r, s, r.URL.Path, r.URL.Query())
	if err != nil {
		panic(err)
	}
	r.Header.Set("Authorization", fmt.Sprintf("%s Credential=%s/%s, SignedHeaders=%s, Signature=%s",
		algorithm, accessKey, scope, strings.Join(headers, ";"), sign(secretKey, s, text)))
}
