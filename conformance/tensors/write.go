// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tensors

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
)

// Spec is a tensor that is to be written.
type Spec struct {
	Name  string
	DType DType
	Shape []int64
}

// Layout makes the start of a file with these tensors in this order: the field with the
// header's length, and the header, padded so that data begins at a multiple of 8. It
// also returns how many bytes of data must follow.
func Layout(specs []Spec, metadata map[string]string) (head []byte, data int64, err error) {
	type entry struct {
		DType   DType    `json:"dtype"`
		Shape   []int64  `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	entries := map[string]any{}
	if metadata != nil {
		entries[metadataKey] = metadata
	}
	for _, s := range specs {
		n, err := size(s.DType, s.Shape)
		if err != nil {
			return nil, 0, fmt.Errorf("lay out tensor %q: %w", s.Name, err)
		}
		if _, twice := entries[s.Name]; twice || n > math.MaxInt64-data {
			return nil, 0, fmt.Errorf("lay out tensor %q: its name comes twice, or the file is too large", s.Name)
		}
		entries[s.Name] = entry{DType: s.DType, Shape: append([]int64{}, s.Shape...), Offsets: [2]int64{data, data + n}}
		data += n
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return nil, 0, err
	}
	for (LenBytes+len(text))%8 != 0 {
		text = append(text, ' ')
	}
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), data, nil
}

// Transformer is the shape of a small language model.
type Transformer struct {
	Layers, Hidden, Heads, Vocab int64
}

// Small is a transformer of about 64 MiB.
var Small = Transformer{Layers: 6, Hidden: 512, Heads: 8, Vocab: 16384}

// Specs are the transformer's tensors under the names that such files have, in the order
// in which they are written: BF16 matrices, norms in F32, a rotary table in F16, and what
// comes along in I64, U8 and BOOL.
func (t Transformer) Specs() []Spec {
	inner := t.Hidden * 4
	specs := []Spec{{"model.embed_tokens.weight", "BF16", []int64{t.Vocab, t.Hidden}}}
	for i := range t.Layers {
		layer := fmt.Sprintf("model.layers.%d.", i)
		for _, m := range []struct {
			name          string
			rows, columns int64
		}{{"self_attn.q_proj", t.Hidden, t.Hidden}, {"self_attn.k_proj", t.Hidden, t.Hidden}, {"self_attn.v_proj", t.Hidden, t.Hidden},
			{"self_attn.o_proj", t.Hidden, t.Hidden}, {"mlp.gate_proj", inner, t.Hidden}, {"mlp.up_proj", inner, t.Hidden}, {"mlp.down_proj", t.Hidden, inner}} {
			specs = append(specs, Spec{layer + m.name + ".weight", "BF16", []int64{m.rows, m.columns}})
		}
		specs = append(specs,
			Spec{layer + "input_layernorm.weight", "F32", []int64{t.Hidden}},
			Spec{layer + "post_attention_layernorm.weight", "F32", []int64{t.Hidden}},
			Spec{layer + "self_attn.mask", "BOOL", []int64{t.Heads, 3}})
	}
	return append(specs,
		Spec{"model.norm.weight", "F32", []int64{t.Hidden}},
		Spec{"model.rotary_emb.inv_freq", "F16", []int64{t.Hidden / t.Heads / 2}},
		Spec{"tokenizer.scores", "U8", []int64{1021}},
		Spec{"step", "I64", []int64{}})
}

// File makes a file of the transformer, with weights of the usual size, the same for the
// same seed.
func (t Transformer) File(seed uint64) ([]byte, error) {
	file, data, err := Layout(t.Specs(), map[string]string{"format": "pt"})
	if err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(seed, 0))
	// Normal values are dear: a table of them, from which weights are drawn.
	var table [1 << 12]float32
	for i := range table {
		table[i] = float32(r.NormFloat64() * 0.02)
	}
	end := int64(len(file)) + data
	grown := make([]byte, len(file), end)
	copy(grown, file)
	for _, s := range t.Specs() {
		n, err := size(s.DType, s.Shape)
		if err != nil {
			return nil, err
		}
		grown = appendWeights(grown, s.DType, n, func() float32 { return table[r.Uint32()%uint32(len(table))] }, r)
	}
	return grown, nil
}

// appendWeights appends n bytes of elements.
func appendWeights(b []byte, d DType, n int64, weight func() float32, r *rand.Rand) []byte {
	switch until := len(b) + int(n); d {
	case "BF16":
		for len(b) < until {
			b = binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(weight())>>16))
		}
	case "F16":
		for len(b) < until {
			b = binary.LittleEndian.AppendUint16(b, half(weight()))
		}
	case "F32":
		for len(b) < until {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(1+weight()))
		}
	case "BOOL":
		for len(b) < until {
			b = append(b, byte(r.Uint32()&1))
		}
	default:
		for len(b) < until {
			b = append(b, byte(r.Uint32()))
		}
	}
	return b
}

// half is v in the 16-bit format of IEEE 754, cut off, for values within its normal
// range; smaller ones are 0.
func half(v float32) uint16 {
	b := math.Float32bits(v)
	e := int(b>>23&0xff) - 127
	if e < -14 || e > 15 {
		return uint16(b >> 16 & 0x8000)
	}
	return uint16(b>>16&0x8000 | uint32(e+15)<<10 | b>>13&0x3ff)
}
