// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package awssdk

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/s3rdma/s3rdma/adapters/client"
	"github.com/s3rdma/s3rdma/conformance/minioproc"
	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/shm"
)

const bucket = "checksums"

// rig is a MinIO with the plugin, our client and the SDK's, all defaults.
type rig struct {
	server *minioproc.Server
	ours   *client.Client
	http   *http.Client
	sdk    *s3.Client
}

// newRig starts everything. With TLS the SDK sends its checksums in trailers of
// aws-chunked bodies.
func newRig(t *testing.T, tls bool) *rig {
	t.Helper()
	binary := os.Getenv("S3RDMA_FORK")
	if binary == "" {
		t.Skip("S3RDMA_FORK names no MinIO binary (make test-minio builds it)")
	}
	server, err := minioproc.Start(t.Context(), minioproc.Options{Binary: binary, Dir: t.TempDir(), TLS: tls,
		Args: []string{"--rdma=on", "--rdma-fabric=shm"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Stop()
		if t.Failed() {
			t.Logf("the server's log ends with:\n%s", server.LogTail())
		}
	})
	r := &rig{server: server}
	r.ours, err = client.New(client.Options{Endpoint: server.Endpoint, TLS: server.TLS, Target: shm.NewTarget(shm.TargetOptions{}),
		Credentials: client.StaticCredentials(server.Root.AccessKey, server.Root.SecretKey)})
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: server.TLS}
	r.http = &http.Client{Transport: transport}
	t.Cleanup(func() {
		if err := r.ours.Close(); err != nil {
			t.Error(err)
		}
		transport.CloseIdleConnections()
	})
	r.sdk = s3.New(s3.Options{
		BaseEndpoint: &server.Endpoint, Region: "us-east-1", UsePathStyle: true, HTTPClient: r.http, RetryMaxAttempts: 1,
		Credentials: aws.CredentialsProviderFunc(r.credentials),
		// What LoadDefaultConfig sets, which is in a module that we need for nothing else.
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenSupported,
	})
	if err := r.ours.CreateBucket(t.Context(), bucket); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) credentials(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: r.server.Root.AccessKey, SecretAccessKey: r.server.Root.SecretKey}, nil
}

// memory makes n bytes that our client can move.
func (r *rig) memory(t *testing.T, n int) *client.Buffer {
	t.Helper()
	b, err := r.ours.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// exposed makes memory for the SDK's requests: a session of its own.
func (r *rig) exposed(t *testing.T, n int) rdmaio.Exposed {
	t.Helper()
	target := shm.NewTarget(shm.TargetOptions{})
	t.Cleanup(func() { target.Close() })
	hello, err := target.Hello(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "POST", r.server.Endpoint+"/.s3rdma-shm/connect", nil)
	if err != nil {
		t.Fatal(err)
	}
	const unsigned = "UNSIGNED-PAYLOAD"
	req.Header.Set("x-amz-rdma-token", hello.Token)
	req.Header.Set("x-amz-content-sha256", unsigned)
	creds, _ := r.credentials(t.Context())
	if err := v4.NewSigner().SignHTTP(t.Context(), creds, req, unsigned, "s3", "us-east-1", time.Now()); err != nil {
		t.Fatal(err)
	}
	resp, err := r.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	id, err := rdmaio.ParseSessionID(resp.Header.Get("x-amz-rdma-session"))
	if err != nil {
		t.Fatalf("connect answered %s: %v", resp.Status, err)
	}
	welcome := rdmaio.Welcome{Session: id, Token: strings.TrimPrefix(resp.Header.Get("x-amz-rdma-reply"), "200:")}
	if err := target.Connect(t.Context(), welcome); err != nil {
		t.Fatal(err)
	}
	x, err := target.Alloc(n, rdmaio.RemoteRead|rdmaio.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// withDescriptor gives one call of the SDK a descriptor, signed, and takes the answer's
// header. It changes no default.
func withDescriptor(t *testing.T, x rdmaio.Exposed, answer *http.Header) func(*s3.Options) {
	t.Helper()
	d, err := x.Describe(0, len(x.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	token, err := d.Encode(rdmaio.EncodingSession)
	if err != nil {
		t.Fatal(err)
	}
	return func(o *s3.Options) {
		o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
			err := stack.Build.Add(middleware.BuildMiddlewareFunc("descriptor", func(ctx context.Context, in middleware.BuildInput, next middleware.BuildHandler) (middleware.BuildOutput, middleware.Metadata, error) {
				if req, ok := in.Request.(*smithyhttp.Request); ok {
					req.Header.Set("x-amz-rdma-token", token)
				}
				return next.HandleBuild(ctx, in)
			}), middleware.Before)
			if err != nil {
				return err
			}
			return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("answer", func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
				out, meta, err := next.HandleDeserialize(ctx, in)
				if resp, ok := out.RawResponse.(*smithyhttp.Response); ok && answer != nil {
					*answer = resp.Header.Clone()
				}
				return out, meta, err
			}), middleware.After)
		})
	}
}
