// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"fmt"
	"sync"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

const (
	// chunkSize is the most that one work request moves. A transfer is cut so that no
	// link holds a connection for long, and a cancelled one ends soon.
	chunkSize = 1 << 20

	// windowSize is the most that is in flight on a connection: 2.5 ms of 100 Gbit/s.
	// More would gain nothing, and prolong every cancellation.
	windowSize = 32 << 20

	// maxSilences is how often a request is tried again whose peer does not answer, but
	// does take part in a restart.
	maxSilences = 1

	// maxChain is the most work requests that are posted by one call.
	maxChain = 64

	// wireTime is how long a packet may take through the fabric after its sender has
	// been stopped, where the peer cannot be asked to refuse it.
	wireTime = 20 * time.Millisecond
)

// request is one RDMA READ or WRITE. Without a length it moves nothing.
type request struct {
	link   *link
	op     int32 // ibv.WRRead, WRWrite or WRWriteImm
	local  uint64
	length uint32
	lkey   uint32
	remote uint64
	rkey   uint32
	imm    uint32 // of ibv.WRWriteImm
}

// endpoint is the queue pair below a queue, and its completion queue. The queue's lock
// is held during every call.
type endpoint interface {
	// post hands requests to the device, in order, under the ids first, first+1, ... It
	// asks for the completion of the last only: a reliable queue pair completes in
	// order. It returns how many the device took.
	post(rs []request, first uint64) (int, error)
	// poll takes completions.
	poll(wc []ibv.WC) (int, error)
	// own tells whether a completion is of a request that post was given.
	own(wc *ibv.WC) bool
	// other handles a completion that is not.
	other(wc *ibv.WC)
	// arm asks for an event at the next completion: any, or one that has something to
	// say to the owner.
	arm(any bool) error
	// fail puts the queue pair in error: it starts nothing any more, and completes what
	// it has been given.
	fail() error
	// restart brings a queue pair back that was in error, and has completed everything.
	// ready is false if that takes longer: the endpoint calls the queue's restarted then,
	// or die. An error means that there is no way back.
	restart() (ready bool, err error)
	// canRestart tells whether restart has any prospect.
	canRestart() bool
	// died is called once when the queue has died.
	died()
}

// queueState says what a queue can do.
type queueState uint8

const (
	up         queueState = iota // requests go out
	broken                       // in error; waiting for the device to complete all
	restarting                   // waiting for the endpoint
	dead                         // for good
)

// queue feeds the requests of any number of links to an endpoint, and deals with what
// comes back. Requests that were flushed because another link's failed are posted
// again, which is safe: a READ or WRITE may be repeated.
type queue struct {
	ep   endpoint
	spin time.Duration // the most to poll before sleeping

	mu    sync.Mutex
	state queueState
	why   error // dead: the reason

	// ring holds the requests [head, tail), at their number modulo its length. Those
	// before posted are with the device; while the queue is not up, those before
	// drained have been completed by it.
	ring                        []request
	head, posted, drained, tail uint64
	bytes                       uint64 // of [head, tail)

	// forced says that requests in flight were cut off, so that packets of theirs may
	// still be under way; lingers, that the time is running after which none can be.
	forced, lingers bool

	// silences counts the times in a row that the peer did not answer a request, but did
	// restart.
	silences int

	// messages are those that the endpoint has sent and that have not been completed.
	messages int

	spinNow  time.Duration // adapts between 0 and spin
	sleepers int           // goroutines that wait for an event
	armed    bool          // an event will tell of any completion
	waiting  []*waiter
	links    map[*link]struct{}
	wc       []ibv.WC
	moved    bool      // something has happened that waiters may wait for
	keep     []request // scratch of resume
}

func (q *queue) init(ep endpoint, depth int, spin time.Duration) {
	q.ep = ep
	q.spin, q.spinNow = spin, spin
	q.ring = make([]request, depth)
	q.keep = make([]request, 0, depth)
	q.links = make(map[*link]struct{})
	q.wc = make([]ibv.WC, 32)
}

// waiter is a goroutine that waits for something of a queue.
type waiter struct {
	link  *link // nil for forEmpty
	what  condition
	wake  chan struct{} // of capacity 1
	index int           // in queue.waiting
}

type condition uint8

const (
	forRoom  condition = iota // the link can post, or has failed
	forIdle                   // nothing of the link is in flight
	forEmpty                  // nothing at all is in flight
	forSent                   // no message of the endpoint is in flight
)

func (q *queue) satisfied(w *waiter) bool {
	switch w.what {
	case forRoom:
		return w.link.err != nil || q.room()
	case forIdle:
		return w.link.inflight == 0
	case forSent:
		return q.messages == 0
	}
	return q.head == q.tail
}

