// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

package forktest

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/erasure"
)

// rotShard is the length of a shard's blocks with two data shards.
const rotShard = mib / 2

// rot flips a byte of the object's shard file on a drive.
func rot(t *testing.T, drive, key string, change func(file []byte) []byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(drive, bucket, key, "*", "part.1"))
	if err != nil || len(files) != 1 {
		t.Fatalf("shards of %s: %v %v", key, files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files[0], change(b), 0o600); err != nil {
		t.Fatal(err)
	}
}

// flipped is a shard file with a wrong bit, which its bitrot hash tells.
func flipped(b []byte) []byte {
	b[len(b)/3] ^= 1
	return b
}

// forged is a shard file with a wrong bit and the bitrot hash of the wrong bytes: what
// memory that failed while the object was written leaves behind.
func forged(t *testing.T, b []byte) []byte {
	t.Helper()
	var shard []byte
	for len(b) > 0 {
		n := min(len(b), 32+rotShard)
		shard, b = append(shard, b[32:n]...), b[n:]
	}
	shard[rotAt] ^= 1
	code, err := erasure.NewCode(erasure.Geometry{Data: 1, BlockSize: rotShard}, erasure.MinIOKey())
	if err != nil {
		t.Fatal(err)
	}
	enc := code.NewEncoder()
	if err := enc.Encode(shard, make([]byte, code.ScratchSize(len(shard)))); err != nil {
		t.Fatal(err)
	}
	v := enc.Shard(0)
	file := make([]byte, v.Len())
	v.CopyAt(file, 0)
	return file
}

// rotAt is where forged flips: in the object's first block, and in the first shard of it.
const rotAt = 1000

// TestRotOnDisk damages objects on their drives and compares what finds it with the table
// of PROTOCOL.md: the server's own checks as far as they reach, and what is past them the
// object's own checksum, where it is of the bytes that are asked for, and nothing else.
// So it is under every policy, for objects that go direct and for ones that do not.
func TestRotOnDisk(t *testing.T) {
	s, _ := startOn(t)
	f := newFabric(t, s, 4*mib)
	data := random(3*mib + 5)
	stored := checksum.Of(checksum.CRC64NVME, data)
	for _, way := range []struct {
		path  string
		extra []string
	}{{"direct", nil}, {"diverted encrypted", []string{"x-amz-server-side-encryption", "AES256"}}} {
		plain := way.extra == nil
		for _, damage := range []string{"none", "mended", "beyond", "unseen"} {
			key := strings.ReplaceAll(damage+"-"+way.path, " ", "-")
			f.put(t, "/bucket/"+key, data, append([]string{stored.Algorithm().Header(), stored.Base64()}, way.extra...)...).served(t, 200, len(data))
			drives := s.drives
			if plain {
				drives = s.byShard(t, key, data)
			}
			switch damage {
			case "mended":
				for _, d := range drives[:2] {
					rot(t, d, key, flipped)
				}
			case "beyond":
				for _, d := range drives[:3] {
					rot(t, d, key, flipped)
				}
			case "unseen":
				n := 1
				if !plain {
					n = len(drives) // whichever are the data shards
				}
				for _, d := range drives[:n] {
					rot(t, d, key, func(b []byte) []byte { return forged(t, b) })
				}
			}
			for _, policy := range []checksum.Policy{checksum.PolicyNone, checksum.PolicyRegion, checksum.PolicyEnvelope, checksum.PolicyBoth} {
				for _, shape := range []string{"whole", "range", "part"} {
					for _, own := range []bool{false, true} {
						r := rotRead{f: f, key: key, data: data, stored: stored, policy: policy, shape: shape, own: own}
						t.Run(fmt.Sprintf("%s/%v/%s/own=%v", key, policy, shape, own), func(t *testing.T) {
							s.expectPaths(t, r.paths(damage, plain, way.path), func() { r.check(t, damage, plain) })
						})
					}
				}
			}
		}
	}
}

// rotRead is one GET of a damaged object.
type rotRead struct {
	f      *fabric
	key    string
	data   []byte
	stored checksum.Sum
	policy checksum.Policy
	shape  string
	own    bool // the object's own checksum is asked for
}

// found tells whether the server answers the read with an error.
func (r *rotRead) found(damage string, plain bool) bool {
	switch damage {
	case "beyond":
		return true
	case "unseen":
		return !plain || // encryption authenticates
			r.policy.Region() && r.own && r.shape == "whole"
	}
	return false
}

// paths is what the server counts of the read.
func (r *rotRead) paths(damage string, plain bool, path string) map[string]int {
	if r.found(damage, plain) {
		return map[string]int{}
	}
	return map[string]int{"GetObject " + path: 1}
}

// check reads, and checks what came and what was said of it.
func (r *rotRead) check(t *testing.T, damage string, plain bool) {
	want, path, status := r.data, "/bucket/"+r.key, 200
	ask := checksum.RegionRequest{Policy: r.policy}
	if r.policy.Region() {
		ask.Algorithm = checksum.CRC64NVME
	}
	asked := http.Header{}
	ask.Set(asked)
	hash := "UNSIGNED-PAYLOAD"
	if r.policy.Envelope() {
		hash = checksum.Empty(checksum.SHA256).Hex()
	}
	h := headers{"x-amz-rdma-token", describe(t, r.f.mem, len(r.f.mem.Bytes())), "x-amz-content-sha256", hash}
	for name, values := range asked {
		h = append(h, strings.ToLower(name), values[0])
	}
	switch r.shape {
	case "range":
		want, status = want[500:mib+500], 206
		h = append(h, "range", fmt.Sprintf("bytes=500-%d", mib+499))
	case "part":
		path, status = path+"?partNumber=1", 206
	}
	if r.own {
		h = append(h, "x-amz-checksum-mode", "ENABLED")
	}
	clear(r.f.mem.Bytes())
	a := r.f.s.send(t, http.MethodGet, path, signV4, h, nil)
	if r.found(damage, plain) {
		if a.StatusCode < 500 || a.Header.Get("x-amz-rdma-reply") != "" || a.Header.Get("x-amz-rdma-bytes-transferred") != "" {
			t.Errorf("answer %s %v", a.Status, a.Header)
		}
		if damage == "unseen" && plain && !strings.Contains(a.body, "RDMAChecksumMismatch") {
			t.Errorf("answer %s %s", a.Status, a.body)
		}
		return
	}
	a.served(t, status, len(want))
	got := r.f.mem.Bytes()[:len(want)]
	if bytes.Equal(got, want) != (damage != "unseen") {
		t.Errorf("the bytes are the object's: %v", damage == "unseen")
	}
	// The region's checksum is of what was sent, right or wrong.
	p, known, err := checksum.ParseRegionProof(a.Header, int64(len(got)))
	if err != nil || !known || r.policy.Region() && p.Sum != checksum.Of(checksum.CRC64NVME, got) {
		t.Errorf("proof %+v, %v", p, err)
	}
	// The object's own is the client's last chance, where it is told.
	if told := a.Header.Get(r.stored.Algorithm().Header()); r.own && r.shape == "whole" && told != r.stored.Base64() {
		t.Errorf("the object's own checksum is %q", told)
	} else if !r.own && told != "" {
		t.Errorf("the object's own checksum is told unasked: %q", told)
	}
}
