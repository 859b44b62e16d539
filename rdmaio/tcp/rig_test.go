// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/session"
)

// What the tests have in common: both ends of the protocol, by hand.

const testOwner = "tester"

var loopback = netip.MustParseAddr("127.0.0.1")

func mapped(tb testing.TB, n int) []byte {
	tb.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { unix.Munmap(b) })
	return b
}

func set(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// only fails the test if b has any other byte than v.
func only(tb testing.TB, what string, b []byte, v byte) {
	tb.Helper()
	for i, got := range b {
		if got != v {
			tb.Fatalf("%s: byte %d is %#x, want %#x", what, i, got, v)
		}
	}
}

func welcome(tb testing.TB, f *Fabric) rdmaio.Welcome {
	tb.Helper()
	w, err := f.Accept(context.Background(), rdmaio.Hello{Token: helloToken, Owner: testOwner, Peer: loopback, Local: loopback})
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

func placeOf(tb testing.TB, w rdmaio.Welcome) place {
	tb.Helper()
	p, err := parsePlace(w.Token)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func dial(tb testing.TB, p place) *net.TCPConn {
	tb.Helper()
	c, err := net.Dial("tcp", p.target())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c.(*net.TCPConn)
}

// evilTarget is a peer that has joined properly, and does what a test wants then.
type evilTarget struct {
	tb    testing.TB
	id    rdmaio.SessionID
	lanes []*net.TCPConn
}

func newEvilTarget(tb testing.TB, f *Fabric) *evilTarget {
	tb.Helper()
	w := welcome(tb, f)
	p := placeOf(tb, w)
	e := &evilTarget{tb: tb, id: w.Session}
	for i := range p.lanes {
		c := dial(tb, p)
		c.SetReadBuffer(64 << 10)
		if err := exchangeJoin(c, w.Session, p, i); err != nil {
			tb.Fatalf("join lane %d: %v", i, err)
		}
		e.lanes = append(e.lanes, c)
	}
	return e
}

// evilAddr is where a hostile target says that its memory starts: longer than any number
// that an error may show, so that finding it in one means a leak.
const evilAddr = 0xabcdef0000

func (e *evilTarget) open(f *Fabric, size int) *link {
	e.tb.Helper()
	d := rdmaio.Descriptor{Transport: rdmaio.TransportTCP, Session: e.id, Addr: evilAddr, Size: uint64(size), RKey: 7}
	l, err := f.Open(context.Background(), d, testOwner)
	if err != nil {
		e.tb.Fatal(err)
	}
	e.tb.Cleanup(func() { l.Close() })
	return l.(*link)
}

// request reads a request header from lane 0.
func (e *evilTarget) request() request {
	e.tb.Helper()
	var b [requestSize]byte
	if _, err := io.ReadFull(e.lanes[0], b[:]); err != nil {
		e.tb.Fatalf("read a request: %v", err)
	}
	r, err := parseRequest(&b)
	if err != nil {
		e.tb.Fatal(err)
	}
	return r
}

func (e *evilTarget) skip(n uint32) {
	e.tb.Helper()
	if _, err := io.CopyN(io.Discard, e.lanes[0], int64(n)); err != nil {
		e.tb.Fatalf("read a payload: %v", err)
	}
}

func (e *evilTarget) answer(a answer) {
	e.tb.Helper()
	var b [answerSize]byte
	a.put(&b)
	e.send(b[:])
}

// send writes b. The fabric may have had enough of it already and have reset the
// lane: what it then did is for the test to see at the other end.
func (e *evilTarget) send(b []byte) {
	e.tb.Helper()
	if _, err := e.lanes[0].Write(b); err != nil && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
		e.tb.Fatalf("send: %v", err)
	}
}

// evilInitiator listens, lets one target join properly, and does what a test wants
// then.
type evilInitiator struct {
	tb   testing.TB
	conn net.Conn
}

// newEvilInitiator returns it with the target t connected over one lane.
func newEvilInitiator(tb testing.TB, t *Target) *evilInitiator {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer ln.Close()
	p := place{secret: session.Secret{1, 2, 3}, lanes: 1, addr: ln.Addr().(*net.TCPAddr).AddrPort()}
	joined := make(chan error, 1)
	go func() {
		joined <- t.Connect(context.Background(), rdmaio.Welcome{Session: rdmaio.NewSessionID(), Token: p.encode()})
	}()
	c, err := ln.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	g := newGreeting()
	gb := g.encode()
	c.Write(gb[:])
	var jb [joinSize]byte
	if _, err := io.ReadFull(c, jb[:]); err != nil {
		tb.Fatal(err)
	}
	j, err := parseJoin(&jb)
	if err != nil {
		tb.Fatal(err)
	}
	vb := encodeVerdict(verdictJoined, prove(p.secret[:], byInitiator, g, j, verdictJoined))
	c.Write(vb[:])
	if err := <-joined; err != nil {
		tb.Fatal(err)
	}
	return &evilInitiator{tb: tb, conn: c}
}

func (e *evilInitiator) request(r request) {
	e.tb.Helper()
	var b [requestSize]byte
	r.put(&b)
	e.send(b[:])
}

func (e *evilInitiator) send(b []byte) {
	e.tb.Helper()
	if _, err := e.conn.Write(b); err != nil {
		e.tb.Fatalf("send: %v", err)
	}
}

func (e *evilInitiator) answer() answer {
	e.tb.Helper()
	var b [answerSize]byte
	if _, err := io.ReadFull(e.conn, b[:]); err != nil {
		e.tb.Fatalf("read an answer: %v", err)
	}
	a, err := parseAnswer(&b)
	if err != nil {
		e.tb.Fatal(err)
	}
	return a
}

// eventually waits for what other goroutines bring about.
func eventually(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	for end := time.Now().Add(15 * time.Second); !cond(); time.Sleep(200 * time.Microsecond) {
		if time.Now().After(end) {
			tb.Fatalf("not in time: %s", what)
		}
	}
}

// hides fails the test if err shows any of the secrets.
func hides(tb testing.TB, err error, secrets ...string) {
	tb.Helper()
	for _, s := range secrets {
		if err != nil && s != "" && strings.Contains(err.Error(), s) {
			tb.Errorf("error shows a secret: %v", err)
		}
	}
}
