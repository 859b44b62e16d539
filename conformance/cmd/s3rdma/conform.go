// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
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
	Fabric          string `help:"How the server reaches memory: shm, tcp, rc (RDMA devices), none, or auto: the first that works." enum:"auto,shm,tcp,rc,none" default:"auto"`
	deviceFlags
	Off       bool   `help:"The server's RDMA is switched off: run what must hold then (--fabric auto finds out by itself)."`
	Bucket    string `help:"Work in this bucket instead of buckets of the suite's own."`
	Select    string `name:"run" placeholder:"PATTERN" help:"Run the cases whose ID begins with, or matches, this pattern (several: separated by commas)."`
	Level     string `help:"The least strict level to run: must, should or may." enum:"must,should,may" default:"may"`
	MaxObject int64  `help:"Skip cases with objects larger than this many bytes; the cases of 2 GiB and more run only if this allows them." placeholder:"BYTES"`
	List      bool   `help:"List the cases of --run and --level and what they test, and run none."`
	JSON      string `name:"json" placeholder:"FILE" help:"Write the report as JSON."`
	JUnit     string `name:"junit" placeholder:"FILE" help:"Write the report as JUnit XML."`
	HTML      string `name:"html" placeholder:"FILE" help:"Write the report as a page that needs nothing else."`
	Expect    string `placeholder:"FILE" help:"Compare with what was found at this server before: only what has become worse is a failure."`
	Update    bool   `name:"update-expect" help:"Write that file instead, from this run."`
}

// Help says what the command does, and what its exit status means.
func (*conformCommand) Help() string {
	return "Finds out what the server speaks, runs the cases that apply, and says what would become of each known client. " +
		"For a case that fails it shows the rule and its source, what was expected, what was sent and what came back (no descriptor or key).\n\n" +
		"It needs keys that may make and remove buckets, or a bucket to work in; what it makes it removes, also when it is interrupted.\n\n" +
		"Exit status: 0 no case failed (with --expect: none that had not failed before); 1 some did; 2 wrong usage; 130 interrupted."
}

// Run runs or lists the suite.
func (c *conformCommand) Run(ctx context.Context) error {
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
	if c.List {
		return listCases(os.Stdout, o)
	}
	if c.Update && c.Expect == "" {
		return errors.New("--update-expect needs --expect FILE")
	}
	expected, err := c.expectation()
	if err != nil {
		return err
	}
	if c.SecondAccessKey != "" {
		o.Second = &rawhttp.Credentials{AccessKey: c.SecondAccessKey, SecretKey: c.SecondSecretKey}
	}
	show := newProgress(os.Stderr)
	o.Discovered, o.Progress = show.begin, show.result
	report, err := conformance.Run(ctx, o)
	show.done()
	if err != nil && len(report.Results) == 0 {
		return err
	}
	if werr := c.write(&report); werr != nil {
		return werr
	}
	switch {
	case err != nil:
		return err
	case len(report.Results) == 0:
		return fmt.Errorf("no case matches --run %q at level %s (see --list)", c.Select, c.Level)
	case c.Update:
		return writeFile(c.Expect, report.WriteExpectation)
	case expected != nil:
		d := report.Compare(expected)
		if err := d.Write(os.Stdout); err != nil {
			return err
		}
		if !d.OK() {
			return errReported
		}
	case report.Failed > 0:
		return errReported
	}
	return nil
}

// expectation reads the file to compare with, before anything is run; nil without one.
func (c *conformCommand) expectation() (conformance.Expectation, error) {
	if c.Expect == "" || c.Update {
		return nil, nil
	}
	f, err := os.Open(c.Expect)
	if err != nil {
		return nil, fmt.Errorf("--expect: %w (--update-expect writes it)", err)
	}
	defer f.Close()
	e, err := conformance.ReadExpectation(f)
	if err != nil {
		return nil, fmt.Errorf("--expect %s: %w", c.Expect, err)
	}
	return e, nil
}

// write writes the report in all forms that are asked for.
func (c *conformCommand) write(report *conformance.Report) error {
	if err := report.WriteTable(os.Stdout); err != nil {
		return err
	}
	for file, write := range map[string]func(io.Writer) error{c.JSON: report.WriteJSON, c.JUnit: report.WriteJUnit, c.HTML: report.WriteHTML} {
		if file == "" {
			continue
		}
		if err := writeFile(file, write); err != nil {
			return err
		}
	}
	return nil
}

// listCases lists what o selects, whatever the server.
func listCases(w io.Writer, o conformance.Options) error {
	cases, err := o.Cases()
	if err != nil {
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	when := map[conformance.When]string{conformance.WhenOn: "on", conformance.WhenOff: "off", conformance.Always: "on, off"}
	fmt.Fprintln(tw, "CASE\tLEVEL\tSERVER\tNEEDS\tRULE")
	for _, c := range cases {
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
