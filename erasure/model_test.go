// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package erasure

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/minio/highwayhash"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The slow model: everything the package computes, computed again in the plainest
// way. Only HighwayHash is not written out again.

// modelMul multiplies in GF(2^8) modulo x^8+x^4+x^3+x^2+1, bit by bit.
func modelMul(a, b byte) (p byte) {
	for ; b > 0; b >>= 1 {
		if b&1 != 0 {
			p ^= a
		}
		carry := a&0x80 != 0
		a <<= 1
		if carry {
			a ^= 0x1d
		}
	}
	return p
}

func modelPow(a byte, n int) byte {
	p := byte(1)
	for range n {
		p = modelMul(p, a)
	}
	return p
}

func modelInverse(a byte) byte { return modelPow(a, 254) }

// modelMatrix is the Vandermonde matrix of k+m rows r^0, r^1, ..., times the
// inverse of its top square.
func modelMatrix(k, m int) [][]byte {
	van := func(r, c int) byte { return modelPow(byte(r), c) }
	// Gauss-Jordan on [top | identity].
	top := make([][]byte, k)
	for r := range top {
		top[r] = make([]byte, 2*k)
		for c := range k {
			top[r][c] = van(r, c)
		}
		top[r][k+r] = 1
	}
	for c := range k {
		for r := c; top[c][c] == 0; r++ {
			if top[r][c] != 0 {
				top[c], top[r] = top[r], top[c]
			}
		}
		inv := modelInverse(top[c][c])
		for i := range top[c] {
			top[c][i] = modelMul(top[c][i], inv)
		}
		for r := range top {
			if f := top[r][c]; r != c && f != 0 {
				for i := range top[r] {
					top[r][i] ^= modelMul(f, top[c][i])
				}
			}
		}
	}
	out := make([][]byte, k+m)
	for r := range out {
		out[r] = make([]byte, k)
		for c := range k {
			for i := range k {
				out[r][c] ^= modelMul(van(r, i), top[i][k+c])
			}
		}
	}
	return out
}

var modelMatrices sync.Map // [2]int to [][]byte

// modelFiles is what the shard files of a part hold.
func modelFiles(g Geometry, part []byte) [][]byte {
	key := MinIOKey()
	cached, ok := modelMatrices.Load([2]int{g.Data, g.Parity})
	if !ok {
		cached, _ = modelMatrices.LoadOrStore([2]int{g.Data, g.Parity}, modelMatrix(g.Data, g.Parity))
	}
	matrix := cached.([][]byte)
	files := make([][]byte, g.Data+g.Parity)
	for i := range files {
		files[i] = []byte{}
	}
	for len(part) > 0 {
		block := part
		if int64(len(block)) > g.BlockSize {
			block = block[:g.BlockSize]
		}
		part = part[len(block):]
		n := 0
		for n*g.Data < len(block) {
			n++
		}
		padded := append(bytes.Clone(block), make([]byte, n*g.Data-len(block))...)
		for i := range files {
			shard := make([]byte, n)
			for d := range g.Data {
				f := matrix[i][d]
				if f == 0 {
					continue
				}
				var table [256]byte
				for v := range table {
					table[v] = modelMul(f, byte(v))
				}
				for x := range shard {
					shard[x] ^= table[padded[d*n+x]]
				}
			}
			h, _ := highwayhash.New(key[:])
			h.Write(shard)
			files[i] = append(append(files[i], h.Sum(nil)...), shard...)
		}
	}
	return files
}

func randomBytes(seed uint64, n int) []byte {
	p := make([]byte, n)
	var s [32]byte
	for i := range 8 {
		s[i] = byte(seed >> (8 * i))
	}
	rand.NewChaCha8(s).Read(p)
	return p
}

const guard = 96

// guarded is memory with a pattern before and behind it, and junk in it.
type guarded struct{ all []byte }

func newGuarded(n int) guarded {
	g := guarded{make([]byte, guard+n+guard)}
	for i := range g.all {
		g.all[i] = byte(i*7 + 0x55)
	}
	return g
}

