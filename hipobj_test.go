// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package s3rdma_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/s3rdma/s3rdma/adapters/nethttp"
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
