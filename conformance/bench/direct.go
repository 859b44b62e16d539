// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
)

// The sides of Direct.
const (
	sideHTTP    = "http"
	sideHealthy = "shm"
	sideOneLost = "shm, 1 drive lost"
	sideTwoLost = "shm, 2 drives lost"
	sideFast    = "shm, etag fast"
	sideMD5     = "shm, etag md5"
)

// Direct measures what the direct path is held to: objects of one size (the first of
// Sizes, 256 MiB if there is none) over shared memory, one request after the other,
// against stock MinIO by HTTP: GETs with all drives there, and with one and with two
// lost that hold data of the object; PUTs with an ETag that is an MD5 and with one that
// is not. Report.Result is the summary in one line.
func Direct(ctx context.Context, o Options) (report Report, err error) {
	if len(o.Sizes) == 0 {
		o.Sizes = []int64{256 * mib}
	}
	o.Sizes, o.Concurrency, o.Fabrics = o.Sizes[:1], []int{1}, []string{"shm"}
	if err := o.fill(); err != nil {
		return report, err
	}
	b, err := newBench(o, "The direct path: MinIO with the plugin over shared memory, against stock MinIO by HTTP")
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, b.close()); report = b.report }()
	err = b.direct(ctx)
	return report, err
}

func (b *bench) direct(ctx context.Context) error {
	size := int(b.o.Sizes[0])
	b.checked = make([]byte, size)
	b.say("starting MinIO with the plugin (twice, for two kinds of ETag) and without it over %d drives each in %s", b.o.Drives, b.dir)
	fork, err := b.start(ctx, "fork", b.o.Fork, b.o.Fabrics, "--rdma-etag=fast")
	if err != nil {
		return err
	}
	forkMD5, err := b.start(ctx, "fork-md5", b.o.Fork, b.o.Fabrics, "--rdma-etag=md5")
	if err != nil {
		return err
	}
	stock, err := b.start(ctx, "stock", b.o.Stock, nil)
	if err != nil {
		return err
	}
	workers := []int64{int64(size)}
	healthy, err := b.overFabric(ctx, sideHealthy, "shm", fork, workers)
	if err != nil {
		return err
	}
	md5, err := b.overFabric(ctx, sideMD5, "shm", forkMD5, workers)
	if err != nil {
		return err
	}
	http := b.overHTTP(sideHTTP, stock, workers)
	for _, s := range []*server{fork, stock} {
		if err := s.fill(ctx, b.m.pattern, size, 1); err != nil {
			return err
		}
	}
	key := objectKey(size, 0)
	f, err := newFloor(size, fork.folders(b.o.Drives, key), healthy.mover.mem(0), fork.dir)
	if err != nil {
		return fmt.Errorf("measure the floor: %w", err)
	}
	defer f.close()
	gets := []*side{healthy, http}
	for n, name := range []string{sideOneLost, sideTwoLost} {
		drives, err := fork.dataDrives(b.m.pattern, b.o.Drives, key, f.base.Data, n+1)
		if err != nil {
			return err
		}
		gets = append(gets, &side{name: name, server: fork, mover: healthy.mover, fabric: healthy.fabric, healthy: healthy,
			before: func(context.Context) error { return fork.loseDrives(drives) },
			after:  func(context.Context) error { return fork.restoreDrives(drives) }})
	}
	if err := b.idle(ctx, fork, forkMD5, stock); err != nil {
		return err
	}
	b.say("GET %s, in turns", bytesText(int64(size)))
	rows, floors, err := b.cell(ctx, cell{op: Get, size: size, workers: 1, keys: 1}, gets, f)
	if err != nil {
		return err
	}
	b.say("PUT %s, in turns", bytesText(int64(size)))
	fast := *healthy
	fast.name = sideFast
	more, others, err := b.cell(ctx, cell{op: Put, size: size, workers: 1}, []*side{&fast, md5, http}, f)
	if err != nil {
		return err
	}
	b.finish(append(rows, more...), floorsOf(f.base, append(floors, others...)))
	b.report.Result = directLine(b.report.Rows)
	return nil
}

// directLine is the summary of a run of Direct. Of the degraded GETs it has the slower
// one.
func directLine(rows []Row) string {
	find := func(op Op, side string) Row {
		for _, r := range rows {
			if r.Op == op && r.Side == side {
				return r
			}
		}
		return Row{}
	}
	get, put := find(Get, sideHealthy), find(Put, sideFast)
	degraded := min(find(Get, sideOneLost).OverHealthy.Median, find(Get, sideTwoLost).OverHealthy.Median)
	return fmt.Sprintf("bench-direct: get_cpu_over_floor=%.2f get_over_http=%.2f degraded_over_healthy=%.2f put_cpu_over_floor=%.2f put_over_http=%.2f client_cpu_http_over_fabric=%.1f",
		get.ServerOverFloor, get.OverHTTP.Median, degraded, put.ServerOverFloor, put.OverHTTP.Median, get.HTTPClientOver.Median)
}
