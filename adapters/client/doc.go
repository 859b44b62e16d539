// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package client is an S3 client whose object bytes need not travel in HTTP.
//
// It sends the same signed S3 requests as any client. Where the object's bytes
// lie in, or are to go to, registered memory (a [Buffer]), the request carries a
// descriptor of that memory instead of a body: the server writes a GET into it
// and reads a PUT out of it over the fabric, and the answer has no body either.
//
//	target := shm.NewTarget(shm.TargetOptions{}) // or tcp, or nil: HTTP only
//	c, err := client.New(client.Options{
//		Endpoint:    "http://127.0.0.1:9000",
//		Credentials: client.StaticCredentials(accessKey, secretKey),
//		Target:      target,                         // c closes it
//	})
//	defer c.Close()
//
//	buf, err := c.Alloc(64 << 20)
//	defer buf.Close()
//	put, err := c.Put(ctx, "bucket", "key", buf.View(0, n), client.PutOptions{})
//	got, err := c.Get(ctx, "bucket", "key", buf.All(), client.GetOptions{})
//	use(buf.Bytes()[:got.N])
//
// The first request that can use the fabric opens a session with the server (a
// signed POST to /.s3rdma-NAME/connect). A server that speaks no such thing, or
// that declines, is served over plain HTTP into and out of the same memory; the
// result says which way the bytes went ([Route]) and [Client.Stats] counts it, so
// that no measurement takes one for the other. [ForceFabric] and [ForceHTTP]
// allow one way only.
//
// With a verbs.PairTarget the client speaks hipobj-rc-v2: two requests for each transfer, and
// a HEAD before each GET. What that protocol cannot say (metadata, say) goes by HTTP.
//
// Success is judged strictly, for the memory itself does not tell: the HTTP status
// and the reply header must agree, the byte count must be an exact integer that
// fits the window and the Content-Range, the body must be empty. On GET the checksum
// of exactly the bytes that moved is asked for ([Options.Policy]) and verified, and for a
// whole object the one that is kept with it; block by block, too, if wanted. A PUT always carries the checksum of the real bytes: a server, proxy or cache that
// knows nothing of descriptors then refuses the empty body instead of storing it.
//
// # Memory
//
// A buffer belongs to the caller, who may touch a view's bytes whenever no request
// on it is running. While one runs the memory is the server's (a PUT: do not write;
// a GET: do not touch). When a request has failed, or was cancelled, the server may
// not know yet and may still be moving bytes. Before such a call returns, the
// client withdraws the memory's key ([rdmaio.Exposed].Rekey), after which no
// transfer can reach it. That is the fence: whatever a call returns, the memory is
// the caller's again. If the key cannot be withdrawn, the error is [ErrBufferLost]
// and the buffer refuses all further use.
//
// Any number of requests may run at once, also on disjoint views of one buffer.
// Those share a key: when one fails, the others lose it too, and the client sends
// them again. Independent work should have buffers of its own.
//
// # Caveats
//
// One request moves less than 4 GiB, the width of the descriptor's size field.
// [Client.Upload] and [Client.Download] split what is larger.
//
// The client sends no failed PUT again, and follows no redirects.
//
// Checksums of multipart objects that were composed from checksums of the parts
// cannot be verified from the bytes; [GetResult.Verified] tells.
package client
