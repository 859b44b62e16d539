// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio"
)

// With a target that pairs queue pairs ([rdmaio.PairTarget]) the client speaks
// hipobj-rc-v2: for each transfer a "prepare", and a "ready" during which the bytes move.
// See the protocol text.
const (
	hipPrefix   = "/.hipobj-rc/"
	hipProtocol = "hipobj-rc-v2"

	headerProtocol       = "x-amz-rdma-protocol"
	headerProtocolStatus = "x-amz-rdma-protocol-status"
	headerCookie         = "x-amz-rdma-cookie"
	headerOp             = "x-amz-rdma-op"
	headerTarget         = "x-amz-rdma-target"
	headerSize           = "x-amz-rdma-size"
	headerOffset         = "x-amz-rdma-offset"
	headerQPN            = "x-amz-rdma-qpn"
	headerMRAddr         = "x-amz-rdma-mr-addr"
	headerMRKey          = "x-amz-rdma-mr-rkey"
	headerHipETag        = "x-amz-rdma-etag"
	headerHipVersion     = "x-amz-rdma-version-id"
	headerHipChecksum    = "x-amz-rdma-checksum"

	// hipMaxSize is the most that one transfer moves, in bytes.
	hipMaxSize = 1<<31 - 1

	// hipGrace is the time that a server has, from the ready on, to take its queue pair to
	// where it receives, before it is pushed to: the protocol has no word for that it has.
	// It is what the known client waits. Whoever comes too early loses an ACK time-out.
	hipGrace = 100 * time.Millisecond
)

// pairing remembers of a server that it does not speak the protocol.
type pairing struct {
	mu        sync.Mutex
	notBefore time.Time // not asked again earlier
	err       error     // why
}

// may tells why the server is not asked now.
func (p *pairing) may(now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Before(p.notBefore) {
		return p.err
	}
	return nil
}

func (p *pairing) unsupported(until time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notBefore, p.err = until, err
}

// hipCall is one transfer.
type hipCall struct {
	c      *Client
	k      *call // the object's request, as it would be sent otherwise
	v      View  // of exactly the bytes to move
	offset int64 // of the object's, on a GET
	cookie uint32
	id     string // of the session, once there is one

	superseded bool // the key of v was withdrawn by somebody else, during a GET
}

// hipExpresses tells whether the protocol can say what the object's request says. Servers
// take no notice of anything else.
func hipExpresses(k *call) error {
	for name := range k.header {
		switch lower := strings.ToLower(name); {
		case strings.HasPrefix(lower, "x-amz-checksum-"), strings.HasPrefix(lower, checksum.RegionPrefix),
			lower == "content-md5", lower == "range", lower == headerPayloadHash:
		case k.method == http.MethodGet && (lower == "if-match" || lower == "if-none-match"):
			// The HEAD before it has them.
		default:
			return fmt.Errorf("%s: %s cannot say %s: %w", k.name(), hipProtocol, lower, ErrNoFabric)
		}
	}
	for name := range k.query {
		if k.method == http.MethodGet && name != "versionId" {
			return fmt.Errorf("%s: %s cannot say %s: %w", k.name(), hipProtocol, name, ErrNoFabric)
		}
	}
	return nil
}

// overPair moves the bytes of v in a transfer of its own. Unless the verdict is moved, no
// byte of v can be moved any more when it returns.
func (c *Client) overPair(ctx context.Context, k *call, v View, offset int64) (verdict, http.Header, error) {
	if err := hipExpresses(k); err != nil {
		return declinedIt, nil, err
	}
	if v.Len() > hipMaxSize {
		return declinedIt, nil, fmt.Errorf("%s: %d bytes, %s moves %d at most: %w", k.name(), v.Len(), hipProtocol, hipMaxSize, ErrTooLarge)
	}
	for n := 1; ; n++ {
		h := &hipCall{c: c, k: k, v: v, offset: offset, cookie: newCookie()}
		what, header, err := h.do(ctx)
		switch {
		case what == declinedIt:
			c.stats.declined.Add(1)
		case what == failed && ctx.Err() == nil && h.again(err, n):
			c.stats.repeated.Add(1)
			continue
		}
		return what, header, err
	}
}

