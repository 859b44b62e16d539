// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// heartbeat is the longest silence while a step runs: whoever watches a log
// should see within this time that the build is alive.
const heartbeat = 10 * time.Second

// progress prints plain lines, each with the seconds since the start.
type progress struct {
	mu    sync.Mutex
	w     io.Writer
	start time.Time
}

func newProgress(w io.Writer) *progress { return &progress{w: w, start: time.Now()} }

// say prints one line. It may be called by several goroutines at once.
func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "[%5.1fs] %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}

// during runs f and calls status for a line every heartbeat until f returns.
func (p *progress) during(status func() string, f func() error) error {
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		t := time.NewTicker(heartbeat)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				p.say("%s", status())
			case <-done:
				return
			}
		}
	}()
	err := f()
	close(done)
	<-stopped
	return err
}
