// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/s3rdma/s3rdma/checksum"
)

// Range is a part of an object. The zero value is all of it.
type Range struct {
	// Offset is the first byte, Length the number of bytes; Length 0 is all that
	// follow. A range that ends behind the object's end is cut.
	Offset, Length int64
	// Suffix, if not 0, is the number of bytes at the object's end, and the others
	// are 0.
	Suffix int64
}

func (r Range) header() (string, error) {
	switch {
	case r.Offset < 0 || r.Length < 0 || r.Suffix < 0 || r.Suffix > 0 && (r.Offset > 0 || r.Length > 0),
		r.Offset+r.Length < 0:
		return "", fmt.Errorf("range of offset %d, length %d, suffix %d: %w", r.Offset, r.Length, r.Suffix, ErrInvalid)
	case r.Suffix > 0:
		return fmt.Sprintf("bytes=-%d", r.Suffix), nil
	case r.Length > 0:
		return fmt.Sprintf("bytes=%d-%d", r.Offset, r.Offset+r.Length-1), nil
	case r.Offset > 0:
		return fmt.Sprintf("bytes=%d-", r.Offset), nil
	}
	return "", nil
}

// GetOptions narrow a GET down. The zero value asks for the whole current object,
// and verifies its checksum.
type GetOptions struct {
	// Range asks for a part of the object by position.
	Range Range
	// PartNumber asks for a part of a multipart object by its number, 1 to 10000.
	PartNumber int
	// VersionID asks for a version; "" is the current one.
	VersionID string

	// IfMatch and IfNoneMatch are conditions on the ETag, in the form that the
	// server gave it. They fail with ErrPreconditionFailed and ErrNotModified.
	IfMatch, IfNoneMatch string

	// CustomerKey is the 32-byte key of an object encrypted with SSE-C.
	CustomerKey []byte

	// NoVerify asks for no checksum, and verifies none, whatever Options.Policy says
	// of the region.
	NoVerify bool

	// Algorithm is of the checksum that is asked for over the bytes that move; 0 is
	// Options.Checksum. (An object's own checksum is of the uploader's choice.)
	Algorithm checksum.Algorithm
	// Block, if not 0, asks for that checksum block by block, with blocks of so many
	// bytes, 4 KiB to 4 GiB, or larger by a power of two where there would be too many.
	// Algorithm must be a CRC. A damaged block is named by a [*checksum.BlockError].
	Block int64

	// Force allows one way only.
	Force Force

	// Header is sent and signed as it is. Headers of the RDMA protocol and of the
	// signature are refused.
	Header http.Header
}

// GetResult describes the bytes that a GET brought.
type GetResult struct {
	// N is the number of bytes, at the start of the view.
	N int
	// Route is the way they came.
	Route Route
	// Object describes the object they belong to.
	Object ObjectInfo
	// Offset is the place of the first byte in the object, if a part of it was
	// asked for.
	Offset int64
	// Verified is the checksum that the bytes were found to have; the zero Sum if
	// the server gave none that is about exactly these bytes, or none was wanted.
	Verified checksum.Sum
	// Proof is what the server said about the bytes that it moved, all of which has
	// been verified unless NoVerify; with PolicyNone if it said nothing, and by HTTP.
	Proof checksum.RegionProof
}

// Get reads an object, or a part of it, to the start of dst, which must be large
// enough; what lies behind the N bytes of the result keeps its content, except that
// a failed GET may leave anything anywhere in dst. Errors are an [*Error] where
// they are the server's answer, and otherwise wrap this package's, checksum's
// ErrMismatch, or ctx's.
//
// dst is the server's to write until Get returns, and the caller's from then on, in
// any case. ctx bounds everything, [Options].Timeout the part on the fabric.
func (c *Client) Get(ctx context.Context, bucket, key string, dst View, o GetOptions) (GetResult, error) {
	res, err := c.get(ctx, bucket, key, dst, o)
	if err != nil {
		c.stats.failed.Add(1)
		return GetResult{}, err
	}
	c.stats.gets[res.Route].add(res.N)
	return res, nil
}

