// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/s3rdma/s3rdma/conformance"
	"github.com/s3rdma/s3rdma/conformance/demo"
	"github.com/s3rdma/s3rdma/conformance/minioproc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// binary returns the MinIO that the variable names, or skips.
func binary(t *testing.T, variable string) string {
	t.Helper()
	b := os.Getenv(variable)
	if b == "" {
		t.Skipf("%s names no MinIO binary (make test-minio builds it)", variable)
	}
	return b
}

func serve(t *testing.T, o minioproc.Options) *minioproc.Server {
	t.Helper()
	o.Dir, o.KMS = t.TempDir(), true
	s, err := minioproc.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Stop()
		if t.Failed() {
			t.Logf("the server's log ends with:\n%s", s.LogTail())
		}
	})
	return s
}

func suite(t *testing.T, s *minioproc.Server, o conformance.Options) conformance.Report {
	t.Helper()
	second, err := s.AddUser(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o.Endpoint, o.TLS, o.AccessKey, o.SecretKey, o.Second = s.Endpoint, s.TLS, s.Root.AccessKey, s.Root.SecretKey, &second
	report, err := conformance.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report.Summary())
	return report
}

func wantAllPass(t *testing.T, r conformance.Report, o conformance.Options, tls bool) {
	t.Helper()
	for _, x := range r.Results {
		if x.Status == conformance.Failed {
			t.Error(x.Detail())
		}
	}
	wantAllCases(t, r, o, tls)
}

// leftOut is all in which the cases of a run may differ from those of others, and why they
// do: cases by the beginning of their names, with the reason that they have to give.
func leftOut(o conformance.Options, tls bool) map[string]string {
	m := map[string]string{}
	if !o.Off {
		m["size/huge/"] = conformance.ReasonHuge
	}
	if !tls {
		m["encryption/sse-c"] = "needs an https endpoint" // keys of clients travel by TLS only
	}
	if o.Fabric != "rc" && !o.Off {
		m["hipobj/"] = conformance.ReasonNoPairs // its clients have a queue pair for each transfer
	}
	if o.MaxObject > 0 {
		m[""] = fmt.Sprintf("objects are bounded to %d bytes in this run", o.MaxObject) // where networks lose packets
	}
	return m
}

// wantAllCases compares the cases of a run with the suite's list: each is there, in order,
// and one that was skipped is left out for a reason that leftOut knows.
func wantAllCases(t *testing.T, r conformance.Report, o conformance.Options, tls bool) {
	t.Helper()
	var got, want []string
	for _, c := range conformance.Cases() {
		if c.When == conformance.Always || (c.When == conformance.WhenOff) == o.Off {
			want = append(want, c.ID)
		}
	}
	excused := leftOut(o, tls)
	used := map[string]bool{}
	for _, x := range r.Results {
		got = append(got, x.ID)
		if x.Status != conformance.Skipped {
			continue
		}
		known := false
		for prefix, reason := range excused {
			if strings.HasPrefix(x.ID, prefix) && x.Reason == reason {
				known, used[prefix] = true, true
			}
		}
		if !known {
			t.Errorf("%s was skipped: %s", x.ID, x.Reason)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("these are not the cases of the suite (-want +got):\n%s", diff)
	}
	for prefix, reason := range excused {
		if !used[prefix] && !o.Off {
			t.Errorf("no case %s... was left out because it %q: take that off the list", prefix, reason)
		}
	}
}

func TestSuite(t *testing.T) {
	fork := binary(t, "S3RDMA_FORK")
	for _, fabric := range []string{"shm", "tcp"} {
		args := []string{"--rdma=on", "--rdma-fabric=" + fabric}
		o := conformance.Options{Fabric: fabric}
		t.Run(fabric, func(t *testing.T) {
			wantAllPass(t, suite(t, serve(t, minioproc.Options{Binary: fork, Args: args}), o), o, false)
		})
		t.Run(fabric+" with TLS and compression", func(t *testing.T) {
			s := serve(t, minioproc.Options{Binary: fork, Args: append(args, "--rdma-checksum-get=region"), TLS: true,
				Env: []string{"MINIO_COMPRESSION_ENABLE=on", "MINIO_COMPRESSION_ALLOW_ENCRYPTION=on", "MINIO_COMPRESSION_MIME_TYPES=text/*"}})
			wantAllPass(t, suite(t, s, o), o, true)
		})
	}
	t.Run("switched off", func(t *testing.T) {
		o := conformance.Options{Off: true}
		wantAllPass(t, suite(t, serve(t, minioproc.Options{Binary: fork}), o), o, false)
	})
}

// TestSuiteNoticesAServerThatKnowsNothing is the control: on a MinIO without the
// plugin each descriptor makes an empty object, and the suite says so.
func TestSuiteNoticesAServerThatKnowsNothing(t *testing.T) {
	s := serve(t, minioproc.Options{Binary: binary(t, "S3RDMA_STOCK")})
	report := suite(t, s, conformance.Options{Fabric: "tcp"})
	for _, x := range report.Results {
		want := conformance.Passed
		switch {
		case strings.HasPrefix(x.ID, "trap/") && x.ID != "trap/put/checksum" && x.ID != "trap/put/append", x.ID == "session/connect":
			want = conformance.Failed
		case !strings.HasPrefix(x.ID, "plain/") && !strings.HasPrefix(x.ID, "other/"):
			continue
		}
		if x.Status != want {
			t.Errorf("%s: %s, want %s: %s", x.ID, x.Status, want, x.Reason)
		}
	}
}

func TestInterop(t *testing.T) {
	o := demo.InteropOptions{Binary: binary(t, "S3RDMA_FORK"), Stock: binary(t, "S3RDMA_STOCK")}
	for _, fabric := range []string{"shm", "tcp"} {
		t.Run(fabric, func(t *testing.T) {
			o.Fabric = fabric
			r, err := demo.Interop(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if r.ByPlugin < 20 || r.ByStock < 20 {
				t.Errorf("only %s", r.Line())
			}
		})
	}
}

// small is a demonstration that takes seconds.
func small(t *testing.T) demo.Options {
	return demo.Options{Binary: binary(t, "S3RDMA_FORK"), FileBytes: 1 << 20, LargeBytes: 16 << 20}
}

func TestDemo(t *testing.T) {
	o := small(t)
	t.Setenv("TMPDIR", t.TempDir())
	for _, fabric := range []string{"shm", "tcp"} {
		t.Run(fabric, func(t *testing.T) {
			var said bytes.Buffer
			o.Fabric, o.Out = fabric, &said
			r, err := demo.Run(t.Context(), o)
			if err != nil {
				t.Fatalf("%v\n%s", err, said.String())
			}
			if !r.OK() || r.Bytes < 2*o.LargeBytes+o.FileBytes {
				t.Errorf("%s\n%s", r.Line(), said.String())
			}
			wantNothingLeft(t)
		})
	}
}

// TestDemoInterrupted: when its context ends in the middle, nothing is left, neither
// files nor processes.
func TestDemoInterrupted(t *testing.T) {
	o := small(t)
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.Out = writerFunc(func(p []byte) {
		if strings.Contains(string(p), "GET over shm") {
			cancel()
		}
	})
	if _, err := demo.Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
	wantNothingLeft(t)
}

type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

func wantNothingLeft(t *testing.T) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "s3rdma-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}
