// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/staging"
)

// sizes around the slab (4096), the fabric's largest transfer (1000), a bank (two
// slabs) and the lease (four slabs).
var sizes = []int{1, 999, 1000, 1001, 4095, 4096, 4097, 8191, 8192, 8193, 16383, 16384, 16385, 40000, 100000}

func TestGet(t *testing.T) {
	for _, n := range append([]int{0}, sizes...) {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			const guard = 512
			r := newRig(t, n+2*guard, nil)
			for i := range r.fab.mem {
				r.fab.mem[i] = 0xEE
			}
			want := pattern(n)
			r.store.put("/b/k", want)
			res := r.do(r.request("GET", "/b/k", r.token(guard, n)))
			if res.StatusCode != 200 || res.Header.Get(HeaderReply) != "200" || res.Header.Get(HeaderBytes) != strconv.Itoa(n) {
				t.Fatalf("answer %v %v", res.Status, res.Header)
			}
			if res.Header.Get("Content-Length") != "0" || readAll(t, res) != "" {
				t.Error("the payload is not empty")
			}
			if res.Header.Get("ETag") != etag(want) {
				t.Error("the handler's headers are lost")
			}
			if res.Header.Get("x-amz-checksum-crc32") != "" {
				t.Error("a checksum that was not asked for would be compared with the empty body")
			}
			if !bytes.Equal(r.fab.mem[guard:guard+n], want) {
				t.Error("wrong bytes in the window")
			}
			for _, i := range []int{0, guard - 1, guard + n, len(r.fab.mem) - 1} {
				if r.fab.mem[i] != 0xEE {
					t.Errorf("byte %d outside the window has changed", i)
				}
			}
			if e := r.last(); e.Outcome != OutcomeServed || e.Bytes != int64(n) || e.Op != OpGetObject || e.Transport != "shm" || e.Dialect != "amz" || e.Status != 200 {
				t.Errorf("event %+v", e)
			}
		})
	}
}

// TestLeases moves objects through leases of every number of slabs.
func TestLeases(t *testing.T) {
	for slabs := 1; slabs <= 5; slabs++ {
		for _, n := range sizes {
			r := newRig(t, 2*n, func(_ *Config, o *staging.Options) { o.MaxPerLease = slabs })
			copy(r.fab.mem, pattern(n))
			if res := r.do(r.request("PUT", "/b/k", r.token(0, n))); res.StatusCode != 200 {
				t.Fatalf("PUT of %d bytes by %d slabs: %s", n, slabs, res.Status)
			}
			if res := r.do(r.request("GET", "/b/k", r.token(n, n))); res.StatusCode != 200 || !bytes.Equal(r.fab.mem[n:], r.fab.mem[:n]) {
				t.Fatalf("GET of %d bytes by %d slabs: %s", n, slabs, res.Status)
			}
		}
	}
}

func TestGetRange(t *testing.T) {
	r := newRig(t, 1000, nil)
	want := pattern(5000)
	r.store.put("/b/k", want)
	res := r.do(r.request("GET", "/b/k", r.token(0, 1000), "Range", "bytes=4100-4199", "x-amz-checksum-mode", "enabled"))
	if res.StatusCode != 206 || res.Header.Get(HeaderReply) != "206" || res.Header.Get(HeaderBytes) != "100" {
		t.Fatalf("answer %v %v", res.Status, res.Header)
	}
	if got := res.Header.Get("Content-Range"); got != "bytes 4100-4199/5000" {
		t.Errorf("Content-Range %q", got)
	}
	if res.Header.Get("x-amz-checksum-crc32") == "" {
		t.Error("a checksum that was asked for is missing")
	}
	if !bytes.Equal(r.fab.mem[:100], want[4100:4200]) || r.fab.mem[100] != 0 {
		t.Error("wrong bytes: a range starts at the window's start")
	}
}

func TestGetAnswersWithoutBytes(t *testing.T) {
	r := newRig(t, 1000, nil)
	r.store.put("/b/k", pattern(500))
	for _, c := range []struct {
		name, target string
		header       []string
		status       int
	}{
		{"missing", "/b/none", nil, 404},
		{"not modified", "/b/k", []string{"If-None-Match", etag(pattern(500))}, 304},
		{"precondition", "/b/k", []string{"If-Match", `"other"`}, 412},
		{"range", "/b/k", []string{"Range", "bytes=900-"}, 416},
	} {
		t.Run(c.name, func(t *testing.T) {
			res := r.do(r.request("GET", c.target, r.token(0, 1000), c.header...))
			if res.StatusCode != c.status || res.Header.Get(HeaderReply) != "" || res.Header.Get(HeaderBytes) != "" {
				t.Errorf("answer %v %v", res.Status, res.Header)
			}
			if c.status == 404 && !strings.Contains(readAll(t, res), "NoSuchKey") {
				t.Error("the handler's body is lost")
			}
			if !bytes.Equal(r.fab.mem, make([]byte, 1000)) {
				t.Error("memory has changed")
			}
			if e := r.last(); e.Outcome != OutcomePassed || e.Status != c.status {
				t.Errorf("event %+v", e)
			}
		})
	}
}

