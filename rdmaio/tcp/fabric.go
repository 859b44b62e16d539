// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/session"
)

var (
	_ rdmaio.Fabric   = (*Fabric)(nil)
	_ rdmaio.Acceptor = (*Fabric)(nil)
)

const (
	// helloToken is the version of the exchange, in the Hello.
	helloToken = "1"

	// maxTransfer is the largest transfer of one post. It is cut into frames, so
	// that it bounds nothing but the account.
	maxTransfer = 1 << 30

	// maxHandshakes bounds the connections that have not said yet which session
	// they belong to, and handshakeLimit how long they may take to.
	maxHandshakes  = 512
	handshakeLimit = 5 * time.Second
)

// Fabric is the initiating end. It listens for the data connections of the peers
// that it welcomed.
type Fabric struct {
	opt   Options
	ln    *net.TCPListener
	port  uint16
	host  netip.Addr // what Listen names, if it is one address
	table *session.Table[*peer]
	links atomic.Int64

	// running are the goroutines that Close waits for: the listener, handshakes,
	// and a supervisor a session.
	running    sync.WaitGroup
	handshakes chan struct{}
	done       chan struct{} // closed by Close

	mu      sync.Mutex
	closed  bool
	opening map[net.Conn]struct{} // connections in a handshake
	offers  map[rdmaio.SessionID]*offer
}

// New listens on o.Listen. An error names the option that cannot work.
func New(o Options) (*Fabric, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("tcp fabric: %w", err)
	}
	ln, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return nil, fmt.Errorf("tcp fabric: Listen %q: %w", o.Listen, err)
	}
	f := &Fabric{
		opt:        o,
		ln:         ln.(*net.TCPListener),
		handshakes: make(chan struct{}, maxHandshakes),
		done:       make(chan struct{}),
		opening:    make(map[net.Conn]struct{}),
		offers:     make(map[rdmaio.SessionID]*offer),
	}
	at := f.ln.Addr().(*net.TCPAddr).AddrPort()
	f.port = at.Port()
	if !at.Addr().IsUnspecified() {
		f.host = plain(at.Addr())
	}
	f.table = session.New(session.Options[*peer]{
		Max:           o.MaxSessions,
		MaxPerOwner:   o.MaxPerOwner,
		ConnectWithin: o.ConnectWithin,
		IdleAfter:     o.IdleAfter,
		Abort:         (*peer).abort,
	})
	f.running.Add(1)
	go f.listen()
	return f, nil
}

// plain strips what would make two spellings of one address differ.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// Addr is the address that the fabric listens on.
func (f *Fabric) Addr() netip.AddrPort { return f.ln.Addr().(*net.TCPAddr).AddrPort() }

// Sessions is the number of sessions that count against the bounds, offered ones
// included.
func (f *Fabric) Sessions() int { return f.table.Len() }

// Capabilities tells what the fabric can do.
func (f *Fabric) Capabilities() rdmaio.Capabilities {
	return rdmaio.Capabilities{
		Name:        rdmaio.TransportTCP.String(),
		MaxTransfer: maxTransfer,
		MaxWindow:   rdmaio.MaxWindow,
		FenceLimit:  f.opt.FenceLimit,
		Software:    true,
	}
}

// Register costs nothing: the socket takes any memory.
func (f *Fabric) Register(mem []byte) (rdmaio.Region, error) {
	if f.isClosed() {
		return nil, fmt.Errorf("tcp fabric: register: %w", rdmaio.ErrClosed)
	}
	return &region{f: f, mem: mem}, nil
}

// region is initiator memory.
type region struct {
	f      *Fabric
	mem    []byte
	closed atomic.Bool
}

// Bytes is the registered memory.
func (r *region) Bytes() []byte { return r.mem }

// Close gives the registration up.
func (r *region) Close() error {
	r.closed.Store(true)
	return nil
}

// Open prepares transfers with the window of d. Whether its key is good is known
// to the target only: a bad one fails the first transfer.
func (f *Fabric) Open(ctx context.Context, d rdmaio.Descriptor, owner string) (rdmaio.Link, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("tcp fabric: open a %v: %w", d, err)
	}
	switch {
	case d.Transport != rdmaio.TransportTCP:
		return nil, fmt.Errorf("tcp fabric: open a %v: %w", d, rdmaio.ErrUnsupported)
	case d.Size > rdmaio.MaxWindow || d.Addr+d.Size < d.Addr:
		return nil, fmt.Errorf("tcp fabric: open a %v: %w", d, rdmaio.ErrOutOfBounds)
	case f.isClosed():
		return nil, fmt.Errorf("tcp fabric: open a %v: %w", d, rdmaio.ErrClosed)
	}
	lease, err := f.table.Acquire(d.Session, owner)
	if err != nil {
		return nil, fmt.Errorf("tcp fabric: open a %v: %w", d, err)
	}
	l, err := lease.Value().open(d, lease)
	if err != nil {
		lease.Release()
		return nil, fmt.Errorf("tcp fabric: open a %v: %w", d, err)
	}
	return l, nil
}

