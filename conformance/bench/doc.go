// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package bench measures what an S3 server and its client spend on moving objects:
// MinIO with the plugin, whose bytes go over a fabric, and MinIO without it, whose
// bytes go by HTTP. Both run at the same time over drives of their own and are
// measured in turns (A B A B ...), each turn a window of some operations. What is
// told is the median of the windows and their spread, and every figure also as a
// ratio: to HTTP in the same run, and to its floor, the same bytes in a bare loop that
// does no more than it must (see [Floors]).
//
// [Modes] is what users ask: what does a client gain that moves objects or loads tensors,
// and what if it computes meanwhile? [UnderLoad] asks so of a bad network. [Run] measures
// every operation, size and number of requests at once, [Direct] the direct path.
//
//	report, err := bench.Modes(ctx, bench.Options{Fork: fork, Stock: stock, Compute: command})
//	report.WriteTable(os.Stdout)
//	report.WriteHTML(page)
//
// # How it is measured
//
// CPU seconds are those of a process's own clock in the kernel, to the nanosecond, with
// all its threads. The server is a process by itself. The client is this process, which
// does nothing else in a window. Nothing is subtracted: what a server does by itself is
// in its figure, and told apart in [Environment.Idle].
//
// Throughput is object bytes over the time from the first request's start to the last
// one's end. Latency is around each request, its percentiles of all windows together.
//
// Beside a busy client another process computes on all of the client's CPUs (package
// compute); the server has CPUs of its own. What is kept of the transfers and what of the
// computation are both told: which of them gives way is the scheduler's choice.
//
// The way that bytes went is not taken from what was asked for: the server's counter
// (s3rdma_paths_total) tells direct, writer and diverted, and how many bytes there were
// (s3rdma_bytes_total), the client's what went by HTTP after all.
//
// The HTTP client is net/http with connections kept open, 64 KiB buffers, bodies read
// straight into memory that is reused, an unsigned payload, and no checksum: as little
// as an HTTP client can do. The fabric's client is this project's; on PUT it computes
// the checksum (CRC64NVME) that it always declares, on GET neither side verifies any.
//
// A tensor load reads a safetensors file by ranges: its header, then each run of tensors
// to where they stay, aligned; by HTTP through a bounce buffer.
//
// GETs are compared byte for byte after each window. PUTs are read back by HTTP and
// compared.
//
// # Caveats
//
// Client and servers share the machine. Its other load (a window's Other, in cores) moves
// all figures; with Options.Quiet the quietest windows count. A busy client can be faster
// than an idle one: its CPUs do not sleep between packets.
//
// Writes that the kernel does later, and the interrupts of devices, are nobody's CPU
// time here. PUTs wait for the drives (O_DIRECT, fdatasync): their throughput is the
// disk's wherever that is the slowest part. On tmpfs MinIO writes without O_DIRECT.
//
// Numbers over loopback and shared memory compare two ways on one machine. They say
// nothing about a network, and must not stand beside those of one.
package bench
