// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package verbs is the fabric over RDMA NICs: RoCE or InfiniBand, whatever rdma-core
// drives, Soft-RoCE included.
//
// [Fabric] and [Target] speak RC. The connect exchange is the one that existing RC clients
// know (POST /.s3rdma-rc/connect with 88 hex digits). Between two ends that are both ours a
// session has a second, small queue pair for messages, and outlives a refused or cancelled
// transfer: the data queue pair is then replaced at both ends, which is also the proof that
// no packet sent before can have an effect, and what was in flight for others is repeated.
// With a foreign end a refused transfer ends the session.
//
//	rail      an open port; its two goroutines wait in Go's poller for completions and events
//	queue     requests of many links over one queue pair, bounded, in order, repeated
//	conn      the RC endpoint below a queue     attachment   the other end of it
//	pair      an RC endpoint for one transfer   PairTarget   the other end of it
//	dci       the DC endpoint below a queue     DCTarget     the other end of it
//
// [Fabric.Pair] and [PairTarget] speak RC as hipobj-rc-v2 does, where the peer pushes what it
// stores. Peers of idle connections are asked by empty WRITEs whether they are there.
//
// Whoever waits for a transfer polls for a while that adapts to what pays, then sleeps until
// the rail's goroutine wakes it. Requests are posted in chains of which only the last one is
// signalled; nothing is allocated per request, and no goroutine blocks in C.
//
// [DCFabric] and [DCTarget] speak DC, of mlx5 NICs only, through libmlx5: each request names
// the address, number and access key of its target. [Probe] looks at what a host has, tries
// it, and says in words what is wrong. [Options.SelfTest] does the same at start.
//
// # No cgo
//
// libibverbs and libmlx5 are opened at run time, by purego: one program serves hosts with
// and without them (a host without gets [ErrUnavailable] from New), and building takes Go
// alone. cgo would have kept whoever has no C compiler from verbs, or needed two builds. Its
// gain would be speed, but purego's generic call (100 ns and two allocations, where cgo's
// takes 26 and none) is used for loading only. Post and poll, inline functions in C that call
// through the device's table, go through a trampoline of ours that costs what cgo does:
// BenchmarkCall and BenchmarkPostPoll in internal/ibv measure all three. C structures are
// laid out in Go, and compared with the headers by a test where those are installed.
//
// # Caveats
//
// A program with this package is linked dynamically to the C library, also without cgo:
// purego needs it. For a static one (Alpine, empty containers) leave verbs out by the build
// tag noverbs; New then says so. It runs on Linux on amd64 and arm64 (arm64: compiled, not
// yet run).
//
// DC HAS NOT RUN ON HARDWARE. It is written to the documentation of mlx5dv, compiled against
// the layout of Debian's headers, and tested against a recording fake of the provider. The
// owner finds out with "s3rdma probe".
//
// A window of a [Target] with memory windows does not outlive the data queue pair: after a
// refused transfer descriptors have to be made anew. Soft-RoCE does not check the bounds of
// windows; it gets none unless [WindowsOn] says so. It also misses wake-ups of its own, which
// cost a time-out of 0.27 s each.
//
// Keys travel in clear text, as all of RoCE and InfiniBand does: whoever can inject packets
// into the fabric and guesses 24 bits can write. Only a session's own window keys, and an
// encrypted fabric, help.
package verbs
