// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/session"
)

var (
	_ rdmaio.Target    = (*Target)(nil)
	_ rdmaio.Allocator = (*Target)(nil)
)

// Target is the end that owns the memory. Between Connect and the end of its
// session it runs one goroutine a lane, which moves bytes between the socket and
// registered memory; none is left when Close has returned.
type Target struct {
	opt Options
	bad error // what is wrong with the options

	connecting sync.Mutex // one Connect, or Close, at a time

	// mu guards the rest. Taken after a region's own lock, never before.
	mu      sync.RWMutex
	present *attachment // the session; may be lost already
	keys    *session.Keys
	byKey   map[uint32]*exposed
	regions map[*exposed]struct{}
	closed  bool
}

// NewTarget returns a target without a session. Of o it uses ConnectWithin and
// PeerTimeout; a mistake in them is reported by Hello.
func NewTarget(o Options) *Target {
	o, err := o.withDefaults()
	return &Target{
		opt:     o,
		bad:     err,
		keys:    session.NewKeys(),
		byKey:   make(map[uint32]*exposed),
		regions: make(map[*exposed]struct{}),
	}
}

// Name is "tcp".
func (t *Target) Name() string { return rdmaio.TransportTCP.String() }

// Hello makes the message that opens a session: the version.
func (t *Target) Hello(context.Context) (rdmaio.Hello, error) {
	if t.bad != nil {
		return rdmaio.Hello{}, fmt.Errorf("tcp target: %w", t.bad)
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		return rdmaio.Hello{}, fmt.Errorf("tcp target: %w", rdmaio.ErrClosed)
	}
	return rdmaio.Hello{Token: helloToken}, nil
}

// Connect joins all lanes of the session that w welcomes. On success it takes the
// place of the session before, whose agents are gone then; on an error that one is
// left as it was. Errors: ErrMalformed (no welcome of this transport), ErrRefused,
// ErrNoSession (timed out, or not welcomed there), ErrPeerGone (nobody answers),
// ErrUnsupported (another version), ErrClosed, ctx's.
func (t *Target) Connect(ctx context.Context, w rdmaio.Welcome) error {
	if t.bad != nil {
		return fmt.Errorf("tcp target: %w", t.bad)
	}
	t.connecting.Lock()
	defer t.connecting.Unlock()
	t.mu.RLock()
	old, closed := t.present, t.closed
	t.mu.RUnlock()
	if closed {
		return fmt.Errorf("tcp target: connect: %w", rdmaio.ErrClosed)
	}
	p, err := parsePlace(w.Token)
	if err != nil {
		return fmt.Errorf("tcp target: connect: %w", err)
	}
	if w.Session.IsZero() {
		return fmt.Errorf("tcp target: connect: welcome without a session: %w", rdmaio.ErrMalformed)
	}
	s, err := t.attach(ctx, w.Session, p)
	if err != nil {
		return fmt.Errorf("tcp target: connect to %s: %w", p.target(), err)
	}
	// Between the two sessions there is none, so that Describe can't pair the new
	// one with a key that is about to be void.
	t.mu.Lock()
	t.present = nil
	live := make([]*exposed, 0, len(t.regions))
	for e := range t.regions {
		live = append(live, e)
	}
	t.mu.Unlock()
	if old != nil {
		old.end()
	}
	for _, e := range live {
		if err := e.rekey(); err != nil && !errors.Is(err, rdmaio.ErrClosed) {
			s.end()
			return fmt.Errorf("tcp target: connect: %w", err)
		}
	}
	t.mu.Lock()
	t.present = s
	t.mu.Unlock()
	s.start()
	return nil
}

// attach joins the lanes one after the other. The agents are not running yet.
func (t *Target) attach(ctx context.Context, id rdmaio.SessionID, p place) (_ *attachment, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.opt.ConnectWithin)
	defer cancel()
	s := &attachment{id: id}
	defer func() {
		if err != nil {
			s.end()
		}
	}()
	for lane := range p.lanes {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", p.target())
		if err != nil {
			if ctx.Err() != nil {
				return nil, errors.Join(context.Cause(ctx), rdmaio.ErrPeerGone)
			}
			return nil, fmt.Errorf("%w: %w", rdmaio.ErrPeerGone, err)
		}
		conn := c.(*net.TCPConn)
		a := &agent{target: t, session: s, conn: conn}
		s.lanes = append(s.lanes, a)
		if a.raw, err = setUp(conn, t.opt.PeerTimeout); err != nil {
			return nil, err
		}
		a.prepare()
		if err := t.join(ctx, conn, id, p, lane); err != nil {
			return nil, fmt.Errorf("join lane %d of %d: %w", lane, p.lanes, err)
		}
	}
	return s, nil
}

// join says who we are on one lane, and checks who they are.
func (t *Target) join(ctx context.Context, c *net.TCPConn, id rdmaio.SessionID, p place, lane int) error {
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	err := exchangeJoin(c, id, p, lane)
	if !stop() {
		// The function has run or is about to: the deadline is set behind our back.
		return errors.Join(context.Cause(ctx), rdmaio.ErrPeerGone)
	}
	return err
}

