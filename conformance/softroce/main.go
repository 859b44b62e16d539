// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Command softroce tests the verbs fabric, and MinIO over it, on Soft-RoCE: it builds the
// test binaries, boots the VM of softroce.sh with them, once on a clean network and once on
// one that loses packets, and counts.
//
//	go run ./conformance/softroce -minio bin/minio
//
// The last line of its output is
//
//	softroce: fabric=verbs passed=N failed=N skipped=N lossy_passed=N lossy_failed=N
//
// With -scale it measures what connections cost instead, and prints a table.
//
// Exit status: 0 if nothing failed and something passed, on both networks; 1 otherwise.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// binary is a test binary, and which of its tests are run: a regular expression.
type binary struct {
	pkg, tests string
	race       bool
	// Tests that are left out, a regular expression too, and why.
	skip, reason string
}

// boot is one life of the VM, and what is run in it.
type boot struct {
	name      string
	options   []string // of softroce.sh
	run       []binary
	maxObject int64  // the largest object of the suite, in bytes; 0: no bound
	cases     string // of the suite, as "s3rdma conform --select" has it; "": all
}

// plan is what is tested: everything on a clean network, and of that what loss can change
// on one that loses packets. There a transfer takes ten times as long, so objects are
// smaller. The fabric's tests are run with the race detector on the clean one, and on the
// other without, which has also what that cannot (count allocations) or takes minutes for.
func plan(loss string) []boot {
	return []boot{
		{name: "clean", options: []string{"--netns2"}, run: []binary{
			{pkg: "rdmaio/verbs", tests: ".", race: true, skip: "TestFabric/ExactBytes", reason: "no concurrency, and a minute with the race detector: run on the lossy network"},
			{pkg: "conformance/e2e", tests: "^TestVerbs"},
			{pkg: "conformance/cmd/s3rdma", tests: "^TestProbe$"},
		}},
		{name: "lossy", options: []string{"--netem", loss}, run: []binary{
			{pkg: "rdmaio/verbs", tests: "^TestFabric$", skip: "TestFabric/CloseRegionDuring", reason: "a refusal whose packets are lost looks like a dead peer: run on the clean network"},
			{pkg: "conformance/e2e", tests: "^TestVerbsSuite$"},
		}, maxObject: 6 << 20,
			// Not refusals, in which nothing moves, nor the arithmetic of checksums.
			cases: "put/,get/,range/,condition/,multipart/,body/,checksum/,metadata/,version/,encryption/,session/,lifecycle/,client/,hipobj/"},
	}
}

// settings are the command line.
type settings struct {
	minio, work, loss, only string
	scale                   bool
	limit                   time.Duration
}

func main() {
	var s settings
	flag.StringVar(&s.minio, "minio", "bin/minio", "MinIO with the plugin")
	flag.StringVar(&s.work, "work", "build/softroce", "folder for test binaries and logs")
	flag.StringVar(&s.loss, "netem", "loss 0.5%", "what the lossy network does, as 'tc netem' has it")
	flag.StringVar(&s.only, "only", "", "run this boot only: clean or lossy")
	flag.BoolVar(&s.scale, "scale", false, "measure what connections cost, instead (docs/scale.md)")
	flag.DurationVar(&s.limit, "limit", 30*time.Minute, "time for each boot; a package has two thirds of it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if s.scale {
		if err := scale(ctx, s); err != nil {
			fmt.Fprintln(os.Stderr, "softroce:", err)
			stop()
			os.Exit(1)
		}
		return
	}
	line, err := run(ctx, s)
	if err != nil {
		fmt.Fprintln(os.Stderr, "softroce:", err)
	}
	fmt.Println(line)
	if err != nil {
		stop()
		os.Exit(1)
	}
}

var errFailed = errors.New("tests failed")

// run does it all, and returns the last line.
func run(ctx context.Context, s settings) (string, error) {
	total := map[string]tally{}
	line := func(broken int) string {
		clean, lossy := total["clean"], total["lossy"]
		return fmt.Sprintf("softroce: fabric=verbs passed=%d failed=%d skipped=%d lossy_passed=%d lossy_failed=%d",
			clean.count(passed), clean.count(failed)+broken, clean.count(skipped), lossy.count(passed), lossy.count(failed))
	}
	var boots []boot
	for _, b := range plan(s.loss) {
		if s.only == "" || s.only == b.name {
			boots = append(boots, b)
		}
	}
	if len(boots) == 0 {
		return line(1), fmt.Errorf("-only %q is neither clean nor lossy", s.only)
	}
	if err := prepare(ctx, &s, boots); err != nil {
		return line(1), err
	}
	ok := true
	for _, b := range boots {
		t, err := s.boot(ctx, b)
		show(b, t)
		if ctx.Err() == nil && (err != nil || t.count(failed) > 0 || t.count(passed) == 0) {
			// Everything here is emulated: when the host stalls for many seconds a healthy
			// peer looks dead, and a boot can fail. What is broken fails twice.
			fmt.Printf("*** %s: FAILED, and is run once more ***\n", b.name)
			t, err = s.boot(ctx, b)
			show(b, t)
		}
		total[b.name] = t
		switch {
		case err != nil && t.count(failed) == 0:
			return line(1), fmt.Errorf("the %s VM: %w (its output is in %s)", b.name, err, s.log(b))
		case t.count(failed) > 0, t.count(passed) == 0:
			ok = false
		}
	}
	if !ok {
		return line(0), errFailed
	}
	return line(0), nil
}

