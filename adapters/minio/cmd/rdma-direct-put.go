// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

//go:build s3rdma

package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/minio/pkg/v3/mimedb"

	"github.com/s3rdma/s3rdma/plugin"

	"github.com/minio/minio/internal/config/storageclass"
	"github.com/minio/minio/internal/hash"
	xhttp "github.com/minio/minio/internal/http"
)

// PutObject implements ObjectLayer.
func (l rdmaLayer) PutObject(ctx context.Context, bucket, object string, data *PutObjReader, opts ObjectOptions) (ObjectInfo, error) {
	src, ok := plugin.SourceOf(ctx)
	if !ok {
		return l.ObjectLayer.PutObject(ctx, bucket, object, data, opts)
	}
	facts := rdmaFacts{layer: l.ObjectLayer, put: true, size: data.Size(), opts: &opts, metadata: opts.UserDefined, unit: src.Unit()}
	if reason := rdmaNotDirect(facts); reason != "" {
		src.SetPath(plugin.PathDiverted, reason)
		return l.ObjectLayer.PutObject(ctx, bucket, object, data, opts)
	}
	if err := checkPutObjectArgs(ctx, bucket, object); err != nil {
		return ObjectInfo{}, err
	}
	data, err := rdmaHashReader(ctx, src, data, false)
	if err != nil {
		return ObjectInfo{}, err
	}
	z := l.ObjectLayer.(*erasureServerPools)
	object = encodeDirObject(object)
	pool, err := z.getPoolIdx(ctx, bucket, object, data.Size())
	if err != nil {
		return ObjectInfo{}, err
	}
	p := rdmaPut{set: z.serverPools[pool].getHashedSet(object), bucket: bucket, object: object, src: src, data: data, opts: opts}
	if err := p.plan(); err != nil {
		return ObjectInfo{}, err
	}
	facts.block = p.fi.Erasure.BlockSize
	facts.inline = globalStorageClass.ShouldInline(p.fi.Erasure.ShardFileSize(data.ActualSize()), opts.Versioned)
	if reason := rdmaNotDirect(facts); reason != "" {
		src.SetPath(plugin.PathDiverted, reason)
		return z.serverPools[pool].PutObject(ctx, bucket, object, data, opts)
	}
	src.SetPath(rdmaPathDirect, rdmaReach(p.remote()))
	return p.put(ctx)
}

// PutObjectPart implements ObjectLayer.
func (l rdmaLayer) PutObjectPart(ctx context.Context, bucket, object, uploadID string, partID int, data *PutObjReader, opts ObjectOptions) (PartInfo, error) {
	src, ok := plugin.SourceOf(ctx)
	if !ok {
		return l.ObjectLayer.PutObjectPart(ctx, bucket, object, uploadID, partID, data, opts)
	}
	divert := func(reason string) (PartInfo, error) {
		src.SetPath(plugin.PathDiverted, reason)
		return l.ObjectLayer.PutObjectPart(ctx, bucket, object, uploadID, partID, data, opts)
	}
	facts := rdmaFacts{layer: l.ObjectLayer, put: true, size: data.Size(), opts: &opts, unit: src.Unit()}
	if reason := rdmaNotDirect(facts); reason != "" {
		return divert(reason)
	}
	if err := checkPutObjectPartArgs(ctx, bucket, object, uploadID); err != nil {
		return PartInfo{}, err
	}
	z := l.ObjectLayer.(*erasureServerPools)
	if z.SinglePool() {
		if _, err := z.getPoolIdx(ctx, bucket, object, data.Size()); err != nil {
			return PartInfo{}, err
		}
	}
	set, fi, err := rdmaUpload(ctx, z, bucket, object, uploadID)
	if err != nil {
		return PartInfo{}, err
	}
	facts.metadata, facts.block = fi.Metadata, fi.Erasure.BlockSize
	if reason := rdmaNotDirect(facts); reason != "" {
		return divert(reason)
	}
	if data, err = rdmaHashReader(ctx, src, data, true); err != nil {
		return PartInfo{}, err
	}
	p := rdmaPut{set: set, bucket: bucket, object: object, src: src, data: data, opts: opts, fi: fi, disks: set.getDisks()}
	src.SetPath(rdmaPathDirect, rdmaReach(p.remote()))
	return p.putPart(ctx, uploadID, partID)
}

