package lint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "dsmd"

// allowed is the architecture: a package, or all packages below it (…/), and what of ours it may
// import. A package may import what lies in its own tree. What is not listed may import nothing of
// ours.
var allowed = []struct {
	tree    string
	imports []string
}{
	{"cmd/dsmd", []string{"node", "pagetable", "internal/launch", "internal/doctor", "internal/attach", "internal/certs", "internal/checkpoint", "internal/dashboard", "internal/faultlog", "internal/membership", "internal/memlimit", "internal/runstats", "internal/settings", "internal/top", "internal/uffd", "protocol", "transport"}},
	{"node", []string{"protocol", "pagetable", "transport", "internal/agreement", "internal/attach", "internal/controlpage", "internal/faultlog", "internal/lockwords", "internal/netio", "internal/spin", "internal/diskio", "internal/memfile", "internal/stripes", "pagetable/snapshot"}},
	{"protocol", nil},
	// A modelled node decides about the words of its programs as a daemon does.
	{"protocol/model", []string{"internal/controlpage", "internal/lockwords"}},
	{"protocol/modelcheck", []string{"internal/controlpage"}},
	{"pagetable", []string{"internal/memfile", "internal/uffd", "internal/sigsegv/area"}},
	{"pagetable/snapshot", []string{"pagetable"}},
	{"pagetable/backing", []string{"internal/diskio", "internal/netio"}},
	{"transport", []string{"internal/netio", "internal/verbs", "internal/wire"}},
	{"dsm", []string{"internal/callsite", "internal/faultlog", "internal/perf", "internal/runstats", "internal/attach", "internal/checkpoint", "internal/controlpage", "internal/netio", "internal/spin", "internal/uffd", "internal/sigsegv", "internal/memfile", "internal/stripes"}},
	{"dsm/collections", nil},
	{"dsm/collective", nil},
	{"dsm/dsmtest", []string{"internal/built"}},
	{"dsm/dsync", nil},
	{"dsm/examples", nil},
	{"dsm/heap", nil},
	{"dsm/parallel", nil},
	{"bench", []string{"dsm", "internal/built"}},
	// The floors are bare processes that trap, without a DSM between; docs/decisions/0004.
	{"bench/floor", []string{"internal/netio", "internal/uffd"}},
	// The fabric is what lies below the shared memory, and is measured without it.
	{"bench/fabric", []string{"internal/netio", "internal/verbs", "transport"}},
	// The simulation of large clusters runs the protocol itself; it has nothing to do with a
	// cluster that runs.
	{"bench/sim", []string{"protocol"}},
	{"bench/storage", []string{"dsm", "internal/netio"}},
	{"docs/figures", nil},
	{"internal/agreement", []string{"internal/wire"}},
	{"internal/attach", []string{"internal/wire"}},
	{"internal/built", nil},
	{"internal/callsite", nil},
	{"internal/certs", nil},
	{"internal/checkpoint", nil},
	{"internal/controlpage", []string{"internal/memfile"}},
	{"internal/dashboard", []string{"internal/faultlog", "internal/runstats"}},
	// Its tests have reads hang for want of memory.
	{"internal/diskio", []string{"internal/netio", "internal/uffd"}},
	{"internal/faultlog", nil},
	{"internal/doctor", []string{"internal/diskio", "internal/memlimit", "internal/netio", "internal/uffd", "internal/sigsegv"}},
	// The tests of the whole system use it as its users do: the daemon as a binary, the library by
	// its API. Two of the kernels run while the daemons' connections are cut, because they verify
	// every word that they compute.
	{"internal/systemtest/e2e", []string{"dsm", "internal/systemtest/testcluster", "internal/systemtest/netns", "internal/systemtest/loopback", "node", "internal/attach", "internal/certs", "internal/checkpoint", "internal/seccomptest", "internal/uffd/uffdtest", "internal/runstats/trace/tracetest", "bench/kernel", "bench/kernels/sor", "bench/kernels/ocean", "transport"}},
	// A node and a program that break the rules speak what nodes and programs speak.
	{"internal/systemtest/hostile", []string{"dsm", "internal/attach", "internal/certs", "internal/systemtest/testcluster", "internal/uffd", "transport"}},
	{"internal/launch", []string{"internal/certs", "internal/faultlog", "internal/memfile", "internal/memlimit", "internal/runstats"}},
	{"internal/lint", nil},
	{"internal/systemtest/litmus", []string{"dsm", "internal/systemtest/testcluster", "internal/uffd"}},
	{"internal/lockwords", []string{"internal/controlpage", "protocol"}},
	{"internal/membership", []string{"internal/wire"}},
	{"internal/memfile", nil},
	{"internal/memlimit", nil},
	{"internal/mutation", nil},
	// The programs that live through faults are programs like any other; one of them computes what
	// can be verified bit by bit.
	{"internal/systemtest/nemesis", []string{"dsm", "node", "internal/certs", "internal/systemtest/testcluster", "internal/systemtest/netns", "bench/kernel", "bench/kernels/sor"}},
	{"internal/netio", nil},
	{"internal/kittest", []string{"dsm", "dsm/dsmtest"}},
	{"internal/patience", nil},
	{"internal/perf", nil},
	{"internal/require", nil},
	{"internal/seccomptest", nil},
	{"internal/uffd/uffdtest", []string{"internal/require", "internal/seccomptest"}},
	{"internal/verbs/verbstest", []string{"internal/require"}},
	{"internal/systemtest/netns", []string{"internal/patience", "internal/require"}},
	// Conformance suites wait as tests do.
	{"internal/systemtest/testcluster", []string{"internal/built", "internal/certs", "internal/patience", "internal/require", "internal/systemtest/loopback"}},
	{"internal/systemtest/loopback", nil},
	{"pagetable/pagetabletest", []string{"internal/netio"}},
	{"transport/transporttest", []string{"internal/patience"}},
	{"transport/tcp/tcptest", []string{"internal/patience", "transport"}},
	// The table of settings takes its ranges from those who know them.
	{"internal/settings", []string{"internal/certs", "internal/memlimit", "node", "pagetable", "protocol", "transport/emulated", "transport/tcp"}},
	{"internal/sigsegv", []string{"internal/memfile"}},
	{"internal/systemtest/torture", []string{"dsm", "internal/systemtest/testcluster"}},
	{"internal/runstats", []string{"internal/faultlog"}},
	{"internal/runstats/trace/tracetest", nil},
	{"internal/spin", nil},
	{"internal/stripes", nil},
	{"internal/top", []string{"internal/attach", "internal/certs", "internal/runstats"}},
	{"internal/uffd", nil},
	{"internal/verbs", nil},
	{"internal/wire", nil},
}