func TestGetWindowTooSmall(t *testing.T) {
	const window, object = 40000, 50000
	r := newRig(t, object, nil)
	r.store.put("/b/k", pattern(object))
	for name, mangle := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"announced": nil,
		"not announced": func(w http.ResponseWriter, _ *http.Request) bool {
			w.Write(pattern(object))
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			r.store.mangle = mangle
			res := r.do(r.request("GET", "/b/k", r.token(0, window)))
			if res.StatusCode != 400 || res.Header.Get(HeaderReply) != "" || !strings.Contains(readAll(t, res), "RDMAWindowTooSmall") {
				t.Errorf("answer %v %v", res.Status, res.Header)
			}
			if !bytes.Equal(r.fab.mem, make([]byte, object)) {
				t.Error("memory has changed")
			}
		})
	}
}

func TestGetBadHandler(t *testing.T) {
	r := newRig(t, 100000, nil)
	for name, body := range map[string]struct{ announced, written int }{
		"short":       {50000, 49999},
		"none":        {10, 0},
		"too much":    {10, 11},
		"much too":    {10, 90000},
		"nonsense":    {-1, 10},
		"short early": {50000, 10},
	} {
		t.Run(name, func(t *testing.T) {
			r.store.mangle = func(w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set("Content-Length", strconv.Itoa(body.announced))
				w.Header().Set("ETag", `"x"`)
				w.WriteHeader(200)
				w.Write(pattern(body.written))
				return true
			}
			res := r.do(r.request("GET", "/b/k", r.token(0, 100000)))
			if res.StatusCode != 500 || res.Header.Get(HeaderReply) != "" || res.Header.Get("ETag") != "" ||
				!strings.Contains(readAll(t, res), "RDMATransferFailed") {
				t.Errorf("answer %v %v", res.Status, res.Header)
			}
			if e := r.last(); e.Outcome != OutcomeFailed {
				t.Errorf("event %+v", e)
			}
			if after := r.fab.mem[max(body.announced, 0):]; !bytes.Equal(after, make([]byte, len(after))) {
				t.Error("bytes beyond what was announced have moved")
			}
			clear(r.fab.mem)
		})
	}
	t.Run("panic", func(t *testing.T) {
		r.store.mangle = func(w http.ResponseWriter, _ *http.Request) bool {
			w.Write(pattern(10000))
			panic(http.ErrAbortHandler)
		}
		defer func() {
			if v := recover(); v != http.ErrAbortHandler {
				t.Errorf("recovered %v", v)
			}
			if r.fab.links != 0 || r.plugin.cfg.Staging.Stats().InUse != 0 {
				t.Error("a panic leaves a link or staging behind")
			}
		}()
		r.do(r.request("GET", "/b/k", r.token(0, 100000)))
	})
	t.Run("late writer", func(t *testing.T) {
		var writer http.ResponseWriter
		r.store.mangle = func(w http.ResponseWriter, _ *http.Request) bool {
			writer = w
			w.Write(pattern(10))
			return true
		}
		if res := r.do(r.request("GET", "/b/k", r.token(0, 100000))); res.StatusCode != 200 {
			t.Fatal(res.Status)
		}
		if n, err := writer.Write([]byte("late")); n != 0 || err == nil {
			t.Error("a write after the handler's return is taken")
		}
	})
}

func TestPut(t *testing.T) {
	for _, n := range sizes {
		for _, op := range []string{"/b/k", "/b/k?partNumber=1&uploadId=x"} {
			t.Run(strconv.Itoa(n)+op, func(t *testing.T) {
				r := newRig(t, n+200, nil)
				copy(r.fab.mem, pattern(n+200))
				want := r.fab.mem[100 : 100+n]
				res := r.do(r.request("PUT", op, r.token(100, n), "x-amz-checksum-crc32c", checksum.Of(checksum.CRC32C, want).Base64()))
				if res.StatusCode != 200 || res.Header.Get(HeaderReply) != "200" || res.Header.Get(HeaderBytes) != strconv.Itoa(n) {
					t.Fatalf("answer %v %v %s", res.Status, res.Header, readAll(t, res))
				}
				if res.Header.Get("ETag") != etag(want) {
					t.Error("the handler's headers are lost")
				}
				if got, _ := r.store.get("/b/k"); !bytes.Equal(got, want) {
					t.Error("wrong bytes stored")
				}
				if e := r.last(); e.Outcome != OutcomeServed || e.Bytes != int64(n) {
					t.Errorf("event %+v", e)
				}
			})
		}
	}
}

