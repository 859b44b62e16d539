// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package conformance

import "golang.org/x/sys/unix"

// mapMemory returns n bytes outside Go's heap, for targets that can't make memory.
func mapMemory(n int) ([]byte, error) {
	return unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

func unmapMemory(mem []byte) { unix.Munmap(mem) }
