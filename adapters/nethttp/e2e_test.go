// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package nethttp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/s3rdma/s3rdma/adapters/client"
	"github.com/s3rdma/s3rdma/adapters/nethttp"
	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/plugin"
	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/fabrictest"
	"github.com/s3rdma/s3rdma/rdmaio/shm"
	"github.com/s3rdma/s3rdma/rdmaio/staging"
	"github.com/s3rdma/s3rdma/rdmaio/tcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a whole system in one process: a client, the middleware with a fabric, and
// an S3 handler.
type rig struct {
	t      testing.TB
	fabric string
	s3     *memoryS3
	plugin *plugin.Plugin
	srv    *httptest.Server
	pool   *staging.Pool
	pairs  *fabrictest.Pairs // of hipobj
	c      *client.Client

	payload atomic.Int64 // bytes of bodies that the outermost handler saw, both ways

	// done, if set, is told of each finished request with a descriptor.
	done atomic.Pointer[func(plugin.RequestInfo)]
}

type rigOptions struct {
	staging staging.Options
	wrap    func(rdmaio.Fabric) rdmaio.Fabric
	config  func(*plugin.Config)
	client  client.Options
	nethttp nethttp.Options
}

const slab = 64 << 10

func newRig(t testing.TB, fabric string, o rigOptions) *rig {
	t.Helper()
	r := &rig{t: t, fabric: fabric}
	cfg := plugin.Config{Listener: plugin.EventListener{RequestDone: func(i plugin.RequestInfo) {
		if f := r.done.Load(); f != nil {
			(*f)(i)
		}
	}}}
	var f rdmaio.Fabric
	var err error
	switch fabric {
	case "shm":
		if runtime.GOOS != "linux" {
			t.Skip("shm needs Linux")
		}
		f, err = shm.New(shm.Options{})
	case "tcp":
		f, err = tcp.New(tcp.Options{Listen: "127.0.0.1:0"})
	case "hipobj":
		r.pairs = fabrictest.NewPairs()
		f = r.pairs
	}
	if err != nil {
		t.Fatal(err)
	}
	if f != nil && o.wrap != nil {
		f = o.wrap(f)
	}
	if f != nil {
		if o.staging.Size == 0 {
			o.staging.Size = 32 * slab
		}
		o.staging.SlabSize = slab
		o.staging.HugePages = staging.HugePagesOff
		if r.pool, err = staging.New(o.staging, f); err != nil {
			t.Fatal(err)
		}
		cfg.Fabrics, cfg.Staging = []rdmaio.Fabric{f}, r.pool
	}
	if o.config != nil {
		o.config(&cfg)
	}
	if r.plugin, err = plugin.New(cfg); err != nil {
		t.Fatal(err)
	}
	auth := newSigV4()
	r.s3 = newMemoryS3(auth)
	if o.nethttp.Trusted {
		r.s3.auth = anybody{}
	}
	if o.nethttp.Authenticator == nil {
		o.nethttp.Authenticator = auth
	}
	inner := nethttp.New(r.plugin, r.s3, o.nethttp)
	r.srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if _, key, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/"); key != "" && req.ContentLength > 0 && req.Method == http.MethodPut {
			r.payload.Add(req.ContentLength)
		}
		cw := &countingWriter{ResponseWriter: w, count: req.Method == http.MethodGet, total: &r.payload}
		inner.ServeHTTP(cw, req)
	}))
	r.c = r.newClient(accessKey, o.client)
	t.Cleanup(func() {
		if err := r.c.Close(); err != nil {
			t.Errorf("close the client: %v", err)
		}
		r.srv.Close()
		if r.pool != nil {
			if s := r.pool.Stats(); s.InUse != 0 || s.Leases != 0 {
				t.Errorf("staging: %d slabs and %d leases are in use at the end", s.InUse, s.Leases)
			}
		}
		if err := r.plugin.Close(); err != nil {
			t.Errorf("close the plugin: %v", err)
		}
	})
	return r
}

type countingWriter struct {
	http.ResponseWriter
	count bool
	total *atomic.Int64
	code  int
}

func (w *countingWriter) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

func (w *countingWriter) Write(p []byte) (int, error) {
	if w.count && (w.code == 0 || w.code < 300) {
		w.total.Add(int64(len(p)))
	}
	return w.ResponseWriter.Write(p)
}

