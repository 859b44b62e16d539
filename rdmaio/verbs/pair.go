// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/session"
	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

const (
	// pairWithin is how long a pair waits for its transfer. Its client has nothing to do
	// meanwhile but to connect its queue pair.
	pairWithin = 10 * time.Second

	// rnrForEver has a queue pair wait as long as it takes for its peer to post a
	// receive. Whoever waits for the queue pair has a limit.
	rnrForEver = 7

	// heardID is the id of the receive by which a peer says that it has pushed.
	heardID = math.MaxUint64
)

// pair is the initiator's end of one transfer of a peer that takes part in it: a queue
// over a queue pair of its own and, if the peer pushes, memory for it. The queue's lock
// guards it.
type pair struct {
	queue
	f         *Fabric
	id        rdmaio.SessionID
	railIndex int
	path      path
	mine      identity
	note      any

	cq    *ibv.CQ
	qp    *ibv.QP
	chain chain

	reserved int    // of Fabric.landing
	land     []byte // what the peer pushes into, mapped by us; nil if it receives
	mr       *ibv.MR
	recv     *ibv.RecvWR
	imm      uint32
	came     error // why what the peer said is not what it had to say
	said     bool  // it has

	lease *session.Lease[*pair] // set by Claim
}

// Pair makes a queue pair, and memory if the peer will push.
func (f *Fabric) Pair(ctx context.Context, h rdmaio.PairHello) (rdmaio.PairWelcome, error) {
	w, err := f.makePair(ctx, h)
	if err != nil {
		return rdmaio.PairWelcome{}, fmt.Errorf("verbs fabric: pair: %w", err)
	}
	return w, nil
}

func (f *Fabric) makePair(ctx context.Context, h rdmaio.PairHello) (rdmaio.PairWelcome, error) {
	var none rdmaio.PairWelcome
	switch {
	case ctx.Err() != nil:
		return none, ctx.Err()
	case f.isClosed():
		return none, rdmaio.ErrClosed
	case h.Owner == "":
		return none, fmt.Errorf("nobody asks for it: %w", rdmaio.ErrRefused)
	}
	peer, err := parseIdentity(h.Token, h.PSN)
	if err != nil {
		return none, err
	}
	peer.extended = false
	remote := netip.AddrFrom16(peer.gid).Unmap()
	if err := f.admit(remote, h.Peer); err != nil {
		return none, err
	}
	if err := f.reserve(h.Land); err != nil {
		return none, err
	}
	id, secret, err := f.pairing.Offer(h.Owner)
	if err != nil {
		f.landing.Add(-int64(h.Land))
		return none, err
	}
	p, err := f.pairWith(peer, h.Local, remote, int(h.Land))
	if err != nil {
		f.landing.Add(-int64(h.Land))
		f.pairing.Drop(id)
		return none, err
	}
	p.id, p.note = id, h.Note
	w, err := p.welcome()
	if err == nil {
		_, err = f.pairing.Claim(secret, p)
	}
	if err != nil {
		f.pairing.Drop(id)
		f.buryPair(p)
		return none, err
	}
	return w, nil
}

// reserve takes n bytes of the memory that peers may push into.
func (f *Fabric) reserve(n uint64) error {
	switch most := f.opt.Landing; {
	case n == 0:
		return nil
	case most < 0:
		return fmt.Errorf("there is no memory to push into: %w", rdmaio.ErrUnsupported)
	case n > uint64(most):
		return fmt.Errorf("%d bytes to push, there are never more than %d: %w", n, most, rdmaio.ErrOutOfBounds)
	case f.landing.Add(int64(n)) > most:
		f.landing.Add(-int64(n))
		return fmt.Errorf("%w bytes to push at once, %d are all there is", rdmaio.ErrTooMany, most)
	}
	return nil
}

// pairWith makes a pair over the rail that fits best.
func (f *Fabric) pairWith(peer identity, at, remote netip.Addr, land int) (*pair, error) {
	r, index, err := f.pick(at)
	if err != nil {
		return nil, err
	}
	local, err := r.source(at, remote)
	if err == nil {
		var p *pair
		if p, err = newPair(f, r, index, local, peer, land); err == nil {
			f.conns.Lock()
			f.conns.pairs[p] = struct{}{}
			f.conns.Unlock()
			return p, nil
		}
	}
	f.leave(index)
	if isExhausted(err) {
		return nil, fmt.Errorf("%w queue pairs or too little memory: %w", rdmaio.ErrTooMany, err)
	}
	return nil, fmt.Errorf("%w: %w", rdmaio.ErrUnsupported, err)
}

