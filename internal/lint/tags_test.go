package lint

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestRDMAHasItsTypes checks the types in every package with files that -tags rdma chooses. Headers
// of libibverbs are not needed: packages with C are taken for right. So who changes the others
// learns here what else would be learned only where there are headers.
func TestRDMAHasItsTypes(t *testing.T) {
	s := sources{fset: token.NewFileSet(), ours: map[string]*listed{}, checked: map[string]*types.Package{}}
	foreign := map[string]bool{}
	ours, err := goList([]string{"CGO_ENABLED=1"}, "-tags", "rdma", "../../...")
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range ours {
		s.ours[p.ImportPath] = &ours[i]
		for _, path := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if _, own := local(path); !own && path != "C" {
				foreign[path] = true
			}
		}
	}
	imported, err := goList(nil, append([]string{"-deps", "-export"}, slices.Collect(maps.Keys(foreign))...)...)
	if err != nil {
		t.Fatal(err)
	}
	exports := map[string]string{}
	for _, p := range imported {
		exports[p.ImportPath] = p.Export
	}
	s.foreign = importer.ForCompiler(s.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	tagged := 0
	for _, p := range ours {
		if slices.ContainsFunc(p.files(), func(name string) bool { return isTagged(t, filepath.Join(p.Dir, name)) }) {
			tagged++
			if err := s.checkWithTests(&p); err != nil {
				t.Errorf("with -tags rdma: %v", err)
			}
		}
	}
	if tagged < 4 {
		t.Fatalf("only %d packages have files with the tag", tagged)
	}
}

// files are the names of those that were chosen.
func (p *listed) files() []string {
	return slices.Concat(p.GoFiles, p.CgoFiles, p.TestGoFiles, p.XTestGoFiles)
}

// isTagged reports whether the file is chosen by -tags rdma.
func isTagged(t *testing.T, name string) bool {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.HasPrefix(line, "//go:build ") && strings.Contains(line, "rdma")
}

// sources imports this module's packages from their source, with what a tag chooses, and others
// from what the compiler exports of them.
type sources struct {
	fset    *token.FileSet
	ours    map[string]*listed
	checked map[string]*types.Package
	foreign types.Importer
}

// Import implements [types.Importer].
func (s *sources) Import(path string) (*types.Package, error) {
	if p := s.checked[path]; p != nil {
		return p, nil
	}
	p := s.ours[path]
	if p == nil {
		return s.foreign.Import(path)
	}
	checked, err := s.check(p, path, slices.Concat(p.GoFiles, p.CgoFiles))
	s.checked[path] = checked
	return checked, err
}

// checkWithTests checks the package, and its tests. Those outside the package see what those inside
// export.
func (s *sources) checkWithTests(p *listed) error {
	if _, err := s.Import(p.ImportPath); err != nil {
		return err
	}
	if len(p.TestGoFiles) > 0 {
		tested, err := s.check(p, p.ImportPath, slices.Concat(p.GoFiles, p.CgoFiles, p.TestGoFiles))
		if err != nil {
			return err
		}
		defer func(was *types.Package) { s.checked[p.ImportPath] = was }(s.checked[p.ImportPath])
		s.checked[p.ImportPath] = tested
	}
	_, err := s.check(p, p.ImportPath+"_test", p.XTestGoFiles)
	return err
}

func (s *sources) check(p *listed, path string, names []string) (*types.Package, error) {
	var files []*ast.File
	for _, name := range names {
		f, err := parser.ParseFile(s.fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	var first error
	config := types.Config{Importer: s, FakeImportC: true, Error: func(err error) {
		if first == nil && len(p.CgoFiles) == 0 {
			first = err
		}
	}}
	checked, _ := config.Check(path, s.fset, files, nil)
	return checked, first
}