func (r *rig) newClient(user string, o client.Options) *client.Client {
	r.t.Helper()
	o.Endpoint = r.srv.URL
	o.Credentials = client.StaticCredentials(user, users[user].Key)
	switch r.fabric {
	case "tcp":
		o.Target = tcp.NewTarget(tcp.Options{})
	case "hipobj":
		o.Target = r.pairs.Target()
	default:
		o.Target = shm.NewTarget(shm.TargetOptions{})
	}
	c, err := client.New(o)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *rig) alloc(n int) *client.Buffer {
	r.t.Helper()
	b, err := r.c.Alloc(n)
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

func pattern(n int, seed byte) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)*17 ^ seed
	}
	return p
}

func eachFabric(t *testing.T, f func(t *testing.T, fabric string)) {
	for _, name := range []string{"shm", "tcp"} {
		t.Run(name, func(t *testing.T) { f(t, name) })
	}
}

var fabricOnly = client.GetOptions{Force: client.ForceFabric}

// TestBothWays: every byte, at sizes around the staging's slabs and banks, and none
// of them in HTTP.
func TestBothWays(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		r := newRig(t, fabric, rigOptions{})
		sizes := []int{1, 4095, 4096, slab - 1, slab, slab + 1, 2*slab + 1, 4 * slab, 4*slab + 1, 3<<20 + 7}
		buf := r.alloc(3<<20 + 7 + 128)
		for _, n := range sizes {
			for i := range buf.Bytes() {
				buf.Bytes()[i] = 0xa5
			}
			v := buf.View(64, n)
			want := pattern(n, byte(n))
			copy(v.Bytes(), want)
			put, err := r.c.Put(t.Context(), "b", "k", v, client.PutOptions{Metadata: map[string]string{"size": fmt.Sprint(n)}})
			if err != nil {
				t.Fatalf("put %d bytes: %v", n, err)
			}
			if got := r.s3.object("/b/k"); put.Route != client.Fabric || got == nil || !bytes.Equal(got.data, want) || got.etag != put.ETag {
				t.Fatalf("put %d bytes: route %v, or other bytes are stored", n, put.Route)
			}
			clear(v.Bytes())
			got, err := r.c.Get(t.Context(), "b", "k", v, client.GetOptions{})
			if err != nil {
				t.Fatalf("get %d bytes: %v", n, err)
			}
			if got.Route != client.Fabric || got.N != n || !bytes.Equal(v.Bytes(), want) {
				t.Fatalf("get %d bytes: %d by %v, or others", n, got.N, got.Route)
			}
			if got.Verified != put.Sum || got.Object.Metadata["size"] != fmt.Sprint(n) || got.Object.ETag != put.ETag {
				t.Errorf("get %d bytes: object %+v", n, got.Object)
			}
			for i := range 64 {
				if buf.Bytes()[i] != 0xa5 || buf.Bytes()[64+n+i] != 0xa5 {
					t.Fatalf("%d bytes: a guard byte has changed", n)
				}
			}
		}
		if p, st := r.payload.Load(), r.c.Stats(); p != 0 || st.HTTPBytes() != 0 || st.Connects != 1 || st.Failed != 0 {
			t.Errorf("%d payload bytes, stats %+v", p, st)
		}
	})
}