// again tells whether a transfer that has failed n times is tried once more. A PUT is not:
// it may have been stored.
func (h *hipCall) again(err error, n int) bool {
	var answer *Error
	switch {
	case h.k.method != http.MethodGet || errors.Is(err, ErrBufferLost):
		return false
	case h.superseded:
		// Somebody else's failure may be the reason: they took back the buffer that we share.
		return n < maxAttempts
	}
	// The connection broke, as that to a server does which closes idle ones.
	return n == 1 && !errors.As(err, &answer) && !errors.Is(err, ErrProtocol)
}

// newCookie returns a random number that is not 0.
func newCookie() uint32 {
	for {
		var b [4]byte
		rand.Read(b[:]) // never fails
		if n := binary.BigEndian.Uint32(b[:]); n != 0 {
			return n
		}
	}
}

func (h *hipCall) do(ctx context.Context) (_ verdict, _ http.Header, err error) {
	end, err := h.c.pairs.NewPair(ctx)
	if err != nil {
		return noSession, nil, fmt.Errorf("%s: %w: %w", h.k.name(), ErrNoFabric, err)
	}
	defer end.Close()
	w, what, err := h.prepare(ctx, end)
	if err != nil {
		return what, nil, err
	}
	done := false
	defer func() {
		if !done {
			end.Close()
			h.cancel()
		}
	}()
	if err := end.Connect(ctx, w); err != nil {
		return failed, nil, fmt.Errorf("%s: %w", h.k.name(), err)
	}
	var header http.Header
	if h.k.method == http.MethodPut {
		header, err = h.push(ctx, end)
	} else {
		header, err = h.receive(ctx, end)
	}
	if err != nil {
		return failed, nil, err
	}
	done = true
	return moved, header, nil
}

// call makes a request of the protocol.
func (h *hipCall) call(action string) *call {
	k := newCall(h.k.op, http.MethodPost, h.k.bucket, h.k.key)
	k.path = hipPrefix + action
	k.set(headerProtocol, hipProtocol)
	k.set(headerCookie, fmt.Sprintf("%08x", h.cookie))
	k.set(headerSession, h.id)
	k.once = true
	return k
}

