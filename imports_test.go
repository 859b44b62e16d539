// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package s3rdma_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// module is the import path of the root; nested modules have paths below it.
const module = "github.com/s3rdma/s3rdma"

// importRule says what the packages of one folder, and of those below it, may
// import of this module. Each may import the packages of its own folder. Packages
// in no rule are refused, so that a new one is placed in the house deliberately.
type importRule struct {
	folder string
	may    []string // folders
	// tests may import these besides.
	testsMay []string
}

// importRules are the design's. The longest folder that fits wins.
var importRules = []importRule{
	// The ground: these do not know each other.
	{folder: "rdmaio"},
	{folder: "checksum"},
	{folder: "erasure"},

	{folder: "plugin", may: []string{"rdmaio", "checksum", "erasure"}, testsMay: []string{"adapters/client"}},

	// Servers.
	{folder: "adapters/nethttp", may: []string{"plugin", "rdmaio", "checksum", "erasure"}, testsMay: []string{"adapters/client"}},
	{folder: "adapters/minio", may: []string{"adapters/nethttp", "plugin", "rdmaio", "checksum", "erasure"}, testsMay: []string{"adapters/client", "conformance"}},
	{folder: "adapters/versitygw", may: []string{"adapters/nethttp", "plugin", "rdmaio", "checksum", "erasure"}, testsMay: []string{"adapters/client", "conformance"}},
	{folder: "adapters/seaweedfs", may: []string{"adapters/nethttp", "plugin", "rdmaio", "checksum", "erasure"}, testsMay: []string{"adapters/client", "conformance"}},

	// Clients. Their tests may run a server.
	{folder: "adapters/client", may: []string{"rdmaio", "checksum"}, testsMay: []string{"adapters/nethttp", "plugin"}},
	{folder: "adapters/awssdk", may: []string{"adapters/client", "rdmaio", "checksum"}, testsMay: []string{"adapters/nethttp", "plugin"}},
	{folder: "adapters/miniogo", may: []string{"adapters/client", "rdmaio", "checksum"}, testsMay: []string{"adapters/nethttp", "plugin"}},

	// The suite sees a server through HTTP and a fabric only; never plugin or
	// erasure, not even in tests. Those may hold a server made by an adapter.
	{folder: "conformance", may: []string{"adapters/client", "adapters/awssdk", "adapters/miniogo", "rdmaio", "checksum"}, testsMay: []string{"adapters/nethttp"}},
}

// testOnly are packages that product code has no business with. The suite that
// every fabric is held to is itself a test, in package form.
var testOnly = []string{"testing", "go.uber.org/goleak", "pgregory.net/rapid"}

const testPackage = "rdmaio/fabrictest"

// below tells whether p is folder or lies below it.
func below(p, folder string) bool {
	return p == folder || strings.HasPrefix(p, folder+"/")
}

// checkImport returns why the file, a slash-separated path from the root, may not
// import imp; or "".
func checkImport(rules []importRule, file, imp string) string {
	folder := path.Dir(file)
	test := strings.HasSuffix(file, "_test.go")

	if below(imp, "github.com/minio/minio") && !below(folder, "adapters/minio") {
		return "only adapters/minio may know MinIO"
	}
	if !test && folder != testPackage && slices.ContainsFunc(testOnly, func(p string) bool { return below(imp, p) }) {
		return "only tests and " + testPackage + " may import it"
	}

	var rule *importRule
	for i, r := range rules {
		if below(folder, r.folder) && (rule == nil || len(r.folder) > len(rule.folder)) {
			rule = &rules[i]
		}
	}
	if rule == nil {
		if folder == "." && test {
			return ""
		}
		return "no rule for this folder: add one to importRules"
	}
	if !below(imp, module) {
		return ""
	}
	target := strings.TrimPrefix(strings.TrimPrefix(imp, module), "/")
	if below(target, testPackage) && !test && folder != testPackage {
		return testPackage + " is for tests"
	}
	allowed := append([]string{rule.folder}, rule.may...)
	if test {
		allowed = append(allowed, rule.testsMay...)
	}
	if !slices.ContainsFunc(allowed, func(f string) bool { return below(target, f) }) {
		return rule.folder + " may import " + strings.Join(allowed, ", ") + " only"
	}
	return ""
}

// checkTree parses every Go file below root, whatever its build tags, nested
// modules included, and returns what breaks the rules and how many files it read.
func checkTree(root string, rules []importRule) (broken []string, files int, err error) {
	err = filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := e.Name()
		if e.IsDir() {
			skip := name == "testdata" || name == "vendor" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")
			if parent := filepath.Dir(p) == filepath.Clean(root); parent && (name == "bin" || name == "build") {
				skip = true
			}
			if p != root && skip {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
			return nil
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		files++
		for _, spec := range f.Imports {
			imp, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if why := checkImport(rules, filepath.ToSlash(rel), imp); why != "" {
				broken = append(broken, fmt.Sprintf("%s imports %s: %s", filepath.ToSlash(rel), imp, why))
			}
		}
		return nil
	})
	return broken, files, err
}

func TestImports(t *testing.T) {
	broken, files, err := checkTree(".", importRules)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range broken {
		t.Error(b)
	}
	if files < 10 {
		t.Errorf("only %d Go files found: the test looks in the wrong place", files)
	}
}

// Whoever embeds the root module must not pull in MinIO.
func TestRootModuleRequiresNoMinIO(t *testing.T) {
	b, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		if slices.Contains(strings.Fields(line), "github.com/minio/minio") {
			t.Errorf("go.mod has %q", strings.TrimSpace(line))
		}
	}
}

