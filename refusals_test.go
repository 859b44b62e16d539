// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package s3rdma_test

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/plugin"
	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/staging"
	"github.com/s3rdma/s3rdma/rdmaio/tcp"
)

// refusing is a plugin with the tcp fabric, and one client of it with 1000 bytes.
type refusing struct {
	t       *testing.T
	plugin  *plugin.Plugin
	pool    *staging.Pool
	handler http.Handler
	exposed rdmaio.Exposed
	session string
	method  string
}

// protocolServer has two users, who are who they say.
type protocolServer struct{}

func (protocolServer) Classify(r *http.Request) plugin.Op {
	switch {
	case r.URL.Query().Has("append"):
		return plugin.OpUnsupportedWrite
	case r.Method == http.MethodPut:
		return plugin.OpPutObject
	}
	return plugin.OpGetObject
}

func (protocolServer) Authenticate(r *http.Request) (plugin.Identity, error) {
	if user := r.Header.Get("Test-User"); user != "" {
		return plugin.Identity{Name: user}, nil
	}
	return plugin.Identity{}, errors.New("nobody")
}

func (protocolServer) Divert(r *http.Request, _ plugin.Identity, body io.ReadCloser, size int64) (*http.Request, error) {
	inner := r.Clone(r.Context())
	if body != nil {
		inner.Body, inner.ContentLength = body, size
	}
	return inner, nil
}

func (protocolServer) WriteError(w http.ResponseWriter, r *http.Request, e *plugin.Error) {
	e.WriteXML(w, r)
}

// dcOnly makes the transport dc known, and opens nothing.
type dcOnly struct{}

func (dcOnly) Capabilities() rdmaio.Capabilities {
	return rdmaio.Capabilities{Name: "dc", MaxTransfer: 1, MaxWindow: rdmaio.MaxWindow}
}
func (dcOnly) Register(mem []byte) (rdmaio.Region, error) { return dcRegion{mem}, nil }
func (dcOnly) Close() error                               { return nil }
func (dcOnly) Open(context.Context, rdmaio.Descriptor, string) (rdmaio.Link, error) {
	return nil, rdmaio.ErrUnsupported
}

type dcRegion struct{ mem []byte }

func (r dcRegion) Bytes() []byte { return r.mem }
func (r dcRegion) Close() error  { return nil }

// stored is what a GET reads.
var stored = []byte(strings.Repeat("stored", 100))

// newRefusing's handler stores nothing: a PUT that reaches it reads its body.
func newRefusing(t *testing.T, method string, change func(*plugin.Config, *tcp.Options)) *refusing {
	t.Helper()
	x := &refusing{t: t, method: method}
	peers := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("192.0.2.0/24")} // httptest's
	o := tcp.Options{Listen: "127.0.0.1:0", AllowPeers: peers}
	cfg := plugin.Config{AllowPeers: peers}
	if change != nil {
		change(&cfg, &o)
	}
	fabric, err := tcp.New(o)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Fabrics = []rdmaio.Fabric{fabric, dcOnly{}}
	x.pool, err = staging.New(staging.Options{Size: 64 << 10, SlabSize: 4096, Wait: 1, HugePages: staging.HugePagesOff}, cfg.Fabrics...)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Staging = x.pool
	if x.plugin, err = plugin.New(cfg); err != nil {
		t.Fatal(err)
	}
	x.handler = x.plugin.Handler(protocolServer{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				http.Error(w, "", http.StatusInternalServerError)
				return
			}
		}
		w.Header().Set("ETag", `"e"`)
		if r.URL.Query().Has("damaged") {
			w.Header().Set("x-amz-checksum-crc64nvme", checksum.Of(checksum.CRC64NVME, []byte("others")).Base64())
		}
		if r.Method == http.MethodGet {
			w.Write(stored)
		}
	}))
	target := tcp.NewTarget(tcp.Options{})
	t.Cleanup(func() {
		if err := errors.Join(target.Close(), x.plugin.Close()); err != nil {
			t.Error(err)
		}
	})
	res := x.do(x.signed(httptest.NewRequest("POST", "/.s3rdma-tcp/connect", nil), plugin.HeaderToken, "1"))
	if res.StatusCode != http.StatusOK {
		t.Fatalf("connect: %s", res.Status)
	}
	x.session = res.Header.Get(plugin.HeaderSession)
	id, err := rdmaio.ParseSessionID(x.session)
	if err != nil {
		t.Fatal(err)
	}
	if err := target.Connect(t.Context(), rdmaio.Welcome{Session: id, Token: strings.TrimPrefix(res.Header.Get(plugin.HeaderReply), "200:")}); err != nil {
		t.Fatal(err)
	}
	if x.exposed, err = target.Alloc(1000, rdmaio.RemoteRead|rdmaio.RemoteWrite); err != nil {
		t.Fatal(err)
	}
	return x
}

