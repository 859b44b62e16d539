// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"width": func() int { return chartWidth }, "height": func() int { return chartHeight },
	"left": func() int { return chartLeft }, "right": func() int { return chartWidth - chartRight },
	"top": func() int { return chartTop }, "bottom": func() int { return plotBottom },
	"middle": func() int { return chartLeft + plotWidth/2 },
}).Parse(pageText))

// page is what the template shows.
type page struct {
	Report
	Tiles       []tile
	Charts      []chart
	Tables      []table
	Environment [][2]string
	When        string
}

// tile is one large number.
type tile struct{ Value, Name string }

// table has a cell for each column in each row.
type table struct {
	Title   string
	Columns []string
	Rows    [][]string
}

// WriteHTML writes the report as one page that needs nothing else: plots, tables, where it
// was measured, and how to repeat it. It is valid for a report of any kind.
func (r Report) WriteHTML(w io.Writer) error {
	p := page{Report: r, When: r.Started.Format("2006-01-02 15:04 MST"), Environment: r.environment()}
	p.tiles()
	p.charts()
	p.tables()
	return pageTemplate.Execute(w, p)
}

// find returns the row of a mode.
func (r Report) find(workload, client string, http bool) (ModeRow, bool) {
	i := slices.IndexFunc(r.Modes, func(m ModeRow) bool {
		return m.Workload == workload && m.Client == client && (m.Side == sideHTTP) == http
	})
	if i < 0 {
		return ModeRow{}, false
	}
	return r.Modes[i], true
}

func (p *page) tiles() {
	add := func(value, name string) { p.Tiles = append(p.Tiles, tile{value, name}) }
	percent := func(s Spread) string { return fmt.Sprintf("%.0f %%", 100*s.Median) }
	idle, ok := p.find(Objects, Idle, false)
	if !ok {
		return
	}
	add(fmt.Sprintf("%.3gx", idle.HTTPClientOver.Median), "client CPU of HTTP over that of "+idle.Side)
	add(fmt.Sprintf("%.2gx", idle.OverHTTP.Median), "throughput of "+idle.Side+" over HTTP's")
	busy, ok := p.find(Objects, Busy, false)
	inline, inlineOK := p.find(Objects, Busy, true)
	if ok && inlineOK {
		add(percent(busy.Kept)+" / "+percent(inline.Kept), "of the throughput kept by a busy client, "+busy.Side+" / HTTP")
		add(percent(busy.ComputeKept)+" / "+percent(inline.ComputeKept), "of its computation kept, "+busy.Side+" / HTTP")
	}
	if p.Crossover != nil {
		bytes, word := p.Crossover.median()
		add(strings.TrimSpace(word+" "+sizeText(bytes)), "size from which on "+idle.Side+" is faster")
	}
}

// sizeText is a size rounded for people.
func sizeText(n int64) string {
	switch {
	case n >= mib:
		return fmt.Sprintf("%.3g MiB", float64(n)/mib)
	case n >= kib:
		return fmt.Sprintf("%.3g KiB", float64(n)/kib)
	}
	return fmt.Sprintf("%d B", n)
}

// class is a side's colour.
func class(side string) int {
	if side == sideHTTP {
		return 1
	}
	return 0
}

// bySide makes a series for each side of rows.
func bySide[R any](rows []R, side func(R) string, value func(i int, r R) (point, bool)) (all []series) {
	for i, r := range rows {
		p, ok := value(i, r)
		if !ok {
			continue
		}
		at := slices.IndexFunc(all, func(s series) bool { return s.name == side(r) })
		if at < 0 {
			at = len(all)
			all = append(all, series{name: side(r), class: class(side(r))})
			if all[at].class == 0 && at > 0 && slices.ContainsFunc(all[:at], func(s series) bool { return s.class == 0 }) {
				all[at].class = 1 + at // a second fabric
			}
		}
		all[at].points = append(all[at].points, p)
	}
	return all
}