func exchangeJoin(c net.Conn, id rdmaio.SessionID, p place, lane int) error {
	var gb [greetingSize]byte
	if _, err := io.ReadFull(c, gb[:]); err != nil {
		return lost("read the greeting", err)
	}
	g, err := parseGreeting(&gb)
	if err != nil {
		return err
	}
	j := join{session: id, lane: uint8(lane), lanes: uint8(p.lanes), nonce: newGreeting().nonce}
	j.proof = prove(p.secret[:], byTarget, g, j, 0)
	jb := j.encode()
	if _, err := c.Write(jb[:]); err != nil {
		return lost("send the join", err)
	}
	var vb [verdictSize]byte
	if _, err := io.ReadFull(c, vb[:]); err != nil {
		return lost("read the verdict", err)
	}
	v, proof := parseVerdict(&vb)
	switch v {
	case verdictJoined:
		if !proven(proof, prove(p.secret[:], byInitiator, g, j, v)) {
			return fmt.Errorf("whoever listens there did not make the welcome: %w", rdmaio.ErrRefused)
		}
		return nil
	case verdictNoSession:
		return fmt.Errorf("initiator does not expect this lane: %w", rdmaio.ErrNoSession)
	case verdictRefused:
		return fmt.Errorf("initiator takes no data connection from this address: %w", rdmaio.ErrRefused)
	}
	return fmt.Errorf("verdict %d: %w", v, rdmaio.ErrMalformed)
}

// lost wraps an error of a connection: to a caller it is always a peer that went
// away.
func lost(doing string, err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%s: no progress in time: %w", doing, rdmaio.ErrPeerGone)
	}
	return fmt.Errorf("%s: %w: %w", doing, rdmaio.ErrPeerGone, err)
}

// Register exposes mem, which stays the caller's and must stay mapped until
// Exposed.Close has returned. Nothing is sent: the initiator learns of a region from
// a descriptor. Any number of regions may overlap. Errors: ErrOutOfBounds (no bytes),
// ErrTooMany, ErrClosed.
func (t *Target) Register(mem []byte, access rdmaio.Access) (rdmaio.Exposed, error) {
	e, err := t.register(mem, access, false)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Alloc makes n bytes and registers them. Errors as Register, and the kernel's
// where it has no memory.
func (t *Target) Alloc(n int, access rdmaio.Access) (rdmaio.Exposed, error) {
	if n <= 0 {
		return nil, fmt.Errorf("tcp target: allocate %d bytes: %w", n, rdmaio.ErrOutOfBounds)
	}
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("tcp target: allocate %d bytes: %w", n, err)
	}
	e, err := t.register(mem, access, true)
	if err != nil {
		unix.Munmap(mem)
		return nil, err
	}
	return e, nil
}

func (t *Target) register(mem []byte, access rdmaio.Access, owned bool) (*exposed, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("tcp target: register 0 bytes: %w", rdmaio.ErrOutOfBounds)
	}
	e := newExposed(t, mem, access, owned)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, fmt.Errorf("tcp target: register: %w", rdmaio.ErrClosed)
	}
	key, err := t.keys.Next()
	if err != nil {
		return nil, fmt.Errorf("tcp target: register: %w", err)
	}
	e.key = key
	t.byKey[key] = e
	t.regions[e] = struct{}{}
	return e, nil
}

// lookup finds the region of a key, or nil.
func (t *Target) lookup(key uint32) *exposed {
	t.mu.RLock()
	e := t.byKey[key]
	t.mu.RUnlock()
	return e
}

// current returns the id of the session, if there is one that is not known to be
// lost.
func (t *Target) current() (rdmaio.SessionID, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	switch {
	case t.closed:
		return rdmaio.SessionID{}, rdmaio.ErrClosed
	case t.present == nil || t.present.lost():
		return rdmaio.SessionID{}, rdmaio.ErrNoSession
	}
	return t.present.id, nil
}

// Close ends the session, waits for its agents, and withdraws all regions; memory
// that Alloc made is unmapped. A second call does nothing.
func (t *Target) Close() error {
	t.connecting.Lock()
	defer t.connecting.Unlock()
	t.mu.Lock()
	s := t.present
	t.present = nil
	t.closed = true
	live := make([]*exposed, 0, len(t.regions))
	for e := range t.regions {
		live = append(live, e)
	}
	t.mu.Unlock()
	if s != nil {
		s.end()
	}
	var errs []error
	for _, e := range live {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}

// attachment is the target's end of one session.
type attachment struct {
	id    rdmaio.SessionID
	lanes []*agent

	agents sync.WaitGroup
	once   sync.Once
	mu     sync.Mutex
	down   bool
}

func (s *attachment) start() {
	for _, a := range s.lanes {
		s.agents.Add(1)
		go func() {
			defer s.agents.Done()
			a.serve()
			s.hangUp()
		}()
	}
}

func (s *attachment) lost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down
}

// hangUp closes all lanes, which ends their agents: a session has all its lanes or
// none.
func (s *attachment) hangUp() {
	s.once.Do(func() {
		s.mu.Lock()
		s.down = true
		s.mu.Unlock()
		for _, a := range s.lanes {
			a.conn.Close()
		}
	})
}

// end hangs up and waits for the agents.
func (s *attachment) end() {
	s.hangUp()
	s.agents.Wait()
}
