// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// clock is a time that only moves when told.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// sessionTest is a client with a clock, and what the connects are answered with.
type sessionTest struct {
	*fakeServer
	t     *testing.T
	c     *Client
	clock *clock
	buf   *Buffer
	tries int
	how   func(w http.ResponseWriter) bool
}

func newSessionTest(t *testing.T, o Options) *sessionTest {
	s := &sessionTest{fakeServer: newFakeServer(t), t: t, clock: &clock{t: time.Now()}}
	s.hook = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/.s3rdma-shm/connect" {
			return false
		}
		s.tries++
		return s.how != nil && s.how(w)
	}
	s.c = s.client(o)
	s.c.now = s.clock.now
	s.buf = mustAlloc(t, s.c, 100)
	return s
}

// put wants the bytes to go this way, after so many connects in all.
func (s *sessionTest) put(want Route, tries int) {
	s.t.Helper()
	res, err := s.c.Put(s.t.Context(), "b", "k", s.buf.All(), PutOptions{})
	if err != nil || res.Route != want {
		s.t.Errorf("route %v, error %v; want %v", res.Route, err, want)
	}
	if s.tries != tries {
		s.t.Errorf("%d connects so far, want %d", s.tries, tries)
	}
}

func status(code int) func(w http.ResponseWriter) bool {
	return func(w http.ResponseWriter) bool {
		fail(w, code, "Code", "about "+fakeHello)
		return true
	}
}

// TestUnsupported: a server that has never heard of connecting is left alone for a
// while, and served by HTTP.
func TestUnsupported(t *testing.T) {
	for _, code := range []int{400, 404, 405, 501} {
		s := newSessionTest(t, Options{})
		s.how = status(code)
		s.put(HTTPNoSession, 1)
		s.clock.advance(59 * time.Second)
		s.put(HTTPNoSession, 1)
		if _, err := s.c.Put(t.Context(), "b", "k", s.buf.All(), PutOptions{Force: ForceFabric}); !errors.Is(err, ErrNoFabric) {
			t.Errorf("by the fabric only: %v", err)
		}
		s.clock.advance(2 * time.Second)
		s.how = nil
		s.put(Fabric, 2)
		if n := s.target.counted(); n != 0 {
			t.Errorf("%d rekeys for requests that never bore a descriptor", n)
		}
	}
}

// TestConnectFails: attempts are spaced out more and more; an explicit one is not
// held back.
func TestConnectFails(t *testing.T) {
	s := newSessionTest(t, Options{})
	s.how = status(403)
	s.put(HTTPNoSession, 1)
	s.put(HTTPNoSession, 1)
	tries := 1
	for _, wait := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		s.clock.advance(wait*time.Second - time.Millisecond)
		s.put(HTTPNoSession, tries)
		s.clock.advance(time.Millisecond)
		tries++
		s.put(HTTPNoSession, tries)
	}
	err := s.c.Connect(t.Context())
	if !errors.Is(err, ErrAccessDenied) || strings.Contains(err.Error(), fakeHello) {
		t.Errorf("connect: %v", err)
	}
	if s.tries != tries+1 {
		t.Errorf("%d connects, want %d", s.tries, tries+1)
	}
	s.how = nil
	if err := s.c.Connect(t.Context()); err != nil {
		t.Error(err)
	}
	s.put(Fabric, tries+2)
	if err := s.c.Connect(t.Context()); err != nil || s.tries != tries+2 {
		t.Errorf("connect with an open session: %v, %d connects", err, s.tries)
	}
}

// TestBadWelcome: an answer that is none opens no session.
func TestBadWelcome(t *testing.T) {
	id := strings.Repeat("ab", 16)
	for name, h := range map[string][3]string{
		"no headers":   {"", "", ""},
		"short id":     {id[1:], "200:w", ""},
		"upper case":   {strings.ToUpper(id), "200:w", ""},
		"zero id":      {strings.Repeat("0", 32), "200:w", ""},
		"no reply":     {id, "", ""},
		"other reply":  {id, "201:w", ""},
		"long psn":     {id, "200:w", "0000001"},
		"psn not hex":  {id, "200:w", "00000g"},
		"reply as 501": {id, "501", ""},
	} {
		s := newSessionTest(t, Options{})
		s.how = func(w http.ResponseWriter) bool {
			for i, header := range []string{headerSession, headerReply, headerPSN} {
				if h[i] != "" {
					w.Header().Set(header, h[i])
				}
			}
			return true
		}
		err := s.c.Connect(t.Context())
		if !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrNoFabric) || strings.Contains(err.Error(), id[1:]) {
			t.Errorf("%s: %v", name, err)
		}
		if s.target.connects != 0 {
			t.Errorf("%s: the target was connected", name)
		}
	}
}

