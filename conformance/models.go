// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

// Verdict is what comes of a client's request at a server.
type Verdict string

const (
	// Works: the bytes moved by descriptor, and the client knows.
	Works Verdict = "works"
	// ByHTTP: the client was turned down, and did it by plain HTTP.
	ByHTTP Verdict = "by HTTP"
	// Fails: the client reports an error. Nothing is lost.
	Fails Verdict = "fails"
	// LosesData: the client reports success, and the data is not there.
	LosesData Verdict = "LOSES DATA"
)

// severity orders verdicts, the best first.
var severity = []Verdict{Works, ByHTTP, Fails, LosesData}

// Model is a known client, as far as a server can tell it from another: what it sends,
// and what it takes for a success. The rules were read in the client's source.
type Model struct {
	// Name is short and stable, Client is who it is, Source where the rules stand.
	Name, Client, Source string
	// Header bears the descriptor.
	Header string
	// Ranged: each of its GETs bears a Range.
	Ranged bool
	// Parts: it sends UploadPart by descriptor.
	Parts bool
	// SignsLength: content-length is among the signed headers.
	SignsLength bool
	// Retries: what was not a success is done again by plain HTTP. Without it that is
	// an error of the client's.
	Retries bool
	// sends are headers besides on a PUT of data, as a part or not.
	sends func(data []byte, part bool) http.Header
	// put is what a success of a PUT looks like: any of these. get likewise.
	put, get []sign
	// count is how it reads the byte count of a GET.
	count countRule
}

// sign is one look of a success. A zero field is not looked at.
type sign struct {
	statuses []int    // HTTP
	replies  []string // x-amz-rdma-reply, exactly; "" is absent
	etag     bool     // present and not empty
	anyETag  bool     // present
	lax      bool     // of the reply, the digits in front count
	paired   bool     // HTTP status and reply are equal
	counted  bool     // a numeric byte count is there
}

// countRule says what a client makes of x-amz-rdma-bytes-transferred on a GET.
type countRule uint8

const (
	countIgnored   countRule = iota // it takes what it asked for
	countOrAll                      // absent: what it asked for
	countZeroIsAll                  // absent or 0: what it asked for
	countOrNone                     // absent: nothing, which is an error
	countMust                       // absent: an error
	countLax                        // absent: what it asked for; the digits in front count
)

const (
	srcNIXL     = "ai-dynamo/nixl src/utils/object/rdma"
	srcDell     = "ai-dynamo/nixl src/plugins/obj/s3_accel/dell"
	srcMinioCPP = "minio/minio-cpp include/miniocpp/rdma.h"
)

func ok(list ...int) []int { return list }

// octets are the header that the C++ clients send with a PUT.
func octets() http.Header { return http.Header{"Content-Type": {"application/octet-stream"}} }

