// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/s3rdma/s3rdma/checksum"
)

// PutOptions say how an object is stored. The zero value stores the bytes and
// nothing else.
type PutOptions struct {
	// ContentType is the media type; "" leaves it to the server.
	ContentType string
	// Metadata is the caller's own (x-amz-meta-*); names without the prefix.
	Metadata map[string]string
	// Tags are object tags.
	Tags map[string]string
	// StorageClass is the storage class; "" is the server's default.
	StorageClass string

	// IfMatch stores only if the current object has this ETag, IfNoneMatch (only
	// "*" is defined) only if there is none. They fail with ErrPreconditionFailed.
	IfMatch, IfNoneMatch string

	// SSE asks the server to encrypt: "AES256" or "aws:kms", the latter with
	// KMSKeyID.
	SSE, KMSKeyID string
	// CustomerKey is the 32-byte key to encrypt with (SSE-C).
	CustomerKey []byte

	// Sum is the checksum of the bytes if the caller knows it already; the zero Sum
	// has the client compute its own algorithm's, in one pass over the memory. A
	// wrong one is refused by the server with ErrChecksum. XXH64 is not accepted,
	// see Options.Checksum.
	Sum checksum.Sum

	// Block, if not 0, has the checksum declared block by block as well, with blocks of
	// so many bytes, 4 KiB to 4 GiB, or larger by a power of two where there would be
	// too many; the server then says which block is damaged. Sum's algorithm, or
	// Options.Checksum, must be a CRC. On the fabric only.
	Block int64

	// Force allows one way only.
	Force Force

	// Header is sent and signed as it is. Headers of the RDMA protocol and of the
	// signature are refused.
	Header http.Header
}

func (o *PutOptions) conditional() bool {
	return o.IfMatch != "" || o.IfNoneMatch != "" || o.Header.Get("if-match") != "" || o.Header.Get("if-none-match") != ""
}

// describe sets the headers about the object itself, which a multipart upload
// sends once, when it is created.
func (o *PutOptions) describe(k *call) error {
	if err := k.extra(o.Header); err != nil {
		return err
	}
	k.set("content-type", o.ContentType)
	for name, value := range o.Metadata {
		k.header.Set("x-amz-meta-"+name, value)
	}
	if len(o.Tags) > 0 {
		tags := make(url.Values, len(o.Tags))
		for name, value := range o.Tags {
			tags.Set(name, value)
		}
		k.set("x-amz-tagging", tags.Encode())
	}
	k.set("x-amz-storage-class", o.StorageClass)
	k.set("x-amz-server-side-encryption", o.SSE)
	k.set("x-amz-server-side-encryption-aws-kms-key-id", o.KMSKeyID)
	return k.customerKey(o.CustomerKey)
}

// PutResult describes what was stored.
type PutResult struct {
	// ETag is the server's, with its quotes. It is never empty.
	ETag string
	// VersionID is the version's name where the bucket keeps versions.
	VersionID string
	// Sum is the checksum that was declared.
	Sum checksum.Sum
	// Proof is what the server said about the bytes that it read; with PolicyNone if
	// it said nothing, and by HTTP.
	Proof checksum.RegionProof
	// Route is the way that the bytes went.
	Route Route
	// Header is the answer's.
	Header http.Header
}

// Put stores the bytes of src as an object. Nothing but a complete success is one:
// on the fabric the server must have answered with an ETag, the reply, and the byte
// count of src. Errors are an [*Error] where they are the server's answer, and
// otherwise wrap this package's or ctx's. After an error without an answer the
// object may have been stored or not.
//
// src is the server's to read, and must not change, until Put returns. ctx bounds
// everything, [Options].Timeout the part on the fabric. More than 4 GiB - 1 bytes
// are ErrTooLarge with ForceFabric and go by HTTP otherwise: see [Client.Upload].
func (c *Client) Put(ctx context.Context, bucket, key string, src View, o PutOptions) (PutResult, error) {
	return c.put(ctx, &put{op: "PutObject", bucket: bucket, key: key, src: src, o: o})
}

// put is one PUT of an object or a part under way.
type put struct {
	op          string
	bucket, key string
	src         View
	o           PutOptions
	part        *partOf // nil: an object
	ask         checksum.RegionRequest
	res         PutResult
}

type partOf struct {
	uploadID string
	number   int
}

func (c *Client) put(ctx context.Context, p *put) (PutResult, error) {
	res, err := c.tryPut(ctx, p)
	if err != nil {
		c.stats.failed.Add(1)
		return PutResult{}, err
	}
	c.stats.puts[res.Route].add(p.src.Len())
	return res, nil
}

