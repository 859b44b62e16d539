// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/s3rdma/s3rdma/conformance/compute"
	"github.com/s3rdma/s3rdma/conformance/tensors"
)

// Op is what a cell measures.
type Op string

// The operations.
const (
	Get Op = "GET"
	Put Op = "PUT"
	// Load reads a file's tensors into aligned memory.
	Load Op = "LOAD"
)

// side is one of the ways that are compared: a client's end and the server that it
// talks to, in a certain state.
type side struct {
	name   string
	server *server
	mover  mover
	fabric string // "" for HTTP
	// before and after put the server into its state for a window and back; nil where
	// there is nothing to do. after is also called when ctx has ended.
	before, after func(ctx context.Context) error
	// healthy is the side without the fault that this one has, or nil.
	healthy *side
	// compute is what keeps the client's CPUs busy in this side's windows, or nil.
	compute *compute.Load
}

// cell is what the sides do.
type cell struct {
	op      Op
	size    int
	workers int
	keys    int // GET and LOAD: the number of objects, which workers share
}

func (c cell) key(worker int) string {
	if c.op == Load {
		return tensorKey(worker % c.keys)
	}
	return objectKey(c.size, worker%c.keys)
}

func objectKey(size, n int) string { return fmt.Sprintf("get/%d/%d", size, n) }

func tensorKey(n int) string { return fmt.Sprintf("model/%d.safetensors", n) }

// window is one measurement of one side.
type window struct {
	took                  time.Duration
	server, client, other time.Duration // CPU time
	ops                   int
	latencies             []time.Duration
	ways                  ways
	written               []string // keys
	// overFabric are the object bytes that the server says it moved over the fabric,
	// byHTTP those that the client moved in HTTP bodies.
	overFabric, byHTTP int64
	work               float64 // floating-point operations computed beside
	alone              float64 // and in a second, when nothing was transferred
	joules             float64
}

// rate is in GiB of objects of the given size per second.
func (w window) rate(size int) float64 {
	return ratio(float64(w.ops)*float64(size)/gib, w.took.Seconds())
}

// otherCores is the load of the machine beside the two processes.
func (w window) otherCores() float64 { return ratio(w.other.Seconds(), w.took.Seconds()) }

// usage is the CPU time used so far, and what else is counted.
type usage struct {
	server, client, compute, machine time.Duration
	joules                           float64
	work                             uint64
}

// usage reads all counters for a side's windows.
func (m *measurer) usage(s *side) (u usage, err error) {
	var errs [5]error
	u.joules, errs[4] = m.energy.joules()
	u.machine, errs[0] = machineCPU()
	if s.compute != nil {
		u.work = s.compute.Work()
		u.compute, errs[3] = ProcessCPU(s.compute.PID())
	}
	u.server, errs[1] = ProcessCPU(s.server.pid)
	u.client, errs[2] = ProcessCPU(os.Getpid())
	return u, errors.Join(errs[:]...)
}

// since is what was used after an earlier reading.
func (u usage) since(was usage, w *window) {
	w.server, w.client = u.server-was.server, u.client-was.client
	w.other = max(0, u.machine-was.machine-w.server-w.client-(u.compute-was.compute))
	w.joules, w.work = u.joules-was.joules, float64(u.work-was.work)
}

// settle waits until a server has little to do: what an earlier window has left to
// it must not count in the next one.
func settle(ctx context.Context, s *server) error {
	const (
		look  = 20 * time.Millisecond
		quiet = look / 20
		most  = 100 // looks
	)
	t := time.NewTicker(look)
	defer t.Stop()
	was, err := ProcessCPU(s.pid)
	if err != nil {
		return err
	}
	for range most {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
		is, err := ProcessCPU(s.pid)
		if err != nil || is-was < quiet {
			return err
		}
		was = is
	}
	return nil
}

// measurer runs windows.
type measurer struct {
	length  time.Duration // of a window, at least
	pattern pattern
	serial  *atomic.Int64 // of keys that were written, for all measurers of a run
	energy  *energyMeter  // nil measures none
	file    []byte        // what LOAD reads
}