func (p *page) charts() {
	if len(p.Modes) > 0 {
		p.modeCharts()
	}
	if len(p.Rows) > 0 {
		p.sizeCharts()
	}
	if len(p.Network) > 0 {
		p.networkCharts()
	}
	if p.Crossover != nil && len(p.Crossover.Tried) > 0 {
		var points []point
		var sizes []int64
		for _, t := range p.Crossover.Tried {
			points = append(points, point{float64(t.Bytes), t.OverHTTP, fmt.Sprintf("search %d, %d bytes: %s of HTTP", t.Search, t.Bytes, spread(t.OverHTTP, "%.2fx"))})
		}
		for s := p.Crossover.From; s <= p.Crossover.To; s *= 4 {
			sizes = append(sizes, s)
		}
		p.Charts = append(p.Charts, scatter(lineChart("crossover", "The search for the crossover", p.Crossover.text(),
			axis{label: "object size", log: true, marks: sizeMarks(sizes)}, axis{label: "throughput over HTTP's"},
			[]series{{"one request after the other", 0, points}}, 1, "as fast as HTTP")))
	}
}

func (p *page) modeCharts() {
	var groups []string
	for _, m := range p.Modes {
		if g := m.Workload + ", " + m.Client; !slices.Contains(groups, g) {
			groups = append(groups, g)
		}
	}
	side := func(m ModeRow) string { return m.Side }
	bars := func(id, title, note, unit, format string, level float64, levelText string, value func(ModeRow) Spread) {
		var used []string
		for _, g := range groups {
			if slices.ContainsFunc(p.Modes, func(m ModeRow) bool { return m.Workload+", "+m.Client == g && value(m).N > 0 }) {
				used = append(used, g)
			}
		}
		all := bySide(p.Modes, side, func(_ int, m ModeRow) (point, bool) {
			v, g := value(m), m.Workload+", "+m.Client
			return point{float64(slices.Index(used, g)), v, fmt.Sprintf("%s, %s: %s", m.Side, g, spread(v, format))}, v.N > 0
		})
		if len(all) > 0 {
			p.Charts = append(p.Charts, barChart(id, title, note, used, axis{label: unit}, format, all, level, levelText))
		}
	}
	bars("busy", "Throughput, the client idle and busy", "busy: all the client's CPUs compute", "GiB/s", "%.2f", 0, "", func(m ModeRow) Spread { return m.Throughput })
	bars("kept", "Throughput that a busy client keeps", "over that of the idle one, in the same round", "share", "%.2f", 1, "all of it", func(m ModeRow) Spread { return m.Kept })
	bars("computed", "Computation that a busy client keeps", "over what it computes when nothing is transferred", "share", "%.2f", 1, "all of it", func(m ModeRow) Spread { return m.ComputeKept })
	bars("client-cpu", "Client CPU per GiB", "user and system time of the client's process", "CPU seconds per GiB", "%.3f", 0, "", func(m ModeRow) Spread { return m.ClientCPU })
	bars("server-cpu", "Server CPU per GiB", "user and system time of the server's process", "CPU seconds per GiB", "%.3f", 0, "", func(m ModeRow) Spread { return m.ServerCPU })
	bars("latency", "Latency", "median of all operations; the line ends at the 99th percentile", "ms", "%.0f", 0, "", func(m ModeRow) Spread {
		return Spread{N: m.Ops, Min: m.P50, Median: m.P50, Max: m.P99}
	})
	bars("energy", "Energy per GiB", p.Report.Environment.Energy, "J/GiB", "%.1f", 0, "", func(m ModeRow) Spread { return m.Energy })
}

