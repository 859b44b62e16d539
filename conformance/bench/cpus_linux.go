// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// allowedCPUs are those on which this process may run, each core's threads side by side.
func allowedCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("ask for the CPUs of this process: %w", err)
	}
	var cpus []int
	done := map[int]bool{}
	for i := range 8 * len(set) * 8 {
		if !set.IsSet(i) || done[i] {
			continue
		}
		// Threads of one core share it: they belong to one side.
		siblings := []int{i}
		if b, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i)); err == nil {
			if list, err := parseCPUs(strings.TrimSpace(string(b))); err == nil {
				siblings = list
			}
		}
		for _, s := range append([]int{i}, siblings...) {
			if set.IsSet(s) && !done[s] {
				done[s] = true
				cpus = append(cpus, s)
			}
		}
	}
	return cpus, nil
}

// parseCPUs reads a list such as 0-3,8.
func parseCPUs(s string) (cpus []int, err error) {
	for _, part := range strings.Split(s, ",") {
		from, to, ranged := strings.Cut(part, "-")
		a, err := strconv.Atoi(from)
		b := a
		if err == nil && ranged {
			b, err = strconv.Atoi(to)
		}
		if err != nil || a < 0 || b < a || b > 1<<16 {
			return nil, fmt.Errorf("%q is no list of CPUs", s)
		}
		for ; a <= b; a++ {
			cpus = append(cpus, a)
		}
	}
	return cpus, nil
}

// setThread lets the calling thread, and what it starts, run on these CPUs only.
func setThread(set *unix.CPUSet) error {
	if err := unix.SchedSetaffinity(0, set); err != nil {
		return fmt.Errorf("pin to CPUs: %w", err)
	}
	return nil
}

func cpuSet(cpus []int) *unix.CPUSet {
	var set unix.CPUSet
	for _, c := range cpus {
		set.Set(c)
	}
	return &set
}

// launchOn starts processes on the given CPUs.
func launchOn(cpus []int) func(*exec.Cmd) error {
	return func(cmd *exec.Cmd) error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var was unix.CPUSet
		if err := unix.SchedGetaffinity(0, &was); err != nil {
			return fmt.Errorf("ask for the CPUs of this thread: %w", err)
		}
		if err := setThread(cpuSet(cpus)); err != nil {
			return err
		}
		return errors.Join(cmd.Start(), setThread(&was))
	}
}

// pinSelf lets this process run on the given CPUs only, as if it had been started so,
// until undo is called.
func pinSelf(cpus []int) (undo func() error, err error) {
	var was unix.CPUSet
	if err := unix.SchedGetaffinity(os.Getpid(), &was); err != nil {
		return nil, fmt.Errorf("ask for the CPUs of this process: %w", err)
	}
	procs := runtime.GOMAXPROCS(len(cpus))
	undo = func() error {
		runtime.GOMAXPROCS(procs)
		return pinThreads(&was)
	}
	if err := pinThreads(cpuSet(cpus)); err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// pinThreads pins all threads of this process. A new one inherits from the one that
// makes it, so when a pass finds none to change there will be none.
func pinThreads(set *unix.CPUSet) error {
	const passes = 100
	for range passes {
		tasks, err := filepath.Glob("/proc/self/task/*")
		if err != nil {
			return err
		}
		changed := false
		for _, task := range tasks {
			tid, err := strconv.Atoi(filepath.Base(task))
			if err != nil {
				return err
			}
			var is unix.CPUSet
			if err = unix.SchedGetaffinity(tid, &is); err == nil && is != *set {
				changed = true
				err = unix.SchedSetaffinity(tid, set)
			}
			if err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
				return fmt.Errorf("pin this process to CPUs: %w", err)
			}
		}
		if !changed {
			return nil
		}
	}
	return errors.New("pin this process to CPUs: new threads come faster than they are pinned")
}

// apart makes a process die with us, and leaves a Ctrl-C to us.
func apart(cmd *exec.Cmd) {
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
}