func TestRangesAndConditions(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		r := newRig(t, fabric, rigOptions{})
		const n = 200000
		data := pattern(n, 9)
		src, dst := r.alloc(n), r.alloc(n)
		copy(src.Bytes(), data)
		put, err := r.c.Put(t.Context(), "b", "k", src.All(), client.PutOptions{IfNoneMatch: "*"})
		if err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			r          client.Range
			first, len int
		}{
			{client.Range{Offset: 0, Length: 1}, 0, 1},
			{client.Range{Offset: 5, Length: 100000}, 5, 100000},
			{client.Range{Offset: n - 1}, n - 1, 1},
			{client.Range{Offset: n - 10, Length: 1000}, n - 10, 10},
			{client.Range{Suffix: 70000}, n - 70000, 70000},
			{client.Range{Suffix: n + 1}, 0, n},
		} {
			clear(dst.Bytes())
			got, err := r.c.Get(t.Context(), "b", "k", dst.All(), client.GetOptions{Range: tt.r, IfMatch: put.ETag, Force: client.ForceFabric})
			if err != nil || got.N != tt.len || got.Offset != int64(tt.first) || got.Object.Size != n || !bytes.Equal(dst.Bytes()[:got.N], data[tt.first:tt.first+tt.len]) {
				t.Errorf("%+v: %d bytes at %d of %d, %v", tt.r, got.N, got.Offset, got.Object.Size, err)
			}
			if !bytes.Equal(dst.Bytes()[tt.len:], make([]byte, n-tt.len)) {
				t.Errorf("%+v: bytes behind the range were written", tt.r)
			}
		}
		clear(dst.Bytes())
		get := func(key string, o client.GetOptions) error {
			o.Force = client.ForceFabric
			_, err := r.c.Get(t.Context(), "b", key, dst.All(), o)
			return err
		}
		_, putErr := r.c.Put(t.Context(), "b", "k", src.All(), client.PutOptions{IfNoneMatch: "*", Force: client.ForceFabric})
		for name, tt := range map[string]struct{ got, want error }{
			"If-Match":          {get("k", client.GetOptions{IfMatch: `"other"`}), client.ErrPreconditionFailed},
			"If-None-Match":     {get("k", client.GetOptions{IfNoneMatch: put.ETag}), client.ErrNotModified},
			"missing":           {get("missing", client.GetOptions{}), client.ErrNotFound},
			"behind the end":    {get("k", client.GetOptions{Range: client.Range{Offset: n}}), client.ErrRange},
			"PUT If-None-Match": {putErr, client.ErrPreconditionFailed},
		} {
			if !errors.Is(tt.got, tt.want) {
				t.Errorf("%s: %v, want %v", name, tt.got, tt.want)
			}
		}
		if !bytes.Equal(dst.Bytes(), make([]byte, n)) {
			t.Error("a condition that failed has written")
		}
		_, err = r.c.Get(t.Context(), "b", "k", dst.View(0, n-1), client.GetOptions{})
		if !errors.Is(err, client.ErrTooSmall) {
			t.Errorf("window too small: %v", err)
		}
		if got, err := r.c.Get(t.Context(), "b", "k", dst.All(), fabricOnly); err != nil || !bytes.Equal(dst.Bytes(), data) {
			t.Errorf("after all that: %+v, %v", got, err)
		}
	})
}

func TestEmptyObject(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		r := newRig(t, fabric, rigOptions{})
		buf := r.alloc(100)
		if put, err := r.c.Put(t.Context(), "b", "k", buf.View(0, 0), client.PutOptions{}); err != nil || put.Route != client.HTTPSmall {
			t.Errorf("put: %+v, %v", put, err)
		}
		if got, err := r.c.Get(t.Context(), "b", "k", buf.All(), client.GetOptions{}); err != nil || got.N != 0 || got.Route != client.Fabric {
			t.Errorf("get: %+v, %v", got, err)
		}
		if head, err := r.c.Head(t.Context(), "b", "k", client.HeadOptions{}); err != nil || head.Size != 0 {
			t.Errorf("head: %+v, %v", head, err)
		}
		b, got, err := r.c.GetAll(t.Context(), "b", "k", client.DownloadOptions{})
		if err != nil || got.N != 0 {
			t.Fatalf("get all: %+v, %v", got, err)
		}
		b.Close()
	})
}

func TestWrongChecksum(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		r := newRig(t, fabric, rigOptions{})
		buf := r.alloc(100000)
		for _, sum := range []checksum.Sum{
			checksum.Of(checksum.CRC64NVME, []byte("others")),
			checksum.Of(checksum.MD5, []byte("others")),
			checksum.Empty(checksum.CRC32), // an SDK's default over the empty body
		} {
			_, err := r.c.Put(t.Context(), "b", "k", buf.All(), client.PutOptions{Sum: sum, Force: client.ForceFabric})
			var e *client.Error
			if !errors.Is(err, client.ErrChecksum) || !errors.As(err, &e) || e.Status != http.StatusBadRequest {
				t.Errorf("%v: %v", sum, err)
			}
			if r.s3.object("/b/k") != nil {
				t.Fatalf("%v: stored", sum)
			}
		}
		if put, err := r.c.Put(t.Context(), "b", "k", buf.All(), client.PutOptions{}); err != nil || put.Route != client.Fabric {
			t.Errorf("afterwards: %+v, %v", put, err)
		}
	})
}