// networkCharts are of the first operation that there is.
func (p *page) networkCharts() {
	var groups []string
	for _, x := range p.Network {
		if !slices.Contains(groups, x.Condition) {
			groups = append(groups, x.Condition)
		}
	}
	op := p.Network[0].Op
	bars := func(id, title, note, unit, format string, level float64, levelText string, value func(NetRow) Spread) {
		all := bySide(p.Network, func(x NetRow) string { return x.Side }, func(_ int, x NetRow) (point, bool) {
			v := value(x)
			return point{float64(slices.Index(groups, x.Condition)), v, fmt.Sprintf("%s, %s: %s", x.Side, x.Condition, spread(v, format))}, x.Op == op && v.N > 0
		})
		p.Charts = append(p.Charts, barChart(id, fmt.Sprintf("%s, %s", title, op), note, groups, axis{label: unit}, format, all, level, levelText))
	}
	bars("network", "Throughput over a network under load", "packets lost, delayed, reordered by netem in both directions; flows: competing TCP connections", "GiB/s", "%.2f", 0, "", func(x NetRow) Spread { return x.Throughput })
	bars("network-kept", "Throughput kept under load", "over that of the clean network", "share", "%.2f", 1, "all of it", func(x NetRow) Spread { return x.Kept })
	bars("network-cpu", "Client CPU per GiB under load", "user and system time of the client's process", "CPU seconds per GiB", "%.2f", 0, "", func(x NetRow) Spread { return x.ClientCPU })
	bars("network-latency", "Latency under load", "median of all operations; the line ends at the 99th percentile", "ms", "%.0f", 0, "", func(x NetRow) Spread {
		return Spread{N: x.Ops, Min: x.P50, Median: x.P50, Max: x.P99}
	})
}

// sizeCharts are of the first operation and number of requests at once that the rows have.
func (p *page) sizeCharts() {
	first := p.Rows[0]
	var sizes []int64
	for _, r := range p.Rows {
		if r.Op == first.Op && r.Concurrency == first.Concurrency {
			sizes = append(sizes, r.Size)
		}
	}
	if len(slices.Compact(slices.Sorted(slices.Values(sizes)))) < 2 {
		return
	}
	x := axis{label: "object size", log: true, marks: sizeMarks(sizes)}
	lines := func(id, title string, y axis, format string, value func(Row) Spread) {
		all := bySide(p.Rows, func(r Row) string { return r.Side }, func(_ int, r Row) (point, bool) {
			v := value(r)
			return point{float64(r.Size), v, fmt.Sprintf("%s, %s: %s", r.Side, bytesText(r.Size), spread(v, format))}, r.Op == first.Op && r.Concurrency == first.Concurrency
		})
		p.Charts = append(p.Charts, lineChart(id, fmt.Sprintf("%s, %s, %d at once", title, first.Op, first.Concurrency), "the client idle", x, y, all, 0, ""))
	}
	lines("throughput-by-size", "Throughput by size", axis{label: "GiB/s"}, "%.3f", func(r Row) Spread { return r.Throughput })
	lines("client-cpu-by-size", "Client CPU per GiB by size", axis{label: "CPU seconds per GiB", log: true}, "%.4f", func(r Row) Spread { return r.ClientCPU })
	lines("latency-by-size", "Latency by size", axis{label: "ms: median, and to the 99th percentile", log: true}, "%.2f", func(r Row) Spread {
		return Spread{N: r.Ops, Min: r.P50, Median: r.P50, Max: r.P99}
	})
}

