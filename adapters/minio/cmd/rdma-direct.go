// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

//go:build s3rdma

package cmd

import (
	"context"
	"net/http"

	"github.com/s3rdma/s3rdma/plugin"

	"github.com/minio/minio/internal/crypto"
)

// The paths of RequestInfo.Path, best first; the third is plugin.PathDiverted.
const (
	// rdmaPathDirect: shards go straight between drives and staging memory.
	rdmaPathDirect = "direct"
	// rdmaPathWriter: MinIO's own decoder writes to staging memory.
	rdmaPathWriter = "writer"
)

// The reasons why a request does not go direct.
const (
	rdmaNoLayer      = "layer"       // the object layer is not the erasure-coded one
	rdmaNoExtract    = "extract"     // a file inside an archive
	rdmaNoVirtual    = "virtual"     // an object that MinIO makes up
	rdmaNoMarker     = "marker"      // a delete marker
	rdmaNoBytes      = "empty"       // nothing to move
	rdmaNoTiered     = "tiered"      // the bytes are in a remote tier
	rdmaNoEncrypted  = "encrypted"   // they are to be de- or encrypted
	rdmaNoCompressed = "compressed"  // or (de-)compressed
	rdmaNoFormat     = "format"      // stored by an old MinIO
	rdmaNoBitrot     = "bitrot"      // hashed with another algorithm
	rdmaNoSlab       = "slab"        // a block does not fit a slab of staging memory
	rdmaNoInline     = "inline"      // stored inside the metadata
	rdmaNoReplica    = "replication" // written by another cluster, or moved between pools
	rdmaNoChecksum   = "checksum"    // one that is to be computed by the server
)

// rdmaRemote is told with a request that goes direct when drives of this node do not do
// for it: shards come from other nodes, or go to them, by MinIO's streams between
// drives and the same place in staging memory.
const rdmaRemote = "remote"

// rdmaReach is what is told with a direct request.
func rdmaReach(remote bool) string {
	if remote {
		return rdmaRemote
	}
	return ""
}

// rdmaFacts is what decides on the path of a request. What is not known or does
// not apply is left at zero.
type rdmaFacts struct {
	layer ObjectLayer
	size  int64 // of the object or part

	// Of a GET.
	header http.Header // the request's
	again  bool        // not the first time that the handler asks
	object string      // as the request names it
	fi     *FileInfo   // nil before the metadata is read
	room   int         // the most contiguous bytes of the sink

	// Of a PUT or an UploadPart.
	put      bool
	opts     *ObjectOptions
	metadata map[string]string // of the object, or of the upload
	inline   bool
	block    int64 // of the erasure code
	unit     int   // of the source's pieces
}

// rdmaNotDirect is the rule: the reason why a request cannot go the direct path,
// or "". It is asked before the metadata is read, and again afterwards.
func rdmaNotDirect(f rdmaFacts) string {
	if _, ok := f.layer.(*erasureServerPools); !ok {
		return rdmaNoLayer
	}
	if f.put {
		_, encrypted := crypto.IsEncrypted(f.metadata)
		_, compressed := f.metadata[ReservedMetadataPrefix+"compression"]
		switch {
		case encrypted || f.opts.EncryptFn != nil:
			return rdmaNoEncrypted
		case compressed || f.opts.IndexCB != nil || f.size < 0:
			return rdmaNoCompressed
		case f.opts.DataMovement || f.opts.ReplicationRequest || f.opts.PreserveETag != "" || f.metadata[ReplicationSsecChecksumHeader] != "":
			return rdmaNoReplica
		case f.opts.WantServerSideChecksumType.IsSet():
			return rdmaNoChecksum
		case f.size == 0:
			return rdmaNoBytes
		case f.inline:
			return rdmaNoInline
		case f.block > 0 && int64(f.unit)%f.block != 0:
			return rdmaNoSlab
		}
		return ""
	}
	switch {
	case f.again || f.header.Get(xMinIOExtract) == "true":
		return rdmaNoExtract
	case isVeeamSOSAPIObject(f.object):
		return rdmaNoVirtual
	case f.fi == nil:
		return ""
	}
	_, encrypted := crypto.IsEncrypted(f.fi.Metadata)
	switch {
	case f.fi.Deleted:
		return rdmaNoMarker
	case f.fi.Size == 0:
		return rdmaNoBytes
	case f.fi.IsRemote():
		return rdmaNoTiered
	case encrypted:
		return rdmaNoEncrypted
	case f.fi.IsCompressed():
		return rdmaNoCompressed
	case f.fi.XLV1:
		return rdmaNoFormat
	case int64(f.room) < f.fi.Erasure.BlockSize:
		return rdmaNoSlab
	}
	for _, p := range f.fi.Parts {
		if f.fi.Erasure.GetChecksumInfo(p.Number).Algorithm != HighwayHash256S {
			return rdmaNoBitrot
		}
	}
	return ""
}

// rdmaCanWrite tells whether a GET that is not direct for this reason can go the
// writer path: the bytes that MinIO decodes are the object's own.
func rdmaCanWrite(reason string) bool {
	switch reason {
	case rdmaNoFormat, rdmaNoBitrot, rdmaNoSlab:
		return true
	}
	return false
}

// rdmaLayer is MinIO's object layer for one diverted request: what moves object
// bytes goes direct, if it can; everything else is MinIO's.
type rdmaLayer struct{ ObjectLayer }

func newRDMALayer() ObjectLayer {
	if layer := newObjectLayerFn(); layer != nil {
		return rdmaLayer{layer}
	}
	return nil
}

// GetObjectNInfo implements ObjectLayer.
func (l rdmaLayer) GetObjectNInfo(ctx context.Context, bucket, object string, rs *HTTPRangeSpec, h http.Header, opts ObjectOptions) (*GetObjectReader, error) {
	sink, ok := plugin.SinkOf(ctx)
	d, diverted := ctx.Value(rdmaDivertKey).(*rdmaDiverted)
	if !ok || !diverted {
		return l.ObjectLayer.GetObjectNInfo(ctx, bucket, object, rs, h, opts)
	}
	g := &rdmaGet{sink: sink, bucket: bucket, object: object}
	reason := rdmaNotDirect(rdmaFacts{layer: l.ObjectLayer, object: object, header: d.header, again: d.moved})
	d.moved = true
	if reason == "" {
		var gr *GetObjectReader
		var err error
		if gr, reason, err = g.open(ctx, l.ObjectLayer.(*erasureServerPools), rs, h, opts); reason == "" {
			return gr, err
		}
	}
	sink.SetPath(plugin.PathDiverted, reason)
	return l.ObjectLayer.GetObjectNInfo(ctx, bucket, object, rs, h, opts)
}