// prepare asks for the server's queue pair.
func (h *hipCall) prepare(ctx context.Context, end rdmaio.PairEnd) (rdmaio.PairWelcome, verdict, error) {
	var none rdmaio.PairWelcome
	hello := end.Hello()
	k := h.call("prepare")
	k.set(headerToken, hello.Token)
	k.set(headerPSN, fmt.Sprintf("%06x", hello.PSN))
	k.set(headerOp, h.k.method)
	k.set(headerTarget, h.target())
	k.set(headerSize, strconv.Itoa(h.v.Len()))
	if h.offset > 0 {
		k.set(headerOffset, strconv.FormatInt(h.offset, 10))
	}
	resp, err := h.c.send(ctx, k)
	if err != nil {
		return none, failed, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Header.Get(headerProtocol) != hipProtocol {
		answer := answerError(k, resp, hello.Token)
		err := fmt.Errorf("prepare: %w: %w", errUnsupported, answer)
		switch {
		case resp.StatusCode == http.StatusNotImplemented && resp.Header.Get(headerProtocolStatus) == "unsupported",
			resp.StatusCode == http.StatusRequestEntityTooLarge:
			// It speaks it, but not for this.
			return none, declinedIt, err
		case resp.StatusCode/100 == 2, resp.StatusCode == http.StatusMethodNotAllowed, resp.StatusCode == http.StatusNotImplemented,
			answer.Code == "NoSuchBucket", answer.Code == "InvalidBucketName":
			// It took the path for a bucket's.
			h.c.pairing.unsupported(h.c.now().Add(h.c.opt.Unsupported), err)
			return none, declinedIt, err
		}
		return none, failed, answer
	}
	w, err := parsePairWelcome(resp.Header)
	h.id = resp.Header.Get(headerSession)
	if err == nil && h.k.method == http.MethodPut && (w.Addr == 0 || w.RKey == 0) {
		err = errors.New("there is no memory to push to")
	}
	if err != nil {
		h.cancel()
		return none, failed, protocolError(k, "prepare: %v", err)
	}
	return w, moved, nil
}

// target is the object's name as the protocol has it.
func (h *hipCall) target() string {
	s := "/" + url.PathEscape(h.k.bucket) + "/" + escapePath(h.k.key)
	if len(h.k.query) > 0 {
		s += "?" + strings.ReplaceAll(h.k.query.Encode(), "+", "%20")
	}
	return s
}

// parsePairWelcome reads the answer to a prepare. Errors show no value.
func parsePairWelcome(h http.Header) (rdmaio.PairWelcome, error) {
	var w rdmaio.PairWelcome
	var err error
	if w.Session, err = rdmaio.ParseSessionID(strings.ToLower(h.Get(headerSession))); err != nil {
		return w, fmt.Errorf("header %s: %w", headerSession, err)
	}
	var ok bool
	if w.Token, ok = strings.CutPrefix(h.Get(headerReply), "200:"); !ok {
		return w, fmt.Errorf("header %s does not begin with 200:", headerReply)
	}
	d, form, err := rdmaio.Parse(w.Token, rdmaio.ParseOptions{})
	if err != nil || form != rdmaio.EncodingHipObject || d.Transport != rdmaio.TransportRC {
		return w, fmt.Errorf("header %s holds no token of an RC queue pair", headerReply)
	}
	number := func(name string, most uint64, def uint64) uint64 {
		s := h.Get(name)
		if s == "" {
			return def
		}
		n, perr := strconv.ParseUint(s, 16, 64)
		if (perr != nil || n > most) && err == nil {
			err = fmt.Errorf("header %s is no hex number up to %x", name, most)
		}
		return n
	}
	w.PSN = uint32(number(headerPSN, 1<<24-1, 0))
	w.QPN = uint32(number(headerQPN, 1<<24-1, uint64(d.QPN)))
	w.Addr = number(headerMRAddr, 1<<64-1, d.Addr)
	w.RKey = uint32(number(headerMRKey, 1<<32-1, uint64(d.RKey)))
	if err == nil && (w.PSN == 0 || w.QPN != d.QPN) {
		err = errors.New("there is no first packet number, or the queue pair's number differs from the token's")
	}
	return w, err
}

// ready makes the second request. d is the memory to write to, if any.
func (h *hipCall) ready(end rdmaio.PairEnd, d rdmaio.Descriptor) *call {
	k := h.call("ready")
	for name, values := range h.k.header {
		if lower := strings.ToLower(name); lower != "range" && lower != headerPayloadHash && !strings.HasPrefix(lower, "if-") {
			k.header[name] = values
		}
	}
	k.bodyHash = h.k.bodyHash
	k.set(headerQPN, fmt.Sprintf("%x", end.QPN()))
	k.set(headerMRAddr, fmt.Sprintf("%x", d.Addr))
	k.set(headerMRKey, fmt.Sprintf("%x", d.RKey))
	return k
}

// push has the server told that the bytes will come, and pushes them.
func (h *hipCall) push(ctx context.Context, end rdmaio.PairEnd) (http.Header, error) {
	pctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	pushed := make(chan error, 1)
	go func() {
		err := pctx.Err()
		select {
		case <-time.After(hipGrace):
			if err = end.Push(pctx, h.v.buf.exposed, h.v.off, h.v.Len(), h.cookie); err != nil {
				// What has failed will not come: there is nothing to wait for.
				stop(fmt.Errorf("%s: %w: %w", h.k.name(), ErrTransfer, err))
			}
		case <-pctx.Done():
			err = pctx.Err()
		}
		pushed <- err
	}()
	header, err := h.exchange(pctx, h.ready(end, rdmaio.Descriptor{}))
	if err != nil {
		stop(nil)
		end.Close() // the server does not want them any more
		<-pushed
		return nil, err
	}
	if perr := <-pushed; perr != nil {
		// It has them all the same: it says how many, and their checksum may be in its
		// answer. But this is no success as the protocol knows it.
		return nil, fmt.Errorf("%s: the server says that it has stored what could not be pushed: %w: %w", h.k.name(), ErrProtocol, perr)
	}
	return header, nil
}

// receive lets the server write into the memory, and withdraws that if it fails.
func (h *hipCall) receive(ctx context.Context, end rdmaio.PairEnd) (_ http.Header, err error) {
	d, l, err := h.v.lendPair()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.k.name(), err)
	}
	defer func() {
		if err != nil {
			end.Close()
			h.superseded = l.superseded()
			tctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rekeyTimeout)
			defer cancel()
			err = errors.Join(err, l.takeBack(tctx))
		}
	}()
	header, err := h.exchange(ctx, h.ready(end, d))
	if err != nil {
		return nil, err
	}
	// The server told us before it answered.
	if err := end.Await(ctx, h.cookie); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", h.k.name(), ErrProtocol, err)
	}
	return header, nil
}

