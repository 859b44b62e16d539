// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

// fakeEndpoint is a device whose completions a test makes. The queue's lock guards it.
type fakeEndpoint struct {
	q          *queue
	posted     []request // in flight, from first
	first      uint64
	lives      int // restarts
	failed     bool
	slow       bool // restarts take longer
	hopeless   bool // and are not possible
	deaths     int
	done       []ibv.WC
	posts      int
	armed, any bool
	hook       func() // after each post, with the lock held
}

func (e *fakeEndpoint) post(rs []request, first uint64) (int, error) {
	e.posts++
	if len(e.posted) == 0 {
		e.first = first
	}
	e.posted = append(e.posted, rs...)
	if e.failed {
		e.flush()
	} else if e.hook != nil {
		e.hook()
	}
	return len(rs), nil
}

func (e *fakeEndpoint) poll(wc []ibv.WC) (int, error) {
	n := copy(wc, e.done)
	e.done = e.done[n:]
	return n, nil
}

func (e *fakeEndpoint) own(*ibv.WC) bool { return true }
func (e *fakeEndpoint) other(*ibv.WC)    {}
func (e *fakeEndpoint) canRestart() bool { return !e.hopeless }
func (e *fakeEndpoint) died()            { e.deaths++ }

func (e *fakeEndpoint) arm(all bool) error {
	e.armed, e.any = true, all
	return nil
}

func (e *fakeEndpoint) fail() error {
	e.failed = true
	e.flush()
	return nil
}

func (e *fakeEndpoint) restart() (bool, error) {
	if e.hopeless {
		return false, rdmaio.ErrPeerGone
	}
	if len(e.posted) > 0 {
		panic("restarted with requests in flight")
	}
	e.lives++
	e.failed = false
	return !e.slow, nil
}

// flush completes all that is in flight, as a queue pair in error does.
func (e *fakeEndpoint) flush() {
	for len(e.posted) > 0 {
		e.complete(1, ibv.WCFlush)
	}
}

// complete completes the first n requests in flight; only the last of them is told.
func (e *fakeEndpoint) complete(n int, status int32) {
	e.done = append(e.done, ibv.WC{ID: e.first + uint64(n) - 1, Status: status})
	e.posted = e.posted[n:]
	e.first += uint64(n)
	if e.armed && e.any {
		e.armed = false
		go e.q.event()
	}
}

// with runs f with the queue's lock.
func (e *fakeEndpoint) with(f func()) {
	e.q.mu.Lock()
	defer e.q.mu.Unlock()
	f()
}

// fakeOwner has one region of 1 GiB that does not exist.
type fakeOwner struct {
	opt      Options
	released atomic.Int32
}

type fakeRegion []byte

func (r fakeRegion) Bytes() []byte { return r }
func (r fakeRegion) Close() error  { return nil }

func (o *fakeOwner) key(rdmaio.Region, int) (uint32, error) { return 77, nil }
func (o *fakeOwner) release(*link)                          { o.released.Add(1) }
func (o *fakeOwner) options() *Options                      { return &o.opt }

func newFake(t *testing.T, depth int) (*fakeEndpoint, func() *link, rdmaio.Region) {
	t.Helper()
	o := &fakeOwner{}
	o.opt, _ = Options{FenceLimit: 40 * time.Millisecond}.withDefaults()
	q := new(queue)
	e := &fakeEndpoint{q: q}
	q.init(e, depth, 0)
	d := rdmaio.Descriptor{Transport: rdmaio.TransportRC, Addr: 1 << 40, Size: rdmaio.MaxWindow, RKey: 5}
	open := func() *link {
		l, err := newLink(q, o, 0, d, nil)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	return e, open, fakeRegion(make([]byte, 8<<20))
}

func fenced(l *link) <-chan error {
	c := make(chan error, 1)
	go func() { c <- l.Fence(context.Background()) }()
	return c
}

func ended(t *testing.T, c <-chan error) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(patience):
		t.Fatalf("did not end within %v", patience)
		return nil
	}
}

