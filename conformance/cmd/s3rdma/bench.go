// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/s3rdma/s3rdma/conformance/bench"
	"github.com/s3rdma/s3rdma/conformance/demo"
)

type benchCommand struct {
	Minio       string        `help:"MinIO binary with the plugin, instead of building one." type:"existingfile" placeholder:"FILE"`
	Stock       string        `help:"MinIO binary without the plugin, instead of building one." type:"existingfile" placeholder:"FILE"`
	Direct      bool          `help:"Measure what the direct path is held to (one size, with drives lost, two kinds of ETag) and end with one line of ratios."`
	Fabric      []string      `help:"Fabrics to compare with HTTP: shm, tcp, rc." enum:"shm,tcp,rc" default:"shm"`
	Op          []string      `help:"Operations: get, put." enum:"get,put" default:"get,put"`
	Sizes       []byteSize    `help:"Object sizes, such as 64KiB,1MiB. Default: 64KiB to 1GiB by fours; with --direct 256MiB." placeholder:"SIZE"`
	Concurrency []int         `help:"Requests at once." default:"1,4,16"`
	Drives      int           `help:"Drives of each server." default:"4"`
	Dir         string        `help:"Folder below which the drives go, on the disk that is to be measured. Default: the one for temporary files." type:"existingdir" placeholder:"DIR"`
	Repeat      int           `help:"Windows of each side." default:"5"`
	Window      time.Duration `help:"Least length of a window." default:"500ms"`
	Memory      byteSize      `help:"Bound on the clients' buffers; what needs more is left out." default:"4GiB"`
	Quiet       float64       `help:"Measure again where the rest of the machine used more than so many cores; 0 takes all." default:"0.15"`
	JSON        string        `help:"Write the report as JSON to this file." type:"path" placeholder:"FILE"`
	Profile     string        `help:"Put CPU profiles of the servers, taken after each measurement, into this folder." type:"existingdir" placeholder:"DIR"`
	deviceFlags
}

// byteSize is a number of bytes in words.
type byteSize int64

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *byteSize) UnmarshalText(text []byte) error {
	n, err := humanize.ParseBytes(string(text))
	if err != nil || n > 1<<62 {
		return fmt.Errorf("%q is no size such as 64KiB", text)
	}
	*b = byteSize(n)
	return nil
}

// Run measures. The table goes to standard output, with --direct the result's line is
// the last one.
func (c *benchCommand) Run(ctx context.Context) (err error) {
	o := bench.Options{Fork: c.Minio, Stock: c.Stock, Dir: c.Dir, Drives: c.Drives, Fabrics: c.Fabric, Device: c.device(),
		Concurrency: c.Concurrency, Repeat: c.Repeat, Window: c.Window, Memory: int64(c.Memory), Quiet: c.Quiet, Profile: c.Profile, Out: os.Stderr}
	for _, s := range c.Sizes {
		o.Sizes = append(o.Sizes, int64(s))
	}
	for _, op := range c.Op {
		o.Ops = append(o.Ops, bench.Op(strings.ToUpper(op)))
	}
	for _, b := range []struct {
		binary *string
		stock  bool
	}{{&o.Fork, false}, {&o.Stock, true}} {
		if *b.binary == "" {
			fmt.Fprintln(os.Stderr, "building MinIO (the first time takes some minutes)")
			if *b.binary, err = demo.BuildMinIO(ctx, b.stock, os.Stderr); err != nil {
				return err
			}
		}
	}
	run := bench.Run
	if c.Direct {
		run = bench.Direct
	}
	report, err := run(ctx, o)
	if len(report.Rows) > 0 {
		err = errors.Join(err, report.WriteTable(os.Stdout))
		if c.JSON != "" {
			err = errors.Join(err, writeReport(c.JSON, report))
		}
	}
	if err == nil && report.Result != "" {
		fmt.Printf("\n%s\n", report.Result)
	}
	return err
}

func writeReport(name string, r bench.Report) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(r.WriteJSON(f), f.Close())
}
