// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// attempt joins one lane over a fresh connection.
func attempt(tb testing.TB, id rdmaio.SessionID, p place, lane int) (*net.TCPConn, error) {
	tb.Helper()
	c := dial(tb, p)
	return c, exchangeJoin(c, id, p, lane)
}

// closed waits for the other end to hang up.
func closed(tb testing.TB, c net.Conn) {
	tb.Helper()
	if _, err := io.ReadFull(c, make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		tb.Errorf("connection is still open: %v", err)
	}
}

func TestLanesAreAuthenticated(t *testing.T) {
	f := newFabric(t, quick())
	w := welcome(t, f)
	p := placeOf(t, w)
	other := welcome(t, f)
	wrong := p
	wrong.secret[15] ^= 1
	fewer, more := p, p
	fewer.lanes, more.lanes = 1, 3
	refuse := func(what string, id rdmaio.SessionID, p place, lane int) {
		t.Helper()
		c, err := attempt(t, id, p, lane)
		if !errors.Is(err, rdmaio.ErrNoSession) {
			t.Errorf("%s: error %v, want ErrNoSession", what, err)
		}
		hides(t, err, p.secret.Hex(), id.Hex())
		closed(t, c)
	}
	refuse("wrong secret, first lane", w.Session, wrong, 0)
	refuse("unknown session", rdmaio.NewSessionID(), p, 0)
	refuse("another session's secret", other.Session, p, 0)
	refuse("fewer lanes", w.Session, fewer, 0)
	refuse("more lanes", w.Session, more, 2)
	if _, err := attempt(t, w.Session, p, 0); err != nil {
		t.Fatalf("first lane: %v", err)
	}
	refuse("first lane again", w.Session, p, 0)
	refuse("wrong secret, second lane", w.Session, wrong, 1)
	if _, err := f.Open(context.Background(), rdmaio.Descriptor{Transport: rdmaio.TransportTCP, Session: w.Session, Size: 1}, testOwner); !errors.Is(err, rdmaio.ErrNoSession) {
		t.Errorf("open with a lane missing: error %v, want ErrNoSession", err)
	}
	if _, err := attempt(t, w.Session, p, 1); err != nil {
		t.Fatalf("second lane: %v", err)
	}
	l, err := f.Open(context.Background(), rdmaio.Descriptor{Transport: rdmaio.TransportTCP, Session: w.Session, Size: 1}, testOwner)
	if err != nil {
		t.Fatalf("open with all lanes: %v", err)
	}
	l.Close()
	refuse("a lane of a complete session", w.Session, p, 0)
}

// A join that was overheard is worth nothing on another connection, nor is one that
// names another lane.
func TestJoinIsNotReplayed(t *testing.T) {
	f := newFabric(t, quick())
	w := welcome(t, f)
	p := placeOf(t, w)
	greet := func() (*net.TCPConn, greeting) {
		c := dial(t, p)
		var b [greetingSize]byte
		if _, err := io.ReadFull(c, b[:]); err != nil {
			t.Fatal(err)
		}
		g, err := parseGreeting(&b)
		if err != nil {
			t.Fatal(err)
		}
		return c, g
	}
	say := func(c *net.TCPConn, j join) verdict {
		b := j.encode()
		c.Write(b[:])
		var vb [verdictSize]byte
		if _, err := io.ReadFull(c, vb[:]); err != nil {
			t.Fatal(err)
		}
		v, _ := parseVerdict(&vb)
		return v
	}
	c1, g1 := greet()
	j := join{session: w.Session, lane: 0, lanes: 2}
	j.proof = prove(p.secret[:], byTarget, g1, j, 0)
	c2, _ := greet()
	if v := say(c2, j); v != verdictNoSession {
		t.Errorf("replay on another connection: verdict %d", v)
	}
	moved := j
	moved.lane = 1
	c3, g3 := greet()
	moved.proof = prove(p.secret[:], byTarget, g3, j, 0)
	if v := say(c3, moved); v != verdictNoSession {
		t.Errorf("proof of another lane: verdict %d", v)
	}
	echo := j
	c4, g4 := greet()
	echo.proof = prove(p.secret[:], byInitiator, g4, j, 0)
	if v := say(c4, echo); v != verdictNoSession {
		t.Errorf("initiator's own proof: verdict %d", v)
	}
	if v := say(c1, j); v != verdictJoined {
		t.Errorf("the join itself: verdict %d", v)
	}
}

