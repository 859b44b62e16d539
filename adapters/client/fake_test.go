// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeTarget is a target whose memory the test's own server reaches by function
// calls, under the rules of the interface: a withdrawn key reaches nothing.
type fakeTarget struct {
	mu       sync.Mutex
	session  rdmaio.SessionID
	regions  map[uint32]*fakeExposed
	nextKey  uint32
	connects int
	closed   bool

	rekeys    int
	rekeyErr  error
	rekeyHook func() // called without the lock before a key is withdrawn
	connErr   error
}

func newFakeTarget() *fakeTarget {
	return &fakeTarget{regions: map[uint32]*fakeExposed{}, nextKey: 100}
}

const fakeHello = "hello-of-the-fake"

func (t *fakeTarget) Name() string { return "shm" }
func (t *fakeTarget) Hello(context.Context) (rdmaio.Hello, error) {
	return rdmaio.Hello{Token: fakeHello, PSN: 0xabc}, nil
}
func (t *fakeTarget) Connect(_ context.Context, w rdmaio.Welcome) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.connErr != nil {
		return t.connErr
	}
	t.session = w.Session
	t.connects++
	for _, e := range t.live() {
		t.assign(e)
	}
	return nil
}
func (t *fakeTarget) live() (all []*fakeExposed) {
	for _, e := range t.regions {
		all = append(all, e)
	}
	return all
}
func (t *fakeTarget) assign(e *fakeExposed) {
	delete(t.regions, e.key)
	t.nextKey++
	e.key = t.nextKey
	t.regions[e.key] = e
}
func (t *fakeTarget) Register(mem []byte, _ rdmaio.Access) (rdmaio.Exposed, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := &fakeExposed{t: t, mem: mem}
	t.assign(e)
	return e, nil
}
func (t *fakeTarget) Alloc(n int, a rdmaio.Access) (rdmaio.Exposed, error) {
	return t.Register(make([]byte, n), a)
}
func (t *fakeTarget) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return nil
}

// window is the memory that a descriptor names, for a server that holds it now.
func (t *fakeTarget) do(d rdmaio.Descriptor, f func(window []byte)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d.Session != t.session {
		return rdmaio.ErrNoSession
	}
	e := t.regions[d.RKey]
	if e == nil {
		return rdmaio.ErrStaleKey
	}
	f(e.mem[d.Addr-fakeBase:][:d.Size])
	return nil
}
func (t *fakeTarget) counted() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rekeys
}

const fakeBase = 0x10000

type fakeExposed struct {
	t   *fakeTarget
	mem []byte
	key uint32
}

func (e *fakeExposed) Bytes() []byte { return e.mem }
func (e *fakeExposed) Describe(off, n int) (rdmaio.Descriptor, error) {
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	if err := rdmaio.CheckBounds(uint64(len(e.mem)), uint64(off), uint64(n)); err != nil {
		return rdmaio.Descriptor{}, err
	}
	if e.t.session.IsZero() {
		return rdmaio.Descriptor{}, rdmaio.ErrNoSession
	}
	return rdmaio.Descriptor{Transport: rdmaio.TransportSHM, Session: e.t.session,
		Addr: fakeBase + uint64(off), Size: uint64(n), RKey: e.key}, nil
}
func (e *fakeExposed) Rekey(ctx context.Context) error {
	if h := e.t.rekeyHook; h != nil {
		h()
	}
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	e.t.rekeys++
	if e.t.rekeyErr != nil {
		return e.t.rekeyErr
	}
	e.t.assign(e)
	return nil
}
func (e *fakeExposed) Close() error {
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	delete(e.t.regions, e.key)
	return nil
}

type stored struct {
	data   []byte
	etag   string
	header http.Header
}

