// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"errors"
	"fmt"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

// conn is the initiator's end of one RC session: the queue over a queue pair, and the
// courier beside it if the peer has one. The queue's lock guards it.
type conn struct {
	queue
	pulse     pulse
	f         *Fabric
	id        rdmaio.SessionID
	railIndex int
	path      path
	mine      identity

	cq  *ibv.CQ
	qp  *ibv.QP
	ctl *courier // nil if the peer has none

	in, out uint8 // READs answered and outstanding
	timer   *time.Timer

	chain chain
}

// newConn makes the queue pairs and connects them to the peer's, who learns what to
// connect to from mine.
func newConn(f *Fabric, r *rail, index int, local gid, peer identity) (_ *conn, err error) {
	o := &f.opt
	c := &conn{
		f: f, railIndex: index, path: newPath(r, local, peer, o), chain: newChain(),
	}
	depth := min(o.Depth, int(r.dev.MaxQPWR))
	c.queue.init(c, depth, o.BusyPoll)
	c.pulse.init(&c.queue)
	defer func() {
		if err != nil {
			c.destroy()
		}
	}()
	if c.cq, err = r.createCQ(depth+4*ctlDepth, c); err != nil {
		return nil, err
	}
	if err = c.createQP(); err != nil {
		return nil, err
	}
	c.mine = identity{qpn: c.qp.Num, psn: newPSN(), gid: local.raw, lid: r.lid(), port: r.port.num}
	c.in = r.readsIn()
	c.out = min(r.readsOut(), uint8(o.UnknownPeerReads))
	if peer.extended {
		c.out = min(r.readsOut(), peer.reads)
		if c.ctl, err = newCourier(r, c.cq, o.PkeyIndex); err != nil {
			return nil, err
		}
		c.mine.extended = true
		c.mine.ctlQPN, c.mine.ctlPSN = c.ctl.qp.Num, newPSN()
		c.mine.mtu, c.mine.reads = c.path.mtu, c.in
		if err = c.ctl.connect(&c.path, c.mine.ctlPSN); err != nil {
			return nil, err
		}
	}
	if err = c.connect(peer.qpn, c.mine.psn); err != nil {
		return nil, err
	}
	return c, nil
}

// createQP makes the data queue pair, in INIT.
func (c *conn) createQP() error {
	r := c.path.rail
	qp, err := r.pd.CreateRC(c.cq, ibv.QPCap{MaxSendWR: uint32(len(c.ring)), MaxSendSGE: 1, MaxRecvSGE: 1, MaxRecvWR: 1})
	if err != nil {
		return r.explain(err)
	}
	c.qp = qp
	return c.path.initialise(qp, 0)
}

// connect takes the data queue pair from INIT to where it sends, from packet number psn
// on. The peer's sends nothing.
func (c *conn) connect(qpn, psn uint32) error {
	return c.path.connect(c.qp, qpn, c.path.peer.psn, psn, c.in, c.out, c.path.timeout, dataRetries)
}

// post implements endpoint.
func (c *conn) post(rs []request, first uint64) (int, error) {
	return c.chain.post(c.qp, rs, first)
}

func (c *conn) poll(wc []ibv.WC) (int, error) {
	if c.cq == nil {
		return 0, nil
	}
	return c.cq.Poll(wc)
}

func (c *conn) own(wc *ibv.WC) bool { return c.qp != nil && wc.QPNum == c.qp.Num }

func (c *conn) arm(all bool) error {
	if c.cq == nil {
		return nil
	}
	return c.cq.Request(!all)
}

func (c *conn) fail() error {
	if c.qp == nil {
		return nil
	}
	return toError(c.qp)
}

// other hears the courier.
func (c *conn) other(wc *ibv.WC) {
	if c.ctl == nil || wc.QPNum != c.ctl.qp.Num {
		return
	}
	m, qpn, sent, err := c.ctl.hear(wc)
	switch {
	case err != nil:
		c.messages = 0
		c.moved = true
		if c.state == restarting {
			c.die(fmt.Errorf("verbs: target did not mend the connection: %w: %w", err, rdmaio.ErrPeerGone))
		}
	case sent:
		c.messages--
		c.moved = true
	case m == msgReady && c.state == restarting:
		c.timer.Stop()
		if err := c.connect(qpn, rearmPSN(c.id, c.qp.Num)); err != nil {
			c.die(fmt.Errorf("verbs: mend the connection: %w: %w", err, rdmaio.ErrPeerGone))
			return
		}
		c.restarted()
	case m == msgBye:
		c.die(fmt.Errorf("verbs: target has ended the session: %w", rdmaio.ErrPeerGone))
	}
}

func (c *conn) canRestart() bool { return c.ctl != nil && !c.ctl.down }

// restart makes another queue pair, and asks the peer to do the same. Resetting the one
// that has failed would do with most devices; Soft-RoCE's keeps too much of its past.
func (c *conn) restart() (bool, error) {
	if !c.canRestart() {
		return false, fmt.Errorf("verbs: the connection broke, and the target cannot mend it: %w", rdmaio.ErrPeerGone)
	}
	old := c.qp
	c.qp = nil
	err := errors.Join(old.Destroy(), c.createQP())
	if err == nil {
		err = c.ctl.say(msgRearm, c.qp.Num)
	}
	if err != nil {
		return false, fmt.Errorf("verbs: mend the connection: %w: %w", err, rdmaio.ErrPeerGone)
	}
	c.messages++
	c.timer = time.AfterFunc(c.f.opt.PeerTimeout, c.overdue)
	return false, nil
}

// overdue is called when the peer has had its time to restart.
func (c *conn) overdue() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == restarting {
		c.die(fmt.Errorf("verbs: target did not mend the connection in time: %w", rdmaio.ErrPeerGone))
		c.tell()
	}
}

// died has the session dropped, on a goroutine of its own: dropping waits for the queue.
func (c *conn) died() {
	if c.timer != nil {
		c.timer.Stop()
	}
	c.f.drop(c.id)
}

// abort ends the transfers of the session, see session.Options.
func (c *conn) abort() {
	why := fmt.Errorf("verbs: session has ended: %w", rdmaio.ErrNoSession)
	if c.f.isClosed() {
		why = fmt.Errorf("verbs: fabric is closed: %w: %w", rdmaio.ErrClosed, rdmaio.ErrNoSession)
	}
	if !c.shut(why, c.f.opt.FenceLimit) {
		c.mu.Lock()
		if c.qp != nil {
			c.qp.Destroy()
			c.qp = nil
		}
		c.mu.Unlock()
		c.abandon()
	}
	c.farewell()
}

// farewell tells a peer that may be listening that the session is over.
func (c *conn) farewell() {
	const patience = 250 * time.Millisecond
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctl == nil || errors.Is(c.why, rdmaio.ErrPeerGone) || c.ctl.say(msgBye, 0) != nil {
		return
	}
	c.messages++
	w := &waiter{what: forSent, wake: make(chan struct{}, 1)}
	c.waitFor(w, patience)
}

// destroy frees the queue pairs, then their completion queue.
func (c *conn) destroy() {
	c.mu.Lock()
	qp, ctl, cq := c.qp, c.ctl, c.cq
	c.qp, c.ctl, c.cq = nil, nil, nil
	c.mu.Unlock()
	if qp != nil {
		qp.Destroy()
	}
	if ctl != nil {
		ctl.qp.Destroy()
	}
	if cq != nil {
		c.path.rail.destroyCQ(cq)
	}
}
