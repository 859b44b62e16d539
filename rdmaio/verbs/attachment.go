// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

// attachment is the target's end of one session. Its events are handled on the rail's
// goroutine.
type attachment struct {
	t     *Target
	rail  *rail
	local gid
	mine  identity
	path  path

	mu      sync.Mutex
	cq      *ibv.CQ
	qp      *ibv.QP
	ctl     *courier
	id      rdmaio.SessionID
	joined  bool // connected
	lost    bool
	ended   bool
	recv    *ibv.RecvWR
	wc      []ibv.WC
	pending int                  // messages that have not been completed
	windows map[*ibv.MW]struct{} // bound by qp
	binding bool                 // a memory window request has not been completed
	bindErr error                // of the last one
	changed *sync.Cond           // told at every completion and change
}

// bindDepth is how many memory window requests the queue pair takes.
const bindDepth = 16

// newAttachment makes the queue pairs, whose first packet numbers are random.
func newAttachment(t *Target, r *rail) (_ *attachment, err error) {
	a := &attachment{t: t, rail: r, recv: new(ibv.RecvWR), wc: make([]ibv.WC, 16), windows: make(map[*ibv.MW]struct{})}
	a.changed = sync.NewCond(&a.mu)
	defer func() {
		if err != nil {
			a.end()
		}
	}()
	if a.local, err = r.source(wanted(t.opt.Devices), netip.Addr{}); err != nil {
		return nil, err
	}
	if a.cq, err = r.createCQ(4*ctlDepth+2*bindDepth, a); err != nil {
		return nil, err
	}
	if err = a.createQP(); err != nil {
		return nil, err
	}
	if a.ctl, err = newCourier(r, a.cq, t.opt.PkeyIndex); err != nil {
		return nil, err
	}
	a.mine = identity{
		qpn: a.qp.Num, psn: newPSN(), gid: a.local.raw, lid: r.lid(), port: r.port.num,
		extended: true, ctlQPN: a.ctl.qp.Num, ctlPSN: newPSN(), mtu: r.mtu(), reads: r.readsIn(),
	}
	return a, nil
}

// createQP makes the data queue pair, in INIT.
func (a *attachment) createQP() error {
	qp, err := a.rail.pd.CreateRC(a.cq, ibv.QPCap{MaxSendWR: bindDepth, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1})
	if err != nil {
		return a.rail.explain(err)
	}
	a.qp = qp
	return initialise(a.rail, qp, a.t.opt.PkeyIndex, remote(rdmaio.RemoteRead|rdmaio.RemoteWrite))
}

// wanted is the first address among the names of devices.
func wanted(devices []string) netip.Addr {
	for _, d := range devices {
		if a, err := netip.ParseAddr(d); err == nil {
			return a
		}
	}
	return netip.Addr{}
}

// attach connects to the initiator.
func (a *attachment) attach(id rdmaio.SessionID, peer identity) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.id = id
	a.path = newPath(a.rail, a.local, peer, &a.t.opt)
	if peer.extended {
		if err := a.ctl.connect(&a.path, a.mine.ctlPSN); err != nil {
			return err
		}
	}
	if err := a.connect(peer.qpn, peer.psn); err != nil {
		return err
	}
	a.joined = true
	return a.cq.Request(false)
}

// connect takes the data queue pair from INIT to the state in which the initiator's
// packets have an effect, from number theirs on. It sends nothing over the wire, but
// memory windows are bound by it.
func (a *attachment) connect(qpn, theirs uint32) error {
	if err := a.qp.PostRecv(a.recv); err != nil {
		return err
	}
	return a.path.connect(a.qp, qpn, theirs, a.mine.psn, a.rail.readsIn(), 1, a.path.timeout, dataRetries)
}

// event handles what has come. It runs on the rail's goroutine.
func (a *attachment) event() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return
	}
	if a.cq.Request(false) != nil {
		a.lose()
	}
	a.poll()
}

