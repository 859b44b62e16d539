// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/encrypt"

	"github.com/s3rdma/s3rdma/adapters/client"
	"github.com/s3rdma/s3rdma/conformance/minioproc"
)

// InteropOptions say which two builds of one MinIO are compared.
type InteropOptions struct {
	// Binary has the plugin, Stock has not; "" builds it.
	Binary, Stock string
	// Fabric is shm ("" too) or tcp.
	Fabric string
	// Out gets what happens as it happens, nil nobody.
	Out io.Writer
}

// InteropResult counts what was read back byte for byte.
type InteropResult struct {
	// ByStock are objects and versions that the plugin wrote and MinIO without it
	// read, ByPlugin those of the other direction.
	ByStock, ByPlugin int
}

// Line is the result in one line.
func (r InteropResult) Line() string {
	return fmt.Sprintf("interop: read_by_stock=%d read_by_plugin=%d failed=0", r.ByStock, r.ByPlugin)
}

// interopSizes are around inline data (below 128 KiB), the block (1 MiB) and parts.
var interopSizes = []int{0, 1, 4095, 4096, 64<<10 - 1, 64 << 10, 128 << 10, 128<<10 + 1, 1<<20 - 1, 1 << 20, 1<<20 + 1, 5 << 20, 64<<20 + 1}

// kept is an object or version that must be read back.
type kept struct {
	bucket, key, version string
	data                 []byte
}

const versionedBucket = bucket + "-versions"

// Interop writes objects of all kinds with either build of MinIO and reads them with
// the other one, on the same drives: sizes, multipart uploads, versions, metadata,
// encryption. The first difference is an error.
func Interop(ctx context.Context, o InteropOptions) (result InteropResult, err error) {
	if o.Fabric == "" {
		o.Fabric = "shm"
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	for _, b := range []struct {
		binary *string
		stock  bool
	}{{&o.Binary, false}, {&o.Stock, true}} {
		if *b.binary == "" {
			if *b.binary, err = BuildMinIO(ctx, b.stock, o.Out); err != nil {
				return result, err
			}
		}
	}
	dir, err := os.MkdirTemp("", "s3rdma-interop-")
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	on := minioproc.Options{Binary: o.Binary, Dir: dir, KMS: true, Args: []string{"--rdma=on", "--rdma-fabric=" + o.Fabric}}
	stock := minioproc.Options{Binary: o.Stock, Dir: dir, KMS: true}
	var byPlugin, byStock []kept
	err = inOrder(
		func() error {
			fmt.Fprintln(o.Out, "MinIO with the plugin writes over "+o.Fabric)
			return with(ctx, on, o.Fabric, func(e *ends) (err error) {
				byPlugin, err = e.writeAll(ctx, "rdma", fabricWriter{e})
				return err
			})
		},
		func() error {
			fmt.Fprintln(o.Out, "MinIO without it reads those, and writes")
			return with(ctx, stock, "", func(e *ends) (err error) {
				if err := e.readPlain(ctx, byPlugin); err != nil {
					return err
				}
				byStock, err = e.writeAll(ctx, "http", plainWriter{e})
				return err
			})
		},
		func() error {
			fmt.Fprintln(o.Out, "MinIO with the plugin reads all over "+o.Fabric+" and over HTTP")
			return with(ctx, on, o.Fabric, func(e *ends) error {
				return inOrder(
					func() error { return e.readFabric(ctx, byStock) },
					func() error { return e.readFabric(ctx, byPlugin) },
					func() error { return e.readPlain(ctx, byStock) },
				)
			})
		},
	)
	if err != nil {
		return result, err
	}
	return InteropResult{ByStock: len(byPlugin), ByPlugin: len(byStock)}, nil
}

// with runs a server for f, with clients; fabric "" is for a server that has none.
func with(ctx context.Context, o minioproc.Options, fabric string, f func(*ends) error) (err error) {
	s, err := minioproc.Start(ctx, o)
	if err != nil {
		return err
	}
	defer s.Stop()
	var e *ends
	if fabric == "" {
		e, err = connectPlain(s)
	} else {
		e, err = connect(ctx, s, fabric)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	return f(e)
}

// writer is one of the two ways to write.
type writer interface {
	put(ctx context.Context, bucket, key string, data []byte, encrypted bool) (version string, err error)
	multipart(ctx context.Context, key string, data []byte) error
}

const interopPart = 5 << 20

// userMetadata must come back with every object.
var userMetadata = map[string]string{"origin": "interop"}

func (e *ends) writeAll(ctx context.Context, prefix string, w writer) ([]kept, error) {
	if err := e.makeBuckets(ctx); err != nil {
		return nil, err
	}
	var all []kept
	seed := uint64(len(prefix))
	add := func(bucket, key string, n int, encrypted bool) error {
		seed++
		data := random(seed, n)
		version, err := w.put(ctx, bucket, key, data, encrypted)
		if err != nil {
			return fmt.Errorf("write %s: %w", key, err)
		}
		all = append(all, kept{bucket, key, version, data})
		return nil
	}
	for _, n := range interopSizes {
		if err := add(bucket, fmt.Sprintf("%s/size-%d", prefix, n), n, false); err != nil {
			return nil, err
		}
	}
	for _, n := range []int{1000, 1<<20 + 1} {
		if err := add(bucket, fmt.Sprintf("%s/encrypted-%d", prefix, n), n, true); err != nil {
			return nil, err
		}
		for range 3 {
			if err := add(versionedBucket, fmt.Sprintf("%s/versions-%d", prefix, n), n, false); err != nil {
				return nil, err
			}
		}
	}
	data := random(seed+1, 2*interopPart+12_345)
	key := prefix + "/multipart"
	if err := w.multipart(ctx, key, data); err != nil {
		return nil, fmt.Errorf("write %s: %w", key, err)
	}
	return append(all, kept{bucket, key, "", data}), nil
}

func (e *ends) makeBuckets(ctx context.Context) error {
	for _, b := range []string{bucket, versionedBucket} {
		exists, err := e.plain.BucketExists(ctx, b)
		if err != nil {
			return err
		}
		if !exists {
			if err := e.plain.MakeBucket(ctx, b, minio.MakeBucketOptions{}); err != nil {
				return fmt.Errorf("make bucket %s: %w", b, err)
			}
		}
	}
	return e.plain.EnableVersioning(ctx, versionedBucket)
}

func random(seed uint64, n int) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	b := make([]byte, n)
	rand.NewChaCha8(key).Read(b) // never fails
	return b
}

// plainWriter writes with minio-go.
type plainWriter struct{ e *ends }

func (w plainWriter) put(ctx context.Context, bucket, key string, data []byte, encrypted bool) (string, error) {
	o := minio.PutObjectOptions{UserMetadata: userMetadata, DisableMultipart: true}
	if encrypted {
		o.ServerSideEncryption = encrypt.NewSSE()
	}
	info, err := w.e.plain.PutObject(ctx, bucket, key, bytes.NewReader(data), int64(len(data)), o)
	return info.VersionID, err
}

func (w plainWriter) multipart(ctx context.Context, key string, data []byte) error {
	_, err := w.e.plain.PutObject(ctx, bucket, key, bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{PartSize: interopPart, UserMetadata: userMetadata})
	return err
}

// fabricWriter writes over the fabric, only.
type fabricWriter struct{ e *ends }

func (w fabricWriter) put(ctx context.Context, bucket, key string, data []byte, encrypted bool) (version string, err error) {
	buf, err := w.e.fabric.Alloc(max(len(data), 1))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, buf.Close()) }()
	copy(buf.Bytes(), data)
	o := client.PutOptions{Metadata: userMetadata}
	if len(data) > 0 {
		o.Force = client.ForceFabric // no bytes, nothing for a fabric
	}
	if encrypted {
		o.SSE = "AES256"
	}
	put, err := w.e.fabric.Put(ctx, bucket, key, buf.View(0, len(data)), o)
	return put.VersionID, err
}

