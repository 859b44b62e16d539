// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio"
)

func TestRoundTrip(t *testing.T) {
	s := newFakeServer(t)
	c := s.client(Options{})
	const key = "a b/ü+&=%?#..//é"
	for _, n := range []int{1, 4095, 4096, 65537, 1 << 20} {
		buf := mustAlloc(t, c, n+64)
		src, dst := buf.View(7, n), mustAlloc(t, c, n+1)
		copy(src.Bytes(), pattern(n, 1))
		put, err := c.Put(t.Context(), "b", key, src, PutOptions{ContentType: "text/x", Metadata: map[string]string{"Who": "me"}})
		if err != nil {
			t.Fatal(err)
		}
		if put.Route != Fabric || put.ETag == "" || put.Sum != checksum.Of(checksum.CRC64NVME, src.Bytes()) {
			t.Errorf("put result %+v", put)
		}
		got, err := c.Get(t.Context(), "b", key, dst.All(), GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Route != Fabric || got.N != n || !bytes.Equal(dst.Bytes()[:n], src.Bytes()) || dst.Bytes()[n] != 0 {
			t.Errorf("%d bytes: got %+v", n, got)
		}
		if got.Verified != put.Sum || got.Object.Metadata["who"] != "me" || got.Object.ContentType != "text/x" || got.Object.ETag != put.ETag || got.Object.Size != int64(n) {
			t.Errorf("object %+v", got.Object)
		}
		part, err := c.Get(t.Context(), "b", key, dst.All(), GetOptions{Range: Range{Suffix: 1}})
		if err != nil || part.N != 1 || part.Offset != int64(n-1) || part.Object.Size != int64(n) || dst.Bytes()[0] != src.Bytes()[n-1] {
			t.Errorf("suffix of %d bytes: %+v, %v", n, part, err)
		}
	}
	if s.payload != 0 {
		t.Errorf("%d object bytes went by HTTP", s.payload)
	}
	if st := c.Stats(); st.HTTPBytes() != 0 || st.Connects != 1 || st.Rekeys != 0 || st.Puts[Fabric].Requests != 5 || st.Gets[Fabric].Requests != 10 {
		t.Errorf("stats %+v", st)
	}
}

// TestRoutes: which way the bytes go when nothing is wrong.
func TestRoutes(t *testing.T) {
	s := newFakeServer(t)
	c := s.client(Options{Threshold: 100})
	buf := mustAlloc(t, c, 200)
	copy(buf.Bytes(), pattern(200, 5))
	put := func(v View, f Force) Route {
		t.Helper()
		res, err := c.Put(t.Context(), "b", "k", v, PutOptions{Force: f})
		if err != nil {
			t.Error(err)
		}
		if o := s.objects["/b/k"]; !bytes.Equal(o.data, v.Bytes()) {
			t.Errorf("stored %d bytes of %d, or others", len(o.data), v.Len())
		}
		back := make([]byte, v.Len())
		if got, err := c.Get(t.Context(), "b", "k", Memory(back), GetOptions{}); err != nil || got.Route != HTTPPlain || !bytes.Equal(back, v.Bytes()) {
			t.Errorf("read back: %+v, %v", got, err)
		}
		return res.Route
	}
	for _, tt := range []struct {
		v    View
		f    Force
		want Route
	}{
		{buf.View(0, 100), Auto, Fabric},
		{buf.View(0, 99), Auto, HTTPSmall},
		{buf.View(0, 99), ForceFabric, Fabric},
		{buf.View(0, 100), ForceHTTP, HTTPAsked},
		{buf.View(9, 0), Auto, HTTPSmall},
		{Memory(pattern(500, 2)), Auto, HTTPPlain},
		{View{}, Auto, HTTPPlain},
	} {
		if got := put(tt.v, tt.f); got != tt.want {
			t.Errorf("%d bytes, %v: route %v, want %v", tt.v.Len(), tt.f, got, tt.want)
		}
	}
	for _, v := range []View{buf.View(0, 0), Memory(make([]byte, 5))} {
		if _, err := c.Put(t.Context(), "b", "k", v, PutOptions{Force: ForceFabric}); !errors.Is(err, ErrNoFabric) {
			t.Errorf("%d bytes by the fabric only: %v", v.Len(), err)
		}
	}
	if _, err := c.Get(t.Context(), "b", "k", buf.View(0, 0), GetOptions{}); err != nil {
		t.Errorf("empty object into an empty view: %v", err)
	}
}

func TestNoTarget(t *testing.T) {
	s := newFakeServer(t)
	c, err := New(Options{Endpoint: s.url, Credentials: StaticCredentials("alice", "x")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	buf := mustAlloc(t, c, 10)
	copy(buf.Bytes(), "0123456789")
	if res, err := c.Put(t.Context(), "b", "k", buf.All(), PutOptions{}); err != nil || res.Route != HTTPPlain {
		t.Errorf("put: %+v, %v", res, err)
	}
	if err := c.Connect(t.Context()); !errors.Is(err, ErrNoFabric) {
		t.Errorf("connect: %v", err)
	}
}

// TestCancel: when a cancelled call returns, the key that its request bore reaches
// nothing any more, and the memory is as the caller sees it.
func TestCancel(t *testing.T) {
	s := newFakeServer(t)
	arrived, late := make(chan string), make(chan error, 1)
	returned := make(chan struct{})
	s.hook = func(w http.ResponseWriter, r *http.Request) bool {
		token := r.Header.Get(headerToken)
		if r.Method == http.MethodPost || token == "" {
			return false
		}
		d, _, err := rdmaio.Parse(token, rdmaio.ParseOptions{})
		if err != nil {
			t.Error(err)
		}
		arrived <- token
		<-returned // the server is slow to notice
		late <- s.target.do(d, func(win []byte) { clear(win) })
		return true
	}
	c := s.client(Options{})
	buf := mustAlloc(t, c, 100)
	copy(buf.Bytes(), pattern(100, 1))
	for _, call := range []func(ctx context.Context) error{
		func(ctx context.Context) error {
			_, err := c.Get(ctx, "b", "k", buf.All(), GetOptions{})
			return err
		},
		func(ctx context.Context) error {
			_, err := c.Put(ctx, "b", "k", buf.All(), PutOptions{})
			return err
		},
	} {
		before := s.target.counted()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- call(ctx) }()
		<-arrived
		cancel()
		s.wantErr(t, <-done, context.Canceled)
		if n := s.target.counted() - before; n != 1 {
			t.Errorf("%d rekeys, want 1", n)
		}
		returned <- struct{}{}
		if err := <-late; !errors.Is(err, rdmaio.ErrStaleKey) {
			t.Errorf("the server's late transfer: %v, want a stale key", err)
		}
	}
	if !bytes.Equal(buf.Bytes(), pattern(100, 1)) {
		t.Error("the buffer has changed")
	}
}

// TestTimeout: the budget ends a request on the fabric that the server holds.
func TestTimeout(t *testing.T) {
	s := newFakeServer(t)
	release := make(chan struct{})
	s.hook = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut {
			<-release
			return true
		}
		return false
	}
	c := s.client(Options{Timeout: 20 * time.Millisecond, MinRate: 1 << 40})
	buf := mustAlloc(t, c, 100)
	_, err := c.Put(t.Context(), "b", "k", buf.All(), PutOptions{})
	close(release)
	s.wantErr(t, err, context.DeadlineExceeded)
	if s.target.counted() != 1 {
		t.Error("the buffer was not taken back")
	}
	if got, want := c.budget(1<<40), 20*time.Millisecond+time.Second; got != want {
		t.Errorf("budget %v, want %v", got, want)
	}
}

// TestBufferLost: a buffer whose key cannot be withdrawn is never used again.
func TestBufferLost(t *testing.T) {
	s := newFakeServer(t)
	s.target.rekeyErr = errors.New("device is gone")
	c := s.client(Options{})
	buf := mustAlloc(t, c, 100)
	_, err := c.Get(t.Context(), "b", "missing", buf.All(), GetOptions{})
	s.wantErr(t, err, ErrBufferLost)
	s.wantErr(t, err, ErrNotFound)
	for _, f := range []Force{Auto, ForceHTTP} {
		_, err = c.Put(t.Context(), "b", "k", buf.All(), PutOptions{Force: f})
		s.wantErr(t, err, ErrBufferLost)
	}
	if err := buf.Close(); err != nil {
		t.Error(err)
	}
	_, err = c.Put(t.Context(), "b", "k", buf.All(), PutOptions{})
	s.wantErr(t, err, ErrClosed)
}

// TestSiblings: a request that fails because a neighbour took the buffer back is
// sent again, with a new descriptor.
func TestSiblings(t *testing.T) {
	s := newFakeServer(t)
	slow := make(chan struct{})
	var first atomic.Bool
	s.hook = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/b/slow" && !first.Swap(true) {
			slow <- struct{}{}
			<-slow
		}
		return false
	}
	c := s.client(Options{})
	for i, call := range []func(View) (Route, error){
		func(v View) (Route, error) {
			res, err := c.Put(t.Context(), "b", "slow", v, PutOptions{})
			return res.Route, err
		},
		func(v View) (Route, error) {
			res, err := c.Get(t.Context(), "b", "slow", v, GetOptions{})
			return res.Route, err
		},
	} {
		first.Store(false)
		buf := mustAlloc(t, c, 200)
		copy(buf.Bytes(), pattern(200, 1))
		var route Route
		done := make(chan error)
		go func() {
			var err error
			route, err = call(buf.View(0, 100))
			done <- err
		}()
		<-slow
		_, err := c.Get(t.Context(), "b", "missing", buf.View(100, 100), GetOptions{})
		s.wantErr(t, err, ErrNotFound)
		slow <- struct{}{}
		if err := <-done; err != nil || route != Fabric {
			t.Errorf("route %v, error %v", route, err)
		}
		if st := c.Stats(); st.Repeated != int64(i+1) || st.Rekeys != int64(i+1) {
			t.Errorf("%d repeated, %d rekeys, want %d: the key was withdrawn once", st.Repeated, st.Rekeys, i+1)
		}
		if !bytes.Equal(s.objects["/b/slow"].data, pattern(200, 1)[:100]) || !bytes.Equal(buf.Bytes()[:100], pattern(200, 1)[:100]) {
			t.Error("other bytes")
		}
	}
}