// exchange sends the ready, and looks at its answer.
func (h *hipCall) exchange(ctx context.Context, k *call) (http.Header, error) {
	resp, err := h.c.send(ctx, k)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK && !(resp.StatusCode == http.StatusNoContent && h.k.method == http.MethodPut) {
		return nil, answerError(k, resp, h.id, k.header.Get(headerMRKey))
	}
	a := resp.Header
	cookie, err := strconv.ParseUint(a.Get(headerCookie), 16, 32)
	n, ok := parseDecimal(a.Get(headerBytes))
	switch {
	case a.Get(headerProtocol) != hipProtocol:
		return nil, protocolError(k, "a success without %s", headerProtocol)
	case err != nil || uint32(cookie) != h.cookie:
		return nil, protocolError(k, "header %s is not the one that was sent", headerCookie)
	case !ok || n != int64(h.v.Len()):
		return nil, protocolError(k, "header %s is not the %d bytes asked for", headerBytes, h.v.Len())
	}
	// What other dialects have under S3's own names.
	for to, from := range map[string]string{"ETag": headerHipETag, "x-amz-version-id": headerHipVersion} {
		if v := a.Get(from); v != "" {
			a.Set(to, v)
		}
	}
	return a, nil
}

// cancel tells the server that a transfer will not take place. It does its best: a server
// that does not hear it forgets the pair by itself.
func (h *hipCall) cancel() {
	if h.id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if resp, err := h.c.send(ctx, h.call("cancel")); err == nil {
		resp.Body.Close()
	}
}

// hipSum is the checksum over the moved bytes that the answer tells, in whatever form; the
// zero Sum if none.
func hipSum(h http.Header) (checksum.Sum, error) {
	v := h.Get(headerHipChecksum)
	if v == "" {
		return checksum.Sum{}, nil
	}
	text, ok := strings.CutPrefix(v, "CRC64NVME ")
	if !ok {
		return checksum.Sum{}, fmt.Errorf("header %s is of an unknown algorithm: %w", headerHipChecksum, ErrProtocol)
	}
	sum, err := checksum.Decode(checksum.CRC64NVME, strings.TrimSpace(text))
	if err != nil {
		return checksum.Sum{}, fmt.Errorf("header %s: %w: %w", headerHipChecksum, ErrProtocol, err)
	}
	return sum, nil
}

