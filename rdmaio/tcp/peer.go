// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/session"
)

const (
	// laneWindow is how many requests a lane has in flight, linkWindow how many a
	// link has, on all lanes together. They bound what a cancelled link has to wait
	// for, and have to cover bandwidth times round trip: 16 frames are 8 MiB, a
	// millisecond at 64 Gbit/s.
	laneWindow = 16
	linkWindow = 16

	// linkQueue is how many posts a link holds before a further one waits.
	linkQueue = 64
)

// peer is the initiator's end of one session.
//
// Links put transfers in their queues. Each lane has a goroutine that takes the
// next frame of the link whose turn it is and sends it, and another that receives
// answers. So frames go to whichever lane is free, links take turns frame by frame,
// and none waits for another longer than for a frame of its.
type peer struct {
	f       *Fabric
	id      rdmaio.SessionID
	lanes   []*lane
	running sync.WaitGroup // the goroutines of the lanes
	failed  chan struct{}  // closed with the setting of cause

	mu                    sync.Mutex
	readyFirst, readyLast *link // those with a frame to send, by link.nextReady
	links                 map[*link]struct{}
	outstanding           int           // requests not finished, of all lanes
	quiet                 chan struct{} // told when outstanding becomes 0
	ending                bool          // no new link
	cause                 error         // why the session is over; nil while it is not
}

// lane is one connection of a session. What is not said otherwise is guarded by
// peer.mu.
type lane struct {
	p    *peer
	conn *net.TCPConn
	work sync.Cond // something to send, room to send it, or the end
	idle bool      // the writer waits for work

	slots [laneWindow]slot
	free  []uint8 // indices of slots
	seq   uint64  // of the last request
	users int     // goroutines that may still touch the memory in slots

	header [requestSize]byte // the writer's
	iov    [2][]byte         // the writer's
	bufs   net.Buffers       // the writer's, over iov
	in     [answerSize]byte  // the reader's
}

// slot is a request in flight. Its memory is the writer's until sent (WRITE), the
// reader's until answered (READ); the request is finished when it is both.
type slot struct {
	l        *link // nil: free
	id       uint64
	op       uint8
	data     bool // DATA has come
	sent     bool
	answered bool
	verdict  status
	body     []byte
}

func newPeer(f *Fabric, id rdmaio.SessionID, conns []*net.TCPConn) *peer {
	p := &peer{
		f:      f,
		id:     id,
		failed: make(chan struct{}),
		links:  make(map[*link]struct{}),
		quiet:  make(chan struct{}, 1),
	}
	for _, c := range conns {
		la := &lane{p: p, conn: c, users: 2}
		la.work.L = &p.mu
		for i := range la.slots {
			la.free = append(la.free, uint8(i))
		}
		p.lanes = append(p.lanes, la)
		p.running.Add(la.users)
	}
	return p
}

// start sets the lanes going, also if the session has been aborted already: then
// they end at once.
func (p *peer) start() {
	p.f.running.Add(1)
	go p.supervise()
	for _, la := range p.lanes {
		go la.write()
		go la.read()
	}
}

// supervise waits for the end of the session, and sees to it that everyone learns
// of it.
func (p *peer) supervise() {
	defer p.f.running.Done()
	<-p.failed
	for _, la := range p.lanes {
		reset(la.conn)
	}
	p.running.Wait()
	p.f.table.Drop(p.id)
}

// abort ends the session from our side: links fail, what is on the wire is waited
// for, and when abort returns no goroutine touches a slice any more.
func (p *peer) abort() {
	why := fmt.Errorf("session has been ended: %w", rdmaio.ErrNoSession)
	if p.f.isClosed() {
		why = fmt.Errorf("fabric is closing: %w", rdmaio.ErrClosed)
	}
	limit := time.NewTimer(p.f.opt.FenceLimit)
	defer limit.Stop()
	p.mu.Lock()
	p.ending = true
	for l := range p.links {
		l.fail(why)
	}
wait:
	for p.outstanding > 0 && p.cause == nil {
		p.mu.Unlock()
		select {
		case <-p.quiet:
			p.mu.Lock()
		case <-p.failed:
			p.mu.Lock()
		case <-limit.C:
			p.mu.Lock()
			break wait
		}
	}
	p.fail(why)
	p.mu.Unlock()
	p.running.Wait()
}

