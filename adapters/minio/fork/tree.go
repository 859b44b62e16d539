// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// tree is a MinIO source tree that can be built.
type tree struct {
	dir     string    // absolute
	module  string    // module path, minioModule unless a fork renamed it
	version string    // module version, "" for a tree of the user's
	commit  string    // full or short commit, "" if unknown
	time    time.Time // of the commit, or the best that is known
}

func (t tree) describe() string {
	switch {
	case t.version != "":
		return t.module + "@" + t.version
	case t.commit != "":
		return t.module + ", commit " + t.commit
	default:
		return t.module + ", no commit known"
	}
}

// cmdDir is the folder of package cmd.
func (t tree) cmdDir() string { return filepath.Join(t.dir, "cmd") }

// localTree describes the user's own tree in dir.
func localTree(ctx context.Context, dir string) (tree, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return tree{}, fmt.Errorf("source tree %q: %w", dir, err)
	}
	m, err := readModFile(abs)
	if err != nil {
		return tree{}, fmt.Errorf("source tree: %w; -src names the root of a MinIO tree, with its go.mod", err)
	}
	t := tree{dir: abs, module: m.Module.Path}
	for _, f := range []string{"main.go", filepath.Join("cmd", "server-main.go")} {
		if _, err := os.Stat(filepath.Join(abs, f)); err != nil {
			return tree{}, fmt.Errorf("source tree %s does not have MinIO's layout: %w", abs, err)
		}
	}
	// A tree that merely lies inside some other repository has a prefix there.
	prefix, err := exec.CommandContext(ctx, "git", "-C", abs, "rev-parse", "--show-prefix").Output()
	inGit := err == nil && strings.TrimSpace(string(prefix)) == ""
	out, err := exec.CommandContext(ctx, "git", "-C", abs, "log", "-n1", "--format=%H %cI").Output()
	if hash, date, ok := strings.Cut(strings.TrimSpace(string(out)), " "); inGit && err == nil && ok {
		if when, err := time.Parse(time.RFC3339, date); err == nil {
			t.commit, t.time = hash, when.UTC()
			return t, nil
		}
	}
	// Not a git checkout (a tarball, say): the age of go.mod is the nearest
	// thing to a release time that stays the same from build to build.
	fi, err := os.Stat(filepath.Join(abs, "go.mod"))
	if err != nil {
		return tree{}, fmt.Errorf("source tree: %w", err)
	}
	t.time = fi.ModTime().UTC().Truncate(time.Second)
	return t, nil
}

// download is the part of `go mod download -json` that is used here.
type download struct {
	Version string
	Dir     string
	Error   string
	Origin  *struct{ Hash string }
}

// moduleTree copies a MinIO module version out of the module cache (go build
// refuses overlays inside it) into cache, once.
func moduleTree(ctx context.Context, proj project, version, cache string, p *progress) (tree, error) {
	m, err := readModFile(proj.adapter)
	if err != nil {
		return tree{}, err
	}
	t, err := downloadModule(ctx, m, version, p)
	if err != nil {
		return tree{}, err
	}
	from := t.dir
	t.dir = filepath.Join(cache, "src", t.version)
	if _, err := os.Stat(t.dir); err == nil {
		return t, nil
	}
	p.say("copying %s@%s", t.module, t.version)
	if err := copyTree(from, t.dir); err != nil {
		return tree{}, fmt.Errorf("copy %s to %s: %w", from, t.dir, err)
	}
	return t, nil
}

