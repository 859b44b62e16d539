// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/s3rdma/s3rdma/conformance"
	"github.com/s3rdma/s3rdma/conformance/tensors"
)

// Kinds of failure that callers tell apart with errors.Is.
var (
	// ErrOptions: the options contradict each other or name something unknown.
	ErrOptions = errors.New("invalid options")
	// ErrWrongBytes: what came back is not what was stored.
	ErrWrongBytes = errors.New("wrong bytes")
	// ErrUnsupported: the system cannot do what measuring needs. CPU time needs Linux.
	ErrUnsupported = errors.New("this cannot be measured here")
)

// Options say what is measured. Fork and Stock are needed.
type Options struct {
	// Fork is a MinIO with the plugin, Stock one without it.
	Fork, Stock string
	// Dir is where the drives go, in a folder of their own that is removed; "" is the
	// folder for temporary files. What it lies on (disk, tmpfs) rules PUTs.
	Dir string
	// Drives is their number on each server; 0 is 4.
	Drives int
	// Fabrics are shm, tcp, rc; none is shm.
	Fabrics []string
	// Device is for rc.
	Device conformance.Device
	// Ops are measured; none is both.
	Ops []Op
	// Sizes of objects in bytes, Concurrency numbers of requests at once; none are 64
	// KiB to 1 GiB, and 1, 4 and 16.
	Sizes       []int64
	Concurrency []int
	// Repeat is the number of windows of each side; 0 is 5. Window is the least length
	// of one; 0 is 500 ms.
	Repeat int
	Window time.Duration
	// Memory bounds the clients' buffers together, in bytes; what would need more is
	// left out. 0 is 4 GiB.
	Memory int64
	// Quiet is the load of the rest of the machine, in cores, above which a window is
	// measured again, at most Repeat times for each cell; then the quietest count. 0
	// takes all as they come.
	Quiet float64
	// Profile is a folder for CPU profiles of the servers, one for each side of each
	// cell, taken after the cell was measured; "" takes none.
	Profile string
	// Compute is a command that calls compute.Serve with the number that it is given as
	// its last argument, ComputeEnv what is added to its environment; for Modes.
	Compute, ComputeEnv []string
	// Model is what Modes loads; none is tensors.Small.
	Model tensors.Transformer
	// Searches is how often Modes searches for the crossover; 0 is 5.
	Searches int
	// Network is what UnderLoad measures over.
	Network Network
	// Timeout bounds a request on the fabric, beside the time for its bytes; 0 is the
	// client's own default. Ready bounds a server's start; 0 is a minute.
	Timeout, Ready time.Duration
	// ForkArgs are further arguments for the fork.
	ForkArgs []string
	// Command says in reports how to repeat the run.
	Command string
	// Out gets what happens as it happens, in lines; nil nobody.
	Out io.Writer
	// Progress is told of every step, and how many there will be as far as known; nil
	// nobody.
	Progress func(done, total int, what string)
}