func (a *attachment) poll() {
	for {
		n, err := a.cq.Poll(a.wc)
		if err != nil {
			a.lose()
		}
		for i := range a.wc[:n] {
			wc := &a.wc[i]
			switch {
			case a.ctl != nil && wc.QPNum == a.ctl.qp.Num:
				a.heard(wc)
			case a.isBind(wc):
				a.bound(wc)
			case wc.Status != ibv.WCSuccess && a.joined && !a.path.peer.extended:
				// The standing receive was flushed: the queue pair is in error, and an
				// initiator of this kind cannot ask for another one.
				a.lose()
			}
		}
		if n < len(a.wc) {
			return
		}
	}
}

func (a *attachment) heard(wc *ibv.WC) {
	m, qpn, sent, err := a.ctl.hear(wc)
	switch {
	case err != nil:
		a.pending = 0
		a.lose()
	case sent:
		a.pending--
		a.changed.Broadcast()
	case m == msgRearm:
		if err := a.rearm(qpn); err != nil {
			a.lose()
		}
	case m == msgBye:
		a.lose()
	}
}

// rearm replaces the data queue pair by one for the initiator's new one, and says so. The
// old one is gone first: no packet for it has an effect any more. Memory windows are
// bound to a queue pair, and go with it.
func (a *attachment) rearm(qpn uint32) error {
	old := a.qp
	a.qp = nil
	err := errors.Join(a.freeWindows(), old.Destroy(), a.createQP())
	if a.binding {
		a.binding, a.bindErr = false, errors.New("bind a memory window: the connection broke")
		a.changed.Broadcast()
	}
	if err == nil {
		err = a.connect(qpn, rearmPSN(a.id, qpn))
	}
	if err == nil {
		err = a.ctl.say(msgReady, a.qp.Num)
	}
	if err != nil {
		return err
	}
	a.pending++
	return nil
}

// lose marks the session as lost: nothing can be transferred with it any more.
func (a *attachment) lose() {
	if !a.lost {
		a.lost = true
		if a.qp != nil {
			toError(a.qp)
		}
	}
	a.changed.Broadcast()
}

func (a *attachment) isLost() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lost || a.ended
}

// end takes leave of the initiator, if it may be listening, and frees the queue pairs.
// When it returns no byte moves by this session any more. A second call does nothing.
func (a *attachment) end() {
	const patience = 250 * time.Millisecond
	a.mu.Lock()
	if a.ended {
		a.mu.Unlock()
		return
	}
	if a.joined && !a.lost {
		a.lose()
		if a.path.peer.extended && a.ctl.say(msgBye, 0) == nil {
			a.pending++
			a.waitFor(patience, func() bool { return a.pending <= 0 })
		}
	}
	a.free()
}

// kill frees the queue pairs without a word.
func (a *attachment) kill() {
	a.mu.Lock()
	a.lose()
	a.free()
}

// free ends the attachment. a.mu is held, and released.
func (a *attachment) free() {
	a.ended = true
	a.freeWindows()
	qp, ctl, cq := a.qp, a.ctl, a.cq
	a.changed.Broadcast()
	a.mu.Unlock()
	if qp != nil {
		qp.Destroy()
	}
	if ctl != nil {
		ctl.qp.Destroy()
	}
	if cq != nil {
		a.rail.destroyCQ(cq)
	}
}

// waitFor waits until cond, at most for limit. a.mu is held, but not throughout.
func (a *attachment) waitFor(limit time.Duration, cond func() bool) bool {
	over := false
	t := time.AfterFunc(limit, func() {
		a.mu.Lock()
		over = true
		a.changed.Broadcast()
		a.mu.Unlock()
	})
	defer t.Stop()
	for !cond() && !over {
		a.changed.Wait()
	}
	return cond()
}

// isBind tells whether a completion is of a memory window request.
func (a *attachment) isBind(wc *ibv.WC) bool { return wc.ID == bindID }

// bindID is the id of requests that bind memory windows; receives have 0.
const bindID = 1

func (a *attachment) bound(wc *ibv.WC) {
	a.bindErr = nil
	if wc.Status != ibv.WCSuccess {
		a.bindErr = fmt.Errorf("bind a memory window: %s", ibv.StatusName(wc.Status))
	}
	a.binding = false
	a.changed.Broadcast()
}
