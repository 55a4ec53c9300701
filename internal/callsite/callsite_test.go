package callsite

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// here is the line of its caller.
func here() string {
	_, file, line, _ := runtime.Caller(1)
	return fmt.Sprintf("%s:%d", filepath.Base(file), line)
}

//go:noinline
func outer(s *Site, at int64) { noting(s, at) }

func inlined(s *Site, at int64) { noting(s, at) }

//go:noinline
func noting(s *Site, at int64) { Note(s, at, Near) }

// TestLine: the line is the one that runtime.Caller knows, whether what lies between was inlined or
// not, and a Site can be noted again.
func TestLine(t *testing.T) {
	var s Site
	every := func(*runtime.Frame) bool { return true }
	if got := s.Line(every); got != "" {
		t.Errorf("an empty site has the line %s", got)
	}
	callers := func(f *runtime.Frame) bool {
		return !slices.Contains([]string{"inlined", "outer", "noting"}, strings.TrimPrefix(f.Function, "dsmd/internal/callsite."))
	}
	for i := range int64(3) {
		for name, note := range map[string]func() string{
			"direct":   func() string { noting(&s, i); return here() },
			"inlined":  func() string { inlined(&s, i); return here() },
			"outlined": func() string { outer(&s, i); return here() },
		} {
			want := note()
			c := s.Load()
			if got := c.Line(callers); got != want || c.At != i {
				t.Errorf("%s: line %s at %d, want %s at %d", name, got, c.At, want, i)
			}
		}
	}
	if got := s.Line(func(*runtime.Frame) bool { return false }); got != "" {
		t.Errorf("where no line is asked for there is %s", got)
	}
}

// callers is runtime.Callers, and inlined where it is called.
func callers(pcs []uintptr) int { return runtime.Callers(1, pcs) }

// TestExpand: an address at which a function was inlined becomes one for each function.
func TestExpand(t *testing.T) {
	want := make([]uintptr, 16)
	want = want[:callers(want)]
	function := func(pc uintptr) uintptr { return runtime.FuncForPC(pc - 1).Entry() }
	var real []uintptr // without those that the runtime has put in
	for i, pc := range want {
		if i == 0 || function(pc) != function(want[i-1]) {
			real = append(real, pc)
		}
	}
	if len(real) == len(want) {
		t.Fatal("nothing was inlined here")
	}
	if got := Expand(real); !slices.Equal(got, want) {
		t.Errorf("%#x becomes %#x, want %#x", real, got, want)
	}
	if got := Expand(nil); got != nil {
		t.Errorf("nothing becomes %#x", got)
	}
}

// TestShallow: a stack of fewer frames than a Site has leaves the rest empty.
func TestShallow(t *testing.T) {
	done := make(chan Site)
	go func() {
		var s Site
		for i := range s.pcs {
			s.pcs[i] = 1
		}
		Note(&s, 1, Far)
		done <- s
	}()
	if s := <-done; s.pcs[Far-1] != 0 || s.pcs[0] == 0 {
		t.Errorf("the frames %#x", s.pcs)
	}
}

func BenchmarkNote(b *testing.B) {
	for _, depth := range []int{Near, Far} {
		b.Run(fmt.Sprint(depth), func(b *testing.B) {
			var s Site
			for b.Loop() {
				Note(&s, 1, depth)
			}
		})
	}
}

func BenchmarkSwap(b *testing.B) {
	var s Site
	for b.Loop() {
		atomic.SwapInt64(&s.At, 1)
		atomic.SwapInt64(&s.At, 1)
	}
}