// TestTargetConnectFails: a session that the target cannot complete is given back.
func TestTargetConnectFails(t *testing.T) {
	s := newSessionTest(t, Options{})
	s.target.connErr = rdmaio.ErrPeerGone
	if err := s.c.Connect(t.Context()); !errors.Is(err, rdmaio.ErrPeerGone) {
		t.Errorf("connect: %v", err)
	}
	if s.leaves != 1 || len(s.sessions) != 0 {
		t.Errorf("%d disconnects, %d sessions left", s.leaves, len(s.sessions))
	}
}

// TestLostSession: a server that was started anew declines twice, then there is a
// new session; a server that keeps declining is not asked for one all the time.
func TestLostSession(t *testing.T) {
	s := newSessionTest(t, Options{})
	s.put(Fabric, 1)
	s.clock.advance(time.Minute)
	clear(s.sessions) // the server forgets
	s.put(HTTPDeclined, 1)
	s.put(HTTPDeclined, 1)
	s.put(Fabric, 2)

	// One decline between successes is about the object.
	inner := s.hook
	decline := false
	s.hook = func(w http.ResponseWriter, r *http.Request) bool {
		if decline && r.Method == http.MethodPut && r.Header.Get(headerToken) != "" {
			w.Header().Set(headerReply, "501")
			fail(w, 501, "NotImplemented", "not this one")
			return true
		}
		return inner(w, r)
	}
	s.clock.advance(time.Minute)
	for range 5 {
		decline = true
		s.put(HTTPDeclined, 2)
		decline = false
		s.put(Fabric, 2)
	}
	// For a while every request is declined: 1 s, 2 s, 4 s ... between connects.
	decline = true
	s.put(HTTPDeclined, 2)
	s.put(HTTPDeclined, 2)
	s.put(HTTPDeclined, 3)
	s.put(HTTPDeclined, 3)
	s.put(HTTPDeclined, 3) // too early
	s.clock.advance(time.Second)
	s.put(HTTPDeclined, 4)
	s.put(HTTPDeclined, 4)
	s.clock.advance(time.Second)
	s.put(HTTPDeclined, 4) // too early
	s.clock.advance(time.Second)
	s.put(HTTPDeclined, 5)
	if st := s.c.Stats(); st.Declined == 0 || st.Connects != 5 {
		t.Errorf("stats %+v", st)
	}
}

// TestServerSaysNoSession: a server with a word of its own for a lost session is
// connected to again after one decline.
func TestServerSaysNoSession(t *testing.T) {
	s := newSessionTest(t, Options{})
	s.noSession = codeNoSession
	s.put(Fabric, 1)
	s.clock.advance(time.Minute)
	clear(s.sessions)
	s.put(HTTPDeclined, 1)
	s.put(Fabric, 2)
}

// TestTargetLostSession: the target knows first.
func TestTargetLostSession(t *testing.T) {
	s := newSessionTest(t, Options{})
	s.put(Fabric, 1)
	s.target.session = rdmaio.SessionID{}
	s.put(HTTPNoSession, 1)
	s.put(HTTPNoSession, 1)
	s.clock.advance(time.Second)
	s.put(Fabric, 2)
	s.clock.advance(time.Minute)
	s.target.session = rdmaio.SessionID{}
	s.put(Fabric, 3)
}

// TestCredentialsChange: a session belongs to the access key that opened it.
func TestCredentialsChange(t *testing.T) {
	name := "alice-1"
	s := newSessionTest(t, Options{Credentials: func(context.Context) (Credentials, error) {
		return Credentials{AccessKey: name, SecretKey: "s"}, nil
	}})
	s.put(Fabric, 1)
	name = "alice-2"
	s.put(Fabric, 2)
	if got := (Credentials{AccessKey: "a", SecretKey: "hidden"}); strings.Contains(got.GoString()+got.String(), "hidden") {
		t.Error("credentials show the secret")
	}
}

// TestWaiters: those who wait for a connect can give up; the connect goes on for
// the others.
func TestWaiters(t *testing.T) {
	s := newSessionTest(t, Options{})
	begun, gate := make(chan struct{}), make(chan struct{})
	s.how = func(w http.ResponseWriter) bool {
		close(begun)
		<-gate
		return false
	}
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error)
	go func() { first <- s.c.Connect(ctx) }()
	<-begun
	second := make(chan error)
	go func() { second <- s.c.Connect(t.Context()) }()
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("first: %v", err)
	}
	close(gate)
	if err := <-second; err != nil {
		t.Errorf("second: %v", err)
	}
	if s.tries != 1 {
		t.Errorf("%d connects, want 1", s.tries)
	}
}

// TestCloseDuringConnect ends the attempt.
func TestCloseDuringConnect(t *testing.T) {
	s := newSessionTest(t, Options{})
	begun := make(chan struct{})
	s.hook = func(w http.ResponseWriter, r *http.Request) bool {
		io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/.s3rdma-shm/connect" {
			close(begun)
			<-r.Context().Done()
			return true
		}
		return false
	}
	done := make(chan error)
	go func() { done <- s.c.Connect(t.Context()) }()
	<-begun
	if err := s.c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, ErrClosed) && !errors.Is(err, context.Canceled) {
		t.Errorf("connect: %v", err)
	}
}
