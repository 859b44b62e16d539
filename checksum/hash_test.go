// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// goldens are published check values: of the CRC catalogue (the string
// "123456789"; the NVM Express value is also in the NVMe command set), RFC 1321,
// FIPS 180-4's examples, and the xxHash reference implementation.
var goldens = []struct {
	alg    Algorithm
	input  string
	hex    string
	base64 string
}{
	{CRC32, "", "00000000", "AAAAAA=="},
	{CRC32, "123456789", "cbf43926", "y/Q5Jg=="},
	{CRC32C, "", "00000000", "AAAAAA=="},
	{CRC32C, "123456789", "e3069283", "4waSgw=="},
	// RFC 3720, B.4: 32 bytes of zeros (there in little-endian order).
	{CRC32C, strings.Repeat("\x00", 32), "8a9136aa", "ipE2qg=="},
	{CRC64NVME, "", "0000000000000000", "AAAAAAAAAAA="},
	{CRC64NVME, "123456789", "ae8b14860a799888", "rosUhgp5mIg="},
	// NVM Express NVM Command Set: 4 KiB of zeros, and of ones.
	{CRC64NVME, strings.Repeat("\x00", 4096), "6482d367eb22b64e", "ZILTZ+sitk4="},
	{CRC64NVME, strings.Repeat("\xff", 4096), "c0ddba7302eca3ac", "wN26cwLso6w="},
	{SHA1, "", "da39a3ee5e6b4b0d3255bfef95601890afd80709", "2jmj7l5rSw0yVb/vlWAYkK/YBwk="},
	{SHA1, "abc", "a9993e364706816aba3e25717850c26c9cd0d89d", "qZk+NkcGgWq6PiVxeFDCbJzQ2J0="},
	{SHA256, "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="},
	{SHA256, "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0="},
	{MD5, "", "d41d8cd98f00b204e9800998ecf8427e", "1B2M2Y8AsgTpgAmY7PhCfg=="},
	{MD5, "abc", "900150983cd24fb0d6963f7d28e17f72", "kAFQmDzST7DWlj99KOF/cg=="},
	{XXH64, "", "ef46db3751d8e999", "70bbN1HY6Zk="},
	{XXH64, "abc", "44bc2cf5ad770999", "RLws9a13CZk="},
	// The value that the AWS SDK for C++ puts on the wire: S3's byte order.
	{XXH64, "Memento Mori", "8295a360c2e9f570", "gpWjYMLp9XA="},
}

func mustNew(t testing.TB, alg Algorithm) Hash {
	t.Helper()
	h, err := New(alg)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(b)
	return b
}

func TestGoldens(t *testing.T) {
	seen := map[Algorithm]int{}
	for _, g := range goldens {
		seen[g.alg]++
		h := mustNew(t, g.alg)
		for i := range len(g.input) { // one byte at a time
			_, _ = h.Write([]byte{g.input[i]})
		}
		for how, s := range map[string]Sum{"Of": Of(g.alg, []byte(g.input)), "Hash": h.Sum()} {
			if s.Hex() != g.hex {
				t.Errorf("%s %v(%.12q): got %s, want %s", how, g.alg, g.input, s.Hex(), g.hex)
			}
			if s.Base64() != g.base64 {
				t.Errorf("%s %v(%.12q): got %s, want %s", how, g.alg, g.input, s.Base64(), g.base64)
			}
		}
		back, err := Decode(g.alg, g.base64)
		if err != nil || back != h.Sum() {
			t.Errorf("Decode(%v, %q) = %v, %v", g.alg, g.base64, back, err)
		}
	}
	for _, alg := range Algorithms() {
		if seen[alg] < 2 {
			t.Errorf("%v has %d goldens", alg, seen[alg])
		}
	}
}

