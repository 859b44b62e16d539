// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio"
)

// hipobj-rc-v2 is the protocol of AMD's hipObject for RC queue pairs: per transfer one
// queue pair at each end, and two requests. "prepare" names operation, object and queue
// pair and is answered with the server's queue pair; while "ready" is being answered the
// bytes move. A client writes what it stores into memory of the server's, and is told by
// an immediate value that it has received. (github.com/ROCm/hipObject, src/rdma/v2-*.cpp
// and test/integration/rdma-test-server; versity/versitygw, rdma/rcroutes.)

// HipObjPrefix begins the path of its endpoints: POST /.hipobj-rc/prepare, /ready and
// /cancel. No S3 bucket can have such a name.
const HipObjPrefix = "/.hipobj-rc/"

// HipObjProtocol is the value of [HeaderProtocol].
const HipObjProtocol = "hipobj-rc-v2"

// The headers of hipobj-rc-v2 beside those that it shares with the connect (token,
// session, psn, reply and bytes).
const (
	HeaderProtocol = "x-amz-rdma-protocol"
	HeaderCookie   = "x-amz-rdma-cookie"
	HeaderOp       = "x-amz-rdma-op"
	HeaderTarget   = "x-amz-rdma-target"
	HeaderSize     = "x-amz-rdma-size"
	HeaderOffset   = "x-amz-rdma-offset"
	HeaderQPN      = "x-amz-rdma-qpn"
	HeaderMRAddr   = "x-amz-rdma-mr-addr"
	HeaderMRKey    = "x-amz-rdma-mr-rkey"

	// HeaderProtocolStatus is "unsupported" in a decline: what a client falls back to
	// HTTP for.
	HeaderProtocolStatus = "x-amz-rdma-protocol-status"
	HeaderETag           = "x-amz-rdma-etag"
	HeaderVersionID      = "x-amz-rdma-version-id"
	HeaderChecksum       = "x-amz-rdma-checksum"
)

const (
	// hipMaxSize is the protocol's limit of a transfer, in bytes.
	hipMaxSize = 1<<31 - 1

	// hipPushWithin is how long a client may take to push its bytes, after it has said
	// that it is ready. Nothing tells how far it is.
	hipPushWithin = 30 * time.Second
)

// hipTransfer is what a prepare asks for.
type hipTransfer struct {
	op     Op
	method string
	target Target
	size   uint64
	offset uint64
	cookie uint32
}

// hipDialect marks answers as hipobj-rc-v2 has it.
type hipDialect struct{ cookie uint32 }

func (hipDialect) Name() string   { return "hipobj" }
func (hipDialect) Header() string { return http.CanonicalHeaderKey(HeaderSession) }

// Parse fails: a descriptor is put together from several headers.
func (hipDialect) Parse(string) (rdmaio.Descriptor, error) {
	return rdmaio.Descriptor{}, rdmaio.ErrUnsupported
}

// Succeed sends 200 also for a range: it is that of the exchange. What clients want to
// know of the object is in headers of the protocol's own.
func (d hipDialect) Succeed(h http.Header, _ int, n int64) int {
	h.Del("Content-Range")
	h.Set(HeaderProtocol, HipObjProtocol)
	h.Set(HeaderCookie, fmt.Sprintf("%08x", d.cookie))
	h.Set(HeaderBytes, strconv.FormatInt(n, 10))
	copyHeader(h, HeaderETag, "Etag")
	copyHeader(h, HeaderVersionID, "X-Amz-Version-Id")
	if s := h.Get(checksum.CRC64NVME.RegionHeader()); s != "" {
		h.Set(HeaderChecksum, "CRC64NVME "+s)
	}
	return http.StatusOK
}

// copyHeader repeats a header under another name. Handlers spell them as they like: MinIO
// has an ETag.
func copyHeader(h http.Header, to, from string) {
	for name, values := range h {
		if strings.EqualFold(name, from) && len(values) == 1 {
			h.Set(to, values[0])
			return
		}
	}
}

// Decline has no reply header: clients read it in the answer of a prepare, and take a
// number for nonsense.
func (hipDialect) Decline(h http.Header, _ int) { h.Set(HeaderProtocolStatus, "unsupported") }

// hipCall is a request below HipObjPrefix.
type hipCall struct {
	p     *Plugin
	s     Server
	next  http.Handler
	w     http.ResponseWriter
	r     *http.Request
	pairs rdmaio.Pairer
	to    Retargeter
}

