// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package rdmaio

import (
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/netip"
)

// Transport says how a descriptor's memory is reached.
type Transport uint8

const (
	// TransportDC is an mlx5 dynamically connected target, named by its number.
	TransportDC Transport = iota + 1
	// TransportRC is a reliable connection: a session, or (hipObject) a queue
	// pair named by its number.
	TransportRC
	// TransportSHM is shared memory on the same host, by session.
	TransportSHM
	// TransportTCP is our one-sided protocol over TCP, by session.
	TransportTCP
)

var transportNames = [...]string{TransportDC: "dc", TransportRC: "rc", TransportSHM: "shm", TransportTCP: "tcp"}

// String returns the name used in settings, paths and session tokens: dc, rc, shm
// or tcp.
func (t Transport) String() string {
	if int(t) < len(transportNames) && t != 0 {
		return transportNames[t]
	}
	return fmt.Sprintf("transport(%d)", uint8(t))
}

// MaxWindow is the largest window a bare or session descriptor can name: the size
// field has 32 bits.
const MaxWindow = math.MaxUint32

// Descriptor names a window of remote memory. The zero value names nothing.
//
// It is a value: copy it freely, but treat it as a secret (see the package
// caveats). Fields that a transport does not use are zero.
type Descriptor struct {
	Transport Transport

	// Addr is the window's first byte in the target's address space, Size its
	// length in bytes. Addr+Size never overflows in a parsed descriptor.
	Addr, Size uint64

	// RKey is the remote key of the registration behind the window.
	RKey uint32

	// Session is set where the peer connected before (rc, shm, tcp).
	Session SessionID

	// QPN is the DC target's number (DC) or the queue pair's (hipObject RC): 24
	// bits.
	QPN uint32

	// GID is the port's address, 16 bytes in network order, if GIDPresent. RoCE
	// v2 over IPv4 has the IPv4-mapped form.
	GID        [16]byte
	GIDPresent bool

	// LID is the port's InfiniBand address, 0 on RoCE. Port is the port number,
	// which only hipObject's encoding carries.
	LID  uint16
	Port uint8
}

// String shows the transport and the size, never an address or a key.
func (d Descriptor) String() string {
	return fmt.Sprintf("%s descriptor of %d bytes", d.Transport, d.Size)
}

// GoString is String, so that %#v leaks nothing either.
func (d Descriptor) GoString() string { return d.String() }

// Format is String whatever the verb: %d would otherwise print the fields. No
// method can help where d is an unexported field of a struct that is printed whole;
// give such a struct a String method of its own.
func (d Descriptor) Format(f fmt.State, _ rune) { io.WriteString(f, d.String()) }

// LogValue is String, for structured logs.
func (d Descriptor) LogValue() slog.Value { return slog.StringValue(d.String()) }

// MarshalText is String, for whatever is encoded as JSON. It is not the wire form
// (see Encode), and there is no way back.
func (d Descriptor) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// PeerAddr returns the IP address in the GID, if there is one: what an allow-list
// of peers is held against.
func (d Descriptor) PeerAddr() (netip.Addr, bool) {
	if !d.GIDPresent {
		return netip.Addr{}, false
	}
	return netip.AddrFrom16(d.GID).Unmap(), true
}

// Narrow returns d cut down to n bytes at offset off, or ErrOutOfBounds. A window
// can only shrink; one that wraps around the address space has no inside.
func (d Descriptor) Narrow(off, n uint64) (Descriptor, error) {
	if d.Addr+d.Size < d.Addr {
		return Descriptor{}, fmt.Errorf("narrow a %s whose end overflows 64 bits: %w", d, ErrOutOfBounds)
	}
	if err := CheckBounds(d.Size, off, n); err != nil {
		return Descriptor{}, fmt.Errorf("narrow a %s: %w", d, err)
	}
	d.Addr += off
	d.Size = n
	return d, nil
}

// CheckBounds returns nil if [off, off+n) lies inside [0, size), and otherwise an
// error that wraps ErrOutOfBounds. An empty range is inside at any off <= size.
func CheckBounds(size, off, n uint64) error {
	if off > size || n > size-off {
		return fmt.Errorf("%d bytes at offset %d of %d: %w", n, off, size, ErrOutOfBounds)
	}
	return nil
}