// scale runs the measurement alone.
func scale(ctx context.Context, s settings) error {
	b := boot{name: "scale", options: []string{"--netns2", "--env", "S3RDMA_SCALE=1"},
		run: []binary{{pkg: "conformance/e2e", tests: "^TestVerbsScale$"}}}
	if err := prepare(ctx, &s, []boot{b}); err != nil {
		return err
	}
	t, err := s.boot(ctx, b)
	if err != nil {
		return err
	}
	for _, r := range t.results {
		fmt.Println(strings.Join(r.said, "\n"))
		if r.outcome != passed {
			return fmt.Errorf("%s: %s", r.name, r.outcome)
		}
	}
	return nil
}

// script is what boots the VM.
const script = "conformance/softroce/softroce.sh"

// prepare makes what the boots need: the VM's kernel, and the test binaries. It makes the
// paths of s absolute, because they are the same in the VM.
func prepare(ctx context.Context, s *settings, boots []boot) (err error) {
	for _, p := range []*string{&s.minio, &s.work} {
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	if _, err := os.Stat(s.minio); err != nil {
		return fmt.Errorf("%w (\"make minio\" builds it)", err)
	}
	if err := os.MkdirAll(s.work, 0o755); err != nil {
		return err
	}
	do := func(name string, args ...string) error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		return cmd.Run()
	}
	if err := do("bash", script, "--prepare"); err != nil {
		return fmt.Errorf("prepare the VM: %w (conformance/softroce/README.md lists what it needs)", err)
	}
	built := map[string]bool{}
	for _, b := range boots {
		for _, r := range b.run {
			out := s.binary(r)
			if built[out] {
				continue
			}
			built[out] = true
			args := []string{"test", "-c", "-o", out}
			if r.race {
				args = append(args, "-race")
			}
			if err := do("go", append(args, "./"+r.pkg)...); err != nil {
				return fmt.Errorf("build the tests of %s: %w", r.pkg, err)
			}
		}
	}
	return nil
}

func (s settings) binary(r binary) string {
	name := filepath.Base(r.pkg)
	if r.race {
		name += ".race"
	}
	return filepath.Join(s.work, name+".test")
}

func (s settings) log(b boot) string { return filepath.Join(s.work, b.name+".log") }

// boot runs the tests in a VM and counts. An error is one of the VM, or of a test.
func (s settings) boot(ctx context.Context, b boot) (tally, error) {
	here, err := os.Getwd()
	if err != nil {
		return tally{}, err
	}
	args := append([]string{script, "--disk", "3072", "--mem", "3072", "--timeout", fmt.Sprint(int(s.limit.Seconds())),
		"--env", "S3RDMA_FORK=" + s.minio, "--env", fmt.Sprintf("S3RDMA_MAX_OBJECT=%d", b.maxObject), "--env", "S3RDMA_CASES=" + b.cases, "--env", "S3RDMA_PATIENCE=5m"}, b.options...)
	args = append(args, "--", filepath.Join(here, "conformance/softroce/guest.sh"))
	for _, r := range b.run {
		// What hangs shows its goroutines before the VM's time is over.
		args = append(args, fmt.Sprintf("echo '%s%s' && cd '%s' && exec '%s' -test.v -test.timeout %v -test.run '%s' -test.skip '%s'",
			packageMark, r.pkg, filepath.Join(here, r.pkg), s.binary(r), s.limit*2/3, r.tests, r.skip))
	}

	log, err := os.Create(s.log(b))
	if err != nil {
		return tally{}, err
	}
	defer log.Close()
	fmt.Fprintf(os.Stderr, "== %s network, output in %s\n", b.name, log.Name())
	cmd := exec.CommandContext(ctx, "bash", args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it ends the VM
	cmd.WaitDelay = 30 * time.Second
	both := io.MultiWriter(log, &progress{out: os.Stderr})
	cmd.Stdout, cmd.Stderr = both, both
	started := time.Now()
	failure := cmd.Run()
	fmt.Fprintf(os.Stderr, "== %s network: %.0f s\n", b.name, time.Since(started).Seconds())
	if _, err := log.Seek(0, io.SeekStart); err != nil {
		return tally{}, err
	}
	t, err := read(log)
	return t, errors.Join(failure, err)
}

// progress shows the tests at the top as they end, and what the VM and its kernel say of
// themselves.
type progress struct {
	out  io.Writer
	rest string
}

// Write takes output of the VM.
func (p *progress) Write(b []byte) (int, error) {
	text := p.rest + string(b)
	for {
		line, rest, ok := strings.Cut(text, "\n")
		if !ok {
			break
		}
		text = rest
		for _, prefix := range []string{"--- ", "softroce.sh:", "  guest:", "panic:"} {
			if strings.HasPrefix(line, prefix) {
				fmt.Fprintln(p.out, line)
			}
		}
	}
	p.rest = text
	return len(b), nil
}

// show says what failed, and why what could not be tested was not.
func show(b boot, t tally) {
	for _, r := range t.results {
		switch r.outcome {
		case failed:
			fmt.Printf("%s: FAIL %s\n\t%s\n", b.name, r.name, strings.Join(r.said, "\n\t"))
		case skipped:
			why := "it does not say why"
			if len(r.said) > 0 {
				_, after, found := strings.Cut(r.said[0], ": ")
				if why = strings.TrimSpace(r.said[0]); found {
					why = after
				}
			}
			fmt.Printf("%s: skip %s: %s\n", b.name, r.name, why)
		}
	}
	for _, r := range b.run {
		if r.skip != "" {
			fmt.Printf("%s: skip %s %s: %s\n", b.name, r.pkg, r.skip, r.reason)
		}
	}
	fmt.Printf("%s: passed=%d failed=%d skipped=%d\n", b.name, t.count(passed), t.count(failed), t.count(skipped))
}
