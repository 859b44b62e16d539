// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package staging

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapping is anonymous memory outside the Go heap.
type mapping struct {
	bytes  []byte // what is used
	whole  []byte // what is mapped: bytes and the alignment around it
	pages  PageKind
	locked bool
}

// mapMemory maps n zeroed bytes, aligned to a huge page.
func mapMemory(n int, huge HugePages, lock bool) (mapping, error) {
	var m mapping
	if huge != HugePagesOff {
		var err error
		m, err = mapReserved(n)
		if err != nil && huge == HugePagesOn {
			return mapping{}, err
		}
	}
	if m.whole == nil {
		var err error
		m, err = mapPlain(n, huge != HugePagesOff)
		if err != nil {
			return mapping{}, err
		}
	}
	// Advice, so a kernel that knows it not does no harm: a forked child has no use
	// for registered memory (and copy-on-write would break the registration), and
	// objects have no place in a core dump.
	unix.Madvise(m.bytes, unix.MADV_DONTFORK)
	unix.Madvise(m.bytes, unix.MADV_DONTDUMP)

	switch {
	case m.pages == PagesHuge:
		m.locked = true // by nature
	case lock:
		if err := unix.Mlock(m.bytes); err != nil {
			return mapping{}, errors.Join(lockError(n, err), m.unmap())
		}
		m.locked = true
	}
	return m, nil
}

// mapReserved maps n bytes of reserved huge pages.
func mapReserved(n int) (mapping, error) {
	size := hugePageSize()
	length := (n + size - 1) / size * size
	whole, err := unix.Mmap(-1, 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB)
	if err != nil {
		return mapping{}, fmt.Errorf("staging: map %d huge pages of %d bytes (HugePages is on; reserve them with vm.nr_hugepages): %w", length/size, size, err)
	}
	m := mapping{bytes: whole[:n:n], whole: whole, pages: PagesHuge}
	// A cgroup's limit shows only when a page is touched, as SIGBUS. Touch them all
	// in a way that reports it. Kernels before 5.14 don't know how.
	if err := unix.Madvise(whole, unix.MADV_POPULATE_WRITE); err != nil && !errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("staging: populate %d huge pages of %d bytes (HugePages is on; see the hugetlb limit of the cgroup): %w", length/size, size, err)
		return mapping{}, errors.Join(err, m.unmap())
	}
	return m, nil
}

// mapPlain maps n bytes of plain pages, which the kernel may merge if transparent.
func mapPlain(n int, transparent bool) (mapping, error) {
	// Room to align: only whole huge pages can be merged.
	align := hugePageSize()
	whole, err := unix.Mmap(-1, 0, n+align, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return mapping{}, fmt.Errorf("staging: map %d bytes: %w", n, err)
	}
	skip := 0
	if over := int(uintptr(unsafe.Pointer(&whole[0])) % uintptr(align)); over != 0 {
		skip = align - over
	}
	m := mapping{bytes: whole[skip : skip+n : skip+n], whole: whole, pages: PagesPlain}
	switch {
	case !transparent:
		unix.Madvise(m.bytes, unix.MADV_NOHUGEPAGE)
	case transparentPossible() && unix.Madvise(m.bytes, unix.MADV_HUGEPAGE) == nil:
		m.pages = PagesTransparent
	}
	return m, nil
}

// unmap gives the memory back; nothing may use it any more.
func (m *mapping) unmap() error {
	if err := unix.Munmap(m.whole); err != nil {
		return fmt.Errorf("staging: unmap %d bytes: %w", len(m.whole), err)
	}
	m.whole, m.bytes = nil, nil
	return nil
}

func lockError(n int, err error) error {
	limit := "unknown"
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r) == nil {
		limit = strconv.FormatUint(r.Cur, 10) + " bytes"
		if r.Cur == unix.RLIM_INFINITY {
			limit = "unlimited"
		}
	}
	return fmt.Errorf("staging: lock %d bytes (Mlock is on, RLIMIT_MEMLOCK is %s; raise it with ulimit -l or LimitMEMLOCK=, or make Size smaller): %w", n, limit, err)
}

// hugePageSize is the system's default huge page size in bytes.
func hugePageSize() int {
	const usual = 2 << 20
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return usual
	}
	return parseHugePageSize(info, usual)
}

// parseHugePageSize reads it from /proc/meminfo's text.
func parseHugePageSize(info []byte, usual int) int {
	for line := range bytes.Lines(info) {
		if rest, ok := bytes.CutPrefix(line, []byte("Hugepagesize:")); ok {
			f := bytes.Fields(rest)
			if len(f) == 2 && string(f[1]) == "kB" {
				if kb, err := strconv.Atoi(string(f[0])); err == nil && kb > 0 && kb <= 16<<20 && kb&(kb-1) == 0 {
					return kb << 10
				}
			}
		}
	}
	return usual
}

// transparentPossible tells whether the kernel merges pages where it is asked to.
func transparentPossible() bool {
	b, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	return err == nil && !bytes.Contains(b, []byte("[never]"))
}
