// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/conformance/minioproc"
	"github.com/s3rdma/s3rdma/conformance/rawhttp"
	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/shm"
)

const (
	bucket = "sumbench"
	object = "object"
)

// conn is a session with a server, and memory that it reaches. It makes requests by hand:
// the client library would not let a checksum go unverified. One goroutine may use it.
type conn struct {
	http    *rawhttp.Client
	target  *shm.Target
	session string
	exposed rdmaio.Exposed
	mem     []byte
	token   string
}

// connect opens a session, makes the bucket, and exposes size bytes of some pattern.
func connect(ctx context.Context, s *minioproc.Server, size int) (c *conn, err error) {
	c = &conn{target: shm.NewTarget(shm.TargetOptions{})}
	defer func() {
		if err != nil {
			c.close(ctx)
		}
	}()
	if c.http, err = rawhttp.New(rawhttp.Config{Endpoint: s.Endpoint, Credentials: s.Root}); err != nil {
		return c, err
	}
	if _, err := c.do(ctx, rawhttp.Request{Method: "PUT", Bucket: bucket}, 0); err != nil {
		return c, err
	}
	hello, err := c.target.Hello(ctx)
	if err != nil {
		return c, err
	}
	resp, err := c.do(ctx, rawhttp.Request{Method: "POST", Path: "/.s3rdma-shm/connect", Header: http.Header{"x-amz-rdma-token": {hello.Token}}}, -1)
	if err != nil {
		return c, err
	}
	id, err := rdmaio.ParseSessionID(resp.Header.Get("x-amz-rdma-session"))
	if err != nil {
		return c, err
	}
	if err := c.target.Connect(ctx, rdmaio.Welcome{Session: id, Token: strings.TrimPrefix(resp.Header.Get("x-amz-rdma-reply"), "200:")}); err != nil {
		return c, err
	}
	c.session = id.Hex()
	if c.exposed, err = c.target.Alloc(size, rdmaio.RemoteRead|rdmaio.RemoteWrite); err != nil {
		return c, err
	}
	c.mem = c.exposed.Bytes()
	x := uint64(size)
	for i := range c.mem {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		c.mem[i] = byte(x)
	}
	d, err := c.exposed.Describe(0, size)
	if err != nil {
		return c, err
	}
	c.token, err = d.Encode(rdmaio.EncodingSession)
	return c, err
}

// do sends r; moved is the number of bytes that must have gone by the fabric, 0 for a
// request without a descriptor, -1 for a connect.
func (c *conn) do(ctx context.Context, r rawhttp.Request, moved int) (*rawhttp.Response, error) {
	resp, err := c.http.Do(ctx, r)
	if err != nil {
		return nil, err
	}
	if resp.Status != http.StatusOK {
		return nil, fmt.Errorf("%s answered HTTP %d %s: %s", r.Method, resp.Status, resp.Error().Code, resp.Error().Message)
	}
	if got := resp.Header.Get("x-amz-rdma-bytes-transferred"); moved > 0 && got != fmt.Sprint(moved) {
		return nil, fmt.Errorf("%s moved %q bytes of %d by the fabric", r.Method, got, moved)
	}
	return resp, nil
}

// request makes one for the object, with the descriptor, that asks for alg's checksum.
func (c *conn) request(method string, alg checksum.Algorithm) rawhttp.Request {
	r := rawhttp.Request{Method: method, Bucket: bucket, Key: object, Header: http.Header{}}
	ask := checksum.RegionRequest{Policy: checksum.PolicyNone}
	if alg != 0 {
		ask = checksum.RegionRequest{Policy: checksum.PolicyRegion, Algorithm: alg}
	}
	ask.Set(r.Header)
	r.Header["x-amz-rdma-token"] = []string{c.token}
	return r
}

// get reads the object and returns the checksum that the server tells, none for alg 0.
func (c *conn) get(ctx context.Context, alg checksum.Algorithm) (checksum.Sum, error) {
	resp, err := c.do(ctx, c.request("GET", alg), len(c.mem))
	if err != nil {
		return checksum.Sum{}, err
	}
	return c.proof(resp, alg)
}

// put stores the object. sum is what it declares, if any.
func (c *conn) put(ctx context.Context, alg checksum.Algorithm, sum checksum.Sum) error {
	r := c.request("PUT", alg)
	if !sum.IsZero() {
		r.Header.Set(sum.Algorithm().Header(), sum.Base64())
	}
	resp, err := c.do(ctx, r, len(c.mem))
	if err != nil {
		return err
	}
	_, err = c.proof(resp, alg)
	return err
}

// proof is what the server must say for what was measured to be what is printed.
func (c *conn) proof(resp *rawhttp.Response, alg checksum.Algorithm) (checksum.Sum, error) {
	p, found, err := checksum.ParseRegionProof(resp.Header, int64(len(c.mem)))
	switch {
	case err != nil:
		return checksum.Sum{}, err
	case !found, p.Policy.Region() != (alg != 0), p.Sum.Algorithm() != alg:
		return checksum.Sum{}, fmt.Errorf("%s: the server says policy %v with %v, %v was asked for", resp.Method, p.Policy, p.Sum.Algorithm(), alg)
	}
	return p.Sum, nil
}

// close ends the session and frees the memory.
func (c *conn) close(ctx context.Context) error {
	if c.session != "" {
		r := rawhttp.Request{Method: "POST", Path: "/.s3rdma-shm/disconnect", Header: http.Header{"x-amz-rdma-session": {c.session}}}
		c.http.Do(ctx, r) // the target's own end is what counts
	}
	var errs []error
	if c.exposed != nil {
		errs = append(errs, c.exposed.Close())
	}
	errs = append(errs, c.target.Close())
	if c.http != nil {
		c.http.Close()
	}
	return errors.Join(errs...)
}
