// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/adapters/client"
	"github.com/s3rdma/s3rdma/conformance"
	"github.com/s3rdma/s3rdma/conformance/minioproc"
	"github.com/s3rdma/s3rdma/conformance/rawhttp"
	"github.com/s3rdma/s3rdma/rdmaio"
)

// The tests over RDMA devices run where SOFTROCE_DEV0 names one and S3RDMA_FORK a MinIO
// with the plugin: in the VM of conformance/softroce ("make test-softroce"). SOFTROCE_DEV1
// is the client's device, if there are two. S3RDMA_MAX_OBJECT and S3RDMA_PATIENCE bound
// the suite's objects and the time of a case, because a VM without KVM is slow;
// S3RDMA_CASES selects cases.
type devices struct{ server, client string }

func rdmaDevices(t *testing.T) devices {
	t.Helper()
	d := devices{os.Getenv("SOFTROCE_DEV0"), os.Getenv("SOFTROCE_DEV1")}
	if d.server == "" {
		t.Skip("no RDMA device (make test-softroce has a VM with some)")
	}
	if d.client == "" {
		d.client = d.server
	}
	return d
}

// The tests run on machines of any speed: nothing here asserts one. These bounds end a
// test that would wait for ever.
const (
	// soon is for what comes about by itself.
	soon = 3 * time.Minute
	// givenUp is for what a server does within its peer time-out of 5 s and its fence
	// limit of 2 s: it does, on its own clock, but an emulated CPU and a busy host come on
	// top.
	givenUp = 10 * 7 * time.Second
)

// everywhere is the allow-list of a server whose clients are all in the VM.
const everywhere = "127.0.0.0/8,10.0.0.0/8"

func (d devices) serve(t *testing.T, args ...string) *minioproc.Server {
	t.Helper()
	return serve(t, d.options(t, args...))
}

func (d devices) options(t *testing.T, args ...string) minioproc.Options {
	t.Helper()
	return minioproc.Options{
		Binary: binary(t, "S3RDMA_FORK"), AnyAddress: true, Ready: soon,
		Args: append([]string{"--rdma=on", "--rdma-fabric=verbs", "--rdma-device=" + d.server,
			"--rdma-allow-peers=" + everywhere, "--rdma-staging-size=64MiB"}, args...),
		Env: []string{"MINIO_PROMETHEUS_AUTH_TYPE=public"},
	}
}