// TestBrokenConnection: a GET without an answer is sent once more, under another
// key. A PUT is not.
func TestBrokenConnection(t *testing.T) {
	s := newFakeServer(t)
	s.objects["/b/k"] = stored{data: pattern(100, 1), etag: `"x"`}
	var breaks atomic.Int32
	s.hook = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get(headerToken) == "" || r.Method == http.MethodPost || breaks.Load() == 0 {
			return false
		}
		breaks.Add(-1)
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
		}
		conn.Close()
		return true
	}
	c := s.client(Options{})
	buf := mustAlloc(t, c, 100)
	// The first request leaves an idle connection behind: on such http.Transport
	// would send a GET again by itself.
	for _, n := range []int32{0, 1} {
		breaks.Store(n)
		res, err := c.Get(t.Context(), "b", "k", buf.All(), GetOptions{})
		if err != nil || res.Route != Fabric {
			t.Errorf("%d broken: %+v, %v", n, res, err)
		}
	}
	if len(s.tokens) != 3 || s.tokens[1] == s.tokens[2] {
		t.Errorf("%d requests, or the same token twice", len(s.tokens))
	}
	breaks.Store(2)
	_, err := c.Get(t.Context(), "b", "k", buf.All(), GetOptions{})
	s.wantErr(t, err, io.EOF)
	breaks.Store(1)
	_, err = c.Put(t.Context(), "b", "k", buf.All(), PutOptions{})
	s.wantErr(t, err, io.EOF)
	if breaks.Load() != 0 || len(s.tokens) != 6 {
		t.Errorf("%d requests in all, want 6", len(s.tokens))
	}
}

