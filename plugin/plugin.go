// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/staging"
)

// DefaultStallTimeout ends a transfer that makes no progress. It leaves room in
// the 10 seconds that known clients give a whole request.
const DefaultStallTimeout = 5 * time.Second

// Config is what a [Plugin] is made of. The zero Config makes a plugin that is
// switched off: it declines.
type Config struct {
	// Fabrics are the transports served, at most one of a name. The plugin owns
	// them from New on, also if New fails.
	Fabrics []rdmaio.Fabric

	// Staging is registered memory of all Fabrics; needed if there are any. The
	// plugin owns it from New on.
	Staging *staging.Pool

	// StallTimeout ends a transfer that makes no progress. 0 means
	// DefaultStallTimeout.
	StallTimeout time.Duration

	// MinWindow declines windows of fewer bytes: below some size plain HTTP is
	// faster. 0 serves all.
	MinWindow uint64

	// AllowPeers are the networks whose hosts may connect, and whose memory a
	// descriptor may name. Empty means: only the host that sends the HTTP
	// request. (A signed descriptor could point at a third host.)
	AllowPeers []netip.Prefix

	// ChecksumGet and ChecksumPut are the least that is done for the integrity of a
	// GET's and a PUT's bytes; a request may ask for more. The zero value, region, has
	// a checksum over the bytes that moved computed for each transfer, and told to the
	// client.
	ChecksumGet, ChecksumPut checksum.Policy

	// ConnectUnsigned lets peers connect an RC queue pair without a signature, as
	// existing clients do. The session has no owner then: it becomes that of the first
	// identity whose signed request names it. Object requests must be signed always.
	ConnectUnsigned bool

	// Parse switches descriptor encodings on that are off by default.
	Parse rdmaio.ParseOptions

	// Listener is told what happens.
	Listener EventListener
}

// Plugin serves requests with descriptors. All methods may be called at once.
type Plugin struct {
	cfg      Config
	dialects []Dialect
	fabrics  map[string]rdmaio.Fabric

	ctx    context.Context // ends when Close begins
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	flight sync.WaitGroup // requests that use staging or a fabric
}

// New makes a plugin. An error names what is wrong in cfg; everything that cfg
// handed over is closed then.
func New(cfg Config) (*Plugin, error) {
	if cfg.StallTimeout == 0 {
		cfg.StallTimeout = DefaultStallTimeout
	}
	p := &Plugin{cfg: cfg, dialects: dialects(cfg.Parse), fabrics: make(map[string]rdmaio.Fabric, len(cfg.Fabrics))}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	err := p.check()
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Plugin) check() error {
	if p.cfg.StallTimeout < 0 {
		return fmt.Errorf("plugin: StallTimeout is %v, want more than 0", p.cfg.StallTimeout)
	}
	if len(p.cfg.Fabrics) > 0 && p.cfg.Staging == nil {
		return errors.New("plugin: fabrics without staging memory")
	}
	for _, f := range p.cfg.Fabrics {
		name := f.Capabilities().Name
		if p.fabrics[name] != nil {
			return fmt.Errorf("plugin: two fabrics named %q", name)
		}
		p.fabrics[name] = f
	}
	return nil
}

// Enabled tells whether any fabric is served.
func (p *Plugin) Enabled() bool { return len(p.fabrics) > 0 }

// Close aborts the transfers in flight, waits until no byte can move any more, and
// closes staging and fabrics. The handler may still be called; it declines.
func (p *Plugin) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.flight.Wait()
	var errs []error
	if p.cfg.Staging != nil {
		errs = append(errs, p.cfg.Staging.Close(context.Background()))
	}
	for _, f := range p.cfg.Fabrics {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// begin counts a request in, unless the plugin is closed. Then done must be
// called.
func (p *Plugin) begin() (ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.flight.Add(1)
	return true
}

// Handler returns the middleware: requests with a descriptor are served through
// s and next, connects and disconnects at [SessionPrefix] are answered, and every
// other request goes to next as it is.
func (p *Plugin) Handler(s Server, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, HipObjPrefix):
			p.serveHipObj(s, next, w, r)
			return
		case IsSessionPath(r.URL.Path):
			p.serveSession(s, w, r)
			return
		}
		b, found := findBearer(r.Header, p.dialects)
		if !found {
			next.ServeHTTP(w, r)
			return
		}
		op := s.Classify(r)
		if op == OpOther {
			next.ServeHTTP(w, r)
			return
		}
		started := time.Now()
		q := &request{p: p, s: s, next: next, w: w, r: r, op: op, bearer: b}
		defer q.report(started) // also if the handler panics
		if e := q.serve(); e != nil {
			q.refuse(e)
		}
	})
}