// Accept offers a session to whoever sent h. The welcome's token is
// <secret 32 hex>:<lanes>:<host:port>.
func (f *Fabric) Accept(ctx context.Context, h rdmaio.Hello) (rdmaio.Welcome, error) {
	if err := ctx.Err(); err != nil {
		return rdmaio.Welcome{}, fmt.Errorf("tcp fabric: accept: %w", err)
	}
	if f.isClosed() {
		return rdmaio.Welcome{}, fmt.Errorf("tcp fabric: accept: %w", rdmaio.ErrClosed)
	}
	if err := checkHello(h.Token); err != nil {
		return rdmaio.Welcome{}, fmt.Errorf("tcp fabric: accept: %w", err)
	}
	if len(f.opt.AllowPeers) == 0 && !h.Peer.IsValid() {
		return rdmaio.Welcome{}, fmt.Errorf("tcp fabric: accept: the request's address is not known, set AllowPeers: %w", rdmaio.ErrRefused)
	}
	heard := f.host
	if !heard.IsValid() {
		heard = plain(h.Local)
	}
	p, err := f.opt.advertised(netip.AddrPortFrom(heard, f.port))
	if err != nil {
		return rdmaio.Welcome{}, fmt.Errorf("tcp fabric: accept: %w", err)
	}
	id, secret, err := f.table.Offer(h.Owner)
	if err != nil {
		return rdmaio.Welcome{}, fmt.Errorf("tcp fabric: accept: %w", err)
	}
	o := &offer{f: f, id: id, secret: secret, from: plain(h.Peer), conns: make([]*net.TCPConn, f.opt.Lanes)}
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		f.table.Drop(id)
		return rdmaio.Welcome{}, fmt.Errorf("tcp fabric: accept: %w", rdmaio.ErrClosed)
	}
	f.offers[id] = o
	o.expiry = time.AfterFunc(f.opt.ConnectWithin, func() { f.withdraw(id) })
	f.mu.Unlock()
	p.secret, p.lanes = secret, f.opt.Lanes
	return rdmaio.Welcome{Session: id, Token: p.encode()}, nil
}

// checkHello tells a version that we don't speak from a text that is no version.
func checkHello(token string) error {
	if token == helloToken {
		return nil
	}
	if n, err := strconv.ParseUint(token, 10, 16); err == nil {
		return fmt.Errorf("version %d of the tcp transport, we speak %s: %w", n, helloToken, rdmaio.ErrUnsupported)
	}
	return fmt.Errorf("hello of %d characters is no version: %w", len(token), rdmaio.ErrMalformed)
}

// Hangup ends a session. It waits for what is on the wire, at most FenceLimit.
func (f *Fabric) Hangup(ctx context.Context, id rdmaio.SessionID, owner string) error {
	if err := f.table.End(id, owner); err != nil {
		return fmt.Errorf("tcp fabric: hang up: %w", err)
	}
	f.withdraw(id)
	return nil
}

// Close ends all sessions and links, and stops listening. It takes FenceLimit at
// most, plus the time that the machine needs.
func (f *Fabric) Close() error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		f.running.Wait()
		return nil
	}
	f.closed = true
	close(f.done)
	var ids []rdmaio.SessionID
	for id := range f.offers {
		ids = append(ids, id)
	}
	for c := range f.opening {
		c.Close()
	}
	f.mu.Unlock()
	err := f.ln.Close()
	for _, id := range ids {
		f.withdraw(id)
	}
	f.table.Close()
	f.running.Wait()
	if err != nil {
		return fmt.Errorf("tcp fabric: close the listener: %w", err)
	}
	return nil
}

func (f *Fabric) isClosed() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// live counts what is held on behalf of peers: sessions and links.
func (f *Fabric) live() int { return f.table.Len() + int(f.links.Load()) }

// listen takes connections until the listener is closed.
func (f *Fabric) listen() {
	defer f.running.Done()
	const slowest = time.Second
	pause := time.Duration(0)
	for {
		c, err := f.ln.AcceptTCP()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of descriptors, most likely. Sessions that live go on.
			pause = min(max(2*pause, 5*time.Millisecond), slowest)
			select {
			case <-f.done:
				return
			case <-time.After(pause):
			}
			continue
		}
		pause = 0
		select {
		case f.handshakes <- struct{}{}:
		default:
			reset(c) // more strangers than anyone could have welcomed
			continue
		}
		f.mu.Lock()
		if f.closed {
			f.mu.Unlock()
			c.Close()
			return
		}
		f.opening[c] = struct{}{}
		f.running.Add(1)
		f.mu.Unlock()
		go func() {
			defer f.running.Done()
			defer func() { <-f.handshakes }()
			if !f.handshake(c) {
				c.Close()
			}
		}()
	}
}