// TestPutReadSizes reads the body in pieces of every awkward size.
func TestPutReadSizes(t *testing.T) {
	r := newRig(t, 50000, nil)
	copy(r.fab.mem, pattern(50000))
	for _, piece := range []int{1, 7, 1000, 4096, 5000, 8192, 49999, 50000, 60000} {
		var got bytes.Buffer
		r.store.mangle = func(w http.ResponseWriter, req *http.Request) bool {
			if n, err := req.Body.Read(nil); n != 0 || err != nil {
				t.Errorf("Read of nothing: %d, %v", n, err)
			}
			buf := make([]byte, piece)
			for {
				n, err := req.Body.Read(buf)
				got.Write(buf[:n])
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Error(err)
					break
				}
			}
			if n, err := req.Body.Read(buf); n != 0 || err != io.EOF {
				t.Errorf("Read after the end: %d, %v", n, err)
			}
			w.WriteHeader(200)
			return true
		}
		res := r.do(r.request("PUT", "/b/k", r.token(0, 50000)))
		if res.StatusCode != 200 || !bytes.Equal(got.Bytes(), r.fab.mem) {
			t.Errorf("pieces of %d: %s, %d bytes", piece, res.Status, got.Len())
		}
	}
}

func TestPutChecksums(t *testing.T) {
	data := pattern(20000)
	for _, alg := range checksum.Algorithms() {
		for _, c := range []struct {
			name string
			sum  checksum.Sum
			want int
		}{
			{"right", checksum.Of(alg, data), 200},
			{"wrong", checksum.Of(alg, data[1:]), 400},
			{"of nothing", checksum.Empty(alg), 400},
		} {
			t.Run(fmt.Sprint(alg, " ", c.name), func(t *testing.T) {
				r := newRig(t, len(data), nil)
				copy(r.fab.mem, data)
				res := r.do(r.request("PUT", "/b/k", r.token(0, len(data)), alg.Header(), c.sum.Base64()))
				body := readAll(t, res)
				_, stored := r.store.get("/b/k")
				if res.StatusCode != c.want || stored != (c.want == 200) {
					t.Fatalf("answer %v %v, stored %v", res.Status, body, stored)
				}
				if c.want == 400 && (!strings.Contains(body, "BadDigest") || res.Header.Get(HeaderReply) != "" || res.Header.Get("ETag") != "") {
					t.Errorf("answer %v %v", res.Header, body)
				}
				if c.name == "of nothing" && r.fab.opens != 0 {
					t.Error("bytes moved for a request that contradicts itself")
				}
			})
		}
	}
	r := newRig(t, 100, nil)
	if res := r.do(r.request("PUT", "/b/k", r.token(0, 100), "x-amz-checksum-sha512", "AAAA")); res.StatusCode != 501 || res.Header.Get(HeaderReply) != "501" {
		t.Errorf("unknown algorithm: %v", res.Status)
	}
	if res := r.do(r.request("PUT", "/b/k", r.token(0, 100), "x-amz-checksum-crc32", "??")); res.StatusCode != 400 {
		t.Errorf("malformed checksum: %v", res.Status)
	}
}

func TestPutBadHandler(t *testing.T) {
	r := newRig(t, 50000, nil)
	var kept io.Reader
	for name, c := range map[string]struct {
		mangle func(w http.ResponseWriter, req *http.Request)
		status int
	}{
		"success unread": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("ETag", `"x"`); w.WriteHeader(200) }, 500},
		"success half read": {func(w http.ResponseWriter, req *http.Request) {
			io.CopyN(io.Discard, req.Body, 30000)
			w.Header().Set("ETag", `"x"`)
			w.WriteHeader(200)
		}, 500},
		"no answer":  {func(http.ResponseWriter, *http.Request) {}, 500},
		"only reads": {func(_ http.ResponseWriter, req *http.Request) { io.Copy(io.Discard, req.Body) }, 200},
		"refused":    {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "quota", 403) }, 403},
		"goroutine":  {func(w http.ResponseWriter, req *http.Request) { kept = req.Body; http.Error(w, "later", 503) }, 503},
	} {
		t.Run(name, func(t *testing.T) {
			r.store.mangle = func(w http.ResponseWriter, req *http.Request) bool { c.mangle(w, req); return true }
			res := r.do(r.request("PUT", "/b/k", r.token(0, 50000)))
			if res.StatusCode != c.status || (res.Header.Get(HeaderReply) != "") != (c.status == 200) || res.Header.Get("ETag") != "" {
				t.Errorf("answer %v %v", res.Status, res.Header)
			}
		})
	}
	if n, err := kept.Read(make([]byte, 1)); n != 0 || !errors.Is(err, errBodyClosed) {
		t.Errorf("a read after the handler's return: %d, %v", n, err)
	}
}

