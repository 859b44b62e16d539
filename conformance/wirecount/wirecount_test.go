// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package wirecount_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/s3rdma/s3rdma/conformance/wirecount"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is a connection that plays back a response stream in given pieces.
type script struct {
	net.Conn
	in io.Reader
}

func (s script) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s script) Write(p []byte) (int, error) { return len(p), nil }

// play runs both streams, cut into pieces of at most n bytes, through a counter.
func play(t *testing.T, c *wirecount.Counter, requests, responses string, n int) {
	t.Helper()
	w := c.Wrap(script{in: strings.NewReader(responses)})
	for p := []byte(requests); len(p) > 0; {
		k := min(n, len(p))
		if _, err := w.Write(p[:k]); err != nil {
			t.Fatal(err)
		}
		p = p[k:]
	}
	buf := make([]byte, n)
	for {
		if _, err := w.Read(buf); err == io.EOF {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestPlacesEveryByte(t *testing.T) {
	const (
		put    = "PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n"
		empty  = "PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"
		get    = "GET /b/k HTTP/1.1\r\nHost: h\r\n\r\n"
		head   = "HEAD /b/k HTTP/1.1\r\nHost: h\r\n\r\n"
		chunks = "PUT /b/k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
		ok     = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
	)
	for _, tt := range []struct {
		name                string
		requests, responses string
		want                wirecount.Traffic
	}{
		{"empty payloads", empty + get, ok + ok, wirecount.Traffic{Requests: 2, Responses: 2,
			Sent: wirecount.Bytes{Heads: int64(len(empty + get))}, Received: wirecount.Bytes{Heads: int64(2 * len(ok))}}},
		{"a body each way", put + "12345", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", wirecount.Traffic{Requests: 1, Responses: 1,
			Sent: wirecount.Bytes{Heads: int64(len(put)), Payload: 5}, Received: wirecount.Bytes{Heads: 38, Payload: 3}}},
		{"payload that looks like a head", put + "\r\n\r\nx" + empty, ok + ok, wirecount.Traffic{Requests: 2, Responses: 2,
			Sent: wirecount.Bytes{Heads: int64(len(put + empty)), Payload: 5}, Received: wirecount.Bytes{Heads: int64(2 * len(ok))}}},
		{"chunked", chunks + "3;x=y\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\ntrailer: 1\r\n\r\n" + empty, ok + ok, wirecount.Traffic{Requests: 2, Responses: 2,
			Sent: wirecount.Bytes{Heads: int64(len(chunks + empty)), Framing: 7 + 2 + 4 + 2 + 3 + 12 + 2, Payload: 19}, Received: wirecount.Bytes{Heads: int64(2 * len(ok))}}},
		{"HEAD has a length and no body", head + get, "HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + ok, wirecount.Traffic{Requests: 2, Responses: 2,
			Sent: wirecount.Bytes{Heads: int64(len(head + get))}, Received: wirecount.Bytes{Heads: int64(40 + len(ok))}}},
		{"100 Continue", put + "12345", "HTTP/1.1 100 Continue\r\n\r\n" + ok, wirecount.Traffic{Requests: 1, Responses: 1,
			Sent: wirecount.Bytes{Heads: int64(len(put)), Payload: 5}, Received: wirecount.Bytes{Heads: int64(25 + len(ok))}}},
		{"until close", get, "HTTP/1.1 200 OK\r\n\r\nabcdef", wirecount.Traffic{Requests: 1, Responses: 1,
			Sent: wirecount.Bytes{Heads: int64(len(get))}, Received: wirecount.Bytes{Heads: 19, Payload: 6}}},
		{"no HTTP counts as payload", "\x16\x03\x01 hello\r\n\r\n", "", wirecount.Traffic{Sent: wirecount.Bytes{Payload: 13}}},
		{"an answer to nothing counts as payload", "", ok, wirecount.Traffic{Received: wirecount.Bytes{Payload: int64(len(ok))}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, n := range []int{1, 2, 3, 7, 1000} {
				var c wirecount.Counter
				play(t, &c, tt.requests, tt.responses, n)
				if d := cmp.Diff(tt.want, c.Total()); d != "" {
					t.Errorf("in pieces of %d (-want +got):\n%s", n, d)
				}
			}
		})
	}
}

func TestAnyPayloadInAnyPieces(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var requests, responses strings.Builder
		var sent, received int64
		for range rapid.IntRange(1, 5).Draw(rt, "messages") {
			// Payload made of the very bytes that delimit heads.
			body := rapid.StringOfN(rapid.RuneFrom([]rune("\r\n0aH:")), 0, 40, -1)
			up, down := body.Draw(rt, "up"), body.Draw(rt, "down")
			sent, received = sent+int64(len(up)), received+int64(len(down))
			if rapid.Bool().Draw(rt, "chunked") && up != "" {
				fmt.Fprintf(&requests, "PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(up), up)
			} else {
				fmt.Fprintf(&requests, "PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s", len(up), up)
			}
			fmt.Fprintf(&responses, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(down), down)
		}
		var c wirecount.Counter
		play(t, &c, requests.String(), responses.String(), rapid.IntRange(1, 60).Draw(rt, "piece"))
		got := c.Total()
		if got.Sent.Payload != sent || got.Received.Payload != received {
			rt.Fatalf("payload %d up, %d down; want %d and %d", got.Sent.Payload, got.Received.Payload, sent, received)
		}
		all := got.Sent.Heads + got.Sent.Framing + got.Sent.Payload
		if all != int64(requests.Len()) {
			rt.Fatalf("%d bytes placed of %d", all, requests.Len())
		}
	})
}

