// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

// Package forktest runs a MinIO binary that was built by adapters/minio/fork and
// looks at it from outside. The environment variable S3RDMA_FORK names the binary;
// without it all tests are skipped.
package forktest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/minio/madmin-go/v3"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/signer"
)

const (
	rootUser   = "rootuser"
	rootSecret = "rootsecret"
	region     = "us-east-1"
	bucket     = "bucket"
)

// stockBinary is a MinIO without the plugin: the one that S3RDMA_STOCK names, or else
// the fork, whose plain HTTP is stock's.
func stockBinary(t *testing.T) string {
	t.Helper()
	bin := os.Getenv("S3RDMA_STOCK")
	if bin == "" {
		return forkBinary(t)
	}
	abs, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// forkBinary is the binary under test.
func forkBinary(t *testing.T) string {
	t.Helper()
	bin := os.Getenv("S3RDMA_FORK")
	if bin == "" {
		t.Skip("S3RDMA_FORK names no binary built by adapters/minio/fork")
	}
	abs, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// lockedBuffer collects output that a process writes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// server is a running MinIO over temporary drives.
type server struct {
	drives []string
	url    string
	host   string
	log    *lockedBuffer
	audit  *lockedBuffer // one JSON entry a line
	cmd    *exec.Cmd
	done   chan error
	ended  bool

	transport *http.Transport // of send; nil is the default one
}

// setup is how a server is run.
type setup struct {
	binary string   // "" is the fork
	drives []string // their folders
	layout []string // what the command line says of them; nil is each by itself
	env    []string
	args   []string
}

// command prepares the server's process.
func (o setup) command(t *testing.T) (cmd *exec.Cmd, log *lockedBuffer) {
	t.Helper()
	if o.binary == "" {
		o.binary = forkBinary(t)
	}
	if o.layout == nil {
		o.layout = o.drives
	}
	args := append([]string{"server"}, o.args...)
	cmd = exec.Command(o.binary, append(args, o.layout...)...)
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "MINIO_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "MINIO_CI_CD=1", "MINIO_BROWSER=off", "MINIO_UPDATE=off", "HOME="+filepath.Dir(o.drives[0]),
		"MINIO_ROOT_USER="+rootUser, "MINIO_ROOT_PASSWORD="+rootSecret)
	cmd.Env = append(cmd.Env, o.env...)
	log = new(lockedBuffer)
	cmd.Stdout, cmd.Stderr = log, log
	return cmd, log
}

// freshDrives are n paths where nothing is yet.
func freshDrives(t *testing.T, n int) (drives []string) {
	t.Helper()
	dir := t.TempDir()
	for i := range n {
		drives = append(drives, filepath.Join(dir, fmt.Sprintf("drive%d", i)))
	}
	return drives
}

// start runs a server over four drives until the test ends. The bucket is there.
func start(t *testing.T, env []string, args ...string) *server {
	t.Helper()
	return setup{drives: freshDrives(t, 4), env: env, args: args}.start(t)
}

// start runs the server until the test ends. The bucket is there.
func (o setup) start(t *testing.T) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host := l.Addr().String()
	l.Close()
	s := &server{drives: o.drives, url: "http://" + host, host: host, audit: new(lockedBuffer), done: make(chan error, 1)}
	sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.audit.Write(append(bytes.TrimSpace(body), '\n'))
	}))
	t.Cleanup(sink.Close)
	o.env = append([]string{
		"MINIO_AUDIT_WEBHOOK_ENABLE_TEST=on", "MINIO_AUDIT_WEBHOOK_ENDPOINT_TEST=" + sink.URL,
		"MINIO_API_GZIP_OBJECTS=on",
	}, o.env...)
	o.args = append([]string{"--address", host}, o.args...)
	s.cmd, s.log = o.command(t)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { s.done <- s.cmd.Wait() }()
	t.Cleanup(func() { s.stop(t) })
	c := s.client(t)
	within(t, 60*time.Second, func() error {
		select {
		case err := <-s.done:
			s.ended = true
			t.Fatalf("the server ended: %v\n%s", err, s.log)
		default:
		}
		resp, err := http.Get(s.url + "/minio/health/cluster")
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("health: %s", resp.Status)
		}
		// IAM is loaded after the server is healthy.
		_, err = s.admin(t).ListUsers(t.Context())
		return err
	})
	err = c.MakeBucket(t.Context(), bucket, minio.MakeBucketOptions{})
	if err != nil && minio.ToErrorResponse(err).Code != "BucketAlreadyOwnedByYou" {
		t.Fatal(err)
	}
	return s
}

