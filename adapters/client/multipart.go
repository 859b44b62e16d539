// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/s3rdma/s3rdma/checksum"
)

// The limits of S3's multipart uploads.
const (
	maxParts    = 10000
	minPartSize = 5 << 20 // of all parts but the last

	defaultPartSize    = 64 << 20
	defaultConcurrency = 4
)

// Part is an uploaded part, as CompleteMultipartUpload names it.
type Part struct {
	Number int
	ETag   string
	Sum    checksum.Sum
	// Size is the number of bytes, with which the checksum of the whole is put
	// together from those of the parts.
	Size int64
}

// MultipartUpload is an upload that has been created.
type MultipartUpload struct {
	Bucket, Key, ID string
	// Algorithm is that of the parts' checksums.
	Algorithm checksum.Algorithm

	customerKey []byte
	force       Force
}

// CreateMultipartUpload begins an upload. Of o, the fields about the object count;
// IfMatch and IfNoneMatch belong to CompleteMultipartUpload, and Sum is not used.
func (c *Client) CreateMultipartUpload(ctx context.Context, bucket, key string, o PutOptions) (*MultipartUpload, error) {
	k := newCall("CreateMultipartUpload", http.MethodPost, bucket, key)
	if key == "" {
		return nil, fmt.Errorf("%s: no key: %w", k.name(), ErrInvalid)
	}
	k.query.Set("uploads", "")
	if err := o.describe(k); err != nil {
		return nil, err
	}
	alg := c.opt.Checksum
	if alg != checksum.MD5 { // which S3 knows as Content-MD5 only, a part at a time
		k.set("x-amz-checksum-algorithm", alg.String())
		kind := "COMPOSITE"
		if alg.Combinable() {
			kind = "FULL_OBJECT"
		}
		k.set("x-amz-checksum-type", kind)
	}
	_, body, err := c.simple(ctx, k, http.StatusOK)
	if err != nil {
		return nil, err
	}
	var doc struct {
		XMLName  xml.Name `xml:"InitiateMultipartUploadResult"`
		UploadID string   `xml:"UploadId"`
	}
	if err := xml.Unmarshal(body, &doc); err != nil || doc.UploadID == "" {
		return nil, protocolError(k, "the answer has no upload id")
	}
	return &MultipartUpload{
		Bucket: bucket, Key: key, ID: doc.UploadID, Algorithm: alg,
		customerKey: o.CustomerKey, force: o.Force,
	}, nil
}

// PartOptions say how a part is uploaded.
type PartOptions struct {
	// Sum is the checksum of the part's bytes if the caller knows it already; its
	// algorithm must be the upload's. The zero Sum has the client compute it.
	Sum checksum.Sum
	// Force allows one way only. Parts of one upload may go different ways.
	Force Force
	// Header is sent and signed as it is.
	Header http.Header
}

// UploadPart stores the bytes of src as a part, 1 to 10000. Everything that is said
// of [Client.Put] holds for it.
func (c *Client) UploadPart(ctx context.Context, u *MultipartUpload, number int, src View, o PartOptions) (Part, PutResult, error) {
	if number < 1 || number > maxParts {
		return Part{}, PutResult{}, fmt.Errorf("UploadPart %s/%s: part %d is not in 1 to %d: %w", u.Bucket, u.Key, number, maxParts, ErrInvalid)
	}
	p := &put{
		op: "UploadPart", bucket: u.Bucket, key: u.Key, src: src,
		o:    PutOptions{Sum: o.Sum, Force: o.Force, Header: o.Header, CustomerKey: u.customerKey},
		part: &partOf{uploadID: u.ID, number: number},
	}
	res, err := c.put(ctx, p)
	if err != nil {
		return Part{}, PutResult{}, fmt.Errorf("part %d: %w", number, err)
	}
	return Part{Number: number, ETag: res.ETag, Sum: res.Sum, Size: int64(src.Len())}, res, nil
}

// CompleteOptions are conditions on the object that the upload replaces.
type CompleteOptions struct {
	IfMatch, IfNoneMatch string
	// Header is sent and signed as it is.
	Header http.Header
}