// TestTransferFailures breaks the fabric at each call that a transfer makes.
func TestTransferFailures(t *testing.T) {
	for _, method := range []string{"GET", "PUT"} {
		for at := 1; ; at++ {
			r := newRig(t, 40000, nil)
			copy(r.fab.mem, pattern(40000))
			r.store.put("/b/k", pattern(40000))
			calls := 0
			r.fab.fail = func(string, uint64) error {
				if calls++; calls == at {
					return rdmaio.ErrPeerGone
				}
				return nil
			}
			res := r.do(r.request(method, "/b/k", r.token(0, 40000)))
			if calls < at {
				if res.StatusCode != 200 {
					t.Errorf("%s without a failure: %s", method, res.Status)
				}
				if at < 40 {
					t.Errorf("%s makes only %d calls", method, at)
				}
				break
			}
			if res.StatusCode != 500 || res.Header.Get(HeaderReply) != "" || res.Header.Get("ETag") != "" || !strings.Contains(readAll(t, res), "RDMATransferFailed") {
				t.Errorf("%s, call %d fails: %s %v", method, at, res.Status, res.Header)
			}
			if e := r.last(); e.Outcome != OutcomeFailed || !errors.Is(e.Err, rdmaio.ErrPeerGone) {
				t.Errorf("event %+v", e)
			}
			if b, _ := r.store.get("/b/k"); method == "PUT" && !bytes.Equal(b, pattern(40000)) {
				t.Errorf("PUT, call %d fails: something was stored", at)
			}
		}
	}
}

// TestBrokenBodyIsNoEOF: a fabric whose error wraps an end of file does not end the
// body with one.
func TestBrokenBodyIsNoEOF(t *testing.T) {
	for _, eof := range []error{io.EOF, io.ErrUnexpectedEOF} {
		r := newRig(t, 1000, nil)
		r.fab.fail = func(string, uint64) error { return fmt.Errorf("%w: %w", rdmaio.ErrPeerGone, eof) }
		r.store.mangle = func(w http.ResponseWriter, req *http.Request) bool {
			_, err := req.Body.Read(make([]byte, 10))
			if errors.Is(err, eof) || !errors.Is(err, rdmaio.ErrPeerGone) {
				t.Errorf("the body ends with %v", err)
			}
			if source, _ := SourceOf(req.Context()); source != nil {
				if _, err := source.Next(); errors.Is(err, eof) || !errors.Is(err, rdmaio.ErrPeerGone) {
					t.Errorf("the source ends with %v", err)
				}
			}
			w.WriteHeader(200)
			return true
		}
		if res := r.do(r.request("PUT", "/b/k", r.token(0, 1000))); res.StatusCode != 500 {
			t.Error(res.Status)
		}
	}
}

func TestStall(t *testing.T) {
	r := newRig(t, 1000, func(c *Config, _ *staging.Options) { c.StallTimeout = 10 * time.Millisecond })
	r.store.put("/b/k", pattern(1000))
	r.fab.hang = true
	for _, method := range []string{"GET", "PUT"} {
		res := r.do(r.request(method, "/b/k", r.token(0, 1000)))
		if body := readAll(t, res); res.StatusCode != 500 || !strings.Contains(body, errStalled.Error()) {
			t.Errorf("%s: %s %s", method, res.Status, body)
		}
	}
}

// TestSlowHandler: the time that the handler takes is not the fabric's.
func TestSlowHandler(t *testing.T) {
	r := newRig(t, 20000, func(c *Config, _ *staging.Options) { c.StallTimeout = 20 * time.Millisecond })
	r.store.mangle = func(w http.ResponseWriter, req *http.Request) bool {
		for range 2 {
			w.Write(pattern(10000))
			<-time.After(50 * time.Millisecond)
		}
		return true
	}
	if res := r.do(r.request("GET", "/b/k", r.token(0, 20000))); res.StatusCode != 200 {
		t.Errorf("%s %s", res.Status, readAll(t, res))
	}
}

func TestClientGoesAway(t *testing.T) {
	r := newRig(t, 1000, nil)
	r.store.put("/b/k", pattern(1000))
	for _, method := range []string{"GET", "PUT"} {
		ctx, cancel := context.WithCancel(context.Background())
		r.store.mangle = func(http.ResponseWriter, *http.Request) bool { cancel(); return false }
		if res := r.do(r.request(method, "/b/k", r.token(0, 1000)).WithContext(ctx)); res.StatusCode != 500 {
			t.Errorf("%s: %s", method, res.Status)
		}
	}
}

