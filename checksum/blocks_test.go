// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestBlocks writes streams of many lengths, in many portions, and looks at every
// block. 384 values of 64 bits and 768 of 32 have room.
func TestBlocks(t *testing.T) {
	data := randomBytes(8 << 20)
	rapid.Check(t, func(t *rapid.T) {
		alg := rapid.SampledFrom([]Algorithm{CRC32, CRC32C, CRC64NVME}).Draw(t, "alg")
		asked := rapid.SampledFrom([]int64{MinBlock, MinBlock + 1, 5000, 1 << 20, MaxBlock}).Draw(t, "block")
		n := rapid.OneOf(rapid.IntRange(0, 3*MinBlock), rapid.IntRange(0, len(data)),
			rapid.SampledFrom([]int{383 * MinBlock, 384 * MinBlock, 384*MinBlock + 1, 768*MinBlock + 1, 1536 * MinBlock})).Draw(t, "n")
		b, err := NewBlocks(alg, asked)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(data[:100])
		b.Reset()
		for p := data[:n]; len(p) > 0; {
			k := rapid.IntRange(1, len(p)).Draw(t, "write")
			b.Write(p[:k])
			p = p[k:]
		}
		l := b.List()
		if l.Bytes != int64(n) || int64(len(l.Sums)) != ListLen(int64(n), l.Block) || len(l.Sums) > maxSums(alg) {
			t.Fatalf("%d blocks of %d over %d bytes of %d", len(l.Sums), l.Block, l.Bytes, n)
		}
		want := asked
		for ListLen(int64(n), want) > int64(maxSums(alg)) {
			want *= 2
		}
		if l.Block != want {
			t.Fatalf("block size %d, want %d", l.Block, want)
		}
		for i, s := range l.Sums {
			off, k := l.Span(i)
			if s != Of(alg, data[off:off+k]) {
				t.Fatalf("block %d is wrong", i)
			}
		}
		if l, err := ListOf(alg, asked, data[:n]); err != nil || l.Compare(b.List()) != nil {
			t.Fatalf("computed at once, the list is another one: %v", err)
		}
		if b.Sum() != Of(alg, data[:n]) || b.Algorithm() != alg {
			t.Fatal("the whole is wrong")
		}
		back, err := ParseList(alg, l.Block, l.Bytes, l.Text())
		if err != nil || l.Compare(back) != nil || len(l.Text()) > 4096 {
			t.Fatalf("the text does not come back: %v", err)
		}
	})
}

func TestListVerify(t *testing.T) {
	const n = 10*MinBlock + 17
	data := randomBytes(n)
	b, err := NewBlocks(CRC32C, MinBlock)
	if err != nil {
		t.Fatal(err)
	}
	b.Write(data)
	l := b.List()
	if err := l.Verify(data); err != nil {
		t.Fatal(err)
	}
	bad := bytes.Clone(data)
	bad[3*MinBlock+5] ^= 1
	bad[n-1] ^= 1
	for name, err := range map[string]error{"Verify": l.Verify(bad), "Compare": func() error {
		b.Reset()
		b.Write(bad)
		return l.Compare(b.List())
	}()} {
		var be *BlockError
		if !errors.Is(err, ErrMismatch) || !errors.As(err, &be) || be.Index != 3 || be.Offset != 3*MinBlock || be.Length != MinBlock || be.Damaged != 2 || be.Blocks != 11 {
			t.Errorf("%s: %v", name, err)
		} else if !strings.Contains(err.Error(), "block 3 of 11 (bytes 12288 to 16383)") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := l.VerifyBlock(10, bad[10*MinBlock:]); !errors.Is(err, ErrMismatch) {
		t.Errorf("the last block: %v", err)
	}
	if err := l.VerifyBlock(0, bad[:MinBlock]); err != nil {
		t.Errorf("a good block: %v", err)
	}
	for _, err := range []error{l.Verify(data[1:]), l.VerifyBlock(0, data[:5]), l.Compare(List{Block: 2 * MinBlock})} {
		if !errors.Is(err, ErrMalformed) || errors.Is(err, ErrMismatch) {
			t.Errorf("other lengths: %v", err)
		}
	}
	var empty List
	if empty.Verify(nil) != nil || !empty.Whole().IsZero() || empty.Text() != "" {
		t.Error("an empty region is not verified")
	}
}

func TestBlocksRefuse(t *testing.T) {
	for _, c := range []struct {
		alg   Algorithm
		block int64
		want  error
	}{
		{SHA256, 1 << 20, ErrUnknownAlgorithm}, {XXH64, 1 << 20, ErrUnknownAlgorithm}, {0, 1 << 20, ErrUnknownAlgorithm},
		{CRC32, MinBlock - 1, ErrMalformed}, {CRC32, MaxBlock + 1, ErrMalformed}, {CRC32, -1, ErrMalformed},
	} {
		for _, err := range []error{second(NewBlocks(c.alg, c.block)), second(ListOf(c.alg, c.block, []byte("x")))} {
			if !errors.Is(err, c.want) {
				t.Errorf("%v, %d: %v", c.alg, c.block, err)
			}
		}
	}
	good := Of(CRC32, []byte("x")).Base64()
	for name, err := range map[string]error{
		"short":     second(ParseList(CRC32, MinBlock, 5, good[:4])),
		"long":      second(ParseList(CRC32, MinBlock, 5, good+good)),
		"breaks":    second(ParseList(CRC32, MinBlock, 5, good[:4]+"\r\n"+good[6:])),
		"padding":   second(ParseList(CRC32, MinBlock, 5, good[:5]+"x==")),
		"too many":  second(ParseList(CRC32, MinBlock, 769*MinBlock, strings.Repeat("A", 4104))),
		"negative":  second(ParseList(CRC32, MinBlock, -1, "")),
		"bad block": second(ParseList(CRC32, 0, 5, good)),
	} {
		if !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestOfParallel(t *testing.T) {
	data := randomBytes(leastParallel + 12345)
	for _, alg := range Algorithms() {
		for _, p := range [][]byte{nil, data[:100], data[:leastParallel], data} {
			if OfParallel(alg, p) != Of(alg, p) {
				t.Errorf("%v of %d bytes differs", alg, len(p))
			}
		}
	}
}

func TestBlocksAllocateNothing(t *testing.T) {
	b, err := NewBlocks(CRC64NVME, MinBlock)
	if err != nil {
		t.Fatal(err)
	}
	p := randomBytes(1 << 20)
	if n := testing.AllocsPerRun(10, func() { b.Write(p) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzParseList(f *testing.F) {
	f.Add(uint8(CRC64NVME), int64(MinBlock), int64(5000), "AAAAAAAAAAAAAAAAAAAAAA==")
	f.Add(uint8(CRC32), int64(MinBlock), int64(0), "")
	f.Add(uint8(CRC32C), int64(1)<<62, int64(1)<<62, "AAAAAA==")
	f.Add(uint8(SHA1), int64(MinBlock), int64(1), "AAAA")
	f.Fuzz(func(t *testing.T, alg uint8, block, n int64, text string) {
		l, err := ParseList(Algorithm(alg), block, n, text)
		if err != nil {
			return
		}
		if l.Text() != text || l.Bytes != n || ListLen(n, block) != int64(len(l.Sums)) {
			t.Errorf("%d, %d, %q came back as %q", block, n, text, l.Text())
		}
		l.Whole()
	})
}

func BenchmarkBlocks(b *testing.B) {
	p := randomBytes(1 << 20)
	h, _ := NewBlocks(CRC64NVME, 64<<10)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		h.Write(p)
		h.Reset()
	}
}