// TestChecksumOption: what is computed, what is given, and what is refused.
func TestChecksumOption(t *testing.T) {
	s := newFakeServer(t)
	for _, alg := range []checksum.Algorithm{checksum.CRC32, checksum.CRC32C, checksum.CRC64NVME, checksum.SHA1, checksum.SHA256, checksum.MD5} {
		c := s.client(Options{Checksum: alg, Target: newFakeTarget()})
		if res, err := c.Put(t.Context(), "b", "k", Memory([]byte("x")), PutOptions{}); err != nil || res.Sum.Algorithm() != alg {
			t.Errorf("%v: %+v, %v", alg, res, err)
		}
	}
	if _, err := New(Options{Endpoint: s.url, Checksum: checksum.XXH64}); !errors.Is(err, ErrInvalid) {
		t.Errorf("XXH64: %v", err)
	}
	c := s.client(Options{})
	buf := mustAlloc(t, c, 10)
	_, err := c.Put(t.Context(), "b", "new", buf.All(), PutOptions{Sum: checksum.Of(checksum.CRC32, []byte("others"))})
	s.wantErr(t, err, ErrChecksum)
	if _, ok := s.objects["/b/new"]; ok {
		t.Error("stored in spite of a wrong checksum")
	}
}

func TestArguments(t *testing.T) {
	s := newFakeServer(t)
	c, other := s.client(Options{}), s.client(Options{Target: newFakeTarget()})
	buf, foreign := mustAlloc(t, c, 10), mustAlloc(t, other, 10)
	get := func(v View, o GetOptions) error {
		_, err := c.Get(t.Context(), "b", "k", v, o)
		return err
	}
	put := func(v View, o PutOptions) error {
		_, err := c.Put(t.Context(), "b", "k", v, o)
		return err
	}
	for name, err := range map[string]error{
		"negative offset":     get(buf.All(), GetOptions{Range: Range{Offset: -1}}),
		"offset and suffix":   get(buf.All(), GetOptions{Range: Range{Offset: 1, Suffix: 1}}),
		"overflow":            get(buf.All(), GetOptions{Range: Range{Offset: 1 << 62, Length: 1 << 62}}),
		"part 10001":          get(buf.All(), GetOptions{PartNumber: 10001}),
		"part and range":      get(buf.All(), GetOptions{PartNumber: 1, Range: Range{Length: 1}}),
		"short customer key":  get(buf.All(), GetOptions{CustomerKey: make([]byte, 31)}),
		"foreign buffer":      get(foreign.All(), GetOptions{}),
		"token header":        put(buf.All(), PutOptions{Header: http.Header{"X-Amz-Rdma-Token": {"x"}}}),
		"other token header":  put(buf.All(), PutOptions{Header: http.Header{"x-rdma-info": {"x"}}}),
		"unverified checksum": put(buf.All(), PutOptions{Sum: checksum.Of(checksum.XXH64, nil)}),
		"empty endpoint":      func() error { _, err := New(Options{}); return err }(),
		"endpoint with path":  func() error { _, err := New(Options{Endpoint: "http://h/p"}); return err }(),
		"anonymous target":    func() error { _, err := New(Options{Endpoint: "http://h", Target: newFakeTarget()}); return err }(),
		"no bytes":            func() error { _, err := c.Alloc(0); return err }(),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := New(Options{Endpoint: "http://user:password@h\x7f"})
	if !errors.Is(err, ErrInvalid) || strings.Contains(err.Error(), "password") {
		t.Errorf("endpoint with a password: %v", err)
	}
	if len(s.tokens) != 0 {
		t.Error("something was sent")
	}
	for _, f := range []func(){
		func() { buf.View(5, 6) },
		func() { buf.View(-1, 1) },
		func() { buf.View(5, 5).Slice(1, 5) },
		func() { buf.All().Slice(0, -1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		}()
	}
}

// TestBufferCloseWaits: memory that a request uses is not freed.
func TestBufferCloseWaits(t *testing.T) {
	s := newFakeServer(t)
	hold := make(chan struct{})
	s.hook = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut {
			hold <- struct{}{}
			<-hold
		}
		return false
	}
	c := s.client(Options{})
	buf := mustAlloc(t, c, 100)
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		if _, err := c.Put(t.Context(), "b", "k", buf.All(), PutOptions{}); err != nil {
			t.Error(err)
		}
	}()
	<-hold
	closed := make(chan error)
	go func() { closed <- buf.Close() }()
	select {
	case <-closed:
		t.Error("closed while a request uses it")
	default:
	}
	hold <- struct{}{}
	wg.Wait()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := buf.Close(); err != nil {
		t.Error(err)
	}
}

