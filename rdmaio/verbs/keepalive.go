// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"math"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

// pulse finds out whether the peer of a queue that nothing moves on is still there: by an
// RDMA WRITE of no bytes. The peer's device acknowledges it, touches no memory, looks at no
// key (IBA C9-88), and wakes nobody. Without an answer the queue takes its ordinary course
// with a silent peer. The queue's lock guards it.
type pulse struct {
	q    *queue
	beat link   // whose the request is; nobody else has it
	seen uint64 // the requests that there had been at the last look
	out  bool   // a beat has been posted, and not been seen to end
}

func (p *pulse) init(q *queue) {
	p.q = q
	p.beat.q = q
	p.seen = math.MaxUint64 // there has been no look yet
}

// look posts a beat if nothing has been posted since the last look. q.mu is held.
func (p *pulse) look() {
	q := p.q
	if p.out {
		q.poll()
		if p.beat.inflight == 0 {
			p.out = false
			q.sleepers--
		}
	}
	if q.state == up && !p.out && q.head == q.tail && q.tail == p.seen {
		p.beat.err = nil
		q.add(request{link: &p.beat, op: ibv.WRWrite})
		// An event has to tell how it went: nobody waits for it.
		p.out = true
		q.sleepers++
		q.flush()
		q.rearm()
		q.poll()
	}
	p.seen = q.tail
}

// keepAlive starts looking after idle connections.
func (f *Fabric) keepAlive() {
	if f.opt.KeepAlive < 0 {
		return
	}
	f.conns.Lock()
	defer f.conns.Unlock()
	f.conns.look = time.AfterFunc(f.opt.KeepAlive, f.look)
}

// look takes the pulse of every connection.
func (f *Fabric) look() {
	f.conns.Lock()
	if f.conns.closed {
		f.conns.Unlock()
		return
	}
	f.running.Add(1)
	defer f.running.Done()
	all := make([]*conn, 0, len(f.conns.all))
	for c := range f.conns.all {
		all = append(all, c)
	}
	f.conns.Unlock()
	for _, c := range all {
		c.mu.Lock()
		if c.qp != nil { // else it is being mended, or gone
			c.pulse.look()
		}
		c.mu.Unlock()
	}
	f.conns.Lock()
	defer f.conns.Unlock()
	if !f.conns.closed {
		f.conns.look.Reset(f.opt.KeepAlive)
	}
}