// serveHipObj answers a prepare, ready or cancel.
func (p *Plugin) serveHipObj(s Server, next http.Handler, w http.ResponseWriter, r *http.Request) {
	h := &hipCall{p: p, s: s, next: next, w: w, r: r}
	info := SessionInfo{}
	var e *Error
	switch action := strings.TrimPrefix(r.URL.Path, HipObjPrefix); {
	case action != "prepare" && action != "ready" && action != "cancel":
		e = &Error{http.StatusNotFound, "NoSuchKey", "Below " + HipObjPrefix + " there are only prepare, ready and cancel.", reasonOperation, false}
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		e = &Error{http.StatusMethodNotAllowed, "MethodNotAllowed", "Prepare, ready and cancel by POST.", reasonOperation, false}
	case action == "ready":
		started := time.Now()
		q := &request{p: p, s: s, next: next, w: w, r: r, op: OpOther, bearer: bearer{dialect: hipDialect{}}}
		defer q.report(started) // also if a handler panics
		if e := h.ready(q); e != nil {
			q.refuse(e)
		}
		return
	default:
		info.Disconnect = action == "cancel"
		var id Identity
		if id, e = h.admit(); e == nil {
			info.Owner, info.Transport = id.Name, rdmaio.TransportRC.String()
			if info.Disconnect {
				e = h.cancel(id)
			} else {
				e = h.prepare(id)
			}
		}
	}
	if e != nil {
		if e.reply {
			hipDialect{}.Decline(w.Header(), e.Status)
		}
		if e.Status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "1")
		}
		info.Err = e
		s.WriteError(w, r, e)
	}
	p.cfg.Listener.sessionDone(info)
}

// admit does what all three have in common: who is it, and can it be served at all?
func (h *hipCall) admit() (Identity, *Error) {
	p, r := h.p, h.r
	if v, ok := one(r.Header, HeaderProtocol); !ok || v != HipObjProtocol {
		return Identity{}, declined(reasonDialect, "The header %s is not %s, which is all that is spoken here. Use plain HTTP.", HeaderProtocol, HipObjProtocol)
	}
	if !p.Enabled() {
		return Identity{}, declined(reasonOff, "RDMA is switched off on this server. Use plain HTTP.")
	}
	var ok bool
	if h.pairs, ok = p.fabrics[rdmaio.TransportRC.String()].(rdmaio.Pairer); !ok {
		return Identity{}, declined(reasonTransport, "This server has no RDMA NIC. Use plain HTTP.")
	}
	if h.to, ok = h.s.(Retargeter); !ok {
		return Identity{}, declined(reasonDialect, "This server cannot serve objects that are named in a header. Use plain HTTP.")
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Amz-Rdma-") && !signedHeader(r, name) {
			return Identity{}, accessDenied(reasonUnsigned, "The header %s must be among the signed headers (Signature Version 4).", strings.ToLower(name))
		}
	}
	id, e := p.authenticate(h.s, r)
	if e != nil {
		return Identity{}, e
	}
	if hasBody(r) {
		return Identity{}, invalidRequest(reasonBody, "Prepare, ready and cancel have no body.")
	}
	return id, nil
}

