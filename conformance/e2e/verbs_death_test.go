// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/adapters/client"
	"github.com/s3rdma/s3rdma/conformance/minioproc"
	"github.com/s3rdma/s3rdma/conformance/rawhttp"
	"github.com/s3rdma/s3rdma/rdmaio"
)

const (
	// victimBytes take seconds on Soft-RoCE, and are more than the staging memory.
	victimBytes = 96 << 20
	// underWay is after how many packets (of 4 KiB) a transfer is taken to be in flight.
	underWay = 1000
	// attempts is how often a transfer is begun that has to be caught in flight: where the
	// test is held up for seconds, it may be over by then.
	attempts = 5
	// victimVariable tells this test binary, run again, to be a client that is going to
	// be killed: "put" or "get". The others say of which server.
	victimVariable = "S3RDMA_TEST_VICTIM"
	victimBucket   = "victims"
)

// TestVictim is not a test but the client that TestVerbsClientKilled kills.
func TestVictim(t *testing.T) {
	what := os.Getenv(victimVariable)
	if what == "" {
		t.Skip("the child process of TestVerbsClientKilled")
	}
	d := rdmaDevices(t)
	s := &minioproc.Server{Endpoint: os.Getenv("S3RDMA_TEST_ENDPOINT")}
	s.Root = rawhttp.Credentials{AccessKey: os.Getenv("S3RDMA_TEST_ACCESS_KEY"), SecretKey: os.Getenv("S3RDMA_TEST_SECRET_KEY")}
	c := newClient(t, s, "127.0.0.1", d.target(t))
	buf, err := c.Alloc(victimBytes)
	if err != nil {
		t.Fatal(err)
	}
	pattern(1, buf.Bytes())
	fmt.Println("victim: ready")
	if what == "put" {
		_, err = c.Put(t.Context(), victimBucket, "killed", buf.All(), client.PutOptions{Force: client.ForceFabric})
	} else {
		_, err = c.Get(t.Context(), victimBucket, "large", buf.All(), client.GetOptions{Force: client.ForceFabric})
	}
	fmt.Println("victim: not killed in time:", err)
}

// TestVerbsClientKilled kills a client process while the server reads its memory, and while it
// writes it: no half object and nothing of one on the drives, no staging memory that
// stays lent, and the next client is served.
func TestVerbsClientKilled(t *testing.T) {
	d := rdmaDevices(t)
	if d.client == d.server {
		t.Skip("needs two devices: packets inside of one are not counted")
	}
	s := d.serve(t)
	raw := newRaw(t, s)
	survivor := newClient(t, s, "127.0.0.1", d.target(t))
	defer survivor.Close()
	if err := survivor.CreateBucket(t.Context(), victimBucket); err != nil {
		t.Fatal(err)
	}
	if err := survivor.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	store(t, raw, "large", victimBytes)
	for _, what := range []string{"put", "get"} {
		t.Run(what, func(t *testing.T) {
			slowDown(t, "80mbit", d.server, d.client)
			moved := 0
			for n := 1; ; n++ {
				if moved = killInFlight(t, d, s, what); moved > 0 {
					break
				}
				if n == attempts {
					t.Fatalf("the client was done before it was killed, %d times", n)
				}
				resp, err := do(t, raw, rawhttp.Request{Method: "DELETE", Bucket: victimBucket, Key: "killed"})
				if err != nil || resp.Status != 204 {
					t.Fatalf("remove what was stored: %v %v", resp, err)
				}
			}
			eventually(t, givenUp, "no staging memory is lent", func() bool { return used(t, raw) == 0 })
			resp, err := do(t, raw, rawhttp.Request{Method: "HEAD", Bucket: victimBucket, Key: "killed"})
			if err != nil || resp.Status != 404 {
				t.Errorf("an object of the killed client: %v %v", resp, err)
			}
			eventually(t, soon, "nothing of it is on the drives", func() bool { return leftOnDrives(t, s, "killed") == "" })
			if err := transfer(t.Context(), survivor, victimBucket, "next", 3<<20); err != nil {
				t.Errorf("the next client: %v", err)
			}
			// Whether the server knows by now that the session is a dead man's depends on whether
			// a transfer was with the device in that very moment. If not, the session is idle.
			t.Logf("killed after %d of %d packets, sessions: %v", moved, victimBytes/4096, metrics(t, raw)[`s3rdma_sessions{transport="rc"}`])
		})
	}
}

