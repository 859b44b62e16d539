// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package erasure

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"
)

// TestSources holds every source to the contract, in memory with guards.
func TestSources(t *testing.T) {
	data := randomBytes(1, 20000)
	name := filepath.Join(t.TempDir(), "part.1")
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := OpenFile(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	detached := Detach(file, nil)
	defer detached.Close(context.Background())
	for name, s := range map[string]Source{
		"Bytes":        Bytes(data),
		"File":         file,
		"FromReaderAt": FromReaderAt(bytes.NewReader(data)),
		"Detached":     detached,
	} {
		ctx := context.Background()
		for _, x := range []struct {
			off   int
			sizes []int
		}{
			{0, []int{32, 1000, 24}},
			{5, []int{1}},
			{19999, []int{1}},
			{19000, []int{500, 500}},
			{19000, []int{500, 499, 2, 7}},
			{19000, []int{1001}},
			{20000, []int{1}},
			{30000, []int{3, 4}},
			{0, []int{20000}},
			{0, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}},
			{0, []int{1000, 2000, 3000, 4000, 5000, 500, 600, 700, 800, 900, 1000, 1100}},
		} {
			var bufs [][]byte
			var mem []guarded
			want := 0
			for _, n := range x.sizes {
				g := newGuarded(n)
				mem, bufs, want = append(mem, g), append(bufs, g.bytes()), want+n
			}
			there := data[min(x.off, len(data)):min(x.off+want, len(data))]
			var n int
			var err error
			if v, ok := s.(VectorSource); ok {
				n, err = v.ReadVAt(ctx, bufs, int64(x.off))
			} else {
				n, err = readEach(ctx, s, bufs, int64(x.off))
			}
			if n != len(there) || (n < want) != (err != nil) {
				t.Errorf("%s: %v at %d: %d, %v; want %d", name, x.sizes, x.off, n, err, len(there))
			}
			if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
				t.Errorf("%s: %v at %d: %v, want an EOF", name, x.sizes, x.off, err)
			}
			if got := bytes.Join(bufs, nil)[:n]; !bytes.Equal(got, there) {
				t.Errorf("%s: %v at %d: wrong bytes", name, x.sizes, x.off)
			}
			for i := range mem {
				mem[i].check(t, name)
			}
		}
		if name == "Bytes" {
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := s.ReadAt(ctx, make([]byte, 1), 0); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: cancelled: %v", name, err)
		}
	}
}

func TestReadEachStopsAtAShortRead(t *testing.T) {
	s := FromReaderAt(shortReaderAt{})
	n, err := readEach(context.Background(), s, [][]byte{make([]byte, 4), make([]byte, 4)}, 0)
	if n != 2 || !errors.Is(err, iotest.ErrTimeout) {
		t.Errorf("%d, %v", n, err)
	}
}

type shortReaderAt struct{}

func (shortReaderAt) ReadAt(p []byte, _ int64) (int, error) { return 2, iotest.ErrTimeout }

func TestOpenFileThatIsNotThere(t *testing.T) {
	if _, err := OpenFile(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want fs.ErrNotExist", err)
	}
}

// TestFilesRoundTrip writes shard files with the encoder and reads them, two lost.
func TestFilesRoundTrip(t *testing.T) {
	g := Geometry{3, 2, 10000}
	c := newTestCode(t, g)
	part := randomBytes(7, 123456)
	dir := t.TempDir()
	e := c.NewEncoder()
	if err := e.Encode(part, make([]byte, c.ScratchSize(len(part)))); err != nil {
		t.Fatal(err)
	}
	sources := make([]Source, g.Shards())
	for i := range sources {
		f, err := os.Create(filepath.Join(dir, string(rune('a'+i))))
		if err != nil {
			t.Fatal(err)
		}
		if err := WriteVAt(f, e.Shard(i), 0); err != nil {
			t.Fatal(err)
		}
		s := NewFile(f)
		defer s.Close()
		sources[i] = s
		if i == 1 {
			if err := f.Truncate(5000); err != nil {
				t.Fatal(err)
			}
		}
	}
	sources[2] = nil
	r, err := c.NewReader(must(g.Part(int64(len(part)))), sources, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, x := range [][2]int{{0, len(part)}, {9999, 2}, {50000, 60001}} {
		if err := readGuarded(t, r, part, x[0], x[1]); err != nil {
			t.Error(err)
		}
	}
	if f := r.AppendFaults(nil); len(f) != 2 || f[0].Kind != FaultTruncated || f[1].Kind != FaultAbsent {
		t.Errorf("faults %v", f)
	}
}
