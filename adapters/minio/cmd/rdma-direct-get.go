// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

//go:build s3rdma

package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/s3rdma/s3rdma/erasure"
	"github.com/s3rdma/s3rdma/plugin"

	"github.com/minio/minio/internal/mcontext"
)

// rdmaGet is a GET that goes direct, or by the writer path.
//
// open does what MinIO's GetObjectNInfo does up to the point at which bytes are
// read: lock, metadata in quorum, preconditions. The reader that it returns moves
// the bytes when MinIO's handler first reads from it, when the header is written
// and nothing can be refused any more, and then is at its end. The lock is held
// until the handler closes it.
type rdmaGet struct {
	sink           *plugin.Sink
	bucket, object string // object as MinIO stores it, once the set is known

	ctx         context.Context
	set         *erasureObjects
	fi          FileInfo
	meta        []FileInfo // by shard, as disks
	disks       []StorageAPI
	raw         rdmaQuorum
	way         string // rdmaPathDirect or rdmaPathWriter
	off, length int64

	started bool
	err     error // of the transfer
}

// rdmaQuorum is what getObjectFileInfo found, in the order of the set's drives.
type rdmaQuorum struct {
	meta  []FileInfo
	disks []StorageAPI
}

// open prepares the transfer. If it returns a reason, nothing has happened (no
// precondition was checked, no lock is held) and MinIO's own layer is to be asked.
func (g *rdmaGet) open(ctx context.Context, z *erasureServerPools, rs *HTTPRangeSpec, h http.Header, opts ObjectOptions) (gr *GetObjectReader, reason string, err error) {
	if err := checkGetObjArgs(ctx, g.bucket, g.object); err != nil {
		return nil, "", err
	}
	name, request := g.object, ctx
	g.object = encodeDirObject(name)
	unlock := func() {}
	defer func() {
		if gr == nil {
			unlock()
		}
	}()
	// Where there is one pool only, the set locks through the same locker.
	if !opts.NoLock {
		lock := z.NewNSLock(g.bucket, g.object)
		if z.SinglePool() {
			lock = z.serverPools[0].getHashedSet(g.object).NewNSLock(g.bucket, g.object)
		}
		lkctx, err := lock.GetRLock(ctx, globalOperationTimeout)
		if err != nil {
			return nil, "", err
		}
		ctx = lkctx.Context()
		unlock = func() { lock.RUnlock(lkctx) }
	}
	pool := z.serverPools[0]
	if !z.SinglePool() {
		latest := opts
		latest.CheckPrecondFn, latest.NoLock = nil, true
		_, i, err := z.getLatestObjectInfoWithIdx(ctx, g.bucket, g.object, latest)
		if err != nil {
			return nil, rdmaNoMarker, nil // or none at all; MinIO knows what to say
		}
		pool = z.serverPools[i]
	}
	g.ctx, g.set = ctx, pool.getHashedSet(g.object)
	fi, meta, disks, err := g.set.getObjectFileInfo(ctx, g.bucket, g.object, opts, true)
	if err != nil {
		return nil, "", toObjectErr(err, g.bucket, g.object)
	}
	g.fi, g.raw = fi, rdmaQuorum{meta, disks}
	if !fi.Deleted {
		g.disks, g.meta = shuffleDisksAndPartsMetadataByIndex(disks, meta, fi)
	}
	g.way = rdmaPathDirect
	reason = rdmaNotDirect(rdmaFacts{layer: z, object: name, fi: &g.fi, room: g.sink.MaxNext()})
	if reason != "" {
		if !rdmaCanWrite(reason) {
			return nil, reason, nil
		}
		g.way = rdmaPathWriter
	}
	if !opts.NoAuditLog {
		auditObjectErasureSet(ctx, "GetObject", g.object, g.set)
	}
	info := fi.ToObjectInfo(g.bucket, g.object, opts.Versioned || opts.VersionSuspended)
	make, off, length, err := NewGetObjectReader(rs, info, opts, h)
	if err != nil {
		return nil, "", err
	}
	g.off, g.length = off, length
	if g.way == rdmaPathDirect {
		reason = rdmaReach(g.remote())
	}
	g.sink.SetPath(g.way, reason)
	release := unlock
	if fi.InlineData() || len(fi.Data) > 0 {
		// As in MinIO: the metadata in memory has the bytes already. The lock's
		// context ends with the lock.
		unlock()
		g.ctx = request
		release, unlock = func() {}, func() {}
	}
	gr, err = make(g, h, release)
	return gr, "", err
}

