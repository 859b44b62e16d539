// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package peers runs other projects' test suites, unchanged, against a stock MinIO
// and against one with the plugin switched on, and compares test by test: S3 must
// have stayed S3.
//
//	minio-go   its functional tests, over TLS with server-side encryption
//	versitygw  its integration tests, over HTTP
//	s3-tests   Ceph's, over TLS with encryption, where S3TESTS names a checkout
//
// No such suite passes wholly on stock MinIO, so a count of passes means nothing.
// What counts is the list of tests that end differently, or fail for another reason,
// on one server than on the other: it must be empty. Both servers run at once, so
// that the machine's noise meets both.
//
// A test that differs is run once more on both. If each server answers as before, it
// is a difference. If not, the test is unsteady: it is reported as that, with all
// that it did, and does not count.
//
// # What fails on both
//
// Four of minio-go's tests, which are newer than the server: they use checksums (MD5,
// SHA-512 and the XXHash family) that MinIO's last community release does not know,
// and it answers 400 "Invalid checksum provided".
//
// Of versitygw's, about two thirds: they ask for the very words and codes of AWS
// errors, ACLs and website settings, which MinIO does not have, or for users made by
// versitygw's own tool.
//
// # What is left out
//
// Of versitygw's, what needs its IAM service or modes, and five tests that wait more
// than 10 s each for a lock to expire; its runner's table leftOut has the list, and
// they are counted as not applicable. Of s3-tests, what waits for lifecycle rules.
//
// # Caveats
//
// Nothing of those projects is copied here: the tests are built from the modules that
// the go command fetches. That needs the network, or a warm module cache; versitygw's
// needs Go 1.25.
//
// None of these suites sends a memory descriptor: that S3 over RDMA works is for
// package conformance to show.
package peers
