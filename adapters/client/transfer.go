// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio"
)

// route decides, before anything is sent, which way the bytes of a view go. A route
// other than Fabric with ForceFabric is an error. small tells that the size speaks
// for HTTP.
func (c *Client) route(ctx context.Context, v View, f Force, small bool) (_ Route, gen uint64, err error) {
	var why error
	r := Fabric
	switch {
	case f == ForceHTTP:
		return HTTPAsked, 0, nil
	case c.target == nil || !v.registered():
		r, why = HTTPPlain, errors.New("the view is not registered memory, or the client has no target")
	case v.Len() == 0 || small && f != ForceFabric:
		r, why = HTTPSmall, errors.New("an empty view has no descriptor")
	case c.pairs != nil:
		if why = c.pairing.may(c.now()); why != nil {
			r = HTTPNoSession
		}
	default:
		gen, why = c.session.ensure(ctx, false)
		switch {
		case ctx.Err() != nil:
			return 0, 0, context.Cause(ctx)
		case why != nil:
			r = HTTPNoSession
		}
	}
	if r != Fabric && f == ForceFabric {
		return r, 0, fmt.Errorf("%w: %w", ErrNoFabric, why)
	}
	return r, gen, nil
}

// How often one request is sent on the fabric at most. A key or session can be
// withdrawn under a request as often as its neighbours fail; after that many times
// the request takes part in what goes wrong.
const maxAttempts = 4

// verdict is what an answer means for the request.
type verdict uint8

const (
	// moved: a success over the fabric.
	moved verdict = iota + 1
	// declinedIt: HTTP would work.
	declinedIt
	// ignoredIt: the server took no notice of the descriptor.
	ignoredIt
	// noSession: there is none any more, and another cannot be had now.
	noSession
	// failed: an error, of the server or of the answer.
	failed
)

// fallbackRoute is the way that the bytes go after a verdict that allows HTTP.
var fallbackRoute = map[verdict]Route{declinedIt: HTTPDeclined, noSession: HTTPNoSession, ignoredIt: HTTPIgnored}

// overFabric sends a request with a descriptor of v until it is answered for good.
// make makes the call, anew for each attempt; judge says what a success is.
//
// Unless the verdict is moved, the memory's key has been withdrawn when overFabric
// returns, and no transfer can reach the memory any more. With ignoredIt the answer
// is returned open, for its body; otherwise it has been closed.
func (c *Client) overFabric(ctx context.Context, v View, gen uint64, mk func() (*call, error), judge func(*call, *http.Response) (verdict, error)) (verdict, *http.Response, error) {
	broken := 0 // attempts that got no answer
	for n := 1; ; n++ {
		l, err := v.lend(maxWindow)
		switch {
		case errors.Is(err, rdmaio.ErrNoSession):
			c.session.lost(gen, err)
			if n < maxAttempts {
				if gen, err = c.session.ensure(ctx, false); err == nil {
					continue
				}
			}
			return noSession, nil, fmt.Errorf("%w: %w", ErrNoFabric, err)
		case err != nil:
			return failed, nil, err
		}
		k, err := mk()
		if err != nil {
			return failed, nil, err
		}
		k.set(headerToken, l.token)
		k.once = true
		resp, err := c.send(ctx, k)
		var what verdict
		if err != nil {
			what = failed
			broken++
		} else if what, err = c.verdictOf(k, resp, l, judge); what == moved {
			resp.Body.Close()
			c.session.worked(gen)
			return moved, resp, nil
		}

		// Somebody else's failure may be the reason for ours: they took back the
		// buffer that we share, or the session was replaced.
		superseded := l.superseded() || c.session.replaced(gen)
		if resp != nil && what != ignoredIt {
			resp.Body.Close()
		}
		// The fence. From here on nothing that the server still does for this
		// request can touch the memory. The request's own time does not count.
		tctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rekeyTimeout)
		if terr := l.takeBack(tctx); terr != nil {
			cancel()
			if what == ignoredIt {
				resp.Body.Close()
			}
			return failed, nil, errors.Join(err, terr)
		}
		cancel()

		var answer *Error
		answered := errors.As(err, &answer)
		again := false
		switch {
		case ctx.Err() != nil || n == maxAttempts:
		case what == declinedIt:
			again = superseded
		case what == failed && answered:
			again = superseded && answer.Is(ErrTransfer)
		case what == failed && resp == nil:
			// The connection broke. A GET may be sent again, and a server that closes
			// idle connections makes it necessary.
			again = k.method == http.MethodGet && (superseded || broken == 1)
		}
		if !again {
			switch what {
			case declinedIt:
				c.session.declined(gen, answered && answer.Code == codeNoSession)
			case ignoredIt:
				c.stats.ignored.Add(1)
			}
			return what, resp, err
		}
		c.stats.repeated.Add(1)
		var cerr error
		if gen, cerr = c.session.ensure(ctx, false); cerr != nil {
			return noSession, nil, fmt.Errorf("%w: %w", ErrNoFabric, cerr)
		}
	}
}

