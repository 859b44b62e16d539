// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package s3rdma_test

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/s3rdma/s3rdma/adapters/nethttp"
	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/conformance"
	"github.com/s3rdma/s3rdma/conformance/broken"
	"github.com/s3rdma/s3rdma/conformance/rawhttp"
	"github.com/s3rdma/s3rdma/plugin"
	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/fabrictest"
	"github.com/s3rdma/s3rdma/rdmaio/staging"
)

var hipUsers = map[string]string{broken.AccessKey: broken.SecretKey, broken.SecondAccessKey: broken.SecondSecretKey}

// hipOuter is what the requests of hipobj-rc-v2 bring along: who asks.
type hipOuter struct{}

// startHipServer serves hipobj-rc-v2 in memory, in front of an S3 server of the suite's,
// and returns the options to test it. how, if not "", is what it does wrong.
func startHipServer(t *testing.T, how string) conformance.Options {
	t.Helper()
	s3, err := broken.Start(broken.Options{Off: true})
	if err != nil {
		t.Fatal(err)
	}
	pairs := fabrictest.NewPairs()
	fabric := &hipFabric{Pairs: pairs, how: how, owners: map[rdmaio.SessionID]string{}}
	cfg := plugin.Config{Fabrics: []rdmaio.Fabric{fabric}}
	if cfg.Staging, err = staging.New(staging.Options{Size: 8 << 20, HugePages: staging.HugePagesOff}, fabric); err != nil {
		t.Fatal(err)
	}
	p, err := plugin.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	inner := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, ok := r.Context().Value(hipOuter{}).(string); ok {
			// The S3 server knows identities by their signatures only.
			r = r.Clone(r.Context())
			r.Header.Del("Authorization")
			r.Header.Set("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
			cred := aws.Credentials{AccessKeyID: user, SecretAccessKey: hipUsers[user]}
			if err := signer.SignHTTP(r.Context(), cred, r, "UNSIGNED-PAYLOAD", "s3", "us-east-1", time.Now()); err != nil {
				t.Error(err)
			}
		}
		s3.ServeHTTP(w, r)
	})
	auth := &nethttp.SigV4{Lookup: func(_ context.Context, key string) (nethttp.Secret, error) {
		if secret, ok := hipUsers[key]; ok {
			return nethttp.Secret{Key: secret}, nil
		}
		return nethttp.Secret{}, nethttp.ErrUnknownKey
	}}
	o := nethttp.Options{Authenticator: auth, Trusted: true}
	if how == "anybody" {
		o.Authenticator = hipAnybody{}
	}
	front := nethttp.New(p, inner, o)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, plugin.HipObjPrefix) {
			_, rest, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
			user, _, _ := strings.Cut(rest, "/")
			r = r.WithContext(context.WithValue(r.Context(), hipOuter{}, user))
			w = &hipWriter{w, how}
		}
		front.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		srv.Close()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		buckets, uploads, _ := s3.Leftovers()
		if n := pairs.Live(); how == "" && n+buckets+uploads > 0 {
			t.Errorf("%d pairs, %d buckets and %d uploads were left behind", n, buckets, uploads)
		}
		if err := s3.Close(); err != nil {
			t.Error(err)
		}
	})
	return conformance.Options{
		Endpoint: srv.URL, AccessKey: broken.AccessKey, SecretKey: broken.SecretKey, Select: "hipobj/",
		Second:        &rawhttp.Credentials{AccessKey: broken.SecondAccessKey, SecretKey: broken.SecondSecretKey},
		NewPairTarget: func() rdmaio.PairTarget { return pairs.Target() },
	}
}

// hipAnybody verifies no signature.
type hipAnybody struct{}

func (hipAnybody) Authenticate(r *http.Request) (plugin.Identity, error) {
	return plugin.Identity{Name: broken.AccessKey}, nil
}

// hipWriter answers wrongly.
type hipWriter struct {
	http.ResponseWriter
	how string
}

