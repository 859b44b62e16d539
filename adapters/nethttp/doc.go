// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package nethttp fits the plugin to any S3 server that is a net/http handler.
//
//	p, err := plugin.New(plugin.Config{Fabrics: ..., Staging: ...})
//	auth := &nethttp.SigV4{Lookup: func(ctx context.Context, accessKey string) (nethttp.Secret, error) {
//		...
//	}}
//	srv := &http.Server{Handler: nethttp.New(p, s3Handler, nethttp.Options{Authenticator: auth})}
//
// The middleware needs two things of an S3 server that its handler does not offer:
// to know which S3 call a request is ([Classify], for path-style and virtual-host
// requests), and who signed it ([Authenticator]; [SigV4] verifies AWS Signature
// Version 4, in the header or presigned, against secrets that the program can look
// up). Authorizing stays the handler's: it gets every request that passes, with the
// object's bytes as an ordinary body, and writes an ordinary answer.
//
// # What the handler sees
//
// A GET is passed on as it came; what the handler writes goes to the client's memory.
// A PUT or UploadPart is a copy whose body and ContentLength are those of the real
// bytes. All headers stay, those of the protocol too, so that a handler that verifies
// the signature itself finds what was signed; three signed values may not fit the
// body any more, though:
//
//   - x-amz-content-sha256: the known clients sign UNSIGNED-PAYLOAD, which does; the
//     hash of an empty body does not.
//   - content-length: 0, where a client signed it.
//   - x-amz-checksum-*: they describe the real bytes, so they do.
//
// [Options.Trusted] is for handlers that verify no signatures: the copy then has no
// headers of the protocol, and UNSIGNED-PAYLOAD.
//
// # Caveats
//
// The middleware must see the request as the client signed it: put it outside of
// anything that changes the path, the host or headers.
//
// Requests without a descriptor pass untouched and unauthenticated: [SigV4] protects
// the fabric, not the handler.
package nethttp
