// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

package forktest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/madmin-go/v3"
	"github.com/minio/minio-go/v7"
)

// randomObjects is how many objects TestRandomObjects makes, half of them by each
// server.
const randomObjects = 1000

// thing is an object, or a version of one, that was made at random.
type thing struct {
	bucket, key, version string
	data                 []byte
	parts                []int // the sizes of a multipart object's
}

// path names it in a request.
func (o *thing) path() string {
	if o.version == "" {
		return "/" + o.bucket + "/" + o.key
	}
	return "/" + o.bucket + "/" + o.key + "?versionId=" + o.version
}

// seeded is the test's seed: that of S3RDMA_SEED, or another one each time.
func seeded(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("S3RDMA_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("S3RDMA_SEED: %v", err)
		}
	}
	t.Logf("S3RDMA_SEED=%d repeats this", seed)
	return seed
}

// randomThing is object i. Most are small, so that all of them together take about a
// minute.
func randomThing(seed uint64, i int) *thing {
	rng := rand.New(rand.NewPCG(seed, uint64(i)))
	o := &thing{bucket: bucket, key: fmt.Sprintf("object-%04d", i)}
	between := func(a, b int) int { return a + rng.IntN(b-a+1) }
	n := 0
	switch x := rng.IntN(1000); {
	case x < 850:
		n = between(1, 64*kib)
	case x < 950: // around the greatest object inside the metadata
		n = between(200*kib, 700*kib)
	case x < 985:
		n = between(mib-2, 3*mib)
	case x < 992:
		n = between(3*mib, 9*mib)
	default:
		for range between(1, 2) {
			o.parts = append(o.parts, between(5*mib, 6*mib))
		}
		o.parts = append(o.parts, between(1, mib))
		for _, p := range o.parts {
			n += p
		}
	}
	if rng.IntN(5) == 0 { // a version among others
		o.bucket, o.key = "versioned", fmt.Sprintf("object-%02d", rng.IntN(40))
	}
	o.data = make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24), byte(i), byte(i >> 8)}).Read(o.data)
	return o
}

// inParallel calls f for each of things from four goroutines, each with a number.
func inParallel(things []*thing, f func(worker int, i int, o *thing)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for w := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range next {
				f(w, i, things[i])
			}
		}()
	}
	for i := range things {
		next <- i
	}
	close(next)
	wg.Wait()
}

