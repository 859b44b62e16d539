// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

package forktest

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/shm"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// boundaries are object sizes around every place where the layout changes: of
// inline objects, of blocks and shards, of slabs and of a lease of them.
var boundaries = []int{1, 2, 3, 100 * kib, 256*kib - 1, 256 * kib, 256*kib + 1, 512*kib + 1, mib - 1, mib, mib + 1, mib + 2, 2*mib - 1, 2 * mib, 3*mib + 5, 4 * mib, 4*mib + 1, 10*mib + 1}

// paths are the requests served so far, by "operation path reason".
func (s *server) paths(t *testing.T) map[string]int {
	t.Helper()
	counts := make(map[string]int)
	for _, m := range pathLine.FindAllStringSubmatch(s.metrics(t, "/minio/metrics/v3/rdma"), -1) {
		n, err := strconv.ParseFloat(m[4], 64)
		if err != nil {
			t.Fatal(err)
		}
		counts[strings.TrimSpace(m[1]+" "+m[2]+" "+m[3])] += int(n)
	}
	return counts
}

var pathLine = regexp.MustCompile(`s3rdma_paths_total\{op="(\w+)",path="(\w+)",reason="(\w*)",transport="\w+"\} (\S+)`)

// expectPaths fails unless f makes the server count exactly the paths in want.
func (s *server) expectPaths(t *testing.T, want map[string]int, f func()) {
	t.Helper()
	before := s.paths(t)
	f()
	after := s.paths(t)
	for k, n := range before {
		if after[k] -= n; after[k] == 0 {
			delete(after, k)
		}
	}
	if !maps.Equal(after, want) {
		t.Errorf("the server took the paths %v, want %v", after, want)
	}
}

// fabric is a client's memory, and its way to say so.
type fabric struct {
	s      *server
	target *shm.Target
	mem    rdmaio.Exposed
}

func newFabric(t *testing.T, s *server, n int) *fabric {
	t.Helper()
	tg := shm.NewTarget(shm.TargetOptions{})
	t.Cleanup(func() { tg.Close() })
	connect(t, s, tg, signV4)
	return &fabric{s, tg, memory(t, tg, n)}
}

var poisoned = [4 * kib]byte(bytes.Repeat([]byte{0xa5}, 4*kib))

// get fetches path and returns what came over the fabric. What is behind it must be
// untouched.
func (f *fabric) get(t *testing.T, path string, extra ...string) (answer, []byte) {
	t.Helper()
	return f.getInto(t, len(f.mem.Bytes()), path, extra...)
}

// getInto is get with a window of n bytes.
func (f *fabric) getInto(t *testing.T, n int, path string, extra ...string) (answer, []byte) {
	t.Helper()
	mem := f.mem.Bytes()[:n]
	copy(mem, poisoned[:])
	for done := len(poisoned); done < n; done *= 2 {
		copy(mem[done:], mem[:done])
	}
	h := append(headers{"x-amz-rdma-token", describe(t, f.mem, len(mem))}, unsigned...)
	a := f.s.send(t, http.MethodGet, path, signV4, append(h, extra...), nil)
	if a.StatusCode/100 != 2 {
		return a, nil
	}
	n, err := strconv.Atoi(a.Header.Get("x-amz-rdma-bytes-transferred"))
	if err != nil || !untouched(mem[n:]) {
		t.Errorf("GET %s %v: bytes behind the object were written (%v)", path, extra, err)
	}
	return a, mem[:n]
}

// untouched tells whether mem is as getInto has poisoned it.
func untouched(mem []byte) bool {
	for len(mem) > len(poisoned) {
		if !bytes.Equal(mem[:len(poisoned)], poisoned[:]) {
			return false
		}
		mem = mem[len(poisoned):]
	}
	return bytes.Equal(mem, poisoned[:len(mem)])
}