func TestEmpty(t *testing.T) {
	for _, alg := range Algorithms() {
		if Empty(alg) != Of(alg, nil) || Empty(alg) != mustNew(t, alg).Sum() {
			t.Errorf("Empty(%v) = %v, computed %v", alg, Empty(alg), Of(alg, nil))
		}
		if !Empty(alg).IsEmpty() || Of(alg, []byte{0}).IsEmpty() {
			t.Errorf("%v: IsEmpty is wrong", alg)
		}
		if Empty(alg).IsZero() {
			t.Errorf("%v: the sum of nothing is taken for no sum", alg)
		}
	}
	if !Empty(0).IsZero() || (Sum{}).IsEmpty() {
		t.Error("the zero Sum is the checksum of something")
	}
}

func TestAlgorithmNames(t *testing.T) {
	headers := map[Algorithm]string{
		CRC32: "x-amz-checksum-crc32", CRC32C: "x-amz-checksum-crc32c", CRC64NVME: "x-amz-checksum-crc64nvme",
		SHA1: "x-amz-checksum-sha1", SHA256: "x-amz-checksum-sha256", MD5: "content-md5", XXH64: "x-amz-checksum-xxhash64",
	}
	for _, alg := range Algorithms() {
		if alg.Header() != headers[alg] {
			t.Errorf("%v.Header() = %q, want %q", alg, alg.Header(), headers[alg])
		}
		for _, name := range []string{alg.String(), strings.ToLower(alg.String())} {
			if got, err := ParseAlgorithm(name); err != nil || got != alg {
				t.Errorf("ParseAlgorithm(%q) = %v, %v", name, got, err)
			}
		}
		if got := len(Of(alg, nil).Append(nil)); got != alg.Size() || got == 0 {
			t.Errorf("%v: %d bytes, Size %d", alg, got, alg.Size())
		}
	}
	if got, err := ParseAlgorithm("xxh64"); err != nil || got != XXH64 {
		t.Errorf("ParseAlgorithm(xxh64) = %v, %v", got, err)
	}
	for _, name := range []string{"", " CRC32", "SHA512", "CRC-32", "Algorithm(0)"} {
		_, err := ParseAlgorithm(name)
		if !errors.Is(err, ErrUnknownAlgorithm) || !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) || !strings.Contains(err.Error(), "CRC64NVME") {
			t.Errorf("ParseAlgorithm(%q): %v", name, err)
		}
	}
	for _, bad := range []Algorithm{0, algorithmEnd, 255} {
		if bad.Valid() || bad.Size() != 0 || bad.Header() != "" || bad.Combinable() || !Of(bad, nil).IsZero() {
			t.Errorf("%v is taken for an algorithm", bad)
		}
		if _, err := New(bad); !errors.Is(err, ErrUnknownAlgorithm) {
			t.Errorf("New(%v): %v", bad, err)
		}
		if _, err := NewSet(CRC32, bad); !errors.Is(err, ErrUnknownAlgorithm) {
			t.Errorf("NewSet(%v): %v", bad, err)
		}
	}
}

// However the bytes are cut, through a Hash, a Set or a Verifier, the sums are
// those of the whole; Sum in between and Reset disturb nothing.
func TestStreamingEqualsWhole(t *testing.T) {
	data := randomBytes(3*blockSize + 17)
	rapid.Check(t, func(t *rapid.T) {
		whole := data[:rapid.IntRange(0, len(data)).Draw(t, "length")]
		algs := rapid.SliceOfN(rapid.SampledFrom(Algorithms()), 0, 9).Draw(t, "algorithms")
		set, err := NewSet(algs...)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = set.Write([]byte("to be forgotten"))
		set.Reset()
		for rest := whole; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			if got, err := set.Write(rest[:n]); got != n || err != nil {
				t.Fatalf("Write of %d bytes: %d, %v", n, got, err)
			}
			rest = rest[n:]
			set.AppendSums(nil)
		}
		distinct := map[Algorithm]bool{}
		for _, alg := range algs {
			distinct[alg] = true
			if got, ok := set.Sum(alg); !ok || got != Of(alg, whole) {
				t.Fatalf("%v of %d bytes: got %v, %v, want %v", alg, len(whole), got, ok, Of(alg, whole))
			}
		}
		sums := set.AppendSums(nil)
		if len(sums) != len(distinct) || set.Len() != len(distinct) {
			t.Fatalf("%d sums of %d algorithms", len(sums), len(distinct))
		}
		for i := 1; i < len(sums); i++ {
			if sums[i-1].Algorithm() >= sums[i].Algorithm() {
				t.Fatalf("sums are not ascending: %v", sums)
			}
		}
		v, err := NewVerifier(sums...)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = v.Write(whole)
		if err := v.Verify(); err != nil {
			t.Fatal(err)
		}
	})
	if _, ok := new(Set).Sum(CRC32); ok {
		t.Error("a Set has a sum of an algorithm that it does not compute")
	}
}

