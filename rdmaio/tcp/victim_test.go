// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// The target in a process of its own, which is this test binary again.

const victimEnv = "S3RDMA_TCP_TEST_VICTIM"

// victim connects with the session and the welcome that stand on stdin, prints a descriptor of as
// many bytes as the environment says, and ends with its stdin.
func victim() int {
	var n int
	fmt.Sscan(os.Getenv(victimEnv), &n)
	var id string
	var w rdmaio.Welcome
	if _, err := fmt.Scan(&id, &w.Token); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var err error
	if w.Session, err = rdmaio.ParseSessionID(id); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	t := NewTarget(Options{})
	if err := t.Connect(context.Background(), w); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	x, err := t.Alloc(n, rdmaio.RemoteRead|rdmaio.RemoteWrite)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	set(x.Bytes(), 1)
	d, err := x.Describe(0, n)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s, err := d.Encode(rdmaio.EncodingSession)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(s)
	io.Copy(io.Discard, os.Stdin)
	t.Close()
	return 0
}

// startVictim returns the process, its descriptor, and what ends it in peace.
func startVictim(tb testing.TB, f *Fabric, n int) (*exec.Cmd, rdmaio.Descriptor, func()) {
	tb.Helper()
	exe, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", victimEnv, n))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	ended := false
	end := func() {
		if !ended {
			ended = true
			stdin.Close()
			cmd.Wait()
		}
	}
	tb.Cleanup(end)
	w := welcome(tb, f)
	if _, err := fmt.Fprintln(stdin, w.Session.Hex(), w.Token); err != nil {
		tb.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		tb.Fatal(err)
	}
	d, _, err := rdmaio.Parse(strings.TrimSpace(line), rdmaio.ParseOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	return cmd, d, end
}

// A process that is killed, and one that is stopped and keeps its connections, in
// the middle of transfers.
func TestTargetProcessDies(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		t.Run(sig.String(), func(t *testing.T) {
			o := quick()
			o.PeerTimeout = 500 * time.Millisecond
			o.FenceLimit = 200 * time.Millisecond
			f := newFabric(t, o)
			before := openFiles(t)
			const size = 8 << 20
			cmd, d, _ := startVictim(t, f, size)
			r, err := f.Register(mapped(t, 2*size))
			if err != nil {
				t.Fatal(err)
			}
			var moved [2]atomic.Int64
			ended := make(chan error, 2)
			for i := range 2 {
				l, err := f.Open(context.Background(), d, testOwner)
				if err != nil {
					t.Fatal(err)
				}
				go func() {
					defer l.Close()
					for {
						s := rdmaio.Slice{Region: r, Off: i * size, Len: size}
						post := l.Write
						if i == 1 {
							post = l.Read
						}
						err := post(context.Background(), s, 0)
						if err == nil {
							err = l.Fence(context.Background())
						}
						if err != nil {
							ended <- err
							return
						}
						moved[i].Add(1)
					}
				}()
			}
			eventually(t, "transfers run", func() bool { return moved[0].Load() > 1 && moved[1].Load() > 1 })
			cmd.Process.Signal(sig)
			start := time.Now()
			for range 2 {
				if err := <-ended; !errors.Is(err, rdmaio.ErrPeerGone) {
					t.Errorf("error %v, want ErrPeerGone", err)
				}
			}
			if took := time.Since(start); took > o.PeerTimeout+2*time.Second {
				t.Errorf("took %v to notice", took)
			}
			eventually(t, "nothing is left", func() bool { return f.live() == 0 })
			cmd.Process.Kill()
			cmd.Wait()
			eventually(t, "descriptors are closed", func() bool { return openFiles(t) <= before })
		})
	}
}

func openFiles(tb testing.TB) int {
	tb.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Skip("no /proc/self/fd here")
	}
	return len(d)
}

// BenchmarkProcesses moves 64 MiB at a time between two processes, and reports
// what each of them spent.
func BenchmarkProcesses(b *testing.B) {
	const size = 64 << 20
	for _, name := range []string{"write", "read"} {
		b.Run(name, func(b *testing.B) {
			f := newFabric(b, Options{Listen: "127.0.0.1:0"})
			cmd, d, end := startVictim(b, f, size)
			mem := mapped(b, size)
			set(mem, 2)
			r, err := f.Register(mem)
			if err != nil {
				b.Fatal(err)
			}
			l, err := f.Open(context.Background(), d, testOwner)
			if err != nil {
				b.Fatal(err)
			}
			post := l.Write
			if name == "read" {
				post = l.Read
			}
			ctx := context.Background()
			once := func() {
				if err := post(ctx, rdmaio.Slice{Region: r, Len: size}, 0); err != nil {
					b.Fatal(err)
				}
				if err := l.Fence(ctx); err != nil {
					b.Fatal(err)
				}
			}
			once()
			b.SetBytes(size)
			b.ReportAllocs()
			mine := cpuTime()
			b.ResetTimer()
			for range b.N {
				once()
			}
			b.StopTimer()
			gib := float64(b.N) * size / (1 << 30)
			b.ReportMetric((cpuTime()-mine).Seconds()/gib, "initiator-s/GiB")
			l.Close()
			end()
			st := cmd.ProcessState
			b.ReportMetric((st.UserTime()+st.SystemTime()).Seconds()/(gib+float64(size)/(1<<30)), "target-s/GiB")
		})
	}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