// request is one GET, PUT or UploadPart with a descriptor.
type request struct {
	p      *Plugin
	s      Server
	next   http.Handler
	w      http.ResponseWriter
	r      *http.Request
	op     Op
	bearer bearer
	info   RequestInfo

	// retarget makes the handler's request in place of s.Divert, for dialects whose
	// requests are not the object's own. Their windows are filled whole.
	retarget func(id Identity, body io.ReadCloser, size int64) (*http.Request, error)
}

// divert makes the request that the server's handler gets.
func (q *request) divert(id Identity, body io.ReadCloser, size int64) (*http.Request, error) {
	if q.retarget != nil {
		return q.retarget(id, body, size)
	}
	return q.s.Divert(q.r, id, body, size)
}

// serve answers the request, or returns the error to answer it with. The order of
// the checks is from the cheapest that leaks nothing to those that cost memory.
func (q *request) serve() *Error {
	p, r := q.p, q.r
	if !p.Enabled() {
		return declined(reasonOff, "RDMA is switched off on this server. Use plain HTTP.")
	}
	if q.bearer.dialect == nil {
		return declined(reasonDialect, "The header %s belongs to a dialect that this server does not speak. Use plain HTTP, or %s.", q.bearer.header, HeaderToken)
	}
	if q.op == OpUnsupportedWrite {
		return declined(reasonOperation, "This kind of upload cannot be done by RDMA. Use plain HTTP.")
	}
	if !signedHeader(r, q.bearer.header) {
		return accessDenied(reasonUnsigned, "The header %s must be among the signed headers (Signature Version 4).", q.bearer.header)
	}
	id, err := p.authenticate(q.s, r)
	if err != nil {
		return err
	}
	d, err := q.descriptor()
	if err != nil {
		return err
	}
	if q.op.stores() {
		if err := checkBody(r); err != nil {
			return err
		}
	} else if hasBody(r) {
		return invalidRequest(reasonBody, "A GET with a memory descriptor must not have a body.")
	}
	sums, err := q.integrity(d)
	if err != nil {
		return err
	}
	f := p.fabrics[d.Transport.String()]
	if f == nil {
		return declined(reasonTransport, "This server has no %s fabric. Use plain HTTP.", d.Transport)
	}
	q.info.Transport = d.Transport.String()
	if d.Size < p.cfg.MinWindow {
		return declined(reasonThreshold, "Windows of fewer than %d bytes are not served by RDMA. Use plain HTTP.", p.cfg.MinWindow)
	}
	if limit := f.Capabilities().MaxWindow; d.Size > limit {
		return malformedToken(reasonWindow, "The window has %d bytes, the %s fabric serves at most %d.", d.Size, d.Transport, limit)
	}
	if addr, ok := d.PeerAddr(); ok && !p.peerAllowed(addr, r) {
		return accessDenied(reasonPeer, "The host that the descriptor names is not on this server's allow-list.")
	}
	if !p.begin() {
		return declined(reasonOff, "The server is shutting down. Use plain HTTP.")
	}
	defer p.flight.Done()
	t, err := q.open(f, d, id, func(ctx context.Context) (rdmaio.Link, error) { return f.Open(ctx, d, id.Name) })
	if err != nil {
		return err
	}
	defer t.close() // if the handler panics; else it is closed by then
	if q.op == OpGetObject {
		return q.get(t, id, d, sums)
	}
	return q.put(t, id, d, sums)
}

// descriptor reads the header.
func (q *request) descriptor() (rdmaio.Descriptor, *Error) {
	if q.bearer.clash {
		return rdmaio.Descriptor{}, malformedToken(reasonMalformed, "The request bears several memory descriptors that differ.")
	}
	d, err := q.bearer.dialect.Parse(q.bearer.value)
	switch {
	case err == nil:
	case errors.Is(err, rdmaio.ErrUnsupported):
		return d, declined(reasonDialect, "The memory descriptor cannot be served: %v. Use plain HTTP.", err)
	default:
		return d, malformedToken(reasonMalformed, "The memory descriptor cannot be read: %v.", err)
	}
	if q.op.stores() && d.Size == 0 {
		return d, malformedToken(reasonWindow, "The memory window has 0 bytes. Store an empty object by plain HTTP.")
	}
	return d, nil
}

