// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/s3rdma/s3rdma/checksum"
)

// DownloadOptions say how a large object is read.
type DownloadOptions struct {
	VersionID   string
	CustomerKey []byte
	// PartSize is the size of one ranged request, in bytes: at least 5 MiB, at most
	// 4 GiB - 1. 0 is 64 MiB, or more where that would be over 10000 requests.
	PartSize int64
	// Concurrency is the number of requests under way at a time; 0 is 4.
	Concurrency int
	// NoVerify verifies no checksum.
	NoVerify bool
	// Force allows one way only.
	Force Force
}

// An object that is replaced between the HEAD and the GET is asked about again, so
// many times in all.
const maxReplaced = 4

// Download reads a whole object of any size to the start of dst. It asks for the
// size first, and reads what is larger than a part by several ranged requests at a
// time. All carry the ETag as a condition, so that the bytes are one object's also
// if it is replaced meanwhile; then Download starts over, a few times. An object
// larger than dst is ErrTooSmall, before anything is read; the result's Object then
// has the size.
func (c *Client) Download(ctx context.Context, bucket, key string, dst View, o DownloadOptions) (GetResult, error) {
	return c.sized(ctx, bucket, key, o, func(info ObjectInfo) (View, error) {
		if info.Size > int64(dst.Len()) {
			return View{}, fmt.Errorf("Download %s/%s: %d bytes into a view of %d: %w", bucket, key, info.Size, dst.Len(), ErrTooSmall)
		}
		return dst, nil
	})
}

// GetAll reads a whole object into a buffer of its size, which the caller closes. It
// is [Client.Download] without a size to guess. Allocating a buffer is slow: to read
// many objects, reuse one.
func (c *Client) GetAll(ctx context.Context, bucket, key string, o DownloadOptions) (*Buffer, GetResult, error) {
	var buf *Buffer
	res, err := c.sized(ctx, bucket, key, o, func(info ObjectInfo) (View, error) {
		if info.Size > math.MaxInt {
			return View{}, fmt.Errorf("GetAll %s/%s: %d bytes: %w", bucket, key, info.Size, ErrTooLarge)
		}
		if buf != nil && int64(buf.Len()) == max(info.Size, 1) {
			return buf.All(), nil
		}
		if buf != nil {
			if err := buf.Close(); err != nil {
				return View{}, err
			}
			buf = nil
		}
		var err error
		if buf, err = c.Alloc(int(max(info.Size, 1))); err != nil { // an empty object has a buffer, too
			return View{}, err
		}
		return buf.All(), nil
	})
	if err != nil {
		if buf != nil {
			err = errors.Join(err, buf.Close())
		}
		return nil, res, err
	}
	return buf, res, nil
}

// sized asks for the size of an object and reads it to where place says.
func (c *Client) sized(ctx context.Context, bucket, key string, o DownloadOptions, place func(ObjectInfo) (View, error)) (GetResult, error) {
	for n := 1; ; n++ {
		info, err := c.Head(ctx, bucket, key, HeadOptions{VersionID: o.VersionID, CustomerKey: o.CustomerKey})
		if err != nil {
			return GetResult{}, err
		}
		if info.Size < 0 || info.ETag == "" {
			return GetResult{}, fmt.Errorf("HeadObject %s/%s: no size or no ETag: %w", bucket, key, ErrProtocol)
		}
		dst, err := place(info)
		if err != nil {
			return GetResult{Object: info}, err
		}
		res, err := c.download(ctx, bucket, key, info, dst, o)
		if err == nil || n == maxReplaced || !errors.Is(err, ErrPreconditionFailed) {
			return res, err
		}
	}
}

// download reads the object that info describes, and no other, to the start of dst.
func (c *Client) download(ctx context.Context, bucket, key string, info ObjectInfo, dst View, o DownloadOptions) (GetResult, error) {
	partSize, concurrency, err := split("Download", info.Size, o.PartSize, o.Concurrency)
	if err != nil {
		return GetResult{}, err
	}
	opts := GetOptions{
		VersionID: o.VersionID, CustomerKey: o.CustomerKey, IfMatch: etagHeader(info.ETag),
		NoVerify: o.NoVerify, Force: o.Force,
	}
	if info.Size <= partSize {
		res, err := c.Get(ctx, bucket, key, dst, opts)
		if err == nil && int64(res.N) != info.Size {
			return GetResult{}, fmt.Errorf("GetObject %s/%s: %d bytes of an object of %d: %w", bucket, key, res.N, info.Size, ErrProtocol)
		}
		return res, err
	}

	// The checksum of the whole follows from those of the parts, where they are CRCs of
	// the object's algorithm.
	var stored checksum.Sum
	if !o.NoVerify && len(info.Checksums) > 0 {
		stored = info.Checksums[0]
		if stored.Algorithm().Combinable() {
			opts.Algorithm = stored.Algorithm()
		}
	}
	size := int(info.Size)
	sums := make([]checksum.Sum, (info.Size+partSize-1)/partSize)
	routes := make([]Route, (info.Size+partSize-1)/partSize)
	err = inParallel(ctx, len(routes), concurrency, func(ctx context.Context, i int) error {
		off := i * int(partSize)
		n := min(int(partSize), size-off)
		opts := opts
		opts.Range = Range{Offset: int64(off), Length: int64(n)}
		res, err := c.Get(ctx, bucket, key, dst.Slice(off, n), opts)
		switch {
		case err != nil:
			return err
		case res.N != n || res.Object.Size != info.Size:
			return fmt.Errorf("GetObject %s/%s: %d bytes of a range of %d, of an object of %d that had %d: %w",
				bucket, key, res.N, n, res.Object.Size, info.Size, ErrProtocol)
		}
		routes[i], sums[i] = res.Route, res.Verified
		return nil
	})
	if err != nil {
		return GetResult{}, err
	}
	res := GetResult{N: size, Route: slices.Max(routes), Object: info}
	if stored.IsZero() {
		return res, nil
	}
	whole, ok := joined(sums, info.Size, partSize)
	if ok && whole.Algorithm() == stored.Algorithm() {
		if whole != stored {
			err = &checksum.MismatchError{Want: stored, Got: whole, Bytes: info.Size}
		}
	} else {
		err = c.verify(dst, size, stored)
	}
	if err != nil {
		return GetResult{}, fmt.Errorf("Download %s/%s: over all %d bytes: %w", bucket, key, size, err)
	}
	res.Verified = stored
	return res, nil
}

// joined puts the verified checksums of an object's parts together, all but the last
// of partSize bytes. It fails if one is missing or the algorithm is no CRC.
func joined(parts []checksum.Sum, size, partSize int64) (whole checksum.Sum, ok bool) {
	for i, s := range parts {
		if i == 0 {
			whole = s
			continue
		}
		var err error
		if whole, err = checksum.Combine(whole, s, min(partSize, size-int64(i)*partSize)); err != nil {
			return checksum.Sum{}, false
		}
	}
	return whole, whole.Algorithm().Combinable()
}

// verify holds the first n bytes of a view against a checksum.
func (c *Client) verify(v View, n int, want checksum.Sum) error {
	if err := v.hold(c); err != nil {
		return err
	}
	defer v.release()
	return verifyBytes(v.mem[:n], want)
}