// put stores data at path from the client's memory.
func (f *fabric) put(t *testing.T, path string, data []byte, extra ...string) answer {
	t.Helper()
	copy(f.mem.Bytes(), data)
	h := headers{"x-amz-rdma-token", describe(t, f.mem, len(data))}
	if !strings.Contains(strings.Join(extra, " "), "x-amz-content-sha256") {
		h = append(h, unsigned...)
	}
	return f.s.send(t, http.MethodPut, path, signV4, append(h, extra...), nil)
}

// same compares a GET over the fabric with one over HTTP.
func (f *fabric) same(t *testing.T, path string, extra ...string) {
	t.Helper()
	want := f.s.send(t, http.MethodGet, path, signV4, append(headers(extra), unsigned...), nil)
	got, data := f.getInto(t, min(len(want.body)+10000, len(f.mem.Bytes())), path, extra...)
	if got.StatusCode != want.StatusCode {
		t.Errorf("GET %s %v: %s %s over the fabric, %s over HTTP", path, extra, got.Status, got.body, want.Status)
		return
	}
	if got.StatusCode/100 == 2 && string(data) != want.body {
		t.Errorf("GET %s %v: other bytes over the fabric (%d and %d)", path, extra, len(data), len(want.body))
	}
	for _, h := range []string{"ETag", "Content-Range", "Content-Type", "Last-Modified", "x-amz-version-id", "x-amz-delete-marker", "x-amz-mp-parts-count", "x-amz-tagging-count", "x-amz-meta-test"} {
		if got.Header.Get(h) != want.Header.Get(h) {
			t.Errorf("GET %s %v: %s is %q over the fabric, %q over HTTP", path, extra, h, got.Header.Get(h), want.Header.Get(h))
		}
	}
}

// ranges of an object of n bytes, around blocks, shards and the ends.
func ranges(n int) (list []string) {
	for _, at := range []int{0, 1, n / 3, mib - 1, mib, 11*mib + 2, n - 1} {
		for _, k := range []int{1, mib, 3*mib + 1} {
			if at < n && (k == 1 || at+k <= n) {
				list = append(list, fmt.Sprintf("bytes=%d-%d", at, at+k-1))
			}
		}
	}
	return append(list, fmt.Sprintf("bytes=%d-", n/2), fmt.Sprintf("bytes=-%d", min(n, 70000)))
}

// multipart stores an object in parts of these sizes over HTTP.
func (s *server) multipart(t *testing.T, key string, sizes ...int) (data []byte) {
	t.Helper()
	core := minio.Core{Client: s.client(t)}
	id, err := core.NewMultipartUpload(t.Context(), bucket, key, minio.PutObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var parts []minio.CompletePart
	for i, n := range sizes {
		piece := random(n)
		data = append(data, piece...)
		p, err := core.PutObjectPart(t.Context(), bucket, key, id, i+1, bytes.NewReader(piece), int64(n), minio.PutObjectPartOptions{})
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, minio.CompletePart{PartNumber: i + 1, ETag: p.ETag})
	}
	if _, err := core.CompleteMultipartUpload(t.Context(), bucket, key, id, parts, minio.PutObjectOptions{}); err != nil {
		t.Fatal(err)
	}
	return data
}

var odd = []int{5 * mib, 6*mib + 3, 5*mib + 777777, 123}