// bytes is the guarded memory. Its capacity reaches into the guard behind it.
func (g guarded) bytes() []byte { return g.all[guard : len(g.all)-guard] }

func (g guarded) check(t testing.TB, what string) {
	t.Helper()
	for i, b := range g.all {
		if (i < guard || i >= len(g.all)-guard) && b != byte(i*7+0x55) {
			t.Fatalf("%s: byte %d of %d written outside of it", what, i-guard, len(g.all)-2*guard)
		}
	}
}

// guardedHeap is an Allocator that checks what was done to its memory.
type guardedHeap struct {
	t      testing.TB
	mu     sync.Mutex
	lent   map[*byte]guarded
	allocs int
	fail   error
}

func newGuardedHeap(t testing.TB) *guardedHeap {
	return &guardedHeap{t: t, lent: map[*byte]guarded{}}
}

func (h *guardedHeap) Alloc(n int) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fail != nil {
		return nil, h.fail
	}
	h.allocs++
	g := newGuarded(n)
	h.lent[&g.bytes()[0]] = g
	return g.bytes(), nil
}

func (h *guardedHeap) Free(p []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g, ok := h.lent[&p[0]]
	if !ok || len(p) != len(g.bytes()) {
		h.t.Errorf("Free of %d bytes that were not lent", len(p))
		return
	}
	g.check(h.t, "scratch")
	delete(h.lent, &p[0])
}

func (h *guardedHeap) check() {
	h.t.Helper()
	if n := len(h.lent); n > 0 {
		h.t.Errorf("%d pieces of scratch memory not freed", n)
	}
}

// counted counts the bytes that are read of a source.
type counted struct {
	VectorSource
	bytes atomic.Int64
	calls atomic.Int64
}

func (c *counted) ReadVAt(ctx context.Context, bufs [][]byte, off int64) (int, error) {
	n, err := c.VectorSource.ReadVAt(ctx, bufs, off)
	c.calls.Add(1)
	c.bytes.Add(int64(n))
	return n, err
}

// failing is a source that returns an error.
type failing struct{ err error }

func (f failing) ReadAt(context.Context, []byte, int64) (int, error) { return 0, f.err }

// scalar hides that a source takes vectors.
type scalar struct{ Source }

var testGeometries = []Geometry{
	{2, 2, 1 << 10}, {4, 2, 1 << 10}, {8, 4, 1 << 10}, {12, 4, 1 << 10}, {3, 2, 1 << 10}, {5, 3, 1 << 10},
	{3, 2, 200}, {7, 2, 64}, {5, 3, 7}, {12, 4, 5}, {1, 1, 10}, {1, 3, 100}, {4, 0, 100}, {1, 0, 16},
}

// boundarySizes are the part sizes at which something changes.
func boundarySizes(g Geometry) []int {
	k, s, b := g.Data, g.ShardSize(), int(g.BlockSize)
	seen := map[int]bool{}
	var sizes []int
	for _, n := range []int{
		0, 1, 2, k - 1, k, k + 1, 2*k - 1, 2*k + 1, s - 1, s, s + 1, (k - 1) * s, (k-1)*s + 1,
		b - 1, b, b + 1, b + k, 2*b - 1, 2 * b, 2*b + 1, 4*b - 1, 4 * b, 4*b + 1, 5*b + s, 9*b + b/2,
	} {
		if n >= 0 && !seen[n] {
			seen[n] = true
			sizes = append(sizes, n)
		}
	}
	return sizes
}

func testName(g Geometry) string { return fmt.Sprintf("%v-%d", g, g.BlockSize) }

func TestMinIOKeyIsDerivedFromPi(t *testing.T) {
	const decimals = "1415926535897932384626433832795028841971693993751058209749445923078164062862089986280348253421170679"
	if got := highwayhash.Sum([]byte(decimals), make([]byte, 32)); Key(got) != MinIOKey() {
		t.Errorf("hash of %d decimals of pi = %x, want %x", len(decimals), got, MinIOKey())
	}
}
