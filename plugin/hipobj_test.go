// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/fabrictest"
	"github.com/s3rdma/s3rdma/rdmaio/staging"
)

// aimServer is a fakeServer that can act upon another resource.
type aimServer struct{ fakeServer }

func (aimServer) Retarget(r *http.Request, _ Identity, method string, t Target, header http.Header, body io.ReadCloser, size int64) (*http.Request, error) {
	if t.Bucket == "reserved" {
		return nil, &Error{Status: http.StatusForbidden, Code: "AllAccessDisabled", Message: "no"}
	}
	inner := r.Clone(r.Context())
	inner.Method = method
	inner.URL = &url.URL{Path: "/" + t.Bucket + "/" + t.Key, RawQuery: t.Query.Encode()}
	for name, values := range header {
		inner.Header[name] = values
	}
	if body != nil {
		inner.Body, inner.ContentLength = body, size
	}
	return inner, nil
}

// spelling has the header ETag written as S3's documentation does, and MinIO.
type spelling struct{ http.ResponseWriter }

func (w *spelling) WriteHeader(status int) {
	h := w.Header()
	if v := h["Etag"]; v != nil {
		delete(h, "Etag")
		h["ETag"] = v
	}
	w.ResponseWriter.WriteHeader(status)
}

// hipRig is a plugin that pairs queue pairs, and a client with memory.
type hipRig struct {
	*rig
	pairs  *fabrictest.Pairs
	target *fabrictest.PairsTarget
	mem    rdmaio.Exposed
}

func newHipRig(t *testing.T, n int, change func(*Config, *staging.Options)) *hipRig {
	t.Helper()
	x := &hipRig{pairs: fabrictest.NewPairs()}
	x.rig = newRig(t, 1, func(c *Config, o *staging.Options) {
		c.Fabrics = []rdmaio.Fabric{x.pairs}
		if change != nil {
			change(c, o)
		}
	})
	// MinIO's spelling, which net/http's Set would not leave.
	x.srv = x.plugin.Handler(aimServer{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x.store.ServeHTTP(&spelling{w}, r)
	}))
	x.target = x.pairs.Target()
	var err error
	if x.mem, err = x.target.Alloc(n, rdmaio.RemoteRead|rdmaio.RemoteWrite); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n := x.pairs.Live(); n != 0 {
			t.Errorf("%d pairs are left", n)
		}
	})
	return x
}

// post makes a signed request of alice with these headers.
func hipPost(action string, header map[string]string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, HipObjPrefix+action, nil)
	r.RemoteAddr = "127.0.0.1:999"
	list := "host"
	for name, value := range header {
		if value != "" {
			r.Header.Set(name, value)
			list += ";" + strings.ToLower(name)
		}
	}
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders="+list+", Signature=00")
	r.Header.Set("Test-User", "alice")
	return r
}

const hipCookie = "c0ffee01"

// exchange is one transfer on its way.
type exchange struct {
	end  rdmaio.PairEnd
	w    rdmaio.PairWelcome
	head map[string]string // of the prepare
}

// hello are the headers of a prepare.
func (x *hipRig) hello(op, target string, size int) (rdmaio.PairEnd, map[string]string) {
	x.t.Helper()
	end, err := x.target.NewPair(context.Background())
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { end.Close() })
	h := end.Hello()
	return end, map[string]string{
		HeaderProtocol: HipObjProtocol, HeaderToken: h.Token, HeaderPSN: fmt.Sprintf("%06x", h.PSN), HeaderCookie: hipCookie,
		HeaderOp: op, HeaderTarget: target, HeaderSize: fmt.Sprint(size),
	}
}