// room tells whether another request can be taken.
func (q *queue) room() bool {
	return q.state == up && q.tail-q.head < uint64(len(q.ring)) && q.bytes < windowSize
}

func (q *queue) slot(n uint64) *request { return &q.ring[n%uint64(len(q.ring))] }

// add takes a request. There is room.
func (q *queue) add(r request) {
	*q.slot(q.tail) = r
	q.tail++
	q.bytes += uint64(r.length)
	r.link.inflight++
}

// flush hands what was added to the device.
func (q *queue) flush() {
	for q.state == up && q.posted < q.tail {
		from := q.posted % uint64(len(q.ring))
		n := min(q.tail-q.posted, maxChain, uint64(len(q.ring))-from)
		done, err := q.ep.post(q.ring[from:from+n], q.posted)
		q.posted += uint64(done)
		if err != nil {
			q.die(fmt.Errorf("verbs: post: %w: %w", err, rdmaio.ErrPeerGone))
		}
	}
}

// poll takes all completions there are, and does what follows from them.
func (q *queue) poll() {
	for {
		n, err := q.ep.poll(q.wc)
		for i := range q.wc[:n] {
			if wc := &q.wc[i]; q.ep.own(wc) {
				q.completed(wc)
			} else {
				q.ep.other(wc)
			}
		}
		if err != nil {
			q.die(fmt.Errorf("verbs: %w: %w", err, rdmaio.ErrPeerGone))
		}
		if n < len(q.wc) {
			break
		}
	}
	q.advance()
	if q.moved {
		q.moved = false
		q.tell()
	}
}

// completed deals with the completion of the request numbered wc.ID, and of those
// before it that have not been asked about.
func (q *queue) completed(wc *ibv.WC) {
	id := wc.ID
	if id < q.head || id >= q.posted {
		return
	}
	switch wc.Status {
	case ibv.WCSuccess:
		q.drop(id + 1)
		q.silences = 0
	case ibv.WCFlush:
		// The queue pair was put in error, by us or, in state up, by the device.
		q.breakDown()
	default:
		q.drop(id) // a reliable queue pair fails in order
		if q.state == up && wc.Status == ibv.WCRetryExc && q.silences < maxSilences && q.ep.canRestart() {
			// The peer, or its queue pair only: Soft-RoCE loses a refusal in the middle of
			// a READ. If the peer is there it will say so, and the request gets another try.
			q.silences++
		} else {
			q.slot(id).link.fail(statusError(wc))
		}
		q.breakDown()
	}
	q.drained = max(q.drained, id+1)
	q.moved = true
}

// breakDown takes the queue out of service until the endpoint is back.
func (q *queue) breakDown() {
	if q.state == up {
		q.state = broken
		q.drained = q.head
		if err := q.ep.fail(); err != nil {
			q.die(fmt.Errorf("verbs: %w: %w", err, rdmaio.ErrPeerGone))
		}
	}
}

// force cuts off what is in flight.
func (q *queue) force() {
	if q.state == up {
		q.forced = q.head < q.posted
		q.breakDown()
		q.advance()
	}
}

// statusError translates a completion status.
func statusError(wc *ibv.WC) error {
	name := ibv.StatusName(wc.Status)
	switch wc.Status {
	case ibv.WCRemAccess, ibv.WCRemInvReq:
		return fmt.Errorf("verbs: target refused the transfer (%s): %w", name, rdmaio.ErrStaleKey)
	case ibv.WCRetryExc, ibv.WCRNRRetryExc, ibv.WCRemOp, ibv.WCBadResp:
		return fmt.Errorf("verbs: no answer from the target (%s): %w", name, rdmaio.ErrPeerGone)
	}
	return fmt.Errorf("verbs: the device cannot reach the target: %s (vendor's code %#x): %w", name, wc.VendorErr, rdmaio.ErrPeerGone)
}

// drop forgets the requests before n: they have ended.
func (q *queue) drop(n uint64) {
	for q.head < n {
		r := q.slot(q.head)
		q.bytes -= uint64(r.length)
		r.link.inflight--
		*r = request{}
		q.head++
		q.moved = true
	}
}

// advance moves a queue on that is out of service.
func (q *queue) advance() {
	if q.state == broken && q.drained == q.posted {
		ready, err := q.ep.restart()
		switch {
		case err != nil:
			q.die(err)
		case ready && q.forced:
			// Nobody can say when no packet is under way any more: wait it out.
			q.state = restarting
			time.AfterFunc(wireTime, func() {
				q.mu.Lock()
				defer q.mu.Unlock()
				q.restarted()
				q.tell()
			})
		case ready:
			q.resume()
		default:
			q.state = restarting
			if !q.forced {
				q.release() // the peer's end is in error, no packet can have an effect
			}
		}
	}
	if q.state == dead && q.drained == q.posted && q.head < q.tail {
		switch {
		case !q.forced:
			q.drop(q.tail)
		case !q.lingers:
			q.lingers = true
			time.AfterFunc(wireTime, func() {
				q.mu.Lock()
				q.forced = false
				q.advance()
				q.tell()
				q.mu.Unlock()
			})
		}
	}
}