// rdmaUpload finds a multipart upload, which is in one of the pools.
func rdmaUpload(ctx context.Context, z *erasureServerPools, bucket, object, uploadID string) (set *erasureObjects, fi FileInfo, err error) {
	err = errUploadIDNotFound
	for i, pool := range z.serverPools {
		if !z.SinglePool() && z.IsSuspended(i) {
			continue
		}
		set = pool.getHashedSet(object)
		if fi, _, err = set.checkUploadIDExists(ctx, bucket, object, uploadID, true); !errors.Is(err, errUploadIDNotFound) {
			break
		}
	}
	switch {
	case err == nil:
		return set, fi, nil
	case errors.Is(err, errVolumeNotFound):
		return nil, fi, toObjectErr(err, bucket)
	}
	return nil, fi, toObjectErr(err, bucket, object, uploadID)
}

// rdmaPut is a PUT or UploadPart that goes direct. It does what MinIO's putObject
// and PutObjectPart do, but for how the shards get to the drives, and for what
// rdmaNotDirect has excluded.
type rdmaPut struct {
	set            *erasureObjects
	bucket, object string
	src            *plugin.Source
	data           *PutObjReader
	opts           ObjectOptions

	fi       FileInfo // of the new object, or of the upload
	metadata map[string]string
	disks    []StorageAPI // of the set, in its order
}

// remote tells whether shards go to drives of other nodes.
func (p *rdmaPut) remote() bool {
	return slices.ContainsFunc(p.disks, func(d StorageAPI) bool { return d != nil && d.IsOnline() && !d.IsLocal() })
}

// plan decides on the new object's geometry.
func (p *rdmaPut) plan() error {
	p.metadata = cloneMSS(p.opts.UserDefined)
	p.disks = p.set.getDisks()
	n := len(p.disks)
	parity := globalStorageClass.GetParityForSC(p.metadata[xhttp.AmzStorageClass])
	if parity < 0 {
		parity = p.set.defaultParityCount
	}
	switch {
	case p.opts.MaxParity:
		parity = n / 2
	case globalStorageClass.AvailabilityOptimized():
		// Each drive that is offline is made up for by one more parity.
		offline := 0
		for _, disk := range p.disks {
			if disk == nil || !disk.IsOnline() {
				offline++
			}
		}
		if offline >= (n+1)/2 {
			return toObjectErr(errErasureWriteQuorum, p.bucket, p.object)
		}
		if upgraded := min(parity+offline, n/2); upgraded != parity {
			p.metadata[minIOErasureUpgraded] = strconv.Itoa(parity) + "->" + strconv.Itoa(upgraded)
			parity = upgraded
		}
	}
	p.fi = newFileInfo(pathJoin(p.bucket, p.object), n-parity, parity)
	p.fi.VersionID = p.opts.VersionID
	if p.opts.Versioned && p.fi.VersionID == "" {
		p.fi.VersionID = mustGetUUID()
	}
	p.fi.DataDir = mustGetUUID()
	return nil
}

// quorum is how many drives must be written.
func (p *rdmaPut) quorum() int { return p.fi.WriteQuorum(p.set.defaultWQuorum()) }

// store writes the shard files to disks, which are in the order of shards, and sets
// to nil those that could not be written.
func (p *rdmaPut) store(ctx context.Context, disks []StorageAPI, path string) error {
	st, err := newRDMAStore(p.src, p.data, p.fi.Erasure, disks, p.quorum(), p.bucket, path)
	if err != nil {
		return err
	}
	errs, err := st.run(ctx)
	if err == nil {
		err = ctx.Err() // who has gone away does not expect the object
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return IncompleteBody{Bucket: p.bucket, Object: p.object}
	}
	if err != nil {
		return toObjectErr(err, p.bucket, p.object)
	}
	for i, err := range errs {
		if err != nil {
			disks[i] = nil
		}
	}
	return nil
}