// prepare does the first request.
func (x *hipRig) prepare(op, target string, size, offset int) exchange {
	x.t.Helper()
	end, head := x.hello(op, target, size)
	if offset > 0 {
		head[HeaderOffset] = fmt.Sprint(offset)
	}
	res := x.do(hipPost("prepare", head))
	if res.StatusCode != 200 || res.Header.Get(HeaderProtocol) != HipObjProtocol {
		x.t.Fatalf("prepare: %s %v: %s", res.Status, res.Header, readAll(x.t, res))
	}
	e := exchange{end: end, head: head}
	var err error
	if e.w.Session, err = rdmaio.ParseSessionID(res.Header.Get(HeaderSession)); err != nil {
		x.t.Fatal(err)
	}
	token, ok := strings.CutPrefix(res.Header.Get(HeaderReply), "200:")
	d, form, err := rdmaio.Parse(token, rdmaio.ParseOptions{})
	if !ok || err != nil || form != rdmaio.EncodingHipObject {
		x.t.Fatalf("the reply is no token: %v", err)
	}
	e.w.Token = token
	fmt.Sscanf(res.Header.Get(HeaderPSN), "%x", &e.w.PSN)
	fmt.Sscanf(res.Header.Get(HeaderQPN), "%x", &e.w.QPN)
	fmt.Sscanf(res.Header.Get(HeaderMRAddr), "%x", &e.w.Addr)
	fmt.Sscanf(res.Header.Get(HeaderMRKey), "%x", &e.w.RKey)
	if e.w.PSN == 0 || e.w.QPN != d.QPN || e.w.Addr != d.Addr || e.w.RKey != d.RKey || (e.w.RKey != 0) != (op == "PUT") {
		x.t.Fatalf("the headers of the welcome do not agree: %v", res.Header)
	}
	if err := end.Connect(context.Background(), e.w); err != nil {
		x.t.Fatal(err)
	}
	return e
}

// call are the headers of a ready, with the first n bytes of the client's memory.
func (x *hipRig) call(e exchange, n int) map[string]string {
	d, err := x.mem.Describe(0, n)
	if err != nil {
		x.t.Fatal(err)
	}
	return map[string]string{
		HeaderProtocol: HipObjProtocol, HeaderSession: e.w.Session.Hex(), HeaderCookie: hipCookie,
		HeaderQPN: fmt.Sprintf("%016x", e.end.QPN()), HeaderMRAddr: fmt.Sprintf("%016x", d.Addr), HeaderMRKey: fmt.Sprintf("%08x", d.RKey),
	}
}

// told tells whether the client has had the word that it has received.
func told(e exchange) bool {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 20 { // either may be chosen
		if e.end.Await(ctx, 0xc0ffee01) == nil {
			return true
		}
	}
	return false
}

func TestHipObjGet(t *testing.T) {
	x := newHipRig(t, 50000, func(c *Config, _ *staging.Options) { c.ChecksumGet = checksum.PolicyRegion })
	data := pattern(50000)
	x.store.put("/b/dir/a key", data)
	for _, c := range []struct{ off, n int }{{0, 50000}, {0, 1}, {49999, 1}, {123, 40000}} {
		clear(x.mem.Bytes())
		e := x.prepare("GET", "/b/dir/a%20key", c.n, c.off)
		if told(e) {
			t.Fatal("the client was told before anything moved")
		}
		res := x.do(hipPost("ready", x.call(e, c.n)))
		want := data[c.off : c.off+c.n]
		if res.StatusCode != 200 || !bytes.Equal(x.mem.Bytes()[:c.n], want) || readAll(t, res) != "" || !told(e) {
			t.Fatalf("%+v: %s %v", c, res.Status, res.Header)
		}
		for name, value := range map[string]string{
			HeaderProtocol: HipObjProtocol, HeaderCookie: hipCookie, HeaderBytes: fmt.Sprint(c.n), HeaderETag: etag(data),
			HeaderChecksum:  "CRC64NVME " + checksum.Of(checksum.CRC64NVME, want).Base64(),
			"Content-Range": "", "Content-Length": "0", HeaderReply: "",
		} {
			if got := res.Header.Get(name); got != value {
				t.Errorf("%+v: %s is %q, want %q", c, name, got, value)
			}
		}
		if i := x.last(); i.Outcome != OutcomeServed || i.Dialect != "hipobj" || i.Transport != "rc" || i.Op != OpGetObject || i.Bytes != int64(c.n) {
			t.Errorf("event %+v", i)
		}
		// It is good once.
		if res := x.do(hipPost("ready", x.call(e, c.n))); res.StatusCode != http.StatusConflict {
			t.Errorf("ready again: %s", res.Status)
		}
	}
}