// Whoever only pretends to be the initiator does not get at the target's memory.
func TestTargetChecksInitiator(t *testing.T) {
	for what, c := range map[string]struct {
		talk func(net.Conn)
		want error
	}{
		"verdict without proof": {func(c net.Conn) {
			b := newGreeting().encode()
			c.Write(b[:])
			io.ReadFull(c, make([]byte, joinSize))
			v := encodeVerdict(verdictJoined, [32]byte{})
			c.Write(v[:])
		}, rdmaio.ErrRefused},
		"another version": {func(c net.Conn) {
			g := newGreeting()
			g.version = 2
			b := g.encode()
			c.Write(b[:])
		}, rdmaio.ErrUnsupported},
		"another protocol": {func(c net.Conn) { c.Write([]byte("220 mail.example ESMTP ready, how are you?")) }, rdmaio.ErrMalformed},
		"hangs up":         {func(net.Conn) {}, rdmaio.ErrPeerGone},
		"an unknown verdict": {func(c net.Conn) {
			b := newGreeting().encode()
			c.Write(b[:])
			io.ReadFull(c, make([]byte, joinSize))
			v := encodeVerdict(77, [32]byte{})
			c.Write(v[:])
		}, rdmaio.ErrMalformed},
	} {
		t.Run(what, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			done := make(chan struct{})
			go func() {
				defer close(done)
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				c.talk(conn)
				conn.Close()
			}()
			tgt := newTarget(t)
			p := place{lanes: 1, addr: ln.Addr().(*net.TCPAddr).AddrPort()}
			p.secret[0] = 0xab
			w := rdmaio.Welcome{Session: rdmaio.NewSessionID(), Token: p.encode()}
			err = tgt.Connect(context.Background(), w)
			if !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			hides(t, err, p.secret.Hex(), w.Session.Hex())
			<-done
		})
	}
}

func TestConnectIsBounded(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // and nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	p := place{lanes: 1, addr: ln.Addr().(*net.TCPAddr).AddrPort()}
	w := rdmaio.Welcome{Session: rdmaio.NewSessionID(), Token: p.encode()}
	o := quick()
	o.ConnectWithin = 50 * time.Millisecond
	tgt := NewTarget(o)
	defer tgt.Close()
	if err := tgt.Connect(context.Background(), w); !errors.Is(err, rdmaio.ErrPeerGone) {
		t.Errorf("nobody answers: error %v, want ErrPeerGone", err)
	}
	patient := newTarget(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := patient.Connect(ctx, w); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("context ends: error %v, want its own", err)
	}
}

// A peer that joins some of its lanes and no more is forgotten, and its lanes are
// closed.
func TestPartialLanesTimeOut(t *testing.T) {
	o := quick()
	o.ConnectWithin = 100 * time.Millisecond
	f := newFabric(t, o)
	w := welcome(t, f)
	p := placeOf(t, w)
	c, err := attempt(t, w.Session, p, 0)
	if err != nil {
		t.Fatal(err)
	}
	silent := dial(t, p) // says nothing at all
	closed(t, c)
	if _, err := attempt(t, w.Session, p, 1); !errors.Is(err, rdmaio.ErrNoSession) {
		t.Errorf("second lane, too late: error %v, want ErrNoSession", err)
	}
	io.ReadFull(silent, make([]byte, greetingSize))
	closed(t, silent)
	eventually(t, "nothing is held", func() bool { return f.live() == 0 })
}

