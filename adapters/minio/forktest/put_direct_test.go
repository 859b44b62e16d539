// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

package forktest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/madmin-go/v3"
	"github.com/minio/minio-go/v7"

	"github.com/s3rdma/s3rdma/checksum"
)

// TestDirectPut stores the same bytes under the same name by HTTP and over the
// fabric, and compares what is on the drives, file by file.
func TestDirectPut(t *testing.T) {
	for _, drives := range []int{4, 5, 6} {
		t.Run(fmt.Sprint(drives, " drives"), func(t *testing.T) {
			s, _ := startOnDrives(t, drives, []string{"MINIO_STORAGE_CLASS_STANDARD=EC:2"})
			f := newFabric(t, s, 20*mib)
			c := s.client(t)
			stored := map[string][]byte{}
			direct := 0
			before := s.paths(t)
			list := append(slices.Clone(boundaries), 128*kib*(drives-2), 128*kib*(drives-2)+1, 20*mib)
			slices.Sort(list)
			for _, n := range slices.Compact(list) {
				key, data := fmt.Sprint("size-", n, ".png"), random(n)
				opts := minio.PutObjectOptions{UserMetadata: map[string]string{"Test": "x"}, DisableMultipart: true}
				if _, err := c.PutObject(t.Context(), bucket, key, bytes.NewReader(data), int64(n), opts); err != nil {
					t.Fatal(err)
				}
				files, meta := s.onDrives(t, key)
				if err := c.RemoveObject(t.Context(), bucket, key, minio.RemoveObjectOptions{}); err != nil {
					t.Fatal(err)
				}
				a := f.put(t, "/bucket/"+key, data, "x-amz-meta-test", "x", "content-type", "application/octet-stream")
				a.served(t, 200, n)
				files2, meta2 := s.onDrives(t, key)
				if !maps.Equal(files, files2) {
					t.Errorf("%d bytes: other shard files: %v, want %v", n, files2, files)
				}
				if !reflect.DeepEqual(meta, meta2) {
					t.Errorf("%d bytes: other metadata: %v, want %v", n, meta2, meta)
				}
				if len(files) > 0 {
					direct++
				}
				stored[key] = data
				if want := `"` + hexMD5(data) + `"`; a.Header.Get("ETag") != want {
					t.Errorf("%d bytes: ETag %s, want %s", n, a.Header.Get("ETag"), want)
				}
			}
			after := s.paths(t)
			inline := len(stored) - direct
			if after["PutObject direct"]-before["PutObject direct"] != direct || after["PutObject diverted inline"]-before["PutObject diverted inline"] != inline {
				t.Errorf("paths: %v, want %d direct and %d inline", after, direct, inline)
			}
			stored["parts"] = f.multipart(t, "parts", odd...)
			for key, data := range stored {
				if !bytes.Equal(s.get(t, key), data) {
					t.Errorf("%s: other bytes were stored", key)
				}
			}
			s.nothingToHeal(t)
			s.noTmp(t)
		})
	}
}

func hexMD5(b []byte) string {
	raw, _ := base64.StdEncoding.DecodeString(md5sum(b))
	return hex.EncodeToString(raw)
}

