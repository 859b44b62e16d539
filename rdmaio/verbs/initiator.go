// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

// reopenAfter is how long a device that was lost is left alone before it is tried again.
const reopenAfter = 10 * time.Second

// initiator is what the RC and the DC fabric have in common: rails, and memory that is
// registered with all of them.
type initiator struct {
	opt  Options
	reg  registry
	done chan struct{} // closed by close

	// dial opens the device of a port.
	dial func(p port, changed func(*rail)) (*rail, error)

	// fell is called when a rail of the fabric has gone down. Of a device that was lost,
	// closing is called before it is closed, when nothing uses it any more, and opened
	// when it is back; both with mu held, and either may be nil.
	fell    func(*rail)
	closing func(i int)
	opened  func(i int, r *rail)

	mu     sync.Mutex
	closed bool
	rails  []*member
}

// member is a rail of a fabric.
type member struct {
	rail *rail // guarded by initiator.mu; nil while the device cannot be opened
	port port

	users    atomic.Int64 // connections that use rail
	failures atomic.Int64
	wasUp    atomic.Bool
	tried    time.Time // when it was last opened
	lost     string    // why there is no rail
}

// open opens all rails that the options name, for DC if dc. If they name any, each has to be there;
// at least one has to be. Devices without DC are left out where it is wanted.
func (b *initiator) open(o Options, dc bool, fell func(*rail)) error {
	b.opt, b.fell = o, fell
	b.done = make(chan struct{})
	lib, devices, err := load()
	if err != nil {
		return err
	}
	if dc {
		if err := lib.LoadMlx5(); err != nil {
			return err
		}
	}
	b.dial = func(p port, changed func(*rail)) (*rail, error) {
		r, err := openRail(lib, p, o, changed)
		if err == nil && dc && !r.ctx.SupportsDC() {
			err = errors.Join(withoutDC(p), r.close())
		}
		if err != nil {
			return nil, err
		}
		return r, nil
	}
	ports, err := resolve(o.Devices, devices)
	if err != nil {
		return err
	}
	if err := b.openAll(ports); err != nil {
		b.free()
		return err
	}
	return nil
}

func (b *initiator) openAll(ports []port) error {
	var errs, without []error
	for _, p := range ports {
		m := &member{port: p}
		err := b.openMember(m)
		switch {
		case err == nil:
			b.rails = append(b.rails, m)
		case errors.Is(err, errNoDC):
			without = append(without, err)
		default:
			errs = append(errs, err)
		}
	}
	if len(b.opt.Devices) > 0 && len(errs) > 0 {
		return errors.Join(errs...)
	}
	if len(b.rails) == 0 {
		return fmt.Errorf("no RDMA device can be used: %w: %w", ErrUnavailable, errors.Join(append(errs, without...)...))
	}
	b.reg.rails = len(b.rails)
	return nil
}

// errNoDC says that a device is not driven by mlx5.
var errNoDC = errors.New("not driven by mlx5, and no other has DC")

func withoutDC(p port) error { return fmt.Errorf("device %s is %w: %w", p, errNoDC, ErrUnavailable) }

// begin marks the start of the end; false if that was before.
func (b *initiator) begin() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.closed = true
	close(b.done)
	return true
}

func (b *initiator) isClosed() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// free closes all rails. No connection is left.
func (b *initiator) free() error {
	b.reg.close()
	var errs []error
	for _, m := range b.rails {
		if m.rail != nil {
			errs = append(errs, m.rail.close())
		}
	}
	return errors.Join(errs...)
}

func (b *initiator) options() *Options { return &b.opt }

// Rails tells how the rails are.
func (b *initiator) Rails() []RailStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]RailStatus, 0, len(b.rails))
	for _, m := range b.rails {
		s := RailStatus{Device: m.port.device, Port: int(m.port.num), Why: m.lost, Since: m.tried}
		if m.rail != nil {
			s = m.rail.status()
		}
		s.Connections = int(m.users.Load())
		s.Failures = int(m.failures.Load())
		all = append(all, s)
	}
	return all
}

// pick chooses the rail for a peer whose HTTP request came to local: the one that has
// this address, else the one with the fewest connections. It counts the connection that
// is going to be made; leave takes it off.
func (b *initiator) pick(local netip.Addr) (*rail, int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mend()
	best := -1
	for i, m := range b.rails {
		if m.rail == nil || !m.rail.isUp() {
			continue
		}
		if local.IsValid() && m.rail.has(local) {
			best = i
			break
		}
		if best < 0 || m.users.Load() < b.rails[best].users.Load() {
			best = i
		}
	}
	if best < 0 {
		var why []error
		for _, m := range b.rails {
			reason := m.lost
			if m.rail != nil {
				reason = m.rail.status().Why
			}
			why = append(why, fmt.Errorf("%s: %s", m.port, reason))
		}
		return nil, 0, fmt.Errorf("no rail is up: %w: %w", rdmaio.ErrUnsupported, errors.Join(why...))
	}
	b.rails[best].users.Add(1)
	return b.rails[best].rail, best, nil
}

// leave takes a connection off a rail's account.
func (b *initiator) leave(index int) { b.rails[index].users.Add(-1) }

