// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package erasure

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func newTestCode(t testing.TB, g Geometry) *Code {
	t.Helper()
	c, err := NewCode(g, MinIOKey())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestEncoderWritesTheModelsFiles encodes parts of every boundary size, in one
// call and in stripes, and compares each shard file.
func TestEncoderWritesTheModelsFiles(t *testing.T) {
	for _, g := range testGeometries {
		c := newTestCode(t, g)
		e := c.NewEncoder()
		for _, size := range boundarySizes(g) {
			part := randomBytes(uint64(size), size)
			want := modelFiles(g, part)
			for _, blocks := range []int{1, 3, 100} {
				stripe := blocks * int(g.BlockSize)
				staging := newGuarded(size)
				data := staging.bytes()
				copy(data, part)
				got := make([][]byte, g.Shards())
				e.Reset()
				for off := 0; off < size || off == 0; off += stripe {
					piece := data[off:min(off+stripe, size)]
					scratch := newGuarded(c.ScratchSize(len(piece)))
					if err := e.Encode(piece, scratch.bytes()); err != nil {
						t.Fatalf("%v: Encode %d at %d of %d: %v", g, len(piece), off, size, err)
					}
					scratch.check(t, "scratch")
					for i := range got {
						v := e.Shard(i)
						n := len(got[i])
						for _, b := range v {
							if len(b) == 0 {
								t.Fatalf("%v: an empty piece in the shard file", g)
							}
							got[i] = append(got[i], b...)
						}
						if v.Len() != len(got[i])-n {
							t.Fatalf("%v: Len = %d, want %d", g, v.Len(), len(got[i])-n)
						}
					}
				}
				staging.check(t, "staging")
				if !bytes.Equal(data, part) {
					t.Fatalf("%v: the data was changed", g)
				}
				for i := range got {
					if !bytes.Equal(got[i], want[i]) {
						t.Fatalf("%v: shard %d of %d bytes in stripes of %d blocks differs", g, i, size, blocks)
					}
				}
			}
		}
	}
}

// TestEncoderCopiesNoData: the data shards it gives out are the staging memory.
func TestEncoderCopiesNoData(t *testing.T) {
	g := Geometry{3, 2, 1000}
	c := newTestCode(t, g)
	data := randomBytes(1, 2500)
	e := c.NewEncoder()
	if err := e.Encode(data, make([]byte, c.ScratchSize(len(data)))); err != nil {
		t.Fatal(err)
	}
	var inStaging int
	for i := range g.Data {
		for _, b := range e.Shard(i) {
			for x := range data {
				if &data[x] == &b[0] {
					inStaging += len(b)
				}
			}
		}
	}
	if inStaging != len(data) {
		t.Errorf("%d bytes of the shards lie in the data, want all %d", inStaging, len(data))
	}
	for j := g.Data; j < g.Shards(); j++ {
		if n := len(e.Shard(j)); n != 1 {
			t.Errorf("parity shard %d is in %d pieces, want 1", j, n)
		}
	}
}

func TestEncoderRefuses(t *testing.T) {
	g := Geometry{3, 2, 1000}
	c := newTestCode(t, g)
	e := c.NewEncoder()
	data := make([]byte, 2500)
	if err := e.Encode(data, make([]byte, c.ScratchSize(len(data))-1)); !errors.Is(err, ErrScratch) {
		t.Errorf("small scratch: %v, want ErrScratch", err)
	}
	scratch := make([]byte, c.ScratchSize(len(data)))
	if err := e.Encode(data, scratch); err != nil {
		t.Fatal(err)
	}
	if err := e.Encode(data[:1], scratch); !errors.Is(err, ErrRange) {
		t.Errorf("data behind a short block: %v, want ErrRange", err)
	}
	e.Reset()
	for i := range g.Shards() {
		v := e.Shard(i)
		if v.Len() != 0 {
			t.Errorf("%d bytes of shard %d left by Reset", v.Len(), i)
		}
		for _, b := range v[:cap(v)] {
			if b != nil {
				t.Fatalf("shard %d keeps a piece of memory after Reset", i)
			}
		}
	}
	if err := e.Encode(data[:1000], scratch); err != nil {
		t.Errorf("after Reset: %v", err)
	}
	if err := e.Encode(nil, nil); err != nil {
		t.Errorf("no data: %v", err)
	}
}

func TestVec(t *testing.T) {
	v := Vec{[]byte("hash"), []byte("s"), []byte("hard0"), []byte("padding")}
	all := bytes.Join(v, nil)
	for off := range len(all) + 2 {
		for n := range len(all) + 2 {
			p := newGuarded(n)
			want := all[min(off, len(all)):min(off+n, len(all))]
			if m := v.CopyAt(p.bytes(), off); m != len(want) || !bytes.Equal(p.bytes()[:m], want) {
				t.Fatalf("CopyAt(%d bytes, %d) = %q, want %q", n, off, p.bytes()[:m], want)
			}
			p.check(t, "CopyAt")
		}
	}
}

func TestWriteVAt(t *testing.T) {
	g := Geometry{3, 2, 1000}
	c := newTestCode(t, g)
	data := randomBytes(1, 13500)
	want := modelFiles(g, data)
	e := c.NewEncoder()
	f, err := os.Create(filepath.Join(t.TempDir(), "part.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var off int64
	for len(data) > 0 {
		piece := data[:min(len(data), 7000)]
		data = data[len(piece):]
		if err := e.Encode(piece, make([]byte, c.ScratchSize(len(piece)))); err != nil {
			t.Fatal(err)
		}
		if err := WriteVAt(f, e.Shard(2), off); err != nil {
			t.Fatal(err)
		}
		off += int64(e.Shard(2).Len())
	}
	got, err := os.ReadFile(f.Name())
	if err != nil || !bytes.Equal(got, want[2]) {
		t.Errorf("the file differs from the model's (%v)", err)
	}
	f.Close()
	if err := WriteVAt(f, e.Shard(2), 0); err == nil {
		t.Error("no error from a closed file")
	}
}