func TestMultipart(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		r := newRig(t, fabric, rigOptions{})
		const part, n = 5 << 20, 12<<20 + 345
		src := r.alloc(n)
		data := pattern(n, 4)
		copy(src.Bytes(), data)
		put, err := r.c.Upload(t.Context(), "b", "big", src.All(), client.UploadOptions{
			PartSize: part, Concurrency: 3, PutOptions: client.PutOptions{ContentType: "text/big"}})
		if err != nil || put.Route != client.Fabric || put.ETag != `"multi-3"` || put.Sum != checksum.Of(checksum.CRC64NVME, data) {
			t.Fatalf("upload: %+v, %v", put, err)
		}
		if got := r.s3.object("/b/big"); !bytes.Equal(got.data, data) || len(r.s3.uploads) != 0 {
			t.Fatal("other bytes are stored, or the upload is left")
		}
		clear(src.Bytes())
		got, err := r.c.Download(t.Context(), "b", "big", src.All(), client.DownloadOptions{PartSize: part, Concurrency: 3})
		if err != nil || got.N != n || got.Route != client.Fabric || got.Verified != put.Sum || !bytes.Equal(src.Bytes(), data) {
			t.Fatalf("download: %+v, %v", got, err)
		}
		if _, err := r.c.Download(t.Context(), "b", "big", src.View(0, n-1), client.DownloadOptions{}); !errors.Is(err, client.ErrTooSmall) {
			t.Errorf("download into less: %v", err)
		}
		b, got, err := r.c.GetAll(t.Context(), "b", "big", client.DownloadOptions{})
		if err != nil || got.Object.ContentType != "text/big" || !bytes.Equal(b.Bytes(), data) {
			t.Fatalf("get all: %+v, %v", got, err)
		}
		b.Close()
		if r.payload.Load() != 0 {
			t.Errorf("%d payload bytes", r.payload.Load())
		}

		// Parts may go different ways, and in any order.
		u, err := r.c.CreateMultipartUpload(t.Context(), "b", "mixed", client.PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var parts []client.Part
		for i, f := range []client.Force{client.ForceHTTP, client.ForceFabric} {
			p, res, err := r.c.UploadPart(t.Context(), u, 2-i, src.View((1-i)*part, part), client.PartOptions{Force: f})
			if err != nil || (res.Route == client.Fabric) != (f == client.ForceFabric) {
				t.Fatalf("part: %+v, %v", res, err)
			}
			parts = append(parts, p)
		}
		if _, err := r.c.CompleteMultipartUpload(t.Context(), u, parts, client.CompleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := r.s3.object("/b/mixed"); !bytes.Equal(got.data, data[:2*part]) {
			t.Error("mixed: other bytes")
		}

		// A failure aborts: the answer to a complete may be an error with status 200.
		r.s3.before = func(req *http.Request) {
			if req.Method == http.MethodPost && req.URL.Query().Has("uploadId") {
				req.Header.Set("x-amz-checksum-crc64nvme", "AAAAAAAAAAA=")
				req.Header.Set("Authorization", "")
			}
		}
		if _, err := r.c.Upload(t.Context(), "b", "failed", src.All(), client.UploadOptions{PartSize: part}); !errors.Is(err, client.ErrChecksum) {
			t.Errorf("upload with a failing complete: %v", err)
		}
		if r.s3.object("/b/failed") != nil || len(r.s3.uploads) != 0 {
			t.Error("the failed upload is stored or left")
		}
	})
}

// TestReplacedDuringDownload: the bytes are one object's.
func TestReplacedDuringDownload(t *testing.T) {
	r := newRig(t, "shm", rigOptions{})
	const part, n = 5 << 20, 11 << 20
	buf := r.alloc(n)
	one, two := pattern(n, 1), pattern(n, 2)
	store := func(data []byte) {
		if _, err := r.c.Put(t.Context(), "b", "k", client.Memory(data), client.PutOptions{}); err != nil {
			t.Error(err)
		}
	}
	store(one)
	var gets atomic.Int32
	r.s3.before = func(req *http.Request) {
		if req.Method == http.MethodGet && gets.Add(1) == 2 {
			store(two)
		}
	}
	got, err := r.c.Download(t.Context(), "b", "k", buf.All(), client.DownloadOptions{PartSize: part, Concurrency: 1})
	if err != nil || !bytes.Equal(buf.Bytes(), two) || got.Verified.IsZero() {
		t.Errorf("%+v, %v, or bytes of both", got, err)
	}
}

