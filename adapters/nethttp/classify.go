// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package nethttp

import (
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/s3rdma/s3rdma/plugin"
)

// Classify says which S3 call a request is. domain is the server's own host name
// for virtual-host requests (BUCKET.domain), or empty if there are none.
//
// The rule for what it does not know: a GET is other, for its body goes over HTTP and
// nothing is lost; a write to an object is unsupported, for passed on it would store
// an empty body.
func Classify(r *http.Request, domain string) plugin.Op {
	if !namesObject(r, domain) {
		return plugin.OpOther
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	switch r.Method {
	case http.MethodGet:
		if err != nil || !allOf(query, isGetParameter) {
			return plugin.OpOther
		}
		return plugin.OpGetObject
	case http.MethodPut:
		return classifyPut(r, query, err)
	case http.MethodPost:
		if _, appends := query["append"]; appends {
			return plugin.OpUnsupportedWrite
		}
	}
	return plugin.OpOther
}

// namesObject tells whether the path has a key, not just a bucket.
func namesObject(r *http.Request, domain string) bool {
	path := strings.TrimPrefix(r.URL.Path, "/")
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if bucket, ok := strings.CutSuffix(strings.ToLower(host), "."+strings.ToLower(domain)); ok && domain != "" && bucket != "" {
		return path != ""
	}
	_, key, _ := strings.Cut(path, "/")
	return key != ""
}

func classifyPut(r *http.Request, query url.Values, err error) plugin.Op {
	switch {
	case err != nil:
		return plugin.OpUnsupportedWrite
	case r.Header.Get("x-amz-copy-source") != "":
		return plugin.OpOther // CopyObject, UploadPartCopy: the bytes are the server's
	case len(query) > 0 && anyOf(query, isPutSubresource):
		return plugin.OpOther
	// S3's append to directory buckets, and the headers by which MinIO unpacks an
	// archive into objects.
	case r.Header.Get("x-amz-write-offset-bytes") != "",
		strings.EqualFold(r.Header.Get("x-amz-meta-snowball-auto-extract"), "true"),
		strings.EqualFold(r.Header.Get("x-amz-meta-minio-snowball"), "true"):
		return plugin.OpUnsupportedWrite
	}
	_, part := query["partNumber"]
	_, upload := query["uploadId"]
	known := allOf(query, func(name string) bool {
		return name == "partNumber" || name == "uploadId" || isSignatureParameter(name)
	})
	switch {
	case !known || part != upload:
		return plugin.OpUnsupportedWrite
	case part:
		return plugin.OpUploadPart
	}
	return plugin.OpPutObject
}

// isGetParameter tells whether GetObject has such a parameter
// (https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html).
func isGetParameter(name string) bool {
	return name == "versionId" || name == "partNumber" || strings.HasPrefix(name, "response-") || isSignatureParameter(name)
}

// isSignatureParameter tells whether a parameter is a presigned URL's, or x-id, with
// which AWS SDKs name the call.
func isSignatureParameter(name string) bool {
	return name == "x-id" || len(name) > 6 && strings.EqualFold(name[:6], "x-amz-")
}

// putSubresources are the parameters with which a PUT to an object is about
// something else than its bytes.
var putSubresources = map[string]bool{
	"acl": true, "tagging": true, "retention": true, "legal-hold": true,
	"encryption": true, "renameObject": true, "torrent": true, "restore": true,
}

func isPutSubresource(name string) bool { return putSubresources[name] }

func allOf(query url.Values, is func(string) bool) bool {
	for name := range query {
		if !is(name) {
			return false
		}
	}
	return true
}

func anyOf(query url.Values, is func(string) bool) bool {
	for name := range query {
		if is(name) {
			return true
		}
	}
	return false
}
