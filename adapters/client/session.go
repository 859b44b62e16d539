// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// session is the connection of the client's target to the server. It is opened at
// first use, by one goroutine for all who wait, and opened anew when it seems lost;
// attempts are spaced out, and meanwhile there is none.
type session struct {
	c *Client

	mu     sync.Mutex
	live   bool
	id     rdmaio.SessionID
	owner  string    // the access key that connected
	gen    uint64    // counts sessions
	opened time.Time // zero if the last attempt failed

	// declines counts answers that declined a descriptor of this session, since
	// the last success.
	declines int

	notBefore time.Time     // no attempt earlier
	delay     time.Duration // between this attempt and the next
	err       error         // why the last attempt failed

	attempt *attempt       // under way, or nil
	running sync.WaitGroup // its goroutine
	closed  bool
}

// attempt is a connect under way.
type attempt struct {
	done chan struct{}
	err  error // valid once done is closed
}

// Two declines without a success between them are taken for a lost session. One
// may be about the object: encrypted with a customer's key, for example.
const lostAfterDeclines = 2

// codeNoSession is the error code of a server that says so itself.
const codeNoSession = "NoSuchRDMASession"

const maxReconnect = time.Minute

func (s *session) init(c *Client) {
	s.c = c
	s.delay = c.opt.Reconnect
}

// Connect opens the session with the server now, instead of at first use, and says
// why it cannot be opened. It does not wait for the time between two attempts.
// With a session that is open already it does nothing. ErrNoFabric means that the
// server speaks no such thing, or that the client has no target.
func (c *Client) Connect(ctx context.Context) error {
	ctx, leave, err := c.enter(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer leave()
	if c.target == nil {
		return fmt.Errorf("connect: the client has no target: %w", ErrNoFabric)
	}
	if c.pairs != nil {
		return c.pairing.may(c.now()) // there is no session
	}
	_, err = c.session.ensure(ctx, true)
	return err
}

// ensure returns the generation of a session that is believed to be live, and opens
// one if it may (now: even if it should wait).
func (s *session) ensure(ctx context.Context, now bool) (gen uint64, err error) {
	cred, err := s.c.opt.Credentials(ctx)
	if err != nil {
		return 0, fmt.Errorf("connect: get credentials: %w", err)
	}
	s.mu.Lock()
	for {
		if s.closed {
			s.mu.Unlock()
			return 0, fmt.Errorf("connect: client: %w", ErrClosed)
		}
		if s.live && s.owner == cred.AccessKey && (s.declines < lostAfterDeclines || s.c.now().Before(s.notBefore)) {
			gen = s.gen
			s.mu.Unlock()
			return gen, nil
		}
		if s.attempt != nil {
			break
		}
		if !now && !s.live && s.c.now().Before(s.notBefore) {
			err := s.err
			s.mu.Unlock()
			return 0, fmt.Errorf("connect: not tried again yet: %w", err)
		}
		s.start()
	}
	a := s.attempt
	s.mu.Unlock()

	select {
	case <-a.done:
	case <-ctx.Done():
		return 0, fmt.Errorf("connect: %w", context.Cause(ctx))
	}
	if a.err != nil {
		return 0, a.err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gen, nil
}

// start begins an attempt. s.mu is held. The attempt belongs to the client, not to
// the request that wanted it: others wait for it too.
func (s *session) start() {
	a := &attempt{done: make(chan struct{})}
	s.attempt = a
	// A session that lasted is no reason to wait long for the next one.
	if !s.opened.IsZero() && s.c.now().Sub(s.opened) > 4*s.delay {
		s.delay = s.c.opt.Reconnect
	}
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		id, owner, err := s.connect()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.attempt = nil
		s.live, s.id, s.owner, s.err = err == nil, id, owner, err
		s.declines = 0
		wait := s.delay
		s.delay = min(2*s.delay, maxReconnect)
		if err == nil {
			s.gen++
			s.opened = s.c.now()
			s.c.stats.connects.Add(1)
		} else {
			s.opened = time.Time{}
			s.c.stats.connectFailures.Add(1)
			if errors.Is(err, errUnsupported) {
				wait = s.c.opt.Unsupported
			}
		}
		s.notBefore = s.c.now().Add(wait)
		a.err = err
		close(a.done)
	}()
}

// errUnsupported is a connect that was answered as by a server that has never heard
// of it.
var errUnsupported = fmt.Errorf("the server opens no sessions: %w", ErrNoFabric)

// connect does the two steps: the signed request, and the target's own part.
func (s *session) connect() (rdmaio.SessionID, string, error) {
	var none rdmaio.SessionID
	c := s.c
	ctx, cancel := context.WithTimeoutCause(c.life, c.opt.ConnectTimeout,
		fmt.Errorf("no session within %v: %w", c.opt.ConnectTimeout, context.DeadlineExceeded))
	defer cancel()
	hello, err := c.target.Hello(ctx)
	if err != nil {
		return none, "", fmt.Errorf("connect: %s target: %w", c.target.Name(), err)
	}
	// The key that the request is signed with is the session's owner, so it must be
	// asked for once only.
	cred, err := c.opt.Credentials(ctx)
	if err != nil {
		return none, "", fmt.Errorf("connect: get credentials: %w", err)
	}

	k := newCall("Connect", http.MethodPost, "", "")
	k.path = s.path("connect")
	k.set(headerToken, hello.Token)
	if hello.PSN != 0 {
		k.set(headerPSN, fmt.Sprintf("%06x", hello.PSN))
	}
	resp, err := c.sendAs(ctx, k, &cred)
	if err != nil {
		return none, "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		err := error(answerError(k, resp, hello.Token))
		switch resp.StatusCode {
		case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
			err = fmt.Errorf("%w: %w", errUnsupported, err)
		}
		return none, "", err
	}
	welcome, err := parseWelcome(resp.Header)
	if err != nil {
		return none, "", fmt.Errorf("connect: %s answered 200: %w", c.endpoint.Host, err)
	}
	if err := c.target.Connect(ctx, welcome); err != nil {
		s.disconnect(welcome.Session)
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(err, cause)
		}
		return none, "", fmt.Errorf("connect: %s target: %w", c.target.Name(), err)
	}
	return welcome.Session, cred.AccessKey, nil
}

