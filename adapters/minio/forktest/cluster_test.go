// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

package forktest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/s3rdma/s3rdma/conformance/minioproc"
	"github.com/s3rdma/s3rdma/conformance/rawhttp"
	"github.com/s3rdma/s3rdma/rdmaio/shm"
)

// cluster is a MinIO of several processes, each with a drive. The bucket is there.
type cluster struct {
	*minioproc.Cluster
	nodes []*server
}

func startCluster(t *testing.T, drives int, args ...string) *cluster {
	t.Helper()
	sockets, err := os.MkdirTemp("", "rdma") // short: a socket's path is
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sockets) })
	env := []string{"MINIO_RDMA_STAGING_SIZE=32MiB"}
	c, err := minioproc.StartCluster(t.Context(), minioproc.ClusterOptions{
		Binary: forkBinary(t), Dir: t.TempDir(), Drives: drives, Env: env,
		Args: append([]string{"--rdma=on", "--rdma-fabric=tcp,shm"}, args...),
		// Nodes may differ in the plugin's settings.
		NodeEnv: func(i int) []string {
			return []string{"MINIO_RDMA_SHM_SOCKET=" + filepath.Join(sockets, strconv.Itoa(i))}
		},
		Root:  rawhttp.Credentials{AccessKey: rootUser, SecretKey: rootSecret},
		Ready: 120 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Stop()
		for i, s := range c.Nodes() {
			if b, err := os.ReadFile(s.Log); err != nil || bytes.Contains(b, []byte("DATA RACE")) {
				t.Errorf("node %d: a data race, see its log (%v)\n%s", i, err, b)
			}
		}
		if t.Failed() {
			for i, s := range c.Nodes() {
				t.Logf("the log of node %d ends with:\n%s", i, s.LogTail())
			}
		}
	})
	all := &cluster{Cluster: c}
	for i, s := range c.Nodes() {
		u, err := url.Parse(s.Endpoint)
		if err != nil {
			t.Fatal(err)
		}
		all.nodes = append(all.nodes, &server{drives: c.Drives(i), url: s.Endpoint, host: u.Host, log: new(lockedBuffer), audit: new(lockedBuffer)})
		all.loaded(t, i)
	}
	if err := all.nodes[0].client(t).MakeBucket(t.Context(), bucket, minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	return all
}

// loaded waits until a node knows its users, which it does some time after it is ready.
func (c *cluster) loaded(t *testing.T, i int) {
	t.Helper()
	within(t, 60*time.Second, func() error { _, err := c.nodes[i].admin(t).ListUsers(t.Context()); return err })
}

// all is node i with the drives of all nodes.
func (c *cluster) all(i int) *server {
	s := *c.nodes[i]
	s.drives = nil
	for _, n := range c.nodes {
		s.drives = append(s.drives, n.drives...)
	}
	return &s
}

// TestCluster stores objects over the fabric at each of four nodes and reads them at
// others, over the fabric and over HTTP; then a node is killed while many transfers are
// under way.
func TestCluster(t *testing.T) {
	c := startCluster(t, 1)
	fabrics := make([]*fabric, len(c.nodes))
	for i, s := range c.nodes {
		fabrics[i] = newFabric(t, s, 20*mib)
	}
	objects := make(map[string][]byte)
	t.Run("every node", func(t *testing.T) { everyNode(t, c, fabrics, objects) })
	t.Run("sessions", func(t *testing.T) { foreignSession(t, c, fabrics) })
	if t.Failed() {
		return
	}
	t.Run("a node is killed", func(t *testing.T) { killedNode(t, c, fabrics, objects) })
}

