// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

var (
	_ rdmaio.PairTarget = (*PairTarget)(nil)
	_ rdmaio.Allocator  = (*PairTarget)(nil)
	_ DMABufRegistrar   = (*PairTarget)(nil)
)

// PairTarget is the end that owns the memory, over an RC queue pair for each transfer, as
// hipobj-rc-v2 has it. It has no session: its descriptors are good with their own queue
// pair, and any other of its own.
type PairTarget struct{ holder }

// NewPairTarget returns a target. Nothing is opened yet: mistakes in o, and a host without
// verbs, are reported by Register and NewPair.
func NewPairTarget(o Options) *PairTarget {
	t := new(PairTarget)
	t.init(o, t)
	return t
}

// PairTargetName is what [PairTarget] calls itself: it is no transport of its own, but a
// way to speak RC.
const PairTargetName = "hipobj"

// Name is [PairTargetName].
func (t *PairTarget) Name() string { return PairTargetName }

// Hello fails with ErrUnsupported: there is no session.
func (t *PairTarget) Hello(context.Context) (rdmaio.Hello, error) {
	return rdmaio.Hello{}, fmt.Errorf("verbs pair target: there is nothing to connect: %w", rdmaio.ErrUnsupported)
}

// Connect fails as Hello does.
func (t *PairTarget) Connect(context.Context, rdmaio.Welcome) error {
	return fmt.Errorf("verbs pair target: there is nothing to connect: %w", rdmaio.ErrUnsupported)
}

// windows implements exposer: a window belongs to a queue pair, and there is none yet.
func (t *PairTarget) windows(*rail) bool { return false }

// name implements exposer.
func (t *PairTarget) name(e *exposed, d *rdmaio.Descriptor) error {
	d.Transport, d.RKey = rdmaio.TransportRC, e.mr.RKey
	return nil
}

// Close withdraws all regions and closes the device. Pairs must have been closed before.
func (t *PairTarget) Close() error { return t.close() }

// pairEnd is the target's end of one transfer. Its events are handled on the rail's
// goroutine.
type pairEnd struct {
	rail  *rail
	local gid
	opt   *Options
	psn   uint32
	qpn   uint32
	token string

	mu      sync.Mutex
	changed *sync.Cond // told at every completion, and when a context ends
	cq      *ibv.CQ
	qp      *ibv.QP
	w       rdmaio.PairWelcome
	recv    *ibv.RecvWR
	chain   chain
	wc      []ibv.WC
	sent    *ibv.WC // the completion of the push
	heard   *ibv.WC // and of the receive
	failed  error   // of the completion queue
}

// NewPair makes a queue pair.
func (t *PairTarget) NewPair(ctx context.Context) (rdmaio.PairEnd, error) {
	e, err := t.newPair(ctx)
	if err != nil {
		return nil, fmt.Errorf("verbs pair target: pair: %w", err)
	}
	return e, nil
}

func (t *PairTarget) newPair(ctx context.Context) (_ *pairEnd, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r, err := t.open()
	if err != nil {
		return nil, err
	}
	e := &pairEnd{rail: r, opt: &t.opt, psn: newPSN(), recv: &ibv.RecvWR{ID: heardID}, chain: newChain(), wc: make([]ibv.WC, 4)}
	e.changed = sync.NewCond(&e.mu)
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	if e.local, err = r.source(wanted(t.opt.Devices), netip.Addr{}); err != nil {
		return nil, err
	}
	if e.cq, err = r.createCQ(4, e); err != nil {
		return nil, err
	}
	if e.qp, err = r.pd.CreateRC(e.cq, ibv.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}); err != nil {
		return nil, r.explain(err)
	}
	if err = initialise(r, e.qp, t.opt.PkeyIndex, remote(rdmaio.RemoteRead|rdmaio.RemoteWrite)); err != nil {
		return nil, err
	}
	e.qpn = e.qp.Num
	e.token, err = identity{qpn: e.qpn, gid: e.local.raw, lid: r.lid(), port: r.port.num}.token()
	return e, err
}

func (e *pairEnd) Hello() rdmaio.Hello { return rdmaio.Hello{Token: e.token, PSN: e.psn} }

func (e *pairEnd) QPN() uint32 { return e.qpn }