func (w *hipWriter) WriteHeader(status int) {
	h := w.Header()
	switch {
	case w.how == "no-status":
		h.Del(plugin.HeaderProtocolStatus)
	case w.how == "other-cookie" && h.Get(plugin.HeaderCookie) != "":
		h.Set(plugin.HeaderCookie, "00000007")
	case w.how == "other-count" && h.Get(plugin.HeaderBytes) != "":
		h.Set(plugin.HeaderBytes, "1")
	case w.how == "no-memory":
		h.Del(plugin.HeaderMRKey)
	case w.how == "late-404" && status == http.StatusNotFound:
		status = http.StatusOK
	}
	w.ResponseWriter.WriteHeader(status)
}

// hipFabric pairs wrongly.
type hipFabric struct {
	*fabrictest.Pairs
	how string

	mu     sync.Mutex
	owners map[rdmaio.SessionID]string
}

func (f *hipFabric) Pair(ctx context.Context, h rdmaio.PairHello) (rdmaio.PairWelcome, error) {
	w, err := f.Pairs.Pair(ctx, h)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.owners[w.Session] = h.Owner
	return w, err
}

func (f *hipFabric) Claim(id rdmaio.SessionID, owner string) (rdmaio.Pair, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.how == "any-owner" {
		owner = f.owners[id]
	}
	p, err := f.Pairs.Claim(id, owner)
	if err == nil && (f.how == "no-word" || f.how == "early") {
		return hipPair{p, f.how}, nil
	}
	return p, err
}

func (f *hipFabric) Unpair(id rdmaio.SessionID, owner string) error {
	if f.how == "no-cancel" {
		return nil
	}
	return f.Pairs.Unpair(id, owner)
}

type hipPair struct {
	rdmaio.Pair
	how string
}

func (p hipPair) Join(ctx context.Context, qpn uint32, d rdmaio.Descriptor, imm uint32) (rdmaio.PairLink, error) {
	l, err := p.Pair.Join(ctx, qpn, d, imm)
	if err != nil {
		return nil, err
	}
	return hipLink{l, p.how}, nil
}

type hipLink struct {
	rdmaio.PairLink
	how string
}

func (l hipLink) Notify(ctx context.Context) error {
	if l.how == "no-word" {
		return nil
	}
	return l.PairLink.Notify(ctx)
}

func (l hipLink) Write(ctx context.Context, s rdmaio.Slice, at uint64) error {
	if l.how == "early" && at > 0 {
		return nil
	}
	return l.PairLink.Write(ctx, s, at)
}

func TestHipObjSuite(t *testing.T) {
	report, err := conformance.Run(t.Context(), startHipServer(t, ""))
	if err != nil || report.Passed < 12 {
		t.Errorf("%s, %v", report.Summary(), err)
	}
	for _, r := range report.Results {
		if r.Status != conformance.Passed {
			t.Errorf("%s %s: %s", r.Status, r.ID, r.Detail())
		}
	}
}

// The suite is worth what it finds.
func TestHipObjSuiteFinds(t *testing.T) {
	for how, ids := range map[string][]string{
		"no-status":    {"hipobj/declined"},
		"other-cookie": {"hipobj/both-ways", "hipobj/part"},
		"other-count":  {"hipobj/both-ways"},
		"no-memory":    {"hipobj/both-ways", "hipobj/short"},
		"no-word":      {"hipobj/both-ways"},
		"early":        {"hipobj/both-ways"},
		"late-404":     {"hipobj/missing"},
		"anybody":      {"hipobj/unsigned"},
		"any-owner":    {"hipobj/other-identity"},
		"no-cancel":    {"hipobj/cancel"},
	} {
		t.Run(how, func(t *testing.T) {
			o := startHipServer(t, how)
			o.Select = strings.Join(ids, ",")
			if how == "no-word" {
				o.Patience = 2 * time.Second // it waits for what does not come
			}
			report, err := conformance.Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range report.Results {
				if slices.Contains(ids, r.ID) && r.Status != conformance.Failed {
					t.Errorf("%s did not notice: %s %s", r.ID, r.Status, r.Reason)
				}
			}
		})
	}
}

