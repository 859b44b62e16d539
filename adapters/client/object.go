// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/s3rdma/s3rdma/checksum"
)

// ObjectInfo is what an answer's headers say about an object.
type ObjectInfo struct {
	// Size is the object's length in bytes, also where a part of it was asked for;
	// -1 if the server did not say.
	Size int64
	// ETag is the server's, with its quotes.
	ETag string
	// VersionID is the version's name where the bucket keeps versions.
	VersionID string
	// ContentType is the media type.
	ContentType string
	// Modified is when the object was stored; zero if the server did not say.
	Modified time.Time
	// Metadata is the owner's own (x-amz-meta-*), under lower-case names without
	// the prefix.
	Metadata map[string]string
	// Parts is the number of parts of a multipart object, if the server says so
	// (it does when asked for one part).
	Parts int
	// Checksums are those over all the object's bytes, if they were asked for.
	Checksums []checksum.Sum
	// Header is the whole answer's.
	Header http.Header
}

const metaPrefix = "X-Amz-Meta-"

// objectInfo reads an answer's headers, all but the size.
func objectInfo(h http.Header) ObjectInfo {
	info := ObjectInfo{
		Size:        -1,
		ETag:        h.Get("etag"),
		VersionID:   h.Get("x-amz-version-id"),
		ContentType: h.Get("content-type"),
		Header:      h,
	}
	if t, err := http.ParseTime(h.Get("last-modified")); err == nil {
		info.Modified = t
	}
	if n, ok := parseDecimal(h.Get("x-amz-mp-parts-count")); ok && n <= maxParts {
		info.Parts = int(n)
	}
	for name, values := range h {
		if rest, ok := strings.CutPrefix(name, metaPrefix); ok && len(values) > 0 {
			if info.Metadata == nil {
				info.Metadata = make(map[string]string)
			}
			info.Metadata[strings.ToLower(rest)] = values[0]
		}
	}
	// A composed checksum is about the parts' checksums. Where it is not marked by
	// its form ("value-N") it is by its type.
	if !strings.EqualFold(h.Get("x-amz-checksum-type"), "COMPOSITE") {
		for _, a := range checksum.Algorithms() {
			if a == checksum.MD5 {
				continue // Content-MD5 of an answer is about the answer
			}
			if v := h.Get(a.Header()); v != "" {
				if sum, err := checksum.Decode(a, v); err == nil {
					info.Checksums = append(info.Checksums, sum)
				}
			}
		}
	}
	return info
}

// HeadOptions choose what is asked about. The zero value is the current object.
type HeadOptions struct {
	VersionID            string
	PartNumber           int
	IfMatch, IfNoneMatch string
	CustomerKey          []byte
	// Header is sent and signed as it is.
	Header http.Header
}

// Head asks about an object without its bytes. With PartNumber the size is the
// part's. A missing object is ErrNotFound.
func (c *Client) Head(ctx context.Context, bucket, key string, o HeadOptions) (ObjectInfo, error) {
	k := newCall("HeadObject", http.MethodHead, bucket, key)
	if key == "" {
		return ObjectInfo{}, fmt.Errorf("HeadObject: no key: %w", ErrInvalid)
	}
	if err := k.extra(o.Header); err != nil {
		return ObjectInfo{}, err
	}
	k.param("versionId", o.VersionID)
	if o.PartNumber != 0 {
		k.param("partNumber", strconv.Itoa(o.PartNumber))
	}
	k.set("if-match", o.IfMatch)
	k.set("if-none-match", o.IfNoneMatch)
	k.set("x-amz-checksum-mode", "ENABLED")
	if err := k.customerKey(o.CustomerKey); err != nil {
		return ObjectInfo{}, err
	}
	resp, _, err := c.simple(ctx, k, http.StatusOK, http.StatusPartialContent)
	if err != nil {
		return ObjectInfo{}, err
	}
	info := objectInfo(resp.Header)
	info.Size = resp.ContentLength
	return info, nil
}

// Delete removes an object, or with versionID that version of it for good. That
// there is no such object is no error, as in S3.
func (c *Client) Delete(ctx context.Context, bucket, key, versionID string) error {
	if key == "" {
		return fmt.Errorf("DeleteObject: no key: %w", ErrInvalid)
	}
	k := newCall("DeleteObject", http.MethodDelete, bucket, key)
	k.param("versionId", versionID)
	_, _, err := c.simple(ctx, k, http.StatusNoContent, http.StatusOK)
	return err
}

// CreateBucket makes a bucket in the client's region. That it is the caller's
// already is no error.
func (c *Client) CreateBucket(ctx context.Context, bucket string) error {
	k := newCall("CreateBucket", http.MethodPut, bucket, "")
	if c.opt.Region != "us-east-1" {
		err := k.xmlBody(struct {
			XMLName            xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ CreateBucketConfiguration"`
			LocationConstraint string
		}{LocationConstraint: c.opt.Region})
		if err != nil {
			return err
		}
	}
	_, _, err := c.simple(ctx, k, http.StatusOK)
	var answer *Error
	if errors.As(err, &answer) && answer.Code == "BucketAlreadyOwnedByYou" {
		return nil
	}
	return err
}

// DeleteBucket removes an empty bucket.
func (c *Client) DeleteBucket(ctx context.Context, bucket string) error {
	_, _, err := c.simple(ctx, newCall("DeleteBucket", http.MethodDelete, bucket, ""), http.StatusNoContent, http.StatusOK)
	return err
}

// SetVersioning switches the versions of a bucket on, or suspends them.
func (c *Client) SetVersioning(ctx context.Context, bucket string, on bool) error {
	k := newCall("PutBucketVersioning", http.MethodPut, bucket, "")
	k.query.Set("versioning", "")
	status := "Suspended"
	if on {
		status = "Enabled"
	}
	err := k.xmlBody(struct {
		XMLName xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ VersioningConfiguration"`
		Status  string
	}{Status: status})
	if err != nil {
		return err
	}
	sum := checksum.Of(checksum.MD5, k.body)
	k.set(sum.Algorithm().Header(), sum.Base64())
	_, _, err = c.simple(ctx, k, http.StatusOK)
	return err
}
