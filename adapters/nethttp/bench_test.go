// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package nethttp_test

import (
	"fmt"
	"testing"

	"github.com/s3rdma/s3rdma/adapters/client"
	"github.com/s3rdma/s3rdma/rdmaio/staging"
)

// BenchmarkTransfer compares the ways for one object, client and server in one
// process. The checksums are the same each way; the S3 handler copies and hashes
// (MD5) a PUT, which bounds it.
func BenchmarkTransfer(b *testing.B) {
	for _, size := range []int{4 << 10, 1 << 20, 16 << 20} {
		for _, fabric := range []string{"shm", "tcp", "http"} {
			r := newRig(b, fabric, rigOptions{staging: staging.Options{Size: 512 * slab, MaxPerLease: 64}})
			force := client.ForceFabric
			if fabric == "http" {
				force = client.ForceHTTP
			}
			buf := r.alloc(size)
			if _, err := r.c.Put(b.Context(), "b", "k", buf.All(), client.PutOptions{Force: force}); err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("get/%d/%s", size, fabric), func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := r.c.Get(b.Context(), "b", "k", buf.All(), client.GetOptions{Force: force}); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(fmt.Sprintf("put/%d/%s", size, fabric), func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := r.c.Put(b.Context(), "b", "k", buf.All(), client.PutOptions{Force: force}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