func (w fabricWriter) multipart(ctx context.Context, key string, data []byte) (err error) {
	buf, err := w.e.fabric.Alloc(len(data))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, buf.Close()) }()
	copy(buf.Bytes(), data)
	_, err = w.e.fabric.Upload(ctx, bucket, key, buf.All(), client.UploadOptions{PartSize: interopPart,
		PutOptions: client.PutOptions{Metadata: userMetadata, Force: client.ForceFabric}})
	return err
}

func (e *ends) readPlain(ctx context.Context, all []kept) error {
	for _, k := range all {
		o := minio.GetObjectOptions{VersionID: k.version}
		if err := e.wantPlain(ctx, k.bucket, k.key, k.data, o); err != nil {
			return err
		}
		info, err := e.plain.StatObject(ctx, k.bucket, k.key, o)
		if err != nil {
			return err
		}
		if info.UserMetadata["Origin"] != userMetadata["origin"] || info.Size != int64(len(k.data)) {
			return fmt.Errorf("%s: %d bytes with metadata %v", k.key, info.Size, info.UserMetadata)
		}
	}
	return nil
}

func (e *ends) readFabric(ctx context.Context, all []kept) error {
	for _, k := range all {
		if err := e.readOne(ctx, k); err != nil {
			return err
		}
	}
	return nil
}

func (e *ends) readOne(ctx context.Context, k kept) (err error) {
	buf, err := e.fabric.Alloc(max(len(k.data), 1))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, buf.Close()) }()
	o := onlyGet
	o.VersionID = k.version
	return e.wantFabric(ctx, k.bucket, k.key, buf.All(), k.data, o)
}
