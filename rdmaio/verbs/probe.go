// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"github.com/Mellanox/rdmamap"
	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

// Report is what [Probe] has found. It has no secrets.
type Report struct {
	// Library is libibverbs, as it was opened.
	Library string `json:"library"`
	// MemlockBytes is how much memory this process may lock, -1 without limit.
	MemlockBytes int64          `json:"memlock_bytes"`
	Devices      []DeviceReport `json:"devices"`
	// Problems are those of the host; a port's own are among its checks.
	Problems []Check `json:"problems,omitempty"`
}

// OK tells whether there is a port that works, and nothing wrong with it.
func (r Report) OK() bool {
	for _, d := range r.Devices {
		for _, p := range d.Ports {
			if p.ok() {
				return true
			}
		}
	}
	return false
}

// DeviceReport is an RDMA device.
type DeviceReport struct {
	Name     string `json:"name"`
	Firmware string `json:"firmware"`
	VendorID uint32 `json:"vendor_id"`
	PartID   uint32 `json:"part_id"`
	// Software is true where a CPU does the device's work.
	Software bool     `json:"software"`
	Limits   Limits   `json:"limits"`
	Supports Supports `json:"supports"`

	Ports []PortReport `json:"ports"`
	// Problem says why the device cannot be used at all.
	Problem string `json:"problem,omitempty"`
}

// Limits are how many objects a device can have, and how large.
type Limits struct {
	QueuePairs    int    `json:"queue_pairs"`
	WorkRequests  int    `json:"work_requests"`
	Regions       int    `json:"regions"`
	RegionBytes   uint64 `json:"region_bytes"`
	Windows       int    `json:"windows"`
	ReadsAnswered int    `json:"reads_answered"`
	ReadsSent     int    `json:"reads_sent"`
}

// Supports says what a device can do: "yes", or "no" and why.
type Supports struct {
	RC      string `json:"rc"`
	DC      string `json:"dc"`
	Windows string `json:"memory_windows"`
	DMABuf  string `json:"dma_buf"`
}

// PortReport is a port of a device.
type PortReport struct {
	Num       int         `json:"num"`
	State     string      `json:"state"`
	LinkLayer string      `json:"link_layer"`
	LID       int         `json:"lid"`
	MTU       int         `json:"mtu"`
	MaxMTU    int         `json:"max_mtu"`
	Gbits     float64     `json:"gbits"`
	Netdev    string      `json:"netdev"`
	NetdevMTU int         `json:"netdev_mtu"`
	GIDs      []GIDReport `json:"gids"`
	Counters  []Counter   `json:"counters"`
	Checks    []Check     `json:"checks"`
}

// GIDReport is an entry of a port's address table.
type GIDReport struct {
	Index int        `json:"index"`
	Type  GIDType    `json:"type"`
	Addr  netip.Addr `json:"addr"`
	// Chosen marks the one that would be used without further instructions.
	Chosen bool `json:"chosen,omitempty"`
}

// Counter is one of the kernel's counters of a port.
type Counter struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

func (p PortReport) ok() bool {
	for _, c := range p.Checks {
		if !c.OK {
			return false
		}
	}
	return len(p.Checks) > 0
}

// Probe looks at all RDMA devices of this host (those of o.Devices, if it names any), and
// connects each port that is up with itself. It moves a few hundred KiB and takes some
// seconds. An error (ErrUnavailable) says that there is nothing to look at; what is wrong
// with a device or a port is in the report.
func Probe(ctx context.Context, o Options) (Report, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Report{}, fmt.Errorf("verbs: probe: %w", err)
	}
	lib, names, err := load()
	if err != nil {
		return Report{}, fmt.Errorf("verbs: probe: %w", err)
	}
	ports, err := resolve(o.Devices, names)
	if err != nil {
		return Report{}, fmt.Errorf("verbs: probe: %w", err)
	}
	mlx5 := lib.LoadMlx5()
	r := Report{Library: ibv.LibraryName, MemlockBytes: -1}
	if l, err := memlock(); err == nil && l != unix.RLIM_INFINITY {
		r.MemlockBytes = int64(l)
		r.Problems = append(r.Problems, checkMemlock(l))
	}
	for _, p := range ports {
		if err := ctx.Err(); err != nil {
			return r, fmt.Errorf("verbs: probe: %w", err)
		}
		n := len(r.Devices)
		if n == 0 || r.Devices[n-1].Name != p.device {
			r.Devices = append(r.Devices, DeviceReport{Name: p.device, Software: isSoftware(p.device)})
			n++
		}
		probePort(ctx, lib, o, p, &r.Devices[n-1], mlx5)
	}
	return r, nil
}

