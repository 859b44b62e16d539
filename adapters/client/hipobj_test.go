// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio/fabrictest"
)

// hipServer answers the protocol's requests as a test wants, and stores other PUTs.
type hipServer struct {
	mu      sync.Mutex
	asked   map[string]int // by the end of the path
	stored  int
	prepare func(w http.ResponseWriter, r *http.Request)
	ready   func(w http.ResponseWriter, r *http.Request)
}

func (s *hipServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	action, ok := strings.CutPrefix(r.URL.Path, hipPrefix)
	s.asked[action]++
	switch {
	case !ok:
		io.Copy(io.Discard, r.Body)
		s.stored++
		w.Header().Set("ETag", `"e"`)
	case action == "prepare":
		s.prepare(w, r)
	case action == "ready":
		s.ready(w, r)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

func newHipClient(t *testing.T) (*hipServer, *Client, *Buffer, *fabrictest.Pairs) {
	s := &hipServer{asked: map[string]int{}}
	srv := httptest.NewServer(s)
	pairs := fabrictest.NewPairs()
	c, err := New(Options{Endpoint: srv.URL, Credentials: StaticCredentials("a", "b"), Target: pairs.Target()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		srv.Close()
	})
	return s, c, mustAlloc(t, c, 100), pairs
}

// A server that has never heard of the protocol is not asked for each object.
func TestHipObjUnknownServer(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter){
		"404": func(w http.ResponseWriter) { fail(w, 404, "NoSuchBucket", "no") },
		"400": func(w http.ResponseWriter) { fail(w, 400, "InvalidBucketName", "no") },
		"405": func(w http.ResponseWriter) { fail(w, 405, "MethodNotAllowed", "no") },
		"501": func(w http.ResponseWriter) { fail(w, 501, "NotImplemented", "no") },
		"200": func(w http.ResponseWriter) {},
	} {
		t.Run(name, func(t *testing.T) {
			s, c, buf, _ := newHipClient(t)
			clk := &clock{t: time.Now()}
			c.now = clk.now
			s.prepare = func(w http.ResponseWriter, _ *http.Request) { answer(w) }
			put := func(want Route, asked int) {
				t.Helper()
				res, err := c.Put(t.Context(), "b", "k", buf.All(), PutOptions{})
				if err != nil || res.Route != want || s.asked["prepare"] != asked {
					t.Errorf("route %v after %d prepares, error %v; want %v after %d", res.Route, s.asked["prepare"], err, want, asked)
				}
			}
			put(HTTPDeclined, 1)
			put(HTTPNoSession, 1)
			if err := c.Connect(t.Context()); !errors.Is(err, ErrNoFabric) {
				t.Errorf("connect: error %v, want ErrNoFabric", err)
			}
			clk.advance(2 * time.Minute)
			put(HTTPDeclined, 2)
		})
	}
}

// Answers that contradict themselves are no success, and nothing goes by HTTP after them:
// the server may have stored the bytes.
func TestHipObjBadAnswers(t *testing.T) {
	token := "01" + strings.Repeat("11", 43)
	good := map[string]string{
		headerProtocol: hipProtocol, headerSession: strings.Repeat("a", 32), headerReply: "200:" + token,
		headerPSN: "000001", headerQPN: "111111", headerMRAddr: "1000", headerMRKey: "7",
	}
	for _, c := range []struct{ name, value string }{
		{headerSession, "short"}, {headerReply, "200"}, {headerReply, "200:" + token[1:]}, {headerReply, "501:" + token},
		{headerReply, "200:00" + token[2:]}, {headerPSN, ""}, {headerPSN, "1000000"}, {headerQPN, "222222"}, {headerQPN, "x"},
		{headerMRAddr, "0"}, {headerMRKey, "100000000"},
	} {
		t.Run(c.name+"="+c.value, func(t *testing.T) {
			s, cl, buf, _ := newHipClient(t)
			s.prepare = func(w http.ResponseWriter, _ *http.Request) {
				for name, value := range good {
					w.Header().Set(name, value)
				}
				w.Header().Set(c.name, c.value)
			}
			if _, err := cl.Put(t.Context(), "b", "k", buf.All(), PutOptions{}); !errors.Is(err, ErrProtocol) {
				t.Errorf("error %v, want ErrProtocol", err)
			}
			if s.asked["ready"] != 0 || s.asked["cancel"] != 1 || s.stored != 0 {
				t.Errorf("requests %v", s.asked)
			}
		})
	}
}

func FuzzPairWelcome(f *testing.F) {
	token := "01" + strings.Repeat("11", 43)
	f.Add("200:"+token, strings.Repeat("a", 32), "000001", "111111", "1000", "7")
	f.Add("200:", "", "", "", "", "")
	f.Fuzz(func(t *testing.T, reply, session, psn, qpn, addr, key string) {
		h := http.Header{}
		for name, value := range map[string]string{
			headerReply: reply, headerSession: session, headerPSN: psn, headerQPN: qpn, headerMRAddr: addr, headerMRKey: key,
		} {
			h.Set(name, value)
		}
		w, err := parsePairWelcome(h)
		if err == nil && (w.PSN == 0 || w.PSN >= 1<<24 || w.QPN >= 1<<24 || w.Token == "") {
			t.Errorf("%q is taken for %+v", h, w.PSN)
		}
	})
}
