// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// hookPoint is something of MinIO's that the files for package cmd rely on.
type hookPoint struct {
	pkg  string // folder below the module, "cmd" or "internal/..."
	name string // a package-level name, or Type.member
	want string // as describe says it
}

// mention is a fact that no signature tells: the body (or the value) of name
// must mention other, or hooking into other has no effect.
type mention struct {
	name, other string
	why         string
}

// errHooks is what every failed hook check wraps.
var errHooks = errors.New("this MinIO tree does not have the hook points that the plugin needs")

// checkHooks compares t with the tables in hookpoints.go, and makes sure that
// the tables cover everything that files use. It reports all differences, not
// only the first.
func checkHooks(t tree, files []hookFile) error {
	index := make(map[string]*packageIndex)
	load := func(pkg string) (*packageIndex, error) {
		if ix, ok := index[pkg]; ok {
			return ix, nil
		}
		ix, err := indexPackage(filepath.Join(t.dir, filepath.FromSlash(pkg)))
		if err != nil {
			return nil, err
		}
		index[pkg] = ix
		return ix, nil
	}
	used := usedNames(files)
	var problems []error
	for _, h := range hookPoints {
		ix, err := load(h.pkg)
		if err != nil {
			return fmt.Errorf("%w: package %s: %w", errHooks, h.pkg, err)
		}
		found := ix.names[h.name]
		if slices.ContainsFunc(found, func(d declared) bool { return d.text == h.want }) {
			continue
		}
		var users string
		if u := used[h.pkg+" "+h.name]; u != "" {
			users = ", used at adapters/minio/cmd/" + u
		}
		if len(found) == 0 {
			problems = append(problems, fmt.Errorf("%s: %s is not declared there; expected %q%s", h.pkg, h.name, h.want, users))
			continue
		}
		problems = append(problems, fmt.Errorf("%s: %s is %q; expected %q%s", found[0].pos, h.name, found[0].text, h.want, users))
	}
	for _, m := range mentions {
		ix, err := load("cmd")
		if err != nil {
			return fmt.Errorf("%w: package cmd: %w", errHooks, err)
		}
		found := ix.names[m.name]
		if slices.ContainsFunc(found, func(d declared) bool { return mentionsName(d.node, m.other) }) {
			continue
		}
		where := "cmd"
		if len(found) > 0 {
			where = found[0].pos.String()
		}
		problems = append(problems, fmt.Errorf("%s: %s does not use %s; expected: %s", where, m.name, m.other, m.why))
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		if !slices.ContainsFunc(hookPoints, func(h hookPoint) bool { return h.pkg+" "+h.name == name }) {
			problems = append(problems, fmt.Errorf("adapters/minio/cmd/%s: %s is not in the table of hook points (fork/hookpoints.go): a defect of the plugin, not of the tree", used[name], name))
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("%w (%s, %s); either build a version that has them (-version, -src), or teach adapters/minio/cmd and fork/hookpoints.go this one:\n%w",
		errHooks, t.dir, t.describe(), errors.Join(problems...))
}

// declared is one declaration.
type declared struct {
	text string // kind and type, as in hookPoint.want
	pos  token.Position
	node ast.Node
}

// packageIndex knows what a package declares. A name may be declared several
// times, in files for different platforms.
type packageIndex struct {
	names map[string][]declared
}

// indexPackage parses the Go files in dir, tests excepted.
func indexPackage(dir string) (*packageIndex, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read package: %w", err)
	}
	ix := &packageIndex{names: make(map[string][]declared)}
	fset := token.NewFileSet()
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("parse package: %w", err)
		}
		for _, d := range f.Decls {
			ix.add(fset, d)
		}
	}
	return ix, nil
}

func (ix *packageIndex) add(fset *token.FileSet, d ast.Decl) {
	put := func(name, text string, n ast.Node) {
		ix.names[name] = append(ix.names[name], declared{text: text, pos: fset.Position(n.Pos()), node: n})
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			put(d.Name.Name, typeText(d.Type), d)
			return
		}
		recv := d.Recv.List[0].Type
		if star, ok := recv.(*ast.StarExpr); ok {
			recv = star.X
		}
		if id, ok := recv.(*ast.Ident); ok {
			put(id.Name+"."+d.Name.Name, "method "+typeText(d.Type), d)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				ix.addType(put, s)
			case *ast.ValueSpec:
				for i, id := range s.Names {
					text := "const"
					if d.Tok == token.VAR {
						text = "var " + valueText(s, i)
					}
					put(id.Name, text, s)
				}
			}
		}
	}
}

func (ix *packageIndex) addType(put func(name, text string, n ast.Node), s *ast.TypeSpec) {
	switch x := s.Type.(type) {
	case *ast.StructType:
		put(s.Name.Name, "type struct", s)
		for _, f := range x.Fields.List {
			if len(f.Names) == 0 {
				text := typeText(f.Type)
				put(s.Name.Name+"."+text[strings.LastIndexAny(text, ".*")+1:], "embedded "+text, f)
			}
			for _, id := range f.Names {
				put(s.Name.Name+"."+id.Name, "field "+typeText(f.Type), f)
			}
		}
	case *ast.InterfaceType:
		put(s.Name.Name, "type interface", s)
		for _, f := range x.Methods.List {
			for _, id := range f.Names {
				put(s.Name.Name+"."+id.Name, "method "+typeText(f.Type), f)
			}
		}
	default:
		put(s.Name.Name, "type "+typeText(s.Type), s)
	}
}

