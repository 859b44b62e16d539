// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package rawhttp makes S3 requests in which every header is the caller's: which
// are sent, which are signed, which are added behind the signature's back, what the
// payload hash says and how the body is framed.
//
// An SDK can't send what a conformance case has to send (an unsigned descriptor, a
// body beside a descriptor, a signed Content-Length of 0), hence this small client.
// It signs with Signature Version 4 in the header or in the query, retries nothing,
// follows no redirect, and keeps an [Exchange] of each request in which everything
// confidential is hidden, for a failing case to show.
//
// # Caveats
//
// Responses are read into memory: this is for cases, not for moving files.
package rawhttp
