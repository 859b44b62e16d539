// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

package main

import (
	"bytes"
	"context"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// pinnedTree is the MinIO version that adapters/minio/go.mod requires, in the
// module cache (read only).
func pinnedTree(t *testing.T) tree {
	t.Helper()
	m, err := readModFile("..")
	if err != nil {
		t.Fatal(err)
	}
	tr, err := downloadModule(context.Background(), m, "", newProgress(io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func ownHookFiles(t *testing.T) []hookFile {
	t.Helper()
	files, err := hookFiles("../cmd")
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestHookPointsOfPinnedVersion(t *testing.T) {
	if err := checkHooks(pinnedTree(t), ownHookFiles(t)); err != nil {
		t.Fatal(err)
	}
}

// TestMovedHookPoint doctors a copy of MinIO and expects each change to be
// named, with its file and what was expected.
func TestMovedHookPoint(t *testing.T) {
	if testing.Short() {
		t.Skip("copies MinIO's source")
	}
	orig := pinnedTree(t)
	doctored := orig
	doctored.dir = filepath.Join(t.TempDir(), "minio")
	if err := copyTree(orig.dir, doctored.dir); err != nil {
		t.Fatal(err)
	}
	files := ownHookFiles(t)
	cases := []struct {
		name, file, old, new string
		want                 []string
	}{
		{
			name: "function renamed", file: "cmd/auth-handler.go",
			old: "func reqSignatureV4Verify(", new: "func requestSignatureV4Verify(",
			want: []string{"cmd: reqSignatureV4Verify is not declared there", "func(*http.Request, string, serviceType) APIErrorCode", "used at adapters/minio/cmd/"},
		},
		{
			name: "signature changed", file: "cmd/signature-v4-utils.go",
			old: "func checkKeyValid(r *http.Request, accessKey string)", new: "func checkKeyValid(ctx context.Context, r *http.Request, accessKey string)",
			want: []string{"cmd/signature-v4-utils.go:", "checkKeyValid is \"func(context.Context, ", "expected \"func(*http.Request, string) (auth.Credentials, bool, APIErrorCode)\""},
		},
		{
			name: "variable of another type", file: "cmd/routers.go",
			old: "var globalMiddlewares = []mux.MiddlewareFunc{", new: "var globalMiddlewares = []func(http.Handler) http.Handler{",
			want: []string{"cmd/routers.go:", "globalMiddlewares is", "expected \"var []mux.MiddlewareFunc\""},
		},
		{
			name: "hook without effect", file: "cmd/routers.go",
			old: "router.Use(globalMiddlewares...)", new: "router.Use(allMiddlewares()...)",
			want: []string{"configureServerHandler does not use globalMiddlewares"},
		},
		{
			name: "field of an internal package", file: "internal/mcontext/tracing.go",
			old: "FuncName string", new: "Function string",
			want: []string{"internal/mcontext: TraceCtxt.FuncName is not declared there", "field string"},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(doctored.dir, c.file)
			if _, err := os.Stat(path); err != nil {
				matches, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*.go"))
				for _, m := range matches {
					if data, _ := os.ReadFile(m); bytes.Contains(data, []byte(c.old)) {
						path = m
					}
				}
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			changed := bytes.Replace(data, []byte(c.old), []byte(c.new), 1)
			if bytes.Equal(changed, data) {
				t.Fatalf("%s does not contain %q", path, c.old)
			}
			if err := os.WriteFile(path, changed, 0o644); err != nil {
				t.Fatal(err)
			}
			defer os.WriteFile(path, data, 0o644)
			err = checkHooks(doctored, files)
			if !errors.Is(err, errHooks) {
				t.Fatalf("checkHooks = %v, want errHooks", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error lacks %q:\n%v", w, err)
				}
			}
		})
	}
}

// TestUncoveredName makes sure that the table cannot lag behind the files.
func TestUncoveredName(t *testing.T) {
	src := "//go:build s3rdma\n\npackage cmd\n\nimport \"github.com/minio/minio/internal/logger\"\n\nfunc f() { globalNotInTheTable(logger.NotInTheTable) }\n"
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "x.go", src, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	files := append(ownHookFiles(t), hookFile{name: "x.go", data: []byte(src), file: f, fset: fset})
	err = checkHooks(pinnedTree(t), files)
	for _, w := range []string{"cmd globalNotInTheTable is not in the table", "internal/logger NotInTheTable is not in the table"} {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("error lacks %q: %v", w, err)
		}
	}
}

func TestRewriteImports(t *testing.T) {
	src := `package cmd

import (
	xhttp "github.com/minio/minio/internal/http"
	"github.com/minio/minio-go/v7" // not the server
	_ "github.com/minio/minio"
	"github.com/s3rdma/s3rdma/plugin"
)

const s = "github.com/minio/minio/internal/http" // no import
`
	want := strings.NewReplacer(
		`xhttp "github.com/minio/minio/internal/http"`, `xhttp "example.org/store/internal/http"`,
		`_ "github.com/minio/minio"`, `_ "example.org/store"`).Replace(src)
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "x.go", src, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	got := string(rewriteImports(hookFile{name: "x.go", data: []byte(src), file: f, fset: fset}, minioModule, "example.org/store"))
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestWantsHookTag(t *testing.T) {
	for tags, want := range map[string]bool{
		"//go:build s3rdma\n\n":          true,
		"//go:build s3rdma && linux\n\n": true,
		"//go:build linux\n\n":           false,
		"//go:build !s3rdma\n\n":         false,
		"":                               false,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", tags+"package cmd\n", parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if got := wantsHookTag(f); got != want {
			t.Errorf("%q: %v, want %v", tags, got, want)
		}
	}
}

func TestOverlayReplacesNothing(t *testing.T) {
	files := ownHookFiles(t)
	tr := tree{dir: t.TempDir(), module: minioModule}
	if err := os.Mkdir(tr.cmdDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	if _, err := writeOverlay(work, tr, files); err != nil {
		t.Fatal(err)
	}
	taken := filepath.Join(tr.cmdDir(), files[0].name)
	if err := os.WriteFile(taken, []byte("package cmd\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := writeOverlay(work, tr, files); err == nil || !strings.Contains(err.Error(), taken) {
		t.Errorf("a file of the tree's own would be replaced: %v", err)
	}
}

func TestVersionOrigin(t *testing.T) {
	commit, when := versionOrigin(download{Version: "v0.0.0-20260212201848-7aac2a2c5b7c"})
	if commit != "7aac2a2c5b7c" || !when.Equal(time.Date(2026, 2, 12, 20, 18, 48, 0, time.UTC)) {
		t.Errorf("got %s %s", commit, when)
	}
	if commit, when := versionOrigin(download{Version: "v1.2.3"}); commit != "" || !when.IsZero() {
		t.Errorf("a plain version tells neither: %q %s", commit, when)
	}
}

func TestVersionLess(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{{"1.24.0", "1.25", true}, {"1.24", "1.24.0", false}, {"1.9", "1.10", true}, {"1.24.1", "1.24.0", false}} {
		if got := versionLess(c.a, c.b); got != c.want {
			t.Errorf("versionLess(%s, %s) = %v", c.a, c.b, got)
		}
	}
}

// TestDependencyVersions: requiring this project beside MinIO selects no
// version that differs from what MinIO's own go.mod pins.
func TestDependencyVersions(t *testing.T) {
	minio, err := readModFile(pinnedTree(t).dir)
	if err != nil {
		t.Fatal(err)
	}
	out, err := goOutput(context.Background(), "..", []string{"GOWORK=off"}, "list", "-m", "-f", "{{.Path}} {{.Version}}", "all")
	if err != nil {
		t.Fatal(err)
	}
	selected := make(map[string]string)
	for _, line := range strings.Split(string(out), "\n") {
		path, version, _ := strings.Cut(line, " ")
		selected[path] = version
	}
	if len(minio.Require) < 100 {
		t.Fatalf("MinIO's go.mod has %d requirements: not read right", len(minio.Require))
	}
	for _, r := range minio.Require {
		if got := selected[r.Path]; got != r.Version {
			t.Errorf("%s: MinIO pins %s, with this project it is %q", r.Path, r.Version, got)
		}
	}
}

func TestArguments(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-src", "x", "-version", "v1"}, "exclude each other"},
		{[]string{"x"}, "unexpected argument"},
		{[]string{"-o", t.TempDir()}, "is a folder"},
		{[]string{"-o", filepath.Join(t.TempDir(), "m"), "-src", t.TempDir()}, "no Go module"},
		{[]string{"-o", filepath.Join(t.TempDir(), "m"), "-project", t.TempDir()}, "-project"},
	} {
		err := run(context.Background(), c.args, new(bytes.Buffer))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.args, err, c.want)
		}
	}
}

// TestBuildRenamedTree builds a fork with another module path. It compiles
// MinIO's package cmd, hence minutes of two cores, hence the variable.
func TestBuildRenamedTree(t *testing.T) {
	if os.Getenv("S3RDMA_SLOW") == "" {
		t.Skip("set S3RDMA_SLOW=1 to build a renamed MinIO tree")
	}
	const renamed = "example.org/object/store"
	dir := filepath.Join(t.TempDir(), "store")
	if err := copyTree(pinnedTree(t).dir, dir); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || (filepath.Ext(path) != ".go" && e.Name() != "go.mod") {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, after := range []string{"/", "\"", "\n", "\r"} {
			data = bytes.ReplaceAll(data, []byte(minioModule+after), []byte(renamed+after))
		}
		return os.WriteFile(path, data, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	before := listing(t, dir)
	bin := filepath.Join(t.TempDir(), "minio")
	var log bytes.Buffer
	if err := run(context.Background(), []string{"-o", bin, "-src", dir}, &log); err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	if after := listing(t, dir); after != before {
		t.Error("the build changed the tree")
	}
	help, err := exec.Command(bin, "server", "--help").CombinedOutput()
	if err != nil || !strings.Contains(string(help), "--rdma ") {
		t.Errorf("server --help: %v\n%s", err, help)
	}
	version, err := exec.Command(bin, "--version").CombinedOutput()
	if err != nil || strings.Contains(string(version), "GOGET") || !strings.Contains(string(version), ".s3rdma") {
		t.Errorf("--version: %v\n%s", err, version)
	}
}

// listing is every file below dir with its size and time.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		b.WriteString(path + " " + info.ModTime().String() + "\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
