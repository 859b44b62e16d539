// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package staging

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/s3rdma/s3rdma/rdmaio"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// countingFabric keeps an account of registrations. Its other methods are not
// called by this package.
type countingFabric struct {
	rdmaio.Fabric
	name       string
	registered atomic.Int32
	live       atomic.Int32
	refuse     error // from Register
	closeErr   atomic.Pointer[error]
	mem        []byte
}

func (f *countingFabric) Capabilities() rdmaio.Capabilities { return rdmaio.Capabilities{Name: f.name} }

func (f *countingFabric) Register(mem []byte) (rdmaio.Region, error) {
	if f.refuse != nil {
		return nil, f.refuse
	}
	f.registered.Add(1)
	f.live.Add(1)
	f.mem = mem
	return &countingRegion{f: f, mem: mem}, nil
}

type countingRegion struct {
	f      *countingFabric
	mem    []byte
	closed bool
}

func (r *countingRegion) Bytes() []byte { return r.mem }

func (r *countingRegion) Close() error {
	if err := r.f.closeErr.Load(); err != nil {
		return *err
	}
	if !r.closed {
		_ = r.mem[len(r.mem)-1] // still mapped
		r.closed = true
		r.f.live.Add(-1)
	}
	return nil
}

const slab = 4096 * 16 // a multiple of all usual page sizes

// small has few small slabs and does not wait.
func small(slabs int) Options {
	return Options{Size: int64(slabs) * slab, SlabSize: slab, Wait: -1, HugePages: HugePagesOff}
}

// newPool makes a pool that must be whole again when the test ends.
func newPool(t testing.TB, o Options, fabrics ...rdmaio.Fabric) *Pool {
	t.Helper()
	p, err := New(o, fabrics...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := p.Close(ctx); err != nil {
			t.Error(err)
		}
		if s := p.Stats(); s.InUse != 0 || s.Leases != 0 || s.Waiting != 0 || s.Callers != 0 {
			t.Errorf("account after the end: %+v", s)
		}
	})
	return p
}

