// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// errStalled is the cause of a transfer that made no progress in time.
var errStalled = errors.New("no progress within the time allowed")

// transfer moves one object's bytes, in order, between a window and staging
// memory. The memory is a ring of pieces: while some are on the wire the others
// are filled or drained by the server's handler. A goroutine of the transfer's own
// posts and fences, so that the handler goes on also where the fabric moves the
// bytes in the calling goroutine.
//
// submit, wait and close are for one goroutine at a time. It owns the link, and
// the pieces until close has returned.
type transfer struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	stall  time.Duration

	link     rdmaio.Link
	release  func() // gives the pieces back
	maxPost  int
	maxBatch int            // pieces posted between two fences
	write    bool           // to the window, not from it
	pieces   []rdmaio.Slice // one or more
	unit     int            // what their lengths are multiples of
	software bool           // a CPU moves the bytes
	instant  bool           // when a post returns they have moved
	sum      io.Writer      // of what has moved, in order; or nil

	todo    chan job      // to the pump; nil until it is needed
	done    chan error    // from the pump: the oldest piece under way is off the wire
	ended   chan struct{} // closed by the pump at its end
	under   int           // pieces submitted and not waited for
	pending error         // without a pump: what the last submit came to
	dropped atomic.Bool   // the pump is to post no more

	at     uint64 // window offset of the next byte to post
	err    error  // the first failure; sticky
	closed bool
}

// sumPart is how much of a piece is moved and then hashed at a time, where a CPU moves
// the bytes: what it has just copied is in its second-level cache still. A device is told
// of all first, and moves them meanwhile.
const sumPart = 256 << 10

// sumInto has w told of all bytes that move, in order, by the goroutine that moves them:
// what is to leave for the window, or what has arrived from it. It returns false where
// the latter would keep the fabric waiting; then nothing is told. Before the first
// submit; what w has computed may be looked at when wait has returned for the last piece.
func (t *transfer) sumInto(w io.Writer) bool {
	if !t.write && !t.instant {
		return false
	}
	t.sum = w
	if t.software {
		t.maxPost = min(t.maxPost, sumPart)
	}
	return true
}

// job is the first n bytes of a piece.
type job struct{ piece, n int }

// newTransfer takes over link and pieces (at least one); release is called when
// neither is in use any more.
func newTransfer(ctx context.Context, link rdmaio.Link, pieces []rdmaio.Slice, unit int, c rdmaio.Capabilities, write bool, stall time.Duration, release func()) *transfer {
	t := &transfer{link: link, release: release, pieces: pieces, unit: unit, maxPost: c.MaxTransfer, software: c.Software, instant: c.Immediate, write: write, stall: stall}
	t.maxBatch = max(1, len(pieces)/2)
	if t.software {
		t.maxBatch = 1 // a fence costs nothing
	}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	t.timer = time.AfterFunc(stall, func() { t.cancel(errStalled) })
	t.timer.Stop()
	return t
}

// cut makes the pieces of a transfer out of slabs: neighbours become one piece, as
// far as enough pieces remain to have some on the wire, some filled or drained, and
// one to turn to.
func cut(slabs []rdmaio.Slice) []rdmaio.Slice {
	slices.SortFunc(slabs, func(a, b rdmaio.Slice) int { return a.Off - b.Off })
	most := max(1, len(slabs)/minPieces) * slabs[0].Len
	pieces := slabs[:1]
	for _, s := range slabs[1:] {
		if last := &pieces[len(pieces)-1]; last.Off+last.Len == s.Off && last.Len < most {
			last.Len += s.Len
		} else {
			pieces = append(pieces, s)
		}
	}
	return pieces
}

// minPieces is the number of pieces that cut leaves of as many slabs.
const minPieces = 4

// least is the length of the smallest piece.
func (t *transfer) least() int {
	n := t.pieces[0].Len
	for _, p := range t.pieces[1:] {
		n = min(n, p.Len)
	}
	return n
}

