// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

// Package cmd holds the files that the builder (adapters/minio/fork) lays into
// MinIO's own package cmd. They see MinIO's unexported identifiers, so they
// compile nowhere else: the build tag s3rdma, which only the builder sets,
// keeps them out of every other build. Their names begin with rdma, to stay clear
// of MinIO's.
//
// Everything starts in init, which adds flags to the server command, wraps its
// action (rdmaStart reads the settings and makes the plugin) and adds three
// middlewares to MinIO's:
//
//	rdmaHideMiddleware     outermost. Takes descriptors out of the request's header,
//	                       in place, so that no trace, audit entry or log of MinIO's
//	                       can show one, and keeps them in the context.
//	rdmaSessionMiddleware  after MinIO's check of dates, before that of bucket names:
//	                       connects and disconnects.
//	rdmaObjectMiddleware   innermost. Requests with a descriptor go through the
//	                       plugin; they get their descriptor back on the way in.
//
// The plugin asks rdmaServer to classify, authenticate and divert. A diverted
// request has no RDMA headers, and a signature that is computed anew with the
// same key, scope and date after the client's own was verified: MinIO's handler
// authenticates and authorizes it as any other. It runs with recorders of its own,
// from which MinIO's statistics and audit learn what it answered and how many
// bytes it moved.
//
// On calls that move no object bytes a descriptor has no effect: it is taken away,
// and where the signature covers it, that is verified and made anew too.
//
// # Caveats
//
// Everything that these files use of MinIO's is listed in fork/hookpoints.go; the
// builder refuses a MinIO that differs there.
//
// A POST to a bucket that matches no route of MinIO's now matches one of ours, so
// that the middlewares run for /.s3rdma-NAME/connect. What is not for the plugin
// is answered as before.
package cmd