func (o *Options) fill() error {
	if len(o.Sizes) == 0 {
		for s := int64(64 * kib); s <= gib; s *= 4 {
			o.Sizes = append(o.Sizes, s)
		}
	}
	if len(o.Concurrency) == 0 {
		o.Concurrency = []int{1, 4, 16}
	}
	if len(o.Ops) == 0 {
		o.Ops = []Op{Get, Put}
	}
	if len(o.Fabrics) == 0 {
		o.Fabrics = []string{"shm"}
	}
	orDefault(&o.Drives, 4)
	orDefault(&o.Repeat, 5)
	orDefault(&o.Window, 500*time.Millisecond)
	orDefault(&o.Memory, 4*gib)
	if o.Out == nil {
		o.Out = io.Discard
	}
	switch {
	case o.Fork == "" || o.Stock == "":
		return fmt.Errorf("%w: Fork and Stock must name MinIO binaries", ErrOptions)
	case slices.Min(o.Sizes) < 1 || slices.Max(o.Sizes) >= 4*gib:
		return fmt.Errorf("%w: Sizes must be 1 byte to less than 4 GiB", ErrOptions)
	case slices.Min(o.Concurrency) < 1 || slices.Max(o.Concurrency) > 256:
		return fmt.Errorf("%w: Concurrency must be 1 to 256", ErrOptions)
	case o.Drives < 4 || o.Drives > 16:
		return fmt.Errorf("%w: Drives must be 4 to 16", ErrOptions)
	case o.Repeat < 1 || o.Window < 0 || o.Memory < 0 || o.Quiet < 0 || o.Searches < 0:
		return fmt.Errorf("%w: Repeat, Window, Memory, Quiet and Searches cannot be negative", ErrOptions)
	}
	return nil
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// bench is a run under way.
type bench struct {
	o      Options
	dir    string
	m      measurer
	report Report
	// checked is the memory in which servers' objects are made and compared.
	checked []byte
	// launch starts servers; nil does so plainly.
	launch launcher
	// wire is the network between client and servers; nil is none.
	wire *wire
	// done steps of total have been taken.
	done, total int
	// undo is run in reverse when the run ends, however it ends.
	undo []func() error
}

// newBench makes the folder and what all runs need.
func newBench(o Options, title string) (*bench, error) {
	dir, err := os.MkdirTemp(o.Dir, "s3rdma-bench-")
	if err != nil {
		return nil, err
	}
	b := &bench{o: o, dir: dir}
	b.undo = append(b.undo, func() error { return os.RemoveAll(dir) })
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], 0x5eed)
	b.m = measurer{length: o.Window, pattern: make([]byte, patternBytes), serial: new(atomic.Int64), energy: newEnergyMeter(powercap)}
	rand.NewChaCha8(key).Read(b.m.pattern) // never fails
	b.report = Report{Title: title, Started: time.Now().UTC(), Command: o.Command, Environment: environment(dir, o)}
	b.report.Environment.Energy = b.m.energy.text()
	return b, nil
}

func (b *bench) close() (err error) {
	for _, f := range slices.Backward(b.undo) {
		err = errors.Join(err, f())
	}
	return err
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.o.Out, format+"\n", args...) }

// plan says how many steps there will be, more that there are others.
func (b *bench) plan(steps int) { b.done, b.total = 0, steps }
func (b *bench) more(steps int) { b.total += steps }

// step begins the next step.
func (b *bench) step(format string, args ...any) {
	if b.done++; b.o.Progress != nil {
		b.total = max(b.total, b.done)
		b.o.Progress(b.done, b.total, fmt.Sprintf(format, args...))
	}
}

// start starts a server that ends with the run.
func (b *bench) start(ctx context.Context, name, binary string, fabrics []string, args ...string) (*server, error) {
	so := serverOptions{name: name, binary: binary, dir: b.dir, drives: b.o.Drives, fabrics: fabrics, memory: b.checked, launch: b.launch, ready: b.o.Ready, args: args}
	if len(fabrics) > 0 {
		so.args = append(slices.Clone(b.o.ForkArgs), args...)
	}
	if b.wire != nil {
		so.host = b.wire.server
	}
	s, err := startServer(ctx, so)
	if err != nil {
		return nil, err
	}
	b.undo = append(b.undo, func() error { s.stop(); return nil })
	b.report.Environment.addVersion(ctx, name, binary)
	return s, nil
}

// startBoth starts the two servers that are compared.
func (b *bench) startBoth(ctx context.Context) (fork, stock *server, err error) {
	if fork, err = b.start(ctx, "fork", b.o.Fork, b.o.Fabrics); err != nil {
		return nil, nil, err
	}
	stock, err = b.start(ctx, "stock", b.o.Stock, nil)
	return fork, stock, err
}

