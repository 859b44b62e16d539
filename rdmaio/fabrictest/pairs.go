// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package fabrictest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"
	"unsafe"

	"github.com/s3rdma/s3rdma/rdmaio"
)

var (
	_ rdmaio.Pairer     = (*Pairs)(nil)
	_ rdmaio.PairTarget = (*PairsTarget)(nil)
	_ rdmaio.Allocator  = (*PairsTarget)(nil)
)

// Pairs is both ends of an [rdmaio.Pairer] in one process, for tests of what is above it:
// bytes are copied, by whoever would have an RDMA device do it. It has the transport's
// name, rc, and no sessions. All methods may be called at once.
type Pairs struct {
	// Land bounds a push, in bytes, Max the pairs at a time. Peer is the address that
	// targets say they have. Set before use; New has defaults.
	Land uint64
	Max  int
	Peer netip.Addr

	mu      sync.Mutex
	next    uint32
	pairs   map[rdmaio.SessionID]*memPair
	ends    map[uint32]*memEnd     // by queue pair number
	regions map[uint32]*pairRegion // by key
}

// NewPairs returns one without pairs, which 64 MiB can be pushed to, from 127.0.0.1.
func NewPairs() *Pairs {
	return &Pairs{
		Land: 64 << 20, Max: 64, Peer: netip.AddrFrom4([4]byte{127, 0, 0, 1}),
		pairs: make(map[rdmaio.SessionID]*memPair), ends: make(map[uint32]*memEnd), regions: make(map[uint32]*pairRegion),
	}
}

// Live is the number of pairs that have not been closed.
func (f *Pairs) Live() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.pairs)
}

// number returns one that was not used before. f.mu is held.
func (f *Pairs) number() uint32 {
	f.next++
	return f.next
}

// Capabilities are those of a device.
func (f *Pairs) Capabilities() rdmaio.Capabilities {
	return rdmaio.Capabilities{Name: rdmaio.TransportRC.String(), MaxTransfer: 1 << 30, MaxWindow: rdmaio.MaxWindow, FenceLimit: time.Second}
}

type plainRegion struct{ mem []byte }

func (r plainRegion) Bytes() []byte { return r.mem }
func (r plainRegion) Close() error  { return nil }

// Register takes any memory.
func (f *Pairs) Register(mem []byte) (rdmaio.Region, error) { return plainRegion{mem}, nil }

// Open fails with ErrNoSession.
func (f *Pairs) Open(context.Context, rdmaio.Descriptor, string) (rdmaio.Link, error) {
	return nil, fmt.Errorf("open: there are pairs only: %w", rdmaio.ErrNoSession)
}

// Close ends all pairs.
func (f *Pairs) Close() error {
	f.mu.Lock()
	all := make([]*memPair, 0, len(f.pairs))
	for _, p := range f.pairs {
		all = append(all, p)
	}
	f.mu.Unlock()
	for _, p := range all {
		p.Close()
	}
	return nil
}

// memPair is the initiator's end.
type memPair struct {
	f       *Pairs
	id      rdmaio.SessionID
	owner   string
	note    any
	qpn     uint32
	land    []byte
	key     uint32
	claimed bool // guarded by f.mu
	pushed  chan push
	done    chan struct{}
	once    sync.Once
}

// push is what a peer has pushed: so many bytes, and its word.
type push struct {
	n    int
	word uint32
}

// Pair implements rdmaio.Pairer.
func (f *Pairs) Pair(ctx context.Context, h rdmaio.PairHello) (rdmaio.PairWelcome, error) {
	var none rdmaio.PairWelcome
	d, form, err := rdmaio.Parse(h.Token, rdmaio.ParseOptions{})
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return none, ctx.Err()
	case err != nil:
		return none, err
	case d.Transport != rdmaio.TransportRC:
		return none, fmt.Errorf("pair: transport %s: %w", d.Transport, rdmaio.ErrUnsupported)
	case form != rdmaio.EncodingHipObject || d.QPN == 0 || h.PSN == 0:
		return none, fmt.Errorf("pair: no queue pair: %w", rdmaio.ErrMalformed)
	case h.Land > f.Land:
		return none, fmt.Errorf("pair: %d bytes, at most %d: %w", h.Land, f.Land, rdmaio.ErrOutOfBounds)
	case len(f.pairs) >= f.Max:
		return none, fmt.Errorf("pair: %w pairs (%d)", rdmaio.ErrTooMany, f.Max)
	}
	if a, ok := d.PeerAddr(); !ok || a != f.Peer {
		return none, fmt.Errorf("pair: the peer's port: %w", rdmaio.ErrRefused)
	}
	p := &memPair{f: f, id: rdmaio.NewSessionID(), owner: h.Owner, note: h.Note, qpn: f.number(), pushed: make(chan push, 1), done: make(chan struct{})}
	s := rdmaio.Descriptor{Transport: rdmaio.TransportRC, QPN: p.qpn, GID: f.Peer.As16(), GIDPresent: true, Port: 1}
	w := rdmaio.PairWelcome{QPN: p.qpn, Welcome: rdmaio.Welcome{Session: p.id, PSN: p.qpn}}
	if h.Land > 0 {
		p.land, p.key = make([]byte, h.Land), f.number()
		w.Addr, w.RKey = addressOf(p.land), p.key
		s.Addr, s.RKey, s.Size = w.Addr, w.RKey, h.Land
	}
	if w.Token, err = s.Encode(rdmaio.EncodingHipObject); err != nil {
		return none, err
	}
	f.pairs[p.id] = p
	return w, nil
}