func TestCloseAborts(t *testing.T) {
	r := newRig(t, 1000, func(c *Config, _ *staging.Options) { c.StallTimeout = time.Hour })
	r.fab.hang = true
	entered := make(chan struct{})
	r.store.mangle = func(http.ResponseWriter, *http.Request) bool { close(entered); return false }
	result := make(chan int)
	go func() { result <- r.do(r.request("PUT", "/b/k", r.token(0, 1000))).StatusCode }()
	<-entered
	if err := r.plugin.Close(); err != nil {
		t.Error(err)
	}
	if s := <-result; s != 500 {
		t.Errorf("status %d", s)
	}
	if res := r.do(r.request("PUT", "/b/k", r.token(0, 1000))); res.StatusCode != 501 || res.Header.Get(HeaderReply) != "501" {
		t.Errorf("after Close: %s", res.Status)
	}
}

func TestBusy(t *testing.T) {
	r := newRig(t, 1000, func(_ *Config, o *staging.Options) { o.Size, o.Wait = 4096, 5*time.Millisecond })
	inside, leave := make(chan struct{}), make(chan struct{})
	r.store.mangle = func(http.ResponseWriter, *http.Request) bool { close(inside); <-leave; return false }
	done := make(chan struct{})
	go func() { defer close(done); r.do(r.request("PUT", "/b/k", r.token(0, 1000))) }()
	<-inside
	res := r.do(r.request("GET", "/b/k", r.token(0, 1000)))
	if body := readAll(t, res); res.StatusCode != 503 || !strings.Contains(body, "SlowDown") || res.Header.Get(HeaderReply) != "" || res.Header.Get("Retry-After") == "" {
		t.Errorf("%s %v %s", res.Status, res.Header, body)
	}
	if e := r.last(); e.Outcome != OutcomeBusy || e.Reason != reasonStaging {
		t.Errorf("event %+v", e)
	}
	close(leave)
	<-done
}

func TestConcurrent(t *testing.T) {
	const clients, each = 8, 3000
	r := newRig(t, clients*each, nil)
	copy(r.fab.mem, pattern(clients*each))
	want := bytes.Clone(r.fab.mem)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Add(1)
		go func() {
			defer wg.Done()
			path := fmt.Sprintf("/b/%d", i)
			for range 20 {
				for _, method := range []string{"PUT", "GET"} {
					if res := r.do(r.request(method, path, r.token(i*each, each))); res.StatusCode != 200 {
						t.Errorf("%s: %s", method, res.Status)
					}
				}
			}
		}()
	}
	wg.Wait()
	if !bytes.Equal(r.fab.mem, want) {
		t.Error("clients' bytes are mixed up")
	}
}

