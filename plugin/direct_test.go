// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"testing"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio/staging"
)

// TestSink writes objects through the sink in pieces that leave the rest of a slab
// unused, and the last part through the ResponseWriter.
func TestSink(t *testing.T) {
	const n = 50000
	want := pattern(n)
	for slabs := 1; slabs <= 5; slabs++ {
		for _, piece := range []int{1000, 1500, 4096} {
			for _, direct := range []int{0, 1, 4096, 20000, n} {
				r := newRig(t, n, func(_ *Config, o *staging.Options) { o.MaxPerLease = slabs })
				r.store.mangle = func(w http.ResponseWriter, req *http.Request) bool {
					sink, ok := SinkOf(req.Context())
					if !ok || sink.Window() != n || sink.MaxNext() != 4096 {
						t.Fatal("no sink, or a wrong one")
					}
					rest := want
					for done := 0; done < direct; {
						buf, err := sink.Next(piece)
						if err != nil || len(buf) < piece {
							t.Fatalf("Next(%d): %d bytes, %v", piece, len(buf), err)
						}
						k := copy(buf[:piece], rest[:min(piece, direct-done)])
						if err := sink.Commit(k); err != nil {
							t.Fatal(err)
						}
						rest = rest[k:]
						done += k
					}
					w.Header().Set("Content-Length", strconv.Itoa(n))
					w.WriteHeader(200)
					w.Write(rest)
					return true
				}
				res := r.do(r.request("GET", "/b/k", r.token(0, n)))
				if res.StatusCode != 200 || res.Header.Get(HeaderBytes) != strconv.Itoa(n) || !bytes.Equal(r.fab.mem, want) {
					t.Fatalf("%d slabs, pieces of %d, %d direct: %s %s", slabs, piece, direct, res.Status, readAll(t, res))
				}
			}
		}
	}
}

func TestSinkRefuses(t *testing.T) {
	r := newRig(t, 1000, nil)
	var late *Sink
	for name, f := range map[string]struct {
		use    func(t *testing.T, s *Sink, w http.ResponseWriter)
		status int
	}{
		"more than a slab": {func(t *testing.T, s *Sink, w http.ResponseWriter) {
			if _, err := s.Next(4097); err == nil {
				t.Error("lent")
			}
			http.Error(w, "", 404)
		}, 404},
		"more than the window": {func(t *testing.T, s *Sink, w http.ResponseWriter) {
			s.Next(1001)
			if err := s.Commit(1001); err == nil {
				t.Error("committed")
			}
			w.WriteHeader(200)
		}, 400},
		"more than announced": {func(t *testing.T, s *Sink, w http.ResponseWriter) {
			w.Header().Set("Content-Length", "10")
			w.WriteHeader(200)
			s.Next(11)
			if err := s.Commit(11); err == nil {
				t.Error("committed")
			}
		}, 500},
		"less than announced": {func(t *testing.T, s *Sink, w http.ResponseWriter) {
			s.Next(9)
			if err := s.Commit(9); err != nil {
				t.Error(err)
			}
			w.Header().Set("Content-Length", "10")
			w.WriteHeader(200)
		}, 500},
		"after an error": {func(t *testing.T, s *Sink, w http.ResponseWriter) {
			http.Error(w, "", 404)
			if _, err := s.Next(1); err == nil {
				t.Error("lent")
			}
		}, 404},
		"kept": {func(t *testing.T, s *Sink, w http.ResponseWriter) { late = s; w.WriteHeader(200) }, 200},
	} {
		t.Run(name, func(t *testing.T) {
			r.store.mangle = func(w http.ResponseWriter, req *http.Request) bool {
				sink, _ := SinkOf(req.Context())
				f.use(t, sink, w)
				return true
			}
			if res := r.do(r.request("GET", "/b/k", r.token(0, 1000))); res.StatusCode != f.status {
				t.Errorf("%s %s", res.Status, readAll(t, res))
			}
		})
	}
	if _, err := late.Next(1); err == nil {
		t.Error("a sink lends after its handler has returned")
	}
	if err := late.Commit(1); err == nil {
		t.Error("a sink commits after its handler has returned")
	}
	if _, ok := SinkOf(context.Background()); ok {
		t.Error("a sink out of nowhere")
	}
}

func TestSource(t *testing.T) {
	for slabs := 1; slabs <= 5; slabs++ {
		for _, n := range sizes {
			r := newRig(t, n, func(_ *Config, o *staging.Options) { o.MaxPerLease = slabs })
			copy(r.fab.mem, pattern(n))
			var got []byte
			r.store.mangle = func(w http.ResponseWriter, req *http.Request) bool {
				source, ok := SourceOf(req.Context())
				if !ok || source.Size() != int64(n) || source.MaxNext() != 4096 {
					t.Fatal("no source, or a wrong one")
				}
				for {
					p, err := source.Next()
					if err == io.EOF {
						break
					}
					if err != nil || len(p) != min(4096, n-len(got)) {
						t.Fatalf("Next: %d bytes, %v", len(p), err)
					}
					got = append(got, p...)
				}
				w.WriteHeader(200)
				return true
			}
			res := r.do(r.request("PUT", "/b/k", r.token(0, n), "x-amz-checksum-crc32", checksum.Of(checksum.CRC32, r.fab.mem).Base64()))
			if res.StatusCode != 200 || !bytes.Equal(got, r.fab.mem) {
				t.Fatalf("%d bytes, %d slabs: %s", n, slabs, res.Status)
			}
		}
	}
}

// TestSourceChecksum: the last piece is not handed out if the sum is wrong.
func TestSourceChecksum(t *testing.T) {
	r := newRig(t, 9000, nil)
	r.store.mangle = func(w http.ResponseWriter, req *http.Request) bool {
		source, _ := SourceOf(req.Context())
		for i := 0; ; i++ {
			if _, err := source.Next(); err != nil {
				if i != 2 || !errors.Is(err, checksum.ErrMismatch) {
					t.Errorf("piece %d: %v", i, err)
				}
				w.WriteHeader(200) // whatever it says
				return true
			}
		}
	}
	if res := r.do(r.request("PUT", "/b/k", r.token(0, 9000), "x-amz-checksum-crc32", "AAAAAQ==")); res.StatusCode != 400 {
		t.Error(res.Status)
	}
}
