package lint

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Who is above one of these limits has more than one idea in one place. They hold for code that is
// not a test, whatever it is built for.
const (
	maxMethods    = 40 // of a type
	maxFields     = 25 // of a struct
	maxParameters = 5  // of a function
	maxLines      = 60 // of a function
	maxFileLines  = 500
	maxExample    = 119 // lines of a file in a folder of examples
)

// maxExceptions bounds the table of exceptions: with more of them, the limits are wrong.
const maxExceptions = 10

// exceptions are places that a limit would make worse, each with the reason.
var exceptions = map[string]string{
	"parameters of dsm mmap": "the system call has six, and its wrapper adds nothing to it",
}

func TestLimits(t *testing.T) {
	if len(exceptions) > maxExceptions {
		t.Errorf("%d exceptions from the limits, want at most %d", len(exceptions), maxExceptions)
	}
	over := overLimit(t, os.DirFS(root(t)))
	for what, how := range over {
		if exceptions[what] == "" {
			t.Errorf("%s: %s; divide it by its ideas", what, how)
		}
	}
	for what := range exceptions {
		if over[what] == "" {
			t.Errorf("%s: within the limits; take it out of exceptions", what)
		}
	}
}

// overLimit returns what is above a limit in a tree of packages, and by how much.
func overLimit(t *testing.T, tree fs.FS) map[string]string {
	t.Helper()
	over, methods := map[string]string{}, map[string]map[string]bool{}
	above := func(n, limit int, format string, args ...any) {
		if n > limit {
			over[fmt.Sprintf(format, args...)] = fmt.Sprintf("%d, want at most %d", n, limit)
		}
	}
	fset := token.NewFileSet()
	lines := func(n ast.Node) int { return fset.Position(n.End()).Line - fset.Position(n.Pos()).Line + 1 }
	err := fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return fs.SkipDir
		case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		src, err := fs.ReadFile(tree, path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, path, src, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := filepath.Dir(path)
		most := maxFileLines
		if filepath.Base(filepath.Dir(dir)) == "examples" {
			most = maxExample
		}
		above(fset.File(f.Pos()).LineCount(), most, "file %s", path)
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				name := n.Name.Name
				if n.Recv != nil {
					of := receiver(n)
					if methods[dir+"."+of] == nil {
						methods[dir+"."+of] = map[string]bool{}
					}
					methods[dir+"."+of][name] = true
					name = of + "." + name
				}
				above(lines(n), maxLines, "lines of %s %s", dir, name)
				above(n.Type.Params.NumFields(), maxParameters, "parameters of %s %s", dir, name)
			case *ast.TypeSpec:
				switch of := n.Type.(type) {
				case *ast.StructType:
					above(of.Fields.NumFields(), maxFields, "fields of %s.%s", dir, n.Name)
				case *ast.InterfaceType:
					above(of.Methods.NumFields(), maxMethods, "methods of %s.%s", dir, n.Name)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for of, names := range methods {
		above(len(names), maxMethods, "methods of %s", of)
	}
	return over
}

// receiver returns the name of the type that a method belongs to.
func receiver(f *ast.FuncDecl) string {
	for t := f.Recv.List[0].Type; ; {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.ParenExpr:
			t = x.X
		default:
			return x.(*ast.Ident).Name
		}
	}
}

func TestOverLimit(t *testing.T) {
	repeat := func(n int, format string) string {
		var all strings.Builder
		for i := range n {
			fmt.Fprintf(&all, format+"\n", i)
		}
		return all.String()
	}
	sample := func(more int) map[string]string {
		return map[string]string{
			"a/file.go":          "package a\n" + repeat(maxFileLines-1+more, "// %d"),
			"examples/a/main.go": "package a\n" + repeat(maxExample-1+more, "// %d"),
			"a/struct.go":        "package a\ntype S struct {\nf, g int\n" + repeat(maxFields-2+more, "f%d int") + "}\n",
			"a/func.go": "package a\nfunc F() {\n" + repeat(maxLines-2+more, "_ = %d") + "}\n" +
				"func G[T any](a, b, c int, " + strings.Repeat("_ int, ", maxParameters-3+more) + ") {}\n" +
				"func (s *S) M() {\n" + repeat(maxLines-2+more, "_ = %d") + "}\n",
			// Methods are counted over all files, each name once.
			"a/methods.go": "package a\ntype T[K any] struct{}\n" + repeat(maxMethods-1+more, "func (t *T[K]) M%d() {}"),
			"a/other.go":   "//go:build other\n\npackage a\nfunc (t T[K]) M0() {}\nfunc (t T[K]) Other() {}\n",
			"a/iface.go":   "package a\ntype I interface {\n" + repeat(maxMethods+more, "M%d()") + "}\n",
			// What is not built, or only for tests, is free.
			"a/all_test.go":        "package a\n" + repeat(maxFileLines+more, "// %d"),
			"a/testdata/sample.go": "package a\n" + repeat(maxFileLines+more, "// %d"),
		}
	}
	for more, want := range [][]string{
		nil,
		{
			"fields of a.S", "file a/file.go", "file examples/a/main.go", "lines of a F", "lines of a S.M", "methods of a.I",
			"methods of a.T", "parameters of a G",
		},
	} {
		dir := t.TempDir()
		for name, src := range sample(more) {
			path := filepath.Join(dir, name)
			if err := cmp.Or(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(src), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		for what := range overLimit(t, os.DirFS(dir)) {
			got = append(got, what)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("with %d more than allowed, above a limit: %q, want %q", more, got, want)
		}
	}
}
