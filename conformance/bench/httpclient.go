// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
	"github.com/s3rdma/s3rdma/conformance/tensors"
)

// httpClientName says in reports what the HTTP figures are of.
const httpClientName = "net/http: HTTP/1.1, kept connections, 64 KiB buffers, reused memory, UNSIGNED-PAYLOAD, no checksum"

// plainHTTP is the mover by HTTP.
type plainHTTP struct {
	endpoint  string
	creds     aws.Credentials
	signer    *v4.Signer
	transport *http.Transport
	memory    [][]byte
	bounces   [][]byte // for each worker, made by its first load
	ops       atomic.Int64
	bytes     atomic.Int64
}

// newPlainHTTP makes a mover with a worker for each piece of memory.
func newPlainHTTP(endpoint string, c rawhttp.Credentials, memory ...[]byte) *plainHTTP {
	return &plainHTTP{
		endpoint: endpoint,
		creds:    aws.Credentials{AccessKeyID: c.AccessKey, SecretAccessKey: c.SecretKey},
		signer:   v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }),
		transport: &http.Transport{
			DisableCompression: true, MaxIdleConnsPerHost: len(memory),
			ReadBufferSize: 64 * kib, WriteBufferSize: 64 * kib,
		},
		memory: memory, bounces: make([][]byte, len(memory)),
	}
}

func (h *plainHTTP) mem(worker int) []byte { return h.memory[worker] }

func (h *plainHTTP) get(ctx context.Context, worker int, key string, n int) error {
	resp, err := h.send(ctx, http.MethodGet, key, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.ContentLength != int64(n) {
		return fmt.Errorf("GET %s: %d bytes announced, want %d", key, resp.ContentLength, n)
	}
	if _, err := io.ReadFull(resp.Body, h.memory[worker][:n]); err != nil {
		return fmt.Errorf("GET %s: read the body: %w", key, err)
	}
	h.count(n)
	return nil
}

func (h *plainHTTP) count(n int) {
	h.ops.Add(1)
	h.bytes.Add(int64(n))
}

// load implements tensorMover: each payload goes through a bounce buffer to the tensor.
func (h *plainHTTP) load(ctx context.Context, worker int, key string) ([]tensors.View, error) {
	if h.bounces[worker] == nil {
		h.bounces[worker] = make([]byte, bounceSize)
	}
	memory, bounce := h.memory[worker], h.bounces[worker]
	return loadTensors(ctx, memory, func(ctx context.Context, from, n, at int64, etag string) (_ int64, is objectIs, err error) {
		header := http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", from, from+n-1)}}
		if etag != "" {
			header.Set("If-Match", etag)
		}
		resp, err := h.send(ctx, http.MethodGet, key, header, nil)
		if err != nil {
			return 0, is, err
		}
		defer resp.Body.Close()
		_, total, _ := strings.Cut(resp.Header.Get("Content-Range"), "/")
		if is.size, err = strconv.ParseInt(total, 10, 64); err != nil || resp.StatusCode != http.StatusPartialContent || resp.ContentLength < 0 || resp.ContentLength > n {
			return 0, is, fmt.Errorf("GET %s: HTTP %d, Content-Range %q, %d bytes for %d", key, resp.StatusCode, resp.Header.Get("Content-Range"), resp.ContentLength, n)
		}
		is.etag = resp.Header.Get("ETag")
		for to := memory[at : at+resp.ContentLength]; len(to) > 0; {
			part := bounce[:min(len(bounce), len(to))]
			if _, err := io.ReadFull(resp.Body, part); err != nil {
				return 0, is, fmt.Errorf("GET %s: read the body: %w", key, err)
			}
			to = to[copy(to, part):]
		}
		h.count(int(resp.ContentLength))
		return resp.ContentLength, is, nil
	})
}

func (h *plainHTTP) put(ctx context.Context, worker int, key string, n int) error {
	resp, err := h.send(ctx, http.MethodPut, key, nil, h.memory[worker][:n])
	if err != nil {
		return err
	}
	h.count(n)
	return resp.Body.Close()
}

// send sends a request, with header if that is not nil, and returns its answer if that is
// HTTP 200 or 206.
func (h *plainHTTP) send(ctx context.Context, method, key string, header http.Header, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, h.endpoint+"/"+bucket+"/"+key, http.NoBody)
	if err != nil {
		return nil, err
	}
	if header != nil {
		req.Header = header
	}
	if len(body) > 0 {
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	req.Header.Set("X-Amz-Content-Sha256", rawhttp.UnsignedPayload)
	if err := h.signer.SignHTTP(ctx, h.creds, req, rawhttp.UnsignedPayload, "s3", region, time.Now()); err != nil {
		return nil, fmt.Errorf("sign %s %s: %w", method, key, err)
	}
	resp, err := h.transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, key, err)
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, kib))
		resp.Body.Close()
		return nil, fmt.Errorf("%s %s: HTTP %d: %s", method, key, resp.StatusCode, text)
	}
	return resp, nil
}

func (h *plainHTTP) ways() ways { return ways{"http": h.ops.Load()} }

func (h *plainHTTP) byHTTP() int64 { return h.bytes.Load() }

func (h *plainHTTP) close() error {
	h.transport.CloseIdleConnections()
	return nil
}
