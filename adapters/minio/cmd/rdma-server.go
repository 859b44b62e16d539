// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

//go:build s3rdma

package cmd

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/minio/mux"

	"github.com/s3rdma/s3rdma/plugin"

	"github.com/minio/minio/internal/crypto"
	"github.com/minio/minio/internal/hash"
	xhttp "github.com/minio/minio/internal/http"
	"github.com/minio/minio/internal/mcontext"
)

// rdmaServer is MinIO as the plugin sees it. Its methods get requests from
// rdmaBegin.
type rdmaServer struct{}

var (
	_ plugin.Server           = rdmaServer{}
	_ plugin.ChecksumVerifier = rdmaServer{}
	_ plugin.Retargeter       = rdmaServer{}
)

// VerifiesChecksums implements plugin.ChecksumVerifier: MinIO compares
// x-amz-checksum-* and Content-MD5 with what it reads, before it stores.
func (rdmaServer) VerifiesChecksums() bool { return true }

// Classify implements plugin.Server.
func (rdmaServer) Classify(r *http.Request) plugin.Op { return rdmaClassify(r) }

// rdmaClassify goes by the route that matched: GetObject and PutObject are those
// of an object without queries, whatever other parameters the URL has.
func rdmaClassify(r *http.Request) plugin.Op {
	route, vars := mux.CurrentRoute(r), mux.Vars(r)
	if route == nil || vars["object"] == "" {
		return plugin.OpOther
	}
	queries, _ := route.GetQueriesTemplates()
	_, part := vars["uploadId"]
	switch {
	case r.Method == http.MethodGet && len(queries) == 0:
		return plugin.OpGetObject
	case r.Method != http.MethodPut:
		return plugin.OpOther
	case len(r.Header.Values(xhttp.AmzCopySource)) > 0:
		return plugin.OpOther
	case part:
		return plugin.OpUploadPart
	case len(queries) > 0:
		return plugin.OpOther
	case len(r.Header.Values(xhttp.AmzSnowballExtract)) > 0, len(r.Header.Values(xhttp.AmzWriteOffsetBytes)) > 0:
		return plugin.OpUnsupportedWrite
	}
	return plugin.OpPutObject
}

// rdmaAPIName is MinIO's name of op in traces, audit and statistics.
func rdmaAPIName(op plugin.Op) string {
	switch op {
	case plugin.OpGetObject:
		return "GetObject"
	case plugin.OpUploadPart:
		return "PutObjectPart"
	}
	return "PutObject"
}

// WriteError implements plugin.Server. The request appears in traces, audit and
// statistics under the name that it would have had.
func (rdmaServer) WriteError(w http.ResponseWriter, r *http.Request, e *plugin.Error) {
	call := rdmaCallOf(r)
	write := func(w http.ResponseWriter, outer *http.Request) {
		resp := getAPIErrorResponse(outer.Context(), APIError{Code: e.Code, Description: e.Message, HTTPStatusCode: e.Status},
			outer.URL.Path, w.Header().Get(xhttp.AmzRequestID), w.Header().Get(xhttp.AmzRequestHostID))
		writeResponse(w, e.Status, encodeResponse(resp), mimeXML)
	}
	if tc, ok := r.Context().Value(mcontext.ContextTraceKey).(*mcontext.TraceCtxt); ok {
		tc.FuncName = "s3." + call.api
		tc.ResponseRecorder.LogErrBody = true
	}
	switch {
	case plugin.IsSessionPath(r.URL.Path):
		write(w, call.outer) // rdmaSessionMiddleware counts and audits
	case call.status == 0:
		collectAPIStats(call.api, write)(w, call.outer)
		call.audit(w)
	case call.status < http.StatusBadRequest:
		// MinIO's handler had succeeded, and was audited and counted so.
		write(w, call.outer)
		call.audit(w)
	default:
		write(w, call.outer)
	}
}

// rdmaDiverted is what Divert tells rdmaInner.
type rdmaDiverted struct {
	handler http.HandlerFunc
	body    io.ReadCloser // nil for a GET

	// What the object layer needs of the request, when its handler runs.
	header  http.Header
	trailer http.Header // of a PUT: there when its body has been read
	reader  io.Reader   // of a PUT: what the handler reads
	moved   bool        // the object layer was asked for the bytes
}

