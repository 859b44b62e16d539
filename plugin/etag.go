// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
)

// ETagPolicy says what the ETag of a stored object or part is. An MD5, as over
// HTTP, costs more than all the rest of a PUT.
type ETagPolicy uint8

const (
	// ETagAuto is ETagMD5, or ETagFast if the request brings a checksum of the whole
	// object or part (x-amz-checksum-*) to hold the bytes to.
	ETagAuto ETagPolicy = iota
	// ETagMD5 is the MD5 of the bytes.
	ETagMD5
	// ETagFast is random. An object's has the "-1" of a multipart ETag, so that nobody
	// takes it for an MD5; a part's, which nobody but the server needs to understand,
	// may look like one. A request with Content-MD5 has its MD5 verified, and as its
	// ETag.
	ETagFast
)

var etagNames = [...]string{ETagAuto: "auto", ETagMD5: "md5", ETagFast: "fast"}

// String returns auto, md5 or fast.
func (p ETagPolicy) String() string {
	if int(p) < len(etagNames) {
		return etagNames[p]
	}
	return fmt.Sprintf("etag(%d)", uint8(p))
}

// ParseETagPolicy reads auto, md5 or fast.
func ParseETagPolicy(s string) (ETagPolicy, error) {
	for i, name := range etagNames {
		if s == name {
			return ETagPolicy(i), nil
		}
	}
	return 0, errors.New("want auto, md5 or fast")
}