func addressOf(p []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p)))) }

// find returns the pair id of owner. f.mu is held.
func (f *Pairs) find(id rdmaio.SessionID, owner string) (*memPair, error) {
	p := f.pairs[id]
	switch {
	case p == nil:
		return nil, fmt.Errorf("find a pair: %w", rdmaio.ErrNoSession)
	case p.owner != owner:
		return nil, fmt.Errorf("find a pair: %w", rdmaio.ErrNotOwner)
	}
	return p, nil
}

// Claim implements rdmaio.Pairer.
func (f *Pairs) Claim(id rdmaio.SessionID, owner string) (rdmaio.Pair, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(id, owner)
	if err != nil {
		return nil, err
	}
	if p.claimed {
		return nil, fmt.Errorf("claim a pair again: %w", rdmaio.ErrNoSession)
	}
	p.claimed = true
	return p, nil
}

// Unpair implements rdmaio.Pairer.
func (f *Pairs) Unpair(id rdmaio.SessionID, owner string) error {
	f.mu.Lock()
	p, err := f.find(id, owner)
	f.mu.Unlock()
	if err != nil {
		return err
	}
	return p.Close()
}

func (p *memPair) Note() any { return p.note }

func (p *memPair) Close() error {
	p.once.Do(func() {
		close(p.done)
		p.f.mu.Lock()
		defer p.f.mu.Unlock()
		delete(p.f.pairs, p.id)
	})
	return nil
}

