// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/session"
)

// Fabric is the server's end: a rdmaio.Fabric and a rdmaio.Acceptor.
type Fabric struct {
	o        Options
	listener *listener
	table    *session.Table[*peer]
	wg       sync.WaitGroup // the goroutines that serve the socket
	closed   atomic.Bool

	mu       sync.Mutex
	greeting map[*net.UnixConn]struct{} // connections that have not said hello yet
	regions  int                        // mapped or about to be
	bytes    int64
}

var (
	_ rdmaio.Fabric   = (*Fabric)(nil)
	_ rdmaio.Acceptor = (*Fabric)(nil)
)

// maxGreeting bounds the connections that have not said hello, greetWithin the
// time that they have for it.
const (
	maxGreeting = 128
	greetWithin = 5 * time.Second
)

// New returns a fabric that listens on its socket. Errors name the setting that
// cannot work. It must be closed.
func New(o Options) (*Fabric, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	l, err := listen(o.Path, o.Mode)
	if err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	f := &Fabric{o: o, listener: l, greeting: make(map[*net.UnixConn]struct{})}
	f.table = session.New(session.Options[*peer]{
		Max: o.MaxSessions, MaxPerOwner: o.MaxSessionsPerOwner,
		ConnectWithin: o.ConnectWithin, IdleAfter: o.IdleAfter,
		Abort: (*peer).abort,
	})
	f.wg.Add(1)
	go f.listen()
	return f, nil
}

// Path is the socket that the fabric listens on.
func (f *Fabric) Path() string { return f.listener.path }

// Sessions is the number of sessions that count against the bounds, offered ones
// included.
func (f *Fabric) Sessions() int { return f.table.Len() }

// Capabilities of the fabric. Transfers have moved when a post returns, so that
// fencing takes no time; a cancelled post ends after the piece at hand.
func (f *Fabric) Capabilities() rdmaio.Capabilities {
	return rdmaio.Capabilities{
		Name:        name,
		MaxTransfer: math.MaxInt,
		MaxWindow:   rdmaio.MaxWindow,
		FenceLimit:  time.Second,
		Software:    true,
		Immediate:   true,
	}
}

// Register accepts any mapped memory.
func (f *Fabric) Register(mem []byte) (rdmaio.Region, error) {
	if f.closed.Load() {
		return nil, fmt.Errorf("shm: register memory with a fabric that is %w", rdmaio.ErrClosed)
	}
	return &memory{f: f, mem: mem}, nil
}

// Open finds the region that d names, in a session of owner.
func (f *Fabric) Open(ctx context.Context, d rdmaio.Descriptor, owner string) (rdmaio.Link, error) {
	l, err := f.open(ctx, d, owner)
	if err != nil {
		return nil, fmt.Errorf("shm: open a link to a %s: %w", d, err)
	}
	return l, nil
}

