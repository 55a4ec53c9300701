package main

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// selector is the environment variable that names the mutant that a binary is, by its number from
// 1.
const selector = "DSMD_MUTANT"

// selected is a file that goes into a package with mutants.
const selected = `package %s

import (
	"os"
	"strconv"
)

var mutantSelected = func() int {
	n, _ := strconv.Atoi(os.Getenv("` + selector + `"))
	return n
}()
`

// combine puts mutants into one package: each function has a copy for each mutant that changes it.
// It returns the sources that differ, by file. A mutant that changes something outside of function
// bodies is alone, and needs no copies.
func (p *Package) combine(mutants []Mutant) map[string][]byte {
	sources := map[string][]byte{}
	if len(mutants) == 1 {
		for _, f := range p.Files {
			if edits := editsOf(f, mutants[0].edits); len(edits) > 0 {
				sources[f.Name] = apply(f.Source, 0, edits)
			}
		}
		return sources
	}
	sources[filepath.Join(p.Path, "mutant_selected.go")] = fmt.Appendf(nil, selected, p.types.Name())
	for _, f := range p.Files {
		var edits []Edit
		var copies []byte
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				changes, copied := f.copies(fn, mutants)
				edits, copies = append(edits, changes...), append(copies, copied...)
			}
		}
		if len(edits) > 0 {
			sources[f.Name] = append(apply(f.Source, 0, edits), copies...)
		}
	}
	return sources
}

// copies makes a copy of a function for each mutant that changes it, and returns the edits by which
// the function calls them.
func (f *File) copies(fn *ast.FuncDecl, mutants []Mutant) ([]Edit, []byte) {
	var cases, copies []byte
	header, call := f.callable(fn)
	for i, m := range mutants {
		changes := slices.DeleteFunc(editsOf(f, m.edits), func(e Edit) bool { return !f.inBody(fn, e) })
		if len(changes) == 0 {
			continue
		}
		name := fmt.Sprintf("%s_mutant%d", fn.Name.Name, i+1)
		cases = fmt.Appendf(cases, "case %d: %s; ", i+1, fmt.Sprintf(call, name))
		at := f.offset(fn.Name.Pos())
		changes = append(slices.Concat(changes, header), Edit{f, at, at + len(fn.Name.Name), name})
		copies = append(copies, "\n\n"...)
		copies = append(copies, apply([]byte(f.text(fn)), f.offset(fn.Pos()), changes)...)
	}
	if cases == nil {
		return nil, nil
	}
	at := f.offset(fn.Body.Lbrace) + 1
	return append(header, Edit{f, at, at, "switch mutantSelected { " + string(cases) + "}; "}), append(copies, '\n')
}

func (f *File) inBody(fn *ast.FuncDecl, e Edit) bool {
	return f.offset(fn.Body.Lbrace) < e.Start && e.End <= f.offset(fn.Body.Rbrace)
}

// allInBodies reports whether all changes of a mutant to f are inside of functions, so that it can
// be combined with others.
func (f *File) allInBodies(m Mutant) bool {
	return !slices.ContainsFunc(editsOf(f, m.edits), func(e Edit) bool {
		fn := f.function(e.Start, e.End)
		return fn == nil || !f.inBody(fn, e)
	})
}

// callable gives names to what has none in a function's header, and returns those edits, and a
// format of the statement that calls a function with the same header and leaves.
func (f *File) callable(fn *ast.FuncDecl) (header []Edit, call string) {
	unnamed := 0
	names := func(fields []*ast.Field) []string {
		var all []string
		for _, field := range fields {
			dots := ""
			if _, ok := field.Type.(*ast.Ellipsis); ok {
				dots = "..."
			}
			if len(field.Names) == 0 {
				unnamed++
				name := fmt.Sprintf("unnamed%d", unnamed)
				at := f.offset(field.Type.Pos())
				header = append(header, Edit{f, at, at, name + " "})
				all = append(all, name+dots)
			}
			for _, n := range field.Names {
				name := n.Name
				if name == "_" {
					unnamed++
					name = fmt.Sprintf("unnamed%d", unnamed)
					at := f.offset(n.Pos())
					header = append(header, Edit{f, at, at + 1, name})
				}
				all = append(all, name+dots)
			}
		}
		return all
	}
	call = "%s"
	if fn.Recv != nil {
		call = names(fn.Recv.List)[0] + "." + call
	}
	if fn.Type.TypeParams != nil {
		call += "[" + strings.Join(names(fn.Type.TypeParams.List), ", ") + "]"
	}
	call += "(" + strings.Join(names(fn.Type.Params.List), ", ") + ")"
	if fn.Type.Results == nil {
		return header, call + "; return"
	}
	return header, "return " + call
}

// compile compiles the test binaries of packages with the given sources in place of those below
// root, into dir.
func compile(ctx context.Context, root, dir string, sources map[string][]byte, packages []string) error {
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for name, source := range sources {
		file := filepath.Join(dir, strings.ReplaceAll(name, "/", "-"))
		if err := os.WriteFile(file, source, 0o644); err != nil {
			return err
		}
		overlay.Replace[filepath.Join(root, name)] = file
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		return err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, text, 0o644); err != nil {
		return err
	}
	for _, p := range packages {
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", list, "-o", testBinary(dir, p), "./"+p)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("compile %s: %w\n%s", p, err, out)
		}
	}
	return nil
}

// testBinary is where compile puts the tests of a package.
func testBinary(dir, path string) string {
	return filepath.Join(dir, strings.ReplaceAll(path, "/", "-")+".test")
}