// TestCloseCancels: Close ends what is under way, leaves the session and closes
// buffers and target.
func TestCloseCancels(t *testing.T) {
	s := newFakeServer(t)
	arrived := make(chan struct{})
	s.hook = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut {
			arrived <- struct{}{}
			<-r.Context().Done()
			return true
		}
		return false
	}
	c := s.client(Options{})
	buf := mustAlloc(t, c, 100)
	done := make(chan error)
	go func() {
		_, err := c.Put(t.Context(), "b", "k", buf.All(), PutOptions{})
		done <- err
	}()
	<-arrived
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	s.wantErr(t, <-done, ErrClosed)
	if s.leaves != 1 || !s.target.closed || len(s.target.regions) != 0 {
		t.Errorf("%d disconnects, target closed %v, %d regions left", s.leaves, s.target.closed, len(s.target.regions))
	}
	if _, err := c.Alloc(1); !errors.Is(err, ErrClosed) {
		t.Errorf("alloc: %v", err)
	}
	if _, err := c.Head(t.Context(), "b", "k", HeadOptions{}); !errors.Is(err, ErrClosed) {
		t.Errorf("head: %v", err)
	}
}

// keepBody is a transport that answers without reading the body, and keeps it.
type keepBody struct{ body io.ReadCloser }

