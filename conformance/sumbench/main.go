// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Command sumbench measures what checksums over the region cost: GETs and PUTs of one
// object over shared memory, with every algorithm and under the policy none, in turns at
// one server in one run. It prints a table and ends with a line of ratios:
//
//	bench-checksum: crc64nvme_get_over_none=R crc64nvme_put_over_none=R
//
// R is the throughput with the checksum over that without, the median of rounds: in each,
// requests with and without alternate, and a ratio is taken within a round.
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
	"strings"
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
	count  int // requests of each kind in a round

	algorithms []checksum.Algorithm
}

func main() {
	var o options
	flag.StringVar(&o.minio, "minio", "bin/minio", "a MinIO with the plugin")
	flag.IntVar(&o.size, "size", 256<<20, "bytes of the object")
	flag.IntVar(&o.rounds, "rounds", 7, "rounds, of which the median counts")
	flag.IntVar(&o.count, "count", 2, "requests of each kind in a round")
	o.algorithms = checksum.Algorithms()
	flag.Func("algorithms", "the checksums, separated by commas (default all)", func(s string) error {
		o.algorithms = nil
		for name := range strings.SplitSeq(s, ",") {
			alg, err := checksum.ParseAlgorithm(name)
			if err != nil {
				return err
			}
			o.algorithms = append(o.algorithms, alg)
		}
		return nil
	})
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

	took, cpu time.Duration // of this round
}

// row is one algorithm beside none.
type row struct {
	alg                 checksum.Algorithm
	get, verified, puts *turn
	noneGet, nonePut    *turn   // in turns with the above
	client              float64 // bytes a second of one core for the checksum
}

type table []row

// measure takes all rows round by round. Within a row, the requests with and without the
// checksum alternate, and change places each time: what else the machine does in these
// milliseconds, it does to both.
func measure(ctx context.Context, c *conn, o options, cpu func() (time.Duration, error), sweep func() error) (table, error) {
	var t table
	if err := c.put(ctx, 0, checksum.Sum{}); err != nil {
		return nil, err
	}
	for _, alg := range o.algorithms {
		start := time.Now()
		sum := checksum.Of(alg, c.mem)
		r := row{alg: alg, client: float64(o.size) / time.Since(start).Seconds()}
		get := func(ctx context.Context) error { _, err := c.get(ctx, alg); return err }
		r.get = &turn{name: "get", do: get}
		r.verified = &turn{name: "verified get", do: func(ctx context.Context) error {
			got, err := c.get(ctx, alg)
			if err == nil && checksum.OfParallel(alg, c.mem) != got {
				err = fmt.Errorf("the bytes have another %v than the server says", alg)
			}
			return err
		}}
		r.puts = &turn{name: "put", do: func(ctx context.Context) error { return c.put(ctx, alg, sum) }}
		r.noneGet = &turn{name: "get without", do: func(ctx context.Context) error { _, err := c.get(ctx, 0); return err }}
		r.nonePut = &turn{name: "put without", do: func(ctx context.Context) error { return c.put(ctx, 0, checksum.Sum{}) }}
		t = append(t, r)
	}
	for round := range o.rounds + 1 { // the first warms up
		for _, r := range t {
			for _, group := range [][]*turn{{r.noneGet, r.get}, {r.verified}, {r.nonePut, r.puts}} {
				if err := alternate(ctx, group, o, round > 0, cpu, sweep); err != nil {
					return nil, fmt.Errorf("%v: %w", r.alg, err)
				}
			}
		}
	}
	return t, nil
}

// alternate makes o.count requests of each turn, one after the other, and keeps what
// they took. One more goes before them: what the first of a kind finds, and what the
// server does after it (a PUT's old object is removed), would be one turn's only.
func alternate(ctx context.Context, group []*turn, o options, keep bool, cpu func() (time.Duration, error), sweep func() error) error {
	for _, x := range group {
		x.took, x.cpu = 0, 0
	}
	if err := errors.Join(group[0].do(ctx), sweep()); err != nil {
		return fmt.Errorf("%s: %w", group[0].name, err)
	}
	for i := range o.count {
		for j := range group {
			x := group[(i+j)%len(group)]
			before, err := cpu()
			if err != nil {
				return err
			}
			start := time.Now()
			if err := x.do(ctx); err != nil {
				return fmt.Errorf("%s: %w", x.name, err)
			}
			x.took += time.Since(start)
			after, err := cpu()
			if err != nil {
				return err
			}
			x.cpu += after - before
			if err := sweep(); err != nil {
				return err
			}
		}
	}
	if keep {
		n := float64(o.count) * float64(o.size)
		for _, x := range group {
			x.rates = append(x.rates, n/x.took.Seconds())
			x.cpus = append(x.cpus, x.cpu.Seconds()/n*(1<<30))
		}
	}
	return nil
}

// write prints the table and the line.
func (t table) write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "checksum\tGET GiB/s\tover none\tCPU\tverified GiB/s\tover none\tPUT GiB/s\tover none\tCPU\tclient GiB/s\t")
	var gets, puts turn // without any
	for _, r := range t {
		gets.rates, gets.cpus = append(gets.rates, r.noneGet.rates...), append(gets.cpus, r.noneGet.cpus...)
		puts.rates, puts.cpus = append(puts.rates, r.nonePut.rates...), append(puts.cpus, r.nonePut.cpus...)
	}
	fmt.Fprintf(tw, "none\t%s\t\t%.2f\t\t\t%s\t\t%.2f\t\t\n", gib(median(gets.rates)), median(gets.cpus), gib(median(puts.rates)), median(puts.cpus))
	var line string
	for _, r := range t {
		get, put := ratio(r.get, r.noneGet), ratio(r.puts, r.nonePut)
		fmt.Fprintf(tw, "%v\t%s\t%.2f\t%.2f\t%s\t%.2f\t%s\t%.2f\t%.2f\t%s\t\n", r.alg, gib(median(r.get.rates)), get, median(r.get.cpus),
			gib(median(r.verified.rates)), ratio(r.verified, r.noneGet), gib(median(r.puts.rates)), put, median(r.puts.cpus), gib(r.client))
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