// verdictOf sorts an answer. The error belongs to failed and declinedIt.
func (c *Client) verdictOf(k *call, resp *http.Response, l lease, judge func(*call, *http.Response) (verdict, error)) (verdict, error) {
	reply := resp.Header.Values(headerReply)
	switch {
	case resp.StatusCode == http.StatusNotImplemented, len(reply) == 1 && reply[0] == "501":
		return declinedIt, answerError(k, resp, l.secrets()...)
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return failed, answerError(k, resp, l.secrets()...)
	case len(reply) > 1:
		return failed, protocolError(k, "%d %s headers", len(reply), headerReply)
	}
	return judge(k, resp)
}

// secrets are the parts of a lease that must not come back in an error.
func (l lease) secrets() []string {
	s := []string{l.token}
	// transport:session:addr:size:key; the session and the key are the secrets.
	if f := strings.Split(l.token, ":"); len(f) == 5 {
		s = append(s, f[1], f[4])
	}
	return s
}

// checkReply holds a success against the rules: the reply repeats the HTTP status,
// which is the wanted one; the byte count is a plain integer of at most most; there
// is no body. It returns the byte count.
func checkReply(k *call, resp *http.Response, want int, most int) (int, error) {
	reply := resp.Header.Get(headerReply)
	switch {
	case resp.StatusCode != want:
		return 0, protocolError(k, "HTTP %d, want %d", resp.StatusCode, want)
	case reply != strconv.Itoa(want):
		return 0, protocolError(k, "HTTP %d with a reply that does not repeat it", resp.StatusCode)
	case resp.ContentLength != 0 || len(resp.TransferEncoding) > 0:
		return 0, protocolError(k, "a reply of %s with a body of %d bytes (-1 is unknown), want none", reply, resp.ContentLength)
	}
	counts := resp.Header.Values(headerBytes)
	if len(counts) != 1 {
		return 0, protocolError(k, "%d %s headers, want one", len(counts), headerBytes)
	}
	n, ok := parseDecimal(counts[0])
	switch {
	case !ok:
		return 0, protocolError(k, "header %s is no plain decimal number", headerBytes)
	case n > int64(most):
		return 0, protocolError(k, "header %s is %d, but the window has %d bytes", headerBytes, n, most)
	}
	return int(n), nil
}

// parseProof reads what a success over the fabric says of the n bytes that moved, and
// holds it against what was asked for. A server that says nothing is one that does not
// know what it was asked.
func parseProof(k *call, resp *http.Response, n int, ask checksum.RegionRequest) (checksum.RegionProof, error) {
	p, found, err := checksum.ParseRegionProof(resp.Header, int64(n))
	switch {
	case err != nil:
		return p, fmt.Errorf("%s: %w: %w", k.name(), ErrProtocol, err)
	case found && p.Policy.With(ask.Policy) != p.Policy:
		return p, protocolError(k, "the checksum policy %v was asked for, the server says %v", ask.Policy, p.Policy)
	case found && ask.Algorithm != 0 && p.Sum.Algorithm() != ask.Algorithm:
		return p, protocolError(k, "a checksum %v over the region was asked for, the server sent %v", ask.Algorithm, p.Sum.Algorithm())
	}
	return p, nil
}

// parseDecimal reads a number of 1 to 18 decimal digits and nothing else: no sign,
// no space.
func parseDecimal(s string) (int64, bool) {
	if len(s) == 0 || len(s) > 18 {
		return 0, false
	}
	var n int64
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = 10*n + int64(s[i]-'0')
	}
	return n, true
}

// bounded gives a request for n bytes its time on the fabric.
func (c *Client) bounded(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	d := c.budget(n).Round(time.Millisecond)
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("no answer within %v: %w", d, context.DeadlineExceeded))
}
