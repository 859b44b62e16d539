// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package erasure

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// gated is a source whose reads wait until it is opened, or until ctx is done
// unless it is deaf.
type gated struct {
	Bytes
	gate    chan struct{}
	deaf    bool
	reached chan struct{} // one signal for each read, if not nil
	under   atomic.Int64  // reads under way
	reads   atomic.Int64
}

func (s *gated) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	return s.ReadVAt(ctx, [][]byte{p}, off)
}

func (s *gated) ReadVAt(ctx context.Context, bufs [][]byte, off int64) (int, error) {
	s.under.Add(1)
	defer s.under.Add(-1)
	s.reads.Add(1)
	if s.reached != nil {
		s.reached <- struct{}{}
	}
	done := ctx.Done()
	if s.deaf {
		done = nil
	}
	select {
	case <-s.gate:
	case <-done:
		return 0, ctx.Err()
	}
	return s.Bytes.ReadVAt(ctx, bufs, off)
}

// meeting is one of two sources of which each waits, the first time, until the other
// is being read.
type meeting struct {
	Bytes
	with chan struct{}
	met  bool
}

func (s *meeting) ReadVAt(ctx context.Context, bufs [][]byte, off int64) (int, error) {
	if !s.met {
		select {
		case s.with <- struct{}{}:
		case <-s.with:
		}
		s.met = true
	}
	return s.Bytes.ReadVAt(ctx, bufs, off)
}

type hedgeBench struct {
	g       Geometry
	part    []byte
	files   [][]byte
	sources []Source
	counts  []*counted
	p       Part
}

func newHedgeBench(g Geometry, size int) *hedgeBench {
	b := &hedgeBench{g: g, part: randomBytes(1, size), p: must(g.Part(int64(size)))}
	b.files = modelFiles(g, b.part)
	for i := range b.files {
		b.counts = append(b.counts, &counted{VectorSource: Bytes(b.files[i])})
		b.sources = append(b.sources, b.counts[i])
	}
	return b
}