// put stores the object.
func (p *rdmaPut) put(ctx context.Context) (ObjectInfo, error) {
	er, bucket, object, opts := p.set, p.bucket, p.object, p.opts
	if !opts.NoAuditLog {
		auditObjectErasureSet(ctx, "PutObject", object, er)
	}
	if opts.CheckPrecondFn != nil {
		if !opts.NoLock {
			lock := er.NewNSLock(bucket, object)
			lkctx, err := lock.GetLock(ctx, globalOperationTimeout)
			if err != nil {
				return ObjectInfo{}, err
			}
			ctx = lkctx.Context()
			defer lock.Unlock(lkctx)
			opts.NoLock = true
		}
		have, err := er.getObjectInfo(ctx, bucket, object, opts)
		missing := isErrVersionNotFound(err) || isErrObjectNotFound(err)
		switch {
		case err == nil && opts.CheckPrecondFn(have):
			return ObjectInfo{}, PreConditionFailed{}
		case err != nil && (!missing || opts.HasIfMatch):
			return ObjectInfo{}, err
		}
	}

	meta := make([]FileInfo, len(p.disks))
	for i := range meta {
		meta[i] = p.fi
	}
	disks, meta := shuffleDisksAndPartsMetadata(p.disks, meta, p.fi)
	for i, disk := range disks {
		if disk != nil && !disk.IsOnline() {
			disks[i] = nil
		}
	}
	tmp := mustGetUUID()
	defer er.deleteAll(context.Background(), minioMetaTmpBucket, tmp)
	if err := p.store(ctx, disks, pathJoin(tmp, p.fi.DataDir, "part.1")); err != nil {
		return ObjectInfo{}, err
	}

	modTime := opts.MTime
	if modTime.IsZero() {
		modTime = UTCNow()
	}
	size := p.data.Size()
	checksum := rdmaStoredChecksum(opts.WantChecksum, p.data)
	p.metadata["etag"] = p.data.MD5CurrentHexString()
	if p.metadata["content-type"] == "" {
		p.metadata["content-type"] = mimedb.TypeByExtension(path.Ext(object))
	}
	if p.metadata[xhttp.AmzStorageClass] == storageclass.STANDARD {
		delete(p.metadata, xhttp.AmzStorageClass)
	}
	for i := range meta {
		if disks[i] != nil {
			meta[i].AddObjectPart(1, "", size, p.data.ActualSize(), modTime, nil, nil)
			meta[i].Versioned = opts.Versioned || opts.VersionSuspended
			meta[i].Checksum = checksum
		}
		meta[i].Metadata = p.metadata
		meta[i].Size = size
		meta[i].ModTime = modTime
	}

	if !opts.NoLock {
		lock := er.NewNSLock(bucket, object)
		lkctx, err := lock.GetLock(ctx, globalOperationTimeout)
		if err != nil {
			return ObjectInfo{}, err
		}
		ctx = lkctx.Context()
		defer lock.Unlock(lkctx)
	}
	disks, versions, oldDataDir, err := renameData(ctx, disks, minioMetaTmpBucket, tmp, meta, bucket, object, p.quorum())
	if err != nil {
		if errors.Is(err, errFileNotFound) {
			return ObjectInfo{}, IncompleteBody{Bucket: bucket, Object: object}
		}
		return ObjectInfo{}, toObjectErr(err, bucket, object)
	}
	if err := er.commitRenameDataDir(ctx, bucket, object, oldDataDir, disks, p.quorum()); err != nil {
		return ObjectInfo{}, toObjectErr(err, bucket, object)
	}
	offline := false
	written := p.fi
	for i := len(disks) - 1; i >= 0; i-- {
		if disks[i] != nil && disks[i].IsOnline() {
			written = meta[i]
		} else {
			offline = true
		}
	}
	// As in MinIO: drives that missed it, or have other versions, are healed soon.
	switch {
	case opts.Speedtest:
	case len(versions) > 0:
		globalMRFState.addPartialOp(PartialOperation{
			Bucket:    bucket,
			Object:    object,
			Queued:    time.Now(),
			Versions:  versions,
			SetIndex:  er.setIndex,
			PoolIndex: er.poolIndex,
		})
	case offline:
		er.addPartial(bucket, object, written.VersionID)
	}
	written.ReplicationState = opts.PutReplicationState()
	written.IsLatest = true
	return written.ToObjectInfo(bucket, object, opts.Versioned || opts.VersionSuspended), nil
}

