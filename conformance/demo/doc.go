// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package demo does the project's main job from end to end and proves it: it builds
// a MinIO with the plugin, starts it over temporary drives, moves real files both
// ways over a fabric, compares every byte with what a plain minio-go client reads
// and writes over HTTP, counts on the wire that the fabric client's HTTP payloads
// were empty, runs the conformance suite, and stops what it started.
//
// [Run] is the demonstration, [Interop] the check that the plugin leaves MinIO's
// on-disk format alone: what either build of MinIO wrote the other one reads.
//
// # Caveats
//
// All numbers are measured in the run that prints them. Client, server and drives
// share one machine, so its rates say little about any other; the client's CPU time
// per byte says more.
package demo
