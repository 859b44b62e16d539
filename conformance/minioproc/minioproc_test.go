// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package minioproc

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script makes an executable that stands in for a server that does not work.
func script(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "server")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestAServerThatEndsIsReportedWithItsLog(t *testing.T) {
	_, err := Start(t.Context(), Options{Binary: script(t, "echo cannot do this; exit 3"), Dir: t.TempDir()})
	if !errors.Is(err, ErrStart) || !strings.Contains(err.Error(), "cannot do this") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("error %v", err)
	}
}

func TestAServerThatIsNeverReadyIsStopped(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := Start(ctx, Options{Binary: script(t, "echo $$ >pid; exec sleep 60"), Dir: dir})
	if !errors.Is(err, ErrStart) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	pid, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/" + strings.TrimSpace(string(pid))); err == nil {
		t.Error("the process is still there")
	}
}

// TestAClusterThatDoesNotStartIsReported: one node ends, the others would wait for it.
func TestAClusterThatDoesNotStartIsReported(t *testing.T) {
	dir := t.TempDir()
	text := "echo $$ >pid; case $PWD in */node1) echo cannot do this; exit 3;; esac; exec sleep 60"
	_, err := StartCluster(t.Context(), ClusterOptions{Binary: script(t, text), Dir: dir, Nodes: 3})
	if !errors.Is(err, ErrStart) || !strings.Contains(err.Error(), "node 1") || !strings.Contains(err.Error(), "cannot do this") {
		t.Errorf("error %v", err)
	}
	pids, err := filepath.Glob(filepath.Join(dir, "node*", "pid"))
	if err != nil || len(pids) == 0 {
		t.Fatal(pids, err)
	}
	for _, name := range pids {
		pid, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat("/proc/" + strings.TrimSpace(string(pid))); err == nil {
			t.Errorf("the process of %s is still there", name)
		}
	}
}

func TestNoBinary(t *testing.T) {
	if _, err := Start(t.Context(), Options{Binary: "/nonexistent/minio", Dir: t.TempDir()}); !errors.Is(err, ErrStart) {
		t.Errorf("error %v, want ErrStart", err)
	}
}

// TestRealServer runs where S3RDMA_FORK names a MinIO binary, of any kind.
func TestRealServer(t *testing.T) {
	binary := os.Getenv("S3RDMA_FORK")
	if binary == "" {
		t.Skip("S3RDMA_FORK names no MinIO binary")
	}
	dir := t.TempDir()
	var root rawhttp.Credentials
	for _, secure := range []bool{false, true} {
		s, err := Start(t.Context(), Options{Binary: binary, Dir: dir, TLS: secure, KMS: true})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Stop()
		if secure && s.Root != root {
			t.Error("the root user's keys changed with a restart on the same drives")
		}
		root = s.Root
		user, err := s.AddUser(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c, err := rawhttp.New(rawhttp.Config{Endpoint: s.Endpoint, TLS: s.TLS, Credentials: user})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		resp, err := c.Do(t.Context(), rawhttp.Request{Method: "GET"})
		if err != nil || resp.Status != 200 {
			t.Errorf("the new user can't list buckets: %+v, %v", resp, err)
		}
		s.Stop()
		select {
		case <-s.Exited():
		default:
			t.Error("Stop returned before the process had ended")
		}
	}
}

// TestRealCluster: four nodes are one; what is stored at one is read at another, also
// when a third is gone, and the third comes back.
func TestRealCluster(t *testing.T) {
	binary := os.Getenv("S3RDMA_FORK")
	if binary == "" {
		t.Skip("S3RDMA_FORK names no MinIO binary")
	}
	c, err := StartCluster(t.Context(), ClusterOptions{Binary: binary, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	at := func(i int) *rawhttp.Client {
		s := c.Nodes()[i]
		client, err := rawhttp.New(rawhttp.Config{Endpoint: s.Endpoint, Credentials: s.Root})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		return client
	}
	do := func(i int, method, path, body string) []byte {
		t.Helper()
		resp, err := at(i).Do(t.Context(), rawhttp.Request{Method: method, Path: path, Body: []byte(body)})
		if err != nil || resp.Status != 200 {
			t.Fatalf("node %d: %s %s: %+v, %v", i, method, path, resp, err)
		}
		return resp.Body
	}
	do(0, "PUT", "/bucket", "")
	do(0, "PUT", "/bucket/object", "one")
	for i := range 4 {
		if got := do(i, "GET", "/bucket/object", ""); string(got) != "one" {
			t.Errorf("node %d: %q", i, got)
		}
		if len(c.Drives(i)) != 1 {
			t.Errorf("node %d has the drives %v", i, c.Drives(i))
		}
		files, err := filepath.Glob(filepath.Join(c.Drives(i)[0], "bucket", "object", "xl.meta"))
		if err != nil || len(files) != 1 {
			t.Errorf("node %d holds %v of the object (%v)", i, files, err)
		}
	}
	c.Nodes()[2].Kill()
	do(1, "PUT", "/bucket/object", "two")
	if got := do(3, "GET", "/bucket/object", ""); string(got) != "two" {
		t.Errorf("without a node: %q", got)
	}
	if _, err := c.Restart(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if got := do(2, "GET", "/bucket/object", ""); string(got) != "two" {
		t.Errorf("the node that came back: %q", got)
	}
}
