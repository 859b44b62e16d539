// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package erasure

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"
)

// DefaultRun is the number of blocks read from a shard file at once unless
// [Options.Run] says otherwise: the number at which system calls cease to show
// and the bytes are still in the cache when they are hashed.
const DefaultRun = 4

// maxRun is the number of bits in shard.good.
const maxRun = 64

// Options tune a [Reader]. The zero value is sound.
type Options struct {
	// Run is how many consecutive blocks are read from a shard file by one call,
	// and how many are rebuilt from one set of parity in scratch memory. 0 means
	// [DefaultRun]; at most 64.
	Run int

	// HedgeDelay is how long a run's reads may take before further shards are
	// asked for as well; sources that are then overtaken are cancelled, and come
	// last from then on. 0 means never: a slow source is waited for.
	HedgeDelay time.Duration

	// Scratch lends memory for parity and for shards wanted in part. A Reader
	// takes pieces of one shard each, only when it first needs them (a healthy
	// read of whole blocks needs none), at most max(Run*Parity, Data+Parity) of
	// them, and keeps them until Close. nil means the Go heap.
	Scratch Allocator
}

// Reader reads ranges of one part from its shards, verifies them, and rebuilds
// what is missing. Make it by [Code.NewReader], Reset it for the next part, and
// Close it.
//
// # Ownership
//
// dst of ReadAt belongs to the Reader and its sources during the call. When the
// call has returned, with or without an error, no source writes to it any more:
// the call waits for every read that it has started. A caller may thus hand dst to
// a device, reuse or free it at once. After an error its contents are undefined,
// and must not be served.
//
// # Concurrency
//
// Calls of one Reader are taken one after the other; within a call the shards are
// read in parallel, by goroutines that the Reader starts when it first needs them
// and ends on Close. To fill several stripes at once use several Readers, over
// sources that allow it.
type Reader struct {
	code    *Code
	depth   int // Options.Run
	hedge   time.Duration
	scratch Allocator

	mu     sync.Mutex // serialises the calls
	closed bool
	part   Part
	shards []shard
	cur    run

	queue   chan job // to the workers
	results chan job // from the workers; neither ever blocks a sender
	busy    int      // jobs queued or under way
	workers int
	wg      sync.WaitGroup

	timer  *time.Timer
	cancel *runContext // handed to sources when hedging; reused until cancelled
}

// shard is what a Reader knows of one shard, and its read in the current run.
type shard struct {
	index int
	src   Source
	vec   VectorSource // src, if it is one
	rank  uint8        // in which order it is asked: 0 first
	fault Fault

	// The read of the current run. While the state is readBusy, what stands under
	// it belongs to the worker.
	late  bool // it was under way when the hedge delay had passed
	state readState

	ctx       context.Context
	run       *run
	bufs      [][]byte // where the bytes go: of each block hash, shard, padding
	sums      []byte   // the hashes as they are in the file
	n         int      // bytes read
	err       error    // why no more
	good, bad uint64   // bit x: block x is verified, or does not match its hash
	hash      hasher
}

// The order in which sources are asked, the best first.
const (
	rankSound uint8 = iota
	rankLate        // overtaken once, or demoted by the caller
	rankRotten
	rankFailed
)

type readState uint8

const (
	readIdle readState = iota
	readBusy
	readDone
)

// NewReader returns a Reader of the given part from sources, one for each shard,
// data first: sources[i] is shard i, nil if the caller has none for it. The
// sources stay the caller's, who closes them after the Reader.
//
// The error is [ErrGeometry] if part was made for another geometry or the number
// of sources is not Data+Parity.
func (c *Code) NewReader(part Part, sources []Source, o Options) (*Reader, error) {
	n := c.g.Shards()
	r := &Reader{
		code:    c,
		depth:   min(o.Run, maxRun),
		hedge:   o.HedgeDelay,
		scratch: o.Scratch,
		shards:  make([]shard, n),
	}
	if r.depth <= 0 {
		r.depth = DefaultRun
	}
	r.queue, r.results = make(chan job, max(n, r.depth)), make(chan job, max(n, r.depth))
	if r.scratch == nil {
		r.scratch = heap{}
	}
	r.cur.init(c.g, r.depth)
	bufs := make([][]byte, 3*r.depth*n)
	sums := make([]byte, HashSize*r.depth*n)
	for i := range r.shards {
		s := &r.shards[i]
		s.index, s.run, s.hash.key = i, &r.cur, c.key
		s.bufs = bufs[3*r.depth*i : 3*r.depth*i : 3*r.depth*(i+1)]
		s.sums = sums[HashSize*r.depth*i:][: HashSize*r.depth : HashSize*r.depth]
	}
	if err := r.Reset(part, sources); err != nil {
		return nil, err
	}
	return r, nil
}