// prepare makes a queue pair for what is asked for.
func (h *hipCall) prepare(id Identity) *Error {
	p, r := h.p, h.r
	t, e := parseHipTransfer(r.Header)
	if e != nil {
		return e
	}
	hello := rdmaio.PairHello{Note: t}
	hello.Owner, hello.Local = id.Name, localAddr(r)
	if hello.Token, hello.PSN, e = parseHipPeer(r.Header); e != nil {
		return e
	}
	if hello.Peer, e = p.callingPeer(r); e != nil {
		return e
	}
	if t.size < p.cfg.MinWindow {
		return declined(reasonThreshold, "Transfers of fewer than %d bytes are not done by RDMA. Use plain HTTP.", p.cfg.MinWindow)
	}
	if !p.begin() {
		return declined(reasonOff, "The server is shutting down. Use plain HTTP.")
	}
	defer p.flight.Done()
	if t.op == OpGetObject {
		// A client that waits for the word that it has received does not look at the
		// answer to its ready. What can go wrong has to go wrong here.
		if e := h.look(t, id); e != nil {
			return e
		}
	} else {
		if _, err := h.to.Retarget(r, id, t.method, t.target, nil, nil, 0); err != nil {
			return divertFailed(err) // before the client has sent its bytes for nothing
		}
		hello.Land = t.size
	}
	w, err := h.pairs.Pair(r.Context(), hello)
	switch {
	case err == nil:
	case errors.Is(err, rdmaio.ErrMalformed):
		return malformedToken(reasonMalformed, "The token cannot be read: %v.", err)
	case errors.Is(err, rdmaio.ErrOutOfBounds):
		return tooLarge(err)
	case errors.Is(err, rdmaio.ErrUnsupported), errors.Is(err, rdmaio.ErrClosed):
		return declined(reasonTransport, "The fabric cannot serve this peer: %v. Use plain HTTP.", err)
	case errors.Is(err, rdmaio.ErrRefused):
		return accessDenied(reasonPeer, "The fabric refuses this peer: %v.", err)
	case errors.Is(err, rdmaio.ErrTooMany):
		return slowDown(reasonSessions, "No more transfers: %v. Please reduce your request rate.", err)
	default:
		return transferFailed("The queue pair could not be made: %v.", err)
	}
	if r.Context().Err() != nil {
		h.pairs.Unpair(w.Session, id.Name) // nobody will know of it
	}
	a := h.w.Header()
	a.Set(HeaderProtocol, HipObjProtocol)
	a.Set(HeaderQPN, fmt.Sprintf("%x", w.QPN))
	if w.RKey != 0 {
		a.Set(HeaderMRAddr, fmt.Sprintf("%x", w.Addr))
		a.Set(HeaderMRKey, fmt.Sprintf("%x", w.RKey))
	}
	sendWelcome(h.w, w.Welcome)
	return nil
}

func tooLarge(err error) *Error {
	return &Error{http.StatusRequestEntityTooLarge, "EntityTooLarge", fmt.Sprintf("The transfer is too large: %v. Use parts, or plain HTTP.", err), reasonWindow, false}
}

// look asks the server's handler, on behalf of id, whether the object has the bytes.
func (h *hipCall) look(t *hipTransfer, id Identity) *Error {
	inner, err := h.to.Retarget(h.r, id, http.MethodHead, t.target, nil, nil, 0)
	if err != nil {
		return divertFailed(err)
	}
	a := newHeldAnswer(h.w)
	h.next.ServeHTTP(a, inner)
	a.WriteHeader(http.StatusOK)
	switch {
	case a.status == http.StatusOK:
	case a.status == http.StatusNotFound:
		return &Error{a.status, "NoSuchKey", "The object does not exist.", reasonServerAnswer, false}
	case a.status == http.StatusForbidden:
		return accessDenied(reasonServerAnswer, "Access denied.")
	case a.status >= 400 && a.status < 500:
		return &Error{a.status, "InvalidRequest", "The object cannot be read by this request.", reasonServerAnswer, false}
	default:
		return &Error{http.StatusInternalServerError, "InternalError", "The object cannot be read at present.", reasonServerAnswer, false}
	}
	n, err := strconv.ParseUint(a.header.Get("Content-Length"), 10, 64)
	if err != nil {
		return transferFailed("The server does not say how long the object is.")
	}
	if t.offset > n || t.size > n-t.offset {
		return &Error{http.StatusRequestedRangeNotSatisfiable, "InvalidRange", fmt.Sprintf("The object has %d bytes, those asked for end at %d.", n, t.offset+t.size), reasonWindow, false}
	}
	return nil
}

