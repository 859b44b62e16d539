// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/s3rdma/s3rdma/conformance/demo"
	"github.com/s3rdma/s3rdma/conformance/peers"
)

type peersCommand struct {
	Minio    string   `help:"MinIO binary with the plugin, instead of building one." type:"existingfile" placeholder:"FILE"`
	Stock    string   `help:"MinIO binary without the plugin, instead of building one." type:"existingfile" placeholder:"FILE"`
	Fabric   string   `help:"Fabrics to switch on." default:"shm,tcp"`
	Suite    []string `help:"Suites to run: minio-go, versitygw, s3-tests. Default: all that can be had." enum:"minio-go,versitygw,s3-tests" placeholder:"NAME"`
	Failures bool     `help:"List what fails on both servers, too."`
}

// Help says what is compared.
func (*peersCommand) Help() string {
	return "Runs other projects' tests, unchanged, against a stock MinIO and against one with the plugin switched on. " +
		"A test that ends otherwise on one than on the other is a difference, if a second run shows it again; there should be none.\n\n" +
		"s3-tests is Ceph's; it runs where S3TESTS names a checkout.\n\n" +
		"Exit status: 0 no difference; 1 a difference, or a suite that failed to run."
}

// Run compares, and lists what differs.
func (c *peersCommand) Run(ctx context.Context) (err error) {
	o := peers.Options{Plugin: c.Minio, Stock: c.Stock, PluginArgs: []string{"--rdma=on", "--rdma-fabric=" + c.Fabric}, Out: os.Stderr}
	for _, b := range []struct {
		binary *string
		stock  bool
	}{{&o.Plugin, false}, {&o.Stock, true}} {
		if *b.binary == "" {
			if *b.binary, err = demo.BuildMinIO(ctx, b.stock, os.Stderr); err != nil {
				return err
			}
		}
	}
	names := c.Suite
	if len(names) == 0 {
		names = peers.Suites()
	}
	differ := false
	for _, name := range names {
		found, err := peers.Run(ctx, name, o)
		if errors.Is(err, peers.ErrAbsent) && len(c.Suite) == 0 {
			fmt.Println("peers:", err)
			continue
		}
		if err != nil {
			return err
		}
		if err := found.Print(os.Stdout, c.Failures); err != nil {
			return err
		}
		differ = differ || len(found.Differences) > 0
	}
	if differ {
		return errReported
	}
	return nil
}