// Reset turns the Reader to another part of the same geometry, with sources of its
// own, and forgets all faults. Its goroutines and scratch memory are kept. The
// errors are those of [Code.NewReader], and [ErrClosed].
func (r *Reader) Reset(part Part, sources []Source) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	if part.g != r.code.g {
		return fmt.Errorf("%w: a part of %v (blocks of %d) for a code of %v (blocks of %d)",
			ErrGeometry, part.g, part.g.BlockSize, r.code.g, r.code.g.BlockSize)
	}
	if len(sources) != len(r.shards) {
		return fmt.Errorf("%w: %d sources for %d shards", ErrGeometry, len(sources), len(r.shards))
	}
	r.part = part
	for i, src := range sources {
		s := &r.shards[i]
		s.src, s.rank, s.fault = src, rankSound, Fault{Shard: i}
		s.vec, _ = src.(VectorSource)
		if src == nil {
			s.fault.Kind = FaultAbsent
		}
	}
	return nil
}

// Demote makes shard i one of those that are asked only when they are needed: its
// data is rather rebuilt from other shards. It is for sources that are known to be
// far or slow. It lasts until Reset.
func (r *Reader) Demote(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shards[i].rank = max(r.shards[i].rank, rankLate)
}

// ReadAt fills dst with the bytes [off, off+len(dst)) of the part, verified.
//
// It returns nil when every byte is right, whether or not shards had to be rebuilt
// for it: [Reader.AppendFaults] then tells which. The error is [ErrRange] if the
// range is not in the part, a [*QuorumError] if a block cannot be put together,
// ctx's error if ctx was done first, [ErrClosed], or the Allocator's. On an error
// no byte of dst counts; see also the type's remarks on ownership.
//
// Full blocks whose shards are sound are read straight into dst and not touched
// again; nothing is allocated.
func (r *Reader) ReadAt(ctx context.Context, dst []byte, off int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	if _, err := r.part.Span(off, int64(len(dst))); err != nil {
		return err
	}
	defer r.forget()
	for len(dst) > 0 {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("erasure: read at %d: %w", off, err)
		}
		n := r.cur.begin(r.part, dst, off)
		if err := r.fill(ctx); err != nil {
			return err
		}
		dst, off = dst[n:], off+int64(n)
	}
	return nil
}

// forget drops all references to dst: it is often memory that the garbage
// collector does not manage, and must not find pointers to once it is unmapped.
func (r *Reader) forget() {
	for i := range r.shards {
		s := &r.shards[i]
		clear(s.bufs[:cap(s.bufs)])
	}
	r.cur.forget()
}

// AppendFaults appends to faults what was found wrong with the shards since
// NewReader or Reset, one fault for each shard that is not sound, by shard number,
// and returns the result. Shards that no read needed were not looked at.
// [FaultKind.Damaged] tells which of them to heal.
func (r *Reader) AppendFaults(faults []Fault) []Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.appendFaults(faults)
}

func (r *Reader) appendFaults(faults []Fault) []Fault {
	for i := range r.shards {
		if r.shards[i].fault.Kind != FaultNone {
			faults = append(faults, r.shards[i].fault)
		}
	}
	return faults
}

// Close waits for a call under way, ends the Reader's goroutines and gives back
// the scratch memory. The sources are left open. Further calls of Close do
// nothing; the error is always nil.
func (r *Reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	close(r.queue)
	r.wg.Wait()
	r.cur.free(r.scratch)
	return nil
}

// work is a worker goroutine: it does jobs until the queue is closed.
func (r *Reader) work() {
	defer r.wg.Done()
	for j := range r.queue {
		j.do(r)
		r.results <- j
	}
}

// context returns what to hand to the sources of the next run. Only hedged reads
// need one that can be cancelled apart from the caller's.
func (r *Reader) context(ctx context.Context) context.Context {
	if r.hedge <= 0 {
		return ctx
	}
	if r.cancel == nil || !same(r.cancel.Context, ctx) {
		r.cancel = &runContext{Context: ctx, done: make(chan struct{})}
	}
	return r.cancel
}

// giveUp cancels the reads that are under way.
func (r *Reader) giveUp(err error) {
	if r.cancel != nil {
		r.cancel.stop(err)
		r.cancel = nil
	}
}

// same says whether a and b are known to be one context. Only pointers and the
// background are compared: a context of another kind might not be comparable.
func same(a, b context.Context) bool {
	if a == context.Background() {
		return b == context.Background()
	}
	return reflect.TypeOf(a).Kind() == reflect.Pointer && a == b
}

// runContext is cancelled by the Reader alone, which watches the caller's context
// while reads are under way. So one can serve run after run without a goroutine
// or an allocation.
type runContext struct {
	context.Context
	done chan struct{}
	mu   sync.Mutex
	err  error
}

func (c *runContext) Done() <-chan struct{} { return c.done }

func (c *runContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *runContext) stop(err error) {
	c.mu.Lock()
	c.err = err
	c.mu.Unlock()
	close(c.done)
}