// everyNode compares nodes with each other, and what is on the drives with what MinIO
// stores by itself.
func everyNode(t *testing.T, c *cluster, fabrics []*fabric, objects map[string][]byte) {
	for i, f := range fabrics {
		next := c.nodes[(i+1)%len(c.nodes)]
		over := fabrics[(i+2)%len(c.nodes)]
		for _, n := range []int{1, 256 * kib, 256*kib + 1, mib, 9*mib + 3} {
			key, data := fmt.Sprintf("at-%d-%d", i, n), random(n)
			path := "PutObject direct remote"
			if n <= 256*kib {
				path = "PutObject diverted inline"
			}
			if _, err := next.client(t).PutObject(t.Context(), bucket, key, bytes.NewReader(data), int64(n), minio.PutObjectOptions{DisableMultipart: true}); err != nil {
				t.Fatal(err)
			}
			files, meta := c.all(i).onDrives(t, key)
			if err := next.client(t).RemoveObject(t.Context(), bucket, key, minio.RemoveObjectOptions{}); err != nil {
				t.Fatal(err)
			}
			f.s.expectPaths(t, map[string]int{path: 1}, func() {
				f.put(t, "/bucket/"+key, data, "content-type", "application/octet-stream").served(t, 200, n)
			})
			files2, meta2 := c.all(i).onDrives(t, key)
			if !maps.Equal(files, files2) || !reflect.DeepEqual(meta, meta2) {
				t.Errorf("%s: other files: %v %v, want %v %v", key, files2, meta2, files, meta)
			}
			objects[key] = data
			if !bytes.Equal(next.get(t, key), data) {
				t.Errorf("%s: another node has other bytes", key)
			}
			list := ranges(n)
			path = "GetObject direct remote"
			if n <= 256*kib {
				path = "GetObject direct"
			}
			over.s.expectPaths(t, map[string]int{path: 1 + len(list)}, func() {
				over.same(t, "/bucket/"+key)
				for _, r := range list {
					over.same(t, "/bucket/"+key, "range", r)
				}
			})
		}
		key := fmt.Sprintf("parts-at-%d", i)
		objects[key] = parts(t, f, c.nodes, key)
		if !bytes.Equal(next.get(t, key), objects[key]) {
			t.Errorf("%s: another node has other bytes", key)
		}
		for part := range odd {
			over.same(t, fmt.Sprintf("/bucket/%s?partNumber=%d", key, part+1))
		}
		over.same(t, "/bucket/"+key, "range", fmt.Sprintf("bytes=%d-%d", odd[0]-1, odd[0]+odd[1]))
	}
	c.all(0).nothingToHeal(t)
}

