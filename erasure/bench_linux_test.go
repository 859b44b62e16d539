// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package erasure

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/reedsolomon"
	"github.com/minio/highwayhash"
	"golang.org/x/sys/unix"
)

// The benchmarks work on a part of 64 MiB in stripes of 8 MiB; B/s is object bytes,
// cpu-s/GiB what they cost on all cores together, which a busy machine disturbs less.
// BenchmarkFloor is what they are made of, on the same machine: a healthy read is
// Pread + Hash, an encode is Encode + Hash times (k+m)/k.
const (
	benchPart   = 64 << 20
	benchStripe = 8 << 20
)

var benchGeometries = []Geometry{{2, 2, 1 << 20}, {12, 4, 1 << 20}}

// benchFiles writes the shard files of a random part and leaves them in the page
// cache.
func benchFiles(b *testing.B, c *Code) (paths []string) {
	b.Helper()
	dir := b.TempDir()
	part := randomBytes(1, benchPart)
	e := c.NewEncoder()
	if err := e.Encode(part, make([]byte, c.ScratchSize(len(part)))); err != nil {
		b.Fatal(err)
	}
	for i := range c.g.Shards() {
		name := filepath.Join(dir, fmt.Sprintf("shard.%d", i))
		f, err := os.Create(name)
		if err != nil {
			b.Fatal(err)
		}
		if err := WriteVAt(f, e.Shard(i), 0); err != nil {
			b.Fatal(err)
		}
		f.Close()
		paths = append(paths, name)
	}
	return paths
}

func benchRead(b *testing.B, c *Code, paths []string, lost []int, o Options) {
	sources := make([]Source, c.g.Shards())
	for i, name := range paths {
		f, err := OpenFile(name)
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		sources[i] = f
	}
	for _, i := range lost {
		sources[i] = nil
	}
	r, err := c.NewReader(must(c.g.Part(benchPart)), sources, o)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	dst := make([]byte, benchStripe)
	ctx := context.Background()
	read := func(i int) {
		if err := r.ReadAt(ctx, dst, int64(i)*benchStripe%benchPart); err != nil {
			b.Fatal(err)
		}
	}
	for i := range 2 * benchPart / benchStripe {
		read(i) // the goroutines, the scratch memory, the inverse
	}
	measure(b, read)
}

// measure runs f, which does one stripe, b.N times.
func measure(b *testing.B, f func(i int)) {
	b.SetBytes(benchStripe)
	b.ReportAllocs()
	b.ResetTimer()
	var before, after syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	for i := range b.N {
		f(i)
	}
	syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	ns := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(ns)/1e9/(float64(b.N)*benchStripe/(1<<30)), "cpu-s/GiB")
}

func BenchmarkRead(b *testing.B) {
	for _, g := range benchGeometries {
		c := newTestCode(b, g)
		paths := benchFiles(b, c)
		for _, x := range []struct {
			name string
			lost []int
			o    Options
		}{
			{"healthy", nil, Options{}},
			{"hedged", nil, Options{HedgeDelay: time.Second}},
			{"run1", nil, Options{Run: 1}},
			{"run8", nil, Options{Run: 8}},
			{"lost1", []int{1}, Options{}},
			{"lost2", []int{0, 1}, Options{}},
		} {
			b.Run(fmt.Sprintf("%v/%s", g, x.name), func(b *testing.B) { benchRead(b, c, paths, x.lost, x.o) })
		}
	}
}

// BenchmarkReadFloor reads and hashes the data shards in the plainest way: one
// goroutine, the same system calls, no checks, no order of blocks.
func BenchmarkReadFloor(b *testing.B) {
	for _, g := range benchGeometries {
		b.Run(g.String(), func(b *testing.B) {
			c := newTestCode(b, g)
			var files []*os.File
			for _, name := range benchFiles(b, c)[:g.Data] {
				f, err := os.Open(name)
				if err != nil {
					b.Fatal(err)
				}
				defer f.Close()
				files = append(files, f)
			}
			dst, n := make([]byte, benchStripe+int(g.BlockSize)), g.ShardSize()
			sums := make([]byte, HashSize)
			key := MinIOKey()
			var bufs [2 * DefaultRun][]byte
			measure(b, func(i int) {
				for x := int64(0); x < benchStripe>>20; x += DefaultRun {
					off := (int64(i)*(benchStripe>>20) + x) % (benchPart >> 20) * int64(n+HashSize)
					for d, f := range files {
						for y := range DefaultRun {
							at := int(x+int64(y))<<20 + d*n
							bufs[2*y], bufs[2*y+1] = sums, dst[at:at+n:at+n]
						}
						if _, err := unix.Preadv(int(f.Fd()), bufs[:], off); err != nil {
							b.Fatal(err)
						}
						for y := range DefaultRun {
							highwayhash.Sum(bufs[2*y+1], key[:])
						}
					}
				}
			})
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, g := range benchGeometries {
		b.Run(g.String(), func(b *testing.B) {
			c := newTestCode(b, g)
			data := randomBytes(1, benchStripe)
			scratch := make([]byte, c.ScratchSize(len(data)))
			e := c.NewEncoder()
			if err := e.Encode(data, scratch); err != nil {
				b.Fatal(err)
			}
			measure(b, func(int) {
				if err := e.Encode(data, scratch); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

func BenchmarkFloor(b *testing.B) {
	src, dst := randomBytes(1, benchStripe), make([]byte, benchStripe)
	run := func(name string, f func()) {
		b.Run(name, func(b *testing.B) { measure(b, func(int) { f() }) })
	}
	run("Memcpy", func() { copy(dst, src) })
	key := MinIOKey()
	for _, n := range []int{512 << 10, (1<<20 + 11) / 12} {
		run(fmt.Sprintf("Hash-%d", n), func() {
			for p := src; len(p) > 0; p = p[min(n, len(p)):] {
				highwayhash.Sum(p[:min(n, len(p))], key[:])
			}
		})
	}
	f, err := os.Create(filepath.Join(b.TempDir(), "file"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	for i := range int64(benchPart / benchStripe) {
		if _, err := f.WriteAt(src, i*benchStripe); err != nil {
			b.Fatal(err)
		}
	}
	var off int64
	run("Pread", func() {
		for x := 0; x < benchStripe; x += 1 << 20 {
			if _, err := f.ReadAt(dst[x:x+1<<20], off); err != nil {
				b.Fatal(err)
			}
			off = (off + 1<<20) % benchPart
		}
	})
	for _, g := range benchGeometries {
		enc, err := reedsolomon.New(g.Data, g.Parity, inline(g.Data, g.Parity)...)
		if err != nil {
			b.Fatal(err)
		}
		n := int(g.BlockSize) / g.Data
		parity := make([]byte, 8*n*g.Parity)
		cells := make([][]byte, g.Shards())
		run("Encode-"+g.String(), func() {
			for x := range benchStripe >> 20 {
				for i := range cells {
					if i < g.Data {
						cells[i] = src[x<<20+i*n:][:n]
					} else {
						cells[i] = parity[x*n*g.Parity+(i-g.Data)*n:][:n]
					}
				}
				if err := enc.Encode(cells); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
