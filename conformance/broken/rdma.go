// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package broken

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio"
)

// The headers of the wire (PROTOCOL.md, section 2).
const (
	headerToken   = "X-Amz-Rdma-Token"
	headerAlias   = "X-Rdma-Info"
	headerReply   = "X-Amz-Rdma-Reply"
	headerBytes   = "X-Amz-Rdma-Bytes-Transferred"
	headerSession = "X-Amz-Rdma-Session"
)

func (s *Server) decline(w http.ResponseWriter) {
	if !s.on("decline-without-reply") {
		w.Header().Set(headerReply, "501")
	}
	if s.on("decline-with-etag") {
		w.Header().Set("Etag", `"d41d8cd98f00b204e9800998ecf8427e"`)
	}
	if s.on("decline-by-200") {
		w.Header().Set("Etag", `"d41d8cd98f00b204e9800998ecf8427e"`)
		w.WriteHeader(200)
		return
	}
	writeError(w, 501, "NotImplemented", "use HTTP")
}

// declineHipObj declines a protocol that is not served here.
func (s *Server) declineHipObj(w http.ResponseWriter) {
	w.Header().Set("X-Amz-Rdma-Protocol-Status", "unsupported")
	if s.on("hipobj-decline-with-reply") {
		w.Header().Set(headerReply, "501")
	}
	writeError(w, 501, "NotImplemented", "use HTTP")
}

// refuse answers with an error that says nothing of RDMA.
func refuse(w http.ResponseWriter, status int, code, message string) {
	writeError(w, status, code, message)
}

// tokens are the descriptors that a request bears, and whether it has one under a name
// that nobody knows.
func tokens(h http.Header) (values []string, unknown bool) {
	values = append(slices.Clone(h.Values(headerToken)), h.Values(headerAlias)...)
	if len(values) > 0 {
		return values, false
	}
	for name := range h {
		l := strings.ToLower(name)
		if strings.HasPrefix(l, checksum.RegionPrefix) || l == "x-amz-rdma-agent" || l == "x-amz-rdma-session" || l == "x-amz-rdma-psn" {
			continue
		}
		for _, prefix := range []string{"x-amz-rdma-", "x-rdma-", "x-scal-rdma", "x-cuobj-"} {
			if strings.HasPrefix(l, prefix) {
				return nil, true
			}
		}
	}
	return nil, false
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, valid := authenticate(r, s.secrets)
	switch {
	case strings.HasPrefix(r.URL.Path, "/.s3rdma-"):
		s.serveSession(w, r, who, valid)
		return
	case strings.HasPrefix(r.URL.Path, "/.hipobj-rc/"):
		s.declineHipObj(w)
		return
	}
	values, unknown := tokens(r.Header)
	if s.on("alias-ignored") && r.Header.Get(headerToken) == "" {
		values = nil
	}
	has := len(values) > 0 || unknown
	if has && s.breaksOthers(w, r) {
		return
	}
	concerned := has && s.concerns(r)
	switch {
	case !concerned:
		s.plain(w, r, who, valid)
	case s.off && s.on("off-passes-through"):
		s.plain(w, r, who, valid)
	case s.off:
		s.decline(w)
	case unknown && s.on("unknown-header-ignored"):
		s.plain(w, r, who, valid)
	case unknown:
		s.decline(w)
	default:
		s.serveToken(w, r, who, valid, values)
	}
}

// concerns tells whether a descriptor has a meaning for r: it stores or fetches an
// object's bytes.
func (s *Server) concerns(r *http.Request) bool {
	q := r.URL.Query()
	_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case key == "" || r.Header.Get("X-Amz-Copy-Source") != "" || q.Has("uploads"):
		return false
	case isSubresource(q):
		return s.on("subresource-taken")
	case q.Has("uploadId"):
		return r.Method == http.MethodPut && !s.on("part-ignored")
	}
	return r.Method == http.MethodPut || r.Method == http.MethodGet
}

// breaksOthers answers a call that a descriptor does not concern as if it did.
func (s *Server) breaksOthers(w http.ResponseWriter, r *http.Request) bool {
	q := r.URL.Query()
	_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case s.on("head-as-get") && r.Method == http.MethodHead && key != "":
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(200)
	case s.on("copy-declined") && r.Header.Get("X-Amz-Copy-Source") != "":
		s.decline(w)
	case s.on("list-declined") && r.Method == http.MethodGet && key == "":
		s.decline(w)
	case s.on("delete-declined") && r.Method == http.MethodDelete && key != "" && !q.Has("uploadId") && !q.Has("tagging"):
		s.decline(w)
	case s.on("multipart-calls-declined") && (r.Method == http.MethodPost && key != "" || r.Method != http.MethodPut && q.Has("uploadId")):
		s.decline(w)
	case s.on("bucket-calls-declined") && key == "" && r.Method != http.MethodGet && r.Method != http.MethodPost:
		s.decline(w)
	case s.on("unsupported-write-ignored") && (r.Header.Get("X-Amz-Write-Offset-Bytes") != "" || r.Header.Get("X-Amz-Meta-Snowball-Auto-Extract") != ""):
		r.Body = http.NoBody
		s.plain(w, r, identity{name: AccessKey}, true)
	default:
		return false
	}
	return true
}

