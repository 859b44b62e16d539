// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
)

// putBody is the body that the server's handler reads on a PUT: bytes come from
// the client's memory by RDMA READ into staging, from which Read copies. Nothing
// moves before the first Read, which is after the server has authorized.
//
// Reading ends with io.EOF only if all bytes came and the declared checksums
// match; otherwise with an error that is no EOF, so that the handler stores
// nothing.
type putBody struct {
	size int64
	sums *integrity

	mu      sync.Mutex // a handler may leave a readahead goroutine behind
	t       *transfer
	posted  int64 // bytes asked for
	read    int64 // bytes handed out
	next    int   // the piece to ask for next
	piece   int   // the piece being drained
	have    int   // bytes of the object in it; 0 before it is off the wire
	off     int   // bytes drained of it
	lent    bool  // it was lent by Source.Next
	held    int   // pieces before it that were lent and not released
	path    path
	summed  bool // sums are told of the bytes by the transfer, not here
	eof     bool // all read and verified
	err     error
	failure *Error // what the client is told
	done    bool
}

// bodyError is why a body broke off. Whatever the fabric's error wraps, it is never
// an end of file: a handler that takes it for one would store what came so far
// (errors.Is), or read for ever (MinIO's Erasure.Encode, which compares both ways).
type bodyError struct{ err error }

func (e *bodyError) Error() string {
	return "read the object from the client's memory: " + e.err.Error()
}

// Is stands in for Unwrap, which would let an io.EOF show.
func (e *bodyError) Is(target error) bool {
	return target != io.EOF && target != io.ErrUnexpectedEOF && errors.Is(e.err, target)
}

var (
	errBodyClosed = errors.New("the request's body is read after its handler has returned")
	errAllLent    = errors.New("all staging memory of the request is lent, some of it must be released first")
)

// Read implements io.Reader. Several goroutines may call it, one after the other.
func (b *putBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.done:
		return 0, errBodyClosed
	case b.err != nil:
		return 0, b.err
	case b.eof:
		return 0, io.EOF
	case len(p) == 0:
		return 0, nil
	}
	n := 0
	for n < len(p) && !b.eof {
		next, err := b.peek()
		if err == nil {
			c := min(len(p)-n, len(next))
			if &p[n] != &next[0] { // else it is read where it lies
				copy(p[n:], next)
			}
			n += c
			err = b.advance(next[:c])
		}
		if err != nil {
			return 0, err
		}
	}
	if b.eof {
		return n, io.EOF
	}
	return n, nil
}

// peek is the object's next bytes, as many as lie in one piece and never none.
func (b *putBody) peek() ([]byte, error) {
	if b.posted == 0 {
		b.summed = !b.sums.idle() && b.t.sumInto(b.sums)
		for range b.t.pieces {
			b.ask()
		}
	}
	if b.have == 0 {
		if b.t.under == 0 {
			return nil, errAllLent
		}
		if err := b.t.wait(); err != nil {
			return nil, b.transferFailed(err)
		}
		b.have = int(min(int64(b.t.pieces[b.piece].Len), b.size-b.read))
	}
	return b.t.pieces[b.piece].Bytes()[b.off:b.have], nil
}

// ask puts the next piece on the wire, if there is anything left to ask for.
func (b *putBody) ask() {
	if n := int(min(int64(b.t.pieces[b.next].Len), b.size-b.posted)); n > 0 {
		b.t.submit(b.next, n)
		b.next = (b.next + 1) % len(b.t.pieces)
		b.posted += int64(n)
	}
}

// advance counts p, the beginning of what peek returned, as handed out.
func (b *putBody) advance(p []byte) error {
	if !b.summed {
		b.sums.Write(p)
	}
	b.off += len(p)
	b.read += int64(len(p))
	if b.off == b.have {
		b.piece = (b.piece + 1) % len(b.t.pieces)
		b.have, b.off = 0, 0
		if b.lent || b.held > 0 {
			b.held++
		} else {
			b.ask()
		}
		b.lent = false
	}
	if b.read == b.size {
		return b.complete()
	}
	return nil
}

// Close implements io.Closer. The transfer ends when the handler has returned, not
// here: servers close bodies at odd times.
func (b *putBody) Close() error { return nil }

// complete is called when the last byte is about to be handed out.
func (b *putBody) complete() error {
	if err := b.sums.arrived(); err != nil {
		b.err = err
		b.failure = badDigest("The bytes read from memory do not match: %v.", err)
		return err
	}
	b.eof = true
	return nil
}

func (b *putBody) transferFailed(err error) error {
	b.err = &bodyError{err}
	b.failure = transferFailed("The object could not be read from the client's memory: %v. Nothing was stored.", err)
	return b.err
}

// finish fences; the handler has returned and gets no more bytes.
func (b *putBody) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done = true
	b.t.close()
}

// result tells, after finish, whether every byte was delivered, and if not, why.
func (b *putBody) result() (complete bool, failure *Error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.eof, b.failure
}

// maxAnswer bounds a PUT handler's answer body, which is empty or a small XML.
const maxAnswer = 1 << 20

// heldAnswer is the http.ResponseWriter of a PUT's handler: the answer is held
// back until it is certain that the body it speaks of was complete.
type heldAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func newHeldAnswer(outer http.ResponseWriter) *heldAnswer {
	return &heldAnswer{header: maps.Clone(outer.Header())}
}

func (a *heldAnswer) Header() http.Header { return a.header }

func (a *heldAnswer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
	}
}

func (a *heldAnswer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.body.Len()+len(p) > maxAnswer {
		return 0, fmt.Errorf("answer of more than %d bytes to a PUT", maxAnswer)
	}
	return a.body.Write(p)
}

func (a *heldAnswer) success() bool { return a.status >= 200 && a.status < 300 }

// send passes the answer on as it is.
func (a *heldAnswer) send(w http.ResponseWriter) {
	replaceHeader(w.Header(), a.header)
	w.WriteHeader(a.status)
	w.Write(a.body.Bytes())
}
