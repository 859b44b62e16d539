// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package erasure

import (
	"errors"
	"math"
	"testing"
)

// TestLayout holds every number of a Part against the shard files of the model.
func TestLayout(t *testing.T) {
	for _, g := range testGeometries {
		for _, size := range boundarySizes(g) {
			part := randomBytes(uint64(size), size)
			files := modelFiles(g, part)
			p, err := g.Part(int64(size))
			if err != nil {
				t.Fatalf("%v: Part(%d): %v", g, size, err)
			}
			if got := p.FileSize(); got != int64(len(files[0])) {
				t.Fatalf("%v: FileSize of %d = %d, want %d", g, size, got, len(files[0]))
			}
			if got := p.FileOffset(p.Blocks()); got != p.FileSize() {
				t.Fatalf("%v: FileOffset behind the last of %d = %d, want %d", g, size, got, p.FileSize())
			}
			var sum, dataSum int
			for b := range p.Blocks() {
				sum += p.BlockLen(b)
				for i := range g.Data {
					dataSum += p.DataLen(b, i)
				}
			}
			if sum != size || dataSum != size {
				t.Fatalf("%v: blocks of %d hold %d, data shards %d", g, size, sum, dataSum)
			}
			for x := range int64(size) {
				l, err := p.Locate(x)
				if err != nil {
					t.Fatalf("%v: Locate(%d) of %d: %v", g, x, size, err)
				}
				at := p.FileOffset(l.Block) + HashSize + int64(l.Offset)
				if l.Offset >= p.DataLen(l.Block, l.Shard) || files[l.Shard][at] != part[x] {
					t.Fatalf("%v: byte %d of %d is not at %+v", g, x, size, l)
				}
			}
			if _, err := p.Locate(int64(size)); !errors.Is(err, ErrRange) {
				t.Fatalf("%v: Locate behind the end: %v, want ErrRange", g, err)
			}
		}
	}
}

func TestSpan(t *testing.T) {
	for _, g := range testGeometries {
		for _, size := range boundarySizes(g) {
			p, _ := g.Part(int64(size))
			ends := []int{0, 1, g.ShardSize(), int(g.BlockSize) - 1, int(g.BlockSize), int(g.BlockSize) + 1, size - 1, size}
			for _, off := range ends {
				for _, end := range ends {
					n := end - off
					s, err := p.Span(int64(off), int64(n))
					if off < 0 || n < 0 || end > size {
						if !errors.Is(err, ErrRange) {
							t.Fatalf("%v: Span(%d, %d) of %d: %v, want ErrRange", g, off, n, size, err)
						}
						continue
					}
					if err != nil {
						t.Fatalf("%v: Span(%d, %d) of %d: %v", g, off, n, size, err)
					}
					if n == 0 {
						if s.First != s.End || s.Length != 0 {
							t.Fatalf("%v: Span(%d, 0) of %d = %+v, want nothing", g, off, size, s)
						}
						continue
					}
					first, _ := p.Locate(int64(off))
					last, _ := p.Locate(int64(end - 1))
					want := Span{
						First: first.Block, End: last.Block + 1,
						Offset: first.Block * int64(g.ShardSize()+HashSize),
						Skip:   off - int(first.Block*g.BlockSize),
						Trim:   min(int((last.Block+1)*g.BlockSize), size) - end,
					}
					want.Length = min((last.Block+1)*int64(g.ShardSize()+HashSize), p.FileSize()) - want.Offset
					if s != want {
						t.Fatalf("%v: Span(%d, %d) of %d = %+v, want %+v", g, off, n, size, s, want)
					}
				}
			}
		}
	}
}

func TestSpanThatOverflows(t *testing.T) {
	p := must(Geometry{2, 2, 1 << 20}.Part(5 << 20))
	for _, x := range [][2]int64{
		{1, math.MaxInt64}, {math.MaxInt64, math.MaxInt64}, {math.MaxInt64, 1}, {5 << 20, math.MaxInt64},
		{math.MinInt64, math.MaxInt64}, {0, math.MinInt64},
	} {
		if s, err := p.Span(x[0], x[1]); !errors.Is(err, ErrRange) {
			t.Errorf("Span(%d, %d) = %+v, %v, want ErrRange", x[0], x[1], s, err)
		}
	}
}

