// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/s3rdma/s3rdma/conformance"
	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

type conformCommand struct {
	serverFlags
	SecondAccessKey string `help:"Access key of another identity that may read and write." env:"S3RDMA_SECOND_ACCESS_KEY"`
	SecondSecretKey string `help:"Its secret key." env:"S3RDMA_SECOND_SECRET_KEY"`
	Fabric          string `help:"How the server reaches memory: shm, tcp, rc (RDMA devices) or none." enum:"shm,tcp,rc,none" default:"none"`
	deviceFlags
	Off       bool   `help:"The server's RDMA is switched off: run what must hold then."`
	Bucket    string `help:"Work in this bucket instead of buckets of the suite's own."`
	Select    string `name:"run" placeholder:"PATTERN" help:"Run the cases whose ID begins with, or matches, this pattern (several: separated by commas)."`
	Level     string `help:"The least strict level to run: must, should or may." enum:"must,should,may" default:"may"`
	MaxObject int64  `help:"Skip cases with objects larger than this many bytes." placeholder:"BYTES"`
	List      bool   `help:"List the cases and what they test, and run none."`
	JSON      string `name:"json" placeholder:"FILE" help:"Write the report as JSON."`
	JUnit     string `name:"junit" placeholder:"FILE" help:"Write the report as JUnit XML."`
}

// Run runs or lists the suite.
func (c *conformCommand) Run(ctx context.Context) error {
	if c.List {
		return listCases(os.Stdout)
	}
	level, err := conformance.ParseLevel(c.Level)
	if err != nil {
		return err
	}
	tlsConfig, err := c.tls()
	if err != nil {
		return err
	}
	o := conformance.Options{
		Endpoint: c.Endpoint, Region: c.Region, AccessKey: c.AccessKey, SecretKey: c.SecretKey, TLS: tlsConfig,
		Fabric: c.Fabric, Device: c.device(), Off: c.Off, Bucket: c.Bucket, Select: c.Select, Level: level, MaxObject: c.MaxObject,
	}
	if c.SecondAccessKey != "" {
		o.Second = &rawhttp.Credentials{AccessKey: c.SecondAccessKey, SecretKey: c.SecondSecretKey}
	}
	show := newProgress(os.Stderr)
	o.Progress = show.result
	report, err := conformance.Run(ctx, o)
	show.done()
	if err != nil && len(report.Results) == 0 {
		return err
	}
	if werr := report.WriteTable(os.Stdout); werr != nil {
		return werr
	}
	for file, write := range map[string]func(io.Writer) error{c.JSON: report.WriteJSON, c.JUnit: report.WriteJUnit} {
		if file == "" {
			continue
		}
		if werr := writeFile(file, write); werr != nil {
			return werr
		}
	}
	switch {
	case err != nil:
		return err
	case len(report.Results) == 0:
		return fmt.Errorf("no case matches --run %q at level %s (see --list)", c.Select, c.Level)
	case report.Failed > 0:
		return errReported
	}
	return nil
}

func listCases(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	when := map[conformance.When]string{conformance.WhenOn: "on", conformance.WhenOff: "off", conformance.Always: "on, off"}
	fmt.Fprintln(tw, "CASE\tLEVEL\tSERVER\tNEEDS\tRULE")
	for _, c := range conformance.Cases() {
		needs := ""
		for i, n := range c.Needs {
			if i > 0 {
				needs += ", "
			}
			needs += string(n)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", c.ID, c.Level, when[c.When], needs, c.Rule)
	}
	return tw.Flush()
}

// writeFile creates the file and reports each error of writing it.
func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		f.Close()
		return fmt.Errorf("write %s: %w", name, err)
	}
	return f.Close()
}