// hipServer is protocolServer for whoever names an object in a header.
type hipServer struct{ protocolServer }

func (hipServer) Retarget(r *http.Request, _ plugin.Identity, method string, t plugin.Target, header http.Header, body io.ReadCloser, size int64) (*http.Request, error) {
	inner := r.Clone(r.Context())
	inner.Method, inner.URL = method, &url.URL{Path: "/" + t.Bucket + "/" + t.Key}
	if body != nil {
		inner.Body, inner.ContentLength = body, size
	}
	return inner, nil
}

// hipRefusing is a plugin that pairs, with one client of it.
type hipRefusing struct {
	refusing
	pairs  *fabrictest.Pairs
	target *fabrictest.PairsTarget
	mem    rdmaio.Exposed
	end    rdmaio.PairEnd
	w      rdmaio.PairWelcome
}

func newHipRefusing(t *testing.T, change func(*plugin.Config)) *hipRefusing {
	t.Helper()
	x := &hipRefusing{pairs: fabrictest.NewPairs()}
	x.t = t
	x.pairs.Peer = netip.MustParseAddr("10.10.48.208")
	cfg := plugin.Config{Fabrics: []rdmaio.Fabric{x.pairs}}
	if change != nil {
		change(&cfg)
	}
	var err error
	if cfg.Staging, err = staging.New(staging.Options{Size: 64 << 10, SlabSize: 4096, HugePages: staging.HugePagesOff}, x.pairs); err != nil {
		t.Fatal(err)
	}
	if x.plugin, err = plugin.New(cfg); err != nil {
		t.Fatal(err)
	}
	x.handler = x.plugin.Handler(hipServer{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPut:
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				http.Error(w, "", http.StatusInternalServerError)
				return
			}
			w.Header().Set("ETag", `"e"`)
		case r.URL.Path == "/bucket/none":
			w.WriteHeader(http.StatusNotFound)
		default:
			w.Header().Set("Content-Length", "4096")
		}
	}))
	x.target = x.pairs.Target()
	if x.mem, err = x.target.Alloc(4096, rdmaio.RemoteRead|rdmaio.RemoteWrite); err != nil {
		t.Fatal(err)
	}
	if x.end, err = x.target.NewPair(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(x.end.Close(), x.plugin.Close()); err != nil {
			t.Error(err)
		}
	})
	return x
}

// example are the headers of an example in the protocol's text, with the client's queue
// pair and, if there is one, its session in their places, and pairs besides.
func (x *hipRefusing) example(name string, pairs ...string) []string {
	info, lines := fenced(protocolText(x.t), "hipobj")
	var all []string
	for _, line := range lines[slices.Index(info, name)] {
		header, value, _ := strings.Cut(line, ": ")
		switch header {
		case plugin.HeaderToken:
			value = x.end.Hello().Token
		case plugin.HeaderQPN:
			value = fmt.Sprintf("%06x", x.end.QPN())
		case plugin.HeaderSession:
			if !x.w.Session.IsZero() {
				value = x.w.Session.Hex()
			}
		}
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == header {
				value = pairs[i+1]
			}
		}
		all = append(all, header, value)
	}
	return all
}

func (x *hipRefusing) post(action string, pairs ...string) *http.Request {
	return x.signed(httptest.NewRequest("POST", plugin.HipObjPrefix+action, nil), pairs...)
}