// TestOff: a plugin that is switched off declines, and the client goes by HTTP.
func TestOff(t *testing.T) {
	r := newRig(t, "", rigOptions{})
	buf, want := r.alloc(1000), pattern(1000, 1)
	copy(buf.Bytes(), want)
	put, err := r.c.Put(t.Context(), "b", "k", buf.All(), client.PutOptions{})
	if err != nil || put.Route != client.HTTPNoSession {
		t.Errorf("put: %+v, %v", put, err)
	}
	if o := r.s3.object("/b/k"); o == nil || !bytes.Equal(o.data, want) {
		t.Error("other bytes are stored")
	}
	clear(buf.Bytes())
	got, err := r.c.Get(t.Context(), "b", "k", buf.All(), client.GetOptions{})
	if err != nil || got.Route != client.HTTPNoSession || !bytes.Equal(buf.Bytes(), want) {
		t.Errorf("get: %+v, %v", got, err)
	}
	if err := r.c.Connect(t.Context()); !errors.Is(err, client.ErrNoFabric) {
		t.Errorf("connect: %v", err)
	}
	if r.payload.Load() != 2000 {
		t.Errorf("%d payload bytes, want 2000", r.payload.Load())
	}
}

// TestSwitchedOffLater: with a session and descriptors out, the server is shut down.
// Nothing is stored empty.
func TestSwitchedOffLater(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		r := newRig(t, fabric, rigOptions{})
		buf, want := r.alloc(100000), pattern(100000, 1)
		copy(buf.Bytes(), want)
		if _, err := r.c.Put(t.Context(), "b", "k0", buf.All(), client.PutOptions{Force: client.ForceFabric}); err != nil {
			t.Fatal(err)
		}
		if err := r.plugin.Close(); err != nil {
			t.Fatal(err)
		}
		for i := range 4 {
			key := fmt.Sprint("k", i+1)
			put, err := r.c.Put(t.Context(), "b", key, buf.All(), client.PutOptions{})
			if err != nil || put.Route == client.Fabric {
				t.Errorf("put: %+v, %v", put, err)
			}
			if o := r.s3.object("/b/" + key); o == nil || !bytes.Equal(o.data, want) {
				t.Error("other bytes are stored")
			}
		}
	})
}

// TestUnsigned: a descriptor that the signature does not cover is refused.
func TestUnsigned(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		r := newRig(t, fabric, rigOptions{})
		token := fabric + ":" + strings.Repeat("a", 32) + ":0000000000010000:00000010:00000001"
		for _, tt := range []struct {
			name   string
			change func(*http.Request)
			status int
			reply  string
		}{
			{"signed", func(*http.Request) {}, 501, "501"}, // no such session
			{"unsigned", func(req *http.Request) {
				a := req.Header.Get("Authorization")
				req.Header.Set("Authorization", strings.Replace(a, ";x-amz-rdma-token", "", 1))
			}, 403, ""},
			{"anonymous", func(req *http.Request) { req.Header.Del("Authorization") }, 403, ""},
			{"other token", func(req *http.Request) {
				req.Header.Set("x-amz-rdma-token", strings.Replace(token, "00000001", "00000002", 1))
			}, 403, ""},
		} {
			for _, method := range []string{http.MethodPut, http.MethodGet} {
				req, err := http.NewRequest(method, r.srv.URL+"/b/k", nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("x-amz-rdma-token", token)
				awsSign(t, req, accessKey, "UNSIGNED-PAYLOAD", time.Now())
				tt.change(req)
				resp, err := r.srv.Client().Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if resp.StatusCode != tt.status || resp.Header.Get("x-amz-rdma-reply") != tt.reply || resp.Header.Get("ETag") != "" {
					t.Errorf("%s %s: %d, reply %q", method, tt.name, resp.StatusCode, resp.Header.Get("x-amz-rdma-reply"))
				}
			}
		}
		if len(r.s3.objects) != 0 {
			t.Error("something is stored")
		}
	})
}

// TestOthersSession: a descriptor is good only together with the identity that
// opened its session.
func TestOthersSession(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		r := newRig(t, fabric, rigOptions{})
		buf := r.alloc(1000)
		if _, err := r.c.Put(t.Context(), "b", "k", buf.All(), client.PutOptions{Force: client.ForceFabric}); err != nil {
			t.Fatal(err)
		}
		token := r.s3.seen[0].Get("x-amz-rdma-token")
		if token == "" {
			t.Fatal("the handler did not see the signed header")
		}
		for user, status := range map[string]int{accessKey: 200, "bob/team": 403} {
			req, err := http.NewRequest(http.MethodPut, r.srv.URL+"/b/stolen-by-"+strings.ReplaceAll(user, "/", "-"), nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("x-amz-rdma-token", token)
			awsSign(t, req, user, "UNSIGNED-PAYLOAD", time.Now())
			resp, err := r.srv.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != status {
				t.Errorf("%s: HTTP %d, want %d", user, resp.StatusCode, status)
			}
		}
	})
}