// TestRandomObjects makes a thousand random objects, half of them by stock MinIO over
// HTTP, half by the fork over the fabric, on the same drives. Each server reads what
// the other has written, whole, in ranges and in parts, also where shards are lost or
// rotten. In the end stock MinIO verifies and mends all of it.
func TestRandomObjects(t *testing.T) {
	seed := seeded(t)
	o := setup{drives: freshDrives(t, 4)}
	stock := o
	stock.binary = stockBinary(t)
	o, _ = withRDMA(t, o)
	stock.env = o.env[:1] // the key that encrypts the configuration; without it none starts

	// Stock writes.
	s := stock.start(t)
	c := s.client(t)
	if err := c.MakeBucket(t.Context(), "versioned", minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.EnableVersioning(t.Context(), "versioned"); err != nil {
		t.Fatal(err)
	}
	things := make([]*thing, randomObjects)
	total := 0
	for i := range things {
		things[i] = randomThing(seed, i)
		total += len(things[i].data)
	}
	t.Logf("%d objects, %d MiB", len(things), total/mib)
	byStock, byFork := things[:randomObjects/2], things[randomObjects/2:]
	inParallel(byStock, func(_, _ int, o *thing) { s.store(t, o) })
	s.stop(t)

	// The fork reads that, a fifth of it with lost and rotten shards, and writes.
	injured := o.injureSome(t, seed, byStock)
	t.Logf("%d injured", injured)
	s = o.start(t)
	var fabrics [4]*fabric
	for w := range fabrics {
		fabrics[w] = newFabric(t, s, 14*mib)
	}
	before := s.paths(t)
	inParallel(byStock, func(w, i int, o *thing) { fabrics[w].compare(t, o, rand.New(rand.NewPCG(seed+1, uint64(i)))) })
	inParallel(byFork, func(w, i int, o *thing) { fabrics[w].store(t, o, i) })
	inParallel(byFork, func(w, i int, o *thing) { fabrics[w].compare(t, o, rand.New(rand.NewPCG(seed+2, uint64(i)))) })
	paths := s.paths(t)
	for k, n := range paths {
		if n == before[k] {
			continue
		}
		if !slices.Contains([]string{"GetObject direct", "PutObject direct", "UploadPart direct", "PutObject diverted inline"}, k) {
			t.Errorf("%d times %s", n-before[k], k)
		}
	}
	t.Log(paths)
	s.stop(t)

	// Stock reads what the fork has written, and finds nothing to mend in it.
	s = stock.start(t)
	inParallel(things, func(_, i int, o *thing) { s.compare(t, o, rand.New(rand.NewPCG(seed+3, uint64(i)))) })
	ofFork := make(map[string]bool)
	for _, o := range byFork {
		ofFork[o.bucket+"/"+o.key] = true
	}
	for _, o := range byStock {
		delete(ofFork, o.bucket+"/"+o.key) // versions of both
	}
	looked := 0
	for _, b := range []string{bucket, "versioned"} {
		for _, item := range s.heal(t, b, true) {
			if !ofFork[b+"/"+item.Object] {
				continue
			}
			looked++
			for _, drive := range item.Before.Drives {
				if drive.State != madmin.DriveStateOk {
					t.Errorf("%s, which the fork has written, is %s on %s", item.Object, drive.State, drive.Endpoint)
				}
			}
		}
	}
	if looked < randomObjects/4 {
		t.Errorf("healing looked at %d objects of the fork's", looked)
	}

	// It mends what it finds injured, also if the fork has written it.
	mend := func() {
		for _, b := range []string{bucket, "versioned"} {
			s.heal(t, b, false)
		}
		s.nothingToHeal(t, bucket, "versioned")
	}
	mend()
	o.injureSome(t, seed+4, byFork)
	inParallel(byFork, func(_, i int, o *thing) { s.compare(t, o, rand.New(rand.NewPCG(seed+5, uint64(i)))) })
	mend()
	inParallel(things, func(_, i int, o *thing) { s.compare(t, o, rand.New(rand.NewPCG(seed+6, uint64(i)))) })
}

// injureSome harms a fifth of the objects, on one or two drives each, and says how many
// files that are.
//
// Where a shard is so small that MinIO reads it together with the metadata, it goes by
// the first three answers of four drives: two that are rotten are too many for it then,
// as the fourth has not been heard. Such shards are made rotten on one drive.
func (o setup) injureSome(t *testing.T, seed uint64, things []*thing) (injured int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1<<40))
	harmed := make(map[string]bool)
	for _, x := range things {
		if rng.IntN(5) != 0 || harmed[x.bucket+"/"+x.key] {
			continue
		}
		harmed[x.bucket+"/"+x.key] = true
		drives := slices.Clone(o.drives)
		rng.Shuffle(len(drives), func(i, k int) { drives[i], drives[k] = drives[k], drives[i] })
		if rng.IntN(3) == 0 { // all of it, on one drive
			if err := os.RemoveAll(filepath.Join(drives[0], x.bucket, x.key)); err != nil {
				t.Fatal(err)
			}
			injured++
			continue
		}
		how := rng.IntN(3)
		for i, drive := range drives[:1+rng.IntN(2)] {
			files, err := filepath.Glob(filepath.Join(drive, x.bucket, x.key, "*", "part.*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range files {
				b, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				switch {
				case how == 0:
					err = os.Remove(name)
				case i > 0 && len(b) <= 128*kib+32:
					continue
				case how == 1:
					b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
					err = os.WriteFile(name, b, 0o600)
				default:
					err = os.Truncate(name, rng.Int64N(int64(len(b))))
				}
				if err != nil {
					t.Fatal(err)
				}
				injured++
			}
		}
	}
	return injured
}

