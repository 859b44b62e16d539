// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

package forktest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/shm"
)

// The load of TestSoak, and what it must not exceed.
const (
	soakClients = 64
	soakLargest = 2 * mib
	soakRounds  = 5                // with a look at the server after each
	soakAnswer  = 10 * time.Second // the whole budget of a known client
)

// TestSoak: 64 clients share staging memory that has room for a few of them. They are
// served, or told in time to come back, and get nothing else; the server's memory, files
// and goroutines do not grow. It takes a minute, or as long as S3RDMA_SOAK says (10m).
func TestSoak(t *testing.T) {
	limit := 60 * time.Second
	if testing.Short() {
		limit = 10 * time.Second
	}
	if text := os.Getenv("S3RDMA_SOAK"); text != "" {
		var err error
		if limit, err = time.ParseDuration(text); err != nil {
			t.Fatalf("S3RDMA_SOAK: %v", err)
		}
	}
	s, _ := startOn(t, "--rdma-staging-size=4MiB", "--rdma-staging-wait=500ms", "--rdma-max-sessions-per-user=256")
	s.transport = &http.Transport{MaxIdleConnsPerHost: soakClients}
	t.Cleanup(s.transport.CloseIdleConnections)
	seed := seeded(t)
	source := random(2 * soakLargest)
	tally := tally{count: make(map[string]int), slowest: make(map[string]time.Duration)}
	clients := make([]*soaker, soakClients)
	alone := s.usage(t)
	for w := range clients {
		clients[w] = &soaker{t: t, s: s, tally: &tally, source: source, rng: rand.New(rand.NewPCG(seed, uint64(w))), key: fmt.Sprint("soak-", w)}
	}
	var settled, last usage
	for round := range soakRounds {
		ctx, cancel := context.WithTimeout(t.Context(), limit/soakRounds)
		var wg sync.WaitGroup
		for _, c := range clients {
			wg.Add(1)
			go func() {
				defer wg.Done()
				c.run(ctx)
			}()
		}
		wg.Wait()
		cancel()
		last = s.usage(t)
		t.Logf("round %d: %v", round, last)
		// The first round fills pools and caches, and the second still some of them.
		if round == 1 {
			settled = last
		}
	}
	t.Log(tally.count, "slowest", tally.slowest)
	t.Log(s.paths(t))
	for k, n := range tally.count {
		switch k {
		case "GET 200", "PUT 200", "GET 503", "PUT 503", "reconnect":
		default:
			t.Errorf("%d times %s", n, k)
		}
	}
	if tally.count["GET 200"] == 0 || tally.count["PUT 200"] == 0 {
		t.Error("nothing was served")
	}
	if tally.count["GET 503"]+tally.count["PUT 503"] == 0 {
		t.Error("nobody was told to come back: the load was none")
	}
	for _, method := range []string{http.MethodGet, http.MethodPut} {
		if took := tally.slowest[method+" 503"]; took > soakAnswer {
			t.Errorf("%s: it took %v to be told to come back", method, took)
		}
	}
	last.within(t, "since the second round", settled)
	for _, c := range clients {
		c.close()
	}
	s.transport.CloseIdleConnections()
	within(t, 60*time.Second, func() error {
		u := s.usage(t)
		if u.files > alone.files+8 || u.goroutines > alone.goroutines+32 {
			return fmt.Errorf("without clients the server has %v, before it had %v", u, alone)
		}
		return nil
	})
	s.noTmp(t)
}

// usage is what a server holds while no request is under way.
type usage struct {
	rss               int64 // bytes
	files, goroutines int
}

func (u usage) String() string {
	return fmt.Sprintf("%d MiB resident, %d files, %d goroutines", u.rss/mib, u.files, u.goroutines)
}

// within fails if u is more than was, by more than comes and goes anyway.
func (u usage) within(t *testing.T, when string, was usage) {
	t.Helper()
	if u.rss > was.rss+was.rss/4+64*mib || u.files > was.files+16 || u.goroutines > was.goroutines+64 {
		t.Errorf("the server has grown %s: %v, was %v", when, u, was)
	}
}