// parts uploads an object over the fabric, of which other nodes begin and complete the
// upload.
func parts(t *testing.T, f *fabric, nodes []*server, key string) (data []byte) {
	t.Helper()
	begin, complete := minio.Core{Client: nodes[0].client(t)}, minio.Core{Client: nodes[len(nodes)-1].client(t)}
	id, err := begin.NewMultipartUpload(t.Context(), bucket, key, minio.PutObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var list []minio.CompletePart
	f.s.expectPaths(t, map[string]int{"UploadPart direct remote": len(odd)}, func() {
		for i, n := range odd {
			piece := random(n)
			a := f.put(t, fmt.Sprintf("/bucket/%s?partNumber=%d&uploadId=%s", key, i+1, id), piece)
			a.served(t, 200, n)
			data = append(data, piece...)
			list = append(list, minio.CompletePart{PartNumber: i + 1, ETag: a.Header.Get("ETag")})
		}
	})
	if _, err := complete.CompleteMultipartUpload(t.Context(), bucket, key, id, list, minio.PutObjectOptions{}); err != nil {
		t.Fatal(err)
	}
	return data
}

// foreignSession: a session belongs to the node that it was opened at. Another one
// declines, clearly, and neither stores nor moves anything.
func foreignSession(t *testing.T, c *cluster, fabrics []*fabric) {
	mem := fabrics[0].mem.Bytes()[:mib]
	clear(mem)
	h := append(headers{"x-amz-rdma-token", describe(t, fabrics[0].mem, len(mem))}, unsigned...)
	for i, s := range c.nodes {
		put := s.send(t, http.MethodPut, fmt.Sprintf("/bucket/foreign-%d", i), signV4, h, nil)
		if i == 0 {
			put.served(t, 200, len(mem))
			continue
		}
		put.declined(t)
		put.want(t, 501, "NoSuchRDMASession")
		s.absent(t, fmt.Sprintf("foreign-%d", i))
		get := s.send(t, http.MethodGet, "/bucket/at-0-1048576", signV4, h, nil)
		get.declined(t)
		get.want(t, 501, "NoSuchRDMASession")
		if !bytes.Equal(mem, make([]byte, len(mem))) {
			t.Errorf("node %d has written to a client of node 0", i)
		}
	}
}

// killedNode kills a node while transfers are under way at all of them. What was
// acknowledged is there, every byte that a success brings is right, what remains goes
// on, and the node that comes back is healed by reading.
func killedNode(t *testing.T, c *cluster, fabrics []*fabric, objects map[string][]byte) {
	const victim, largest = 3, 12 * mib
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	source := random(2 * largest)
	storm := &storm{source: source, largest: largest, acked: make(map[string][]byte), tried: make(map[string][][]byte), count: make(map[string]int)}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for w := range 8 {
		node := w % len(c.nodes)
		tg := shm.NewTarget(shm.TargetOptions{})
		t.Cleanup(func() { tg.Close() })
		connect(t, c.nodes[node], tg, signV4)
		f := &fabric{c.nodes[node], tg, memory(t, tg, largest)}
		d := describe(t, f.mem, largest)
		wg.Add(1)
		go func() {
			defer wg.Done()
			storm.run(ctx, t, f, d, w, node == victim, rand.New(rand.NewPCG(seed, uint64(w))))
		}()
	}
	within(t, 2*time.Minute, func() error {
		if n := storm.begun.Load(); n < 60 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	storm.killed.Store(true)
	c.Cluster.Nodes()[victim].Kill()
	killed := storm.begun.Load()
	within(t, 2*time.Minute, func() error {
		if n := storm.begun.Load(); n < killed+60 {
			return fmt.Errorf("%d requests since a node was killed", n-killed)
		}
		return nil
	})
	cancel()
	wg.Wait()
	t.Log(storm.count)
	if storm.count["GET 200"] == 0 || storm.count["PUT 200"] == 0 || storm.count["lost"] == 0 {
		t.Errorf("the storm was none: %v", storm.count)
	}

	// No object is lost: each is what was acknowledged last, or what was tried after it.
	left := c.nodes[:victim]
	for key, want := range storm.acked {
		got := left[0].get(t, key)
		if !oneOf(got, append(storm.tried[key], want)) {
			t.Errorf("%s is neither what was acknowledged nor what was tried after that", key)
		}
		objects[key] = got
	}
	// Without the node: reading and writing go direct.
	missed := map[string][]byte{"missed": random(3*mib + 1), "missed-small": random(1000)}
	fabrics[0].s.expectPaths(t, map[string]int{"PutObject direct remote": 1, "PutObject diverted inline": 1}, func() {
		for key, data := range missed {
			fabrics[0].put(t, "/bucket/"+key, data).served(t, 200, len(data))
			objects[key] = data
		}
	})
	for i, f := range fabrics[:victim] {
		before := f.s.paths(t)
		for key, data := range objects {
			if a, got := f.get(t, "/bucket/"+key); a.StatusCode != 200 || !bytes.Equal(got, data) {
				t.Errorf("node %d: %s: %s, other bytes", i, key, a.Status)
			}
		}
		after := f.s.paths(t)
		n := after["GetObject direct remote"] + after["GetObject direct"] - before["GetObject direct remote"] - before["GetObject direct"]
		if n != len(objects) {
			t.Errorf("node %d: %d of %d went direct: %v", i, n, len(objects), after)
		}
	}

	// It comes back: clients connect anew, and what it has missed is healed when it is
	// read over the fabric.
	if _, err := c.Restart(t.Context(), victim); err != nil {
		t.Fatal(err)
	}
	c.loaded(t, victim)
	back := newFabric(t, c.nodes[victim], 20*mib)
	for key, data := range objects {
		if a, got := back.get(t, "/bucket/"+key); a.StatusCode != 200 || !bytes.Equal(got, data) {
			t.Errorf("the node that came back: %s: %s, other bytes", key, a.Status)
		}
	}
	within(t, 60*time.Second, func() error {
		for key := range missed {
			if _, err := os.Stat(filepath.Join(c.nodes[victim].drives[0], bucket, key, "xl.meta")); err != nil {
				return err
			}
		}
		return nil
	})
	c.nodes[0].heal(t, bucket, false)
	c.nodes[0].nothingToHeal(t)
	for key, data := range objects {
		if !bytes.Equal(c.nodes[victim].get(t, key), data) {
			t.Errorf("%s has other bytes in the end", key)
		}
	}
}

// storm is many clients that read and write at the same time, each its own keys: so it
// is known what a key may hold.
type storm struct {
	source  []byte
	largest int
	begun   atomic.Int64
	killed  atomic.Bool

	mu    sync.Mutex
	acked map[string][]byte   // what was last acknowledged
	tried map[string][][]byte // what was tried since, and may have been stored
	count map[string]int
}

// oneOf tells whether got is one of list.
func oneOf(got []byte, list [][]byte) bool {
	return slices.ContainsFunc(list, func(want []byte) bool { return bytes.Equal(got, want) })
}

func (s *storm) add(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count[what]++
}

// run is client w, until ctx is done or, if it is to lose its node, until that is gone.
func (s *storm) run(ctx context.Context, t *testing.T, f *fabric, descriptor string, w int, loses bool, rng *rand.Rand) {
	h := append(headers{"x-amz-rdma-token", descriptor}, unsigned...)
	for ctx.Err() == nil {
		key := fmt.Sprintf("storm-%d-%d", w, rng.IntN(3))
		s.mu.Lock()
		acked, tried := s.acked[key], s.tried[key]
		s.mu.Unlock()
		s.begun.Add(1)
		method := http.MethodGet
		var data []byte
		if acked == nil || rng.IntN(3) == 0 {
			method = http.MethodPut
			// The window is what is stored: the object's length is in its head, the
			// rest is one of the largest size.
			data = make([]byte, s.largest)
			fillSoak(data, s.source, rng.IntN(s.largest))
			binary.LittleEndian.PutUint64(data[8:], rng.Uint64())
			copy(f.mem.Bytes(), data)
		} else {
			clear(f.mem.Bytes())
		}
		if data != nil {
			s.mu.Lock()
			s.tried[key] = append(slices.Clip(tried), data)
			s.mu.Unlock()
		}
		a, err := f.s.try(t.Context(), method, "/bucket/"+key, signV4, h, nil)
		switch {
		case err != nil && loses:
			s.add("lost")
			return
		case err != nil:
			t.Errorf("%s %s at a node that was not killed: %v", method, key, err)
			return
		}
		s.add(fmt.Sprint(method, " ", a.StatusCode))
		switch {
		case a.StatusCode == http.StatusOK && method == http.MethodPut:
			s.mu.Lock()
			s.acked[key], s.tried[key] = data, nil
			s.mu.Unlock()
		case a.StatusCode == http.StatusOK:
			if !oneOf(f.mem.Bytes(), append(slices.Clip(tried), acked)) {
				t.Errorf("GET %s at node of client %d: wrong bytes", key, w)
			}
		case a.StatusCode == http.StatusServiceUnavailable && (s.killed.Load() || loses):
			// Told to come back, while the nodes find out who is gone.
		case a.StatusCode == http.StatusNotFound && acked == nil:
		default:
			t.Errorf("%s %s: %s %s", method, key, a.Status, a.body)
		}
	}
}