// TestAnswers is the table of design rule 3 to 5 and 8: what is declined, refused
// and answered how, and that nothing moves or is stored then.
func TestAnswers(t *testing.T) {
	bare := "0000000000010000:000003e8:00000007:0000:000001:1:00000000000000000000ffff7f000001"
	off := func(c *Config, _ *staging.Options) { c.Fabrics = nil }
	cases := []struct {
		name    string
		method  string
		target  string
		token   func(r *rig) string
		header  []string
		change  func(*Config, *staging.Options)
		status  int
		code    string
		reply   string
		outcome Outcome
		reason  string
	}{
		{name: "off, PUT", method: "PUT", change: off, status: 501, code: "NotImplemented", reply: "501", outcome: OutcomeDeclined, reason: reasonOff},
		{name: "off, part", method: "PUT", target: "/b/k?partNumber=1", change: off, status: 501, reply: "501", outcome: OutcomeDeclined, reason: reasonOff},
		{name: "off, GET", method: "GET", change: off, status: 501, reply: "501", outcome: OutcomeDeclined, reason: reasonOff},
		{name: "off, alias", method: "PUT", change: off, header: []string{HeaderToken, "", HeaderInfo, "x"}, status: 501, reply: "501", outcome: OutcomeDeclined, reason: reasonOff},
		{name: "off, unknown dialect", method: "PUT", change: off, header: []string{HeaderToken, "", "x-scal-rdma", "x"}, status: 501, reply: "501", outcome: OutcomeDeclined, reason: reasonOff},
		{name: "unknown dialect", method: "PUT", header: []string{HeaderToken, "", "x-scal-rdma", "x"}, status: 501, reply: "501", outcome: OutcomeDeclined, reason: reasonDialect},
		{name: "dialect to come", method: "PUT", header: []string{HeaderToken, "", "x-amz-rdma-descriptor", "x"}, status: 501, reply: "501", outcome: OutcomeDeclined, reason: reasonDialect},
		{name: "versitygw legacy", method: "PUT", header: []string{HeaderToken, "", "X-CuObj-RDMA-Descr", "x"}, status: 501, reply: "501", outcome: OutcomeDeclined, reason: reasonDialect},
		{name: "libfabric", method: "PUT", token: func(*rig) string { return bare + ":64:ofi1:tcp:00:00" }, status: 501, reply: "501", outcome: OutcomeDeclined, reason: reasonDialect},
		{name: "no such fabric", method: "PUT", token: func(*rig) string { return bare }, status: 501, reply: "501", outcome: OutcomeDeclined, reason: reasonTransport},
		{name: "append", method: "PUT", target: "/b/k?append", status: 501, reply: "501", outcome: OutcomeDeclined, reason: reasonOperation},
		{name: "lost session", method: "PUT", token: func(r *rig) string {
			return strings.Replace(r.token(0, 1000), r.fab.session.Hex(), rdmaio.NewSessionID().Hex(), 1)
		}, status: 501, code: CodeNoSession, reply: "501", outcome: OutcomeDeclined, reason: reasonSession},
		{name: "too small to pay", method: "GET", change: func(c *Config, _ *staging.Options) { c.MinWindow = 1001 }, status: 501, reply: "501", outcome: OutcomeDeclined, reason: reasonThreshold},
		{name: "unsigned", method: "PUT", header: []string{"Authorization", "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=00"}, status: 403, code: "AccessDenied", outcome: OutcomeRefused, reason: reasonUnsigned},
		{name: "anonymous", method: "PUT", header: []string{"Authorization", ""}, status: 403, code: "AccessDenied", outcome: OutcomeRefused, reason: reasonUnsigned},
		{name: "signature V2", method: "PUT", target: "/b/k?X-Amz-SignedHeaders=x-amz-rdma-token", header: []string{"Authorization", "AWS a:b"}, status: 403, code: "AccessDenied", outcome: OutcomeRefused, reason: reasonUnsigned},
		{name: "forged", method: "PUT", header: []string{"Test-User", "forger"}, status: 403, code: "SignatureDoesNotMatch", outcome: OutcomeRefused, reason: reasonAuth},
		{name: "unverifiable", method: "PUT", header: []string{"Test-User", "broken"}, status: 403, code: "AccessDenied", outcome: OutcomeRefused, reason: reasonAuth},
		{name: "nobody", method: "PUT", header: []string{"Test-User", ""}, status: 403, code: "AccessDenied", outcome: OutcomeRefused, reason: reasonAuth},
		{name: "other identity", method: "PUT", header: []string{"Test-User", "mallory"}, status: 403, code: "AccessDenied", outcome: OutcomeRefused, reason: reasonOwner},
		{name: "malformed", method: "PUT", token: func(*rig) string { return "nonsense" }, status: 400, code: "InvalidRDMAToken", outcome: OutcomeRefused, reason: reasonMalformed},
		{name: "two that differ", method: "PUT", header: []string{HeaderInfo, bare}, status: 400, code: "InvalidRDMAToken", outcome: OutcomeRefused, reason: reasonMalformed},
		{name: "empty window", method: "PUT", token: func(r *rig) string { return r.token(0, 0) }, status: 400, code: "InvalidRDMAToken", outcome: OutcomeRefused, reason: reasonWindow},
		{name: "third host", method: "PUT", token: func(*rig) string { return bare }, change: func(c *Config, _ *staging.Options) {
			c.Fabrics = append(c.Fabrics, &dcFabric{})
			c.AllowPeers = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		}, status: 403, code: "AccessDenied", outcome: OutcomeRefused, reason: reasonPeer},
		{name: "host that is not the client", method: "PUT", token: func(*rig) string { return bare }, change: func(c *Config, _ *staging.Options) {
			c.Fabrics = append(c.Fabrics, &dcFabric{}) // httptest's client is 192.0.2.1
		}, status: 403, code: "AccessDenied", outcome: OutcomeRefused, reason: reasonPeer},
		{name: "stale key", method: "PUT", token: func(r *rig) string { t := r.token(0, 1000); return t[:len(t)-1] + "8" }, status: 500, code: "RDMATransferFailed", outcome: OutcomeFailed, reason: reasonTransfer},
		{name: "outside the region", method: "GET", token: func(r *rig) string { return r.token(1, 1000) }, status: 500, code: "RDMATransferFailed", outcome: OutcomeFailed, reason: reasonTransfer},
		{name: "aws-chunked", method: "PUT", header: []string{"Content-Encoding", "gzip, aws-chunked"}, status: 400, code: "InvalidRequest", outcome: OutcomeRefused, reason: reasonBody},
		{name: "streaming", method: "PUT", header: []string{"x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"}, status: 400, code: "InvalidRequest", outcome: OutcomeRefused, reason: reasonBody},
		{name: "trailer", method: "PUT", header: []string{"x-amz-trailer", "x-amz-checksum-crc32"}, status: 400, code: "InvalidRequest", outcome: OutcomeRefused, reason: reasonBody},
		{name: "decoded length", method: "PUT", header: []string{"x-amz-decoded-content-length", "1000"}, status: 400, code: "InvalidRequest", outcome: OutcomeRefused, reason: reasonBody},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, 1000, c.change)
			r.store.put("/b/old", []byte("old"))
			token := r.token(0, 1000)
			if c.token != nil {
				token = c.token(r)
			}
			target := c.target
			if target == "" {
				target = "/b/k"
			}
			res := r.do(r.request(c.method, target, token, c.header...))
			body := readAll(t, res)
			if res.StatusCode != c.status || res.Header.Get(HeaderReply) != c.reply || !strings.Contains(body, "<Code>"+c.code) {
				t.Errorf("answer %s, reply %q, %s", res.Status, res.Header.Get(HeaderReply), body)
			}
			if res.Header.Get("ETag") != "" || res.Header.Get(HeaderBytes) != "" {
				t.Errorf("an error answer looks like a success: %v", res.Header)
			}
			if r.store.calls != 0 || len(r.store.objects) != 1 || !bytes.Equal(r.fab.mem, make([]byte, 1000)) {
				t.Error("the handler was called, or something moved")
			}
			e := r.last()
			if e.Outcome != c.outcome || e.Reason != c.reason || e.Status != c.status {
				t.Errorf("event %+v", e)
			}
			if token != "nonsense" && (hasToken(body, token) || hasToken(fmt.Sprintf("%v %+v %#v", e.Err, e, e), token)) {
				t.Errorf("the descriptor shows in %q or in %+v", body, e)
			}
		})
	}
}