// TestDirectGet compares direct GETs with plain ones: every size, range, part and
// version, with 2, 3 and 4 data shards, then with drives that have lost or damaged
// what they had. That nothing fell back to another path is seen from the metrics.
func TestDirectGet(t *testing.T) {
	for _, drives := range []int{4, 5, 6} {
		t.Run(fmt.Sprint(drives, " drives"), func(t *testing.T) {
			s, _ := startOnDrives(t, drives, []string{"MINIO_STORAGE_CLASS_STANDARD=EC:2"})
			f := newFabric(t, s, 20*mib)
			keys := map[string]int{"parts": len(s.multipart(t, "parts", odd...))}
			for _, n := range boundaries {
				key := fmt.Sprint("size-", n)
				s.put(t, key, random(n))
				keys[key] = n
			}
			requests := 0
			before := s.paths(t)
			for key, n := range keys {
				f.same(t, "/bucket/"+key)
				for _, r := range ranges(n) {
					f.same(t, "/bucket/"+key, "range", r)
				}
				requests += 1 + len(ranges(n))
			}
			after := s.paths(t)
			if got := after["GetObject direct"] - before["GetObject direct"]; got != requests {
				t.Errorf("%d of %d requests went direct: %v", got, requests, after)
			}
			s.expectPaths(t, map[string]int{"GetObject direct": len(odd)}, func() {
				for i := range odd {
					f.same(t, fmt.Sprintf("/bucket/parts?partNumber=%d", i+1))
				}
				f.same(t, fmt.Sprintf("/bucket/parts?partNumber=%d", len(odd)+1))
				f.same(t, "/bucket/parts", "range", "bytes=99999999-")
			})
			versions(t, s, f)
			damage(t, s, f)
		})
	}
}