func acquire(t testing.TB, p *Pool, caller string, slabs int) *Lease {
	t.Helper()
	l, err := p.Acquire(context.Background(), caller, int64(slabs)*int64(p.SlabSize()))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestDefaults(t *testing.T) {
	p := newPool(t, Options{})
	s := p.Stats()
	if s.Slabs != 256 || s.SlabSize != 1<<20 || p.MaxLease() != 4<<20 || p.wait != 2*time.Second || p.perCaller != 128 {
		t.Errorf("defaults: %+v, lease %d, wait %v, share %d", s, p.MaxLease(), p.wait, p.perCaller)
	}
	l := acquire(t, p, "a", 1)
	defer l.Release()
	if b := l.Bytes(0); uintptr(unsafe.Pointer(&b[0]))%uintptr(os.Getpagesize()) != 0 {
		t.Error("slab is not page aligned")
	}
}

func TestBadOptions(t *testing.T) {
	for name, c := range map[string]struct {
		o    Options
		says string
	}{
		"slab no page":          {Options{SlabSize: 5000}, "SlabSize"},
		"slab negative":         {Options{SlabSize: -4096}, "SlabSize"},
		"size negative":         {Options{Size: -1}, "Size"},
		"size below a slab":     {Options{Size: 1 << 19}, "Size"},
		"size absurd":           {Options{Size: math.MaxInt64}, "Size"},
		"lease negative":        {Options{MaxPerLease: -1}, "MaxPerLease"},
		"lease beyond the pool": {Options{Size: 8 << 20, MaxPerLease: 9}, "MaxPerLease"},
		"share negative":        {Options{MaxPerCaller: -0.1}, "MaxPerCaller"},
		"share above 1":         {Options{MaxPerCaller: 1.1}, "MaxPerCaller"},
		"share no number":       {Options{MaxPerCaller: math.NaN()}, "MaxPerCaller"},
		"pages unknown":         {Options{HugePages: 3}, "HugePages"},
	} {
		p, err := New(c.o)
		if p != nil || !errors.Is(err, ErrOption) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f := &countingFabric{name: "one"}
	for _, fabrics := range [][]rdmaio.Fabric{{nil}, {f, f}, {uncomparable{}}} {
		if _, err := New(small(1), fabrics...); !errors.Is(err, ErrOption) {
			t.Errorf("%d fabrics: %v", len(fabrics), err)
		}
	}
	if f.registered.Load() != 0 {
		t.Error("registered by a pool that was not made")
	}
}

type uncomparable struct {
	rdmaio.Fabric
	_ []int
}

func TestHugePagesNames(t *testing.T) {
	for _, h := range []HugePages{HugePagesAuto, HugePagesOn, HugePagesOff} {
		if got, err := ParseHugePages(h.String()); err != nil || got != h {
			t.Errorf("%s: %s, %v", h, got, err)
		}
	}
	if _, err := ParseHugePages("yes"); !errors.Is(err, ErrOption) {
		t.Error(err)
	}
}

func TestLeaseSize(t *testing.T) {
	p := newPool(t, Options{Size: 40*slab + slab/2, SlabSize: slab, MaxPerLease: 12, HugePages: HugePagesOff})
	if p.Stats().Slabs != 40 {
		t.Errorf("%d slabs, want 40 whole ones", p.Stats().Slabs)
	}
	for _, c := range []struct {
		bytes int64
		want  int
	}{
		{math.MinInt64, 1}, {-1, 1}, {0, 1}, {1, 1}, {slab, 1}, {slab + 1, 2}, {2 * slab, 2}, {8 * slab, 8}, {9 * slab, 9},
		{12 * slab, 12}, {12*slab + 1, 12}, {math.MaxInt64, 12},
	} {
		l, err := p.Acquire(context.Background(), "a", c.bytes)
		if err != nil {
			t.Fatal(err)
		}
		if l.Slabs() != c.want || l.Size() != c.want*slab || p.Stats().InUse != c.want {
			t.Errorf("%d bytes: %d slabs of %d bytes, %d in use, want %d", c.bytes, l.Slabs(), l.Size(), p.Stats().InUse, c.want)
		}
		l.Release()
	}
}

// One registration a fabric, and each slab is the same memory through all of them.
func TestSlabs(t *testing.T) {
	f, g := &countingFabric{name: "f"}, &countingFabric{name: "g"}
	p := newPool(t, small(8), f, g)
	a, b := acquire(t, p, "a", 4), acquire(t, p, "b", 4)
	seen := map[int]bool{}
	for _, l := range []*Lease{a, b} {
		for i := range l.Slabs() {
			own := l.Bytes(i)
			if len(own) != slab || cap(own) != slab {
				t.Errorf("slab of %d bytes, capacity %d", len(own), cap(own))
			}
			for _, fab := range []*countingFabric{f, g} {
				s := l.Slab(i, fab)
				if &s.Bytes()[0] != &own[0] || s.Len != slab || s.Region.(*countingRegion).f != fab {
					t.Errorf("slab %d through fabric %s is other memory", i, fab.name)
				}
				if seen[s.Off] && fab == f {
					t.Errorf("slab at %d leased twice", s.Off)
				}
				seen[s.Off] = true
			}
			if &f.mem[0] != &g.mem[0] || len(f.mem) != 8*slab {
				t.Error("fabrics have different memory")
			}
		}
	}
	if len(seen) != 8 {
		t.Errorf("%d different slabs, want 8", len(seen))
	}
	a.Release()
	b.Release()
	if f.registered.Load() != 1 || g.registered.Load() != 1 {
		t.Error("registered more than once")
	}
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s did not panic", what)
		}
	}()
	f()
}

func TestMisuse(t *testing.T) {
	f := &countingFabric{name: "f"}
	p := newPool(t, small(2), f)
	l := acquire(t, p, "a", 1)
	mustPanic(t, "a foreign fabric", func() { l.Slab(0, &countingFabric{}) })
	mustPanic(t, "a slab too many", func() { l.Bytes(1) })
	mustPanic(t, "a negative slab", func() { l.Bytes(-1) })
	l.Release()
	mustPanic(t, "Bytes after Release", func() { l.Bytes(0) })
	mustPanic(t, "Slab after Release", func() { l.Slab(0, f) })

	// A late second Release must not touch the next lease of the same slab.
	other := acquire(t, p, "b", 2)
	l.Release()
	if s := p.Stats(); s.InUse != 2 || s.Leases != 1 {
		t.Errorf("after a second Release: %+v", s)
	}
	other.Release()
	(*Lease)(nil).Release()

	// Scrubbing takes a while: time for others to come in between.
	o := small(2)
	o.Scrub = true
	p = newPool(t, o)
	for range 100 {
		var wg sync.WaitGroup
		start := make(chan struct{})
		l = acquire(t, p, "a", 2)
		for range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				<-start
				l.Release()
			}()
		}
		close(start)
		wg.Wait()
		if s := p.Stats(); s.InUse != 0 || s.Leases != 0 {
			t.Fatalf("after four Releases at once: %+v", s)
		}
	}
}

