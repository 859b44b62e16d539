// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package wirecount

import (
	"bytes"
	"strconv"
	"strings"
)

// maxHead bounds what is buffered while a head is incomplete. Go's server and
// client refuse longer ones.
const maxHead = 1 << 20

type state uint8

const (
	inHead       state = iota // collecting a head, up to and with CRLFCRLF
	inBody                    // left bytes of payload to go
	inChunkSize               // collecting the line with a chunk's size
	inChunkData               // left bytes of payload to go
	inChunkEnd                // left bytes of the CRLF behind a chunk to go
	inTrailer                 // collecting trailer lines, up to an empty one
	untilClose                // payload to the end of the connection
	unrecognised              // no HTTP (any more): everything counts as payload
)

// frame says how the body behind a head is delimited.
type frame struct {
	length  int64 // of the body, if not chunked and not toClose
	chunked bool
	toClose bool
	opaque  bool
}

// scanner follows one direction of one connection.
type scanner struct {
	state state
	left  int64
	buf   []byte // head, chunk line or trailer line collected so far

	// onHead interprets a complete head. ok is false if it is none.
	onHead func(startLine string, fields []string) (f frame, ok bool)
	// add reports bytes as they are placed.
	add func(head, framing, payload int64)
}

// scan places p. It keeps nothing of p but an incomplete line or head.
func (s *scanner) scan(p []byte) {
	for len(p) > 0 {
		switch s.state {
		case inHead:
			p = s.scanHead(p)
		case inBody, inChunkData:
			n := min(s.left, int64(len(p)))
			s.add(0, 0, n)
			p = p[n:]
			if s.left -= n; s.left == 0 {
				if s.state == inBody {
					s.state = inHead
				} else {
					s.state, s.left = inChunkEnd, 2
				}
			}
		case inChunkEnd:
			n := min(s.left, int64(len(p)))
			s.add(0, n, 0)
			p = p[n:]
			if s.left -= n; s.left == 0 {
				s.state = inChunkSize
			}
		case inChunkSize:
			line, rest, ok := s.line(p)
			p = rest
			if !ok {
				continue
			}
			s.add(0, int64(len(line)), 0)
			digits, _, _ := strings.Cut(strings.TrimSpace(string(line)), ";")
			n, err := strconv.ParseInt(strings.TrimSpace(digits), 16, 64)
			switch {
			case err != nil || n < 0:
				s.state = unrecognised
			case n == 0:
				s.state = inTrailer
			default:
				s.state, s.left = inChunkData, n
			}
		case inTrailer:
			line, rest, ok := s.line(p)
			p = rest
			if !ok {
				continue
			}
			s.add(0, int64(len(line)), 0)
			if len(bytes.TrimRight(line, "\r\n")) == 0 {
				s.state = inHead
			}
		case untilClose, unrecognised:
			s.add(0, 0, int64(len(p)))
			return
		}
	}
}

// scanHead collects a head from p and returns what lies behind it.
func (s *scanner) scanHead(p []byte) []byte {
	const end = "\r\n\r\n"
	from := max(0, len(s.buf)-len(end)+1)
	s.buf = append(s.buf, p[:min(len(p), maxHead)]...)
	at := bytes.Index(s.buf[from:], []byte(end))
	if at < 0 {
		if len(s.buf) < maxHead {
			return nil
		}
		return s.giveUp(p[min(len(p), maxHead):])
	}
	n := from + at + len(end)
	behind := len(s.buf) - n // bytes of p that belong to what follows
	taken := min(len(p), maxHead)
	lines := strings.Split(string(s.buf[:n-len(end)]), "\r\n")
	f, ok := s.onHead(lines[0], lines[1:])
	if !ok {
		return s.giveUp(p[taken:])
	}
	s.buf = s.buf[:0]
	s.add(int64(n), 0, 0)
	s.state, s.left = inBody, f.length
	switch {
	case f.opaque:
		s.state = unrecognised
	case f.chunked:
		s.state = inChunkSize
	case f.toClose:
		s.state = untilClose
	case f.length == 0:
		s.state = inHead
	}
	return p[taken-behind:]
}

// giveUp counts the bytes collected as payload, and all that follow.
func (s *scanner) giveUp(rest []byte) []byte {
	s.state = unrecognised
	s.add(0, 0, int64(len(s.buf)))
	s.buf = nil
	return rest
}

// line collects a line that ends at LF. The result is valid until the next call.
func (s *scanner) line(p []byte) (line, rest []byte, ok bool) {
	i := bytes.IndexByte(p, '\n')
	if i < 0 {
		s.buf = append(s.buf, p...)
		if len(s.buf) > maxHead {
			s.giveUp(nil)
		}
		return nil, nil, false
	}
	line = append(s.buf, p[:i+1]...)
	s.buf = line[:0]
	return line, p[i+1:], true
}

// bodyOf reads the fields that delimit a body. chunked wins over a length, as in
// RFC 9112 section 6.3.
func bodyOf(fields []string) (length int64, chunked, ok bool) {
	length = -1
	for _, f := range fields {
		name, value, found := strings.Cut(f, ":")
		if !found {
			return 0, false, false
		}
		value = strings.TrimSpace(value)
		switch strings.ToLower(name) {
		case "content-length":
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil || n < 0 {
				return 0, false, false
			}
			length = n
		case "transfer-encoding":
			codings := strings.Split(value, ",")
			chunked = strings.EqualFold(strings.TrimSpace(codings[len(codings)-1]), "chunked")
		}
	}
	return length, chunked, true
}