func versions(t *testing.T, s *server, f *fabric) {
	t.Helper()
	c := s.client(t)
	if err := c.MakeBucket(t.Context(), "versioned", minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.EnableVersioning(t.Context(), "versioned"); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, n := range []int{3*mib + 1, 2*mib + 7, 10} {
		i, err := c.PutObject(t.Context(), "versioned", "object", bytes.NewReader(random(n)), int64(n), minio.PutObjectOptions{UserMetadata: map[string]string{"test": fmt.Sprint(n)}, UserTags: map[string]string{"a": "b"}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, i.VersionID)
	}
	s.expectPaths(t, map[string]int{"GetObject direct": len(ids) + 2}, func() {
		f.same(t, "/versioned/object")
		for _, id := range ids {
			f.same(t, "/versioned/object?versionId="+id)
		}
		f.same(t, "/versioned/object?versionId="+ids[0], "range", "bytes=1000000-2000000")
	})
	if err := c.RemoveObject(t.Context(), "versioned", "object", minio.RemoveObjectOptions{}); err != nil {
		t.Fatal(err)
	}
	s.expectPaths(t, map[string]int{"GetObject direct": 1}, func() {
		f.same(t, "/versioned/object")
		f.same(t, "/versioned/object?versionId="+ids[1])
		f.same(t, "/versioned/object?versionId=00000000-0000-0000-0000-000000000001")
	})
}

// damage reads objects whose drives have a fault, and waits until MinIO has healed
// them, which nobody but the direct reads has started.
func damage(t *testing.T, s *server, f *fabric) {
	remove := func(name string) error { return os.RemoveAll(name) }
	faults := []struct {
		name   string
		drives int
		what   string // of the object's folder
		do     func(string) error
	}{
		{"object-lost", 1, "", remove},
		{"object-lost", 2, "", remove},
		{"shards-lost", 1, "*/part.*", remove},
		{"shards-lost", 2, "*/part.*", remove},
		{"shards-rotten", 2, "*/part.*", func(name string) error {
			b, err := os.ReadFile(name)
			for at := 40; at < len(b); at += 300000 {
				b[at] ^= 1
			}
			return errors.Join(err, os.WriteFile(name, b, 0o600))
		}},
		{"shards-cut", 2, "*/part.*", func(name string) error {
			i, err := os.Stat(name)
			if err != nil {
				return err
			}
			return os.Truncate(name, i.Size()/2)
		}},
	}
	type broken struct {
		data   []byte
		shards map[string]string
		heals  bool
	}
	objects := make(map[string]broken)
	for _, fault := range faults {
		for _, shape := range []string{"one", "parts"} {
			key := fmt.Sprint(fault.name, fault.drives, shape)
			var data []byte
			if shape == "parts" {
				data = s.multipart(t, key, odd[0], odd[1], odd[3])
			} else {
				data = random(5*mib + 3)
				s.put(t, key, data)
			}
			// Of objects that are lost on as many drives as there are data shards
			// MinIO starts no heal when they are read.
			// So it is with bytes that have changed: MinIO queues a deep scan, but
			// its background heal scans as it is set to.
			heals := fault.name != "shards-rotten" && (fault.what != "" || fault.drives < len(s.drives)-2)
			objects[key] = broken{data, s.shards(t, key), heals}
			for _, drive := range s.byShard(t, key, data)[:fault.drives] {
				files, err := filepath.Glob(filepath.Join(drive, bucket, key, fault.what))
				if err != nil || len(files) == 0 {
					t.Fatalf("nothing of %s in %s: %v", key, drive, err)
				}
				for _, file := range files {
					if err := fault.do(file); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	s.expectPaths(t, map[string]int{"GetObject direct": 3 * len(objects)}, func() {
		for key, o := range objects {
			for _, r := range [][2]int{{0, len(o.data)}, {mib - 1, 2*mib + 1}, {3*mib + 7, len(o.data)}} {
				a, got := f.get(t, "/bucket/"+key, "range", fmt.Sprintf("bytes=%d-%d", r[0], r[1]-1))
				a.served(t, 206, r[1]-r[0])
				if !bytes.Equal(got, o.data[r[0]:r[1]]) {
					t.Errorf("%s: other bytes in %v", key, r)
				}
			}
		}
	})
	within(t, 60*time.Second, func() error {
		for key, o := range objects {
			if o.heals && !maps.Equal(s.shards(t, key), o.shards) {
				return fmt.Errorf("%s is not healed", key)
			}
		}
		return nil
	})
}

// byShard are the drives, first the one whose shard a read of the object needs first:
// MinIO does not look at parity shards while it can do without.
func (s *server) byShard(t *testing.T, key string, data []byte) []string {
	t.Helper()
	for i, drive := range s.drives {
		files, err := filepath.Glob(filepath.Join(drive, bucket, key, "*", "part.1"))
		if err != nil || len(files) != 1 {
			t.Fatalf("shards of %s: %v %v", key, files, err)
		}
		b, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		if bytes.HasPrefix(b[32:], data[:100]) {
			return append([]string{drive}, slices.Delete(slices.Clone(s.drives), i, i+1)...)
		}
	}
	t.Fatalf("no drive has the first shard of %s", key)
	return nil
}

// shards are the hashes of an object's shard files, by drive and file.
func (s *server) shards(t *testing.T, key string) map[string]string {
	t.Helper()
	sums := make(map[string]string)
	for i, drive := range s.drives {
		files, err := filepath.Glob(filepath.Join(drive, bucket, key, "*", "part.*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				continue // healing replaces it just now
			}
			sums[fmt.Sprint(i, " ", filepath.Base(file))] = sha(b)
		}
	}
	return sums
}

// TestDirectGetBeyondRepair: what cannot be rebuilt is an error, never a success.
func TestDirectGetBeyondRepair(t *testing.T) {
	s, _ := startOn(t)
	f := newFabric(t, s, 20*mib)
	s.put(t, "object", random(9*mib+1))
	for _, drive := range s.drives[:3] {
		files, err := filepath.Glob(filepath.Join(drive, bucket, "object", "*", "part.1"))
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		// The first blocks are sound: bytes have left when the fault is met.
		if err := os.Truncate(files[0], 3*mib); err != nil {
			t.Fatal(err)
		}
	}
	s.expectPaths(t, map[string]int{}, func() {
		for _, r := range []string{"bytes=0-", "bytes=7000000-7000001"} {
			a, _ := f.get(t, "/bucket/object", "range", r)
			a.want(t, 503, "SlowDownRead")
			if a.Header.Get("x-amz-rdma-reply") != "" || a.Header.Get("Content-Range") != "" {
				t.Errorf("range %s: %v", r, a.Header)
			}
		}
		a, _ := f.get(t, "/bucket/object")
		a.want(t, 503, "SlowDownRead")
	})
}

// TestDirectGetWindow: a window that is smaller than the object stays untouched.
func TestDirectGetWindow(t *testing.T) {
	s, _ := startOn(t)
	f := newFabric(t, s, 4*mib)
	s.put(t, "object", random(4*mib+1))
	a, _ := f.get(t, "/bucket/object")
	a.want(t, 400, "RDMAWindowTooSmall")
	if !untouched(f.mem.Bytes()) {
		t.Error("bytes arrived")
	}
	f.same(t, "/bucket/object", "range", "bytes=1-")
}

// TestOtherPaths: what cannot go direct goes another way, and is counted so.
func TestOtherPaths(t *testing.T) {
	s, _ := startOnDrives(t, 4, []string{"MINIO_COMPRESSION_ENABLE=on", "MINIO_COMPRESSION_EXTENSIONS=.txt", "MINIO_COMPRESSION_ALLOW_ENCRYPTION=off"})
	f := newFabric(t, s, 20*mib)
	data := random(2*mib + 1)
	text := bytes.Repeat([]byte("compressible "), 300000)
	zipped := zipOf(t, "inside", data)
	for _, c := range []struct {
		want, key string
		data      []byte
		extra     []string
	}{
		{"PutObject direct", "plain", data, nil},
		{"PutObject diverted inline", "small", data[:1000], nil},
		{"PutObject diverted encrypted", "encrypted", data, []string{"x-amz-server-side-encryption", "AES256"}},
		{"PutObject diverted compressed", "text.txt", text, nil},
		{"PutObject direct", "archive.zip", zipped, []string{"x-minio-extract", "true"}},
	} {
		s.expectPaths(t, map[string]int{c.want: 1}, func() {
			f.put(t, "/bucket/"+c.key, c.data, c.extra...).served(t, 200, len(c.data))
		})
		if !bytes.Equal(s.get(t, c.key), c.data) {
			t.Errorf("%s: other bytes were stored", c.key)
		}
	}
	s.put(t, "empty", nil)
	for want, path := range map[string]string{
		"GetObject direct":              "/bucket/plain",
		"GetObject diverted encrypted":  "/bucket/encrypted",
		"GetObject diverted compressed": "/bucket/text.txt",
		"GetObject diverted empty":      "/bucket/empty",
	} {
		s.expectPaths(t, map[string]int{want: 1}, func() { f.same(t, path) })
	}
	s.expectPaths(t, map[string]int{"GetObject diverted extract": 1}, func() {
		a, got := f.get(t, "/bucket/archive.zip/inside", "x-minio-extract", "true")
		a.served(t, 200, len(data))
		if !bytes.Equal(got, data) {
			t.Error("extract: other bytes")
		}
	})
	s.expectPaths(t, map[string]int{"GetObject diverted virtual": 1}, func() {
		a, _ := f.get(t, "/bucket/.system-d26a9498-cb7c-4a87-a44a-8ae204f5ba6c/system.xml")
		a.want(t, 200, "")
	})
}

// TestSmallSlabs: staging memory whose pieces hold no block. A GET has MinIO's own
// decoder write to them.
func TestSmallSlabs(t *testing.T) {
	s, _ := startOn(t, "--rdma-staging-slab=64KiB")
	f := newFabric(t, s, 20*mib)
	data := random(9*mib + 1)
	s.expectPaths(t, map[string]int{"PutObject diverted slab": 1}, func() {
		f.put(t, "/bucket/object", data).served(t, 200, len(data))
	})
	s.expectPaths(t, map[string]int{"GetObject writer slab": 2}, func() {
		f.same(t, "/bucket/object")
		f.same(t, "/bucket/object", "range", "bytes=1000-5000000")
	})
	if err := os.RemoveAll(filepath.Join(s.drives[0], bucket, "object")); err != nil {
		t.Fatal(err)
	}
	s.expectPaths(t, map[string]int{"GetObject writer slab": 1}, func() { f.same(t, "/bucket/object") })
}

// zipOf is an archive with one file.
func zipOf(t *testing.T, name string, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
	if err == nil {
		_, err = w.Write(data)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
