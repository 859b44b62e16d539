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
	for _, slabs := range []int{1, 2, 3, 4, 5, 8, 11} {
		for _, piece := range []int{1000, 1500, 4096} {
			for _, direct := range []int{0, 1, 4096, 20000, n} {
				r := newRig(t, n, func(_ *Config, o *staging.Options) { o.MaxPerLease = slabs })
				r.fab.device = piece == 1500
				r.store.mangle = func(w http.ResponseWriter, req *http.Request) bool {
					sink, ok := SinkOf(req.Context())
					if !ok || sink.Window() != n || sink.MaxNext()%4096 != 0 {
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
		"failed before the header": {func(t *testing.T, s *Sink, w http.ResponseWriter) {
			s.Fail(&Error{Status: 503, Code: "SlowDownRead"})
			http.Error(w, "", 500)
			if n, err := w.Write([]byte("x")); err == nil {
				t.Errorf("%d bytes of an answer that is not sent were taken", n)
			}
		}, 503},
		"failed after the header": {func(t *testing.T, s *Sink, w http.ResponseWriter) {
			w.Header().Set("Content-Length", "10")
			w.WriteHeader(206)
			s.Fail(&Error{Status: 503, Code: "SlowDownRead"})
			s.Fail(&Error{Status: 500, Code: "InternalError"})
			if _, err := s.Next(1); err == nil {
				t.Error("lent")
			}
		}, 503},
		"failed behind an answer": {func(t *testing.T, s *Sink, w http.ResponseWriter) {
			http.Error(w, "", 404)
			s.Fail(&Error{Status: 503, Code: "SlowDownRead"})
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
	for _, slabs := range []int{1, 2, 3, 4, 5, 8, 11} {
		for _, n := range sizes {
			r := newRig(t, n, func(_ *Config, o *staging.Options) { o.MaxPerLease = slabs })
			r.fab.device = slabs%2 == 0
			copy(r.fab.mem, pattern(n))
			var got []byte
			r.store.mangle = func(w http.ResponseWriter, req *http.Request) bool {
				source, ok := SourceOf(req.Context())
				if !ok || source.Size() != int64(n) || source.Unit() != 4096 || source.Pieces() > slabs {
					t.Fatal("no source, or a wrong one")
				}
				// Pieces are held as long as can be, so that memory is reused late.
				for held := 0; ; {
					if held == source.Pieces() {
						if _, err := source.Next(); err == nil || err == io.EOF && len(got) < n {
							t.Fatalf("Next with all lent: %v", err)
						}
						source.Release()
						held--
					}
					p, err := source.Next()
					if err == io.EOF {
						break
					}
					if again, err2 := source.Next(); err != nil || err2 != nil || &again[0] != &p[0] {
						t.Fatalf("Next: %v, %v", err, err2)
					}
					want := bytes.Clone(p)
					k, err := io.ReadFull(req.Body, p)
					if err != nil || !bytes.Equal(p, want) || (k%source.Unit() != 0 && len(got)+k != n) {
						t.Fatalf("read %d bytes of %d: %v", k, len(p), err)
					}
					got = append(got, p...)
					held++
				}
				source.SetPath("direct", "")
				w.WriteHeader(200)
				return true
			}
			res := r.do(r.request("PUT", "/b/k", r.token(0, n), "x-amz-checksum-crc32", checksum.Of(checksum.CRC32, r.fab.mem).Base64()))
			if res.StatusCode != 200 || !bytes.Equal(got, r.fab.mem) || r.last().Path != "direct" {
				t.Fatalf("%d bytes, %d slabs: %s, path %q", n, slabs, res.Status, r.last().Path)
			}
		}
	}
}

// TestSourceChecksum: the last piece cannot be read if the sum is wrong.
func TestSourceChecksum(t *testing.T) {
	r := newRig(t, 9000, nil)
	r.store.mangle = func(w http.ResponseWriter, req *http.Request) bool {
		source, _ := SourceOf(req.Context())
		for i := 0; ; i++ {
			p, err := source.Next()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(req.Body, p); err != nil {
				if i != 2 || !errors.Is(err, checksum.ErrMismatch) {
					t.Errorf("piece %d: %v", i, err)
				}
				if _, again := source.Next(); again != err {
					t.Errorf("Next after that: %v", again)
				}
				w.WriteHeader(200) // whatever it says
				return true
			}
			source.Release()
		}
	}
	if res := r.do(r.request("PUT", "/b/k", r.token(0, 9000), "x-amz-checksum-crc32", "AAAAAQ==")); res.StatusCode != 400 {
		t.Error(res.Status)
	}
}