// overFabric makes a side whose client has a buffer of its own for each worker.
func (b *bench) overFabric(ctx context.Context, name, fabric string, s *server, workers []int64) (*side, error) {
	f, err := newOverFabric(ctx, s, fabric, b.o.Device, b.o.Timeout, workers)
	if err != nil {
		return nil, err
	}
	b.undo = append(b.undo, f.close)
	return &side{name: name, server: s, mover: f, fabric: fabric}, nil
}

// overHTTP makes a side by HTTP.
func (b *bench) overHTTP(name string, s *server, workers []int64) *side {
	var memory [][]byte
	for _, n := range workers {
		m := make([]byte, n)
		b.m.pattern.fill(m) // touches it
		memory = append(memory, m)
	}
	h := newPlainHTTP(s.Endpoint, s.Root, memory...)
	b.undo = append(b.undo, h.close)
	return &side{name: name, server: s, mover: h}
}

// load is one of the cells' sizes and numbers of requests at once.
type load struct {
	size    int64
	workers int
}

// fitting decides which loads fit into Memory, the smaller ones first, and the buffers for
// them: of worker i the largest of the sizes that run with more than i workers. clients
// clients have such buffers each, and one of the largest size is for checking.
func (o *Options) fitting(clients int) (buffers []int64, fits map[load]bool) {
	var all []load
	for _, s := range o.Sizes {
		for _, c := range o.Concurrency {
			all = append(all, load{s, c})
		}
	}
	slices.SortStableFunc(all, func(a, b load) int { return cmp.Compare(a.size*int64(a.workers), b.size*int64(b.workers)) })
	fits = map[load]bool{}
	for _, l := range all {
		with := append(slices.Clone(buffers), make([]int64, max(0, l.workers-len(buffers)))...)
		var sum int64
		for i := range with {
			if i < l.workers {
				with[i] = max(with[i], l.size)
			}
			sum += with[i]
		}
		if sum*int64(clients)+with[0] <= o.Memory {
			buffers, fits[l] = with, true
		}
	}
	return buffers, fits
}

// Run measures the fork by each fabric against stock by HTTP. The report is valid also
// with an error, as far as the run came. When ctx ends, Run ends the servers, removes
// their drives, and returns ctx's error.
func Run(ctx context.Context, o Options) (report Report, err error) {
	if err := o.fill(); err != nil {
		return report, err
	}
	b, err := newBench(o, "MinIO with the plugin by fabric, against stock MinIO by HTTP")
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, b.close()); report = b.report }()
	clients := len(o.Fabrics) + 1
	workers, fits := o.fitting(clients)
	if len(workers) == 0 {
		return report, fmt.Errorf("%w: %d bytes of Memory are not enough for a single request of %d clients", ErrOptions, o.Memory, clients)
	}
	b.checked = make([]byte, workers[0])
	b.say("starting MinIO with and without the plugin over %d drives each in %s", o.Drives, b.dir)
	fork, stock, err := b.startBoth(ctx)
	if err != nil {
		return report, err
	}
	var sides []*side
	for _, f := range o.Fabrics {
		s, err := b.overFabric(ctx, f, f, fork, workers)
		if err != nil {
			return report, err
		}
		sides = append(sides, s)
	}
	sides = append(sides, b.overHTTP("http", stock, workers))
	if err := b.idle(ctx, fork, stock); err != nil {
		return report, err
	}
	for _, size := range o.Sizes {
		if err := b.size(ctx, int(size), sides, []*server{fork, stock}, fits); err != nil {
			return report, err
		}
	}
	return report, nil
}

// idle measures what servers use when nobody asks for anything.
func (b *bench) idle(ctx context.Context, servers ...*server) error {
	const look = 500 * time.Millisecond
	b.report.Environment.Idle = map[string]float64{}
	for _, s := range servers {
		if err := settle(ctx, s); err != nil {
			return err
		}
		before, err := ProcessCPU(s.pid)
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(look):
		}
		after, err := ProcessCPU(s.pid)
		if err != nil {
			return err
		}
		b.report.Environment.Idle[s.name] = ratio((after - before).Seconds(), look.Seconds())
	}
	return nil
}

