// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// errDiverted is what a handler's Write gets once its answer can no longer be a
// success. The client gets the real reason from the plugin.
var errDiverted = errors.New("the body cannot be delivered over the fabric")

// getWriter is the http.ResponseWriter that the server's handler writes a GET's
// answer to. A success's body goes to staging and by RDMA WRITE to the client;
// any other answer goes through as it is.
//
// The header is held back until the last byte has arrived: only then is the
// answer known to be a success.
type getWriter struct {
	outer  http.ResponseWriter
	header http.Header // the handler's; the outer map stays clean for an error answer
	window uint64
	exact  bool // the body has to fill the window

	mu     sync.Mutex // a handler may leave a goroutine behind that writes
	t      *transfer
	status int   // of the handler, 0 before WriteHeader
	length int64 // Content-Length of the handler, -1 if it gave none
	total  int64 // body bytes so far
	piece  int   // the piece being filled
	fill   int   // bytes filled of it
	path   path
	err    *Error
	passed bool // the handler's own answer is on its way, no success
	done   bool
}

func newGetWriter(outer http.ResponseWriter, t *transfer, window uint64) *getWriter {
	return &getWriter{outer: outer, header: maps.Clone(outer.Header()), t: t, window: window, length: -1}
}

// Header returns the handler's view of the header: what outer middleware has set
// already, and its own.
func (g *getWriter) Header() http.Header { return g.header }

// WriteHeader sends any answer but a success on its way at once.
func (g *getWriter) WriteHeader(status int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writeHeader(status)
}

func (g *getWriter) writeHeader(status int) {
	if g.status != 0 || g.done || status < 200 {
		return
	}
	g.status = status
	switch {
	case g.err != nil: // the client gets that, whatever the handler makes of it
		return
	case !g.diverts():
		g.passed = true
		replaceHeader(g.outer.Header(), g.header)
		g.outer.WriteHeader(status)
		return
	}
	if s := g.header.Get("Content-Length"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 {
			g.fail(transferFailed("The server announced a body of %q bytes.", s))
			return
		}
		g.length = n
		if uint64(n) > g.window {
			g.fail(windowTooSmall(g.window, n))
		}
	}
}

// diverts tells whether the handler's answer has its body diverted. Other
// statuses of the 2xx class do not occur on a GET.
func (g *getWriter) diverts() bool {
	return g.status == http.StatusOK || g.status == http.StatusPartialContent
}

// Write takes the next bytes of the body. p is the caller's again on return.
func (g *getWriter) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.done {
		return 0, errDiverted
	}
	if g.status == 0 {
		g.writeHeader(http.StatusOK)
	}
	if g.passed {
		return g.outer.Write(p)
	}
	if err := g.usable(); err != nil {
		return 0, err
	}
	if err := g.room(len(p)); err != nil {
		return 0, err
	}
	written := 0
	for written < len(p) {
		n := copy(g.free(), p[written:])
		written += n
		if g.advance(n) != nil {
			return written, errDiverted
		}
	}
	return written, nil
}

// usable tells whether more bytes of the body can be taken.
func (g *getWriter) usable() error {
	if g.done || g.err != nil || g.passed {
		return errDiverted
	}
	return nil
}

// room refuses n more bytes if they are more than was announced, or than fit.
func (g *getWriter) room(n int) error {
	total := g.total + int64(n)
	if g.length >= 0 && total > g.length {
		g.fail(transferFailed("The server wrote more than the %d bytes it had announced.", g.length))
		return http.ErrContentLength
	}
	if uint64(total) > g.window {
		g.fail(windowTooSmall(g.window, total))
		return errDiverted
	}
	return nil
}

// free is the unused rest of the current piece, never empty.
func (g *getWriter) free() []byte {
	return g.t.pieces[g.piece].Bytes()[g.fill:]
}

// advance counts n bytes of free as the object's next.
func (g *getWriter) advance(n int) error {
	g.total += int64(n)
	g.fill += n
	if g.fill < g.t.pieces[g.piece].Len {
		return nil
	}
	return g.closePiece()
}

// closePiece puts the filled part of the current piece on the wire and goes on to
// the next, as soon as that has left it.
func (g *getWriter) closePiece() error {
	g.t.submit(g.piece, g.fill)
	g.piece = (g.piece + 1) % len(g.t.pieces)
	g.fill = 0
	if g.t.under < len(g.t.pieces) {
		return nil
	}
	return g.moved(g.t.wait())
}

// moved takes note of how a part of the transfer went.
func (g *getWriter) moved(err error) error {
	if err != nil {
		g.fail(transferFailed("The object could not be written to the client's memory: %v.", err))
	}
	return err
}

func (g *getWriter) fail(e *Error) {
	if g.err == nil {
		g.err = e
	}
}

// finish fences and decides the answer; the handler has returned. It returns nil
// if the handler's own answer has been sent (passed) or the transfer is complete
// and the header ready to be committed, else the error to send.
func (g *getWriter) finish() *Error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.done = true
	defer g.t.close()
	if g.status == 0 {
		// net/http's own reading of a handler that writes nothing.
		g.status = http.StatusOK
	}
	if g.passed {
		return nil
	}
	if g.err == nil && g.length >= 0 && g.total != g.length {
		g.fail(transferFailed("The server ended the body after %d of %d bytes.", g.total, g.length))
	}
	if g.err == nil && g.exact && uint64(g.total) != g.window {
		g.fail(transferFailed("The server's answer has %d bytes, %d were agreed upon.", g.total, g.window))
	}
	if g.err == nil && g.fill > 0 {
		g.closePiece()
	}
	if g.err == nil {
		g.moved(g.t.settle())
	}
	if g.err == nil {
		g.moved(g.t.notify())
	}
	return g.err
}

// commit sends the success: the handler's header with an empty body.
func (g *getWriter) commit(d Dialect, in *integrity, keepChecksums bool) {
	h := g.header
	if !keepChecksums {
		// SDKs compare these with the body, which is empty, and fail.
		for name := range h {
			if strings.HasPrefix(name, "X-Amz-Checksum-") {
				delete(h, name)
			}
		}
	}
	h.Del("Transfer-Encoding")
	h.Del("Trailer")
	h.Set("Content-Length", "0")
	in.prove(h)
	g.status = d.Succeed(h, g.status, g.total)
	replaceHeader(g.outer.Header(), h)
	g.outer.WriteHeader(g.status)
}

// replaceHeader makes dst equal to src.
func replaceHeader(dst, src http.Header) {
	for name := range dst {
		if _, ok := src[name]; !ok {
			delete(dst, name)
		}
	}
	maps.Copy(dst, src)
}
