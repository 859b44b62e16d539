// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"crypto/md5"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/klauspost/reedsolomon"
	"github.com/minio/highwayhash"
	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/checksum"
)

const (
	stagingSize = 4 * mib // what the plugin lends to one transfer by default
	driveWrite  = mib     // MinIO's
	// floorBytes is what a measurement of a floor moves at least, but for the largest
	// objects, which are moved once.
	floorBytes = 64 * mib
)

// floor measures the floors of objects of one size.
type floor struct {
	base    Floors
	files   []string // one object's shard files, a data shard's worth of which is read
	client  []byte   // as many bytes as the object has, of the fabric's client
	dir     string   // with a folder for each drive
	inline  bool     // the files are metadata, with the object inside
	staging []byte
	aligned [][]byte // for each drive
	code    reedsolomon.Encoder
	sum     checksum.Hash
	key     [32]byte
}

// newFloor prepares to measure. folders are the object's, one on each drive, client is
// memory of the object's size, dir is where files may be written. The caller closes it.
func newFloor(size int, folders []string, client []byte, dir string) (_ *floor, err error) {
	f := &floor{client: client[:size], dir: dir}
	f.base.Size = int64(size)
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	var shard int64
	for _, folder := range folders {
		found, err := filepath.Glob(filepath.Join(folder, "*", "part.1"))
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			f.inline = true
			found = []string{filepath.Join(folder, "xl.meta")}
		}
		info, err := os.Stat(found[0])
		if err != nil {
			return nil, fmt.Errorf("find the object's shards: %w", err)
		}
		shard = info.Size()
		f.files = append(f.files, found[0])
	}
	n := len(f.files)
	if f.inline {
		f.base.Data = n - n/2
	} else {
		blocks := (int64(size) + blockSize - 1) / blockSize
		f.base.Data = int((int64(size) + shard/2) / (shard - blocks*hashSize))
	}
	f.base.Parity = n - f.base.Data
	if f.base.Data < 1 || f.base.Parity < 1 {
		return nil, fmt.Errorf("%d drives with shards of %d bytes of an object of %d: what geometry is that?", n, shard, size)
	}
	if f.code, err = reedsolomon.New(f.base.Data, f.base.Parity, reedsolomon.WithMaxGoroutines(1)); err != nil {
		return nil, err
	}
	if f.sum, err = checksum.New(checksum.CRC64NVME); err != nil {
		return nil, err
	}
	// Each block's slot has room for its parity and for the hashes.
	slot := n*f.shardLen(blockSize) + n*hashSize
	if f.staging, err = unix.Mmap(-1, 0, stagingSize/blockSize*slot, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE); err != nil {
		return nil, fmt.Errorf("map memory: %w", err)
	}
	for range n {
		p, err := unix.Mmap(-1, 0, driveWrite, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
		if err != nil {
			return nil, fmt.Errorf("map memory: %w", err)
		}
		f.aligned = append(f.aligned, p)
	}
	return f, nil
}

func (f *floor) close() {
	for _, p := range append(f.aligned, f.staging) {
		if p != nil {
			unix.Munmap(p)
		}
	}
}

// shardLen is the length of a shard of a block.
func (f *floor) shardLen(block int) int { return (block + f.base.Data - 1) / f.base.Data }

// slot is the memory of a block, whose data shards make up the block, and of its
// hashes. Each shard has s bytes.
func (f *floor) slot(b, s int) (block []byte, shards [][]byte, sums []byte) {
	n, most := len(f.files), f.shardLen(blockSize)
	slot := n*most + n*hashSize
	mem := f.staging[b%(stagingSize/blockSize)*slot:][:slot]
	for i := range n {
		shards = append(shards, mem[i*s:][:s])
	}
	return mem[:f.base.Data*s], shards, mem[n*most:]
}

// phases adds up the time of phases of a loop in one thread.
type phases struct {
	cpu, took map[string]time.Duration
	lastCPU   time.Duration
	last      time.Time
}

func (p *phases) begin() (err error) {
	p.last = time.Now()
	p.lastCPU, err = threadCPU()
	return err
}

// end ends a phase; what follows is the next one.
func (p *phases) end(name string) error {
	was, wasCPU := p.last, p.lastCPU
	if err := p.begin(); err != nil {
		return err
	}
	p.took[name] += p.last.Sub(was)
	p.cpu[name] += p.lastCPU - wasCPU
	return nil
}

// measure measures everything once.
func (f *floor) measure() (floorParts, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p := &phases{cpu: map[string]time.Duration{}, took: map[string]time.Duration{}}
	rounds := max(1, floorBytes/len(f.client))
	parts := floorParts{cpu: map[string]float64{}, took: map[string]float64{}}
	err := errors.Join(f.get(p, rounds), f.put(p, rounds))
	if err != nil {
		return parts, err
	}
	moved := int64(rounds) * f.base.Size
	for name := range p.took {
		parts.cpu[name], parts.took[name] = perGiB(p.cpu[name], moved), perGiB(p.took[name], moved)
	}
	for name, do := range map[string]func() (int64, error){"write": f.write, "md5": f.md5} {
		started := time.Now()
		before, err := ProcessCPU(os.Getpid())
		if err != nil {
			return parts, err
		}
		n, err := do()
		if err != nil {
			return parts, fmt.Errorf("measure the floor of %s: %w", name, err)
		}
		after, err := ProcessCPU(os.Getpid())
		if err != nil {
			return parts, err
		}
		parts.cpu[name], parts.took[name] = perGiB(after-before, n), perGiB(time.Since(started), n)
	}
	return parts, nil
}

