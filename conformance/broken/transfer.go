// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package broken

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio"
)

// stall bounds one piece's transfer: the known clients wait 10 s for the whole request.
const stall = 5 * time.Second

// early is how much too early an answer goes out: long enough for a client on a busy
// machine to have looked.
const early = 400 * time.Millisecond

// wearOut is the number of failed transfers after which a server that leaks is out of
// memory.
const wearOut = 100

// transfer serves a request whose descriptor could be read.
func (s *Server) transfer(w http.ResponseWriter, r *http.Request, who identity, d rdmaio.Descriptor, ask checksum.RegionRequest) {
	fabric := s.fabrics[d.Transport.String()]
	if fabric == nil {
		switch {
		case s.on("other-transport-by-400"):
			refuse(w, 400, "InvalidRDMAToken", "not served")
		case s.on("other-transport-by-500"):
			s.transferFailed(w)
		default:
			s.decline(w)
		}
		return
	}
	if s.on("failures-leak") && s.failed.Load() > wearOut {
		refuse(w, 503, "SlowDown", "no memory")
		return
	}
	lease, err := s.pool.Acquire(r.Context(), who.name, 1)
	if err != nil {
		refuse(w, 503, "SlowDown", "no memory")
		return
	}
	defer lease.Release()
	owner := who.name
	if s.on("sessions-serve-anybody") {
		owner = AccessKey
	}
	m := &mover{s: s, fabric: fabric, owner: owner, piece: lease.Slab(0, fabric)}
	// Whether the session is there and the key is good is known before anything else.
	link, err := fabric.Open(r.Context(), d, owner)
	if err == nil {
		err = link.Close()
	}
	switch {
	case errors.Is(err, rdmaio.ErrNoSession), errors.Is(err, rdmaio.ErrUnsupported):
		s.noSession(w, r, who)
	case errors.Is(err, rdmaio.ErrNotOwner):
		refuse(w, 403, "AccessDenied", "another identity's session")
	case r.Method == http.MethodPut:
		s.put(w, r, who, m, d, ask)
	default:
		s.get(w, r, who, m, d, ask)
	}
}

func (s *Server) noSession(w http.ResponseWriter, r *http.Request, who identity) {
	switch {
	case s.on("unknown-session-passes-through"):
		s.plain(w, r, who, true)
	case s.on("unknown-session-by-500"):
		s.transferFailed(w)
	case s.on("unknown-session-by-404"):
		refuse(w, 404, "NoSuchRDMASession", "no such session")
	default:
		s.decline(w)
	}
}

func (s *Server) transferFailed(w http.ResponseWriter) {
	s.failed.Add(1)
	switch {
	case s.on("failure-by-decline"):
		s.decline(w)
	case s.on("failure-with-reply"):
		w.Header().Set(headerReply, "500")
		refuse(w, 500, "RDMATransferFailed", "bytes could not be moved")
	case s.on("failure-with-another-code"):
		refuse(w, 500, "InternalError", "bytes could not be moved")
	default:
		refuse(w, 500, "RDMATransferFailed", "bytes could not be moved")
	}
}

// mover moves bytes by one piece of staging memory. Nothing moves any more when one of
// its methods has returned.
type mover struct {
	s      *Server
	fabric rdmaio.Fabric
	owner  string
	piece  rdmaio.Slice
}

// each opens d and calls f with each piece of n bytes from the window's start. f posts a
// transfer, which is fenced before the next.
func (m *mover) each(ctx context.Context, d rdmaio.Descriptor, n int, post func(ctx context.Context, l rdmaio.Link, s rdmaio.Slice, at int) error, done func(s rdmaio.Slice)) error {
	link, err := m.fabric.Open(ctx, d, m.owner)
	if err != nil {
		return err
	}
	defer link.Close()
	for at := 0; at < n; {
		part := m.piece
		part.Len = min(n-at, part.Len, m.fabric.Capabilities().MaxTransfer)
		if err := fenced(ctx, link, func(ctx context.Context) error { return post(ctx, link, part, at) }); err != nil {
			return err
		}
		done(part)
		at += part.Len
	}
	return nil
}