// parseWelcome reads the answer to a connect. Errors show no value.
func parseWelcome(h http.Header) (rdmaio.Welcome, error) {
	var w rdmaio.Welcome
	id := h.Get(headerSession)
	if id == "" {
		return w, fmt.Errorf("no %s header: %w", headerSession, errUnsupported)
	}
	var err error
	if w.Session, err = rdmaio.ParseSessionID(id); err != nil {
		return w, fmt.Errorf("header %s: %w: %w", headerSession, ErrProtocol, err)
	}
	token, ok := strings.CutPrefix(h.Get(headerReply), "200:")
	if !ok || w.Session.IsZero() {
		return w, fmt.Errorf("header %s does not begin with 200:, or the session is all zeros: %w", headerReply, ErrProtocol)
	}
	w.Token = token
	if psn := h.Get(headerPSN); psn != "" {
		v, err := strconv.ParseUint(psn, 16, 24)
		if err != nil || len(psn) != 6 {
			return w, fmt.Errorf("header %s is not six hex digits: %w", headerPSN, ErrProtocol)
		}
		w.PSN = uint32(v)
	}
	return w, nil
}

func (s *session) path(step string) string { return "/.s3rdma-" + s.c.target.Name() + "/" + step }

// disconnect tells the server that a session is over. It does its best: a server
// that does not hear it forgets the session by itself.
func (s *session) disconnect(id rdmaio.SessionID) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	k := newCall("Disconnect", http.MethodPost, "", "")
	k.path = s.path("disconnect")
	k.set(headerSession, id.Hex())
	if resp, err := s.c.send(ctx, k); err == nil {
		resp.Body.Close()
	}
}

// worked notes that the fabric of this generation moved bytes.
func (s *session) worked(gen uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gen == gen {
		s.declines = 0
	}
}

// declined notes that a descriptor of this generation was declined, and whether
// the server said that it has no such session.
func (s *session) declined(gen uint64, noSession bool) {
	s.c.stats.declined.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gen == gen {
		s.declines++
		if noSession {
			s.declines = lostAfterDeclines
		}
	}
}

// lost notes that the target has no session of this generation any more.
func (s *session) lost(gen uint64, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gen == gen && s.live {
		s.live, s.err = false, why
	}
}

// replaced tells whether there has been another session since gen.
func (s *session) replaced(gen uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gen != gen
}

// close ends the session. The client's life has ended, so an attempt ends too.
func (s *session) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
	s.mu.Lock()
	live, id := s.live, s.id
	s.live = false
	s.mu.Unlock()
	if live {
		s.disconnect(id)
	}
}