func TestHotPathAllocatesNothing(t *testing.T) {
	data := randomBytes(2*blockSize + 1)
	set, err := NewSet(Algorithms()...)
	if err != nil {
		t.Fatal(err)
	}
	v, err := NewVerifier(set.AppendSums(nil)...)
	if err != nil {
		t.Fatal(err)
	}
	sums := make([]Sum, 0, set.Len())
	text := make([]byte, 0, 64)
	one := mustNew(t, SHA256)
	for name, f := range map[string]func(){
		"Set.Write":      func() { _, _ = set.Write(data) },
		"Verifier.Write": func() { _, _ = v.Write(data) },
		"Set.AppendSums": func() { sums = set.AppendSums(sums[:0]) },
		"Set.Reset":      set.Reset,
		"Hash.Sum":       func() { sums = append(sums[:0], one.Sum()) },
		"AppendBase64":   func() { text = Empty(SHA256).AppendBase64(text[:0]) },
		"Combine":        func() { _, _ = Combine(Empty(CRC32), Empty(CRC32), 1<<20) },
	} {
		if n := testing.AllocsPerRun(5, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	for _, alg := range Algorithms() {
		if n := testing.AllocsPerRun(5, func() { sums = append(sums[:0], Of(alg, data)) }); n != 0 {
			t.Errorf("Of %v: %v allocations", alg, n)
		}
	}
}

// Distinct hashes share no state; meaningful under the race detector.
func TestConcurrentUse(t *testing.T) {
	data := randomBytes(1 << 16)
	want := map[Algorithm]Sum{}
	for _, alg := range Algorithms() {
		want[alg] = Of(alg, data)
	}
	t.Run("group", func(t *testing.T) {
		for i := range 4 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				set, err := NewSet(Algorithms()...)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = set.Write(data)
				for _, s := range set.AppendSums(nil) {
					if s != want[s.Algorithm()] {
						t.Errorf("got %v, want %v", s, want[s.Algorithm()])
					}
					if s.Algorithm().Combinable() {
						if c, err := Combine(s, Empty(s.Algorithm()), 0); err != nil || c != s {
							t.Errorf("Combine with nothing: %v, %v", c, err)
						}
					}
				}
			})
		}
	})
}

func TestWriteLeavesInputAlone(t *testing.T) {
	data := randomBytes(1000)
	was := bytes.Clone(data)
	set, _ := NewSet(Algorithms()...)
	_, _ = set.Write(data)
	set.AppendSums(nil)
	if !bytes.Equal(data, was) {
		t.Error("Write changed its argument")
	}
}

func BenchmarkHash(b *testing.B) {
	data := randomBytes(1 << 20)
	for _, alg := range Algorithms() {
		b.Run(alg.String(), func(b *testing.B) {
			h := mustNew(b, alg)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = h.Write(data)
			}
		})
	}
}

// The second pass over memory is what a Set saves: compare with the sum of the
// algorithms' own times.
func BenchmarkSet(b *testing.B) {
	data := randomBytes(64 << 20)
	for _, algs := range [][]Algorithm{{CRC64NVME}, {CRC32C, CRC64NVME}, {CRC64NVME, XXH64}, {CRC64NVME, MD5}} {
		b.Run(fmt.Sprint(algs), func(b *testing.B) {
			set, err := NewSet(algs...)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = set.Write(data)
			}
		})
	}
}
