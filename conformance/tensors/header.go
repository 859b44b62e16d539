// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// ErrFormat: a file is not what the format allows.
var ErrFormat = errors.New("not a valid safetensors file")

const (
	// LenBytes is the size of the field in front of the header.
	LenBytes = 8
	// MaxHeader is the longest header that the format's own reader accepts.
	MaxHeader = 100_000_000

	metadataKey = "__metadata__"
	maxDims     = 64 // no framework has more
)

// DType is the type of a tensor's elements, as files name it.
type DType string

// width is the bits of an element of each type.
var width = map[DType]int64{
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
	"U16": 16, "I16": 16, "F16": 16, "BF16": 16,
	"U32": 32, "I32": 32, "F32": 32,
	"U64": 64, "I64": 64, "F64": 64, "C64": 64,
}

// Tensor is one tensor of a file.
type Tensor struct {
	Name  string
	DType DType
	// Shape has the number of elements in each dimension; none is a scalar.
	Shape []int64
	// Begin and End are the tensor's bytes in the file's data.
	Begin, End int64
}

// Header describes a file. It does not change.
type Header struct {
	// Tensors are in the order of their bytes; those without any in that of names.
	Tensors []Tensor
	// Metadata is what whoever wrote the file has to say.
	Metadata map[string]string
	// Data is where in the file the data begins; the file ends Bytes later.
	Data, Bytes int64
}

// HeaderLen reads the field in front of the header, LenBytes long, of a file of size
// bytes: how long the header is.
func HeaderLen(field []byte, size int64) (int64, error) {
	if len(field) < LenBytes {
		return 0, fmt.Errorf("%w: %d bytes are no length of a header", ErrFormat, len(field))
	}
	n := binary.LittleEndian.Uint64(field)
	if n < 2 || n > MaxHeader || size < LenBytes || n > uint64(size-LenBytes) {
		return 0, fmt.Errorf("%w: a header of %d bytes in a file of %d", ErrFormat, n, size)
	}
	return int64(n), nil
}

// Parse parses the header (without the field in front of it) of a file of size bytes.
// The result has nothing in common with header's memory.
func Parse(header []byte, size int64) (*Header, error) {
	h := &Header{Data: LenBytes + int64(len(header))}
	if len(header) > MaxHeader || size < h.Data {
		return nil, fmt.Errorf("%w: a header of %d bytes in a file of %d", ErrFormat, len(header), size)
	}
	h.Bytes = size - h.Data
	if len(header) == 0 || header[0] != '{' {
		return nil, fmt.Errorf("%w: the header does not begin with {", ErrFormat)
	}
	d := json.NewDecoder(bytes.NewReader(header))
	err := object(d, func(name string) error {
		if name == metadataKey {
			h.Metadata = map[string]string{}
			return object(d, func(key string) error { return value(d, func(v string) { h.Metadata[key] = v }) })
		}
		t, err := tensor(d, name)
		h.Tensors = append(h.Tensors, t)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	// Headers may be padded with spaces, and that is all.
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("%w: something follows the header's last }", ErrFormat)
	}
	slices.SortFunc(h.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End), cmp.Compare(a.Name, b.Name))
	})
	at := int64(0)
	for _, t := range h.Tensors {
		if t.Begin != at {
			return nil, fmt.Errorf("%w: %q begins at byte %d of the data, want %d, where the one before ends", ErrFormat, t.Name, t.Begin, at)
		}
		at = t.End
	}
	if at != h.Bytes {
		return nil, fmt.Errorf("%w: the tensors have %d bytes, the data %d", ErrFormat, at, h.Bytes)
	}
	return h, nil
}

// object reads a JSON object, and calls member for each name with the decoder before the
// value, which member must read. A name that comes twice is an error: readers differ in
// which one they believe.
func object(d *json.Decoder, member func(name string) error) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	if t != json.Delim('{') {
		return fmt.Errorf("%v in place of an object", t)
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		name := t.(string) // the decoder knows no other
		if seen[name] {
			return fmt.Errorf("%q comes twice", name)
		}
		seen[name] = true
		if err := member(name); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	_, err = d.Token()
	return err
}

// value reads a value that is not null.
func value[T any](d *json.Decoder, set func(T)) error {
	var v *T
	if err := d.Decode(&v); err != nil {
		return err
	}
	if v == nil {
		return errors.New("null")
	}
	set(*v)
	return nil
}

// tensor reads one tensor's description.
func tensor(d *json.Decoder, name string) (Tensor, error) {
	t := Tensor{Name: name}
	var offsets []int64
	missing := map[string]bool{"dtype": true, "shape": true, "data_offsets": true}
	err := object(d, func(field string) error {
		delete(missing, field)
		switch field {
		case "dtype":
			return value(d, func(v DType) { t.DType = v })
		case "shape":
			return value(d, func(v []int64) { t.Shape = v })
		case "data_offsets":
			return value(d, func(v []int64) { offsets = v })
		}
		return value(d, func(any) {})
	})
	if err != nil {
		return t, err
	}
	if len(missing) > 0 || len(offsets) != 2 {
		return t, errors.New("want dtype, shape and two data_offsets")
	}
	t.Begin, t.End = offsets[0], offsets[1]
	if t.Begin < 0 || t.End < t.Begin {
		return t, fmt.Errorf("data_offsets %v", offsets)
	}
	n, err := size(t.DType, t.Shape)
	if err == nil && n != t.End-t.Begin {
		err = fmt.Errorf("%s of shape %v is %d bytes, data_offsets say %d", t.DType, t.Shape, n, t.End-t.Begin)
	}
	return t, err
}

// size is the number of bytes of a tensor.
func size(d DType, shape []int64) (int64, error) {
	n, ok := width[d]
	if !ok {
		return 0, fmt.Errorf("unknown dtype %q", d)
	}
	if len(shape) > maxDims {
		return 0, fmt.Errorf("%d dimensions", len(shape))
	}
	// A dimension of 0 makes any other harmless, wherever it stands.
	if slices.Contains(shape, 0) {
		n = 0
	}
	for _, s := range shape {
		if s < 0 {
			return 0, fmt.Errorf("shape %v", shape)
		}
		if n != 0 && s > math.MaxInt64/n {
			return 0, fmt.Errorf("shape %v has more bytes than can be counted", shape)
		}
		n *= s
	}
	if n%8 != 0 {
		return 0, fmt.Errorf("%s of shape %v ends within a byte", d, shape)
	}
	return n / 8, nil
}
