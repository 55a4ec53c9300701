package dsm

import (
	"fmt"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"

	"dsmd/internal/callsite"
	"dsmd/internal/faultlog"
	"dsmd/internal/perf"
)

// spot is where a thread faults.
type spot struct {
	thread uint32
	page   uint64 // somewhere: it is not known
}

// somewhere is no page.
const somewhere = 1<<64 - 1

// samples are stacks of faults that have not ended yet, by their spots, in the order in which they
// came. A fault of which the daemon does not tell, because its page was here, leaves a sample
// behind, which expires.
type samples struct {
	by    map[spot][]sample
	count int
	round int
	lost  bool // samples for which there was no room
}

type sample struct {
	stack []uintptr
	at    int64 // when the thread waited, in nanoseconds since 1970; 0: not known
	round int
}

const (
	// maxSamples bounds those that wait for the end of their faults.
	maxSamples = 1 << 12
	// sampleRounds is for how many rounds they do: some seconds.
	sampleRounds = 100
)

// add adds a sample. f.Stack has addresses of instructions, the innermost first.
func (s *samples) add(page uint64, f *perf.Fault) {
	at := spot{f.Thread, page}
	if s.count == maxSamples {
		s.lost = true
		return
	}
	if s.by == nil {
		s.by = map[spot][]sample{}
	}
	x := sample{stack: make([]uintptr, 0, len(f.Stack)), at: f.At, round: s.round}
	for i, pc := range f.Stack {
		if i == 0 {
			pc++ // the instruction itself, not where a call returns to
		}
		x.stack = append(x.stack, uintptr(pc))
	}
	s.by[at] = append(s.by[at], x)
	s.count++
}

// take is the stack of a fault that has ended, as runtime.Callers gives it; nil if it was not
// sampled.
func (s *samples) take(f *faultlog.Fault) []uintptr {
	at := spot{f.Thread, f.Page}
	if list := s.by[at]; len(list) > 0 {
		s.drop(at, 1)
		return callsite.Expand(list[0].stack)
	}
	return callsite.Expand(s.takeSeen(f))
}

// takeSeen is take for threads of which it is known when they waited, but not for what: the faults
// of a thread end one after the other. A long one may have been seen several times.
func (s *samples) takeSeen(f *faultlog.Fault) (stack []uintptr) {
	at, end := spot{f.Thread, somewhere}, f.Began+int64(f.Waited)
	old := 0
	for _, x := range s.by[at] {
		if x.at > end {
			break
		}
		if old++; x.at >= f.Began && stack == nil {
			stack = x.stack
		}
	}
	if old > 0 {
		s.drop(at, old)
	}
	return stack
}

// drop takes away the first of those of a spot.
func (s *samples) drop(at spot, n int) {
	s.count -= n
	if rest := s.by[at][n:]; len(rest) > 0 {
		s.by[at] = rest
	} else {
		delete(s.by, at)
	}
}

// expire ends a round, and drops samples of whose faults nobody has told.
func (s *samples) expire() {
	s.round++
	for at, list := range s.by {
		old := 0
		for old < len(list) && s.round-list[old].round > sampleRounds {
			old++
		}
		if old > 0 {
			s.drop(at, old)
		}
	}
}

// line is a line of the program.
type line struct {
	function string
	at       string // file.go:12
	own      bool   // it is the program's own
}

// lines finds the line of the program in a stack, which is as runtime.Callers gives it: the
// innermost that is the program's own, or, if none is, the innermost that is neither of this
// package nor of the runtime. It remembers what it has found for each address.
type lines map[uintptr]line

// maxLines bounds what is remembered.
const maxLines = 1 << 14

func (l lines) of(stack []uintptr) (outside line) {
	for _, pc := range stack {
		at, known := l[pc]
		if !known {
			at = lineOf(pc)
			if len(l) < maxLines {
				l[pc] = at
			}
		}
		if at.own {
			return at
		}
		if outside.at == "" {
			outside = at
		}
	}
	return outside
}

// lineOf is empty for what is of this package or of the runtime.
func lineOf(pc uintptr) line {
	f, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	if f.Function == "" || strings.HasPrefix(f.Function, "runtime.") || strings.HasPrefix(f.Function, thisPackage) {
		return line{}
	}
	return line{f.Function, fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line), isOwn(&f)}
}

// isOwn is whether a function is the program's, and not of this package, the kit's or of Go's
// library. In a program that is built with -trimpath nothing tells the latter.
func isOwn(f *runtime.Frame) bool {
	if !isOutside(f) {
		return false
	}
	if in, ok := strings.CutPrefix(f.Function, kit); ok {
		name, _, _ := strings.Cut(in, ".")
		return strings.HasSuffix(name, "_test")
	}
	library := goLibrary()
	return library == "" || !strings.HasPrefix(f.File, library)
}

// isOutside is whether a function is not of this package.
func isOutside(f *runtime.Frame) bool { return !strings.HasPrefix(f.Function, thisPackage) }

const (
	thisPackage = "dsmd/dsm." // begins the names of its functions
	kit         = "dsmd/dsm/" // begins those of the kit, which are the packages below this one
)

// goLibrary is the directory of Go's library where this program was built; "": it was built with
// -trimpath.
var goLibrary = sync.OnceValue(func() string {
	pc := reflect.ValueOf(runtime.GC).Pointer()
	file, _ := runtime.FuncForPC(pc).FileLine(pc)
	return strings.TrimSuffix(file, "runtime/mgc.go")
})
