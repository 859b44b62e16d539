// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/session"
	"github.com/s3rdma/s3rdma/rdmaio/staging"
)

// rcFabric is a memFabric of queue pairs: its sessions are in a table, and live once
// they are accepted.
type rcFabric struct {
	*memFabric
	table *session.Table[int]
}

func newRCFabric(f *memFabric) *rcFabric {
	return &rcFabric{f, session.New(session.Options[int]{UnownedFor: time.Hour})}
}

func (f *rcFabric) Capabilities() rdmaio.Capabilities {
	c := f.memFabric.Capabilities()
	c.Name = "rc"
	return c
}

func (f *rcFabric) Accept(_ context.Context, h rdmaio.Hello) (rdmaio.Welcome, error) {
	id, secret, err := f.table.Offer(h.Owner)
	if err == nil {
		_, err = f.table.Claim(secret, 0)
	}
	return rdmaio.Welcome{Session: id, Token: "come-in", PSN: h.PSN + 1}, err
}

func (f *rcFabric) Hangup(_ context.Context, id rdmaio.SessionID, owner string) error {
	return f.table.End(id, owner)
}

func (f *rcFabric) Open(ctx context.Context, d rdmaio.Descriptor, owner string) (rdmaio.Link, error) {
	lease, err := f.table.Acquire(d.Session, owner)
	if err != nil {
		return nil, err
	}
	lease.Release()
	d.Session = f.session
	return f.memFabric.Open(ctx, d, f.owner)
}

func (f *rcFabric) Close() error {
	f.table.Close()
	return nil
}

// TestConnectUnsigned: a peer that does not sign gets a connection where the operator
// allows that, and with it nothing until somebody signs a request that names it.
func TestConnectUnsigned(t *testing.T) {
	var fab *rcFabric
	r := newRig(t, 4000, func(c *Config, _ *staging.Options) {
		fab = newRCFabric(c.Fabrics[0].(*memFabric))
		c.Fabrics = append(c.Fabrics, fab)
	})
	const connect, disconnect = "/.s3rdma-rc/connect", "/.s3rdma-rc/disconnect"
	unsigned := []string{"Authorization", "", "Test-User", ""}
	post := func(path string, header ...string) *http.Response {
		return r.do(r.request("POST", path, "", header...))
	}
	want := func(what string, res *http.Response, status int) {
		t.Helper()
		if res.StatusCode != status {
			t.Errorf("%s: %s %s, want %d", what, res.Status, readAll(t, res), status)
		}
	}
	hello := append([]string{HeaderToken, "hello", HeaderPSN, "00000a"}, unsigned...)
	want("unsigned where that is not allowed", post(connect, hello...), 403)

	r.plugin.cfg.ConnectUnsigned = true
	want("unsigned over another fabric", post("/.s3rdma-shm/connect", append([]string{HeaderToken, "1"}, unsigned...)...), 403)
	want("badly signed", post(connect, HeaderToken, "hello", HeaderPSN, "00000a", "Test-User", "forger"), 403)
	want("signed without the token", post(connect, HeaderToken, "hello", HeaderPSN, "00000a", "Authorization", "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=0"), 403)
	want("presigned without the token", post(connect+"?X-Amz-Signature=0&X-Amz-SignedHeaders=host", hello...), 403)
	r.plugin.cfg.AllowPeers = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	want("a peer that is not allowed", post(connect, hello...), 403)
	r.plugin.cfg.AllowPeers = nil

	res := post(connect, hello...)
	want("unsigned", res, 200)
	if res.Header.Get(HeaderPSN) != "00000b" {
		t.Errorf("psn %q", res.Header.Get(HeaderPSN))
	}
	id, err := rdmaio.ParseSessionID(res.Header.Get(HeaderSession))
	if err != nil {
		t.Fatal(err)
	}
	token, err := rdmaio.Descriptor{Transport: rdmaio.TransportRC, Session: id, Addr: memBase, Size: 4000, RKey: 7}.Encode(rdmaio.EncodingSession)
	if err != nil {
		t.Fatal(err)
	}
	want("an unsigned PUT", r.do(r.request("PUT", "/b/o", token, unsigned...)), 403)
	// The first one who signs; and the token may be used again and again.
	for range 3 {
		want("alice's PUT", r.do(r.request("PUT", "/b/o", token)), 200)
		want("alice's GET", r.do(r.request("GET", "/b/o", token)), 200)
	}
	want("mallory's GET", r.do(r.request("GET", "/b/o", token, "Test-User", "mallory")), 403)
	want("mallory's disconnect", post(disconnect, HeaderSession, id.Hex(), "Test-User", "mallory"), 403)
	want("the peer's disconnect", post(disconnect, append([]string{HeaderSession, id.Hex()}, unsigned...)...), 204)
	want("a GET after it", r.do(r.request("GET", "/b/o", token)), 501)

	// Whoever signs is taken at his word, also here.
	res = post(connect, HeaderToken, "hello", HeaderPSN, "00000a")
	want("signed", res, 200)
	want("an unsigned disconnect of it", post(disconnect, append([]string{HeaderSession, res.Header.Get(HeaderSession)}, unsigned...)...), 403)
}