// plain serves r as any S3 server does.
func (s *Server) plain(w http.ResponseWriter, r *http.Request, who identity, valid bool) {
	if !valid {
		writeError(w, 403, "SignatureDoesNotMatch", "wrong signature")
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	s.store.serve(w, r, who, body)
}

// serveSession answers connect and disconnect (PROTOCOL.md, section 8).
func (s *Server) serveSession(w http.ResponseWriter, r *http.Request, who identity, valid bool) {
	name, action, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/.s3rdma-"), "/")
	fabric, ok := s.fabrics[name]
	if !ok {
		s.decline(w)
		return
	}
	header := strings.ToLower(headerToken)
	if action == "disconnect" {
		header = strings.ToLower(headerSession)
	}
	if s.on("connect-wrong-secret-accepted") {
		valid = true
	}
	if !valid || (who.name == "" || !who.covers(header)) && !s.on("connect-unsigned-accepted") {
		refuse(w, 403, "AccessDenied", "not signed")
		return
	}
	acceptor := fabric.(rdmaio.Acceptor)
	if action == "connect" {
		s.connect(w, r, acceptor, who)
		return
	}
	id, err := rdmaio.ParseSessionID(r.Header.Get(headerSession))
	owner := who.name
	if s.on("anybody-disconnects") {
		owner = AccessKey
	}
	if err == nil && !s.on("disconnect-does-nothing") {
		err = acceptor.Hangup(r.Context(), id, owner)
	}
	if s.on("disconnect-unknown-accepted") {
		err = nil
	}
	switch {
	case errors.Is(err, rdmaio.ErrNotOwner):
		refuse(w, 403, "AccessDenied", "another identity's session")
	case err != nil:
		refuse(w, 404, "NoSuchRDMASession", "no such session")
	default:
		w.WriteHeader(204)
	}
}

func (s *Server) connect(w http.ResponseWriter, r *http.Request, a rdmaio.Acceptor, who identity) {
	hello := rdmaio.Hello{Token: r.Header.Get(headerToken), Owner: who.name, Peer: peerOf(r), Local: localOf(r)}
	if hello.Owner == "" || s.on("connect-wrong-secret-accepted") {
		hello.Owner = AccessKey
	}
	if s.on("hello-not-checked") {
		hello.Token = "1"
	}
	welcome, err := a.Accept(r.Context(), hello)
	switch {
	case errors.Is(err, rdmaio.ErrTooMany):
		refuse(w, 503, "SlowDown", "too many sessions")
	case errors.Is(err, rdmaio.ErrUnsupported):
		s.decline(w)
	case err != nil:
		refuse(w, 400, "InvalidRDMAToken", "no hello")
	default:
		id := welcome.Session.Hex()
		if s.on("session-id-cut") {
			id = id[:16]
		}
		w.Header().Set(headerSession, id)
		w.Header().Set(headerReply, "200:"+welcome.Token)
	}
}

// serveToken serves an object request with a descriptor, checking in the order of
// PROTOCOL.md, section 4.
func (s *Server) serveToken(w http.ResponseWriter, r *http.Request, who identity, valid bool, values []string) {
	if s.on("token-in-header") {
		w.Header().Set("X-Debug-Token", values[0])
	}
	if s.on("token-ignored") {
		s.plain(w, r, who, valid)
		return
	}
	if r.Method == http.MethodPut && (r.Header.Get("X-Amz-Write-Offset-Bytes") != "" || r.Header.Get("X-Amz-Meta-Snowball-Auto-Extract") != "") {
		s.decline(w)
		return
	}
	if !s.identified(w, r, &who, valid) {
		return
	}
	d, ok := s.parse(w, r, who, values)
	if !ok {
		return
	}
	if r.Method == http.MethodPut && d.Size == 0 && !s.on("zero-window-stored") {
		refuse(w, 400, "InvalidRDMAToken", "no bytes")
		return
	}
	if s.hasBody(r) {
		refuse(w, 400, "InvalidRequest", "a body beside a descriptor")
		return
	}
	if s.on("agent-refused") && r.Header.Get("X-Amz-Rdma-Agent") != "" || s.on("empty-hash-refused") && len(r.Header.Get("X-Amz-Content-Sha256")) == 64 ||
		s.on("signed-length-refused") && who.covers("content-length") {
		refuse(w, 400, "InvalidRequest", "not expected")
		return
	}
	ask, status := s.policy(r, who)
	switch {
	case status == 501:
		s.decline(w)
		return
	case status != 0:
		refuse(w, status, "InvalidRequest", "a request for checksums that cannot be done")
		return
	}
	s.transfer(w, r, who, d, ask)
}

// identified checks that somebody has signed the descriptor.
func (s *Server) identified(w http.ResponseWriter, r *http.Request, who *identity, valid bool) bool {
	covered := true
	for _, name := range []string{headerToken, headerAlias} {
		if r.Header.Values(name) != nil && !who.covers(strings.ToLower(name)) {
			covered = false
		}
	}
	if s.on("unsigned-accepted") || s.on("presigned-unsigned-accepted") && who.query {
		covered = true
	}
	if s.on("wrong-secret-accepted") && !valid {
		*who, valid, covered = identity{name: AccessKey}, true, true
	}
	if s.on("anonymous-accepted") && who.name == "" {
		*who, covered = identity{name: AccessKey}, true
	}
	if s.on("presigned-passes-through") && who.query && r.Method == http.MethodPut {
		s.plain(w, r, *who, valid)
		return false
	}
	if s.on("unsigned-passes-through") && !covered && r.Method == http.MethodPut {
		s.plain(w, r, *who, valid)
		return false
	}
	if !valid || who.name == "" || !covered {
		refuse(w, 403, "AccessDenied", "the descriptor is not signed")
		return false
	}
	return true
}

// parse reads the descriptor, or answers what is wrong with it.
func (s *Server) parse(w http.ResponseWriter, r *http.Request, who identity, values []string) (d rdmaio.Descriptor, ok bool) {
	if len(slices.Compact(values)) > 1 && !s.on("first-of-two") {
		refuse(w, 400, "InvalidRDMAToken", "two descriptors")
		return d, false
	}
	text := values[0]
	if s.on("upper-case-accepted") {
		text = strings.ToLower(text)
	}
	d, _, err := rdmaio.Parse(text, rdmaio.ParseOptions{})
	malformed := errors.Is(err, rdmaio.ErrMalformed)
	switch {
	case err == nil:
		return d, true
	case s.on("suffix-widens") && strings.Count(text, ":") == 8:
		s.decline(w) // as if it were a window that is not served
	case s.on("malformed-passes-through") && malformed, s.on("unknown-dialect-passes-through") && !malformed:
		s.plain(w, r, who, true)
	case malformed && s.on("malformed-declined"):
		s.decline(w)
	case malformed && s.on("malformed-by-reply"):
		w.Header().Set(headerReply, "400")
		refuse(w, 400, "InvalidRDMAToken", "malformed")
	case malformed && s.on("malformed-with-another-code"):
		refuse(w, 400, "InvalidArgument", "malformed")
	case malformed && s.on("malformed-by-500"):
		refuse(w, 500, "InternalError", "malformed")
	case malformed && s.on("token-in-error"):
		refuse(w, 400, "InvalidRDMAToken", "malformed: "+text)
	case malformed:
		refuse(w, 400, "InvalidRDMAToken", "malformed")
	case s.on("unknown-dialect-by-400"):
		refuse(w, 400, "InvalidRDMAToken", "unknown")
	default:
		s.decline(w)
	}
	return d, false
}

// hasBody tells whether r has a body, or the sign of one.
func (s *Server) hasBody(r *http.Request) bool {
	switch {
	case r.ContentLength > 0:
		return !s.on("body-ignored")
	case r.ContentLength < 0:
		return !s.on("chunked-body-ignored")
	}
	if s.on("trailer-ignored") {
		return false
	}
	return r.Header.Get("X-Amz-Trailer") != "" || r.Header.Get("X-Amz-Decoded-Content-Length") != "" ||
		strings.Contains(r.Header.Get("Content-Encoding"), "aws-chunked") || strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-")
}

// policy reads what a request asks of its checksums, or returns the status to refuse it
// with (PROTOCOL.md, section 13). The server's own policy is region.
func (s *Server) policy(r *http.Request, who identity) (checksum.RegionRequest, int) {
	ask, err := checksum.ParseRegionRequest(r.Header)
	switch {
	case errors.Is(err, checksum.ErrUnknownAlgorithm):
		return ask, 501
	case err != nil && !s.on("policy-malformed-ignored"):
		return ask, 400
	}
	if !s.on("policy-less") || r.Header.Get(checksum.HeaderPolicy) == "" {
		ask.Policy = ask.Policy.With(checksum.PolicyRegion)
	}
	if ask.Algorithm == 0 {
		ask.Algorithm = checksum.CRC64NVME
		if sums, err := checksum.FromHeader(r.Header); r.Method == http.MethodPut && err == nil && len(sums) > 0 {
			ask.Algorithm = sums[0].Algorithm()
		}
	}
	for name := range r.Header {
		name = strings.ToLower(name)
		wanted := strings.HasPrefix(name, checksum.RegionPrefix) && !s.on("policy-unsigned-accepted")
		if ask.Policy.Envelope() && (strings.HasPrefix(name, "x-amz-") || name == "range") {
			wanted = true
		}
		if wanted && !who.covers(name) {
			return ask, 403
		}
	}
	if ask.Policy.Envelope() && !s.on("envelope-hash-missing") && r.Header.Get("X-Amz-Content-Sha256") == unsignedPayload {
		return ask, 400
	}
	return ask, 0
}

// answer is what the store says, held back.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(200)
	return a.body.Write(p)
}
