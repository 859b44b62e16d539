// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// maxFile is the largest file that is moved as a file; the demonstration's large
// object is another matter.
const maxFile = 64 << 20

// file is a real file that is moved.
type file struct {
	path string // on disk
	name string // relative, as part of the key
	size int64
}

// goroot is the Go distribution's folder.
func goroot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("ask the go command for GOROOT: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// pick returns the largest files below dir and as many of the others as are wanted,
// evenly from small to large. Empty files have no bytes to move, and are left out.
func pick(dir string, largest, others int) ([]file, error) {
	var all []file
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err == nil && info.Size() > 0 && info.Size() <= maxFile {
			all = append(all, file{path, filepath.ToSlash(name), info.Size()})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find files: %w", err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("find files: %s has none", dir)
	}
	slices.SortFunc(all, func(a, b file) int {
		return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(a.name, b.name))
	})
	if len(all) <= largest+others {
		return all, nil
	}
	picked := slices.Clone(all[:largest])
	rest := all[largest:]
	for i := range others {
		picked = append(picked, rest[i*len(rest)/others])
	}
	return picked, nil
}

// content reads f into dst, which is large enough.
func (f file) content(dst []byte) error {
	in, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer in.Close()
	n, err := in.ReadAt(dst[:f.size], 0)
	if int64(n) != f.size {
		return fmt.Errorf("read %s: %d of %d bytes: %w", f.path, n, f.size, err)
	}
	return nil
}
