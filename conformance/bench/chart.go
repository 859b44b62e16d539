// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// The charts' size in units of their own, and the room around the plot.
const (
	chartWidth, chartHeight              = 560, 320
	chartLeft, chartRight                = 64, 26
	chartTop, chartBottom                = 34, 46
	plotWidth, plotHeight                = chartWidth - chartLeft - chartRight, chartHeight - chartTop - chartBottom
	plotBottom                           = chartTop + plotHeight
	groupGap, barGap, legendGap, dotSize = 0.25, 2.0, 14.0, 3.0
	// valueWidth is a bar's that has room for its value.
	valueWidth = 28
)

// point is a measured value, with its spread, at x: a number, or the index of a group of
// bars.
type point struct {
	x      float64
	y      Spread
	detail string // shown when pointed at
}

// series is what one side did.
type series struct {
	name   string
	class  int // its colour
	points []point
}

// axis is a scale with marks.
type axis struct {
	label string
	log   bool
	marks []mark
}

type mark struct {
	at    float64
	label string
}

// chart is geometry that the page's template draws.
type chart struct {
	ID, Title, Note string
	XLabel, YLabel  string
	XMarks, YMarks  []drawnMark
	Legend          []drawnLegend
	Lines           []drawnLine
	Dots            []drawnDot
	Bars            []drawnBar
	// Level is a line across, if it has a label.
	Level drawnMark
}

type (
	drawnMark struct {
		At, Text string
		Low      bool // a line lower, so that neighbours do not touch
	}
	drawnLegend struct {
		At, TextAt, Name string
		Class            int
	}
	drawnLine struct {
		Class  int
		Points string
	}
	// drawnDot has a line from Low to High through it.
	drawnDot struct {
		Class              int
		X, Y, Low, High, R string
		Detail             string
	}
	drawnBar struct {
		Class                            int
		X, Y, Width, Height              string
		Middle, Low, High, TextAt, Value string
		Detail                           string
	}
)

