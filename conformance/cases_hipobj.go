// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/conformance/rawhttp"
	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/verbs"
)

const (
	hipProtocol       = "hipobj-rc-v2"
	headerHipProtocol = "X-Amz-Rdma-Protocol"
	headerHipStatus   = "X-Amz-Rdma-Protocol-Status"

	// hipGrace is how long known clients give a server, after their ready, before they push.
	hipGrace = 100 * time.Millisecond
)

// ReasonNoPairs is why the cases of hipobj-rc-v2 are left out of a run over another fabric.
const ReasonNoPairs = "hipobj-rc-v2 needs an RDMA device, that is, the fabric rc"

// hip is a transfer of hipobj-rc-v2 on its way.
type hip struct {
	e       *Env
	target  rdmaio.PairTarget
	end     rdmaio.PairEnd
	op      string
	size    int
	cookie  uint32
	welcome rdmaio.PairWelcome
	creds   *rawhttp.Credentials
}

// hipTarget makes a target, or skips the case.
func (e *Env) hipTarget() rdmaio.PairTarget {
	o := e.runner.options
	var t rdmaio.PairTarget
	switch {
	case o.NewPairTarget != nil:
		t = o.NewPairTarget()
	case o.Fabric == rdmaio.TransportRC.String():
		t = verbs.NewPairTarget(verbs.Options{Devices: o.Device.Names, GIDIndex: o.Device.GIDIndex})
	default:
		e.skipf("%s", ReasonNoPairs)
	}
	e.onEnd(func(context.Context) { t.Close() })
	return t
}

// hip begins a transfer with a queue pair of its own.
func (e *Env) hip(ctx context.Context, op string, size int) *hip {
	return e.hipOf(ctx, e.hipTarget(), op, size)
}

func (e *Env) hipOf(ctx context.Context, t rdmaio.PairTarget, op string, size int) *hip {
	end, err := t.NewPair(ctx)
	if err != nil {
		e.skipf("no queue pair can be made here: %v", err)
	}
	e.onEnd(func(context.Context) { end.Close() })
	return &hip{e: e, target: t, end: end, op: op, size: size, cookie: 0x5a000000 | uint32(size)&0xffffff}
}

// window exposes n bytes.
func (h *hip) window(n int) *window { return h.e.windowOf(&peer{target: h.target}, n, guard) }

// hello are the headers of a prepare.
func (h *hip) hello(key string, query url.Values) http.Header {
	target := "/" + h.e.bucket() + "/" + strings.ReplaceAll(url.PathEscape(key), "%2F", "/")
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	hello := h.end.Hello()
	return http.Header{
		"x-amz-rdma-protocol": {hipProtocol}, headerToken: {hello.Token}, "x-amz-rdma-psn": {fmt.Sprintf("%06x", hello.PSN)},
		"x-amz-rdma-cookie": {h.word()}, "x-amz-rdma-op": {h.op}, "x-amz-rdma-target": {target}, "x-amz-rdma-size": {strconv.Itoa(h.size)},
	}
}

func (h *hip) word() string { return fmt.Sprintf("%08x", h.cookie) }

// post sends a request of the protocol, and skips the case if the server declines.
func (h *hip) post(ctx context.Context, action string, header http.Header) *rawhttp.Response {
	resp := h.e.do(ctx, h.request(action, header))
	if resp.Status == 501 && resp.Header.Get(headerHipStatus) == "unsupported" {
		h.e.skipf("the server does not speak hipobj-rc-v2 here: %s", resp.Error().Message)
	}
	return resp
}

func (h *hip) request(action string, header http.Header) rawhttp.Request {
	return rawhttp.Request{Method: "POST", Path: "/.hipobj-rc/" + action, Header: header, Credentials: h.creds}
}

