// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// writeModes writes a run of Modes for people.
func (r Report) writeModes(w io.Writer) error {
	e := r.Environment
	fmt.Fprintf(w, "%s\n%s, %d CPUs, %s, %s; %d drives on %s\n", r.Title, e.CPU, e.CPUs, e.Kernel, e.Go, e.Drives, e.FileSystem)
	for _, name := range sortedKeys(e.Versions) {
		fmt.Fprintf(w, "%s: %s, idle %.3f cores\n", name, e.Versions[name], e.Idle[name])
	}
	if e.Pinning != nil {
		fmt.Fprintf(w, "%v; busy: all the client's CPUs compute layers of a neural network, in a process by itself\n", *e.Pinning)
	}
	fmt.Fprintf(w, "HTTP client: %s\nenergy: %s\n", e.HTTPClient, e.Energy)
	fmt.Fprintf(w, "medians (min..max) of %d windows of %.1f s or more, in turns; kept = busy over idle in the same round; CPU in seconds per GiB\n\n", e.Repeat, e.Window)

	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	line(t, "WORKLOAD", "CLIENT", "SIDE", "SIZE", "N", "GIB/S", "/HTTP", "KEPT", "COMPUTE KEPT", "CLIENT CPU", "HTTP/THIS", "SERVER CPU", "P50 MS", "P90 MS", "P99 MS", "J/GIB", "OVER FABRIC", "BY HTTP", "OTHER", "WAYS")
	for _, m := range r.Modes {
		line(t, m.Workload, m.Client, m.Side, bytesText(m.Size), fmt.Sprint(m.Concurrency),
			spread(m.Throughput, "%.2f"), spread(m.OverHTTP, "%.2fx"), share(m.Kept), share(m.ComputeKept),
			spread(m.ClientCPU, "%.4f"), spread(m.HTTPClientOver, "%.3gx"), spread(m.ServerCPU, "%.3f"),
			fmt.Sprintf("%.2f", m.P50), fmt.Sprintf("%.2f", m.P90), fmt.Sprintf("%.2f", m.P99), spread(m.Energy, "%.2f"),
			part(m.OverFabric, m.Bytes), part(m.ByHTTP, m.Bytes), spread(m.Other, "%.2f"), waysText(m.Ways))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(r.Rows) > 0 {
		fmt.Fprint(w, "\nby size, the client idle\n")
		t = tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		line(t, "OP", "SIZE", "N", "SIDE", "GIB/S", "/HTTP", "CLIENT CPU", "HTTP/THIS", "SERVER CPU", "P50 MS", "P99 MS", "OPS", "WAYS")
		for _, x := range r.Rows {
			line(t, string(x.Op), bytesText(x.Size), fmt.Sprint(x.Concurrency), x.Side, spread(x.Throughput, "%.3f"), spread(x.OverHTTP, "%.2fx"),
				spread(x.ClientCPU, "%.4f"), spread(x.HTTPClientOver, "%.3gx"), spread(x.ServerCPU, "%.3f"),
				fmt.Sprintf("%.2f", x.P50), fmt.Sprintf("%.2f", x.P99), fmt.Sprint(x.Ops), waysText(x.Ways))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if r.Crossover != nil {
		fmt.Fprintf(w, "\ncrossover, one request after the other: %s\n", r.Crossover.text())
	}
	fmt.Fprintln(w, "busy_kept below is the smaller of the shares of throughput and of computation that a busy client keeps, for object transfer")
	return nil
}

// share is a spread of shares, as percentages.
func share(s Spread) string {
	for _, v := range []*float64{&s.Min, &s.Median, &s.Max} {
		*v *= 100
	}
	return spread(s, "%.1f%%")
}

// part is a number of bytes, and how much of all it is.
func part(n, all int64) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("%.2f GiB = %.1f%%", float64(n)/gib, 100*ratio(float64(n), float64(all)))
}