func (d devices) target(t *testing.T) rdmaio.Target {
	t.Helper()
	target, err := conformance.NewTarget("rc", conformance.Device{Names: []string{d.client}})
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// newClient connects to the server at the given host.
func newClient(t *testing.T, s *minioproc.Server, host string, target rdmaio.Target) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{
		Endpoint: strings.Replace(s.Endpoint, "127.0.0.1", host, 1), Target: target,
		Credentials: client.StaticCredentials(s.Root.AccessKey, s.Root.SecretKey),
		Timeout:     soon, ConnectTimeout: soon,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newRaw(t *testing.T, s *minioproc.Server) *rawhttp.Client {
	t.Helper()
	c, err := rawhttp.New(rawhttp.Config{Endpoint: s.Endpoint, Credentials: s.Root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// do is c.Do, and does not wait for ever.
func do(t *testing.T, c *rawhttp.Client, r rawhttp.Request) (*rawhttp.Response, error) {
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	return c.Do(ctx, r)
}

// metrics returns the plugin's metrics by name and labels, as they are written.
func metrics(t *testing.T, c *rawhttp.Client) map[string]float64 {
	t.Helper()
	resp, err := do(t, c, rawhttp.Request{Method: "GET", Path: "/minio/metrics/v3/rdma", Anonymous: true})
	if err != nil || resp.Status != 200 {
		t.Fatalf("metrics: %v %v", resp, err)
	}
	all := map[string]float64{}
	for lines := bufio.NewScanner(bytes.NewReader(resp.Body)); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil {
			all[name] = v
		}
	}
	return all
}

// eventually waits for a condition that comes about by itself.
func eventually(t *testing.T, within time.Duration, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !cond(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %v still not: %s", within, what)
		}
	}
}

// pattern is n bytes that depend on seed and repeat nowhere near.
func pattern(seed uint64, b []byte) []byte {
	for i := range b {
		seed += 0x9e3779b97f4a7c15
		x := seed
		x ^= x >> 31
		b[i] = byte(x * 0xbf58476d1ce4e5b9 >> 56)
	}
	return b
}

// TestVerbsSuite is the whole suite, as TestSuite has it over the other fabrics, each case
// a test.
func TestVerbsSuite(t *testing.T) {
	d := rdmaDevices(t)
	s := d.serve(t)
	o := conformance.Options{Fabric: "rc", Device: conformance.Device{Names: []string{d.client}}}
	var err error
	if v := os.Getenv("S3RDMA_MAX_OBJECT"); v != "" {
		if o.MaxObject, err = strconv.ParseInt(v, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	if v := os.Getenv("S3RDMA_PATIENCE"); v != "" {
		if o.Patience, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	o.Select = os.Getenv("S3RDMA_CASES")
	report := suite(t, s, o)
	each(t, report)
	if o.Select == "" {
		wantAllCases(t, report, o, false)
	}
}

// each makes a test of each case.
func each(t *testing.T, report conformance.Report) {
	for _, r := range report.Results {
		t.Run(r.ID, func(t *testing.T) {
			switch r.Status {
			case conformance.Failed:
				t.Error(r.Detail())
			case conformance.Skipped:
				t.Skip(r.Reason)
			}
		})
	}
}

// foreign is a client as others have written them: it connects without a signature,
// knows nothing of what our queue pairs tell each other beside, and uses one token for
// all that it does.
type foreign struct {
	target  rdmaio.Target
	session string
}

// plainToken takes out of a connect token what only our own ends know: the fields that
// name memory.
func plainToken(token string) string {
	const from, to = 2 * (1 + 4 + 16), 2 * (1 + 4 + 16 + 4 + 8 + 8)
	return token[:from] + strings.Repeat("0", to-from) + token[to:]
}

func (f *foreign) connect(t *testing.T, c *rawhttp.Client) {
	t.Helper()
	h, err := f.target.Hello(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(t.Context(), rawhttp.Request{Method: "POST", Path: "/.s3rdma-rc/connect", Anonymous: true,
		Header: http.Header{"x-amz-rdma-token": {plainToken(h.Token)}, "x-amz-rdma-psn": {fmt.Sprintf("%06x", h.PSN)}}})
	if err != nil || resp.Status != 200 {
		t.Fatalf("connect: %v %v", resp, err)
	}
	w, err := welcomeOf(resp)
	if err != nil {
		t.Fatal(err)
	}
	w.Token = plainToken(w.Token)
	f.session = w.Session.Hex()
	if err := f.target.Connect(t.Context(), w); err != nil {
		t.Fatal(err)
	}
}

// welcomeOf reads the answer to a connect of a queue pair.
func welcomeOf(resp *rawhttp.Response) (rdmaio.Welcome, error) {
	id, err := rdmaio.ParseSessionID(resp.Header.Get("x-amz-rdma-session"))
	if err != nil {
		return rdmaio.Welcome{}, err
	}
	token, ok := strings.CutPrefix(resp.Header.Get("x-amz-rdma-reply"), "200:")
	raw, err := hex.DecodeString(token)
	psn, perr := strconv.ParseUint(resp.Header.Get("x-amz-rdma-psn"), 16, 24)
	if !ok || err != nil || len(raw) != 44 || raw[0] != 1 || perr != nil || psn == 0 {
		return rdmaio.Welcome{}, errors.New("the welcome is not 200:<88 hex digits>, with a psn")
	}
	return rdmaio.Welcome{Session: id, Token: token, PSN: uint32(psn)}, nil
}

// TestVerbsEncryption: what needs TLS, and is left out of TestVerbsSuite.
func TestVerbsEncryption(t *testing.T) {
	d := rdmaDevices(t)
	o := d.options(t)
	o.TLS = true
	s := serve(t, o)
	report := suite(t, s, conformance.Options{Fabric: "rc", Device: conformance.Device{Names: []string{d.client}},
		Select: "encryption/,session/connect,lifecycle/payload", Patience: soon})
	each(t, report)
	if report.Skipped > 0 {
		t.Errorf("%d cases were skipped, want none", report.Skipped)
	}
}

// TestVerbsForeignClients: what exists today, with the switch for it.
func TestVerbsForeignClients(t *testing.T) {
	d := rdmaDevices(t)
	s := d.serve(t, "--rdma-connect-signed=off")
	c := newRaw(t, s)
	second, err := s.AddUser(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	do := func(r rawhttp.Request, status int) *rawhttp.Response {
		t.Helper()
		resp, err := c.Do(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Status != status {
			t.Fatalf("%s %s: HTTP %d %s, want %d", r.Method, r.Key, resp.Status, resp.Error().Code, status)
		}
		return resp
	}
	do(rawhttp.Request{Method: "PUT", Bucket: "foreign"}, 200)

	f := &foreign{target: d.target(t)}
	defer f.target.Close()
	f.connect(t, c)
	const n = 1<<20 + 77
	region, err := f.target.(rdmaio.Allocator).Alloc(n, rdmaio.RemoteRead|rdmaio.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	descriptor, err := region.Describe(0, n)
	if err != nil {
		t.Fatal(err)
	}
	token, err := descriptor.Encode(rdmaio.EncodingSession)
	if err != nil {
		t.Fatal(err)
	}
	object := func(method, key string) rawhttp.Request {
		return rawhttp.Request{Method: method, Bucket: "foreign", Key: key, Header: http.Header{"x-amz-rdma-token": {token}}}
	}
	// Several transfers over one token, both ways.
	for i := range 4 {
		key := "object" + strconv.Itoa(i)
		want := bytes.Clone(pattern(uint64(i), region.Bytes()))
		do(object("PUT", key), 200)
		if got := do(rawhttp.Request{Method: "GET", Bucket: "foreign", Key: key}, 200); !bytes.Equal(got.Body, want) {
			t.Fatalf("%s differs when it is read by HTTP", key)
		}
		clear(region.Bytes())
		do(object("GET", key), 200)
		if !bytes.Equal(region.Bytes(), want) {
			t.Fatalf("%s differs in memory", key)
		}
	}
	// The session is root's since the first of them.
	stranger := object("GET", "object0")
	stranger.Credentials = &second
	do(stranger, 403)
	unsigned := object("GET", "object0")
	unsigned.Anonymous = true
	do(unsigned, 403)

	// Several sessions and tokens at once.
	g := &foreign{target: d.target(t)}
	defer g.target.Close()
	g.connect(t, c)
	do(object("GET", "object1"), 200)
	for _, x := range []*foreign{f, g} {
		bye := rawhttp.Request{Method: "POST", Path: "/.s3rdma-rc/disconnect", Anonymous: true, Header: http.Header{"x-amz-rdma-session": {x.session}}}
		do(bye, 204)
		do(bye, 404)
	}
	do(object("GET", "object1"), 501)
}

// used is how many bytes of staging memory are lent.
func used(t *testing.T, c *rawhttp.Client) float64 {
	return metrics(t, c)["s3rdma_staging_used_bytes"]
}

// packets is how many packets a device has received. Soft-RoCE counts those that cross a
// network interface.
func packets(t *testing.T, device string) int64 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/sys/class/infiniband", device, "ports/1/hw_counters/rcvd_pkts"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// transfer stores and fetches an object of n bytes over the fabric.
func transfer(ctx context.Context, c *client.Client, bucket, key string, n int) error {
	buf, err := c.Alloc(n)
	if err != nil {
		return err
	}
	defer buf.Close()
	want := bytes.Clone(pattern(uint64(n), buf.Bytes()))
	if _, err := c.Put(ctx, bucket, key, buf.All(), client.PutOptions{Force: client.ForceFabric}); err != nil {
		return err
	}
	clear(buf.Bytes())
	if _, err := c.Get(ctx, bucket, key, buf.All(), client.GetOptions{Force: client.ForceFabric}); err != nil {
		return err
	}
	if !bytes.Equal(buf.Bytes(), want) {
		return fmt.Errorf("%s/%s came back different", bucket, key)
	}
	return nil
}
