// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"net/http"
	"strings"
	"testing"

	"github.com/s3rdma/s3rdma/checksum"
)

// FuzzRequest sends PUTs and GETs whose headers somebody made up. Whatever they are,
// nothing is stored but the window whole, nothing is written outside of it, an error is
// no success in any client's eyes, and no secret comes back.
func FuzzRequest(f *testing.F) {
	const n = 1000
	bare := "0000000000010000:000003e8:00000007:0000:000001:1:00000000000000000000ffff7f000001"
	// What known clients send, or have sent wrongly. % stands for a token of the window.
	for _, s := range [][5]string{
		{"%", "", "", "UNSIGNED-PAYLOAD", ""},
		{"%;", "", "", "UNSIGNED-PAYLOAD", ""},
		{"", "%", "", "", ""},
		{"%", "%", "region", "", "AAAAAA=="},
		{bare, "", "", "", ""},
		{bare + ";", "", "none", "", ""},
		{bare + ":0000000000010000:00000000000003e8", "", "", "", ""},
		{bare + ":000000000000ffff:00000000000003e8;", "", "", "", ""},
		{bare + ":64:ofi1:tcp:00:00", "", "", "", ""},
		{"desc=&addr=&size=&offset=", "", "", "", ""},
		{"10.0.0.1:7471:1000:4096:77", "", "", "", ""},
		{strings.Repeat("f", 88), "", "", "", ""},
		{"%", "", "envelope", checksum.Empty(checksum.SHA256).Hex(), ""},
		{"%", "", "all", "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "AAAAAA=="},
		{"%", bare, "both", "", "not base64"},
	} {
		f.Add(s[0], s[1], s[2], s[3], s[4], true)
		f.Add(s[0], s[1], s[2], s[3], s[4], false)
	}
	f.Fuzz(func(t *testing.T, token, info, policy, hash, sum string, put bool) {
		r := newRig(t, n+2, nil)
		data := pattern(n + 2)
		copy(r.fab.mem, data)
		window := r.token(1, n)
		method := "GET"
		if put {
			method = "PUT"
		} else {
			r.store.put("/b/k", pattern(n))
		}
		req := r.request(method, "/b/k", "")
		for name, v := range map[string]string{HeaderToken: token, HeaderInfo: info, checksum.HeaderPolicy: policy,
			"x-amz-content-sha256": hash, "x-amz-checksum-crc32": sum} {
			if name == HeaderToken || name == HeaderInfo { // secrets elsewhere are the client's own affair
				v = strings.ReplaceAll(v, "%", window)
			}
			if v != "" {
				req.Header[http.CanonicalHeaderKey(name)] = []string{v}
			}
		}
		if len(req.Header[http.CanonicalHeaderKey(HeaderToken)])+len(req.Header[http.CanonicalHeaderKey(HeaderInfo)]) == 0 {
			return // plain S3
		}
		res := r.do(signAll(req))
		body := readAll(t, res)
		got, stored := r.store.get("/b/k")
		ok := res.StatusCode == 200
		if put && stored != ok || put && stored && (len(got) == 0 || !strings.Contains(string(data), string(got))) {
			t.Errorf("status %d, stored %v: %d bytes", res.StatusCode, stored, len(got))
		}
		if r.fab.mem[0] != data[0] || r.fab.mem[n+1] != data[n+1] {
			t.Error("written outside the window")
		}
		if !ok && (res.Header.Get("ETag") != "" || res.Header.Get(HeaderBytes) != "" || (res.Header.Get(HeaderReply) == "501") != (res.StatusCode == 501)) {
			t.Errorf("status %d with %v", res.StatusCode, res.Header)
		}
		if strings.Contains(body, r.fab.session.Hex()) {
			t.Error("the session comes back")
		}
	})
}

// FuzzSignedHeader: a header counts as signed only if the list names it, whole.
func FuzzSignedHeader(f *testing.F) {
	f.Add(signedToken, "")
	f.Add("AWS4-HMAC-SHA256 Credential=a/b,SignedHeaders=host,Signature=SignedHeaders=x-amz-rdma-token", "")
	f.Add("AWS4-HMAC-SHA256 SignedHeaders=host, SignedHeaders=x-amz-rdma-token", "")
	f.Add("AWS a:b", "X-Amz-SignedHeaders=host;x-amz-rdma-token")
	f.Add("", "X-Amz-SignedHeaders=host%3Bx-amz-rdma-token")
	f.Add("", "X-Amz-SignedHeaders=host&X-Amz-SignedHeaders=x-amz-rdma-token")
	f.Fuzz(func(t *testing.T, auth, query string) {
		r := &http.Request{Header: http.Header{}}
		u, err := http.NewRequest("GET", "/b/k", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.URL = u.URL
		r.URL.RawQuery = query
		if auth != "" {
			r.Header["Authorization"] = []string{auth}
		}
		if !signedHeader(r, HeaderToken) {
			return
		}
		list := auth
		if auth == "" {
			list = r.URL.Query().Get("X-Amz-SignedHeaders")
		} else if strings.Count(auth, "SignedHeaders=") == 0 || !strings.HasPrefix(auth, "AWS4-HMAC-SHA256") {
			t.Errorf("%q signs something", auth)
		}
		if !strings.Contains(strings.ToLower(list), HeaderToken) {
			t.Errorf("%q and %q do not name the header", auth, query)
		}
	})
}