// ready does the transfer.
func (h *hipCall) ready(q *request) *Error {
	id, e := h.admit()
	if e != nil {
		return e
	}
	p, r := h.p, h.r
	end, e := parseHipReady(r.Header)
	if e != nil {
		return e
	}
	if !p.begin() {
		return declined(reasonOff, "The server is shutting down. Use plain HTTP.")
	}
	defer p.flight.Done()
	q.info.Transport = rdmaio.TransportRC.String()
	pair, err := h.pairs.Claim(end.session, id.Name)
	switch {
	case err == nil:
	case errors.Is(err, rdmaio.ErrNoSession):
		return &Error{http.StatusConflict, CodeNoSession, "The session does not exist (any more), or is at work. Prepare again.", reasonSession, false}
	case errors.Is(err, rdmaio.ErrNotOwner):
		return accessDenied(reasonOwner, "The session belongs to another identity.")
	default:
		return transferFailed("The session cannot be used: %v.", err)
	}
	defer pair.Close() // before any error is answered; closed already after a success
	t := pair.Note().(*hipTransfer)
	q.op = t.op
	q.bearer.dialect = hipDialect{t.cookie}
	switch {
	case end.cookie != t.cookie:
		return accessDenied(reasonOwner, "The cookie is not that of the session.")
	case t.op == OpGetObject && (end.addr == 0 || end.rkey == 0 || end.addr+t.size < end.addr):
		return malformedToken(reasonMalformed, "%s and %s do not name memory of %d bytes.", HeaderMRAddr, HeaderMRKey, t.size)
	}
	d := rdmaio.Descriptor{Transport: rdmaio.TransportRC, Session: end.session, Size: t.size}
	header := http.Header{}
	if t.op == OpGetObject {
		d.Addr, d.RKey = end.addr, end.rkey
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", t.offset, t.offset+t.size-1))
	}
	q.retarget = func(id Identity, body io.ReadCloser, size int64) (*http.Request, error) {
		return h.to.Retarget(r, id, t.method, t.target, header, body, size)
	}
	sums, e := q.integrity(d)
	if e != nil {
		return e
	}
	ctx, cancel := context.WithTimeout(r.Context(), hipPushWithin)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	link, err := pair.Join(ctx, end.qpn, d, t.cookie)
	switch {
	case err == nil:
	case errors.Is(err, rdmaio.ErrOutOfBounds):
		return malformedToken(reasonMalformed, "%s and %s do not name memory: %v.", HeaderMRAddr, HeaderMRKey, err)
	default:
		q.info.Err = err
		return transferFailed("The client's queue pair could not be worked with: %v. Nothing was stored.", err)
	}
	defer link.Close() // as pair
	x, e := q.open(p.fabrics[d.Transport.String()], d, id, func(context.Context) (rdmaio.Link, error) { return link, nil })
	if e != nil {
		return e
	}
	defer x.close()
	if t.op == OpGetObject {
		return q.get(x, id, d, sums)
	}
	return q.put(x, id, d, sums)
}

// cancel ends what was prepared. It succeeds always: what does not exist, or is another's,
// is not told from what has ended.
func (h *hipCall) cancel(id Identity) *Error {
	v, _ := one(h.r.Header, HeaderSession)
	session, err := rdmaio.ParseSessionID(strings.ToLower(v))
	if err != nil {
		return malformedToken(reasonMalformed, "The header %s cannot be read: %v.", HeaderSession, err)
	}
	h.pairs.Unpair(session, id.Name)
	h.w.Header().Set(HeaderProtocol, HipObjProtocol)
	h.w.WriteHeader(http.StatusNoContent)
	return nil
}

// one returns the value of a header that is there once.
func one(h http.Header, name string) (string, bool) {
	v := h.Values(name)
	if len(v) != 1 {
		return "", false
	}
	return v[0], true
}

func badHipHeader(name, want string) *Error {
	return malformedToken(reasonMalformed, "The header %s is not %s.", name, want)
}

// hipNumber reads a number from least to most in hex or decimal digits.
func hipNumber(h http.Header, name string, base int, least, most uint64) (uint64, *Error) {
	v, _ := one(h, name)
	n, err := strconv.ParseUint(v, base, 64)
	if err != nil || n < least || n > most || strings.HasPrefix(v, "+") {
		digits := "decimal"
		if base == 16 {
			digits = "hex"
		}
		return 0, badHipHeader(name, fmt.Sprintf("a number from %d to %d in %s digits", least, most, digits))
	}
	return n, nil
}