// get reads, hashes and copies.
func (f *floor) get(p *phases, rounds int) error {
	fds := make([]int, f.base.Data)
	for i := range fds {
		file, err := os.Open(f.files[i])
		if err != nil {
			return err
		}
		defer file.Close()
		fds[i] = int(file.Fd())
	}
	iov := make([][]byte, 2)
	for range rounds {
		for at, b := 0, 0; at < len(f.client); at, b = at+blockSize, b+1 {
			n := min(blockSize, len(f.client)-at)
			s := f.shardLen(n)
			block, shards, sums := f.slot(b, s)
			if err := p.begin(); err != nil {
				return err
			}
			for i, fd := range fds {
				off := int64(b) * int64(hashSize+f.shardLen(blockSize))
				iov[0], iov[1] = sums[i*hashSize:][:hashSize], shards[i]
				got, err := unix.Preadv(fd, iov, off)
				if err != nil || got != hashSize+s && !f.inline {
					return fmt.Errorf("read %d bytes at %d of a shard file: %d, %w", hashSize+s, off, got, err)
				}
			}
			if err := p.end("read"); err != nil {
				return err
			}
			for i := range fds {
				f.hash(shards[i])
			}
			if err := p.end("hash"); err != nil {
				return err
			}
			copy(f.client[at:at+n], block)
			if err := p.end("copy"); err != nil {
				return err
			}
		}
	}
	return nil
}

var hashSink byte

func (f *floor) hash(b []byte) {
	sum := highwayhash.Sum(b, f.key[:])
	hashSink ^= sum[0]
}

// put copies in, encodes and hashes.
func (f *floor) put(p *phases, rounds int) error {
	for range rounds {
		for at, b := 0, 0; at < len(f.client); at, b = at+blockSize, b+1 {
			n := min(blockSize, len(f.client)-at)
			s := f.shardLen(n)
			block, views, _ := f.slot(b, s)
			if err := p.begin(); err != nil {
				return err
			}
			copy(block, f.client[at:at+n])
			if err := p.end("copy in"); err != nil {
				return err
			}
			if err := f.code.Encode(views); err != nil {
				return err
			}
			if err := p.end("encode"); err != nil {
				return err
			}
			for _, v := range views {
				f.hash(v)
			}
			if err := p.end("hash all"); err != nil {
				return err
			}
			f.sum.Reset()
			f.sum.Write(f.client[at : at+n]) // never fails
			if err := p.end("checksum"); err != nil {
				return err
			}
			for i, v := range views {
				for len(v) > 0 {
					v = v[copy(f.aligned[i], v):]
				}
			}
			if err := p.end("gather"); err != nil {
				return err
			}
		}
	}
	return nil
}

// write writes the shard files of an object, and returns the object's bytes.
func (f *floor) write() (int64, error) {
	blocks := (f.base.Size + blockSize - 1) / blockSize
	size := (f.base.Size+int64(f.base.Data)-1)/int64(f.base.Data) + blocks*hashSize
	var wg sync.WaitGroup
	errs := make([]error, len(f.files))
	direct := make([]bool, len(f.files))
	for i := range f.files {
		wg.Add(1)
		go func() {
			defer wg.Done()
			name := filepath.Join(f.dir, fmt.Sprintf("floor%d", i+1), "shard")
			direct[i], errs[i] = writeShard(name, f.aligned[i], size)
		}()
	}
	wg.Wait()
	f.base.Direct = direct[0]
	return f.base.Size, errors.Join(errs...)
}

// writeShard writes a file of size bytes and removes it.
func writeShard(name string, from []byte, size int64) (direct bool, err error) {
	const flags = os.O_CREATE | os.O_EXCL | os.O_WRONLY
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return false, err
	}
	w, err := os.OpenFile(name, flags|unix.O_DIRECT, 0o600)
	if direct = err == nil; errors.Is(err, unix.EINVAL) {
		os.Remove(name) // tmpfs made it before it refused
		w, err = os.OpenFile(name, flags, 0o600)
	}
	if err != nil {
		return direct, err
	}
	defer os.Remove(name)
	defer w.Close()
	const page = 4096
	aligned := size
	if direct {
		aligned -= size % page
	}
	for at := int64(0); at < aligned; {
		n := min(int64(len(from)), aligned-at)
		if _, err := w.Write(from[:n]); err != nil {
			return direct, err
		}
		at += n
	}
	if rest := size - aligned; rest > 0 {
		if _, err := unix.FcntlInt(w.Fd(), unix.F_SETFL, 0); err != nil {
			return direct, fmt.Errorf("end O_DIRECT: %w", err)
		}
		if _, err := w.Write(from[:rest]); err != nil {
			return direct, err
		}
	}
	return direct, unix.Fdatasync(int(w.Fd()))
}

// md5 hashes as an ETag does, of at most 64 MiB.
func (f *floor) md5() (int64, error) {
	n := min(len(f.client), floorBytes)
	rounds := max(1, 4*mib/n)
	for range rounds {
		sum := md5.Sum(f.client[:n])
		hashSink ^= sum[0]
	}
	return int64(rounds * n), nil
}
