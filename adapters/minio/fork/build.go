// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"sync/atomic"
)

const (
	rootModule    = "github.com/s3rdma/s3rdma"
	adapterModule = rootModule + "/adapters/minio"
	minioModule   = "github.com/minio/minio"

	// hookTag is the build tag of the files that are laid into package cmd.
	hookTag = "s3rdma"
)

type options struct {
	output  string // binary to write
	src     string // tree to build, or "" for a module version
	version string // module version, or "" for the pinned one
	project string // any folder inside the checkout
	stock   bool
	race    bool
	verbose bool
}

// project is where the two modules of this project lie.
type project struct {
	root    string // folder of rootModule
	adapter string // folder of adapterModule
}

// hookDir is the folder with the files for MinIO's package cmd.
func (p project) hookDir() string { return filepath.Join(p.adapter, "cmd") }

// build runs every step. The binary is complete or absent: go build writes it
// only when it has linked it.
func build(ctx context.Context, o options, p *progress) error {
	if _, err := exec.LookPath("go"); err != nil {
		return fmt.Errorf("the go command is not in PATH (%w): install Go, https://go.dev/dl", err)
	}
	output, err := filepath.Abs(o.output)
	if err != nil {
		return fmt.Errorf("output %q: %w", o.output, err)
	}
	if fi, err := os.Stat(output); err == nil && fi.IsDir() {
		return fmt.Errorf("output %s is a folder: name a file with -o", output)
	}
	proj, err := findProject(ctx, o.project)
	if err != nil {
		return err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("find a folder for the build (set XDG_CACHE_HOME or HOME): %w", err)
	}
	cache = filepath.Join(cache, "s3rdma", "minio")

	var t tree
	if o.src != "" {
		t, err = localTree(ctx, o.src)
	} else {
		t, err = moduleTree(ctx, proj, o.version, cache, p)
	}
	if err != nil {
		return err
	}
	p.say("source: %s (%s)", t.dir, t.describe())

	// What the workspace depends on names its folder, so that two checkouts
	// or two trees do not rewrite each other's files.
	key := sha256.Sum256([]byte(t.dir + "\x00" + proj.root + "\x00" + fmt.Sprint(o.stock)))
	work := filepath.Join(cache, "work", hex.EncodeToString(key[:6]))
	if err := os.MkdirAll(work, 0o755); err != nil {
		return fmt.Errorf("make the build folder: %w", err)
	}
	workFile := filepath.Join(work, "go.work")
	modules := []string{t.dir}
	tags := "kqueue" // as upstream's Makefile sets it; it matters on macOS only
	args := []string{"build", "-v", "-buildvcs=false"}
	if !o.stock {
		files, err := hookFiles(proj.hookDir())
		if err != nil {
			return err
		}
		if err := checkHooks(t, files); err != nil {
			return err
		}
		p.say("hook points: all there (%d files for package cmd)", len(files))
		overlay, err := writeOverlay(work, t, files)
		if err != nil {
			return err
		}
		args = append(args, "-overlay", overlay)
		modules = append(modules, proj.root)
		tags += "," + hookTag
	}
	if err := writeWorkspace(workFile, modules); err != nil {
		return err
	}
	flags, err := ldflags(ctx, t, o.stock)
	if err != nil {
		return err
	}
	args = append(args, "-tags", tags, "-ldflags", flags, "-o", output)
	if o.race {
		args = append(args, "-race")
	}
	args = append(args, t.module)

	if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
		return fmt.Errorf("make the folder of %s: %w", output, err)
	}
	p.say("go build: the first time takes some minutes and about 3 GB of memory, later only what changed")
	if err := goBuild(ctx, t.dir, workFile, args, o.verbose, p); err != nil {
		return err
	}
	if err := reportVersions(output, t, p); err != nil {
		return err
	}
	p.say("built %s", output)
	return nil
}

// findProject asks the go command where this project's modules are, as seen
// from dir.
func findProject(ctx context.Context, dir string) (project, error) {
	hint := fmt.Sprintf("run this from inside a checkout of %s, or name one with -project", rootModule)
	var mods struct{ root, adapter string }
	for _, m := range []struct {
		path string
		dir  *string
	}{{rootModule, &mods.root}, {adapterModule, &mods.adapter}} {
		out, err := goOutput(ctx, dir, nil, "list", "-m", "-f", "{{.Dir}}", m.path)
		if err != nil {
			return project{}, fmt.Errorf("find module %s from %q: %w; %s", m.path, dir, err, hint)
		}
		if *m.dir = strings.TrimSpace(string(out)); *m.dir == "" {
			return project{}, fmt.Errorf("module %s has no folder seen from %q: %s", m.path, dir, hint)
		}
	}
	return project{root: mods.root, adapter: mods.adapter}, nil
}

