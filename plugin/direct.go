// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"io"
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
func (s *Sink) MaxNext() int { return s.g.t.banks[0][0].Len }

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
		return nil, fmt.Errorf("%d bytes of staging memory in one piece, a slab has %d", least, s.MaxNext())
	}
	if len(g.free()) < least {
		if g.closeSlab() != nil {
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

// Source hands out a PUT's bytes where they lie in staging memory, for a server
// that can encode from there: one copy less than reading the request's body. A
// handler uses one or the other.
//
// One goroutine at a time. A Source must not be used, nor the memory it has lent,
// after the handler has returned.
type Source struct{ b *putBody }

// SourceOf returns the source of a diverted PUT's context, if it is one.
func SourceOf(ctx context.Context) (*Source, bool) {
	s, ok := ctx.Value(directKey{}).(*Source)
	return s, ok
}

// Size is the object's length in bytes.
func (s *Source) Size() int64 { return s.b.size }

// MaxNext is the length of every piece but the last, in bytes.
func (s *Source) MaxNext() int { return s.b.t.banks[0][0].Len }

// Next returns the object's next bytes, MaxNext of them or all that are left; they
// may be read until the following call. After the last piece it returns io.EOF.
// Any other error means that the object must not be stored, also after the last
// piece: the checksums are known only then.
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
	if err == nil {
		err = b.advance(p)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}