// TestCancelInFlight: the request is cancelled while the handler works on it. Once the
// call has returned, the buffer is the caller's and stays as it is.
func TestCancelInFlight(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		r := newRig(t, fabric, rigOptions{})
		const n = 40 * slab // more than the staging: the handler cannot have sent it all
		stored := pattern(n, 8)
		r.s3.objects["/b/k"] = &object{data: stored, etag: `"x"`}
		buf := r.alloc(n)
		for _, method := range []string{http.MethodGet, http.MethodPut} {
			arrived, gate := make(chan struct{}), make(chan struct{})
			r.s3.before = func(req *http.Request) {
				if req.Method == method {
					close(arrived)
					<-gate
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				var err error
				if method == http.MethodGet {
					_, err = r.c.Get(ctx, "b", "k", buf.All(), client.GetOptions{})
				} else {
					_, err = r.c.Put(ctx, "b", "cancelled", buf.All(), client.PutOptions{})
				}
				done <- err
			}()
			<-arrived
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", method, err)
			}
			copy(buf.Bytes(), pattern(n, 1))
			finished := make(chan plugin.RequestInfo, 1)
			note := func(i plugin.RequestInfo) { finished <- i }
			r.done.Store(&note)
			close(gate) // only now the handler begins to move bytes
			if i := <-finished; i.Outcome == plugin.OutcomeServed {
				t.Errorf("%s: served", method)
			}
			r.done.Store(nil)
			if !bytes.Equal(buf.Bytes(), pattern(n, 1)) {
				t.Errorf("%s: the buffer has changed after the call had returned", method)
			}
			if r.s3.object("/b/cancelled") != nil {
				t.Error("the cancelled object is stored")
			}
		}
		r.s3.before = nil
		if _, err := r.c.Get(t.Context(), "b", "k", buf.All(), fabricOnly); err != nil || !bytes.Equal(buf.Bytes(), stored) {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// TestStagingExhausted: who finds no memory is told to come back.
func TestStagingExhausted(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		r := newRig(t, fabric, rigOptions{staging: staging.Options{Size: slab, Wait: time.Millisecond}})
		buf := r.alloc(2000)
		arrived, gate := make(chan struct{}), make(chan struct{})
		r.s3.before = func(req *http.Request) {
			if req.URL.Path == "/b/slow" {
				arrived <- struct{}{}
				<-gate
			}
		}
		done := make(chan error)
		go func() {
			_, err := r.c.Put(t.Context(), "b", "slow", buf.View(0, 1000), client.PutOptions{})
			done <- err
		}()
		<-arrived
		other := r.alloc(1000)
		_, err := r.c.Put(t.Context(), "b", "k", other.All(), client.PutOptions{})
		var e *client.Error
		if !errors.Is(err, client.ErrBusy) || !errors.As(err, &e) || e.Code != "SlowDown" {
			t.Errorf("put: %v", err)
		}
		close(gate)
		if err := <-done; err != nil {
			t.Errorf("the one that has the memory: %v", err)
		}
		if _, err := r.c.Put(t.Context(), "b", "k", other.All(), client.PutOptions{Force: client.ForceFabric}); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// TestServerForgets: sessions that are gone are opened anew.
func TestServerForgets(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		r := newRig(t, fabric, rigOptions{client: client.Options{Reconnect: time.Nanosecond}})
		buf := r.alloc(1000)
		if _, err := r.c.Put(t.Context(), "b", "k", buf.All(), client.PutOptions{Force: client.ForceFabric}); err != nil {
			t.Fatal(err)
		}
		token := r.s3.seen[0].Get("x-amz-rdma-token")
		req, err := http.NewRequest(http.MethodPost, r.srv.URL+"/.s3rdma-"+fabric+"/disconnect", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("x-amz-rdma-session", strings.Split(token, ":")[1])
		awsSign(t, req, accessKey, "UNSIGNED-PAYLOAD", time.Now())
		resp, err := r.srv.Client().Do(req)
		if err != nil || resp.StatusCode != http.StatusNoContent {
			t.Fatalf("disconnect: %v, %v", resp, err)
		}
		resp.Body.Close()
		for i := range 2 { // one decline says it
			put, err := r.c.Put(t.Context(), "b", "k", buf.All(), client.PutOptions{})
			if err != nil || i == 1 && put.Route != client.Fabric {
				t.Errorf("put %d: %+v, %v", i, put, err)
			}
		}
		if n := r.c.Stats().Connects; n != 2 {
			t.Errorf("%d connects, want 2", n)
		}
	})
}

// TestTrusted: a handler that verifies nothing gets a plain request.
func TestTrusted(t *testing.T) {
	r := newRig(t, "shm", rigOptions{nethttp: nethttp.Options{Trusted: true, VerifiesChecksums: true}})
	r.s3.auth = nobody{}
	buf := r.alloc(1000)
	if _, err := r.c.Put(t.Context(), "b", "k", buf.All(), client.PutOptions{Force: client.ForceFabric}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.c.Get(t.Context(), "b", "k", buf.All(), fabricOnly); err != nil {
		t.Fatal(err)
	}
	for _, h := range r.s3.seen {
		for name := range h {
			if strings.HasPrefix(name, "X-Amz-Rdma-") {
				t.Errorf("the handler sees %s", name)
			}
		}
		if h.Get("x-amz-content-sha256") != "UNSIGNED-PAYLOAD" {
			t.Errorf("payload hash %q", h.Get("x-amz-content-sha256"))
		}
	}
}

type nobody struct{}

func (nobody) Authenticate(*http.Request) (plugin.Identity, error) { return plugin.Identity{}, nil }

// TestNoAuthenticator: nothing is served that nobody has verified.
func TestNoAuthenticator(t *testing.T) {
	r := newRig(t, "shm", rigOptions{nethttp: nethttp.Options{Authenticator: nobody{}}})
	if err := r.c.Connect(t.Context()); !errors.Is(err, client.ErrAccessDenied) {
		t.Errorf("connect with an authenticator that names nobody: %v", err)
	}
	srv := httptest.NewServer(nethttp.New(r.plugin, r.s3, nethttp.Options{}))
	defer srv.Close()
	req, err := http.NewRequest(http.MethodPut, srv.URL+"/b/k", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("x-amz-rdma-token", "shm:x")
	awsSign(t, req, accessKey, "UNSIGNED-PAYLOAD", time.Now())
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("without an authenticator: HTTP %d", resp.StatusCode)
	}
}

// TestConcurrent: many at once, on views of one buffer, with failures among them.
func TestConcurrent(t *testing.T) {
	eachFabric(t, func(t *testing.T, fabric string) {
		r := newRig(t, fabric, rigOptions{staging: staging.Options{Wait: 10 * time.Second}})
		const workers, rounds, n = 8, 6, 150000
		buf := r.alloc(workers * n)
		var wg sync.WaitGroup
		for w := range workers {
			wg.Add(1)
			go func() {
				defer wg.Done()
				v, key := buf.View(w*n, n), fmt.Sprint("k", w)
				for i := range rounds {
					want := pattern(n, byte(w*rounds+i))
					copy(v.Bytes(), want)
					if _, err := r.c.Put(t.Context(), "b", key, v, client.PutOptions{}); err != nil {
						t.Errorf("put: %v", err)
						return
					}
					clear(v.Bytes())
					if _, err := r.c.Get(t.Context(), "b", key, v, client.GetOptions{}); err != nil {
						t.Errorf("get: %v", err)
						return
					}
					if !bytes.Equal(v.Bytes(), want) {
						t.Errorf("%s: other bytes", key)
					}
				}
			}()
		}
		// One that fails, on a buffer of its own, and so disturbs nobody.
		other := r.alloc(10)
		for range rounds {
			if _, err := r.c.Get(t.Context(), "b", "missing", other.All(), client.GetOptions{}); !errors.Is(err, client.ErrNotFound) {
				t.Errorf("missing: %v", err)
			}
		}
		wg.Wait()
		if st := r.c.Stats(); st.Puts[client.Fabric].Requests != workers*rounds || st.Gets[client.Fabric].Requests != workers*rounds || st.Repeated != 0 {
			t.Errorf("stats %+v", st)
		}
	})
}
