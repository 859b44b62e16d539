// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/s3rdma/s3rdma/checksum"
)

// answer is what a server sends to a request with a descriptor in place of the
// right answer.
type answer struct {
	status  int
	header  map[string]string
	body    string
	chunked bool
}

func (a answer) send(w http.ResponseWriter, token string) {
	for name, value := range a.header {
		w.Header()[http.CanonicalHeaderKey(name)] = strings.Split(value, "|")
	}
	w.WriteHeader(a.status)
	io.WriteString(w, strings.ReplaceAll(a.body, "TOKEN", token))
	if a.chunked {
		w.(http.Flusher).Flush()
	}
}

const errorBody = "<Error><Code>%s</Code><Message>about TOKEN</Message></Error>"

// TestPutAnswers holds a PUT against everything that a server may answer. The
// server has the bytes in none of the cases: whatever is no error must have come
// by HTTP.
func TestPutAnswers(t *testing.T) {
	const size = 1000
	good := func(change ...string) map[string]string {
		h := map[string]string{"ETag": `"x"`, headerReply: "200", headerBytes: fmt.Sprint(size)}
		for i := 0; i < len(change); i += 2 {
			if change[i+1] == "-" {
				delete(h, change[i])
			} else {
				h[change[i]] = change[i+1]
			}
		}
		return h
	}
	tests := []struct {
		name   string
		answer answer
		want   error // nil: stored by HTTP, or accepted if route is Fabric
		route  Route
		o      PutOptions
	}{
		{name: "right", answer: answer{200, good(), "", false}, route: Fabric},
		{name: "no reply", answer: answer{200, good(headerReply, "-", headerBytes, "-"), "", false}, route: HTTPIgnored},
		{name: "no reply, conditional", answer: answer{200, good(headerReply, "-"), "", false}, o: PutOptions{IfNoneMatch: "*"}, want: ErrEmptyStored},
		{name: "no reply, fabric only", answer: answer{200, good(headerReply, "-"), "", false}, o: PutOptions{Force: ForceFabric}, want: ErrEmptyStored},
		{name: "declined", answer: answer{501, map[string]string{headerReply: "501"}, "", false}, route: HTTPDeclined},
		{name: "declined without reply", answer: answer{501, nil, "", false}, route: HTTPDeclined},
		{name: "declined with 200", answer: answer{200, map[string]string{headerReply: "501"}, "<Error/>", false}, route: HTTPDeclined},
		{name: "declined, fabric only", answer: answer{501, map[string]string{headerReply: "501"}, "", false}, o: PutOptions{Force: ForceFabric}, want: ErrDeclined},
		{name: "reply 204", answer: answer{204, good(headerReply, "204"), "", false}, want: ErrProtocol},
		{name: "status 204, reply 200", answer: answer{204, good(), "", false}, want: ErrProtocol},
		{name: "reply 206", answer: answer{200, good(headerReply, "206"), "", false}, want: ErrProtocol},
		{name: "reply 200xyz", answer: answer{200, good(headerReply, "200xyz"), "", false}, want: ErrProtocol},
		{name: "reply twice", answer: answer{200, good(headerReply, "200|200"), "", false}, want: ErrProtocol},
		{name: "reply 500", answer: answer{200, good(headerReply, "500"), "", false}, want: ErrProtocol},
		{name: "no bytes", answer: answer{200, good(headerBytes, "-"), "", false}, want: ErrProtocol},
		{name: "bytes twice", answer: answer{200, good(headerBytes, "1000|1000"), "", false}, want: ErrProtocol},
		{name: "short", answer: answer{200, good(headerBytes, "999"), "", false}, want: ErrProtocol},
		{name: "long", answer: answer{200, good(headerBytes, "1001"), "", false}, want: ErrProtocol},
		{name: "garbage bytes", answer: answer{200, good(headerBytes, "1000xyz"), "", false}, want: ErrProtocol},
		{name: "signed bytes", answer: answer{200, good(headerBytes, "+1000"), "", false}, want: ErrProtocol},
		{name: "negative bytes", answer: answer{200, good(headerBytes, "-1000"), "", false}, want: ErrProtocol},
		{name: "bytes of total", answer: answer{200, good(headerBytes, "1000/1000"), "", false}, want: ErrProtocol},
		{name: "huge bytes", answer: answer{200, good(headerBytes, "18446744073709552616"), "", false}, want: ErrProtocol},
		{name: "no ETag", answer: answer{200, good("ETag", "-"), "", false}, want: ErrProtocol},
		{name: "a body", answer: answer{200, good(), "body", false}, want: ErrProtocol},
		{name: "a chunked body", answer: answer{200, good(), "", true}, want: ErrProtocol},
		{name: "transfer failed", answer: answer{500, nil, fmt.Sprintf(errorBody, "RDMATransferFailed"), false}, want: ErrTransfer},
		{name: "busy", answer: answer{503, nil, fmt.Sprintf(errorBody, "SlowDown"), false}, want: ErrBusy},
		{name: "denied", answer: answer{403, nil, fmt.Sprintf(errorBody, "AccessDenied"), false}, want: ErrAccessDenied},
		{name: "malformed", answer: answer{400, nil, fmt.Sprintf(errorBody, "InvalidRDMAToken"), false}, want: &Error{}},
		{name: "wrong checksum", answer: answer{400, nil, fmt.Sprintf(errorBody, "BadDigest"), false}, want: ErrChecksum},
		{name: "redirect", answer: answer{307, map[string]string{"Location": "/elsewhere"}, "", false}, want: &Error{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newFakeServer(t)
			s.hook = func(w http.ResponseWriter, r *http.Request) bool {
				token := r.Header.Get(headerToken)
				if r.Method != http.MethodPut || token == "" {
					return false
				}
				tt.answer.send(w, token)
				return true
			}
			c := s.client(Options{})
			buf := mustAlloc(t, c, size)
			copy(buf.Bytes(), pattern(size, 7))
			res, err := c.Put(t.Context(), "b", "k", buf.All(), tt.o)
			if _, any := tt.want.(*Error); any {
				var e *Error
				if !errors.As(err, &e) {
					t.Fatalf("error %v, want an *Error", err)
				}
				s.wantErr(t, err, err)
			} else {
				s.wantErr(t, err, tt.want)
			}
			wantRekeys := 1
			if tt.route == Fabric {
				wantRekeys = 0
			}
			if n := s.target.counted(); n != wantRekeys {
				t.Errorf("%d rekeys, want %d", n, wantRekeys)
			}
			o, exists := s.objects["/b/k"]
			byHTTP := tt.route != Fabric && tt.want == nil
			if exists != byHTTP {
				t.Fatalf("stored: %v, want %v", exists, byHTTP)
			}
			if tt.want == nil && res.Route != tt.route {
				t.Errorf("route %v, want %v", res.Route, tt.route)
			}
			if byHTTP && !bytes.Equal(o.data, pattern(size, 7)) {
				t.Error("the bytes that went by HTTP are not the buffer's")
			}
			st := c.Stats()
			if failed := st.Failed == 1; failed != (tt.want != nil) {
				t.Errorf("stats count %d failures", st.Failed)
			}
			if byHTTP && (st.Puts[tt.route] != Flow{1, size} || st.HTTPBytes() != size || st.FabricBytes() != 0) {
				t.Errorf("stats are %+v", st)
			}
		})
	}
}

