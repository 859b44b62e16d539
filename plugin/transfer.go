// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// errStalled is the cause of a transfer that made no progress in time.
var errStalled = errors.New("no progress within the time allowed")

// transfer moves one object's bytes, in order, between a window and staging
// memory. The staging memory is cut into two banks: while one is on the wire the
// other is filled or drained by the server's handler. One goroutine at a time.
//
// It owns the link, and the banks until close has returned.
type transfer struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	stall  time.Duration

	link     rdmaio.Link
	release  func() // gives the banks back
	maxPiece int
	banks    [][]rdmaio.Slice // one or two
	at       uint64           // window offset of the next byte to post
	err      error            // the first failure; sticky
	closed   bool
}

// newTransfer takes over link and slabs (at least one); release is called when
// neither is in use any more.
func newTransfer(ctx context.Context, link rdmaio.Link, slabs []rdmaio.Slice, maxPiece int, stall time.Duration, release func()) *transfer {
	t := &transfer{link: link, release: release, maxPiece: maxPiece, stall: stall}
	if half := len(slabs) / 2; half > 0 {
		t.banks = [][]rdmaio.Slice{slabs[:half], slabs[half:]}
	} else {
		t.banks = [][]rdmaio.Slice{slabs}
	}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	t.timer = time.AfterFunc(stall, func() { t.cancel(errStalled) })
	t.timer.Stop()
	return t
}

// post moves the first n bytes of slab s to or from the window, and advances.
func (t *transfer) post(write bool, s rdmaio.Slice, n int) error {
	if t.err != nil {
		return t.err
	}
	t.timer.Reset(t.stall)
	defer t.timer.Stop()
	for off := 0; off < n; {
		piece := rdmaio.Slice{Region: s.Region, Off: s.Off + off, Len: min(n-off, t.maxPiece)}
		var err error
		if write {
			err = t.link.Write(t.ctx, piece, t.at)
		} else {
			err = t.link.Read(t.ctx, piece, t.at)
		}
		if err != nil {
			return t.fail(err)
		}
		t.at += uint64(piece.Len)
		off += piece.Len
	}
	return nil
}

// fence waits until both banks are off the wire.
func (t *transfer) fence() error {
	if t.err != nil {
		return t.err
	}
	t.timer.Reset(t.stall)
	defer t.timer.Stop()
	if err := t.link.Fence(t.ctx); err != nil {
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

// close fences and gives everything back. After it no byte moves. It may be
// called again.
func (t *transfer) close() {
	if t.closed {
		return
	}
	t.closed = true
	t.link.Close()
	t.timer.Stop()
	t.cancel(nil)
	t.release()
}
