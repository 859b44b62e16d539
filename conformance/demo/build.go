// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// module is the project's, by which its checkout is recognised.
const module = "github.com/s3rdma/s3rdma"

// ErrNoCheckout: the fork's builder is not at hand.
var ErrNoCheckout = errors.New("not inside a checkout of " + module)

// BuildMinIO builds MinIO from the checkout around the current folder, with the
// plugin or (stock) without, and returns the binary's path below the user's cache
// folder. What the builder says goes to out.
func BuildMinIO(ctx context.Context, stock bool, out io.Writer) (string, error) {
	root, err := Checkout()
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	name := "minio"
	args := []string{"run", "./adapters/minio/fork"}
	if stock {
		name = "minio-stock"
		args = append(args, "-stock")
	}
	binary := filepath.Join(cache, "s3rdma", "bin", name)
	if err := os.MkdirAll(filepath.Dir(binary), 0o755); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "-o", binary)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, out, out
	// "go run" passes no signal on: the whole group is told.
	ownGroup(cmd)
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build %s: %w", name, errors.Join(err, ctx.Err()))
	}
	return binary, nil
}

// Checkout finds the root of the project's checkout, from the current folder upwards;
// ErrNoCheckout if there is none.
func Checkout() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if first, _, _ := strings.Cut(string(b), "\n"); err == nil && strings.TrimSpace(first) == "module "+module {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("%w: run from there, or name a binary", ErrNoCheckout)
		}
		dir = parent
	}
}