func TestScrub(t *testing.T) {
	for _, scrub := range []bool{false, true} {
		o := small(2)
		o.Scrub = scrub
		p := newPool(t, o)
		l := acquire(t, p, "a", 2)
		for i := range 2 {
			for j := range l.Bytes(i) {
				l.Bytes(i)[j] = 0xa5
			}
		}
		l.Release()
		l = acquire(t, p, "b", 2)
		for i := range 2 {
			for j, c := range l.Bytes(i) {
				if scrub && c != 0 {
					t.Fatalf("byte %d of slab %d was not cleared", j, i)
				}
			}
		}
		l.Release()
	}
}

func TestNoWait(t *testing.T) {
	p := newPool(t, small(4))
	a := acquire(t, p, "a", 4)
	_, err := p.Acquire(context.Background(), "b", 1)
	if !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	if !strings.Contains(err.Error(), "4 of 4") {
		t.Errorf("does not say how full: %v", err)
	}
	a.Release()
	acquire(t, p, "b", 1).Release()
	if s := p.Stats(); s.Granted != 2 || s.Refused != 1 || s.Waited != 0 || s.WaitTotal != 0 || s.Peak != 4 {
		t.Errorf("%+v", s)
	}
}

func TestEndedContext(t *testing.T) {
	p := newPool(t, small(1))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := p.Acquire(ctx, "a", 1)
	if !errors.Is(err, ErrBusy) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if s := p.Stats(); s.Refused != 1 || s.InUse != 0 {
		t.Errorf("%+v", s)
	}
}

// What fails half-way leaves nothing registered and nothing mapped.
func TestRegistrationFails(t *testing.T) {
	boom := errors.New("out of keys")
	before := virtualBytes(t)
	const rounds, size = 64, 64 << 20
	for range rounds {
		f, g, h := &countingFabric{name: "f"}, &countingFabric{name: "g"}, &countingFabric{name: "h", refuse: boom}
		p, err := New(Options{Size: size, HugePages: HugePagesOff}, f, g, h)
		if p != nil || !errors.Is(err, boom) || !strings.Contains(err.Error(), "fabric h") {
			t.Fatalf("%v", err)
		}
		if f.registered.Load() != 1 || g.registered.Load() != 1 || f.live.Load() != 0 || g.live.Load() != 0 {
			t.Fatalf("left registered: %d and %d", f.live.Load(), g.live.Load())
		}
	}
	if grown := virtualBytes(t) - before; grown > rounds*size/2 {
		t.Errorf("%d bytes more are mapped", grown)
	}
}

func TestCloseFreesAll(t *testing.T) {
	before := virtualBytes(t)
	const rounds, size = 64, 64 << 20
	for i := range rounds {
		f := &countingFabric{name: "f"}
		p, err := New(Options{Size: size, HugePages: HugePages(i % 2 * 2), Wait: -1}, f)
		if err != nil {
			t.Fatal(err)
		}
		l := acquire(t, p, "a", 1)
		l.Bytes(0)[0] = 1
		l.Release()
		if err := p.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if f.live.Load() != 0 {
			t.Fatal("left registered")
		}
		if err := p.Close(context.Background()); err != nil {
			t.Fatalf("a second time: %v", err)
		}
		if _, err := p.Acquire(context.Background(), "a", 1); !errors.Is(err, rdmaio.ErrClosed) {
			t.Fatalf("after Close: %v", err)
		}
	}
	if grown := virtualBytes(t) - before; grown > rounds*size/2 {
		t.Errorf("%d bytes more are mapped", grown)
	}
}

// virtualBytes is the size of the address space in use.
func virtualBytes(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	var pages int
	if _, err := fmt.Sscan(string(b), &pages); err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

func TestCloseWithLeasesOut(t *testing.T) {
	f := &countingFabric{name: "f"}
	p, err := New(small(8), f)
	if err != nil {
		t.Fatal(err)
	}
	a, b := acquire(t, p, "a", 1), acquire(t, p, "b", 4)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err = p.Close(ctx)
	if !errors.Is(err, ErrLeaked) || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "2 leases on 5 of 8 slabs") {
		t.Errorf("%v", err)
	}
	if f.live.Load() != 1 {
		t.Error("deregistered under a lease")
	}
	b.Bytes(3)[slab-1] = 1 // still mapped
	a.Release()
	if err := p.Close(ctx); !errors.Is(err, ErrLeaked) || !strings.Contains(err.Error(), "1 leases on 4 of 8") {
		t.Errorf("%v", err)
	}

	// Several wait for the last lease.
	var wg sync.WaitGroup
	for range 3 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := p.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}()
	}
	b.Release()
	wg.Wait()
	if f.live.Load() != 0 {
		t.Error("left registered")
	}
	a.Release()
	b.Release()
}