// parseHipTransfer reads what a prepare asks for.
func parseHipTransfer(h http.Header) (*hipTransfer, *Error) {
	t := new(hipTransfer)
	cookie, e := hipNumber(h, HeaderCookie, 16, 1, 1<<32-1)
	if e != nil {
		return nil, e
	}
	t.cookie = uint32(cookie)
	if t.size, e = hipNumber(h, HeaderSize, 10, 1, 1<<63-1); e != nil {
		return nil, e
	}
	if h.Get(HeaderOffset) != "" {
		if t.offset, e = hipNumber(h, HeaderOffset, 10, 0, 1<<62); e != nil {
			return nil, e
		}
	}
	t.method, _ = one(h, HeaderOp)
	target, _ := one(h, HeaderTarget)
	var ok bool
	if t.target, ok = parseHipTarget(target); !ok {
		return nil, badHipHeader(HeaderTarget, "/BUCKET/KEY, percent-encoded, perhaps with a query")
	}
	query := t.target.Query
	switch {
	case t.method == http.MethodGet && len(query) == 0, t.method == http.MethodGet && len(query) == 1 && query.Has("versionId"):
		t.op = OpGetObject
	case t.method == http.MethodPut && len(query) == 0:
		t.op = OpPutObject
	case t.method == http.MethodPut && len(query) == 2 && query.Get("uploadId") != "" && query.Get("partNumber") != "":
		t.op = OpUploadPart
	case t.method == http.MethodGet, t.method == http.MethodPut:
		return nil, badHipHeader(HeaderTarget, "an object (of a version, on a GET) or, on a PUT, a part with uploadId and partNumber")
	default:
		return nil, badHipHeader(HeaderOp, "GET or PUT")
	}
	switch {
	case t.op != OpGetObject && t.offset != 0:
		return nil, badHipHeader(HeaderOffset, "0, which it has to be on a PUT")
	case t.size > hipMaxSize:
		return nil, tooLarge(fmt.Errorf("%d bytes, %d are the protocol's limit", t.size, hipMaxSize))
	}
	return t, nil
}

// parseHipTarget reads /BUCKET/KEY[?QUERY], percent-encoded.
func parseHipTarget(s string) (Target, bool) {
	path, query, _ := strings.Cut(s, "?")
	rest, ok := strings.CutPrefix(path, "/")
	bucket, key, ok2 := strings.Cut(rest, "/")
	if !ok || !ok2 || bucket == "" || key == "" {
		return Target{}, false
	}
	var t Target
	var errs [3]error
	t.Bucket, errs[0] = url.PathUnescape(bucket)
	t.Key, errs[1] = url.PathUnescape(key)
	t.Query, errs[2] = url.ParseQuery(query)
	if errors.Join(errs[:]...) != nil || strings.ContainsAny(t.Bucket, "/\\?#") || strings.ContainsRune(t.Bucket+t.Key, 0) {
		return Target{}, false
	}
	for _, v := range t.Query {
		if len(v) != 1 {
			return Target{}, false
		}
	}
	return t, true
}

// parseHipPeer reads the client's queue pair.
func parseHipPeer(h http.Header) (token string, psn uint32, e *Error) {
	n, e := hipNumber(h, HeaderPSN, 16, 1, 1<<24-1)
	if e != nil {
		return "", 0, e
	}
	token, _ = one(h, HeaderToken)
	_, form, err := rdmaio.Parse(token, rdmaio.ParseOptions{})
	if err != nil || form != rdmaio.EncodingHipObject {
		return "", 0, badHipHeader(HeaderToken, "a token of 88 hex digits")
	}
	// The memory that may be named behind it is not what is used.
	token, _, _ = strings.Cut(token, ":")
	return token, uint32(n), nil
}

// hipReady is what a ready says.
type hipReady struct {
	session   rdmaio.SessionID
	cookie    uint32
	qpn, rkey uint32
	addr      uint64
}

func parseHipReady(h http.Header) (hipReady, *Error) {
	var r hipReady
	v, _ := one(h, HeaderSession)
	var err error
	if r.session, err = rdmaio.ParseSessionID(strings.ToLower(v)); err != nil {
		return r, malformedToken(reasonMalformed, "The header %s cannot be read: %v.", HeaderSession, err)
	}
	var e *Error
	number := func(name string, least, most uint64) uint64 {
		n, err := hipNumber(h, name, 16, least, most)
		if e == nil {
			e = err
		}
		return n
	}
	r.cookie = uint32(number(HeaderCookie, 1, 1<<32-1))
	r.qpn = uint32(number(HeaderQPN, 1, 1<<24-1))
	if h.Get(HeaderMRAddr) != "" { // of no use on a PUT
		r.addr = number(HeaderMRAddr, 0, 1<<64-1)
	}
	if h.Get(HeaderMRKey) != "" {
		r.rkey = uint32(number(HeaderMRKey, 0, 1<<32-1))
	}
	return r, e
}
