// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// available is the memory that the kernel would give out, in bytes.
func available(b *testing.B) int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		b.Skip(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), "MemAvailable:"); ok {
			n, _ := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			return n << 10
		}
	}
	b.Skip("no MemAvailable")
	return 0
}

// BenchmarkSessions measures what sessions cost: the time to set one up, both ends, and the
// memory of both ends. The targets share a device, but not an open one.
func BenchmarkSessions(b *testing.B) {
	fo, to := devices(b)
	fo.MaxPerOwner, fo.MaxSessions = 1<<16, 1<<16
	for _, n := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for range b.N {
				f, err := New(fo)
				if err != nil {
					b.Fatal(err)
				}
				ctx := context.Background()
				tg := NewTarget(to)
				if _, err := tg.Alloc(4096, rdmaio.RemoteWrite); err != nil {
					b.Fatal(err)
				}
				var ends []*attachment
				before, start := available(b), time.Now()
				for range n {
					h, err := tg.Hello(ctx)
					if err != nil {
						b.Fatal(err)
					}
					h.Owner = "bench"
					w, err := f.Accept(ctx, h)
					if err != nil {
						b.Fatal(err)
					}
					// Keep the attachment: Connect would end the one before.
					a := tg.offered
					tg.offered = nil
					peer, err := parseIdentity(w.Token, w.PSN)
					if err != nil {
						b.Fatal(err)
					}
					if err := a.attach(w.Session, peer); err != nil {
						b.Fatal(err)
					}
					ends = append(ends, a)
				}
				took, used := time.Since(start), before-available(b)
				b.ReportMetric(float64(took.Microseconds())/float64(n), "us/session")
				b.ReportMetric(float64(used)/1024/float64(n), "KiB/session")
				for _, a := range ends {
					a.kill()
				}
				tg.Close()
				f.Close()
			}
		})
	}
}
