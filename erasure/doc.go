// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package erasure reads and writes erasure-coded objects in place: shards go
// straight from their files to their final place in the caller's memory, and from
// there to their files, with no copy in between. It works on byte slices and small
// interfaces; that the memory is registered, and whose the files are, it does not
// know. The format is MinIO's, as stock MinIO reads and writes it.
//
// A [Geometry] comes from metadata and is checked; with a size it gives a [Part],
// the layout of one part of an object. A [Code] is what is computed once for a
// geometry: keep one for each. It makes the [Reader] and the [Encoder].
//
// A GET keeps two stripes of memory and two goroutines: one fills a stripe while
// the other sends the one before. Stripes end at the ends of blocks (8 MiB is enough),
// so that only the first and the last of a range touch scratch memory:
//
//	r, err := code.NewReader(part, sources, erasure.Options{Scratch: pool})
//	defer r.Close()            // then close the sources, then unlock the object
//	for stripe := range stripes {
//		dst := <-free          // stripe n-2 has left: its memory is ours again
//		if err := r.ReadAt(ctx, dst[:n], off); err != nil { ... } // answer 503, or fall back
//		full <- dst[:n]        // stripe n leaves while n+1 is read
//	}
//	for _, f := range r.AppendFaults(nil) {
//		if f.Kind.Damaged() { ... } // queue a heal, as the server's own read does
//	}
//
// A source for a local drive is [OpenFile], for a shard inside the metadata
// [Bytes]; for a remote drive it is the server's own stream, whose reads are in
// order while nothing fails. For the parts of a multipart object, [Reader.Reset].
// Nothing is sent before ReadAt has verified it, and an error says that nothing
// counts, so a fall-back can start afresh at the same offset.
//
// A PUT keeps a few slots, one being read from the client, one being encoded, one
// being written. A slot is the memory of a stripe, a scratch of [Code.ScratchSize],
// and an Encoder, whose tables name pieces of both until the stripe is written:
//
//	for s := range slots { // read in full, in order
//		if err := s.enc.Encode(s.stripe, s.scratch); err != nil { ... }
//		for i := range drives { // in parallel; s is free when all are done
//			err = erasure.WriteVAt(files[i], s.enc.Shard(i), off[i])
//		}
//	}
//
// Where drives are written with O_DIRECT, [Vec.CopyAt] fills the aligned buffers:
// that copy takes the place of the one into the page cache. A shard file is
// complete at [Part.FileSize]; the rename that commits it is the server's.
//
// # Caveats
//
// A Reader waits for every read that it has started: a [File] on a drive that hangs
// in the kernel holds it up, hedged or not, until [Detach] stands between them.
//
// The package allocates nothing in the steady state, but reedsolomon v1.12.4 does:
// less than 1 KiB in each block that is encoded or rebuilt.
//
// HighwayHash under a public key finds rot, not an adversary. A rebuilt shard has no
// hash to be held against; it is as good as the verified ones it was computed from.
package erasure
