// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package erasure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// fill reads the current run: first the shards that should do, then others for
// those that fail or are late, until every block has what it needs. When it
// returns, no read is under way any more.
func (r *Reader) fill(ctx context.Context) error {
	for i := range r.shards {
		r.shards[i].state, r.shards[i].late = readIdle, false
	}
	down := r.context(ctx)
	err := r.start(down)
	var alarm <-chan time.Time
	var ended <-chan struct{}
	if r.hedge > 0 {
		alarm, ended = r.setAlarm(), ctx.Done()
	}
	for r.busy > 0 {
		if err != nil {
			r.giveUp(err)
			alarm, ended = nil, nil
		}
		switch s, what := r.await(alarm, ended); what {
		case eventEnded:
			err = ctx.Err()
		case eventAlarm:
			alarm = nil
			err = r.startHedge(down)
		case eventRead:
			r.busy--
			r.judge(down, s)
			switch {
			case err != nil:
			case r.complete():
				r.overtake()
			case ctx.Err() != nil:
				err = ctx.Err()
			default:
				err = r.startMore(down)
			}
		}
	}
	if r.hedge > 0 {
		r.timer.Stop()
	}
	switch {
	case err == nil || err == errHopeless:
	case err == ctx.Err():
		return fmt.Errorf("erasure: read of block %d: %w", r.cur.first, err)
	default:
		return err
	}
	return r.finish()
}

// finish rebuilds what is missing of the run and delivers it.
func (r *Reader) finish() error {
	for x := range r.cur.blocks {
		if !r.cur.complete(x) {
			return r.quorumError(x)
		}
	}
	var err error
	for x := range r.cur.blocks {
		var needed bool
		if needed, err = r.cur.plan(x, r.code, r.scratch); err != nil {
			break
		}
		if needed {
			r.enqueue(job{block: x}, true)
		}
	}
	for r.busy > 0 {
		x := r.next().block
		r.busy--
		if err == nil {
			err = r.cur.blocks[x].err
		}
	}
	if err != nil {
		return err
	}
	for x := range r.cur.blocks {
		r.cur.deliver(x)
	}
	return nil
}

// errHopeless says within fill that no further shard can help.
var errHopeless = errors.New("erasure: no more shards")

type event uint8

const (
	eventRead event = iota
	eventAlarm
	eventEnded
)

// await waits for the next read to end, or what else may happen when hedging.
func (r *Reader) await(alarm <-chan time.Time, ended <-chan struct{}) (*shard, event) {
	if r.hedge <= 0 {
		return r.next().shard, eventRead
	}
	select {
	case j := <-r.results:
		return j.shard, eventRead
	case <-alarm:
		return nil, eventAlarm
	case <-ended:
		return nil, eventEnded
	}
}

// next returns a job that is done. The caller's goroutine does a worker's part
// meanwhile: one hand-over less.
func (r *Reader) next() job {
	select {
	case j := <-r.queue:
		j.do(r)
		return j
	default:
		return <-r.results
	}
}

func (r *Reader) setAlarm() <-chan time.Time {
	if r.timer == nil {
		r.timer = time.NewTimer(r.hedge)
	} else {
		r.timer.Reset(r.hedge)
	}
	return r.timer.C
}

// complete says whether no block needs another read.
func (r *Reader) complete() bool {
	for x := range r.cur.blocks {
		if !r.cur.complete(x) {
			return false
		}
	}
	return true
}

// start asks for the shards that are wanted if all of them are sound as far as is
// known, and otherwise for as many of the best as there are data shards.
func (r *Reader) start(ctx context.Context) error {
	var wanted shardSet
	sound, sources := true, 0
	for i := range r.shards {
		s := &r.shards[i]
		for x := range r.cur.blocks {
			if r.cur.wants(x, i) {
				wanted.add(i)
			}
		}
		if wanted.has(i) && (s.src == nil || s.rank != rankSound) {
			sound = false
		}
		if s.src != nil {
			sources++
		}
	}
	if !sound && sources >= r.code.g.Data {
		_, err := r.ask(ctx, r.code.g.Data)
		return err
	}
	for i := range r.shards {
		if s := &r.shards[i]; wanted.has(i) && s.src != nil {
			if err := r.dispatch(ctx, s); err != nil {
				return err
			}
		}
	}
	return r.startMore(ctx)
}

// startMore asks for as many further shards as are missing in the worst block,
// not counting on those that are late. The error is errHopeless if even with these
// there are not enough.
func (r *Reader) startMore(ctx context.Context) error {
	var coming shardSet
	busy, late := 0, 0
	for i := range r.shards {
		switch s := &r.shards[i]; {
		case s.state == readBusy && s.late:
			late++
		case s.state == readBusy:
			coming.add(i)
			busy++
		}
	}
	need, worst := 0, 0
	for x := range r.cur.blocks {
		if r.cur.complete(x) || r.cur.holds(x, &coming) {
			continue
		}
		if n := r.code.g.Data - r.cur.blocks[x].sound - busy; n > need {
			need, worst = n, x
		}
	}
	got, err := r.ask(ctx, need)
	if err != nil || need <= got+late {
		return err
	}
	for i := range r.shards {
		if r.shards[i].state == readBusy {
			coming.add(i)
		}
	}
	if r.cur.holds(worst, &coming) {
		return nil
	}
	return errHopeless
}

