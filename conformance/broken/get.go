// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package broken

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio"
)

// get writes an object, or a range, to the window.
func (s *Server) get(w http.ResponseWriter, r *http.Request, who identity, m *mover, d rdmaio.Descriptor, ask checksum.RegionRequest) {
	in := r.Clone(r.Context())
	s.askStore(in)
	a := s.inner(in, who, nil)
	data := bytes.Clone(a.body.Bytes())
	if a.status != 200 && a.status != 206 {
		s.failGet(w, r, m, d, a)
		return
	}
	if uint64(len(data)) > d.Size {
		switch {
		case s.on("get-cut"):
			data = data[:d.Size]
		case s.on("get-too-small-by-503"):
			refuse(w, 503, "ServiceUnavailable", "too small")
			return
		case s.on("get-too-small-written"):
			m.push(r.Context(), d, data[:d.Size]) // whatever comes of it
			fallthrough
		default:
			refuse(w, 400, "RDMAWindowTooSmall", "the window is too small")
			return
		}
	}
	if err := s.deliver(r.Context(), m, d, a, data); err != nil && !s.on("get-failure-is-success") {
		s.transferFailed(w)
		return
	}
	moved := data
	if s.on("range-proof-of-another") && a.status == 206 {
		moved = data[1:]
	}
	s.prove(a.header, ask, moved)
	s.succeedGet(r, a, len(data), d)
	var body []byte
	if s.on("get-body-too") {
		body = data
	}
	relay(w, a, body)
}

// askStore changes what the store is asked for.
func (s *Server) askStore(in *http.Request) {
	q := in.URL.Query()
	switch {
	case s.on("get-conditions-ignored"):
		for _, name := range []string{"If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"} {
			in.Header.Del(name)
		}
	case s.on("range-ignored"):
		in.Header.Del("Range")
	case s.on("version-ignored"):
		q.Del("versionId")
		in.URL.RawQuery = q.Encode()
	case s.on("part-number-ignored"):
		q.Del("partNumber")
		in.URL.RawQuery = q.Encode()
	case s.on("overrides-ignored"):
		q.Del("response-content-type")
		in.URL.RawQuery = q.Encode()
	case s.on("checksum-mode-ignored"):
		in.Header.Del("X-Amz-Checksum-Mode")
	case s.on("checksums-unasked"):
		in.Header.Set("X-Amz-Checksum-Mode", "ENABLED")
	}
}

// failGet passes on what the store refuses.
func (s *Server) failGet(w http.ResponseWriter, r *http.Request, m *mover, d rdmaio.Descriptor, a *answer) {
	body := a.body.Bytes()
	switch {
	case s.on("condition-writes") && a.status == 412, s.on("not-found-writes") && a.status == 404:
		m.push(r.Context(), d, append(body[:0:0], "an error"...)) // whatever comes of it
	case s.on("errors-in-reply"):
		a.header.Set(headerReply, strconv.Itoa(a.status))
	case s.on("errors-with-count"):
		a.header.Set(headerBytes, "0")
	case s.on("not-found-by-200") && a.status == 404:
		a.status = 200
	case s.on("not-modified-by-200") && a.status == 304:
		a.status, body = 200, nil
	case s.on("delete-marker-not-told"):
		a.header.Del("X-Amz-Delete-Marker")
	}
	relay(w, a, body)
}

// deliver writes data to the window, more or less.
func (s *Server) deliver(ctx context.Context, m *mover, d rdmaio.Descriptor, a *answer, data []byte) error {
	at := d
	var first uint64
	n, _ := fmt.Sscanf(a.header.Get("Content-Range"), "bytes %d-", &first)
	if n == 1 && s.on("range-offset-in-window") && first+uint64(len(data)) <= d.Size {
		at.Addr += first
		at.Size -= first
	}
	wire := data
	switch {
	case s.on("get-not-written"):
		return nil
	case s.on("get-early"):
		s.afterwards(m, func(m *mover) {
			time.Sleep(early)
			m.push(context.WithoutCancel(ctx), d, data) // whatever comes of it
		})
		return nil
	case s.on("get-late-writes"):
		s.afterwards(m, func(m *mover) {
			for range 12 { // one of them falls where nothing may be written any more
				time.Sleep(8 * time.Millisecond)
				if m.push(context.WithoutCancel(ctx), d, data) != nil {
					return
				}
			}
		})
	case s.on("get-last-byte-lost") && len(data) > 0:
		wire = data[:len(data)-1]
	case s.on("get-byte-flipped") && len(data) > 0:
		wire = bytes.Clone(data)
		wire[len(wire)/2] ^= 1
	case s.on("range-off-by-one") && a.status == 206 && len(data) > 1:
		wire = append(bytes.Clone(data[1:]), data[0])
	case s.on("get-in-reverse") && len(data) > 1<<20:
		wire = append(bytes.Clone(data[1<<20:]), data[:1<<20]...) // pieces in the wrong order
	}
	if err := m.push(ctx, at, wire); err != nil {
		return err
	}
	beside := d
	beside.Size = 1
	switch {
	case len(data) == 0:
	case s.on("get-byte-too-many"):
		beside.Addr += uint64(len(data))
		return m.push(ctx, beside, []byte{0x5a ^ wire[len(wire)-1]})
	case s.on("get-byte-before"):
		beside.Addr--
		return m.push(ctx, beside, []byte{0x5a})
	case s.on("get-whole-window"):
		return m.push(ctx, d, append(bytes.Clone(data), make([]byte, d.Size-uint64(len(data)))...))
	}
	return nil
}

// succeedGet marks a as a success of n bytes.
func (s *Server) succeedGet(r *http.Request, a *answer, n int, d rdmaio.Descriptor) {
	h := a.header
	reply, count := strconv.Itoa(a.status), strconv.Itoa(n)
	switch partial := a.status == 206; {
	case s.on("range-reply-200"):
		reply = "200"
	case s.on("range-by-200") && partial:
		reply, a.status = "200", 200
	case s.on("range-not-told"):
		h.Del("Content-Range")
	case s.on("part-number-by-200") && r.URL.Query().Has("partNumber"):
		reply, a.status = "200", 200
	case s.on("parts-count-not-told"):
		h.Del("X-Amz-Mp-Parts-Count")
	case s.on("get-without-reply"):
		reply = ""
	case s.on("get-reply-text"):
		reply += " OK"
	case s.on("get-without-count"):
		count = ""
	case s.on("empty-without-count") && n == 0:
		count = ""
	case s.on("empty-without-reply") && n == 0:
		reply, count = "", ""
	case s.on("get-count-of-window"):
		count = strconv.FormatUint(d.Size, 10)
	case s.on("get-count-with-total"):
		count += "/" + count
	case s.on("get-headers-dropped"):
		h.Del("Etag")
		h.Del("X-Amz-Meta-Case")
	}
	if reply != "" {
		h.Set(headerReply, reply)
	}
	if count != "" {
		h.Set(headerBytes, count)
	}
}
