// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/conformance/compute"
)

const (
	childVariable = "S3RDMA_BENCH_TEST_BURN"
	burnt         = 60 * time.Millisecond
)

// What this process is instead of tests: the one that computes, or an end of flows.
const (
	computeVariable = "S3RDMA_BENCH_TEST_COMPUTE"
	flowVariable    = "S3RDMA_BENCH_TEST_FLOW"
)

// child makes this process the one that TestProcessCPU looks at, if it is: it burns CPU
// on a thread that then ends, says so, and waits. Or it makes it one of the others.
func child() bool {
	if os.Getenv(flowVariable) != "" {
		if err := ServeFlow(context.Background(), os.Args[1:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return true
	}
	if os.Getenv(computeVariable) != "" {
		n, err := strconv.Atoi(os.Args[len(os.Args)-1])
		if err == nil {
			err = compute.Serve(n)
		}
		fmt.Fprintln(os.Stderr, err)
		return true
	}
	if os.Getenv(childVariable) == "" {
		return false
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		done <- burn(burnt)
	}()
	if err := <-done; err != nil {
		fmt.Println(err)
	}
	fmt.Println("burnt")
	io.Copy(io.Discard, os.Stdin)
	return true
}

// burn uses that much CPU time on this thread.
func burn(d time.Duration) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start, err := threadCPU()
	for now := start; err == nil && now-start < d; {
		now, err = threadCPU()
	}
	return err
}

func cpuOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	d, err := ProcessCPU(pid)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A process's time has that of threads that are gone, and not another process's.
func TestProcessCPU(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	ours := cpuOf(t, os.Getpid())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || strings.TrimSpace(line) != "burnt" {
		t.Fatalf("the child said %q, %v", line, err)
	}
	if got := cpuOf(t, cmd.Process.Pid); got < burnt || got > 100*burnt {
		t.Errorf("the child used %v, want %v and little more", got, burnt)
	}
	if used := cpuOf(t, os.Getpid()) - ours; used >= burnt {
		t.Errorf("we used %v while the child worked: are the two mixed?", used)
	}
	ours = cpuOf(t, os.Getpid())
	if err := burn(burnt); err != nil {
		t.Fatal(err)
	}
	if used := cpuOf(t, os.Getpid()) - ours; used < burnt {
		t.Errorf("we used %v, want at least %v", used, burnt)
	}
}

func TestProcessCPUOfNobody(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Skip(err)
	}
	if d, err := ProcessCPU(cmd.Process.Pid); err == nil {
		t.Errorf("a process that has ended used %v", d)
	}
}

func TestMachineCPU(t *testing.T) {
	before, err := machineCPU()
	if err != nil {
		t.Fatal(err)
	}
	if err := burn(5 * tick); err != nil {
		t.Fatal(err)
	}
	after, err := machineCPU()
	if err != nil {
		t.Fatal(err)
	}
	if after-before < 3*tick {
		t.Errorf("the machine used %v while we used %v", after-before, 5*tick)
	}
}

func TestParseMachineCPU(t *testing.T) {
	got, err := parseMachineCPU([]byte("cpu  1 2 3 1000 2000 4 5 6 100 200\ncpu0 1 2\n"))
	if want := 21 * tick; err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, bad := range []string{"", "cpu", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8 9", "cpu a 2 3 4 5 6 7 8"} {
		if d, err := parseMachineCPU([]byte(bad)); err == nil {
			t.Errorf("%q: %v and no error", bad, d)
		}
	}
}
