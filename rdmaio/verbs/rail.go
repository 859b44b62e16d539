// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

// rail is an open port of a device, with what all connections over it share. It runs
// two goroutines that wait in Go's poller, for completion events and for asynchronous
// ones, until it is closed.
type rail struct {
	port     port
	software bool
	gidIndex int // GIDIndex of the options

	ctx *ibv.Context
	dev ibv.DeviceAttr
	pd  *ibv.PD
	ch  *ibv.Channel

	events, async *os.File
	running       sync.WaitGroup

	// changed is called after the port's state or addresses have changed, on the
	// goroutine that heard of it. Set before anything can happen.
	changed func(*rail)

	mu      sync.Mutex
	sources map[uintptr]eventSource // by completion queue
	attr    ibv.PortAttr
	gids    []gid
	up      bool
	fatal   bool // the device is lost: only opening it again helps
	why     string
	since   time.Time
}

// eventSource is whoever has a completion queue that reports to a rail's channel. event
// is called for each event, on the rail's goroutine; it asks for the next one.
type eventSource interface{ event() }

// openRail opens a port. It may be down: that is a state, not an error.
func openRail(lib *ibv.Lib, p port, o Options, changed func(*rail)) (_ *rail, err error) {
	r := &rail{
		port: p, software: isSoftware(p.device), gidIndex: o.GIDIndex,
		sources: make(map[uintptr]eventSource), changed: changed, since: time.Now(),
	}
	defer func() {
		if err != nil {
			r.free()
			err = fmt.Errorf("open the RDMA device %s: %w", p, err)
		}
	}()
	if r.ctx, err = lib.Open(p.device); err != nil {
		if errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM) {
			err = fmt.Errorf("%w (may this user read and write /dev/infiniband/uverbs*?)", err)
		}
		return nil, err
	}
	if r.dev, err = r.ctx.QueryDevice(); err != nil {
		return nil, err
	}
	if r.pd, err = r.ctx.AllocPD(); err != nil {
		return nil, err
	}
	if r.ch, err = r.ctx.CreateChannel(); err != nil {
		return nil, err
	}
	if r.events, err = pollable(r.ch.FD(), "completion channel of "+p.String()); err != nil {
		return nil, err
	}
	if r.async, err = pollable(r.ctx.AsyncFD(), "asynchronous events of "+p.String()); err != nil {
		return nil, err
	}
	if err = r.query(); err != nil {
		return nil, err
	}
	if err = r.start(); err != nil {
		return nil, err
	}
	return r, nil
}

// pollable duplicates a descriptor of libibverbs' for Go's poller. The file is ours, and
// has to be closed before libibverbs closes its own.
func pollable(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return os.NewFile(uintptr(dup), name), nil
}

func (r *rail) start() error {
	events, err := r.events.SyscallConn()
	if err != nil {
		return err
	}
	async, err := r.async.SyscallConn()
	if err != nil {
		return err
	}
	r.running.Add(2)
	go func() {
		defer r.running.Done()
		r.dispatch(events)
	}()
	go func() {
		defer r.running.Done()
		r.watch(async)
	}()
	return nil
}

// dispatch hands completion events to the owners of their queues.
func (r *rail) dispatch(conn syscall.RawConn) {
	var cq uintptr
	var failed error
	read := func(uintptr) bool {
		cq, failed = r.ch.GetEvent()
		return cq != 0 || failed != nil
	}
	for conn.Read(read) == nil && failed == nil {
		r.mu.Lock()
		s := r.sources[cq]
		r.mu.Unlock()
		if s != nil {
			s.event()
		}
		// A queue that is being destroyed waits for this, so it exists until now.
		r.ch.Ack(cq, 1)
	}
}

// watch follows the state of the port.
func (r *rail) watch(conn syscall.RawConn) {
	var e ibv.AsyncEvent
	var ok bool
	var failed error
	read := func(uintptr) bool {
		e, ok, failed = r.ctx.GetAsyncEvent()
		return ok || failed != nil
	}
	for conn.Read(read) == nil && failed == nil {
		switch e.Type {
		case ibv.EventDeviceFatal:
			r.mu.Lock()
			r.fatal = true
			r.mu.Unlock()
			r.query()
			r.changed(r)
		case ibv.EventPortActive, ibv.EventPortErr, ibv.EventLIDChange, ibv.EventGIDChange:
			if e.Port() == r.port.num {
				r.query()
				r.changed(r)
			}
		}
	}
}

// query reads the port's present state and addresses.
func (r *rail) query() error {
	attr, err := r.ctx.QueryPort(r.port.num)
	gids := gidsOf(r.ctx, r.port)
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.up
	r.attr, r.gids = attr, gids
	switch {
	case r.fatal:
		r.up, r.why = false, "the device reported a fatal error"
	case err != nil:
		r.up, r.why = false, err.Error()
	case attr.State != ibv.PortStateActive:
		r.up, r.why = false, fmt.Sprintf("the port is %s", portState(attr.State))
	case len(gids) == 0:
		r.up, r.why = false, "the port has no address"
	default:
		r.up, r.why = true, ""
	}
	if r.up != was {
		r.since = time.Now()
	}
	return err
}