func (c *Client) get(ctx context.Context, bucket, key string, dst View, o GetOptions) (GetResult, error) {
	g := get{bucket: bucket, key: key, dst: dst, o: o}
	if err := g.choose(c); err != nil {
		return GetResult{}, err
	}
	if _, err := g.call(); err != nil {
		return GetResult{}, err
	}
	ctx, leave, err := c.enter(ctx)
	if err != nil {
		return GetResult{}, fmt.Errorf("GetObject: %w", err)
	}
	defer leave()
	if err := dst.hold(c); err != nil {
		return GetResult{}, fmt.Errorf("GetObject %s/%s: %w", bucket, key, err)
	}
	defer dst.release()

	route, gen, err := c.route(ctx, dst, o.Force, false)
	if err != nil {
		return GetResult{}, fmt.Errorf("GetObject %s/%s: %w", bucket, key, err)
	}
	if route != Fabric {
		return c.getHTTP(ctx, &g, route)
	}

	fctx, cancel := c.bounded(ctx, dst.Len())
	defer cancel()
	var what verdict
	var resp *http.Response
	if c.pairs != nil {
		what, err = c.getPaired(fctx, &g)
	} else {
		what, resp, err = c.overFabric(fctx, dst, gen, g.fabricCall, g.judge)
	}
	switch what {
	case moved:
		g.res.Route = Fabric
		return g.res, nil
	case ignoredIt:
		defer resp.Body.Close()
		if o.Force == ForceFabric {
			return GetResult{}, fmt.Errorf("GetObject %s/%s: the server sent the body: %w", bucket, key, ErrNoFabric)
		}
		return g.readBody(resp, HTTPIgnored)
	case declinedIt, noSession:
		if o.Force != ForceFabric {
			return c.getHTTP(ctx, &g, fallbackRoute[what])
		}
	}
	return GetResult{}, err
}

// get is one GET under way.
type get struct {
	bucket, key string
	dst         View
	o           GetOptions
	ask         checksum.RegionRequest // on the fabric
	res         GetResult
	partial     bool // the last call asked for a part of the object
	ranged      bool // by position
}

// call makes the request, without a descriptor.
func (g *get) call() (*call, error) {
	o := &g.o
	k := newCall("GetObject", http.MethodGet, g.bucket, g.key)
	if g.key == "" {
		return nil, fmt.Errorf("GetObject: no key: %w", ErrInvalid)
	}
	if err := k.extra(o.Header); err != nil {
		return nil, err
	}
	r, err := o.Range.header()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k.name(), err)
	}
	k.set("range", r)
	if o.PartNumber != 0 {
		if o.PartNumber < 1 || o.PartNumber > maxParts || k.header.Get("range") != "" {
			return nil, fmt.Errorf("%s: part %d is not in 1 to %d, or there is a range as well: %w", k.name(), o.PartNumber, maxParts, ErrInvalid)
		}
		k.param("partNumber", strconv.Itoa(o.PartNumber))
	}
	k.param("versionId", o.VersionID)
	k.set("if-match", o.IfMatch)
	k.set("if-none-match", o.IfNoneMatch)
	if err := k.customerKey(o.CustomerKey); err != nil {
		return nil, err
	}
	g.ranged = k.header.Get("range") != ""
	g.partial = g.ranged || o.PartNumber != 0
	if !o.NoVerify && !g.partial {
		k.set("x-amz-checksum-mode", "ENABLED")
	}
	return k, nil
}

