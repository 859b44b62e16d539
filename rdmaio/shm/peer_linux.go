// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// peer is the server's end of a connected session.
type peer struct {
	f    *Fabric
	conn *net.UnixConn
	cred unix.Ucred

	mu      sync.Mutex
	regions map[uint32]*region
	bytes   int64
	ended   bool
}

// errEnded is what a peer is told that still talks in an ended session.
var errEnded = fmt.Errorf("the session has ended: %w", rdmaio.ErrNoSession)

// find returns the region behind a key.
func (p *peer) find(key uint32) (*region, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return nil, errEnded
	}
	r := p.regions[key]
	if r == nil {
		return nil, rdmaio.ErrStaleKey
	}
	return r, nil
}

// handle does what a message asks for. Errors that wrap errProtocol end the
// session, others are told to the peer. fds stay the caller's.
func (p *peer) handle(m message, fds []int) error {
	want := 0
	if m.kind == kindAdd {
		want = 1
	}
	if len(fds) != want {
		return fmt.Errorf("message of kind %#x with %d file descriptors, want %d: %w", byte(m.kind), len(fds), want, errProtocol)
	}
	switch m.kind {
	case kindAdd:
		return p.add(m, fds[0])
	case kindRevoke:
		return p.revoke(m.rkey)
	case kindRekey:
		return p.rekey(m.rkey, m.fresh)
	}
	return fmt.Errorf("message of kind %#x in a session: %w", byte(m.kind), errProtocol)
}

func (p *peer) add(m message, fd int) error {
	if err := p.reserve(m); err != nil {
		return err
	}
	r, err := mapRegion(fd, m)
	if err != nil {
		p.unreserve(m.size)
		return err
	}
	p.mu.Lock()
	ended := p.ended
	if !ended {
		p.regions[m.rkey] = r
	}
	p.mu.Unlock()
	if ended {
		r.withdraw(errEnded)
		p.unreserve(m.size)
		return errEnded
	}
	return nil
}

// reserve counts a region against the bounds before it is mapped. Only the
// goroutine that serves the peer adds regions.
func (p *peer) reserve(m message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return errEnded
	}
	if p.regions[m.rkey] != nil {
		return fmt.Errorf("a region under a key that is in use: %w", errProtocol)
	}
	o := &p.f.o
	if len(p.regions) >= o.MaxRegions {
		return fmt.Errorf("%w regions in this session (MaxRegions is %d)", rdmaio.ErrTooMany, o.MaxRegions)
	}
	if m.size > uint64(o.MaxBytes-p.bytes) {
		return fmt.Errorf("%w bytes in this session: %d and %d more (MaxBytes is %d)", rdmaio.ErrTooMany, p.bytes, m.size, o.MaxBytes)
	}
	if err := p.f.reserve(int64(m.size)); err != nil {
		return err
	}
	p.bytes += int64(m.size)
	return nil
}

func (p *peer) unreserve(size uint64) {
	p.mu.Lock()
	p.bytes -= int64(size)
	p.mu.Unlock()
	p.f.unreserve(int64(size))
}

func (p *peer) revoke(key uint32) error {
	p.mu.Lock()
	r := p.regions[key]
	delete(p.regions, key)
	p.mu.Unlock()
	if r == nil {
		return fmt.Errorf("revoke under a key that is not in use: %w", errProtocol)
	}
	r.withdraw(rdmaio.ErrStaleKey)
	p.unreserve(r.size)
	return nil
}

func (p *peer) rekey(old, fresh uint32) error {
	p.mu.Lock()
	r := p.regions[old]
	if r == nil || p.regions[fresh] != nil {
		p.mu.Unlock()
		return fmt.Errorf("rekey from a key that is not in use, or to one that is: %w", errProtocol)
	}
	delete(p.regions, old)
	p.regions[fresh] = r
	p.mu.Unlock()
	r.rekey(fresh)
	return nil
}

// abort ends all transfers with the peer, unmaps its memory and hangs up, in this
// order: to the client the end of the connection is the proof that its memory is
// its own again. The table calls it once.
func (p *peer) abort() {
	why := rdmaio.ErrPeerGone
	if p.f.closed.Load() {
		why = rdmaio.ErrClosed
	}
	p.mu.Lock()
	p.ended = true
	regions := p.regions
	p.regions = nil
	p.mu.Unlock()
	for _, r := range regions {
		r.withdraw(why)
		p.unreserve(r.size)
	}
	p.conn.Close()
}

// A peer that does not take its acks is cut off after so long, so that it cannot
// hold a goroutine.
const ackWithin = 5 * time.Second

func acknowledge(conn *net.UnixConn, seq uint32, outcome error) error {
	m := message{kind: kindAck, seq: seq, status: statusOf(outcome)}
	if outcome != nil {
		m.text = outcome.Error()
	}
	conn.SetWriteDeadline(time.Now().Add(ackWithin))
	_, err := conn.Write(m.append(make([]byte, 0, maxMessage)))
	return err
}

// maxFDs is how many file descriptors of one packet we take, to close the surplus;
// the kernel drops what is beyond.
const maxFDs = 4

// receiver reads packets from a connection.
type receiver struct {
	conn *net.UnixConn
	buf  [maxMessage + 1]byte
	oob  []byte
}

func newReceiver(conn *net.UnixConn) *receiver {
	return &receiver{conn: conn, oob: make([]byte, unix.CmsgSpace(maxFDs*4))}
}

// next returns the next message and the file descriptors that came with it, which
// are the caller's to close. An error leaves none open.
func (r *receiver) next() (message, []int, error) {
	n, oobn, flags, _, err := r.conn.ReadMsgUnix(r.buf[:], r.oob)
	fds, ferr := parseFDs(r.oob[:oobn])
	if err == nil {
		err = ferr
	}
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = fmt.Errorf("oversized packet, or too many file descriptors: %w", errProtocol)
	}
	var m message
	if err == nil {
		m, err = parseMessage(r.buf[:n])
	}
	if err != nil {
		closeAll(fds)
		return message{}, nil, err
	}
	return m, fds, nil
}

// parseFDs collects the file descriptors of a packet.
func parseFDs(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	cmsgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("control message: %w: %w", err, errProtocol)
	}
	var fds []int
	for i := range cmsgs {
		more, err := unix.ParseUnixRights(&cmsgs[i])
		if errors.Is(err, unix.EINVAL) {
			continue // not file descriptors: nothing to close
		}
		fds = append(fds, more...)
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
