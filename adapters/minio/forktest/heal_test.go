// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

package forktest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/minio/madmin-go/v3"
)

// injury is what befalls some shards of an object before it is read.
type injury struct {
	name   string
	shards []int  // 0 and 1 are data, 2 and 3 parity
	what   string // of the object's folder on the drive
	do     func(string) error
	heals  bool // reading the object brings back all of its shards
}

func injuries() []injury {
	lose := func(name string) error { return os.RemoveAll(name) }
	rot := func(name string) error {
		b, err := os.ReadFile(name)
		for at := 40; at < len(b); at += 300000 {
			b[at] ^= 1
		}
		return errors.Join(err, os.WriteFile(name, b, 0o600))
	}
	cut := func(name string) error {
		i, err := os.Stat(name)
		if err != nil {
			return err
		}
		return os.Truncate(name, i.Size()/2)
	}
	return []injury{
		{"none", nil, "", nil, true},
		{"one-lost", []int{0}, "*/part.*", lose, true},
		{"second-lost", []int{1}, "*/part.*", lose, true},
		{"both-lost", []int{0, 1}, "*/part.*", lose, true},
		{"data-and-parity-lost", []int{0, 2}, "*/part.*", lose, true},
		{"one-gone", []int{0}, "", lose, true},
		{"parity-gone", []int{2}, "", lose, true},
		{"one-cut", []int{0}, "*/part.*", cut, true},
		{"both-cut", []int{0, 1}, "*/part.*", cut, true},
		// MinIO queues a deep scan for bytes that have changed, and then scans as its
		// background healing does anyway: without looking at them.
		{"one-rotten", []int{0}, "*/part.*", rot, false},
		{"both-rotten", []int{0, 1}, "*/part.*", rot, false},
		// Nor does it look at parity that it can do without.
		{"parity-lost", []int{2}, "*/part.*", lose, false},
		{"parity-rotten", []int{3}, "*/part.*", rot, false},
	}
}

// TestSameHealing injures objects, reads each once, from the fork over the fabric and
// from stock MinIO over HTTP, and compares what healing that has started, and what it
// has brought back.
func TestSameHealing(t *testing.T) {
	o, _ := withRDMA(t, setup{drives: freshDrives(t, 4)})
	fork := o.start(t)
	f := newFabric(t, fork, 12*mib)
	got := healedBy(t, fork, func(key string, want []byte) {
		fork.expectPaths(t, map[string]int{"GetObject direct": 1}, func() {
			if a, data := f.get(t, "/bucket/"+key); a.StatusCode != 200 || !bytes.Equal(data, want) {
				t.Errorf("%s over the fabric: %s, other bytes", key, a.Status)
			}
		})
	})
	stock := setup{binary: stockBinary(t), drives: freshDrives(t, 4)}.start(t)
	want := healedBy(t, stock, func(key string, want []byte) {
		if !bytes.Equal(stock.get(t, key), want) {
			t.Errorf("%s from stock MinIO: other bytes", key)
		}
	})
	for _, x := range injuries() {
		for _, shape := range shapes {
			key := x.name + shape
			t.Logf("%-28s %v", key, got[key])
			if !slices.Equal(got[key].started, want[key].started) || got[key].back != want[key].back {
				t.Errorf("%s: %v, stock has %v", key, got[key], want[key])
			}
			if got[key].back != x.heals {
				t.Errorf("%s: all shards are there: %v, want %v", key, got[key].back, x.heals)
			}
			if x.do == nil && got[key].started != nil {
				t.Errorf("%s: healing was started for nothing", key)
			}
		}
	}
}

// healed is what came of reading an injured object.
type healed struct {
	started []string // the heals of it, in words
	back    bool     // all shards are as they were
}

var shapes = []string{"-whole", "-parts"}

// healedBy injures objects, has each read once, and waits until MinIO has done all
// healing that was queued meanwhile.
func healedBy(t *testing.T, s *server, read func(key string, data []byte)) map[string]healed {
	t.Helper()
	type object struct {
		data   []byte
		shards map[string]string
	}
	objects := make(map[string]object)
	var keys []string
	for _, x := range injuries() {
		for _, shape := range shapes {
			key := x.name + shape
			var data []byte
			if shape == "-parts" {
				data = s.multipart(t, key, odd[0], odd[3])
			} else {
				data = random(3*mib + 5)
				s.put(t, key, data)
			}
			objects[key] = object{data, s.shards(t, key)}
			keys = append(keys, key)
		}
	}
	const last = "last"
	s.put(t, last, random(3*mib+5))
	for _, x := range append(injuries(), injury{last, []int{0}, "*/part.*", func(name string) error { return os.RemoveAll(name) }, true}) {
		for _, shape := range shapes {
			key := x.name + shape
			if x.name == last {
				key = last
			}
			drives := s.byRole(t, key)
			for _, i := range x.shards {
				files, err := filepath.Glob(filepath.Join(drives[i], bucket, key, x.what))
				if err != nil || (len(files) == 0 && x.name != last) {
					t.Fatalf("nothing of %s in %s: %v", key, drives[i], err)
				}
				for _, file := range files {
					if err := x.do(file); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}

	// Heals are done in the order in which they were queued: that of the last object
	// comes behind all others.
	started := make(map[string][]string)
	for _, i := range s.traceOf(t, madmin.ServiceTraceOpts{S3: true, Healing: true}, func() {
		for _, key := range keys {
			read(key, objects[key].data)
		}
		s.get(t, last)
		within(t, 120*time.Second, func() error {
			if n := len(s.shards(t, last)); n != 4 {
				return fmt.Errorf("the last object has %d shards", n)
			}
			return nil
		})
	}) {
		if i.TraceType != madmin.TraceHealing {
			continue
		}
		key := filepath.Base(i.Path)
		started[key] = append(started[key], fmt.Sprintf("%s mode=%s dry=%s remove=%s %s",
			i.FuncName, i.Custom["mode"], i.Custom["dry"], i.Custom["remove"], i.Error))
	}
	result := make(map[string]healed)
	for _, key := range keys {
		slices.Sort(started[key])
		result[key] = healed{started[key], maps.Equal(s.shards(t, key), objects[key].shards)}
	}
	return result
}