func (f *Fabric) open(ctx context.Context, d rdmaio.Descriptor, owner string) (*link, error) {
	if f.closed.Load() {
		return nil, fmt.Errorf("the fabric is %w", rdmaio.ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if d.Transport != rdmaio.TransportSHM {
		return nil, fmt.Errorf("this is the shm fabric: %w", rdmaio.ErrUnsupported)
	}
	if d.Size > rdmaio.MaxWindow {
		return nil, fmt.Errorf("the window is larger than %d bytes: %w", uint64(rdmaio.MaxWindow), rdmaio.ErrOutOfBounds)
	}
	lease, err := f.table.Acquire(d.Session, owner)
	if err != nil {
		return nil, err
	}
	r, err := lease.Value().find(d.RKey)
	if err == nil && d.Addr < r.base {
		err = fmt.Errorf("the window begins before its region: %w", rdmaio.ErrOutOfBounds)
	}
	if err == nil {
		err = rdmaio.CheckBounds(r.size, d.Addr-r.base, d.Size)
	}
	if err != nil {
		lease.Release()
		return nil, err
	}
	return &link{f: f, lease: lease, r: r, key: d.RKey, start: d.Addr - r.base, size: d.Size}, nil
}

// Accept offers a session to the sender of a hello of version 1.
func (f *Fabric) Accept(ctx context.Context, h rdmaio.Hello) (rdmaio.Welcome, error) {
	if err := ctx.Err(); err != nil {
		return rdmaio.Welcome{}, fmt.Errorf("shm: accept a peer: %w", err)
	}
	if h.Token != version {
		kind := rdmaio.ErrMalformed
		if isNumber(h.Token) {
			kind = rdmaio.ErrUnsupported
		}
		return rdmaio.Welcome{}, fmt.Errorf("shm: accept a peer: its hello is not version %s: %w", version, kind)
	}
	id, secret, err := f.table.Offer(h.Owner)
	if err != nil {
		return rdmaio.Welcome{}, fmt.Errorf("shm: accept a peer: %w", err)
	}
	return rdmaio.Welcome{Session: id, Token: welcomeToken(secret, f.listener.path)}, nil
}

// isNumber tells whether a hello of another version could look like that.
func isNumber(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return len(s) > 0 && len(s) <= 9
}

// Hangup ends a session.
func (f *Fabric) Hangup(ctx context.Context, id rdmaio.SessionID, owner string) error {
	if err := f.table.End(id, owner); err != nil {
		return fmt.Errorf("shm: hang up: %w", err)
	}
	return nil
}

// Stats are what a fabric holds at a moment.
type Stats struct {
	Sessions int   // offered, connected, or ended with links that are still open
	Regions  int   // of clients, mapped
	Bytes    int64 // of these regions
}

// Stats returns what the fabric holds on behalf of its peers.
func (f *Fabric) Stats() Stats {
	n := f.table.Len()
	f.mu.Lock()
	defer f.mu.Unlock()
	return Stats{Sessions: n, Regions: f.regions, Bytes: f.bytes}
}

// Close ends all sessions, unmaps their memory and removes the socket.
func (f *Fabric) Close() error {
	f.closed.Store(true)
	err := f.listener.close()
	f.table.Close()
	// Who has not said hello has no transfers to wait for.
	f.mu.Lock()
	for conn := range f.greeting {
		conn.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
	if err != nil {
		return fmt.Errorf("shm: close: %w", err)
	}
	return nil
}

func (f *Fabric) reserve(n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.regions >= f.o.MaxTotalRegions {
		return fmt.Errorf("%w regions in all sessions together (MaxTotalRegions is %d)", rdmaio.ErrTooMany, f.o.MaxTotalRegions)
	}
	if n > f.o.MaxTotalBytes-f.bytes {
		return fmt.Errorf("%w bytes in all sessions together (MaxTotalBytes is %d)", rdmaio.ErrTooMany, f.o.MaxTotalBytes)
	}
	f.regions++
	f.bytes += n
	return nil
}

func (f *Fabric) unreserve(n int64) {
	f.mu.Lock()
	f.regions--
	f.bytes -= n
	f.mu.Unlock()
}

// listen serves connections until the listener is closed.
func (f *Fabric) listen() {
	defer f.wg.Done()
	for {
		conn, err := f.listener.accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of file descriptors, most likely: others have to end first.
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if !f.greet(conn) {
			conn.Close()
			continue
		}
		f.wg.Add(1)
		go func() {
			defer f.wg.Done()
			f.serve(conn)
		}()
	}
}

// greet notes a connection that has to say hello, if there is room for one.
func (f *Fabric) greet(conn *net.UnixConn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed.Load() || len(f.greeting) >= maxGreeting {
		return false
	}
	f.greeting[conn] = struct{}{}
	return true
}

// serve talks with one peer, from its hello until either side hangs up.
func (f *Fabric) serve(conn *net.UnixConn) {
	defer conn.Close() // after Drop: see peer.abort
	in := newReceiver(conn)
	id, p, err := f.hello(conn, in)
	f.mu.Lock()
	delete(f.greeting, conn)
	f.mu.Unlock()
	if err != nil {
		return
	}
	defer f.table.Drop(id)
	for {
		m, fds, err := in.next()
		if err != nil {
			return
		}
		err = p.handle(m, fds)
		closeAll(fds)
		if errors.Is(err, errProtocol) || acknowledge(conn, m.seq, err) != nil {
			return
		}
	}
}

// hello takes the first message, which must come from an allowed process and bear
// the secret of an offered session.
func (f *Fabric) hello(conn *net.UnixConn, in *receiver) (rdmaio.SessionID, *peer, error) {
	conn.SetReadDeadline(time.Now().Add(greetWithin))
	m, fds, err := in.next()
	if err != nil {
		return rdmaio.SessionID{}, nil, err
	}
	closeAll(fds)
	if m.kind != kindHello || len(fds) > 0 {
		return rdmaio.SessionID{}, nil, errProtocol
	}
	conn.SetReadDeadline(time.Time{})
	p := &peer{f: f, conn: conn, regions: make(map[uint32]*region)}
	var id rdmaio.SessionID
	if p.cred, err = credentials(conn); err == nil {
		err = f.allow(p.cred)
	}
	if err == nil {
		id, err = f.table.Claim(m.secret, p)
	}
	if aerr := acknowledge(conn, m.seq, err); err == nil && aerr != nil {
		f.table.Drop(id)
		err = aerr
	}
	return id, p, err
}

// allow holds a process against Options.AllowUIDs.
func (f *Fabric) allow(cred unix.Ucred) error {
	if f.o.AllowUIDs != nil && !slices.Contains(f.o.AllowUIDs, cred.Uid) {
		return fmt.Errorf("user %d is not among AllowUIDs: %w", cred.Uid, rdmaio.ErrRefused)
	}
	return nil
}

// credentials are those of the process that connected, as the kernel saw them then.
func credentials(conn *net.UnixConn) (unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return unix.Ucred{}, err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return unix.Ucred{}, err
	}
	if cerr != nil {
		return unix.Ucred{}, fmt.Errorf("peer credentials: %w", cerr)
	}
	return *cred, nil
}
