// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

package forktest

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
)

// TestLayouts: several erasure sets, and several pools. Everything goes direct there
// too, to the set and pool that MinIO has chosen, and is healed there.
func TestLayouts(t *testing.T) {
	for _, c := range []struct {
		name          string
		pools, drives int
		env           []string
		groups        int // sets of drives that objects must be found on
	}{
		{"two sets", 1, 8, []string{"MINIO_ERASURE_SET_DRIVE_COUNT=4"}, 2},
		{"two pools", 2, 4, nil, 2},
		{"two pools of two sets", 2, 8, []string{"MINIO_ERASURE_SET_DRIVE_COUNT=4"}, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			o := setup{env: c.env}
			for pool := range c.pools {
				folder := filepath.Join(dir, fmt.Sprint("pool", pool))
				o.layout = append(o.layout, fmt.Sprintf("%s/drive{1...%d}", folder, c.drives))
				for i := range c.drives {
					o.drives = append(o.drives, filepath.Join(folder, fmt.Sprint("drive", i+1)))
				}
			}
			o, _ = withRDMA(t, o)
			s := o.start(t)
			f := newFabric(t, s, 20*mib)
			objects := make(map[string][]byte)
			const n = 40 // so many that each set and pool gets some
			s.expectPaths(t, map[string]int{"PutObject direct": n}, func() {
				for i := range n {
					key, data := fmt.Sprint("object-", i), random(300*kib+i*100003)
					f.put(t, "/bucket/"+key, data).served(t, 200, len(data))
					objects[key] = data
				}
			})
			groups := make(map[string]bool)
			for key := range objects {
				groups[s.holders(t, key)] = true
			}
			if len(groups) != c.groups {
				t.Errorf("the objects are on %d groups of drives, want %d: %v", len(groups), c.groups, groups)
			}
			for i := range 4 {
				key := fmt.Sprint("parts-", i)
				objects[key] = f.multipart(t, key, odd[0], odd[1], odd[3])
			}
			check := func() {
				t.Helper()
				s.expectPaths(t, map[string]int{"GetObject direct": 2 * len(objects)}, func() {
					for key, data := range objects {
						f.same(t, "/bucket/"+key)
						f.same(t, "/bucket/"+key, "range", fmt.Sprintf("bytes=%d-", len(data)/3))
					}
				})
				for key, data := range objects {
					if !bytes.Equal(s.get(t, key), data) {
						t.Errorf("%s: other bytes were stored", key)
					}
				}
			}
			check()
			s.nothingToHeal(t)

			// What is lost is healed in its own set and pool.
			whole := make(map[string]map[string]string)
			for key := range objects {
				whole[key] = s.shards(t, key)
				if err := os.RemoveAll(filepath.Join(s.byRole(t, key)[0], bucket, key)); err != nil {
					t.Fatal(err)
				}
			}
			check()
			within(t, 90*time.Second, func() error {
				for key := range objects {
					if !maps.Equal(s.shards(t, key), whole[key]) {
						return fmt.Errorf("%s is not healed", key)
					}
				}
				return nil
			})
			// A new object under the same name replaces the old one. (MinIO may put it
			// into another pool, and leave the old one behind.)
			for i := range 6 {
				key, data := fmt.Sprint("object-", i), random(2*mib+i)
				f.put(t, "/bucket/"+key, data).served(t, 200, len(data))
				objects[key] = data
			}
			f.put(t, "/bucket/object-9?partNumber=1&uploadId=none", objects["object-9"]).want(t, 404, "NoSuchUpload")
			check()
			versionsIn(t, s, f)
		})
	}
}

// holders are the drives that have something of an object.
func (s *server) holders(t *testing.T, key string) string {
	t.Helper()
	var on []string
	for _, drive := range s.drives {
		if _, err := os.Stat(filepath.Join(drive, bucket, key, "xl.meta")); err == nil {
			on = append(on, filepath.Base(filepath.Dir(drive))+"/"+filepath.Base(drive))
		}
	}
	return strings.Join(on, " ")
}

// byRole are the drives with an object's shards, in the order of shards: data, then
// parity.
func (s *server) byRole(t *testing.T, key string) []string {
	t.Helper()
	roles := make(map[uint64]string)
	for _, drive := range s.drives {
		b, err := os.ReadFile(filepath.Join(drive, bucket, key, "xl.meta"))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		roles[ecIndex(t, b)] = drive
	}
	var drives []string
	for i := range uint64(len(roles)) {
		if roles[i+1] == "" {
			t.Fatalf("%s has the shards %v", key, roles)
		}
		drives = append(drives, roles[i+1])
	}
	return drives
}

// ecIndex is which shard an xl.meta of one version goes with, from 1.
func ecIndex(t *testing.T, b []byte) uint64 {
	t.Helper()
	meta := xlMeta(t, b).([]any)[0].(map[string]any)
	return meta["V2Obj"].(map[string]any)["EcIndex"].(uint64)
}

// versionsIn stores versions over the fabric, and reads them.
func versionsIn(t *testing.T, s *server, f *fabric) {
	t.Helper()
	c := s.client(t)
	if err := c.MakeBucket(t.Context(), "versioned", minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.EnableVersioning(t.Context(), "versioned"); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, n := range []int{3*mib + 1, 2*mib + 7, mib} {
		a := f.put(t, "/versioned/object", random(n))
		a.served(t, 200, n)
		ids = append(ids, a.Header.Get("x-amz-version-id"))
	}
	if err := c.RemoveObject(t.Context(), "versioned", "object", minio.RemoveObjectOptions{}); err != nil {
		t.Fatal(err)
	}
	s.expectPaths(t, map[string]int{"GetObject direct": len(ids)}, func() {
		for _, id := range ids {
			f.same(t, "/versioned/object?versionId="+id)
		}
	})
	f.same(t, "/versioned/object")
	s.nothingToHeal(t, "versioned")
}