// fenced posts and fences within the time for one piece.
func fenced(ctx context.Context, l rdmaio.Link, post func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, stall)
	defer cancel()
	if err := post(ctx); err != nil {
		return err
	}
	return l.Fence(ctx)
}

// pull reads n bytes of the window. What came before an error is returned with it.
func (m *mover) pull(ctx context.Context, d rdmaio.Descriptor, n int) ([]byte, error) {
	var data []byte // grows with what arrives: n is the client's word
	err := m.each(ctx, d, n, func(ctx context.Context, l rdmaio.Link, s rdmaio.Slice, at int) error {
		return l.Read(ctx, s, uint64(at))
	}, func(s rdmaio.Slice) { data = append(data, s.Bytes()...) })
	return data, err
}

// push writes data to the window's start.
func (m *mover) push(ctx context.Context, d rdmaio.Descriptor, data []byte) error {
	return m.each(ctx, d, len(data), func(ctx context.Context, l rdmaio.Link, s rdmaio.Slice, at int) error {
		copy(s.Bytes(), data[at:])
		return l.Write(ctx, s, uint64(at))
	}, func(rdmaio.Slice) {})
}

// afterwards runs f when the answer is out, with memory of its own.
func (s *Server) afterwards(m *mover, f func(m *mover)) {
	s.late.Add(1)
	go func() {
		defer s.late.Done()
		lease, err := s.pool.Acquire(context.Background(), m.owner, 1)
		if err != nil {
			return
		}
		defer lease.Release()
		own := *m
		own.piece = lease.Slab(0, m.fabric)
		f(&own)
	}()
}

// prove tells what moved (PROTOCOL.md, section 13).
func (s *Server) prove(h http.Header, ask checksum.RegionRequest, moved []byte) {
	p := checksum.RegionProof{Policy: ask.Policy}
	if p.Policy.Region() {
		p.Sum = checksum.Of(ask.Algorithm, moved)
	}
	if ask.Block > 0 {
		p.List, _ = checksum.ListOf(ask.Algorithm, ask.Block, moved)
	}
	p.Set(h)
}

// inner asks the store, with another body. The signature was verified before, on the
// request as it came.
func (s *Server) inner(r *http.Request, who identity, body []byte) *answer {
	a := &answer{header: http.Header{}}
	s.store.serve(a, r, who, body)
	a.WriteHeader(200)
	return a
}

// relay sends a with body.
func relay(w http.ResponseWriter, a *answer, body []byte) {
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if a.status == 304 || a.status == 204 {
		w.Header().Del("Content-Length")
	}
	w.WriteHeader(a.status)
	w.Write(body)
}