// handshake finds out to which session a connection belongs. It returns true if
// the connection is a lane now, and somebody else's to close.
func (f *Fabric) handshake(c *net.TCPConn) bool {
	defer func() {
		f.mu.Lock()
		delete(f.opening, c)
		f.mu.Unlock()
	}()
	c.SetDeadline(time.Now().Add(min(handshakeLimit, f.opt.ConnectWithin)))
	g := newGreeting()
	gb := g.encode()
	if _, err := c.Write(gb[:]); err != nil {
		return false
	}
	var jb [joinSize]byte
	if _, err := io.ReadFull(c, jb[:]); err != nil {
		return false
	}
	j, err := parseJoin(&jb)
	if err != nil {
		return false
	}
	f.mu.Lock()
	o := f.offers[j.session]
	f.mu.Unlock()
	if o == nil || !proven(j.proof, prove(o.secret[:], byTarget, g, j, 0)) {
		o.refuse(c, verdictNoSession)
		return false
	}
	if !f.admits(plain(c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()), o.from) {
		o.refuse(c, verdictRefused)
		return false
	}
	return o.join(c, g, j)
}

// admits tells whether a data connection may come from remote, for a session that
// was opened from an HTTP request of from.
func (f *Fabric) admits(remote, from netip.Addr) bool {
	if len(f.opt.AllowPeers) == 0 {
		return remote == from
	}
	for _, p := range f.opt.AllowPeers {
		if p.Contains(remote) {
			return true
		}
	}
	return false
}

// withdraw forgets an offer, and the lanes that have joined it. An offer that is
// complete is none any more.
func (f *Fabric) withdraw(id rdmaio.SessionID) {
	f.mu.Lock()
	o := f.offers[id]
	delete(f.offers, id)
	f.mu.Unlock()
	if o != nil {
		o.withdraw()
	}
}

// offer is a session that has been welcomed, and whose lanes are not all there.
type offer struct {
	f      *Fabric
	id     rdmaio.SessionID
	secret session.Secret
	from   netip.Addr // the HTTP request's
	expiry *time.Timer

	// mu is held while a verdict is written too, so that no lane starts before
	// each of them has its verdict. Verdicts fit in an empty socket's buffer.
	mu     sync.Mutex
	over   bool // complete, or withdrawn
	conns  []*net.TCPConn
	joined int
}

func (*offer) refuse(c net.Conn, v verdict) {
	b := encodeVerdict(v, [32]byte{})
	c.Write(b[:])
}

// join makes c a lane, and with the last lane the session. It returns false if c
// is to be closed.
func (o *offer) join(c *net.TCPConn, g greeting, j join) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over || int(j.lanes) != len(o.conns) || o.conns[j.lane] != nil {
		o.refuse(c, verdictNoSession)
		return false
	}
	if _, err := setUp(c, o.f.opt.PeerTimeout); err != nil {
		return false
	}
	accept := func() error {
		b := encodeVerdict(verdictJoined, prove(o.secret[:], byInitiator, g, j, verdictJoined))
		_, err := c.Write(b[:])
		c.SetDeadline(time.Time{})
		return err
	}
	if o.joined+1 < len(o.conns) {
		if accept() != nil {
			return false
		}
		o.conns[j.lane] = c
		o.joined++
		return true
	}
	// The session has to be there when the peer hears that it is: its next HTTP
	// request may be under way before we have returned from the write.
	o.over = true
	o.expiry.Stop()
	o.f.forget(o.id)
	o.conns[j.lane] = c
	p := newPeer(o.f, o.id, o.conns)
	if _, err := o.f.table.Claim(o.secret, p); err != nil {
		o.refuse(c, verdictNoSession)
		for _, c := range o.conns {
			c.Close()
		}
		return true
	}
	accept() // if it fails the lane will, too
	p.start()
	return true
}

// forget takes a completed offer off the books.
func (f *Fabric) forget(id rdmaio.SessionID) {
	f.mu.Lock()
	delete(f.offers, id)
	f.mu.Unlock()
}

func (o *offer) withdraw() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over {
		return
	}
	o.over = true
	o.expiry.Stop()
	for _, c := range o.conns {
		if c != nil {
			c.Close()
		}
	}
}
