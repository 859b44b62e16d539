// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package compute

import "math/rand/v2"

const (
	rows  = 32
	width = 512
	// rowWork is the number of floating-point operations of one row.
	rowWork = 2 * width * width
)

// layer is Y = max(0, X W).
type layer struct {
	x, y [rows][width]float32
	w    [width][width]float32
}

func newLayer(seed uint64) *layer {
	l := &layer{}
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range l.w {
		for j := range l.w[i] {
			l.w[i][j] = float32(r.NormFloat64()) * 0.0625
		}
	}
	for i := range l.x {
		for j := range l.x[i] {
			l.x[i][j] = r.Float32()
		}
	}
	return l
}

// row computes a row of Y.
func (l *layer) row(i int) {
	y := &l.y[i]
	clear(y[:])
	for k, x := range l.x[i] {
		w := &l.w[k]
		for j := range y {
			y[j] += x * w[j]
		}
	}
	for j := range y {
		y[j] = max(0, y[j])
	}
}

// next makes the output the next input, each row scaled so that its largest element is 1:
// numbers that grow or vanish over many layers would be computed at another speed.
func (l *layer) next() {
	for i := range l.y {
		largest := float32(0)
		for _, v := range l.y[i] {
			largest = max(largest, v)
		}
		for j, v := range l.y[i] {
			if l.x[i][j] = 1; largest > 0 {
				l.x[i][j] = v / largest
			}
		}
	}
}