func FuzzScanner(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), []byte("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"), 3)
	f.Add([]byte("PUT /b/k HTTP/1.1\r\nContent-Length: 0\r\n\r\nGET /b/k HTTP/1.1\r\nRange: bytes=0-9\r\n\r\n"),
		[]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-9/100\r\nContent-Length: 0\r\n\r\n"), 7)
	f.Add([]byte("PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), []byte("HTTP/1.1 204 X\r\n\r\n"), 1)
	f.Fuzz(func(t *testing.T, up, down []byte, n int) {
		if n < 1 || n > 1<<16 {
			n = 1
		}
		var c wirecount.Counter
		play(t, &c, string(up), string(down), n)
		got := c.Total()
		if placed := got.Sent.Heads + got.Sent.Framing + got.Sent.Payload; placed > int64(len(up)) {
			t.Fatalf("%d bytes placed of %d", placed, len(up))
		}
	})
}

// TestBehindARealClient is the use: net/http on both ends, plain and TLS.
func TestBehindARealClient(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/body" {
			w.Write(bytes.Repeat([]byte("x"), 100_000)) // chunked: no length given
		}
	})
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%t", secure), func(t *testing.T) {
			server := httptest.NewUnstartedServer(handler)
			if secure {
				server.StartTLS()
			} else {
				server.Start()
			}
			defer server.Close()
			var c wirecount.Counter
			transport := c.Transport(server.Client().Transport.(*http.Transport).TLSClientConfig)
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
			do := func(method, path string, body io.Reader) {
				t.Helper()
				req, err := http.NewRequest(method, server.URL+path, body)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			do("PUT", "/", nil)
			do("GET", "/", nil)
			if got := c.Total(); got.Payload() != 0 || got.Requests != 2 || got.Responses != 2 {
				t.Fatalf("empty requests: %+v", got)
			}
			do("PUT", "/", bytes.NewReader(make([]byte, 70_000)))
			do("GET", "/body", nil)
			if got := c.Of("PUT").Sent.Payload; got != 70_000 {
				t.Errorf("PUT sent %d bytes of payload, want 70000", got)
			}
			if got := c.Of("GET").Received.Payload; got != 100_000 {
				t.Errorf("GET received %d bytes of payload, want 100000", got)
			}
		})
	}
}