// startHedge marks the reads under way as late and asks for so many further shards
// that none of those is needed, as far as there are.
func (r *Reader) startHedge(ctx context.Context) error {
	need := 0
	for x := range r.cur.blocks {
		if !r.cur.complete(x) {
			need = max(need, r.code.g.Data-r.cur.blocks[x].sound)
		}
	}
	for i := range r.shards {
		r.shards[i].late = r.shards[i].state == readBusy
	}
	_, err := r.ask(ctx, need)
	return err
}

// overtake is called when the run is complete: what is still under way is given up,
// and if it was late, its source comes last from now on.
func (r *Reader) overtake() {
	if r.busy == 0 {
		return
	}
	for i := range r.shards {
		if s := &r.shards[i]; s.state == readBusy && s.late {
			r.blame(s, FaultSlow, r.cur.first, nil)
		}
	}
	r.giveUp(ErrSlow)
}

// ask starts reading the n best of the shards that are not yet read, data before
// parity, or all of them if there are fewer, and says how many.
func (r *Reader) ask(ctx context.Context, n int) (int, error) {
	for got := range n {
		var best *shard
		for i := range r.shards {
			s := &r.shards[i]
			if s.src == nil || s.state != readIdle {
				continue
			}
			if best == nil || s.rank < best.rank {
				best = s
			}
		}
		if best == nil {
			return got, nil
		}
		if err := r.dispatch(ctx, best); err != nil {
			return got, err
		}
	}
	return n, nil
}

// dispatch queues the read of shard s in all blocks of the run.
func (r *Reader) dispatch(ctx context.Context, s *shard) error {
	if err := r.cur.reserve(r.scratch, s.index); err != nil {
		return err
	}
	s.ctx, s.state = ctx, readBusy
	s.bufs = s.bufs[:0]
	for x := range r.cur.blocks {
		cell, pad := r.cur.home(x, s.index)
		s.bufs = append(s.bufs, s.sums[x*HashSize:(x+1)*HashSize], cell)
		if len(pad) > 0 {
			s.bufs = append(s.bufs, pad)
		}
	}
	r.enqueue(job{shard: s}, r.hedge <= 0)
	return nil
}

// enqueue hands a job to the workers. helped says that the caller will call next,
// so that one worker less is needed.
func (r *Reader) enqueue(j job, helped bool) {
	r.busy++
	workers := r.busy
	if helped {
		workers--
	}
	if r.workers < workers {
		r.workers++
		r.wg.Add(1)
		go r.work()
	}
	r.queue <- j
}

// job is what a worker does: read a shard in all blocks of the run, or rebuild a
// block.
type job struct {
	shard *shard // nil: rebuild
	block int
}

func (j job) do(r *Reader) {
	if j.shard != nil {
		j.shard.read()
	} else {
		r.cur.rebuild(j.block)
	}
}

// read fetches and verifies one shard of the run. It is what workers do; it
// touches nothing of the Reader's but s and the memory of its cells.
func (s *shard) read() {
	u := s.run
	s.good, s.bad = 0, 0
	off, total := u.part.FileOffset(u.first), vecLen(s.bufs)
	if s.vec != nil {
		s.n, s.err = s.vec.ReadVAt(s.ctx, s.bufs, off)
	} else {
		s.n, s.err = readEach(s.ctx, s.src, s.bufs, off)
	}
	switch {
	case s.n >= total:
		s.n, s.err = total, nil
	case s.err == nil:
		s.err = io.ErrUnexpectedEOF
	}
	end := 0
	for x := range u.blocks {
		if end += HashSize + u.blocks[x].shard; end > s.n {
			break
		}
		cell, pad := u.home(x, s.index)
		if *s.hash.of(cell, pad) == [HashSize]byte(s.sums[x*HashSize:]) {
			s.good |= 1 << x
		} else {
			s.bad |= 1 << x
		}
	}
}

// judge takes note of what came of a read.
func (r *Reader) judge(ctx context.Context, s *shard) {
	u := &r.cur
	s.state = readDone
	s.ctx = nil
	end, cut := 0, int64(-1)
	for x := range u.blocks {
		k := &u.blocks[x]
		switch bit := uint64(1) << x; {
		case s.good&bit != 0:
			k.ok[s.index] = true
			k.sound++
		case s.bad&bit != 0:
			r.blame(s, FaultCorrupt, u.first+int64(x), nil)
		}
		if end += HashSize + k.shard; end > s.n && cut < 0 {
			cut = u.first + int64(x)
		}
	}
	if s.err == nil {
		return
	}
	if ctx.Err() != nil && (isContextError(s.err) || errors.Is(s.err, ErrSlow)) {
		return // it was told to stop
	}
	r.blame(s, kindOf(s.err), cut, s.err)
}

// blame records a fault of shard s and asks it later from now on.
func (r *Reader) blame(s *shard, kind FaultKind, block int64, err error) {
	rank := rankFailed
	switch kind {
	case FaultSlow:
		rank = rankLate
	case FaultCorrupt:
		rank = rankRotten // other blocks of it may be sound
	}
	s.rank = max(s.rank, rank)
	if kind > s.fault.Kind {
		s.fault = Fault{Shard: s.index, Kind: kind, Block: block, Err: err}
	}
}

func (r *Reader) quorumError(x int) error {
	return &QuorumError{
		Block:  r.cur.first + int64(x),
		Need:   r.code.g.Data,
		Have:   r.cur.blocks[x].sound,
		Faults: r.appendFaults(nil),
	}
}