// completePart and its parents are the request document. encoding/xml leaves empty
// checksums out.
type completePart struct {
	PartNumber int
	ETag       string
	CRC32      string `xml:"ChecksumCRC32,omitempty"`
	CRC32C     string `xml:"ChecksumCRC32C,omitempty"`
	CRC64NVME  string `xml:"ChecksumCRC64NVME,omitempty"`
	SHA1       string `xml:"ChecksumSHA1,omitempty"`
	SHA256     string `xml:"ChecksumSHA256,omitempty"`
}

type completeDocument struct {
	XMLName xml.Name       `xml:"http://s3.amazonaws.com/doc/2006-03-01/ CompleteMultipartUpload"`
	Parts   []completePart `xml:"Part"`
}

// CompleteMultipartUpload makes the object of the parts, which may be in any order.
// It sends the checksum of each part, and with an algorithm that allows it (a CRC)
// the one of the whole.
func (c *Client) CompleteMultipartUpload(ctx context.Context, u *MultipartUpload, parts []Part, o CompleteOptions) (PutResult, error) {
	k := newCall("CompleteMultipartUpload", http.MethodPost, u.Bucket, u.Key)
	k.query.Set("uploadId", u.ID)
	if err := k.extra(o.Header); err != nil {
		return PutResult{}, err
	}
	k.set("if-match", o.IfMatch)
	k.set("if-none-match", o.IfNoneMatch)
	if err := k.customerKey(u.customerKey); err != nil {
		return PutResult{}, err
	}
	parts = slices.Clone(parts)
	slices.SortFunc(parts, func(a, b Part) int { return a.Number - b.Number })

	var doc completeDocument
	whole := checksum.Empty(u.Algorithm)
	for _, p := range parts {
		e := completePart{PartNumber: p.Number, ETag: p.ETag}
		switch p.Sum.Algorithm() {
		case checksum.CRC32:
			e.CRC32 = p.Sum.Base64()
		case checksum.CRC32C:
			e.CRC32C = p.Sum.Base64()
		case checksum.CRC64NVME:
			e.CRC64NVME = p.Sum.Base64()
		case checksum.SHA1:
			e.SHA1 = p.Sum.Base64()
		case checksum.SHA256:
			e.SHA256 = p.Sum.Base64()
		}
		doc.Parts = append(doc.Parts, e)
		if u.Algorithm.Combinable() {
			var err error
			if whole, err = checksum.Combine(whole, p.Sum, p.Size); err != nil {
				return PutResult{}, fmt.Errorf("%s: part %d: %w: %w", k.name(), p.Number, ErrInvalid, err)
			}
		}
	}
	if err := k.xmlBody(doc); err != nil {
		return PutResult{}, err
	}
	if u.Algorithm.Combinable() {
		k.set(whole.Algorithm().Header(), whole.Base64())
		k.set("x-amz-checksum-type", "FULL_OBJECT")
	} else {
		whole = checksum.Sum{}
	}
	resp, body, err := c.simple(ctx, k, http.StatusOK)
	if err != nil {
		return PutResult{}, err
	}
	// The server may have sent the status before it knew how it would end: an error
	// then comes as the document of a 200.
	var result struct {
		XMLName xml.Name
		ETag    string
		Code    string
		Message string
	}
	if err := xml.Unmarshal(body, &result); err != nil {
		return PutResult{}, protocolError(k, "the answer is no XML document")
	}
	switch {
	case result.XMLName.Local == "Error":
		return PutResult{}, &Error{
			Op: k.op, Bucket: k.bucket, Key: k.key, Status: resp.StatusCode,
			Code: result.Code, Message: result.Message, RequestID: resp.Header.Get("x-amz-request-id"),
		}
	case result.XMLName.Local != "CompleteMultipartUploadResult" || result.ETag == "":
		return PutResult{}, protocolError(k, "the answer has no ETag")
	}
	return PutResult{
		ETag: result.ETag, VersionID: resp.Header.Get("x-amz-version-id"), Sum: whole, Header: resp.Header,
	}, nil
}

// AbortMultipartUpload gives an upload up and frees its parts.
func (c *Client) AbortMultipartUpload(ctx context.Context, u *MultipartUpload) error {
	k := newCall("AbortMultipartUpload", http.MethodDelete, u.Bucket, u.Key)
	k.query.Set("uploadId", u.ID)
	_, _, err := c.simple(ctx, k, http.StatusNoContent, http.StatusOK)
	return err
}

