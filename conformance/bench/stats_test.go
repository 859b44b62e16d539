// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if child() {
		return
	}
	goleak.VerifyTestMain(m)
}

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   Spread
	}{
		{nil, Spread{}},
		{[]float64{3}, Spread{1, 3, 3, 3}},
		{[]float64{9, 1, 2}, Spread{3, 1, 2, 9}},
		{[]float64{9, 1, 2, 4}, Spread{4, 1, 3, 9}},
	} {
		given := append([]float64(nil), c.values...)
		if got := spreadOf(c.values); got != c.want {
			t.Errorf("spreadOf(%v) is %v, want %v", given, got, c.want)
		}
		if diff := cmp.Diff(given, c.values); diff != "" {
			t.Errorf("spreadOf changed its argument: %s", diff)
		}
	}
}

func TestPercentile(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1))
	}
	for _, c := range []struct {
		sorted []time.Duration
		share  float64
		want   time.Duration
	}{
		{nil, 0.5, 0}, {hundred, 0.5, 50}, {hundred, 0.99, 99}, {hundred, 0.991, 100}, {hundred, 1, 100}, {hundred, 0, 1},
		{hundred[:1], 0.99, 1}, {hundred[:3], 0.5, 2}, {hundred[:2], 0.5, 1},
	} {
		if got := percentile(c.sorted, c.share); got != c.want {
			t.Errorf("percentile %v of %d values is %d, want %d", c.share, len(c.sorted), got, c.want)
		}
	}
}

func TestPerGiB(t *testing.T) {
	if got := perGiB(time.Second, 512*mib); got != 2 {
		t.Errorf("1 s for half a GiB is %v s per GiB", got)
	}
	if got := perGiB(time.Second, 0); got != 0 {
		t.Errorf("1 s for nothing is %v", got)
	}
}

func TestQuietest(t *testing.T) {
	for _, c := range []struct {
		loads []float64
		n     int
		want  []int
	}{
		{[]float64{0.5, 0.1, 0.9, 0.1, 0.3}, 3, []int{1, 3, 4}},
		{[]float64{0.2, 0.2, 0.2}, 2, []int{0, 1}},
		{[]float64{0.2}, 2, []int{0}},
	} {
		if diff := cmp.Diff(c.want, quietest(c.loads, c.n)); diff != "" {
			t.Errorf("the %d quietest of %v: %s", c.n, c.loads, diff)
		}
	}
}

// Ratios are of windows of the same round: a machine that is slow for a while must not
// look like a difference.
func TestPaired(t *testing.T) {
	row := func(seconds ...int) *rowBuilder {
		b := &rowBuilder{}
		for _, s := range seconds {
			b.windows = append(b.windows, window{ops: 10, took: time.Duration(s) * time.Second})
		}
		return b
	}
	a, b := row(1, 10, 2), row(2, 20, 4)
	got := paired(a, b, func(w window) float64 { return w.rate(gib) })
	if want := (Spread{3, 2, 2, 2}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}
