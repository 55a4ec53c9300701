package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Package is a package to change: its files, and what the compiler knows of them.
type Package struct {
	Path  string // below the root of the module, as in internal/agreement
	Files []*File

	fset     *token.FileSet
	importer types.Importer
	info     types.Info
	types    *types.Package
}

// File is one file of a package.
type File struct {
	Name   string // below the root of the module
	Source []byte

	syntax *ast.File
	start  token.Pos // of the file in its Package's fset
}

// Load reads the package in the given folder below root, without its tests.
func Load(root, path string) (*Package, error) {
	listed, err := build.ImportDir(filepath.Join(root, path), 0)
	if err != nil {
		return nil, fmt.Errorf("load package %s: %w", path, err)
	}
	p := &Package{Path: path, fset: token.NewFileSet()}
	p.importer = importer.ForCompiler(p.fset, "source", nil)
	p.info = types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	var syntax []*ast.File
	for _, name := range listed.GoFiles {
		f := &File{Name: filepath.Join(path, name)}
		if f.Source, err = os.ReadFile(filepath.Join(root, f.Name)); err != nil {
			return nil, err
		}
		if f.syntax, err = parser.ParseFile(p.fset, f.Name, f.Source, parser.ParseComments); err != nil {
			return nil, err
		}
		f.start = f.syntax.FileStart
		p.Files = append(p.Files, f)
		syntax = append(syntax, f.syntax)
	}
	conf := types.Config{Importer: p.importer}
	if p.types, err = conf.Check(path, p.fset, syntax, &p.info); err != nil {
		return nil, fmt.Errorf("check package %s: %w", path, err)
	}
	return p, nil
}

// File returns the file of a name.
func (p *Package) File(name string) (*File, bool) {
	i := slices.IndexFunc(p.Files, func(f *File) bool { return f.Name == name })
	if i < 0 {
		return nil, false
	}
	return p.Files[i], true
}

// Edit replaces the bytes from Start to End of a file.
type Edit struct {
	File       *File
	Start, End int
	Text       string
}

// Compiles reports whether the package compiles with some edits.
func (p *Package) Compiles(edits []Edit) bool {
	fset := token.NewFileSet()
	var syntax []*ast.File
	for _, f := range p.Files {
		s, err := parser.ParseFile(fset, f.Name, apply(f.Source, 0, editsOf(f, edits)), parser.SkipObjectResolution)
		if err != nil {
			return false
		}
		syntax = append(syntax, s)
	}
	conf := types.Config{Importer: p.importer}
	_, err := conf.Check(p.Path, fset, syntax, nil)
	return err == nil
}

func editsOf(f *File, edits []Edit) []Edit {
	return slices.DeleteFunc(slices.Clone(edits), func(e Edit) bool { return e.File != f })
}

// apply is text, which begins at the given offset of its file, with edits that do not overlap.
func apply(text []byte, offset int, edits []Edit) []byte {
	edits = slices.Clone(edits)
	slices.SortFunc(edits, func(a, b Edit) int { return cmp.Compare(a.Start, b.Start) })
	var out []byte
	at := 0
	for _, e := range edits {
		out = append(out, text[at:e.Start-offset]...)
		out = append(out, e.Text...)
		at = e.End - offset
	}
	return append(out, text[at:]...)
}

func (f *File) offset(p token.Pos) int { return int(p - f.start) }

// text is the source of a piece of syntax.
func (f *File) text(n ast.Node) string {
	return string(f.Source[f.offset(n.Pos()):f.offset(n.End())])
}

// line is the number of the line of an offset, from 1.
func (f *File) line(offset int) int { return 1 + strings.Count(string(f.Source[:offset]), "\n") }

// function is the function that has the bytes from start to end, or nil if they are outside of
// functions.
func (f *File) function(start, end int) *ast.FuncDecl {
	for _, d := range f.syntax.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil && f.offset(fn.Pos()) <= start && end <= f.offset(fn.End()) {
			return fn
		}
	}
	return nil
}

// nameOf is the name of a function as lists have it: with the type of its receiver, as in
// Engine.Step. It is empty for nil.
func nameOf(fn *ast.FuncDecl) string {
	if fn == nil {
		return ""
	}
	if fn.Recv == nil {
		return fn.Name.Name
	}
	t := fn.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name + "." + fn.Name.Name
		default:
			return fn.Name.Name
		}
	}
}
