// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package staging

import (
	"errors"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestMapMemory(t *testing.T) {
	const n = 5 << 20
	huge := hugePageSize()
	for _, h := range []HugePages{HugePagesAuto, HugePagesOn, HugePagesOff} {
		m, err := mapMemory(n, h, false)
		if err != nil {
			// Few machines have huge pages reserved.
			if h != HugePagesOn || !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "vm.nr_hugepages") {
				t.Errorf("%s: %v", h, err)
			}
			continue
		}
		if len(m.bytes) != n || cap(m.bytes) != n || uintptr(unsafe.Pointer(&m.bytes[0]))%uintptr(huge) != 0 {
			t.Errorf("%s: %d bytes, not aligned to %d", h, len(m.bytes), huge)
		}
		if (h == HugePagesOn) != (m.pages == PagesHuge) && h != HugePagesAuto || h == HugePagesOff && m.pages != PagesPlain || m.pages == "" {
			t.Errorf("%s: got %s", h, m.pages)
		}
		for i := 0; i < n; i += 4096 {
			if m.bytes[i] != 0 {
				t.Fatalf("%s: not zeroed", h)
			}
		}
		m.bytes[0], m.bytes[n-1] = 1, 1
		if err := m.unmap(); err != nil {
			t.Errorf("%s: %v", h, err)
		}
	}
	if _, err := mapMemory(1<<60, HugePagesOff, false); err == nil || !strings.Contains(err.Error(), "1152921504606846976 bytes") {
		t.Errorf("an exbibyte: %v", err)
	}
}

func TestMlock(t *testing.T) {
	p, err := New(Options{Size: 2 * slab, SlabSize: slab, Mlock: true})
	if err != nil {
		if !strings.Contains(err.Error(), "RLIMIT_MEMLOCK") {
			t.Error(err)
		}
		return
	}
	if !p.Stats().Locked {
		t.Error("not locked")
	}
	if err := p.freeMemory(); err != nil {
		t.Error(err)
	}
}

func TestLockError(t *testing.T) {
	err := lockError(12345, unix.ENOMEM)
	if !errors.Is(err, unix.ENOMEM) {
		t.Error("cause is lost")
	}
	for _, want := range []string{"12345", "Mlock", "RLIMIT_MEMLOCK", "ulimit -l"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
}

func TestParseHugePageSize(t *testing.T) {
	for info, want := range map[string]int{
		"MemTotal: 1 kB\nHugepagesize:       2048 kB\nHugetlb: 0 kB\n": 2 << 20,
		"Hugepagesize: 524288 kB":                                      512 << 20,
		"Hugepagesize: 0 kB\n":                                         7,
		"Hugepagesize: 3 kB\n":                                         7,
		"Hugepagesize: 2048\n":                                         7,
		"Hugepagesize: x kB\n":                                         7,
		"Hugepagesize: 99999999999999999999 kB\n":                      7,
		"": 7,
	} {
		if got := parseHugePageSize([]byte(info), 7); got != want {
			t.Errorf("%q: %d, want %d", info, got, want)
		}
	}
}
