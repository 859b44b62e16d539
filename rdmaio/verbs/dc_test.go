// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

// fakePort records what libmlx5 is asked for, and completes what it is told to.
type fakePort struct {
	mu   sync.Mutex
	log  []string
	made map[string]int
	// status is what requests to a target complete with; missing: success. mute targets
	// complete nothing until their queue pair is in error.
	status map[uint32]int32
	mute   map[uint32]bool
	noDCI  error
}

func newFakePort() *fakePort {
	return &fakePort{made: make(map[string]int), status: make(map[uint32]int32), mute: make(map[uint32]bool)}
}

func (p *fakePort) record(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = append(p.log, fmt.Sprintf(format, args...))
}

// taken returns the record so far, and starts a new one.
func (p *fakePort) taken() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.log
	p.log = nil
	return l
}

func (p *fakePort) id(kind string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made[kind]++
	return fmt.Sprintf("%s%d", kind, p.made[kind])
}

type fakeCQ struct {
	p      *fakePort
	name   string
	source eventSource

	mu   sync.Mutex
	done []ibv.WC
	any  bool
}

func (p *fakePort) newCQ(n int, s eventSource) (dcCQ, error) {
	c := &fakeCQ{p: p, name: p.id("cq"), source: s}
	p.record("%s = create_cq(%d)", c.name, n)
	return c, nil
}

func (c *fakeCQ) Poll(wc []ibv.WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copy(wc, c.done)
	c.done = c.done[n:]
	return n, nil
}

func (c *fakeCQ) Request(solicited bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.any = !solicited
	return nil
}

func (c *fakeCQ) add(wc ibv.WC) {
	c.mu.Lock()
	c.done = append(c.done, wc)
	tell := c.any
	c.any = false
	c.mu.Unlock()
	if tell {
		go c.source.event()
	}
}

func (c *fakeCQ) Destroy() error {
	c.p.record("destroy_cq(%s)", c.name)
	return nil
}

type fakeAH struct {
	p    *fakePort
	name string
}

func (p *fakePort) newAH(a ibv.AHAttr) (dcAH, error) {
	h := &fakeAH{p, p.id("ah")}
	p.record("%s = create_ah(gid index %d, global %d, hops %d, class %d, lid %d, port %d)",
		h.name, a.GRH.SGIDIndex, a.IsGlobal, a.GRH.HopLimit, a.GRH.TrafficClass_, a.DLID, a.PortNum_)
	return h, nil
}

func (h *fakeAH) Destroy() error {
	h.p.record("destroy_ah(%s)", h.name)
	return nil
}

type fakeDCI struct {
	p    *fakePort
	name string
	cq   *fakeCQ

	state   int32
	batch   []ibv.WC // of the present batch: id, and the flag whether it is told
	told    []bool
	target  []uint32
	pending []ibv.WC // of targets that are mute
}

func (p *fakePort) newDCI(cq dcCQ, depth int) (dcInitiator, error) {
	if p.noDCI != nil {
		return nil, p.noDCI
	}
	d := &fakeDCI{p: p, name: p.id("dci"), cq: cq.(*fakeCQ)}
	p.record("%s = create_dci(%s, %d)", d.name, d.cq.name, depth)
	return d, nil
}

func attrs(a ibv.QPAttr, mask int) string {
	var s []string
	for _, f := range []struct {
		bit  int
		name string
		v    any
	}{
		{ibv.AttrState, "state", a.State}, {ibv.AttrPkeyIndex, "pkey", a.PkeyIndex}, {ibv.AttrPort, "port", a.PortNum},
		{ibv.AttrAccess, "access", a.AccessFlags}, {ibv.AttrPathMTU, "mtu", a.PathMTU}, {ibv.AttrTimeout, "timeout", a.Timeout},
		{ibv.AttrRetryCnt, "retry", a.RetryCnt}, {ibv.AttrRNRRetry, "rnr", a.RNRRetry}, {ibv.AttrSQPSN, "psn", a.SQPSN},
		{ibv.AttrMaxRdAtomic, "reads", a.MaxRdAtomic}, {ibv.AttrMinRNRTimer, "min_rnr", a.MinRNRTimer},
		{ibv.AttrAV, "gid_index", a.AH.GRH.SGIDIndex},
	} {
		if mask&f.bit != 0 {
			s = append(s, fmt.Sprintf("%s %v", f.name, f.v))
		}
	}
	return strings.Join(s, ", ")
}

