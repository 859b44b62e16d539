// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/s3rdma/s3rdma/rdmaio/verbs"
)

// errNoRDMA: there is nothing on this host that could be wrong. It has been said already.
var errNoRDMA = errors.New("no RDMA on this host")

type probeCommand struct {
	deviceFlags
	JSON bool `name:"json" help:"Write the report as JSON."`
}

// Help says what the exit status means.
func (*probeCommand) Help() string {
	return "Lists the RDMA devices of this host with their ports, addresses, limits and counters, and connects each port that is up with itself: " +
		"a write, a read, transfers out of bounds and under a stale key, which must be refused, and ends of different MTU, which must be noticed. " +
		"What is wrong is said in words, with what to do about it.\n\n" +
		"Exit status: 0 a port works and nothing is wrong with it; 1 there are RDMA devices and none works; 3 there is no RDMA on this host."
}

// Run probes.
func (c *probeCommand) Run(ctx context.Context) error {
	return c.probe(ctx, os.Stdout, os.Stderr)
}

func (c *probeCommand) probe(ctx context.Context, out, errOut io.Writer) error {
	report, err := verbs.Probe(ctx, verbs.Options{Devices: c.Device, GIDIndex: c.GIDIndex})
	if err != nil && !errors.Is(err, verbs.ErrUnavailable) {
		return err
	}
	none := err
	if c.JSON {
		text := struct {
			OK      bool   `json:"ok"`
			Problem string `json:"problem,omitempty"`
			*verbs.Report
		}{OK: report.OK(), Report: &report}
		if none != nil {
			text.Problem, text.Report = none.Error(), nil
		}
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		if err := enc.Encode(text); err != nil {
			return err
		}
	} else if none == nil {
		if err := report.Print(out); err != nil {
			return err
		}
	}
	switch {
	case none != nil:
		if !c.JSON {
			fmt.Fprintf(errOut, "There is no RDMA to use on this host: %v\nOver shm and tcp everything else works without.\n", none)
		}
		return errNoRDMA
	case !report.OK():
		if !c.JSON {
			fmt.Fprintln(out, "\nNo port works. What is marked WRONG above says why.")
		}
		return errReported
	}
	if !c.JSON {
		fmt.Fprintln(out, "\nRDMA works on this host.")
	}
	return nil
}
