// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/s3rdma/s3rdma/conformance/minioproc"
	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

const (
	bucket = "s3rdma-bench"
	region = "us-east-1"
)

// server is a MinIO that is measured.
type server struct {
	*minioproc.Server
	pid   int
	name  string
	dir   string
	admin *rawhttp.Client
	plain *plainHTTP // one worker, for what is not measured
}

// serverFabric is what a server's setting calls the fabric that a client calls so.
func serverFabric(fabric string) string {
	if fabric == "rc" {
		return "verbs"
	}
	return fabric
}

// serverOptions say how a server is started.
type serverOptions struct {
	name, binary, dir string
	drives            int
	// fabrics are those to serve, none for MinIO without the plugin.
	fabrics []string
	// memory holds the largest object, to make and to compare it.
	memory []byte
	// launch, host and ready are minioproc's.
	launch launcher
	host   string
	ready  time.Duration
	args   []string
}

// startServer starts a MinIO with a bucket.
func startServer(ctx context.Context, o serverOptions) (_ *server, err error) {
	if len(o.fabrics) > 0 {
		var names []string
		for _, f := range o.fabrics {
			names = append(names, serverFabric(f))
		}
		o.args = append([]string{"--rdma=on", "--rdma-fabric=" + strings.Join(names, ",")}, o.args...)
	}
	s := &server{name: o.name, dir: filepath.Join(o.dir, o.name)}
	if s.Server, err = minioproc.Start(ctx, minioproc.Options{Binary: o.binary, Dir: s.dir, Drives: o.drives, Args: o.args,
		Launch: o.launch, Host: o.host, Ready: o.ready, Env: []string{"MINIO_PROMETHEUS_AUTH_TYPE=public"}}); err != nil {
		return nil, fmt.Errorf("start the server %s: %w", o.name, err)
	}
	s.pid = s.PID()
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	if s.admin, err = rawhttp.New(rawhttp.Config{Endpoint: s.Endpoint, Credentials: s.Root}); err != nil {
		return nil, err
	}
	s.plain = newPlainHTTP(s.Endpoint, s.Root, o.memory)
	resp, err := s.admin.Do(ctx, rawhttp.Request{Method: http.MethodPut, Bucket: bucket})
	if err != nil {
		return nil, err
	}
	if resp.Status != http.StatusOK {
		return nil, fmt.Errorf("make a bucket: HTTP %d %s", resp.Status, resp.Error().Code)
	}
	return s, nil
}

func (s *server) stop() {
	if s.plain != nil {
		s.plain.close()
	}
	if s.admin != nil {
		s.admin.Close()
	}
	s.Server.Stop()
}

// fill stores the objects that a size's GETs read, and reads each once, so that the
// page cache has it.
func (s *server) fill(ctx context.Context, p pattern, size, keys int) error {
	p.fill(s.plain.mem(0)[:size])
	for i := range keys {
		if err := s.plain.put(ctx, 0, objectKey(size, i), size); err != nil {
			return err
		}
	}
	for i := range keys {
		if err := s.check(ctx, p, objectKey(size, i), size); err != nil {
			return err
		}
	}
	return nil
}

// check reads an object by HTTP and compares.
func (s *server) check(ctx context.Context, p pattern, key string, size int) error {
	mem := s.plain.mem(0)[:size]
	spoil(mem)
	if err := s.plain.get(ctx, 0, key, size); err != nil {
		return err
	}
	if at := p.differs(mem); at >= 0 {
		return fmt.Errorf("%w: %s on the server %s differs at byte %d", ErrWrongBytes, key, s.name, at)
	}
	return nil
}

// remove removes objects.
func (s *server) remove(ctx context.Context, keys []string) error {
	for _, k := range keys {
		resp, err := s.admin.Do(ctx, rawhttp.Request{Method: http.MethodDelete, Bucket: bucket, Key: k})
		if err != nil {
			return err
		}
		if resp.Status != http.StatusNoContent && resp.Status != http.StatusNotFound {
			return fmt.Errorf("remove %s: HTTP %d %s", k, resp.Status, resp.Error().Code)
		}
	}
	return nil
}

// drive is the folder of a drive, from 0.
func (s *server) drive(i int) string { return filepath.Join(s.dir, fmt.Sprintf("drive%d", i+1)) }

// folders are an object's, on all drives.
func (s *server) folders(drives int, key string) (all []string) {
	for i := range drives {
		all = append(all, filepath.Join(s.drive(i), bucket, filepath.FromSlash(key)))
	}
	return all
}

// dataDrives are the drives that hold the first n data shards of an object made of the
// pattern, which is not inline.
func (s *server) dataDrives(p pattern, drives int, key string, data, n int) ([]int, error) {
	const look = 64
	found := make([]int, 0, n)
	for shard := range n {
		want := make([]byte, look)
		at := shard * ((blockSize + data - 1) / data)
		for i := range want {
			want[i] = p[(at+i)%len(p)]
		}
		for i, folder := range s.folders(drives, key) {
			names, err := filepath.Glob(filepath.Join(folder, "*", "part.1"))
			if err != nil || len(names) != 1 {
				return nil, fmt.Errorf("find the shard of %s in %s: %d files, %w", key, folder, len(names), err)
			}
			got := make([]byte, look)
			f, err := os.Open(names[0])
			if err != nil {
				return nil, err
			}
			_, err = f.ReadAt(got, hashSize)
			f.Close()
			if err != nil {
				return nil, fmt.Errorf("read a shard of %s: %w", key, err)
			}
			if string(got) == string(want) {
				found = append(found, i)
				break
			}
		}
	}
	if len(found) != n {
		return nil, fmt.Errorf("%d of %d data shards of %s found on the drives", len(found), n, key)
	}
	return found, nil
}

// lost is what a drive's folder is called while the drive is lost.
const lost = ".lost"

// loseDrives takes drives away from a running server: a file takes the place of the
// drive's folder, so that the server finds no drive there and cannot make one.
func (s *server) loseDrives(drives []int) error {
	for _, i := range drives {
		if err := os.Rename(s.drive(i), s.drive(i)+lost); err != nil {
			return err
		}
		if err := os.WriteFile(s.drive(i), nil, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// restoreDrives brings them back.
func (s *server) restoreDrives(drives []int) (err error) {
	for _, i := range drives {
		if _, gone := os.Stat(s.drive(i) + lost); gone != nil {
			continue
		}
		err = errors.Join(err, os.Remove(s.drive(i)), os.Rename(s.drive(i)+lost, s.drive(i)))
	}
	return err
}
