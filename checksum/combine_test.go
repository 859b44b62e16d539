// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

var crcs = []Algorithm{CRC32, CRC32C, CRC64NVME}

func TestCombineEqualsWhole(t *testing.T) {
	data := randomBytes(1 << 17)
	rapid.Check(t, func(t *rapid.T) {
		whole := data[:rapid.IntRange(0, len(data)).Draw(t, "length")]
		alg := rapid.SampledFrom(crcs).Draw(t, "algorithm")
		// Put together from the left, from any number of pieces, some empty.
		got := Empty(alg)
		for rest := whole; ; {
			n := rapid.IntRange(0, len(rest)).Draw(t, "piece")
			var err error
			if got, err = Combine(got, Of(alg, rest[:n]), int64(n)); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
			if rapid.Bool().Draw(t, "last") || len(rest) == 0 {
				if got, err = Combine(got, Of(alg, rest), int64(len(rest))); err != nil {
					t.Fatal(err)
				}
				break
			}
		}
		if want := Of(alg, whole); got != want {
			t.Fatalf("%v of %d bytes: got %v, want %v", alg, len(whole), got, want)
		}
	})
}

// Every power of two below 1 MiB, one less and one more.
func TestCombineLengths(t *testing.T) {
	data := randomBytes(1<<20 + 64)
	for _, alg := range crcs {
		for k := range 21 {
			for n := max(0, 1<<k-1); n <= 1<<k+1; n++ {
				got, err := Combine(Of(alg, data[:13]), Of(alg, data[13:13+n]), int64(n))
				if want := Of(alg, data[:13+n]); err != nil || got != want {
					t.Fatalf("%v, %d bytes: got %v, %v, want %v", alg, n, got, err, want)
				}
			}
		}
	}
}

// Lengths that no buffer has. A piece of n bytes and one of m, appended one
// after the other, must act as one of n+m does.
func TestCombineIsAssociative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		alg := rapid.SampledFrom(crcs).Draw(t, "algorithm")
		draw := func(name string) Sum {
			raw := rapid.SliceOfN(rapid.Byte(), alg.Size(), alg.Size()).Draw(t, name)
			s, err := NewSum(alg, raw)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		a, b, c := draw("a"), draw("b"), draw("c")
		lenB := rapid.Int64Range(1, 1<<62).Draw(t, "lenB")
		lenC := rapid.Int64Range(1, 1<<62-1).Draw(t, "lenC")
		combine := func(x, y Sum, n int64) Sum {
			s, err := Combine(x, y, n)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		left := combine(combine(a, b, lenB), c, lenC)
		right := combine(a, combine(b, c, lenC), lenB+lenC)
		if left != right {
			t.Fatalf("(ab)c is %v, a(bc) is %v", left, right)
		}
	})
}

// The powers of x repeat modulo a polynomial: after 2^32-1 for CRC-32's, which is
// primitive, and after 2^31-1 for Castagnoli's, which is x+1 times a primitive
// one. As many zero bytes change nothing; hence huge lengths have known answers.
func TestCombinePeriod(t *testing.T) {
	for alg, period := range map[Algorithm]int64{CRC32: 1<<32 - 1, CRC32C: 1<<31 - 1} {
		a := Of(alg, []byte("123456789"))
		for _, times := range []int64{1, 2, 1<<30 + 12345, (1<<63 - 1) / period} {
			if got, err := Combine(a, Empty(alg), times*period); err != nil || got != a {
				t.Errorf("%v, %d periods: got %v, %v, want %v", alg, times, got, err, a)
			}
			if got, _ := Combine(a, Empty(alg), times*period-1); got == a {
				t.Errorf("%v: %d bytes change nothing", alg, times*period-1)
			}
		}
	}
	// Whatever the order of x is, a product with a power of it is never zero.
	for k := range 63 {
		if got, err := Combine(Of(CRC64NVME, []byte("a")), Empty(CRC64NVME), 1<<k); err != nil || got.IsEmpty() {
			t.Errorf("CRC64NVME, 2^%d bytes: %v, %v", k, got, err)
		}
	}
}

func TestCombineRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		a, b Sum
		n    int64
	}{
		"no sums":              {},
		"different algorithms": {Empty(CRC32), Empty(CRC32C), 1},
		"one zero sum":         {Empty(CRC32), Sum{}, 1},
		"MD5":                  {Empty(MD5), Empty(MD5), 0},
		"SHA256":               {Empty(SHA256), Empty(SHA256), 1},
		"XXH64":                {Empty(XXH64), Empty(XXH64), 1},
		"negative length":      {Empty(CRC32), Empty(CRC32), -1},
		"sum of no bytes":      {Empty(CRC32), Of(CRC32, []byte("a")), 0},
	} {
		if got, err := Combine(c.a, c.b, c.n); !errors.Is(err, ErrCombine) || !got.IsZero() {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func BenchmarkCombine(b *testing.B) {
	for _, alg := range crcs {
		for _, n := range []int64{1 << 20, 1<<30 - 1} {
			b.Run(fmt.Sprintf("%v/%d", alg, n), func(b *testing.B) {
				s := Of(alg, []byte("abc"))
				b.ReportAllocs()
				for b.Loop() {
					s, _ = Combine(s, s, n)
				}
			})
		}
	}
}
