// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/s3rdma/s3rdma/adapters/client"
	"github.com/s3rdma/s3rdma/conformance"
	"github.com/s3rdma/s3rdma/conformance/tensors"
)

// mover moves objects between a worker's memory and a server. Workers may move at
// once, each in its own memory.
type mover interface {
	// get reads the object, which must have n bytes, to the start of the memory.
	get(ctx context.Context, worker int, key string, n int) error
	// put stores the first n bytes of the memory.
	put(ctx context.Context, worker int, key string, n int) error
	// mem is the worker's memory, always the same.
	mem(worker int) []byte
	// ways counts the operations by how the bytes went, as far as the client knows.
	ways() ways
	// byHTTP is the number of object bytes that went in HTTP bodies.
	byHTTP() int64
	close() error
}

// overFabric is the mover by a fabric. Where the server declines it goes by HTTP, and
// says so.
type overFabric struct {
	c       *client.Client
	buffers []*client.Buffer
}

// newOverFabric opens a session and registers memory, a buffer of the given size for
// each worker, and touches it.
func newOverFabric(ctx context.Context, s *server, fabric string, d conformance.Device, timeout time.Duration, workers []int64) (_ *overFabric, err error) {
	target, err := conformance.NewTarget(fabric, d)
	if err != nil {
		return nil, err
	}
	c, err := client.New(client.Options{Endpoint: s.Endpoint, Target: target, Timeout: timeout, ConnectTimeout: timeout,
		Credentials: client.StaticCredentials(s.Root.AccessKey, s.Root.SecretKey)})
	if err != nil {
		return nil, errors.Join(err, target.Close())
	}
	f := &overFabric{c: c}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if err := c.Connect(ctx); err != nil {
		return nil, fmt.Errorf("open a session over %s: %w", fabric, err)
	}
	for _, n := range workers {
		b, err := c.Alloc(int(n))
		if err != nil {
			return nil, fmt.Errorf("register %d bytes with %s: %w", n, fabric, err)
		}
		f.buffers = append(f.buffers, b)
		clear(b.Bytes())
	}
	return f, nil
}

func (f *overFabric) mem(worker int) []byte { return f.buffers[worker].Bytes() }

func (f *overFabric) get(ctx context.Context, worker int, key string, n int) error {
	res, err := f.c.Get(ctx, bucket, key, f.buffers[worker].View(0, n), client.GetOptions{NoVerify: true})
	if err == nil && res.N != n {
		err = fmt.Errorf("GET %s: %d bytes, want %d", key, res.N, n)
	}
	return err
}

func (f *overFabric) put(ctx context.Context, worker int, key string, n int) error {
	_, err := f.c.Put(ctx, bucket, key, f.buffers[worker].View(0, n), client.PutOptions{})
	return err
}

func (f *overFabric) ways() ways {
	w := ways{}
	s := f.c.Stats()
	for r := range s.Gets {
		if n := s.Gets[r].Requests + s.Puts[r].Requests; n > 0 && client.Route(r) != client.Fabric {
			w[client.Route(r).String()] += n
		}
	}
	return w
}

func (f *overFabric) byHTTP() int64 { return f.c.Stats().HTTPBytes() }

// load implements tensorMover: the server writes each tensor to its place.
func (f *overFabric) load(ctx context.Context, worker int, key string) ([]tensors.View, error) {
	b := f.buffers[worker]
	return loadTensors(ctx, b.Bytes(), func(ctx context.Context, from, n, at int64, etag string) (int64, objectIs, error) {
		res, err := f.c.Get(ctx, bucket, key, b.View(int(at), int(n)), client.GetOptions{NoVerify: true, IfMatch: etag, Range: client.Range{Offset: from, Length: n}})
		return int64(res.N), objectIs{size: res.Object.Size, etag: res.Object.ETag}, err
	})
}

func (f *overFabric) close() error { return f.c.Close() }
