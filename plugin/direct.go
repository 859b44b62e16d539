// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/s3rdma/s3rdma/checksum"
)

type directKey struct{}

// Sink takes a GET's bytes straight into staging memory, from a server whose
// object layer can put them there itself, past the http.ResponseWriter: one copy
// less. The handler still writes the header, with the Content-Length of all the
// bytes, and may write the rest of the body as usual.
//
// One goroutine at a time. A Sink must not be used, nor the memory it has lent,
// after the handler has returned.
type Sink struct{ g *getWriter }

// SinkOf returns the sink of a diverted GET's context, if it is one.
func SinkOf(ctx context.Context) (*Sink, bool) {
	s, ok := ctx.Value(directKey{}).(*Sink)
	return s, ok
}

// Window is how many bytes the client has room for. A body of more must not be
// begun; its announcement by WriteHeader makes the answer an error.
func (s *Sink) Window() uint64 { return s.g.window }

// MaxNext is the largest least that Next can serve, in bytes.
func (s *Sink) MaxNext() int { return s.g.t.least() }

// Fail makes the answer e, unless the handler's own answer is no success. It is for
// what goes wrong after the handler has written its header.
func (s *Sink) Fail(e *Error) {
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	if e.reason == "" {
		own := *e
		own.reason = reasonServerAnswer
		e = &own
	}
	s.g.fail(e)
}

// SetPath tells which way the bytes go, for events and metrics; see
// [RequestInfo.Path].
func (s *Sink) SetPath(name, reason string) {
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	s.g.path = path{name, reason}
}

// Next lends contiguous staging memory, least bytes of it or more. It is the
// caller's to write until Commit. Without a Commit, the next call lends it again.
func (s *Sink) Next(least int) ([]byte, error) {
	g := s.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.usable(); err != nil {
		return nil, err
	}
	if least > s.MaxNext() {
		return nil, fmt.Errorf("%d bytes of staging memory in one piece, there are %d", least, s.MaxNext())
	}
	if len(g.free()) < least {
		if g.closePiece() != nil {
			return nil, errDiverted
		}
	}
	return g.free(), nil
}

// Commit tells that the first n bytes of what Next lent are the object's next. An
// error means that the transfer has failed; the client will be told.
func (s *Sink) Commit(n int) error {
	g := s.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.usable(); err != nil {
		return err
	}
	if err := g.room(n); err != nil {
		return err
	}
	if g.advance(n) != nil {
		return errDiverted
	}
	return nil
}

// Source shows where a PUT's bytes lie in staging memory, for a server that can
// encode from there. The bytes are still read from the request's body, through
// whatever counts, hashes and limits them on the way; but a read of the body whose
// buffer is the memory where the bytes lie already copies nothing:
//
//	p, err := source.Next()            // the next bytes, arrived
//	n, err := io.ReadFull(r.Body, p)   // counted, hashed and verified in place
//	...                                // stored
//	source.Release()                   // p may be filled anew
//
// An error of the reader means that the object must not be stored. (One that comes
// with the last bytes is hidden by io.ReadFull: read on to io.EOF.) A handler that
// has called Next once goes on so to the end.
//
// One goroutine at a time; Release may be called by another. A Source must not be
// used, nor the memory it has lent, after the handler has returned.
type Source struct{ b *putBody }

// SourceOf returns the source of a diverted PUT's context, if it is one.
func SourceOf(ctx context.Context) (*Source, bool) {
	s, ok := ctx.Value(directKey{}).(*Source)
	return s, ok
}

// Verify has sum, one of the checksums that the request declares, verified by the plugin,
// which can do it while the bytes are in the cache: the handler need not. What does not
// match breaks the body off before its last byte, and is answered with BadDigest. It
// must be called before the first byte is read.
func (s *Source) Verify(sum checksum.Sum) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.b.posted > 0 {
		return errors.New("a checksum is to be verified of which bytes have been read")
	}
	return s.b.sums.verifyAlso(sum)
}

// Size is the object's length in bytes.
func (s *Source) Size() int64 { return s.b.size }

// Unit is what the length of every piece but the last is a multiple of, in bytes.
func (s *Source) Unit() int { return s.b.t.unit }

// Pieces is how many pieces can be lent at once.
func (s *Source) Pieces() int { return len(s.b.t.pieces) }

// Next lends the piece with the object's next bytes, waiting until they have
// arrived. It may be used until Release. The same piece is lent again until it has
// been read to its end. After the last byte has been read it returns io.EOF.
func (s *Source) Next() ([]byte, error) {
	b := s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.done:
		return nil, errBodyClosed
	case b.err != nil:
		return nil, b.err
	case b.eof:
		return nil, io.EOF
	}
	p, err := b.peek()
	if err != nil {
		return nil, err
	}
	b.lent = true
	return p, nil
}

// Release gives the oldest piece back that was lent and has been read. Nobody may
// touch its memory any more.
func (s *Source) Release() {
	b := s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done || b.held == 0 {
		return
	}
	b.held--
	b.ask()
}

// SetPath tells which way the bytes go, for events and metrics; see
// [RequestInfo.Path].
func (s *Source) SetPath(name, reason string) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.path = path{name, reason}
}

// path is RequestInfo.Path and PathReason.
type path struct{ name, reason string }

// PathDiverted is the path of a request that the server's own handler served
// through http.ResponseWriter or the request's body.
const PathDiverted = "diverted"

// tell puts the path into i, if bytes went over the fabric at all.
func (p path) tell(i *RequestInfo) {
	if p.name == "" {
		p.name = PathDiverted
	}
	i.Path, i.PathReason = p.name, p.reason
}