// prepare has the server make its queue pair, which has to work.
func (h *hip) prepare(ctx context.Context, key string, query url.Values, offset int) {
	e := h.e
	header := h.hello(key, query)
	if offset > 0 {
		header["x-amz-rdma-offset"] = []string{strconv.Itoa(offset)}
	}
	resp := h.post(ctx, "prepare", header)
	if code := resp.Error().Code; slices.Contains([]string{"NoSuchBucket", "InvalidBucketName", "MethodNotAllowed"}, code) {
		// It took the path for a bucket's.
		e.skipf("the server does not speak hipobj-rc-v2: HTTP %d %s", resp.Status, resp.Error().Code)
	}
	m := mismatch{resp: resp}
	m.status(200)
	m.header(headerHipProtocol, hipProtocol)
	m.emptyBody()
	e.report("a prepare is no success", m)
	var err error
	if h.welcome.Session, err = rdmaio.ParseSessionID(strings.ToLower(resp.Header.Get(headerSession))); err != nil {
		e.failf("a prepare answered 200 with a session that is none: %v", err)
	}
	h.welcome.Token = strings.TrimPrefix(resp.Header.Get(headerReply), "200:")
	d, form, err := rdmaio.Parse(h.welcome.Token, rdmaio.ParseOptions{})
	if err != nil || form != rdmaio.EncodingHipObject || d.Transport != rdmaio.TransportRC || !d.GIDPresent {
		e.failf("a prepare answered 200, but its reply is not 200: and the 88 hex digits of an RC queue pair")
	}
	h.welcome.PSN = uint32(h.hex(resp, "X-Amz-Rdma-Psn", 24))
	h.welcome.QPN = uint32(h.hex(resp, "X-Amz-Rdma-Qpn", 24))
	if h.welcome.PSN == 0 || h.welcome.QPN != d.QPN {
		e.failf("a prepare answered 200 without a first packet number, or with two queue pairs")
	}
	if h.op == "PUT" {
		h.welcome.Addr, h.welcome.RKey = h.hex(resp, "X-Amz-Rdma-Mr-Addr", 64), uint32(h.hex(resp, "X-Amz-Rdma-Mr-Rkey", 32))
		if h.welcome.Addr == 0 || h.welcome.RKey == 0 {
			e.failf("the prepare of a PUT names no memory to write to")
		}
	}
	if err := h.end.Connect(ctx, h.welcome); err != nil {
		e.failf("connect to the server's queue pair: %v", err)
	}
}

func (h *hip) hex(resp *rawhttp.Response, name string, bits int) uint64 {
	n, err := strconv.ParseUint(resp.Header.Get(name), 16, bits)
	if err != nil {
		h.e.failf("%s is no hex number of %d bits", strings.ToLower(name), bits)
	}
	return n
}

// call are the headers of a ready; w is the memory, nil if the server is to read none.
func (h *hip) call(w *window) http.Header {
	var d rdmaio.Descriptor
	if w != nil {
		d = w.descriptor()
	}
	return http.Header{
		"x-amz-rdma-protocol": {hipProtocol}, "x-amz-rdma-session": {h.welcome.Session.Hex()}, "x-amz-rdma-cookie": {h.word()},
		"x-amz-rdma-qpn": {fmt.Sprintf("%016x", h.end.QPN())}, "x-amz-rdma-mr-addr": {fmt.Sprintf("%016x", d.Addr)}, "x-amz-rdma-mr-rkey": {fmt.Sprintf("%08x", d.RKey)},
	}
}

// push sends a ready with these headers and, as known clients do, pushes n bytes of w a
// moment later.
func (h *hip) push(ctx context.Context, w *window, n int, word uint32, header http.Header) *rawhttp.Response {
	pctx, stop := context.WithCancel(ctx)
	defer stop()
	pushed := make(chan struct{})
	go func() {
		defer close(pushed)
		select {
		case <-time.After(hipGrace):
			h.end.Push(pctx, w.exposed, w.off, n, word) // the answer tells how it went
		case <-pctx.Done():
		}
	}()
	resp, err := h.e.try(ctx, h.request("ready", header))
	stop()
	<-pushed
	if err != nil {
		h.e.failf("no answer: %v", err)
	}
	return resp
}