// prepare does what the example does, and connects.
func (x *hipRefusing) prepare(pairs ...string) *http.Response {
	x.t.Helper()
	res := x.do(x.post("prepare", x.example("prepare", pairs...)...))
	if res.StatusCode != 200 {
		x.t.Fatalf("prepare: %s", res.Status)
	}
	var err error
	if x.w.Session, err = rdmaio.ParseSessionID(res.Header.Get(plugin.HeaderSession)); err != nil {
		x.t.Fatal(err)
	}
	fmt.Sscanf(res.Header.Get(plugin.HeaderMRAddr), "%x", &x.w.Addr)
	fmt.Sscanf(res.Header.Get(plugin.HeaderMRKey), "%x", &x.w.RKey)
	if err := x.end.Connect(x.t.Context(), x.w); err != nil {
		x.t.Fatal(err)
	}
	return res
}

// hipRefused returns what the table of hipobj-rc-v2 has columns for.
func (x *hipRefusing) hipRefused(r *http.Request) (status int, answer, code string) {
	x.t.Helper()
	res := x.do(r)
	if len(res.Header.Values(plugin.HeaderReply)) > 0 || len(res.Header.Values(plugin.HeaderProtocol)) > 0 {
		x.t.Errorf("an error with %v", res.Header)
	}
	body, err := io.ReadAll(res.Body)
	var doc struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
	}
	if err != nil || xml.Unmarshal(body, &doc) != nil {
		x.t.Fatalf("answer %s %s", res.Status, body)
	}
	return res.StatusCode, res.Header.Get(plugin.HeaderProtocolStatus), doc.Code
}

// TestProtocolHipObj does what the examples do, and compares the names of the answers'
// headers with them.
func TestProtocolHipObj(t *testing.T) {
	x := newHipRefusing(t, nil)
	names := func(h http.Header) (all []string) {
		for name := range h {
			if l := strings.ToLower(name); strings.HasPrefix(l, "x-amz-rdma-") && !strings.HasPrefix(l, checksum.RegionPrefix) {
				all = append(all, l)
			}
		}
		slices.Sort(all)
		return all
	}
	text := func(name string) []string {
		info, lines := fenced(protocolText(t), "hipobj")
		return slices.Sorted(slices.Values(lines[slices.Index(info, name)]))
	}
	if _, _, err := rdmaio.Parse(x.example("prepare")[3], rdmaio.ParseOptions{}); err != nil {
		t.Errorf("the example's token: %v", err)
	}
	res := x.prepare()
	if got := names(res.Header); !slices.Equal(got, text("prepared")) {
		t.Errorf("a prepare is answered with %v", got)
	}
	if err := x.end.Push(t.Context(), x.mem, 0, 4096, 0xc0ffee01); err != nil {
		t.Fatal(err)
	}
	res = x.do(x.post("ready", x.example("ready")...))
	if got := names(res.Header); res.StatusCode != 200 || !slices.Equal(got, text("done")) {
		t.Errorf("a ready is answered %s with %v", res.Status, got)
	}
}

