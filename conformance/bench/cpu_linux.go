// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ProcessCPU is the CPU time, user and system, that a process has used with all its
// threads, those that have ended included, in nanoseconds' resolution. What a thread
// that runs at this moment has used since its last tick (some ms) may be missing.
//
// It is the process's CPU clock, see clock_getcpuclockid(3): its identifier is the
// process's with all bits inverted, shifted by 3, and the number 2 for the scheduler's
// clock.
func ProcessCPU(pid int) (time.Duration, error) {
	return clock(int32(^pid<<3|2), fmt.Sprintf("CPU time of process %d", pid))
}

// threadCPU is the CPU time of the calling thread.
func threadCPU() (time.Duration, error) {
	return clock(unix.CLOCK_THREAD_CPUTIME_ID, "CPU time of this thread")
}

func clock(id int32, what string) (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		return 0, fmt.Errorf("read the %s: %w", what, err)
	}
	return time.Duration(t.Nano()), nil
}

// tick is the unit of /proc/stat on every architecture that Go runs on.
const tick = 10 * time.Millisecond

// machineCPU is the time for which the machine's CPUs together were not idle, in
// units of a tick, including what a hypervisor gave to others.
func machineCPU() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseMachineCPU(b)
}

// parseMachineCPU reads the first line of /proc/stat, see proc_stat(5): user nice
// system idle iowait irq softirq steal guest guest_nice; guests are in user already.
func parseMachineCPU(b []byte) (time.Duration, error) {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	f := bytes.Fields(line)
	if len(f) < 9 || string(f[0]) != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q, want cpu and 8 numbers", line)
	}
	var busy time.Duration
	for i, v := range f[1:9] {
		n, err := strconv.ParseInt(string(v), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		if i != 3 && i != 4 { // idle, iowait
			busy += time.Duration(n) * tick
		}
	}
	return busy, nil
}
