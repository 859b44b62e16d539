// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/s3rdma/s3rdma/conformance"
	"github.com/s3rdma/s3rdma/conformance/broken"
	"github.com/s3rdma/s3rdma/conformance/minioproc"
	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

// Options name the servers. The zero value runs the broken server only.
type Options struct {
	// Fork, Stock and Versitygw are binaries: MinIO with the plugin, MinIO without, and
	// versitygw. "" or a file that is not there is left out.
	Fork, Stock, Versitygw string
	// Reports is a folder for a page, a JSON and a JUnit file of each run; "" writes none.
	Reports string
	// Update is a folder to which what is found at Stock and Versitygw is written as what
	// is expected of them from now on; "" compares.
	Update string
	// Out is told how it goes; nil is nobody.
	Out io.Writer
}

// Result counts.
type Result struct {
	// Cases were run at a whole server, and not skipped. Passed of them went as expected,
	// Failed did not.
	Cases, Passed, Failed int
	// Caught switches of the broken server were noticed by all the cases that have to,
	// Missed were not.
	Caught, Missed int
	// Problems say what is wrong, a line each.
	Problems []string
	// Absent are servers that were left out.
	Absent []string
}

// OK tells whether everything went as expected.
func (r *Result) OK() bool { return r.Failed == 0 && r.Missed == 0 && len(r.Problems) == 0 }

// Line is the result in a line.
func (r *Result) Line() string {
	return fmt.Sprintf("conformance: cases=%d passed=%d failed=%d switches_caught=%d switches_missed=%d", r.Cases, r.Passed, r.Failed, r.Caught, r.Missed)
}

//go:embed expect
var expectations embed.FS

// run is what the parts share.
type run struct {
	o   Options
	out io.Writer
	dir string // for drives
	Result
}

// Run tries everything, one part after the other. An error is what kept it from doing so;
// what the suite found wrong is in the result.
func Run(ctx context.Context, o Options) (Result, error) {
	r := &run{o: o, out: o.Out}
	if r.out == nil {
		r.out = io.Discard
	}
	dir, err := os.MkdirTemp("", "s3rdma-trial-")
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(dir)
	r.dir = dir
	for _, part := range []func(context.Context) error{r.switches, r.forks, r.stock, r.versitygw} {
		if err := part(ctx); err != nil {
			return r.Result, err
		}
	}
	return r.Result, nil
}

func (r *run) problem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.Problems = append(r.Problems, text)
	fmt.Fprintln(r.out, text)
}

// there tells whether a binary can be run, and says so if not.
func (r *run) there(what, binary string) bool {
	if binary != "" {
		if _, err := os.Stat(binary); err == nil {
			return true
		}
	}
	r.Absent = append(r.Absent, what)
	fmt.Fprintf(r.out, "NOT TESTED: %s: there is no binary %s\n", what, binary)
	return false
}

// switches breaks the broken server in one way at a time.
func (r *run) switches(ctx context.Context) error {
	for i, sw := range broken.Switches() {
		missed, err := tryOne(ctx, sw, []string{"shm", "tcp"}[i%2])
		if err != nil {
			return fmt.Errorf("broken server, %s: %w", sw.Name, err)
		}
		if len(missed) == 0 {
			r.Caught++
			continue
		}
		r.Missed++
		r.problem("MISSED: a server that %s (%s) is not noticed by %s", sw.Does, sw.Name, strings.Join(missed, ", "))
	}
	fmt.Fprintf(r.out, "broken server: %d of %d switches caught\n", r.Caught, r.Caught+r.Missed)
	return nil
}

// tryOne returns the patterns of sw's cases of which not all fail.
func tryOne(ctx context.Context, sw broken.Switch, fabric string) (missed []string, err error) {
	s, err := broken.Start(broken.Options{Broken: []string{sw.Name}, Off: sw.Off})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if sw.Off {
		fabric = "none"
	}
	report, err := conformance.Run(ctx, conformance.Options{Endpoint: s.Endpoint, AccessKey: broken.AccessKey, SecretKey: broken.SecretKey,
		Second: &rawhttp.Credentials{AccessKey: broken.SecondAccessKey, SecretKey: broken.SecondSecretKey},
		Fabric: fabric, Off: sw.Off, Select: strings.Join(sw.Cases, ","), MaxObject: 6 << 20})
	if err != nil {
		return nil, err
	}
	for _, pattern := range sw.Cases {
		n := 0
		for _, x := range report.Results {
			if ok, _ := path.Match(pattern, x.ID); !ok {
				continue
			}
			n++
			if x.Status != conformance.Failed {
				n = -len(report.Results)
			}
		}
		if n <= 0 {
			missed = append(missed, pattern)
		}
	}
	return missed, nil
}

// forks are the plugged server's runs.
func (r *run) forks(ctx context.Context) error {
	if !r.there("MinIO with the plugin", r.o.Fork) {
		return nil
	}
	for _, f := range []struct {
		name, fabric string
		server       minioproc.Options
		skips        []string // topics or cases that may be skipped
	}{
		{"fork-shm", "shm", minioproc.Options{Args: []string{"--rdma=on", "--rdma-fabric=shm"}}, []string{"encryption/sse-c", "size/huge/", "hipobj/"}},
		{"fork-tcp", "tcp", minioproc.Options{Args: []string{"--rdma=on", "--rdma-fabric=tcp"}, TLS: true}, []string{"size/huge/", "hipobj/"}},
		{"fork-off", "none", minioproc.Options{}, nil},
	} {
		f.server.Binary = r.o.Fork
		report, err := r.minio(ctx, f.name, f.server)
		if err != nil {
			return err
		}
		if report.Fabric != f.fabric || report.Off != (f.fabric == "none") {
			r.problem("%s: found out fabric %s, off %t", f.name, report.Fabric, report.Off)
		}
		for _, x := range report.Results {
			switch {
			case x.Status == conformance.Failed:
				r.count(false)
				r.problem("%s: %s", f.name, x.Detail())
			case x.Status == conformance.Passed:
				r.count(true)
			case !slices.ContainsFunc(f.skips, func(p string) bool { return strings.HasPrefix(x.ID, p) }):
				r.problem("%s: %s was skipped: %s", f.name, x.ID, x.Reason)
			}
		}
		r.clients(f.name, report, map[conformance.Verdict][]string{})
	}
	return nil
}

