// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
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
	"github.com/s3rdma/s3rdma/rdmaio/staging"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memFabric transfers with plain Go memory: a session's window is at an address
// of the test's choosing. It moves bytes only in Fence, so that what was posted
// and not fenced is seen to be missing.
type memFabric struct {
	mu      sync.Mutex
	mem     []byte // the target's memory, from address base on
	base    uint64
	session rdmaio.SessionID
	owner   string
	links   int
	opens   int
	fail    func(op string, at uint64) error // called for each post and fence
	hang    bool                             // Fence waits for its context
	device  bool                             // claims that a device moves the bytes
	instant bool                             // claims that a fence costs nothing
}

const memBase = 0x10000

func (f *memFabric) Capabilities() rdmaio.Capabilities {
	return rdmaio.Capabilities{Name: "shm", MaxTransfer: 1000, MaxWindow: rdmaio.MaxWindow, FenceLimit: time.Second, Software: !f.device, Immediate: f.instant}
}
func (f *memFabric) Register(mem []byte) (rdmaio.Region, error) { return memRegion{mem}, nil }
func (f *memFabric) Close() error                               { return nil }

func (f *memFabric) Accept(_ context.Context, h rdmaio.Hello) (rdmaio.Welcome, error) {
	switch h.Token {
	case "1":
	case "full":
		return rdmaio.Welcome{}, rdmaio.ErrTooMany
	case "2":
		return rdmaio.Welcome{}, rdmaio.ErrUnsupported
	default:
		return rdmaio.Welcome{}, rdmaio.ErrMalformed
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.owner = h.Owner
	return rdmaio.Welcome{Session: f.session, Token: "come-in"}, nil
}

func (f *memFabric) Hangup(_ context.Context, id rdmaio.SessionID, owner string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case id != f.session || f.owner == "":
		return rdmaio.ErrNoSession
	case owner != f.owner:
		return rdmaio.ErrNotOwner
	}
	f.owner = ""
	return nil
}

func (f *memFabric) Open(_ context.Context, d rdmaio.Descriptor, owner string) (rdmaio.Link, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case d.Session != f.session || f.owner == "":
		return nil, rdmaio.ErrNoSession
	case owner != f.owner:
		return nil, rdmaio.ErrNotOwner
	case d.RKey != 7:
		return nil, fmt.Errorf("open: %w", rdmaio.ErrStaleKey)
	case d.Addr < f.base || d.Addr+d.Size > f.base+uint64(len(f.mem)):
		return nil, fmt.Errorf("open: %w", rdmaio.ErrOutOfBounds)
	}
	f.links++
	f.opens++
	return &memLink{f: f, window: f.mem[d.Addr-f.base:][:d.Size:d.Size]}, nil
}

type memRegion struct{ mem []byte }

func (r memRegion) Bytes() []byte { return r.mem }
func (r memRegion) Close() error  { return nil }

type memLink struct {
	f      *memFabric
	window []byte
	posted []func()
	down   error
	closed bool
}

func (l *memLink) post(op string, s rdmaio.Slice, at uint64, move func()) error {
	if l.down != nil {
		return rdmaio.ErrLinkDown
	}
	if err := rdmaio.CheckBounds(uint64(len(l.window)), at, uint64(s.Len)); err != nil {
		l.down = err
		return err
	}
	if l.f.fail != nil {
		if err := l.f.fail(op, at); err != nil {
			l.down = err
			return err
		}
	}
	l.posted = append(l.posted, move)
	return nil
}

func (l *memLink) Write(_ context.Context, s rdmaio.Slice, at uint64) error {
	return l.post("write", s, at, func() { copy(l.window[at:], s.Bytes()) })
}

func (l *memLink) Read(_ context.Context, s rdmaio.Slice, at uint64) error {
	return l.post("read", s, at, func() { copy(s.Bytes(), l.window[at:]) })
}

func (l *memLink) Fence(ctx context.Context) error {
	if l.down != nil {
		return l.down
	}
	if l.f.fail != nil {
		if err := l.f.fail("fence", 0); err != nil {
			l.down = err
			return err
		}
	}
	if l.f.hang {
		<-ctx.Done()
		l.down = ctx.Err()
		return l.down
	}
	if err := ctx.Err(); err != nil {
		l.down = err
		return err
	}
	for _, move := range l.posted {
		move()
	}
	l.posted = l.posted[:0]
	return nil
}

func (l *memLink) Close() error {
	if !l.closed {
		l.closed = true
		l.f.mu.Lock()
		l.f.links--
		l.f.mu.Unlock()
	}
	return nil
}

// fakeServer is a Server whose requests say of themselves who signed them.
type fakeServer struct{ verifies bool }

func (fakeServer) Classify(r *http.Request) Op {
	q := r.URL.Query()
	switch {
	case q.Has("tagging"), r.Header.Get("x-amz-copy-source") != "":
		return OpOther
	case r.Method == http.MethodGet:
		return OpGetObject
	case r.Method == http.MethodPut && q.Has("append"):
		return OpUnsupportedWrite
	case r.Method == http.MethodPut && q.Has("partNumber"):
		return OpUploadPart
	case r.Method == http.MethodPut:
		return OpPutObject
	}
	return OpOther
}

