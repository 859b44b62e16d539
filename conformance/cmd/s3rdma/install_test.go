// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/zip"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/s3rdma/s3rdma"

// TestInstall does what a stranger does who has nothing but the go command: installs
// this command, by its module's path, without a C compiler, with no checkout around,
// and asks it for help. The module comes from a proxy in a folder, what it needs from
// the module cache.
func TestInstall(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the command and all that it needs")
	}
	const version = "v0.0.1"
	dir := t.TempDir()
	proxy := filepath.Join(dir, "proxy")
	writeModule(t, filepath.Join(proxy, filepath.FromSlash(module), "@v"), version)
	cache := strings.TrimSpace(goCommand(t, ".", nil, "env", "GOMODCACHE"))
	upstream := strings.TrimSpace(goCommand(t, ".", nil, "env", "GOPROXY"))
	env := []string{
		"GOPROXY=" + fileURL(proxy) + "," + fileURL(filepath.Join(cache, "cache", "download")) + "," + upstream,
		"GOMODCACHE=" + filepath.Join(dir, "cache"), "GOBIN=" + filepath.Join(dir, "bin"), "GOSUMDB=off", "GOWORK=off", "CGO_ENABLED=0",
		"GOFLAGS=-modcacherw -trimpath -buildvcs=false", // trimmed, the next run finds the packages built
	}
	empty := filepath.Join(dir, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	goCommand(t, empty, env, "install", module+"/conformance/cmd/s3rdma@"+version)
	command := filepath.Join(dir, "bin", "s3rdma")
	for _, args := range [][]string{{"--help"}, {"conform", "--list"}, {"put", "--help"}} {
		cmd := exec.Command(command, args...)
		cmd.Dir, cmd.Env = empty, []string{} // no HOME either
		out, err := cmd.CombinedOutput()
		if err != nil || len(out) == 0 {
			t.Errorf("s3rdma %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	source := filepath.Join(dir, "cache", filepath.FromSlash(module)+"@"+version)
	deps := strings.Fields(goCommand(t, source, env, "list", "-deps", "./conformance/cmd/s3rdma"))
	if !slices.Contains(deps, module+"/conformance") {
		t.Fatalf("the dependencies are not what was asked for: %v", deps)
	}
	for _, d := range deps {
		if strings.HasPrefix(d+"/", "github.com/minio/minio/") || strings.HasPrefix(d, module+"/plugin") || strings.HasPrefix(d, module+"/adapters/minio") || d == "testing" {
			t.Errorf("the command contains %s", d)
		}
	}
}

func fileURL(dir string) string {
	dir = filepath.ToSlash(dir)
	if !strings.HasPrefix(dir, "/") {
		dir = "/" + dir
	}
	return "file://" + dir
}

func goCommand(t *testing.T, dir string, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(runtime.GOROOT(), "bin", "go"), args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

// writeModule writes what a proxy has of this module, from the files around: a folder
// with a go.mod of its own is another module.
func writeModule(t *testing.T, dir, version string) {
	t.Helper()
	root := filepath.Join("..", "..", "..")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(dir, 0o755))
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	must(err)
	for _, line := range strings.Split(string(mod), "\n") {
		if verb, _, _ := strings.Cut(strings.TrimSpace(line), " "); verb == "replace" || verb == "exclude" {
			t.Errorf("go.mod: %q: go install refuses a module with it", line)
		}
	}
	must(os.WriteFile(filepath.Join(dir, version+".mod"), mod, 0o644))
	must(os.WriteFile(filepath.Join(dir, "list"), []byte(version+"\n"), 0o644))
	must(os.WriteFile(filepath.Join(dir, version+".info"), []byte(`{"Version":"`+version+`"}`), 0o644))
	f, err := os.Create(filepath.Join(dir, version+".zip"))
	must(err)
	defer f.Close()
	w := zip.NewWriter(f)
	must(filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, nested := os.Stat(filepath.Join(name, "go.mod"))
			if rel != "." && (nested == nil || strings.HasPrefix(d.Name(), ".") || rel == "bin" || rel == "build") {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		in, err := os.Open(name)
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := w.Create(module + "@" + version + "/" + filepath.ToSlash(rel))
		if err != nil {
			return err
		}
		_, err = io.Copy(out, in)
		return err
	}))
	must(w.Close())
}