// Connect posts the receive, so that the initiator finds it, and connects.
func (e *pairEnd) Connect(ctx context.Context, w rdmaio.PairWelcome) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("verbs pair target: connect: %w", err)
	}
	peer, err := parseIdentity(w.Token, w.PSN)
	if err != nil {
		return fmt.Errorf("verbs pair target: connect: %w", err)
	}
	peer.extended = false
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.qp == nil {
		return fmt.Errorf("verbs pair target: connect: %w", rdmaio.ErrClosed)
	}
	e.w = w
	path := newPath(e.rail, e.local, peer, e.opt)
	path.rnr = rnrForEver
	if err = e.qp.PostRecv(e.recv); err == nil {
		err = path.connect(e.qp, peer.qpn, peer.psn, e.psn, 1, 1, path.timeout, dataRetries)
	}
	if err == nil {
		err = e.cq.Request(false)
	}
	if err != nil {
		return fmt.Errorf("verbs pair target: connect: %w", err)
	}
	return nil
}

// Push writes to the initiator's memory.
func (e *pairEnd) Push(ctx context.Context, x rdmaio.Exposed, off, n int, imm uint32) error {
	if err := e.push(ctx, x, off, n, imm); err != nil {
		return fmt.Errorf("verbs pair target: push %d bytes: %w", n, err)
	}
	return nil
}

func (e *pairEnd) push(ctx context.Context, x rdmaio.Exposed, off, n int, imm uint32) error {
	from, ok := x.(*exposed)
	if !ok || from.rail != e.rail {
		return fmt.Errorf("memory is not of this target: %w", rdmaio.ErrUnsupported)
	}
	if off < 0 || n <= 0 || rdmaio.CheckBounds(uint64(from.size), uint64(off), uint64(n)) != nil || uint64(n) > uint64(e.rail.maxMessage()) {
		return fmt.Errorf("%d bytes at %d of %d: %w", n, off, from.size, rdmaio.ErrOutOfBounds)
	}
	from.mu.Lock()
	if from.closed {
		from.mu.Unlock()
		return rdmaio.ErrClosed
	}
	from.used = true
	key := from.mr.LKey
	from.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.qp == nil {
		return rdmaio.ErrClosed
	}
	e.sent = nil
	if _, err := e.chain.post(e.qp, []request{{
		op: ibv.WRWriteImm, local: from.base + uint64(off), length: uint32(n), lkey: key,
		remote: e.w.Addr, rkey: e.w.RKey, imm: imm,
	}}, 0); err != nil {
		return err
	}
	if err := e.wait(ctx, func() bool { return e.sent != nil }); err != nil {
		return err
	}
	if e.sent.Status != ibv.WCSuccess {
		return statusError(e.sent)
	}
	return nil
}

// Await waits for the initiator's word.
func (e *pairEnd) Await(ctx context.Context, imm uint32) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.wait(ctx, func() bool { return e.heard != nil })
	switch wc := e.heard; {
	case err != nil:
	case wc.Status != ibv.WCSuccess:
		err = statusError(wc)
	case wc.Opcode != ibv.WCRecvRDMAWithImm || wc.Flags&ibv.WCWithImm == 0 || wireImm(wc.Imm) != imm:
		err = fmt.Errorf("the initiator's word is not the one agreed upon: %w", rdmaio.ErrMalformed)
	default:
		return nil
	}
	return fmt.Errorf("verbs pair target: await: %w", err)
}

// wait waits until cond. e.mu is held, but not throughout.
func (e *pairEnd) wait(ctx context.Context, cond func() bool) error {
	stop := context.AfterFunc(ctx, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.changed.Broadcast()
	})
	defer stop()
	for {
		e.poll()
		switch {
		case cond():
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case e.failed != nil:
			return e.failed
		case e.cq == nil:
			return rdmaio.ErrClosed
		}
		e.changed.Wait()
	}
}

// event handles what has come. It runs on the rail's goroutine.
func (e *pairEnd) event() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cq == nil {
		return
	}
	e.failed = errors.Join(e.failed, e.cq.Request(false))
	e.poll()
	e.changed.Broadcast()
}

func (e *pairEnd) poll() {
	if e.cq == nil {
		return
	}
	n, err := e.cq.Poll(e.wc)
	e.failed = errors.Join(e.failed, err)
	for _, wc := range e.wc[:n] {
		if wc.ID == heardID {
			e.heard = &wc
		} else {
			e.sent = &wc
		}
	}
}

// Close destroys the queue pair.
func (e *pairEnd) Close() error {
	e.mu.Lock()
	qp, cq := e.qp, e.cq
	e.qp, e.cq = nil, nil
	e.changed.Broadcast()
	e.mu.Unlock()
	var errs []error
	if qp != nil {
		errs = append(errs, qp.Destroy())
	}
	if cq != nil {
		errs = append(errs, e.rail.destroyCQ(cq))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("verbs pair target: close: %w", err)
	}
	return nil
}
