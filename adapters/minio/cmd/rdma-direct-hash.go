// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

//go:build s3rdma

package cmd

import (
	"context"
	"encoding/hex"
	"net/http"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/plugin"

	"github.com/minio/minio/internal/etag"
	"github.com/minio/minio/internal/hash"
)

// rdmaHashReader returns a hash reader of the same body as data, which computes no
// MD5 where the settings and the request allow that, and leaves a declared CRC to src,
// which verifies it while the bytes are in the cache. Everything else is verified as
// MinIO's handler has told data to.
func rdmaHashReader(ctx context.Context, src *plugin.Source, data *PutObjReader, part bool) (*PutObjReader, error) {
	d, ok := ctx.Value(rdmaDivertKey).(*rdmaDiverted)
	if !ok || d.reader == nil || !globalServerCtxt.StrictS3Compat {
		return data, nil // without strict compatibility there is no MD5 anyway
	}
	md5, err := etag.FromContentMD5(d.header)
	if err != nil {
		return nil, err
	}
	sum := data.Checksum()
	fast := len(md5) == 0
	switch rdmaCurrent.Load().etag {
	case plugin.ETagMD5:
		fast = false
	case plugin.ETagAuto:
		fast = fast && sum != nil
	}
	crc := false
	if sum != nil && !sum.Type.Trailing() {
		alg, err := checksum.ParseAlgorithm(sum.Type.String())
		if err != nil {
			return nil, err
		}
		if crc = alg.Combinable(); crc {
			declared, err := checksum.NewSum(alg, sum.Raw)
			if err == nil {
				err = src.Verify(declared)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	if !fast && !crc {
		return data, nil
	}
	o := hash.Options{
		Size: data.Size(), ActualSize: data.ActualSize(),
		MD5Hex: hex.EncodeToString(md5), SHA256Hex: data.SHA256HexString(),
	}
	switch {
	case fast && part:
		// MinIO insists on 32 digits. Without strict compatibility it does the same.
		o.ForceMD5 = mustGetUUIDBytes()
	case fast:
		o.DisableMD5 = true // MinIO makes up an ETag that ends in -1
	}
	r, err := hash.NewReaderWithOpts(ctx, d.reader, o)
	if err != nil {
		return nil, err
	}
	switch {
	case sum != nil && sum.Type.Trailing():
		// The plugin computes it: the value is right whatever it is.
		err = r.AddChecksum(&http.Request{Header: d.header, Trailer: d.trailer}, true)
	default:
		err = r.AddNonTrailingChecksum(sum, crc)
	}
	if err != nil {
		return nil, err
	}
	return NewPutObjReader(r), nil
}

// rdmaStoredChecksum is what is kept with an object whose bytes data has had: the
// checksum that the request wants.
func rdmaStoredChecksum(want *hash.Checksum, data *PutObjReader) []byte {
	if want == nil {
		return nil
	}
	if len(want.Raw) == 0 { // named only, and known now
		if want = hash.NewChecksumWithType(want.Type&^hash.ChecksumTrailing, data.ContentCRC()[want.Type.String()]); want == nil {
			return nil
		}
	}
	return want.AppendTo(nil, nil)
}
