// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

//go:build s3rdma

package cmd

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/s3rdma/s3rdma/erasure"
	"github.com/s3rdma/s3rdma/plugin"
)

// rdmaStore writes the shard files of one object or part from staging memory. Its
// goroutines are a pipeline: the caller's waits for a stripe to arrive from the
// client and hashes it in place; the encoder's computes parity and hashes meanwhile;
// one for each drive is inside the drive's CreateFile and copies stripes into the
// aligned buffers that it writes from. A stripe's memory goes back to the fabric
// when all of them are through with it.
type rdmaStore struct {
	src    *plugin.Source
	data   *PutObjReader // reads src's bytes, through MinIO's hashes
	code   *erasure.Code
	quorum int // drives that must be written
	drives []*rdmaDrive
	slots  []rdmaSlot
}

// rdmaSlot is a stripe on its way to the drives.
type rdmaSlot struct {
	enc     *erasure.Encoder
	data    []byte // the source's
	scratch []byte // parity and hashes
	busy    sync.WaitGroup
	err     error // of encoding
}

// errRDMAAborted is what drives get to read when the PUT has failed.
var errRDMAAborted = errors.New("the upload has failed")

// rdmaMaxSlots bounds the stripes between arrival and the drives: one is encoded
// while another is written.
const rdmaMaxSlots = 2

// newRDMAStore prepares to write files of a part of size bytes as path below MinIO's
// tmp on disks, which are in the order of shards, nil where there is none. bucket is
// where they will be renamed to.
func newRDMAStore(src *plugin.Source, data *PutObjReader, e ErasureInfo, disks []StorageAPI, quorum int, bucket, path string) (*rdmaStore, error) {
	code, err := rdmaCode(e)
	if err != nil {
		return nil, err
	}
	part, err := code.Geometry().Part(data.Size())
	if err != nil {
		return nil, err
	}
	st := &rdmaStore{
		src: src, data: data, code: code, quorum: quorum,
		drives: make([]*rdmaDrive, len(disks)),
		slots:  make([]rdmaSlot, min(rdmaMaxSlots, max(1, src.Pieces()/2))),
	}
	for i := range st.slots {
		st.slots[i].enc = code.NewEncoder()
	}
	for i, disk := range disks {
		if disk != nil {
			st.drives[i] = &rdmaDrive{
				disk: disk, shard: i, bucket: bucket, path: path, size: part.FileSize(),
				in: make(chan *rdmaSlot, len(st.slots)), stop: make(chan struct{}),
			}
		}
	}
	return st, nil
}

// run writes all files. When it returns nothing touches staging memory any more. The
// errors are by drive, errDiskNotFound where there is none; err is set if fewer than
// a quorum could be written, or if the bytes did not come or are not what the client
// declared.
func (st *rdmaStore) run(ctx context.Context) (errs []error, err error) {
	var drives, encoder sync.WaitGroup
	for _, d := range st.drives {
		if d != nil {
			drives.Go(d.run)
		}
	}
	todo := make(chan *rdmaSlot, len(st.slots))
	encoder.Go(func() {
		for s := range todo {
			st.encode(s)
		}
	})
	err = st.feed(todo)
	close(todo)
	encoder.Wait()
	for _, d := range st.drives {
		if d != nil {
			d.aborted = err != nil
			close(d.in)
		}
	}
	drives.Wait()
	for i := range st.slots {
		rdmaScratch{}.Free(st.slots[i].scratch)
		st.slots[i].enc.Reset()
	}
	errs = st.errs()
	if err == nil {
		err = reduceWriteQuorumErrs(ctx, errs, objectOpIgnoredErrs, st.quorum)
	}
	return errs, err
}

// errs is how the drives fared, as far as they have ended.
func (st *rdmaStore) errs() []error {
	errs := make([]error, len(st.drives))
	for i, d := range st.drives {
		errs[i] = errDiskNotFound
		if d != nil {
			errs[i] = nil
			if e := d.err.Load(); e != nil {
				errs[i] = *e
			}
		}
	}
	return errs
}

