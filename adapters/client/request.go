// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"crypto/md5"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/s3rdma/s3rdma/checksum"
)

// The headers of the wire, see the protocol text.
const (
	headerToken   = "x-amz-rdma-token"
	headerReply   = "x-amz-rdma-reply"
	headerBytes   = "x-amz-rdma-bytes-transferred"
	headerSession = "x-amz-rdma-session"
	headerPSN     = "x-amz-rdma-psn"

	headerPayloadHash = "x-amz-content-sha256"
	unsignedPayload   = "UNSIGNED-PAYLOAD"
)

// call is one S3 request before it is signed.
type call struct {
	op          string // the S3 API's name
	method      string
	bucket, key string
	path        string // instead of bucket and key: a path of the server itself
	query       url.Values
	header      http.Header // the call's own, may be changed
	body        []byte      // memory that nobody changes while the request runs
	bodyHash    string      // x-amz-content-sha256; "" is UNSIGNED-PAYLOAD
	// once forbids the transport to send the request a second time by itself.
	once bool
	// guard stands between the transport and body once the request is made.
	guard *guard
}

func newCall(op, method, bucket, key string) *call {
	return &call{op: op, method: method, bucket: bucket, key: key, query: url.Values{}, header: http.Header{}}
}

// name says what the call is about, for errors.
func (c *call) name() string {
	switch {
	case c.bucket == "":
		return c.op
	case c.key == "":
		return c.op + " " + c.bucket
	}
	return c.op + " " + c.bucket + "/" + c.key
}

// set sets a header unless the value is empty.
func (c *call) set(name, value string) {
	if value != "" {
		c.header.Set(name, value)
	}
}

// param sets a query parameter unless the value is empty.
func (c *call) param(name, value string) {
	if value != "" {
		c.query.Set(name, value)
	}
}

// extra takes over the headers that the caller of the library gave. Those that
// decide where the bytes go, and the signature, are not theirs to set.
func (c *call) extra(h http.Header) error {
	for name, values := range h {
		lower := strings.ToLower(name)
		switch {
		case strings.HasPrefix(lower, "x-amz-rdma-"), strings.HasPrefix(lower, "x-rdma-"),
			lower == "authorization", lower == headerPayloadHash, lower == "x-amz-date", lower == "x-amz-security-token",
			lower == "content-length", lower == "transfer-encoding", lower == "host":
			return fmt.Errorf("%s: header %s cannot be given: %w", c.op, lower, ErrInvalid)
		}
		c.header[http.CanonicalHeaderKey(name)] = values
	}
	return nil
}

// customerKey sets the headers of server-side encryption with the customer's key
// (SSE-C); key has 32 bytes, or none.
func (c *call) customerKey(key []byte) error {
	if len(key) == 0 {
		return nil
	}
	if len(key) != 32 {
		return fmt.Errorf("%s: customer key of %d bytes, want 32: %w", c.op, len(key), ErrInvalid)
	}
	sum := md5.Sum(key)
	const prefix = "x-amz-server-side-encryption-customer-"
	c.set(prefix+"algorithm", "AES256")
	c.set(prefix+"key", base64.StdEncoding.EncodeToString(key))
	c.set(prefix+"key-MD5", base64.StdEncoding.EncodeToString(sum[:]))
	return nil
}

// region asks for checksums over the bytes that move, on the fabric.
func (c *call) region(ask checksum.RegionRequest) {
	ask.Set(c.header)
	if ask.Policy.Envelope() {
		c.bodyHash = checksum.Empty(checksum.SHA256).Hex()
	}
}

// xmlBody gives the call an XML document as its body, with its hash.
func (c *call) xmlBody(doc any) error {
	body, err := xml.Marshal(doc)
	if err != nil {
		return fmt.Errorf("%s: encode the request: %w", c.op, err)
	}
	c.body = body
	c.bodyHash = checksum.Of(checksum.SHA256, body).Hex()
	c.set("content-type", "application/xml")
	return nil
}

// emptyReader is a body without bytes that net/http does not recognise as one. A
// request that has it is not sent again by http.Transport when its connection
// breaks: the server may still be writing for the first, under the same key.
type emptyReader struct{}

func (emptyReader) Read([]byte) (int, error) { return 0, io.EOF }
func (emptyReader) Close() error             { return nil }

// guard lets a transport read memory only as long as the call lasts. A
// http.RoundTripper may go on reading a body after it has returned; the memory may
// be unmapped then.
type guard struct {
	mu  sync.Mutex
	mem []byte
}

// end returns when nobody reads the memory any more. A nil guard has no reader.
func (g *guard) end() {
	if g != nil {
		g.mu.Lock()
		g.mem = nil
		g.mu.Unlock()
	}
}

// guardedBody reads a guard's memory from the start.
type guardedBody struct {
	g   *guard
	off int
}