// UploadOptions say how a large object is stored.
type UploadOptions struct {
	PutOptions
	// PartSize is the size of each part but the last, in bytes: at least 5 MiB, at
	// most 4 GiB - 1. 0 is 64 MiB, or more where that would be over 10000 parts.
	PartSize int64
	// Concurrency is the number of parts under way at a time; 0 is 4.
	Concurrency int
}

// split checks a part size, and chooses one where none is given.
func split(op string, size, partSize int64, concurrency int) (int64, int, error) {
	if concurrency == 0 {
		concurrency = defaultConcurrency
	}
	if partSize == 0 {
		const unit = 1 << 20
		partSize = max(defaultPartSize, (size/maxParts/unit+1)*unit)
		partSize = min(partSize, maxWindow)
	}
	switch {
	case concurrency < 1:
		return 0, 0, fmt.Errorf("%s: concurrency %d: %w", op, concurrency, ErrInvalid)
	case partSize < minPartSize || partSize > maxWindow || (size+partSize-1)/partSize > maxParts:
		return 0, 0, fmt.Errorf("%s: parts of %d bytes: want %d to %d, and at most %d of them for %d bytes: %w",
			op, partSize, minPartSize, int64(maxWindow), maxParts, size, ErrInvalid)
	}
	return partSize, concurrency, nil
}

// Upload stores the bytes of src as an object: in one request if they fit into a
// part, else by a multipart upload with several parts under way at a time. If it
// fails the upload is aborted; an abort that fails too is part of the error. Sum is
// used in the first case only. Route is the fabric only if every part went that way,
// else that of one that did not.
func (c *Client) Upload(ctx context.Context, bucket, key string, src View, o UploadOptions) (PutResult, error) {
	partSize, concurrency, err := split("Upload", int64(src.Len()), o.PartSize, o.Concurrency)
	if err != nil {
		return PutResult{}, err
	}
	if int64(src.Len()) <= partSize {
		return c.Put(ctx, bucket, key, src, o.PutOptions)
	}
	u, err := c.CreateMultipartUpload(ctx, bucket, key, o.PutOptions)
	if err != nil {
		return PutResult{}, err
	}
	parts := make([]Part, (int64(src.Len())+partSize-1)/partSize)
	routes := make([]Route, len(parts))
	err = inParallel(ctx, len(parts), concurrency, func(ctx context.Context, i int) error {
		off := int64(i) * partSize
		n := min(partSize, int64(src.Len())-off)
		part, res, err := c.UploadPart(ctx, u, i+1, src.Slice(int(off), int(n)), PartOptions{Force: o.Force})
		parts[i], routes[i] = part, res.Route
		return err
	})
	var res PutResult
	if err == nil {
		res, err = c.CompleteMultipartUpload(ctx, u, parts, CompleteOptions{IfMatch: o.IfMatch, IfNoneMatch: o.IfNoneMatch})
	}
	if err != nil {
		actx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		if aerr := c.AbortMultipartUpload(actx, u); aerr != nil && !errors.Is(aerr, ErrNotFound) {
			err = errors.Join(err, aerr)
		}
		return PutResult{}, err
	}
	res.Route = leastOf(routes)
	return res, nil
}

// leastOf is Fabric if all routes are, else one that is not.
func leastOf(routes []Route) Route { return slices.Max(routes) }

// inParallel calls do for 0 to n-1, at most limit at a time, and returns when all
// calls have. After the first error, which it returns, it begins no more, and the
// context of those under way is cancelled.
func inParallel(ctx context.Context, n, limit int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		next  int
		first error
	)
	for range min(n, limit) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				mu.Lock()
				i := next
				if i == n || first != nil {
					mu.Unlock()
					return
				}
				next++
				mu.Unlock()
				if err := do(ctx, i); err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
					cancel()
					return
				}
			}
		}()
	}
	wg.Wait()
	return first
}

// etagHeader is the form in which an ETag is a condition: with its quotes.
func etagHeader(etag string) string {
	if etag == "" || strings.HasPrefix(etag, `"`) || strings.HasPrefix(etag, "W/") {
		return etag
	}
	return `"` + etag + `"`
}
