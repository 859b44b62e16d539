// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"net/http"
	"time"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

// captured is a request with a signed descriptor that somebody has seen and sends again,
// byte for byte.
type captured struct {
	e     *Env
	sent  *rawhttp.Sealed
	key   string
	first *rawhttp.Response
}

// capture sends r, as its owner does, and keeps what was sent.
func (e *Env) capture(ctx context.Context, r rawhttp.Request) *captured {
	e.remember(r.Header)
	sent, err := e.client.Seal(ctx, r)
	if err != nil {
		e.failf("sign the request: %v", err)
	}
	c := &captured{e: e, sent: sent, key: r.Key}
	c.first = c.again(ctx)
	return c
}

// again sends the same bytes once more.
func (c *captured) again(ctx context.Context) *rawhttp.Response {
	resp, err := c.sent.Send(ctx)
	if err != nil {
		c.e.failf("no answer: %v", err)
	}
	if where := c.e.leak(resp); where != "" {
		c.e.failf("the answer shows a descriptor or session that was sent, in its %s", where)
	}
	return resp
}

// replayCases send captured requests again: by header and presigned.
func replayCases() []Case {
	var all []Case
	for _, form := range []struct {
		name    string
		presign time.Duration
	}{{"header", 0}, {"presigned", 10 * time.Minute}} {
		signed := func(r rawhttp.Request) rawhttp.Request {
			r.Presign = form.presign
			return r
		}
		all = append(all,
			Case{ID: "replay/living-session/" + form.name, Level: Should, Needs: []Need{NeedFabric}, Source: srcCapable,
				Rule: "a captured request that is sent again while signature and session live moves the same window as before, and a PUT's declared checksum holds it to the same bytes",
				Run: func(ctx context.Context, e *Env) {
					p := e.connectPeer(ctx, nil)
					data := pattern(180, 70_000)
					w := e.windowOf(p, len(data), guard)
					copy(w.bytes(), data)
					put := e.capture(ctx, signed(e.withToken("PUT", e.key("o"), w.token(), sumHeader("CRC32C", data))))
					e.wantPut(put.first, len(data))
					e.wantPut(put.again(ctx), len(data))
					w.bytes()[1000] ^= 1
					e.wantRefused(put.again(ctx), 400)
					e.wantStored(ctx, put.key, data)
					get := e.capture(ctx, signed(e.withToken("GET", put.key, w.token(), nil)))
					e.wantGet(get.first, len(data))
					w.poison()
					e.wantGet(get.again(ctx), len(data))
					w.wantReceived(data)
				}},
			Case{ID: "replay/ended-session/" + form.name, Level: Must, Needs: []Need{NeedFabric}, Source: srcCapable,
				Rule: "a captured request that is sent again after its session has ended is declined, nothing stored or written, also when its client has connected anew and exposes the same memory",
				Run: func(ctx context.Context, e *Env) {
					p := e.connectPeer(ctx, nil)
					data := pattern(181, 70_000)
					w := e.windowOf(p, len(data), guard)
					copy(w.bytes(), data)
					put := e.capture(ctx, signed(e.withToken("PUT", e.key("o"), w.token(), nil)))
					e.wantPut(put.first, len(data))
					get := e.capture(ctx, signed(e.withToken("GET", put.key, w.token(), nil)))
					e.wantGet(get.first, len(data))
					e.want(e.do(ctx, disconnectRequest(p.target.Name(), p.id)), 204)
					other := pattern(182, len(data))
					for _, connected := range []bool{false, true} {
						if connected {
							e.join(ctx, p, nil)
						}
						copy(w.bytes(), other)
						e.wantDeclined(put.again(ctx))
						e.wantStored(ctx, put.key, data)
						w.poison()
						e.wantDeclined(get.again(ctx))
						w.wantUntouched()
					}
				}},
			Case{ID: "replay/other-identity/" + form.name, Level: Must, Needs: []Need{NeedFabric, NeedIdentity}, Source: srcCapable,
				Rule: "a captured descriptor that another identity puts into a request of its own is a 403, nothing stored or written",
				Run: func(ctx context.Context, e *Env) {
					data := pattern(183, 70_000)
					w := e.filled(data)
					put := e.capture(ctx, signed(e.withToken("PUT", e.key("o"), w.token(), nil)))
					e.wantPut(put.first, len(data))
					req := signed(e.withToken("PUT", e.key("never"), w.token(), nil))
					req.Credentials = e.runner.options.Second
					e.wantRefused(e.do(ctx, req), 403)
					e.wantAbsent(ctx, req.Key)
					w.poison()
					req.Method, req.Key = http.MethodGet, put.key
					e.wantRefused(e.do(ctx, req), 403)
					w.wantUntouched()
				}})
	}
	return all
}
