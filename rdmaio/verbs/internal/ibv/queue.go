// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package ibv

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"
)

// Channel is where completion queues tell that they have something.
type Channel struct {
	c   *Context
	h   uintptr
	out *[2]uintptr // where ibv_get_cq_event puts the queue and its context
	pin runtime.Pinner
}

// CreateChannel makes a completion channel.
func (c *Context) CreateChannel() (*Channel, error) {
	h, err := c.lib.object("ibv_create_comp_channel", c.lib.createChannel, c.h)
	if err != nil {
		return nil, err
	}
	ch := &Channel{c: c, h: h, out: new([2]uintptr)}
	ch.pin.Pin(ch.out)
	return ch, nil
}

// FD is the descriptor to wait on. It is libibverbs' own: duplicate it for a poller.
func (ch *Channel) FD() int { return int(ptr[channelHead](ch.h).FD) }

// GetEvent reads an event, and returns which queue it is of, see [CQ.Handle]; 0 if
// there is none, or on an error. FD must be non-blocking. One call at a time. The
// event must be acknowledged before the queue is destroyed, with Ack.
func (ch *Channel) GetEvent() (uintptr, error) {
	p := uintptr(unsafe.Pointer(ch.out))
	r, errno := ch.c.lib.callErrno(ch.c.lib.getCQEvent, ch.h, p, p+unsafe.Sizeof(p))
	if int32(r) == 0 {
		return ch.out[0], nil
	}
	if errno == syscall.EAGAIN {
		return 0, nil
	}
	return 0, fmt.Errorf("ibv_get_cq_event: %w", errno)
}

// Ack acknowledges n events of the queue with this handle.
func (ch *Channel) Ack(cq uintptr, n int) { Call(ch.c.lib.ackCQ, cq, uintptr(n)) }

// Destroy frees the channel. Its queues must be gone.
func (ch *Channel) Destroy() error {
	ch.pin.Unpin()
	return ch.c.lib.status("ibv_destroy_comp_channel", ch.c.lib.destroyChannel, ch.h)
}

// CQ is a completion queue.
type CQ struct {
	lib           *Lib
	h             uintptr
	poll, request uintptr
}

// CreateCQ makes a queue of n entries that tells ch (nil: nobody).
func (c *Context) CreateCQ(n int, ch *Channel) (*CQ, error) {
	var chh uintptr
	if ch != nil {
		chh = ch.h
	}
	h, err := c.lib.object("ibv_create_cq", c.lib.createCQ, c.h, uintptr(n), 0, chh, 0)
	if err != nil {
		return nil, err
	}
	return &CQ{c.lib, h, c.ops().PollCQ, c.ops().ReqNotifyCQ}, nil
}

// Handle is what Channel.GetEvent calls the queue.
func (q *CQ) Handle() uintptr { return q.h }

// Poll takes up to len(wc) completions off the queue. wc must be on the heap, as a
// field of something that lives on is.
func (q *CQ) Poll(wc []WC) (int, error) {
	n := int32(Call(q.poll, q.h, uintptr(len(wc)), uintptr(unsafe.Pointer(unsafe.SliceData(wc)))))
	if n < 0 {
		return 0, fmt.Errorf("ibv_poll_cq: status %d: %w", n, syscall.EIO)
	}
	return int(n), nil
}

// Request asks for an event at the next completion; if solicited, only at that of a
// message whose sender asked for it, or of a failure (drivers differ in the latter).
func (q *CQ) Request(solicited bool) error {
	var only uintptr
	if solicited {
		only = 1
	}
	if r := int32(Call(q.request, q.h, only)); r != 0 {
		return fmt.Errorf("ibv_req_notify_cq: %w", syscall.Errno(r))
	}
	return nil
}

// Destroy frees the queue. It waits until all its events have been acknowledged.
func (q *CQ) Destroy() error { return q.lib.status("ibv_destroy_cq", q.lib.destroyCQ, q.h) }

// QP is a queue pair.
type QP struct {
	lib                *Lib
	h                  uintptr
	Num                uint32
	postSend, postRecv uintptr
	bad                *uintptr // where a failed post says how far it got
	pin                runtime.Pinner
}

func newQP(c *Context, h uintptr) *QP {
	q := &QP{lib: c.lib, h: h, Num: ptr[qpHead](h).QPNum, postSend: c.ops().PostSend, postRecv: c.ops().PostRecv, bad: new(uintptr)}
	q.pin.Pin(q.bad)
	return q
}

// CreateRC makes a reliable connection's queue pair with one queue for its
// completions. What the device can do at most is for the caller to know.
func (p *PD) CreateRC(cq *CQ, cap QPCap) (*QP, error) {
	a := &QPInitAttr{SendCQ: cq.h, RecvCQ: cq.h, Cap: cap, Type: QPTypeRC}
	l := p.c.lib
	var h uintptr
	var err error
	pinned(a, func(ap uintptr) { h, err = l.object("ibv_create_qp", l.createQP, p.h, ap) })
	if err != nil {
		return nil, err
	}
	return newQP(p.c, h), nil
}

// Modify changes what mask says.
func (q *QP) Modify(a QPAttr, mask int) error {
	attr := &a
	var err error
	pinned(attr, func(p uintptr) { err = q.lib.status("ibv_modify_qp", q.lib.modifyQP, q.h, p, uintptr(mask)) })
	return err
}

// State returns the state that the device says the queue pair is in.
func (q *QP) State() (int32, error) {
	a, init := new(QPAttr), new(QPInitAttr)
	var err error
	pinned(a, func(ap uintptr) {
		pinned(init, func(ip uintptr) {
			err = q.lib.status("ibv_query_qp", q.lib.queryQP, q.h, ap, AttrState, ip)
		})
	})
	return a.State, err
}

// PostSend posts the chain that starts at wr. The chain, and the lists that it names,
// must be on the heap and kept alive by the caller. They are the caller's again when
// it returns. If it fails, bad is the address of the first request that was not
// posted.
func (q *QP) PostSend(wr *SendWR) (bad uintptr, err error) {
	if r := int32(Call(q.postSend, q.h, uintptr(unsafe.Pointer(wr)), uintptr(unsafe.Pointer(q.bad)))); r != 0 {
		return *q.bad, postError("ibv_post_send", r)
	}
	return 0, nil
}

// PostRecv posts one receive.
func (q *QP) PostRecv(wr *RecvWR) error {
	if r := int32(Call(q.postRecv, q.h, uintptr(unsafe.Pointer(wr)), uintptr(unsafe.Pointer(q.bad)))); r != 0 {
		return postError("ibv_post_recv", r)
	}
	return nil
}

func postError(what string, r int32) error {
	return fmt.Errorf("%s: %w", what, syscall.Errno(max(r, -r)))
}

// Destroy frees the queue pair; nothing of it is in its completion queue afterwards.
func (q *QP) Destroy() error {
	q.pin.Unpin()
	return q.lib.status("ibv_destroy_qp", q.lib.destroyQP, q.h)
}

// IsNoMemory tells whether err is the kernel's way to say that RLIMIT_MEMLOCK is
// exceeded (or memory is really short).
func IsNoMemory(err error) bool { return errors.Is(err, syscall.ENOMEM) }