func (b *hedgeBench) reader(t testing.TB, o Options) *Reader {
	t.Helper()
	r, err := newTestCode(t, b.g).NewReader(b.p, b.sources, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// checkSlow checks that shard i was found slow, and no shard worse. On a busy
// machine others may have been late as well.
func checkSlow(t *testing.T, r *Reader, i int) {
	t.Helper()
	found := false
	for _, f := range r.AppendFaults(nil) {
		found = found || f.Shard == i
		if !errors.Is(f, ErrSlow) || f.Kind.Damaged() {
			t.Errorf("fault %v, want none but slow ones", f)
		}
	}
	if !found {
		t.Errorf("shard %d is not among the faults", i)
	}
}

func TestHedgeOvertakesASlowSource(t *testing.T) {
	b := newHedgeBench(Geometry{4, 2, 1 << 10}, 16<<10)
	slow := &gated{Bytes: b.files[2], gate: make(chan struct{})} // never opens
	b.sources[2] = slow
	r := b.reader(t, Options{HedgeDelay: time.Millisecond})
	if err := readGuarded(t, r, b.part, 0, len(b.part)); err != nil {
		t.Fatal(err)
	}
	checkSlow(t, r, 2)
	// Once overtaken it is not asked again: one run of four blocks was enough.
	if n := slow.reads.Load(); n != 1 {
		t.Errorf("the slow source was asked %d times, want once", n)
	}
	if n := slow.under.Load(); n != 0 {
		t.Errorf("%d reads under way after ReadAt", n)
	}
}

// TestHedgeNeedsNoneOfTheSlow: all data shards hang at once, as many as there is
// parity for. The parity is asked for at once: neither comes before the other.
func TestHedgeNeedsNoneOfTheSlow(t *testing.T) {
	b := newHedgeBench(Geometry{2, 2, 1 << 10}, 4<<10)
	meet := make(chan struct{})
	for i := range 2 {
		b.sources[i] = &gated{Bytes: b.files[i], gate: make(chan struct{})}
		b.sources[2+i] = &meeting{Bytes: b.files[2+i], with: meet}
	}
	r := b.reader(t, Options{HedgeDelay: time.Millisecond})
	for _, x := range [][2]int{{0, len(b.part)}, {100, 5}, {1000, 2000}} {
		if err := readGuarded(t, r, b.part, x[0], x[1]); err != nil {
			t.Errorf("%v: %v", x, err)
		}
	}
}

// TestLateSourceIsStillGood: with too few others, what is late is waited for.
func TestLateSourceIsStillGood(t *testing.T) {
	b := newHedgeBench(Geometry{2, 2, 1 << 10}, 4<<10)
	late := &gated{Bytes: b.files[0], gate: make(chan struct{})}
	empty := &gated{gate: make(chan struct{}), reached: make(chan struct{}, 1)}
	close(empty.gate)
	b.sources[0], b.sources[2], b.sources[3] = late, failing{errDrive}, empty
	go func() {
		<-empty.reached // everything else has been tried
		close(late.gate)
	}()
	r := b.reader(t, Options{HedgeDelay: time.Millisecond})
	if err := readGuarded(t, r, b.part, 0, len(b.part)); err != nil {
		t.Error(err)
	}
}

// TestLateParityIsStillGood: the same, of a shard that nobody asked for by itself.
func TestLateParityIsStillGood(t *testing.T) {
	b := newHedgeBench(Geometry{2, 2, 1 << 10}, 4<<10)
	late := &gated{Bytes: b.files[2], gate: make(chan struct{})}
	empty := &gated{gate: make(chan struct{}), reached: make(chan struct{}, 1)}
	close(empty.gate)
	b.sources[0], b.sources[2], b.sources[3] = nil, late, empty
	go func() {
		<-empty.reached
		close(late.gate)
	}()
	r := b.reader(t, Options{HedgeDelay: time.Millisecond})
	if err := readGuarded(t, r, b.part, 0, len(b.part)); err != nil {
		t.Error(err)
	}
}

// TestDeafSourceIsWaitedFor: a source that does not heed ctx is overtaken, but
// ReadAt does not return before it: it could still write to dst.
func TestDeafSourceIsWaitedFor(t *testing.T) {
	for _, deafIsGood := range []bool{true, false} {
		b := newHedgeBench(Geometry{2, 2, 1 << 10}, 4<<10)
		file := bytes.Clone(b.files[0])
		if !deafIsGood {
			clear(file) // what it writes, late, is wrong
		}
		deaf := &gated{Bytes: file, gate: make(chan struct{}), deaf: true}
		parity := &gated{Bytes: b.files[2], gate: make(chan struct{}), reached: make(chan struct{}, 1)}
		close(parity.gate)
		b.sources[0], b.sources[2] = deaf, parity
		b.sources[3] = failing{errDrive}
		r := b.reader(t, Options{HedgeDelay: time.Millisecond})
		go func() {
			<-parity.reached
			close(deaf.gate)
		}()
		if err := readGuarded(t, r, b.part, 0, len(b.part)); err != nil {
			t.Fatal(err)
		}
		if n := deaf.under.Load(); n != 0 {
			t.Errorf("ReadAt returned while %d reads were under way", n)
		}
	}
}

// TestCancel: whatever the sources do, a read ends with ctx's error, and no read of
// a source is under way then.
func TestCancel(t *testing.T) {
	for _, hedge := range []time.Duration{0, time.Hour, time.Millisecond} {
		b := newHedgeBench(Geometry{2, 2, 1 << 10}, 4<<10)
		var all []*gated
		reached := make(chan struct{}, 8)
		for i := range b.sources {
			s := &gated{Bytes: b.files[i], gate: make(chan struct{}), reached: reached}
			all = append(all, s)
			b.sources[i] = s
		}
		r := b.reader(t, Options{HedgeDelay: hedge})
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			<-reached
			<-reached
			cancel()
		}()
		if err := r.ReadAt(ctx, make([]byte, len(b.part)), 0); !errors.Is(err, context.Canceled) {
			t.Errorf("hedge %v: %v, want context.Canceled", hedge, err)
		}
		for i, s := range all {
			if n := s.under.Load(); n != 0 {
				t.Errorf("hedge %v: source %d still read", hedge, i)
			}
		}
		for _, f := range r.AppendFaults(nil) {
			if f.Kind != FaultSlow {
				t.Errorf("hedge %v: %v, but it was the caller who gave up", hedge, f)
			}
		}
		// The Reader is as good as new.
		for _, s := range all {
			close(s.gate)
		}
		if err := readGuarded(t, r, b.part, 0, len(b.part)); err != nil {
			t.Errorf("hedge %v: read after a cancelled one: %v", hedge, err)
		}
	}
}

// TestHopelessReadDoesNotWait: when the shards cannot suffice any more, the slow
// ones are given up.
func TestHopelessReadDoesNotWait(t *testing.T) {
	b := newHedgeBench(Geometry{2, 1, 1 << 10}, 4<<10)
	b.sources[0] = &gated{Bytes: b.files[0], gate: make(chan struct{})}
	b.sources[1] = failing{errDrive}
	b.sources[2] = failing{errDrive}
	r := b.reader(t, Options{HedgeDelay: time.Hour})
	if err := readGuarded(t, r, b.part, 0, len(b.part)); !errors.Is(err, ErrQuorum) || !errors.Is(err, errDrive) {
		t.Errorf("%v, want ErrQuorum", err)
	}
}

func TestDetach(t *testing.T) {
	b := newHedgeBench(Geometry{2, 2, 1 << 10}, 16<<10)
	heap := newGuardedHeap(t)
	deaf := &gated{Bytes: b.files[0], gate: make(chan struct{}), deaf: true}
	d := Detach(deaf, heap)
	b.sources[0] = d
	r := b.reader(t, Options{HedgeDelay: time.Millisecond, Scratch: heap})
	// It hangs, and yet the read ends.
	if err := readGuarded(t, r, b.part, 0, len(b.part)); err != nil {
		t.Fatal(err)
	}
	if deaf.under.Load() != 1 {
		t.Fatal("the source under it does not hang")
	}
	checkSlow(t, r, 0)
	if _, err := d.ReadAt(context.Background(), make([]byte, 1), 0); !errors.Is(err, ErrSlow) {
		t.Errorf("a read beside the one that hangs: %v, want ErrSlow", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := d.Close(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrSlow) {
		t.Errorf("Close beside a read that hangs: %v", err)
	}
	close(deaf.gate)
	if err := d.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
	if _, err := d.ReadAt(context.Background(), make([]byte, 1), 0); !errors.Is(err, ErrClosed) {
		t.Errorf("read after Close: %v, want ErrClosed", err)
	}
	r.Close()
	heap.check()
}

func TestDetachedReadsAreTheSame(t *testing.T) {
	b := newHedgeBench(Geometry{3, 2, 1000}, 9999)
	heap := newGuardedHeap(t)
	var all []*Detached
	for i, s := range b.sources {
		d := Detach(s, heap)
		all = append(all, d)
		b.sources[i] = d
	}
	r := b.reader(t, Options{})
	for _, x := range [][2]int{{3, 1}, {0, 9999}, {999, 4000}} {
		if err := readGuarded(t, r, b.part, x[0], x[1]); err != nil {
			t.Errorf("%v: %v", x, err)
		}
	}
	if n, err := all[0].ReadAt(context.Background(), make([]byte, 10), b.p.FileSize()-3); n != 3 || err == nil {
		t.Errorf("read across the end: %d, %v", n, err)
	}
	for _, d := range all {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
	heap.check()
}

// TestDetachedRecovers: a source that came back is read again.
func TestDetachedRecovers(t *testing.T) {
	s := &gated{Bytes: []byte("abcdefgh"), gate: make(chan struct{}), deaf: true, reached: make(chan struct{}, 9)}
	d := Detach(s, nil)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-s.reached
		cancel()
	}()
	if _, err := d.ReadAt(ctx, make([]byte, 4), 0); !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled read: %v", err)
	}
	close(s.gate)
	p := make([]byte, 4)
	for {
		n, err := d.ReadAt(context.Background(), p, 2)
		if errors.Is(err, ErrSlow) {
			continue // not yet back
		}
		if n != 4 || err != nil || string(p) != "cdef" {
			t.Errorf("read %q, %v", p[:n], err)
		}
		break
	}
	if err := d.Close(context.Background()); err != nil {
		t.Error(err)
	}
}
