// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package broken

import (
	"context"
	"errors"
	"net/http"
	"strconv"
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
