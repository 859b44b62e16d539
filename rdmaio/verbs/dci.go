// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"fmt"
	"sync"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

// dcPeer names a DC target: what its tokens say of it.
type dcPeer struct {
	gid  [16]byte
	lid  uint16
	dctn uint32
}

// dci is a DC initiator: a queue whose links may each have another target. It is lent to
// one link at a time: a DC initiator serves one target after the other, and would make
// everybody wait for one that is slow or dead.
type dci struct {
	queue
	pool *dcPool
	cq   dcCQ
	qp   dcInitiator
	last dcPeer // whom it served last; guarded by pool.mu

	// Where the present link leads. Set while nothing is in flight.
	peer dcPeer
	ah   dcAH
}

// newDCI makes an initiator that is ready to send.
func newDCI(p *dcPool) (_ *dci, err error) {
	d := &dci{pool: p}
	d.queue.init(d, p.depth, p.opt.BusyPoll)
	defer func() {
		if err != nil {
			d.destroy()
		}
	}()
	if d.cq, err = p.port.newCQ(p.depth, d); err != nil {
		return nil, err
	}
	if d.qp, err = p.port.newDCI(d.cq, p.depth); err != nil {
		return nil, err
	}
	if err = d.ready(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.rearm()
	d.mu.Unlock()
	return d, nil
}

// ready takes the queue pair from RESET to where it sends. It needs no peer: the address
// comes with each request.
func (d *dci) ready() error {
	p := d.pool
	steps := []struct {
		a    ibv.QPAttr
		mask int
	}{
		{ibv.QPAttr{State: ibv.QPStateInit, PkeyIndex: p.opt.PkeyIndex, PortNum: p.num},
			ibv.AttrState | ibv.AttrPkeyIndex | ibv.AttrPort},
		{ibv.QPAttr{State: ibv.QPStateRTR, PathMTU: p.mtu()},
			ibv.AttrState | ibv.AttrPathMTU},
		{ibv.QPAttr{State: ibv.QPStateRTS, Timeout: timeoutCode(p.opt.PeerTimeout, dataRetries, false), RetryCnt: dataRetries,
			RNRRetry: rnrRetries, MaxRdAtomic: p.reads},
			ibv.AttrState | ibv.AttrTimeout | ibv.AttrRetryCnt | ibv.AttrRNRRetry | ibv.AttrSQPSN | ibv.AttrMaxRdAtomic},
	}
	for _, s := range steps {
		if err := d.qp.Modify(s.a, s.mask); err != nil {
			return fmt.Errorf("make a DC initiator ready (state %d): %w", s.a.State, err)
		}
	}
	return nil
}

// post implements endpoint.
func (d *dci) post(rs []request, first uint64) (int, error) {
	d.qp.Start()
	for i := range rs {
		r := &rs[i]
		var flags uint32
		if i == len(rs)-1 {
			flags = ibv.SendSignaled
		}
		d.qp.RDMA(r.op, first+uint64(i), flags, r.rkey, r.remote)
		d.qp.SetDCAddr(d.ah, d.peer.dctn, d.pool.opt.DCKey)
		d.qp.SetSGE(ibv.SGE{Addr: r.local, Length: r.length, LKey: r.lkey})
	}
	if err := d.qp.Complete(); err != nil {
		return 0, err
	}
	return len(rs), nil
}

func (d *dci) poll(wc []ibv.WC) (int, error) {
	if d.cq == nil {
		return 0, nil
	}
	return d.cq.Poll(wc)
}

func (d *dci) arm(all bool) error {
	if d.cq == nil {
		return nil
	}
	return d.cq.Request(!all)
}

func (d *dci) fail() error {
	if d.qp == nil {
		return nil
	}
	return d.qp.Modify(ibv.QPAttr{State: ibv.QPStateErr}, ibv.AttrState)
}

func (d *dci) own(*ibv.WC) bool { return true }
func (d *dci) other(*ibv.WC)    {}
func (d *dci) died()            {}

// canRestart is about the peer, which takes no part here: its silence is final.
func (d *dci) canRestart() bool { return false }

// restart resets the queue pair: nobody else has to know.
func (d *dci) restart() (bool, error) {
	err := d.qp.Modify(ibv.QPAttr{State: ibv.QPStateReset}, ibv.AttrState)
	if err == nil {
		err = d.ready()
	}
	if err != nil {
		return false, fmt.Errorf("verbs: reset a DC initiator: %w: %w", err, rdmaio.ErrPeerGone)
	}
	return true, nil
}

// destroy frees the queue pair. A second call does nothing.
func (d *dci) destroy() {
	d.mu.Lock()
	qp, cq := d.qp, d.cq
	d.qp, d.cq = nil, nil
	d.mu.Unlock()
	if qp != nil {
		qp.Destroy()
	}
	if cq != nil {
		cq.Destroy()
	}
}

// dcPool lends the DC initiators of a rail. They are made when they are first needed.
type dcPool struct {
	rail  *rail
	port  dcPort
	opt   *Options
	num   uint8
	depth int
	reads uint8
	mtu   func() int32

	slots chan struct{} // one in it for each that is lent

	mu     sync.Mutex
	free   []*dci // the one used last is the last
	all    map[*dci]struct{}
	making int // that are not in all yet
	ahs    map[ahKey]*ahEntry
}

// ahKey is what an address handle depends on.
type ahKey struct {
	gid   [16]byte
	lid   uint16
	local int
}

type ahEntry struct {
	ah   dcAH
	used int
}

// keptAHs is how many address handles are kept of peers that are not being served.
const keptAHs = 256

func newDCPool(port dcPort, o *Options, num uint8, depth int, reads uint8, mtu func() int32) *dcPool {
	return &dcPool{
		port: port, opt: o, num: num, depth: depth, reads: reads, mtu: mtu,
		slots: make(chan struct{}, o.DCInitiators),
		all:   make(map[*dci]struct{}), ahs: make(map[ahKey]*ahEntry),
	}
}

// take returns a free initiator, the one that served peer last if it is free, else the
// one that has been idle longest. The caller has a slot.
func (p *dcPool) take(peer dcPeer) (*dci, error) {
	p.mu.Lock()
	for i := len(p.free) - 1; i >= 0; i-- {
		if p.free[i].last == peer {
			d := p.free[i]
			p.free = append(p.free[:i], p.free[i+1:]...)
			p.mu.Unlock()
			return d, nil
		}
	}
	if len(p.all)+p.making == cap(p.slots) && len(p.free) > 0 {
		d := p.free[0]
		p.free = append(p.free[:0], p.free[1:]...)
		d.last = peer
		p.mu.Unlock()
		return d, nil
	}
	p.making++
	p.mu.Unlock()
	d, err := newDCI(p)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.making--
	if err != nil {
		return nil, err
	}
	d.last = peer
	p.all[d] = struct{}{}
	return d, nil
}

// give takes an initiator back; one that could not be mended is done away with.
func (p *dcPool) give(d *dci) {
	d.mu.Lock()
	bad := d.state == dead
	d.mu.Unlock()
	p.mu.Lock()
	if bad {
		delete(p.all, d)
	} else {
		p.free = append(p.free, d)
	}
	p.mu.Unlock()
	if bad {
		d.destroy()
	}
}

// address returns an address handle, which has to be given back.
func (p *dcPool) address(k ahKey, a ibv.AHAttr) (dcAH, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.ahs[k]; e != nil {
		e.used++
		return e.ah, nil
	}
	if len(p.ahs) >= keptAHs {
		for k, e := range p.ahs {
			if e.used == 0 {
				delete(p.ahs, k)
				e.ah.Destroy()
			}
		}
	}
	ah, err := p.port.newAH(a)
	if err != nil {
		return nil, err
	}
	p.ahs[k] = &ahEntry{ah: ah, used: 1}
	return ah, nil
}

func (p *dcPool) forget(k ahKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.ahs[k]; e != nil {
		e.used--
	}
}

// close ends all initiators with err, those that are lent too, and frees them.
func (p *dcPool) close(err error) {
	p.mu.Lock()
	all := make([]*dci, 0, len(p.all))
	for d := range p.all {
		all = append(all, d)
	}
	p.mu.Unlock()
	var wg sync.WaitGroup
	for _, d := range all {
		wg.Add(1)
		go func() {
			defer wg.Done()
			drained := d.shut(err, p.opt.FenceLimit)
			d.destroy()
			if !drained {
				d.abandon()
			}
		}()
	}
	wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.ahs {
		e.ah.Destroy()
	}
	clear(p.ahs)
	clear(p.all)
	p.free = nil
}
