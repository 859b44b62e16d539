// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package fabrictest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// ErrInjected is wrapped by every error that a faulty fabric makes, beside the
// kind of rdmaio that it stands for.
var ErrInjected = errors.New("injected fault")

// Op is a set of fabric operations that a fault can hit.
type Op uint8

const (
	OpOpen Op = 1 << iota
	OpWrite
	OpRead
	OpFence

	// OpTransfer is either direction.
	OpTransfer = OpWrite | OpRead
)

// Kind is what goes wrong.
type Kind uint8

const (
	// Delay holds the operation back for Fault.Delay, or until its context ends. On a
	// transfer that is the post, on OpFence the completion.
	Delay Kind = iota + 1

	// Short moves only the first half of the transfer. The fence reports an error,
	// rdmaio.ErrPeerGone unless Fault.Err says another.
	Short

	// Drop loses the completion: the bytes move, but Fence returns only when its
	// context ends, with the context's error. Close does not wait.
	Drop

	// Flip inverts one byte of the transfer, at the destination, and reports nothing.
	// It is in the middle of the bytes, and wrong once the fence has returned.
	Flip

	// Revoke refuses the operation with rdmaio.ErrStaleKey; nothing moves.
	Revoke

	// Die refuses the operation with rdmaio.ErrPeerGone after the first half of its
	// bytes has moved. The link is down; other links live on.
	Die

	// Refuse makes the operation fail with Fault.Err, rdmaio.ErrNoSession if that is
	// nil; nothing moves. It is how an open is refused.
	Refuse
)

var kindNames = [...]string{Delay: "delay", Short: "short", Drop: "drop", Flip: "flip", Revoke: "revoke", Die: "die", Refuse: "refuse"}

