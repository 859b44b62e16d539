// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/Mellanox/rdmamap"

	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

// sysClass is where the kernel describes RDMA devices.
const sysClass = "/sys/class/infiniband"

// port names a port of a device.
type port struct {
	device string
	num    uint8
}

func (p port) String() string { return fmt.Sprintf("%s:%d", p.device, p.num) }

// resolve finds the ports that the names in want mean, in their order and without
// repetition; all ports of all devices if want is empty.
func resolve(want, devices []string) ([]port, error) {
	var ports []port
	add := func(p port) {
		if !slices.Contains(ports, p) {
			ports = append(ports, p)
		}
	}
	if len(want) == 0 {
		for _, d := range devices {
			for _, n := range portsOf(d) {
				add(port{d, n})
			}
		}
		return ports, nil
	}
	for _, w := range want {
		p, err := resolveOne(w, devices)
		if err != nil {
			return nil, err
		}
		add(p)
	}
	return ports, nil
}

// resolveOne finds out what one name means: a device (with a port or without), a
// network interface, or an address of one.
func resolveOne(w string, devices []string) (port, error) {
	name, num, hasPort := strings.Cut(w, ":")
	if slices.Contains(devices, name) {
		if !hasPort {
			return port{name, 1}, nil
		}
		n, err := strconv.ParseUint(num, 10, 8)
		if err != nil || !slices.Contains(portsOf(name), uint8(n)) {
			return port{}, fmt.Errorf("device %q: %s has the ports %v", w, name, portsOf(name))
		}
		return port{name, uint8(n)}, nil
	}
	netdev := w
	if a, err := netip.ParseAddr(w); err == nil {
		if netdev, err = netdevOf(a); err != nil {
			return port{}, fmt.Errorf("device %q: %w", w, err)
		}
	}
	dev, err := rdmamap.GetRdmaDeviceForNetdevice(netdev)
	if err != nil || dev == "" {
		if _, ierr := net.InterfaceByName(netdev); ierr == nil {
			return port{}, fmt.Errorf("device %q: the network interface %s has no RDMA device (is its driver loaded? \"rdma link\" lists them): %w", w, netdev, ErrUnavailable)
		}
		return port{}, fmt.Errorf("device %q is neither an RDMA device (there are %v), nor a network interface, nor an address of one: %w", w, devices, ErrUnavailable)
	}
	ports := portsOf(dev)
	if len(ports) == 1 {
		return port{dev, ports[0]}, nil
	}
	for _, n := range ports {
		for _, g := range gidTable(port{dev, n}) {
			if g.netdev == netdev {
				return port{dev, n}, nil
			}
		}
	}
	return port{dev, 1}, nil
}

// netdevOf finds the network interface that has the address.
func netdevOf(a netip.Addr) (string, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	for _, i := range ifs {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, x := range addrs {
			if p, err := netip.ParsePrefix(x.String()); err == nil && p.Addr().Unmap() == a.Unmap().WithZone("") {
				return i.Name, nil
			}
		}
	}
	return "", errors.New("no network interface here has this address")
}

func portsOf(device string) []uint8 {
	var ports []uint8
	for _, p := range rdmamap.GetPorts(device) {
		if n, err := strconv.ParseUint(p, 10, 8); err == nil {
			ports = append(ports, uint8(n))
		}
	}
	slices.Sort(ports)
	return ports
}

// isSoftware tells whether a CPU does the device's work: Soft-RoCE, soft-iWARP.
func isSoftware(device string) bool {
	target, err := os.Readlink(filepath.Join(sysClass, device))
	return err == nil && strings.Contains(target, "/virtual/")
}

// GIDType is how a port's address is used on the wire.
type GIDType string

// The kernel's names for them.
const (
	GIDInfiniBand GIDType = "IB"
	GIDRoCEv1     GIDType = "RoCE v1"
	GIDRoCEv2     GIDType = "RoCE v2"
)

// gid is an entry of a port's address table.
type gid struct {
	index  int
	raw    [16]byte
	kind   GIDType
	netdev string
}

func (g gid) addr() netip.Addr { return netip.AddrFrom16(g.raw).Unmap() }