func TestHipObjPut(t *testing.T) {
	x := newHipRig(t, 50000, nil)
	copy(x.mem.Bytes(), pattern(50000))
	for _, target := range []string{"/b/k", "/b/k?partNumber=2&uploadId=u"} {
		e := x.prepare("PUT", target, 40000, 0)
		if err := e.end.Push(context.Background(), x.mem, 7, 40000, 0xc0ffee01); err != nil {
			t.Fatal(err)
		}
		want := x.mem.Bytes()[7:40007]
		head := x.call(e, 1)
		head["x-amz-checksum-crc32c"] = checksum.Of(checksum.CRC32C, want).Base64()
		res := x.do(hipPost("ready", head))
		got, _ := x.store.get("/b/k")
		if res.StatusCode != 200 || !bytes.Equal(got, want) || res.Header.Get(HeaderETag) != etag(want) || res.Header.Get(HeaderBytes) != "40000" || res.Header.Get(HeaderCookie) != hipCookie {
			t.Fatalf("%s: %s %v", target, res.Status, res.Header)
		}
		wantOp := OpPutObject
		if strings.Contains(target, "?") {
			wantOp = OpUploadPart
		}
		if i := x.last(); i.Outcome != OutcomeServed || i.Op != wantOp {
			t.Errorf("event %+v", i)
		}
		x.store.put("/b/k", nil)
	}
	// Bytes that do not have the declared checksum are not stored.
	e := x.prepare("PUT", "/b/k", 100, 0)
	if err := e.end.Push(context.Background(), x.mem, 0, 100, 0xc0ffee01); err != nil {
		t.Fatal(err)
	}
	head := x.call(e, 1)
	head["x-amz-checksum-crc32c"] = checksum.Of(checksum.CRC32C, []byte("others")).Base64()
	if res := x.do(hipPost("ready", head)); res.StatusCode != 400 || !strings.Contains(readAll(t, res), "BadDigest") {
		t.Errorf("wrong checksum: %s", res.Status)
	}
	if got, _ := x.store.get("/b/k"); len(got) != 0 {
		t.Error("it was stored")
	}
}

