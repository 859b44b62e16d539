// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// hookFile is one file for MinIO's package cmd.
type hookFile struct {
	path string // where it lies in this project
	name string // its name in package cmd
	data []byte
	file *ast.File
	fset *token.FileSet
}

// hookFiles reads the files in dir that the builder lays into package cmd:
// those with the build tag, for every platform.
func hookFiles(dir string) ([]hookFile, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, fmt.Errorf("list the files for package cmd in %s: %w", dir, err)
	}
	sort.Strings(paths)
	fset := token.NewFileSet()
	var files []hookFile
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			return nil, fmt.Errorf("read a file for package cmd: %w", err)
		}
		f, err := parser.ParseFile(fset, p, data, parser.ParseComments)
		if err != nil {
			return nil, fmt.Errorf("parse a file for package cmd: %w", err)
		}
		if !wantsHookTag(f) || strings.HasSuffix(p, "_test.go") {
			continue
		}
		files = append(files, hookFile{path: p, name: filepath.Base(p), data: data, file: f, fset: fset})
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no file with the build tag %s: is the checkout complete?", dir, hookTag)
	}
	return files, nil
}

// wantsHookTag tells whether f is built with the hook tag and not without it.
func wantsHookTag(f *ast.File) bool {
	for _, group := range f.Comments {
		if group.Pos() > f.Package {
			break
		}
		for _, c := range group.List {
			if !constraint.IsGoBuild(c.Text) {
				continue
			}
			x, err := constraint.Parse(c.Text)
			if err != nil {
				return false
			}
			return !x.Eval(func(tag string) bool { return tag != hookTag })
		}
	}
	return false
}

// writeOverlay writes the JSON for go build -overlay that lays files into t's
// package cmd, and returns its path. Where the tree has another module path,
// the files get their imports rewritten.
func writeOverlay(work string, t tree, files []hookFile) (string, error) {
	var overlay struct{ Replace map[string]string }
	overlay.Replace = make(map[string]string, len(files))
	for _, f := range files {
		target := filepath.Join(t.cmdDir(), f.name)
		if _, err := os.Stat(target); err == nil {
			return "", fmt.Errorf("the tree has a file %s already: it is not replaced; move it away, or build with -stock", target)
		}
		overlay.Replace[target] = f.path
		if t.module == minioModule {
			continue
		}
		moved := filepath.Join(work, "cmd", f.name)
		if err := writeIfChanged(moved, rewriteImports(f, minioModule, t.module)); err != nil {
			return "", err
		}
		overlay.Replace[target] = moved
	}
	data, err := json.MarshalIndent(overlay, "", "\t")
	if err != nil {
		return "", fmt.Errorf("write the overlay: %w", err)
	}
	path := filepath.Join(work, "overlay.json")
	return path, writeIfChanged(path, append(data, '\n'))
}

// rewriteImports returns f's text with imports of module from made imports of
// module to; nothing else changes, line numbers included.
func rewriteImports(f hookFile, from, to string) []byte {
	var out bytes.Buffer
	done := 0
	for _, imp := range f.file.Imports {
		path, err := strconv.Unquote(imp.Path.Value)
		if err != nil || (path != from && !strings.HasPrefix(path, from+"/")) {
			continue
		}
		start, end := f.fset.Position(imp.Path.Pos()).Offset, f.fset.Position(imp.Path.End()).Offset
		out.Write(f.data[done:start])
		out.WriteString(strconv.Quote(to + strings.TrimPrefix(path, from)))
		done = end
	}
	out.Write(f.data[done:])
	return out.Bytes()
}
