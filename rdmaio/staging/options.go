// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package staging

import (
	"errors"
	"fmt"
	"math"
	"os"
	"time"
)

var (
	// ErrBusy: no memory became free in time. The client should come back later:
	// HTTP 503, S3 error code SlowDown.
	ErrBusy = errors.New("no staging memory free")

	// ErrLeaked: Close found leases that nobody had released in time.
	ErrLeaked = errors.New("leases not released")

	// ErrOption: a setting that cannot work. The text names it.
	ErrOption = errors.New("bad staging setting")
)

// The defaults of Options.
const (
	DefaultSize         = 256 << 20
	DefaultSlabSize     = 1 << 20 // MinIO's erasure block
	DefaultMaxPerLease  = 4
	DefaultWait         = 2 * time.Second
	DefaultMaxPerCaller = 0.5
)

// Options say how much memory there is and how it is shared. The zero value is
// good.
type Options struct {
	// Size is the memory in bytes, rounded down to whole slabs. 0 means
	// DefaultSize.
	Size int64

	// SlabSize is the unit of leasing in bytes, a multiple of the page size. 0
	// means DefaultSlabSize.
	SlabSize int

	// MaxPerLease bounds the slabs of one lease. 0 means DefaultMaxPerLease, or
	// all slabs if there are fewer.
	MaxPerLease int

	// Wait bounds how long Acquire waits. 0 means DefaultWait, negative not at
	// all.
	Wait time.Duration

	// MaxPerCaller is the share of the slabs, above 0 up to 1, that one caller may
	// hold before others that wait go first. One lease's worth is always within
	// it. 0 means DefaultMaxPerCaller.
	MaxPerCaller float64

	// HugePages says which pages to use.
	HugePages HugePages

	// Mlock locks the memory, so that it is never swapped out. It needs
	// RLIMIT_MEMLOCK (ulimit -l) of at least Size, or CAP_IPC_LOCK.
	Mlock bool

	// Scrub clears slabs when they are released. See the package text for why
	// that is not needed.
	Scrub bool

	// OnWait, if set, is called after each Acquire that had to wait, with the time
	// it waited and whether it got its lease. It is called by the goroutine that
	// waited, without locks held, and by several at once.
	OnWait func(waited time.Duration, granted bool)
}

// HugePages is a choice of page size.
type HugePages uint8

const (
	// HugePagesAuto takes reserved huge pages if there are enough
	// (vm.nr_hugepages), else asks for transparent ones, else is content with
	// plain pages. Stats tells which it was.
	HugePagesAuto HugePages = iota
	// HugePagesOn takes reserved huge pages, or fails.
	HugePagesOn
	// HugePagesOff takes plain pages.
	HugePagesOff
)

var hugePagesNames = [...]string{HugePagesAuto: "auto", HugePagesOn: "on", HugePagesOff: "off"}

// String returns auto, on or off.
func (h HugePages) String() string {
	if int(h) < len(hugePagesNames) {
		return hugePagesNames[h]
	}
	return fmt.Sprintf("hugepages(%d)", uint8(h))
}

// ParseHugePages reads auto, on or off. Errors wrap ErrOption.
func ParseHugePages(s string) (HugePages, error) {
	for i, name := range hugePagesNames {
		if s == name {
			return HugePages(i), nil
		}
	}
	return 0, optionError("HugePages is %q, want auto, on or off", s)
}

// PageKind is the kind of pages that a pool got.
type PageKind string

const (
	PagesHuge        PageKind = "huge"        // reserved huge pages
	PagesTransparent PageKind = "transparent" // plain ones that the kernel may merge
	PagesPlain       PageKind = "plain"
)

func optionError(format string, args ...any) error {
	return fmt.Errorf("staging: %s: %w", fmt.Sprintf(format, args...), ErrOption)
}

// geometry is what Options come to: all in slabs but slabSize.
type geometry struct {
	slabSize, slabs, perLease, perCaller int
}

// resolve fills in the defaults of o and checks it.
func (o *Options) resolve() (geometry, error) {
	if o.Size == 0 {
		o.Size = DefaultSize
	}
	if o.SlabSize == 0 {
		o.SlabSize = DefaultSlabSize
	}
	if o.Wait == 0 {
		o.Wait = DefaultWait
	}
	if o.MaxPerCaller == 0 {
		o.MaxPerCaller = DefaultMaxPerCaller
	}
	page := os.Getpagesize()
	switch {
	case o.SlabSize < 0 || o.SlabSize%page != 0:
		return geometry{}, optionError("SlabSize is %d bytes, want a multiple of the page size, %d", o.SlabSize, page)
	case o.Size < int64(o.SlabSize) || o.Size > math.MaxInt/2:
		return geometry{}, optionError("Size is %d bytes, want at least one slab of %d", o.Size, o.SlabSize)
	case o.Size/int64(o.SlabSize) > math.MaxInt32:
		return geometry{}, optionError("Size of %d bytes makes more than %d slabs of %d, want a larger SlabSize", o.Size, math.MaxInt32, o.SlabSize)
	case !(o.MaxPerCaller > 0 && o.MaxPerCaller <= 1): // also not a number
		return geometry{}, optionError("MaxPerCaller is %v, want a share above 0 up to 1", o.MaxPerCaller)
	case int(o.HugePages) >= len(hugePagesNames):
		return geometry{}, optionError("HugePages is %d, want auto, on or off", o.HugePages)
	}
	g := geometry{slabSize: o.SlabSize, slabs: int(o.Size / int64(o.SlabSize))}
	if o.MaxPerLease == 0 {
		o.MaxPerLease = min(DefaultMaxPerLease, g.slabs)
	}
	if o.MaxPerLease < 0 || o.MaxPerLease > g.slabs {
		return geometry{}, optionError("MaxPerLease is %d slabs, want 1 up to all %d", o.MaxPerLease, g.slabs)
	}
	g.perLease = o.MaxPerLease
	g.perCaller = max(int(o.MaxPerCaller*float64(g.slabs)), g.perLease)
	return g, nil
}