// What fails after the prepare leaves nothing: no object, no pair, no word to the client.
func TestHipObjFails(t *testing.T) {
	x := newHipRig(t, 1000, nil)
	data := pattern(1000)
	cases := map[string]struct {
		op     string
		change func(e *exchange, head map[string]string)
		status int
	}{
		"object gone":    {"GET", func(*exchange, map[string]string) { delete(x.store.objects, "/b/k") }, 404},
		"object shorter": {"GET", func(*exchange, map[string]string) { x.store.put("/b/k", data[:999]) }, 500},
		"range ignored": {"GET", func(*exchange, map[string]string) {
			x.store.mangle = func(w http.ResponseWriter, _ *http.Request) bool { w.Write(data); w.Write(data); return true }
		}, 400},
		"no such key":   {"GET", func(_ *exchange, h map[string]string) { h[HeaderMRKey] = "00ffffff" }, 500},
		"no key":        {"GET", func(_ *exchange, h map[string]string) { h[HeaderMRKey] = "" }, 400},
		"no queue pair": {"GET", func(_ *exchange, h map[string]string) { h[HeaderQPN] = "ffffff" }, 500},
		"another's":     {"GET", func(_ *exchange, h map[string]string) { h["Test-User"] = "mallory" }, 403},
		"cookie":        {"GET", func(_ *exchange, h map[string]string) { h[HeaderCookie] = "c0ffee02" }, 403},
		"client's word": {"PUT", func(e *exchange, _ map[string]string) { e.end.Push(context.Background(), x.mem, 0, 1000, 5) }, 500},
		"handler fails": {"PUT", func(e *exchange, _ map[string]string) {
			e.end.Push(context.Background(), x.mem, 0, 1000, 0xc0ffee01)
			x.store.mangle = func(w http.ResponseWriter, r *http.Request) bool { http.Error(w, "full", 507); return true }
		}, 507},
		"handler skips": {"PUT", func(e *exchange, _ map[string]string) {
			e.end.Push(context.Background(), x.mem, 0, 1000, 0xc0ffee01)
			x.store.mangle = func(http.ResponseWriter, *http.Request) bool { return true }
		}, 500},
		"client goes away": {"PUT", func(e *exchange, h map[string]string) { h["Test-Gone"] = "yes" }, 500},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			x.store.mangle = nil
			x.store.put("/b/k", data)
			e := x.prepare(c.op, "/b/k", 1000, 0)
			head := x.call(e, 1000)
			if c.op == "PUT" {
				delete(x.store.objects, "/b/k")
			}
			c.change(&e, head)
			user, gone := head["Test-User"], head["Test-Gone"] != ""
			delete(head, "Test-User")
			delete(head, "Test-Gone")
			req := hipPost("ready", head)
			if user != "" {
				req.Header.Set("Test-User", user)
			}
			if gone {
				ctx, cancel := context.WithCancel(req.Context())
				cancel()
				req = req.WithContext(ctx)
			}
			res := x.do(req)
			if res.StatusCode != c.status || res.Header.Get(HeaderCookie) != "" || res.Header.Get(HeaderETag) != "" {
				t.Errorf("%s %v: %s", res.Status, res.Header, readAll(t, res))
			}
			if told(e) {
				t.Error("the client was told that it has received")
			}
			if _, ok := x.store.get("/b/k"); ok && c.op == "PUT" {
				t.Error("something was stored")
			}
			if name == "another's" { // it is there still
				if n := x.pairs.Live(); n != 1 {
					t.Errorf("%d pairs", n)
				}
				if res := x.do(hipPost("cancel", map[string]string{HeaderProtocol: HipObjProtocol, HeaderSession: e.w.Session.Hex()})); res.StatusCode != 204 {
					t.Errorf("cancel: %s", res.Status)
				}
			}
			if n := x.pairs.Live(); n != 0 {
				t.Errorf("%d pairs are left", n)
			}
		})
	}
}

func TestHipObjCancel(t *testing.T) {
	x := newHipRig(t, 1000, nil)
	e := x.prepare("PUT", "/b/k", 1000, 0)
	cancel := func(user, session string) int {
		r := hipPost("cancel", map[string]string{HeaderProtocol: HipObjProtocol, HeaderSession: session, HeaderCookie: hipCookie})
		r.Header.Set("Test-User", user)
		return x.do(r).StatusCode
	}
	for _, c := range []struct {
		user, session string
		status, left  int
	}{
		{"mallory", e.w.Session.Hex(), 204, 1}, // is not told whose it is
		{"alice", rdmaio.NewSessionID().Hex(), 204, 1},
		{"alice", "nonsense", 400, 1},
		{"alice", strings.ToUpper(e.w.Session.Hex()), 204, 0},
		{"alice", e.w.Session.Hex(), 204, 0},
	} {
		if status := cancel(c.user, c.session); status != c.status || x.pairs.Live() != c.left {
			t.Errorf("%+v: status %d, %d pairs left", c, status, x.pairs.Live())
		}
	}
}

