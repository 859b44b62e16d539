// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Report is what a run found. As JSON it is what [Report.WriteJSON] writes.
type Report struct {
	Title       string      `json:"title"`
	Started     time.Time   `json:"started"`
	Environment Environment `json:"environment"`
	// Command repeats the run.
	Command string `json:"command,omitempty"`
	// Modes are those of [Modes].
	Modes []ModeRow `json:"modes,omitempty"`
	Rows  []Row     `json:"rows"`
	// Network is by [UnderLoad].
	Network []NetRow `json:"network,omitempty"`
	// Crossover is what Modes found.
	Crossover *Crossover `json:"crossover,omitempty"`
	// Floors are by size.
	Floors []Floors `json:"floors,omitempty"`
	// LeftOut says what was not measured, and why.
	LeftOut []string `json:"left_out,omitempty"`
	// Result is the last line of a run of [Direct], [Modes] or [UnderLoad].
	Result string `json:"result,omitempty"`
}

// Environment is where it was measured.
type Environment struct {
	CPU        string `json:"cpu"`
	CPUs       int    `json:"cpus"`
	Kernel     string `json:"kernel"`
	Go         string `json:"go"`
	FileSystem string `json:"file_system"` // of the drives
	Drives     int    `json:"drives"`
	HTTPClient string `json:"http_client"`
	// Window is the least length of a window in seconds, Repeat the number of those
	// that count, Quiet the load in cores above which they were measured again.
	Window float64 `json:"window_s"`
	Repeat int     `json:"repeat"`
	Quiet  float64 `json:"quiet_cores"`
	// Idle is what the servers use without requests, in cores.
	Idle map[string]float64 `json:"idle_cores"`
	// Versions are what the servers call themselves, by name.
	Versions map[string]string `json:"versions,omitempty"`
	// Energy says what energy figures are of, or why there are none.
	Energy string `json:"energy"`
	// Pinning is who had which CPUs; nil: everybody all.
	Pinning *Pinning `json:"pinning,omitempty"`
}

// Row is one side of one cell.
type Row struct {
	Op          Op    `json:"op"`
	Size        int64 `json:"size"`
	Concurrency int   `json:"concurrency"`
	// Side is the fabric, or http; in a run of Direct with a word on what is special.
	Side string `json:"side"`
	Ops  int    `json:"ops"`

	Throughput Spread `json:"gib_per_s"`
	// ServerCPU and ClientCPU are in seconds per GiB of object bytes.
	ServerCPU Spread `json:"server_cpu_s_per_gib"`
	ClientCPU Spread `json:"client_cpu_s_per_gib"`
	// Other is the load of the rest of the machine, in cores.
	Other Spread `json:"other_cores"`
	// P50 and P99 are latencies in milliseconds.
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
	// Ways are the numbers of operations by the way of their bytes: direct, writer,
	// diverted (by the server), http.
	Ways map[string]int64 `json:"ways"`

	// ServerOverFloor is ServerCPU over the floor's, see Floors.
	ServerOverFloor float64 `json:"server_cpu_over_floor"`
	// ClientOverCopy is ClientCPU over that of one copy of the bytes.
	ClientOverCopy float64 `json:"client_cpu_over_copy"`
	// RateOverFloor is Throughput over that of the floor's loop on one thread.
	RateOverFloor float64 `json:"throughput_over_floor"`
	// OverHTTP is the throughput over that of the cell's HTTP side in the same round,
	// OverHealthy, of a side with drives lost, over that without, HTTPClientOver the
	// HTTP client's CPU over this one's.
	OverHTTP       Spread `json:"throughput_over_http"`
	OverHealthy    Spread `json:"throughput_over_healthy"`
	HTTPClientOver Spread `json:"http_client_cpu_over_this"`
}

// software tells whether the CPU makes a fabric's copy.
func software(fabric string) bool { return fabric == "shm" || fabric == "tcp" }

// row puts the windows together.
func (b *rowBuilder) row(f Floors) Row {
	r := Row{Op: b.cell.op, Size: int64(b.cell.size), Concurrency: b.cell.workers, Side: b.side.name, Ways: map[string]int64{}}
	var rate, server, client, other []float64
	var latencies []time.Duration
	for _, w := range b.windows {
		bytes := int64(w.ops) * r.Size
		r.Ops += w.ops
		rate = append(rate, w.rate(b.cell.size))
		server = append(server, perGiB(w.server, bytes))
		client = append(client, perGiB(w.client, bytes))
		other = append(other, w.otherCores())
		latencies = append(latencies, w.latencies...)
		ways(r.Ways).add(w.ways, 1)
	}
	slices.Sort(latencies)
	r.P50, r.P99 = milliseconds(percentile(latencies, 0.5)), milliseconds(percentile(latencies, 0.99))
	r.Throughput, r.ServerCPU, r.ClientCPU, r.Other = spreadOf(rate), spreadOf(server), spreadOf(client), spreadOf(other)
	// HTTP is held to the floor of a software fabric: it copies as well.
	soft := b.side.fabric == "" || software(b.side.fabric)
	r.ServerOverFloor = ratio(r.ServerCPU.Median, f.cpu(b.cell.op, soft))
	r.ClientOverCopy = ratio(r.ClientCPU.Median, f.Copy.CPU.Median)
	r.RateOverFloor = r.Throughput.Median * f.seconds(b.cell.op, soft)
	return r
}

// paired is the spread of a's value over b's, round by round. Both are of one cell.
func paired(a, b *rowBuilder, value func(window) float64) Spread {
	var all []float64
	for i := range min(len(a.windows), len(b.windows)) {
		all = append(all, ratio(value(a.windows[i]), value(b.windows[i])))
	}
	return spreadOf(all)
}

// finish adds the rows and floors of a size to the report.
func (b *bench) finish(builders []*rowBuilder, f Floors) {
	b.rows(builders, f)
	b.report.Floors = append(b.report.Floors, f)
}

// rows adds rows to the report.
func (b *bench) rows(builders []*rowBuilder, f Floors) {
	for _, x := range builders {
		r := x.row(f)
		rate := func(w window) float64 { return w.rate(x.cell.size) }
		for _, y := range builders {
			if y.cell != x.cell {
				continue
			}
			if y.side.fabric == "" {
				r.OverHTTP, r.HTTPClientOver = paired(x, y, rate), paired(y, x, clientCPU)
			}
			if x.side.healthy != nil && y.side == x.side.healthy {
				r.OverHealthy = paired(x, y, rate)
			}
		}
		b.report.Rows = append(b.report.Rows, r)
	}
}

// WriteJSON writes the report.
func (r Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// addVersion asks a MinIO binary what it is.
func (e *Environment) addVersion(ctx context.Context, name, binary string) {
	out, err := exec.CommandContext(ctx, binary, "--version").Output()
	if err != nil {
		out = []byte(err.Error())
	}
	if e.Versions == nil {
		e.Versions = map[string]string{}
	}
	first, _, _ := strings.Cut(string(out), "\n")
	e.Versions[name] = strings.TrimSpace(first)
}

// environment describes this machine, as far as it tells.
func environment(dir string, o Options) Environment {
	e := Environment{CPU: runtime.GOARCH, CPUs: runtime.NumCPU(), Kernel: runtime.GOOS, Go: runtime.Version(), FileSystem: fileSystem(dir),
		Drives: o.Drives, HTTPClient: httpClientName, Window: o.Window.Seconds(), Repeat: o.Repeat, Quiet: o.Quiet}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		e.Kernel += " " + strings.TrimSpace(string(b))
	}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for _, line := range strings.Split(string(b), "\n") {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				e.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	return e
}
