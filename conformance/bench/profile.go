// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

// profileFor is how long a server is profiled.
const profileFor = 3 * time.Second

// notInName is what does not go into a file's name.
var notInName = regexp.MustCompile(`[^a-zA-Z0-9.]+`)

// profile lets a side do a cell's operation, unmeasured, while its server takes a CPU
// profile of itself (MinIO's admin API), which goes to a file below Options.Profile for
// go tool pprof.
func (b *bench) profile(ctx context.Context, s *side, c cell) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		cpu []byte
		err error
	}
	got := make(chan result, 1)
	go func() {
		cpu, err := s.server.profile(ctx)
		got <- result{cpu, err}
	}()
	_, err := b.turn(ctx, measurer{length: profileFor, pattern: b.m.pattern, serial: b.m.serial}, s, c)
	if err != nil {
		cancel()
	}
	r := <-got
	if err := errors.Join(err, r.err); err != nil {
		return err
	}
	name := fmt.Sprintf("%s-%s-%d-%s.pprof", c.op, bytesText(int64(c.size)), c.workers, s.name)
	return os.WriteFile(filepath.Join(b.o.Profile, strings.ToLower(notInName.ReplaceAllString(name, "-"))), r.cpu, 0o644)
}

// profile is the server's CPU profile, in the form of package runtime/pprof.
func (s *server) profile(ctx context.Context) ([]byte, error) {
	resp, err := s.admin.Do(ctx, rawhttp.Request{Method: http.MethodPost, Path: "/minio/admin/v3/profile",
		Query: url.Values{"profilerType": {"cpu"}, "duration": {profileFor.String()}}})
	if err != nil {
		return nil, err
	}
	if resp.Status != http.StatusOK {
		return nil, fmt.Errorf("profile the server: HTTP %d %s", resp.Status, resp.Body)
	}
	z, err := zip.NewReader(bytes.NewReader(resp.Body), int64(len(resp.Body)))
	if err != nil {
		return nil, fmt.Errorf("profile the server: %w", err)
	}
	for _, f := range z.File {
		if name := path.Base(f.Name); strings.HasPrefix(name, "profile-") && strings.HasSuffix(name, "-cpu.pprof") {
			r, err := f.Open()
			if err != nil {
				return nil, err
			}
			defer r.Close()
			return io.ReadAll(r)
		}
	}
	return nil, fmt.Errorf("profile the server: no CPU profile among %d files", len(z.File))
}