// usable tells whether shard i can be read.
func (g *rdmaGet) usable(i int) bool {
	return g.disks[i] != nil && g.disks[i] != OfflineDisk && g.meta[i].IsValid() && g.meta[i].Erasure.Equal(g.fi.Erasure)
}

// far tells whether shard i, which is usable, is on a drive of another node.
func (g *rdmaGet) far(i int) bool { return len(g.meta[i].Data) == 0 && !g.disks[i].IsLocal() }

// remote tells whether shards of other nodes are needed.
func (g *rdmaGet) remote() bool {
	near, far := 0, 0
	for i := range g.disks {
		switch {
		case !g.usable(i):
		case g.far(i):
			far++
		default:
			near++
		}
	}
	return far > 0 && near < g.fi.Erasure.DataBlocks
}

// Read implements io.Reader for MinIO's handler: the object's bytes, of which none
// is left once they have been moved.
func (g *rdmaGet) Read([]byte) (int, error) {
	if !g.started {
		g.started = true
		g.err = g.move()
	}
	if g.err != nil {
		return 0, g.err
	}
	return 0, io.EOF
}

// move moves the bytes to the sink.
func (g *rdmaGet) move() (err error) {
	if g.length < 0 {
		g.length = g.fi.Size - g.off
	}
	if g.off > g.fi.Size || g.off+g.length > g.fi.Size {
		return InvalidRange{g.off, g.length, g.fi.Size}
	}
	if uint64(g.length) > g.sink.Window() {
		return nil // the handler announces them, and is refused
	}
	w := rdmaSinkWriter{sink: g.sink}
	if g.way == rdmaPathWriter {
		err = g.set.getObjectWithFileInfo(g.ctx, g.bucket, g.object, g.off, g.length, &w, g.fi, g.raw.meta, g.raw.disks)
	} else {
		err = g.read(&w)
	}
	if tc, ok := g.ctx.Value(mcontext.ContextTraceKey).(*mcontext.TraceCtxt); ok {
		rdmaCountOutput(tc.ResponseRecorder, int(w.total))
	}
	if err == nil && w.total != g.length {
		err = io.ErrUnexpectedEOF
	}
	if err != nil && w.err == nil {
		// The answer may be on its way as a success already.
		e := toAPIError(g.ctx, err)
		g.sink.Fail(&plugin.Error{Status: e.HTTPStatusCode, Code: e.Code, Message: e.Description})
	}
	return err
}

// read moves the bytes part by part.
func (g *rdmaGet) read(w *rdmaSinkWriter) error {
	code, err := rdmaCode(g.fi.Erasure)
	if err != nil {
		return err
	}
	index, at, err := g.fi.ObjectToPartOffset(g.ctx, g.off)
	if err != nil {
		return err
	}
	p := rdmaPartReader{get: g, code: code}
	defer p.close()
	for left := g.length; left > 0; index++ {
		if index == len(g.fi.Parts) {
			return io.ErrUnexpectedEOF
		}
		n := min(left, g.fi.Parts[index].Size-at)
		if n > 0 {
			if err := p.open(g.fi.Parts[index], at, n); err != nil {
				return err
			}
			if err := p.move(w, at, n); err != nil {
				return err
			}
		}
		left -= n
		at = 0
	}
	return nil
}

// rdmaSinkWriter counts what goes to a sink, and remembers whether the sink is what
// failed. It is the io.Writer of the writer path.
type rdmaSinkWriter struct {
	sink  *plugin.Sink
	total int64
	err   error
}

// next is contiguous memory for at least n bytes.
func (w *rdmaSinkWriter) next(n int) (p []byte, err error) {
	p, w.err = w.sink.Next(n)
	return p, w.err
}

// commit hands the first n bytes of next on.
func (w *rdmaSinkWriter) commit(n int) error {
	w.err = w.sink.Commit(n)
	if w.err == nil {
		w.total += int64(n)
	}
	return w.err
}

// Write implements io.Writer.
func (w *rdmaSinkWriter) Write(p []byte) (n int, err error) {
	for n < len(p) {
		room, err := w.next(1)
		if err != nil {
			return n, err
		}
		c := copy(room, p[n:])
		if err := w.commit(c); err != nil {
			return n, err
		}
		n += c
	}
	return n, nil
}

