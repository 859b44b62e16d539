// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio"
)

// defect is a way in which fakeRDMA goes wrong on purpose.
type defect string

// fakeRDMA serves descriptors in front of a fakeS3, correctly but for one defect.
// Its fabric is the process's own memory: targets register themselves with it.
type fakeRDMA struct {
	s3     *fakeS3
	defect defect
	off    bool

	mu       sync.Mutex
	sessions map[rdmaio.SessionID]*fakeSession
}

type fakeSession struct {
	owner  string
	target *fakeTarget
}

func (f *fakeRDMA) is(d defect) bool { return f.defect == d }

func declined(w http.ResponseWriter) {
	w.Header().Set(headerReply, "501")
	fakeError(w, 501, "NotImplemented", "use HTTP")
}

func (f *fakeRDMA) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/.s3rdma-") {
		f.serveSession(w, r)
		return
	}
	values := append(slices.Clone(r.Header.Values(headerToken)), r.Header.Values(headerAlias)...)
	_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	q := r.URL.Query()
	concerned := len(values) > 0 && key != "" && r.Header.Get("X-Amz-Copy-Source") == "" && !isSubresource(q) && !q.Has("uploads") &&
		(r.Method == "PUT" || r.Method == "GET" && !q.Has("uploadId"))
	if f.is("subresources are taken for objects") && len(values) > 0 && isSubresource(q) {
		concerned = true
	}
	switch {
	case f.is("HEAD handled as GET") && len(values) > 0 && r.Method == "HEAD":
		w.Header().Set("Content-Length", "0")
	case f.is("copy declined") && len(values) > 0 && r.Header.Get("X-Amz-Copy-Source") != "":
		declined(w)
	case !concerned:
		f.s3.ServeHTTP(w, r)
	case f.off && f.is("passed through when off"):
		f.s3.ServeHTTP(w, r)
	case f.off:
		declined(w)
	default:
		f.serveToken(w, r, values)
	}
}

