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

	"github.com/s3rdma/s3rdma/checksum"
)

// putBody is the body that the server's handler reads on a PUT: bytes come from
// the client's memory by RDMA READ into staging, from which Read copies. Nothing
// moves before the first Read, which is after the server has authorized.
//
// Reading ends with io.EOF only if all bytes came and the declared checksums
// match; otherwise with an error that is no EOF, so that the handler stores
// nothing.
type putBody struct {
	size   int64
	verify *checksum.Verifier // nil if the server does it

	mu      sync.Mutex // a handler may leave a readahead goroutine behind
	t       *transfer
	started bool
	posted  int64  // bytes asked for
	read    int64  // bytes handed out
	bank    int    // the bank being drained
	slab    int    // the slab in it
	off     int    // bytes drained of the slab
	have    [2]int // bytes of the object in each bank
	left    int    // bytes not yet drained in the current bank
	eof     bool   // all read, fenced and verified
	err     error
	failure *Error // what the client is told
	done    bool
}

var errBodyClosed = errors.New("the request's body is read after its handler has returned")

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
			c := copy(p[n:], next)
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

// peek is the object's next bytes, as many as lie in one slab and never none.
func (b *putBody) peek() ([]byte, error) {
	if !b.started {
		b.started = true
		if err := b.prime(); err != nil {
			return nil, err
		}
	}
	if b.left == 0 {
		if err := b.nextBank(); err != nil {
			return nil, err
		}
	}
	s := b.t.banks[b.bank][b.slab]
	return s.Bytes()[b.off:min(s.Len, b.off+b.left)], nil
}

// advance counts p, the beginning of what peek returned, as handed out.
func (b *putBody) advance(p []byte) error {
	if b.verify != nil {
		b.verify.Write(p)
	}
	n := len(p)
	b.off += n
	b.left -= n
	b.read += int64(n)
	if b.off == b.t.banks[b.bank][b.slab].Len {
		b.off = 0
		b.slab++
	}
	if b.read == b.size {
		return b.complete()
	}
	return nil
}

// Close implements io.Closer. The transfer ends when the handler has returned, not
// here: servers close bodies at odd times.
func (b *putBody) Close() error { return nil }

// prime fetches the first bank and starts on the second.
func (b *putBody) prime() error {
	if err := b.postBank(0); err != nil {
		return err
	}
	return b.turnTo(0)
}

// nextBank is called when the current bank is drained.
func (b *putBody) nextBank() error {
	next := (b.bank + 1) % len(b.t.banks)
	if len(b.t.banks) == 1 {
		if err := b.postBank(0); err != nil {
			return err
		}
	}
	return b.turnTo(next)
}

// turnTo waits for bank i, which is on the wire, and has the other one fetched
// meanwhile.
func (b *putBody) turnTo(i int) error {
	if err := b.t.fence(); err != nil {
		return b.transferFailed(err)
	}
	b.bank, b.slab, b.off, b.left = i, 0, 0, b.have[i]
	if len(b.t.banks) == 2 && b.posted < b.size {
		return b.postBank(1 - i)
	}
	return nil
}

func (b *putBody) postBank(i int) error {
	b.have[i] = 0
	for _, s := range b.t.banks[i] {
		n := int(min(int64(s.Len), b.size-b.posted))
		if n == 0 {
			break
		}
		if err := b.t.post(false, s, n); err != nil {
			return b.transferFailed(err)
		}
		b.have[i] += n
		b.posted += int64(n)
	}
	return nil
}

// complete is called when the last byte is about to be handed out.
func (b *putBody) complete() error {
	if b.verify != nil {
		if err := b.verify.Verify(); err != nil {
			b.err = err
			b.failure = badDigest("The bytes read from memory do not match: %v.", err)
			return err
		}
	}
	b.eof = true
	return nil
}

func (b *putBody) transferFailed(err error) error {
	b.err = fmt.Errorf("read the object from the client's memory: %w", err)
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
