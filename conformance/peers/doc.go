// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package peers runs other projects' tests, unchanged, against a stock MinIO and
// against one with the plugin, and compares test by test: S3 must have stayed S3.
//
// No such suite passes wholly on stock MinIO, so a count of passes means nothing.
// What counts is the list of tests that pass on one server and not on the other: it
// must be empty.
//
// # Caveats
//
// Nothing of those projects is copied here: the tests are built from the module that
// the go command fetches. That needs the network, or a warm module cache.
//
// Some of those tests depend on time. A difference counts only if a second run of
// both shows it again.
package peers