func newPair(f *Fabric, r *rail, index int, local gid, peer identity, land int) (_ *pair, err error) {
	p := &pair{f: f, railIndex: index, path: newPath(r, local, peer, &f.opt), chain: newChain(), reserved: land}
	p.path.rnr = rnrForEver
	depth := min(f.opt.Depth, int(r.dev.MaxQPWR))
	p.queue.init(p, depth, f.opt.BusyPoll)
	defer func() {
		if err != nil {
			p.destroy()
		}
	}()
	if p.cq, err = r.createCQ(depth+1, p); err != nil {
		return nil, err
	}
	if p.qp, err = r.pd.CreateRC(p.cq, ibv.QPCap{MaxSendWR: uint32(depth), MaxSendSGE: 1, MaxRecvSGE: 1, MaxRecvWR: 1}); err != nil {
		return nil, r.explain(err)
	}
	access := 0
	if land > 0 {
		access = ibv.AccessLocalWrite | ibv.AccessRemoteWrite
		if p.land, err = unix.Mmap(-1, 0, land, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
			return nil, fmt.Errorf("map %d bytes to push into: %w", land, err)
		}
		if p.mr, err = r.register(p.land, access); err != nil {
			return nil, err
		}
	}
	if err = p.path.initialise(p.qp, access); err != nil {
		return nil, err
	}
	p.mine = identity{qpn: p.qp.Num, psn: newPSN(), gid: local.raw, lid: r.lid(), port: r.port.num}
	return p, nil
}

// welcome tells the peer what to connect to, and where to push.
func (p *pair) welcome() (rdmaio.PairWelcome, error) {
	w := rdmaio.PairWelcome{Welcome: rdmaio.Welcome{Session: p.id, PSN: p.mine.psn}, QPN: p.mine.qpn}
	d := rdmaio.Descriptor{
		Transport: rdmaio.TransportRC, QPN: p.mine.qpn, GID: p.mine.gid, GIDPresent: true, LID: p.mine.lid, Port: p.mine.port,
	}
	if p.mr != nil {
		w.Addr, w.RKey = addressOf(p.land), p.mr.RKey
		d.Addr, d.RKey, d.Size = w.Addr, w.RKey, uint64(len(p.land))
	}
	var err error
	w.Token, err = d.Encode(rdmaio.EncodingHipObject)
	return w, err
}

// Claim takes a pair that waits.
func (f *Fabric) Claim(id rdmaio.SessionID, owner string) (rdmaio.Pair, error) {
	lease, err := f.pairing.Acquire(id, owner)
	if err != nil {
		return nil, fmt.Errorf("verbs fabric: claim a pair: %w", err)
	}
	p := lease.Value()
	p.mu.Lock()
	again := p.lease != nil
	if !again {
		p.lease = lease
	}
	p.mu.Unlock()
	if again {
		lease.Release()
		return nil, fmt.Errorf("verbs fabric: claim a pair: it has been claimed: %w", rdmaio.ErrNoSession)
	}
	return p, nil
}

// Unpair ends a pair.
func (f *Fabric) Unpair(id rdmaio.SessionID, owner string) error {
	if err := f.pairing.End(id, owner); err != nil {
		return fmt.Errorf("verbs fabric: unpair: %w", err)
	}
	return nil
}

func (p *pair) Note() any { return p.note }

// Join connects, and has a peer push that does.
func (p *pair) Join(ctx context.Context, qpn uint32, d rdmaio.Descriptor, imm uint32) (rdmaio.PairLink, error) {
	l, err := p.join(ctx, qpn, d, imm)
	if err != nil {
		return nil, fmt.Errorf("verbs fabric: join a pair: %w", err)
	}
	return l, nil
}

