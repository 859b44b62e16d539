// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"

	"github.com/s3rdma/s3rdma/conformance/trial"
)

type trialCommand struct {
	Minio     string `name:"minio" placeholder:"FILE" help:"MinIO with the plugin."`
	Stock     string `placeholder:"FILE" help:"MinIO without."`
	Versitygw string `name:"versitygw" placeholder:"FILE" help:"versitygw."`
	Reports   string `placeholder:"DIR" help:"Write a page, a JSON and a JUnit file of each run."`
	Update    string `placeholder:"DIR" help:"Write what is found at servers without RDMA as what is expected of them."`
}

// Help says what it does.
func (*trialCommand) Help() string {
	return "Holds the suite against servers of which is known what it has to find: a server that breaks one rule at a time, MinIO with and without the plugin, versitygw. The last line counts."
}

// Run tries it all.
func (c *trialCommand) Run(ctx context.Context) error {
	result, err := trial.Run(ctx, trial.Options{Fork: c.Minio, Stock: c.Stock, Versitygw: c.Versitygw, Reports: c.Reports, Update: c.Update, Out: os.Stdout})
	if err != nil {
		return err
	}
	fmt.Println(result.Line())
	if !result.OK() {
		return errReported
	}
	return nil
}
