// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"testing"
)

func TestProbe(t *testing.T) {
	devices(t)
	r, err := Probe(context.Background(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	r.Print(testWriter{t})
	if !r.OK() {
		t.Error("no port works")
	}
	for _, d := range r.Devices {
		for _, p := range d.Ports {
			for _, c := range p.Checks {
				if !c.OK {
					t.Errorf("%s:%d: %s: %s", d.Name, p.Num, c.Name, c.Problem)
				}
			}
			if p.State == "active" && len(p.Checks) < 8 {
				t.Errorf("%s:%d is active, and only %d checks were made", d.Name, p.Num, len(p.Checks))
			}
		}
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("\n%s", b)
	return len(b), nil
}

// A self-test that finds nothing wrong lets the fabric start.
func TestSelfTestAtStart(t *testing.T) {
	o, _ := devices(t)
	o.SelfTest = true
	f, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}