func (k *keepBody) RoundTrip(r *http.Request) (*http.Response, error) {
	k.body = r.Body
	return &http.Response{StatusCode: 200, Header: http.Header{"Etag": {"x"}}, Body: http.NoBody}, nil
}

// TestBodyEnds: a transport may still read a PUT's body when it has answered. It gets
// none of the memory any more, which its owner may have unmapped.
func TestBodyEnds(t *testing.T) {
	kept := &keepBody{}
	c, err := New(Options{Endpoint: "http://nowhere.invalid", Transport: kept})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Put(t.Context(), "b", "k", Memory(make([]byte, 10)), PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if n, err := kept.body.Read(make([]byte, 10)); n != 0 || err == nil || err == io.EOF {
		t.Errorf("%d bytes after the call, %v", n, err)
	}
}

func TestConcurrent(t *testing.T) {
	s := newFakeServer(t)
	c := s.client(Options{})
	buf := mustAlloc(t, c, 16*1000)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			v, key := buf.View(i*1000, 1000), fmt.Sprint("k", i)
			for round := range 5 {
				want := pattern(1000, byte(i+round))
				copy(v.Bytes(), want)
				if _, err := c.Put(t.Context(), "b", key, v, PutOptions{Force: ForceFabric}); err != nil {
					t.Error(err)
				}
				clear(v.Bytes())
				if _, err := c.Get(t.Context(), "b", key, v, GetOptions{Force: ForceFabric}); err != nil {
					t.Error(err)
				}
				if !bytes.Equal(v.Bytes(), want) {
					t.Errorf("%d: other bytes", i)
				}
			}
		}()
	}
	wg.Wait()
	if s.connects != 1 {
		t.Errorf("%d connects for concurrent first requests, want 1", s.connects)
	}
}
