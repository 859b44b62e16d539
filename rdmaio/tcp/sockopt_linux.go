// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"time"

	"golang.org/x/sys/unix"
)

// setUserTimeout bounds how long sent bytes may stay unacknowledged by the other
// host before the kernel gives the connection up (tcp(7), TCP_USER_TIMEOUT).
// Keep-alive probes cover only an idle connection.
func setUserTimeout(fd uintptr, d time.Duration) error {
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
}
