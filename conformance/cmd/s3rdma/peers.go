// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"

	"github.com/s3rdma/s3rdma/conformance/demo"
	"github.com/s3rdma/s3rdma/conformance/peers"
)

type peersCommand struct {
	Minio  string `help:"MinIO binary with the plugin, instead of building one." type:"existingfile" placeholder:"FILE"`
	Stock  string `help:"MinIO binary without the plugin, instead of building one." type:"existingfile" placeholder:"FILE"`
	Fabric string `help:"Fabrics to switch on." default:"shm,tcp"`
}

// Run compares, and lists what differs.
func (c *peersCommand) Run(ctx context.Context) (err error) {
	o := peers.Options{Plugin: c.Minio, Stock: c.Stock, PluginArgs: []string{"--rdma=on", "--rdma-fabric=" + c.Fabric}, Out: os.Stderr}
	if o.Plugin == "" {
		if o.Plugin, err = demo.BuildMinIO(ctx, false, os.Stderr); err != nil {
			return err
		}
	}
	if o.Stock == "" {
		if o.Stock, err = demo.BuildMinIO(ctx, true, os.Stderr); err != nil {
			return err
		}
	}
	found, err := peers.MinioGo(ctx, o)
	if err != nil {
		return err
	}
	for _, d := range found.Differences {
		fmt.Printf("%s: %s on stock MinIO, %s with the plugin: %s\n", d.Name, d.Stock, d.Plugin, d.Message)
	}
	differs := map[string]bool{}
	for _, d := range found.Differences {
		differs[d.Name] = true
	}
	for _, f := range found.Plugin {
		if f.Status == "FAIL" && !differs[f.Name] {
			fmt.Printf("fails on both: %s: %s\n", f.Name, f.Message)
		}
	}
	count := func(all []peers.Outcome) string {
		return fmt.Sprintf("%d pass, %d fail, %d not applicable", peers.Count(all, "PASS"), peers.Count(all, "FAIL"), peers.Count(all, "NA"))
	}
	fmt.Printf("stock:  %s\nplugin: %s\npeers: minio-go=%s differences=%d\n", count(found.Stock), count(found.Plugin), peers.MinioGoVersion, len(found.Differences))
	if len(found.Differences) > 0 {
		return errReported
	}
	return nil
}
