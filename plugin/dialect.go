// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio"
)

// The headers of the amz dialect, lower-case as they are signed. The first three
// are what cuObject's documentation and every known client use; the session and
// psn headers belong to the connect of queue pairs, which our own sessions share.
const (
	HeaderToken   = "x-amz-rdma-token"
	HeaderReply   = "x-amz-rdma-reply"
	HeaderBytes   = "x-amz-rdma-bytes-transferred"
	HeaderSession = "x-amz-rdma-session"
	HeaderPSN     = "x-amz-rdma-psn"

	// HeaderInfo is what Dell's clients name the token header.
	HeaderInfo = "x-rdma-info"
)

// Dialect is how one family of clients writes a descriptor into a request and
// expects to be answered. A standard is being written that will differ from
// today's headers; it becomes one more Dialect.
type Dialect interface {
	// Name is the label in events and metrics.
	Name() string
	// Header is the canonical name of the header that bears the descriptor.
	Header() string
	// Parse reads the header's value. Errors wrap rdmaio.ErrMalformed or
	// rdmaio.ErrUnsupported, and never show the value.
	Parse(value string) (rdmaio.Descriptor, error)
	// Succeed marks h, a response that moved n bytes, as a success of this HTTP
	// status, and returns the one to send.
	Succeed(h http.Header, status int, n int64) int
	// Decline marks h as a decline with this HTTP status.
	Decline(h http.Header, status int)
}

// headerDialect is a Dialect of one request header and the amz reply headers.
type headerDialect struct {
	name, header string
	parse        rdmaio.ParseOptions
}

func (d headerDialect) Name() string   { return d.name }
func (d headerDialect) Header() string { return d.header }

func (d headerDialect) Parse(value string) (rdmaio.Descriptor, error) {
	desc, _, err := rdmaio.Parse(value, d.parse)
	return desc, err
}

// Succeed sends both headers, also for no bytes at all: the newest NIXL wants the
// reply on a PUT, NooBaa's client the byte count everywhere, and nobody takes
// anything but plain decimals.
func (d headerDialect) Succeed(h http.Header, status int, n int64) int {
	h.Set(HeaderReply, strconv.Itoa(status))
	h.Set(HeaderBytes, strconv.FormatInt(n, 10))
	return status
}

func (d headerDialect) Decline(h http.Header, status int) {
	h.Set(HeaderReply, strconv.Itoa(status))
}

func dialects(o rdmaio.ParseOptions) []Dialect {
	return []Dialect{
		headerDialect{"amz", http.CanonicalHeaderKey(HeaderToken), o},
		headerDialect{"info", http.CanonicalHeaderKey(HeaderInfo), o},
	}
}

// bearer is a descriptor as it was found on a request, not yet read.
type bearer struct {
	dialect Dialect // nil: a header of a dialect we do not speak
	header  string  // canonical name, also if dialect is nil
	value   string
	clash   bool // several values that differ
}

// Prefixes of all headers that bear descriptors: of the dialects above, of those
// that we know of but do not speak, and of those that are still to come. On a PUT such a header must not be ignored:
// the body is somewhere else.
var foreignPrefixes = [...]string{"X-Amz-Rdma-", "X-Rdma-", "X-Scal-Rdma", "X-Cuobj-"}

// Headers with such a prefix that bear no descriptor.
var plainHeaders = map[string]bool{
	http.CanonicalHeaderKey("x-amz-rdma-agent"): true,
	http.CanonicalHeaderKey(HeaderReply):        true,
	http.CanonicalHeaderKey(HeaderBytes):        true,
	http.CanonicalHeaderKey(HeaderSession):      true,
	http.CanonicalHeaderKey(HeaderPSN):          true,

	http.CanonicalHeaderKey(checksum.HeaderPolicy):    true,
	http.CanonicalHeaderKey(checksum.HeaderAlgorithm): true,
	http.CanonicalHeaderKey(checksum.HeaderBlock):     true,
	http.CanonicalHeaderKey(checksum.HeaderBlocks):    true,
}

// IsControlHeader tells whether the header of this canonical name belongs to a
// control protocol, known or to come: its value may be a descriptor or name a
// session, and must not be logged.
func IsControlHeader(name string) bool {
	for _, p := range foreignPrefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// findBearer looks for a descriptor among the request's headers.
func findBearer(h http.Header, dialects []Dialect) (b bearer, found bool) {
	for _, d := range dialects {
		for _, v := range h[d.Header()] {
			switch {
			case !found:
				b, found = bearer{dialect: d, header: d.Header(), value: v}, true
			case v != b.value:
				b.clash = true
			}
		}
	}
	if found {
		return b, true
	}
	for name := range h {
		if IsControlHeader(name) && !plainHeaders[name] {
			return bearer{header: name}, true
		}
	}
	return bearer{}, false
}

// signedHeader tells whether the signature of r covers the header: Signature
// Version 4, in the Authorization header or presigned. It does not verify the
// signature. Of two places only the one counts that servers look at first.
func signedHeader(r *http.Request, name string) bool {
	var list string
	if auth := r.Header.Values("Authorization"); len(auth) > 0 {
		rest, ok := strings.CutPrefix(auth[0], "AWS4-HMAC-SHA256")
		if !ok || len(auth) > 1 {
			return false
		}
		n := 0
		for part := range strings.SplitSeq(rest, ",") {
			if v, ok := strings.CutPrefix(strings.TrimSpace(part), "SignedHeaders="); ok {
				list = v
				n++
			}
		}
		if n != 1 {
			return false
		}
	} else {
		v := r.URL.Query()["X-Amz-SignedHeaders"]
		if len(v) != 1 {
			return false
		}
		list = v[0]
	}
	for h := range strings.SplitSeq(list, ";") {
		if strings.EqualFold(h, name) {
			return true
		}
	}
	return false
}