func (b *guardedBody) Read(p []byte) (int, error) {
	b.g.mu.Lock()
	defer b.g.mu.Unlock()
	if b.g.mem == nil {
		return 0, errors.New("the request is over")
	}
	if b.off == len(b.g.mem) {
		return 0, io.EOF
	}
	n := copy(p, b.g.mem[b.off:])
	b.off += n
	return n, nil
}

func (b *guardedBody) Close() error { return nil }

// send signs and sends a call. The caller closes the answer's body, and ends the
// call's guard.
func (c *Client) send(ctx context.Context, k *call) (*http.Response, error) {
	if c.opt.Credentials == nil {
		return c.sendAs(ctx, k, nil)
	}
	cred, err := c.opt.Credentials(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: get credentials: %w", k.op, err)
	}
	return c.sendAs(ctx, k, &cred)
}

// sendAs is send with these credentials; nil are none.
func (c *Client) sendAs(ctx context.Context, k *call, cred *Credentials) (*http.Response, error) {
	req, err := c.request(ctx, k, cred)
	if err != nil {
		return nil, err
	}
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, fmt.Errorf("%s: send to %s: %w", k.name(), c.endpoint.Host, err)
	}
	return resp, nil
}

// request makes the signed request of a call.
func (c *Client) request(ctx context.Context, k *call, cred *Credentials) (*http.Request, error) {
	u := *c.endpoint
	switch {
	case k.path != "":
		u.Path = k.path
	case k.bucket == "" || strings.ContainsAny(k.bucket, "/?#"):
		return nil, fmt.Errorf("%s: bucket name %q: %w", k.op, k.bucket, ErrInvalid)
	case c.opt.VirtualHost:
		u.Host = k.bucket + "." + u.Host
		u.Path, u.RawPath = "/"+k.key, "/"+escapePath(k.key)
	default:
		u.Path, u.RawPath = "/"+k.bucket, "/"+k.bucket
		if k.key != "" {
			u.Path, u.RawPath = u.Path+"/"+k.key, u.RawPath+"/"+escapePath(k.key)
		}
	}
	u.RawQuery = k.query.Encode()

	hash := k.bodyHash
	if hash == "" {
		hash = unsignedPayload
	}
	k.header.Set(headerPayloadHash, hash)
	req := (&http.Request{
		Method: k.method, URL: &u, Host: u.Host, Header: k.header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	switch {
	case len(k.body) > 0:
		k.guard = &guard{mem: k.body}
		req.Body = &guardedBody{g: k.guard}
		req.GetBody = func() (io.ReadCloser, error) { return &guardedBody{g: k.guard}, nil }
		req.ContentLength = int64(len(k.body))
	case k.once && (k.method == http.MethodGet || k.method == http.MethodHead):
		req.Body = emptyReader{} // a PUT or POST is not repeated anyway
		// Without this http.Transport tries to find out in 200 ms whether there is
		// a body, and on a busy machine announces one.
		req.TransferEncoding = []string{"identity"}
	default:
		req.Body = http.NoBody
	}
	if cred != nil {
		err := c.signer.SignHTTP(ctx, aws.Credentials{
			AccessKeyID: cred.AccessKey, SecretAccessKey: cred.SecretKey, SessionToken: cred.SessionToken,
		}, req, hash, "s3", c.opt.Region, c.now())
		if err != nil {
			return nil, fmt.Errorf("%s: sign the request: %w", k.op, err)
		}
	}
	// Not signed: proxies change it. It keeps foreign transports from unpacking
	// what the object's owner had packed.
	req.Header.Set("Accept-Encoding", "identity")
	return req, nil
}

// escapePath encodes a key as S3 wants it in a path: every byte but the unreserved
// characters of RFC 3986 and the slash.
func escapePath(key string) string {
	const hexDigits = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(key))
	for i := 0; i < len(key); i++ {
		switch ch := key[i]; {
		case 'a' <= ch && ch <= 'z', 'A' <= ch && ch <= 'Z', '0' <= ch && ch <= '9',
			ch == '-', ch == '.', ch == '_', ch == '~', ch == '/':
			b.WriteByte(ch)
		default:
			b.WriteByte('%')
			b.WriteByte(hexDigits[ch>>4])
			b.WriteByte(hexDigits[ch&15])
		}
	}
	return b.String()
}

// simple sends a call without object bytes, and wants one of the given statuses.
// The body has been read, up to maxErrorBody bytes, and closed.
func (c *Client) simple(ctx context.Context, k *call, want ...int) (*http.Response, []byte, error) {
	ctx, leave, err := c.enter(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", k.op, err)
	}
	defer leave()
	resp, err := c.send(ctx, k)
	defer k.guard.end()
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	for _, s := range want {
		if resp.StatusCode == s {
			body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
			if err != nil {
				return nil, nil, fmt.Errorf("%s: read the answer: %w", k.name(), err)
			}
			return resp, body, nil
		}
	}
	return nil, nil, answerError(k, resp)
}
