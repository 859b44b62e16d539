// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// Check is one thing that was tried, and what became of it.
type Check struct {
	// Name says what was tried: "write", "read", ...
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Problem says in words what is wrong, and Remedy how to mend it. Empty if OK.
	Problem string `json:"problem,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
	// Took is how long it took.
	Took time.Duration `json:"took_ns"`
}

// loopback is a connection of a port with itself: an initiator, a target, and memory at
// both ends.
type loopback struct {
	f *Fabric
	t *Target
	x rdmaio.Exposed
	r rdmaio.Region
}

// selfTestOwner is the identity that self-tests connect under.
const selfTestOwner = "self-test"

// loopbackSize is how much memory is at each end: several packets, and not a round
// number of them.
const loopbackSize = 64<<10 + 13

// newLoopback connects port p with itself, with these path MTUs at the two ends (codes; 0:
// as usual).
func newLoopback(ctx context.Context, o Options, p port, initiatorMTU, targetMTU int32) (_ *loopback, err error) {
	o.Devices = []string{p.String()}
	o.AllowPeers = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	o.SelfTest = false
	l := new(loopback)
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	o.forceMTU = initiatorMTU
	if l.f, err = New(o); err != nil {
		return nil, err
	}
	o.forceMTU = targetMTU
	l.t = NewTarget(o)
	hello, err := l.t.Hello(ctx)
	if err != nil {
		return nil, err
	}
	hello.Owner = selfTestOwner
	welcome, err := l.f.Accept(ctx, hello)
	if err != nil {
		return nil, err
	}
	if err = l.t.Connect(ctx, welcome); err != nil {
		return nil, err
	}
	if l.x, err = l.t.Alloc(loopbackSize, rdmaio.RemoteRead|rdmaio.RemoteWrite); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(-1, 0, loopbackSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	if l.r, err = l.f.Register(mem); err != nil {
		unix.Munmap(mem)
		return nil, err
	}
	return l, nil
}

func (l *loopback) close() {
	if l.t != nil {
		l.t.Close()
	}
	if l.r != nil {
		mem := l.r.Bytes()
		l.r.Close()
		unix.Munmap(mem)
	}
	if l.f != nil {
		l.f.Close()
	}
}

// transfer moves n bytes between the two ends.
func (l *loopback) transfer(ctx context.Context, d rdmaio.Descriptor, write bool, n int) error {
	link, err := l.f.Open(ctx, d, selfTestOwner)
	if err != nil {
		return err
	}
	defer link.Close()
	post := link.Read
	if write {
		post = link.Write
	}
	if err := post(ctx, rdmaio.Slice{Region: l.r, Len: n}, 0); err != nil {
		return err
	}
	return link.Fence(ctx)
}

// selfTestTime is the most that a self-test of one port takes.
const selfTestTime = 20 * time.Second

// testPort connects a port with itself and tries what a server needs. The checks come in
// the order in which later ones depend on earlier ones; it stops where going on makes no
// sense.
func testPort(ctx context.Context, o Options, p port) []Check {
	ctx, cancel := context.WithTimeout(ctx, selfTestTime)
	defer cancel()
	var checks []Check
	try := func(name, remedy string, f func() error) bool {
		start := time.Now()
		err := f()
		c := Check{Name: name, OK: err == nil, Took: time.Since(start)}
		if err != nil {
			c.Problem, c.Remedy = err.Error(), remedy
		}
		checks = append(checks, c)
		return err == nil
	}
	var l *loopback
	if !try("connect", "see what the problem says of the device or its address", func() (err error) {
		l, err = newLoopback(ctx, o, p, 0, 0)
		return err
	}) {
		return checks
	}
	defer l.close()

	const fabricRemedy = "the port cannot reach itself: look for firewalls (UDP port 4791 for RoCE v2), VLANs, and the rp_filter setting of its network interface"
	moved := func(write bool) func() error {
		return func() error {
			remote, local := l.x.Bytes(), l.r.Bytes()
			from, to := remote, local
			if write {
				from, to = local, remote
			}
			for i := range from {
				from[i], to[i] = byte(i*7+i>>8), 0
			}
			d, err := l.x.Describe(0, loopbackSize)
			if err != nil {
				return err
			}
			if err := l.transfer(ctx, d, write, loopbackSize); err != nil {
				return err
			}
			if !bytes.Equal(from, to) {
				return errors.New("the transfer succeeded, but the bytes are wrong")
			}
			return nil
		}
	}
	if !try("write", fabricRemedy, moved(true)) || !try("read", fabricRemedy, moved(false)) {
		return checks
	}
	refused := func(d rdmaio.Descriptor) error {
		clear(l.x.Bytes())
		for i := range l.r.Bytes() {
			l.r.Bytes()[i] = 0xff
		}
		err := l.transfer(ctx, d, true, loopbackSize)
		switch {
		case err == nil:
			return errors.New("it was not refused")
		case !errors.Is(err, rdmaio.ErrStaleKey) && !errors.Is(err, rdmaio.ErrOutOfBounds):
			return fmt.Errorf("it was refused in an unexpected way: %w", err)
		case bytes.IndexByte(l.x.Bytes(), 0xff) >= 0:
			return errors.New("it was refused, but bytes were written")
		}
		return nil
	}
	const deviceRemedy = "do not use this device with this driver: it does not protect the clients' memory"
	try("out of bounds refused", deviceRemedy, func() error {
		d, err := l.x.Describe(0, loopbackSize)
		d.Addr += 4096
		if err != nil {
			return err
		}
		return refused(d)
	})
	try("stale key refused", deviceRemedy, func() error {
		d, err := l.x.Describe(0, loopbackSize)
		if err == nil {
			err = l.x.Rekey(ctx)
		}
		if err != nil {
			return err
		}
		return refused(d)
	})
	try("works after refusals", "the driver does not recover from a refused transfer; every refusal will cost a client its session", moved(true))
	try("MTU mismatch found", "a wrong MTU would not be noticed with this device: make sure that all hosts and switches have the same", func() error {
		return testMTU(ctx, o, p)
	})
	return checks
}

// testMTU connects two ends of different MTU, as a misconfigured network does, and wants
// an error.
func testMTU(ctx context.Context, o Options, p port) error {
	const small, large = 1, 3 // 256 and 1024 bytes
	o.PeerTimeout = min(max(o.PeerTimeout, time.Second), 2*time.Second)
	l, err := newLoopback(ctx, o, p, large, small)
	if err != nil {
		return err
	}
	defer l.close()
	d, err := l.x.Describe(0, loopbackSize)
	if err != nil {
		return err
	}
	if l.transfer(ctx, d, true, loopbackSize) == nil {
		return errors.New("a transfer with different MTUs at the two ends was reported as a success")
	}
	return nil
}

// selfTest tests all rails that are up.
func (f *Fabric) selfTest() error {
	var errs []error
	tested := 0
	for _, m := range f.rails {
		if m.rail == nil || !m.rail.isUp() {
			continue
		}
		tested++
		for _, c := range testPort(context.Background(), f.opt, m.port) {
			if !c.OK {
				errs = append(errs, fmt.Errorf("self-test of %s: %s: %s (%s)", m.port, c.Name, c.Problem, c.Remedy))
			}
		}
	}
	if tested == 0 {
		return fmt.Errorf("self-test: no rail is up (%s): %w", f.rails[0].rail.status().Why, ErrUnavailable)
	}
	return errors.Join(errs...)
}
