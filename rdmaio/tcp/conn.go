// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"fmt"
	"net"
	"syscall"
	"time"
)

// setUp prepares a lane's connection: a dead host is noticed within about limit,
// also on an idle lane. Nagle's algorithm is off already (package net).
func setUp(c *net.TCPConn, limit time.Duration) (syscall.RawConn, error) {
	ka := net.KeepAliveConfig{
		Enable:   true,
		Idle:     max(limit/2, time.Second),
		Interval: max(limit/6, time.Second),
		Count:    3,
	}
	if err := c.SetKeepAliveConfig(ka); err != nil {
		return nil, fmt.Errorf("set keep-alive: %w", err)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var serr error
	if err := raw.Control(func(fd uintptr) { serr = setUserTimeout(fd, limit) }); err != nil {
		return nil, err
	}
	if serr != nil {
		return nil, fmt.Errorf("set TCP_USER_TIMEOUT to %v: %w", limit, serr)
	}
	return raw, nil
}

// reset drops a connection without sending what the kernel still holds of it: the
// other side learns at once, and no byte follows.
func reset(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}