func (d *fakeDCI) Modify(a ibv.QPAttr, mask int) error {
	d.p.record("modify(%s, %s)", d.name, attrs(a, mask))
	d.state = a.State
	if a.State == ibv.QPStateErr {
		for _, wc := range d.pending {
			wc.Status = ibv.WCFlush
			d.cq.add(wc)
		}
		d.pending = nil
	}
	return nil
}

func (d *fakeDCI) Destroy() error {
	d.p.record("destroy(%s)", d.name)
	return nil
}

func (d *fakeDCI) Start() {
	d.p.record("start(%s)", d.name)
	d.batch, d.told, d.target = nil, nil, nil
}

func (d *fakeDCI) RDMA(opcode int32, id uint64, flags, rkey uint32, remote uint64) {
	name := map[int32]string{ibv.WRWrite: "write", ibv.WRRead: "read"}[opcode]
	d.p.record("%s(%s, id %d, flags %d, rkey %#x, at %#x)", name, d.name, id, flags, rkey, remote)
	d.batch = append(d.batch, ibv.WC{ID: id})
	d.told = append(d.told, flags&ibv.SendSignaled != 0)
}

func (d *fakeDCI) SetDCAddr(ah dcAH, dctn uint32, key uint64) {
	d.p.record("set_dc_addr(%s, %s, %#x, %#x)", d.name, ah.(*fakeAH).name, dctn, key)
	d.target = append(d.target, dctn)
}

func (d *fakeDCI) SetSGE(s ibv.SGE) {
	d.p.record("set_sge(%s, lkey %#x, %d bytes)", d.name, s.LKey, s.Length)
}

func (d *fakeDCI) Complete() error {
	d.p.record("complete(%s)", d.name)
	for i, wc := range d.batch {
		d.p.mu.Lock()
		status, mute := d.p.status[d.target[i]], d.p.mute[d.target[i]]
		d.p.mu.Unlock()
		wc.Status = status
		switch {
		case mute:
			d.pending = append(d.pending, wc)
		case status != ibv.WCSuccess:
			d.cq.add(wc)
			for _, rest := range d.batch[i+1:] {
				rest.Status = ibv.WCFlush
				d.cq.add(rest)
			}
			return nil
		case d.told[i]:
			d.cq.add(wc)
		}
	}
	return nil
}

type fakeDCT struct {
	p     *fakePort
	state int32
}

func (p *fakePort) newDCT(key uint64) (dcTarget, error) {
	p.record("dct = create_dct(%#x)", key)
	return &fakeDCT{p: p}, nil
}

func (t *fakeDCT) Modify(a ibv.QPAttr, mask int) error {
	t.p.record("modify(dct, %s)", attrs(a, mask))
	t.state = a.State
	return nil
}

func (t *fakeDCT) TargetNum() uint32 {
	if t.state != ibv.QPStateRTR {
		return 0
	}
	return 0x7a03
}

func (t *fakeDCT) Destroy() error {
	t.p.record("destroy(dct)")
	return nil
}

// fakeRail is a port that is up, and whose device nobody may ask.
func fakeRail() *rail {
	return &rail{
		port: port{"mlx5_9", 2}, up: true,
		dev:  ibv.DeviceAttr{MaxQPWR: 1 << 12, MaxQPInitRdAtom: 16},
		attr: ibv.PortAttr{ActiveMTU: 5, LinkLayer: ibv.LinkLayerEthernet},
		gids: []gid{{index: 3, raw: v4("10.0.0.1"), kind: GIDRoCEv2}},
	}
}

