// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package nethttp_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/s3rdma/s3rdma/adapters/nethttp"
	"github.com/s3rdma/s3rdma/plugin"
)

func TestClassify(t *testing.T) {
	tests := []struct {
		method, target, header string
		want                   plugin.Op
	}{
		{"GET", "/b/k", "", plugin.OpGetObject},
		{"GET", "/b/k/with/slashes", "", plugin.OpGetObject},
		{"GET", "/b/k?versionId=null&partNumber=3&response-content-type=x&x-id=GetObject", "", plugin.OpGetObject},
		{"GET", "/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=1", "", plugin.OpGetObject},
		{"GET", "/b/k?acl", "", plugin.OpOther},
		{"GET", "/b/k?tagging=", "", plugin.OpOther},
		{"GET", "/b/k?uploadId=1", "", plugin.OpOther},
		{"GET", "/b/k?unheard-of", "", plugin.OpOther},
		{"GET", "/b/k?a;b", "", plugin.OpOther},
		{"GET", "/", "", plugin.OpOther},
		{"GET", "/b", "", plugin.OpOther},
		{"GET", "/b/", "", plugin.OpOther},
		{"HEAD", "/b/k", "", plugin.OpOther},
		{"DELETE", "/b/k", "", plugin.OpOther},
		{"POST", "/b/k?uploads", "", plugin.OpOther},
		{"POST", "/b/k?uploadId=1", "", plugin.OpOther},
		{"POST", "/b/k?append&position=0", "", plugin.OpUnsupportedWrite},

		{"PUT", "/b/k", "", plugin.OpPutObject},
		{"PUT", "/b/k?x-id=PutObject", "", plugin.OpPutObject},
		{"PUT", "/b/k?X-Amz-Signature=1", "", plugin.OpPutObject},
		{"PUT", "/b/k?partNumber=1&uploadId=2", "", plugin.OpUploadPart},
		{"PUT", "/b/k?uploadId=2&partNumber=1&x-id=UploadPart", "", plugin.OpUploadPart},
		{"PUT", "/b/k?partNumber=1", "", plugin.OpUnsupportedWrite},
		{"PUT", "/b/k?uploadId=1", "", plugin.OpUnsupportedWrite},
		{"PUT", "/b/k?unheard-of", "", plugin.OpUnsupportedWrite},
		{"PUT", "/b/k?append", "", plugin.OpUnsupportedWrite},
		{"PUT", "/b/k?%zz", "", plugin.OpUnsupportedWrite},
		{"PUT", "/b/k", "X-Amz-Copy-Source", plugin.OpOther},
		{"PUT", "/b/k?partNumber=1&uploadId=2", "X-Amz-Copy-Source", plugin.OpOther},
		{"PUT", "/b/k", "X-Amz-Write-Offset-Bytes", plugin.OpUnsupportedWrite},
		{"PUT", "/b/k", "X-Amz-Meta-Snowball-Auto-Extract", plugin.OpUnsupportedWrite},
		{"PUT", "/b/k?tagging", "", plugin.OpOther},
		{"PUT", "/b/k?acl", "", plugin.OpOther},
		{"PUT", "/b/k?retention&versionId=1", "", plugin.OpOther},
		{"PUT", "/b", "", plugin.OpOther},
		{"PUT", "/b?versioning", "", plugin.OpOther},
	}
	for _, tt := range tests {
		r := httptest.NewRequest(tt.method, "http://s3.example.com/", nil)
		r.RequestURI = tt.target
		u, err := r.URL.Parse(tt.target)
		if err != nil {
			t.Fatal(err)
		}
		r.URL = u
		if tt.header != "" {
			r.Header.Set(tt.header, "true")
		}
		if got := nethttp.Classify(r, ""); got != tt.want {
			t.Errorf("%s %s %s: %v, want %v", tt.method, tt.target, tt.header, got, tt.want)
		}
	}
	for _, tt := range []struct {
		host, path string
		want       plugin.Op
	}{
		{"b.s3.example.com:9000", "/k", plugin.OpGetObject},
		{"B.S3.Example.Com", "/k", plugin.OpGetObject},
		{"b.s3.example.com", "/", plugin.OpOther},
		{"s3.example.com", "/b/k", plugin.OpGetObject},
		{"s3.example.com", "/k", plugin.OpOther},
		{"other.example.com", "/k", plugin.OpOther},
	} {
		r := httptest.NewRequest(http.MethodGet, "http://"+tt.host+tt.path, nil)
		if got := nethttp.Classify(r, "s3.example.com"); got != tt.want {
			t.Errorf("%s %s: %v, want %v", tt.host, tt.path, got, tt.want)
		}
	}
}