// wantDone checks the answer to a ready that has moved all bytes.
func (h *hip) wantDone(resp *rawhttp.Response) {
	m := mismatch{resp: resp}
	m.status(200)
	m.header(headerHipProtocol, hipProtocol)
	m.header("X-Amz-Rdma-Cookie", h.word())
	m.header(headerBytes, itoa(h.size))
	m.emptyBody()
	if h.op == "PUT" && resp.Header.Get("X-Amz-Rdma-Etag") == "" {
		m.addf("no x-amz-rdma-etag")
	}
	h.e.report("a transfer of hipobj-rc-v2 is no success", m)
}

// wantTold checks that the client has had the word that it has received. The answer is
// there, so the word is.
func (h *hip) wantTold(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := h.end.Await(ctx, h.cookie); err != nil {
		h.e.failf("the immediate value that ends a GET has not come: %v", err)
	}
}

// cancel ends a transfer that a case has prepared.
func (h *hip) cancel(ctx context.Context) *rawhttp.Response {
	return h.post(ctx, "cancel", http.Header{"x-amz-rdma-protocol": {hipProtocol}, "x-amz-rdma-session": {h.welcome.Session.Hex()}, "x-amz-rdma-cookie": {h.word()}})
}

const srcHip = "hipobj-rc-v2 (ROCm hipObject, src/rdma/v2-*; versitygw rdma/rcroutes; elbencho tools/s3rdma)"