// submit puts the first n bytes of a piece on the wire, behind what was submitted
// before. The piece is the fabric's until wait has returned for it. There are never
// more submitted than there are pieces.
func (t *transfer) submit(piece, n int) {
	t.under++
	if len(t.pieces) == 1 {
		t.pending = t.move([]job{{piece, n}})
		return
	}
	if t.todo == nil {
		t.todo = make(chan job, len(t.pieces))
		t.done = make(chan error, len(t.pieces))
		t.ended = make(chan struct{})
		go t.pump()
	}
	t.todo <- job{piece, n}
}

// wait waits for the oldest piece under way. An error means that the transfer has
// failed, for good, and that bytes may move until close.
func (t *transfer) wait() error {
	t.under--
	if len(t.pieces) == 1 {
		return t.pending
	}
	return <-t.done
}

// settle waits for all that is under way.
func (t *transfer) settle() (err error) {
	for t.under > 0 {
		if e := t.wait(); err == nil {
			err = e
		}
	}
	return err
}

// pump posts and fences until todo is closed.
func (t *transfer) pump() {
	defer close(t.ended)
	batch := make([]job, 0, t.maxBatch)
	for j := range t.todo {
		batch = append(batch[:0], j)
	more:
		for len(batch) < t.maxBatch {
			select {
			case j, ok := <-t.todo:
				if !ok {
					break more
				}
				batch = append(batch, j)
			default:
				break more
			}
		}
		err := t.move(batch)
		for range batch {
			t.done <- err
		}
	}
}

// move posts a batch and fences.
func (t *transfer) move(batch []job) error {
	if t.err != nil {
		return t.err
	}
	if t.dropped.Load() {
		return errBodyClosed
	}
	t.timer.Reset(t.stall)
	defer t.timer.Stop()
	for _, j := range batch {
		if err := t.post(t.pieces[j.piece], j.n); err != nil {
			return t.fail(err)
		}
	}
	if err := t.link.Fence(t.ctx); err != nil {
		return t.fail(err)
	}
	return nil
}

// post moves the first n bytes of s to or from the window, and advances.
func (t *transfer) post(s rdmaio.Slice, n int) error {
	for off := 0; off < n; {
		part := rdmaio.Slice{Region: s.Region, Off: s.Off + off, Len: min(n-off, t.maxPost)}
		var err error
		if t.write {
			err = t.link.Write(t.ctx, part, t.at)
		} else {
			err = t.link.Read(t.ctx, part, t.at)
		}
		if err != nil {
			return err
		}
		t.timer.Reset(t.stall)
		if t.sum != nil {
			if !t.write {
				if err := t.link.Fence(t.ctx); err != nil {
					return err
				}
			}
			t.sum.Write(part.Bytes()) // a write only reads it
		}
		t.at += uint64(part.Len)
		off += part.Len
	}
	return nil
}

// notify tells a peer that waits for a word that all its bytes are there. Everything has
// been settled.
func (t *transfer) notify() error {
	n, ok := t.link.(rdmaio.PairLink)
	if !ok || t.err != nil {
		return t.err
	}
	t.timer.Reset(t.stall)
	defer t.timer.Stop()
	if err := n.Notify(t.ctx); err != nil {
		return t.fail(err)
	}
	return nil
}

func (t *transfer) fail(err error) error {
	if cause := context.Cause(t.ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", cause, err)
	}
	t.err = err
	return err
}

// close lets what is on the wire end, and gives everything back. After it no byte
// moves, and at and err are constant. It may be called again.
func (t *transfer) close() {
	if t.closed {
		return
	}
	t.closed = true
	if t.todo != nil {
		t.dropped.Store(true)
		close(t.todo)
		<-t.ended
	}
	t.link.Close()
	t.timer.Stop()
	t.cancel(nil)
	t.release()
}
