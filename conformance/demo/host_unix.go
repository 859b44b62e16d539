// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package demo

import (
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

// ownGroup runs cmd in a process group of its own, which is interrupted as a whole
// when the command's context ends.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
}

// cpuTime is what this process has used so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// needSpace fails if the file system of dir has less than n bytes free.
func needSpace(dir string, n int64) error {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return err
	}
	if free := int64(s.Bavail) * int64(s.Bsize); free < n {
		return fmt.Errorf("%s has %d MiB free, %d MiB are needed (TMPDIR chooses another place)", dir, free>>20, n>>20)
	}
	return nil
}