func (p *memPair) Join(ctx context.Context, qpn uint32, d rdmaio.Descriptor, imm uint32) (rdmaio.PairLink, error) {
	p.f.mu.Lock()
	end := p.f.ends[qpn]
	p.f.mu.Unlock()
	if end == nil {
		return nil, fmt.Errorf("join: there is no such queue pair: %w", rdmaio.ErrPeerGone)
	}
	if p.land != nil {
		select {
		case got := <-p.pushed:
			switch {
			case got.n > len(p.land):
				return nil, fmt.Errorf("join: the peer pushed too much, and was refused: %w", rdmaio.ErrPeerGone)
			case got.n < len(p.land):
				return nil, fmt.Errorf("join: %d of %d bytes: %w", got.n, len(p.land), rdmaio.ErrMalformed)
			case got.word != imm:
				return nil, fmt.Errorf("join: another word: %w", rdmaio.ErrMalformed)
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-p.done:
			return nil, fmt.Errorf("join: the pair has ended: %w", rdmaio.ErrNoSession)
		}
	}
	return &memPairLink{p: p, end: end, d: d, imm: imm}, nil
}

// memPairLink copies.
type memPairLink struct {
	p   *memPair
	end *memEnd
	d   rdmaio.Descriptor
	imm uint32
	err error
}

func (l *memPairLink) ended() error {
	select {
	case <-l.p.done:
		return fmt.Errorf("pair: %w: %w", rdmaio.ErrLinkDown, rdmaio.ErrClosed)
	default:
		return l.err
	}
}

func (l *memPairLink) do(ctx context.Context, f func() error) error {
	err := errors.Join(l.ended(), ctx.Err())
	if err == nil {
		err = f()
	}
	l.err = err
	return err
}

func (l *memPairLink) Write(ctx context.Context, src rdmaio.Slice, at uint64) error {
	return l.do(ctx, func() error {
		if err := rdmaio.CheckBounds(l.d.Size, at, uint64(src.Len)); err != nil {
			return err
		}
		f := l.p.f
		f.mu.Lock()
		defer f.mu.Unlock()
		r := f.regions[l.d.RKey]
		if r == nil || r.access&rdmaio.RemoteWrite == 0 {
			return fmt.Errorf("write: %w", rdmaio.ErrStaleKey)
		}
		from := l.d.Addr + at - addressOf(r.mem)
		if err := rdmaio.CheckBounds(uint64(len(r.mem)), from, uint64(src.Len)); err != nil {
			return fmt.Errorf("write: %w", rdmaio.ErrStaleKey)
		}
		copy(r.mem[from:], src.Bytes())
		return nil
	})
}

func (l *memPairLink) Read(ctx context.Context, dst rdmaio.Slice, at uint64) error {
	return l.do(ctx, func() error {
		if err := rdmaio.CheckBounds(uint64(len(l.p.land)), at, uint64(dst.Len)); err != nil {
			return err
		}
		copy(dst.Bytes(), l.p.land[at:])
		return nil
	})
}

func (l *memPairLink) Fence(ctx context.Context) error {
	return l.do(ctx, func() error { return nil })
}

func (l *memPairLink) Notify(ctx context.Context) error {
	return l.do(ctx, func() error {
		select {
		case l.end.told <- l.imm:
			return nil
		default:
			return fmt.Errorf("notify: the peer has not asked for so many words: %w", rdmaio.ErrPeerGone)
		}
	})
}

func (l *memPairLink) Close() error { return l.p.Close() }

// PairsTarget is a target of a [Pairs].
type PairsTarget struct{ f *Pairs }

// Target returns a target.
func (f *Pairs) Target() *PairsTarget { return &PairsTarget{f} }

// Name is that of verbs' own target.
func (t *PairsTarget) Name() string { return "hipobj" }

// Hello fails: there is nothing to connect.
func (t *PairsTarget) Hello(context.Context) (rdmaio.Hello, error) {
	return rdmaio.Hello{}, fmt.Errorf("hello: %w", rdmaio.ErrUnsupported)
}

// Connect fails: there is nothing to connect.
func (t *PairsTarget) Connect(context.Context, rdmaio.Welcome) error {
	return fmt.Errorf("connect: %w", rdmaio.ErrUnsupported)
}

// Close does nothing.
func (t *PairsTarget) Close() error { return nil }

// pairRegion is memory of a target, under a key.
type pairRegion struct {
	f      *Pairs
	mem    []byte
	access rdmaio.Access
	key    uint32 // guarded by f.mu; 0: closed
}

// Register exposes mem.
func (t *PairsTarget) Register(mem []byte, access rdmaio.Access) (rdmaio.Exposed, error) {
	r := &pairRegion{f: t.f, mem: mem, access: access}
	return r, r.Rekey(context.Background())
}

// Alloc makes memory. It does not move: it is large, or stays where it is anyway.
func (t *PairsTarget) Alloc(n int, access rdmaio.Access) (rdmaio.Exposed, error) {
	return t.Register(make([]byte, n), access)
}

func (r *pairRegion) Bytes() []byte { return r.mem }

func (r *pairRegion) Describe(off, n int) (rdmaio.Descriptor, error) {
	if err := rdmaio.CheckBounds(uint64(len(r.mem)), uint64(off), uint64(n)); err != nil {
		return rdmaio.Descriptor{}, err
	}
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	if r.key == 0 {
		return rdmaio.Descriptor{}, rdmaio.ErrClosed
	}
	return rdmaio.Descriptor{Transport: rdmaio.TransportRC, Addr: addressOf(r.mem) + uint64(off), Size: uint64(n), RKey: r.key}, nil
}

func (r *pairRegion) Rekey(context.Context) error {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	delete(r.f.regions, r.key)
	r.key = r.f.number()
	r.f.regions[r.key] = r
	return nil
}

func (r *pairRegion) Close() error {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	delete(r.f.regions, r.key)
	r.key = 0
	return nil
}

// memEnd is a target's end of a pair.
type memEnd struct {
	f    *Pairs
	qpn  uint32
	w    rdmaio.PairWelcome
	told chan uint32
}

// NewPair makes a queue pair.
func (t *PairsTarget) NewPair(ctx context.Context) (rdmaio.PairEnd, error) {
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	e := &memEnd{f: t.f, qpn: t.f.number(), told: make(chan uint32, 1)}
	t.f.ends[e.qpn] = e
	return e, ctx.Err()
}

func (e *memEnd) Hello() rdmaio.Hello {
	d := rdmaio.Descriptor{Transport: rdmaio.TransportRC, QPN: e.qpn, GID: e.f.Peer.As16(), GIDPresent: true, Port: 1}
	token, err := d.Encode(rdmaio.EncodingHipObject)
	if err != nil {
		panic(err) // all fields are ours
	}
	return rdmaio.Hello{Token: token, PSN: e.qpn}
}

func (e *memEnd) QPN() uint32 { return e.qpn }

func (e *memEnd) Connect(ctx context.Context, w rdmaio.PairWelcome) error {
	e.w = w
	return ctx.Err()
}

func (e *memEnd) Push(ctx context.Context, x rdmaio.Exposed, off, n int, imm uint32) error {
	e.f.mu.Lock()
	p := e.f.pairs[e.w.Session]
	e.f.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case p == nil || p.key != e.w.RKey:
		return fmt.Errorf("push: %w", rdmaio.ErrPeerGone)
	case e.w.Addr != addressOf(p.land):
		return fmt.Errorf("push: %w", rdmaio.ErrOutOfBounds)
	}
	copy(p.land, x.Bytes()[off:off+n])
	select {
	case p.pushed <- push{n, imm}:
	default:
		return fmt.Errorf("push again: %w", rdmaio.ErrPeerGone)
	}
	if n > len(p.land) {
		return fmt.Errorf("push: refused: %w", rdmaio.ErrStaleKey)
	}
	return nil
}

func (e *memEnd) Await(ctx context.Context, imm uint32) error {
	select {
	case word := <-e.told:
		if word != imm {
			return fmt.Errorf("await: another word: %w", rdmaio.ErrMalformed)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *memEnd) Close() error {
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	delete(e.f.ends, e.qpn)
	return nil
}
