// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// WriteTable writes the report for people: plain text, columns aligned, each measured
// figure as median (min..max).
func (r Report) WriteTable(w io.Writer) error {
	switch {
	case len(r.Modes) > 0:
		return r.writeModes(w)
	case len(r.Network) > 0:
		return r.writeNetwork(w)
	}
	e := r.Environment
	fmt.Fprintf(w, "%s\n%s, %d CPUs, %s, %s; %d drives on %s\n", r.Title, e.CPU, e.CPUs, e.Kernel, e.Go, e.Drives, e.FileSystem)
	fmt.Fprintf(w, "HTTP client: %s\n", e.HTTPClient)
	fmt.Fprintf(w, "medians (min..max) of %d windows of %.1f s or more, in turns; CPU in seconds per GiB, clock of 1 ns; other = cores used by the rest of the machine", e.Repeat, e.Window)
	if e.Quiet > 0 {
		fmt.Fprintf(w, ", measured again if above %.2g", e.Quiet)
	}
	for _, name := range sortedKeys(e.Idle) {
		fmt.Fprintf(w, "; %s idle %.3f cores", name, e.Idle[name])
	}
	fmt.Fprint(w, "\n\n")

	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	line(t, "OP", "SIZE", "N", "SIDE", "GIB/S", "/HTTP", "/HEALTHY", "/FLOOR", "SERVER CPU", "/FLOOR", "CLIENT CPU", "/COPY", "HTTP/THIS", "P50 MS", "P99 MS", "OPS", "OTHER", "WAYS")
	for _, x := range r.Rows {
		line(t, string(x.Op), bytesText(x.Size), fmt.Sprint(x.Concurrency), x.Side,
			spread(x.Throughput, "%.2f"), spread(x.OverHTTP, "%.2fx"), spread(x.OverHealthy, "%.2fx"), times(x.RateOverFloor),
			spread(x.ServerCPU, "%.3f"), times(x.ServerOverFloor),
			spread(x.ClientCPU, "%.4f"), times(x.ClientOverCopy), spread(x.HTTPClientOver, "%.3gx"),
			fmt.Sprintf("%.2f", x.P50), fmt.Sprintf("%.2f", x.P99), fmt.Sprint(x.Ops), spread(x.Other, "%.2f"), waysText(x.Ways))
	}
	if err := t.Flush(); err != nil {
		return err
	}

	fmt.Fprint(w, "\nfloors: CPU seconds per GiB of object bytes on one thread, and GiB/s of it\n")
	t = tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	line(t, "SIZE", "CODE", "PART", "CPU", "GIB/S")
	for _, f := range r.Floors {
		for _, name := range floorNames {
			p := *f.part(name)
			if name == "write" && f.Direct {
				name = "write (O_DIRECT, drives in parallel)"
			}
			line(t, bytesText(f.Size), fmt.Sprintf("%d+%d", f.Data, f.Parity), name, spread(p.CPU, "%.3f"), spread(p.Rate, "%.2f"))
		}
		line(t, bytesText(f.Size), "", "GET: read + hash + copy", fmt.Sprintf("%.3f", f.GetCPU(true)), fmt.Sprintf("%.2f", ratio(1, f.seconds(Get, true))))
		line(t, bytesText(f.Size), "", "PUT: copy in + encode + hash all + write", fmt.Sprintf("%.3f", f.PutCPU(true)), fmt.Sprintf("%.2f", ratio(1, f.seconds(Put, true))))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, s := range r.LeftOut {
		fmt.Fprintf(w, "left out: %s\n", s)
	}
	return nil
}

func line(w io.Writer, cells ...string) { fmt.Fprintln(w, strings.Join(cells, "\t")) }

// spread is median (min..max).
func spread(s Spread, format string) string {
	if s.N == 0 {
		return "-"
	}
	if s.N == 1 {
		return fmt.Sprintf(format, s.Median)
	}
	return fmt.Sprintf(format+" ("+format+".."+format+")", s.Median, s.Min, s.Max)
}

// times is a ratio; 0 means there is none.
func times(v float64) string {
	switch {
	case v == 0:
		return "-"
	case v >= 100:
		return fmt.Sprintf("%.0fx", v)
	case v < 0.1:
		return fmt.Sprintf("%.3fx", v)
	}
	return fmt.Sprintf("%.2fx", v)
}

// waysText tells the share of each way, the most frequent first.
func waysText(w map[string]int64) string {
	var total int64
	names := sortedKeys(w)
	for _, n := range names {
		total += w[n]
	}
	slices.SortStableFunc(names, func(a, b string) int { return int(w[b] - w[a]) })
	for i, n := range names {
		names[i] = fmt.Sprintf("%s %.0f%%", n, 100*ratio(float64(w[n]), float64(total)))
	}
	return strings.Join(names, ", ")
}

func sortedKeys[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// bytesText is a size for people.
func bytesText(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{gib, "GiB"}, {mib, "MiB"}, {kib, "KiB"}} {
		if n >= u.size && n%(u.size/16) == 0 {
			return fmt.Sprintf("%.4g %s", float64(n)/float64(u.size), u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}
