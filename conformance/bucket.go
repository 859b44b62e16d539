// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/xml"
	"net/url"
	"slices"
	"strings"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

// objectVersion is a line of a listing.
type objectVersion struct {
	Key       string
	VersionID string `xml:"VersionId"`
	Size      int64
}

// listing is what ListObjectVersions and ListObjectsV2 answer, as far as the suite
// needs it.
type listing struct {
	Contents, Version, DeleteMarker []objectVersion
}

// uploads is what ListMultipartUploads answers.
type uploads struct {
	Upload []struct {
		Key      string
		UploadID string `xml:"UploadId"`
	}
}

// removeBucket removes all versions, unfinished uploads and the bucket itself. It
// does what it can: what stays is the operator's to see.
func removeBucket(ctx context.Context, c *rawhttp.Client, bucket string) {
	empty(ctx, c, bucket, "")
	c.Do(ctx, rawhttp.Request{Method: "DELETE", Bucket: bucket})
}

// empty removes all versions and unfinished uploads whose keys begin with prefix, as
// well as it can.
func empty(ctx context.Context, c *rawhttp.Client, bucket, prefix string) {
	get := func(q url.Values, into any) bool {
		resp, err := c.Do(ctx, rawhttp.Request{Method: "GET", Bucket: bucket, Query: q})
		return err == nil && resp.Status == 200 && xml.Unmarshal(resp.Body, into) == nil
	}
	remove := func(key string, q url.Values) {
		c.Do(ctx, rawhttp.Request{Method: "DELETE", Bucket: bucket, Key: key, Query: q})
	}
	var pending uploads
	if get(query("uploads", "", "prefix", prefix), &pending) {
		for _, u := range pending.Upload {
			if strings.HasPrefix(u.Key, prefix) { // not all servers look at it
				remove(u.Key, query("uploadId", u.UploadID))
			}
		}
	}
	for range 100 { // pages; a listing that never shrinks must not hold us for ever
		var l listing
		if !get(query("versions", "", "prefix", prefix), &l) && !get(query("list-type", "2", "prefix", prefix), &l) {
			break
		}
		l.Version = append(append(l.Version, l.DeleteMarker...), l.Contents...)
		l.Version = slices.DeleteFunc(l.Version, func(v objectVersion) bool { return !strings.HasPrefix(v.Key, prefix) })
		if len(l.Version) == 0 {
			break
		}
		for _, v := range l.Version {
			var q url.Values
			if v.VersionID != "" {
				q = query("versionId", v.VersionID)
			}
			remove(v.Key, q)
		}
	}
}
