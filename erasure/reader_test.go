// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package erasure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var errDrive = errors.New("drive on fire")

// damage is what a test does to a shard.
type damage int

const (
	intact damage = iota
	noSource
	noFile
	driveError
	rotten     // one bit of every block
	rottenHash // one bit of every hash
	truncated  // the last byte is missing
	emptied
	damages
)

// damaged returns a source of file with damage d, and the fault that a read of
// the last block finds.
func damaged(file []byte, p Part, d damage, seed int) (Source, FaultKind) {
	switch d {
	case noSource:
		return nil, FaultAbsent
	case noFile:
		return failing{fmt.Errorf("open: %w", fs.ErrNotExist)}, FaultMissing
	case driveError:
		return failing{errDrive}, FaultFailed
	case truncated:
		return Bytes(file[:max(len(file)-1, 0)]), FaultTruncated
	case emptied:
		return Bytes(nil), FaultTruncated
	case rotten, rottenHash:
		file = bytes.Clone(file)
		for b := range p.Blocks() {
			at := int(p.FileOffset(b))
			if d == rotten {
				at += HashSize + seed%p.ShardLen(b)
			} else {
				at += seed % HashSize
			}
			file[at] ^= 1 << (seed % 8)
		}
		return Bytes(file), FaultCorrupt
	}
	return Bytes(file), FaultNone
}

// readGuarded reads into memory with guards and compares with the part.
func readGuarded(t testing.TB, r *Reader, part []byte, off, n int) error {
	t.Helper()
	dst := newGuarded(n)
	err := r.ReadAt(context.Background(), dst.bytes(), int64(off))
	dst.check(t, fmt.Sprintf("dst of [%d, %d) of %d", off, off+n, len(part)))
	if err == nil && !bytes.Equal(dst.bytes(), part[off:off+n]) {
		t.Fatalf("[%d, %d) of %d: wrong bytes", off, off+n, len(part))
	}
	return err
}

// testRanges are ranges of a part of the given size at which something changes,
// and some at random.
func testRanges(g Geometry, size int, rng *rand.Rand) [][2]int {
	marks := []int{0, 1, g.ShardSize(), int(g.BlockSize) - 1, int(g.BlockSize), 2 * int(g.BlockSize), size - 1, size}
	rs := [][2]int{{0, size}}
	for range 6 {
		a, b := marks[rng.IntN(len(marks))], marks[rng.IntN(len(marks))]
		if rng.IntN(2) == 0 {
			a, b = rng.IntN(size+1), rng.IntN(size+1)
		}
		a, b = min(max(a, 0), size), min(max(b, 0), size)
		rs = append(rs, [2]int{min(a, b), max(a, b)})
	}
	return rs
}

// TestEveryLoss reads with every set of shards lost (of large geometries a sample),
// each in a way of its own.
func TestEveryLoss(t *testing.T) {
	for _, g := range testGeometries {
		t.Run(testName(g), func(t *testing.T) {
			t.Parallel()
			c := newTestCode(t, g)
			rng := rand.New(rand.NewPCG(uint64(g.Data), uint64(g.Parity)))
			sizes := boundarySizes(g)
			patterns := 1 << g.Shards()
			tries := min(patterns, 256)
			for try := range tries {
				lost := try
				if tries < patterns {
					// A random set of nearly as many as can be, or one too many.
					lost = 0
					for bits.OnesCount(uint(lost)) < min(try%(g.Parity+2), g.Shards()) {
						lost |= 1 << rng.IntN(g.Shards())
					}
				}
				size := sizes[(try+try/len(sizes))%len(sizes)]
				if try == 0 {
					size = sizes[len(sizes)-1]
				}
				testLoss(t, c, size, lost, rng)
			}
		})
	}
}

