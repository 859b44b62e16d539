// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/s3rdma/s3rdma/conformance/minioproc"
)

var (
	// ErrAbsent: a suite cannot be had here. It says what it needs.
	ErrAbsent = errors.New("not run")
	// ErrNoTests: the tests ended without reporting any.
	ErrNoTests = errors.New("the tests reported nothing")
	// ErrSuite: there is no suite of that name.
	ErrSuite = errors.New("no such suite")
)

// How a test ended.
const (
	Pass    = "PASS"
	Fail    = "FAIL"
	NA      = "NA"      // it does not apply to the server, or was left out
	Missing = "MISSING" // it was not reported
)

// Outcome is how one test ended.
type Outcome struct {
	// Name is the test's and, where it has several parts, the part's.
	Name string
	// Status is Pass, Fail or NA. A test that reports more than once has its worst.
	Status string
	// Message is what the test said.
	Message string
}

// runner runs tests against a server, all or only those named (a suite that cannot
// choose runs all), in a folder of its own that exists.
type runner func(ctx context.Context, s *minioproc.Server, dir string, only []string) ([]Outcome, error)

// suite is one project's tests.
type suite struct {
	name string
	// server is what it needs of the server.
	server minioproc.Options
	// bound is more than a run takes on a slow machine.
	bound time.Duration
	// prepare makes the tests ready in dir, which is kept until all have run.
	prepare func(ctx context.Context, dir string, out io.Writer) (runner, error)
}

var suites = []suite{
	{"minio-go", minioproc.Options{TLS: true, KMS: true}, 10 * time.Minute, prepareMinioGo},
	{"versitygw", minioproc.Options{KMS: true}, 10 * time.Minute, prepareVersitygw},
	{"s3-tests", minioproc.Options{TLS: true, KMS: true}, 40 * time.Minute, prepareS3Tests},
}

// Suites returns the names of all suites, in the order in which they run.
func Suites() []string {
	var names []string
	for _, s := range suites {
		names = append(names, s.name)
	}
	return names
}

// Options say which servers are compared.
type Options struct {
	// Stock and Plugin are MinIO binaries, PluginArgs the second one's flags.
	Stock, Plugin string
	PluginArgs    []string
	// Out gets what happens as it happens, nil nobody.
	Out io.Writer
}

// Run runs the suite of that name against both servers and compares. ErrAbsent if it
// cannot be had here.
func Run(ctx context.Context, name string, o Options) (c Comparison, err error) {
	c.Suite = name
	i := slices.IndexFunc(suites, func(s suite) bool { return s.name == name })
	if i < 0 {
		return c, fmt.Errorf("%w: %q; there are %s", ErrSuite, name, strings.Join(Suites(), ", "))
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	dir, err := os.MkdirTemp("", "s3rdma-peers-")
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s := suites[i]
	run, err := s.prepare(ctx, dir, o.Out)
	if err != nil {
		return c, fmt.Errorf("%s: %w", name, err)
	}
	fmt.Fprintf(o.Out, "%s: running against stock MinIO and against MinIO with the plugin\n", name)
	if c.Stock, c.Plugin, err = o.both(ctx, s, run, filepath.Join(dir, "1"), nil); err != nil {
		return c, fmt.Errorf("%s: %w", name, err)
	}
	first := compare(c.Stock, c.Plugin)
	if len(first) == 0 {
		return c, nil
	}
	only := make([]string, len(first))
	for i, p := range first {
		only[i] = p.Name
	}
	fmt.Fprintf(o.Out, "%s: %d tests differ; once more, to see whether they do so again\n", name, len(first))
	stock, plugin, err := o.both(ctx, s, run, filepath.Join(dir, "2"), only)
	if err != nil {
		return c, fmt.Errorf("%s: %w", name, err)
	}
	c.Differences, c.Unsteady = settle(first, stock, plugin)
	return c, nil
}

// both runs the tests against a server of either kind at once.
func (o Options) both(ctx context.Context, s suite, run runner, dir string, only []string) (stock, plugin []Outcome, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.bound, fmt.Errorf("took longer than %v", s.bound))
	defer cancel()
	one := func(binary string, args []string, dir string) ([]Outcome, error) {
		server := s.server
		server.Binary, server.Args, server.Dir = binary, args, filepath.Join(dir, "server")
		work := filepath.Join(dir, "work")
		if err := os.MkdirAll(work, 0o755); err != nil {
			return nil, err
		}
		m, err := minioproc.Start(ctx, server)
		if err != nil {
			return nil, err
		}
		defer m.Stop()
		return run(ctx, m, work, only)
	}
	var errStock, errPlugin error
	var wg sync.WaitGroup
	wg.Add(2)
	go func() {
		defer wg.Done()
		if stock, errStock = one(o.Stock, nil, filepath.Join(dir, "stock")); errStock != nil {
			errStock = fmt.Errorf("against stock MinIO: %w", errStock)
			cancel()
		}
	}()
	go func() {
		defer wg.Done()
		if plugin, errPlugin = one(o.Plugin, o.PluginArgs, filepath.Join(dir, "plugin")); errPlugin != nil {
			errPlugin = fmt.Errorf("against MinIO with the plugin: %w", errPlugin)
			cancel()
		}
	}()
	wg.Wait()
	return stock, plugin, errors.Join(errStock, errPlugin, os.RemoveAll(dir))
}
