package lint

import (
	"slices"
	"strings"
	"testing"
)

// TestLinked: what every program has in it that imports dsm is ours, of the standard library, or
// what makes system calls. Anything else makes programs larger and start later. What reads and
// writes the formats of other tools belongs to the launcher.
func TestLinked(t *testing.T) {
	all, err := goList(nil, "-deps", "../../dsm")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("go list names only %d packages", len(all))
	}
	for _, p := range all {
		_, ours := local(p.ImportPath)
		first, _, _ := strings.Cut(p.ImportPath, "/")
		standard := !strings.Contains(first, ".") && !ours
		switch {
		case standard && slices.Contains([]string{"regexp", "compress/gzip", "html/template", "net/http"}, p.ImportPath):
		case standard, ours, p.ImportPath == "golang.org/x/sys/unix":
			continue
		}
		t.Errorf("every program of dsm would have %s in it", p.ImportPath)
	}
}