func testLoss(t *testing.T, c *Code, size, lost int, rng *rand.Rand) {
	t.Helper()
	g := c.g
	part := randomBytes(uint64(size), size)
	files := modelFiles(g, part)
	p, err := g.Part(int64(size))
	if err != nil {
		t.Fatal(err)
	}
	kinds := make([]damage, g.Shards())
	wantKinds := make([]FaultKind, g.Shards())
	sources := make([]Source, g.Shards())
	for i := range sources {
		if lost&(1<<i) != 0 {
			kinds[i] = 1 + damage(rng.IntN(int(damages)-1))
		}
		sources[i], wantKinds[i] = damaged(files[i], p, kinds[i], rng.IntN(1<<20))
		if rng.IntN(3) == 0 && sources[i] != nil {
			sources[i] = scalar{sources[i]}
		}
	}
	about := fmt.Sprintf("%v of %d, size %d, damage %v", g, g.BlockSize, size, kinds)
	heap := newGuardedHeap(t)
	r, err := c.NewReader(p, sources, Options{Run: 1 + rng.IntN(5), Scratch: heap})
	if err != nil {
		t.Fatal(err)
	}
	enough := g.Shards()-bits.OnesCount(uint(lost)) >= g.Data
	for _, x := range testRanges(g, size, rng) {
		err := readGuarded(t, r, part, x[0], x[1]-x[0])
		if enough && err != nil {
			t.Fatalf("%s: read [%d, %d): %v", about, x[0], x[1], err)
		}
		var q *QuorumError
		if err != nil && (!errors.Is(err, ErrQuorum) || !errors.As(err, &q)) {
			t.Fatalf("%s: read [%d, %d): %v, want a QuorumError", about, x[0], x[1], err)
		}
		if q != nil && (q.Need != g.Data || q.Have >= q.Need || len(q.Faults) <= g.Parity) {
			t.Fatalf("%s: read [%d, %d): %+v", about, x[0], x[1], q)
		}
		if !enough && lost&(1<<g.Data-1) == 1<<g.Data-1 && size > 0 && x[1] == size && x[0] == 0 && err == nil {
			// Truncation spares whole blocks, but never the last one.
			t.Fatalf("%s: read [%d, %d) with too few shards", about, x[0], x[1])
		}
	}
	// Whatever was found is what was done, and nothing else was.
	for _, f := range r.AppendFaults(nil) {
		if f.Kind != wantKinds[f.Shard] {
			t.Fatalf("%s: fault %v", about, f)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	heap.check()
}

// TestFaults reads a whole part with one shard of each damage and compares the
// report in full.
func TestFaults(t *testing.T) {
	g := Geometry{4, 4, 1 << 10}
	c := newTestCode(t, g)
	part := randomBytes(1, 10<<10)
	files := modelFiles(g, part)
	p, _ := g.Part(int64(len(part)))
	for d, want := range []struct {
		kind    FaultKind
		block   int64
		is      error
		damaged bool
		text    string
	}{
		intact:     {kind: FaultNone},
		noSource:   {FaultAbsent, 0, nil, false, "shard 1 absent"},
		noFile:     {FaultMissing, 0, ErrMissing, true, "shard 1 missing in block 0: open: file does not exist"},
		driveError: {FaultFailed, 0, errDrive, false, "shard 1 failed in block 0: drive on fire"},
		rotten:     {FaultCorrupt, 0, ErrCorrupt, true, "shard 1 corrupt in block 0"},
		rottenHash: {FaultCorrupt, 0, ErrCorrupt, true, "shard 1 corrupt in block 0"},
		truncated:  {FaultTruncated, 9, ErrTruncated, true, "shard 1 truncated in block 9: unexpected EOF"},
		emptied:    {FaultTruncated, 0, ErrTruncated, true, "shard 1 truncated in block 0: EOF"},
	} {
		sources := make([]Source, g.Shards())
		for i := range sources {
			sources[i] = Bytes(files[i])
		}
		sources[1], _ = damaged(files[1], p, damage(d), 77)
		r, err := c.NewReader(p, sources, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := readGuarded(t, r, part, 0, len(part)); err != nil {
			t.Fatalf("damage %d: %v", d, err)
		}
		faults := r.AppendFaults(nil)
		r.Close()
		if want.kind == FaultNone {
			if len(faults) > 0 {
				t.Errorf("faults of sound shards: %v", faults)
			}
			continue
		}
		if len(faults) != 1 {
			t.Fatalf("damage %d: faults %v, want one", d, faults)
		}
		f := faults[0]
		if f.Shard != 1 || f.Kind != want.kind || f.Block != want.block || f.Kind.Damaged() != want.damaged || f.Error() != want.text {
			t.Errorf("damage %d: fault %+v (%v)", d, f, f)
		}
		if want.is != nil && !errors.Is(f, want.is) {
			t.Errorf("damage %d: %v is not %v", d, f, want.is)
		}
	}
}

func TestQuorumErrorNamesTheShards(t *testing.T) {
	g := Geometry{2, 2, 1 << 10}
	c := newTestCode(t, g)
	part := randomBytes(1, 3<<10)
	files := modelFiles(g, part)
	p, _ := g.Part(int64(len(part)))
	bad, _ := damaged(files[2], p, rotten, 5)
	r, err := c.NewReader(p, []Source{nil, failing{fs.ErrNotExist}, bad, Bytes(files[3])}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	err = readGuarded(t, r, part, 2000, 1000)
	const want = "erasure: too few shards in block 1: have 1 of the 2 needed: shard 0 absent; " +
		"shard 1 missing in block 1: file does not exist; shard 2 corrupt in block 1"
	if err == nil || err.Error() != want {
		t.Errorf("error:\n%v\nwant\n%s", err, want)
	}
	for _, is := range []error{ErrQuorum, ErrMissing, ErrCorrupt, fs.ErrNotExist} {
		if !errors.Is(err, is) {
			t.Errorf("%v is not %v", err, is)
		}
	}
}

// TestHealthyReadsNoMore: never more than the data shards are read, of the blocks
// that the range touches, and of a narrow range only the shards that hold it.
func TestHealthyReadsNoMore(t *testing.T) {
	g := Geometry{4, 2, 1 << 10}
	c := newTestCode(t, g)
	part := randomBytes(1, 10<<10)
	files := modelFiles(g, part)
	p, _ := g.Part(int64(len(part)))
	const cell = 256 + HashSize
	for _, x := range []struct {
		off, n  int
		want    [6]int64
		scratch int
	}{
		{0, 10 << 10, [6]int64{10 * cell, 10 * cell, 10 * cell, 10 * cell}, 0},
		{1 << 10, 1 << 10, [6]int64{cell, cell, cell, cell}, 0},
		{256, 256, [6]int64{0, cell}, 0},
		{300, 1, [6]int64{0, cell}, 1},
		{300, 300, [6]int64{0, cell, cell}, 2},
		{1000, 1100, [6]int64{2 * cell, cell, cell, 2 * cell}, 2},
		{5000, 0, [6]int64{}, 0},
	} {
		sources := make([]Source, g.Shards())
		counts := make([]*counted, g.Shards())
		for i := range sources {
			counts[i] = &counted{VectorSource: Bytes(files[i])}
			sources[i] = counts[i]
		}
		heap := newGuardedHeap(t)
		r, err := c.NewReader(p, sources, Options{Scratch: heap})
		if err != nil {
			t.Fatal(err)
		}
		if err := readGuarded(t, r, part, x.off, x.n); err != nil {
			t.Fatal(err)
		}
		var got [6]int64
		for i := range counts {
			got[i] = counts[i].bytes.Load()
		}
		if diff := cmp.Diff(x.want, got); diff != "" {
			t.Errorf("bytes read of each shard for [%d, %d):\n%s", x.off, x.off+x.n, diff)
		}
		if heap.allocs != x.scratch {
			t.Errorf("[%d, %d): %d pieces of scratch, want %d", x.off, x.off+x.n, heap.allocs, x.scratch)
		}
		r.Close()
		heap.check()
	}
}

// TestRebuildReadsNoMore: a lost shard costs one other, and a shard that is known
// to be lost is not asked again. Rot costs one more read, once.
func TestRebuildReadsNoMore(t *testing.T) {
	g := Geometry{4, 2, 1 << 10}
	c := newTestCode(t, g)
	part := randomBytes(1, 16<<10)
	files := modelFiles(g, part)
	p, _ := g.Part(int64(len(part)))
	const runs, run = 4, 4 * (256 + HashSize)
	rot, _ := damaged(files[1], p, rotten, 3)
	for _, x := range []struct {
		name   string
		source Source
		demote bool
		want   [6]int64
	}{
		{"absent", nil, false, [6]int64{runs * run, 0, runs * run, runs * run, runs * run}},
		{"rotten", rot, false, [6]int64{runs * run, run, runs * run, runs * run, runs * run}},
		{"failing", failing{errDrive}, false, [6]int64{runs * run, 0, runs * run, runs * run, runs * run}},
		{"demoted", Bytes(files[1]), true, [6]int64{runs * run, 0, runs * run, runs * run, runs * run}},
	} {
		sources := make([]Source, g.Shards())
		counts := make([]*counted, g.Shards())
		for i := range sources {
			counts[i] = &counted{VectorSource: Bytes(files[i])}
			sources[i] = counts[i]
		}
		if v, ok := x.source.(VectorSource); ok {
			counts[1].VectorSource = v
		} else {
			sources[1] = x.source
		}
		r, err := c.NewReader(p, sources, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if x.demote {
			r.Demote(1)
		}
		if err := readGuarded(t, r, part, 0, len(part)); err != nil {
			t.Fatal(err)
		}
		var got [6]int64
		for i := range counts {
			got[i] = counts[i].bytes.Load()
		}
		if diff := cmp.Diff(x.want, got); diff != "" {
			t.Errorf("%s: bytes read of each shard:\n%s", x.name, diff)
		}
		r.Close()
	}
}

// TestScatteredRot: each block has other rotten shards, so that no set of k shards
// is sound from end to end.
func TestScatteredRot(t *testing.T) {
	g := Geometry{4, 2, 1 << 10}
	c := newTestCode(t, g)
	part := randomBytes(1, 12<<10+77)
	p, _ := g.Part(int64(len(part)))
	for depth := 1; depth < 8; depth++ {
		files := modelFiles(g, part)
		sources := make([]Source, g.Shards())
		for b := range p.Blocks() {
			for _, i := range []int{int(b) % 6, int(b+1+b/6) % 6} {
				files[i][p.FileOffset(b)+40] ^= 1
			}
		}
		for i := range sources {
			sources[i] = Bytes(files[i])
		}
		r, err := c.NewReader(p, sources, Options{Run: depth})
		if err != nil {
			t.Fatal(err)
		}
		if err := readGuarded(t, r, part, 0, len(part)); err != nil {
			t.Errorf("runs of %d: %v", depth, err)
		}
		r.Close()
	}
}

// TestNoReferencesRemain: memory that is not the garbage collector's may be
// unmapped after a read, so nothing may point to it then.
func TestNoReferencesRemain(t *testing.T) {
	g := Geometry{3, 2, 1000}
	part := randomBytes(1, 9500)
	files := modelFiles(g, part)
	sources := []Source{nil, Bytes(files[1]), Bytes(files[2]), Bytes(files[3]), Bytes(files[4])}
	r, err := newTestCode(t, g).NewReader(must(g.Part(9500)), sources, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := readGuarded(t, r, part, 100, 9000); err != nil {
		t.Fatal(err)
	}
	for i := range r.shards {
		for _, b := range r.shards[i].bufs[:cap(r.shards[i].bufs)] {
			if b != nil {
				t.Fatalf("shard %d keeps a piece of memory", i)
			}
		}
	}
	for _, k := range r.cur.blocks[:cap(r.cur.blocks)] {
		if k.dst != nil {
			t.Fatal("a block keeps dst")
		}
		for _, b := range k.code[:cap(k.code)] {
			if b != nil {
				t.Fatal("a rebuild keeps a piece of memory")
			}
		}
	}
}

func TestReaderReset(t *testing.T) {
	g := Geometry{3, 2, 100}
	c := newTestCode(t, g)
	heap := newGuardedHeap(t)
	r, err := c.NewReader(must(g.Part(0)), make([]Source, 5), Options{Scratch: heap})
	if err != nil {
		t.Fatal(err)
	}
	if err := readGuarded(t, r, nil, 0, 0); err != nil {
		t.Errorf("nothing of an empty part without sources: %v", err)
	}
	for size := 1; size < 900; size += 91 {
		part := randomBytes(uint64(size), size)
		files := modelFiles(g, part)
		sources := make([]Source, 5)
		for i := range sources {
			sources[i] = Bytes(files[i])
		}
		sources[size%5], sources[(size+2)%5] = nil, failing{errDrive}
		if err := r.Reset(must(g.Part(int64(size))), sources); err != nil {
			t.Fatal(err)
		}
		if n := len(r.AppendFaults(nil)); n != 1 {
			t.Errorf("%d faults after Reset, want the absent source alone", n)
		}
		if err := readGuarded(t, r, part, 0, size); err != nil {
			t.Errorf("size %d: %v", size, err)
		}
	}
	if err := r.Reset(must(Geometry{3, 2, 101}.Part(1)), make([]Source, 5)); !errors.Is(err, ErrGeometry) {
		t.Errorf("Reset to another block size: %v, want ErrGeometry", err)
	}
	if err := r.Reset(must(g.Part(1)), make([]Source, 4)); !errors.Is(err, ErrGeometry) {
		t.Errorf("Reset with 4 sources: %v, want ErrGeometry", err)
	}
	r.Close()
	r.Close()
	heap.check()
	if err := r.ReadAt(context.Background(), nil, 0); !errors.Is(err, ErrClosed) {
		t.Errorf("ReadAt after Close: %v, want ErrClosed", err)
	}
	if err := r.Reset(must(g.Part(1)), make([]Source, 5)); !errors.Is(err, ErrClosed) {
		t.Errorf("Reset after Close: %v, want ErrClosed", err)
	}
}

func TestReadAtRefuses(t *testing.T) {
	g := Geometry{2, 1, 100}
	c := newTestCode(t, g)
	part := randomBytes(1, 250)
	var sources []Source
	for _, f := range modelFiles(g, part) {
		sources = append(sources, Bytes(f))
	}
	heap := newGuardedHeap(t)
	r, err := c.NewReader(must(g.Part(250)), sources, Options{Scratch: heap})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, x := range [][2]int{{-1, 5}, {0, 251}, {250, 1}, {251, 0}, {200, 51}} {
		if err := r.ReadAt(context.Background(), make([]byte, x[1]), int64(x[0])); !errors.Is(err, ErrRange) {
			t.Errorf("%d bytes at %d: %v, want ErrRange", x[1], x[0], err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.ReadAt(ctx, make([]byte, 5), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	heap.fail = errors.New("no memory today")
	if err := r.ReadAt(context.Background(), make([]byte, 5), 0); !errors.Is(err, heap.fail) {
		t.Errorf("no scratch: %v", err)
	}
	if n := len(r.AppendFaults(nil)); n != 0 {
		t.Errorf("%d faults for errors that are not the shards'", n)
	}
	heap.fail = nil
	if err := readGuarded(t, r, part, 3, 50); err != nil {
		t.Errorf("after these: %v", err)
	}
}

// FuzzRead reads any range of any part with any shards lost.
func FuzzRead(f *testing.F) {
	f.Add(uint8(2), uint8(2), uint16(1024), uint16(5000), uint16(100), uint16(4000), uint16(3), uint8(4), uint64(1))
	f.Add(uint8(3), uint8(2), uint16(200), uint16(1999), uint16(199), uint16(1), uint16(0b10001), uint8(1), uint64(2))
	f.Add(uint8(5), uint8(3), uint16(7), uint16(100), uint16(0), uint16(100), uint16(0b111), uint8(64), uint64(3))
	f.Add(uint8(12), uint8(4), uint16(5), uint16(23), uint16(3), uint16(20), uint16(0xf00f), uint8(3), uint64(4))
	f.Add(uint8(9), uint8(6), uint16(4096), uint16(60000), uint16(1), uint16(59998), uint16(0x1234), uint8(5), uint64(5))
	f.Fuzz(func(t *testing.T, k, m uint8, block, size, off, n, lost uint16, depth uint8, seed uint64) {
		g := Geometry{1 + int(k%12), int(m % 5), 1 + int64(block)}
		rng := rand.New(rand.NewPCG(seed, 0))
		part := randomBytes(seed, int(size))
		files := modelFiles(g, part)
		p := must(g.Part(int64(size)))
		off = uint16(int(off) % (len(part) + 1))
		n = uint16(int(n) % (len(part) - int(off) + 1))
		sources := make([]Source, g.Shards())
		for i := range sources {
			d := intact
			if lost&(1<<i) != 0 {
				d = damage(rng.IntN(int(damages)))
			}
			sources[i], _ = damaged(files[i], p, d, rng.IntN(1<<20))
		}
		heap := newGuardedHeap(t)
		r, err := newTestCode(t, g).NewReader(p, sources, Options{Run: int(depth), Scratch: heap})
		if err != nil {
			t.Fatal(err)
		}
		err = readGuarded(t, r, part, int(off), int(n))
		r.Close()
		heap.check()
		if err != nil && (!errors.Is(err, ErrQuorum) || bits.OnesCount(uint(lost)&(1<<g.Shards()-1)) <= g.Parity) {
			t.Fatalf("%v: %v", g, err)
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