// writeWorkspace writes a go.work for the modules in dirs. Its go line is the
// highest that they ask for: lower is refused, and higher would switch MinIO
// to other runtime defaults than it was released with.
func writeWorkspace(file string, dirs []string) error {
	goLine := ""
	for _, d := range dirs {
		m, err := readModFile(d)
		if err != nil {
			return err
		}
		if goLine == "" || versionLess(goLine, m.Go) {
			goLine = m.Go
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "go %s\n\nuse (\n", goLine)
	for _, d := range dirs {
		fmt.Fprintf(&b, "\t%q\n", d)
	}
	b.WriteString(")\n")
	return writeIfChanged(file, []byte(b.String()))
}

// versionLess compares Go versions such as 1.24.0 number by number.
func versionLess(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := 0; i < len(as) || i < len(bs); i++ {
		var x, y int
		if i < len(as) {
			fmt.Sscan(as[i], &x)
		}
		if i < len(bs) {
			fmt.Sscan(bs[i], &y)
		}
		if x != y {
			return x < y
		}
	}
	return false
}

// modFile is the part of `go mod edit -json` that is used here.
type modFile struct {
	Module  struct{ Path string }
	Go      string
	Require []struct{ Path, Version string }
}

func readModFile(dir string) (modFile, error) {
	var m modFile
	path := filepath.Join(dir, "go.mod")
	if _, err := os.Stat(path); err != nil {
		return m, fmt.Errorf("%s is no Go module: %w", dir, err)
	}
	out, err := goOutput(context.Background(), "", nil, "mod", "edit", "-json", path)
	if err != nil {
		return m, fmt.Errorf("read %s: %w", path, err)
	}
	if err := json.Unmarshal(out, &m); err != nil {
		return m, fmt.Errorf("read %s: %w", path, err)
	}
	if m.Go == "" {
		m.Go = "1.24.0"
	}
	return m, nil
}

// goBuild runs the go command with args and prints how far it is.
func goBuild(ctx context.Context, dir, workFile string, args []string, verbose bool, p *progress) error {
	cmd := goCommand(ctx, dir, []string{"GOWORK=" + workFile}, args...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("start go build: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start go build: %w", err)
	}
	var packages atomic.Int64
	var last atomic.Value
	last.Store("")
	var complaints []string
	status := func() string {
		if n := packages.Load(); n > 0 {
			return fmt.Sprintf("compiling: %d packages so far, last %s", n, last.Load())
		}
		return "compiling: loading packages"
	}
	err = p.during(status, func() error {
		lines := bufio.NewScanner(stderr)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			line := lines.Text()
			if verbose {
				p.say("%s", line)
			}
			// With -v the go command prints each package that it compiles on
			// a line of its own; all else is about something wrong, or a
			// download.
			if isPackagePath(line) {
				packages.Add(1)
				last.Store(line)
				continue
			}
			complaints = append(complaints, line)
		}
		return errors.Join(lines.Err(), cmd.Wait())
	})
	if ctx.Err() != nil {
		return fmt.Errorf("go build stopped: %w", context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, strings.Join(complaints, "\n"))
	}
	p.say("go build: %d packages compiled", packages.Load())
	return nil
}

func isPackagePath(line string) bool {
	return line != "" && !strings.ContainsAny(line, " \t:")
}

// reportVersions tells which dependencies of the binary have other versions
// than MinIO's own go.mod pins. Nothing is wrong then, but whoever compares
// the binary with upstream's must know.
func reportVersions(binary string, t tree, p *progress) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return fmt.Errorf("read back %s: %w", binary, err)
	}
	m, err := readModFile(t.dir)
	if err != nil {
		return err
	}
	pinned := make(map[string]string, len(m.Require))
	for _, r := range m.Require {
		pinned[r.Path] = r.Version
	}
	var changed []string
	for _, d := range info.Deps {
		if want, ok := pinned[d.Path]; ok && d.Replace == nil && d.Version != want {
			changed = append(changed, fmt.Sprintf("%s %s (MinIO pins %s)", d.Path, d.Version, want))
		}
	}
	sort.Strings(changed)
	for _, c := range changed {
		p.say("note: dependency version changed: %s", c)
	}
	return nil
}

// goCommand prepares the go command in dir. env overrides the environment.
func goCommand(ctx context.Context, dir string, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// goOutput runs the go command and returns what it prints; its complaint is
// part of the error.
func goOutput(ctx context.Context, dir string, env []string, args ...string) ([]byte, error) {
	cmd := goCommand(ctx, dir, env, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// writeIfChanged leaves a file that has the wanted content alone, so that an
// unchanged build sees unchanged files, and replaces it whole otherwise, so
// that a build that runs at the same time never reads half of it.
func writeIfChanged(path string, data []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