// TestGetAnswers holds a GET against everything that a server may answer, whole and
// ranged. The server writes the object's bytes before each answer, so that only the
// answer can be at fault.
func TestGetAnswers(t *testing.T) {
	const size = 1000
	data := pattern(size, 3)
	sum := checksum.Of(checksum.CRC32C, data)
	good := func(change ...string) map[string]string {
		h := map[string]string{"ETag": `"x"`, headerReply: "200", headerBytes: fmt.Sprint(size)}
		for i := 0; i < len(change); i += 2 {
			if change[i+1] == "-" {
				delete(h, change[i])
			} else {
				h[change[i]] = change[i+1]
			}
		}
		return h
	}
	ranged := func(change ...string) map[string]string {
		return good(append([]string{headerReply, "206", headerBytes, "100", "Content-Range", "bytes 50-149/1000"}, change...)...)
	}
	whole, part := GetOptions{}, GetOptions{Range: Range{Offset: 50, Length: 100}}
	suffix := GetOptions{Range: Range{Suffix: 100}}
	rest := GetOptions{Range: Range{Offset: 900}}
	byNumber := GetOptions{PartNumber: 1}
	fabricOnly := GetOptions{Force: ForceFabric}
	tests := []struct {
		name   string
		o      GetOptions
		answer answer
		want   error
		route  Route
	}{
		{"right", whole, answer{200, good(), "", false}, nil, Fabric},
		{"right, empty", whole, answer{200, good(headerBytes, "0"), "", false}, nil, Fabric},
		{"right range", part, answer{206, ranged(), "", false}, nil, Fabric},
		{"range cut by the end", part, answer{206, ranged(headerBytes, "50", "Content-Range", "bytes 50-99/100"), "", false}, nil, Fabric},
		{"right suffix", suffix, answer{206, ranged("Content-Range", "bytes 900-999/1000"), "", false}, nil, Fabric},
		{"right rest", rest, answer{206, ranged("Content-Range", "bytes 900-999/1000"), "", false}, nil, Fabric},
		{"right part", byNumber, answer{206, ranged(), "", false}, nil, Fabric},
		{"total unknown", part, answer{206, ranged("Content-Range", "bytes 50-149/*"), "", false}, nil, Fabric},
		{"right checksum", whole, answer{200, good(sum.Algorithm().Header(), sum.Base64()), "", false}, nil, Fabric},
		{"composite checksum", whole, answer{200, good(sum.Algorithm().Header(), sum.Base64()+"-3"), "", false}, nil, Fabric},
		{"composite by type", whole, answer{200, good(sum.Algorithm().Header(), checksum.Empty(checksum.CRC32C).Base64(), "x-amz-checksum-type", "COMPOSITE"), "", false}, nil, Fabric},

		{"wrong checksum", whole, answer{200, good(sum.Algorithm().Header(), checksum.Empty(checksum.CRC32C).Base64()), "", false}, checksum.ErrMismatch, 0},
		{"body without reply", whole, answer{200, good(headerReply, "-"), string(data), false}, nil, HTTPIgnored},
		{"body without reply, range", part, answer{206, ranged(headerReply, "-"), string(data[50:150]), false}, nil, HTTPIgnored},
		{"body without reply, fabric only", fabricOnly, answer{200, good(headerReply, "-"), string(data), false}, ErrNoFabric, 0},
		{"body without reply, too large", whole, answer{200, good(headerReply, "-"), strings.Repeat("x", 2*size), false}, ErrTooSmall, 0},
		{"declined", whole, answer{501, map[string]string{headerReply: "501"}, "", false}, nil, HTTPDeclined},
		{"declined, range", part, answer{501, map[string]string{headerReply: "501"}, "", false}, nil, HTTPDeclined},
		{"declined with a body", whole, answer{200, good(headerReply, "501"), string(data), false}, nil, HTTPDeclined},
		{"declined, fabric only", fabricOnly, answer{501, nil, "", false}, ErrDeclined, 0},
		{"status 206 for the whole", whole, answer{206, ranged(), "", false}, ErrProtocol, 0},
		{"status 200 for a range", part, answer{200, good(), "", false}, ErrProtocol, 0},
		{"200 with reply 206", part, answer{200, ranged(), "", false}, ErrProtocol, 0},
		{"206 with reply 200", part, answer{206, ranged(headerReply, "200"), "", false}, ErrProtocol, 0},
		{"200 for a part", byNumber, answer{200, good(), "", false}, ErrProtocol, 0},
		{"204", whole, answer{204, good(headerReply, "204"), "", false}, ErrProtocol, 0},
		{"garbage reply", whole, answer{200, good(headerReply, "200xyz"), "", false}, ErrProtocol, 0},
		{"empty reply", whole, answer{200, good(headerReply, ""), "", false}, ErrProtocol, 0},
		{"no bytes", whole, answer{200, good(headerBytes, "-"), "", false}, ErrProtocol, 0},
		{"garbage bytes", whole, answer{200, good(headerBytes, "1000 bytes"), "", false}, ErrProtocol, 0},
		{"more than the window", whole, answer{200, good(headerBytes, "1001"), "", false}, ErrProtocol, 0},
		{"reply and a body", whole, answer{200, good(), string(data), false}, ErrProtocol, 0},
		{"no Content-Range", part, answer{206, ranged("Content-Range", "-"), "", false}, ErrProtocol, 0},
		{"garbage Content-Range", part, answer{206, ranged("Content-Range", "bytes 50-149"), "", false}, ErrProtocol, 0},
		{"shorter than Content-Range", part, answer{206, ranged(headerBytes, "99"), "", false}, ErrProtocol, 0},
		{"part shorter than Content-Range", byNumber, answer{206, ranged(headerBytes, "99"), "", false}, ErrProtocol, 0},
		{"another range", part, answer{206, ranged("Content-Range", "bytes 51-150/1000"), "", false}, ErrProtocol, 0},
		{"a shorter range", part, answer{206, ranged(headerBytes, "99", "Content-Range", "bytes 50-148/1000"), "", false}, ErrProtocol, 0},
		{"a longer range", part, answer{206, ranged(headerBytes, "101", "Content-Range", "bytes 50-150/1000"), "", false}, ErrProtocol, 0},
		{"no suffix", suffix, answer{206, ranged("Content-Range", "bytes 899-998/1000"), "", false}, ErrProtocol, 0},
		{"not the rest", rest, answer{206, ranged(headerBytes, "99", "Content-Range", "bytes 900-998/1000"), "", false}, ErrProtocol, 0},
		{"not found", whole, answer{404, nil, fmt.Sprintf(errorBody, "NoSuchKey"), false}, ErrNotFound, 0},
		{"not modified", whole, answer{304, nil, "", false}, ErrNotModified, 0},
		{"precondition", whole, answer{412, nil, fmt.Sprintf(errorBody, "PreconditionFailed"), false}, ErrPreconditionFailed, 0},
		{"range", part, answer{416, nil, fmt.Sprintf(errorBody, "InvalidRange"), false}, ErrRange, 0},
		{"window", whole, answer{400, nil, fmt.Sprintf(errorBody, "RDMAWindowTooSmall"), false}, ErrTooSmall, 0},
		{"transfer failed", whole, answer{500, nil, fmt.Sprintf(errorBody, "RDMATransferFailed"), false}, ErrTransfer, 0},
		{"busy", whole, answer{503, nil, fmt.Sprintf(errorBody, "SlowDown"), false}, ErrBusy, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newFakeServer(t)
			s.objects["/b/k"] = stored{data: data, etag: `"x"`}
			want := data
			switch {
			case tt.o.Range == part.Range:
				want = data[50:150]
			case tt.o.Range != Range{}:
				want = data[900:]
			}
			s.hook = func(w http.ResponseWriter, r *http.Request) bool {
				token := r.Header.Get(headerToken)
				if r.Method != http.MethodGet || token == "" {
					return false
				}
				d, ok := s.open(w, token)
				if !ok {
					t.Error("the session is unknown")
					return true
				}
				if tt.route == Fabric || tt.want != nil {
					if err := s.target.do(d, func(win []byte) { copy(win, want) }); err != nil {
						t.Error(err)
					}
				}
				tt.answer.send(w, token)
				return true
			}
			c := s.client(Options{})
			buf := mustAlloc(t, c, size+16)
			for i := range buf.Bytes() {
				buf.Bytes()[i] = 0xee
			}
			res, err := c.Get(t.Context(), "b", "k", buf.View(8, size), tt.o)
			s.wantErr(t, err, tt.want)
			wantRekeys := 1
			if tt.route == Fabric {
				wantRekeys = 0
			}
			if n := s.target.counted(); n != wantRekeys {
				t.Errorf("%d rekeys, want %d", n, wantRekeys)
			}
			if tt.want != nil {
				if res.N != 0 || res.Route != 0 {
					t.Errorf("a result with an error: %+v", res)
				}
				return
			}
			if res.Route != tt.route {
				t.Errorf("route %v, want %v", res.Route, tt.route)
			}
			got := buf.Bytes()[8 : 8+res.N]
			if !bytes.Equal(got, want[:res.N]) || tt.route != Fabric && res.N != len(want) {
				t.Errorf("%d bytes that are not the object's", res.N)
			}
			for i, b := range buf.Bytes() {
				if (i < 8 || i >= 8+size) && b != 0xee {
					t.Fatalf("byte %d outside the view has changed", i)
				}
			}
			if tt.name == "right checksum" != !res.Verified.IsZero() {
				t.Errorf("verified %v", res.Verified)
			}
			if n, ok := c.Stats().Gets[tt.route], (Flow{1, int64(res.N)}); n != ok {
				t.Errorf("stats count %+v, want %+v", n, ok)
			}
		})
	}
}