// release forgets the requests of links that have failed. Nothing is with the device.
func (q *queue) release() {
	q.keep = q.keep[:0]
	for n := q.head; n < q.tail; n++ {
		if r := *q.slot(n); r.link.err == nil {
			q.keep = append(q.keep, r)
			r.link.inflight++ // drop takes it off again
		}
	}
	q.drop(q.tail)
	q.posted, q.drained = q.head, q.head
	for _, r := range q.keep {
		q.add(r)
		r.link.inflight--
	}
	clear(q.keep)
	q.moved = true
}

// resume puts the queue back in service.
func (q *queue) resume() {
	q.release()
	q.forced = false
	q.state = up
	q.flush()
}

// restarted is how an endpoint ends a restart.
func (q *queue) restarted() {
	if q.state == restarting {
		q.resume()
	}
}

// die ends the queue: every link on it fails with err. What is with the device is
// dropped when the device has completed it.
func (q *queue) die(err error) {
	if q.state == dead {
		return
	}
	if q.state == up {
		q.drained = q.head
		q.ep.fail()
	}
	q.state = dead
	q.why = err
	for l := range q.links {
		l.fail(err)
	}
	q.moved = true
	q.ep.died()
	q.advance()
}

// tell wakes the waiters that have what they wait for.
func (q *queue) tell() {
	for _, w := range q.waiting {
		if q.satisfied(w) {
			select {
			case w.wake <- struct{}{}:
			default:
			}
		}
	}
}

// wait returns true when w is satisfied, false if done is closed first. It polls for a
// while, then sleeps. q.mu is held, but not throughout.
func (q *queue) wait(w *waiter, done <-chan struct{}) bool {
	q.poll()
	if q.satisfied(w) {
		return true
	}
	if q.spinNow > 0 && q.state == up {
		for start := time.Now(); time.Since(start) < q.spinNow; {
			q.mu.Unlock()
			q.mu.Lock()
			q.poll()
			if q.satisfied(w) {
				q.spinNow = min(q.spin, q.spinNow+q.spinNow/4+time.Microsecond)
				return true
			}
		}
		q.spinNow -= q.spinNow / 4
	} else if q.spin > 0 {
		q.spinNow = min(q.spin, q.spinNow+time.Microsecond/4)
	}
	q.sleepers++
	w.index = len(q.waiting)
	q.waiting = append(q.waiting, w)
	for {
		q.rearm()
		q.poll() // what came before the event was asked for makes none
		if q.satisfied(w) || !q.sleep(w, done) {
			break
		}
	}
	q.sleepers--
	last := q.waiting[len(q.waiting)-1]
	q.waiting[w.index] = last
	last.index = w.index
	q.waiting[len(q.waiting)-1] = nil
	q.waiting = q.waiting[:len(q.waiting)-1]
	return q.satisfied(w)
}

// sleep waits for a wake; false if done is closed.
func (q *queue) sleep(w *waiter, done <-chan struct{}) bool {
	q.mu.Unlock()
	defer q.mu.Lock()
	select {
	case <-w.wake:
		return true
	case <-done:
		return false
	}
}

// rearm sees to it that whoever sleeps hears of completions.
func (q *queue) rearm() {
	if q.armed {
		return
	}
	q.armed = q.sleepers > 0
	if err := q.ep.arm(q.armed); err != nil {
		q.die(fmt.Errorf("verbs: %w: %w", err, rdmaio.ErrPeerGone))
	}
}

// event is called by the rail when an event has come.
func (q *queue) event() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.armed = false
	q.rearm()
	q.poll()
}

// shut ends the queue with err: what is in flight has grace to complete, then it is cut
// off and has as long to be flushed. false: the device has not even done that.
func (q *queue) shut(err error, grace time.Duration) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for l := range q.links {
		l.fail(err)
	}
	w := &waiter{what: forEmpty, wake: make(chan struct{}, 1)}
	if q.state == up && !q.waitFor(w, grace) {
		q.forced = true
	}
	q.die(err)
	return q.waitFor(w, max(grace, 10*wireTime))
}

// abandon drops what is in flight: the queue pair has been destroyed.
func (q *queue) abandon() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.drop(q.tail)
	q.posted, q.drained = q.tail, q.tail
	q.tell()
}

// waitFor is wait with a time limit.
func (q *queue) waitFor(w *waiter, limit time.Duration) bool {
	done := make(chan struct{})
	t := time.AfterFunc(limit, func() { close(done) })
	defer t.Stop()
	return q.wait(w, done)
}
