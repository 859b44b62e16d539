// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Command sumbench measures what checksums over the region cost: GETs and PUTs of one
// object over shared memory, with every algorithm and under the policy none, in turns at
// one server in one run. It prints a table and ends with a line of ratios:
//
//	bench-checksum: crc64nvme_get_over_none=R crc64nvme_put_over_none=R
//
// R is the throughput with the checksum over that without, the median of rounds: each
// round measures all of them, and a ratio is taken within a round.
//
// "CPU" is the server's, in seconds a GiB, which other load on the machine disturbs less.
//
// What the client computes is not in these: it has the checksum that a PUT declares
// beforehand, and does not verify a GET's. Its cost is in columns of its own, "client"
// (the time of one core for the checksum alone, as throughput) and "verified" (GETs whose
// bytes the client verifies with all cores before the next one).
//
// # Caveats
//
// The server stores ETags that are no MD5 (--rdma-etag=fast): else the algorithms would be
// compared with an MD5. Its drives are in memory where the system has such a place, so
// that they do not hide the cost; on disks a PUT waits longer, and the ratios are nearer
// to 1. Client and server share the machine's cores.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/conformance/bench"
	"github.com/s3rdma/s3rdma/conformance/minioproc"
)

// options of a run.
type options struct {
	minio  string
	size   int
	rounds int
	count  int // requests of a turn
}

func main() {
	var o options
	flag.StringVar(&o.minio, "minio", "bin/minio", "a MinIO with the plugin")
	flag.IntVar(&o.size, "size", 256<<20, "bytes of the object")
	flag.IntVar(&o.rounds, "rounds", 9, "rounds, of which the median counts")
	flag.IntVar(&o.count, "count", 2, "requests of each kind in a round")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sumbench:", err)
		os.Exit(1)
	}
}

// run starts a server, measures and prints.
func run(ctx context.Context, o options, w io.Writer) (err error) {
	dir, err := os.MkdirTemp(inMemory(o.size), "s3rdma-sumbench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	server, err := minioproc.Start(ctx, minioproc.Options{Binary: o.minio, Dir: dir,
		Args: []string{"--rdma=on", "--rdma-fabric=shm", "--rdma-etag=fast", "--rdma-checksum-get=none", "--rdma-checksum-put=none"}})
	if err != nil {
		return err
	}
	defer server.Stop()
	c, err := connect(ctx, server, o.size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close(ctx)) }()
	table, err := measure(ctx, c, o, func() (time.Duration, error) { return bench.ProcessCPU(server.PID()) }, func() error { return sweep(dir) })
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%d bytes over shared memory, %d rounds of %d requests each, drives in %s\n\n", o.size, o.rounds, o.count, filepath.Dir(dir))
	return table.write(w)
}

// inMemory is a directory in memory with room for objects of size bytes, with parity, of
// which several wait to be removed; or "", which is the system's temporary directory.
func inMemory(size int) string {
	const shm = "/dev/shm"
	if free, err := freeBytes(shm); err == nil && free > 24*int64(size) {
		return shm
	}
	return ""
}

// sweep removes what MinIO has put aside on the drives in dir. It would keep what was
// overwritten for five minutes: dozens of times the object, in memory.
func sweep(dir string) error {
	aside, err := filepath.Glob(filepath.Join(dir, "*", ".minio.sys", "tmp", ".trash", "*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range aside {
		errs = append(errs, os.RemoveAll(p))
	}
	return errors.Join(errs...)
}

// turn is one kind of request.
type turn struct {
	name string
	do   func(context.Context) error
	// rates are the throughputs of the rounds, in bytes a second, and cpus what the
	// server spent, in seconds a GiB.
	rates, cpus []float64
}

// row is one algorithm; the first is none.
type row struct {
	alg                 checksum.Algorithm // 0: none
	get, verified, puts *turn
	client              float64 // bytes a second of one core for the checksum
}

type table []row

// measure takes all turns round by round.
func measure(ctx context.Context, c *conn, o options, cpu func() (time.Duration, error), sweep func() error) (table, error) {
	var t table
	var turns []*turn
	add := func(name string, do func(context.Context) error) *turn {
		x := &turn{name: name, do: do}
		turns = append(turns, x)
		return x
	}
	if err := c.put(ctx, 0, checksum.Sum{}); err != nil {
		return nil, err
	}
	for _, alg := range append([]checksum.Algorithm{0}, checksum.Algorithms()...) {
		r := row{alg: alg}
		var sum checksum.Sum
		if alg != 0 {
			start := time.Now()
			sum = checksum.Of(alg, c.mem)
			r.client = float64(o.size) / time.Since(start).Seconds()
			r.verified = add("verified get", func(ctx context.Context) error {
				got, err := c.get(ctx, alg)
				if err == nil && checksum.OfParallel(alg, c.mem) != got {
					err = fmt.Errorf("the bytes have another %v than the server says", alg)
				}
				return err
			})
		}
		r.get = add("get", func(ctx context.Context) error { _, err := c.get(ctx, alg); return err })
		r.puts = add("put", func(ctx context.Context) error { return c.put(ctx, alg, sum) })
		t = append(t, r)
	}
	for range o.rounds + 1 {
		for _, x := range turns {
			start := time.Now()
			before, err := cpu()
			if err != nil {
				return nil, err
			}
			for range o.count {
				if err := x.do(ctx); err != nil {
					return nil, fmt.Errorf("%s: %w", x.name, err)
				}
			}
			took := time.Since(start)
			after, err := cpu()
			if err != nil {
				return nil, err
			}
			n := float64(o.count) * float64(o.size)
			x.rates = append(x.rates, n/took.Seconds())
			x.cpus = append(x.cpus, (after-before).Seconds()/n*(1<<30))
			if err := sweep(); err != nil {
				return nil, err
			}
		}
	}
	for _, x := range turns {
		x.rates, x.cpus = x.rates[1:], x.cpus[1:] // the first round warms up
	}
	return t, nil
}

// write prints the table and the line.
func (t table) write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "checksum\tGET GiB/s\tover none\tCPU\tverified GiB/s\tover none\tPUT GiB/s\tover none\tCPU\tclient GiB/s\t")
	none := t[0]
	var line string
	for _, r := range t {
		name, verified, over, client := "none", "", "", ""
		get, put := ratio(r.get, none.get), ratio(r.puts, none.puts)
		if r.alg != 0 {
			name = r.alg.String()
			verified, over = gib(median(r.verified.rates)), fmt.Sprintf("%.2f", ratio(r.verified, none.get))
			client = gib(r.client)
		}
		fmt.Fprintf(tw, "%s\t%s\t%.2f\t%.2f\t%s\t%s\t%s\t%.2f\t%.2f\t%s\t\n", name, gib(median(r.get.rates)), get, median(r.get.cpus),
			verified, over, gib(median(r.puts.rates)), put, median(r.puts.cpus), client)
		if r.alg == checksum.CRC64NVME {
			line = fmt.Sprintf("bench-checksum: crc64nvme_get_over_none=%.3f crc64nvme_put_over_none=%.3f", get, put)
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", line)
	return err
}

func gib(rate float64) string { return fmt.Sprintf("%.2f", rate/(1<<30)) }

// ratio is the median of the rounds' ratios.
func ratio(a, b *turn) float64 {
	rs := make([]float64, len(a.rates))
	for i := range rs {
		rs[i] = a.rates[i] / b.rates[i]
	}
	return median(rs)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	if n%2 == 1 {
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}
