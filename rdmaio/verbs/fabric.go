// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/session"
)

var (
	_ rdmaio.Fabric   = (*Fabric)(nil)
	_ rdmaio.Acceptor = (*Fabric)(nil)
	_ rdmaio.Pairer   = (*Fabric)(nil)
)

// Fabric is the initiating end over RC queue pairs.
type Fabric struct {
	initiator
	caps    rdmaio.Capabilities
	table   *session.Table[*conn]
	pairing *session.Table[*pair]
	landing atomic.Int64 // bytes that peers of pairs may push into
	links   atomic.Int64
	running sync.WaitGroup // goroutines that drop sessions

	conns struct {
		sync.Mutex
		closed bool
		all    map[*conn]struct{}
		pairs  map[*pair]struct{}
		look   *time.Timer // nil: idle connections are not looked after
	}
}

// New opens the rails. Errors name what cannot work and what to do: ErrUnavailable
// where this host has no verbs.
func New(o Options) (*Fabric, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("verbs fabric: %w", err)
	}
	f := new(Fabric)
	f.conns.all = make(map[*conn]struct{})
	f.conns.pairs = make(map[*pair]struct{})
	f.table = session.New(session.Options[*conn]{
		Max:         o.MaxSessions,
		MaxPerOwner: o.MaxPerOwner,
		IdleAfter:   o.IdleAfter,
		Abort:       (*conn).abort,
		Close:       f.bury,
	})
	f.pairing = session.New(session.Options[*pair]{
		Max:         o.MaxSessions,
		MaxPerOwner: o.MaxPerOwner,
		IdleAfter:   pairWithin,
		Abort:       (*pair).abort,
		Close:       f.buryPair,
	})
	if err := f.open(o, false, f.railFell); err != nil {
		f.table.Close()
		f.pairing.Close()
		return nil, fmt.Errorf("verbs fabric: %w", err)
	}
	f.caps = f.capabilities(rdmaio.TransportRC.String())
	if o.SelfTest {
		if err := f.selfTest(); err != nil {
			f.Close()
			return nil, fmt.Errorf("verbs fabric: %w", err)
		}
	}
	f.keepAlive()
	return f, nil
}

// Capabilities tells what the fabric can do.
func (f *Fabric) Capabilities() rdmaio.Capabilities { return f.caps }

// Accept connects a queue pair to the peer's. The session is live when Accept returns:
// RC has no step in which a peer completes it. One that is never used is retired like
// any other that is idle.
func (f *Fabric) Accept(ctx context.Context, h rdmaio.Hello) (rdmaio.Welcome, error) {
	w, err := f.accept(ctx, h)
	if err != nil {
		return rdmaio.Welcome{}, fmt.Errorf("verbs fabric: accept: %w", err)
	}
	return w, nil
}

func (f *Fabric) accept(ctx context.Context, h rdmaio.Hello) (rdmaio.Welcome, error) {
	if err := ctx.Err(); err != nil {
		return rdmaio.Welcome{}, err
	}
	if f.isClosed() {
		return rdmaio.Welcome{}, rdmaio.ErrClosed
	}
	peer, err := parseIdentity(h.Token, h.PSN)
	if err != nil {
		return rdmaio.Welcome{}, err
	}
	remote := netip.AddrFrom16(peer.gid).Unmap()
	if err := f.admit(remote, h.Peer); err != nil {
		return rdmaio.Welcome{}, err
	}
	id, secret, err := f.table.Offer(h.Owner)
	if err != nil {
		return rdmaio.Welcome{}, err
	}
	c, err := f.connectTo(peer, h.Local, remote, id)
	if err != nil {
		f.table.Drop(id)
		return rdmaio.Welcome{}, err
	}
	token, err := c.mine.token()
	if err == nil {
		_, err = f.table.Claim(secret, c)
	}
	if err != nil {
		f.table.Drop(id)
		f.bury(c)
		return rdmaio.Welcome{}, err
	}
	return rdmaio.Welcome{Session: id, Token: token, PSN: c.mine.psn}, nil
}

// admit holds a peer's port against the allow-list.
func (f *Fabric) admit(remote, http netip.Addr) error {
	for _, p := range f.opt.AllowPeers {
		if p.Contains(remote) {
			return nil
		}
	}
	switch {
	case len(f.opt.AllowPeers) > 0:
		return fmt.Errorf("the peer's port %s is in none of AllowPeers: %w", remote, rdmaio.ErrRefused)
	case !http.IsValid():
		return fmt.Errorf("the request's address is not known, set AllowPeers: %w", rdmaio.ErrRefused)
	case http.Unmap().WithZone("") != remote:
		return fmt.Errorf("the peer's port %s is not where its request came from (%s): set AllowPeers if that is right: %w", remote, http, rdmaio.ErrRefused)
	}
	return nil
}