// authenticate has the server verify the signature. Everything that it may return
// besides an identity is a refusal.
func (p *Plugin) authenticate(s Server, r *http.Request) (Identity, *Error) {
	id, err := s.Authenticate(r)
	var answer *Error
	switch {
	case errors.As(err, &answer):
		e := *answer
		e.reason = reasonAuth
		return Identity{}, &e
	case err != nil:
		return Identity{}, accessDenied(reasonAuth, "The signature could not be verified: %v.", err)
	case id.Name == "":
		return Identity{}, accessDenied(reasonAuth, "Anonymous requests are not served by RDMA.")
	}
	return id, nil
}

// peerAllowed holds a host against the allow-list.
func (p *Plugin) peerAllowed(addr netip.Addr, r *http.Request) bool {
	if len(p.cfg.AllowPeers) == 0 {
		client, ok := remoteAddr(r)
		return ok && client == addr
	}
	for _, n := range p.cfg.AllowPeers {
		if n.Contains(addr) {
			return true
		}
	}
	return false
}

// open waits for staging memory and has the link opened.
func (q *request) open(f rdmaio.Fabric, d rdmaio.Descriptor, id Identity, openLink func(context.Context) (rdmaio.Link, error)) (*transfer, *Error) {
	ctx, cancel := context.WithCancel(q.r.Context())
	stop := context.AfterFunc(q.p.ctx, cancel) // Close aborts transfers
	free := func() { stop(); cancel() }
	asked := time.Now()
	lease, err := q.p.cfg.Staging.Acquire(ctx, id.Name, int64(max(d.Size, 1)))
	q.info.StagingWait = time.Since(asked)
	if err != nil {
		free()
		q.info.Err = err
		return nil, slowDown(reasonStaging, "All staging memory is in use. Please reduce your request rate.")
	}
	link, err := openLink(ctx)
	if err != nil {
		lease.Release()
		free()
		q.info.Err = err
		return nil, openError(d, err)
	}
	slabs := make([]rdmaio.Slice, lease.Slabs())
	for i := range slabs {
		slabs[i] = lease.Slab(i, f)
	}
	return newTransfer(ctx, link, cut(slabs), q.p.cfg.Staging.SlabSize(), f.Capabilities(), q.op == OpGetObject, q.p.cfg.StallTimeout, func() {
		lease.Release()
		free()
	}), nil
}

// openError tells a client why no link could be had.
func openError(d rdmaio.Descriptor, err error) *Error {
	switch {
	case errors.Is(err, rdmaio.ErrNoSession):
		e := declined(reasonSession, "The %s session does not exist (any more). Connect again; use plain HTTP meanwhile.", d.Transport)
		e.Code = CodeNoSession
		return e
	case errors.Is(err, rdmaio.ErrUnsupported), errors.Is(err, rdmaio.ErrClosed):
		return declined(reasonTransport, "The %s fabric cannot serve this descriptor: %v. Use plain HTTP.", d.Transport, err)
	case errors.Is(err, rdmaio.ErrNotOwner):
		return accessDenied(reasonOwner, "The %s session belongs to another identity.", d.Transport)
	case errors.Is(err, rdmaio.ErrRefused):
		return accessDenied(reasonPeer, "The peer is not on this server's allow-list.")
	case errors.Is(err, rdmaio.ErrTooMany):
		return slowDown(reasonSessions, "The %s fabric is at its limit. Please reduce your request rate.", d.Transport)
	}
	return transferFailed("No link to the client's memory: %v.", err)
}

// get serves a GET whose transfer is ready.
func (q *request) get(t *transfer, id Identity, d rdmaio.Descriptor, sums *integrity) *Error {
	inner, err := q.divert(id, nil, 0)
	if err != nil {
		return divertFailed(err)
	}
	if sums.sum != nil {
		t.sumInto(sums.sum)
	}
	g := newGetWriter(q.w, t, d.Size)
	g.exact = q.retarget != nil
	q.next.ServeHTTP(g, inner.WithContext(context.WithValue(inner.Context(), directKey{}, &Sink{g})))
	e := g.finish()
	g.path.tell(&q.info)
	q.info.Bytes = int64(t.at)
	q.info.Err = t.err
	if e == nil && !g.passed {
		if err := sums.contradicts(g.header, g.status); err != nil {
			e = sumMismatch(err)
		}
	}
	switch {
	case e != nil:
		return e
	case g.passed:
		q.info.Outcome, q.info.Reason = OutcomePassed, reasonServerAnswer
	default:
		g.commit(q.bearer.dialect, sums, strings.EqualFold(q.r.Header.Get("x-amz-checksum-mode"), "ENABLED"))
		q.info.Outcome = OutcomeServed
	}
	q.info.Status = g.status
	return nil
}