func FuzzParseContentRange(f *testing.F) {
	for _, s := range []string{"bytes 0-1023/4096", "bytes 0-9/10 ", "Bytes 0-9/10", "bytes 0-9", "bytes -5-9/10", "bytes 0-9/9223372036854775808", "bytes 0-0/1", "bytes 5-9/*", "bytes 5-9/9", "bytes */100", "bytes 1-0/5", "bytes=1-2/5", "bytes 00000000000000000000001-2/3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		first, last, total, ok := parseContentRange(s)
		if !ok {
			return
		}
		if first < 0 || last < first || total != -1 && total <= last {
			t.Errorf("%q: %d-%d/%d", s, first, last, total)
		}
	})
}

func FuzzParseWelcome(f *testing.F) {
	f.Add(strings.Repeat("a", 32), "200:token", "000001")
	f.Add("", "", "")
	// Of queue pairs, as a shim for cuObject answers, and what is not to be taken for it.
	pair := "014200000000000000000000000000ffff0a0a30d0" + strings.Repeat("0", 46)
	f.Add("0123456789abcdef0123456789abcdef", "200:"+pair, "abcdef")
	f.Add("0123456789ABCDEF0123456789ABCDEF", "200:"+pair, "000000")
	f.Add("0123456789abcdef0123456789abcdef", "200", "1000000")
	f.Add("0123456789abcdef0123456789abcdef", "501", "")
	f.Add("00000000000000000000000000000000", "200:1", " 00001")
	f.Fuzz(func(t *testing.T, session, reply, psn string) {
		h := http.Header{}
		h.Set(headerSession, session)
		h.Set(headerReply, reply)
		h.Set(headerPSN, psn)
		w, err := parseWelcome(h)
		if err == nil && (w.Session.Hex() != session || "200:"+w.Token != reply) {
			t.Errorf("%q %q %q: %+v", session, reply, psn, w)
		}
		if err != nil && len(session) >= 32 && strings.Contains(err.Error(), session) { // shorter ones occur by chance
			t.Errorf("the error shows the session: %v", err)
		}
	})
}