func (s *Server) put(w http.ResponseWriter, r *http.Request, who identity, m *mover, d rdmaio.Descriptor, ask checksum.RegionRequest) {
	in := r.Clone(context.WithoutCancel(r.Context())) // with a header of its own
	if s.on("put-early") {
		w.Header().Set("Etag", `"d41d8cd98f00b204e9800998ecf8427e"`)
		w.Header().Set(headerReply, "200")
		w.Header().Set(headerBytes, strconv.FormatUint(d.Size, 10))
		s.afterwards(m, func(m *mover) {
			time.Sleep(early)
			if data, err := m.pull(in.Context(), d, int(d.Size)); err == nil {
				s.inner(in, who, data)
			}
		})
		return
	}
	if s.on("put-neighbour-byte") {
		d.Addr--
	}
	data, err := m.pull(r.Context(), d, int(d.Size))
	switch {
	case err == nil:
	case s.on("put-short-stored"), s.on("part-short-stored") && r.URL.Query().Has("uploadId"):
	case s.on("put-failed-overwrites"):
		s.inner(in, who, data)
		s.transferFailed(w)
		return
	default:
		s.transferFailed(w)
		return
	}
	if r.Context().Err() != nil {
		return // nobody to answer; nothing is stored
	}
	if s.on("put-last-byte-lost") && len(data) > 0 {
		data = data[:len(data)-1]
	}
	if s.on("put-byte-flipped") && len(data) > 0 {
		data[len(data)/2] ^= 1
	}
	if ask.Blocks != "" && !s.on("block-damage-stored") {
		declared, err := checksum.ParseList(ask.Algorithm, ask.Block, int64(len(data)), ask.Blocks)
		if err == nil {
			err = declared.Verify(data)
		}
		if err != nil {
			refuse(w, 400, "BadDigest", err.Error())
			return
		}
	}
	s.prepare(in)
	named, err := checksum.ParseAlgorithm(in.Header.Get("X-Amz-Checksum-Algorithm"))
	if sums, _ := checksum.FromHeader(in.Header); err != nil || len(sums) > 0 || s.on("named-checksum-ignored") {
		named = 0
	} else {
		in.Header.Set(named.Header(), checksum.Of(named, data).Base64())
	}
	a := s.inner(in, who, data)
	if a.status == 200 {
		if named != 0 {
			a.header.Set(named.Header(), in.Header.Get(named.Header()))
		}
		moved := data
		if s.on("put-proof-of-nothing") {
			moved = nil
		}
		s.prove(a.header, ask, moved)
		s.succeedPut(a, len(data))
	}
	body := a.body.Bytes()
	if s.on("put-answer-has-body") && a.status == 200 {
		body = []byte("<PutResult/>")
	}
	relay(w, a, body)
}

// prepare makes in what the store gets to see of a PUT.
func (s *Server) prepare(in *http.Request) {
	h := in.Header
	for name := range h {
		if s.on("checksums-ignored") && (strings.HasPrefix(name, "X-Amz-Checksum-") || name == "Content-Md5") ||
			s.on("content-md5-ignored") && name == "Content-Md5" ||
			s.on("unknown-checksum-ignored") && (name == "X-Amz-Checksum-Sha512" || name == "X-Amz-Checksum-Md5" || name == "X-Amz-Checksum-Xxhash64") ||
			s.on("metadata-dropped") && strings.HasPrefix(name, "X-Amz-Meta-") ||
			s.on("content-type-dropped") && name == "Content-Type" ||
			s.on("tags-dropped") && name == "X-Amz-Tagging" ||
			s.on("encryption-dropped") && strings.HasPrefix(name, "X-Amz-Server-Side-Encryption") ||
			s.on("put-conditions-ignored") && strings.HasPrefix(name, "If-") {
			delete(h, name)
		}
	}
	if s.on("token-kept") {
		h.Set("X-Amz-Meta-Rdma", "1")
	}
	if s.on("key-unescaped-twice") {
		if p, err := url.PathUnescape(in.URL.Path); err == nil {
			in.URL.Path = p
		}
	}
	// The hash of the empty payload is that of the HTTP body.
	if hash := h.Get("X-Amz-Content-Sha256"); hash == checksum.Empty(checksum.SHA256).Hex() || s.on("payload-hash-ignored") {
		h.Set("X-Amz-Content-Sha256", unsignedPayload)
	}
	if s.on("checksum-of-nothing-accepted") {
		for _, alg := range checksum.Algorithms() {
			if h.Get(alg.Header()) == checksum.Empty(alg).Base64() {
				h.Del(alg.Header())
			}
		}
	}
}