// store stores an object over HTTP.
func (s *server) store(t *testing.T, o *thing) {
	c := minio.Core{Client: s.client(t)}
	if o.parts == nil {
		i, err := c.Client.PutObject(t.Context(), o.bucket, o.key, bytes.NewReader(o.data), int64(len(o.data)), minio.PutObjectOptions{DisableMultipart: true})
		if err != nil {
			t.Error(err)
			return
		}
		o.version = i.VersionID
		return
	}
	o.version = inParts(t, c, o, func(number int, id string, piece []byte) string {
		p, err := c.PutObjectPart(t.Context(), o.bucket, o.key, id, number, bytes.NewReader(piece), int64(len(piece)), minio.PutObjectPartOptions{})
		if err != nil {
			t.Error(err)
		}
		return p.ETag
	})
}

// store stores an object over the fabric, some with a checksum.
func (f *fabric) store(t *testing.T, o *thing, i int) {
	var extra []string
	if i%3 == 0 {
		extra = []string{"x-amz-checksum-crc32c", crc(o.data)}
	}
	if o.parts == nil {
		a := f.put(t, o.path(), o.data, extra...)
		a.served(t, 200, len(o.data))
		o.version = a.Header.Get("x-amz-version-id")
		return
	}
	o.version = inParts(t, minio.Core{Client: f.s.client(t)}, o, func(number int, id string, piece []byte) string {
		a := f.put(t, fmt.Sprintf("%s?partNumber=%d&uploadId=%s", o.path(), number, id), piece)
		a.served(t, 200, len(piece))
		return strings.Trim(a.Header.Get("ETag"), `"`)
	})
}

// inParts uploads an object in parts by put, which returns a part's ETag.
func inParts(t *testing.T, c minio.Core, o *thing, put func(number int, id string, piece []byte) string) (version string) {
	id, err := c.NewMultipartUpload(t.Context(), o.bucket, o.key, minio.PutObjectOptions{})
	if err != nil {
		t.Error(err)
		return ""
	}
	var list []minio.CompletePart
	rest := o.data
	for i, n := range o.parts {
		list = append(list, minio.CompletePart{PartNumber: i + 1, ETag: put(i+1, id, rest[:n])})
		rest = rest[n:]
	}
	done, err := c.CompleteMultipartUpload(t.Context(), o.bucket, o.key, id, list, minio.PutObjectOptions{})
	if err != nil {
		t.Error(err)
	}
	return done.VersionID
}

// compare reads an object, whole and in pieces, over the fabric and over HTTP.
func (f *fabric) compare(t *testing.T, o *thing, rng *rand.Rand) {
	f.s.compare(t, o, rng, func(path string, extra ...string) (int, []byte) {
		a, got := f.getInto(t, min(len(o.data)+100, len(f.mem.Bytes())), path, extra...)
		return a.StatusCode, got
	})
}

// compare reads an object, whole and in pieces, over HTTP and in other ways.
func (s *server) compare(t *testing.T, o *thing, rng *rand.Rand, ways ...func(path string, extra ...string) (status int, data []byte)) {
	ways = append(ways, func(path string, extra ...string) (int, []byte) {
		a := s.send(t, http.MethodGet, path, signV4, append(headers(extra), unsigned...), nil)
		return a.StatusCode, []byte(a.body)
	})
	try := func(want []byte, status int, path string, extra ...string) {
		for i, get := range ways {
			got, data := get(path, extra...)
			if got != status || !bytes.Equal(data, want) {
				t.Errorf("GET %s %v, way %d of %d: %d with %d bytes, want %d with %d", path, extra, i+1, len(ways), got, len(data), status, len(want))
			}
		}
	}
	n := len(o.data)
	try(o.data, 200, o.path())
	from := rng.IntN(n)
	to := from + rng.IntN(n-from)
	try(o.data[from:to+1], 206, o.path(), "range", fmt.Sprintf("bytes=%d-%d", from, to))
	at := 0
	for i, size := range o.parts {
		path := o.path() + "?"
		if o.version != "" {
			path = o.path() + "&"
		}
		try(o.data[at:at+size], 206, fmt.Sprintf("%spartNumber=%d", path, i+1))
		at += size
	}
}