// killInFlight starts a client process and kills it in the middle of its transfer. It
// returns how many packets had arrived by then, or 0 if the client was faster.
func killInFlight(t *testing.T, d devices, s *minioproc.Server, what string) int {
	t.Helper()
	// The server's device hears of a PUT's bytes, the client's of a GET's.
	device := d.server
	if what == "get" {
		device = d.client
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestVictim$", "-test.v")
	cmd.Env = append(os.Environ(), victimVariable+"="+what, "S3RDMA_TEST_ENDPOINT="+s.Endpoint,
		"S3RDMA_TEST_ACCESS_KEY="+s.Root.AccessKey, "S3RDMA_TEST_SECRET_KEY="+s.Root.SecretKey)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	before := packets(t, device)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(soon)
	for packets(t, device) <= before+underWay && time.Now().Before(end) {
		time.Sleep(20 * time.Millisecond)
	}
	cmd.Process.Kill()
	cmd.Wait()
	moved := packets(t, device) - before
	switch {
	case moved <= underWay:
		t.Fatalf("after %v no transfer is in flight:\n%s", soon, said.String())
	case moved >= victimBytes/4096, bytes.Contains(said.Bytes(), []byte("not killed")):
		return 0
	}
	return int(moved)
}

// leftOnDrives returns the name of a file or folder that the object key, or an upload
// that has not ended, has on a drive; "" if there is none.
func leftOnDrives(t *testing.T, s *minioproc.Server, key string) string {
	t.Helper()
	drives := filepath.Join(filepath.Dir(s.Log), "drive*")
	for _, pattern := range []string{filepath.Join(victimBucket, key), filepath.Join(".minio.sys", "tmp", "*", "*", "part.*")} {
		found, err := filepath.Glob(filepath.Join(drives, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if !strings.Contains(f, ".trash") { // deleted, and removed bit by bit
				return f
			}
		}
	}
	return ""
}

// store stores an object of n bytes by HTTP.
func store(t *testing.T, c *rawhttp.Client, key string, n int) {
	t.Helper()
	resp, err := do(t, c, rawhttp.Request{Method: "PUT", Bucket: victimBucket, Key: key, Body: pattern(2, make([]byte, n))})
	if err != nil || resp.Status != 200 {
		t.Fatalf("store an object of %d bytes: %v %v", n, resp, err)
	}
}

// TestVerbsNoLateWrites watches a client's memory after the server has let go of it: after an
// error in the middle of a GET the answer is the last that happens, and a GET that was
// broken off leaves the memory alone once the server's transfers are fenced. The network is
// so slow that what a server has in flight at a time, 2 MiB, takes seconds.
func TestVerbsNoLateWrites(t *testing.T) {
	d := rdmaDevices(t)
	if d.client == d.server {
		t.Skip("needs two devices: packets inside of one are not counted")
	}
	s := d.serve(t)
	raw := newRaw(t, s)
	if resp, err := do(t, raw, rawhttp.Request{Method: "PUT", Bucket: victimBucket}); err != nil || resp.Status != 200 {
		t.Fatalf("%v %v", resp, err)
	}
	const spoiltBytes, smallBytes = 8 << 20, 1 << 20
	store(t, raw, "large", victimBytes)
	store(t, raw, "spoilt", spoiltBytes)
	store(t, raw, "small", smallBytes)
	spoil(t, s, "spoilt", 0.75)
	c := &signed{target: d.target(t)}
	defer c.target.Close()
	region, err := c.target.(rdmaio.Allocator).Alloc(victimBytes, rdmaio.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	slowDown(t, "8mbit", d.server)

	// get is a GET into the empty region, over a new session.
	get := func(t *testing.T, key string) rawhttp.Request {
		t.Helper()
		c.connect(t, raw)
		clear(region.Bytes())
		descriptor, err := region.Describe(0, victimBytes)
		if err != nil {
			t.Fatal(err)
		}
		token, err := descriptor.Encode(rdmaio.EncodingSession)
		if err != nil {
			t.Fatal(err)
		}
		return rawhttp.Request{Method: "GET", Bucket: victimBucket, Key: key, Header: http.Header{"x-amz-rdma-token": {token}}}
	}
	// watch is called when no byte may move any more. The descriptor is still good: it is
	// the server alone that keeps to it.
	watch := func(t *testing.T) {
		t.Helper()
		was, arrived := bytes.Clone(region.Bytes()), packets(t, d.client)
		if written(was) == 0 {
			t.Error("nothing had been written: the test shows nothing")
		}
		time.Sleep(2 * time.Second)
		if !bytes.Equal(region.Bytes(), was) {
			t.Error("memory changed afterwards")
		}
		t.Logf("%d packets arrived afterwards", packets(t, d.client)-arrived)
	}

	t.Run("broken off", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		request, before := get(t, "large"), packets(t, d.client)
		done := make(chan error, 1)
		go func() {
			_, err := raw.Do(ctx, request)
			done <- err
		}()
		eventually(t, soon, "a transfer in flight", func() bool { return packets(t, d.client) > before+underWay })
		cancel()
		if err := <-done; err == nil {
			t.Fatal("the GET was answered before it was broken off")
		}
		eventually(t, givenUp, "no staging memory is lent", func() bool { return used(t, raw) == 0 })
		watch(t)
	})

	t.Run("failed", func(t *testing.T) {
		resp, err := do(t, raw, get(t, "spoilt"))
		if err != nil || resp.Status < 400 {
			t.Fatalf("a GET of a spoilt object: %v %v", resp, err)
		}
		watch(t)
	})

	t.Run("served", func(t *testing.T) {
		resp, err := do(t, raw, get(t, "small"))
		if err != nil || resp.Status != 200 || !bytes.Equal(region.Bytes()[:smallBytes], pattern(2, make([]byte, smallBytes))) {
			t.Fatalf("%v %v", resp, err)
		}
		watch(t)
	})
}

// signed is a client that signs its connect, as rawhttp requests.
type signed struct {
	target rdmaio.Target
}

func (c *signed) connect(t *testing.T, raw *rawhttp.Client) {
	t.Helper()
	h, err := c.target.Hello(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	resp, err := do(t, raw, rawhttp.Request{Method: "POST", Path: "/.s3rdma-rc/connect",
		Header: http.Header{"x-amz-rdma-token": {h.Token}, "x-amz-rdma-psn": {fmt.Sprintf("%06x", h.PSN)}}})
	if err != nil || resp.Status != 200 {
		t.Fatalf("connect: %v %v", resp, err)
	}
	w, err := welcomeOf(resp)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.target.Connect(t.Context(), w); err != nil {
		t.Fatal(err)
	}
}

// slowDown bounds what devices send, until the test ends: slow enough, a transfer is still
// under way when it is cut off.
func slowDown(t *testing.T, rate string, devices ...string) {
	t.Helper()
	for _, d := range devices {
		b, err := os.ReadFile(filepath.Join("/sys/class/infiniband", d, "ports/1/gid_attrs/ndevs/0"))
		if err != nil {
			t.Fatal(err)
		}
		netdev := strings.TrimSpace(string(b))
		if out, err := exec.Command("tc", "qdisc", "replace", "dev", netdev, "root", "netem", "rate", rate, "limit", "100000").CombinedOutput(); err != nil {
			t.Fatalf("tc: %v %s", err, out)
		}
		t.Cleanup(func() { exec.Command("tc", "qdisc", "del", "dev", netdev, "root").Run() })
	}
}

// written is how many bytes are not zero.
func written(b []byte) int { return len(b) - bytes.Count(b, []byte{0}) }

// spoil changes a byte of an object on all drives but one, about at the given part of its
// length: too many for the others to make up for it.
func spoil(t *testing.T, s *minioproc.Server, key string, at float64) {
	t.Helper()
	parts, err := filepath.Glob(filepath.Join(filepath.Dir(s.Log), "drive*", victimBucket, key, "*", "part.1"))
	if err != nil || len(parts) < 2 {
		t.Fatalf("the object's files: %v %v", parts, err)
	}
	for _, p := range parts[1:] {
		f, err := os.OpenFile(p, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		off := int64(float64(info.Size()) * at)
		b := make([]byte, 1)
		if _, err := f.ReadAt(b, off); err != nil && err != io.EOF {
			t.Fatal(err)
		}
		b[0] ^= 0xff
		if _, err := f.WriteAt(b, off); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