// token names the first n bytes of the client's memory.
func (x *refusing) token(n int) string {
	d, err := x.exposed.Describe(0, n)
	if err != nil {
		x.t.Fatal(err)
	}
	s, err := d.Encode(rdmaio.EncodingSession)
	if err != nil {
		x.t.Fatal(err)
	}
	return s
}

// signed gives a request headers, and a signature of alice's over all of them.
func (x *refusing) signed(r *http.Request, pairs ...string) *http.Request {
	for i := 0; i < len(pairs); i += 2 {
		r.Header.Add(pairs[i], pairs[i+1])
	}
	list := []string{"host"}
	for name := range r.Header {
		list = append(list, strings.ToLower(name))
	}
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders="+strings.Join(list, ";")+", Signature=00")
	r.Header.Set("Test-User", "alice")
	return r
}

// object is a request for an object with a descriptor of 1000 bytes.
func (x *refusing) object(pairs ...string) *http.Request {
	return x.signed(httptest.NewRequest(x.method, "/bucket/key", nil), append([]string{plugin.HeaderToken, x.token(1000)}, pairs...)...)
}

func (x *refusing) do(r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	x.handler.ServeHTTP(w, r)
	return w.Result()
}

// refused sends r and returns what the tables have columns for.
func (x *refusing) refused(r *http.Request) (status int, reply, code string) {
	x.t.Helper()
	res := x.do(r)
	body, err := io.ReadAll(res.Body)
	var doc struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
	}
	if err != nil || xml.Unmarshal(body, &doc) != nil {
		x.t.Fatalf("answer %s %s", res.Status, body)
	}
	if res.Header.Get("ETag") != "" || res.Header.Get(plugin.HeaderBytes) != "" {
		x.t.Errorf("an error looks like a success: %v", res.Header)
	}
	if retry := res.Header.Get("Retry-After"); (res.StatusCode == http.StatusServiceUnavailable && strings.HasPrefix(r.URL.Path, "/bucket")) != (retry != "") {
		x.t.Errorf("Retry-After is %q", retry)
	}
	return res.StatusCode, res.Header.Get(plugin.HeaderReply), doc.Code
}

type refusal func(t *testing.T, method string) (status int, reply, code string)

// with is a refusal of a request for an object with these headers besides.
func with(pairs ...string) refusal {
	return func(t *testing.T, method string) (int, string, string) {
		x := newRefusing(t, method, nil)
		return x.refused(x.object(pairs...))
	}
}

// withToken is a refusal of a descriptor.
func withToken(make func(x *refusing) string) refusal {
	return func(t *testing.T, method string) (int, string, string) {
		x := newRefusing(t, method, nil)
		return x.refused(x.signed(httptest.NewRequest(method, "/bucket/key", nil), plugin.HeaderToken, make(x)))
	}
}

// session is a refusal of a connect or disconnect.
func session(path string, pairs ...string) refusal {
	return func(t *testing.T, method string) (int, string, string) {
		x := newRefusing(t, method, nil)
		return x.refused(x.signed(httptest.NewRequest("POST", path, nil), pairs...))
	}
}

// refusals makes the situation of each row.
func refusals() map[string]refusal {
	all := hipRefusals()
	maps.Copy(all, refusalsByDescriptor())
	return all
}

