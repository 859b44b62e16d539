// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"net/http"
	"strconv"
	"testing"
)

// FuzzCheckReply: of the answers that a server may make up, only the one that says the
// same thing everywhere, in plain numbers, is a success.
func FuzzCheckReply(f *testing.F) {
	// What servers send, or have sent wrongly.
	f.Add(200, "200", "1000", int64(0))
	f.Add(206, "206", "0", int64(0))
	f.Add(206, "200", "1000", int64(0))
	f.Add(200, "204", "1000", int64(0))
	f.Add(200, "200xyz", "1000", int64(0))
	f.Add(200, "200", "1000/2000", int64(0))
	f.Add(200, "200", " 1000", int64(0))
	f.Add(200, "200", "-1", int64(0))
	f.Add(200, "", "", int64(1000))
	f.Add(200, "501", "", int64(1000))
	f.Add(200, "200", "4294967296", int64(-1))
	f.Fuzz(func(t *testing.T, status int, reply, count string, length int64) {
		resp := &http.Response{StatusCode: status, Header: http.Header{}, ContentLength: length}
		resp.Header.Set(headerReply, reply)
		resp.Header.Set(headerBytes, count)
		k := newCall("GetObject", http.MethodGet, "b", "k")
		for _, want := range []int{http.StatusOK, http.StatusPartialContent} {
			n, err := checkReply(k, resp, want, 1000)
			if err == nil && (status != want || reply != strconv.Itoa(want) || length != 0 || n < 0 || n > 1000 || len(count) > 18 || count == "" || count[0] < '0' || count[0] > '9') {
				t.Errorf("%d, reply %q, count %q, length %d is a success of %d bytes", status, reply, count, length, n)
			}
		}
	})
}