// stop ends the server as an operator does, and expects a clean exit.
func (s *server) stop(t *testing.T) {
	t.Helper()
	if s.ended {
		return
	}
	s.ended = true
	s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-s.done:
		if err != nil {
			t.Errorf("exit: %v\n%s", err, s.log)
		}
	case <-time.After(30 * time.Second):
		s.cmd.Process.Kill()
		t.Errorf("the server does not end\n%s", s.log)
	}
}

// within repeats f until it succeeds; what it waits for happens in another
// process.
func within(t *testing.T, limit time.Duration, f func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", limit, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *server) client(t *testing.T) *minio.Client {
	t.Helper()
	c, err := minio.New(s.host, &minio.Options{Creds: credentials.NewStaticV4(rootUser, rootSecret, ""), Region: region})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (s *server) admin(t *testing.T) *madmin.AdminClient {
	t.Helper()
	a, err := madmin.New(s.host, rootUser, rootSecret, false)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// absent fails if the object is there.
func (s *server) absent(t *testing.T, key string) {
	t.Helper()
	if _, err := s.client(t).StatObject(t.Context(), bucket, key, minio.StatObjectOptions{}); err == nil {
		t.Errorf("object %s is there", key)
	}
}

// put stores an object without the plugin.
func (s *server) put(t *testing.T, key string, data []byte) {
	t.Helper()
	if _, err := s.client(t).PutObject(t.Context(), bucket, key, bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{}); err != nil {
		t.Fatal(err)
	}
}

// get reads an object without the plugin.
func (s *server) get(t *testing.T, key string) []byte {
	t.Helper()
	o, err := s.client(t).GetObject(t.Context(), bucket, key, minio.GetObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	data, err := io.ReadAll(o)
	if err != nil {
		t.Fatalf("GET %s: %v", key, err)
	}
	return data
}

// How a request is signed.
type signing func(r *http.Request) *http.Request

func signV4(r *http.Request) *http.Request {
	return signer.SignV4(*r, rootUser, rootSecret, "", region)
}

func signV4As(access, secret, token string) signing {
	return func(r *http.Request) *http.Request { return signer.SignV4(*r, access, secret, token, region) }
}

func signV2(r *http.Request) *http.Request { return signer.SignV2(*r, rootUser, rootSecret, false) }

func presign(r *http.Request) *http.Request { return presignAs(r, rootUser, rootSecret) }

func presignAs(r *http.Request, access, secret string) *http.Request {
	return signer.PreSignV4(*r, access, secret, "", region, 300)
}

func anonymous(r *http.Request) *http.Request { return r }

// headers are name, value, name, value, ...
type headers []string

func (h headers) set(r *http.Request) {
	for i := 0; i+1 < len(h); i += 2 {
		r.Header.Set(h[i], h[i+1])
	}
}

// answer is a response that has been read.
type answer struct {
	*http.Response
	body string
}

// send signs a request with the headers in signed, adds those in unsigned, and
// sends it with an empty body.
func (s *server) send(t *testing.T, method, path string, sign signing, signed, unsigned headers) answer {
	t.Helper()
	a, err := s.try(t.Context(), method, path, sign, signed, unsigned)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

// try is send to a server that may be gone.
func (s *server) try(ctx context.Context, method, path string, sign signing, signed, unsigned headers) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, nil)
	if err != nil {
		return answer{}, err
	}
	if method == http.MethodPut || method == http.MethodPost {
		r.Header.Set("Content-Length", "0")
	}
	signed.set(r)
	r = sign(r)
	unsigned.set(r)
	transport := http.DefaultTransport
	if s.transport != nil {
		transport = s.transport
	}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp, string(body)}, err
}

// want checks status and error code.
func (a answer) want(t *testing.T, status int, code string) {
	t.Helper()
	if a.StatusCode != status || (code != "" && !strings.Contains(a.body, "<Code>"+code+"</Code>")) {
		t.Errorf("%s %s: %s %q, want %d %s", a.Request.Method, a.Request.URL.Path, a.Status, a.body, status, code)
	}
	// Known clients take an ETag for success. MinIO sends one with 412.
	if status >= 400 && status != http.StatusPreconditionFailed && a.Header.Get("ETag") != "" {
		t.Errorf("%s %s: an ETag on an error", a.Request.Method, a.Request.URL.Path)
	}
}

// declined checks the form of a decline.
func (a answer) declined(t *testing.T) {
	t.Helper()
	a.want(t, http.StatusNotImplemented, "")
	if got := a.Header.Get("x-amz-rdma-reply"); got != "501" {
		t.Errorf("%s %s: x-amz-rdma-reply is %q, want 501", a.Request.Method, a.Request.URL.Path, got)
	}
}

// trace collects what `mc admin trace -v` shows while f runs.
func (s *server) trace(t *testing.T, f func()) []madmin.TraceInfo {
	t.Helper()
	return s.traceOf(t, madmin.ServiceTraceOpts{S3: true, Internal: true}, f)
}

// traceOf collects the traces that opts ask for while f runs; S3 calls must be among
// them.
func (s *server) traceOf(t *testing.T, opts madmin.ServiceTraceOpts, f func()) []madmin.TraceInfo {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ch := s.admin(t).ServiceTrace(ctx, opts)
	var all []madmin.TraceInfo
	// The server subscribes some time after the call, and publishes some time
	// after the answer: probes before and after f mark what lies between.
	probe := func(key string) {
		for {
			s.send(t, http.MethodHead, "/"+bucket+"/"+key, signV4, nil, nil)
			tick := time.After(200 * time.Millisecond)
			for waiting := true; waiting; {
				select {
				case i, ok := <-ch:
					if !ok || i.Err != nil {
						t.Fatalf("trace ended: %v", i.Err)
					}
					if strings.HasSuffix(i.Trace.Path, key) {
						return
					}
					all = append(all, i.Trace)
				case <-tick:
					waiting = false
				case <-time.After(20 * time.Second):
					t.Fatal("no trace")
				}
			}
		}
	}
	probe("trace-begin")
	all = nil
	f()
	probe("trace-end")
	return all
}

// auditOf returns the audit entries for an object, when there is at least one.
func (s *server) auditOf(t *testing.T, api, object string) []map[string]any {
	t.Helper()
	var found []map[string]any
	within(t, 10*time.Second, func() error {
		found = nil
		for _, line := range strings.Split(s.audit.String(), "\n") {
			var e map[string]any
			if json.Unmarshal([]byte(line), &e) != nil {
				continue
			}
			a, _ := e["api"].(map[string]any)
			if a["name"] == api && (object == "" || a["object"] == object) {
				found = append(found, e)
			}
		}
		if len(found) == 0 {
			return fmt.Errorf("no audit entry %s %s", api, object)
		}
		return nil
	})
	return found
}

// hides fails if any of the secrets is in what the server has written.
func (s *server) hides(t *testing.T, traces []madmin.TraceInfo, secrets ...string) {
	t.Helper()
	data, err := json.Marshal(traces)
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]string{"trace": string(data), "audit": s.audit.String(), "log": s.log.String()}
	for place, text := range places {
		for _, secret := range secrets {
			for _, form := range []string{secret, url.QueryEscape(secret)} {
				if strings.Contains(text, form) {
					t.Errorf("the %s shows a descriptor or a session", place)
				}
			}
		}
	}
}
