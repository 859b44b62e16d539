// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/s3rdma/s3rdma/conformance/bench"
	"github.com/s3rdma/s3rdma/conformance/compute"
	"github.com/s3rdma/s3rdma/conformance/demo"
)

type benchCommand struct {
	Minio       string        `help:"MinIO binary with the plugin, instead of building one." type:"existingfile" placeholder:"FILE"`
	Stock       string        `help:"MinIO binary without the plugin, instead of building one." type:"existingfile" placeholder:"FILE"`
	Direct      bool          `help:"Instead, measure what the direct path is held to (one size, with drives lost, two kinds of ETag) and end with one line of ratios." xor:"what"`
	Grid        bool          `help:"Instead, measure every operation, size, number of requests at once and fabric, and the floors." xor:"what"`
	Network     bool          `help:"Instead, measure over a network that is loaded, delays, reorders and loses: needs root, makes a network namespace." xor:"what"`
	Condition   []string      `help:"What the network does, with --network: NAME=QDISC as tc has it, or NAME/FLOWS=QDISC with competing flows. Default: a set of them." placeholder:"NAME=QDISC" sep:"none"`
	Server      string        `help:"With --network, use one that is there: the server's address." placeholder:"ADDRESS"`
	Client      string        `help:"The client's address." placeholder:"ADDRESS"`
	Link        []string      `help:"Interfaces between them, the client's first." placeholder:"INTERFACE"`
	Fabric      []string      `help:"Fabric to compare with HTTP: shm, tcp, rc; with --grid and --network several. Default: shm; with --network tcp." enum:"shm,tcp,rc"`
	Op          []string      `help:"Operations of --grid and --network: get, put. Default: both; with --network get." enum:"get,put"`
	Sizes       []byteSize    `help:"Object sizes, such as 64KiB,1MiB. Default: 4KiB to 64MiB by fours; with --grid 64KiB to 1GiB, with --direct 256MiB." placeholder:"SIZE"`
	Concurrency []int         `help:"Requests at once. Default: 4; with --grid 1,4,16." placeholder:"N"`
	Drives      int           `help:"Drives of each server." default:"4"`
	Dir         string        `help:"Folder below which the drives go, on the disk that is to be measured. Default: the one for temporary files." type:"existingdir" placeholder:"DIR"`
	Repeat      int           `help:"Windows of each side." default:"5"`
	Window      time.Duration `help:"Least length of a window." default:"500ms"`
	Memory      byteSize      `help:"Bound on the clients' buffers; what needs more is left out." default:"4GiB"`
	Quiet       float64       `help:"Measure again where the rest of the machine used more than so many cores; 0 takes all." default:"0.15"`
	JSON        string        `help:"Write the report as JSON to this file." type:"path" placeholder:"FILE"`
	HTML        string        `name:"html" help:"Write the report as a page with plots to this file." type:"path" placeholder:"FILE"`
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
		Concurrency: c.Concurrency, Repeat: c.Repeat, Window: c.Window, Memory: int64(c.Memory), Quiet: c.Quiet, Profile: c.Profile, Command: strings.Join(append([]string{"s3rdma"}, os.Args[1:]...), " ")}
	p := newSteps(os.Stderr)
	defer p.done()
	o.Out, o.Progress = p, p.step
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
	run := bench.Modes
	self, err := os.Executable()
	if err != nil {
		return err
	}
	o.Compute = []string{self, "compute"}
	switch {
	case c.Direct:
		run = bench.Direct
	case c.Grid:
		run = bench.Run
	case c.Network:
		run = bench.UnderLoad
		o.Network = bench.Network{Server: c.Server, Client: c.Client, Links: c.Link, Flow: []string{self, "flow"}}
		for _, text := range c.Condition {
			condition, err := bench.ParseCondition(text)
			if err != nil {
				return err
			}
			o.Network.Conditions = append(o.Network.Conditions, condition)
		}
	}
	report, err := run(ctx, o)
	p.done()
	if len(report.Rows)+len(report.Modes)+len(report.Network) > 0 {
		err = errors.Join(err, report.WriteTable(os.Stdout))
		if c.JSON != "" {
			err = errors.Join(err, writeReport(c.JSON, report.WriteJSON))
		}
		if c.HTML != "" {
			err = errors.Join(err, writeReport(c.HTML, report.WriteHTML))
		}
	}
	if err == nil && report.Result != "" {
		fmt.Printf("\n%s\n", report.Result)
	}
	return err
}

func writeReport(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// computeCommand is the process that keeps the client's CPUs busy.
type computeCommand struct {
	Threads int `arg:""`
}

// Run computes until it is killed.
func (c *computeCommand) Run() error { return compute.Serve(c.Threads) }

// flowCommand is one end of the traffic that competes in a network under load.
type flowCommand struct {
	Args []string `arg:""`
}

// Run carries traffic until it is killed.
func (c *flowCommand) Run(ctx context.Context) error {
	return bench.ServeFlow(ctx, c.Args, os.Stdout)
}
