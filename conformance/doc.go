// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance holds any S3-over-RDMA server to the wire behaviour that the
// known clients need, and tells case by case where it differs.
//
// The suite sees a server only as a client does: through HTTP, and through memory
// that it exposes to a fabric. Each [Case] has a stable name, a level, the rule that
// it tests and where that rule comes from:
//
//	report, err := conformance.Run(ctx, conformance.Options{
//		Endpoint: "http://localhost:9000", AccessKey: "...", SecretKey: "...",
//		Fabric: conformance.FabricAuto,
//	})
//	report.WriteTable(os.Stdout)
//
// First it finds out what the server speaks ([Speaks]). Then it runs the cases that
// apply: to a server that serves descriptors of shm, tcp or rc, to one whose RDMA is
// switched off, where a descriptor must still never make an empty object, or to any
// other, at which descriptors of memory that does not exist tell enough.
//
// A case makes requests whose every header is its own (package rawhttp), exposes
// windows with poisoned bytes in, before and behind them, and compares: the answer,
// the window, the guards, and what a client without RDMA then reads over HTTP. All
// answers are searched for the descriptor that was sent: it must not come back.
//
// The cases client/* play known clients ([Models]): what each sends, and what it takes
// for a success. The report says which of them work at this server, and which lose
// data without a word. docs/suite.md has the table, and another from publicly known
// defects to the cases that find them.
//
// What a server was found to do can be stored ([Expectation]), so that the next run
// lists what has become worse.
//
// Whether the suite notices anything is tested on a server that breaks one rule at a
// time (package broken) and on real ones (package trial).
//
// Packages below: wirecount (payload bytes on the wire), rawhttp (requests),
// minioproc (runs a MinIO), peers (other projects' tests), demo and cmd/s3rdma (the
// command).
//
// # Caveats
//
// The suite creates buckets whose names start with "s3rdma-conformance-" and removes
// them; with Options.Bucket it works under a prefix of that bucket. Cases run one
// after another: a bound on transfers at the server is not what is tested here.
//
// A case that cannot run (no TLS, no KMS, no second identity, no session) is
// skipped and says why. Skipped is not passed.
package conformance
