package parallel

import (
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"

	"dsmd/dsm"
)

// Error is the error of a loop one of whose items has failed, or of Tasks. Every rank gets it.
type Error struct {
	Index int    // of the item
	Task  string // the task, if it was one, as %+v prints it; at most 200 bytes
	Rank  int    // that has run it
	Text  string // its error, or what it has panicked with and where; at most 3,000 bytes
	err   error
}

func (e *Error) Error() string {
	what := fmt.Sprintf("item %d", e.Index)
	if e.Task != "" {
		what = "task " + e.Task
	}
	return fmt.Sprintf("parallel: %s, on rank %d: %s", what, e.Rank, e.Text)
}

// Unwrap is the item's own error, on the rank that has run it; else it is nil.
func (e *Error) Unwrap() error { return e.err }

// fail notes that something has failed here, which name names, and stops the loop.
func (l *loop) fail(name func(*Error), err error) {
	if l.halted.Load() && errors.Is(err, ErrEnded) {
		return // because of another failure
	}
	text := err.Error()
	e := &Error{Rank: l.t.c.Rank(), Text: text[:min(len(text), maxText)], err: err}
	name(e)
	e.Task = e.Task[:min(len(e.Task), maxTask)]
	l.mu.Lock()
	if l.first == nil || e.Index < l.first.Index {
		l.first = e
	}
	l.mu.Unlock()
	l.stop()
}

// whence is the stack of a goroutine that panics, from the function that has: that of the caller
// begins with those through which the panic has gone since.
func whence() string {
	stack := string(debug.Stack())
	goroutine, frames, _ := strings.Cut(stack, "\n")
	from := frames
	for rest := frames; ; {
		function, after, _ := strings.Cut(rest, "\n")
		_, rest, _ = strings.Cut(after, "\n") // behind its line
		panics := strings.HasPrefix(function, "panic(")
		if panics {
			from = rest
		}
		if !panics && !slices.ContainsFunc(passed, func(p string) bool { return strings.HasPrefix(function, p) }) {
			return goroutine + "\n" + from
		}
	}
}

// passed is what functions begin with through which a panic goes.
var passed = []string{"runtime", reflect.TypeFor[loop]().PkgPath() + ".", reflect.TypeFor[dsm.Cluster]().PkgPath() + "."}

// tell puts the failure of this rank where others see it, and returns it as an outcome has it.
func (l *loop) tell() (failed int64, index int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == nil {
		return 0, 0
	}
	own := l.t.own()
	own.rank, own.lenText = l.first.Rank, copy(own.text[:], l.first.Text)
	own.lenTask = copy(own.task[:], l.first.Task)
	return int64(l.first.Index) + 1, int32(l.t.index)
}

// failed is the loop's error, for the item that was run by the rank of the given index. It waits
// until all have read it, since the next loop may have another.
func (l *loop) failed(item, index int) error {
	from := l.t.slots.At(index)
	e := &Error{Index: item, Task: string(from.task[:from.lenTask]), Rank: from.rank, Text: string(from.text[:from.lenText])}
	if l.mu.Lock(); index == l.t.index {
		e.err = l.first.err
	}
	l.mu.Unlock()
	if err := l.t.meet(l.ctx); err != nil {
		return err
	}
	return e
}

// wrapped is an error as this package returns it. A lost page that no item has met is the team's,
// and was last at a node that is lost.
func wrapped(err error) error {
	if failed := (*Error)(nil); err == nil || errors.As(err, &failed) {
		return err
	}
	if errors.Is(err, dsm.ErrPageLost) {
		return fmt.Errorf("parallel: %w: %w", dsm.ErrNodeLost, err)
	}
	return fmt.Errorf("parallel: %w", err)
}
