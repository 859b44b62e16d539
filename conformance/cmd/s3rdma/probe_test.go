// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
)

// TestProbeWithout: a host without the device that is asked for is told so, in both forms.
func TestProbeWithout(t *testing.T) {
	c := probeCommand{deviceFlags: deviceFlags{Device: []string{"no-such-device"}}}
	var out, errOut bytes.Buffer
	if err := c.probe(t.Context(), &out, &errOut); !errors.Is(err, errNoRDMA) {
		t.Errorf("error %v", err)
	}
	if out.Len() > 0 || !strings.HasPrefix(errOut.String(), "There is no RDMA to use on this host: ") {
		t.Errorf("%q %q", out.String(), errOut.String())
	}
	errOut.Reset()
	c.JSON = true
	if err := c.probe(t.Context(), &out, &errOut); !errors.Is(err, errNoRDMA) || errOut.Len() > 0 {
		t.Errorf("error %v, %q", err, errOut.String())
	}
	var got struct {
		OK      bool
		Problem string
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.OK || got.Problem == "" {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestProbe needs a device: the VM of conformance/softroce has one.
func TestProbe(t *testing.T) {
	device := os.Getenv("SOFTROCE_DEV0")
	if device == "" {
		t.Skip("no RDMA device (make test-softroce has a VM with some)")
	}
	c := probeCommand{deviceFlags: deviceFlags{Device: []string{device}}}
	var out, errOut bytes.Buffer
	if err := c.probe(t.Context(), &out, &errOut); err != nil {
		t.Fatalf("%v\n%s%s", err, out.String(), errOut.String())
	}
	for _, want := range []string{device, "RoCE v2", "out of bounds refused", "stale key refused", "MTU mismatch found", "RDMA works on this host."} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
	out.Reset()
	c.JSON = true
	if err := c.probe(t.Context(), &out, &errOut); err != nil {
		t.Fatal(err)
	}
	var got struct {
		OK      bool
		Devices []struct {
			Name  string
			Ports []struct {
				State  string
				Checks []struct{ OK bool }
			}
		}
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || !got.OK || len(got.Devices) != 1 || len(got.Devices[0].Ports[0].Checks) < 8 {
		t.Errorf("%+v, %v", got, err)
	}
}