// rdmaPartReader reads parts of one object, one after the other.
type rdmaPartReader struct {
	get     *rdmaGet
	code    *erasure.Code
	reader  *erasure.Reader // nil before the first part
	shards  []rdmaShard
	sources []erasure.Source
	healed  bool // a heal is queued
}

// open turns to the bytes [at, at+n) of a part.
func (p *rdmaPartReader) open(info ObjectPartInfo, at, n int64) error {
	g := p.get
	part, err := p.code.Geometry().Part(info.Size)
	if err != nil {
		return err
	}
	span, err := part.Span(at, n)
	if err != nil {
		return err
	}
	p.closeShards()
	if p.shards == nil {
		p.shards = make([]rdmaShard, len(g.disks))
		p.sources = make([]erasure.Source, len(g.disks))
	}
	for i := range p.sources {
		p.sources[i] = nil
		if !g.usable(i) {
			continue
		}
		if len(g.meta[i].Data) > 0 {
			p.sources[i] = erasure.Bytes(g.meta[i].Data)
			continue
		}
		p.shards[i] = rdmaShard{
			ctx: g.ctx, disk: g.disks[i], bucket: g.bucket,
			path: pathJoin(g.object, g.meta[i].DataDir, fmt.Sprintf("part.%d", info.Number)),
			end:  span.Offset + span.Length,
		}
		p.sources[i] = &p.shards[i]
	}
	if p.reader == nil {
		p.reader, err = p.code.NewReader(part, p.sources, erasure.Options{Scratch: rdmaScratch{}})
	} else {
		err = p.reader.Reset(part, p.sources)
	}
	if err != nil {
		return err
	}
	// As in MinIO: a shard of this node is better than one of another, even if data
	// must be rebuilt from it.
	for i := range p.sources {
		if p.sources[i] != nil && g.far(i) {
			p.reader.Demote(i)
		}
	}
	return nil
}

// move reads the bytes [at, at+n) of the part into w.
func (p *rdmaPartReader) move(w *rdmaSinkWriter, at, n int64) error {
	block := p.code.Geometry().BlockSize
	for end := at + n; at < end; {
		// As far as the next end of a block that the memory has room for, so that
		// no block is read twice.
		least := min(end, (at/block+1)*block) - at
		buf, err := w.next(int(least))
		if err != nil {
			return err
		}
		k := end - at
		if k > int64(len(buf)) {
			k = (at+int64(len(buf)))/block*block - at
		}
		err = p.reader.ReadAt(p.get.ctx, buf[:k], at)
		p.heal()
		if err != nil {
			return p.objectError(err)
		}
		if err := w.commit(int(k)); err != nil {
			return err
		}
		at += k
	}
	return nil
}

// objectError is MinIO's error for a failed read.
func (p *rdmaPartReader) objectError(err error) error {
	switch {
	case p.get.ctx.Err() != nil:
		err = p.get.ctx.Err()
	case errors.Is(err, erasure.ErrQuorum):
		err = errErasureReadQuorum
	}
	return toObjectErr(err, p.get.bucket, p.get.object)
}

// heal queues a heal if shards were found missing or damaged, as MinIO does.
func (p *rdmaPartReader) heal() {
	if p.healed {
		return
	}
	damaged, rotten := false, false
	var faults [erasure.MaxShards]erasure.Fault
	for _, f := range p.reader.AppendFaults(faults[:0]) {
		damaged = damaged || f.Kind.Damaged()
		rotten = rotten || f.Kind == erasure.FaultCorrupt || f.Kind == erasure.FaultTruncated
	}
	if !damaged {
		return
	}
	p.healed = true
	g := p.get
	globalMRFState.addPartialOp(PartialOperation{
		Bucket:     g.bucket,
		Object:     g.object,
		VersionID:  g.fi.VersionID,
		Queued:     time.Now(),
		SetIndex:   g.set.setIndex,
		PoolIndex:  g.set.poolIndex,
		BitrotScan: rotten,
	})
}

func (p *rdmaPartReader) close() {
	if p.reader != nil {
		p.reader.Close()
	}
	p.closeShards()
}

// closeShards closes the current part's shards; no read is under way.
func (p *rdmaPartReader) closeShards() {
	for i := range p.shards {
		p.shards[i].close()
	}
}

