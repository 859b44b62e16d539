// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/s3rdma/s3rdma/conformance/broken"
)

type brokenCommand struct {
	Break   []string `placeholder:"SWITCH" help:"What it does wrong (several: separated by commas). Without: nothing."`
	Off     bool     `help:"Its RDMA is switched off."`
	Address string   `default:"127.0.0.1:0" help:"Where it listens."`
	List    bool     `help:"List the switches, and serve nothing."`
}

// Help says what it is good for.
func (*brokenCommand) Help() string {
	return "Serves S3 in memory, by descriptor over shm and tcp, and breaks the rules that it is told to: to see what a suite or a client makes of that. It is for tests: it keeps nothing, and its keys are printed."
}

// Run serves until it is interrupted.
func (c *brokenCommand) Run(ctx context.Context) error {
	if c.List {
		tw := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
		for _, s := range broken.Switches() {
			fmt.Fprintf(tw, "%s\t%s\n", s.Name, s.Does)
		}
		return tw.Flush()
	}
	s, err := broken.Start(broken.Options{Broken: c.Break, Off: c.Off, Address: c.Address})
	if err != nil {
		return err
	}
	fmt.Printf("export S3RDMA_ENDPOINT=%s S3RDMA_ACCESS_KEY=%s S3RDMA_SECRET_KEY=%s\n", s.Endpoint, broken.AccessKey, broken.SecretKey)
	fmt.Printf("export S3RDMA_SECOND_ACCESS_KEY=%s S3RDMA_SECOND_SECRET_KEY=%s\n", broken.SecondAccessKey, broken.SecondSecretKey)
	<-ctx.Done()
	return s.Close()
}
