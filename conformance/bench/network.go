// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
)

// Network is the network that UnderLoad measures over. The zero value is one of its own
// making: a network namespace for the servers, and a veth pair to it.
type Network struct {
	// Conditions are measured in this order; none are Conditions().
	Conditions []Condition
	// Server and Client are addresses that are there already, between which packets go
	// over Links, interfaces of this host; the client's first. Then nothing is made.
	Server, Client string
	Links          []string
	// Flow is a command that calls ServeFlow with its last arguments, FlowEnv what is
	// added to its environment. Conditions with flows need it.
	Flow, FlowEnv []string
}

// Condition is what the network does.
type Condition struct {
	Name string
	// Qdisc is what tc-qdisc(8) is told for both directions; "" is nothing.
	Qdisc string
	// Flows is the number of TCP connections that compete, from the server's end to the
	// client's.
	Flows int
}

// Conditions are those that are measured if none are named: nothing first, for comparison.
func Conditions() []Condition {
	return []Condition{
		{Name: clean},
		{Name: "4 flows", Flows: 4},
		{Name: "2 Gbit/s, 4 flows", Qdisc: "tbf rate 2gbit burst 4mb latency 20ms", Flows: 4},
		{Name: "delay 1 ms", Qdisc: "netem limit 100000 delay 1ms"},
		{Name: "reordering", Qdisc: "netem limit 100000 delay 1ms reorder 25% 50%"},
		{Name: "loss 0.1%", Qdisc: "netem limit 100000 loss 0.1%"},
		{Name: "loss 1%", Qdisc: "netem limit 100000 loss 1%"},
		{Name: "loss 1%, delay", Qdisc: "netem limit 100000 delay 1ms loss 1%"},
	}
}

// clean is the condition that others are compared with.
const clean = "clean"

// ParseCondition reads NAME=QDISC, or NAME/FLOWS=QDISC.
func ParseCondition(s string) (c Condition, err error) {
	name, qdisc, ok := strings.Cut(s, "=")
	c = Condition{Name: name, Qdisc: strings.TrimSpace(qdisc)}
	if before, flows, found := strings.Cut(name, "/"); found {
		c.Name = before
		if _, err := fmt.Sscanf(flows, "%d", &c.Flows); err != nil {
			ok = false
		}
	}
	if !ok || c.Name == "" || c.Flows < 0 || c.Flows > 1000 {
		return c, fmt.Errorf("%w: %q is no condition: want NAME=QDISC or NAME/FLOWS=QDISC", ErrOptions, s)
	}
	return c, nil
}

// NetRow is one side under one condition.
type NetRow struct {
	Condition string `json:"condition"`
	Qdisc     string `json:"qdisc,omitempty"`
	Flows     int    `json:"flows,omitempty"`
	Row
	// Kept is the throughput over the median of what the same side has on the clean
	// network.
	Kept Spread `json:"throughput_kept"`
	// Bytes is how many bytes of objects were moved, OverFabric and ByHTTP as in ModeRow.
	// OnWire is what the client's network interface counted meanwhile, everybody's packets.
	Bytes      int64 `json:"bytes"`
	OverFabric int64 `json:"bytes_over_fabric"`
	ByHTTP     int64 `json:"bytes_by_http"`
	OnWire     int64 `json:"bytes_on_wire"`
}

func (o *Options) fillNetwork() error {
	if len(o.Fabrics) == 0 {
		o.Fabrics = []string{"tcp"}
	}
	if len(o.Sizes) == 0 {
		o.Sizes = []int64{16 * mib}
	}
	if len(o.Concurrency) == 0 {
		o.Concurrency = []int{4}
	}
	if len(o.Ops) == 0 {
		o.Ops = []Op{Get}
	}
	n := &o.Network
	if len(n.Conditions) == 0 {
		n.Conditions = Conditions()
	}
	o.Sizes, o.Concurrency = o.Sizes[:1], o.Concurrency[:1]
	switch {
	case slices.Contains(o.Fabrics, "shm"):
		return fmt.Errorf("%w: shm uses no network", ErrOptions)
	case n.Server != "" && (n.Client == "" || len(n.Links) == 0):
		return fmt.Errorf("%w: a network that is there needs the addresses of server and client, and links", ErrOptions)
	case len(n.Flow) == 0 && slices.ContainsFunc(n.Conditions, func(c Condition) bool { return c.Flows > 0 }):
		return fmt.Errorf("%w: Flow must name a command that makes flows", ErrOptions)
	}
	return o.fill()
}

