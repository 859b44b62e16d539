// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// fileSystem names what dir lies on.
func fileSystem(dir string) string {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return "unknown: " + err.Error()
	}
	names := map[int64]string{unix.EXT4_SUPER_MAGIC: "ext2/3/4", unix.TMPFS_MAGIC: "tmpfs (memory)", unix.XFS_SUPER_MAGIC: "xfs",
		unix.BTRFS_SUPER_MAGIC: "btrfs", unix.OVERLAYFS_SUPER_MAGIC: "overlayfs", 0x2fc12fc1: "zfs", unix.NFS_SUPER_MAGIC: "nfs"}
	if name := names[int64(s.Type)]; name != "" {
		return name
	}
	return fmt.Sprintf("file system of type %#x", s.Type)
}