// MinIO's handlers for diverted requests. They are its own but for gzip, as an
// answer whose body is collected must not be compressed, and for the object layer,
// which moves bytes past the handler where it can.
var (
	rdmaObjectAPI     = objectAPIHandlers{ObjectAPI: newRDMALayer}
	rdmaHeadObject    = s3APIMiddleware(rdmaObjectAPI.HeadObjectHandler, traceHdrsS3HFlag, noGZS3HFlag)
	rdmaGetObject     = s3APIMiddleware(rdmaObjectAPI.GetObjectHandler, traceHdrsS3HFlag, noGZS3HFlag)
	rdmaPutObject     = s3APIMiddleware(rdmaObjectAPI.PutObjectHandler, traceHdrsS3HFlag, noGZS3HFlag)
	rdmaPutObjectPart = s3APIMiddleware(rdmaObjectAPI.PutObjectPartHandler, traceHdrsS3HFlag, noGZS3HFlag)
)

// Divert implements plugin.Server: the request without RDMA headers, signed anew
// with the same key, scope and date, so that MinIO's handler authenticates and
// authorizes it as it would any other.
func (rdmaServer) Divert(r *http.Request, _ plugin.Identity, body io.ReadCloser, size int64) (*http.Request, error) {
	d := &rdmaDiverted{body: body}
	switch op := rdmaClassify(r); op {
	case plugin.OpGetObject:
		d.handler = rdmaGetObject
	case plugin.OpPutObject:
		d.handler = rdmaPutObject
	case plugin.OpUploadPart:
		d.handler = rdmaPutObjectPart
	default:
		return nil, fmt.Errorf("%s has no diverted form", op)
	}
	inner := r.WithContext(context.WithValue(r.Context(), rdmaDivertKey, d))
	rdmaStripHeaders(inner)
	rdmaSetBody(inner, body, size)
	if err := rdmaResign(inner); err != nil {
		return nil, err
	}
	return inner, nil
}

// rdmaSetBody gives a diverted request its body, if it has one.
func rdmaSetBody(inner *http.Request, body io.ReadCloser, size int64) {
	if body != nil {
		inner.Body = body
		inner.ContentLength = size
		if name := rdmaNamedChecksum(inner.Header); name != "" {
			// As an SDK does that sends the checksum behind the bytes: MinIO keeps it with
			// the object, and puts it into the answer.
			inner.Header.Set(xhttp.AmzTrailer, name)
			inner.Trailer = http.Header{name: nil}
		}
		// The client has signed the hash of its empty HTTP body, which says
		// nothing about the object. A hash of the object itself stays, and is
		// verified.
		if inner.Header.Get(xhttp.AmzContentSha256) == emptySHA256 {
			inner.Header.Set(xhttp.AmzContentSha256, unsignedPayload)
		}
		if inner.Form.Get(xhttp.AmzContentSha256) == emptySHA256 {
			inner.Form = rdmaCloneValues(inner.Form)
			inner.Form.Set(xhttp.AmzContentSha256, unsignedPayload)
		}
	}
}

