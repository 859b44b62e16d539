// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var tiny = Transformer{Layers: 2, Hidden: 32, Heads: 4, Vocab: 100}

// open parses a whole file in memory.
func open(file []byte) (*Header, error) {
	n, err := HeaderLen(file, int64(len(file)))
	if err != nil {
		return nil, err
	}
	return Parse(file[LenBytes:LenBytes+n], int64(len(file)))
}

// load does a placement's reads.
func load(file []byte, p Placement) []byte {
	memory := make([]byte, p.Bytes)
	for _, r := range p.Reads {
		copy(memory[r.At:r.At+r.Len], file[r.From:r.From+r.Len])
	}
	return memory
}

// A file as the format's documentation has it.
func TestFormat(t *testing.T) {
	text := `{"__metadata__":{"format":"pt"},"b":{"dtype":"I8","shape":[3],"data_offsets":[8,11]},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"s":{"dtype":"F16","shape":[],"data_offsets":[11,13]},"none":{"dtype":"F64","shape":[5,0],"data_offsets":[13,13]}}   `
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
	file = append(file, "datadataabcFF"...)
	h, err := open(file)
	if err != nil {
		t.Fatal(err)
	}
	want := &Header{Data: int64(8 + len(text)), Bytes: 13, Metadata: map[string]string{"format": "pt"}, Tensors: []Tensor{
		{"a", "F32", []int64{1, 2}, 0, 8}, {"b", "I8", []int64{3}, 8, 11}, {"s", "F16", []int64{}, 11, 13}, {"none", "F64", []int64{5, 0}, 13, 13}}}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Error(diff)
	}
	p, err := h.Place(8, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	data := h.Data
	if diff := cmp.Diff(Placement{Reads: []Read{{data, 11, 0}, {data + 11, 2, 16}}, At: []int64{0, 8, 16, 24}, Bytes: 24}, p); diff != "" {
		t.Error(diff)
	}
	var got []string
	for _, v := range h.Views(load(file, p), p) {
		got = append(got, v.Name+"="+string(v.Bytes))
	}
	if diff := cmp.Diff([]string{"a=datadata", "b=abc", "s=FF", "none="}, got); diff != "" {
		t.Error(diff)
	}
}

