// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"sync/atomic"
)

// Route is the way that an object's bytes went.
type Route uint8

const (
	// Fabric: moved by the server into or out of the client's memory.
	Fabric Route = iota + 1
	// HTTPAsked: by HTTP, because ForceHTTP said so.
	HTTPAsked
	// HTTPPlain: by HTTP, because the client has no target, or the view is plain
	// memory.
	HTTPPlain
	// HTTPSmall: by HTTP, because the object is empty, or smaller than the
	// threshold.
	HTTPSmall
	// HTTPNoSession: by HTTP, because there is no session: the server speaks no
	// such thing, or connecting failed not long ago.
	HTTPNoSession
	// HTTPDeclined: by HTTP, after the server had declined the descriptor.
	HTTPDeclined
	// HTTPIgnored: by HTTP, because the server behaved as if there were no
	// descriptor.
	HTTPIgnored

	routeEnd
)

var routeNames = [routeEnd]string{
	Fabric: "fabric", HTTPAsked: "http (asked)", HTTPPlain: "http (plain memory)", HTTPSmall: "http (small)",
	HTTPNoSession: "http (no session)", HTTPDeclined: "http (declined)", HTTPIgnored: "http (ignored)",
}

// String names the route for people.
func (r Route) String() string {
	if r > 0 && r < routeEnd {
		return routeNames[r]
	}
	return fmt.Sprintf("Route(%d)", uint8(r))
}

// Force restricts how an object's bytes may go.
type Force uint8

const (
	// Auto uses the fabric where it can, else HTTP.
	Auto Force = iota
	// ForceFabric fails with ErrNoFabric or ErrDeclined instead of using HTTP. It
	// also ignores the threshold.
	ForceFabric
	// ForceHTTP sends no descriptor.
	ForceHTTP
)

// Flow counts successful requests and the object bytes that they moved.
type Flow struct{ Requests, Bytes int64 }

// Stats is what a client has done since it was made. Only successes count as flow.
type Stats struct {
	// Gets and Puts are by route; index with a [Route]. Puts include parts.
	Gets, Puts [routeEnd]Flow
	// Failed counts GETs and PUTs that returned an error.
	Failed int64
	// Declined counts answers that declined a descriptor, Ignored those of servers
	// that behaved as if there were none.
	Declined, Ignored int64
	// Repeated counts requests that were sent again on the fabric.
	Repeated int64
	// Rekeys counts the times that a buffer was taken back.
	Rekeys int64
	// Connects and ConnectFailures count attempts to open a session.
	Connects, ConnectFailures int64
}

// FabricBytes is the number of object bytes that moved over the fabric.
func (s Stats) FabricBytes() int64 { return s.Gets[Fabric].Bytes + s.Puts[Fabric].Bytes }

// HTTPBytes is the number of object bytes that moved in HTTP bodies.
func (s Stats) HTTPBytes() int64 {
	var n int64
	for r := HTTPAsked; r < routeEnd; r++ {
		n += s.Gets[r].Bytes + s.Puts[r].Bytes
	}
	return n
}

type flow struct{ requests, bytes atomic.Int64 }

func (f *flow) add(n int) {
	f.requests.Add(1)
	f.bytes.Add(int64(n))
}

func (f *flow) load() Flow { return Flow{Requests: f.requests.Load(), Bytes: f.bytes.Load()} }

type counters struct {
	gets, puts                          [routeEnd]flow
	failed, declined, ignored, repeated atomic.Int64
	rekeys, connects, connectFailures   atomic.Int64
}

// Stats returns the counters. They are read one after the other, not at one
// instant.
func (c *Client) Stats() Stats {
	s := Stats{
		Failed: c.stats.failed.Load(), Declined: c.stats.declined.Load(), Ignored: c.stats.ignored.Load(),
		Repeated: c.stats.repeated.Load(), Rekeys: c.stats.rekeys.Load(),
		Connects: c.stats.connects.Load(), ConnectFailures: c.stats.connectFailures.Load(),
	}
	for r := Fabric; r < routeEnd; r++ {
		s.Gets[r], s.Puts[r] = c.stats.gets[r].load(), c.stats.puts[r].load()
	}
	return s
}
