// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package broken

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio"
)

// put stores the window.
func (s *Server) put(w http.ResponseWriter, r *http.Request, who identity, m *mover, d rdmaio.Descriptor, ask checksum.RegionRequest) {
	in := r.Clone(context.WithoutCancel(r.Context())) // with a header of its own
	if s.on("put-early") {
		w.Header().Set("Etag", `"d41d8cd98f00b204e9800998ecf8427e"`)
		w.Header().Set(headerReply, "200")
		w.Header().Set(headerBytes, strconv.FormatUint(d.Size, 10))
		s.afterwards(m, func(m *mover) {
			time.Sleep(early)
			if data, err := m.pull(in.Context(), d, int(d.Size)); err == nil {
				s.inner(in, who, data)
			}
		})
		return
	}
	if s.on("put-neighbour-byte") {
		d.Addr--
	}
	data, err := m.pull(r.Context(), d, int(d.Size))
	switch {
	case err == nil:
	case s.on("put-short-stored"), s.on("part-short-stored") && r.URL.Query().Has("uploadId"):
	case s.on("put-failed-overwrites"):
		s.inner(in, who, data)
		s.transferFailed(w)
		return
	default:
		s.transferFailed(w)
		return
	}
	if r.Context().Err() != nil {
		return // nobody to answer; nothing is stored
	}
	if s.on("put-last-byte-lost") && len(data) > 0 {
		data = data[:len(data)-1]
	}
	if s.on("put-byte-flipped") && len(data) > 0 {
		data[len(data)/2] ^= 1
	}
	if ask.Blocks != "" && !s.on("block-damage-stored") {
		declared, err := checksum.ParseList(ask.Algorithm, ask.Block, int64(len(data)), ask.Blocks)
		if err == nil {
			err = declared.Verify(data)
		}
		if err != nil {
			refuse(w, 400, "BadDigest", err.Error())
			return
		}
	}
	s.prepare(in)
	named, err := checksum.ParseAlgorithm(in.Header.Get("X-Amz-Checksum-Algorithm"))
	if sums, _ := checksum.FromHeader(in.Header); err != nil || len(sums) > 0 || s.on("named-checksum-ignored") {
		named = 0
	} else {
		in.Header.Set(named.Header(), checksum.Of(named, data).Base64())
	}
	a := s.inner(in, who, data)
	if a.status == 200 {
		if named != 0 {
			a.header.Set(named.Header(), in.Header.Get(named.Header()))
		}
		moved := data
		if s.on("put-proof-of-nothing") {
			moved = nil
		}
		s.prove(a.header, ask, moved)
		s.succeedPut(a, len(data))
	}
	body := a.body.Bytes()
	if s.on("put-answer-has-body") && a.status == 200 {
		body = []byte("<PutResult/>")
	}
	relay(w, a, body)
}

// prepare makes in what the store gets to see of a PUT.
func (s *Server) prepare(in *http.Request) {
	h := in.Header
	for name := range h {
		if s.on("checksums-ignored") && (strings.HasPrefix(name, "X-Amz-Checksum-") || name == "Content-Md5") ||
			s.on("content-md5-ignored") && name == "Content-Md5" ||
			s.on("unknown-checksum-ignored") && (name == "X-Amz-Checksum-Sha512" || name == "X-Amz-Checksum-Md5" || name == "X-Amz-Checksum-Xxhash64") ||
			s.on("metadata-dropped") && strings.HasPrefix(name, "X-Amz-Meta-") ||
			s.on("content-type-dropped") && name == "Content-Type" ||
			s.on("tags-dropped") && name == "X-Amz-Tagging" ||
			s.on("encryption-dropped") && strings.HasPrefix(name, "X-Amz-Server-Side-Encryption") ||
			s.on("put-conditions-ignored") && strings.HasPrefix(name, "If-") {
			delete(h, name)
		}
	}
	if s.on("token-kept") {
		h.Set("X-Amz-Meta-Rdma", "1")
	}
	if s.on("key-unescaped-twice") {
		if p, err := url.PathUnescape(in.URL.Path); err == nil {
			in.URL.Path = p
		}
	}
	// The hash of the empty payload is that of the HTTP body.
	if hash := h.Get("X-Amz-Content-Sha256"); hash == checksum.Empty(checksum.SHA256).Hex() || s.on("payload-hash-ignored") {
		h.Set("X-Amz-Content-Sha256", unsignedPayload)
	}
	if s.on("checksum-of-nothing-accepted") {
		for _, alg := range checksum.Algorithms() {
			if h.Get(alg.Header()) == checksum.Empty(alg).Base64() {
				h.Del(alg.Header())
			}
		}
	}
}

// succeedPut marks a as a success of n bytes.
func (s *Server) succeedPut(a *answer, n int) {
	h := a.header
	h.Set(headerBytes, strconv.Itoa(n))
	h.Set(headerReply, "200")
	switch {
	case s.on("put-without-reply"):
		h.Del(headerReply)
	case s.on("put-reply-204"):
		h.Set(headerReply, "204")
	case s.on("put-reply-text"):
		h.Set(headerReply, "200 OK")
	case s.on("put-without-etag"):
		h.Del("Etag")
	case s.on("put-empty-etag"):
		h.Set("Etag", `""`)
	case s.on("put-without-count"):
		h.Del(headerBytes)
	case s.on("put-count-of-http"):
		h.Set(headerBytes, "0")
	case s.on("put-status-204"):
		a.status = 204
	case s.on("put-another-etag"):
		h.Set("Etag", `"`+checksum.Of(checksum.MD5, []byte(h.Get("Etag"))).Hex()+`"`)
	case s.on("put-version-not-told"):
		h.Del("X-Amz-Version-Id")
	case s.on("part-checksum-not-told"):
		h.Del("X-Amz-Checksum-Crc32c")
		h.Del("X-Amz-Checksum-Crc64nvme")
	}
}