// UnderLoad measures fabrics against HTTP over a network that is loaded, loses, delays and
// reorders. It needs root and iproute2; conditions that the kernel cannot make are left
// out, and named. Of Options, the first of Sizes and Concurrency count, 16 MiB and 4 if
// there are none; no Fabrics are tcp, no Ops GET.
func UnderLoad(ctx context.Context, o Options) (report Report, err error) {
	if err := o.fillNetwork(); err != nil {
		return report, err
	}
	b, err := newBench(o, "S3 objects over a fabric, against HTTP, over a network under load")
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, b.close()); report = b.report }()
	err = b.underLoad(ctx)
	return report, err
}

func (b *bench) underLoad(ctx context.Context) error {
	w, err := newWire(ctx, b.o.Network)
	if err != nil {
		return err
	}
	b.undo = append(b.undo, w.close)
	b.wire = w
	b.launch = launchIn(w.ns, (*exec.Cmd).Start)
	if cpus, err := allowedCPUs(); err == nil {
		if p, err := split(cpus); err == nil {
			unpin, err := pinSelf(p.Client)
			if err != nil {
				return err
			}
			b.undo = append(b.undo, unpin)
			b.report.Environment.Pinning = &p
			b.launch = launchIn(w.ns, launchOn(p.Server))
		}
	}
	size, workers := int(b.o.Sizes[0]), b.o.Concurrency[0]
	memory := slices.Repeat([]int64{int64(size)}, workers)
	b.checked = make([]byte, size)
	b.say("starting MinIO with and without the plugin over %d drives each in %s, at the network's other end", b.o.Drives, b.dir)
	fork, stock, err := b.startBoth(ctx)
	if err != nil {
		return err
	}
	var sides []*side
	for _, f := range b.o.Fabrics {
		s, err := b.overFabric(ctx, f, f, fork, memory)
		if err != nil {
			return err
		}
		sides = append(sides, s)
	}
	sides = append(sides, b.overHTTP(sideHTTP, stock, memory))
	for _, s := range []*server{fork, stock} {
		if err := s.fill(ctx, b.m.pattern, size, workers); err != nil {
			return err
		}
	}
	b.plan(len(b.o.Network.Conditions) * len(b.o.Ops) * len(sides) * b.o.Repeat)
	for _, c := range b.o.Network.Conditions {
		if err := b.condition(ctx, c, sides); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	b.report.Result = networkLine(b.report)
	return nil
}

// condition measures all under one condition.
func (b *bench) condition(ctx context.Context, c Condition, sides []*side) (err error) {
	if err := b.wire.shape(ctx, c.Qdisc); err != nil {
		if errors.Is(err, ErrUnsupported) {
			b.report.LeftOut = append(b.report.LeftOut, fmt.Sprintf("%s: %v", c.Name, err))
			b.more(-len(b.o.Ops) * len(sides) * b.o.Repeat)
			return nil
		}
		return err
	}
	defer func() { err = errors.Join(err, b.wire.clear(context.WithoutCancel(ctx))) }()
	if c.Flows > 0 {
		stop, err := startFlows(b.o, c.Flows, b.wire)
		if err != nil {
			return err
		}
		defer stop()
	}
	for _, op := range b.o.Ops {
		x := cell{op: op, size: int(b.o.Sizes[0]), workers: b.o.Concurrency[0], keys: b.o.Concurrency[0]}
		var rows []*rowBuilder
		for _, s := range sides {
			rows = append(rows, &rowBuilder{side: s, cell: x})
		}
		wire := make([]int64, len(rows))
		for round := range b.o.Repeat {
			for i, r := range rows {
				b.step("%s, %s by %s: round %d", c.Name, op, r.side.name, round+1)
				before, err := b.wire.bytes()
				if err != nil {
					return err
				}
				w, err := b.turn(ctx, b.m, r.side, x)
				if err != nil {
					return err
				}
				after, err := b.wire.bytes()
				if err != nil {
					return err
				}
				wire[i] += after - before
				r.windows = append(r.windows, w)
			}
		}
		b.report.Network = append(b.report.Network, netRows(c, rows, wire, b.report.Network)...)
	}
	return nil
}

// netRows puts the windows of one condition together. done are the rows so far.
func netRows(c Condition, builders []*rowBuilder, wire []int64, done []NetRow) (rows []NetRow) {
	for i, x := range builders {
		r := NetRow{Condition: c.Name, Qdisc: c.Qdisc, Flows: c.Flows, Row: x.row(Floors{}), OnWire: wire[i]}
		for _, y := range builders {
			if y.side.fabric == "" {
				r.OverHTTP = paired(x, y, func(w window) float64 { return w.rate(x.cell.size) })
				r.HTTPClientOver = paired(y, x, clientCPU)
			}
		}
		all := append(slices.Clone(done), r)
		if j := slices.IndexFunc(all, func(y NetRow) bool { return y.Condition == clean && y.Op == r.Op && y.Side == r.Side }); j >= 0 {
			var kept []float64
			for _, w := range x.windows {
				kept = append(kept, ratio(w.rate(x.cell.size), all[j].Throughput.Median))
			}
			r.Kept = spreadOf(kept)
		}
		for _, w := range x.windows {
			r.Bytes += int64(w.ops) * r.Size
			r.OverFabric += w.overFabric
			r.ByHTTP += w.byHTTP
		}
		rows = append(rows, r)
	}
	return rows
}

// networkLine is the summary: of the fabrics, the least of what they have over HTTP.
func networkLine(r Report) string {
	conditions := map[string]bool{}
	var overs, kepts, inlines []float64
	for _, x := range r.Network {
		conditions[x.Condition] = true
		if x.Side == sideHTTP {
			inlines = append(inlines, x.Kept.Median)
			continue
		}
		overs, kepts = append(overs, x.OverHTTP.Median), append(kepts, x.Kept.Median)
	}
	over, kept, inline := spreadOf(overs), spreadOf(kepts), spreadOf(inlines)
	return fmt.Sprintf("bench-network: conditions=%d left_out=%d over_http_min=%.2f over_http_median=%.2f kept_min=%.3f inline_kept_min=%.3f",
		len(conditions), len(r.LeftOut), over.Min, over.Median, kept.Min, inline.Min)
}

// writeNetwork writes a run of UnderLoad for people.
func (r Report) writeNetwork(w io.Writer) error {
	e := r.Environment
	fmt.Fprintf(w, "%s\n%s, %d CPUs, %s, %s; %d drives on %s\n", r.Title, e.CPU, e.CPUs, e.Kernel, e.Go, e.Drives, e.FileSystem)
	if e.Pinning != nil {
		fmt.Fprintf(w, "%v\n", *e.Pinning)
	}
	fmt.Fprintf(w, "HTTP client: %s\nmedians (min..max) of %d windows of %.2g s or more, in turns; kept = over the clean network; CPU in seconds per GiB; on wire = packets of all, over object bytes\n\n", e.HTTPClient, e.Repeat, e.Window)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	line(t, "NETWORK", "OP", "SIDE", "SIZE", "N", "GIB/S", "/HTTP", "KEPT", "CLIENT CPU", "HTTP/THIS", "SERVER CPU", "P50 MS", "P99 MS", "OVER FABRIC", "BY HTTP", "ON WIRE", "OTHER", "WAYS")
	for _, x := range r.Network {
		line(t, x.Condition, string(x.Op), x.Side, bytesText(x.Size), fmt.Sprint(x.Concurrency), spread(x.Throughput, "%.3f"), spread(x.OverHTTP, "%.2fx"), share(x.Kept),
			spread(x.ClientCPU, "%.3f"), spread(x.HTTPClientOver, "%.2fx"), spread(x.ServerCPU, "%.3f"), fmt.Sprintf("%.1f", x.P50), fmt.Sprintf("%.1f", x.P99),
			part(x.OverFabric, x.Bytes), part(x.ByHTTP, x.Bytes), fmt.Sprintf("%.2fx", ratio(float64(x.OnWire), float64(x.Bytes))), spread(x.Other, "%.2f"), waysText(x.Ways))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, s := range r.LeftOut {
		fmt.Fprintf(w, "left out: %s\n", s)
	}
	return nil
}