func hipobjCases() []Case {
	return []Case{
		{ID: "hipobj/declined", Level: Should, When: Always, Source: srcHip,
			Rule: "a prepare of a protocol that is not served is a 501 with x-amz-rdma-protocol-status: unsupported and without a reply, which is what clients fall back to HTTP for",
			Run: func(ctx context.Context, e *Env) {
				resp := e.do(ctx, rawhttp.Request{Method: "POST", Path: "/.hipobj-rc/prepare", Header: http.Header{"x-amz-rdma-protocol": {"hipobj-rc-v0"}}})
				if resp.Status != 501 && resp.Status/100 == 4 {
					e.skipf("the server does not know hipobj-rc-v2: HTTP %d %s", resp.Status, resp.Error().Code)
				}
				e.wantRefused(resp, 501)
				m := mismatch{resp: resp}
				m.header(headerHipStatus, "unsupported")
				e.report("no proper decline", m)
			}},
		{ID: "hipobj/both-ways", Level: Must, Source: srcHip,
			Rule: "a PUT stores exactly what the client pushes, a GET writes exactly the bytes asked for and is ended by the cookie as an immediate value; both answer with protocol, cookie and byte count",
			Run: func(ctx context.Context, e *Env) {
				t := e.hipTarget()
				for i, n := range []int{1, 4096, 70_001, 1<<20 + 1, 3 << 20} {
					e.sized(n)
					data := pattern(uint64(600+i), n)
					key := e.key(fmt.Sprintf("o %d", n))
					put := e.hipOf(ctx, t, "PUT", n)
					w := put.window(n)
					copy(w.bytes(), data)
					put.prepare(ctx, key, nil, 0)
					put.wantDone(put.push(ctx, w, n, put.cookie, put.call(nil)))
					e.wantStored(ctx, key, data)

					off, m := n/3, n-n/3-n/5
					get := e.hipOf(ctx, t, "GET", m)
					w.poison()
					get.prepare(ctx, key, nil, off)
					get.wantDone(get.post(ctx, "ready", get.call(w)))
					get.wantTold(ctx)
					w.wantReceived(data[off : off+m])
				}
			}},
		{ID: "hipobj/part", Level: Must, Source: srcHip,
			Rule: "a PUT whose target has uploadId and partNumber stores a part",
			Run: func(ctx context.Context, e *Env) {
				t := e.hipTarget()
				const n = 70_001
				data := pattern(610, n)
				put := e.hipOf(ctx, t, "PUT", n)
				w := put.window(n)
				copy(w.bytes(), data)
				key := e.key("o")
				u := e.startUpload(ctx, key, nil)
				put.prepare(ctx, key, query("partNumber", "1", "uploadId", u.id), 0)
				resp := put.push(ctx, w, n, put.cookie, put.call(nil))
				put.wantDone(resp)
				u.parts = append(u.parts, uploadedPart{PartNumber: 1, ETag: resp.Header.Get("X-Amz-Rdma-Etag")})
				e.want(u.complete(ctx), 200)
				e.wantStored(ctx, key, data)
			}},
		{ID: "hipobj/checksum", Level: Should, Source: srcHip,
			Rule: "a checksum that the ready of a PUT declares is verified: bytes that differ are not stored; one in the answer is that of the bytes",
			Run: func(ctx context.Context, e *Env) {
				t := e.hipTarget()
				const n = 5000
				data := pattern(611, n)
				for _, good := range []bool{true, false} {
					put := e.hipOf(ctx, t, "PUT", n)
					w := put.window(n)
					copy(w.bytes(), data)
					key := e.key(fmt.Sprint(good))
					put.prepare(ctx, key, nil, 0)
					header := put.call(nil)
					of := data
					if !good {
						of = data[1:]
					}
					header["x-amz-checksum-crc32c"] = []string{checksum.Of(checksum.CRC32C, of).Base64()}
					resp := put.push(ctx, w, n, put.cookie, header)
					if !good {
						e.wantRefused(resp, 400)
						e.wantAbsent(ctx, key)
						continue
					}
					put.wantDone(resp)
					want := "CRC64NVME " + checksum.Of(checksum.CRC64NVME, data).Base64()
					if got := resp.Header.Get("X-Amz-Rdma-Checksum"); got != "" && got != want {
						e.failf("x-amz-rdma-checksum is %q, want %q", got, want)
					}
				}
			}},
		{ID: "hipobj/unsigned", Level: Must, Source: srcCapable,
			Rule: "prepare, ready and cancel are refused with 403 if they are anonymous, wrongly signed, or have a header of the protocol that is not signed; nothing moves",
			Run: func(ctx context.Context, e *Env) {
				key := e.stored(ctx, "o", pattern(612, 5000))
				h := e.hip(ctx, "GET", 5000)
				w := h.window(5000)
				refused := func(action string, header http.Header) {
					req := h.request(action, header)
					req.Anonymous = true
					e.wantRefused(e.do(ctx, req), 403)
					req.Anonymous, req.Credentials = false, e.wrongSecret()
					e.wantRefused(e.do(ctx, req), 403)
					req.Credentials = nil
					for name := range header {
						req.Header = header.Clone()
						delete(req.Header, name)
						req.Unsigned = http.Header{name: header[name]}
						e.wantRefused(e.do(ctx, req), 403)
					}
				}
				h.prepare(ctx, key, nil, 0) // else what follows says nothing
				refused("prepare", h.hello(key, nil))
				refused("ready", h.call(w))
				refused("cancel", http.Header{"x-amz-rdma-protocol": {hipProtocol}, "x-amz-rdma-session": {h.welcome.Session.Hex()}})
				w.wantUntouched()
				e.want(h.cancel(ctx), 204)
			}},
		{ID: "hipobj/malformed", Level: Should, Source: srcHip,
			Rule: "a prepare whose headers cannot be read is a 400, one of more than 2^31-1 bytes a 413",
			Run: func(ctx context.Context, e *Env) {
				key := e.stored(ctx, "o", pattern(613, 5000))
				h := e.hip(ctx, "GET", 5000)
				h.prepare(ctx, key, nil, 0)
				e.want(h.cancel(ctx), 204)
				for name, values := range map[string][]string{
					headerToken: {"nonsense", strings.Repeat("1", 87)}, "x-amz-rdma-psn": {"000000", "1000000", "x"},
					"x-amz-rdma-cookie": {"", "x"}, "x-amz-rdma-op": {"", "DELETE"}, "x-amz-rdma-target": {"", "nonsense", "/" + e.bucket()},
					"x-amz-rdma-size": {"", "0", "-1", "x"},
				} {
					for _, value := range values {
						header := h.hello(key, nil)
						header[name] = []string{value}
						if value == "" {
							delete(header, name)
						}
						e.wantRefused(h.post(ctx, "prepare", header), 400)
					}
				}
				header := h.hello(key, nil)
				header["x-amz-rdma-size"] = []string{"2147483648"}
				e.wantRefused(h.post(ctx, "prepare", header), 413)
			}},
		{ID: "hipobj/missing", Level: Must, Source: srcHip,
			Rule: "the prepare of a GET finds that the object is not there (404) or has not the bytes (416): a client that has sent its ready waits for them",
			Run: func(ctx context.Context, e *Env) {
				key := e.stored(ctx, "o", pattern(614, 5000))
				h := e.hip(ctx, "GET", 5000)
				h.prepare(ctx, key, nil, 0)
				e.want(h.cancel(ctx), 204)
				e.wantRefused(h.post(ctx, "prepare", h.hello(e.key("none"), nil)), 404)
				header := h.hello(key, nil)
				header["x-amz-rdma-offset"] = []string{"1"}
				e.wantRefused(h.post(ctx, "prepare", header), 416)
			}},
		{ID: "hipobj/cookie", Level: Must, Source: srcHip,
			Rule: "a ready with another cookie than the prepare's is a 403, and nothing moves",
			Run: func(ctx context.Context, e *Env) {
				key := e.stored(ctx, "o", pattern(615, 5000))
				h := e.hip(ctx, "GET", 5000)
				w := h.window(5000)
				h.prepare(ctx, key, nil, 0)
				header := h.call(w)
				header["x-amz-rdma-cookie"] = []string{"00000001"}
				e.wantRefused(h.post(ctx, "ready", header), 403)
				w.wantUntouched()
			}},
		{ID: "hipobj/once", Level: Must, Source: srcHip,
			Rule: "a session is good for one transfer: a second ready is a 409, and moves nothing",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(616, 5000)
				key := e.stored(ctx, "o", data)
				h := e.hip(ctx, "GET", 5000)
				w := h.window(5000)
				h.prepare(ctx, key, nil, 0)
				h.wantDone(h.post(ctx, "ready", h.call(w)))
				w.wantReceived(data)
				w.poison()
				e.wantRefused(h.post(ctx, "ready", h.call(w)), 404, 409)
				w.wantUntouched()
			}},
		{ID: "hipobj/cancel", Level: Must, Source: srcHip,
			Rule: "a cancel ends a session and answers 204, also if there is none; a ready is a 409 then, and stores nothing",
			Run: func(ctx context.Context, e *Env) {
				h := e.hip(ctx, "PUT", 5000)
				w := h.window(5000)
				key := e.key("never")
				h.prepare(ctx, key, nil, 0)
				for range 2 {
					e.want(h.cancel(ctx), 200, 204)
				}
				e.wantRefused(h.push(ctx, w, 5000, h.cookie, h.call(nil)), 404, 409)
				e.wantAbsent(ctx, key)
			}},
		{ID: "hipobj/short", Level: Must, Source: srcShort,
			Rule: "a push of fewer bytes than announced, or with another word than the cookie, stores nothing and is no success",
			Run: func(ctx context.Context, e *Env) {
				t := e.hipTarget()
				const n = 5000
				for name, c := range map[string]struct {
					n    int
					word uint32
				}{"short": {n - 1, 0}, "word": {n, 1}} {
					h := e.hipOf(ctx, t, "PUT", n)
					w := h.window(n)
					key := e.key(name)
					h.prepare(ctx, key, nil, 0)
					resp := h.push(ctx, w, c.n, h.cookie+c.word, h.call(nil))
					if resp.Status < 400 {
						e.failf("%s: HTTP %d", name, resp.Status)
					}
					e.wantRefused(resp, resp.Status)
					e.wantAbsent(ctx, key)
				}
			}},
		{ID: "hipobj/other-identity", Level: Must, Needs: []Need{NeedIdentity}, Source: srcCapable,
			Rule: "nobody can use or end another identity's session",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(618, 5000)
				key := e.stored(ctx, "o", data)
				h := e.hip(ctx, "GET", 5000)
				w := h.window(5000)
				h.prepare(ctx, key, nil, 0)
				h.creds = e.runner.options.Second
				e.wantClientError(h.post(ctx, "ready", h.call(w)))
				h.cancel(ctx) // whatever it answers
				w.wantUntouched()
				h.creds = nil
				h.wantDone(h.post(ctx, "ready", h.call(w)))
				w.wantReceived(data)
			}},
	}
}