// The checker itself, on imports that nobody has made.
func TestCheckImport(t *testing.T) {
	const own = module + "/"
	for _, c := range []struct {
		file, imp string
		ok        bool
	}{
		{"rdmaio/encoding.go", "fmt", true},
		{"rdmaio/shm/shm.go", own + "rdmaio", true},
		{"rdmaio/shm/shm.go", own + "rdmaio/session", true},
		{"rdmaio/shm/shm.go", own + "checksum", false},
		{"rdmaio/shm/shm.go", own + "plugin", false},
		{"rdmaio/shm/shm_test.go", own + "checksum", false},
		{"rdmaio/shm/shm_test.go", own + "rdmaio/fabrictest", true},
		{"rdmaio/shm/shm.go", own + "rdmaio/fabrictest", false},
		{"rdmaio/fabrictest/suite.go", "testing", true},
		{"rdmaio/fabrictest/suite.go", "pgregory.net/rapid", true},
		{"rdmaio/fabric.go", "testing", false},
		{"rdmaio/fabric.go", "testing/iotest", false},
		{"rdmaio/fabric_test.go", "testing", true},
		{"plugin/get.go", "go.uber.org/goleak", false},
		{"checksum/sum.go", own + "rdmaio", false},
		{"checksum/sum.go", own + "erasure", false},
		{"checksum/sum.go", own + "checksum/internal/hw", true},
		{"erasure/rs.go", own + "rdmaio", false},
		{"erasure/rs.go", own + "checksum", false},
		{"erasure/rs_test.go", own + "rdmaio", false},
		{"plugin/get.go", own + "rdmaio/staging", true},
		{"plugin/get.go", own + "checksum", true},
		{"plugin/get.go", own + "erasure", true},
		{"plugin/get.go", own + "adapters/nethttp", false},
		{"plugin/get.go", own + "conformance", false},
		{"plugin/get.go", own + "rdmaio/fabrictest", false},
		{"plugin/get_test.go", own + "adapters/client", true},
		{"plugin/get_test.go", own + "conformance", false},
		{"adapters/client/get.go", own + "rdmaio/shm", true},
		{"adapters/client/get.go", own + "checksum", true},
		{"adapters/client/get.go", own + "plugin", false},
		{"adapters/client/get.go", own + "adapters/nethttp", false},
		{"adapters/client/get.go", own + "erasure", false},
		{"adapters/client/get_test.go", own + "adapters/nethttp", true},
		{"adapters/nethttp/mw.go", own + "plugin", true},
		{"adapters/nethttp/mw.go", own + "erasure", true},
		{"adapters/nethttp/mw.go", own + "conformance", false},
		{"adapters/nethttp/mw.go", own + "adapters/client", false},
		{"adapters/minio/hook.go", own + "plugin", true},
		{"adapters/minio/hook.go", own + "conformance", false},
		{"adapters/minio/hook.go", "github.com/minio/minio/internal/hash", true},
		{"adapters/minio/fork/files/cmd.go", "github.com/minio/minio", true},
		{"adapters/minio2/hook.go", "github.com/minio/minio", false},
		{"plugin/get.go", "github.com/minio/minio/cmd", false},
		{"plugin/get_test.go", "github.com/minio/minio/cmd", false},
		{"plugin/get.go", "github.com/minio/minio-go/v7", true},
		{"conformance/cases.go", own + "adapters/client", true},
		{"conformance/cases.go", own + "rdmaio/tcp", true},
		{"conformance/cases.go", own + "plugin", false},
		{"conformance/cases.go", own + "erasure", false},
		{"conformance/cases.go", own + "adapters/nethttp", false},
		{"conformance/cases_test.go", own + "adapters/nethttp", true},
		{"conformance/cases_test.go", own + "plugin", false},
		{"conformance/cmd/s3rdma/main.go", own + "conformance", true},
		{"conformance/cmd/s3rdma/main.go", own + "plugin/config", false},
		{"util/util.go", "fmt", false},
		{"main.go", "fmt", false},
		{"imports_test.go", "testing", true},
		{"rdmaio/a.go", module, false},
		{"rdmaio/a.go", module + "-other/plugin", true},
	} {
		why := checkImport(importRules, c.file, c.imp)
		if (why == "") != c.ok {
			t.Errorf("%s importing %s: want allowed %v, got %q", c.file, c.imp, c.ok, why)
		}
	}
}

// The walk itself, over a tree with one broken file among good ones.
func TestCheckTree(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	good := "package x\n\nimport _ \"" + module + "/rdmaio\"\n"
	bad := "//go:build windows && never\n\npackage x\n\nimport p \"" + module + "/plugin\"\n\nvar _ = p.X\n"
	write("plugin/a.go", good)
	write("rdmaio/shm/a.go", good)
	write("adapters/minio/go.mod", "module "+module+"/adapters/minio\n")
	write("build/a.go", bad)
	write("rdmaio/testdata/a.go", bad)
	write("rdmaio/.cache/a.go", bad)
	if broken, files, err := checkTree(root, importRules); err != nil || len(broken) != 0 || files != 2 {
		t.Fatalf("a good tree of 2 files: %d files, %q, %v", files, broken, err)
	}
	write("rdmaio/build/a.go", bad)
	write("conformance/cmd/a.go", bad)
	write("adapters/client/a.go", bad)
	broken, _, err := checkTree(root, importRules)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"adapters/client/a.go", "conformance/cmd/a.go", "rdmaio/build/a.go"}
	if len(broken) != len(want) {
		t.Fatalf("found %q, want one for each of %q", broken, want)
	}
	for i, w := range want {
		if !strings.HasPrefix(broken[i], w+" imports "+module+"/plugin") {
			t.Errorf("found %q, want %s", broken[i], w)
		}
	}
	write("plugin/broken.go", "package")
	if _, _, err := checkTree(root, importRules); err == nil {
		t.Error("a file that does not parse was passed over")
	}
}