func newFakeDC(t *testing.T, p *fakePort, o Options) (*DCFabric, rdmaio.Region) {
	t.Helper()
	o, err := o.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	f := new(DCFabric)
	f.opt, f.done, f.fell = o, make(chan struct{}), f.railFell
	f.dial = func(p port, changed func(*rail)) (*rail, error) {
		if strings.HasPrefix(p.device, "bnxt") {
			return nil, withoutDC(p)
		}
		r := fakeRail()
		r.port, r.changed = p, changed
		return r, nil
	}
	f.port = func(*rail) dcPort { return p }
	if err := f.openAll([]port{{"bnxt_re0", 1}, fakeRail().port}); err != nil {
		t.Fatal(err)
	}
	f.start()
	t.Cleanup(func() {
		f.rails[0].rail = nil
		if err := f.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	reg := &region{reg: &f.reg, mem: memory(t, 4<<20), keys: make([]atomic.Uint32, 1)}
	reg.keys[0].Store(0x4c)
	return f, reg
}

func dcDescriptor(dctn uint32) rdmaio.Descriptor {
	return rdmaio.Descriptor{Transport: rdmaio.TransportDC, Addr: 0x10000, Size: 4 << 20, RKey: 0x1f2e, QPN: dctn, GID: v4("10.0.0.2"), GIDPresent: true}
}

func TestDCCalls(t *testing.T) {
	p := newFakePort()
	f, r := newFakeDC(t, p, Options{Depth: 16, DCKey: 0xabc, TrafficClass: 96})
	l, err := f.Open(context.Background(), dcDescriptor(0x42), "anyone")
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if err := l.Write(ctx, rdmaio.Slice{Region: r, Len: chunkSize + 1}, 5); err != nil {
		t.Fatal(err)
	}
	if err := l.Fence(ctx); err != nil {
		t.Fatal(err)
	}
	if err := l.Read(ctx, rdmaio.Slice{Region: r, Len: 7}, 0); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"cq1 = create_cq(16)",
		"dci1 = create_dci(cq1, 16)",
		"modify(dci1, state 1, pkey 0, port 2)",
		"modify(dci1, state 2, mtu 5)",
		"modify(dci1, state 3, timeout 15, retry 6, rnr 6, psn 0, reads 16)",
		"ah1 = create_ah(gid index 3, global 1, hops 64, class 96, lid 0, port 2)",
		"start(dci1)",
		"write(dci1, id 0, flags 0, rkey 0x1f2e, at 0x10005)",
		"set_dc_addr(dci1, ah1, 0x42, 0xabc)",
		"set_sge(dci1, lkey 0x4c, 1048576 bytes)",
		"write(dci1, id 1, flags 2, rkey 0x1f2e, at 0x110005)",
		"set_dc_addr(dci1, ah1, 0x42, 0xabc)",
		"set_sge(dci1, lkey 0x4c, 1 bytes)",
		"complete(dci1)",
		"start(dci1)",
		"read(dci1, id 2, flags 2, rkey 0x1f2e, at 0x10000)",
		"set_dc_addr(dci1, ah1, 0x42, 0xabc)",
		"set_sge(dci1, lkey 0x4c, 7 bytes)",
		"complete(dci1)",
	}
	if d := cmp.Diff(want, p.taken()); d != "" {
		t.Error(d)
	}
}

// A refused transfer costs the initiator a reset, and nobody else anything.
func TestDCRefused(t *testing.T) {
	p := newFakePort()
	p.status[0x66] = ibv.WCRemAccess
	f, r := newFakeDC(t, p, Options{DCInitiators: 1})
	ctx := context.Background()
	for range 2 {
		for dctn, want := range map[uint32]error{0x42: nil, 0x66: rdmaio.ErrStaleKey} {
			l, err := f.Open(ctx, dcDescriptor(dctn), "")
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Write(ctx, rdmaio.Slice{Region: r, Len: 3 << 20}, 0); err != nil {
				t.Fatal(err)
			}
			if err := l.Fence(ctx); !errors.Is(err, want) {
				t.Errorf("target %#x: error %v, want %v", dctn, err, want)
			}
			l.Close()
		}
	}
	resets := 0
	for _, c := range p.taken() {
		if c == "modify(dci1, state 0)" {
			resets++
		}
		if strings.Contains(c, "dci2") {
			t.Errorf("there is one initiator, but %s", c)
		}
	}
	if resets != 2 {
		t.Errorf("%d resets, want 2", resets)
	}
}

// A dead target holds one initiator, for a bounded time; meanwhile others are served, and
// further requests to it fail at once.
func TestDCDeadTarget(t *testing.T) {
	p := newFakePort()
	p.mute[0x66] = true
	f, r := newFakeDC(t, p, Options{DCInitiators: 2, FenceLimit: 20 * time.Millisecond})
	ctx, cancel := context.WithCancel(context.Background())
	dead, err := f.Open(ctx, dcDescriptor(0x66), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.Write(ctx, rdmaio.Slice{Region: r, Len: 1}, 0); err != nil {
		t.Fatal(err)
	}
	good := func() {
		t.Helper()
		l, err := f.Open(context.Background(), dcDescriptor(0x42), "")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Write(context.Background(), rdmaio.Slice{Region: r, Len: 1}, 0); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	good()
	cancel()
	start := time.Now()
	if err := dead.Fence(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	if took := time.Since(start); took < wireTime {
		t.Errorf("the fence returned after %v, while packets may have been under way", took)
	}
	dead.Close()

	p.mu.Lock()
	p.mute[0x66], p.status[0x66] = false, ibv.WCRetryExc
	p.mu.Unlock()
	l, err := f.Open(context.Background(), dcDescriptor(0x66), "")
	if err != nil {
		t.Fatal(err)
	}
	err = l.Write(context.Background(), rdmaio.Slice{Region: r, Len: 1}, 0)
	if ferr := l.Fence(context.Background()); err == nil {
		err = ferr
	}
	if !errors.Is(err, rdmaio.ErrPeerGone) {
		t.Errorf("no answer: error %v, want ErrPeerGone", err)
	}
	l.Close()
	if _, err := f.Open(context.Background(), dcDescriptor(0x66), ""); !errors.Is(err, rdmaio.ErrPeerGone) {
		t.Errorf("open right after: error %v, want ErrPeerGone", err)
	}
	good()
}

func TestDCPoolBound(t *testing.T) {
	p := newFakePort()
	f, _ := newFakeDC(t, p, Options{DCInitiators: 2, DCWait: 10 * time.Millisecond})
	ctx := context.Background()
	var held []rdmaio.Link
	for i := range 3 {
		l, err := f.Open(ctx, dcDescriptor(uint32(i+1)), "")
		if i < 2 {
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, l)
		} else if !errors.Is(err, rdmaio.ErrTooMany) {
			t.Errorf("third link: error %v, want ErrTooMany", err)
		}
	}
	held[1].Close()
	held[0].Close()
	// The initiator that served a target last serves it again; so does its address handle.
	p.taken()
	for _, dctn := range []uint32{2, 1, 2} {
		l, err := f.Open(ctx, dcDescriptor(dctn), "")
		if err != nil {
			t.Fatal(err)
		}
		if got, want := l.(*link).extra.(dcLink).d.last.dctn, dctn; got != want {
			t.Errorf("target %d is served by the initiator of %d", want, got)
		}
		l.Close()
	}
	if calls := p.taken(); len(calls) != 0 {
		t.Errorf("calls %v, want none", calls)
	}
}

func TestDCRefuses(t *testing.T) {
	p := newFakePort()
	f, _ := newFakeDC(t, p, Options{AllowPeers: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("10.9.0.0/16")}})
	with := func(f func(*rdmaio.Descriptor)) rdmaio.Descriptor {
		d := dcDescriptor(1)
		f(&d)
		return d
	}
	for what, c := range map[string]struct {
		d    rdmaio.Descriptor
		want error
	}{
		"fine":            {with(func(*rdmaio.Descriptor) {}), nil},
		"also fine":       {with(func(d *rdmaio.Descriptor) { d.GID = v4("10.9.8.7") }), nil},
		"RC":              {with(func(d *rdmaio.Descriptor) { d.Transport = rdmaio.TransportRC }), rdmaio.ErrUnsupported},
		"too large":       {with(func(d *rdmaio.Descriptor) { d.Size = 1 << 33 }), rdmaio.ErrOutOfBounds},
		"wraps":           {with(func(d *rdmaio.Descriptor) { d.Addr = ^uint64(0) - 1 }), rdmaio.ErrOutOfBounds},
		"no address":      {with(func(d *rdmaio.Descriptor) { d.GIDPresent = false }), rdmaio.ErrMalformed},
		"foreign address": {with(func(d *rdmaio.Descriptor) { d.GID = v4("10.0.1.2") }), rdmaio.ErrRefused},
	} {
		l, err := f.Open(context.Background(), c.d, "")
		if !errors.Is(err, c.want) {
			t.Errorf("%s: error %v, want %v", what, err, c.want)
		}
		if err == nil {
			l.Close()
		}
	}
	p.noDCI = errors.New("out of queue pairs")
	held, err := f.Open(context.Background(), dcDescriptor(1), "")
	if err != nil {
		t.Fatal(err) // the free one
	}
	if _, err := f.Open(context.Background(), dcDescriptor(1), ""); err == nil {
		t.Error("no error without an initiator")
	}
	held.Close()
	if n := len(f.pools[0].slots); n != 0 {
		t.Errorf("%d slots leaked", n)
	}
	if n := f.rails[0].users.Load(); n != 0 {
		t.Errorf("%d users leaked", n)
	}
}

func TestDCClose(t *testing.T) {
	p := newFakePort()
	f, r := newFakeDC(t, p, Options{FenceLimit: 5 * time.Millisecond})
	p.mute[1] = true
	l, err := f.Open(context.Background(), dcDescriptor(1), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Write(context.Background(), rdmaio.Slice{Region: r, Len: 1}, 0); err != nil {
		t.Fatal(err)
	}
	f.rails[0].rail = nil
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Fence(context.Background()); !errors.Is(err, rdmaio.ErrClosed) {
		t.Errorf("fence: error %v, want ErrClosed", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := f.Open(context.Background(), dcDescriptor(1), ""); !errors.Is(err, rdmaio.ErrClosed) {
		t.Errorf("open: error %v, want ErrClosed", err)
	}
	calls := p.taken()
	for _, want := range []string{"destroy(dci1)", "destroy_cq(cq1)", "destroy_ah(ah1)"} {
		n := 0
		for _, c := range calls {
			if c == want {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d calls %s, want 1", n, want)
		}
	}
}

func TestDCTarget(t *testing.T) {
	p := newFakePort()
	tg := NewDCTarget(Options{})
	tg.port = func(*rail) (dcPort, error) { return p, nil }
	e := &exposed{owner: tg, rail: fakeRail(), base: 0x7000, size: 100, mr: &ibv.MR{RKey: 0xbeef}}
	for range 2 {
		d, err := e.Describe(10, 20)
		want := rdmaio.Descriptor{Transport: rdmaio.TransportDC, Addr: 0x700a, Size: 20, RKey: 0xbeef, QPN: 0x7a03, GID: v4("10.0.0.1"), GIDPresent: true}
		if err != nil || d != want {
			t.Errorf("descriptor and error %v do not match", err)
		}
		if _, err := d.Encode(rdmaio.EncodingBare); err != nil {
			t.Errorf("encode: %v", err)
		}
	}
	if err := tg.Close(); err != nil {
		t.Error(err)
	}
	want := []string{
		"dct = create_dct(0xffeeddcc)",
		"modify(dct, state 1, pkey 0, port 2, access 7)",
		"modify(dct, state 2, mtu 5, min_rnr 12, gid_index 3)",
		"destroy(dct)",
	}
	if d := cmp.Diff(want, p.taken()); d != "" {
		t.Error(d)
	}
	if _, err := tg.Hello(context.Background()); !errors.Is(err, rdmaio.ErrUnsupported) {
		t.Errorf("hello: error %v, want ErrUnsupported", err)
	}
}

// Devices without DC do not keep those that have it from being used; alone they are no
// rail.
func TestDCMixedDevices(t *testing.T) {
	f, _ := newFakeDC(t, newFakePort(), Options{Devices: []string{"bnxt_re0", "mlx5_9:2"}})
	if got := f.Rails(); len(got) != 1 || got[0].Device != "mlx5_9" || !got[0].Up {
		t.Errorf("rails %+v, want mlx5_9 only", got)
	}
	g := &initiator{dial: f.dial}
	if err := g.openAll([]port{{"bnxt_re0", 1}, {"bnxt_re1", 1}}); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "bnxt_re1") {
		t.Errorf("none with DC: error %v, want ErrUnavailable that names them", err)
	}
}

// A rail whose device is lost is given up when nothing uses it any more, and opened again.
func TestDCRailComesBack(t *testing.T) {
	p := newFakePort()
	p.mute[1] = true
	f, r := newFakeDC(t, p, Options{FenceLimit: 20 * time.Millisecond})
	m := f.rails[0]
	status := func() RailStatus { return f.Rails()[0] }
	later := func() { // than reopenAfter
		f.mu.Lock()
		defer f.mu.Unlock()
		m.tried = time.Now().Add(-2 * reopenAfter)
	}
	ctx := context.Background()
	dial := f.dial
	f.dial = func(port, func(*rail)) (*rail, error) { return nil, errors.New("no such device") }

	l, err := f.Open(ctx, dcDescriptor(1), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Write(ctx, rdmaio.Slice{Region: r, Len: 1}, 0); err != nil {
		t.Fatal(err)
	}
	old := m.rail
	old.mu.Lock()
	old.fatal, old.up, old.why = true, false, "the device reported a fatal error"
	old.mu.Unlock()
	old.changed(old)
	if s := status(); s.Up || s.Failures != 1 {
		t.Errorf("status %+v after the device was lost", s)
	}
	later()
	if _, err := f.Open(ctx, dcDescriptor(2), ""); !errors.Is(err, rdmaio.ErrUnsupported) {
		t.Errorf("open without a rail: error %v, want ErrUnsupported", err)
	}
	if m.rail != old {
		t.Error("a rail was closed that a link uses")
	}
	if err := l.Fence(ctx); !errors.Is(err, rdmaio.ErrPeerGone) {
		t.Errorf("fence: error %v, want ErrPeerGone", err)
	}
	l.Close()

	// Nothing uses it: it is closed with all that was made of it. The device is not there.
	p.taken()
	if _, err := f.Open(ctx, dcDescriptor(2), ""); !errors.Is(err, rdmaio.ErrUnsupported) {
		t.Errorf("open without a rail: error %v, want ErrUnsupported", err)
	}
	if d := cmp.Diff([]string{"modify(dci1, state 6)", "destroy(dci1)", "destroy_cq(cq1)", "destroy_ah(ah1)"}, p.taken()); d != "" {
		t.Error(d)
	}
	if s := status(); s.Up || s.Why != "no such device" || s.Failures != 1 || s.Connections != 0 {
		t.Errorf("status %+v while the device is not there", s)
	}
	if _, err := f.Open(ctx, dcDescriptor(2), ""); err == nil {
		t.Error("opened without a rail")
	}

	f.dial = dial
	later()
	l, err = f.Open(ctx, dcDescriptor(2), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Write(ctx, rdmaio.Slice{Region: r, Len: 1}, 0); err != nil {
		t.Error(err)
	}
	if err := l.Fence(ctx); err != nil {
		t.Error(err)
	}
	if s := status(); !s.Up || s.Why != "" || s.Connections != 1 {
		t.Errorf("status %+v after the device came back", s)
	}
	l.Close()
	// It can fall again.
	m.rail.mu.Lock()
	m.rail.up = false
	m.rail.mu.Unlock()
	m.rail.changed(m.rail)
	if s := status(); s.Up || s.Failures != 2 {
		t.Errorf("status %+v after the second failure", s)
	}
}

// Without an mlx5 NIC there is a clear error, with or without the library.
func TestDCUnavailable(t *testing.T) {
	if _, err := NewDC(Options{}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("error %v, want ErrUnavailable", err)
	} else {
		t.Log(err)
	}
}