// choose decides what is asked for over the bytes that move.
func (g *get) choose(c *Client) error {
	g.ask = checksum.RegionRequest{Policy: c.opt.Policy}
	alg := g.o.Algorithm
	setDefault(&alg, c.opt.Checksum)
	switch {
	case g.o.NoVerify && g.o.Block != 0:
		return fmt.Errorf("GetObject %s/%s: Block with NoVerify: %w", g.bucket, g.key, ErrInvalid)
	case g.o.NoVerify:
		g.ask.Policy = checksum.PolicyNone
		if c.opt.Policy.Envelope() {
			g.ask.Policy = checksum.PolicyEnvelope
		}
	case g.o.Block != 0 || g.o.Algorithm != 0 || c.opt.Policy.Region():
		g.ask.Policy = c.opt.Policy.With(checksum.PolicyRegion)
		g.ask.Algorithm, g.ask.Block = alg, g.o.Block
	}
	return checkAsk(g.ask, "GetObject "+g.bucket+"/"+g.key)
}

// checkAsk refuses what no server could do.
func checkAsk(ask checksum.RegionRequest, what string) error {
	h := http.Header{}
	ask.Set(h)
	if _, err := checksum.ParseRegionRequest(h); err != nil {
		return fmt.Errorf("%s: %w: %w", what, ErrInvalid, err)
	}
	return nil
}

// fabricCall makes the request with what is asked for over the bytes that move.
func (g *get) fabricCall() (*call, error) {
	k, err := g.call()
	if err == nil {
		k.region(g.ask)
	}
	return k, err
}

// status is the only success that answers the call.
func (g *get) status() int {
	if g.partial {
		return http.StatusPartialContent
	}
	return http.StatusOK
}

// judge looks at a success that answers a request with a descriptor.
func (g *get) judge(k *call, resp *http.Response) (verdict, error) {
	if len(resp.Header.Values(headerReply)) == 0 {
		return ignoredIt, nil
	}
	n, err := checkReply(k, resp, g.status(), min(g.dst.Len(), maxWindow))
	if err != nil {
		return failed, err
	}
	proof, err := parseProof(k, resp, n, g.ask)
	if err != nil {
		return failed, err
	}
	if err := g.finish(k, resp, n, proof); err != nil {
		return failed, err
	}
	return moved, nil
}