func (fakeServer) Authenticate(r *http.Request) (Identity, error) {
	switch user := r.Header.Get("Test-User"); user {
	case "forger":
		return Identity{}, &Error{Status: http.StatusForbidden, Code: "SignatureDoesNotMatch", Message: "no"}
	case "broken":
		return Identity{}, io.ErrUnexpectedEOF
	default:
		return Identity{Name: user}, nil
	}
}

func (fakeServer) Divert(r *http.Request, _ Identity, body io.ReadCloser, size int64) (*http.Request, error) {
	inner := r.Clone(r.Context())
	if body != nil {
		inner.Body, inner.ContentLength = body, size
	}
	return inner, nil
}

func (fakeServer) WriteError(w http.ResponseWriter, r *http.Request, e *Error) { e.WriteXML(w, r) }

func (s fakeServer) VerifiesChecksums() bool { return s.verifies }

// store is an S3 handler of one map.
type store struct {
	mu      sync.Mutex
	objects map[string][]byte
	calls   int
	mangle  func(w http.ResponseWriter, r *http.Request) bool // answers instead, if true
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.calls++
	mangle := s.mangle
	s.mu.Unlock()
	if mangle != nil && mangle(w, r) {
		return
	}
	switch r.Method {
	case http.MethodPut:
		b, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, "cannot read the body", http.StatusInternalServerError)
			return
		}
		s.put(r.URL.Path, b)
		w.Header().Set("ETag", etag(b))
		w.WriteHeader(http.StatusOK)
	case http.MethodGet, http.MethodHead:
		b, ok := s.get(r.URL.Path)
		if !ok {
			http.Error(w, "NoSuchKey", http.StatusNotFound)
			return
		}
		w.Header().Set("ETag", etag(b))
		w.Header().Set("X-Amz-Checksum-Crc32", checksum.Of(checksum.CRC32, b).Base64())
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	}
}

func (s *store) put(path string, b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[path] = b
}

func (s *store) get(path string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.objects[path]
	return b, ok
}

func etag(b []byte) string {
	sum := md5.Sum(b)
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

// rig is a plugin before a store, with one client whose memory is fab.mem.
type rig struct {
	t      *testing.T
	fab    *memFabric
	store  *store
	plugin *Plugin
	srv    http.Handler

	mu     sync.Mutex
	events []RequestInfo
}

// newRig's client has n bytes of memory. change may alter the configuration.
func newRig(t *testing.T, n int, change func(*Config, *staging.Options)) *rig {
	t.Helper()
	r := &rig{
		t:     t,
		fab:   &memFabric{mem: make([]byte, n), base: memBase, session: rdmaio.NewSessionID(), owner: "alice"},
		store: &store{objects: map[string][]byte{}},
	}
	cfg := Config{Fabrics: []rdmaio.Fabric{r.fab}}
	opts := staging.Options{Size: 64 << 10, SlabSize: 4096, HugePages: staging.HugePagesOff}
	cfg.Listener.RequestDone = func(i RequestInfo) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(r.events, i)
	}
	if change != nil {
		change(&cfg, &opts)
	}
	pool, err := staging.New(opts, cfg.Fabrics...)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Staging = pool
	if r.plugin, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	r.srv = r.plugin.Handler(fakeServer{}, r.store)
	t.Cleanup(func() {
		if n := pool.Stats().InUse; n != 0 {
			t.Errorf("%d slabs are still lent", n)
		}
		if r.fab.links != 0 {
			t.Errorf("%d links are still open", r.fab.links)
		}
		if err := r.plugin.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// token describes size bytes of the client's memory at off.
func (r *rig) token(off, size int) string {
	d := rdmaio.Descriptor{Transport: rdmaio.TransportSHM, Session: r.fab.session, Addr: memBase + uint64(off), Size: uint64(size), RKey: 7}
	s, err := d.Encode(rdmaio.EncodingSession)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

const signedToken = "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host;x-amz-rdma-token;x-rdma-info;x-amz-rdma-session, Signature=00"

// request makes a well-formed request of alice, which header pairs may change; an
// empty value deletes.
func (r *rig) request(method, target, token string, header ...string) *http.Request {
	req := httptest.NewRequest(method, target, nil)
	req.Header.Set("Authorization", signedToken)
	req.Header.Set("Test-User", "alice")
	if token != "" {
		req.Header.Set(HeaderToken, token)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i+1] == "" {
			req.Header.Del(header[i])
		} else {
			req.Header.Set(header[i], header[i+1])
		}
	}
	return req
}

func (r *rig) do(req *http.Request) *http.Response {
	w := httptest.NewRecorder()
	r.srv.ServeHTTP(w, req)
	return w.Result()
}

// last is the event of the newest request with a descriptor.
func (r *rig) last() RequestInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.events) == 0 {
		return RequestInfo{}
	}
	return r.events[len(r.events)-1]
}

func readAll(t *testing.T, res *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// pattern is n bytes that differ from place to place.
func pattern(n int) []byte {
	b := make([]byte, n)
	x := uint32(n)*2654435761 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return b
}

func hasToken(s, token string) bool {
	for part := range strings.SplitSeq(token, ":") {
		if len(part) >= 8 && strings.Contains(s, part) {
			return true
		}
	}
	return false
}