// dcFabric serves nothing: it only makes its transport known.
type dcFabric struct{ memFabric }

func (*dcFabric) Capabilities() rdmaio.Capabilities {
	return rdmaio.Capabilities{Name: "dc", MaxTransfer: 1, MaxWindow: rdmaio.MaxWindow}
}
func (*dcFabric) Register(mem []byte) (rdmaio.Region, error) { return memRegion{mem}, nil }
func (*dcFabric) Close() error                               { return nil }
func (*dcFabric) Open(context.Context, rdmaio.Descriptor, string) (rdmaio.Link, error) {
	return nil, errors.New("must not be opened")
}

func TestBodyAndDescriptor(t *testing.T) {
	r := newRig(t, 1000, nil)
	for name, length := range map[string]int64{"known": 5, "unknown": -1} {
		for _, method := range []string{"PUT", "GET"} {
			req := r.request(method, "/b/k", r.token(0, 1000))
			req.Body, req.ContentLength = io.NopCloser(strings.NewReader("hello")), length
			if res := r.do(req); res.StatusCode != 400 || res.Header.Get(HeaderReply) != "" {
				t.Errorf("%s with a body of %s length: %s", method, name, res.Status)
			}
		}
	}
	if r.store.calls != 0 {
		t.Error("the handler was called")
	}
}

// TestOthers: everything else behaves as without a descriptor.
func TestOthers(t *testing.T) {
	r := newRig(t, 1000, nil)
	r.store.put("/b/k", pattern(100))
	if res := r.do(r.request("HEAD", "/b/k", r.token(0, 1000))); res.StatusCode != 200 || res.ContentLength != 100 || res.Header.Get(HeaderReply) != "" {
		t.Errorf("HEAD: %s %v", res.Status, res.Header)
	}
	if res := r.do(r.request("GET", "/b/k?tagging", r.token(0, 1000))); res.StatusCode != 200 || readAll(t, res) != string(pattern(100)) {
		t.Errorf("other GET: %s", res.Status)
	}
	if res := r.do(r.request("GET", "/b/k", "", "Authorization", "", "x-amz-rdma-agent", "cuobj")); res.StatusCode != 200 || readAll(t, res) != string(pattern(100)) {
		t.Errorf("without a descriptor: %s", res.Status)
	}
	if len(r.events) != 0 {
		t.Errorf("events %+v", r.events)
	}
}

