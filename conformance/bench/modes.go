// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"github.com/s3rdma/s3rdma/conformance/compute"
	"github.com/s3rdma/s3rdma/conformance/tensors"
)

// The names of what Modes measures.
const (
	Objects = "object transfer"
	Tensors = "tensor load"
	Idle    = "idle"
	Busy    = "busy"
)

// ModeRow is one side in one of the four modes.
type ModeRow struct {
	// Workload is Objects or Tensors, Client Idle or Busy, Side the fabric or http.
	Workload string `json:"workload"`
	Client   string `json:"client"`
	Side     string `json:"side"`
	// Size is that of one object, or file of tensors.
	Size        int64 `json:"size"`
	Concurrency int   `json:"concurrency"`
	Ops         int   `json:"ops"`

	Throughput Spread `json:"gib_per_s"`
	// Kept is, of a busy client, its throughput over that of the idle one in the same
	// round; ComputeKept what it computed meanwhile, over what it computed just before
	// and after, when nothing was transferred.
	Kept        Spread `json:"throughput_kept"`
	ComputeKept Spread `json:"compute_kept"`
	// ClientCPU and ServerCPU are in seconds per GiB of object bytes. What computes is
	// another process, and not in them.
	ClientCPU Spread `json:"client_cpu_s_per_gib"`
	ServerCPU Spread `json:"server_cpu_s_per_gib"`
	// OverHTTP and HTTPClientOver compare with the HTTP side of the same mode and round:
	// throughput over its throughput, and its client's CPU over this one's.
	OverHTTP       Spread `json:"throughput_over_http"`
	HTTPClientOver Spread `json:"http_client_cpu_over_this"`
	Other          Spread `json:"other_cores"`
	// Latencies are in milliseconds.
	P50 float64 `json:"p50_ms"`
	P90 float64 `json:"p90_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
	// Energy is in joules per GiB, of the whole machine; N is 0 where it is not exposed.
	Energy Spread `json:"joules_per_gib"`
	// Bytes is how many bytes of objects were moved; OverFabric are those that the
	// server's counters say went over the fabric, ByHTTP those that the client moved in
	// HTTP bodies.
	Bytes      int64            `json:"bytes"`
	OverFabric int64            `json:"bytes_over_fabric"`
	ByHTTP     int64            `json:"bytes_by_http"`
	Ways       map[string]int64 `json:"ways"`
}

// mode is a workload of an idle or a busy client, while it is measured.
type mode struct {
	workload, client string
	cell             cell
	rows             []*rowBuilder
}

func (o *Options) fillModes() error {
	if len(o.Compute) == 0 {
		return fmt.Errorf("%w: Compute must name a command that computes", ErrOptions)
	}
	if len(o.Fabrics) == 0 {
		o.Fabrics = []string{"shm"}
	}
	if len(o.Fabrics) > 1 {
		return fmt.Errorf("%w: one fabric is compared with HTTP, not %q", ErrOptions, o.Fabrics)
	}
	if len(o.Sizes) == 0 {
		for s := int64(4 * kib); s <= 64*mib; s *= 4 {
			o.Sizes = append(o.Sizes, s)
		}
	}
	if len(o.Concurrency) == 0 {
		o.Concurrency = []int{4}
	}
	slices.Sort(o.Sizes)
	o.Concurrency = o.Concurrency[:1]
	orDefault(&o.Model, tensors.Small)
	orDefault(&o.Searches, 5)
	o.Ops = []Op{Get}
	return o.fill()
}

// Modes measures what moving objects does to a client that computes, and computing to the
// transfers: objects, and files of tensors, by an idle client and by one all of whose CPUs
// compute, over a fabric and by HTTP, in turns. Server and client are pinned to CPUs of
// their own. It also measures throughput by size (Report.Rows, of an idle client), and
// searches for the size from which on the fabric is faster (Report.Crossover).
// Report.Result is the summary in one line.
//
// Of Options, Sizes are those of the rows, the largest also that of the modes' objects;
// Concurrency is one number, 0 is 4; Compute is needed. The report is valid also with an
// error, as far as the run came; when ctx ends, everything is put back as it was, and ctx's
// error is returned.
func Modes(ctx context.Context, o Options) (report Report, err error) {
	if err := o.fillModes(); err != nil {
		return report, err
	}
	b, err := newBench(o, "S3 objects over a fabric, against HTTP, by a client that is idle and by one that computes")
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, b.close()); report = b.report }()
	err = b.modes(ctx)
	return report, err
}

func (b *bench) modes(ctx context.Context) error {
	cpus, err := allowedCPUs()
	if err != nil {
		return err
	}
	pinning, err := split(cpus)
	if err != nil {
		return err
	}
	b.report.Environment.Pinning = &pinning
	b.launch = launchOn(pinning.Server)
	unpin, err := pinSelf(pinning.Client)
	if err != nil {
		return err
	}
	b.undo = append(b.undo, unpin)
	if b.m.file, err = b.o.Model.File(0x5eed); err != nil {
		return err
	}
	// Objects of each worker, and files, by both clients, and what checks and makes them.
	largest, workers := max(int(slices.Max(b.o.Sizes)), len(b.m.file)+tensorSpare), b.o.Concurrency[0]
	if need := int64(2*workers+2) * int64(largest); need > b.o.Memory {
		return fmt.Errorf("%w: %d requests at once of up to %d bytes need %d bytes of Memory, which is %d", ErrOptions, workers, largest, need, b.o.Memory)
	}
	b.checked = make([]byte, largest)
	memory := slices.Repeat([]int64{int64(largest)}, workers)

	b.say("starting MinIO with and without the plugin over %d drives each in %s; %v", b.o.Drives, b.dir, pinning)
	fork, stock, err := b.startBoth(ctx)
	if err != nil {
		return err
	}
	load, err := compute.Start(compute.Options{Command: b.o.Compute, Env: b.o.ComputeEnv, Threads: len(pinning.Client), Launch: launchOn(pinning.Client)})
	if err != nil {
		return err
	}
	b.undo = append(b.undo, func() error { load.Stop(); return nil })
	fabric, err := b.overFabric(ctx, b.o.Fabrics[0], b.o.Fabrics[0], fork, memory)
	if err != nil {
		return err
	}
	sides := []*side{fabric, b.overHTTP(sideHTTP, stock, memory)}
	servers := []*server{fork, stock}
	if err := b.idle(ctx, servers...); err != nil {
		return err
	}
	b.plan(2*b.o.Repeat*2*len(sides) + len(b.o.Sizes)*b.o.sizeRounds()*len(sides) + b.o.Searches*searchSteps)

	if err := b.fourModes(ctx, sides, servers, load); err != nil {
		return err
	}
	for _, size := range b.o.Sizes {
		if err := b.bySize(ctx, int(size), sides, servers); err != nil {
			return err
		}
	}
	if err := b.crossover(ctx, sides, servers); err != nil {
		return err
	}
	b.report.Result = modesLine(b.report)
	return nil
}

// fourModes measures both workloads, idle and busy.
func (b *bench) fourModes(ctx context.Context, sides []*side, servers []*server, load *compute.Load) error {
	workers := b.o.Concurrency[0]
	size := int(slices.Max(b.o.Sizes))
	for _, s := range servers {
		if err := s.fill(ctx, b.m.pattern, size, workers); err != nil {
			return err
		}
		for i := range workers {
			file := s.plain.mem(0)[:copy(s.plain.mem(0), b.m.file)]
			if err := s.plain.put(ctx, 0, tensorKey(i), len(file)); err != nil {
				return err
			}
		}
	}
	for _, c := range []cell{{op: Get, size: size, workers: workers, keys: workers}, {op: Load, size: len(b.m.file), workers: workers, keys: workers}} {
		if err := b.idleAndBusy(ctx, c, sides, load); err != nil {
			return err
		}
		for _, s := range servers {
			if err := s.remove(ctx, keysOf(c)); err != nil {
				return err
			}
		}
	}
	return nil
}

func keysOf(c cell) (keys []string) {
	for i := range c.keys {
		keys = append(keys, c.key(i))
	}
	return keys
}

// idleAndBusy measures a workload. In each round there is every side idle, and every side
// busy; around each of the latter, what the client computes when nothing is transferred.
func (b *bench) idleAndBusy(ctx context.Context, c cell, sides []*side, load *compute.Load) error {
	workload := Objects
	if c.op == Load {
		workload = Tensors
	}
	modes := []mode{{workload: workload, client: Idle, cell: c}, {workload: workload, client: Busy, cell: c}}
	for _, s := range sides {
		busy := *s
		busy.compute = load
		busy.before = func(context.Context) error { return load.Resume() }
		busy.after = func(context.Context) error { return load.Pause() }
		modes[0].rows = append(modes[0].rows, &rowBuilder{side: s, cell: c})
		modes[1].rows = append(modes[1].rows, &rowBuilder{side: &busy, cell: c})
	}
	var loads []float64
	rounds := b.o.Repeat
	for round := 0; round < rounds; round++ {
		other := 0.0
		for _, m := range modes {
			for _, r := range m.rows {
				if round == 0 { // the first use of anything is slower
					warm := b.m
					warm.length = 0
					if _, err := b.turn(ctx, warm, r.side, c); err != nil {
						return err
					}
				}
				b.step("%s, client %s, %s: round %d", workload, m.client, r.side.name, round+1)
				w, err := b.withAlone(ctx, r.side, c)
				if err != nil {
					return err
				}
				r.windows = append(r.windows, w)
				other = max(other, w.otherCores())
			}
		}
		loads = append(loads, other)
		if b.o.Quiet > 0 && other > b.o.Quiet && rounds < 2*b.o.Repeat {
			rounds++
			b.more(2 * len(sides))
		}
	}
	chosen := quietest(loads, b.o.Repeat)
	for _, m := range modes {
		for _, r := range m.rows {
			r.windows = pick(r.windows, chosen)
		}
	}
	b.report.Modes = append(b.report.Modes, modeRows(modes, b.m.energy)...)
	return nil
}

// withAlone is turn, with what the client computes just before and after when nothing is
// transferred, if it is a busy one.
func (b *bench) withAlone(ctx context.Context, s *side, c cell) (window, error) {
	if s.compute == nil {
		return b.turn(ctx, b.m, s, c)
	}
	before, err := b.computeAlone(ctx, s.compute)
	if err != nil {
		return window{}, err
	}
	w, err := b.turn(ctx, b.m, s, c)
	if err != nil {
		return w, err
	}
	after, err := b.computeAlone(ctx, s.compute)
	w.alone = (before + after) / 2
	return w, err
}

// pick are those of all that are chosen.
func pick[T any](all []T, chosen []int) []T {
	var some []T
	for _, i := range chosen {
		some = append(some, all[i])
	}
	return some
}

// computeAlone is how much is computed in a second while nothing is transferred.
func (b *bench) computeAlone(ctx context.Context, load *compute.Load) (float64, error) {
	if err := load.Resume(); err != nil {
		return 0, err
	}
	before, started := load.Work(), time.Now()
	select {
	case <-ctx.Done():
	case <-time.After(b.m.length / 2):
	}
	rate := ratio(float64(load.Work()-before), time.Since(started).Seconds())
	return rate, errors.Join(load.Pause(), ctx.Err())
}

// modeRows puts the windows of the idle and the busy mode together.
func modeRows(modes []mode, energy *energyMeter) (rows []ModeRow) {
	for _, m := range modes {
		for i, r := range m.rows {
			x := r.row(Floors{})
			row := ModeRow{Workload: m.workload, Client: m.client, Side: x.Side, Size: x.Size, Concurrency: x.Concurrency, Ops: x.Ops,
				Throughput: x.Throughput, ClientCPU: x.ClientCPU, ServerCPU: x.ServerCPU, Other: x.Other, P50: x.P50, P99: x.P99, Ways: x.Ways}
			rate := func(w window) float64 { return w.rate(m.cell.size) }
			http := m.rows[slices.IndexFunc(m.rows, func(r *rowBuilder) bool { return r.side.fabric == "" })]
			row.OverHTTP, row.HTTPClientOver = paired(r, http, rate), paired(http, r, clientCPU)
			if m.client == Busy {
				row.Kept = paired(r, modes[0].rows[i], rate)
			}
			var latencies []time.Duration
			var joules, computed []float64
			for _, w := range r.windows {
				bytes := int64(w.ops) * row.Size
				row.Bytes += bytes
				row.OverFabric += w.overFabric
				row.ByHTTP += w.byHTTP
				latencies = append(latencies, w.latencies...)
				joules = append(joules, ratio(w.joules, float64(bytes)/gib))
				if m.client == Busy {
					computed = append(computed, ratio(ratio(w.work, w.took.Seconds()), w.alone))
				}
			}
			slices.Sort(latencies)
			row.P90, row.Max = milliseconds(percentile(latencies, 0.9)), milliseconds(percentile(latencies, 1))
			row.ComputeKept = spreadOf(computed)
			if energy.why == nil {
				row.Energy = spreadOf(joules)
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// clientCPU is a window's client CPU for each operation.
func clientCPU(w window) float64 { return ratio(w.client.Seconds(), float64(w.ops)) }

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }

// sizeRounds are half as many as those of the modes: there are many sizes.
func (o *Options) sizeRounds() int { return (o.Repeat + 1) / 2 }

// bySize measures the sides at one size, the client idle.
func (b *bench) bySize(ctx context.Context, size int, sides []*side, servers []*server) error {
	c := cell{op: Get, size: size, workers: b.o.Concurrency[0], keys: b.o.Concurrency[0]}
	for _, s := range servers {
		if err := s.fill(ctx, b.m.pattern, size, c.keys); err != nil {
			return err
		}
	}
	var rows []*rowBuilder
	for _, s := range sides {
		rows = append(rows, &rowBuilder{side: s, cell: c})
	}
	m := b.m
	m.length /= 2
	for round := range b.o.sizeRounds() {
		for _, r := range rows {
			if round == 0 {
				warm := m
				warm.length = 0
				if _, err := b.turn(ctx, warm, r.side, c); err != nil {
					return err
				}
			}
			b.step("GET %s, %s: round %d", bytesText(int64(size)), r.side.name, round+1)
			w, err := b.turn(ctx, m, r.side, c)
			if err != nil {
				return err
			}
			r.windows = append(r.windows, w)
		}
	}
	b.rows(rows, Floors{})
	for _, s := range servers {
		if err := s.remove(ctx, keysOf(c)); err != nil {
			return err
		}
	}
	return nil
}

// launcher starts a process.
type launcher func(*exec.Cmd) error

// kept is what a busy client keeps of both that it does: the smaller of the shares of
// throughput and computation. Which of the two gives way when both want a CPU is the
// scheduler's choice.
func (m ModeRow) kept() float64 { return min(m.Kept.Median, m.ComputeKept.Median) }

// modesLine is the summary of a run of Modes. It is about objects.
func modesLine(r Report) string {
	idle, _ := r.find(Objects, Idle, false)
	busy, _ := r.find(Objects, Busy, false)
	inline, _ := r.find(Objects, Busy, true)
	return fmt.Sprintf("bench: client_cpu_http_over_fabric=%.1f busy_kept=%.3f inline_busy_kept=%.3f crossover_bytes=%s",
		idle.HTTPClientOver.Median, busy.kept(), inline.kept(), r.Crossover.value())
}
