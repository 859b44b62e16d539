// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package tensors reads and writes files of model weights in the safetensors format, so
// far as loading them into memory needs: it parses headers, and decides where each tensor
// lies in memory and which ranges of the file are read to get it there.
//
// A file is the length N of a header (8 bytes, little-endian), the header (N bytes of
// JSON), and data:
//
//	{"__metadata__": {"format": "pt"},
//	 "model.norm.weight": {"dtype": "BF16", "shape": [512], "data_offsets": [0, 1024]}, ...}
//
// Offsets count from the first byte of data. Source:
// https://github.com/huggingface/safetensors, "Format", whose own reader's checks are
// made here as well: no name twice, no holes, no overlaps, nothing outside the file.
//
//	n, err := tensors.HeaderLen(first8, fileSize)
//	h, err := tensors.Parse(header, fileSize)
//	p, err := h.Place(64, 64<<20)      // tensors aligned to 64 bytes
//	for _, r := range p.Reads { ... }  // read r.Len bytes at r.From to memory[r.At:]
//	views := h.Views(memory, p)        // the tensors, in place
//
// Tensors that follow one another in the file and stay aligned are read at once, so a
// file is loaded by few reads, each to its final place.
//
// # Caveats
//
// Views share the memory that they are views of. Types narrower than a byte (F4, F6) are
// known by their size only. Nothing converts: bytes are little-endian, as in the file.
package tensors
