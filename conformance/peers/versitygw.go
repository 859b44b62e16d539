// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/s3rdma/s3rdma/conformance/demo"
	"github.com/s3rdma/s3rdma/conformance/minioproc"
)

// prepareVersitygw builds our runner for versitygw's tests, a module of its own that
// pins their version.
func prepareVersitygw(ctx context.Context, dir string, out io.Writer) (runner, error) {
	root, err := demo.Checkout()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	fmt.Fprintln(out, "versitygw: building the integration tests (the first time takes some minutes)")
	binary := filepath.Join(dir, "versitygw-tests")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, ".")
	build.Dir, build.Stdout, build.Stderr = filepath.Join(root, "conformance", "peers", "versitygw"), out, out
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly")
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("build the integration tests: %w", errors.Join(err, ctx.Err()))
	}
	return func(ctx context.Context, s *minioproc.Server, dir string, only []string) ([]Outcome, error) {
		cmd := exec.CommandContext(ctx, binary, append([]string{s.Endpoint}, only...)...)
		cmd.Dir = dir
		cmd.Env = environment("AWS_ACCESS_KEY_ID="+s.Root.AccessKey, "AWS_SECRET_ACCESS_KEY="+s.Root.SecretKey)
		return report(ctx, cmd, false)
	}, nil
}
