// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

// putRDMA sends a PUT that names w, and returns the answer whatever it is.
func (e *Env) putRDMA(ctx context.Context, key string, w *window, h http.Header) *rawhttp.Response {
	return e.do(ctx, e.withToken("PUT", key, w.token(), h))
}

// getRDMA sends a GET that names w, and returns the answer whatever it is.
func (e *Env) getRDMA(ctx context.Context, key string, w *window, h http.Header) *rawhttp.Response {
	return e.do(ctx, e.withToken("GET", key, w.token(), h))
}

// withToken makes an object request with a signed descriptor.
func (e *Env) withToken(method, key, token string, h http.Header) rawhttp.Request {
	header := http.Header{headerToken: {token}}
	for name, values := range h {
		header[name] = values
	}
	return rawhttp.Request{Method: method, Bucket: e.bucket(), Key: key, Header: header}
}

// mismatch collects what is wrong with one answer.
type mismatch struct {
	resp  *rawhttp.Response
	wrong []string
}

func (m *mismatch) addf(format string, args ...any) {
	m.wrong = append(m.wrong, fmt.Sprintf(format, args...))
}

func (m *mismatch) status(want int) {
	if m.resp.Status != want {
		s := fmt.Sprintf("HTTP %d, want %d", m.resp.Status, want)
		if code := m.resp.Error().Code; code != "" {
			s += fmt.Sprintf(" (the answer's code is %s)", code)
		}
		m.wrong = append(m.wrong, s)
	}
}

// header checks one field; want "" means that it must be absent.
func (m *mismatch) header(name, want string) {
	got, present := m.resp.Header[http.CanonicalHeaderKey(name)]
	lower := strings.ToLower(name)
	switch {
	case want == "" && present:
		m.addf("%s is %q, want none", lower, got)
	case want != "" && !present:
		m.addf("no %s, want %s", lower, want)
	case want != "" && (len(got) != 1 || got[0] != want):
		m.addf("%s is %q, want %q", lower, got, want)
	}
}

func (m *mismatch) emptyBody() {
	if m.resp.Length != 0 {
		m.addf("content-length is %d, want 0", m.resp.Length)
	}
	if len(m.resp.Body) != 0 {
		m.addf("a body of %d bytes, want none", len(m.resp.Body))
	}
}

func (e *Env) report(what string, m mismatch) {
	if len(m.wrong) > 0 {
		e.failf("%s: %s", what, strings.Join(m.wrong, "; "))
	}
}

// want checks an ordinary status.
func (e *Env) want(resp *rawhttp.Response, statuses ...int) {
	if !slices.Contains(statuses, resp.Status) {
		e.failf("HTTP %d %s, want %s", resp.Status, resp.Error().Code, list(statuses))
	}
}

func list(statuses []int) string {
	words := make([]string, len(statuses))
	for i, s := range statuses {
		words[i] = itoa(s)
	}
	return strings.Join(words, " or ")
}

// wantPut checks the success of a PUT or UploadPart of n bytes over the fabric.
func (e *Env) wantPut(resp *rawhttp.Response, n int) {
	m := mismatch{resp: resp}
	m.status(200)
	m.header(headerReply, "200")
	m.header(headerBytes, itoa(n))
	if strings.Trim(resp.Header.Get("Etag"), `"`) == "" {
		m.addf("no etag")
	}
	m.emptyBody()
	e.report("a PUT over the fabric is no success", m)
}

// wantGet checks the success of a GET of a whole object over the fabric.
func (e *Env) wantGet(resp *rawhttp.Response, n int) {
	m := mismatch{resp: resp}
	m.status(200)
	m.header(headerReply, "200")
	m.header(headerBytes, itoa(n))
	m.emptyBody()
	e.report("a GET over the fabric is no success", m)
}

// wantPartial checks the success of a GET of bytes first to last of total.
func (e *Env) wantPartial(resp *rawhttp.Response, first, last, total int) {
	m := mismatch{resp: resp}
	m.status(206)
	m.header(headerReply, "206")
	m.header(headerBytes, itoa(last-first+1))
	m.header("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, total))
	m.emptyBody()
	e.report("a ranged GET over the fabric is no success", m)
}

// wantDeclined checks "not able or not willing": the client is to use HTTP.
func (e *Env) wantDeclined(resp *rawhttp.Response) {
	m := mismatch{resp: resp}
	m.status(501)
	m.header(headerReply, "501")
	m.header("Etag", "")
	e.report("no proper decline", m)
}

// wantRefused checks an error that says nothing about RDMA: a client must not take
// it for an offer to try HTTP, nor for a success.
func (e *Env) wantRefused(resp *rawhttp.Response, statuses ...int) {
	m := mismatch{resp: resp}
	if !slices.Contains(statuses, resp.Status) {
		m.addf("HTTP %d %s, want %s", resp.Status, resp.Error().Code, list(statuses))
	}
	m.header(headerReply, "")
	m.header(headerBytes, "")
	if resp.Status >= 400 && resp.Status != 412 && resp.Method == "PUT" {
		m.header("Etag", "") // clients look for it; only a failed condition may name what is there
	}
	e.report("not refused as it must be", m)
}

// wantMalformed checks the answer to a descriptor that is none.
func (e *Env) wantMalformed(resp *rawhttp.Response) {
	e.wantRefused(resp, 400)
	if code := resp.Error().Code; code != "InvalidRDMAToken" {
		e.failf("the error code is %q, want InvalidRDMAToken", code)
	}
}

// wantFailed checks the answer to a transfer that could not be done.
func (e *Env) wantFailed(resp *rawhttp.Response) {
	e.wantRefused(resp, 500)
	if code := resp.Error().Code; code != "RDMATransferFailed" {
		e.failf("the error code is %q, want RDMATransferFailed", code)
	}
}

// wantClientError checks for any 4xx without RDMA headers.
func (e *Env) wantClientError(resp *rawhttp.Response) {
	if resp.Status < 400 || resp.Status > 499 {
		e.failf("HTTP %d %s, want a 4xx", resp.Status, resp.Error().Code)
	}
	e.wantRefused(resp, resp.Status)
}

// stored puts data by HTTP under a new key and returns the key.
func (e *Env) stored(ctx context.Context, name string, data []byte) string {
	key := e.key(name)
	e.putHTTP(ctx, key, data, nil)
	return key
}

// query makes a query from pairs.
func query(pairs ...string) url.Values {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	return q
}
