// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package rawhttp

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/s3rdma/s3rdma/conformance/wirecount"
)

// ErrEndpoint is the error for an endpoint that is not http(s)://host[:port].
var ErrEndpoint = errors.New("invalid endpoint")

// maxBody bounds a response that is read into memory, in bytes.
const maxBody = 256 << 20

// Config says where requests go and who signs them.
type Config struct {
	// Endpoint is http://host:port or https://host:port, without a path.
	Endpoint string
	// Region is signed; "" is us-east-1.
	Region      string
	Credentials Credentials
	// TLS is used for https; nil trusts the system's roots.
	TLS *tls.Config
}

// Client sends requests to one endpoint. All methods may be called at once.
type Client struct {
	config   Config
	base     url.URL
	counter  wirecount.Counter
	wire     *http.Transport
	observer func(Exchange)
}

// New returns a client. It connects to nothing yet. Close it.
func New(c Config) (*Client, error) {
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("%w %q: want http://host:port or https://host:port", ErrEndpoint, c.Endpoint)
	}
	if c.Region == "" {
		c.Region = "us-east-1"
	}
	client := &Client{config: c, base: url.URL{Scheme: u.Scheme, Host: u.Host}}
	client.wire = client.counter.Transport(c.TLS)
	return client, nil
}

// Observing returns a client that shares c's connections and also hands each
// exchange to observe, which must be safe for use by several goroutines.
func (c *Client) Observing(observe func(Exchange)) *Client {
	return &Client{config: c.config, base: c.base, wire: c.wire, observer: observe}
}

// Counter returns what the connections of a client made by New have carried.
func (c *Client) Counter() *wirecount.Counter { return &c.counter }

// Secure tells whether the endpoint is reached by TLS.
func (c *Client) Secure() bool { return c.base.Scheme == "https" }

// Config returns what New was given, the region filled in.
func (c *Client) Config() Config { return c.config }

// Close closes the idle connections.
func (c *Client) Close() { c.wire.CloseIdleConnections() }

// Request is one S3 request. The zero value of each field is the usual case.
type Request struct {
	Method      string
	Bucket, Key string // unescaped; both empty for the service itself
	Path        string // used instead of Bucket and Key, e.g. "/.s3rdma-shm/connect"
	Query       url.Values

	// Header is sent and signed, Unsigned is sent and not signed.
	Header, Unsigned http.Header

	// Body is sent with its length. Chunked sends it with Transfer-Encoding:
	// chunked instead, also when it is empty.
	Body    []byte
	Chunked bool

	// PayloadHash is the value of x-amz-content-sha256; "" is UnsignedPayload.
	PayloadHash string
	// SignLength puts content-length among the signed headers.
	SignLength bool
	// Anonymous sends no signature at all.
	Anonymous bool
	// Presign, if positive, signs in the query instead of the header.
	Presign time.Duration
	// Credentials replace the client's.
	Credentials *Credentials
	// Service is the service that is signed for; "" is s3.
	Service string
}

// Response is what came back, the body read whole.
type Response struct {
	Method string // of the request
	Status int
	Header http.Header
	// Length is the Content-Length header's value, -1 without one.
	Length int64
	Body   []byte
}

// S3Error is the XML body of an S3 error response.
type S3Error struct {
	XMLName xml.Name `xml:"Error"`
	Code    string
	Message string
}

// Error parses the body as an S3 error. It returns the zero value if it is none.
func (r *Response) Error() S3Error {
	var e S3Error
	if xml.Unmarshal(r.Body, &e) != nil {
		return S3Error{}
	}
	return e
}

// Do sends r and reads the answer. A non-2xx status is no error. Errors are those
// of the connection and ctx's.
func (c *Client) Do(ctx context.Context, r Request) (*Response, error) {
	s, err := c.Seal(ctx, r)
	if err != nil {
		return nil, err
	}
	return s.Send(ctx)
}

// Sealed is a request with its signature: the same bytes however often it is sent.
type Sealed struct {
	c   *Client
	r   Request
	req *http.Request
}

// Seal signs r and sends nothing yet. The slices of r stay in use.
func (c *Client) Seal(ctx context.Context, r Request) (*Sealed, error) {
	req, err := c.build(ctx, r)
	if err != nil {
		return nil, err
	}
	return &Sealed{c, r, req}, nil
}

// Send sends the request and reads the answer, as Do does.
func (s *Sealed) Send(ctx context.Context) (*Response, error) {
	c, r, req := s.c, s.r, s.req.Clone(ctx)
	if req.Body != nil {
		req.Body = io.NopCloser(bytes.NewReader(r.Body))
	}
	exchange := Exchange{Sent: describeRequest(req, r)}
	answer, err := c.roundTrip(req)
	if err != nil {
		// net/http's error quotes the URL, which bears a presigned signature.
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		err = fmt.Errorf("%s %s: %w", r.Method, req.URL.EscapedPath(), err)
		exchange.Got = "no answer: " + err.Error()
	} else {
		exchange.Got = describeResponse(answer, secretsOf(r))
	}
	if c.observer != nil {
		c.observer(exchange)
	}
	return answer, err
}

func (c *Client) build(ctx context.Context, r Request) (*http.Request, error) {
	u := c.base
	escaped := r.Path
	if escaped == "" {
		escaped = "/" + EscapePath(r.Bucket)
		if r.Key != "" {
			escaped += "/" + EscapePath(r.Key)
		}
	}
	plain, err := url.PathUnescape(escaped)
	if err != nil {
		return nil, fmt.Errorf("request path: %w", err)
	}
	u.Path, u.RawPath, u.RawQuery = plain, escaped, encodeQuery(r.Query)

	req, err := http.NewRequestWithContext(ctx, r.Method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.URL = &u
	switch {
	case r.Chunked:
		req.Body = io.NopCloser(bytes.NewReader(r.Body))
		req.ContentLength = -1
	case len(r.Body) > 0:
		req.Body = io.NopCloser(bytes.NewReader(r.Body))
		req.ContentLength = int64(len(r.Body))
	}
	for name, values := range r.Header {
		req.Header[http.CanonicalHeaderKey(name)] = slices.Clone(values)
	}
	c.authenticate(req, r)
	for name, values := range r.Unsigned {
		req.Header[http.CanonicalHeaderKey(name)] = slices.Clone(values)
	}
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", "s3rdma-conformance")
	}
	return req, nil
}

func (c *Client) authenticate(req *http.Request, r Request) {
	if r.Anonymous {
		return
	}
	s := signer{creds: c.config.Credentials, region: c.config.Region, service: r.Service, now: time.Now().UTC()}
	if r.Credentials != nil {
		s.creds = *r.Credentials
	}
	if s.service == "" {
		s.service = "s3"
	}
	hash := r.PayloadHash
	if hash == "" {
		hash = UnsignedPayload
	}
	if r.Presign > 0 {
		s.query(req, hash, r.Presign)
		return
	}
	req.Header.Set("X-Amz-Content-Sha256", hash)
	s.header(req, hash, r.SignLength)
}

func (c *Client) roundTrip(req *http.Request) (*Response, error) {
	resp, err := c.wire.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("read the response body: %w", err)
	}
	length := resp.ContentLength
	if v := resp.Header.Get("Content-Length"); v == "" {
		length = -1
	}
	return &Response{Method: req.Method, Status: resp.StatusCode, Header: resp.Header, Length: length, Body: body}, nil
}