func TestQueueCutsAndChains(t *testing.T) {
	e, open, r := newFake(t, 16)
	l := open()
	const n = 3*chunkSize + 5
	if err := l.Write(context.Background(), rdmaio.Slice{Region: r, Off: 7, Len: n}, 100); err != nil {
		t.Fatal(err)
	}
	e.with(func() {
		if e.posts != 1 || len(e.posted) != 4 {
			t.Fatalf("%d requests in %d posts, want 4 in 1", len(e.posted), e.posts)
		}
		at, local, left := uint64(1<<40+100), addressOf(r.Bytes())+7, n
		for i, p := range e.posted {
			want := request{link: l, op: ibv.WRWrite, local: local, length: uint32(min(left, chunkSize)), lkey: 77, remote: at, rkey: 5}
			if p != want {
				t.Errorf("request %d is %+v, want %+v", i, p, want)
			}
			at, local, left = at+uint64(p.length), local+uint64(p.length), left-int(p.length)
		}
		e.complete(4, ibv.WCSuccess)
	})
	if err := ended(t, fenced(l)); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// A post larger than the queue waits for room.
func TestQueueFull(t *testing.T) {
	e, open, r := newFake(t, 2)
	l := open()
	e.hook = func() {
		go e.with(func() {
			if n := len(e.posted); n > 2 {
				t.Errorf("%d requests in flight in a queue of 2", n)
			} else if n > 0 {
				e.complete(n, ibv.WCSuccess)
			}
		})
	}
	if err := l.Read(context.Background(), rdmaio.Slice{Region: r, Len: 7 << 20}, 0); err != nil {
		t.Fatal(err)
	}
	if err := ended(t, fenced(l)); err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// A refused transfer ends its own link; what it took along of another's is repeated.
func TestQueueRepeats(t *testing.T) {
	for _, slow := range []bool{false, true} {
		e, open, r := newFake(t, 16)
		e.slow = slow
		bad, good := open(), open()
		ctx := context.Background()
		for _, step := range []error{
			good.Write(ctx, rdmaio.Slice{Region: r, Len: 1}, 1),
			bad.Write(ctx, rdmaio.Slice{Region: r, Len: 1}, 2),
			good.Write(ctx, rdmaio.Slice{Region: r, Len: 1}, 3),
			bad.Write(ctx, rdmaio.Slice{Region: r, Len: 1}, 4),
			good.Read(ctx, rdmaio.Slice{Region: r, Len: 1}, 5),
		} {
			if step != nil {
				t.Fatal(step)
			}
		}
		e.with(func() {
			e.complete(1, ibv.WCSuccess)
			e.complete(1, ibv.WCRemAccess)
			e.flush()
		})
		if err := ended(t, fenced(bad)); !errors.Is(err, rdmaio.ErrStaleKey) {
			t.Errorf("slow %v: refused link: error %v, want ErrStaleKey", slow, err)
		}
		f := fenced(good)
		e.with(func() {
			if slow {
				if len(e.posted) != 0 {
					t.Errorf("%d requests posted before the restart was over", len(e.posted))
				}
				e.q.restarted()
			}
			if e.lives != 1 || len(e.posted) != 2 || e.posted[0].remote != 1<<40+3 || e.posted[1].remote != 1<<40+5 {
				t.Fatalf("slow %v: %d lives, %d requests repeated, want the other link's 2", slow, e.lives, len(e.posted))
			}
			e.complete(2, ibv.WCSuccess)
		})
		if err := ended(t, f); err != nil {
			t.Errorf("slow %v: other link: %v", slow, err)
		}
		bad.Close()
		good.Close()
	}
}

// No answer: once is forgiven if the peer is there, twice is not.
func TestQueueSilence(t *testing.T) {
	e, open, r := newFake(t, 16)
	l := open()
	if err := l.Write(context.Background(), rdmaio.Slice{Region: r, Len: 1}, 0); err != nil {
		t.Fatal(err)
	}
	f := fenced(l)
	for i := range 2 {
		e.with(func() {
			if len(e.posted) != 1 {
				t.Fatalf("try %d: %d requests in flight, want 1", i, len(e.posted))
			}
			e.complete(1, ibv.WCRetryExc)
			e.q.poll()
		})
	}
	if err := ended(t, f); !errors.Is(err, rdmaio.ErrPeerGone) {
		t.Errorf("error %v, want ErrPeerGone", err)
	}
	l.Close()
}

func TestQueueHopeless(t *testing.T) {
	e, open, r := newFake(t, 16)
	e.hopeless = true
	a, b := open(), open()
	for _, l := range []*link{a, b} {
		if err := l.Write(context.Background(), rdmaio.Slice{Region: r, Len: 1}, 0); err != nil {
			t.Fatal(err)
		}
	}
	fa, fb := fenced(a), fenced(b)
	e.with(func() {
		e.complete(1, ibv.WCRemAccess)
		e.q.poll()
	})
	if err := ended(t, fa); !errors.Is(err, rdmaio.ErrStaleKey) {
		t.Errorf("refused link: error %v, want ErrStaleKey", err)
	}
	if err := ended(t, fb); !errors.Is(err, rdmaio.ErrPeerGone) {
		t.Errorf("other link: error %v, want ErrPeerGone", err)
	}
	if e.deaths != 1 {
		t.Errorf("died %d times", e.deaths)
	}
	a.Close()
	b.Close()
}

// A cancelled fence that has to cut off what is in flight returns only when the peer
// has taken part in the restart: before that, packets may be under way.
func TestQueueForcedFence(t *testing.T) {
	e, open, r := newFake(t, 16)
	e.slow = true
	l := open()
	l.owner.options().FenceLimit = 4 * time.Second // half of it is for us to play the peer
	if err := l.Write(context.Background(), rdmaio.Slice{Region: r, Len: 1}, 0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	got := make(chan error, 1)
	go func() { got <- l.Fence(ctx) }()
	eventually(t, "the queue waits for the peer", func() (restarted bool) {
		e.with(func() {
			if restarted = e.q.state == restarting; restarted {
				select {
				case <-got:
					t.Error("the fence did not wait for the peer")
				default:
				}
				if l.inflight != 1 {
					t.Errorf("%d in flight while packets may be under way, want 1", l.inflight)
				}
				e.q.restarted()
				e.q.tell()
			}
		})
		return restarted
	})
	if err := ended(t, got); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	e.with(func() {
		if len(e.posted) != 0 {
			t.Error("a cancelled request was repeated")
		}
	})
	l.Close()
}

// And if the peer does not, the connection dies, and the fence takes a bounded time.
func TestQueueForcedFenceDeadPeer(t *testing.T) {
	e, open, r := newFake(t, 16)
	e.slow = true
	l, other := open(), open()
	for _, x := range []*link{l, other} {
		if err := x.Write(context.Background(), rdmaio.Slice{Region: r, Len: 1}, 0); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	got := make(chan error, 1)
	go func() { got <- l.Fence(ctx) }()
	if err := ended(t, got); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	if err := ended(t, fenced(other)); !errors.Is(err, rdmaio.ErrPeerGone) {
		t.Errorf("other link: error %v, want ErrPeerGone", err)
	}
	l.Close()
	other.Close()
}

func TestQueueShut(t *testing.T) {
	e, open, r := newFake(t, 16)
	l := open()
	if err := l.Write(context.Background(), rdmaio.Slice{Region: r, Len: 1}, 0); err != nil {
		t.Fatal(err)
	}
	f := fenced(l)
	if !e.q.shut(rdmaio.ErrNoSession, time.Second) {
		t.Error("not drained")
	}
	if err := ended(t, f); !errors.Is(err, rdmaio.ErrNoSession) {
		t.Errorf("error %v, want ErrNoSession", err)
	}
	if err := l.Write(context.Background(), rdmaio.Slice{Region: r, Len: 1}, 0); !errors.Is(err, rdmaio.ErrLinkDown) {
		t.Errorf("later post: error %v, want ErrLinkDown", err)
	}
	l.Close()
}