func TestSessions(t *testing.T) {
	r := newRig(t, 1000, nil)
	var infos []SessionInfo
	r.plugin.cfg.Listener.SessionDone = func(i SessionInfo) { infos = append(infos, i) }
	r.fab.owner = ""
	hex := r.fab.session.Hex()
	type step struct {
		name, method, path string
		header             []string
		status             int
		reply              string
	}
	connect, disconnect := "/.s3rdma-shm/connect", "/.s3rdma-shm/disconnect"
	for _, s := range []step{
		{"unsigned", "POST", connect, []string{HeaderToken, "1", "Authorization", ""}, 403, ""},
		{"nobody", "POST", connect, []string{HeaderToken, "1", "Test-User", ""}, 403, ""},
		{"GET", "GET", connect, []string{HeaderToken, "1"}, 405, ""},
		{"other action", "POST", "/.s3rdma-shm/", []string{HeaderToken, "1"}, 404, ""},
		{"other fabric", "POST", "/.s3rdma-rc/connect", []string{HeaderToken, "1"}, 501, "501"},
		{"no fabric", "POST", "/.s3rdma-/connect", []string{HeaderToken, "1"}, 501, "501"},
		{"malformed", "POST", connect, []string{HeaderToken, "x"}, 400, ""},
		{"no token", "POST", connect, nil, 400, ""},
		{"bad psn", "POST", connect, []string{HeaderToken, "1", HeaderPSN, "0"}, 400, ""},
		{"other version", "POST", connect, []string{HeaderToken, "2"}, 501, "501"},
		{"full", "POST", connect, []string{HeaderToken, "full"}, 503, ""},
		{"disconnect early", "POST", disconnect, []string{HeaderSession, hex}, 404, ""},
		{"connect", "POST", connect, []string{HeaderToken, "1"}, 200, "200:come-in"},
		{"disconnect of another", "POST", disconnect, []string{HeaderSession, hex, "Test-User", "mallory"}, 403, ""},
		{"disconnect malformed", "POST", disconnect, []string{HeaderSession, "x"}, 400, ""},
		{"disconnect", "POST", disconnect, []string{HeaderSession, hex}, 204, ""},
	} {
		t.Run(s.name, func(t *testing.T) {
			res := r.do(r.request(s.method, s.path, "", s.header...))
			if res.StatusCode != s.status || res.Header.Get(HeaderReply) != s.reply {
				t.Errorf("answer %s, reply %q, %s", res.Status, res.Header.Get(HeaderReply), readAll(t, res))
			}
			if s.status == 200 && (res.Header.Get(HeaderSession) != hex || res.ContentLength > 0) {
				t.Errorf("answer %v", res.Header)
			}
			if i := infos[len(infos)-1]; (i.Err == nil) != (s.status < 300) {
				t.Errorf("event %+v", i)
			}
		})
	}
	if r.store.calls != 0 {
		t.Error("a session request reached the S3 handler")
	}
}

// TestDialectHeaders: whoever hides or looks for control headers finds every
// dialect's.
func TestDialectHeaders(t *testing.T) {
	names := []string{HeaderToken, HeaderReply, HeaderBytes, HeaderSession, HeaderPSN, HeaderInfo}
	for _, d := range dialects(rdmaio.ParseOptions{}) {
		names = append(names, d.Header())
	}
	for _, name := range names {
		if !IsControlHeader(http.CanonicalHeaderKey(name)) {
			t.Errorf("%s is not taken for a control header", name)
		}
	}
	for _, name := range []string{"X-Amz-Meta-Rdma", "X-Amz-Date", "Authorization"} {
		if IsControlHeader(name) {
			t.Errorf("%s is taken for a control header", name)
		}
	}
}

func TestSignedHeader(t *testing.T) {
	for _, c := range []struct {
		target, auth string
		want         bool
	}{
		{"/", signedToken, true},
		{"/", strings.ReplaceAll(signedToken, ", ", ","), true},
		{"/", strings.Replace(signedToken, "x-amz-rdma-token", "x-amz-rdma-token2", 1), false},
		{"/", signedToken + ", SignedHeaders=host", false},
		{"/", "", false},
		{"/?X-Amz-SignedHeaders=host%3Bx-amz-rdma-token", "", true},
		{"/?X-Amz-SignedHeaders=host", "", false},
		{"/?X-Amz-SignedHeaders=x-amz-rdma-token&X-Amz-SignedHeaders=host", "", false},
		// The header is what the server looks at, so the query does not count.
		{"/?X-Amz-SignedHeaders=x-amz-rdma-token", "AWS4-HMAC-SHA256 SignedHeaders=host", false},
		{"/?X-Amz-SignedHeaders=x-amz-rdma-token", "Bearer x", false},
	} {
		req := httptest.NewRequest("GET", c.target, nil)
		if c.auth != "" {
			req.Header.Set("Authorization", c.auth)
		}
		if got := signedHeader(req, "X-Amz-Rdma-Token"); got != c.want {
			t.Errorf("%s %q: %v", c.target, c.auth, got)
		}
	}
}