// fakeServer is an S3 server of a few calls, with a fabric that ends in a
// fakeTarget.
type fakeServer struct {
	t      *testing.T
	target *fakeTarget
	url    string

	mu       sync.Mutex
	objects  map[string]stored
	sessions map[string]bool
	connects int
	leaves   int
	tokens   []string // of object requests, in order
	payload  int64    // object bytes in HTTP bodies, both ways

	noSession string // code of the decline for a lost session, if not NotImplemented

	// hook may answer a request itself (and return true). It runs without the
	// lock.
	hook func(w http.ResponseWriter, r *http.Request) bool
}

func newFakeServer(t *testing.T) *fakeServer {
	s := &fakeServer{t: t, target: newFakeTarget(), objects: map[string]stored{}, sessions: map[string]bool{}}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	s.url = srv.URL
	return s
}

func (s *fakeServer) client(o Options) *Client {
	s.t.Helper()
	o.Endpoint = s.url
	if o.Credentials == nil {
		o.Credentials = StaticCredentials("alice", "secret-of-alice")
	}
	if o.Target == nil {
		o.Target = s.target
	}
	c, err := New(o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			s.t.Errorf("close: %v", err)
		}
	})
	return c
}

func (s *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=alice") {
		http.Error(w, "unsigned", http.StatusForbidden)
		return
	}
	for name := range r.Header {
		if l := strings.ToLower(name); strings.HasPrefix(l, "x-amz-") && !strings.Contains(r.Header.Get("Authorization"), l) {
			http.Error(w, l+" is not signed", http.StatusForbidden)
			return
		}
	}
	token := r.Header.Get(headerToken)
	if token != "" && !strings.HasPrefix(r.URL.Path, "/.s3rdma-") {
		s.mu.Lock()
		s.tokens = append(s.tokens, token)
		s.mu.Unlock()
	}
	if s.hook != nil && s.hook(w, r) {
		return
	}
	switch {
	case r.URL.Path == "/.s3rdma-shm/connect":
		if token != fakeHello || r.Header.Get(headerPSN) != "000abc" {
			http.Error(w, "bad hello", http.StatusBadRequest)
			return
		}
		id := rdmaio.NewSessionID()
		s.mu.Lock()
		s.connects++
		s.sessions[id.Hex()] = true
		s.mu.Unlock()
		w.Header().Set(headerSession, id.Hex())
		w.Header().Set(headerReply, "200:"+"welcome")
	case r.URL.Path == "/.s3rdma-shm/disconnect":
		s.mu.Lock()
		s.leaves++
		delete(s.sessions, r.Header.Get(headerSession))
		s.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodPut:
		s.put(w, r, token)
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		s.get(w, r, token)
	default:
		http.Error(w, "what?", http.StatusMethodNotAllowed)
	}
}

func fail(w http.ResponseWriter, status int, code, message string) {
	w.Header().Del("ETag")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", code, message)
}