// downloadModule has the go command fetch a MinIO version, by default the one
// that m requires, and returns the tree in the module cache.
func downloadModule(ctx context.Context, m modFile, version string, p *progress) (tree, error) {
	hint := "check the network and GOPROXY, and that this version exists; a tree that you have on disk is built with -src"
	if version == "" {
		hint = "check the network and GOPROXY"
		for _, r := range m.Require {
			if r.Path == minioModule {
				version = r.Version
			}
		}
		if version == "" {
			return tree{}, fmt.Errorf("module %s does not require %s: name a version with -version", m.Module.Path, minioModule)
		}
	}
	var d download
	query := minioModule + "@" + version
	err := p.during(func() string { return "downloading " + query }, func() error {
		// Outside of any module, so that no go.mod is consulted or changed.
		out, err := goOutput(ctx, os.TempDir(), []string{"GOWORK=off", "GOFLAGS="}, "mod", "download", "-json", query)
		if jerr := json.Unmarshal(out, &d); err == nil {
			err = jerr
		}
		if d.Error != "" {
			err = errors.New(d.Error)
		}
		return err
	})
	if err != nil {
		return tree{}, fmt.Errorf("download %s: %w; %s", query, err, hint)
	}
	t := tree{module: minioModule, version: d.Version, dir: d.Dir}
	t.commit, t.time = versionOrigin(d)
	if t.time.IsZero() {
		fi, err := os.Stat(filepath.Join(d.Dir, "go.mod"))
		if err != nil {
			return tree{}, fmt.Errorf("module %s: %w", query, err)
		}
		t.time = fi.ModTime().UTC().Truncate(time.Second)
	}
	return t, nil
}

// pseudoVersion matches the time and commit at the end of a pseudo-version,
// https://go.dev/ref/mod#pseudo-versions.
var pseudoVersion = regexp.MustCompile(`[.-](\d{14})-([0-9a-f]{12})(\+incompatible)?$`)

func versionOrigin(d download) (commit string, when time.Time) {
	if m := pseudoVersion.FindStringSubmatch(d.Version); m != nil {
		commit = m[2]
		when, _ = time.Parse("20060102150405", m[1])
	}
	if d.Origin != nil && d.Origin.Hash != "" {
		commit = d.Origin.Hash
	}
	return commit, when
}

// copyTree copies from to to, whole or not at all.
func copyTree(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(to), ".new-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	err = filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(tmp, rel)
		switch {
		case e.IsDir():
			return os.MkdirAll(target, 0o755)
		case e.Type().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(target, data, 0o644)
		}
		return nil // a module has nothing else
	})
	if err != nil {
		return err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if err := os.Rename(tmp, to); err != nil {
		if _, serr := os.Stat(to); serr == nil {
			return nil // another build was faster
		}
		return err
	}
	return nil
}

// releaseLayout is how MinIO writes the time in a release tag.
const releaseLayout = "2006-01-02T15-04-05Z"

// ldflags is what upstream's buildscripts/gen-ldflags.go prints, for this
// tree: without these MinIO takes itself for DEVELOPMENT.GOGET. MINIO_RELEASE
// and MINIO_HOTFIX mean the same as there. A build with the plugin says so at
// the end of its release tag.
func ldflags(ctx context.Context, t tree, stock bool) (string, error) {
	out, err := goOutput(ctx, t.dir, nil, "env", "-json", "GOPATH", "GOROOT")
	if err != nil {
		return "", err
	}
	var env struct{ GOPATH, GOROOT string }
	if err := json.Unmarshal(out, &env); err != nil {
		return "", fmt.Errorf("read go env: %w", err)
	}
	prefix := os.Getenv("MINIO_RELEASE")
	if prefix == "" {
		prefix = "DEVELOPMENT"
	}
	tag := prefix + "." + t.time.Format(releaseLayout)
	suffix := os.Getenv("MINIO_HOTFIX")
	if suffix == "" && !stock {
		suffix = "s3rdma"
	}
	if suffix != "" {
		tag += "." + suffix
	}
	commit := t.commit
	if commit == "" {
		commit = "unknown"
	}
	short := commit[:min(len(commit), 12)]
	flags := "-s -w"
	for _, x := range [][2]string{
		{"Version", t.time.Format(time.RFC3339)},
		{"CopyrightYear", strconv.Itoa(t.time.Year())},
		{"ReleaseTag", tag},
		{"CommitID", commit},
		{"ShortCommitID", short},
		{"GOPATH", env.GOPATH},
		{"GOROOT", env.GOROOT},
	} {
		if strings.ContainsAny(x[1], " '\"") {
			continue // GOPATH and GOROOT only shorten paths in MinIO's logs
		}
		flags += " -X " + t.module + "/cmd." + x[0] + "=" + x[1]
	}
	return flags, nil
}
