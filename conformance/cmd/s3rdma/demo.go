// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"

	"github.com/s3rdma/s3rdma/conformance/demo"
)

type demoCommand struct {
	Fabric    string `help:"How the server reaches the client's memory: shm or tcp." enum:"shm,tcp" default:"shm"`
	Minio     string `help:"MinIO binary with the plugin, instead of building one." type:"existingfile" placeholder:"FILE"`
	Stock     string `help:"MinIO binary without the plugin, for --interop." type:"existingfile" placeholder:"FILE"`
	Files     string `help:"Folder whose files are moved, instead of the Go distribution." type:"existingdir" placeholder:"DIR"`
	FileBytes int64  `help:"Bytes of files to move over the fabric, at least." default:"1073741824"`
	Large     int64  `help:"Bytes of the one large object." default:"1073741824"`
	Keep      bool   `help:"Leave drives and logs where they are."`
	Interop   bool   `help:"Instead, check that MinIO with and without the plugin read each other's objects from the same drives."`
}

// Run demonstrates. The result's line is the last one on standard output.
func (c *demoCommand) Run(ctx context.Context) error {
	if c.Interop {
		result, err := demo.Interop(ctx, demo.InteropOptions{Binary: c.Minio, Stock: c.Stock, Fabric: c.Fabric, Out: os.Stderr})
		if err != nil {
			return err
		}
		fmt.Println(result.Line())
		return nil
	}
	result, err := demo.Run(ctx, demo.Options{Fabric: c.Fabric, Binary: c.Minio, Files: c.Files,
		FileBytes: c.FileBytes, LargeBytes: c.Large, Keep: c.Keep, Out: os.Stderr})
	if err != nil {
		result.Failed++ // whatever could not be shown has failed
		fmt.Fprintln(os.Stderr, "s3rdma:", err)
	}
	fmt.Println()
	if werr := result.WriteTable(os.Stdout); werr != nil {
		return werr
	}
	fmt.Printf("\n%s\n", result.Line())
	if err != nil || !result.OK() {
		return errReported
	}
	return nil
}
