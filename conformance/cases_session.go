// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"strings"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
	"github.com/s3rdma/s3rdma/rdmaio"
)

func sessionCases() []Case {
	chosen := func(e *Env) string {
		o := e.runner.options
		if o.NewTarget == nil && o.Fabric == "none" {
			e.skipf("needs a fabric: none was chosen")
		}
		return o.Fabric
	}
	return []Case{
		{ID: "session/connect", Level: Must, Source: srcWire,
			Rule: "a signed connect answers 200 with x-amz-rdma-session (32 hex digits) and x-amz-rdma-reply 200:<welcome>, and the fabric can complete it",
			Run: func(ctx context.Context, e *Env) {
				chosen(e)
				e.connectPeer(ctx, nil)
			}},
		{ID: "session/connect-unsigned", Level: Must, Needs: []Need{NeedFabric}, Source: srcCapable,
			Rule: "a connect without a signature, or whose hello is not among the signed headers, is refused with 403",
			Run: func(ctx context.Context, e *Env) {
				t := e.shared().target
				hello, err := t.Hello(ctx)
				if err != nil {
					e.failf("say hello: %v", err)
				}
				req := connectRequest(t.Name(), hello)
				req.Anonymous = true
				e.wantRefused(e.do(ctx, req), 403)
				req.Anonymous = false
				req.Header, req.Unsigned = nil, req.Header
				e.wantRefused(e.do(ctx, req), 403)
			}},
		{ID: "session/connect-wrong-secret", Level: Must, Needs: []Need{NeedFabric}, Source: srcCapable,
			Rule: "a connect with a wrong signature is refused with 403",
			Run: func(ctx context.Context, e *Env) {
				t := e.shared().target
				resp, err := connect(ctx, e.client, t, e.wrongSecret())
				if err != nil {
					e.failf("connect: %v", err)
				}
				e.wantRefused(resp, 403)
			}},
		{ID: "session/connect-malformed", Level: Should, Needs: []Need{NeedFabric}, Source: srcWire,
			Rule: "a connect with a hello that is none, or without one, is a 400",
			Run: func(ctx context.Context, e *Env) {
				name := e.shared().target.Name()
				for _, token := range []string{"", "no hello", strings.Repeat("f", 4000)} {
					e.wantRefused(e.do(ctx, connectRequest(name, rdmaio.Hello{Token: token})), 400)
				}
			}},
		{ID: "session/disconnect", Level: Must, Needs: []Need{NeedFabric}, Source: srcWire,
			Rule: "a disconnect answers 204, and descriptors of that session are then declined (501), nothing stored or written",
			Run: func(ctx context.Context, e *Env) {
				p := e.connectPeer(ctx, nil)
				data := pattern(3, 5000)
				w := e.windowOf(p, len(data), guard)
				key := e.stored(ctx, "o", data)
				token := w.token()
				e.wantGet(e.do(ctx, e.withToken("GET", key, token, nil)), len(data))
				w.wantReceived(data)
				w.poison()
				e.want(e.do(ctx, disconnectRequest(p.target.Name(), p.id)), 204)
				e.wantDeclined(e.do(ctx, e.withToken("GET", key, token, nil)))
				w.wantUntouched()
				other := e.key("never")
				e.wantDeclined(e.do(ctx, e.withToken("PUT", other, token, nil)))
				e.wantAbsent(ctx, other)
			}},
		{ID: "session/disconnect-unsigned", Level: Must, Needs: []Need{NeedFabric}, Source: srcCapable,
			Rule: "an unsigned disconnect is refused with 403 and ends nothing",
			Run: func(ctx context.Context, e *Env) {
				p := e.connectPeer(ctx, nil)
				req := disconnectRequest(p.target.Name(), p.id)
				req.Anonymous = true
				e.wantRefused(e.do(ctx, req), 403)
				e.transferBothWays(ctx, p)
			}},
		{ID: "session/disconnect-unknown", Level: Should, Needs: []Need{NeedFabric}, Source: srcWire,
			Rule: "a disconnect of a session that does not exist is a client error, not a success",
			Run: func(ctx context.Context, e *Env) {
				e.wantClientError(e.do(ctx, disconnectRequest(e.shared().target.Name(), rdmaio.NewSessionID().Hex())))
			}},
		{ID: "session/reconnect", Level: Must, Needs: []Need{NeedFabric}, Source: srcWire,
			Rule: "a target may connect again; its regions then work under new descriptors",
			Run: func(ctx context.Context, e *Env) {
				p := e.connectPeer(ctx, nil)
				w := e.windowOf(p, 70_000, guard)
				e.want(e.do(ctx, disconnectRequest(p.target.Name(), p.id)), 204)
				e.join(ctx, p, nil)
				data := pattern(4, w.n)
				key := e.stored(ctx, "o", data)
				e.wantGet(e.getRDMA(ctx, key, w, nil), len(data))
				w.wantReceived(data)
			}},
		{ID: "session/unknown", Level: Must, Needs: []Need{NeedFabric}, Source: srcWire,
			Rule: "a descriptor of a session that does not exist is declined (501): the client can connect again or use HTTP",
			Run: func(ctx context.Context, e *Env) {
				w := e.filled(pattern(5, 5000))
				d := w.descriptor()
				d.Session = rdmaio.NewSessionID()
				key := e.key("never")
				e.wantDeclined(e.do(ctx, e.withToken("PUT", key, e.encode(d), nil)))
				e.wantAbsent(ctx, key)
				present := e.stored(ctx, "o", pattern(6, 5000))
				w.poison()
				e.wantDeclined(e.do(ctx, e.withToken("GET", present, e.encode(d), nil)))
				w.wantUntouched()
			}},
		{ID: "session/other-identity", Level: Must, Needs: []Need{NeedFabric, NeedIdentity}, Source: srcCapable,
			Rule: "a session serves the identity only that connected it: another one's request with its descriptor is a 403, nothing stored or written",
			Run: func(ctx context.Context, e *Env) {
				w := e.filled(pattern(7, 5000))
				req := e.withToken("PUT", e.key("never"), w.token(), nil)
				req.Credentials = e.runner.options.Second
				e.wantRefused(e.do(ctx, req), 403)
				e.wantAbsent(ctx, req.Key)
				req.Method, req.Key = "GET", e.stored(ctx, "o", pattern(8, 5000))
				w.poison()
				e.wantRefused(e.do(ctx, req), 403)
				w.wantUntouched()
			}},
		{ID: "session/disconnect-other-identity", Level: Must, Needs: []Need{NeedFabric, NeedIdentity}, Source: srcCapable,
			Rule: "nobody can disconnect another identity's session",
			Run: func(ctx context.Context, e *Env) {
				p := e.connectPeer(ctx, nil)
				req := disconnectRequest(p.target.Name(), p.id)
				req.Credentials = e.runner.options.Second
				e.wantClientError(e.do(ctx, req))
				e.transferBothWays(ctx, p)
			}},
		{ID: "session/second-identity", Level: Must, Needs: []Need{NeedFabric, NeedIdentity}, Source: srcWire,
			Rule: "sessions of two identities work side by side",
			Run: func(ctx context.Context, e *Env) {
				second := e.runner.options.Second
				p := e.connectPeer(ctx, second)
				data := pattern(9, 66_000)
				w := e.windowOf(p, len(data), guard)
				key := e.stored(ctx, "o", data)
				req := e.withToken("GET", key, w.token(), nil)
				req.Credentials = second
				e.wantGet(e.do(ctx, req), len(data))
				w.wantReceived(data)
				e.transferBothWays(ctx, e.shared())
			}},
	}
}

// wrongSecret are credentials with the right name and the wrong secret.
func (e *Env) wrongSecret() *rawhttp.Credentials {
	return &rawhttp.Credentials{AccessKey: e.runner.options.AccessKey, SecretKey: e.runner.options.SecretKey + "x"}
}

// transferBothWays checks that p's session works.
func (e *Env) transferBothWays(ctx context.Context, p *peer) {
	data := pattern(10, 70_001)
	w := e.windowOf(p, len(data), guard)
	copy(w.bytes(), data)
	key := e.key("both-ways")
	e.wantPut(e.putRDMA(ctx, key, w, nil), len(data))
	e.wantStored(ctx, key, data)
	w.poison()
	e.wantGet(e.getRDMA(ctx, key, w, nil), len(data))
	w.wantReceived(data)
}