// Every header of a prepare that is wrong, or not signed.
func TestHipObjRefusesHeaders(t *testing.T) {
	x := newHipRig(t, 1000, nil)
	x.store.put("/b/k", pattern(1000))
	for name, values := range map[string][]string{
		HeaderToken:  {"", "nonsense", strings.Repeat("0", 87), strings.Repeat("0", 88), "0000000000010000:000003e8:00000007:0000:000001:1:00000000000000000000ffff7f000001"},
		HeaderPSN:    {"", "000000", "1000000", "+1", "0x1", "xyz"},
		HeaderCookie: {"", "00000000", "100000000", "-1"},
		HeaderOp:     {"", "get", "POST", "DELETE"},
		HeaderTarget: {"", "b/k", "/b", "/b/", "//k", "/b/%zz", "/b/k?acl", "/b/k?uploadId=u", "/b/k?partNumber=1", "/b/k?versionId=1&versionId=2", "/a%2fb/k", "/b/k%00"},
		HeaderSize:   {"", "0", "-1", "1.5", "0x10", "18446744073709551616"},
		HeaderOffset: {"-1", "x"},
	} {
		for _, value := range values {
			_, head := x.hello("GET", "/b/k", 1000)
			head[name] = value
			want := 400
			if name == HeaderToken && value == strings.Repeat("0", 88) {
				want = 501 // of the transport dc
			}
			if res := x.do(hipPost("prepare", head)); res.StatusCode != want {
				t.Errorf("%s %q: %s", name, value, res.Status)
			}
		}
		_, head := x.hello("GET", "/b/k", 1000)
		head[HeaderOffset] = "0"
		r := hipPost("prepare", head)
		r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), name, "x-other", 1))
		if res := x.do(r); res.StatusCode != 403 {
			t.Errorf("%s unsigned: %s", name, res.Status)
		}
	}
	_, head := x.hello("PUT", "/b/k", 1000)
	head[HeaderOffset] = "1"
	if res := x.do(hipPost("prepare", head)); res.StatusCode != 400 {
		t.Errorf("a PUT at an offset: %s", res.Status)
	}
	for _, op := range []string{"GET", "PUT"} {
		_, head = x.hello(op, "/reserved/k", 1)
		if res := x.do(hipPost("prepare", head)); res.StatusCode != 403 {
			t.Errorf("%s of a name that is served to nobody: %s", op, res.Status)
		}
	}
}

// A client must be told by the header that it knows, and by no reply.
func TestHipObjDeclines(t *testing.T) {
	off, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer off.Close()
	x := newHipRig(t, 1000, func(c *Config, _ *staging.Options) { c.MinWindow = 500 })
	plain := newRig(t, 1000, nil)
	for name, c := range map[string]struct {
		srv    http.Handler
		change func(map[string]string)
	}{
		"off":              {off.Handler(aimServer{}, x.store), nil},
		"no pairs":         {plain.plugin.Handler(aimServer{}, x.store), nil},
		"server cannot":    {x.plugin.Handler(fakeServer{}, x.store), nil},
		"another protocol": {x.srv, func(h map[string]string) { h[HeaderProtocol] = "hipobj-rc-v3" }},
		"no protocol":      {x.srv, func(h map[string]string) { h[HeaderProtocol] = "" }},
		"too small":        {x.srv, func(h map[string]string) { h[HeaderSize] = "499" }},
	} {
		_, head := x.hello("PUT", "/b/k", 1000)
		if c.change != nil {
			c.change(head)
		}
		w := httptest.NewRecorder()
		c.srv.ServeHTTP(w, hipPost("prepare", head))
		if w.Code != 501 || w.Header().Get(HeaderProtocolStatus) != "unsupported" || len(w.Header().Values(HeaderReply)) != 0 {
			t.Errorf("%s: %d %v", name, w.Code, w.Header())
		}
	}
}

func FuzzHipTarget(f *testing.F) {
	for _, s := range []string{"/b/k", "/b/a%20b?versionId=1", "/b/k?uploadId=u&partNumber=1", "//", "/%2f/x", "/b/%00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		x, ok := parseHipTarget(s)
		if !ok {
			return
		}
		if x.Bucket == "" || x.Key == "" || strings.Contains(x.Bucket, "/") {
			t.Errorf("%q: bucket %q, key %q", s, x.Bucket, x.Key)
		}
		again := "/" + url.PathEscape(x.Bucket) + "/" + url.PathEscape(x.Key)
		if len(x.Query) > 0 {
			again += "?" + x.Query.Encode()
		}
		if y, ok := parseHipTarget(again); !ok || y.Bucket != x.Bucket || y.Key != x.Key || y.Query.Encode() != x.Query.Encode() {
			t.Errorf("%q is %+v, and again %+v", s, x, y)
		}
	})
}