func TestRefused(t *testing.T) {
	entry := func(dtype, shape, offsets string) string {
		return fmt.Sprintf(`{"a":{"dtype":"%s","shape":%s,"data_offsets":%s}}`, dtype, shape, offsets)
	}
	const data = 8
	if _, err := Parse([]byte(entry("F32", "[2]", "[0,8]")), LenBytes+int64(len(entry("F32", "[2]", "[0,8]")))+data); err != nil {
		t.Fatalf("what is right: %v", err)
	}
	for name, text := range map[string]string{
		"no JSON":               `{"a":`,
		"an array":              `[]`,
		"a leading space":       ` {}`,
		"empty":                 ``,
		"data without a tensor": `{}`,
		"something behind":      entry("F32", "[2]", "[0,8]") + "{}",
		"unknown type":          entry("F33", "[2]", "[0,8]"),
		"negative dimension":    entry("F32", "[-2]", "[0,8]"),
		"dimensions overflow":   entry("F32", "[4294967296,4294967296]", "[0,8]"),
		"half a byte":           entry("F4", "[3]", "[0,8]"),
		"too many dimensions":   entry("F32", "["+strings.Repeat("1,", 64)+"2]", "[0,8]"),
		"a fraction":            entry("F32", "[2.5]", "[0,8]"),
		"shape is null":         entry("F32", "null", "[0,8]"),
		"three offsets":         entry("F32", "[2]", "[0,8,8]"),
		"offsets backwards":     entry("F32", "[2]", "[8,0]"),
		"offsets overflow":      entry("F32", "[2]", "[0,99999999999999999999]"),
		"another size":          entry("F32", "[3]", "[0,8]"),
		"outside":               entry("F32", "[3]", "[0,12]"),
		"a hole":                entry("F32", "[1]", "[4,8]"),
		"not all":               entry("F32", "[1]", "[0,4]"),
		"name of another case":  `{"a":{"DType":"F32","shape":[2],"data_offsets":[0,8]}}`,
		"name twice":            `{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`,
		"field twice":           `{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}`,
		"overlap":               `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`,
		"metadata of numbers":   `{"__metadata__":{"n":1},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`,
		"tensor is null":        `{"a":null}`,
	} {
		if h, err := Parse([]byte(text), LenBytes+int64(len(text))+data); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
	for _, n := range []uint64{0, 1, 93, MaxHeader + 1, math.MaxUint64} {
		if got, err := HeaderLen(binary.LittleEndian.AppendUint64(nil, n), 100); !errors.Is(err, ErrFormat) {
			t.Errorf("a header of %d bytes: %d, %v", n, got, err)
		}
	}
	if _, err := HeaderLen(make([]byte, 7), 100); !errors.Is(err, ErrFormat) {
		t.Error("seven bytes are a length")
	}
	for _, bad := range [][2]int64{{0, 1}, {3, 1}, {-8, 1}, {8, 0}} {
		if _, err := (&Header{}).Place(bad[0], bad[1]); err == nil {
			t.Errorf("Place%v: no error", bad)
		}
	}
}

// What is written is read back: same tensors, aligned, the same bytes, in few reads.
func TestTransformer(t *testing.T) {
	file, err := tiny.File(1)
	if err != nil {
		t.Fatal(err)
	}
	again, _ := tiny.File(1)
	other, _ := tiny.File(2)
	if !bytes.Equal(file, again) || bytes.Equal(file, other) {
		t.Error("the file is not a function of its seed")
	}
	h, err := open(file)
	if err != nil {
		t.Fatal(err)
	}
	if h.Data%8 != 0 {
		t.Errorf("data begins at byte %d", h.Data)
	}
	specs := tiny.Specs()
	types := map[DType]bool{}
	for i, x := range h.Tensors {
		if diff := cmp.Diff(specs[i], Spec{x.Name, x.DType, x.Shape}); diff != "" {
			t.Errorf("tensor %d: %s", i, diff)
		}
		types[x.DType] = true
	}
	if len(h.Tensors) != len(specs) || len(types) < 6 {
		t.Errorf("%d tensors of %d types, want %d", len(h.Tensors), len(types), len(specs))
	}
	p, err := h.Place(64, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Reads) > 8 {
		t.Errorf("%d reads for %d tensors", len(p.Reads), len(specs))
	}
	for _, v := range h.Views(load(file, p), p) {
		if !bytes.Equal(v.Bytes, file[h.Data+v.Begin:h.Data+v.End]) {
			t.Errorf("%s has other bytes", v.Name)
		}
		switch v.DType {
		case "F32":
			for i := 0; i < len(v.Bytes); i += 4 {
				if f := math.Float32frombits(binary.LittleEndian.Uint32(v.Bytes[i:])); f < 0.5 || f > 1.5 {
					t.Fatalf("%s: a weight of %v", v.Name, f)
				}
			}
		case "BF16":
			for i := 0; i < len(v.Bytes); i += 2 {
				if f := math.Float32frombits(uint32(binary.LittleEndian.Uint16(v.Bytes[i:])) << 16); f < -0.5 || f > 0.5 {
					t.Fatalf("%s: a weight of %v", v.Name, f)
				}
			}
		}
	}
	if _, _, err := Layout([]Spec{{"a", "F32", []int64{1}}, {"a", "F32", []int64{1}}}, nil); err == nil {
		t.Error("a name may come twice")
	}
	if _, _, err := Layout([]Spec{{"a", "F4", []int64{1}}}, nil); err == nil {
		t.Error("half a byte is written")
	}
}

func TestHalf(t *testing.T) {
	for v, want := range map[float32]uint16{0: 0, 1: 0x3c00, -2: 0xc000, 0.5: 0x3800, 65504: 0x7bff, 1e-9: 0, 1.5: 0x3e00} {
		if got := half(v); got != want {
			t.Errorf("%v is %#x, want %#x", v, got, want)
		}
	}
}

// Whatever the tensors are: each is aligned, reads are within bounds and disjoint, and
// the views have the file's bytes.
func TestPlace(t *testing.T) {
	types := []DType{"F32", "F16", "BF16", "I64", "U8", "BOOL", "F64"}
	rapid.Check(t, func(t *rapid.T) {
		var specs []Spec
		for i := range rapid.IntRange(0, 12).Draw(t, "tensors") {
			specs = append(specs, Spec{fmt.Sprint("t", i), rapid.SampledFrom(types).Draw(t, "type"), rapid.SliceOfN(rapid.Int64Range(0, 9), 0, 3).Draw(t, "shape")})
		}
		head, n, err := Layout(specs, nil)
		if err != nil {
			t.Fatal(err)
		}
		file := head
		for i := range n {
			file = append(file, byte(i*7+i>>8))
		}
		h, err := open(file)
		if err != nil {
			t.Fatal(err)
		}
		align := int64(1) << rapid.IntRange(0, 9).Draw(t, "align")
		most := rapid.Int64Range(1, 5000).Draw(t, "most")
		p, err := h.Place(align, most)
		if err != nil {
			t.Fatal(err)
		}
		used := make([]bool, p.Bytes)
		for _, r := range p.Reads {
			if r.Len < 1 || r.Len > most || r.From < h.Data || r.From+r.Len > int64(len(file)) {
				t.Fatalf("read %+v", r)
			}
			for i := r.At; i < r.At+r.Len; i++ {
				if used[i] {
					t.Fatalf("byte %d of the memory is read twice", i)
				}
				used[i] = true
			}
		}
		for i, v := range h.Views(load(file, p), p) {
			if p.At[i]%align != 0 {
				t.Fatalf("%s lies at %d, want a multiple of %d", v.Name, p.At[i], align)
			}
			if !bytes.Equal(v.Bytes, file[h.Data+v.Begin:h.Data+v.End]) {
				t.Fatalf("%s has other bytes", v.Name)
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, `{"__metadata__":{"format":"pt"}}  `,
		`{"a":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[0],"data_offsets":[8,8]}}`,
		`{"a":{"dtype":"F32","shape":[9223372036854775807,2],"data_offsets":[0,8]}}`, `{"a":{"dtype":"F4","shape":[16],"data_offsets":[0,8]}}`,
	} {
		f.Add(append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(seed))), seed...), "12345678"...), uint8(6))
	}
	if file, err := tiny.File(3); err == nil {
		f.Add(file[:4096], uint8(3))
	}
	f.Fuzz(func(t *testing.T, file []byte, shift uint8) {
		h, err := open(file)
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Errorf("error %v", err)
			}
			return
		}
		at := int64(0)
		for _, x := range h.Tensors {
			if x.Begin != at || x.End < x.Begin {
				t.Fatalf("%+v after byte %d", x, at)
			}
			at = x.End
		}
		if h.Data+at != int64(len(file)) {
			t.Fatalf("tensors end at %d of %d", h.Data+at, len(file))
		}
		p, err := h.Place(1<<(shift%13), 1000)
		if err != nil {
			t.Fatal(err)
		}
		if p.Bytes > int64(len(file))+int64(len(h.Tensors))<<13 {
			t.Fatalf("%d bytes of memory for %d of a file", p.Bytes, len(file))
		}
		for _, v := range h.Views(load(file, p), p) {
			if !bytes.Equal(v.Bytes, file[h.Data+v.Begin:h.Data+v.End]) {
				t.Fatalf("%s has other bytes", v.Name)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	head, n, err := Layout(Small.Specs(), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(head)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(head[LenBytes:], int64(len(head))+n); err != nil {
			b.Fatal(err)
		}
	}
}