// A fabric that cannot deregister keeps its memory, until it can.
func TestDeregistrationFails(t *testing.T) {
	f, g := &countingFabric{name: "f"}, &countingFabric{name: "g"}
	p, err := New(small(1), f, g)
	if err != nil {
		t.Fatal(err)
	}
	busy := errors.New("key in use")
	f.closeErr.Store(&busy)
	if err := p.Close(context.Background()); !errors.Is(err, busy) || !strings.Contains(err.Error(), "fabric f") {
		t.Errorf("%v", err)
	}
	f.mem[0] = 1 // still mapped
	f.closeErr.Store(nil)
	if err := p.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if f.live.Load() != 0 || g.live.Load() != 0 {
		t.Error("left registered")
	}
}

// Many goroutines write their mark into their slabs and find it there again.
func TestStress(t *testing.T) {
	var waits atomic.Int64
	f := &countingFabric{name: "f"}
	p := newPool(t, Options{
		Size: 12 * slab, SlabSize: slab, Wait: 20 * time.Millisecond, HugePages: HugePagesOff,
		OnWait: func(time.Duration, bool) { waits.Add(1) },
	}, f)
	const workers, rounds = 16, 300
	// Held until somebody waits, so that this is about waiting on any machine.
	var all []*Lease
	for range 3 {
		all = append(all, acquire(t, p, "first", 4))
	}
	var got, refused atomic.Uint64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			for r := range rounds {
				ctx, cancel := context.WithCancel(context.Background())
				if rng.IntN(8) == 0 {
					go cancel()
				}
				l, err := p.Acquire(ctx, fmt.Sprint(w%5), int64(rng.IntN(5*slab)))
				if err != nil {
					if !errors.Is(err, ErrBusy) {
						t.Error(err)
					}
					refused.Add(1)
					cancel()
					continue
				}
				got.Add(1)
				mark := uint64(w)<<32 | uint64(r)
				for i := range l.Slabs() {
					b := l.Slab(i, f).Bytes()
					binary.LittleEndian.PutUint64(b, mark)
					binary.LittleEndian.PutUint64(b[len(b)-8:], mark)
				}
				if s := p.Stats(); s.InUse > s.Slabs || s.InUse < l.Slabs() {
					t.Errorf("account: %+v", s)
				}
				runtime.Gosched()
				for i := range l.Slabs() {
					b := l.Bytes(i)
					if binary.LittleEndian.Uint64(b) != mark || binary.LittleEndian.Uint64(b[len(b)-8:]) != mark {
						t.Error("somebody else wrote into a leased slab")
					}
				}
				l.Release()
				cancel()
			}
		}()
	}
	for p.Stats().Waiting == 0 && p.Stats().Waited == 0 {
		runtime.Gosched()
	}
	for _, l := range all {
		l.Release()
	}
	wg.Wait()
	s := p.Stats()
	if s.Granted-3 != got.Load() || s.Refused != refused.Load() || got.Load()+refused.Load() != workers*rounds {
		t.Errorf("account: %+v; %d granted, %d refused", s, got.Load(), refused.Load())
	}
	if int64(s.Waited) != waits.Load() || s.Waited == 0 {
		t.Errorf("%d waits told of, account says %d", waits.Load(), s.Waited)
	}
}

// Close comes in the middle of everything.
func TestCloseRace(t *testing.T) {
	for range 20 {
		f := &countingFabric{name: "f"}
		o := small(4)
		o.Wait = time.Minute // nobody times out: Close ends all waits
		p, err := New(o, f)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for {
					l, err := p.Acquire(context.Background(), fmt.Sprint(w%3), 2*slab)
					if err != nil {
						if !errors.Is(err, rdmaio.ErrClosed) {
							t.Error(err)
						}
						return
					}
					l.Bytes(1)[0]++
					l.Release()
				}
			}()
		}
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if s := p.Stats(); f.live.Load() != 0 || s.InUse != 0 || s.Waiting != 0 || s.Callers != 0 {
			t.Errorf("left: %+v", s)
		}
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	p := newPool(b, Options{Size: 64 << 20})
	ctx := context.Background()
	for _, bytes := range []int64{64 << 10, 4 << 20} {
		b.Run(fmt.Sprintf("%dKiB", bytes>>10), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(bytes)
			for b.Loop() {
				l, err := p.Acquire(ctx, "caller", bytes)
				if err != nil {
					b.Fatal(err)
				}
				l.Release()
			}
		})
	}
	b.Run("contended", func(b *testing.B) {
		p := newPool(b, Options{Size: 2 << 20})
		b.ReportAllocs()
		b.SetBytes(1 << 20)
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				l, err := p.Acquire(ctx, "caller", 1<<20)
				if err != nil {
					b.Error(err)
					return
				}
				l.Release()
			}
		})
	})
}
