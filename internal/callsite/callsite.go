// Package callsite notes where a goroutine is, and when, so cheaply that it can be done each time
// that a lock is taken, in a few nanoseconds: runtime.Callers and time.Now together cost more than
// the lock. It follows the frame pointers, which Go keeps on amd64 and arm64, as the runtime's own
// execution tracer does. The line is looked up only when somebody asks.
package callsite

import (
	"fmt"
	"path/filepath"
	"runtime"
	"sync/atomic"
)

// Near and Far are how many frames are noted. Each costs a nanosecond.
const (
	Near = 2
	Far  = 16
)

// Site is a place in the program. It is empty at first.
type Site struct {
	// At is what Note was given. It comes first in memory, and the return addresses behind it, the
	// innermost first; 0: there are no more.
	At  int64
	pcs [Far]uintptr
}

// Note notes a time, in the caller's unit, and where its caller was called from, which must have
// a frame of its own (go:noinline). A Site is always noted with the same depth, Near or Far, and by
// one goroutine at a time. Another may call Load meanwhile: it may see a part of each of two notes.
//
//go:noescape
func Note(s *Site, at int64, depth int)

// Load is a copy of a Site that another goroutine may be noting.
func (s *Site) Load() (c Site) {
	c.At = atomic.LoadInt64(&s.At)
	for i := range s.pcs {
		c.pcs[i] = atomic.LoadUintptr(&s.pcs[i])
	}
	return c
}

// Number tells a Site from others of the same process.
func (s *Site) Number() (n uint64) {
	for _, pc := range s.pcs {
		n = (n ^ uint64(pc)) * 0x9e3779b97f4a7c15
		n ^= n >> 29
	}
	return n
}

// Line is the innermost line of a Site that is one of those asked for: "main.go:41". It is "" if
// there is none.
func (s *Site) Line(isOne func(*runtime.Frame) bool) string {
	n := 0
	for n < len(s.pcs) && s.pcs[n] != 0 {
		n++
	}
	if n == 0 {
		return ""
	}
	for frames := runtime.CallersFrames(s.pcs[:n]); ; {
		f, more := frames.Next()
		if f.Function != "" && isOne(&f) {
			return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		}
		if !more {
			return ""
		}
	}
}

// Expand makes of a stack of return addresses in the machine's code one as runtime.Callers gives
// it, which has an address for each function that was inlined, too. What is in no function of this
// program stays.
func Expand(stack []uintptr) (all []uintptr) {
	for _, pc := range stack {
		before := len(all)
		// The runtime looks for what an address was inlined into only if another one follows.
		for frames, more := runtime.CallersFrames([]uintptr{pc, 0}), true; more; {
			var f runtime.Frame
			if f, more = frames.Next(); f.PC != 0 {
				all = append(all, f.PC+1)
			}
		}
		if len(all) == before {
			all = append(all, pc)
		}
	}
	return all
}