// checkMemlock judges a limit of locked memory.
func checkMemlock(limit uint64) Check {
	const enough = 1 << 30
	c := Check{Name: "locked memory", OK: limit >= enough}
	if !c.OK {
		c.Problem = fmt.Sprintf("this process may lock %d KiB of memory, which RDMA memory counts against (unless it runs as root)", limit>>10)
		c.Remedy = "ulimit -l unlimited; LimitMEMLOCK=infinity in a systemd unit; --ulimit memlock=-1 for a container"
	}
	return c
}

func probePort(ctx context.Context, lib *ibv.Lib, o Options, p port, d *DeviceReport, mlx5 error) {
	r, err := openRail(lib, p, o, func(*rail) {})
	if err != nil {
		d.Problem = err.Error()
		return
	}
	defer r.close()
	d.describe(r, mlx5)
	pr := PortReport{Num: int(p.num)}
	pr.describe(r)
	if stats, err := rdmamap.GetRdmaSysfsAllStats(p.device, int(p.num)); err == nil {
		for _, s := range append(stats.Stats, stats.HwStats...) {
			pr.Counters = append(pr.Counters, Counter{s.Name, s.Value})
		}
	}
	pr.Checks = append(pr.Checks, checkPort(r)...)
	if r.isUp() {
		pr.Checks = append(pr.Checks, testPort(ctx, o, p)...)
	}
	d.Ports = append(d.Ports, pr)
}

func (d *DeviceReport) describe(r *rail, mlx5 error) {
	a := r.dev
	fw, _, _ := strings.Cut(string(a.FWVer[:]), "\x00")
	d.Firmware, d.VendorID, d.PartID = fw, a.VendorID, a.VendorPartID
	d.Limits = Limits{
		QueuePairs: int(a.MaxQP), WorkRequests: int(a.MaxQPWR), Regions: int(a.MaxMR), RegionBytes: a.MaxMRSize,
		Windows: int(a.MaxMW), ReadsAnswered: int(a.MaxQPRdAtom), ReadsSent: int(a.MaxQPInitRdAtom),
	}
	d.Supports = Supports{RC: supportsRC(r), DC: supportsDC(r, mlx5), Windows: supportsWindows(r), DMABuf: supportsDMABuf(r)}
}

const yes = "yes"

func no(err error) string { return "no: " + err.Error() }

func supportsRC(r *rail) string {
	cq, err := r.ctx.CreateCQ(1, nil)
	if err != nil {
		return no(err)
	}
	defer cq.Destroy()
	qp, err := r.pd.CreateRC(cq, ibv.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1})
	if err != nil {
		return no(r.explain(err))
	}
	qp.Destroy()
	return yes
}

func supportsDC(r *rail, mlx5 error) string {
	switch {
	case mlx5 != nil:
		return no(mlx5)
	case !r.ctx.SupportsDC():
		return "no: only devices of the mlx5 driver have it"
	}
	cq, err := r.ctx.CreateCQ(1, nil)
	if err != nil {
		return no(err)
	}
	defer cq.Destroy()
	dci, err := r.pd.CreateDCI(cq, ibv.QPCap{MaxSendWR: 1, MaxSendSGE: 1})
	if err != nil {
		return no(err)
	}
	dci.Destroy()
	return yes
}

func supportsWindows(r *rail) string {
	switch {
	case r.dev.CapFlags&ibv.CapMWType2B != 0:
		if r.software {
			return "type 2B, but their bounds are not checked: used only if asked for"
		}
		return yes + ": type 2B"
	case r.dev.CapFlags&ibv.CapMWType2A != 0:
		return yes + ": type 2A"
	case r.dev.CapFlags&ibv.CapMemWindow != 0:
		return "no: type 1 only"
	}
	return "no"
}

// supportsDMABuf registers a descriptor that is none: who cannot says so, who can
// complains of the descriptor.
func supportsDMABuf(r *rail) string {
	mr, err := r.pd.RegDMABuf(-1, 0, 4096, 0, ibv.AccessLocalWrite|ibv.AccessRemoteWrite)
	switch {
	case err == nil:
		mr.Dereg()
		return yes
	case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.EPROTONOSUPPORT):
		return "no: the driver, the kernel or libibverbs cannot"
	}
	return yes
}