// gidsOf returns the entries in use of an open port's address table.
func gidsOf(ctx *ibv.Context, p port) []gid {
	entries, err := ctx.QueryGIDTable()
	if err != nil {
		return gidTable(p)
	}
	kinds := [...]GIDType{ibv.GIDTypeIB: GIDInfiniBand, ibv.GIDTypeRoCEv1: GIDRoCEv1, ibv.GIDTypeRoCEv2: GIDRoCEv2}
	var gids []gid
	for _, e := range entries {
		if e.Port != uint32(p.num) || int(e.Type) >= len(kinds) || e.GID == [16]byte{} {
			continue
		}
		g := gid{index: int(e.Index), raw: e.GID, kind: kinds[e.Type]}
		if i, err := net.InterfaceByIndex(int(e.NetdevIndex)); err == nil {
			g.netdev = i.Name
		}
		gids = append(gids, g)
	}
	return gids
}

// gidTable reads the table from the kernel's files: slower, but without opening the
// device, and what old versions of libibverbs do too.
func gidTable(p port) []gid {
	dir := filepath.Join(sysClass, p.device, "ports", strconv.Itoa(int(p.num)))
	entries, err := os.ReadDir(filepath.Join(dir, "gids"))
	if err != nil {
		return nil
	}
	var gids []gid
	for _, e := range entries {
		index, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text := strings.ReplaceAll(readLine(filepath.Join(dir, "gids", e.Name())), ":", "")
		g := gid{index: index}
		if b, err := hex.DecodeString(text); err != nil || len(b) != len(g.raw) {
			continue
		} else {
			g.raw = [16]byte(b)
		}
		if g.raw == [16]byte{} {
			continue
		}
		g.kind = GIDType(readLine(filepath.Join(dir, "gid_attrs", "types", e.Name())))
		if g.kind == "IB/RoCE v1" {
			g.kind = GIDRoCEv1
			if readLine(filepath.Join(dir, "link_layer")) == "InfiniBand" {
				g.kind = GIDInfiniBand
			}
		}
		g.netdev = readLine(filepath.Join(dir, "gid_attrs", "ndevs", e.Name()))
		gids = append(gids, g)
	}
	slices.SortFunc(gids, func(a, b gid) int { return a.index - b.index })
	return gids
}

// readLine returns a file's first line, "" if there is none.
func readLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	s, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(s)
}

// choice is what a GID is chosen by. Zero fields do not matter.
type choice struct {
	index int        // GIDIndex of the options
	local netip.Addr // wanted, if it is among them
	peer  netip.Addr // to be reached: of the same family, if possible
}

// choose returns the best of a port's addresses.
func choose(gids []gid, c choice) (gid, error) {
	if len(gids) == 0 {
		return gid{}, errors.New("the port's address table is empty: give its network interface an IP address")
	}
	if c.index > 0 {
		for _, g := range gids {
			if g.index == c.index {
				return g, nil
			}
		}
		return gid{}, fmt.Errorf("GIDIndex %d is not in use at this port", c.index)
	}
	score := func(g gid) int {
		s := 0
		if g.kind != GIDRoCEv1 {
			s += 100
		}
		a := g.addr()
		switch {
		case a == c.local.Unmap():
			s += 50
		case a.IsLinkLocalUnicast():
		default:
			s += 10
		}
		if c.peer.IsValid() && a.Is4() == c.peer.Unmap().Is4() && a.IsLinkLocalUnicast() == c.peer.IsLinkLocalUnicast() {
			s += 70
		} else if a.Is4() {
			s += 5
		}
		return s
	}
	best := gids[0]
	for _, g := range gids[1:] {
		if score(g) > score(best) {
			best = g
		}
	}
	return best, nil
}

// load opens libibverbs and lists the devices.
func load() (*ibv.Lib, []string, error) {
	lib, err := ibv.Load()
	if err != nil {
		return nil, nil, fmt.Errorf("%w (Debian and Ubuntu: apt install libibverbs1 ibverbs-providers; RHEL: dnf install libibverbs)", err)
	}
	devices, err := lib.Devices()
	if err != nil {
		return nil, nil, fmt.Errorf("list the RDMA devices (is the kernel module ib_uverbs loaded?): %w: %w", ErrUnavailable, err)
	}
	if len(devices) == 0 {
		return nil, nil, fmt.Errorf("this host has no RDMA device with a user-space driver (\"rdma link\" lists the kernel's; Debian's package ibverbs-providers has the drivers): %w", ErrUnavailable)
	}
	slices.Sort(devices)
	return lib, devices, nil
}