// feed reads all stripes and hands them on.
func (st *rdmaStore) feed(todo chan<- *rdmaSlot) error {
	left := st.data.Size()
	ended := false // the hashes have been compared
	held := 0
	for n := 0; left > 0; n++ {
		slot := &st.slots[n%len(st.slots)]
		if held == len(st.slots) {
			if err := st.retire(slot); err != nil {
				return err
			}
			held--
		}
		p, err := st.src.Next()
		if err == io.EOF {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		slot.data = p
		slot.busy.Add(1 + len(st.drives))
		todo <- slot
		held++
		if ended, err = st.read(p); err != nil {
			return err
		}
		left -= int64(len(p))
	}
	if !ended {
		if _, err := st.data.Read(make([]byte, 1)); err != io.EOF {
			if err == nil {
				err = errMoreData
			}
			return err
		}
	}
	for i := range st.slots {
		if err := st.check(&st.slots[i]); err != nil {
			return err
		}
	}
	return nil
}

// read reads p, where the bytes lie already, for the sake of the hashes. ended tells
// that these were the last bytes, and are what the client declared.
func (st *rdmaStore) read(p []byte) (ended bool, err error) {
	for len(p) > 0 {
		n, err := st.data.Read(p)
		p = p[n:]
		switch {
		case err == io.EOF && len(p) == 0:
			return true, nil
		case err == io.EOF:
			return false, io.ErrUnexpectedEOF
		case err != nil:
			return false, err
		case n == 0:
			return false, io.ErrNoProgress
		}
	}
	return false, nil
}

// retire waits for the oldest stripe and gives its memory back.
func (st *rdmaStore) retire(s *rdmaSlot) error {
	if err := st.check(s); err != nil {
		return err
	}
	st.src.Release()
	return nil
}

// check waits until all are through with a stripe, and says whether there is any
// point in going on.
func (st *rdmaStore) check(s *rdmaSlot) error {
	s.busy.Wait()
	if s.err != nil {
		return s.err
	}
	failed := 0
	for _, d := range st.drives {
		if d == nil || d.err.Load() != nil {
			failed++
		}
	}
	if len(st.drives)-failed < st.quorum {
		return reduceWriteQuorumErrs(context.Background(), st.errs(), objectOpIgnoredErrs, st.quorum)
	}
	return nil
}

// encode codes a stripe and hands it to the drives.
func (st *rdmaStore) encode(s *rdmaSlot) {
	if need := st.code.ScratchSize(len(s.data)); len(s.scratch) < need {
		rdmaScratch{}.Free(s.scratch)
		s.scratch, s.err = rdmaScratch{}.Alloc(need)
	}
	if s.err == nil {
		s.err = s.enc.Encode(s.data, s.scratch)
	}
	for _, d := range st.drives {
		if d != nil && s.err == nil {
			d.in <- s
		} else {
			s.busy.Done()
		}
	}
	s.busy.Done()
}

// rdmaDrive writes one shard file: run is inside the drive's CreateFile, which reads
// from it what the stripes have for the shard.
type rdmaDrive struct {
	disk         StorageAPI
	shard        int
	bucket, path string
	size         int64

	in      chan *rdmaSlot
	aborted bool                  // before in is closed: the file is not complete
	err     atomic.Pointer[error] // CreateFile's
	stop    chan struct{}         // closed when CreateFile has returned

	mu   sync.Mutex // a remote drive's CreateFile may leave a reader behind
	over bool
	cur  *rdmaSlot
	off  int // bytes read of its shard
}

func (d *rdmaDrive) run() {
	// Not the request's context, as in MinIO: who ends the upload ends what is read.
	err := d.disk.CreateFile(context.Background(), d.bucket, minioMetaTmpBucket, d.path, d.size, d)
	if err != nil {
		d.err.Store(&err)
	}
	close(d.stop)
	d.mu.Lock()
	d.over = true
	d.pass()
	d.mu.Unlock()
	for s := range d.in {
		s.busy.Done()
	}
}

// pass lets go of the current stripe.
func (d *rdmaDrive) pass() {
	if d.cur != nil {
		d.cur.busy.Done()
		d.cur = nil
	}
}

// Read implements io.Reader for CreateFile.
func (d *rdmaDrive) Read(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return 0, errRDMAAborted
	}
	if len(p) == 0 {
		return 0, nil
	}
	if d.cur == nil {
		if err := d.take(); err != nil {
			return 0, err
		}
	}
	v := d.cur.enc.Shard(d.shard)
	n := v.CopyAt(p, d.off)
	if d.off += n; d.off == v.Len() {
		d.pass()
	}
	return n, nil
}

// take waits for the next stripe. It gives up mu meanwhile.
func (d *rdmaDrive) take() error {
	d.mu.Unlock()
	var s *rdmaSlot
	err := errRDMAAborted
	select {
	case s = <-d.in:
		if s == nil && !d.aborted {
			err = io.EOF
		}
	case <-d.stop:
	}
	d.mu.Lock()
	if s == nil {
		return err
	}
	d.cur, d.off = s, 0
	if d.over {
		d.pass()
		return err
	}
	return nil
}