func TestHangupBeforeConnect(t *testing.T) {
	o := quick()
	o.ConnectWithin = time.Hour
	f := newFabric(t, o)
	w := welcome(t, f)
	p := placeOf(t, w)
	c, err := attempt(t, w.Session, p, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Hangup(context.Background(), w.Session, testOwner); err != nil {
		t.Fatal(err)
	}
	closed(t, c)
	if _, err := attempt(t, w.Session, p, 1); !errors.Is(err, rdmaio.ErrNoSession) {
		t.Errorf("error %v, want ErrNoSession", err)
	}
}

func TestPeerAddresses(t *testing.T) {
	elsewhere := netip.MustParseAddr("192.0.2.1")
	nets := func(s ...string) (ps []netip.Prefix) {
		for _, s := range s {
			ps = append(ps, netip.MustParsePrefix(s))
		}
		return ps
	}
	for _, c := range []struct {
		what  string
		peer  netip.Addr
		allow []netip.Prefix
		want  error
	}{
		{"same address", loopback, nil, nil},
		{"same address, mapped", netip.MustParseAddr("::ffff:127.0.0.1"), nil, nil},
		{"another address", elsewhere, nil, rdmaio.ErrRefused},
		{"another address, allowed", elsewhere, nets("10.0.0.0/8", "127.0.0.0/8"), nil},
		{"same address, not allowed", loopback, nets("10.0.0.0/8"), rdmaio.ErrRefused},
	} {
		t.Run(c.what, func(t *testing.T) {
			o := quick()
			o.AllowPeers = c.allow
			f := newFabric(t, o)
			w, err := f.Accept(context.Background(), rdmaio.Hello{Token: "1", Owner: testOwner, Peer: c.peer, Local: loopback})
			if err != nil {
				t.Fatal(err)
			}
			err = newTarget(t).Connect(context.Background(), w)
			if !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
	f := newFabric(t, quick())
	for what, h := range map[string]rdmaio.Hello{
		"no peer":  {Token: "1", Local: loopback},
		"no token": {Peer: loopback, Local: loopback},
		"version":  {Token: "2", Peer: loopback, Local: loopback},
	} {
		want := map[string]error{"no peer": rdmaio.ErrRefused, "no token": rdmaio.ErrMalformed, "version": rdmaio.ErrUnsupported}[what]
		if _, err := f.Accept(context.Background(), h); !errors.Is(err, want) {
			t.Errorf("%s: error %v, want %v", what, err, want)
		}
	}
}

// Where a peer is sent is somewhere it can go.
func TestAdvertise(t *testing.T) {
	heard := netip.MustParseAddrPort("198.51.100.7:4444")
	for _, c := range []struct{ advertise, want string }{
		{"", "198.51.100.7:4444"},
		{"203.0.113.1", "203.0.113.1:4444"},
		{"203.0.113.1:99", "203.0.113.1:99"},
		{"2001:db8::1", "[2001:db8::1]:4444"},
		{"[2001:db8::1]:99", "[2001:db8::1]:99"},
		{"node7.example", "node7.example:4444"},
		{"node7.example:99", "node7.example:99"},
		{"0.0.0.0", ""}, {"[::]:99", ""}, {"a b", ""}, {":99", ""}, {"1.2.3.4:0", ""}, {"host:99999", ""},
	} {
		p, err := Options{Advertise: c.advertise}.advertised(heard)
		if c.want == "" {
			if err == nil {
				t.Errorf("%q: %s, want an error", c.advertise, p.target())
			}
			if _, err := (Options{Advertise: c.advertise}).withDefaults(); err == nil {
				t.Errorf("%q: taken as an option", c.advertise)
			}
			continue
		}
		if err != nil || p.target() != c.want {
			t.Errorf("%q: %s, %v, want %s", c.advertise, p.target(), err, c.want)
			continue
		}
		p.lanes = 3
		if again, err := parsePlace(p.encode()); err != nil || again != p {
			t.Errorf("%q: the welcome does not come back: %v", c.advertise, err)
		}
	}
	// A fabric on all addresses sends each peer to the one that it asked.
	o := quick()
	o.Listen = ":0"
	f := newFabric(t, o)
	w := welcome(t, f)
	if got := placeOf(t, w).addr; got != netip.AddrPortFrom(loopback, f.port) {
		t.Errorf("peer is sent to %v", got)
	}
	if err := newTarget(t).Connect(context.Background(), w); err != nil {
		t.Errorf("peer cannot go there: %v", err)
	}
	if _, err := f.Accept(context.Background(), rdmaio.Hello{Token: "1", Peer: loopback}); !errors.Is(err, rdmaio.ErrRefused) {
		t.Errorf("request's own address unknown: error %v, want ErrRefused", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for field, o := range map[string]Options{
		"Lanes":         {Lanes: maxLanes + 1},
		"MaxSessions":   {MaxSessions: -1},
		"MaxPerOwner":   {MaxPerOwner: -1},
		"MaxLinks":      {MaxLinks: -1},
		"ConnectWithin": {ConnectWithin: -1},
		"IdleAfter":     {IdleAfter: -1},
		"PeerTimeout":   {PeerTimeout: 48 * time.Hour},
		"FenceLimit":    {FenceLimit: -time.Second},
		"Listen":        {Listen: "nowhere"},
		"Advertise":     {Advertise: "a b"},
		"AllowPeers":    {AllowPeers: []netip.Prefix{{}}},
	} {
		f, err := New(o)
		if err == nil {
			f.Close()
			t.Errorf("%s: no error", field)
		} else if !strings.Contains(err.Error(), field) {
			t.Errorf("error %v does not name %s", err, field)
		}
	}
	taken := newFabric(t, quick())
	if _, err := New(Options{Listen: taken.Addr().String()}); err == nil || !strings.Contains(err.Error(), "Listen") {
		t.Errorf("port in use: error %v, want one that names Listen", err)
	}
	if _, err := NewTarget(Options{PeerTimeout: -1}).Hello(context.Background()); err == nil {
		t.Error("a target with bad options says hello")
	}
}

func TestBounds(t *testing.T) {
	o := quick()
	o.MaxLinks, o.MaxPerOwner = 2, 1
	f := newFabric(t, o)
	e := newEvilTarget(t, f)
	a, _ := e.open(f, 1), e.open(f, 1)
	d := rdmaio.Descriptor{Transport: rdmaio.TransportTCP, Session: e.id, Size: 1}
	if _, err := f.Open(context.Background(), d, testOwner); !errors.Is(err, rdmaio.ErrTooMany) {
		t.Errorf("third link: error %v, want ErrTooMany", err)
	}
	a.Close()
	l, err := f.Open(context.Background(), d, testOwner)
	if err != nil {
		t.Errorf("a link after one was closed: %v", err)
	} else {
		l.Close()
	}
	if _, err := f.Accept(context.Background(), rdmaio.Hello{Token: "1", Owner: testOwner, Peer: loopback, Local: loopback}); !errors.Is(err, rdmaio.ErrTooMany) {
		t.Errorf("second session of an owner: error %v, want ErrTooMany", err)
	}
}

// A session that nobody uses is ended, and the target learns of it.
func TestIdleSessionEnds(t *testing.T) {
	o := quick()
	o.IdleAfter = 50 * time.Millisecond
	f := newFabric(t, o)
	tgt := newTarget(t)
	if err := tgt.Connect(context.Background(), welcome(t, f)); err != nil {
		t.Fatal(err)
	}
	x := expose(t, tgt, 10, both)
	eventually(t, "target learns", func() bool {
		_, err := x.Describe(0, 1)
		return errors.Is(err, rdmaio.ErrNoSession)
	})
	eventually(t, "nothing is held", func() bool { return f.live() == 0 })
}

func TestIPv6(t *testing.T) {
	o := quick()
	o.Listen = "[::1]:0"
	f, err := New(o)
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	defer f.Close()
	six := netip.IPv6Loopback()
	w, err := f.Accept(context.Background(), rdmaio.Hello{Token: "1", Owner: testOwner, Peer: six, Local: six})
	if err != nil {
		t.Fatal(err)
	}
	if err := newTarget(t).Connect(context.Background(), w); err != nil {
		t.Error(err)
	}
}
