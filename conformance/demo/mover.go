// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/s3rdma/s3rdma/adapters/client"
	"github.com/s3rdma/s3rdma/conformance"
	"github.com/s3rdma/s3rdma/conformance/minioproc"
	"github.com/s3rdma/s3rdma/conformance/wirecount"
)

// ends are the two clients of one server: one whose bytes go over a fabric and
// whose connections are counted, and minio-go, which knows nothing of all this and
// is counted, too.
type ends struct {
	fabric *client.Client
	plain  *minio.Client

	fabricWire, plainWire           wirecount.Counter
	fabricTransport, plainTransport *http.Transport
}

// connectPlain makes minio-go's end only.
func connectPlain(s *minioproc.Server) (*ends, error) {
	e := &ends{}
	e.fabricTransport, e.plainTransport = e.fabricWire.Transport(s.TLS), e.plainWire.Transport(s.TLS)
	u, err := url.Parse(s.Endpoint)
	if err != nil {
		return nil, err
	}
	e.plain, err = minio.New(u.Host, &minio.Options{
		Creds:  credentials.NewStaticV4(s.Root.AccessKey, s.Root.SecretKey, ""),
		Secure: u.Scheme == "https", Transport: e.plainTransport,
	})
	if err != nil {
		return nil, fmt.Errorf("make the minio-go client: %w", err)
	}
	return e, nil
}

// connect makes both ends, and opens the session.
func connect(ctx context.Context, s *minioproc.Server, fabric string) (*ends, error) {
	e, err := connectPlain(s)
	if err != nil {
		return nil, err
	}
	target, err := conformance.NewTarget(fabric, conformance.Device{})
	if err != nil {
		return nil, err
	}
	e.fabric, err = client.New(client.Options{Endpoint: s.Endpoint, Target: target, Transport: e.fabricTransport,
		Credentials: client.StaticCredentials(s.Root.AccessKey, s.Root.SecretKey)})
	if err != nil {
		target.Close()
		return nil, fmt.Errorf("make the fabric client: %w", err)
	}
	if err := e.fabric.Connect(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open a session over %s: %w", fabric, err), e.close())
	}
	return e, nil
}

func (e *ends) close() (err error) {
	if e.fabric != nil {
		err = e.fabric.Close()
	}
	e.fabricTransport.CloseIdleConnections()
	e.plainTransport.CloseIdleConnections()
	return err
}

// payload is what the fabric client's connections carried beside heads in the
// requests that move objects. The answers to the others (connect, the calls of a
// multipart upload) have bodies, but no object's bytes.
func (e *ends) payload() int64 { return e.fabricWire.Of("PUT", "GET").Payload() }

// only forbids HTTP as a way out.
var (
	onlyPut = client.PutOptions{Force: client.ForceFabric}
	onlyGet = client.GetOptions{Force: client.ForceFabric}
)

// wantPlain compares an object, read whole over HTTP by minio-go, with want.
func (e *ends) wantPlain(ctx context.Context, bucket, key string, want []byte, o minio.GetObjectOptions) error {
	object, err := e.plain.GetObject(ctx, bucket, key, o)
	if err != nil {
		return fmt.Errorf("read %s over HTTP: %w", key, err)
	}
	defer object.Close()
	if err := sameStream(object, want); err != nil {
		return fmt.Errorf("read %s over HTTP: %w", key, err)
	}
	return nil
}

func (e *ends) putPlain(ctx context.Context, bucket, key string, data []byte, o minio.PutObjectOptions) error {
	if _, err := e.plain.PutObject(ctx, bucket, key, bytes.NewReader(data), int64(len(data)), o); err != nil {
		return fmt.Errorf("write %s over HTTP: %w", key, err)
	}
	return nil
}

// wantFabric compares an object, read into v over the fabric, with want.
func (e *ends) wantFabric(ctx context.Context, bucket, key string, v client.View, want []byte, o client.GetOptions) error {
	clear(v.Bytes()) // what is compared must have arrived now
	got, err := e.fabric.Get(ctx, bucket, key, v, o)
	if err != nil {
		return fmt.Errorf("read %s over the fabric: %w", key, err)
	}
	if got.Route != client.Fabric {
		return fmt.Errorf("read %s: the bytes came %v", key, got.Route)
	}
	if !bytes.Equal(v.Bytes()[:got.N], want) {
		return fmt.Errorf("read %s over the fabric: %d bytes that differ from the %d expected ones", key, got.N, len(want))
	}
	return nil
}

// sameStream reads r to its end and compares.
func sameStream(r io.Reader, want []byte) error {
	buf := make([]byte, 1<<20)
	for at := 0; ; {
		n, err := io.ReadFull(r, buf)
		if n > len(want)-at || !bytes.Equal(buf[:n], want[at:at+n]) {
			return fmt.Errorf("the bytes differ, at or behind offset %d", at)
		}
		at += n
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			if at != len(want) {
				return fmt.Errorf("%d bytes, want %d", at, len(want))
			}
			return nil
		case err != nil:
			return err
		}
	}
}

// worker has memory to move files with.
type worker struct {
	send, receive *client.Buffer
}

// forEach calls do for each file, several at a time, and returns the first error.
func (e *ends) forEach(ctx context.Context, workers []worker, files []file, do func(ctx context.Context, w worker, f file) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	todo := make(chan file)
	var wg sync.WaitGroup
	for _, w := range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for f := range todo {
				if err := do(ctx, w, f); err != nil {
					cancel(err)
				}
			}
		}()
	}
	for _, f := range files {
		if ctx.Err() != nil {
			break
		}
		todo <- f
	}
	close(todo)
	wg.Wait()
	return context.Cause(ctx)
}
