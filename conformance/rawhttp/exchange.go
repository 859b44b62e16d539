// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package rawhttp

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Exchange is a request and its answer in words, safe to print.
type Exchange struct{ Sent, Got string }

// confidential header fields: capabilities, keys and signatures.
var confidential = map[string]bool{
	"authorization":                             true,
	"x-amz-rdma-token":                          true,
	"x-rdma-info":                               true,
	"x-amz-rdma-session":                        true,
	"x-amz-security-token":                      true,
	"x-amz-server-side-encryption-customer-key": true,
	"x-amz-copy-source-server-side-encryption-customer-key": true,
}

// noise is left out: it tells nothing about a case.
var noise = map[string]bool{
	"user-agent": true, "x-amz-date": true, "date": true, "server": true, "vary": true,
	"strict-transport-security": true, "x-content-type-options": true, "x-xss-protection": true,
	"x-amz-id-2": true, "accept-ranges": true, "x-ratelimit-limit": true, "x-ratelimit-remaining": true,
}

// shownBody bounds how much of a response body a description quotes, in bytes.
const shownBody = 300

func describeRequest(req *http.Request, r Request) string {
	var b strings.Builder
	b.WriteString(r.Method + " " + req.URL.EscapedPath())
	if len(r.Query) > 0 {
		b.WriteString("?" + encodeQuery(r.Query))
	}
	switch {
	case r.Anonymous:
		b.WriteString(", anonymous")
	case r.Presign > 0:
		b.WriteString(", presigned")
	}
	switch {
	case r.Chunked:
		fmt.Fprintf(&b, ", chunked body of %d bytes", len(r.Body))
	case len(r.Body) > 0:
		fmt.Fprintf(&b, ", body of %d bytes", len(r.Body))
	}
	writeHeader(&b, req.Header, r.Unsigned)
	return b.String()
}

func describeResponse(r *Response, secrets []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s", r.Status, http.StatusText(r.Status))
	writeHeader(&b, r.Header, nil)
	if len(r.Body) > 0 {
		body := string(r.Body[:min(len(r.Body), shownBody)])
		for _, s := range secrets {
			body = strings.ReplaceAll(body, s, "(hidden)")
		}
		fmt.Fprintf(&b, ", body of %d bytes: %q", len(r.Body), body)
	}
	return b.String()
}

func writeHeader(b *strings.Builder, h, unsigned http.Header) {
	names := make([]string, 0, len(h))
	for name := range h {
		if !noise[strings.ToLower(name)] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		lower := strings.ToLower(name)
		value := strings.Join(h[name], ", ")
		if confidential[lower] || lower == "x-amz-rdma-reply" && len(value) > 3 {
			value = fmt.Sprintf("(%d characters, hidden)", len(value))
		}
		fmt.Fprintf(b, ", %s: %s", lower, value)
		for u := range unsigned {
			if strings.EqualFold(u, name) {
				b.WriteString(" (not signed)")
			}
		}
	}
}

// secretsOf returns the descriptors in r, to be kept out of what is printed.
func secretsOf(r Request) []string {
	var all []string
	for _, h := range []http.Header{r.Header, r.Unsigned} {
		for name, values := range h {
			if confidential[strings.ToLower(name)] {
				for _, v := range values {
					if v != "" {
						all = append(all, v)
					}
				}
			}
		}
	}
	return all
}
