// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package staging holds the initiator's registered memory.
//
// An S3 server that moves object bytes by one-sided transfers needs memory of its
// own between disk and fabric. Registering memory with a NIC is slow, so a [Pool]
// does it once: it maps one page-aligned, off-heap area at start, registers the
// whole of it with each fabric that the server serves, and cuts it into slabs of
// equal size. A request takes a [Lease] on a few slabs, streams the object through
// them (disk to slab, slab to fabric, or the reverse), and gives them back:
//
//	pool, err := staging.New(staging.Options{Size: 1 << 30}, shmFabric, tcpFabric)
//	...
//	lease, err := pool.Acquire(ctx, identity, objectSize)
//	if errors.Is(err, staging.ErrBusy) { /* 503 SlowDown */ }
//	defer lease.Release()
//	n, err := io.ReadFull(disk, lease.Bytes(0))
//	err = link.Write(ctx, lease.Slab(0, fabric), 0)
//	err = link.Fence(ctx)
//
// # Admission
//
// Memory is bounded, so admission is what keeps a server fair under load. A lease is
// all its slabs at once or nothing: a request that held some while it waited for
// more could deadlock with another. Who finds too few waits in a queue, first come
// first served among the requests of one caller, and round robin among callers: a
// caller with a thousand waiting requests and one with a single request take turns.
// While anybody waits nobody overtakes: free slabs are saved up for whoever is next,
// so that small requests do not starve a big one. A caller may hold a certain share
// of the pool ([Options.MaxPerCaller]); beyond it, its requests come after those of
// callers within their share. Slabs never lie idle while somebody could use them:
// with nobody else waiting, a caller may have the whole pool.
//
// The wait is bounded ([Options.Wait]); then the answer is [ErrBusy], which leaves
// time for a client whose whole budget is ten seconds. A waiter costs no goroutine,
// and a release wakes exactly those that it serves.
//
// # Whose bytes are in a slab
//
// A slab is not cleared between leases unless [Options.Scrub] asks for it. Another
// request's bytes cannot be seen nevertheless, because no part of a slab leaves the
// process before this lease has filled it. No peer can reach staging by itself: it is
// the local side of transfers, registered without remote access, and no descriptor
// of it exists. On GET just the bytes that a disk read has delivered are posted. On
// PUT, bytes are used only once Fence has returned nil, which means that every byte
// asked for has arrived; a short transfer is an error, and nothing is stored. Nor
// can a transfer of an earlier lease still write, if the rule of [Lease.Release] is
// kept: fence first. Scrub is for those who want a second line of defence against
// defects in that chain, at about 0.1 CPU seconds a GiB.
//
// # Caveats
//
// Registered memory is pinned by real NICs, which needs RLIMIT_MEMLOCK of at least
// the pool's size. The memory is left out of core dumps and of forked processes.
// Linux only.
package staging
