// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"

	"github.com/s3rdma/s3rdma/adapters/client"
	"github.com/s3rdma/s3rdma/conformance"
	"github.com/s3rdma/s3rdma/conformance/rawhttp"
	"github.com/s3rdma/s3rdma/rdmaio"
)

// TestVerbsHipObj: our client of hipobj-rc-v2 with MinIO, and names of MinIO's own that a
// request may not name in a header either.
func TestVerbsHipObj(t *testing.T) {
	d := rdmaDevices(t)
	s := d.serve(t, "--rdma-hipobj-memory=4MiB")
	target, err := conformance.NewTarget("hipobj", conformance.Device{Names: []string{d.client}})
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(t, s, "127.0.0.1", target)
	defer c.Close()
	if err := c.CreateBucket(t.Context(), "hip"); err != nil {
		t.Fatal(err)
	}
	const n = 3<<20 + 7
	buf, err := c.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, n)
	for i := range want {
		want[i] = byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)
	}
	for _, size := range []int{1, 5000, n} {
		key := fmt.Sprintf("a dir/%d +?", size)
		v := buf.View(0, size)
		copy(v.Bytes(), want)
		put, err := c.Put(t.Context(), "hip", key, v, client.PutOptions{Force: client.ForceFabric})
		if err != nil {
			t.Fatal(err)
		}
		clear(buf.Bytes())
		got, err := c.Get(t.Context(), "hip", key, v, client.GetOptions{Force: client.ForceFabric, IfMatch: put.ETag})
		if err != nil || got.Route != client.Fabric || got.Verified.IsZero() || !bytes.Equal(v.Bytes(), want[:size]) {
			t.Fatalf("get %d bytes: %+v, %v", size, got, err)
		}
		got, err = c.Get(t.Context(), "hip", key, v, client.GetOptions{Force: client.ForceHTTP})
		if err != nil || !bytes.Equal(v.Bytes(), want[:size]) {
			t.Fatalf("get %d bytes by HTTP: %+v, %v", size, got, err)
		}
	}
	if res, err := c.Put(t.Context(), "hip", "meta", buf.All(), client.PutOptions{Metadata: map[string]string{"a": "b"}}); err != nil || res.Route != client.HTTPDeclined {
		t.Errorf("with metadata: route %v, %v", res.Route, err)
	}

	raw := newRaw(t, s)
	defer raw.Close()
	end, err := target.(rdmaio.PairTarget).NewPair(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	hello := end.Hello()
	for name, want := range map[string]int{
		"/minio/k": 403, "/.minio.sys/config/config.json": 403, "/.minio.sys2/k": 403,
		"/hip/../.minio.sys/config/config.json": 400, "/hip/a/../../k": 400, "/UPPER/k": 400,
	} {
		for _, op := range []string{"GET", "PUT"} {
			resp, err := raw.Do(t.Context(), rawhttp.Request{Method: "POST", Path: "/.hipobj-rc/prepare", Header: http.Header{
				"x-amz-rdma-protocol": {"hipobj-rc-v2"}, "x-amz-rdma-token": {hello.Token}, "x-amz-rdma-psn": {fmt.Sprintf("%06x", hello.PSN)},
				"x-amz-rdma-cookie": {"00000001"}, "x-amz-rdma-op": {op}, "x-amz-rdma-target": {name}, "x-amz-rdma-size": {"1"},
			}})
			if err != nil || resp.Status != want {
				t.Errorf("%s of %s: prepare answered %v, %v, want %d", op, name, resp, err, want)
			}
		}
	}
}
