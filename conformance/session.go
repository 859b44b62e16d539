// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/shm"
	"github.com/s3rdma/s3rdma/rdmaio/tcp"
	"github.com/s3rdma/s3rdma/rdmaio/verbs"
)

// newTarget makes a target of the run's fabric.
func (r *runner) newTarget(ctx context.Context) (rdmaio.Target, error) {
	if r.options.NewTarget != nil {
		return r.options.NewTarget(ctx)
	}
	return NewTarget(r.options.Fabric, r.options.Device)
}

// Device says which of the client's own devices a target uses. The zero value chooses;
// shm and tcp have none.
type Device struct {
	// Names are RDMA devices (mlx5_0, mlx5_0:2), network interfaces or addresses of
	// them: the first one that is up is used. Empty: of all.
	Names []string
	// GIDIndex is the entry of the port's address table; 0 chooses.
	GIDIndex int
}

// NewTarget makes the client's end of the fabric with the given name: shm, tcp, rc
// (a connected queue pair of an RDMA device) or hipobj (one for each transfer; no fabric of
// the suite's). The caller closes it. The error wraps
// ErrOptions for another name. That a device is not there the target says itself, when
// it is used.
func NewTarget(fabric string, d Device) (rdmaio.Target, error) {
	switch fabric {
	case rdmaio.TransportSHM.String():
		return shm.NewTarget(shm.TargetOptions{}), nil
	case rdmaio.TransportTCP.String():
		return tcp.NewTarget(tcp.Options{}), nil
	case rdmaio.TransportRC.String():
		return verbs.NewTarget(verbs.Options{Devices: d.Names, GIDIndex: d.GIDIndex}), nil
	case verbs.PairTargetName:
		return verbs.NewPairTarget(verbs.Options{Devices: d.Names, GIDIndex: d.GIDIndex}), nil
	}
	return nil, fmt.Errorf("%w: no fabric is called %q", ErrOptions, fabric)
}

// sharedSession is the one session that most cases use, opened by the first.
type sharedSession struct {
	once   sync.Once
	target rdmaio.Target
	id     string
	err    error
}

func (s *sharedSession) open(ctx context.Context, r *runner) error {
	s.once.Do(func() {
		t, err := r.newTarget(ctx)
		if err != nil {
			s.err = fmt.Errorf("make a target: %w", err)
			return
		}
		resp, err := connect(ctx, r.client, t, nil)
		if err == nil {
			if s.id, err = finish(ctx, t, resp); err != nil {
				withdraw(ctx, r.client, t.Name(), resp)
			}
		}
		if err != nil {
			t.Close()
			s.err = err
			return
		}
		s.target = t
	})
	return s.err
}

func (s *sharedSession) close(ctx context.Context, c *rawhttp.Client) {
	if s.target == nil {
		return
	}
	c.Do(ctx, disconnectRequest(s.target.Name(), s.id)) // the target's end is what counts
	s.target.Close()
}

// sessionPath is the endpoint of a fabric's sessions.
func sessionPath(fabric, action string) string { return "/.s3rdma-" + fabric + "/" + action }

func connectRequest(fabric string, h rdmaio.Hello) rawhttp.Request {
	header := http.Header{headerToken: {h.Token}}
	if h.PSN != 0 {
		header.Set("x-amz-rdma-psn", fmt.Sprintf("%06x", h.PSN))
	}
	return rawhttp.Request{Method: "POST", Path: sessionPath(fabric, "connect"), Header: header}
}

func disconnectRequest(fabric, session string) rawhttp.Request {
	return rawhttp.Request{Method: "POST", Path: sessionPath(fabric, "disconnect"), Header: http.Header{headerSession: {session}}}
}

