package launch

import (
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDivideProcessors: each node gets some, no two the same, and all are given away. More nodes
// than processors is an error that says both.
func TestDivideProcessors(t *testing.T) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for nodes := 1; nodes <= all.Count(); nodes++ {
		parts, err := divideProcessors(nodes)
		if err != nil || len(parts) != nodes {
			t.Fatalf("%d nodes: %d parts, %v", nodes, len(parts), err)
		}
		given, least, most := unix.CPUSet{}, all.Count(), 0
		for _, p := range parts {
			least, most = min(least, p.Count()), max(most, p.Count())
			for cpu := range 8 * len(p) * 8 {
				if p.IsSet(cpu) {
					if given.IsSet(cpu) {
						t.Errorf("%d nodes: two have processor %d", nodes, cpu)
					}
					given.Set(cpu)
				}
			}
		}
		if given != all || least == 0 || most > least+1 {
			t.Errorf("%d nodes: %d to %d processors each, together %v of %v", nodes, least, most, given, all)
		}
	}
	if _, err := divideProcessors(all.Count() + 1); err == nil || !strings.Contains(err.Error(), "--bind none") {
		t.Errorf("more nodes than processors: %v", err)
	}
}

// TestBind: the programs of each node run on processors of their own.
func TestBind(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("needs two processors")
	}
	s := supervise(t, job{Nodes: 2, Bind: ToCores, Program: []string{"grep", "Cpus_allowed_list", "/proc/self/status"}})
	seen := map[string]bool{}
	for range 2 {
		_, list, _ := strings.Cut(s.line(), "Cpus_allowed_list:")
		seen[strings.TrimSpace(list)] = true
	}
	s.wantStatus(0)
	if len(seen) != 2 || seen[""] {
		t.Errorf("the programs of two nodes run on %v", seen)
	}
}
