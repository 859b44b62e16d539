// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/s3rdma/s3rdma/conformance/minioproc"
)

// MinioGoVersion is the version of minio-go whose functional tests are run. It is
// newer than the one that this module requires: tests gain from age only.
const MinioGoVersion = "v7.4.1"

// prepareMinioGo builds the test program. It runs all tests always.
func prepareMinioGo(ctx context.Context, dir string, out io.Writer) (runner, error) {
	const module = "github.com/minio/minio-go/v7@" + MinioGoVersion
	fmt.Fprintln(out, "minio-go: building the functional tests")
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	download.Dir, download.Stderr = dir, out
	answer, err := download.Output()
	var fetched struct{ Dir, Error string }
	if jerr := json.Unmarshal(answer, &fetched); err == nil {
		err = jerr
	}
	if err != nil || fetched.Dir == "" {
		return nil, fmt.Errorf("fetch %s: %w %s", module, errors.Join(err, ctx.Err()), fetched.Error)
	}
	binary := filepath.Join(dir, "minio-go-tests")
	// The file has a build tag that the module's own packages must not see; a file
	// that is named is built whatever its tags are.
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "functional_tests.go")
	build.Dir, build.Stdout, build.Stderr = fetched.Dir, out, out
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly")
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("build the functional tests of %s: %w", module, errors.Join(err, ctx.Err()))
	}
	return func(ctx context.Context, s *minioproc.Server, dir string, _ []string) ([]Outcome, error) {
		u, err := url.Parse(s.Endpoint)
		if err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(ctx, binary)
		cmd.Dir = dir
		cmd.Env = environment("SERVER_ENDPOINT="+u.Host, "ACCESS_KEY="+s.Root.AccessKey, "SECRET_KEY="+s.Root.SecretKey,
			"ENABLE_HTTPS=1", "ENABLE_KMS=1", "RUN_ON_FAIL=1", "MINT_MODE=full", "SSL_CERT_FILE="+s.CertFile)
		return report(ctx, cmd, true)
	}, nil
}