func TestImpossibleGeometry(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		g    Geometry
		size int64
	}{
		{Geometry{0, 2, mib}, 1},
		{Geometry{-1, 2, mib}, 1},
		{Geometry{2, -1, mib}, 1},
		{Geometry{256, 1, mib}, 1},
		{Geometry{1, 256, mib}, 1},
		{Geometry{math.MaxInt, math.MaxInt, mib}, 1},
		{Geometry{math.MinInt, 2, mib}, 1},
		{Geometry{2, math.MaxInt, mib}, 1},
		{Geometry{2, 2, 0}, 1},
		{Geometry{2, 2, -mib}, 1},
		{Geometry{2, 2, MaxBlockSize + 1}, 1},
		{Geometry{2, 2, math.MaxInt64}, 1},
		{Geometry{2, 2, mib}, -1},
		{Geometry{2, 2, mib}, math.MinInt64},
		{Geometry{2, 2, 1}, math.MaxInt64}, // 33 bytes of file for each byte
		{Geometry{1, 0, mib}, math.MaxInt64},
	} {
		if _, err := c.g.Part(c.size); !errors.Is(err, ErrGeometry) {
			t.Errorf("Part(%d) of %+v: %v, want ErrGeometry", c.size, c.g, err)
		}
	}
	if _, err := (Geometry{0, 0, 0}).Part(0); !errors.Is(err, ErrGeometry) {
		t.Error("zero Geometry accepted")
	}
	if _, err := NewCode(Geometry{2, 300, mib}, MinIOKey()); !errors.Is(err, ErrGeometry) {
		t.Errorf("NewCode: %v, want ErrGeometry", err)
	}
}

// FuzzPart gives metadata as anybody could write it: it is refused, or every
// number of the layout is consistent.
func FuzzPart(f *testing.F) {
	f.Add(2, 2, int64(1<<20), int64(5<<20+3), int64(1<<20), int64(1<<20))
	f.Add(12, 4, int64(1<<20), int64(math.MaxInt64/33), int64(math.MaxInt64), int64(math.MaxInt64))
	f.Add(255, 1, int64(1), int64(1)<<57, int64(1)<<56, int64(1))
	f.Add(3, 2, int64(7), int64(20), int64(-1), int64(5))
	f.Fuzz(func(t *testing.T, k, m int, block, size, off, n int64) {
		g := Geometry{k, m, block}
		p, err := g.Part(size)
		if err != nil {
			return
		}
		s, err := p.Span(off, n)
		inside := off >= 0 && n >= 0 && off <= size && n <= size-off
		if inside != (err == nil) {
			t.Fatalf("%+v: Span(%d, %d) of %d: %v", g, off, n, size, err)
		}
		if err != nil {
			return
		}
		if s.Offset < 0 || s.Length < 0 || s.Offset+s.Length > p.FileSize() || p.FileSize() < size/int64(k) {
			t.Fatalf("%+v: Span(%d, %d) of %d = %+v, file of %d", g, off, n, size, s, p.FileSize())
		}
		if n == 0 {
			return
		}
		if s.Skip < 0 || s.Trim < 0 || int64(s.Skip) >= block || int64(s.Trim) >= block {
			t.Fatalf("%+v: Span(%d, %d) of %d = %+v", g, off, n, size, s)
		}
		for _, x := range []int64{off, off + n - 1} {
			l, err := p.Locate(x)
			if err != nil || l.Block < s.First || l.Block >= s.End || l.Shard >= k ||
				l.Offset >= p.DataLen(l.Block, l.Shard) {
				t.Fatalf("%+v: Locate(%d) of %d = %+v, %v", g, x, size, l, err)
			}
			if back := l.Block*block + int64(l.Shard*p.ShardLen(l.Block)+l.Offset); back != x {
				t.Fatalf("%+v: Locate(%d) of %d = %+v, which is byte %d", g, x, size, l, back)
			}
		}
	})
}
