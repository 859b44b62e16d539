// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/session"
)

// conn is the client's end of a session. It owns one goroutine, which ends with the
// connection.
type conn struct {
	uc      *net.UnixConn
	id      rdmaio.SessionID
	keys    *session.Keys
	timeout time.Duration

	mu      sync.Mutex
	seq     uint32
	pending map[uint32]chan error // buffered; one outcome each
	leaving bool                  // nothing is sent any more

	// ended is closed when the connection is. proven tells, from then on, whether the
	// server closed it, or died, which proves that it moves no more bytes.
	ended  chan struct{}
	proven bool
}

// dial connects to the server's socket and completes the session.
func dial(ctx context.Context, id rdmaio.SessionID, secret session.Secret, path string, timeout time.Duration) (*conn, error) {
	d := net.Dialer{Timeout: timeout}
	nc, err := d.DialContext(ctx, network, path)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%w: %w", rdmaio.ErrPeerGone, err)
	}
	c := &conn{
		uc: nc.(*net.UnixConn), id: id, keys: session.NewKeys(), timeout: timeout,
		pending: make(map[uint32]chan error), ended: make(chan struct{}),
	}
	go c.listen()
	if err := c.call(ctx, message{kind: kindHello, secret: secret}, -1); err != nil {
		c.cut()
		return nil, err
	}
	return c, nil
}

// listen hands acks to the calls that wait for them, until the connection ends.
func (c *conn) listen() {
	buf := make([]byte, maxMessage+1)
	var err error
	for {
		var n int
		if n, err = c.uc.Read(buf); err != nil {
			break
		}
		if !c.deliver(buf[:n]) {
			c.hangUp() // and read on: the end is still to come
		}
	}
	c.mu.Lock()
	c.leaving = true
	c.proven = !errors.Is(err, net.ErrClosed)
	c.mu.Unlock()
	close(c.ended)
	c.uc.Close()
}

// deliver hands an ack to its call, and tells whether the packet was one.
func (c *conn) deliver(packet []byte) bool {
	m, err := parseMessage(packet)
	if err != nil || m.kind != kindAck {
		return false
	}
	c.mu.Lock()
	waiter := c.pending[m.seq]
	delete(c.pending, m.seq)
	c.mu.Unlock()
	if waiter == nil {
		return false
	}
	waiter <- m.err()
	return true
}

// call sends m, with fd unless that is -1, and waits for the outcome. If ctx or the
// timeout ends the wait, what the server has done is unknown, and so the session is
// given up.
func (c *conn) call(ctx context.Context, m message, fd int) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	outcome, err := c.send(ctx, m, fd)
	if err != nil {
		return err
	}
	select {
	case err := <-outcome:
		return err
	case <-c.ended:
		select {
		case err := <-outcome: // it came just before
			return err
		default:
		}
		return fmt.Errorf("the server hung up: %w", rdmaio.ErrPeerGone)
	case <-ctx.Done():
		c.hangUp()
		return fmt.Errorf("no answer from the server: %w", ctx.Err())
	}
}

func (c *conn) send(ctx context.Context, m message, fd int) (<-chan error, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	outcome := make(chan error, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving {
		return nil, fmt.Errorf("the connection has ended: %w", rdmaio.ErrPeerGone)
	}
	c.seq++
	m.seq = c.seq
	c.pending[m.seq] = outcome
	deadline, _ := ctx.Deadline() // call has set one
	c.uc.SetWriteDeadline(deadline)
	if _, _, err := c.uc.WriteMsgUnix(m.append(make([]byte, 0, maxMessage)), oob, nil); err != nil {
		delete(c.pending, m.seq)
		return nil, fmt.Errorf("send to the server: %w: %w", rdmaio.ErrPeerGone, err)
	}
	return outcome, nil
}

// alive tells whether the session is still of use.
func (c *conn) alive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.leaving
}

// hangUp tells the server that the session is over. The server answers with the
// end of the connection, once its transfers have stopped.
func (c *conn) hangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.leaving {
		c.leaving = true
		c.uc.CloseWrite()
	}
}

// drain waits until it is proven that the server moves no more bytes of this
// session.
func (c *conn) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	select {
	case <-c.ended:
	case <-ctx.Done():
		return fmt.Errorf("the server has not confirmed the end of the session: %w", ctx.Err())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.proven {
		return fmt.Errorf("the session was cut off before the server confirmed its end: %w", rdmaio.ErrPeerGone)
	}
	return nil
}

// cut closes the connection without proof of anything, and waits for the goroutine.
func (c *conn) cut() {
	c.uc.Close()
	<-c.ended
}
