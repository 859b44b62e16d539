// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package compute

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// sharedFD is where the process finds the counters.
	sharedFD = 3
	// line keeps threads' counters out of each other's cache lines.
	line       = 128
	maxThreads = 4096
)

// Options say what computes. Command and Threads are needed.
type Options struct {
	// Command calls Serve, with the number of threads as one more argument.
	Command []string
	// Env is added to its environment, "NAME=value".
	Env []string
	// Threads is the number of threads, 1 to 4096.
	Threads int
	// Launch starts the process, for example pinned to CPUs; nil is (*exec.Cmd).Start.
	Launch func(*exec.Cmd) error
}

// Load is a process that computes while it is not paused. Its methods may be called by
// one goroutine at a time, but for Work, which any may call until Stop.
type Load struct {
	cmd    *exec.Cmd
	shared []byte
	n      int
	exited chan struct{}
	stop   sync.Once
}

// Start starts the process, paused.
func Start(o Options) (_ *Load, err error) {
	if len(o.Command) == 0 || o.Threads < 1 || o.Threads > maxThreads {
		return nil, fmt.Errorf("compute: %d threads of command %q: want 1 to %d, and a command", o.Threads, o.Command, maxThreads)
	}
	fd, err := unix.MemfdCreate("s3rdma-compute", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("compute: make shared memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "counters")
	defer file.Close()
	if err := file.Truncate(int64(o.Threads * line)); err != nil {
		return nil, fmt.Errorf("compute: make shared memory: %w", err)
	}
	l := &Load{n: o.Threads, exited: make(chan struct{})}
	if l.shared, err = unix.Mmap(fd, 0, o.Threads*line, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("compute: map shared memory: %w", err)
	}
	l.cmd = exec.Command(o.Command[0], append(o.Command[1:len(o.Command):len(o.Command)], strconv.Itoa(o.Threads))...)
	l.cmd.Env = append(os.Environ(), o.Env...)
	l.cmd.Stderr = os.Stderr
	l.cmd.ExtraFiles = []*os.File{file} // becomes sharedFD
	// A Ctrl-C is for us, who then end it.
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	launch := o.Launch
	if launch == nil {
		launch = (*exec.Cmd).Start
	}
	if err := launch(l.cmd); err != nil {
		unix.Munmap(l.shared)
		return nil, fmt.Errorf("compute: start %s: %w", o.Command[0], err)
	}
	go func() {
		l.cmd.Wait() // how it ended says nothing: it is killed
		close(l.exited)
	}()
	if err := errors.Join(l.works(), l.Pause()); err != nil {
		l.Stop()
		return nil, err
	}
	return l, nil
}

// PID is the process's.
func (l *Load) PID() int { return l.cmd.Process.Pid }

// Work is the number of floating-point operations done so far, in steps of a row of a
// layer, which takes a CPU less than a millisecond.
func (l *Load) Work() uint64 {
	var sum uint64
	for i := range l.n {
		sum += atomic.LoadUint64(counter(l.shared, i))
	}
	return sum
}

// counter is a thread's; shared memory begins at a page, so it is aligned.
func counter(shared []byte, i int) *uint64 { return (*uint64)(unsafe.Pointer(&shared[i*line])) }

// Resume lets the process compute.
func (l *Load) Resume() error { return l.signal(syscall.SIGCONT) }

// Pause stops the process, and returns when it stands.
func (l *Load) Pause() error {
	if err := l.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return l.wait("stop", func() (bool, error) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", l.PID()))
		if err != nil {
			return false, err
		}
		// proc_stat(5): the state follows the name, which is in parentheses.
		_, after, _ := bytes.Cut(b[bytes.LastIndexByte(b, ')')+1:], []byte(" "))
		return len(after) > 0 && after[0] == 'T', nil
	})
}

// works waits until every thread has done something.
func (l *Load) works() error {
	return l.wait("compute", func() (bool, error) {
		for i := range l.n {
			if atomic.LoadUint64(counter(l.shared, i)) == 0 {
				return false, nil
			}
		}
		return true, nil
	})
}

// wait looks until done, for a bounded time.
func (l *Load) wait(what string, done func() (bool, error)) error {
	const within = 30 * time.Second
	t := time.NewTicker(time.Millisecond)
	defer t.Stop()
	for deadline := time.Now().Add(within); ; {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("compute: the process did not %s within %v", what, within)
		}
		select {
		case <-l.exited:
			return fmt.Errorf("compute: the process ended: %v", l.cmd.ProcessState)
		case <-t.C:
		}
	}
}

func (l *Load) signal(s syscall.Signal) error {
	if err := l.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("compute: %w", err)
	}
	return nil
}

// Stop ends the process and frees the counters. It may be called again.
func (l *Load) Stop() {
	l.stop.Do(func() {
		l.cmd.Process.Kill() // also a process that is paused
		<-l.exited
		unix.Munmap(l.shared)
	})
}

// Serve computes with as many threads until the process is killed. It returns only if
// there are no counters to share.
func Serve(threads int) error {
	if threads < 1 || threads > maxThreads {
		return fmt.Errorf("compute: %d threads", threads)
	}
	shared, err := unix.Mmap(sharedFD, 0, threads*line, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("compute: this is started by the benchmark, not by hand: %w", err)
	}
	runtime.GOMAXPROCS(threads)
	for i := range threads {
		go func() {
			l := newLayer(uint64(i))
			for {
				for r := range rows {
					l.row(r)
					atomic.AddUint64(counter(shared, i), rowWork)
				}
				l.next()
			}
		}()
	}
	select {}
}