// connectTo makes a connection to peer over the rail that fits best.
func (f *Fabric) connectTo(peer identity, at, remote netip.Addr, id rdmaio.SessionID) (*conn, error) {
	r, index, err := f.pick(at)
	if err != nil {
		return nil, err
	}
	local, err := r.source(at, remote)
	if err == nil {
		var c *conn
		if c, err = newConn(f, r, index, local, peer); err == nil {
			c.id = id
			f.conns.Lock()
			f.conns.all[c] = struct{}{}
			f.conns.Unlock()
			c.mu.Lock()
			c.rearm()
			c.mu.Unlock()
			return c, nil
		}
	}
	f.leave(index)
	if isExhausted(err) {
		return nil, fmt.Errorf("%w queue pairs or too little memory: %w", rdmaio.ErrTooMany, err)
	}
	return nil, fmt.Errorf("%w: %w", rdmaio.ErrUnsupported, err)
}

// bury frees a connection that has been aborted, or never came to life.
func (f *Fabric) bury(c *conn) {
	c.destroy()
	f.conns.Lock()
	delete(f.conns.all, c)
	f.conns.Unlock()
	f.leave(c.railIndex)
}

// drop ends a session whose connection has died. It may be called anywhere.
func (f *Fabric) drop(id rdmaio.SessionID) {
	f.conns.Lock()
	defer f.conns.Unlock()
	if f.conns.closed {
		return // Close is about to end them all
	}
	f.running.Add(1)
	go func() {
		defer f.running.Done()
		f.table.Drop(id)
	}()
}

// railFell is called when a rail has gone down. Whoever is connected over it has to
// connect again, and will over another.
func (f *Fabric) railFell(r *rail) {
	why := fmt.Errorf("verbs: rail %s has failed (%s): %w", r.port, r.status().Why, rdmaio.ErrPeerGone)
	var lost []*queue
	f.conns.Lock()
	for c := range f.conns.all {
		if c.path.rail == r {
			lost = append(lost, &c.queue)
		}
	}
	for p := range f.conns.pairs {
		if p.path.rail == r {
			lost = append(lost, &p.queue)
		}
	}
	f.conns.Unlock()
	for _, q := range lost {
		q.mu.Lock()
		q.forced = q.state == up && q.head < q.posted
		q.die(why)
		q.tell()
		q.mu.Unlock()
	}
}

// Open prepares transfers with the window of d. Whether its key is good is known to the
// target's device only: a bad one fails the first transfer.
func (f *Fabric) Open(ctx context.Context, d rdmaio.Descriptor, owner string) (rdmaio.Link, error) {
	l, err := f.openLink(ctx, d, owner)
	if err != nil {
		return nil, fmt.Errorf("verbs fabric: open a %v: %w", d, err)
	}
	return l, nil
}

func (f *Fabric) openLink(ctx context.Context, d rdmaio.Descriptor, owner string) (*link, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	switch {
	case d.Transport != rdmaio.TransportRC:
		return nil, rdmaio.ErrUnsupported
	case d.Size > rdmaio.MaxWindow || d.Addr+d.Size < d.Addr:
		return nil, rdmaio.ErrOutOfBounds
	case f.isClosed():
		return nil, rdmaio.ErrClosed
	}
	lease, err := f.table.Acquire(d.Session, owner)
	if err != nil {
		return nil, err
	}
	c := lease.Value()
	l, err := newLink(&c.queue, f, c.railIndex, d, lease)
	if err != nil {
		lease.Release()
		return nil, err
	}
	f.links.Add(1)
	return l, nil
}

// release implements owner.
func (f *Fabric) release(l *link) {
	f.links.Add(-1)
	l.extra.(*session.Lease[*conn]).Release()
}

// Hangup ends a session.
func (f *Fabric) Hangup(ctx context.Context, id rdmaio.SessionID, owner string) error {
	if err := f.table.End(id, owner); err != nil {
		return fmt.Errorf("verbs fabric: hang up: %w", err)
	}
	return nil
}

// Close ends all sessions and closes the devices.
func (f *Fabric) Close() error {
	first := f.begin()
	f.conns.Lock()
	f.conns.closed = true
	if f.conns.look != nil {
		f.conns.look.Stop()
	}
	f.conns.Unlock()
	f.table.Close()
	f.pairing.Close()
	f.running.Wait()
	if !first {
		return nil
	}
	// Links that are still open keep their connection, but it needs no device any more.
	f.conns.Lock()
	left := slices.Collect(maps.Keys(f.conns.all))
	pairs := slices.Collect(maps.Keys(f.conns.pairs))
	f.conns.Unlock()
	for _, c := range left {
		c.destroy()
	}
	for _, p := range pairs {
		p.destroy()
	}
	return f.free()
}

// Sessions is the number of sessions that count against Options.MaxSessions, for metrics.
func (f *Fabric) Sessions() int { return f.table.Len() }

// live counts what is held on behalf of peers: sessions, pairs and links.
func (f *Fabric) live() int { return f.table.Len() + f.pairing.Len() + int(f.links.Load()) }