// testOnly are imports that tests may add: fakes and conformance suites, which live beside the
// seams they fake.
var testOnly = []string{"internal/kittest", "internal/patience", "internal/require", "internal/systemtest/loopback", "internal/systemtest/testcluster", "internal/verbs/verbstest", "transport/sim", "transport/transporttest", "transport/tcp/tcptest", "pagetable/pagetabletest", "internal/uffd/uffdtest", "internal/seccomptest", "internal/sigsegv", "protocol"}

// pure are the packages that decide and leave it to their hosts to act, and what they import of
// ours. pureImports are the packages outside this module that they may import. None of those does
// I/O, tells the time, or draws a random number.
var pure = []string{"protocol", "internal/agreement", "internal/wire"}

var pureImports = []string{"bytes", "cmp", "encoding/binary", "errors", "fmt", "math", "math/bits", "slices", "strconv", "strings"}

// top is what may lie at the top of the repository.
var top = []string{"go.mod", "go.sum", "dsm", "protocol", "pagetable", "transport", "node", "cmd", "bench", "docs", "internal", "README.md"}

// meaningless are names that say nothing about what a package holds.
var meaningless = []string{"util", "utils", "common", "manager", "helper", "helpers", "misc", "base", "shared"}

type listed struct {
	ImportPath, Dir, Name, Export      string
	GoFiles, CgoFiles, IgnoredGoFiles  []string
	TestGoFiles, XTestGoFiles          []string
	Imports, TestImports, XTestImports []string
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func packages(t *testing.T) []listed {
	t.Helper()
	all, err := list()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// list is what the go command lists, once for all tests.
var list = sync.OnceValues(func() ([]listed, error) {
	all, err := goList(nil, "../../...")
	if err == nil && len(all) < 10 {
		err = fmt.Errorf("go list names only %d packages", len(all))
	}
	return all, err
})

// goList is what go list prints with the arguments, and with variables added to the environment.
func goList(variables []string, args ...string) (all []listed, err error) {
	cmd := exec.Command("go", append([]string{"list", "-json"}, args...)...)
	cmd.Env, cmd.Stderr = append(os.Environ(), variables...), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p listed
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// parse reads a file of the package.
func (p *listed) parse(t *testing.T, name string, mode parser.Mode) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, mode)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func local(path string) (string, bool) { return strings.CutPrefix(path, module+"/") }

// in reports whether path is tree or lies below it.
func in(path, tree string) bool { return path == tree || strings.HasPrefix(path, tree+"/") }

// TestArchitecture checks every import between our packages against the table.
func TestArchitecture(t *testing.T) {
	for _, p := range packages(t) {
		path, ok := local(p.ImportPath)
		if !ok {
			t.Errorf("%s is not in module %s", p.ImportPath, module)
			continue
		}
		var trees, may []string
		for _, a := range allowed {
			if in(path, a.tree) {
				trees, may = append(trees, a.tree), append(may, a.imports...)
			}
		}
		if len(trees) == 0 {
			t.Errorf("package %s is not in the table of packages: add it to the table, and to docs/architecture.md", path)
			continue
		}
		check := func(imports []string, more []string) {
			for _, i := range imports {
				to, ours := local(i)
				if !ours || slices.ContainsFunc(slices.Concat(trees, may, more), func(tree string) bool { return in(to, tree) }) {
					continue
				}
				t.Errorf("%s imports %s, which the table does not allow", path, to)
			}
		}
		check(p.Imports, nil)
		check(slices.Concat(p.TestImports, p.XTestImports), testOnly)
	}
}

// kit are the packages for users that stand on dsm, as a user's own would.
var kit = []string{"dsm/collections", "dsm/collective", "dsm/dsmtest", "dsm/dsync", "dsm/examples", "dsm/heap", "dsm/parallel"}

// TestKitHasNoBackDoor checks that the packages of the kit need nothing that others can't have:
// what they lack, package dsm gives to everybody. The tests of users get their daemon as those of
// this module do, which has nothing to do with what a program can.
func TestKitHasNoBackDoor(t *testing.T) {
	seen := 0
	for _, p := range packages(t) {
		path, _ := local(p.ImportPath)
		if !slices.ContainsFunc(kit, func(tree string) bool { return in(path, tree) }) {
			continue
		}
		seen++
		for _, i := range p.Imports {
			if to, ours := local(i); ours && to != "dsm" && to != "internal/built" && !slices.Contains(kit, to) {
				t.Errorf("%s imports %s, which a package outside of this module could not", path, to)
			}
		}
	}
	if seen < len(kit) {
		t.Errorf("%d packages were looked at, want at least %d", seen, len(kit))
	}
}

// TestPurity checks that nothing in the packages that decide can make two runs with the same events
// differ.
func TestPurity(t *testing.T) {
	for _, path := range pure {
		t.Run(path, func(t *testing.T) { isPure(t, path) })
	}
}

func isPure(t *testing.T, path string) {
	t.Helper()
	dir := filepath.Join(root(t), path)
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	var parsed []*ast.File
	for _, name := range files {
		built, err := build.Default.MatchFile(dir, filepath.Base(name))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "_test.go") || !built {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, f)
	}
	info := types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "source", nil)}
	if _, err := conf.Check(module+"/"+path, fset, parsed, &info); err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, f := range parsed {
		for _, i := range f.Imports {
			imported, _ := strconv.Unquote(i.Path.Value)
			if within, ours := strings.CutPrefix(imported, module+"/"); !slices.Contains(pureImports, imported) && !(ours && slices.Contains(pure, within)) {
				t.Errorf("%v: %s imports %s, which is not known to be pure", fset.Position(i.Pos()), path, imported)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			checked++
			switch n := n.(type) {
			case *ast.GoStmt, *ast.SelectStmt, *ast.SendStmt, *ast.ChanType:
				t.Errorf("%v: concurrency in %s", fset.Position(n.Pos()), path)
			case *ast.RangeStmt:
				if _, isMap := info.TypeOf(n.X).Underlying().(*types.Map); isMap {
					t.Errorf("%v: iteration over a map in %s", fset.Position(n.Pos()), path)
				}
			}
			return true
		})
	}
	if checked < 1000 {
		t.Fatalf("only %d nodes of syntax were looked at", checked)
	}
}

