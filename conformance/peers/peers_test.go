// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const report = `some text
{"time":"2026-08-07T12:00:00Z","level":"INFO","name":"minio-go: testA","duration":3,"function":"PutObject(x)","status":"PASS"}
{"level":"ERROR","name":"minio-go: testB","status":"FAIL","alert":"","message":"it broke","error":{"Code":"X"}}
{"level":"INFO","name":"minio-go: testC","status":"NA","alert":"gone"}
{"level":"INFO","name":"minio-go: testB","status":"PASS"}
{"no":"status"}
`

func TestReadAndCompare(t *testing.T) {
	stock, err := Read(strings.NewReader(report))
	if err != nil {
		t.Fatal(err)
	}
	want := []Outcome{
		{Name: "testA PutObject(x)", Status: "PASS"},
		{Name: "testB", Status: "FAIL", Message: "it broke"},
		{Name: "testC", Status: "NA", Message: "gone"},
	}
	if d := cmp.Diff(want, stock); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if d := Compare(stock, stock); len(d) != 0 {
		t.Errorf("equal outcomes differ: %v", d)
	}
	plugin := []Outcome{{Name: "testA PutObject(x)", Status: "FAIL", Message: "new"}, stock[1], {Name: "testD", Status: "PASS"}}
	differences := []Difference{
		{Name: "testA PutObject(x)", Stock: "PASS", Plugin: "FAIL", Message: "new"},
		{Name: "testC", Stock: "NA", Plugin: "missing"},
		{Name: "testD", Stock: "missing", Plugin: "PASS"},
	}
	if d := cmp.Diff(differences, Compare(stock, plugin)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestMinioGo runs where both binaries are named: it takes minutes.
func TestMinioGo(t *testing.T) {
	o := Options{Stock: os.Getenv("S3RDMA_STOCK"), Plugin: os.Getenv("S3RDMA_FORK"), PluginArgs: []string{"--rdma=on", "--rdma-fabric=shm,tcp"}}
	if o.Stock == "" || o.Plugin == "" {
		t.Skip("S3RDMA_FORK and S3RDMA_STOCK name no MinIO binaries with and without the plugin")
	}
	c, err := MinioGo(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("stock: %d pass, %d fail, %d not applicable", Count(c.Stock, "PASS"), Count(c.Stock, "FAIL"), Count(c.Stock, "NA"))
	if Count(c.Stock, "PASS") < 50 {
		t.Error("too few tests pass on stock MinIO for the comparison to mean anything")
	}
	for _, d := range c.Differences {
		t.Errorf("%s: %s on stock MinIO, %s with the plugin: %s", d.Name, d.Stock, d.Plugin, d.Message)
	}
}