func refusalsByDescriptor() map[string]refusal {
	const connect, disconnect = "/.s3rdma-tcp/connect", "/.s3rdma-tcp/disconnect"
	bare := "0000000000010000:000003e8:00000007:0000:000001:1:00000000000000000000ffffcb007101"
	wrong := checksum.Of(checksum.CRC32C, []byte("others")).Base64()
	return map[string]refusal{
		"off": func(t *testing.T, method string) (int, string, string) {
			x := newRefusing(t, method, nil)
			off, err := plugin.New(plugin.Config{})
			if err != nil {
				t.Fatal(err)
			}
			x.handler = off.Handler(protocolServer{}, http.NotFoundHandler())
			return x.refused(x.object())
		},
		"unknown-dialect": func(t *testing.T, method string) (int, string, string) {
			x := newRefusing(t, method, nil)
			for _, h := range []string{"x-scal-rdma", "x-cuobj-rdma-descr", "x-rdma-new", "x-amz-rdma-new"} {
				if status, _, _ := x.refused(x.signed(httptest.NewRequest(method, "/bucket/key", nil), h, "v")); status != 501 {
					t.Errorf("%s: status %d", h, status)
				}
			}
			return x.refused(x.signed(httptest.NewRequest(method, "/bucket/key", nil), plugin.HeaderToken, bare+":40:ofi1:tcp:00:00"))
		},
		"no-fabric": withToken(func(x *refusing) string { return "shm" + strings.TrimPrefix(x.token(1000), "tcp") }),
		"operation": func(t *testing.T, method string) (int, string, string) {
			x := newRefusing(t, method, nil)
			return x.refused(x.signed(httptest.NewRequest(method, "/bucket/key?append", nil), plugin.HeaderToken, x.token(1000)))
		},
		"threshold": func(t *testing.T, method string) (int, string, string) {
			x := newRefusing(t, method, func(c *plugin.Config, _ *tcp.Options) { c.MinWindow = 1001 })
			return x.refused(x.object())
		},
		"checksum-unknown": with(checksum.HeaderAlgorithm, "SHA512"),
		"no-session": withToken(func(x *refusing) string {
			return strings.Replace(x.token(1000), x.session, rdmaio.NewSessionID().Hex(), 1)
		}),
		"malformed":          withToken(func(*refusing) string { return "nonsense" }),
		"zero-window":        withToken(func(x *refusing) string { return x.token(0) }),
		"checksum-request":   with(checksum.HeaderPolicy, "all"),
		"envelope-payload":   with(checksum.HeaderPolicy, "envelope", "x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
		"checksum-malformed": with("x-amz-checksum-crc32c", "AAAA"),
		"checksum-wrong":     with("x-amz-checksum-crc32c", wrong),
		"checksum-of-nothing": func(t *testing.T, method string) (status int, reply, code string) {
			x := newRefusing(t, method, nil)
			for _, a := range checksum.Algorithms() {
				if status, reply, code = x.refused(x.object(a.Header(), checksum.Empty(a).Base64())); code != "BadDigest" {
					return
				}
			}
			return
		},
		"body": func(t *testing.T, method string) (int, string, string) {
			x := newRefusing(t, method, nil)
			if method == "PUT" {
				for _, h := range [][2]string{{"Content-Encoding", "aws-chunked"}, {"x-amz-trailer", "x-amz-checksum-crc32"},
					{"x-amz-decoded-content-length", "0"}, {"x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"}} {
					if status, _, code := x.refused(x.object(h[0], h[1])); status != 400 || code != "InvalidRequest" {
						t.Errorf("%v: %d %s", h, status, code)
					}
				}
			}
			return x.refused(x.signed(httptest.NewRequest(method, "/bucket/key", strings.NewReader("body")), plugin.HeaderToken, x.token(1000)))
		},
		"window-too-small": withToken(func(x *refusing) string { return x.token(len(stored) - 1) }),
		"unsigned": func(t *testing.T, method string) (int, string, string) {
			x := newRefusing(t, method, nil)
			r := x.object()
			r.Header.Set(checksum.HeaderPolicy, "none")
			if status, _, _ := x.refused(r); status != 403 {
				t.Errorf("an unsigned policy: %d", status)
			}
			r = x.signed(httptest.NewRequest(method, "/bucket/key", nil))
			r.Header.Set(plugin.HeaderToken, x.token(1000))
			return x.refused(r)
		},
		"envelope-unsigned": func(t *testing.T, method string) (int, string, string) {
			x := newRefusing(t, method, nil)
			r := x.object(checksum.HeaderPolicy, "envelope", "x-amz-content-sha256", checksum.Empty(checksum.SHA256).Hex())
			if res := x.do(r); res.StatusCode != 200 {
				t.Errorf("all signed: %s", res.Status)
			}
			r.Header.Set("If-Match", `"e"`)
			return x.refused(r)
		},
		"anonymous": func(t *testing.T, method string) (int, string, string) {
			x := newRefusing(t, method, nil)
			r := x.object()
			r.Header.Del("Test-User")
			return x.refused(r)
		},
		"not-owner": func(t *testing.T, method string) (int, string, string) {
			x := newRefusing(t, method, nil)
			r := x.object()
			r.Header.Set("Test-User", "mallory")
			return x.refused(r)
		},
		"peer": withToken(func(*refusing) string { return bare }),
		"transfer": withToken(func(x *refusing) string {
			s := x.token(1000)
			return s[:len(s)-8] + fmt.Sprintf("%08x", 0)
		}),
		"not-stored": func(t *testing.T, method string) (int, string, string) {
			x := newRefusing(t, method, nil)
			return x.refused(x.signed(httptest.NewRequest(method, "/bucket/key?damaged", nil), plugin.HeaderToken, x.token(1000)))
		},
		"busy": func(t *testing.T, method string) (int, string, string) {
			x := newRefusing(t, method, nil)
			for {
				lease, err := x.pool.Acquire(t.Context(), "other", 64<<10)
				if err != nil {
					break
				}
				defer lease.Release()
			}
			return x.refused(x.object())
		},

		"connect-no-fabric": session("/.s3rdma-shm/connect", plugin.HeaderToken, "1"),
		"connect-version":   session(connect, plugin.HeaderToken, "2"),
		"connect-malformed": session(connect, plugin.HeaderToken, "hello"),
		"connect-body": func(t *testing.T, method string) (int, string, string) {
			x := newRefusing(t, method, nil)
			return x.refused(x.signed(httptest.NewRequest("POST", connect, strings.NewReader("body")), plugin.HeaderToken, "1"))
		},
		"connect-unsigned": func(t *testing.T, method string) (int, string, string) {
			x := newRefusing(t, method, nil)
			r := x.signed(httptest.NewRequest("POST", connect, nil))
			r.Header.Set(plugin.HeaderToken, "1")
			return x.refused(r)
		},
		"connect-peer": func(t *testing.T, method string) (int, string, string) {
			x := newRefusing(t, method, nil)
			r := x.signed(httptest.NewRequest("POST", connect, nil), plugin.HeaderToken, "1")
			r.RemoteAddr = "203.0.113.1:1000"
			return x.refused(r)
		},
		"disconnect-not-owner": func(t *testing.T, method string) (int, string, string) {
			x := newRefusing(t, method, nil)
			r := x.signed(httptest.NewRequest("POST", disconnect, nil), plugin.HeaderSession, x.session)
			r.Header.Set("Test-User", "mallory")
			return x.refused(r)
		},
		"disconnect-unknown": session(disconnect, plugin.HeaderSession, rdmaio.NewSessionID().Hex()),
		"session-path":       session("/.s3rdma-tcp/", plugin.HeaderToken, "1"),
		"session-method": func(t *testing.T, method string) (int, string, string) {
			x := newRefusing(t, method, nil)
			return x.refused(x.signed(httptest.NewRequest("GET", connect, nil), plugin.HeaderToken, "1"))
		},
		"connect-too-many": func(t *testing.T, method string) (int, string, string) {
			x := newRefusing(t, method, func(_ *plugin.Config, o *tcp.Options) { o.MaxSessions = 1 })
			return x.refused(x.signed(httptest.NewRequest("POST", connect, nil), plugin.HeaderToken, "1"))
		},
	}
}