// putPart stores a part of an upload, whose metadata is in fi.
func (p *rdmaPut) putPart(ctx context.Context, uploadID string, partID int) (PartInfo, error) {
	er, bucket, object := p.set, p.bucket, p.object
	if !p.opts.NoAuditLog {
		auditObjectErasureSet(ctx, "PutObjectPart", object, er)
	}
	if want := p.fi.Metadata[hash.MinIOMultipartChecksum]; want != "" {
		if got := p.data.ContentCRCType().String(); got != want {
			return PartInfo{}, InvalidArgument{
				Bucket: bucket,
				Object: p.fi.Name,
				Err:    fmt.Errorf("checksum missing, want %q, got %q", want, got),
			}
		}
	}
	disks := shuffleDisks(p.disks, p.fi.Erasure.Distribution)
	name := fmt.Sprintf("part.%d", partID)
	tmp := fmt.Sprintf("%sx%d", mustGetUUID(), time.Now().UnixNano())
	defer func() {
		if countOnlineDisks(disks) != len(disks) {
			er.deleteAll(context.Background(), minioMetaTmpBucket, tmp)
		}
	}()
	if err := p.store(ctx, disks, pathJoin(tmp, name)); err != nil {
		er.deleteAll(context.Background(), minioMetaTmpBucket, tmp)
		return PartInfo{}, err
	}

	dir := er.getUploadIDDir(bucket, object, uploadID)
	final := pathJoin(dir, p.fi.DataDir, name)
	info := ObjectPartInfo{
		Number:     partID,
		ETag:       p.data.MD5CurrentHexString(),
		Size:       p.data.Size(),
		ActualSize: p.data.ActualSize(),
		ModTime:    UTCNow(),
		Checksums:  p.data.ContentCRC(),
	}
	text, err := info.MarshalMsg(nil)
	if err != nil {
		return PartInfo{}, toObjectErr(err, minioMetaMultipartBucket, final)
	}
	partLock := er.NewNSLock(bucket, pathJoin(object, uploadID, strconv.Itoa(partID)))
	plkctx, err := partLock.GetLock(ctx, globalOperationTimeout)
	if err != nil {
		return PartInfo{}, err
	}
	ctx = plkctx.Context()
	defer partLock.Unlock(plkctx)
	uploadLock := er.NewNSLock(bucket, pathJoin(object, uploadID))
	ulkctx, err := uploadLock.GetRLock(ctx, globalOperationTimeout)
	if err != nil {
		return PartInfo{}, err
	}
	ctx = ulkctx.Context()
	defer uploadLock.RUnlock(ulkctx)
	disks, err = er.renamePart(ctx, disks, minioMetaTmpBucket, pathJoin(tmp, name), minioMetaMultipartBucket, final, text, p.quorum(), dir)
	switch {
	case errors.Is(err, errUploadIDNotFound):
		return PartInfo{}, toObjectErr(errUploadIDNotFound, bucket, object, uploadID)
	case errors.Is(err, errFileNotFound):
		return PartInfo{}, IncompleteBody{Bucket: bucket, Object: object}
	case err != nil:
		return PartInfo{}, toObjectErr(err, minioMetaMultipartBucket, final)
	}
	return PartInfo{
		PartNumber:        info.Number,
		ETag:              info.ETag,
		LastModified:      info.ModTime,
		Size:              info.Size,
		ActualSize:        info.ActualSize,
		ChecksumCRC32:     info.Checksums["CRC32"],
		ChecksumCRC32C:    info.Checksums["CRC32C"],
		ChecksumSHA1:      info.Checksums["SHA1"],
		ChecksumSHA256:    info.Checksums["SHA256"],
		ChecksumCRC64NVME: info.Checksums["CRC64NVME"],
	}, nil
}