// TestUnsafeIsConfined checks that unsafe, system calls and cgo stay in internal/, pagetable and
// *_unsafe.go files. Tests may ask the kernel what they like, but not unsafely.
func TestUnsafeIsConfined(t *testing.T) {
	for _, p := range packages(t) {
		path, _ := local(p.ImportPath)
		if in(path, "internal") || in(path, "pagetable") {
			continue
		}
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles, p.TestGoFiles, p.XTestGoFiles) {
			if strings.HasSuffix(strings.TrimSuffix(name, "_test.go"), "_unsafe") || strings.HasSuffix(name, "_unsafe.go") {
				continue
			}
			f := p.parse(t, name, 0)
			for _, i := range f.Imports {
				if i.Path.Value == `"unsafe"` || i.Path.Value == `"C"` {
					t.Errorf("%s/%s imports %s; move what needs it to a file *_unsafe.go", path, name, i.Path.Value)
				}
			}
			ast.Inspect(f, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok || !strings.HasPrefix(s.Sel.Name, "Syscall") && !strings.HasPrefix(s.Sel.Name, "RawSyscall") {
					return true
				}
				if x, ok := s.X.(*ast.Ident); ok && (x.Name == "unix" || x.Name == "syscall") {
					if s.Sel.Name != "SyscallConn" {
						t.Errorf("%s/%s makes a raw system call; move it to a file *_unsafe.go", path, name)
					}
				}
				return true
			})
		}
	}
}