// getHTTP reads by HTTP.
func (c *Client) getHTTP(ctx context.Context, g *get, r Route) (GetResult, error) {
	k, err := g.call()
	if err != nil {
		return GetResult{}, err
	}
	resp, err := c.send(ctx, k)
	if err != nil {
		return GetResult{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return GetResult{}, answerError(k, resp)
	}
	return g.readBody(resp, r)
}

// readBody takes the object's bytes from a successful answer's body. The caller
// closes it.
func (g *get) readBody(resp *http.Response, r Route) (GetResult, error) {
	k := newCall("GetObject", http.MethodGet, g.bucket, g.key)
	switch {
	case resp.StatusCode != g.status():
		return GetResult{}, protocolError(k, "HTTP %d, want %d", resp.StatusCode, g.status())
	case resp.ContentLength < 0:
		return GetResult{}, protocolError(k, "a body of unknown length")
	case resp.ContentLength > int64(g.dst.Len()):
		return GetResult{}, fmt.Errorf("%s: %d bytes into a view of %d: %w", k.name(), resp.ContentLength, g.dst.Len(), ErrTooSmall)
	}
	n := int(resp.ContentLength)
	if got, err := io.ReadFull(resp.Body, g.dst.mem[:n]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return GetResult{}, fmt.Errorf("%s: the body broke off after %d of %d bytes: %w", k.name(), got, n, err)
	}
	if err := g.finish(k, resp, n, checksum.RegionProof{Policy: checksum.PolicyNone}); err != nil {
		return GetResult{}, err
	}
	g.res.Route = r
	return g.res, nil
}

// finish fills the result in, and checks the n received bytes against the answer's
// Content-Range and checksums.
func (g *get) finish(k *call, resp *http.Response, n int, proof checksum.RegionProof) error {
	g.res = GetResult{N: n, Object: objectInfo(resp.Header), Proof: proof}
	g.res.Object.Size = int64(n)
	if g.partial {
		first, total, err := g.checkContentRange(resp.Header.Get("content-range"), n)
		if err != nil {
			return protocolError(k, "%v", err)
		}
		g.res.Offset, g.res.Object.Size = first, total
	}
	if g.o.NoVerify {
		return nil
	}
	var stored checksum.Sum
	if sums := g.res.Object.Checksums; !g.partial && len(sums) > 0 { // one is enough: all are about the same bytes
		stored = sums[0]
	}
	verified, err := verifyReceived(g.dst.mem[:n], stored, proof)
	if err != nil {
		return fmt.Errorf("%s: over the %d received bytes: %w", k.name(), n, err)
	}
	g.res.Verified = verified
	return nil
}

// verifyReceived holds received bytes against the checksum that is kept with the object
// and against the server's proof, either of which may be missing, in one pass. It
// returns a checksum that they have.
func verifyReceived(p []byte, stored checksum.Sum, proof checksum.RegionProof) (checksum.Sum, error) {
	known := proof.Sum // what the bytes are known to have
	if len(proof.List.Sums) > 0 {
		if err := proof.List.Verify(p); err != nil {
			return checksum.Sum{}, err
		}
	} else if want := stored; !want.IsZero() || !proof.Sum.IsZero() {
		if want.IsZero() {
			want = proof.Sum
		}
		if err := verifyBytes(p, want); err != nil {
			return checksum.Sum{}, err
		}
		known = want
	}
	for _, want := range []checksum.Sum{proof.Sum, stored} {
		if want.Algorithm() == known.Algorithm() && want != known {
			return checksum.Sum{}, &checksum.MismatchError{Want: want, Got: known, Bytes: int64(len(p))}
		}
	}
	if !stored.IsZero() && stored.Algorithm() != known.Algorithm() {
		if err := verifyBytes(p, stored); err != nil {
			return checksum.Sum{}, err
		}
		known = stored
	}
	return known, nil
}

// verifyBytes holds bytes against a checksum.
func verifyBytes(p []byte, want checksum.Sum) error {
	if got := checksum.OfParallel(want.Algorithm(), p); got != want {
		return &checksum.MismatchError{Want: want, Got: got, Bytes: int64(len(p)), WantEmpty: want.IsEmpty()}
	}
	return nil
}

// checkContentRange reads "bytes first-last/total" and holds it against what was
// asked for and the number of bytes that came. total is -1 if it is "*".
func (g *get) checkContentRange(s string, n int) (first, total int64, err error) {
	first, last, total, ok := parseContentRange(s)
	r := g.o.Range
	switch {
	case !ok:
		return 0, 0, errors.New("the Content-Range is missing or malformed")
	case last-first+1 != int64(n):
		return 0, 0, fmt.Errorf("%d bytes, but the Content-Range has %d", n, last-first+1)
	case !g.ranged || g.o.Header.Get("range") != "":
		// By part number, or a range in the caller's own words: we don't know where
		// it lies.
	case r.Suffix > 0 && (int64(n) > r.Suffix || total >= 0 && last != total-1),
		r.Suffix == 0 && (first != r.Offset || r.Length > 0 && int64(n) > r.Length),
		r.Suffix == 0 && total >= 0 && last != total-1 && (r.Length == 0 || int64(n) != r.Length):
		return 0, 0, fmt.Errorf("the Content-Range is %d-%d of %d, not the one that was asked for", first, last, total)
	}
	return first, total, nil
}

// parseContentRange reads RFC 9110's Content-Range of a satisfied range. total is
// -1 if it is unknown ("*").
func parseContentRange(s string) (first, last, total int64, ok bool) {
	rest, ok := strings.CutPrefix(s, "bytes ")
	if !ok {
		return 0, 0, 0, false
	}
	span, size, ok1 := strings.Cut(rest, "/")
	a, b, ok2 := strings.Cut(span, "-")
	first, ok3 := parseDecimal(a)
	last, ok4 := parseDecimal(b)
	if !ok1 || !ok2 || !ok3 || !ok4 || last < first {
		return 0, 0, 0, false
	}
	if size == "*" {
		return first, last, -1, true
	}
	total, ok = parseDecimal(size)
	return first, last, total, ok && last < total
}