// size measures the cells of a size.
func (b *bench) size(ctx context.Context, size int, sides []*side, servers []*server, fits map[load]bool) error {
	var fitting []int
	for _, c := range b.o.Concurrency {
		if fits[load{int64(size), c}] {
			fitting = append(fitting, c)
		} else {
			b.report.LeftOut = append(b.report.LeftOut, fmt.Sprintf("%s, %d at once: more than %s of buffers", bytesText(int64(size)), c, bytesText(b.o.Memory)))
		}
	}
	if len(fitting) == 0 {
		return nil
	}
	// Not more than the page cache surely keeps.
	keys := min(max(256*mib/size, 1), slices.Max(fitting))
	for _, s := range servers {
		if err := s.fill(ctx, b.m.pattern, size, keys); err != nil {
			return err
		}
	}
	f, err := newFloor(size, servers[0].folders(b.o.Drives, objectKey(size, 0)), sides[0].mover.mem(0), servers[0].dir)
	if err != nil {
		return fmt.Errorf("measure the floor: %w", err)
	}
	defer f.close()
	var floors []floorParts
	var rows []*rowBuilder
	for _, op := range b.o.Ops {
		for _, c := range fitting {
			b.say("%s %s, %d at once", op, bytesText(int64(size)), c)
			rs, fs, err := b.cell(ctx, cell{op: op, size: size, workers: c, keys: keys}, sides, f)
			if err != nil {
				return err
			}
			rows, floors = append(rows, rs...), append(floors, fs...)
		}
	}
	b.finish(rows, floorsOf(f.base, floors))
	for _, s := range servers {
		var all []string
		for i := range keys {
			all = append(all, objectKey(size, i))
		}
		if err := s.remove(ctx, all); err != nil {
			return err
		}
	}
	return nil
}

// rowBuilder collects a side's windows.
type rowBuilder struct {
	side    *side
	cell    cell
	windows []window // those that count, by round
}

// cell measures all sides in turns, and the floor with them. Of the rounds the quietest
// count.
func (b *bench) cell(ctx context.Context, c cell, sides []*side, f *floor) (rows []*rowBuilder, floors []floorParts, err error) {
	for _, s := range sides {
		rows = append(rows, &rowBuilder{side: s, cell: c})
	}
	var loads []float64
	rounds := b.o.Repeat
	for round := 0; round < rounds; round++ {
		parts, err := f.measure()
		if err != nil {
			return nil, nil, err
		}
		floors = append(floors, parts)
		load := 0.0
		for _, r := range rows {
			if round == 0 { // the first use of anything is slower
				if _, err := b.turn(ctx, measurer{pattern: b.m.pattern, serial: b.m.serial}, r.side, c); err != nil {
					return nil, nil, err
				}
			}
			w, err := b.turn(ctx, b.m, r.side, c)
			if err != nil {
				return nil, nil, err
			}
			load = max(load, w.otherCores())
			r.windows = append(r.windows, w)
		}
		loads = append(loads, load)
		if b.o.Quiet > 0 && load > b.o.Quiet && rounds < 2*b.o.Repeat {
			rounds++
		}
	}
	chosen := quietest(loads, b.o.Repeat)
	for _, r := range rows {
		var windows []window
		for _, i := range chosen {
			windows = append(windows, r.windows[i])
		}
		r.windows = windows
	}
	if b.o.Profile != "" {
		for _, s := range sides {
			if err := b.profile(ctx, s, c); err != nil {
				return nil, nil, err
			}
		}
	}
	return rows, floors, nil
}

// turn measures one window. Of what it wrote, one object is read back and compared, and
// all is removed.
func (b *bench) turn(ctx context.Context, m measurer, s *side, c cell) (window, error) {
	w, err := m.run(ctx, s, c)
	if err == nil && len(w.written) > 0 {
		err = errors.Join(s.server.check(ctx, b.m.pattern, w.written[0], c.size), s.server.remove(ctx, w.written))
		w.written = nil
	}
	return w, err
}
