// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"slices"
	"time"
)

// Spread describes repeated measurements of one quantity.
type Spread struct {
	N      int     `json:"n"`
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// spreadOf describes values; the zero Spread of none.
func spreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	v := slices.Sorted(slices.Values(values))
	median := v[len(v)/2]
	if len(v)%2 == 0 {
		median = (v[len(v)/2-1] + median) / 2
	}
	return Spread{N: len(v), Min: v[0], Median: median, Max: v[len(v)-1]}
}

// percentile is the smallest value that at least the given share (0 to 1) of sorted
// is not above; 0 of none.
func percentile(sorted []time.Duration, share float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(share*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// ratio is a/b, and 0 where that has no meaning.
func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

// perGiB is what one GiB takes of something of which bytes took total.
func perGiB(total time.Duration, bytes int64) float64 {
	return ratio(total.Seconds(), float64(bytes)/gib)
}

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)