func (p *pair) join(ctx context.Context, qpn uint32, d rdmaio.Descriptor, imm uint32) (rdmaio.PairLink, error) {
	if qpn == 0 || qpn > qpnMask {
		return nil, fmt.Errorf("queue pair number is not 1 to %d: %w", qpnMask, rdmaio.ErrMalformed)
	}
	if d.Size > rdmaio.MaxWindow || d.Addr+d.Size < d.Addr {
		return nil, rdmaio.ErrOutOfBounds
	}
	d.Transport = rdmaio.TransportRC // whatever it came as
	p.mu.Lock()
	if p.state != up || p.qp == nil {
		p.mu.Unlock()
		return nil, fmt.Errorf("%w: %w", rdmaio.ErrPeerGone, p.why)
	}
	p.imm = imm
	if p.land != nil {
		p.recv = &ibv.RecvWR{ID: heardID}
		p.messages = 1 // that is waited for
		if err := p.qp.PostRecv(p.recv); err != nil {
			p.mu.Unlock()
			return nil, err
		}
	}
	if err := p.path.connect(p.qp, qpn, p.path.peer.psn, p.mine.psn, 1, 1, p.path.timeout, dataRetries); err != nil {
		p.mu.Unlock()
		return nil, fmt.Errorf("%w: %w", rdmaio.ErrPeerGone, err)
	}
	if p.land == nil {
		p.mu.Unlock()
		l, err := newLink(&p.queue, p, p.railIndex, d, nil)
		if err != nil {
			return nil, err
		}
		p.f.links.Add(1)
		return &pairLink{l, p}, nil
	}
	defer p.mu.Unlock()
	w := &waiter{what: forSent, wake: make(chan struct{}, 1)}
	switch {
	case !p.wait(w, ctx.Done()):
		return nil, fmt.Errorf("the peer has not pushed: %w", ctx.Err())
	case p.state == dead:
		return nil, p.why
	case !p.said:
		return nil, p.came
	}
	// What has come stays as it is, whatever the peer does. The queue pair is left alone:
	// the peer may not have heard yet that its bytes are here.
	mr := p.mr
	p.mr = nil
	if err := mr.Dereg(); err != nil {
		return nil, fmt.Errorf("withdraw what was pushed into: %w", err)
	}
	return &landed{p: p}, nil
}

// other hears the peer.
func (p *pair) other(wc *ibv.WC) {
	if wc.ID != heardID {
		return
	}
	p.messages, p.moved = 0, true
	switch {
	case wc.Status != ibv.WCSuccess:
		p.came = fmt.Errorf("verbs: the peer's push failed (%s): %w", ibv.StatusName(wc.Status), rdmaio.ErrPeerGone)
	case wc.Opcode != ibv.WCRecvRDMAWithImm || wc.Flags&ibv.WCWithImm == 0:
		p.came = fmt.Errorf("verbs: the peer sent a message in place of pushing: %w", rdmaio.ErrMalformed)
	case wireImm(wc.Imm) != p.imm:
		p.came = fmt.Errorf("verbs: the peer's word is not the one agreed upon: %w", rdmaio.ErrMalformed)
	case uint64(wc.ByteLen) != uint64(len(p.land)):
		p.came = fmt.Errorf("verbs: the peer pushed %d of %d bytes: %w", wc.ByteLen, len(p.land), rdmaio.ErrMalformed)
	default:
		p.said = true
	}
}

func (p *pair) own(wc *ibv.WC) bool { return wc.ID != heardID }

func (p *pair) post(rs []request, first uint64) (int, error) { return p.chain.post(p.qp, rs, first) }

func (p *pair) poll(wc []ibv.WC) (int, error) {
	if p.cq == nil {
		return 0, nil
	}
	return p.cq.Poll(wc)
}

func (p *pair) arm(all bool) error {
	if p.cq == nil {
		return nil
	}
	return p.cq.Request(!all)
}

func (p *pair) fail() error {
	if p.qp == nil {
		return nil
	}
	return toError(p.qp)
}

func (p *pair) canRestart() bool { return false }

func (p *pair) restart() (bool, error) {
	return false, fmt.Errorf("verbs: the connection broke, and is good for one transfer only: %w", rdmaio.ErrPeerGone)
}

// died stops waiting for the peer. Whoever has the pair closes it.
func (p *pair) died() { p.messages, p.moved = 0, true }

// The owner of the link is the pair.
func (p *pair) key(r rdmaio.Region, rail int) (uint32, error) { return p.f.key(r, rail) }
func (p *pair) options() *Options                             { return p.f.options() }
func (p *pair) release(*link)                                 { p.f.links.Add(-1) }

// Close ends the pair, and gives up its place.
func (p *pair) Close() error {
	p.mu.Lock()
	lease := p.lease
	p.mu.Unlock()
	if lease != nil {
		lease.Release()
	}
	p.f.pairing.Drop(p.id)
	return nil
}

