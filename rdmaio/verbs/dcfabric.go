// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

var _ rdmaio.Fabric = (*DCFabric)(nil)

// DCFabric is the initiating end over DC queue pairs of mlx5 NICs. There are no sessions:
// a descriptor says all that is needed.
type DCFabric struct {
	initiator
	caps  rdmaio.Capabilities
	links atomic.Int64

	// port is mlx5Port in real life.
	port func(*rail) dcPort

	pooling sync.Mutex
	pools   []*dcPool // by rail; nil while its device is lost; guarded by pooling

	dead struct {
		sync.Mutex
		until map[dcPeer]time.Time // targets that did not answer, and are left alone
	}
}

// NewDC opens the rails. Errors name what cannot work and what to do: ErrUnavailable where
// this host has no mlx5 NIC, or no libmlx5.
func NewDC(o Options) (*DCFabric, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("verbs DC fabric: %w", err)
	}
	f := new(DCFabric)
	f.port = func(r *rail) dcPort { return mlx5Port{r} }
	if err := f.open(o, true, f.railFell); err != nil {
		return nil, fmt.Errorf("verbs DC fabric: %w", err)
	}
	f.start()
	return f, nil
}

// start makes what lends initiators, on the rails that have been opened.
func (f *DCFabric) start() {
	f.dead.until = make(map[dcPeer]time.Time)
	f.pools = make([]*dcPool, len(f.rails))
	f.opened, f.closing = f.railBack, f.railLost
	for i, m := range f.rails {
		f.railBack(i, m.rail)
	}
	f.caps = f.capabilities(rdmaio.TransportDC.String())
}

// railBack is called when the device of a rail has been opened.
func (f *DCFabric) railBack(i int, r *rail) {
	p := newDCPool(f.port(r), &f.opt, r.port.num, min(f.opt.Depth, int(r.dev.MaxQPWR)), r.readsOut(), r.mtu)
	p.rail = r
	f.pooling.Lock()
	defer f.pooling.Unlock()
	f.pools[i] = p
}

// railLost is called before the device of a rail is closed. No initiator of its is lent.
func (f *DCFabric) railLost(i int) {
	f.pooling.Lock()
	p := f.pools[i]
	f.pools[i] = nil
	f.pooling.Unlock()
	p.close(fmt.Errorf("verbs: rail %s is lost: %w", p.rail.port, rdmaio.ErrPeerGone))
}

// allPools are the present ones.
func (f *DCFabric) allPools() []*dcPool {
	f.pooling.Lock()
	defer f.pooling.Unlock()
	return slices.DeleteFunc(slices.Clone(f.pools), func(p *dcPool) bool { return p == nil })
}

// pool is that of a rail that pick has counted a user of, so it is there.
func (f *DCFabric) pool(i int) *dcPool {
	f.pooling.Lock()
	defer f.pooling.Unlock()
	return f.pools[i]
}

// Capabilities tells what the fabric can do.
func (f *DCFabric) Capabilities() rdmaio.Capabilities { return f.caps }

// railFell is called when a rail has gone down: what is in flight fails.
func (f *DCFabric) railFell(r *rail) {
	why := fmt.Errorf("verbs: rail %s has failed (%s): %w", r.port, r.status().Why, rdmaio.ErrPeerGone)
	for _, p := range f.allPools() {
		if p.rail != r {
			continue
		}
		p.mu.Lock()
		all := make([]*dci, 0, len(p.all))
		for d := range p.all {
			all = append(all, d)
		}
		p.mu.Unlock()
		for _, d := range all {
			d.mu.Lock()
			for l := range d.queue.links {
				l.fail(why)
			}
			d.force()
			d.tell()
			d.mu.Unlock()
		}
	}
}

// Open prepares transfers with the window of d. owner does not matter: whoever has the
// descriptor was given the key. AllowPeers, if set, is held against the target's address.
// It waits at most DCWait for an initiator, and fails with ErrTooMany then; with
// ErrPeerGone for a target that has just not answered another.
func (f *DCFabric) Open(ctx context.Context, d rdmaio.Descriptor, owner string) (rdmaio.Link, error) {
	l, err := f.openLink(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("verbs DC fabric: open a %v: %w", d, err)
	}
	return l, nil
}

// dcLink is what a DC link has borrowed.
type dcLink struct {
	pool *dcPool
	d    *dci
	ah   ahKey
	rail int
}

func (f *DCFabric) openLink(ctx context.Context, d rdmaio.Descriptor) (*link, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	switch {
	case d.Transport != rdmaio.TransportDC:
		return nil, rdmaio.ErrUnsupported
	case d.Size > rdmaio.MaxWindow || d.Addr+d.Size < d.Addr:
		return nil, rdmaio.ErrOutOfBounds
	case !d.GIDPresent && d.LID == 0:
		return nil, fmt.Errorf("neither a GID nor a LID: %w", rdmaio.ErrMalformed)
	}
	peer := dcPeer{d.GID, d.LID, d.QPN}
	if err := f.admit(d, peer); err != nil {
		return nil, err
	}
	if f.isClosed() {
		return nil, rdmaio.ErrClosed
	}
	l, err := f.borrow(ctx, d, peer)
	if err != nil {
		return nil, err
	}
	f.links.Add(1)
	return l, nil
}

