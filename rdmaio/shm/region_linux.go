// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"fmt"
	"math"
	"runtime/debug"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// piece is how many bytes are copied between two looks at the context and the key,
// and so what a cancellation or a withdrawal waits for: about 0.1 ms.
const piece = 1 << 20

// region is memory of a client, mapped here.
type region struct {
	base, size uint64 // in the client's address space
	access     rdmaio.Access

	// mu is held for reading while a piece is copied, and for writing to change what
	// follows: whoever has changed it knows that no copy under the old state runs.
	mu   sync.RWMutex
	key  uint32
	mem  []byte // nil once gone
	gone error  // why
}

// mapRegion maps the memfd. It must be one that can not shrink, and large enough.
// fd stays the caller's and is not needed any more afterwards.
func mapRegion(fd int, m message) (*region, error) {
	present, err := checkFile(fd, m.size)
	if err != nil {
		return nil, err
	}
	prot := 0
	if m.access&rdmaio.RemoteRead != 0 {
		prot |= unix.PROT_READ
	}
	if m.access&rdmaio.RemoteWrite != 0 {
		prot |= unix.PROT_WRITE
	}
	mem, err := unix.Mmap(fd, 0, int(m.size), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map a region of %d bytes: %w", m.size, err)
	}
	// A client's data has no business in a core file of ours. Best effort.
	unix.Madvise(mem, unix.MADV_DONTDUMP)
	if present {
		// Map the pages now and not fault by fault in the first transfer, which
		// would be several times slower. Only those that the client has made: else
		// a large empty memfd would cost the server its memory. Best effort.
		advice := unix.MADV_POPULATE_READ
		if m.access&rdmaio.RemoteWrite != 0 {
			advice = unix.MADV_POPULATE_WRITE
		}
		unix.Madvise(mem, advice)
	}
	return &region{base: m.base, size: m.size, access: m.access, key: m.rkey, mem: mem}, nil
}

// checkFile refuses what could fault under a mapping of size bytes, and tells
// whether all its pages exist. The errors are told to the client.
func checkFile(fd int, size uint64) (present bool, err error) {
	if size > math.MaxInt {
		return false, fmt.Errorf("region of %d bytes is too large: %w", size, rdmaio.ErrTooMany)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return false, fmt.Errorf("the file is no memfd: %w", rdmaio.ErrUnsupported)
	}
	if need := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW; seals&need != need {
		return false, fmt.Errorf("the memfd lacks the seals F_SEAL_SHRINK and F_SEAL_GROW: %w", rdmaio.ErrUnsupported)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return false, fmt.Errorf("statfs of the memfd: %w", err)
	}
	if int64(fs.Type) != unix.TMPFS_MAGIC {
		return false, fmt.Errorf("the memfd is not of plain pages (huge pages can be missing at a fault): %w", rdmaio.ErrUnsupported)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, fmt.Errorf("stat of the memfd: %w", err)
	}
	if st.Size < 0 || uint64(st.Size) < size {
		return false, fmt.Errorf("the memfd has %d bytes, the region %d: %w", st.Size, size, rdmaio.ErrUnsupported)
	}
	return uint64(st.Blocks)*512 >= uint64(st.Size), nil
}

// rekey changes the key. When it returns no copy under the old one runs.
func (r *region) rekey(key uint32) {
	r.mu.Lock()
	r.key = key
	r.mu.Unlock()
}

// withdraw unmaps the region, once no copy runs. Later copies fail with why.
func (r *region) withdraw(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone != nil {
		return
	}
	r.gone = why
	mem := r.mem
	r.mem = nil
	if err := unix.Munmap(mem); err != nil {
		panic(fmt.Sprintf("shm: munmap of a mapping of our own failed: %v", err))
	}
}

// move copies at most a piece between local and the region at off, if key is still
// good. The caller has checked the bounds and the direction.
func (r *region) move(key uint32, local []byte, off uint64, write bool) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.gone != nil {
		return r.gone
	}
	if r.key != key {
		return rdmaio.ErrStaleKey
	}
	remote := r.mem[off : off+uint64(len(local))]
	if write {
		return guardedCopy(remote, local, remote)
	}
	return guardedCopy(local, remote, remote)
}

// guardedCopy copies src to dst. A fault, which the seals should make impossible,
// becomes an error: ErrPeerGone if it was in remote, which is one of the two.
func guardedCopy(dst, src, remote []byte) (err error) {
	before := debug.SetPanicOnFault(true) // of this goroutine only
	defer func() {
		debug.SetPanicOnFault(before)
		if p := recover(); p != nil {
			err = faulted(p, remote)
		}
	}()
	copy(dst, src)
	return nil
}

func faulted(p any, remote []byte) error {
	fault, ok := p.(interface {
		error
		Addr() uintptr
	})
	if !ok {
		panic(p)
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(remote)))
	if a := fault.Addr(); a >= start && a-start < uintptr(len(remote)) {
		return fmt.Errorf("the peer's memory cannot be accessed: %w", rdmaio.ErrPeerGone)
	}
	return fmt.Errorf("local memory of a registered region is not mapped: %w", rdmaio.ErrClosed)
}
