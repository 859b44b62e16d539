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
// The handler of a diverted request has an object layer of its own, rdmaLayer, which
// embeds MinIO's. What it can it moves past the handler, straight between drives and
// staging memory:
//
//	GET  rdmaGet locks, reads the metadata and checks preconditions as MinIO does,
//	     and returns a reader. When the handler first reads from it, its header is
//	     written: now shards are read to their place (package erasure), while what
//	     was read before leaves by the fabric. Drives open the files, find faults
//	     and queue heals as for MinIO's own reads.
//	PUT  rdmaPut waits for stripes in staging memory. MinIO's hash readers read them
//	     where they lie; rdmaStore computes parity meanwhile, and hands shards to
//	     each drive's CreateFile. MinIO's rename commits.
//
// rdmaNotDirect is the one rule for what goes so, s3rdma_paths_total counts its reasons.
// Drives of other nodes make no difference but for the counter (rdmaReach): the same
// calls of MinIO's StorageAPI give a stream instead of a file.
//
// On calls that move no object bytes a descriptor has no effect: it is taken away,
// and where the signature covers it, that is verified and made anew too.
//
// # Caveats
//
// Everything that these files use of MinIO's is listed in fork/hookpoints.go; the
// builder refuses a MinIO that differs there.
//
// rdmaPut repeats the order of steps of MinIO's putObject and PutObjectPart, which
// cannot be entered half-way; a MinIO that changes them must be compared anew.
//
// A PUT waits for its slowest drive, as MinIO's own does at its end.
//
// A POST to a bucket that matches no route of MinIO's now matches one of ours, so
// that the middlewares run for /.s3rdma-NAME/connect. What is not for the plugin
// is answered as before.
package cmd
