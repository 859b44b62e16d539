// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Command s3rdma tests S3-over-RDMA servers and moves files to and from them.
//
//	s3rdma conform --endpoint http://host:9000                the conformance suite
//	s3rdma put FILE s3://bucket/key                           bytes over the fabric
//	s3rdma get s3://bucket/key FILE
//	s3rdma stat s3://bucket/key
//	s3rdma probe                                              what is wrong with this host's RDMA devices
//	s3rdma demo                                               builds a MinIO and does it all
//
// Exit status: 0 success, 1 a case, a transfer or every RDMA port failed, 2 wrong usage,
// 3 no RDMA on this host (probe), 130 interrupted.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

// errReported: what went wrong has been shown already.
var errReported = errors.New("failed")

type commands struct {
	Conform conformCommand `cmd:"" help:"Run the conformance suite against a server."`
	Put     putCommand     `cmd:"" help:"Store a file as an object, its bytes over the fabric."`
	Get     getCommand     `cmd:"" help:"Fetch an object into a file, its bytes over the fabric."`
	Stat    statCommand    `cmd:"" help:"Show what a server says about an object."`
	Probe   probeCommand   `cmd:"" help:"Test this host's RDMA devices, and say what is wrong with them."`
	Demo    demoCommand    `cmd:"" help:"Build a MinIO with the plugin, move real files over the fabric, prove it, run the suite."`
	Bench   benchCommand   `cmd:"" help:"Measure MinIO with the plugin against stock MinIO by HTTP: objects and tensors, the client idle and computing; throughput, CPU seconds per GiB, latency."`
	Compute computeCommand `cmd:"" hidden:"" help:"Keep CPUs busy, for bench."`
	Flow    flowCommand    `cmd:"" hidden:"" help:"Be an end of competing traffic, for bench."`
	Peers   peersCommand   `cmd:"" hidden:"" help:"Compare two MinIO binaries by other projects' tests."`
	Broken  brokenCommand  `cmd:"" hidden:"" help:"Serve a server that breaks the rules it is told to, to try a suite on."`
	Trial   trialCommand   `cmd:"" hidden:"" help:"Hold the suite against servers of which is known what it has to find."`
}

func main() { os.Exit(run()) }

func run() int {
	// The first interrupt ends the command's context, and whatever was begun is
	// cleaned up; the second one ends the process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	parser, err := newParser(ctx)
	if err != nil {
		panic(err) // the tags above are wrong
	}
	args := os.Args[1:]
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "s3rdma: %v\n%s\n", err, helpHint(err))
		return 2
	}
	err = parsed.Run()
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "s3rdma: interrupted")
		return 130
	case errors.Is(err, errNoRDMA):
		return 3
	case !errors.Is(err, errReported):
		fmt.Fprintln(os.Stderr, "s3rdma:", err)
	}
	return 1
}

// firstUse is what the help begins with. Lines that are set in are examples.
const firstUse = `Tests S3-over-RDMA servers and moves files to and from them.

A first use, with any S3 server and keys that may make a bucket:

    export AWS_ENDPOINT_URL=http://localhost:9000
    export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=...
    s3rdma conform

This says whether the server speaks S3 over RDMA, which rules it breaks, and which known clients would work. If it does speak it:

    s3rdma put --fabric shm --make-bucket FILE s3://bucket/key
    s3rdma get --fabric shm s3://bucket/key FILE

The fabrics are shm (client and server on one host), tcp (any two hosts) and rc or hipobj (RDMA devices: try "s3rdma probe" first). What a server declines goes by HTTP, and the output says so; --only makes that a failure.

Inside a checkout of the project "s3rdma demo" builds a server and tries all of this.`

// helpHint says where to read on after wrong usage.
func helpHint(err error) string {
	command := "s3rdma"
	var parse *kong.ParseError
	if errors.As(err, &parse) {
		if node := parse.Context.Selected(); node != nil {
			command += " " + node.Name
		}
	}
	return "Usage: " + command + " --help"
}

func newParser(ctx context.Context) (*kong.Kong, error) {
	return kong.New(&commands{}, kong.Name("s3rdma"),
		kong.Description(firstUse),
		kong.UsageOnError(), kong.BindTo(ctx, (*context.Context)(nil)))
}