func portState(s int32) string {
	names := [...]string{"in no state", "down", "initialising", "armed", "active", "active, but deferred"}
	if s >= 0 && int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("in state %d", s)
}

// isUp tells whether connections can be made over the rail.
func (r *rail) isUp() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.up
}

// has tells whether a is one of the port's addresses.
func (r *rail) has(a netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.gids {
		if g.addr() == a.Unmap().WithZone("") {
			return true
		}
	}
	return false
}

// source returns the address to use towards peer, on a connection that was asked for
// at local; both may be the zero Addr.
func (r *rail) source(local, peer netip.Addr) (gid, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g, err := choose(r.gids, choice{index: r.gidIndex, local: local, peer: peer})
	if err != nil {
		return gid{}, fmt.Errorf("device %s: %w", r.port, err)
	}
	return g, nil
}

// mtu is the code of the port's present MTU, lid its InfiniBand address.
func (r *rail) mtu() int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return min(max(r.attr.ActiveMTU, 1), 5)
}

func (r *rail) lid() uint16 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.attr.LID
}

func (r *rail) infiniband() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.attr.LinkLayer == ibv.LinkLayerIB
}

// maxMessage is the largest message of the port.
func (r *rail) maxMessage() uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.attr.MaxMsgSz
}

// readsIn is how many READs of a peer the device answers at once, readsOut how many it
// has outstanding itself.
func (r *rail) readsIn() uint8  { return uint8(min(max(r.dev.MaxQPRdAtom, 1), 255)) }
func (r *rail) readsOut() uint8 { return uint8(min(max(r.dev.MaxQPInitRdAtom, 1), 255)) }

// createCQ makes a completion queue whose events go to s.
func (r *rail) createCQ(n int, s eventSource) (*ibv.CQ, error) {
	cq, err := r.ctx.CreateCQ(min(n, int(r.dev.MaxCQE)), r.ch)
	if err != nil {
		return nil, r.explain(err)
	}
	r.mu.Lock()
	r.sources[cq.Handle()] = s
	r.mu.Unlock()
	return cq, nil
}

// destroyCQ frees it. No event call is running or will be made afterwards. It must not
// be called on the rail's own goroutine.
func (r *rail) destroyCQ(cq *ibv.CQ) error {
	r.mu.Lock()
	delete(r.sources, cq.Handle())
	r.mu.Unlock()
	return cq.Destroy()
}

// register registers memory with the rail's device.
func (r *rail) register(mem []byte, access int) (*ibv.MR, error) {
	mr, err := r.pd.RegMR(uintptr(unsafe.Pointer(unsafe.SliceData(mem))), len(mem), access)
	if err != nil {
		return nil, fmt.Errorf("register %d bytes with %s: %w", len(mem), r.port, r.explain(err))
	}
	return mr, nil
}

// explain adds the remedy to the one error that everybody meets.
func (r *rail) explain(err error) error {
	if !ibv.IsNoMemory(err) {
		return err
	}
	if l, lerr := memlock(); lerr == nil && l != unix.RLIM_INFINITY {
		return fmt.Errorf("%w: this process may lock %d KiB of memory (RLIMIT_MEMLOCK), and RDMA memory is locked. Raise it: \"ulimit -l unlimited\" in a shell, LimitMEMLOCK=infinity in a systemd unit, --ulimit memlock=-1 for a container, \"* - memlock unlimited\" in /etc/security/limits.conf", err, l>>10)
	}
	return fmt.Errorf("%w: the device or the host is out of memory", err)
}

// memlock is the limit of locked memory in bytes.
func memlock() (uint64, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		return 0, err
	}
	return l.Cur, nil
}

// close frees the rail. Nothing made from it may be left.
func (r *rail) close() error {
	r.events.Close()
	r.async.Close()
	r.running.Wait()
	return r.free()
}

// free releases what openRail has got so far.
func (r *rail) free() error {
	var errs []error
	if r.events != nil {
		r.events.Close()
	}
	if r.async != nil {
		r.async.Close()
	}
	if r.ch != nil {
		errs = append(errs, r.ch.Destroy())
	}
	if r.pd != nil {
		errs = append(errs, r.pd.Dealloc())
	}
	if r.ctx != nil {
		errs = append(errs, r.ctx.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close the RDMA device %s: %w", r.port, err)
	}
	return nil
}

// RailStatus is the present state of a rail, for metrics and for people.
type RailStatus struct {
	// Device and Port name the rail; Addrs are its port's addresses.
	Device string
	Port   int
	Addrs  []netip.Addr
	// Up tells whether it is used. If not, Why says why, in words.
	Up  bool
	Why string
	// Since is when Up last changed.
	Since time.Time
	// Connections are those that live now, Failures how often the rail went down.
	Connections, Failures int
}

func (r *rail) status() RailStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := RailStatus{Device: r.port.device, Port: int(r.port.num), Up: r.up, Why: r.why, Since: r.since}
	for _, g := range r.gids {
		s.Addrs = append(s.Addrs, g.addr())
	}
	return s
}