// valueText is the type of the i-th variable of s as far as the text tells:
// its type, that of the literal it starts with, or else the expression.
func valueText(s *ast.ValueSpec, i int) string {
	if s.Type != nil {
		return typeText(s.Type)
	}
	if i >= len(s.Values) {
		return typeText(s.Values[0])
	}
	v := s.Values[i]
	if u, ok := v.(*ast.UnaryExpr); ok && u.Op == token.AND {
		if lit, ok := u.X.(*ast.CompositeLit); ok {
			return "*" + typeText(lit.Type)
		}
	}
	if lit, ok := v.(*ast.CompositeLit); ok {
		return typeText(lit.Type)
	}
	return typeText(v)
}

// typeText prints a type on one line; parameters lose their names, which may
// change without harm.
func typeText(x ast.Expr) string {
	if f, ok := x.(*ast.FuncType); ok {
		text := "func" + fieldText(f.Params, true)
		if f.Results == nil {
			return text
		}
		results := fieldText(f.Results, false)
		return text + " " + results
	}
	var b bytes.Buffer
	if err := printer.Fprint(&b, token.NewFileSet(), x); err != nil {
		return fmt.Sprintf("(unprintable: %v)", err)
	}
	text := strings.Join(strings.Fields(b.String()), " ")
	return strings.ReplaceAll(text, "interface{}", "any") // two spellings of one type
}

func fieldText(l *ast.FieldList, parens bool) string {
	var types []string
	for _, f := range l.List {
		for range max(1, len(f.Names)) {
			types = append(types, typeText(f.Type))
		}
	}
	if len(types) == 1 && !parens {
		return types[0]
	}
	return "(" + strings.Join(types, ", ") + ")"
}

func mentionsName(n ast.Node, name string) bool {
	found := false
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && id.Name == name {
			found = true
		}
		return !found
	})
	return found
}

// usedNames finds the package-level names of MinIO's that files use: those of
// package cmd that no file declares, and those of MinIO's other packages. The
// key is "folder name", the value a place of use.
func usedNames(files []hookFile) map[string]string {
	own := make(map[string]bool)
	for _, f := range files {
		for _, d := range f.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					own[d.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						own[s.Name.Name] = true
					case *ast.ValueSpec:
						for _, id := range s.Names {
							own[id.Name] = true
						}
					}
				}
			}
		}
	}
	used := make(map[string]string)
	for _, f := range files {
		imports := make(map[string]string) // local name to folder, "" if not MinIO's
		for _, imp := range f.file.Imports {
			path, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				continue
			}
			local := path[strings.LastIndex(path, "/")+1:]
			if imp.Name != nil {
				local = imp.Name.Name
			}
			folder, ok := strings.CutPrefix(path, minioModule+"/")
			if !ok {
				folder = ""
			}
			imports[local] = folder
		}
		at := func(n ast.Node) string {
			pos := f.fset.Position(n.Pos())
			return fmt.Sprintf("%s:%d", f.name, pos.Line)
		}
		// The parser resolved what the file itself declares; the rest are
		// imports, predeclared names, our other files' names, and MinIO's.
		for _, id := range f.file.Unresolved {
			_, imported := imports[id.Name]
			if imported || own[id.Name] || predeclared[id.Name] || isImportOf(f, id.Name) {
				continue
			}
			used["cmd "+id.Name] = at(id)
		}
		ast.Inspect(f.file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := sel.X.(*ast.Ident); ok && x.Obj == nil && imports[x.Name] != "" {
					used[imports[x.Name]+" "+sel.Sel.Name] = at(sel)
				}
			}
			return true
		})
	}
	return used
}

// isImportOf tells whether name is the package name of an import whose path
// does not end in it, such as gopkg.in/yaml.v3 or .../madmin-go/v3.
func isImportOf(f hookFile, name string) bool {
	for _, imp := range f.file.Imports {
		path, err := strconv.Unquote(imp.Path.Value)
		if err != nil || imp.Name != nil {
			continue
		}
		for _, part := range strings.Split(path, "/") {
			if part == name || strings.HasPrefix(part, name+"-") || strings.HasPrefix(part, name+".") || strings.HasSuffix(part, "-"+name) {
				return true
			}
		}
	}
	return false
}

// predeclared is https://go.dev/ref/spec#Predeclared_identifiers.
var predeclared = func() map[string]bool {
	m := make(map[string]bool)
	for _, n := range strings.Fields(`any bool byte comparable complex64 complex128 error float32 float64
		int int8 int16 int32 int64 rune string uint uint8 uint16 uint32 uint64 uintptr
		true false iota nil append cap clear close complex copy delete imag len make max min
		new panic print println real recover _`) {
		m[n] = true
	}
	return m
}()