func (p *page) tables() {
	if len(p.Modes) > 0 {
		t := table{Title: "The four modes", Columns: []string{"workload", "client", "side", "GiB/s", "over HTTP", "kept", "compute kept", "client CPU s/GiB", "HTTP's over this", "server CPU s/GiB",
			"p50 ms", "p90 ms", "p99 ms", "max ms", "J/GiB", "over the fabric", "by HTTP", "ways"}}
		for _, m := range p.Modes {
			t.Rows = append(t.Rows, []string{m.Workload, m.Client, m.Side, spread(m.Throughput, "%.2f"), spread(m.OverHTTP, "%.2fx"), share(m.Kept), share(m.ComputeKept),
				spread(m.ClientCPU, "%.4f"), spread(m.HTTPClientOver, "%.3gx"), spread(m.ServerCPU, "%.3f"), fmt.Sprintf("%.2f", m.P50), fmt.Sprintf("%.2f", m.P90),
				fmt.Sprintf("%.2f", m.P99), fmt.Sprintf("%.2f", m.Max), spread(m.Energy, "%.2f"), part(m.OverFabric, m.Bytes), part(m.ByHTTP, m.Bytes), waysText(m.Ways)})
		}
		p.Tables = append(p.Tables, t)
	}
	if len(p.Network) > 0 {
		p.Tables = append(p.Tables, p.networkTable())
	}
	if len(p.Rows) > 0 {
		t := table{Title: "By size", Columns: []string{"operation", "size", "at once", "side", "GiB/s", "over HTTP", "client CPU s/GiB", "HTTP's over this", "server CPU s/GiB", "p50 ms", "p99 ms", "operations", "ways"}}
		for _, x := range p.Rows {
			t.Rows = append(t.Rows, []string{string(x.Op), bytesText(x.Size), fmt.Sprint(x.Concurrency), x.Side, spread(x.Throughput, "%.3f"), spread(x.OverHTTP, "%.2fx"),
				spread(x.ClientCPU, "%.4f"), spread(x.HTTPClientOver, "%.3gx"), spread(x.ServerCPU, "%.3f"), fmt.Sprintf("%.2f", x.P50), fmt.Sprintf("%.2f", x.P99), fmt.Sprint(x.Ops), waysText(x.Ways)})
		}
		p.Tables = append(p.Tables, t)
	}
}

// networkTable has all under load.
func (r Report) networkTable() table {
	t := table{Title: "Under load", Columns: []string{"network", "qdisc", "operation", "side", "size", "at once", "GiB/s", "over HTTP", "kept", "client CPU s/GiB", "HTTP's over this", "server CPU s/GiB", "p50 ms", "p99 ms",
		"over the fabric", "by HTTP", "on the wire", "ways"}}
	for _, x := range r.Network {
		t.Rows = append(t.Rows, []string{x.Condition, x.Qdisc, string(x.Op), x.Side, bytesText(x.Size), fmt.Sprint(x.Concurrency), spread(x.Throughput, "%.3f"), spread(x.OverHTTP, "%.2fx"), share(x.Kept),
			spread(x.ClientCPU, "%.3f"), spread(x.HTTPClientOver, "%.2fx"), spread(x.ServerCPU, "%.3f"), fmt.Sprintf("%.1f", x.P50), fmt.Sprintf("%.1f", x.P99),
			part(x.OverFabric, x.Bytes), part(x.ByHTTP, x.Bytes), fmt.Sprintf("%.2fx", ratio(float64(x.OnWire), float64(x.Bytes))), waysText(x.Ways)})
	}
	return t
}

// environment lists where it was measured.
func (r Report) environment() [][2]string {
	e := r.Environment
	list := [][2]string{{"CPU", fmt.Sprintf("%s, %d of them", e.CPU, e.CPUs)}, {"kernel", e.Kernel}, {"Go", e.Go}, {"drives", fmt.Sprintf("%d a server, on %s", e.Drives, e.FileSystem)}}
	for _, name := range sortedKeys(e.Versions) {
		list = append(list, [2]string{"server " + name, fmt.Sprintf("%s; idle: %.3f cores", e.Versions[name], e.Idle[name])})
	}
	if e.Pinning != nil {
		list = append(list, [2]string{"pinned", e.Pinning.String()})
	}
	return append(list, [2]string{"HTTP client", e.HTTPClient}, [2]string{"windows", fmt.Sprintf("%d of each, %.2g s or more", e.Repeat, e.Window)}, [2]string{"energy", e.Energy})
}