// succeedPut marks a as a success of n bytes.
func (s *Server) succeedPut(a *answer, n int) {
	h := a.header
	h.Set(headerBytes, strconv.Itoa(n))
	h.Set(headerReply, "200")
	switch {
	case s.on("put-without-reply"):
		h.Del(headerReply)
	case s.on("put-reply-204"):
		h.Set(headerReply, "204")
	case s.on("put-reply-text"):
		h.Set(headerReply, "200 OK")
	case s.on("put-without-etag"):
		h.Del("Etag")
	case s.on("put-empty-etag"):
		h.Set("Etag", `""`)
	case s.on("put-without-count"):
		h.Del(headerBytes)
	case s.on("put-count-of-http"):
		h.Set(headerBytes, "0")
	case s.on("put-status-204"):
		a.status = 204
	case s.on("put-another-etag"):
		h.Set("Etag", `"`+checksum.Of(checksum.MD5, []byte(h.Get("Etag"))).Hex()+`"`)
	case s.on("put-version-not-told"):
		h.Del("X-Amz-Version-Id")
	case s.on("part-checksum-not-told"):
		h.Del("X-Amz-Checksum-Crc32c")
		h.Del("X-Amz-Checksum-Crc64nvme")
	}
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, who identity, m *mover, d rdmaio.Descriptor, ask checksum.RegionRequest) {
	in := r.Clone(r.Context())
	s.askStore(in)
	a := s.inner(in, who, nil)
	data := bytes.Clone(a.body.Bytes())
	if a.status != 200 && a.status != 206 {
		s.failGet(w, r, m, d, a)
		return
	}
	if uint64(len(data)) > d.Size {
		switch {
		case s.on("get-cut"):
			data = data[:d.Size]
		case s.on("get-too-small-by-503"):
			refuse(w, 503, "ServiceUnavailable", "too small")
			return
		case s.on("get-too-small-written"):
			m.push(r.Context(), d, data[:d.Size]) // whatever comes of it
			fallthrough
		default:
			refuse(w, 400, "RDMAWindowTooSmall", "the window is too small")
			return
		}
	}
	if err := s.deliver(r.Context(), m, d, a, data); err != nil && !s.on("get-failure-is-success") {
		s.transferFailed(w)
		return
	}
	moved := data
	if s.on("range-proof-of-another") && a.status == 206 {
		moved = data[1:]
	}
	s.prove(a.header, ask, moved)
	s.succeedGet(r, a, len(data), d)
	var body []byte
	if s.on("get-body-too") {
		body = data
	}
	relay(w, a, body)
}

// askStore changes what the store is asked for.
func (s *Server) askStore(in *http.Request) {
	q := in.URL.Query()
	switch {
	case s.on("get-conditions-ignored"):
		for _, name := range []string{"If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"} {
			in.Header.Del(name)
		}
	case s.on("range-ignored"):
		in.Header.Del("Range")
	case s.on("version-ignored"):
		q.Del("versionId")
		in.URL.RawQuery = q.Encode()
	case s.on("part-number-ignored"):
		q.Del("partNumber")
		in.URL.RawQuery = q.Encode()
	case s.on("overrides-ignored"):
		q.Del("response-content-type")
		in.URL.RawQuery = q.Encode()
	case s.on("checksum-mode-ignored"):
		in.Header.Del("X-Amz-Checksum-Mode")
	case s.on("checksums-unasked"):
		in.Header.Set("X-Amz-Checksum-Mode", "ENABLED")
	}
}

// failGet passes on what the store refuses.
func (s *Server) failGet(w http.ResponseWriter, r *http.Request, m *mover, d rdmaio.Descriptor, a *answer) {
	body := a.body.Bytes()
	switch {
	case s.on("condition-writes") && a.status == 412, s.on("not-found-writes") && a.status == 404:
		m.push(r.Context(), d, append(body[:0:0], "an error"...)) // whatever comes of it
	case s.on("errors-in-reply"):
		a.header.Set(headerReply, strconv.Itoa(a.status))
	case s.on("errors-with-count"):
		a.header.Set(headerBytes, "0")
	case s.on("not-found-by-200") && a.status == 404:
		a.status = 200
	case s.on("not-modified-by-200") && a.status == 304:
		a.status, body = 200, nil
	case s.on("delete-marker-not-told"):
		a.header.Del("X-Amz-Delete-Marker")
	}
	relay(w, a, body)
}