// hipRefusals makes the situation of each row of the table.
func hipRefusals() map[string]refusal {
	prepare := func(pairs ...string) refusal {
		return func(t *testing.T, _ string) (int, string, string) {
			x := newHipRefusing(t, nil)
			return x.hipRefused(x.post("prepare", x.example("prepare", pairs...)...))
		}
	}
	// ready is a refusal of a ready after a prepare, with a pushed word, if not 0.
	ready := func(user string, word uint32, pairs ...string) refusal {
		return func(t *testing.T, _ string) (int, string, string) {
			x := newHipRefusing(t, nil)
			x.prepare()
			if word != 0 {
				if err := x.end.Push(t.Context(), x.mem, 0, 4096, word); err != nil {
					t.Fatal(err)
				}
			}
			r := x.post("ready", x.example("ready", pairs...)...)
			r.Header.Set("Test-User", user)
			return x.hipRefused(r)
		}
	}
	return map[string]refusal{
		"hip-protocol": prepare(plugin.HeaderProtocol, "hipobj-rc-v3"),
		"hip-off": func(t *testing.T, _ string) (int, string, string) {
			x := newHipRefusing(t, nil)
			off, err := plugin.New(plugin.Config{})
			if err != nil {
				t.Fatal(err)
			}
			good := x.handler
			for _, h := range []http.Handler{x.plugin.Handler(protocolServer{}, nil), newRefusing(t, "PUT", nil).plugin.Handler(hipServer{}, nil), off.Handler(hipServer{}, nil)} {
				x.handler = h
				if status, answer, _ := x.hipRefused(x.post("prepare", x.example("prepare")...)); status != 501 || answer != "unsupported" {
					t.Errorf("answered %d %s", status, answer)
				}
			}
			defer func() { x.handler = good }()
			return x.hipRefused(x.post("prepare", x.example("prepare")...))
		},
		"hip-threshold": func(t *testing.T, _ string) (int, string, string) {
			x := newHipRefusing(t, func(c *plugin.Config) { c.MinWindow = 4097 })
			return x.hipRefused(x.post("prepare", x.example("prepare")...))
		},
		"hip-unsigned": func(t *testing.T, _ string) (int, string, string) {
			x := newHipRefusing(t, nil)
			r := x.post("prepare", x.example("prepare")...)
			r.Header.Del("Test-User")
			if status, _, _ := x.hipRefused(r); status != 403 {
				t.Errorf("nobody has signed: %d", status)
			}
			r = x.post("prepare", x.example("prepare")...)
			r.Header.Set(plugin.HeaderOffset, "0")
			return x.hipRefused(r)
		},
		"hip-peer": func(t *testing.T, _ string) (int, string, string) {
			x := newHipRefusing(t, func(c *plugin.Config) { c.AllowPeers = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} })
			return x.hipRefused(x.post("prepare", x.example("prepare")...))
		},
		"hip-body": func(t *testing.T, _ string) (int, string, string) {
			x := newHipRefusing(t, nil)
			return x.hipRefused(x.signed(httptest.NewRequest("POST", plugin.HipObjPrefix+"prepare", strings.NewReader("body")), x.example("prepare")...))
		},
		"hip-malformed": prepare(plugin.HeaderCookie, "00000000"),
		"hip-too-large": func(t *testing.T, _ string) (int, string, string) {
			x := newHipRefusing(t, nil)
			if status, _, code := x.hipRefused(x.post("prepare", x.example("prepare", plugin.HeaderSize, "2147483648")...)); status != 413 || code != "EntityTooLarge" {
				t.Errorf("the protocol's limit: %d %s", status, code)
			}
			x.pairs.Land = 4095
			return x.hipRefused(x.post("prepare", x.example("prepare")...))
		},
		"hip-missing": prepare(plugin.HeaderOp, "GET", plugin.HeaderTarget, "/bucket/none"),
		"hip-range":   prepare(plugin.HeaderOp, "GET", plugin.HeaderSize, "4097"),
		"hip-busy": func(t *testing.T, _ string) (int, string, string) {
			x := newHipRefusing(t, nil)
			x.pairs.Max = 0
			return x.hipRefused(x.post("prepare", x.example("prepare")...))
		},
		"hip-session":  ready("alice", 0, plugin.HeaderSession, rdmaio.NewSessionID().Hex()),
		"hip-cookie":   ready("alice", 0, plugin.HeaderCookie, "c0ffee02"),
		"hip-owner":    ready("mallory", 0),
		"hip-transfer": ready("alice", 0xc0ffee02),
		"hip-path": func(t *testing.T, _ string) (int, string, string) {
			x := newHipRefusing(t, nil)
			return x.hipRefused(x.post("connect", x.example("prepare")...))
		},
		"hip-method": func(t *testing.T, _ string) (int, string, string) {
			x := newHipRefusing(t, nil)
			return x.hipRefused(x.signed(httptest.NewRequest("GET", plugin.HipObjPrefix+"prepare", nil), x.example("prepare")...))
		},
	}
}