func (c *Client) tryPut(ctx context.Context, p *put) (PutResult, error) {
	name := newCall(p.op, http.MethodPut, p.bucket, p.key).name()
	if p.key == "" {
		return PutResult{}, fmt.Errorf("%s: no key: %w", name, ErrInvalid)
	}
	if p.o.Sum.Algorithm() == checksum.XXH64 {
		return PutResult{}, fmt.Errorf("%s: %v is a checksum that servers do not verify: %w", name, p.o.Sum.Algorithm(), ErrInvalid)
	}
	ctx, leave, err := c.enter(ctx)
	if err != nil {
		return PutResult{}, fmt.Errorf("%s: %w", name, err)
	}
	defer leave()
	if err := p.src.hold(c); err != nil {
		return PutResult{}, fmt.Errorf("%s: %w", name, err)
	}
	defer p.src.release()
	if err := p.sum(c); err != nil {
		return PutResult{}, fmt.Errorf("%s: %w", name, err)
	}
	if _, err := p.call(); err != nil {
		return PutResult{}, err
	}

	large := p.src.Len() > maxWindow
	if large && p.o.Force == ForceFabric {
		return PutResult{}, fmt.Errorf("%s: %d bytes, the fabric moves %d at most; use Upload: %w", name, p.src.Len(), int64(maxWindow), ErrTooLarge)
	}
	route, gen := HTTPPlain, uint64(0)
	if !large {
		if route, gen, err = c.route(ctx, p.src, p.o.Force, int64(p.src.Len()) < c.opt.Threshold); err != nil {
			return PutResult{}, fmt.Errorf("%s: %w", name, err)
		}
	}
	if route != Fabric {
		return c.putHTTP(ctx, p, route)
	}

	fctx, cancel := c.bounded(ctx, p.src.Len())
	defer cancel()
	var what verdict
	var resp *http.Response
	if c.pairs != nil {
		what, err = c.putPaired(fctx, p)
	} else {
		what, resp, err = c.overFabric(fctx, p.src, gen, p.fabricCall, p.judge)
	}
	switch what {
	case moved:
		p.res.Route = Fabric
		return p.res, nil
	case ignoredIt:
		resp.Body.Close()
		// The key holds an empty object now. Storing the real one over it repairs
		// that, unless the caller's condition was about what was there before.
		if p.o.Force == ForceFabric || p.o.conditional() {
			return PutResult{}, fmt.Errorf("%s: HTTP %d without a reply: %w", name, resp.StatusCode, ErrEmptyStored)
		}
		return c.putHTTP(ctx, p, HTTPIgnored)
	case declinedIt, noSession:
		if p.o.Force != ForceFabric {
			return c.putHTTP(ctx, p, fallbackRoute[what])
		}
	}
	return PutResult{}, err
}

// sum computes what is declared of the bytes.
func (p *put) sum(c *Client) error {
	p.ask = checksum.RegionRequest{Policy: c.opt.Policy}
	alg := p.o.Sum.Algorithm()
	setDefault(&alg, c.opt.Checksum)
	switch {
	case p.o.Block != 0 && p.src.Len() > 0:
		list, err := checksum.ListOf(alg, p.o.Block, p.src.mem)
		if err != nil {
			return fmt.Errorf("checksum block by block: %w: %w", ErrInvalid, err)
		}
		p.ask.Algorithm, p.ask.Block, p.ask.Blocks = alg, list.Block, list.Text()
		setDefault(&p.o.Sum, list.Whole())
	default:
		if p.o.Sum.IsZero() {
			p.o.Sum = checksum.OfParallel(alg, p.src.mem)
		}
	}
	return nil
}

// fabricCall makes the request with what is asked for over the bytes that move.
func (p *put) fabricCall() (*call, error) {
	k, err := p.call()
	if err == nil {
		k.region(p.ask)
	}
	return k, err
}

// call makes the request, without a descriptor and without a body.
func (p *put) call() (*call, error) {
	k := newCall(p.op, http.MethodPut, p.bucket, p.key)
	if p.part != nil {
		k.param("partNumber", fmt.Sprint(p.part.number))
		k.param("uploadId", p.part.uploadID)
		if err := k.extra(p.o.Header); err != nil {
			return nil, err
		}
		if err := k.customerKey(p.o.CustomerKey); err != nil {
			return nil, err
		}
	} else {
		if err := p.o.describe(k); err != nil {
			return nil, err
		}
		k.set("if-match", p.o.IfMatch)
		k.set("if-none-match", p.o.IfNoneMatch)
	}
	k.header.Set(p.o.Sum.Algorithm().Header(), p.o.Sum.Base64())
	return k, nil
}

// judge looks at a success that answers a request with a descriptor.
func (p *put) judge(k *call, resp *http.Response) (verdict, error) {
	if len(resp.Header.Values(headerReply)) == 0 {
		return ignoredIt, nil
	}
	n, err := checkReply(k, resp, http.StatusOK, p.src.Len())
	if err != nil {
		return failed, err
	}
	if n != p.src.Len() {
		return failed, protocolError(k, "header %s is %d of %d bytes", headerBytes, n, p.src.Len())
	}
	proof, err := parseProof(k, resp, n, p.ask)
	if err != nil {
		return failed, err
	}
	if err := p.finish(k, resp); err != nil {
		return failed, err
	}
	if s := proof.Sum; s.Algorithm() == p.o.Sum.Algorithm() && s != p.o.Sum {
		// It has stored what it read, and not noticed.
		return failed, fmt.Errorf("%s: the server stored other bytes: %w", k.name(), &checksum.MismatchError{Want: p.o.Sum, Got: s, Bytes: int64(n)})
	}
	p.res.Proof = proof
	return moved, nil
}

// putHTTP stores by HTTP, with the bytes in the body.
func (c *Client) putHTTP(ctx context.Context, p *put, r Route) (PutResult, error) {
	k, err := p.call()
	if err != nil {
		return PutResult{}, err
	}
	k.body = p.src.mem
	resp, err := c.send(ctx, k)
	defer func() { k.guard.end() }()
	if err != nil {
		return PutResult{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return PutResult{}, answerError(k, resp)
	}
	if err := p.finish(k, resp); err != nil {
		return PutResult{}, err
	}
	p.res.Route = r
	return p.res, nil
}

// finish fills the result in.
func (p *put) finish(k *call, resp *http.Response) error {
	p.res = PutResult{
		ETag:      resp.Header.Get("etag"),
		VersionID: resp.Header.Get("x-amz-version-id"),
		Sum:       p.o.Sum,
		Header:    resp.Header,
		Proof:     checksum.RegionProof{Policy: checksum.PolicyNone},
	}
	if p.res.ETag == "" {
		return protocolError(k, "a success without an ETag")
	}
	return nil
}
