// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package fabrictest

import (
	"context"
	"fmt"
	"testing"
)

// Benchmark measures one post and its fence, in both directions and two sizes, on
// one link: latency at 4 KiB, bandwidth at 1 MiB.
func Benchmark(b *testing.B, h Harness) {
	for _, dir := range []direction{write, read} {
		for _, size := range []int{4 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%dKiB", dir.name, size>>10), func(b *testing.B) {
				e := newEnv(b, h)
				x := e.expose(e.t, size, dir.access)
				r := e.local(size)
				fill(r.Bytes(), 1)
				fill(x.Bytes(), 2)
				l := e.open(e.describe(x, 0, size))
				ctx := context.Background()
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					if err := dir.post(l, ctx, all(r), 0); err != nil {
						b.Fatal(err)
					}
					if err := l.Fence(ctx); err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
			})
		}
	}
}