// multipart uploads an object in parts over the fabric, every second part with a
// checksum.
func (f *fabric) multipart(t *testing.T, key string, sizes ...int) (data []byte) {
	t.Helper()
	core := minio.Core{Client: f.s.client(t)}
	id, err := core.NewMultipartUpload(t.Context(), bucket, key, minio.PutObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var parts []minio.CompletePart
	f.s.expectPaths(t, map[string]int{"UploadPart direct": len(sizes) + 1}, func() {
		for i, n := range append([]int{1 * mib}, sizes...) {
			piece := random(n)
			number := max(i, 1) // the first part is overwritten
			var extra []string
			if i%2 == 1 {
				extra = []string{"x-amz-checksum-crc32c", crc(piece)}
			}
			a := f.put(t, fmt.Sprintf("/bucket/%s?partNumber=%d&uploadId=%s", key, number, id), piece, extra...)
			a.served(t, 200, n)
			etag := strings.Trim(a.Header.Get("ETag"), `"`)
			if fast := etag != hexMD5(piece); fast != (extra != nil) {
				t.Errorf("part %d: ETag %s", i, etag)
			}
			if i > 0 {
				data = append(data, piece...)
				parts = append(parts, minio.CompletePart{PartNumber: number, ETag: etag})
			}
		}
	})
	if _, err := core.CompleteMultipartUpload(t.Context(), bucket, key, id, parts, minio.PutObjectOptions{}); err != nil {
		t.Fatal(err)
	}
	return data
}

// onDrives is what the drives hold of an object: the hashes of its shard files, and
// its metadata without times and identifiers.
func (s *server) onDrives(t *testing.T, key string) (files map[string]string, meta []any) {
	t.Helper()
	for _, drive := range s.drives {
		b, err := os.ReadFile(filepath.Join(drive, bucket, key, "xl.meta"))
		if err != nil {
			t.Fatal(err)
		}
		meta = append(meta, xlMeta(t, b))
	}
	return s.shards(t, key), meta
}

// xlMeta decodes an xl.meta of one version: the header, and behind it inline data
// under names that are random.
func xlMeta(t *testing.T, b []byte) any {
	t.Helper()
	if !bytes.HasPrefix(b, []byte("XL2 ")) {
		t.Fatalf("xl.meta begins with %q", b[:min(8, len(b))])
	}
	d := msgpack{b: b[8:]}
	head := msgpack{b: d.value().([]byte)}
	d.value() // a checksum
	head.value()
	head.value()
	if n := head.value(); n != uint64(1) {
		t.Fatalf("xl.meta of %v versions", n)
	}
	head.value()
	version := msgpack{b: head.value().([]byte)}
	meta := version.value().(map[string]any)
	object := meta["V2Obj"].(map[string]any)
	for _, name := range []string{"ID", "DDir", "MTime"} {
		delete(object, name)
	}
	var inline []any
	if len(d.b) > 1 {
		d.b = d.b[1:] // a version
		for _, v := range d.value().(map[string]any) {
			inline = append(inline, v)
		}
	}
	return []any{meta, inline}
}

// msgpack reads MessagePack values: the kinds that occur in xl.meta.
type msgpack struct{ b []byte }

func (d *msgpack) take(n int) []byte { p := d.b[:n]; d.b = d.b[n:]; return p }

func (d *msgpack) num(n int) (v uint64) {
	for _, c := range d.take(n) {
		v = v<<8 | uint64(c)
	}
	return v
}

func (d *msgpack) value() any {
	switch c := d.take(1)[0]; {
	case c < 0x80:
		return uint64(c)
	case c < 0x90:
		return d.fields(int(c & 15))
	case c < 0xa0:
		return d.list(int(c & 15))
	case c < 0xc0:
		return string(d.take(int(c & 31)))
	case c >= 0xe0:
		return int64(int8(c))
	case c == 0xc0:
		return nil
	case c == 0xc2, c == 0xc3:
		return c == 0xc3
	case c <= 0xc6: // bin
		return d.take(int(d.num(1 << (c - 0xc4))))
	case c == 0xcb:
		return math.Float64frombits(d.num(8))
	case c >= 0xcc && c <= 0xcf:
		return d.num(1 << (c - 0xcc))
	case c >= 0xd0 && c <= 0xd3:
		return int64(d.num(1 << (c - 0xd0)))
	case c >= 0xd9 && c <= 0xdb:
		return string(d.take(int(d.num(1 << (c - 0xd9)))))
	case c == 0xdc, c == 0xdd:
		return d.list(int(d.num(2 << (c - 0xdc))))
	case c == 0xde, c == 0xdf:
		return d.fields(int(d.num(2 << (c - 0xde))))
	default:
		panic(fmt.Sprintf("MessagePack kind %#x", c))
	}
}

func (d *msgpack) list(n int) (l []any) {
	for range n {
		l = append(l, d.value())
	}
	return l
}

func (d *msgpack) fields(n int) map[string]any {
	m := make(map[string]any)
	for range n {
		k := d.value().(string)
		m[k] = d.value()
	}
	return m
}

// nothingToHeal has MinIO look at every shard, and fails if it would mend any.
func (s *server) nothingToHeal(t *testing.T, buckets ...string) {
	t.Helper()
	if buckets == nil {
		buckets = []string{bucket}
	}
	for _, b := range buckets {
		for _, item := range s.heal(t, b, true) {
			for _, drive := range item.Before.Drives {
				if drive.State != madmin.DriveStateOk {
					t.Errorf("%s is %s on %s", item.Object, drive.State, drive.Endpoint)
				}
			}
		}
	}
}

// heal has MinIO look at every shard in a bucket, and mend them unless it is a dry run.
func (s *server) heal(t *testing.T, bucket string, dry bool) (objects []madmin.HealResultItem) {
	t.Helper()
	a := s.admin(t)
	opts := madmin.HealOpts{Recursive: true, DryRun: dry, ScanMode: madmin.HealDeepScan}
	begun, _, err := a.Heal(t.Context(), bucket, "", opts, "", true, false)
	if err != nil {
		t.Fatal(err)
	}
	within(t, 120*time.Second, func() error {
		_, status, err := a.Heal(t.Context(), bucket, "", opts, begun.ClientToken, false, false)
		if err != nil {
			return err
		}
		for _, item := range status.Items {
			if item.Type == madmin.HealItemObject {
				objects = append(objects, item)
			}
		}
		if status.Summary != "finished" {
			return fmt.Errorf("healing: %s %s", status.Summary, status.FailureDetail)
		}
		return nil
	})
	if len(objects) == 0 {
		t.Errorf("healing looked at nothing in %s", bucket)
	}
	return objects
}

// noTmp waits until nothing temporary is left on the drives; MinIO's trash is
// emptied in the background.
func (s *server) noTmp(t *testing.T) {
	t.Helper()
	within(t, 20*time.Second, func() error {
		for _, drive := range s.drives {
			list, err := os.ReadDir(filepath.Join(drive, ".minio.sys", "tmp"))
			if err != nil {
				return err
			}
			for _, e := range list {
				if e.Name() != ".trash" {
					return fmt.Errorf("%s is left in tmp", e.Name())
				}
			}
		}
		return nil
	})
}

// TestDirectPutVerifies: wrong checksums store nothing, right ones are stored and
// decide on the ETag.
func TestDirectPutVerifies(t *testing.T) {
	s, _ := startOn(t)
	f := newFabric(t, s, 4*mib)
	data := random(3*mib + 5)
	other := random(3*mib + 6)[1:]
	sum := func(a checksum.Algorithm, b []byte) string { return checksum.Of(a, b).Base64() }
	for i, c := range []struct {
		header string
		value  func(b []byte) string
		code   string
		fast   bool
	}{
		{"x-amz-checksum-crc64nvme", func(b []byte) string { return sum(checksum.CRC64NVME, b) }, "BadDigest", true},
		{"x-amz-checksum-crc32c", func(b []byte) string { return sum(checksum.CRC32C, b) }, "BadDigest", true},
		{"x-amz-checksum-crc32", func(b []byte) string { return sum(checksum.CRC32, b) }, "BadDigest", true},
		{"x-amz-checksum-sha1", func(b []byte) string { return sum(checksum.SHA1, b) }, "XAmzContentChecksumMismatch", true},
		{"x-amz-checksum-sha256", func(b []byte) string { return sum(checksum.SHA256, b) }, "XAmzContentChecksumMismatch", true},
		{"content-md5", md5sum, "BadDigest", false},
		{"x-amz-content-sha256", sha, "XAmzContentSHA256Mismatch", false},
	} {
		key := fmt.Sprint("object", i)
		for _, n := range []int{len(data), 1000} { // direct and inline
			f.put(t, "/bucket/"+key, data[:n], c.header, c.value(other[:n])).want(t, 400, c.code)
			s.absent(t, key)
		}
		a := f.put(t, "/bucket/"+key, data, c.header, c.value(data))
		a.served(t, 200, len(data))
		want := hexMD5(data)
		got := strings.Trim(a.Header.Get("ETag"), `"`)
		if c.fast && (!strings.HasSuffix(got, "-1") || len(got) != 34) || !c.fast && got != want {
			t.Errorf("%s: ETag %s", c.header, got)
		}
		if strings.HasPrefix(c.header, "x-amz-checksum") {
			head := s.send(t, http.MethodHead, "/bucket/"+key, signV4, append(headers{"x-amz-checksum-mode", "ENABLED"}, unsigned...), nil)
			if head.Header.Get(c.header) != c.value(data) {
				t.Errorf("%s is stored as %q", c.header, head.Header.Get(c.header))
			}
		}
		if !bytes.Equal(s.get(t, key), data) {
			t.Errorf("%s: other bytes were stored", key)
		}
	}
	// Conditions.
	f.put(t, "/bucket/object0", data, "if-none-match", "*").want(t, 412, "PreconditionFailed")
	f.put(t, "/bucket/object0", other, "if-match", `"00000000000000000000000000000000"`).want(t, 412, "PreconditionFailed")
	f.put(t, "/bucket/missing", other, "if-match", `"00000000000000000000000000000000"`).want(t, 404, "NoSuchKey")
	f.put(t, "/bucket/new", data, "if-none-match", "*").served(t, 200, len(data))
	if !bytes.Equal(s.get(t, "object0"), data) {
		t.Error("a failed condition has changed the object")
	}
	// Versions.
	c := s.client(t)
	if err := c.MakeBucket(t.Context(), "versioned", minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.EnableVersioning(t.Context(), "versioned"); err != nil {
		t.Fatal(err)
	}
	for _, b := range [][]byte{data, other} {
		a := f.put(t, "/versioned/object", b)
		a.served(t, 200, len(b))
		id := a.Header.Get("x-amz-version-id")
		if id == "" {
			t.Error("no version")
		}
		if _, got := f.get(t, "/versioned/object?versionId="+id); !bytes.Equal(got, b) {
			t.Error("another version came back")
		}
	}
	s.noTmp(t)
}

// TestETagPolicy: md5 and fast, as set.
func TestETagPolicy(t *testing.T) {
	for _, policy := range []string{"md5", "fast"} {
		s, _ := startOn(t, "--rdma-etag="+policy)
		f := newFabric(t, s, 4*mib)
		for _, n := range []int{100, 3*mib + 5} {
			data := random(n)
			for _, extra := range [][]string{nil, {"x-amz-checksum-crc32c", crc(data)}, {"x-amz-checksum-crc64nvme", checksum.Of(checksum.CRC64NVME, data).Base64()}, {"content-md5", md5sum(data)}} {
				a := f.put(t, "/bucket/object", data, extra...)
				a.served(t, 200, n)
				got := strings.Trim(a.Header.Get("ETag"), `"`)
				wantMD5 := policy == "md5" || len(extra) > 0 && extra[0] == "content-md5"
				if wantMD5 && got != hexMD5(data) || !wantMD5 && !strings.HasSuffix(got, "-1") {
					t.Errorf("%s, %d bytes, %v: ETag %s", policy, n, extra, got)
				}
				f.same(t, "/bucket/object")
			}
		}
	}
}

// TestDirectPutWithoutDrives: a drive that cannot be written is done without and
// mended later; too many are an error, and leave nothing.
func TestDirectPutWithoutDrives(t *testing.T) {
	s, _ := startOn(t)
	f := newFabric(t, s, 20*mib)
	data := random(9*mib + 1)
	block := func(drive string) {
		tmp := filepath.Join(drive, ".minio.sys", "tmp")
		if err := errors.Join(os.Rename(tmp, tmp+".away"), os.WriteFile(tmp, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	unblock := func(drive string) {
		tmp := filepath.Join(drive, ".minio.sys", "tmp")
		if err := errors.Join(os.Remove(tmp), os.Rename(tmp+".away", tmp)); err != nil {
			t.Fatal(err)
		}
	}
	block(s.drives[1])
	s.expectPaths(t, map[string]int{"PutObject direct": 1}, func() {
		f.put(t, "/bucket/one", data).served(t, 200, len(data))
	})
	block(s.drives[2])
	f.put(t, "/bucket/two", data).want(t, 503, "")
	s.absent(t, "two")
	unblock(s.drives[1])
	unblock(s.drives[2])
	f.same(t, "/bucket/one")
	within(t, 60*time.Second, func() error {
		if n := len(s.shards(t, "one")); n != 4 {
			return fmt.Errorf("%d shards", n)
		}
		return nil
	})
	s.noTmp(t)
}

// TestDirectSoak: many clients read and write at random over the fabric and over
// HTTP, some of which die in the middle of it. Whatever is stored is one of the
// things that were to be stored, whole; nothing is left over.
func TestDirectSoak(t *testing.T) {
	s, _ := startOn(t, "--rdma-staging-wait=10s")
	limit := 20 * time.Second
	if testing.Short() {
		limit = 5 * time.Second
	}
	const keys, largest = 12, 7 * mib
	source := random(2 * largest)
	// An object is a length and a place in source, so that its bytes tell whether
	// they belong together.
	valid := func(b []byte) bool {
		if len(b) < 16 {
			return false
		}
		at, n := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
		return at < largest && n == uint64(len(b)) && bytes.Equal(b[16:], source[at:at+n-16])
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	count := map[string]int{}
	for w := range 6 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			f := newFabric(t, s, largest)
			for round := 0; ctx.Err() == nil; round++ {
				key := fmt.Sprint("key", rng.IntN(keys))
				if rng.IntN(8) == 0 { // a client that dies
					dying := newFabric(t, s, largest)
					n := 16 + rng.IntN(largest-16)
					fillSoak(dying.mem.Bytes()[:n], source, rng.IntN(largest))
					d := describe(t, dying.mem, n)
					done := make(chan struct{})
					method := []string{http.MethodPut, http.MethodGet}[rng.IntN(2)]
					go func() {
						defer close(done)
						s.send(t, method, "/bucket/"+key, signV4, append(headers{"x-amz-rdma-token", d}, unsigned...), nil)
					}()
					for range rng.IntN(2000) {
						select {
						case <-done:
						case <-time.After(time.Microsecond):
						}
					}
					dying.target.Close()
					<-done
					mu.Lock()
					count["died"]++
					mu.Unlock()
					continue
				}
				if rng.IntN(2) == 0 {
					n := 16 + rng.IntN(largest-16)
					if rng.IntN(3) == 0 {
						n = 16 + rng.IntN(100000)
					}
					b := make([]byte, n)
					fillSoak(b, source, rng.IntN(largest))
					a := f.put(t, "/bucket/"+key, b)
					mu.Lock()
					count[fmt.Sprint("PUT ", a.StatusCode)]++
					mu.Unlock()
					continue
				}
				a, got := f.get(t, "/bucket/"+key)
				if a.StatusCode == 200 && !valid(got) {
					t.Errorf("GET %s: %d bytes that do not belong together", key, len(got))
				}
				mu.Lock()
				count[fmt.Sprint("GET ", a.StatusCode)]++
				mu.Unlock()
			}
		}()
	}
	wg.Wait()
	t.Log(count, s.paths(t))
	for k := range count {
		if !slices.Contains([]string{"died", "PUT 200", "GET 200", "GET 404"}, k) {
			t.Errorf("%d times %s", count[k], k)
		}
	}
	for i := range keys {
		key := fmt.Sprint("key", i)
		if _, err := s.client(t).StatObject(t.Context(), bucket, key, minio.StatObjectOptions{}); err == nil && !valid(s.get(t, key)) {
			t.Errorf("%s holds bytes that do not belong together", key)
		}
	}
	if n := sample(t, s.metrics(t, "/minio/metrics/v3/rdma"), "s3rdma_staging_used_bytes"); n != 0 {
		t.Errorf("%v bytes of staging memory are still lent", n)
	}
	s.noTmp(t)
	s.nothingToHeal(t)
}

// fillSoak makes b an object of TestDirectSoak.
func fillSoak(b, source []byte, at int) {
	binary.LittleEndian.PutUint64(b, uint64(at))
	binary.LittleEndian.PutUint64(b[8:], uint64(len(b)))
	copy(b[16:], source[at:])
}
