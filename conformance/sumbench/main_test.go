// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/s3rdma/s3rdma/checksum"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRatios: of the medians of rounds, not of the rounds' medians.
func TestRatios(t *testing.T) {
	a, b := &turn{rates: []float64{10, 1, 30}}, &turn{rates: []float64{20, 1, 10}}
	if got := ratio(a, b); got != 1 {
		t.Errorf("ratio %v", got)
	}
	for _, c := range []struct {
		v    []float64
		want float64
	}{{[]float64{3}, 3}, {[]float64{4, 1}, 2.5}, {[]float64{9, 1, 5}, 5}} {
		if got := median(c.v); got != c.want {
			t.Errorf("median of %v: %v", c.v, got)
		}
	}
}

func TestTable(t *testing.T) {
	rates := func(v float64) *turn { return &turn{rates: []float64{v, v, v}, cpus: []float64{0.25}} }
	var out strings.Builder
	err := table{
		{alg: checksum.CRC64NVME, noneGet: rates(4 << 30), nonePut: rates(2 << 30), get: rates(3 << 30), verified: rates(2 << 30), puts: rates(1 << 30), client: 8 << 30},
	}.write(&out)
	if err != nil || !strings.HasSuffix(out.String(), "\nbench-checksum: crc64nvme_get_over_none=0.750 crc64nvme_put_over_none=0.500\n") {
		t.Errorf("%v\n%s", err, &out)
	}
	if !regexp.MustCompile(`none +4\.00 +0\.25 +2\.00 +0\.25`).MatchString(out.String()) {
		t.Errorf("%s", &out)
	}
	if !regexp.MustCompile(`CRC64NVME +3\.00 +0\.75 +0\.25 +2\.00 +0\.50 +1\.00 +0\.50 +0\.25 +8\.00`).MatchString(out.String()) {
		t.Errorf("%s", &out)
	}
}

// TestRun measures a small object at a real server.
func TestRun(t *testing.T) {
	minio := os.Getenv("S3RDMA_FORK")
	if minio == "" {
		t.Skip("S3RDMA_FORK names no MinIO binary (make test-minio builds it)")
	}
	var out strings.Builder
	if err := run(t.Context(), options{minio: minio, size: 5<<20 + 1, rounds: 1, count: 1, algorithms: checksum.Algorithms()}, &out); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^bench-checksum: crc64nvme_get_over_none=\d+\.\d{3} crc64nvme_put_over_none=\d+\.\d{3}$`).MatchString(out.String()) {
		t.Errorf("%s", &out)
	}
	for _, alg := range checksum.Algorithms() {
		if !strings.Contains(out.String(), " "+alg.String()+" ") {
			t.Errorf("no %v in\n%s", alg, &out)
		}
	}
}