// putPaired stores by pushing.
func (c *Client) putPaired(ctx context.Context, p *put) (verdict, error) {
	k, err := p.fabricCall()
	if err != nil {
		return failed, err
	}
	what, header, err := c.overPair(ctx, k, p.src, 0)
	if what != moved {
		return what, err
	}
	resp := &http.Response{Header: header}
	proof, err := parseProof(k, resp, p.src.Len(), p.ask)
	if err != nil {
		return failed, err
	}
	sum, err := hipSum(header)
	if err != nil {
		return failed, err
	}
	if err := p.finish(k, resp); err != nil {
		return failed, err
	}
	for _, s := range []checksum.Sum{proof.Sum, sum} {
		if s.IsZero() {
			continue
		}
		want := p.o.Sum
		if s.Algorithm() != want.Algorithm() {
			want = checksum.OfParallel(s.Algorithm(), p.src.mem)
		}
		if s != want {
			return failed, fmt.Errorf("%s: the server stored other bytes: %w", k.name(), &checksum.MismatchError{Want: want, Got: s, Bytes: int64(p.src.Len())})
		}
	}
	p.res.Proof, p.res.Route = proof, Fabric
	return moved, nil
}

// getPaired reads by having the server write. The protocol wants to know how many bytes
// there are, so it asks for that first.
func (c *Client) getPaired(ctx context.Context, g *get) (verdict, error) {
	k, err := g.fabricCall()
	if err != nil {
		return failed, err
	}
	if err := hipExpresses(k); err != nil {
		return declinedIt, err
	}
	info, err := c.Head(ctx, g.bucket, g.key, HeadOptions{VersionID: g.o.VersionID, IfMatch: g.o.IfMatch, IfNoneMatch: g.o.IfNoneMatch})
	if err != nil {
		return failed, err
	}
	off, n, err := g.o.Range.of(info.Size)
	switch {
	case err != nil:
		return failed, fmt.Errorf("%s: %w", k.name(), err)
	case n == 0:
		return declinedIt, fmt.Errorf("%s: an empty object has no bytes to move: %w", k.name(), ErrNoFabric)
	case n > int64(g.dst.Len()):
		return failed, fmt.Errorf("%s: %d bytes into a view of %d: %w", k.name(), n, g.dst.Len(), ErrTooSmall)
	}
	dst := g.dst.Slice(0, int(n))
	what, header, err := c.overPair(ctx, k, dst, off)
	if what != moved {
		return what, err
	}
	if tag := header.Get("etag"); tag != "" && strings.Trim(tag, `"`) != strings.Trim(info.ETag, `"`) {
		return declinedIt, fmt.Errorf("%s: the object was replaced meanwhile: %w", k.name(), ErrNoFabric)
	}
	proof, err := parseProof(k, &http.Response{Header: header}, int(n), g.ask)
	if err != nil {
		return failed, err
	}
	g.res = GetResult{N: int(n), Object: info, Offset: off, Proof: proof, Route: Fabric}
	if g.o.NoVerify {
		return moved, nil
	}
	sum, err := hipSum(header)
	if err != nil {
		return failed, err
	}
	var stored checksum.Sum
	if len(info.Checksums) > 0 && !g.partial {
		stored = info.Checksums[0]
	} else {
		stored = sum // as good, where there is nothing else
	}
	if g.res.Verified, err = verifyReceived(dst.mem, stored, proof); err != nil {
		return failed, fmt.Errorf("%s: over the %d received bytes: %w", k.name(), n, err)
	}
	return moved, nil
}

// of says which bytes of an object of size bytes the range is.
func (r Range) of(size int64) (off, n int64, err error) {
	switch {
	case size < 0:
		return 0, 0, fmt.Errorf("the server does not say how long the object is: %w", ErrProtocol)
	case r.Suffix > 0:
		n = min(r.Suffix, size)
		return size - n, n, nil
	case r.Offset >= size && r != (Range{}):
		return 0, 0, fmt.Errorf("the object has %d bytes, the range begins at %d: %w", size, r.Offset, ErrRange)
	case r.Length == 0:
		return r.Offset, size - r.Offset, nil
	}
	return r.Offset, min(r.Length, size-r.Offset), nil
}
