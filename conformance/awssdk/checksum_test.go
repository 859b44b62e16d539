// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package awssdk

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"github.com/s3rdma/s3rdma/adapters/client"
	"github.com/s3rdma/s3rdma/checksum"
)

// the algorithms that both know.
var algorithms = []checksum.Algorithm{checksum.CRC32, checksum.CRC32C, checksum.CRC64NVME, checksum.SHA1, checksum.SHA256}

func random(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

// said is the one checksum among those of an SDK's answer.
func said(crc32, crc32c, crc64nvme, sha1, sha256 *string) string {
	var all []string
	for _, s := range []*string{crc32, crc32c, crc64nvme, sha1, sha256} {
		if s != nil {
			all = append(all, *s)
		}
	}
	return strings.Join(all, " and ")
}

// verified reads an object by the SDK, which compares it with its checksum by default,
// and tells by which.
func (r *rig) verified(t *testing.T, key string, want []byte) string {
	t.Helper()
	out, err := r.sdk.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String(key)})
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	defer out.Body.Close()
	got, err := io.ReadAll(out.Body)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%s: %d bytes of %d, or others: %v", key, len(got), len(want), err)
	}
	meta, _ := s3.GetChecksumValidationMetadata(out.ResultMetadata)
	return strings.Join(meta.AlgorithmsUsed, ",")
}

// TestFabricThenSDK: what a PUT by the fabric declares is what the SDK gets by HEAD and
// GetObjectAttributes, and verifies.
func TestFabricThenSDK(t *testing.T) {
	r := newRig(t, false)
	data := random(3<<20 + 17)
	buf := r.memory(t, len(data))
	copy(buf.Bytes(), data)
	for _, alg := range algorithms {
		key, want := "put-"+alg.String(), checksum.Of(alg, data)
		put, err := r.ours.Put(t.Context(), bucket, key, buf.All(), client.PutOptions{Sum: want, Force: client.ForceFabric})
		if err != nil || put.Proof.Sum != want {
			t.Fatalf("%v: proof %v, %v", alg, put.Proof.Sum, err)
		}
		head, err := r.sdk.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: &key, ChecksumMode: types.ChecksumModeEnabled})
		if err != nil {
			t.Fatal(err)
		}
		if got := said(head.ChecksumCRC32, head.ChecksumCRC32C, head.ChecksumCRC64NVME, head.ChecksumSHA1, head.ChecksumSHA256); got != want.Base64() {
			t.Errorf("%v: HEAD says %q, want %q", alg, got, want.Base64())
		}
		attr, err := r.sdk.GetObjectAttributes(t.Context(), &s3.GetObjectAttributesInput{Bucket: aws.String(bucket), Key: &key,
			ObjectAttributes: []types.ObjectAttributes{types.ObjectAttributesChecksum, types.ObjectAttributesObjectSize}})
		if err != nil {
			t.Fatal(err)
		}
		if c := attr.Checksum; c == nil || said(c.ChecksumCRC32, c.ChecksumCRC32C, c.ChecksumCRC64NVME, c.ChecksumSHA1, c.ChecksumSHA256) != want.Base64() {
			t.Errorf("%v: GetObjectAttributes says %+v, want %q", alg, c, want.Base64())
		}
		if aws.ToInt64(attr.ObjectSize) != int64(len(data)) {
			t.Errorf("%v: %d bytes", alg, aws.ToInt64(attr.ObjectSize))
		}
		if used := r.verified(t, key, data); used != alg.String() {
			t.Errorf("the SDK has verified by %q, want %v", used, alg)
		}
	}
}

// TestFabricPartsThenSDK: a multipart object whose parts went by the fabric has a
// checksum of the whole, which the SDK verifies.
func TestFabricPartsThenSDK(t *testing.T) {
	r := newRig(t, false)
	const part = 5 << 20
	data := random(2*part + 12345)
	buf := r.memory(t, len(data))
	copy(buf.Bytes(), data)
	put, err := r.ours.Upload(t.Context(), bucket, "parts", buf.All(), client.UploadOptions{PartSize: part, PutOptions: client.PutOptions{Force: client.ForceFabric}})
	if err != nil || put.Sum != checksum.Of(checksum.CRC64NVME, data) {
		t.Fatalf("upload: %v, %v", put.Sum, err)
	}
	head, err := r.sdk.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("parts"), ChecksumMode: types.ChecksumModeEnabled})
	if err != nil || aws.ToString(head.ChecksumCRC64NVME) != put.Sum.Base64() || head.ChecksumType != types.ChecksumTypeFullObject {
		t.Errorf("HEAD says %q of type %q, want %q, %v", aws.ToString(head.ChecksumCRC64NVME), head.ChecksumType, put.Sum.Base64(), err)
	}
	if used := r.verified(t, "parts", data); used != "CRC64NVME" {
		t.Errorf("the SDK has verified by %q", used)
	}
}