// c is a coordinate.
func c(v float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") }

// scale places values between from and to at 0 to 1.
type scale struct {
	from, to float64
	log      bool
}

func (s scale) place(v float64) float64 {
	from, to := s.from, s.to
	if s.log {
		from, to, v = math.Log(from), math.Log(to), math.Log(max(v, s.from))
	}
	if to <= from {
		return 0.5
	}
	return min(max((v-from)/(to-from), 0), 1)
}

func (s scale) x(v float64) float64 { return chartLeft + plotWidth*s.place(v) }
func (s scale) y(v float64) float64 { return plotBottom - plotHeight*s.place(v) }

// valueScale is a scale for the y values of all series, with marks at round numbers.
func valueScale(all []series, log bool, level float64) (scale, []mark) {
	low, high := math.Inf(1), max(level, 0)
	for _, s := range all {
		for _, p := range s.points {
			high = max(high, p.y.Max)
			if p.y.Min > 0 {
				low = min(low, p.y.Min)
			}
		}
	}
	if high <= 0 {
		low, high = 1, 1
	}
	var marks []mark
	if log {
		low = min(low, high)
		if level > 0 {
			low = min(low, level)
		}
		from, to := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
		if to == from {
			to++
		}
		for e := from; e <= to; e++ {
			marks = append(marks, mark{math.Pow(10, e), number(math.Pow(10, e))})
		}
		return scale{math.Pow(10, from), math.Pow(10, to), true}, marks
	}
	step := math.Pow(10, math.Floor(math.Log10(high)))
	for _, f := range []float64{0.1, 0.2, 0.5, 1} {
		if high/(step*f) <= 6 {
			step *= f
			break
		}
	}
	// A bar's value stands above it.
	n := math.Ceil(high*1.06/step - 1e-9)
	for i := range int(n) + 1 {
		marks = append(marks, mark{float64(i) * step, number(float64(i) * step)})
	}
	return scale{0, n * step, false}, marks
}

// number is a short text.
func number(v float64) string {
	if v != 0 && math.Abs(v) < 0.01 {
		return fmt.Sprintf("%.3g", v)
	}
	return fmt.Sprintf("%.4g", v)
}

// frame is what lines and bars have in common.
func frame(id, title, note string, x, y axis, all []series, level float64) (chart, scale) {
	ch := chart{ID: id, Title: title, Note: note, XLabel: x.label, YLabel: y.label}
	values, marks := valueScale(all, y.log, level)
	for _, m := range marks {
		ch.YMarks = append(ch.YMarks, drawnMark{At: c(values.y(m.at)), Text: m.label})
	}
	at := float64(chartLeft)
	for _, s := range all {
		ch.Legend = append(ch.Legend, drawnLegend{c(at), c(at + legendGap), s.name, s.class})
		at += 2*legendGap + 6.5*float64(len(s.name))
	}
	return ch, values
}

// lineChart draws a line for each series over x.
func lineChart(id, title, note string, x, y axis, all []series, level float64, levelText string) chart {
	ch, values := frame(id, title, note, x, y, all, level)
	across := scale{log: x.log, from: math.Inf(1), to: math.Inf(-1)}
	for _, s := range all {
		for _, p := range s.points {
			across.from, across.to = min(across.from, p.x), max(across.to, p.x)
		}
	}
	for _, m := range x.marks {
		ch.XMarks = append(ch.XMarks, drawnMark{At: c(across.x(m.at)), Text: m.label})
	}
	if levelText != "" {
		ch.Level = drawnMark{At: c(values.y(level)), Text: levelText}
	}
	for _, s := range all {
		var points []string
		for _, p := range s.points {
			px, py := across.x(p.x), values.y(p.y.Median)
			points = append(points, c(px)+","+c(py))
			ch.Dots = append(ch.Dots, drawnDot{Class: s.class, X: c(px), Y: c(py), Low: c(values.y(p.y.Min)), High: c(values.y(p.y.Max)), R: c(dotSize), Detail: p.detail})
		}
		ch.Lines = append(ch.Lines, drawnLine{s.class, strings.Join(points, " ")})
	}
	return ch
}

// scatter is a lineChart without lines.
func scatter(ch chart) chart {
	ch.Lines = nil
	return ch
}

// barChart draws groups of bars, one bar a series. y.log is not for bars.
func barChart(id, title, note string, groups []string, y axis, format string, all []series, level float64, levelText string) chart {
	ch, values := frame(id, title, note, axis{}, y, all, level)
	if levelText != "" {
		ch.Level = drawnMark{At: c(values.y(level)), Text: levelText}
	}
	group := float64(plotWidth) / float64(max(len(groups), 1))
	for i, g := range groups {
		ch.XMarks = append(ch.XMarks, drawnMark{c(chartLeft + group*(float64(i)+0.5)), g, len(groups) > 4 && i%2 == 1})
	}
	width := group * (1 - groupGap) / float64(max(len(all), 1))
	for n, s := range all {
		for _, p := range s.points {
			x := chartLeft + group*(p.x+groupGap/2) + width*float64(n)
			top := values.y(p.y.Median)
			b := drawnBar{Class: s.class, X: c(x + barGap/2), Y: c(top), Width: c(max(width-barGap, 1)), Height: c(plotBottom - top),
				Middle: c(x + width/2), Low: c(values.y(p.y.Min)), High: c(values.y(p.y.Max)), TextAt: c(values.y(p.y.Max) - 4), Detail: p.detail}
			if width >= valueWidth {
				b.Value = fmt.Sprintf(format, p.y.Median)
			}
			ch.Bars = append(ch.Bars, b)
		}
	}
	return ch
}

// sizeMarks are marks at sizes, not more than fit.
func sizeMarks(sizes []int64) (marks []mark) {
	sizes = slices.Compact(slices.Sorted(slices.Values(sizes)))
	const most = 9
	every := (len(sizes) + most - 1) / most
	for i := 0; i < len(sizes); i += max(every, 1) {
		marks = append(marks, mark{float64(sizes[i]), bytesText(sizes[i])})
	}
	return marks
}
