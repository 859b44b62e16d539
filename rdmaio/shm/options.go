// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"fmt"
	"os"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// The defaults of Options.
const (
	DefaultMode            = 0o600
	DefaultMaxRegions      = 1024     // of a session
	DefaultMaxBytes        = 64 << 30 // of a session
	DefaultMaxTotalRegions = 16384
	DefaultMaxTotalBytes   = 256 << 30
)

// Options of a Fabric. The zero value listens in a fresh private directory, for
// processes of the same user.
type Options struct {
	// Path is the unix socket to listen on, at most 107 bytes. A socket file that is
	// there already is replaced if nobody listens on it. Empty: a fresh directory
	// under os.TempDir with mode 0700, removed by Close.
	Path string

	// Mode is the socket's file mode: who may write to it may connect. 0 means
	// DefaultMode, the own user only. Clients of other users need 0660 or 0666, and a
	// Path in a directory that they may enter.
	Mode os.FileMode

	// AllowUIDs are the users whose processes may connect. nil: whoever may open the
	// socket.
	AllowUIDs []uint32

	// MaxSessions, MaxSessionsPerOwner, ConnectWithin and IdleAfter are those of
	// session.Options, with its defaults.
	MaxSessions         int
	MaxSessionsPerOwner int
	ConnectWithin       time.Duration
	IdleAfter           time.Duration

	// MaxRegions and MaxBytes bound what one session may have mapped at a time,
	// MaxTotalRegions and MaxTotalBytes all of them together. The kernel allows a
	// process 65530 mappings unless told otherwise (vm.max_map_count). 0 means the
	// defaults above.
	MaxRegions      int
	MaxBytes        int64
	MaxTotalRegions int
	MaxTotalBytes   int64
}

// maxPath is what fits into sun_path with its final zero.
const maxPath = 107

// withDefaults returns o filled in, or an error that names the bad setting.
func (o Options) withDefaults() (Options, error) {
	if len(o.Path) > maxPath {
		return o, fmt.Errorf("Path has %d bytes, a unix socket's can have %d at most", len(o.Path), maxPath)
	}
	if o.Mode&^os.ModePerm != 0 {
		return o, fmt.Errorf("Mode %#o has more than permission bits", uint32(o.Mode))
	}
	for _, c := range []struct {
		name string
		v    int64
	}{
		{"MaxSessions", int64(o.MaxSessions)}, {"MaxSessionsPerOwner", int64(o.MaxSessionsPerOwner)},
		{"ConnectWithin", int64(o.ConnectWithin)},
		{"MaxRegions", int64(o.MaxRegions)}, {"MaxBytes", o.MaxBytes},
		{"MaxTotalRegions", int64(o.MaxTotalRegions)}, {"MaxTotalBytes", o.MaxTotalBytes},
	} {
		if c.v < 0 {
			return o, fmt.Errorf("%s is %d, want 0 or more", c.name, c.v)
		}
	}
	o.Mode = orDefault(o.Mode, DefaultMode)
	o.MaxRegions = orDefault(o.MaxRegions, DefaultMaxRegions)
	o.MaxBytes = orDefault(o.MaxBytes, DefaultMaxBytes)
	o.MaxTotalRegions = orDefault(o.MaxTotalRegions, DefaultMaxTotalRegions)
	o.MaxTotalBytes = orDefault(o.MaxTotalBytes, DefaultMaxTotalBytes)
	return o, nil
}

func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// TargetOptions of a Target. The zero value is good.
type TargetOptions struct {
	// HugePages asks for transparent huge pages (madvise MADV_HUGEPAGE). The kernel
	// heeds it for shared memory only if
	// /sys/kernel/mm/transparent_hugepage/shmem_enabled says advise or more.
	HugePages bool

	// Lazy leaves pages to be made when they are first touched. Otherwise Alloc makes
	// them all, as registering memory with a NIC does: it takes about 0.3 s a GiB,
	// transfers meet no page faults, and the memory is charged to this process and
	// not to the server.
	Lazy bool

	// Timeout bounds how long the server may take to acknowledge where no context
	// says less: Alloc, Exposed.Close, Close. 0 means 10 s.
	Timeout time.Duration
}

// name is the transport's name.
var name = rdmaio.TransportSHM.String()
