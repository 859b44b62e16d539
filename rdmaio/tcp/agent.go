// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// pieceSize is how many bytes an agent moves under one look at the key: the time
// that Rekey may wait for, a few microseconds.
const pieceSize = 64 << 10

// zeros takes the place of memory that is withdrawn while it is being sent. It is
// never written.
var zeros [16 << 10]byte

// agent serves one lane. What it moves goes straight between the socket and
// registered memory. It allocates nothing per frame: the functions that RawConn
// calls back are made once, and get their arguments from fields.
type agent struct {
	target  *Target
	session *attachment
	conn    *net.TCPConn
	raw     syscall.RawConn

	placeFn, fetchFn func(fd uintptr) bool

	in      [requestSize]byte
	out     [answerSize]byte
	trailer [answerSize]byte
	discard []byte // where a refused payload goes; made when first needed

	// The arguments and results of placeFn and fetchFn.
	region *exposed
	key    uint32
	head   []byte // fetchFn: what is to be sent before body
	body   []byte // what is still to be moved
	tail   []byte // fetchFn: what is to be sent behind body
	iov    [3][]byte
	stale  bool // the key was withdrawn
	ioErr  error
}

func (a *agent) prepare() {
	a.placeFn = a.placePiece
	a.fetchFn = a.fetchPiece
}

// serve answers requests until the lane ends.
func (a *agent) serve() {
	for {
		if _, err := io.ReadFull(a.conn, a.in[:]); err != nil {
			return
		}
		req, err := parseRequest(&a.in)
		if err != nil {
			return
		}
		// A request on its way has to make progress; between two the lane may be
		// idle for as long as the session lives.
		a.conn.SetDeadline(time.Now().Add(a.target.opt.PeerTimeout))
		if req.op == opWrite {
			err = a.place(req)
		} else {
			err = a.fetch(req)
		}
		if err != nil {
			return
		}
		a.conn.SetReadDeadline(time.Time{})
	}
}

// place moves the payload of a WRITE into memory and answers it.
func (a *agent) place(req request) error {
	region := a.target.lookup(req.rkey)
	body, st := region.find(req.addr, req.length, rdmaio.RemoteWrite)
	left := int(req.length)
	if st == statusOK {
		a.region, a.key, a.body, a.stale, a.ioErr = region, req.rkey, body, false, nil
		for len(a.body) > 0 && !a.stale {
			if err := a.raw.Read(a.placeFn); err != nil {
				return err
			}
			if a.ioErr != nil {
				return a.ioErr
			}
		}
		left = len(a.body)
		a.region, a.body = nil, nil
		if a.stale {
			st = statusStaleKey
		}
	}
	if err := a.drain(left); err != nil {
		return err
	}
	return a.done(req.id, st)
}

// placePiece reads what is there, at most a piece, into memory. false: nothing is
// there, call again when something is.
func (a *agent) placePiece(fd uintptr) bool {
	a.region.mu.RLock()
	defer a.region.mu.RUnlock()
	if a.region.key != a.key {
		a.stale = true
		return true
	}
	for {
		n, err := unix.Read(int(fd), a.body[:min(len(a.body), pieceSize)])
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return false
		case err != nil:
			a.ioErr = err
		case n == 0:
			a.ioErr = io.ErrUnexpectedEOF
		default:
			a.body = a.body[n:]
		}
		return true
	}
}

// drain reads n bytes of payload that have no place to go.
func (a *agent) drain(n int) error {
	for n > 0 {
		if a.discard == nil {
			a.discard = make([]byte, pieceSize)
		}
		k, err := a.conn.Read(a.discard[:min(n, len(a.discard))])
		if err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// done answers a request.
func (a *agent) done(id uint64, st status) error {
	answer{op: opDone, status: st, id: id}.put(&a.out)
	_, err := a.conn.Write(a.out[:])
	return err
}

// fetch answers a READ out of memory.
func (a *agent) fetch(req request) error {
	region := a.target.lookup(req.rkey)
	body, st := region.find(req.addr, req.length, rdmaio.RemoteRead)
	if st != statusOK {
		return a.done(req.id, st)
	}
	answer{op: opData, length: req.length, id: req.id}.put(&a.out)
	answer{op: opDone, id: req.id}.put(&a.trailer)
	a.region, a.key, a.stale, a.ioErr = region, req.rkey, false, nil
	a.head, a.body, a.tail = a.out[:], body, a.trailer[:]
	for len(a.body) > 0 && !a.stale {
		if err := a.raw.Write(a.fetchFn); err != nil {
			return err
		}
		if a.ioErr != nil {
			return a.ioErr
		}
	}
	head, left, tail := a.head, len(a.body), a.tail
	a.region, a.body = nil, nil
	if !a.stale {
		if len(tail) == 0 {
			return nil
		}
		_, err := a.conn.Write(tail)
		return err
	}
	// A withdrawn region. Not one byte of it has been announced yet: say so
	// instead. Otherwise the announced length has to be kept.
	if len(head) == answerSize {
		return a.done(req.id, statusStaleKey)
	}
	if _, err := a.conn.Write(head); err != nil {
		return err
	}
	for left > 0 {
		n, err := a.conn.Write(zeros[:min(left, len(zeros))])
		if err != nil {
			return err
		}
		left -= n
	}
	return a.done(req.id, statusStaleKey)
}

// fetchPiece sends at most a piece of memory, with the headers that belong before
// and behind it. false: the socket is full, call again when it is not.
func (a *agent) fetchPiece(fd uintptr) bool {
	a.region.mu.RLock()
	defer a.region.mu.RUnlock()
	if a.region.key != a.key {
		a.stale = true
		return true
	}
	iov := a.iov[:0]
	if len(a.head) > 0 {
		iov = append(iov, a.head)
	}
	piece := a.body[:min(len(a.body), pieceSize)]
	iov = append(iov, piece)
	if len(piece) == len(a.body) {
		iov = append(iov, a.tail)
	}
	for {
		n, err := unix.Writev(int(fd), iov)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return false
		case err != nil:
			a.ioErr = err
			return true
		}
		a.head, n = consume(a.head, n)
		a.body, n = consume(a.body, n)
		a.tail, _ = consume(a.tail, n)
		return true
	}
}

// consume takes up to n bytes off the front of b, and returns how many of n remain.
func consume(b []byte, n int) ([]byte, int) {
	k := min(len(b), n)
	return b[k:], n - k
}