// deliver writes data to the window, more or less.
func (s *Server) deliver(ctx context.Context, m *mover, d rdmaio.Descriptor, a *answer, data []byte) error {
	at := d
	var first uint64
	n, _ := fmt.Sscanf(a.header.Get("Content-Range"), "bytes %d-", &first)
	if n == 1 && s.on("range-offset-in-window") && first+uint64(len(data)) <= d.Size {
		at.Addr += first
		at.Size -= first
	}
	wire := data
	switch {
	case s.on("get-not-written"):
		return nil
	case s.on("get-early"):
		s.afterwards(m, func(m *mover) {
			time.Sleep(early)
			m.push(context.WithoutCancel(ctx), d, data) // whatever comes of it
		})
		return nil
	case s.on("get-late-writes"):
		s.afterwards(m, func(m *mover) {
			for range 12 { // one of them falls where nothing may be written any more
				time.Sleep(8 * time.Millisecond)
				if m.push(context.WithoutCancel(ctx), d, data) != nil {
					return
				}
			}
		})
	case s.on("get-last-byte-lost") && len(data) > 0:
		wire = data[:len(data)-1]
	case s.on("get-byte-flipped") && len(data) > 0:
		wire = bytes.Clone(data)
		wire[len(wire)/2] ^= 1
	case s.on("range-off-by-one") && a.status == 206 && len(data) > 1:
		wire = append(bytes.Clone(data[1:]), data[0])
	case s.on("get-in-reverse") && len(data) > 1<<20:
		wire = append(bytes.Clone(data[1<<20:]), data[:1<<20]...) // pieces in the wrong order
	}
	if err := m.push(ctx, at, wire); err != nil {
		return err
	}
	beside := d
	beside.Size = 1
	switch {
	case len(data) == 0:
	case s.on("get-byte-too-many"):
		beside.Addr += uint64(len(data))
		return m.push(ctx, beside, []byte{0x5a ^ wire[len(wire)-1]})
	case s.on("get-byte-before"):
		beside.Addr--
		return m.push(ctx, beside, []byte{0x5a})
	case s.on("get-whole-window"):
		return m.push(ctx, d, append(bytes.Clone(data), make([]byte, d.Size-uint64(len(data)))...))
	}
	return nil
}

// succeedGet marks a as a success of n bytes.
func (s *Server) succeedGet(r *http.Request, a *answer, n int, d rdmaio.Descriptor) {
	h := a.header
	reply, count := strconv.Itoa(a.status), strconv.Itoa(n)
	switch partial := a.status == 206; {
	case s.on("range-reply-200"):
		reply = "200"
	case s.on("range-by-200") && partial:
		reply, a.status = "200", 200
	case s.on("range-not-told"):
		h.Del("Content-Range")
	case s.on("part-number-by-200") && r.URL.Query().Has("partNumber"):
		reply, a.status = "200", 200
	case s.on("parts-count-not-told"):
		h.Del("X-Amz-Mp-Parts-Count")
	case s.on("get-without-reply"):
		reply = ""
	case s.on("get-reply-text"):
		reply += " OK"
	case s.on("get-without-count"):
		count = ""
	case s.on("empty-without-count") && n == 0:
		count = ""
	case s.on("empty-without-reply") && n == 0:
		reply, count = "", ""
	case s.on("get-count-of-window"):
		count = strconv.FormatUint(d.Size, 10)
	case s.on("get-count-with-total"):
		count += "/" + count
	case s.on("get-headers-dropped"):
		h.Del("Etag")
		h.Del("X-Amz-Meta-Case")
	}
	if reply != "" {
		h.Set(headerReply, reply)
	}
	if count != "" {
		h.Set(headerBytes, count)
	}
}
