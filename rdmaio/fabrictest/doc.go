// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package fabrictest holds every fabric to the same behaviour, and can make a
// fabric misbehave.
//
// [Run] is the suite. A fabric's own tests call it with a [Harness], which says how
// to make the two ends; [Benchmark] measures with the same harness:
//
//	func TestFabric(t *testing.T) {
//		fabrictest.Run(t, fabrictest.Harness{
//			Fabric: func(tb testing.TB) rdmaio.Fabric { ... },
//			Target: func(tb testing.TB, f rdmaio.Fabric) rdmaio.Target { ... },
//		})
//	}
//
// [Faulty] wraps a fabric so that chosen operations are late, short, lost, wrong or
// refused. Whatever is built on fabrics is tested with it.
//
// # Caveats
//
// Both ends live in one process here. Memory that they share is mapped twice or is
// reached by system calls, neither of which the race detector sees; the suite
// compares bytes instead. A peer that dies with its whole process is up to the
// fabric's own tests.
//
// Error kinds are checked where rdmaio fixes them. Where a NIC cannot tell two of
// them apart (a key that is gone, a window that is too long), either is accepted.
package fabrictest
