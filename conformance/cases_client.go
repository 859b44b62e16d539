// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"net/http"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

// clientCases let a model of each known client loose on the server. With descriptors that
// the server serves they have to work; with others they must not lose anything.
func clientCases() []Case {
	var all []Case
	for _, m := range Models() {
		add := func(op, rule string, when When, needs []Need, run func(ctx context.Context, c *modelled)) {
			all = append(all, Case{ID: "client/" + m.Name + "/" + op, Level: Must, When: when, Needs: needs, Source: m.Source,
				Rule: m.Client + ": " + rule,
				Run: func(ctx context.Context, e *Env) {
					c := &modelled{e: e, m: m, served: when == WhenOn}
					run(ctx, c)
					c.judge()
				}})
		}
		served := []Need{NeedFabric}
		add("put", "its PUT is stored, and it knows", WhenOn, served, func(ctx context.Context, c *modelled) {
			c.put(ctx, c.e.filled(c.data()).token(), false)
		})
		if m.Parts {
			add("part", "its part of an upload is stored, and it knows", WhenOn, served, func(ctx context.Context, c *modelled) {
				c.put(ctx, c.e.filled(c.data()).token(), true)
			})
		}
		add("get", "its GET of a whole object arrives, and it knows", WhenOn, served, func(ctx context.Context, c *modelled) {
			c.get(ctx, 0, len(c.data()))
		})
		add("range", "its GET of a range arrives, and it knows", WhenOn, served, func(ctx context.Context, c *modelled) {
			c.get(ctx, 10_000, 30_000)
		})
		add("put-unserved", "a PUT with a descriptor that the server does not serve is not lost", Always, nil, func(ctx context.Context, c *modelled) {
			c.put(ctx, bareExample, false)
		})
		if m.Parts {
			add("part-unserved", "a part with a descriptor that the server does not serve is not lost", Always, nil, func(ctx context.Context, c *modelled) {
				c.put(ctx, bareExample, true)
			})
		}
		add("get-unserved", "after a GET with a descriptor that the server does not serve it does not take its old memory for the object", Always, nil, func(ctx context.Context, c *modelled) {
			c.get(ctx, 0, len(c.data()))
		})
	}
	return all
}

// modelled is one run of a model.
type modelled struct {
	e       *Env
	m       Model
	served  bool // its descriptor is one that the server should serve
	verdict Verdict
	why     string
}

func (c *modelled) data() []byte { return pattern(200, 70_001) }

func (c *modelled) end(v Verdict, format string, args ...any) {
	c.verdict, c.why = v, fmt.Sprintf(format, args...)
}

// judge makes the verdict the case's.
func (c *modelled) judge() {
	e := c.e
	e.conclude(c.verdict, c.why)
	if c.verdict == LosesData || c.served && c.verdict != Works {
		e.failf("%s", c.why)
	}
}

// put stores the data as the client does, as an object or as the one part of an upload.
func (c *modelled) put(ctx context.Context, token string, part bool) {
	e, data, key := c.e, c.data(), c.e.key("o")
	req := rawhttp.Request{Method: "PUT", Bucket: e.bucket(), Key: key}
	var u *upload
	if part {
		u = e.startUpload(ctx, key, nil)
		req = u.request(1, "", nil)
	}
	req.SignLength = c.m.SignsLength
	req.Header = http.Header{c.m.Header: {token}}
	if c.m.sends != nil {
		for name, values := range c.m.sends(data, part) {
			req.Header[name] = values
		}
	}
	resp := e.do(ctx, req)
	c.mayDecline(resp)
	verdict, why := Works, c.m.succeeded(c.m.put, resp)
	switch {
	case why != "" && !c.m.Retries:
		c.end(Fails, "it reports an error: %s", why)
		return
	case why != "":
		verdict = ByHTTP
		if part {
			req = u.request(1, "", nil)
		}
		req.Header, req.Body, req.SignLength = nil, data, false
		if resp = e.do(ctx, req); resp.Status != 200 {
			c.end(Fails, "it is not served by descriptor (%s), nor by HTTP then: HTTP %d", why, resp.Status)
			return
		}
	}
	if part {
		u.note(1, resp)
		u.complete(ctx)
	}
	stored := e.do(ctx, rawhttp.Request{Method: "GET", Bucket: e.bucket(), Key: key})
	if at, same := firstDifference(stored.Body, data); stored.Status != 200 || !same {
		c.end(LosesData, "it loses data: it takes HTTP %d with reply %q and ETag %s for a success; it sent %d bytes, and GET answers HTTP %d with %d, the same up to byte %d",
			resp.Status, resp.Header.Get(headerReply), resp.Header.Get("Etag"), len(data), stored.Status, len(stored.Body), at)
		return
	}
	if verdict == ByHTTP {
		why = "it goes by HTTP: " + why
	}
	c.end(verdict, "%s", why)
}

// get fetches length bytes from first on as the client does.
func (c *modelled) get(ctx context.Context, first, length int) {
	e, data := c.e, c.data()
	key := e.stored(ctx, "o", data)
	want := data[first : first+length]
	token, memory := bareExample, make([]byte, length) // which nobody can reach
	if c.served {
		w := e.window(length)
		token, memory = w.token(), w.bytes()
	}
	req := rawhttp.Request{Method: "GET", Bucket: e.bucket(), Key: key, Header: http.Header{c.m.Header: {token}}}
	if c.m.Ranged || length < len(data) {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", first, first+length-1))
	}
	resp := e.do(ctx, req)
	c.mayDecline(resp)
	got, why := c.m.received(resp, length)
	switch {
	case why != "" && !c.m.Retries:
		c.end(Fails, "it reports an error: %s", why)
	case why != "":
		delete(req.Header, c.m.Header)
		if resp := e.do(ctx, req); string(resp.Body) != string(want) {
			c.end(Fails, "it is not served by descriptor (%s), nor by HTTP then: HTTP %d", why, resp.Status)
			return
		}
		c.end(ByHTTP, "it goes by HTTP: %s", why)
	case got < length:
		c.end(Fails, "it is told of %d bytes of %d", got, length)
	default:
		if at, same := firstDifference(memory, want); !same {
			c.end(LosesData, "it loses data: it takes HTTP %d with reply %q for a success, and its memory differs from the object at byte %d of %d: it reads what was there before",
				resp.Status, resp.Header.Get(headerReply), at, length)
			return
		}
		c.end(Works, "")
	}
}

// mayDecline skips the case where the server declines a header that it may decline.
func (c *modelled) mayDecline(resp *rawhttp.Response) {
	if c.served && c.m.Header == headerAlias && resp.Status == 501 && resp.Header.Get(headerReply) == "501" {
		c.e.conclude(Fails, "the server declines x-rdma-info")
		c.e.skipf("the server declines %s, as it may", headerAlias)
	}
}