// Retarget implements plugin.Retargeter: a request of the same key, scope and date as r,
// which is not presigned, for another resource. No router and no middleware sees it, so
// what they keep from handlers is refused here.
func (rdmaServer) Retarget(r *http.Request, _ plugin.Identity, method string, t plugin.Target, header http.Header, body io.ReadCloser, size int64) (*http.Request, error) {
	path := SlashSeparator + t.Bucket + SlashSeparator + t.Key
	switch {
	case !isRequestSignatureV4(r):
		return nil, rdmaError(ErrAccessDenied)
	case isMinioReservedBucket(t.Bucket), isMinioMetaBucketName(t.Bucket):
		return nil, rdmaError(ErrAllAccessDisabled)
	case isReservedOrInvalidBucket(t.Bucket, true):
		return nil, rdmaError(ErrInvalidBucketName)
	case hasBadPathComponent(path),
		slices.ContainsFunc(slices.Collect(maps.Values(t.Query)), func(v []string) bool { return slices.ContainsFunc(v, hasBadPathComponent) }):
		return nil, rdmaError(ErrInvalidResourceName)
	case !globalIsTLS && crypto.SSEC.IsRequested(r.Header):
		return nil, rdmaError(ErrInsecureSSECustomerRequest)
	}
	vars := map[string]string{"bucket": t.Bucket, "object": t.Key}
	d := &rdmaDiverted{body: body}
	switch {
	case method == http.MethodHead:
		d.handler = rdmaHeadObject
	case method == http.MethodGet:
		d.handler = rdmaGetObject
	case method == http.MethodPut && t.Query.Has("uploadId"):
		d.handler = rdmaPutObjectPart
		vars["partNumber"], vars["uploadId"] = t.Query.Get("partNumber"), t.Query.Get("uploadId")
	case method == http.MethodPut:
		d.handler = rdmaPutObject
	default:
		return nil, fmt.Errorf("%s has no form for another resource", method)
	}
	inner := r.WithContext(context.WithValue(r.Context(), rdmaDivertKey, d))
	rdmaStripHeaders(inner)
	inner.Method = method
	inner.URL = &url.URL{Path: path, RawQuery: t.Query.Encode()}
	inner.RequestURI = inner.URL.RequestURI()
	inner.Form = rdmaCloneValues(t.Query)
	for name, values := range header {
		inner.Header[name] = values
	}
	rdmaSetBody(inner, body, size)
	inner = mux.SetURLVars(inner, vars)
	if err := rdmaResign(inner); err != nil {
		return nil, err
	}
	return inner, nil
}

// rdmaNamedChecksum is the header of the checksum that a PUT names by its algorithm and
// leaves to the server, or "": NIXL does so. MinIO would take no notice of it.
func rdmaNamedChecksum(h http.Header) string {
	for _, t := range hash.BaseChecksumTypes {
		if h.Get(t.Key()) != "" {
			return "" // the client's own value, which is verified
		}
	}
	return http.CanonicalHeaderKey(hash.NewChecksumHeader(h).Key())
}

// serve runs MinIO's handler with recorders of its own: the plugin decides later
// what the client gets, but statistics and audit speak of what the handler did
// and of the bytes that it moved.
func (d *rdmaDiverted) serve(w http.ResponseWriter, r *http.Request) {
	outer, ok := r.Context().Value(mcontext.ContextTraceKey).(*mcontext.TraceCtxt)
	if !ok {
		// httpTracerMiddleware always runs; without it there is no recorder
		// that MinIO's statistics could read.
		d.handler(w, r)
		return
	}
	d.header, d.trailer = r.Header, r.Trailer
	tc := &mcontext.TraceCtxt{
		AmzReqID:         outer.AmzReqID,
		RequestRecorder:  outer.RequestRecorder,
		ResponseRecorder: xhttp.NewResponseRecorder(w),
	}
	if d.body != nil {
		was := tc.RequestRecorder.Reader
		tc.RequestRecorder.Reader = d.body
		defer func() { tc.RequestRecorder.Reader = was }()
		r.Body = tc.RequestRecorder
		d.reader = r.Body
	}
	d.handler(tc.ResponseRecorder, r.WithContext(context.WithValue(r.Context(), mcontext.ContextTraceKey, tc)))
	rdmaCallOf(r).status = tc.ResponseRecorder.StatusCode
	outer.FuncName = tc.FuncName
	outer.ResponseRecorder.LogErrBody = true
	if d.body == nil && tc.ResponseRecorder.StatusCode < http.StatusMultipleChoices {
		rdmaCountOutput(outer.ResponseRecorder, tc.ResponseRecorder.Size())
	}
}

// rdmaCountOutput makes rec count n bytes more as sent, for the trace: they went
// over the fabric. The recorder has no setter, but counts what its ReaderFrom
// says it has taken.
func rdmaCountOutput(rec *xhttp.ResponseRecorder, n int) {
	was := rec.ReaderFrom
	rec.ReaderFrom = rdmaTaken(n)
	rec.ReadFrom(strings.NewReader(""))
	rec.ReaderFrom = was
}

// rdmaTaken is an io.ReaderFrom that claims to have taken so many bytes.
type rdmaTaken int64

// ReadFrom implements io.ReaderFrom.
func (n rdmaTaken) ReadFrom(io.Reader) (int64, error) { return int64(n), nil }