// rdmaShard is the source of one shard file. It is opened by MinIO's drive when it
// is first read, with all its checks and accounting; of a local drive it is then
// read by preadv, of a remote one as a stream.
type rdmaShard struct {
	ctx          context.Context
	disk         StorageAPI
	bucket, path string
	end          int64 // nothing behind it is needed

	file   *erasure.File
	stream io.ReadCloser
	at     int64 // of the stream
}

// ReadAt implements erasure.Source.
func (s *rdmaShard) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	return s.ReadVAt(ctx, [][]byte{p}, off)
}

// ReadVAt implements erasure.VectorSource.
func (s *rdmaShard) ReadVAt(ctx context.Context, bufs [][]byte, off int64) (n int, err error) {
	if s.file == nil && (s.stream == nil || s.at != off) {
		if err := s.open(off); err != nil {
			return 0, err
		}
	}
	if s.file != nil {
		return s.file.ReadVAt(ctx, bufs, off)
	}
	for _, b := range bufs {
		k, err := io.ReadFull(s.stream, b)
		n += k
		s.at += int64(k)
		if err != nil {
			// Not the file's end, which the drive would have told of: the other node
			// has gone, or given up. This must not pass for a shard that is damaged.
			return n, fmt.Errorf("%w: the stream of a shard broke: %v", errDiskNotFound, err)
		}
	}
	return n, nil
}

// open has the drive open the file.
func (s *rdmaShard) open(off int64) error {
	s.close()
	rc, err := s.disk.ReadFileStream(s.ctx, s.bucket, s.path, off, s.end-off)
	switch {
	case errors.Is(err, errFileNotFound), errors.Is(err, errFileVersionNotFound):
		return fmt.Errorf("%w: %w", erasure.ErrMissing, err)
	case errors.Is(err, errFileCorrupt): // also one that is too short
		return fmt.Errorf("%w: %w", erasure.ErrCorrupt, err)
	case err != nil:
		return err
	}
	if f := rdmaLocalFile(rc); f != nil {
		s.file = f
		return nil
	}
	s.stream, s.at = rc, off
	return nil
}

func (s *rdmaShard) close() {
	if s.file != nil {
		s.file.Close()
		s.file = nil
	}
	if s.stream != nil {
		s.stream.Close()
		s.stream = nil
	}
}

// rdmaLocalFile is the open file behind what a local drive's ReadFileStream
// returned, or nil.
func rdmaLocalFile(rc io.ReadCloser) *erasure.File {
	if sr, ok := rc.(*sendFileReader); ok {
		if f, ok := sr.Closer.(*os.File); ok {
			return erasure.NewFile(f)
		}
	}
	return nil
}

// rdmaCodes keeps the erasure codes, by geometry.
var rdmaCodes sync.Map // erasure.Geometry to *erasure.Code

// rdmaCode is the code of e.
func rdmaCode(e ErasureInfo) (*erasure.Code, error) {
	g := erasure.Geometry{Data: e.DataBlocks, Parity: e.ParityBlocks, BlockSize: e.BlockSize}
	if c, ok := rdmaCodes.Load(g); ok {
		return c.(*erasure.Code), nil
	}
	c, err := erasure.NewCode(g, erasure.MinIOKey())
	if err != nil {
		return nil, err
	}
	kept, _ := rdmaCodes.LoadOrStore(g, c)
	return kept.(*erasure.Code), nil
}

// rdmaScratch lends scratch memory, by powers of two.
type rdmaScratch struct{}

var rdmaScratchPools [32]sync.Pool // of *[]byte with a capacity of 1<<i

// Alloc implements erasure.Allocator.
func (rdmaScratch) Alloc(n int) ([]byte, error) {
	class := bits.Len(uint(max(n, 4096) - 1))
	if class >= len(rdmaScratchPools) {
		return make([]byte, n), nil
	}
	if p, ok := rdmaScratchPools[class].Get().(*[]byte); ok {
		return (*p)[:n], nil
	}
	return make([]byte, n, 1<<class), nil
}

// Free implements erasure.Allocator.
func (rdmaScratch) Free(p []byte) {
	if class := bits.Len(uint(cap(p) - 1)); class < len(rdmaScratchPools) && cap(p) == 1<<class {
		rdmaScratchPools[class].Put(&p)
	}
}
