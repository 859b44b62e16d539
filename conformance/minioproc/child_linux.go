// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package minioproc

import "syscall"

// childAttributes puts the server into a process group of its own, so that a Ctrl-C
// on the terminal reaches us only, who then stop it in order; and has the kernel
// send it a SIGTERM should we die without.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