// open finds the window of a token, or answers.
func (s *fakeServer) open(w http.ResponseWriter, token string) (d rdmaio.Descriptor, ok bool) {
	d, _, err := rdmaio.Parse(token, rdmaio.ParseOptions{})
	if err != nil {
		fail(w, 400, "InvalidRDMAToken", "malformed")
		return d, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.sessions[d.Session.Hex()] {
		w.Header().Set(headerReply, "501")
		fail(w, 501, cmp.Or(s.noSession, "NotImplemented"), "no such session")
		return d, false
	}
	return d, true
}

func (s *fakeServer) put(w http.ResponseWriter, r *http.Request, token string) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	s.payload += int64(len(data))
	s.mu.Unlock()
	if token != "" {
		d, ok := s.open(w, token)
		if !ok {
			return
		}
		if len(data) > 0 {
			fail(w, 400, "InvalidRequest", "body and descriptor")
			return
		}
		if err := s.target.do(d, func(win []byte) { data = bytes.Clone(win) }); err != nil {
			fail(w, 500, "RDMATransferFailed", err.Error())
			return
		}
	}
	sums, err := checksum.FromHeader(r.Header)
	if err != nil || len(sums) == 0 {
		fail(w, 400, "InvalidDigest", "every PUT of this client has a checksum")
		return
	}
	for _, sum := range sums {
		if checksum.Of(sum.Algorithm(), data) != sum {
			fail(w, 400, "BadDigest", "mismatch")
			return
		}
	}
	o := stored{data: data, etag: fmt.Sprintf(`"%x"`, md5.Sum(data)), header: http.Header{}}
	for name, v := range r.Header {
		if strings.HasPrefix(name, "X-Amz-Meta-") || strings.HasPrefix(name, "X-Amz-Checksum-") || name == "Content-Type" {
			o.header[name] = v
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, exists := s.objects[r.URL.Path]; exists && r.Header.Get("If-None-Match") == "*" {
		fail(w, 412, "PreconditionFailed", "exists")
		return
	}
	s.objects[r.URL.Path] = o
	w.Header().Set("ETag", o.etag)
	if token != "" {
		w.Header().Set(headerReply, "200")
		w.Header().Set(headerBytes, fmt.Sprint(len(data)))
	}
}

func (s *fakeServer) get(w http.ResponseWriter, r *http.Request, token string) {
	s.mu.Lock()
	o, ok := s.objects[r.URL.Path]
	s.mu.Unlock()
	if !ok {
		fail(w, 404, "NoSuchKey", "no such key")
		return
	}
	for name, v := range o.header {
		if strings.HasPrefix(name, "X-Amz-Checksum-") && (r.Header.Get("x-amz-checksum-mode") != "ENABLED") {
			continue
		}
		w.Header()[name] = v
	}
	w.Header().Set("ETag", o.etag)
	if token == "" {
		cw := &countingWriter{ResponseWriter: w}
		http.ServeContent(cw, r, "", time.Time{}, bytes.NewReader(o.data))
		s.mu.Lock()
		s.payload += cw.n
		s.mu.Unlock()
		return
	}
	d, ok := s.open(w, token)
	if !ok {
		return
	}
	rec := httptest.NewRecorder()
	http.ServeContent(rec, r, "", time.Time{}, bytes.NewReader(o.data))
	if rec.Code != 200 && rec.Code != 206 {
		fail(w, rec.Code, "Code", "message")
		return
	}
	body := rec.Body.Bytes()
	if uint64(len(body)) > d.Size {
		fail(w, 400, "RDMAWindowTooSmall", "too small")
		return
	}
	if err := s.target.do(d, func(win []byte) { copy(win, body) }); err != nil {
		fail(w, 500, "RDMATransferFailed", err.Error())
		return
	}
	if cr := rec.Header().Get("Content-Range"); cr != "" {
		w.Header().Set("Content-Range", cr)
	}
	w.Header().Set(headerReply, fmt.Sprint(rec.Code))
	w.Header().Set(headerBytes, fmt.Sprint(len(body)))
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(rec.Code)
}

type countingWriter struct {
	http.ResponseWriter
	n int64
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.n += int64(len(p))
	return w.ResponseWriter.Write(p)
}

// pattern is n bytes that tell their place.
func pattern(n int, seed byte) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i) ^ byte(i>>8)*31 ^ seed
	}
	return p
}

func mustAlloc(t *testing.T, c *Client, n int) *Buffer {
	t.Helper()
	b, err := c.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// wantErr fails unless err is target, or both are nil; and in any case if the text
// has a secret.
func (s *fakeServer) wantErr(t *testing.T, err, target error) {
	t.Helper()
	if (err == nil) != (target == nil) || err != nil && !errors.Is(err, target) {
		t.Errorf("error %v, want %v", err, target)
	}
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, token := range s.tokens {
		f := strings.Split(token, ":")
		for _, secret := range []string{token, f[1], ":" + f[4]} {
			if text := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(text, secret) {
				t.Errorf("the error shows a secret: %s", text)
			}
		}
	}
}
