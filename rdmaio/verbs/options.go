// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

// ErrUnavailable says that this host or this program has no RDMA verbs: no
// libibverbs, no device, or built without.
var ErrUnavailable = ibv.ErrUnavailable

// WindowUse says whether a target hands out memory windows.
type WindowUse uint8

const (
	// WindowsAuto uses type 2 windows where a hardware device has them.
	WindowsAuto WindowUse = iota
	// WindowsOff hands out the keys of memory regions.
	WindowsOff
	// WindowsOn insists on windows, also those of Soft-RoCE, which does not check
	// their bounds.
	WindowsOn
)

// Options configure a [Fabric], a [DCFabric] or a [Target]. The zero value works on a
// host whose RDMA devices are all meant for it.
type Options struct {
	// Devices are the rails: each an RDMA device (mlx5_0, or mlx5_0:2 for its second
	// port), a network interface (eth2) or an IP address of one. Empty: all devices
	// with an active port. A target uses the first that is up.
	Devices []string

	// GIDIndex chooses the entry of the port's address table. 0: by type and address
	// (RoCE v2 before v1; the address of the HTTP connection, if it is one of the
	// port's, before others).
	GIDIndex int

	// AllowPeers are the networks that peers' ports may have addresses in (RC). Empty:
	// a peer's port must have the address from which its HTTP request came. InfiniBand
	// ports have no IP address: list their prefix, fe80::/10 as a rule.
	AllowPeers []netip.Prefix

	// MaxSessions and MaxPerOwner bound the sessions of a fabric, of all owners and
	// of each. Each is two queue pairs of the device. Defaults 1024 and 64.
	MaxSessions, MaxPerOwner int

	// MaxLinks bounds the open links of a session. Default 1024.
	MaxLinks int

	// IdleAfter is how long a session lives without an open link. Default 10 min.
	IdleAfter time.Duration

	// PeerTimeout bounds how long a peer that does not answer is taken for alive: the
	// device's time-out and retries are chosen to stay below. Default 5 s: well below
	// the 10 s that known clients give a whole request.
	PeerTimeout time.Duration

	// KeepAlive is how long a connection may be idle before its peer is asked whether it
	// is still there: its device answers, no program is woken. One that does not answer
	// (PeerTimeout) loses its session, which would else hold its place for IdleAfter. It
	// takes up to twice the time. Default 15 s, less than 0 never.
	KeepAlive time.Duration

	// Landing is the memory, in bytes, that peers of [Fabric.Pair] push into, all
	// together; each has what it asked for, for as long as its transfer takes. Default
	// 256 MiB, less than 0 none.
	Landing int64

	// FenceLimit is how long a cancelled Fence, Close and Hangup wait for transfers to
	// complete, before they break the connection. Default 2 s.
	FenceLimit time.Duration

	// BusyPoll is the most that a waiting goroutine polls before it sleeps. It adapts
	// below that. Default 50 µs, less than 0 never.
	BusyPoll time.Duration

	// Depth is the number of work requests in flight on a connection, 16 to 4096.
	// Default 128.
	Depth int

	// UnknownPeerReads is how many RDMA READs may be outstanding towards a peer that
	// does not say how many it takes. Default 1, which every RC client takes.
	UnknownPeerReads int

	// TrafficClass, ServiceLevel and PkeyIndex are those of the path.
	TrafficClass, ServiceLevel uint8
	PkeyIndex                  uint16

	// Windows says whether a target hands out memory windows.
	Windows WindowUse

	// SelfTest makes New run the loopback self-test of [Probe] on each rail, and fail
	// with what it found.
	SelfTest bool

	// forceMTU replaces the path MTU of the port, as a code, in the self-test.
	forceMTU int32

	// DCKey is the access key of DC targets, the same at both ends. It is no secret:
	// nearly everyone uses the default, 0xffeeddcc.
	DCKey uint64

	// DCInitiators is the size of the pool of DC initiators on each rail, which is the
	// number of links that can be open at once. Default 128.
	DCInitiators int

	// DCWait is how long Open waits for a free DC initiator. Default 1 s.
	DCWait time.Duration
}

// DefaultDCKey is what cuObject and every server known use (notes of versitygw, Ceph,
// NooBaa agree).
const DefaultDCKey = 0xffeeddcc

// withDefaults fills in the defaults and checks the rest. An error names the field.
func (o Options) withDefaults() (Options, error) {
	for _, p := range o.AllowPeers {
		if !p.IsValid() {
			return o, fmt.Errorf("AllowPeers has an invalid prefix")
		}
	}
	ints := []struct {
		name          string
		v             *int
		def, min, max int
	}{
		{"MaxSessions", &o.MaxSessions, 1024, 1, 1 << 20},
		{"MaxPerOwner", &o.MaxPerOwner, 64, 1, 1 << 20},
		{"MaxLinks", &o.MaxLinks, 1024, 1, 1 << 20},
		{"Depth", &o.Depth, 128, 16, 4096},
		{"UnknownPeerReads", &o.UnknownPeerReads, 1, 1, 255},
		{"DCInitiators", &o.DCInitiators, 128, 1, 1 << 16},
	}
	for _, i := range ints {
		if *i.v == 0 {
			*i.v = i.def
		}
		if *i.v < i.min || *i.v > i.max {
			return o, fmt.Errorf("%s is %d, want %d to %d", i.name, *i.v, i.min, i.max)
		}
	}
	durations := []struct {
		name     string
		v        *time.Duration
		def, min time.Duration
	}{
		{"IdleAfter", &o.IdleAfter, 10 * time.Minute, time.Millisecond},
		{"PeerTimeout", &o.PeerTimeout, 5 * time.Second, 100 * time.Millisecond},
		{"FenceLimit", &o.FenceLimit, 2 * time.Second, time.Millisecond},
		{"DCWait", &o.DCWait, time.Second, time.Millisecond},
	}
	for _, d := range durations {
		if *d.v == 0 {
			*d.v = d.def
		}
		if *d.v < d.min || *d.v > 24*time.Hour {
			return o, fmt.Errorf("%s is %v, want %v to 24h", d.name, *d.v, d.min)
		}
	}
	if o.Landing == 0 {
		o.Landing = 256 << 20
	}
	switch {
	case o.KeepAlive == 0:
		o.KeepAlive = 15 * time.Second
	case o.KeepAlive > 0 && o.KeepAlive < time.Millisecond || o.KeepAlive > 24*time.Hour:
		return o, fmt.Errorf("KeepAlive is %v, want 1ms to 24h, or less than 0", o.KeepAlive)
	}
	switch {
	case o.BusyPoll == 0:
		o.BusyPoll = 50 * time.Microsecond
	case o.BusyPoll < 0:
		o.BusyPoll = 0
	case o.BusyPoll > time.Second:
		return o, fmt.Errorf("BusyPoll is %v, want at most 1s", o.BusyPoll)
	}
	if o.GIDIndex < 0 || o.GIDIndex > 255 {
		return o, fmt.Errorf("GIDIndex is %d, want 0 (choose) to 255", o.GIDIndex)
	}
	if o.Windows > WindowsOn {
		return o, fmt.Errorf("Windows is %d, want WindowsAuto, WindowsOff or WindowsOn", o.Windows)
	}
	if o.DCKey == 0 {
		o.DCKey = DefaultDCKey
	}
	return o, nil
}