// admit refuses targets that are not on the allow-list, and those that are dead.
func (f *DCFabric) admit(d rdmaio.Descriptor, peer dcPeer) error {
	if len(f.opt.AllowPeers) > 0 {
		a, ok := d.PeerAddr()
		if !ok || !slices.ContainsFunc(f.opt.AllowPeers, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return fmt.Errorf("the target's port is in none of AllowPeers: %w", rdmaio.ErrRefused)
		}
	}
	f.dead.Lock()
	defer f.dead.Unlock()
	if until, ok := f.dead.until[peer]; ok && time.Now().Before(until) {
		return fmt.Errorf("the target did not answer a moment ago: %w", rdmaio.ErrPeerGone)
	}
	return nil
}

func (f *DCFabric) borrow(ctx context.Context, d rdmaio.Descriptor, peer dcPeer) (_ *link, err error) {
	remote, _ := d.PeerAddr()
	r, index, err := f.pick(netip.Addr{})
	if err != nil {
		return nil, err
	}
	p := f.pool(index)
	lent := dcLink{pool: p, rail: index}
	defer func() {
		if err != nil {
			f.giveBack(lent)
		}
	}()
	local, err := r.source(netip.Addr{}, remote)
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, f.opt.DCWait)
	defer cancel()
	select {
	case p.slots <- struct{}{}:
	case <-f.done:
		return nil, rdmaio.ErrClosed
	case <-wait.Done():
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w transfers: all %d DC initiators are in use: %w", rdmaio.ErrTooMany, f.opt.DCInitiators, wait.Err())
	}
	if lent.d, err = p.take(peer); err != nil {
		<-p.slots
		return nil, err
	}
	k := ahKey{peer.gid, peer.lid, local.index}
	ah, err := p.address(k, dcAddress(&f.opt, p.num, r.infiniband(), local, peer))
	if err != nil {
		return nil, fmt.Errorf("find the way to the target: %w: %w", err, rdmaio.ErrPeerGone)
	}
	lent.ah = k
	lent.d.mu.Lock()
	lent.d.peer, lent.d.ah = peer, ah
	lent.d.mu.Unlock()
	l, err := newLink(&lent.d.queue, f, index, d, lent)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// dcAddress is the address of a target, as seen from a local one.
func dcAddress(o *Options, num uint8, infiniband bool, local gid, peer dcPeer) ibv.AHAttr {
	a := ibv.AHAttr{
		DLID: peer.lid, SL: o.ServiceLevel, PortNum_: num,
		GRH: ibv.GlobalRoute{
			DGID:      [2]uint64{binary.NativeEndian.Uint64(peer.gid[:]), binary.NativeEndian.Uint64(peer.gid[8:])},
			SGIDIndex: uint8(local.index), HopLimit: hopLimit, TrafficClass_: o.TrafficClass,
		},
	}
	if !infiniband || peer.lid == 0 || [8]byte(peer.gid[:8]) != [8]byte(local.raw[:8]) {
		a.IsGlobal = 1
	}
	return a
}

// giveBack returns what a link, or an Open that failed, has borrowed.
func (f *DCFabric) giveBack(lent dcLink) {
	if lent.ah != (ahKey{}) {
		lent.pool.forget(lent.ah)
	}
	if lent.d != nil {
		lent.pool.give(lent.d)
		<-lent.pool.slots
	}
	f.leave(lent.rail)
}

// release implements owner. A target that did not answer is left alone for a while: it
// would take an initiator away from others for as long as each request to it lasts.
func (f *DCFabric) release(l *link) {
	lent := l.extra.(dcLink)
	lent.d.mu.Lock()
	err := l.err
	lent.d.mu.Unlock()
	if errors.Is(err, rdmaio.ErrPeerGone) {
		f.dead.Lock()
		now := time.Now()
		maps.DeleteFunc(f.dead.until, func(_ dcPeer, until time.Time) bool { return now.After(until) })
		f.dead.until[lent.d.peer] = now.Add(f.opt.PeerTimeout)
		f.dead.Unlock()
	}
	f.giveBack(lent)
	f.links.Add(-1)
}

// Close ends all links and closes the devices.
func (f *DCFabric) Close() error {
	if !f.begin() {
		return nil
	}
	for _, p := range f.allPools() {
		p.close(fmt.Errorf("verbs: fabric is closed: %w", rdmaio.ErrClosed))
	}
	return f.free()
}
