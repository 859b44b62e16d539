// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package nethttp

import (
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/s3rdma/s3rdma/plugin"
)

// Authenticator tells who signed a request. It is called from many goroutines at
// once.
type Authenticator interface {
	// Authenticate verifies the signature of r, which is as the client sent it, and
	// reads no body. The identity's name is not empty; an anonymous request is an
	// error. An *[plugin.Error] is sent to the client as it is, any other error as
	// 403 AccessDenied, with its text.
	Authenticate(r *http.Request) (plugin.Identity, error)
}

// Options fit the plugin to a handler.
type Options struct {
	// Authenticator verifies signatures. Without one every request with a descriptor
	// is refused (403), or declined if the plugin is switched off.
	Authenticator Authenticator

	// Domain is the server's host name for virtual-host requests (BUCKET.Domain),
	// without a port. Empty: all requests are path-style.
	Domain string

	// Classify, if set, is asked instead of this package's function.
	Classify func(r *http.Request) plugin.Op

	// Trusted says that the handler does not verify signatures itself. What it gets
	// is then a plain request: without the protocol's headers, and with
	// UNSIGNED-PAYLOAD as the hash of a diverted body. Only such handlers serve
	// hipobj-rc-v2, whose requests name their object in a header: the handler must
	// authorize by what it knows beside the request's signature, or nobody.
	Trusted bool

	// VerifiesChecksums says that the handler compares x-amz-checksum-* and
	// Content-MD5 with the body that it reads, and stores nothing if they differ. The
	// plugin does it otherwise, in one more pass over the bytes.
	VerifiesChecksums bool
}

// New returns the middleware: next, an S3 server's handler, with the plugin in
// front. p stays the caller's, who closes it after the server has shut down. Several
// handlers may share a plugin.
func New(p *plugin.Plugin, next http.Handler, o Options) http.Handler {
	if o.Trusted {
		return p.Handler(&trustedServer{server{o}}, next)
	}
	return p.Handler(&server{o}, next)
}

// trustedServer implements plugin.Retargeter too: a handler that verifies signatures
// would find none on what a signed request led to.
type trustedServer struct{ server }

func (s *trustedServer) Retarget(r *http.Request, id plugin.Identity, method string, t plugin.Target, header http.Header, body io.ReadCloser, size int64) (*http.Request, error) {
	inner, err := s.Divert(r, id, body, size)
	if err != nil {
		return nil, err
	}
	inner.Method = method
	inner.URL = &url.URL{Path: "/" + t.Bucket + "/" + t.Key, RawQuery: t.Query.Encode()}
	inner.RequestURI = inner.URL.RequestURI()
	if s.o.Domain != "" {
		inner.Host = s.o.Domain // the bucket is in the path
	}
	for name, values := range header {
		inner.Header[name] = values
	}
	return inner, nil
}

// server implements plugin.Server and plugin.ChecksumVerifier.
type server struct{ o Options }

func (s *server) Classify(r *http.Request) plugin.Op {
	if s.o.Classify != nil {
		return s.o.Classify(r)
	}
	return Classify(r, s.o.Domain)
}

func (s *server) Authenticate(r *http.Request) (plugin.Identity, error) {
	if s.o.Authenticator == nil {
		return plugin.Identity{}, &plugin.Error{Status: http.StatusForbidden, Code: "AccessDenied",
			Message: "This server has no way to verify signatures, which a memory descriptor needs. Use plain HTTP."}
	}
	return s.o.Authenticator.Authenticate(r)
}

func (s *server) VerifiesChecksums() bool { return s.o.VerifiesChecksums }

func (s *server) Divert(r *http.Request, _ plugin.Identity, body io.ReadCloser, size int64) (*http.Request, error) {
	inner := r.Clone(r.Context()) // with a header map of its own
	if body != nil {
		inner.Body = body
		inner.ContentLength = size
		inner.TransferEncoding = nil
		inner.Header.Set("Content-Length", strconv.FormatInt(size, 10))
	}
	if s.o.Trusted {
		for name := range inner.Header {
			if plugin.IsControlHeader(name) {
				delete(inner.Header, name)
			}
		}
		if body != nil {
			inner.Header.Set(headerPayloadHash, unsignedPayload)
		}
	}
	return inner, nil
}

func (s *server) WriteError(w http.ResponseWriter, r *http.Request, e *plugin.Error) {
	e.WriteXML(w, r)
}
