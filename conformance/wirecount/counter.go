// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package wirecount

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Bytes adds up what went one way, in bytes.
type Bytes struct {
	Heads   int64 // request or status lines and header fields, with their CRLFs
	Framing int64 // chunk sizes, trailers and CRLFs of chunked bodies
	Payload int64 // everything else
}

// Traffic is what both ends sent, and in how many messages.
type Traffic struct {
	Requests  int64
	Responses int64 // final ones; a 100 Continue counts as head bytes only
	Sent      Bytes // by the client
	Received  Bytes // by the client
}

func (t *Traffic) add(u Traffic) {
	t.Requests += u.Requests
	t.Responses += u.Responses
	t.Sent.Heads += u.Sent.Heads
	t.Sent.Framing += u.Sent.Framing
	t.Sent.Payload += u.Sent.Payload
	t.Received.Heads += u.Received.Heads
	t.Received.Framing += u.Received.Framing
	t.Received.Payload += u.Received.Payload
}

// Payload is the payload of both directions, in bytes.
func (t Traffic) Payload() int64 { return t.Sent.Payload + t.Received.Payload }

// Counter adds up the traffic of the connections it wraps, by request method. The
// zero value is ready. All methods may be called at once.
type Counter struct {
	mu       sync.Mutex
	byMethod map[string]Traffic
	conns    int64
}

// Total returns the traffic so far.
func (c *Counter) Total() Traffic { return c.Of() }

// Of returns the traffic of the given methods, or of all if none is given. Bytes
// that belong to no recognised request are filed under the method "".
func (c *Counter) Of(methods ...string) Traffic {
	c.mu.Lock()
	defer c.mu.Unlock()
	var t Traffic
	for m, u := range c.byMethod {
		if len(methods) == 0 || slices.Contains(methods, m) {
			t.add(u)
		}
	}
	return t
}

// ByMethod returns a copy of the traffic by request method.
func (c *Counter) ByMethod() map[string]Traffic {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.byMethod)
}

// Conns returns how many connections have been wrapped.
func (c *Counter) Conns() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conns
}

func (c *Counter) file(method string, t Traffic) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byMethod == nil {
		c.byMethod = make(map[string]Traffic)
	}
	u := c.byMethod[method]
	u.add(t)
	c.byMethod[method] = u
}

// Wrap returns the client's end nc of a plain-text HTTP/1.1 connection with a
// scanner in front. The result owns nc: closing it closes nc.
func (c *Counter) Wrap(nc net.Conn) net.Conn {
	c.mu.Lock()
	c.conns++
	c.mu.Unlock()
	w := &conn{Conn: nc, counter: c}
	w.request = scanner{onHead: w.requestHead, add: func(h, f, p int64) {
		c.file(w.lastMethod, Traffic{Sent: Bytes{Heads: h, Framing: f, Payload: p}})
	}}
	w.response = scanner{onHead: w.responseHead, add: func(h, f, p int64) {
		c.file(w.answering, Traffic{Received: Bytes{Heads: h, Framing: f, Payload: p}})
	}}
	return w
}

// Transport returns an HTTP/1.1 client transport all of whose connections are
// counted, TLS undone before counting. The caller closes its idle connections.
// tlsConfig may be nil.
func (c *Counter) Transport(tlsConfig *tls.Config) *http.Transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			nc, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return c.Wrap(nc), nil
		},
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			config := &tls.Config{MinVersion: tls.VersionTLS12}
			if tlsConfig != nil {
				config = tlsConfig.Clone()
			}
			if config.ServerName == "" {
				host, _, err := net.SplitHostPort(addr)
				if err != nil {
					return nil, err
				}
				config.ServerName = host
			}
			config.NextProtos = []string{"http/1.1"} // the scanner knows no HTTP/2
			nc, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			tc := tls.Client(nc, config)
			if err := tc.HandshakeContext(ctx); err != nil {
				nc.Close()
				return nil, err
			}
			return c.Wrap(tc), nil
		},
		MaxIdleConnsPerHost: 32,
		IdleConnTimeout:     30 * time.Second,
		DisableCompression:  true, // a body must arrive as it was sent
	}
}

// conn scans what passes. mu orders the two directions, which net/http serves
// from two goroutines.
type conn struct {
	net.Conn
	counter *Counter

	mu                sync.Mutex
	request, response scanner
	pending           []string // methods whose final response has not begun
	lastMethod        string   // of the request being sent
	answering         string   // method of the request being answered
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.mu.Lock()
		c.response.scan(p[:n])
		c.mu.Unlock()
	}
	return n, err
}

// Write scans before it sends: otherwise the answer could be read before its
// request is known. After a short write the connection is of no use any more, and
// too much has been counted rather than too little.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.request.scan(p)
	c.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *conn) requestHead(start string, fields []string) (frame, bool) {
	method, rest, ok := strings.Cut(start, " ")
	if !ok || !strings.Contains(rest, " HTTP/1.") {
		c.lastMethod = ""
		return frame{}, false
	}
	c.lastMethod = method
	c.pending = append(c.pending, method)
	c.counter.file(method, Traffic{Requests: 1})
	length, chunked, ok := bodyOf(fields)
	// A request without either field has no body.
	return frame{length: max(length, 0), chunked: chunked, opaque: method == http.MethodConnect}, ok
}

func (c *conn) responseHead(start string, fields []string) (frame, bool) {
	proto, rest, ok := strings.Cut(start, " ")
	if !ok || !strings.HasPrefix(proto, "HTTP/1.") || len(rest) < 3 {
		c.answering = ""
		return frame{}, false
	}
	status, err := strconv.Atoi(rest[:3])
	if err != nil || len(c.pending) == 0 {
		c.answering = ""
		return frame{}, false
	}
	c.answering = c.pending[0]
	if status >= 100 && status < 200 {
		return frame{opaque: status == http.StatusSwitchingProtocols}, true
	}
	c.pending = c.pending[1:]
	c.counter.file(c.answering, Traffic{Responses: 1})
	length, chunked, ok := bodyOf(fields)
	switch {
	case !ok:
		return frame{}, false
	case c.answering == http.MethodHead, status == http.StatusNoContent, status == http.StatusNotModified:
		return frame{}, true
	case chunked:
		return frame{chunked: true}, true
	case length < 0:
		return frame{toClose: true}, true
	}
	return frame{length: length}, true
}