// connect sends the first step. creds replace the client's if not nil.
func connect(ctx context.Context, c *rawhttp.Client, t rdmaio.Target, creds *rawhttp.Credentials) (*rawhttp.Response, error) {
	hello, err := t.Hello(ctx)
	if err != nil {
		return nil, fmt.Errorf("say hello: %w", err)
	}
	req := connectRequest(t.Name(), hello)
	req.Credentials = creds
	ctx, cancel := unhurried(ctx) // who gets no answer cannot disconnect
	defer cancel()
	return c.Do(ctx, req)
}

// withdraw ends a session that was offered and could not be completed.
func withdraw(ctx context.Context, c *rawhttp.Client, fabric string, offer *rawhttp.Response) {
	if id := offer.Header.Get(headerSession); id != "" {
		ctx, cancel := unhurried(ctx)
		defer cancel()
		c.Do(ctx, disconnectRequest(fabric, id)) // it would end by itself, but later
	}
}

// finish reads the answer to connect and completes the session.
func finish(ctx context.Context, t rdmaio.Target, resp *rawhttp.Response) (session string, err error) {
	w, err := welcome(resp)
	if err != nil {
		return "", err
	}
	if err := t.Connect(ctx, w); err != nil {
		return "", fmt.Errorf("complete the session: %w", err)
	}
	return w.Session.Hex(), nil
}

// welcome reads the answer to connect. Errors show no part of it but the status.
func welcome(resp *rawhttp.Response) (rdmaio.Welcome, error) {
	if resp.Status != 200 {
		return rdmaio.Welcome{}, fmt.Errorf("connect answered HTTP %d %s", resp.Status, resp.Error().Code)
	}
	id, err := rdmaio.ParseSessionID(resp.Header.Get(headerSession))
	if err != nil {
		return rdmaio.Welcome{}, fmt.Errorf("connect answered 200 with a %s that is none: %w", strings.ToLower(headerSession), err)
	}
	code, token, ok := strings.Cut(resp.Header.Get(headerReply), ":")
	if !ok || code != "200" {
		return rdmaio.Welcome{}, fmt.Errorf("connect answered 200, but its %s is not 200:<welcome>", strings.ToLower(headerReply))
	}
	w := rdmaio.Welcome{Session: id, Token: token}
	if psn := resp.Header.Get("X-Amz-Rdma-Psn"); psn != "" {
		n, err := strconv.ParseUint(psn, 16, 24)
		if err != nil {
			return rdmaio.Welcome{}, fmt.Errorf("connect answered 200 with an x-amz-rdma-psn that is not 6 hex digits")
		}
		w.PSN = uint32(n)
	}
	return w, nil
}

// peer is a session of a case's own.
type peer struct {
	target rdmaio.Target
	id     string
}

// connectPeer opens a session for this case, with the second identity if asked.
func (e *Env) connectPeer(ctx context.Context, creds *rawhttp.Credentials) *peer {
	t, err := e.runner.newTarget(ctx)
	if err != nil {
		e.failf("make a target: %v", err)
	}
	p := &peer{target: t}
	e.onEnd(func(ctx context.Context) {
		if p.id != "" {
			req := disconnectRequest(t.Name(), p.id)
			req.Credentials = creds
			e.runner.client.Do(ctx, req)
		}
		t.Close()
	})
	e.join(ctx, p, creds)
	return p
}

// join opens p's session, anew if it had one.
func (e *Env) join(ctx context.Context, p *peer, creds *rawhttp.Credentials) {
	resp, err := connect(ctx, e.client, p.target, creds)
	if err != nil {
		e.failf("connect: %v", err)
	}
	p.id = resp.Header.Get(headerSession) // to be disconnected also if it cannot be completed
	id, err := finish(ctx, p.target, resp)
	if err != nil {
		e.failf("%v", err)
	}
	p.id = id
	e.mu.Lock()
	e.tokens = append(e.tokens, id)
	e.mu.Unlock()
}

// shared is the run's session, which NeedFabric has opened.
func (e *Env) shared() *peer {
	return &peer{target: e.runner.session.target, id: e.runner.session.id}
}