// openMember opens the device of m.
func (b *initiator) openMember(m *member) error {
	m.tried = time.Now()
	r, err := b.dial(m.port, func(r *rail) {
		if now := r.isUp(); m.wasUp.Swap(now) && !now {
			m.failures.Add(1)
			b.fell(r)
		}
	})
	if err != nil {
		return err
	}
	m.rail = r
	m.wasUp.Store(r.isUp())
	return nil
}

// mend opens again the devices that were lost, if nothing uses them any more. b.mu is
// held.
func (b *initiator) mend() {
	for i, m := range b.rails {
		if m.rail != nil {
			m.rail.mu.Lock()
			fatal := m.rail.fatal
			m.rail.mu.Unlock()
			if !fatal || m.users.Load() > 0 || time.Since(m.tried) < reopenAfter {
				continue
			}
			if b.closing != nil {
				b.closing(i)
			}
			b.reg.withdraw(i)
			m.rail.close()
			m.rail = nil
		}
		if time.Since(m.tried) < reopenAfter {
			continue
		}
		err := b.openMember(m)
		if err == nil {
			if err = b.reg.extend(i, m.rail); err != nil {
				b.reg.withdraw(i)
				m.rail.close()
				m.rail = nil
			} else if b.opened != nil {
				b.opened(i, m.rail)
			}
		}
		m.lost = ""
		if err != nil {
			m.lost = err.Error()
		}
	}
}

// registry is the memory that is registered with a fabric's rails.
type registry struct {
	rails int

	mu      sync.Mutex
	closed  bool
	regions map[*region]struct{}
}

// Register registers mem with every rail. It pins the memory: it is slow, and counts
// against RLIMIT_MEMLOCK once for each device.
func (b *initiator) Register(mem []byte) (rdmaio.Region, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("verbs: register 0 bytes: %w", rdmaio.ErrOutOfBounds)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, fmt.Errorf("verbs: register: %w", rdmaio.ErrClosed)
	}
	r := &region{reg: &b.reg, mem: mem, keys: make([]atomic.Uint32, len(b.rails)), mrs: make([]*ibv.MR, len(b.rails))}
	b.reg.mu.Lock()
	defer b.reg.mu.Unlock()
	for i, m := range b.rails {
		if m.rail == nil {
			continue
		}
		if err := r.enter(i, m.rail); err != nil {
			r.leave()
			return nil, fmt.Errorf("verbs: %w", err)
		}
	}
	if b.reg.regions == nil {
		b.reg.regions = make(map[*region]struct{})
	}
	b.reg.regions[r] = struct{}{}
	return r, nil
}

// enter registers the region with a rail. reg.mu is held.
func (r *region) enter(i int, on *rail) error {
	mr, err := on.register(r.mem, ibv.AccessLocalWrite)
	if err != nil {
		return err
	}
	r.mrs[i] = mr
	r.keys[i].Store(mr.LKey)
	return nil
}

// leave ends all registrations of the region. reg.mu is held.
func (r *region) leave() error {
	var errs []error
	for i, mr := range r.mrs {
		if mr != nil {
			errs = append(errs, mr.Dereg())
			r.mrs[i] = nil
		}
	}
	return errors.Join(errs...)
}

// Close deregisters the memory.
func (r *region) Close() error {
	if r.closed.Swap(true) {
		return nil
	}
	r.reg.mu.Lock()
	defer r.reg.mu.Unlock()
	delete(r.reg.regions, r)
	if err := r.leave(); err != nil {
		return fmt.Errorf("verbs: deregister %d bytes: %w", len(r.mem), err)
	}
	return nil
}

// extend registers all regions with a rail that has come back, withdraw ends that.
func (g *registry) extend(i int, on *rail) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for r := range g.regions {
		if err := r.enter(i, on); err != nil {
			return err
		}
	}
	return nil
}

func (g *registry) withdraw(i int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for r := range g.regions {
		if r.mrs[i] != nil {
			r.mrs[i].Dereg()
			r.mrs[i] = nil
		}
	}
}

// close ends all registrations, so that the devices can be closed. Owners close their
// regions before; this is for those that did not.
func (g *registry) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for r := range g.regions {
		r.leave()
	}
	clear(g.regions)
}

// key implements owner.
func (b *initiator) key(reg rdmaio.Region, rail int) (uint32, error) {
	r, ok := reg.(*region)
	if !ok || r.reg != &b.reg {
		return 0, fmt.Errorf("slice is not of a region of this fabric: %w", rdmaio.ErrUnsupported)
	}
	if r.closed.Load() {
		return 0, fmt.Errorf("slice's region: %w", rdmaio.ErrClosed)
	}
	return r.keys[rail].Load(), nil
}

// capabilities are those of both fabrics but for the name.
func (b *initiator) capabilities(name string) rdmaio.Capabilities {
	software := true
	for _, m := range b.rails {
		software = software && m.rail != nil && m.rail.software
	}
	return rdmaio.Capabilities{
		Name:        name,
		MaxTransfer: maxTransfer,
		MaxWindow:   rdmaio.MaxWindow,
		FenceLimit:  2*b.opt.FenceLimit + 10*wireTime,
		Software:    software,
	}
}

// isExhausted tells whether a device or the kernel has run out of something.
func isExhausted(err error) bool {
	return errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EAGAIN)
}