// put serves a PUT or an UploadPart whose transfer is ready.
func (q *request) put(t *transfer, id Identity, d rdmaio.Descriptor, sums *integrity) *Error {
	body := &putBody{size: int64(d.Size), t: t, sums: sums}
	inner, err := q.divert(id, body, body.size)
	if err != nil {
		return divertFailed(err)
	}
	if err := sums.announce(inner.Trailer); err != nil {
		return divertFailed(err)
	}
	answer := newHeldAnswer(q.w)
	defer body.finish() // if the handler panics
	q.next.ServeHTTP(answer, inner.WithContext(context.WithValue(inner.Context(), directKey{}, &Source{body})))
	body.finish()
	body.path.tell(&q.info)
	answer.WriteHeader(http.StatusOK) // net/http's reading of a handler that wrote nothing
	q.info.Bytes = int64(t.at)
	q.info.Err = t.err
	complete, failure := body.result()
	switch {
	case failure != nil:
		// Whatever the handler made of its broken body, this is why.
		return failure
	case !answer.success():
		answer.send(q.w)
		q.info.Outcome, q.info.Reason = OutcomePassed, reasonServerAnswer
	case !complete:
		return transferFailed("The server answered with success, but took only part of the %d bytes.", body.size)
	default:
		sums.prove(answer.header)
		answer.status = q.bearer.dialect.Succeed(answer.header, answer.status, body.size)
		answer.send(q.w)
		q.info.Outcome = OutcomeServed
	}
	q.info.Status = answer.status
	return nil
}

func divertFailed(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{http.StatusInternalServerError, "InternalError", fmt.Sprintf("The request could not be diverted: %v.", err), reasonTransfer, false}
}

// refuse answers with e.
func (q *request) refuse(e *Error) {
	switch {
	case e.reply:
		q.info.Outcome = OutcomeDeclined
		d := q.bearer.dialect
		if d == nil {
			d = q.p.dialects[0]
		}
		d.Decline(q.w.Header(), e.Status)
	case e.Status == http.StatusServiceUnavailable:
		q.info.Outcome = OutcomeBusy
		q.w.Header().Set("Retry-After", "1")
	case e.Status < 500:
		q.info.Outcome = OutcomeRefused
	default:
		q.info.Outcome = OutcomeFailed
	}
	q.info.Reason, q.info.Status = e.reason, e.Status
	if q.info.Err == nil {
		q.info.Err = e
	}
	q.s.WriteError(q.w, q.r, e)
}

func (q *request) report(started time.Time) {
	q.info.Op = q.op
	if q.bearer.dialect != nil {
		q.info.Dialect = q.bearer.dialect.Name()
	}
	if q.info.Outcome == 0 { // a panic passes through
		q.info.Outcome, q.info.Reason = OutcomeFailed, reasonServerAnswer
	}
	q.info.Duration = time.Since(started)
	q.p.cfg.Listener.requestDone(q.info)
}

// checkBody refuses a PUT whose HTTP message contradicts its descriptor.
func checkBody(r *http.Request) *Error {
	sha := r.Header.Get("x-amz-content-sha256")
	switch {
	case strings.HasPrefix(sha, "STREAMING-"),
		r.Header.Get("x-amz-decoded-content-length") != "",
		r.Header.Get("x-amz-trailer") != "",
		strings.Contains(strings.ToLower(r.Header.Get("Content-Encoding")), "aws-chunked"):
		return invalidRequest(reasonBody, "An aws-chunked body or trailer cannot go with a memory descriptor: the body is in memory. Send no body, sign with UNSIGNED-PAYLOAD, and declare the checksum of the memory in a header.")
	case hasBody(r):
		return invalidRequest(reasonBody, "The request bears both a body and a memory descriptor. Send one of them.")
	}
	return nil
}

// hasBody tells whether r brings an HTTP body. A body of unknown length counts,
// also if it turns out empty: absent is not zero.
func hasBody(r *http.Request) bool {
	return r.ContentLength != 0 || len(r.TransferEncoding) > 0
}

func remoteAddr(r *http.Request) (netip.Addr, bool) {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}, false
	}
	return ap.Addr().Unmap().WithZone(""), true
}

func localAddr(r *http.Request) netip.Addr {
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

var _ io.ReadCloser = (*putBody)(nil)