// TestEveryPackageIsDocumented checks that a newcomer can read each package alone.
func TestEveryPackageIsDocumented(t *testing.T) {
	for _, p := range packages(t) {
		path, _ := local(p.ImportPath)
		if slices.Contains(meaningless, filepath.Base(path)) {
			t.Errorf("the name of package %s says nothing about what it holds", path)
		}
		var longest string
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
			if text := p.parse(t, name, parser.ParseComments|parser.PackageClauseOnly).Doc.Text(); len(text) > len(longest) {
				longest = text
			}
		}
		if len(p.GoFiles)+len(p.CgoFiles) > 0 && len(longest) < 80 {
			t.Errorf("package %s has no package comment that says what it is for", path)
		}
	}
}

// unwatched are packages whose tests may be still for long: they compute.
var unwatched = []string{"internal/mutation", "protocol/modelcheck", "protocol/simulator"}

// waits are the names of functions that wait for others, whoever has them.
var waits = []string{"Wait", "Accept", "Read", "ReadFull", "ReadFrame", "ReadString", "ReadAll", "Output", "CombinedOutput"}

// TestWaitsAreWatched checks that where tests wait, package patience watches them: it ends a run in
// which one waits for ever, and says where.
func TestWaitsAreWatched(t *testing.T) {
	for _, p := range packages(t) {
		path, _ := local(p.ImportPath)
		if slices.Contains(unwatched, path) || path == "internal/patience" || slices.Contains(slices.Concat(p.TestImports, p.XTestImports), module+"/internal/patience") {
			continue
		}
		for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			if what := firstWait(p.parse(t, name, 0)); what != "" {
				t.Errorf("%s/%s waits (%s), and no test of the package imports internal/patience, which would notice if it did so for ever", path, name, what)
				break
			}
		}
	}
}

// firstWait is what a file waits for: "" if it does not.
func firstWait(f *ast.File) (what string) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.UnaryExpr:
			if n.Op == token.ARROW {
				what = "for a channel"
			}
		case *ast.SelectStmt:
			what = "in a select"
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && slices.Contains(waits, s.Sel.Name) {
				what = "in " + s.Sel.Name
			}
		}
		return what == ""
	})
	return what
}

// TestTop checks what lies at the top of the repository.
func TestTop(t *testing.T) {
	entries, err := os.ReadDir(root(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(top, e.Name()) && !strings.HasPrefix(e.Name(), ".") {
			if exec.Command("git", "-C", root(t), "check-ignore", "-q", e.Name()).Run() == nil {
				continue
			}
			t.Errorf("%s lies at the top of the repository; it belongs into one of %s", e.Name(), strings.Join(top, ", "))
		}
	}
}
