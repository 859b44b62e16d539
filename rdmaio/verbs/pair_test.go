// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package verbs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// pairRig is a fabric and a target of pairs.
type pairRig struct {
	f *Fabric
	t *PairTarget
}

func newPairRig(t *testing.T, o Options) pairRig {
	fo, to := devices(t)
	fo.Landing, fo.MaxPerOwner = o.Landing, o.MaxPerOwner
	x := pairRig{newFabric(t, fo), NewPairTarget(to)}
	t.Cleanup(func() {
		if err := x.t.Close(); err != nil {
			t.Errorf("close the target: %v", err)
		}
		eventually(t, "nothing is held", func() bool { return x.f.live() == 0 && x.f.landing.Load() == 0 })
	})
	return x
}

// prepare makes a pair of both ends.
func (x pairRig) prepare(t *testing.T, land int, note any) (rdmaio.PairEnd, rdmaio.PairWelcome) {
	t.Helper()
	ctx := context.Background()
	e, err := x.t.NewPair(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	h := e.Hello()
	h.Owner = "me"
	w, err := x.f.Pair(ctx, rdmaio.PairHello{Hello: h, Land: uint64(land), Note: note})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Connect(ctx, w); err != nil {
		t.Fatal(err)
	}
	return e, w
}

func (x pairRig) claim(t *testing.T, w rdmaio.PairWelcome) rdmaio.Pair {
	t.Helper()
	p, err := x.f.Claim(w.Session, "me")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func fill(p []byte, seed byte) {
	for i := range p {
		p[i] = byte(i)*31 + byte(i>>8) + seed
	}
}

func TestPairReceives(t *testing.T) {
	x := newPairRig(t, Options{})
	const n = 3<<20 + 77
	mem, err := x.t.Alloc(n, rdmaio.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	r, err := x.f.Register(memory(t, n))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	fill(r.Bytes(), 1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()

	e, w := x.prepare(t, 0, "note")
	if w.Addr != 0 || w.RKey != 0 {
		t.Error("there is memory to push into for a peer that receives")
	}
	p := x.claim(t, w)
	if p.Note() != "note" {
		t.Errorf("note %v", p.Note())
	}
	if _, err := x.f.Claim(w.Session, "me"); !errors.Is(err, rdmaio.ErrNoSession) {
		t.Errorf("claimed twice: error %v, want ErrNoSession", err)
	}
	l, err := p.Join(ctx, e.QPN(), describe(t, mem), 0xc0ffee42)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Write(ctx, rdmaio.Slice{Region: r, Len: n}, 0); err != nil {
		t.Fatal(err)
	}
	if err := l.Notify(ctx); err != nil {
		t.Fatal(err)
	}
	if err := e.Await(ctx, 0xc0ffee42); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(mem.Bytes(), r.Bytes()) {
		t.Error("other bytes have arrived")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := x.f.Unpair(w.Session, "me"); !errors.Is(err, rdmaio.ErrNoSession) {
		t.Errorf("unpair what has ended: error %v, want ErrNoSession", err)
	}
}

// A window that the peer did not give ends the transfer with an error; the next pair is
// not concerned.
func TestPairRefused(t *testing.T) {
	x := newPairRig(t, Options{})
	mem, err := x.t.Alloc(4096, rdmaio.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	r, err := x.f.Register(memory(t, 4096))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, good := range []bool{false, true} {
		e, w := x.prepare(t, 0, nil)
		d := describe(t, mem)
		if !good {
			d.RKey ^= 0x5a5a
		}
		l, err := x.claim(t, w).Join(ctx, e.QPN(), d, 7)
		if err != nil {
			t.Fatal(err)
		}
		err = l.Write(ctx, rdmaio.Slice{Region: r, Len: 4096}, 0)
		if err == nil {
			err = l.Notify(ctx)
		}
		if (err == nil) != good {
			t.Errorf("good key %v: error %v", good, err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestPairPushes(t *testing.T) {
	x := newPairRig(t, Options{})
	const n = 2<<20 + 5
	mem, err := x.t.Alloc(n+1, rdmaio.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	fill(mem.Bytes(), 9)
	r, err := x.f.Register(memory(t, n))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	const imm = 0x01020304
	for _, c := range []struct {
		name string
		n    int
		imm  uint32
		want error
	}{
		{"all", n, imm, nil},
		{"another word", n, imm + 1, rdmaio.ErrMalformed},
		{"too little", n - 1, imm, rdmaio.ErrMalformed},
		{"too much", n + 1, imm, rdmaio.ErrPeerGone}, // refused, and that ends the connection
	} {
		t.Run(c.name, func(t *testing.T) {
			clear(r.Bytes())
			e, w := x.prepare(t, n, nil)
			pushed := make(chan error, 1)
			go func() {
				pushed <- e.Push(ctx, mem, min(1, n+1-c.n), c.n, c.imm)
			}()
			p := x.claim(t, w)
			l, err := p.Join(ctx, e.QPN(), rdmaio.Descriptor{}, imm)
			if !errors.Is(err, c.want) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			perr := <-pushed
			if (perr == nil) != (c.n <= n) {
				t.Errorf("push: %v", perr)
			}
			if err != nil {
				return
			}
			if err := l.Read(ctx, rdmaio.Slice{Region: r, Len: n - 3}, 3); err != nil {
				t.Fatal(err)
			}
			if err := l.Fence(ctx); err != nil || !bytes.Equal(r.Bytes()[:n-3], mem.Bytes()[4:n+1]) {
				t.Errorf("other bytes have arrived (%v)", err)
			}
			if err := l.Read(ctx, rdmaio.Slice{Region: r, Len: 4}, n-3); !errors.Is(err, rdmaio.ErrOutOfBounds) {
				t.Errorf("read past the end: error %v, want ErrOutOfBounds", err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPairBounds(t *testing.T) {
	x := newPairRig(t, Options{Landing: 1 << 20, MaxPerOwner: 3})
	ctx := context.Background()
	ask := func(land uint64, owner string) error {
		e, err := x.t.NewPair(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		h := e.Hello()
		h.Owner = owner
		w, err := x.f.Pair(ctx, rdmaio.PairHello{Hello: h, Land: land})
		if err == nil {
			t.Cleanup(func() {
				if err := x.f.Unpair(w.Session, owner); err != nil {
					t.Error(err)
				}
			})
			if err := x.f.Unpair(w.Session, "somebody"); !errors.Is(err, rdmaio.ErrNotOwner) {
				t.Errorf("another's pair: error %v, want ErrNotOwner", err)
			}
			if _, err := x.f.Claim(w.Session, "somebody"); !errors.Is(err, rdmaio.ErrNotOwner) {
				t.Errorf("another's pair: error %v, want ErrNotOwner", err)
			}
		}
		return err
	}
	for i, c := range []struct {
		land  uint64
		owner string
		want  error
	}{
		{1<<20 + 1, "a", rdmaio.ErrOutOfBounds},
		{1 << 63, "a", rdmaio.ErrOutOfBounds},
		{1, "", rdmaio.ErrRefused},
		{1 << 19, "a", nil},
		{1<<19 + 1, "b", rdmaio.ErrTooMany},
		{1 << 19, "b", nil},
		{0, "a", nil},
		{0, "a", nil},
		{0, "a", rdmaio.ErrTooMany},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			if err := ask(c.land, c.owner); !errors.Is(err, c.want) {
				t.Errorf("%d bytes for %q: error %v, want %v", c.land, c.owner, err, c.want)
			}
		})
	}
}

// A peer that says nothing is waited for as long as the caller wants, and an end from
// elsewhere is the end.
func TestPairSilent(t *testing.T) {
	x := newPairRig(t, Options{})
	for _, how := range []string{"context", "unpair", "close"} {
		t.Run(how, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			e, w := x.prepare(t, 4096, nil)
			p := x.claim(t, w)
			failed := make(chan error, 1)
			go func() {
				_, err := p.Join(ctx, e.QPN(), rdmaio.Descriptor{}, 1)
				failed <- err
			}()
			time.AfterFunc(10*time.Millisecond, func() {
				switch how {
				case "context":
					cancel()
				case "unpair":
					x.f.Unpair(w.Session, "me")
				case "close":
					p.Close()
				}
			})
			select {
			case err := <-failed:
				if err == nil {
					t.Error("no error")
				}
			case <-time.After(patience):
				t.Fatal("did not end")
			}
			p.Close()
		})
	}
}