// fail ends the session for the reason why, or does nothing if it has ended. p.mu
// is held. The lanes' goroutines may touch slices until their slots are finished.
func (p *peer) fail(why error) {
	if p.cause != nil {
		return
	}
	p.cause = why
	for l := range p.links {
		l.fail(why)
	}
	for _, la := range p.lanes {
		la.work.Signal()
	}
	close(p.failed)
}

// open adds a link.
func (p *peer) open(d rdmaio.Descriptor, lease *session.Lease[*peer]) (*link, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.cause != nil:
		return nil, p.cause
	case p.ending:
		return nil, rdmaio.ErrNoSession
	case len(p.links) >= p.f.opt.MaxLinks:
		return nil, fmt.Errorf("%w links of this session (%d)", rdmaio.ErrTooMany, len(p.links))
	}
	l := &link{p: p, lease: lease, d: d, wake: make(chan struct{}, 1)}
	p.links[l] = struct{}{}
	p.f.links.Add(1)
	return l, nil
}

// pushReady queues l for its turn, if it has something to send and may. p.mu is
// held.
func (p *peer) pushReady(l *link) {
	if l.ready || l.queued == 0 || l.inflight >= linkWindow {
		return
	}
	l.ready = true
	l.nextReady = nil
	if p.readyLast == nil {
		p.readyFirst = l
	} else {
		p.readyLast.nextReady = l
	}
	p.readyLast = l
}

// popReady returns the link whose turn it is, or nil. p.mu is held.
func (p *peer) popReady() *link {
	for l := p.readyFirst; l != nil; l = p.readyFirst {
		p.readyFirst = l.nextReady
		if p.readyFirst == nil {
			p.readyLast = nil
		}
		l.nextReady = nil
		l.ready = false
		if l.queued > 0 { // else it failed meanwhile
			return l
		}
	}
	return nil
}

// kick wakes one lane that could send something. p.mu is held.
func (p *peer) kick() {
	if p.readyFirst == nil {
		return
	}
	for _, la := range p.lanes {
		if la.idle && len(la.free) > 0 {
			la.idle = false
			la.work.Signal()
			return
		}
	}
}

// write is the goroutine that sends.
func (la *lane) write() {
	p := la.p
	defer p.running.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	defer la.leave()
	for {
		s := la.next()
		if s == nil {
			return
		}
		body := s.body
		if s.op == opRead {
			body = nil
		}
		p.mu.Unlock()
		err := la.send(body)
		p.mu.Lock()
		s.sent = true
		if err != nil {
			p.fail(lost("send to the target", err))
			return
		}
		if s.answered {
			la.finish(s)
			la.expect()
		}
	}
}

// next waits for something to send, and puts it in a slot and its header in
// la.header. nil: the session is over. p.mu is held.
func (la *lane) next() *slot {
	p := la.p
	for p.cause == nil {
		if len(la.free) > 0 {
			if l := p.popReady(); l != nil {
				s := la.fill(l)
				p.pushReady(l)
				p.kick()
				return s
			}
		}
		la.idle = true
		la.work.Wait()
		la.idle = false
	}
	return nil
}

// fill makes the next frame of l a request of this lane. p.mu is held.
func (la *lane) fill(l *link) *slot {
	t := &l.ring[l.first]
	n := min(len(t.body), frameSize)
	i := la.free[len(la.free)-1]
	la.free = la.free[:len(la.free)-1]
	if len(la.free) == laneWindow-1 {
		la.expect() // the first one in flight: from now on answers have to come
	}
	la.seq++
	s := &la.slots[i]
	*s = slot{l: l, id: la.seq<<8 | uint64(i), op: t.op, body: t.body[:n:n]}
	request{op: t.op, length: uint32(n), id: s.id, addr: t.addr, rkey: l.d.RKey}.put(&la.header)
	l.inflight++
	la.p.outstanding++
	t.body = t.body[n:]
	t.addr += uint64(n)
	if len(t.body) == 0 {
		l.shift()
	}
	return s
}