// TestSDKThenFabric: what the SDK stores by default our client verifies over the bytes
// that came by the fabric, whole and in parts. With TLS the SDK's checksums are trailers.
func TestSDKThenFabric(t *testing.T) {
	for _, tls := range []bool{false, true} {
		r := newRig(t, tls)
		data := random(12<<20 + 99)
		buf := r.memory(t, len(data))
		for _, alg := range append([]checksum.Algorithm{0}, algorithms...) {
			key, in := "sdk-"+alg.String(), &s3.PutObjectInput{Bucket: aws.String(bucket), Body: bytes.NewReader(data)}
			want := checksum.CRC32 // the SDK's default
			if alg != 0 {
				in.ChecksumAlgorithm, want = types.ChecksumAlgorithm(alg.String()), alg
			}
			in.Key = &key
			if _, err := r.sdk.PutObject(t.Context(), in); err != nil {
				t.Fatalf("%v: %v", alg, err)
			}
			clear(buf.Bytes())
			got, err := r.ours.Get(t.Context(), bucket, key, buf.All(), client.GetOptions{Force: client.ForceFabric})
			if err != nil || got.Verified != checksum.Of(want, data) || !bytes.Equal(buf.Bytes(), data) {
				t.Errorf("TLS %v, %v: verified %v, %v", tls, want, got.Verified, err)
			}
			got, err = r.ours.Download(t.Context(), bucket, key, buf.All(), client.DownloadOptions{PartSize: 5 << 20, Force: client.ForceFabric})
			if err != nil || got.Verified != checksum.Of(want, data) {
				t.Errorf("TLS %v, %v, in ranges: verified %v, %v", tls, want, got.Verified, err)
			}
		}
	}
}

// TestSDKDefaultsWithDescriptor: the checksum that the SDK computes of the empty body by
// default is refused and nothing stored; given the right one, the SDK computes none.
func TestSDKDefaultsWithDescriptor(t *testing.T) {
	r := newRig(t, false)
	data := random(100_000)
	x := r.exposed(t, len(data))
	copy(x.Bytes(), data)
	var answer http.Header
	put := func(in *s3.PutObjectInput, more ...func(*s3.Options)) error {
		in.Bucket, in.Key = aws.String(bucket), aws.String("by-sdk")
		_, err := r.sdk.PutObject(t.Context(), in, append(more, withDescriptor(t, x, &answer))...)
		return err
	}
	var api smithy.APIError
	if err := put(&s3.PutObjectInput{}); !errors.As(err, &api) || api.ErrorCode() != "BadDigest" || answer.Get("x-amz-rdma-reply") != "" {
		t.Errorf("all defaults: %v, %v", err, answer)
	}
	if _, err := r.sdk.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("by-sdk")}); err == nil {
		t.Error("it was stored")
	}
	if err := put(&s3.PutObjectInput{Body: bytes.NewReader(data)}); !errors.As(err, &api) || api.ErrorCode() != "InvalidRequest" {
		t.Errorf("a body beside the descriptor: %v", err)
	}
	sum := checksum.Of(checksum.CRC64NVME, data).Base64()
	for name, opt := range map[string]func(*s3.Options){
		"hash of nothing": func(*s3.Options) {},
		"unsigned payload": func(o *s3.Options) {
			o.APIOptions = append(o.APIOptions, v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware)
		},
		"when required": func(o *s3.Options) { o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired },
	} {
		if err := put(&s3.PutObjectInput{ChecksumCRC64NVME: &sum}, opt); err != nil || answer.Get("x-amz-rdma-reply") != "200" {
			t.Errorf("%s: %v, %v", name, err, answer)
		}
		if used := r.verified(t, "by-sdk", data); used != "CRC64NVME" {
			t.Errorf("%s: the SDK has verified by %q", name, used)
		}
	}

	// A GET: by default the SDK asks for the checksum, and compares it with the body. It
	// says so when the body is read, to whoever does.
	get := func(more ...func(*s3.Options)) error {
		clear(x.Bytes())
		out, err := r.sdk.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("by-sdk")}, append(more, withDescriptor(t, x, &answer))...)
		if err != nil {
			return err
		}
		defer out.Body.Close()
		if !bytes.Equal(x.Bytes(), data) || answer.Get("x-amz-rdma-reply") != "200" {
			t.Errorf("other bytes, or no reply: %v", answer)
		}
		_, err = io.ReadAll(out.Body)
		return err
	}
	if err := get(); err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("the SDK did not compare the object's checksum with the empty body: %v. PROTOCOL.md says it does", err)
	}
	required := func(o *s3.Options) { o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired }
	if err := get(required); err != nil || answer.Get("x-amz-checksum-crc64nvme") != "" {
		t.Errorf("when required: %v, %v", err, answer)
	}
}
