// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package erasure

import (
	"context"
	"testing"
	"time"

	"github.com/klauspost/reedsolomon"
)

// TestNoAllocations: in the steady state a stripe costs no allocation, apart from
// those of the Reed-Solomon library in blocks that are coded.
func TestNoAllocations(t *testing.T) {
	for _, g := range []Geometry{{2, 2, 1 << 16}, {3, 2, 1 << 16}, {12, 4, 1 << 16}} {
		c := newTestCode(t, g)
		const blocks = 8
		b := newHedgeBench(g, blocks<<16)
		scratch := make([]byte, c.ScratchSize(len(b.part)))
		e := c.NewEncoder()
		for _, x := range []struct {
			name string
			lost int
			o    Options
		}{
			{name: "healthy"},
			{name: "hedged", o: Options{HedgeDelay: time.Hour}},
			{name: "one lost", lost: 1},
			{name: "two lost", lost: 2},
		} {
			sources := append([]Source(nil), b.sources...)
			for i := range x.lost {
				sources[i] = nil
			}
			r, err := c.NewReader(b.p, sources, x.o)
			if err != nil {
				t.Fatal(err)
			}
			dst := make([]byte, len(b.part))
			got := testing.AllocsPerRun(20, func() {
				if err := r.ReadAt(context.Background(), dst, 0); err != nil {
					t.Fatal(err)
				}
			})
			r.Close()
			if want := libraryAllocs(t, g, x.lost) * blocks; got > want {
				t.Errorf("%v %s: %v allocations a stripe, the library's are %v", g, x.name, got, want)
			}
		}
		got := testing.AllocsPerRun(20, func() {
			if err := e.Encode(b.part, scratch); err != nil {
				t.Fatal(err)
			}
			e.ended = false
		})
		if want := libraryAllocs(t, g, g.Parity) * blocks; got > want {
			t.Errorf("%v encode: %v allocations a stripe, the library's are %v", g, got, want)
		}
	}
}

// libraryAllocs is how often reedsolomon allocates to compute out shards of a
// block, in as many calls as it takes.
func libraryAllocs(t *testing.T, g Geometry, out int) float64 {
	if out == 0 {
		return 0
	}
	enc, err := reedsolomon.New(g.Data, out, inline(g.Data, out)...)
	if err != nil {
		t.Fatal(err)
	}
	cut := g.ShardSize()
	if rest := int(g.BlockSize) % cut; rest > 0 {
		cut = rest
	}
	total := 0.0
	for _, n := range []int{cut, g.ShardSize() - cut} {
		if n == 0 {
			continue
		}
		cells := make([][]byte, g.Data+out)
		for i := range cells {
			cells[i] = make([]byte, n)
		}
		total += testing.AllocsPerRun(20, func() { enc.Encode(cells) })
	}
	return total
}