// String returns the kind's name.
func (k Kind) String() string {
	if int(k) < len(kindNames) && k != 0 {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Fault is one thing that goes wrong, and when.
type Fault struct {
	Kind Kind

	// Op says which operations count and are hit. 0 means OpOpen for Refuse and
	// OpTransfer otherwise. Short, Drop, Flip and Die only ever hit transfers; on
	// OpOpen and OpFence only Delay, Revoke and Refuse do something.
	Op Op

	// Nth hits the nth of these operations, counted from 1 over the whole fabric. 0
	// means each of them, subject to Prob.
	Nth int

	// Prob hits with this probability, if it is above 0 and Nth is 0.
	Prob float64

	// Delay is how long Delay takes.
	Delay time.Duration

	// Err replaces the error of Short, Revoke, Die and Refuse.
	Err error
}

// Plan says what goes wrong. The zero value breaks nothing.
type Plan struct {
	// Faults are tried in this order for each operation; the first that applies hits.
	Faults []Fault

	// Seed makes the probabilities repeatable, as far as the order of operations is.
	Seed uint64

	// OnFault is called, if set, when a fault hits, from whichever goroutine.
	OnFault func(Op, Fault)
}

// Faulty wraps f so that operations fail as the plan says. It is an
// rdmaio.Acceptor if f is one. It keeps the fence rule: what a fault leaves
// outstanding is fenced below before Fence or Close return. Closing it closes f.
//
// Posts through it may allocate.
func Faulty(f rdmaio.Fabric, plan Plan) rdmaio.Fabric {
	w := &faulty{Fabric: f, plan: plan, seen: make([]int, len(plan.Faults)), rng: rand.New(rand.NewPCG(plan.Seed, 0))}
	if a, ok := f.(rdmaio.Acceptor); ok {
		return struct {
			*faulty
			rdmaio.Acceptor
		}{w, a}
	}
	return w
}

type faulty struct {
	rdmaio.Fabric
	plan Plan

	mu   sync.Mutex
	seen []int // operations that each fault has counted
	rng  *rand.Rand
}

// hit counts an operation and returns the fault that hits it, or nil.
func (f *faulty) hit(op Op) *Fault {
	f.mu.Lock()
	var found *Fault
	for i := range f.plan.Faults {
		fault := &f.plan.Faults[i]
		ops := fault.Op
		if ops == 0 {
			ops = OpTransfer
			if fault.Kind == Refuse {
				ops = OpOpen
			}
		}
		if ops&op == 0 {
			continue
		}
		f.seen[i]++
		if found != nil || fault.Nth > 0 && f.seen[i] != fault.Nth {
			continue
		}
		if fault.Nth == 0 && fault.Prob > 0 && f.rng.Float64() >= fault.Prob {
			continue
		}
		found = fault
	}
	f.mu.Unlock()
	if found != nil && f.plan.OnFault != nil {
		f.plan.OnFault(op, *found)
	}
	return found
}

// err is the error of a fault: its own, or the kind that it stands for.
func (f *Fault) err(kind error) error {
	if f.Err != nil {
		kind = f.Err
	}
	return fmt.Errorf("%s: %w: %w", f.Kind, ErrInjected, kind)
}

// refusal is the error of a fault that stops an operation before it begins.
func (f *Fault) refusal() error {
	switch f.Kind {
	case Revoke:
		return f.err(rdmaio.ErrStaleKey)
	case Refuse:
		return f.err(rdmaio.ErrNoSession)
	}
	return nil
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *faulty) Open(ctx context.Context, d rdmaio.Descriptor, owner string) (rdmaio.Link, error) {
	if fault := f.hit(OpOpen); fault != nil {
		if err := fault.refusal(); err != nil {
			return nil, err
		}
		if fault.Kind == Delay {
			if err := pause(ctx, fault.Delay); err != nil {
				return nil, err
			}
		}
	}
	l, err := f.Fabric.Open(ctx, d, owner)
	if err != nil {
		return nil, err
	}
	return &faultyLink{f: f, inner: l}, nil
}

// faultyLink is used by one goroutine at a time, as every link.
type faultyLink struct {
	f     *faulty
	inner rdmaio.Link

	err     error // the first failure, which ended the link
	late    error // a failure that the next fence reports
	dropped bool  // a completion is lost
	flips   []flip
	closed  bool
}

// flip is a byte that must be wrong after the next fence.
type flip struct {
	op    Op
	slice rdmaio.Slice
	at    uint64
}

func (l *faultyLink) Write(ctx context.Context, src rdmaio.Slice, at uint64) error {
	return l.post(ctx, OpWrite, l.inner.Write, src, at)
}

func (l *faultyLink) Read(ctx context.Context, dst rdmaio.Slice, at uint64) error {
	return l.post(ctx, OpRead, l.inner.Read, dst, at)
}

func (l *faultyLink) post(ctx context.Context, op Op, inner func(context.Context, rdmaio.Slice, uint64) error, s rdmaio.Slice, at uint64) error {
	if l.closed {
		return fmt.Errorf("post on a closed link: %w", rdmaio.ErrClosed)
	}
	if l.err != nil {
		return fmt.Errorf("post on a faulty fabric: %w", rdmaio.ErrLinkDown)
	}
	return l.fail(l.posted(ctx, op, inner, s, at))
}

func (l *faultyLink) posted(ctx context.Context, op Op, inner func(context.Context, rdmaio.Slice, uint64) error, s rdmaio.Slice, at uint64) error {
	fault := l.f.hit(op)
	if fault == nil {
		return inner(ctx, s, at)
	}
	if err := fault.refusal(); err != nil {
		return err
	}
	half := s
	half.Len /= 2
	switch fault.Kind {
	case Delay:
		if err := pause(ctx, fault.Delay); err != nil {
			return err
		}
	case Short:
		l.late = fault.err(rdmaio.ErrPeerGone)
		return inner(ctx, half, at)
	case Die:
		if err := inner(ctx, half, at); err != nil {
			return err
		}
		return fault.err(rdmaio.ErrPeerGone)
	case Drop:
		l.dropped = true
	case Flip:
		if s.Len > 0 {
			middle := rdmaio.Slice{Region: s.Region, Off: s.Off + s.Len/2, Len: 1}
			l.flips = append(l.flips, flip{op, middle, at + uint64(s.Len/2)})
		}
	}
	return inner(ctx, s, at)
}

// fail notes the first failure.
func (l *faultyLink) fail(err error) error {
	if l.err == nil {
		l.err = err
	}
	return err
}

func (l *faultyLink) Fence(ctx context.Context) error {
	if l.closed {
		return fmt.Errorf("fence a closed link: %w", rdmaio.ErrClosed)
	}
	if l.err != nil {
		// The fence rule holds for what had been posted before the fault.
		l.inner.Fence(ctx)
		return l.err
	}
	return l.fail(l.fence(ctx))
}

func (l *faultyLink) fence(ctx context.Context) error {
	fault := l.f.hit(OpFence)
	if l.dropped {
		<-ctx.Done()
	}
	if fault != nil && fault.Kind == Delay && !l.dropped {
		if err := pause(ctx, fault.Delay); err != nil {
			l.inner.Fence(ctx)
			return err
		}
	}
	err := l.inner.Fence(ctx)
	if err == nil && l.dropped {
		err = ctx.Err()
	}
	if err == nil && fault != nil {
		err = fault.refusal()
	}
	if err == nil {
		err = l.late
	}
	if err == nil {
		err = l.applyFlips(ctx)
	}
	return err
}

// applyFlips inverts the bytes that are to be wrong, at the end that received
// them. The source is the caller's, and other goroutines may be reading it: a
// wrong byte for the target comes from memory of our own.
func (l *faultyLink) applyFlips(ctx context.Context) error {
	flips := l.flips
	l.flips = nil
	for _, fl := range flips {
		b := fl.slice.Bytes()
		if fl.op == OpRead {
			b[0] = ^b[0]
			continue
		}
		if err := l.writeByte(ctx, ^b[0], fl.at); err != nil {
			return err
		}
	}
	return nil
}

func (l *faultyLink) writeByte(ctx context.Context, v byte, at uint64) (err error) {
	mem, err := syscall.Mmap(-1, 0, syscall.Getpagesize(), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return fmt.Errorf("flip a byte: mmap a page: %w", err)
	}
	mem[0] = v
	r, err := l.f.Fabric.Register(mem)
	if err != nil {
		syscall.Munmap(mem)
		return fmt.Errorf("flip a byte: %w", err)
	}
	err = l.inner.Write(ctx, rdmaio.Slice{Region: r, Len: 1}, at)
	if ferr := l.inner.Fence(ctx); err == nil {
		err = ferr
	}
	if cerr := r.Close(); err == nil {
		err = cerr
	}
	if merr := syscall.Munmap(mem); err == nil {
		err = merr
	}
	return err
}

func (l *faultyLink) Close() error {
	if l.closed {
		return nil
	}
	l.closed = true
	return l.inner.Close()
}
