// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "golang.org/x/sys/unix"

// freeBytes is the room that is left in the file system of dir.
func freeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	err := unix.Statfs(dir, &s)
	return int64(s.Bavail) * s.Bsize, err
}