func (r *run) count(asExpected bool) {
	r.Cases++
	if asExpected {
		r.Passed++
	} else {
		r.Failed++
	}
}

// clients compares the verdicts on the known clients: those not named work or, where
// nothing is served, get an error or what they want by HTTP.
func (r *run) clients(name string, report conformance.Report, want map[conformance.Verdict][]string) {
	for _, c := range report.Clients {
		expected := conformance.Works
		if report.Fabric == "none" {
			expected = ""
		}
		for v, names := range want {
			if slices.Contains(names, c.Name) {
				expected = v
			}
		}
		if expected != "" && c.Verdict != expected || expected == "" && c.Verdict == conformance.LosesData {
			r.problem("%s: client %s: %s, want %s: %s", name, c.Name, c.Verdict, expected, c.Why)
		}
	}
	if want := len(conformance.Models()); len(report.Clients) != want {
		r.problem("%s: %d clients were tried, want %d", name, len(report.Clients), want)
	}
}

// LosersAtStock are the clients that lose data at a server that takes no notice of
// descriptors.
var LosersAtStock = []string{"nixl-early", "nixl-dell", "minio-cpp", "minio-rs", "minio-go", "elbencho"}

func (r *run) stock(ctx context.Context) error {
	if !r.there("stock MinIO", r.o.Stock) {
		return nil
	}
	report, err := r.minio(ctx, "stock", minioproc.Options{Binary: r.o.Stock})
	if err != nil {
		return err
	}
	return r.knowsNothing("stock", report, LosersAtStock)
}

// knowsNothing judges a run at a server without RDMA.
func (r *run) knowsNothing(name string, report conformance.Report, losers []string) error {
	if report.Speaks.RDMA != "no" || report.Fabric != "none" || report.Off {
		r.problem("%s: found out RDMA %s, fabric %s, off %t", name, report.Speaks.RDMA, report.Fabric, report.Off)
	}
	if i := slices.IndexFunc(report.Results, func(x conformance.Result) bool { return x.ID == "trap/put/bare" }); i < 0 || report.Results[i].Status != conformance.Failed {
		r.problem("%s: the empty-object trap is not shown", name)
	} else {
		fmt.Fprintf(r.out, "  %s: %s\n", report.Results[i].ID, report.Results[i].Reason)
	}
	r.clients(name, report, map[conformance.Verdict][]string{conformance.LosesData: losers})
	return r.expect(name, report)
}

// expect compares a report with its file, or writes that.
func (r *run) expect(name string, report conformance.Report) error {
	if r.o.Update != "" {
		return writeFile(filepath.Join(r.o.Update, name+".txt"), report.WriteExpectation)
	}
	b, err := expectations.ReadFile("expect/" + name + ".txt")
	if err != nil {
		return err
	}
	e, err := conformance.ReadExpectation(bytes.NewReader(b))
	if err != nil {
		return fmt.Errorf("expectation of %s: %w", name, err)
	}
	for _, x := range report.Results {
		want, known := e[x.ID]
		if x.Status != conformance.Skipped {
			r.count(want == x.Status)
		}
		// A new case that cannot be run there needs no line.
		if want != x.Status && (known || x.Status != conformance.Skipped) {
			r.problem("%s: %s: %s, want %s: %s", name, x.ID, x.Status, want, x.Reason)
		}
	}
	return nil
}

// minio starts a MinIO, runs the suite on it, and stops it.
func (r *run) minio(ctx context.Context, name string, o minioproc.Options) (conformance.Report, error) {
	o.Dir, o.KMS = filepath.Join(r.dir, name), true
	s, err := minioproc.Start(ctx, o)
	if err != nil {
		return conformance.Report{}, fmt.Errorf("%s: %w", name, err)
	}
	defer os.RemoveAll(o.Dir)
	defer s.Stop()
	second, err := s.AddUser(ctx)
	if err != nil {
		return conformance.Report{}, fmt.Errorf("%s: %w", name, err)
	}
	return r.suite(ctx, name, conformance.Options{Endpoint: s.Endpoint, TLS: s.TLS, AccessKey: s.Root.AccessKey, SecretKey: s.Root.SecretKey, Second: &second})
}

// suite runs the suite, says how it went in a line or two, and writes the reports.
func (r *run) suite(ctx context.Context, name string, o conformance.Options) (conformance.Report, error) {
	o.Fabric = conformance.FabricAuto
	report, err := conformance.Run(ctx, o)
	if err != nil {
		return report, fmt.Errorf("%s: %w", name, err)
	}
	fmt.Fprintf(r.out, "%s: %s %s\n", name, report.Summary(), report.Speaks.Sentence())
	if r.o.Reports == "" {
		return report, nil
	}
	for ext, write := range map[string]func(io.Writer) error{"html": report.WriteHTML, "json": report.WriteJSON, "xml": report.WriteJUnit} {
		if err := writeFile(filepath.Join(r.o.Reports, name+"."+ext), write); err != nil {
			return report, err
		}
	}
	return report, nil
}

func writeFile(name string, write func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