// abort ends the transfer, see session.Options.
func (p *pair) abort() {
	why := fmt.Errorf("verbs: the transfer has ended: %w", rdmaio.ErrNoSession)
	if p.f.isClosed() {
		why = fmt.Errorf("verbs: fabric is closed: %w: %w", rdmaio.ErrClosed, rdmaio.ErrNoSession)
	}
	if !p.shut(why, p.f.opt.FenceLimit) {
		p.mu.Lock()
		qp := p.qp
		p.qp = nil
		p.mu.Unlock()
		if qp != nil {
			qp.Destroy()
		}
		p.abandon()
	}
	p.mu.Lock()
	p.tell()
	p.mu.Unlock()
}

// buryPair frees a pair that has been aborted, or never came to life.
func (f *Fabric) buryPair(p *pair) {
	p.destroy()
	f.landing.Add(-int64(p.reserved))
	f.conns.Lock()
	delete(f.conns.pairs, p)
	f.conns.Unlock()
	f.leave(p.railIndex)
}

// destroy frees the queue pair, then what it used. A second call does nothing.
func (p *pair) destroy() {
	p.mu.Lock()
	qp, cq, mr, land := p.qp, p.cq, p.mr, p.land
	p.qp, p.cq, p.mr, p.land = nil, nil, nil, nil
	p.mu.Unlock()
	if qp != nil {
		qp.Destroy()
	}
	if cq != nil {
		p.path.rail.destroyCQ(cq)
	}
	if mr != nil {
		mr.Dereg()
	}
	if land != nil {
		unix.Munmap(land)
	}
}

// pairLink writes to the window of a peer that receives.
type pairLink struct {
	*link
	p *pair
}

// Notify says that all is there, by a WRITE of no bytes: it needs no key, and its value
// reaches the peer after all bytes before it.
func (l *pairLink) Notify(ctx context.Context) error {
	q := l.q
	q.mu.Lock()
	if l.err != nil || l.closed {
		defer q.mu.Unlock()
		return l.down()
	}
	l.w.what = forRoom
	if !q.wait(&l.w, ctx.Done()) {
		l.fail(fmt.Errorf("verbs: notify: %w", ctx.Err()))
	}
	if l.err == nil {
		q.add(request{link: l.link, op: ibv.WRWriteImm, imm: l.p.imm})
		q.flush()
	}
	q.mu.Unlock()
	return l.Fence(ctx)
}

// Close fences, and ends the pair.
func (l *pairLink) Close() error { return errors.Join(l.link.Close(), l.p.Close()) }

// landed reads what a peer has pushed. The bytes have moved: this copies them, from memory
// that nobody else can reach.
type landed struct {
	p      *pair
	err    error
	closed bool
}

func (l *landed) Write(context.Context, rdmaio.Slice, uint64) error {
	return l.fail(fmt.Errorf("verbs: write to a peer that has pushed: %w", rdmaio.ErrUnsupported))
}

func (l *landed) Read(ctx context.Context, dst rdmaio.Slice, at uint64) error {
	// The lock keeps the memory, which goes when the fabric is closed.
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	land := l.p.land
	switch {
	case l.err != nil:
		return fmt.Errorf("verbs: %w: %w", rdmaio.ErrLinkDown, l.err)
	case l.closed || land == nil:
		return l.fail(fmt.Errorf("verbs: %w: it is %w", rdmaio.ErrLinkDown, rdmaio.ErrClosed))
	case ctx.Err() != nil:
		return l.fail(fmt.Errorf("verbs: read: %w", ctx.Err()))
	}
	if err := rdmaio.CheckBounds(uint64(len(land)), at, uint64(dst.Len)); err != nil {
		return l.fail(fmt.Errorf("verbs: read: window: %w", err))
	}
	copy(dst.Bytes(), land[at:])
	return nil
}

func (l *landed) fail(err error) error {
	if l.err == nil {
		l.err = err
	}
	return err
}

func (l *landed) Fence(context.Context) error { return l.err }

func (l *landed) Notify(context.Context) error {
	return l.fail(fmt.Errorf("verbs: notify a peer that has pushed: %w", rdmaio.ErrUnsupported))
}

func (l *landed) Close() error {
	if l.closed {
		return nil
	}
	l.closed = true
	return l.p.Close()
}