// send writes la.header and body in one call. It needs no deadline: the request is
// in flight already, so the reader has one, and resets the lane when it passes.
func (la *lane) send(body []byte) error {
	if len(body) == 0 {
		_, err := la.conn.Write(la.header[:])
		return err
	}
	la.iov = [2][]byte{la.header[:], body}
	la.bufs = la.iov[:]
	_, err := la.bufs.WriteTo(la.conn)
	la.iov = [2][]byte{}
	return err
}

// read is the goroutine that receives.
func (la *lane) read() {
	p := la.p
	defer p.running.Done()
	err := la.receive()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail(err)
	la.leave()
}

// receive takes answers until something is wrong.
func (la *lane) receive() error {
	for {
		if _, err := io.ReadFull(la.conn, la.in[:]); err != nil {
			return lost("receive from the target", err)
		}
		a, err := parseAnswer(&la.in)
		if err != nil {
			return fmt.Errorf("%w: %w", rdmaio.ErrPeerGone, err)
		}
		if a.op == opData {
			err = la.data(a)
		} else {
			err = la.answered(a)
		}
		if err != nil {
			return err
		}
	}
}

// data reads the payload of a READ straight into its place.
func (la *lane) data(a answer) error {
	la.p.mu.Lock()
	s := la.find(a.id)
	if s == nil || s.op != opRead || s.data || int(a.length) != len(s.body) {
		la.p.mu.Unlock()
		return fmt.Errorf("%w: DATA that was not asked for: %w", rdmaio.ErrPeerGone, errProtocol)
	}
	s.data = true
	body := s.body
	la.conn.SetReadDeadline(time.Now().Add(la.p.f.opt.PeerTimeout))
	la.p.mu.Unlock()
	if _, err := io.ReadFull(la.conn, body); err != nil {
		return lost("receive from the target", err)
	}
	return nil
}

// answered takes the verdict on a request.
func (la *lane) answered(a answer) error {
	p := la.p
	p.mu.Lock()
	defer p.mu.Unlock()
	s := la.find(a.id)
	if s == nil || s.op == opRead && a.status == statusOK && !s.data {
		return fmt.Errorf("%w: DONE of nothing that was asked for: %w", rdmaio.ErrPeerGone, errProtocol)
	}
	s.answered = true
	s.verdict = a.status
	if s.sent {
		// Otherwise the writer is about to return from its system call, or a
		// hostile peer hopes that we give the memory to somebody else while it is
		// still being sent.
		la.finish(s)
	}
	la.expect()
	return nil
}

// expect gives the peer time for the next answer, or for ever if it owes none. p.mu
// is held.
func (la *lane) expect() {
	var by time.Time
	if len(la.free) < laneWindow {
		by = time.Now().Add(la.p.f.opt.PeerTimeout)
	}
	la.conn.SetReadDeadline(by)
}

// find returns the unanswered request of an id, or nil. p.mu is held.
func (la *lane) find(id uint64) *slot {
	i := id & 0xff
	if i >= laneWindow {
		return nil
	}
	s := &la.slots[i]
	if s.l == nil || s.id != id || s.answered {
		return nil
	}
	return s
}

// finish frees a request whose memory nobody touches any more. p.mu is held.
func (la *lane) finish(s *slot) {
	p, l := la.p, s.l
	if err := s.verdict.err(); err != nil {
		l.fail(err)
	}
	la.free = append(la.free, uint8(s.id&0xff))
	*s = slot{}
	l.inflight--
	if l.inflight == 0 && l.queued == 0 {
		l.tell()
	}
	p.outstanding--
	if p.outstanding == 0 {
		tell(p.quiet)
	}
	if p.cause == nil {
		p.pushReady(l)
		p.kick()
	}
}

// leave is the last thing that a goroutine of the lane does; the session is over.
// When both have left, nobody touches the memory of what is unfinished. p.mu is
// held.
func (la *lane) leave() {
	la.users--
	if la.users > 0 {
		return
	}
	for i := range la.slots {
		if s := &la.slots[i]; s.l != nil {
			la.finish(s)
		}
	}
}

// tell wakes whoever waits on c, now or the next time.
func tell(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