func (p *PortReport) describe(r *rail) {
	r.mu.Lock()
	a, gids := r.attr, r.gids
	r.mu.Unlock()
	p.State = portState(a.State)
	p.LinkLayer = map[uint8]string{ibv.LinkLayerIB: "InfiniBand", ibv.LinkLayerEthernet: "Ethernet"}[a.LinkLayer]
	p.LID = int(a.LID)
	p.MTU, p.MaxMTU = ibv.MTUBytes(a.ActiveMTU), ibv.MTUBytes(a.MaxMTU)
	p.Gbits = gbits(a.ActiveSpeed, a.ActiveWidth)
	best, err := choose(gids, choice{index: r.gidIndex})
	for _, g := range gids {
		p.GIDs = append(p.GIDs, GIDReport{Index: g.index, Type: g.kind, Addr: g.addr(), Chosen: err == nil && g.index == best.index})
		if p.Netdev == "" {
			p.Netdev = g.netdev
		}
	}
	if i, err := net.InterfaceByName(p.Netdev); err == nil {
		p.NetdevMTU = i.MTU
	}
}

// gbits is a port's speed, from the codes of IBA's PortInfo.
func gbits(speed, width uint8) float64 {
	lane := map[uint8]float64{1: 2.5, 2: 5, 4: 10, 8: 10, 16: 14, 32: 25, 64: 50, 128: 100}[speed]
	lanes := map[uint8]float64{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[width]
	return lane * lanes
}

// checkPort judges what can be seen without sending anything.
func checkPort(r *rail) []Check {
	s := r.status()
	c := []Check{{Name: "port up", OK: s.Up}}
	if !s.Up {
		c[0].Problem = s.Why
		c[0].Remedy = "plug in the cable, or \"ip link set <interface> up\" and give it an address; \"rdma link\" shows the state"
		return c
	}
	r.mu.Lock()
	gids, layer := r.gids, r.attr.LinkLayer
	r.mu.Unlock()
	if layer == ibv.LinkLayerEthernet {
		v2 := Check{Name: "RoCE v2 address"}
		for _, g := range gids {
			v2.OK = v2.OK || g.kind == GIDRoCEv2 && !g.addr().IsLinkLocalUnicast()
		}
		if !v2.OK {
			v2.Problem = "the port has no RoCE v2 address that is routable: peers on other subnets can't reach it"
			v2.Remedy = "give its network interface an IP address"
		}
		c = append(c, v2)
	}
	return c
}

// Print writes the report for people to read.
func (r Report) Print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "library %s", r.Library)
	if r.MemlockBytes >= 0 {
		fmt.Fprintf(&b, ", lockable memory %d KiB", r.MemlockBytes>>10)
	}
	b.WriteString("\n")
	printChecks(&b, "  ", r.Problems)
	for _, d := range r.Devices {
		kind := ""
		if d.Software {
			kind = ", in software"
		}
		fmt.Fprintf(&b, "%s: firmware %s, vendor %#x part %d%s\n", d.Name, d.Firmware, d.VendorID, d.PartID, kind)
		if d.Problem != "" {
			fmt.Fprintf(&b, "  CANNOT BE USED: %s\n", d.Problem)
			continue
		}
		l := d.Limits
		fmt.Fprintf(&b, "  limits: %d queue pairs, %d work requests each, %d regions, %d windows, READs %d answered, %d sent\n",
			l.QueuePairs, l.WorkRequests, l.Regions, l.Windows, l.ReadsAnswered, l.ReadsSent)
		fmt.Fprintf(&b, "  RC: %s\n  DC: %s\n  memory windows: %s\n  dma-buf: %s\n", d.Supports.RC, d.Supports.DC, d.Supports.Windows, d.Supports.DMABuf)
		for _, p := range d.Ports {
			fmt.Fprintf(&b, "  port %d: %s, %s, %g Gbit/s, MTU %d of %d, interface %s (MTU %d)\n",
				p.Num, p.State, p.LinkLayer, p.Gbits, p.MTU, p.MaxMTU, p.Netdev, p.NetdevMTU)
			for _, g := range p.GIDs {
				mark := ""
				if g.Chosen {
					mark = "  <- used"
				}
				fmt.Fprintf(&b, "    address %d: %s, %s%s\n", g.Index, g.Addr, g.Type, mark)
			}
			for _, c := range p.Counters {
				if c.Value != 0 {
					fmt.Fprintf(&b, "    counter %s: %d\n", c.Name, c.Value)
				}
			}
			printChecks(&b, "    ", p.Checks)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func printChecks(b *strings.Builder, indent string, checks []Check) {
	for _, c := range checks {
		if c.OK {
			fmt.Fprintf(b, "%sok    %s\n", indent, c.Name)
			continue
		}
		fmt.Fprintf(b, "%sWRONG %s: %s\n%s      to mend it: %s\n", indent, c.Name, c.Problem, indent, c.Remedy)
	}
}