// usage waits until no staging memory is lent, and looks at the process.
func (s *server) usage(t *testing.T) (u usage) {
	t.Helper()
	within(t, 30*time.Second, func() error {
		if n := sample(t, s.metrics(t, "/minio/metrics/v3/rdma"), "s3rdma_staging_used_bytes"); n != 0 {
			return fmt.Errorf("%v bytes of staging memory are lent", n)
		}
		return nil
	})
	u.goroutines = int(sample(t, s.metrics(t, "/minio/metrics/v3/system/process"), "minio_system_process_go_routine_total"))
	proc := fmt.Sprintf("/proc/%d/", s.cmd.Process.Pid)
	files, err := os.ReadDir(proc + "fd")
	if err != nil {
		t.Fatal(err)
	}
	u.files = len(files)
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(status), "VmRSS:")
	line, _, _ = strings.Cut(line, "kB")
	kb, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	u.rss = kb * kib
	return u
}

// tally is what clients have met.
type tally struct {
	mu      sync.Mutex
	count   map[string]int
	slowest map[string]time.Duration
}

func (y *tally) add(what string, took time.Duration) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.count[what]++
	y.slowest[what] = max(y.slowest[what], took.Round(time.Millisecond))
}

// soaker is a client with one object, one request at a time, and a session that it
// opens anew now and then.
type soaker struct {
	t      *testing.T
	s      *server
	tally  *tally
	source []byte
	rng    *rand.Rand
	key    string

	target *shm.Target
	mem    rdmaio.Exposed
	stored []byte // what the object is
}

// run works until ctx is done; the request under way is waited for.
func (c *soaker) run(ctx context.Context) {
	for ctx.Err() == nil {
		if c.target == nil {
			c.target = shm.NewTarget(shm.TargetOptions{})
			connect(c.t, c.s, c.target, signV4)
			var err error
			if c.mem, err = c.target.Alloc(soakLargest, rdmaio.RemoteRead|rdmaio.RemoteWrite); err != nil {
				c.t.Error(err)
				return
			}
		}
		if c.stored == nil || c.rng.IntN(12) == 0 {
			c.put()
		} else {
			c.get()
		}
		if c.rng.IntN(100) == 0 {
			c.close()
			c.tally.add("reconnect", 0)
		}
	}
}

func (c *soaker) close() {
	if c.target != nil {
		c.mem.Close()
		c.target.Close()
		c.target = nil
	}
}

func (c *soaker) put() {
	b := c.mem.Bytes()[:300*kib+c.rng.IntN(soakLargest-300*kib)]
	fillSoak(b, c.source, c.rng.IntN(soakLargest))
	if a := c.do(http.MethodPut, len(b)); a.StatusCode == http.StatusOK {
		c.stored = bytes.Clone(b)
	}
}

func (c *soaker) get() {
	clear(c.mem.Bytes())
	a := c.do(http.MethodGet, soakLargest)
	if a.StatusCode == http.StatusOK && !bytes.Equal(c.mem.Bytes()[:len(c.stored)], c.stored) {
		c.t.Errorf("GET %s: wrong bytes", c.key)
	}
}

// do sends a request and checks that it is served, or told in time to come back.
func (c *soaker) do(method string, n int) answer {
	h := append(headers{"x-amz-rdma-token", describe(c.t, c.mem, n)}, unsigned...)
	begun := time.Now()
	a := c.s.send(c.t, method, "/bucket/"+c.key, signV4, h, nil)
	c.tally.add(fmt.Sprint(method, " ", a.StatusCode), time.Since(begun))
	if a.StatusCode == http.StatusServiceUnavailable {
		a.want(c.t, 503, "SlowDown")
		if a.Header.Get("Retry-After") == "" {
			c.t.Errorf("%s %s: 503 does not say when to come back", method, c.key)
		}
	}
	return a
}
