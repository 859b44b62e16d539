// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/s3rdma/s3rdma/conformance"
	"github.com/s3rdma/s3rdma/conformance/minioproc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCommandLine(t *testing.T) {
	parse := func(args []string) error {
		parser, err := newParser(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = parser.Parse(args)
		return err
	}
	for _, good := range [][]string{
		{"conform", "--endpoint", "http://h:1", "--fabric", "shm", "--run", "put/*", "--level", "must", "--json", "f", "--junit", "g"},
		{"conform", "--off"}, {"conform", "--list"}, {"demo", "--fabric", "tcp", "--large", "1"}, {"demo", "--interop"},
		{"get", "s3://b/a/key", "f"}, {"stat", "s3://b/k", "--fabric", "none"}, {"put", "main.go", "s3://b/k", "--only"},
		{"bench"}, {"bench", "--json", "f", "--html", "g"}, {"bench", "--network", "--condition", "a=netem loss 1%, x", "--condition", "b/4=", "--op", "put"}, {"bench", "--direct", "--json", "f"}, {"bench", "--grid", "--sizes", "64KiB,1MiB", "--concurrency", "1,2", "--op", "put", "--fabric", "shm,tcp", "--window", "1s"},
	} {
		if err := parse(good); err != nil {
			t.Errorf("%v: %v", good, err)
		}
	}
	for _, bad := range [][]string{
		{}, {"conform", "--fabric", "ether"}, {"conform", "--level", "perhaps"}, {"put", "main.go"},
		{"stat", "b/k"}, {"stat", "s3://b"}, {"stat", "s3:///k"}, {"stat", "s3://b/"},
		{"bench", "--sizes", "many"}, {"bench", "--op", "delete"}, {"bench", "--fabric", "http"}, {"bench", "--grid", "--direct"},
	} {
		if err := parse(bad); err == nil {
			t.Errorf("%v: no error", bad)
		}
	}
}

func TestListNamesEveryCase(t *testing.T) {
	var b bytes.Buffer
	if err := listCases(&b, conformance.Options{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range conformance.Cases() {
		if !strings.Contains(b.String(), c.ID) || !strings.Contains(b.String(), c.Rule) {
			t.Errorf("%s is not listed", c.ID)
		}
	}
}

// TestPutGet moves files through a real server, where S3RDMA_FORK names one: in no
// part, one and several, over each fabric and by HTTP.
func TestPutGet(t *testing.T) {
	binary := os.Getenv("S3RDMA_FORK")
	if binary == "" {
		t.Skip("S3RDMA_FORK names no MinIO binary with the plugin")
	}
	s, err := minioproc.Start(t.Context(), minioproc.Options{Binary: binary, Dir: t.TempDir(), TLS: true, Args: []string{"--rdma=on", "--rdma-fabric=shm,tcp"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	server := serverFlags{Endpoint: s.Endpoint, AccessKey: s.Root.AccessKey, SecretKey: s.Root.SecretKey, Region: "us-east-1", CACert: s.CertFile}
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	for _, fabric := range []string{"shm", "tcp", "none"} {
		for _, n := range []int{0, 1, 70_000, 2*partSize + 12_345} {
			data := make([]byte, n)
			rand.NewChaCha8([32]byte{byte(n)}).Read(data)
			if err := os.WriteFile(from, data, 0o600); err != nil {
				t.Fatal(err)
			}
			flags := transferFlags{serverFlags: server, Fabric: fabric, Only: fabric != "none" && n > 0}
			object := objectURL{"bucket", "a key"}
			if err := (&putCommand{transferFlags: flags, File: from, Object: object, MakeBucket: true}).Run(t.Context()); err != nil {
				t.Fatalf("%s, %d bytes: %v", fabric, n, err)
			}
			if err := (&statCommand{transferFlags: flags, Object: object}).Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := (&getCommand{transferFlags: flags, Object: object, File: to}).Run(t.Context()); err != nil {
				t.Fatalf("%s, %d bytes: %v", fabric, n, err)
			}
			got, err := os.ReadFile(to)
			if err != nil || sha256.Sum256(got) != sha256.Sum256(data) {
				t.Errorf("%s, %d bytes: the file that came back differs (%v)", fabric, n, err)
			}
		}
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(to), ".s3rdma-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}
