// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// Options configure a [Fabric] or a [Target]. The zero value works: a fabric on a
// free port of all addresses, which lets a peer connect from where its HTTP request
// came from.
type Options struct {
	// Listen is the host:port on which a fabric waits for its peers' data
	// connections. Default ":0".
	Listen string

	// Advertise is the host or host:port that peers are told to connect to.
	// Default: the address to which their HTTP request came, or that of Listen if
	// it names one, with the listener's port. Needed behind address translation
	// or a proxy.
	Advertise string

	// AllowPeers are the networks from which data connections are taken. If
	// empty, one is taken from the address only from which the HTTP request came
	// that opened the session. Set it if that is a proxy's, or if clients have a
	// network of their own for data.
	AllowPeers []netip.Prefix

	// Lanes is the number of connections of a session, 1 to 16. Default 2.
	Lanes int

	// MaxSessions and MaxPerOwner bound the sessions of a fabric, of all owners
	// and of each. Defaults 1024 and 64.
	MaxSessions, MaxPerOwner int

	// MaxLinks bounds the open links of a session. Default 1024.
	MaxLinks int

	// ConnectWithin is how long a welcomed peer has to join all lanes of its
	// session, and how long Target.Connect tries if its context does not end
	// before. Default 10 s.
	ConnectWithin time.Duration

	// IdleAfter is how long a session lives without an open link. Default 10 min.
	IdleAfter time.Duration

	// PeerTimeout is how long a peer may make no progress on a transfer before it
	// counts as gone. Default 5 s: well below the 10 s that known clients give a
	// whole request.
	PeerTimeout time.Duration

	// FenceLimit is how long a cancelled Fence, Close and Hangup wait for the
	// peer to acknowledge what is on the wire, before they break the session.
	// Default 2 s.
	FenceLimit time.Duration
}

// withDefaults fills in the defaults and checks the rest. An error names the field.
func (o Options) withDefaults() (Options, error) {
	if o.Listen == "" {
		o.Listen = ":0"
	}
	if _, _, err := net.SplitHostPort(o.Listen); err != nil {
		return o, fmt.Errorf("Listen %q is not host:port: %w", o.Listen, err)
	}
	if o.Advertise != "" {
		if _, err := o.advertised(netip.AddrPortFrom(netip.Addr{}, 1)); err != nil {
			return o, fmt.Errorf("Advertise %q is neither a host nor host:port: %w", o.Advertise, err)
		}
	}
	for _, p := range o.AllowPeers {
		if !p.IsValid() {
			return o, fmt.Errorf("AllowPeers has an invalid prefix")
		}
	}
	ints := []struct {
		name     string
		v        *int
		def, max int
	}{
		{"Lanes", &o.Lanes, 2, maxLanes},
		{"MaxSessions", &o.MaxSessions, 1024, 1 << 20},
		{"MaxPerOwner", &o.MaxPerOwner, 64, 1 << 20},
		{"MaxLinks", &o.MaxLinks, 1024, 1 << 20},
	}
	for _, i := range ints {
		if *i.v == 0 {
			*i.v = i.def
		}
		if *i.v < 0 || *i.v > i.max {
			return o, fmt.Errorf("%s is %d, want 1 to %d", i.name, *i.v, i.max)
		}
	}
	durations := []struct {
		name string
		v    *time.Duration
		def  time.Duration
	}{
		{"ConnectWithin", &o.ConnectWithin, 10 * time.Second},
		{"IdleAfter", &o.IdleAfter, 10 * time.Minute},
		{"PeerTimeout", &o.PeerTimeout, 5 * time.Second},
		{"FenceLimit", &o.FenceLimit, 2 * time.Second},
	}
	for _, d := range durations {
		if *d.v == 0 {
			*d.v = d.def
		}
		if *d.v < 0 || *d.v > 24*time.Hour {
			return o, fmt.Errorf("%s is %v, want more than 0 and at most 24h", d.name, *d.v)
		}
	}
	return o, nil
}

// advertised is where peers are sent: Advertise, with the rest from heard, which is
// the address that this peer's request came to and the listener's port.
func (o Options) advertised(heard netip.AddrPort) (place, error) {
	if o.Advertise == "" {
		if !heard.Addr().IsValid() || heard.Addr().IsUnspecified() {
			return place{}, fmt.Errorf("the address that the peer's request came to is not known, set Advertise: %w", rdmaio.ErrRefused)
		}
		return place{addr: heard}, nil
	}
	if ap, err := netip.ParseAddrPort(o.Advertise); err == nil {
		if ap.Port() == 0 || ap.Addr().IsUnspecified() {
			return place{}, fmt.Errorf("nobody can connect to %s", ap)
		}
		return place{addr: ap}, nil
	}
	if a, err := netip.ParseAddr(o.Advertise); err == nil {
		if a.IsUnspecified() {
			return place{}, fmt.Errorf("nobody can connect to %s", a)
		}
		return place{addr: netip.AddrPortFrom(a, heard.Port())}, nil
	}
	host, port, err := splitName(o.Advertise)
	if err != nil {
		// A name without a port: the listener's.
		host, port, err = splitName(net.JoinHostPort(o.Advertise, strconv.Itoa(int(heard.Port()))))
	}
	return place{host: host, port: port}, err
}