// Models are the known clients.
func Models() []Model {
	minio := Model{Client: "MinIO's C++ SDK", Source: srcMinioCPP, Header: headerToken, Parts: true, Retries: true, SignsLength: true,
		sends: func(data []byte, part bool) http.Header {
			h := octets()
			if part {
				h.Set("X-Amz-Checksum-Crc64nvme", checksum.Of(checksum.CRC64NVME, data).Base64())
			}
			return h
		},
		put:   []sign{{statuses: ok(200), etag: true}, {replies: []string{"200", "204"}, lax: true}},
		get:   []sign{{replies: []string{"200", "206"}, lax: true}},
		count: countLax}
	named := func(m Model, name, client, source string) Model {
		m.Name, m.Client, m.Source = name, client, source
		return m
	}
	rust := named(minio, "minio-rs", "MinIO's Rust SDK", "minio/minio-rs src/s3/rdma/protocol.rs")
	rust.count = countZeroIsAll
	golang := named(minio, "minio-go", "MinIO's Go SDK, built with the tag rdma", "minio/minio-go, which calls minio-cpp")
	golang.Parts = false
	return []Model{
		{Name: "nixl", Client: "NVIDIA NIXL, obj plugin, its own RDMA engine", Source: srcNIXL + " (PR 1840)", Header: headerToken,
			Ranged: true, Parts: true, SignsLength: true,
			sends: func([]byte, bool) http.Header {
				h := octets()
				h.Set("X-Amz-Checksum-Algorithm", "CRC64NVME")
				return h
			},
			put:   []sign{{statuses: ok(200), etag: true, replies: []string{"200"}}},
			get:   []sign{{statuses: ok(200, 206), replies: []string{"200", "206"}, paired: true}},
			count: countOrNone},
		{Name: "nixl-early", Client: "NVIDIA NIXL, the same before it looked at the reply of a PUT", Source: srcNIXL, Header: headerToken,
			Ranged: true, Parts: true, SignsLength: true,
			sends: func([]byte, bool) http.Header { return octets() },
			put:   []sign{{statuses: ok(200), etag: true}},
			get:   []sign{{replies: []string{"200", "206"}, lax: true}},
			count: countLax},
		{Name: "nixl-dell", Client: "NVIDIA NIXL, type=dell (ObjectScale)", Source: srcDell + " (PR 1741)", Header: headerAlias,
			Ranged: true,
			put:    []sign{{statuses: ok(200, 201, 202, 204)}},
			get:    []sign{{statuses: ok(200, 206)}},
			count:  countIgnored},
		named(minio, "minio-cpp", minio.Client, minio.Source),
		rust,
		golang,
		{Name: "noobaa", Client: "NooBaa's client middleware for the AWS SDK", Source: "noobaa/noobaa-core src/util/rdma_utils.js", Header: headerToken, Parts: true,
			sends: func([]byte, bool) http.Header { return http.Header{"X-Amz-Rdma-Agent": {"cuobj"}} },
			put:   []sign{{statuses: ok(200), replies: []string{"200", "204", "206"}, counted: true}},
			get:   []sign{{statuses: ok(200, 206), replies: []string{"200", "204", "206"}, counted: true}},
			count: countMust},
		{Name: "multi-storage-client", Client: "NVIDIA Multi-Storage Client", Source: "NVIDIA/multi-storage-client PR 87", Header: headerToken, Parts: true,
			sends: func(data []byte, _ bool) http.Header { return sumHeader("CRC64NVME", data) },
			put:   []sign{{statuses: ok(200, 204), replies: []string{"", "200", "204"}}},
			get:   []sign{{statuses: ok(200, 206), replies: []string{"200", "206"}}},
			count: countMust},
		{Name: "versitygw", Client: "versitygw's Go client", Source: "versity/versitygw rdma", Header: headerToken,
			put:   []sign{{statuses: ok(200), replies: []string{"200", "204", "206"}}},
			get:   []sign{{statuses: ok(200, 206), replies: []string{"200", "204", "206"}}},
			count: countOrAll},
		{Name: "elbencho", Client: "elbencho's S3 RDMA engines", Source: "breuner/elbencho tools/s3rdma/client, commit 48264d1", Header: headerToken,
			Ranged: true,
			put:    []sign{{statuses: ok(200), anyETag: true}},
			get:    []sign{{replies: []string{"200", "206"}}},
			count:  countLax},
	}
}

// fits tells whether resp looks like s, and if not, why.
func (s sign) fits(resp *rawhttp.Response) (why string) {
	replies := resp.Header.Values(headerReply)
	reply := strings.Join(replies, ", ")
	if s.lax {
		reply = digits(reply)
	}
	_, err := strconv.ParseUint(resp.Header.Get(headerBytes), 10, 64)
	switch {
	case s.statuses != nil && !slices.Contains(s.statuses, resp.Status):
		return fmt.Sprintf("HTTP %d", resp.Status)
	case s.replies != nil && !slices.Contains(s.replies, reply):
		if len(replies) == 0 {
			return "there is no x-amz-rdma-reply"
		}
		return fmt.Sprintf("x-amz-rdma-reply is %q", reply)
	case s.paired && strconv.Itoa(resp.Status) != reply:
		return fmt.Sprintf("HTTP %d and reply %s do not belong together", resp.Status, reply)
	case s.etag && strings.Trim(resp.Header.Get("Etag"), `"`) == "", s.anyETag && resp.Header.Values("Etag") == nil:
		return "there is no ETag"
	case s.counted && err != nil:
		return "there is no byte count that can be read"
	}
	return ""
}

// digits are those in front.
func digits(s string) string {
	n := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' })
	if n < 0 {
		return s
	}
	return s[:n]
}

// succeeded tells whether a client of this model takes resp for the success of a PUT, or
// why not.
func (m Model) succeeded(signs []sign, resp *rawhttp.Response) (why string) {
	for _, s := range signs {
		if why = s.fits(resp); why == "" {
			return ""
		}
	}
	return why
}

// received is how many bytes a client believes to have got of n that it asked for, or why
// it believes in none.
func (m Model) received(resp *rawhttp.Response, n int) (got int, why string) {
	if why := m.succeeded(m.get, resp); why != "" {
		return 0, why
	}
	values := resp.Header.Values(headerBytes)
	text := strings.Join(values, ", ")
	if m.count == countIgnored {
		return n, ""
	}
	if len(values) == 0 {
		switch m.count {
		case countOrNone:
			return 0, "there is no byte count, which it takes for 0"
		case countMust:
			return 0, "there is no byte count"
		}
		return n, ""
	}
	if m.count == countLax {
		text = digits(text)
	}
	got, err := strconv.Atoi(text)
	switch {
	case err != nil || got < 0:
		return 0, fmt.Sprintf("the byte count is %q", text)
	case got == 0 && m.count == countZeroIsAll:
		return n, ""
	case got > n:
		return 0, fmt.Sprintf("%d bytes are counted, %d were asked for", got, n)
	}
	return got, ""
}