func (f *fakeRDMA) serveSession(w http.ResponseWriter, r *http.Request) {
	if f.off {
		declined(w)
		return
	}
	who, ok := f.s3.authenticate(r)
	signed := slices.Contains(who.signed, headerToken) || strings.HasSuffix(r.URL.Path, "/disconnect")
	if !ok || (who.name == "" || !signed) && !f.is("connect needs no signature") {
		fakeError(w, 403, "AccessDenied", "no")
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if strings.HasSuffix(r.URL.Path, "/connect") {
		if r.Header.Get(headerToken) != "1" {
			fakeError(w, 400, "InvalidRDMAToken", "no hello")
			return
		}
		id := rdmaio.NewSessionID()
		f.sessions[id] = &fakeSession{owner: who.name}
		w.Header().Set(headerSession, id.Hex())
		w.Header().Set(headerReply, "200:welcome")
		return
	}
	id, err := rdmaio.ParseSessionID(r.Header.Get(headerSession))
	s := f.sessions[id]
	switch {
	case err != nil || s == nil:
		fakeError(w, 404, "NoSuchSession", "no")
	case s.owner != who.name:
		fakeError(w, 403, "AccessDenied", "no")
	default:
		if !f.is("disconnect does nothing") {
			delete(f.sessions, id)
		}
		w.WriteHeader(204)
	}
}

func (f *fakeRDMA) serveToken(w http.ResponseWriter, r *http.Request, values []string) {
	who, ok := f.s3.authenticate(r)
	covered := true
	for _, name := range []string{headerToken, headerAlias} {
		if r.Header.Values(name) != nil && !slices.Contains(who.signed, name) {
			covered = false
		}
	}
	if f.is("unsigned descriptors are served") {
		covered = true
	}
	if !ok || who.name == "" && !f.is("anonymous descriptors are served") || who.name != "" && !covered {
		fakeError(w, 403, "AccessDenied", "no")
		return
	}
	if len(slices.Compact(values)) > 1 {
		fakeError(w, 400, "InvalidRDMAToken", "two descriptors")
		return
	}
	d, _, err := rdmaio.Parse(values[0], rdmaio.ParseOptions{})
	switch {
	case err != nil && f.is("what is not understood is ignored"):
		f.s3.ServeHTTP(w, r)
		return
	case errors.Is(err, rdmaio.ErrMalformed) && f.is("malformed is declined"):
		declined(w)
		return
	case errors.Is(err, rdmaio.ErrMalformed):
		message := "malformed"
		if f.is("errors show the descriptor") {
			message = "malformed: " + values[0]
		}
		fakeError(w, 400, "InvalidRDMAToken", message)
		return
	case err != nil && f.is("unknown dialects are malformed"):
		fakeError(w, 400, "InvalidRDMAToken", "unknown")
		return
	case err != nil:
		declined(w)
		return
	}
	if r.Method == "PUT" && !f.is("a body is ignored") && (r.ContentLength != 0 || r.Header.Get("X-Amz-Trailer") != "" || r.Header.Get("X-Amz-Decoded-Content-Length") != "") {
		fakeError(w, 400, "InvalidRequest", "a body beside a descriptor")
		return
	}
	f.mu.Lock()
	s := f.sessions[d.Session]
	f.mu.Unlock()
	if d.Transport != rdmaio.TransportTCP || s == nil {
		if f.is("unknown sessions are empty objects") && r.Method == "PUT" {
			r.Body = http.NoBody
			f.s3.ServeHTTP(w, r)
			return
		}
		declined(w)
		return
	}
	if s.owner != who.name && !f.is("sessions serve anybody") && !f.is("anonymous descriptors are served") {
		fakeError(w, 403, "AccessDenied", "no")
		return
	}
	ask, status := f.policy(r, who)
	switch {
	case status == 501:
		declined(w)
	case status != 0:
		fakeError(w, status, "InvalidRequest", "no")
	case r.Method == "PUT":
		f.put(w, r, s, d, ask)
	default:
		f.get(w, r, s, d, ask)
	}
}

// policy reads what a request asks of its checksums, or returns the status to refuse it
// with. The server's own policy is region.
func (f *fakeRDMA) policy(r *http.Request, who fakeIdentity) (checksum.RegionRequest, int) {
	ask, err := checksum.ParseRegionRequest(r.Header)
	switch {
	case errors.Is(err, checksum.ErrUnknownAlgorithm):
		return ask, 501
	case err != nil:
		return ask, 400
	}
	if !f.is("a request can ask for less") || r.Header.Get(checksum.HeaderPolicy) == "" {
		ask.Policy = ask.Policy.With(checksum.PolicyRegion)
	}
	if ask.Algorithm == 0 {
		ask.Algorithm = checksum.CRC64NVME
	}
	for name := range r.Header {
		name = strings.ToLower(name)
		wanted := strings.HasPrefix(name, checksum.RegionPrefix) && !f.is("policies need no signature")
		if ask.Policy.Envelope() && (strings.HasPrefix(name, "x-amz-") || name == "range") {
			wanted = true
		}
		if wanted && !slices.Contains(who.signed, name) {
			return ask, 403
		}
	}
	if ask.Policy.Envelope() && !f.is("the payload's hash may be missing") && r.Header.Get("X-Amz-Content-Sha256") == "UNSIGNED-PAYLOAD" {
		return ask, 400
	}
	return ask, 0
}

// prove says what moved.
func (f *fakeRDMA) prove(h http.Header, ask checksum.RegionRequest, moved []byte) checksum.RegionProof {
	p := checksum.RegionProof{Policy: ask.Policy}
	if p.Policy.Region() {
		p.Sum = checksum.Of(ask.Algorithm, moved)
	}
	if ask.Block > 0 {
		p.List, _ = checksum.ListOf(ask.Algorithm, ask.Block, moved)
	}
	p.Set(h)
	return p
}

func transferFailed(w http.ResponseWriter) {
	fakeError(w, 500, "RDMATransferFailed", "no")
}

// reach returns the memory that d names, if its key is valid.
func (f *fakeRDMA) reach(s *fakeSession, d rdmaio.Descriptor) ([]byte, int, bool) {
	if s.target == nil {
		return nil, 0, false
	}
	if f.is("keys are not checked") {
		return s.target.find(0)
	}
	return s.target.find(d.RKey)
}

func (f *fakeRDMA) put(w http.ResponseWriter, r *http.Request, s *fakeSession, d rdmaio.Descriptor, ask checksum.RegionRequest) {
	if d.Size == 0 && !f.is("an empty window is an empty object") {
		fakeError(w, 400, "InvalidRequest", "no bytes")
		return
	}
	mem, base, ok := f.reach(s, d)
	off := int(d.Addr) - base
	if !ok || off < 0 || off > len(mem) || int(d.Size) > len(mem)-off && !f.is("short transfers are stored") {
		transferFailed(w)
		return
	}
	n := min(int(d.Size), len(mem)-off)
	data := bytes.Clone(mem[off : off+n])
	if f.is("the last byte is lost") {
		data = data[:n-1]
	}
	if f.is("checksums are not verified") {
		for name := range r.Header {
			if strings.HasPrefix(name, "X-Amz-Checksum-") {
				r.Header.Del(name)
			}
		}
		r.Header.Del("Content-Md5")
	}
	switch r.Header.Get("X-Amz-Content-Sha256") {
	case "UNSIGNED-PAYLOAD":
	case "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855":
		r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	}
	if f.is("metadata is dropped") {
		r.Header.Del("X-Amz-Meta-One")
	}
	if ask.Blocks != "" && !f.is("a damaged block is stored") {
		declared, err := checksum.ParseList(ask.Algorithm, ask.Block, int64(n), ask.Blocks)
		if err == nil {
			err = declared.Verify(data)
		}
		if err != nil {
			fakeError(w, 400, "BadDigest", err.Error())
			return
		}
	}
	answer := f.inner(r, data)
	if answer.Code == 200 {
		f.prove(answer.Header(), ask, data)
		answer.Header().Set(headerBytes, strconv.Itoa(len(data)))
		if !f.is("a PUT bears no reply") {
			answer.Header().Set(headerReply, "200")
		}
		if f.is("a PUT bears no ETag") {
			answer.Header().Del("Etag")
		}
	}
	relay(w, answer, answer.Body.Bytes())
}

// inner runs the request against the S3 behind, with another body. The signature was
// checked before, on the request as it came.
func (f *fakeRDMA) inner(r *http.Request, body []byte) *httptest.ResponseRecorder {
	in := r.Clone(r.Context())
	in.Body = io.NopCloser(bytes.NewReader(body))
	rec := httptest.NewRecorder()
	trusted := &fakeS3Trusted{f.s3}
	trusted.ServeHTTP(rec, in)
	return rec
}

// fakeS3Trusted skips the signature.
type fakeS3Trusted struct{ s *fakeS3 }

func (t *fakeS3Trusted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if t.s.buckets[bucket] == nil {
		fakeError(w, 404, "NoSuchBucket", "no")
		return
	}
	if r.Header.Get("X-Amz-Server-Side-Encryption") != "" {
		fakeError(w, 501, "NotImplemented", "not in this fake")
		return
	}
	t.s.serveObject(w, r, bucket, key, r.URL.Query(), body)
}

func relay(w http.ResponseWriter, answer *httptest.ResponseRecorder, body []byte) {
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if answer.Code == 304 {
		w.Header().Del("Content-Length")
	}
	w.WriteHeader(answer.Code)
	w.Write(body)
}

func (f *fakeRDMA) get(w http.ResponseWriter, r *http.Request, s *fakeSession, d rdmaio.Descriptor, ask checksum.RegionRequest) {
	answer := f.inner(r, nil)
	data := answer.Body.Bytes()
	if answer.Code == 200 || answer.Code == 206 {
		moved := data
		if f.is("a range's checksum is another's") && answer.Code == 206 {
			moved = data[1:]
		}
		f.prove(answer.Header(), ask, moved)
	}
	mem, base, ok := f.reach(s, d)
	off := int(d.Addr) - base
	if f.is("failed conditions write") && answer.Code == 412 && ok {
		mem[off] ^= 0xff
	}
	if answer.Code != 200 && answer.Code != 206 {
		relay(w, answer, data)
		return
	}
	if uint64(len(data)) > d.Size {
		if !f.is("what does not fit is cut") {
			fakeError(w, 400, "EntityTooLarge", "window too small")
			return
		}
		data = data[:d.Size]
	}
	if len(data) > 0 && (!ok || off < 0 || off > len(mem) || len(data) > len(mem)-off) {
		transferFailed(w)
		return
	}
	at := off
	var first int
	if n, _ := fmt.Sscanf(answer.Header().Get("Content-Range"), "bytes %d-", &first); n == 1 && f.is("a range's offset is the window's") {
		at = min(off+first, len(mem)-len(data))
	}
	switch {
	case f.is("the window is not written"):
	case f.is("bytes arrive after the answer"):
		late := bytes.Clone(data)
		copy(mem[at:], data)
		defer time.AfterFunc(5*time.Millisecond, func() {
			s.target.mu.Lock()
			defer s.target.mu.Unlock()
			copy(mem[at:], late)
		})
	default:
		copy(mem[at:], data)
	}
	if f.is("a byte too many is written") && at+len(data) < len(mem) {
		mem[at+len(data)] ^= 0xff
	}
	if f.is("a byte before is written") && at > 0 {
		mem[at-1] ^= 0xff
	}
	reply := answer.Code
	if f.is("a range's reply is 200") {
		reply = 200
	}
	answer.Header().Set(headerReply, strconv.Itoa(reply))
	if !f.is("no count for empty objects") || len(data) > 0 {
		answer.Header().Set(headerBytes, strconv.Itoa(len(data)))
	}
	if f.is("partNumber answers 200") && r.URL.Query().Has("partNumber") {
		answer.Code = 200
	}
	body := data[:0]
	if f.is("the body comes by HTTP, too") {
		body = data
	}
	relay(w, answer, body)
}

// fakeTarget is a target in the server's own process.
type fakeTarget struct {
	server *fakeRDMA

	mu      sync.Mutex
	session rdmaio.SessionID
	regions map[uint32]*fakeExposed
	next    uint32
	closed  bool
}

func newFakeTarget(f *fakeRDMA) *fakeTarget {
	return &fakeTarget{server: f, regions: map[uint32]*fakeExposed{}, next: 100}
}

func (t *fakeTarget) Name() string { return "tcp" }

func (t *fakeTarget) Hello(context.Context) (rdmaio.Hello, error) {
	return rdmaio.Hello{Token: "1"}, nil
}

func (t *fakeTarget) Connect(_ context.Context, w rdmaio.Welcome) error {
	t.server.mu.Lock()
	defer t.server.mu.Unlock()
	s := t.server.sessions[w.Session]
	if s == nil {
		return rdmaio.ErrNoSession
	}
	s.target = t
	t.mu.Lock()
	defer t.mu.Unlock()
	t.session = w.Session
	return nil
}

func (t *fakeTarget) Register([]byte, rdmaio.Access) (rdmaio.Exposed, error) {
	return nil, rdmaio.ErrUnsupported
}

func (t *fakeTarget) Alloc(n int, _ rdmaio.Access) (rdmaio.Exposed, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next++
	e := &fakeExposed{t: t, mem: make([]byte, n), base: int(t.next) << 32, key: t.next}
	t.regions[e.key] = e
	return e, nil
}

// find returns the memory under key, or any region for key 0.
func (t *fakeTarget) find(key uint32) ([]byte, int, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, 0, false
	}
	e := t.regions[key]
	if key == 0 {
		for _, e = range t.regions {
		}
	}
	if e == nil {
		return nil, 0, false
	}
	return e.mem, e.base, true
}

func (t *fakeTarget) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return nil
}

type fakeExposed struct {
	t    *fakeTarget
	mem  []byte
	base int
	key  uint32
}

func (e *fakeExposed) Bytes() []byte { return e.mem }

func (e *fakeExposed) Describe(off, n int) (rdmaio.Descriptor, error) {
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	return rdmaio.Descriptor{Transport: rdmaio.TransportTCP, Session: e.t.session, Addr: uint64(e.base + off), Size: uint64(n), RKey: e.key}, nil
}

func (e *fakeExposed) Rekey(context.Context) error {
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	delete(e.t.regions, e.key)
	e.t.next++
	e.key = e.t.next
	e.t.regions[e.key] = e
	return nil
}

func (e *fakeExposed) Close() error {
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	delete(e.t.regions, e.key)
	return nil
}