// run measures one window of a side: workers repeat the operation until the time is
// over, each at least once. What was received is compared.
func (m *measurer) run(ctx context.Context, s *side, c cell) (w window, err error) {
	if s.before != nil {
		if err := s.before(ctx); err != nil {
			return w, fmt.Errorf("prepare %s: %w", s.name, err)
		}
	}
	if s.after != nil {
		defer func() { err = errors.Join(err, s.after(context.WithoutCancel(ctx))) }()
	}
	for i := range c.workers {
		switch mem := s.mover.mem(i); c.op {
		case Get:
			spoil(mem[:c.size])
		case Put:
			m.pattern.fill(mem[:c.size])
		case Load:
			spoil(mem[:c.size+tensorSpare])
		}
	}
	before, err := s.moved(ctx)
	if err != nil {
		return w, err
	}
	runtime.GC() // not what was left over from before
	if err := settle(ctx, s.server); err != nil {
		return w, err
	}
	if err := m.load(ctx, s, c, &w); err != nil {
		return w, fmt.Errorf("%s %d bytes by %s: %w", c.op, c.size, s.name, err)
	}
	after, err := s.moved(ctx)
	if err != nil {
		return w, err
	}
	w.ways = after.ways
	w.ways.add(before.ways, -1)
	w.overFabric, w.byHTTP = after.overFabric-before.overFabric, after.byHTTP-before.byHTTP
	if c.op == Get {
		for i := range c.workers {
			if at := m.pattern.differs(s.mover.mem(i)[:c.size]); at >= 0 {
				return w, fmt.Errorf("%w: GET %s by %s differs at byte %d", ErrWrongBytes, c.key(i), s.name, at)
			}
		}
	}
	return w, nil
}

// load is the window proper.
func (m *measurer) load(ctx context.Context, s *side, c cell, w *window) error {
	lists := make([]window, c.workers)
	errs := make([]error, c.workers)
	loaded := make([][]tensors.View, c.workers)
	for i := range lists {
		lists[i].latencies = make([]time.Duration, 0, 1<<14)
	}
	var wg sync.WaitGroup
	before, err := m.usage(s)
	if err != nil {
		return err
	}
	started := time.Now()
	for i := range c.workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			l := &lists[i]
			for {
				begun := time.Now()
				switch c.op {
				case Get:
					errs[i] = s.mover.get(ctx, i, c.key(i), c.size)
				case Put:
					key := fmt.Sprintf("put/%d", m.serial.Add(1))
					l.written = append(l.written, key)
					errs[i] = s.mover.put(ctx, i, key, c.size)
				case Load:
					loaded[i], errs[i] = s.mover.(tensorMover).load(ctx, i, c.key(i))
				}
				now := time.Now()
				l.latencies = append(l.latencies, now.Sub(begun))
				if errs[i] != nil || now.Sub(started) >= m.length {
					return
				}
			}
		}()
	}
	wg.Wait()
	w.took = time.Since(started)
	after, err := m.usage(s)
	for i := range lists {
		w.latencies = append(w.latencies, lists[i].latencies...)
		w.written = append(w.written, lists[i].written...)
	}
	w.ops = len(w.latencies)
	after.since(before, w)
	if err := errors.Join(append(errs, err)...); err != nil || c.op != Load {
		return err
	}
	for i, views := range loaded {
		if name := wrongTensor(views, m.file); name != "" {
			return fmt.Errorf("%w: tensor %s of %s", ErrWrongBytes, name, c.key(i))
		}
	}
	return nil
}

// moved is how all operations so far went.
type moved struct {
	ways               ways
	overFabric, byHTTP int64 // object bytes
}

// moved asks both ends: what went by HTTP the client knows, what over the fabric the
// server.
func (s *side) moved(ctx context.Context) (moved, error) {
	m := moved{ways: s.mover.ways(), byHTTP: s.mover.byHTTP()}
	if s.fabric == "" {
		return m, nil
	}
	served, bytes, err := s.server.moved(ctx, s.fabric)
	if err != nil {
		return m, err
	}
	m.ways.add(served, 1)
	m.overFabric = bytes
	return m, nil
}

// quietest returns the n rounds in which the rest of the machine did least, in their
// order. loads has the other load of each round.
func quietest(loads []float64, n int) []int {
	rounds := make([]int, len(loads))
	for i := range rounds {
		rounds[i] = i
	}
	slices.SortStableFunc(rounds, func(a, b int) int { return cmp.Compare(loads[a], loads[b]) })
	rounds = rounds[:min(n, len(rounds))]
	slices.Sort(rounds)
	return rounds
}

// pattern is what objects are made of: random bytes, repeated. The period is no
// multiple of a page or a block, so that bytes at a wrong place show.
type pattern []byte

const patternBytes = 16*mib + 4093

func (p pattern) fill(b []byte) {
	for len(b) > 0 {
		b = b[copy(b, p):]
	}
}

// differs returns where b is not the pattern, or -1.
func (p pattern) differs(b []byte) int {
	for at := 0; at < len(b); at += len(p) {
		part := b[at:min(at+len(p), len(b))]
		if string(part) == string(p[:len(part)]) {
			continue
		}
		for i := range part {
			if part[i] != p[i] {
				return at + i
			}
		}
	}
	return -1
}

// spoil changes a byte of each page and the last one, so that bytes which were not
// written anew cannot pass for such.
func spoil(b []byte) {
	const page = 4096
	for i := 0; i < len(b); i += page {
		b[i] ^= 0x5a
	}
	if n := len(b) - 1; n > 0 && n%page != 0 {
		b[n] ^= 0x5a
	}
}
