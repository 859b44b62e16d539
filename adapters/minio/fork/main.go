// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

// Command fork builds a MinIO server with the S3-over-RDMA plugin compiled in.
//
//	go run ./adapters/minio/fork -o bin/minio
//	go run ./adapters/minio/fork -o bin/minio -src ../my-minio
//	go run ./adapters/minio/fork -o bin/minio-stock -stock
//
// Run it from inside a checkout of this project. It needs nothing but the go
// command, and the network the first time.
//
// What it does: it takes MinIO's source (a module version, copied once into a
// cache folder; or the tree that -src names, which is only read), checks that
// every hook point that the files in adapters/minio/cmd rely on is there, lays
// those files over MinIO's package cmd with go build's -overlay, and builds
// MinIO's own main package in a temporary workspace of the two modules. Neither
// MinIO's source nor the go.mod of either side is changed, so MinIO keeps the
// dependency versions that it pins.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintf(os.Stderr, "fork: %v\n", err)
		os.Exit(1)
	}
}

// run parses args and builds; progress and usage go to stderr.
func run(ctx context.Context, args []string, stderr io.Writer) error {
	var o options
	fs := flag.NewFlagSet("fork", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.output, "o", "bin/minio", "write the binary to `FILE`")
	fs.StringVar(&o.src, "src", "", "build the MinIO tree in `DIR` (any module path, MinIO's layout) instead of a module version; nothing is written into it")
	fs.StringVar(&o.version, "version", "", "build this MinIO module `VERSION` instead of the one that adapters/minio/go.mod pins")
	fs.BoolVar(&o.stock, "stock", false, "build the same MinIO without the plugin")
	fs.BoolVar(&o.race, "race", false, "build with the race detector")
	fs.BoolVar(&o.verbose, "v", false, "show the go command's own output")
	fs.StringVar(&o.project, "project", ".", "the checkout of this project (any folder inside it), `DIR`")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: the output file is named with -o, a source tree with -src", fs.Arg(0))
	}
	if o.src != "" && o.version != "" {
		return errors.New("-src and -version exclude each other: a tree has the version it has")
	}
	return build(ctx, o, newProgress(stderr))
}
