package trace

import (
	"fmt"
	"slices"
)

const (
	// maxRows bounds the rows of a trace, and so what the writer remembers of them. Events beyond
	// that are counted and left away.
	maxRows = 1 << 14
	// maxBeside bounds the rows of one thread.
	maxBeside = 256
	// rowSpans bounds the events that a row remembers. A long wait that encloses more than these
	// gets another row.
	rowSpans = 256
	// slack is by how much, in nanoseconds, one event must lie within another, or beside it.
	// Readers that compute the end from two floating-point numbers are wrong by less.
	slack = 2
)

// span is a time, in nanoseconds since the job's start.
type span struct{ from, to int64 }

// crosses reports whether two events cannot be on one row, where t was written first: they overlap,
// and s is not within t, nor t within s.
func (s span) crosses(t span) bool {
	apart := s.to+slack <= t.from || t.to+slack <= s.from
	within := t.from <= s.from && s.to+slack <= t.to
	around := s.from+slack <= t.from && t.to+slack <= s.to
	return !apart && !within && !around
}

// row is a row of the picture.
type row struct {
	id    int
	spans []span // the last ones that were written
	busy  int64  // when the last of all ends
	known int64  // what ended before is forgotten
}

// takes reports whether an event may be on the row, and remembers it if so. One without a length
// is no more than a point there.
func (r *row) takes(s span) bool {
	if s.from == s.to {
		return true
	}
	if s.from < r.known || s.from < r.busy+slack && r.crosses(s) {
		return false
	}
	if len(r.spans) == rowSpans {
		half := rowSpans / 2
		for _, t := range r.spans[:half] {
			r.known = max(r.known, t.to)
		}
		r.spans = append(r.spans[:0], r.spans[half:]...)
	}
	r.spans = append(r.spans, s)
	r.busy = max(r.busy, s.to)
	return true
}

// crosses looks at the last events first, which are most likely to be in the way.
func (r *row) crosses(s span) bool {
	for _, t := range slices.Backward(r.spans) {
		if s.crosses(t) {
			return true
		}
	}
	return false
}

// process is a rank or a daemon.
type process struct {
	id     int
	groups map[int]*group
}

// group is the rows of one thread: one, and more for what overlaps, because the waits of goroutines
// that have shared the thread do.
type group struct {
	name  string
	index int // in the process
	rows  []*row
}

// ranks and daemons are where the numbers of processes begin. Those of rows are lower: to Perfetto,
// which knows threads by number, a process is a thread as well.
const (
	ranks   = 1_000_000
	daemons = 2_000_000
	maxNode = daemons - ranks // bounds the numbers of ranks, too
)

// daemon is the process of a node's daemon; nil: there are too many.
func (w *Writer) daemon(node int) *process {
	if node >= maxNode {
		return nil
	}
	if p := w.processes[daemons+node]; p != nil {
		return p
	}
	return w.process(daemons+node, fmt.Sprintf("daemon of node %d", node), 2*node+1, "")
}

// process makes a process, if need be. It stands where index says.
func (w *Writer) process(id int, name string, index int, says string) *process {
	p := w.processes[id]
	if p == nil && len(w.processes) < maxRows {
		p = &process{id: id, groups: map[int]*group{}}
		w.processes[id] = p
		w.emit(&event{phase: metadata, name: "process_name", process: id, args: title(name)})
		w.emit(&event{phase: metadata, name: "process_sort_index", process: id, args: order(index)})
		if says != "" {
			w.emit(&event{phase: metadata, name: "process_labels", process: id, args: label(says)})
		}
	}
	return p
}

// row returns the number of a row of a group of p that takes an event; false: there are too many.
// name names a new group, by its key.
func (w *Writer) row(p *process, key int, name func(key int) string, s span) (id int, ok bool) {
	if p == nil {
		w.rowless++
		return 0, false
	}
	g := p.groups[key]
	if g == nil {
		g = &group{name: name(key), index: len(p.groups)}
		p.groups[key] = g
	}
	for _, r := range g.rows {
		if r.takes(s) {
			return r.id, true
		}
	}
	if w.rows == maxRows || len(g.rows) == maxBeside {
		w.rowless++
		return 0, false
	}
	w.rows++
	r := &row{id: w.rows}
	g.rows = append(g.rows, r)
	says := g.name
	if n := len(g.rows); n > 1 {
		says = fmt.Sprintf("%s (%d)", says, n)
	}
	w.emit(&event{phase: metadata, name: "thread_name", process: p.id, thread: r.id, args: title(says)})
	w.emit(&event{phase: metadata, name: "thread_sort_index", process: p.id, thread: r.id, args: order(g.index*maxRows + len(g.rows))})
	return r.id, r.takes(s)
}
