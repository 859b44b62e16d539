// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package compute keeps CPUs busy with real work and tells how much of it was done: a
// client that computes while it moves objects loses transfer, computation, or both, and
// only somebody who counts both knows which.
//
// The work is a neural network's layer in float32, Y = max(0, X W), with 32 rows of X and
// W of 512 x 512: as much arithmetic as a layer has, over a matrix as large as a core's
// cache, so that it suffers from what pushes it out. One thread for each CPU computes
// layers of its own.
//
// The work is done in a process by itself, so that its CPU time is told apart from the
// client's by the kernel, and the scheduler treats the two as it treats any two
// processes. A [Load] starts that process, a command of the caller's choice that calls
// [Serve]; what has been computed is counted in memory that both share.
//
//	load, err := compute.Start(compute.Options{Command: []string{self, "compute"}, Threads: 2})
//	defer load.Stop()
//	err = load.Resume()
//	before := load.Work() ...
//	err = load.Pause()
//
// # Caveats
//
// Linux only. The process is stopped and continued by signals (SIGSTOP, SIGCONT) and dies
// with the thread that started it, or its parent.
package compute
