package trace

import (
	"fmt"
	"math/bits"
	"slices"
	"time"

	"dsmd/internal/faultlog"
	"dsmd/internal/runstats"
)

// wait is a wait of a thread.
type wait struct {
	span
	thread   int // as the kernel numbers it; 0: it is not known
	category runstats.Kind
	name     string
	args     any
	fault    *faultlog.Fault // nil: it is a call
}

// callArgs are what is said of a call.
type callArgs struct {
	Line string `json:"line"` // of the program
}

// faultArgs are what is said of a wait for a page.
type faultArgs struct {
	Page    uint64  `json:"page"`
	Element string  `json:"element,omitempty"`
	From    *uint32 `json:"from node,omitempty"`
	Taker   *uint32 `json:"taken by node,omitempty"`
	Took    string  `json:"taken for,omitempty"`
	Granted *micros `json:"granted after µs,omitempty"`
	Line    string  `json:"line,omitempty"`
}

// departureArgs are what is said of a page that another node has taken.
type departureArgs struct {
	Page    uint64 `json:"page"`
	By      uint32 `json:"by node"`
	Changed *int   `json:"words changed here,omitempty"` // of 8 bytes, since it was written last
}

// waits writes what the threads of a rank have waited for.
func (w *Writer) waits(r *rank, n *node, p *runstats.Piece, log *faultlog.Batch) {
	var list []wait
	for i := range p.Calls {
		c := &p.Calls[i]
		x := wait{span: w.span(n, c.Began, c.Waited), thread: c.Thread, category: c.Kind, name: fmt.Sprintf("%s %q", c.Kind, c.Name)}
		if c.At != "" {
			x.args = callArgs{c.At}
		}
		list = append(list, x)
	}
	for i := range log.Faults {
		f := &log.Faults[i]
		list = append(list, wait{
			w.span(n, f.Began, f.Waited), int(f.Thread), runstats.Memory, w.named(f.Access, f.Page), w.argsOf(r, f), f,
		})
	}
	slices.SortStableFunc(list, byTime)
	shorten(list)
	who := w.process(ranks+p.Rank, fmt.Sprintf("rank %d on node %d", p.Rank, p.Node), 2*p.Node, fmt.Sprintf("process %d", p.PID))
	for i := range list {
		x := &list[i]
		title := fmt.Sprintf("thread %d", x.thread)
		if x.thread == 0 {
			title = "some thread"
		}
		row, ok := w.row(who, x.thread, title, x.span)
		if !ok {
			continue
		}
		w.complete(who.id, row, x)
		if x.fault != nil && x.fault.Granted > 0 && x.fault.From != faultlog.NoNode {
			w.served(x, who.id, row, p)
		}
	}
}

// shorten ends waits for pages where their threads went on, which they do before the daemon has
// taken note of the end: a thread that waits for a page does nothing else. list is in order.
func shorten(list []wait) {
	next := map[int]int64{} // when the next wait of a thread begins
	for i := len(list) - 1; i >= 0; i-- {
		x := &list[i]
		if began, known := next[x.thread]; known && x.fault != nil && x.thread != 0 && began > x.from {
			x.to = max(x.from, min(x.to, began-slack))
		}
		next[x.thread] = x.from
	}
}

// span is when a wait was, by this machine's clock, but not before the job's start.
func (w *Writer) span(n *node, began int64, waited time.Duration) span {
	from := max(0, began+n.shift-w.began)
	return span{from, max(from, from+int64(waited))}
}

// named is what is said of an access to a page.
func (w *Writer) named(access faultlog.Access, page uint64) string {
	if a := w.memory.Find(page); a != nil {
		return fmt.Sprintf("%v %q", access, a.Name)
	}
	return access.String()
}

func (w *Writer) argsOf(r *rank, f *faultlog.Fault) (a faultArgs) {
	a = faultArgs{Page: f.Page, Line: r.lines[place{f.Page, f.Offset, f.Access != faultlog.Read}]}
	if m := w.memory.Find(f.Page); m != nil {
		a.Element = m.Element(f.Page, f.Offset)
	}
	if f.Granted > 0 {
		granted := micros(f.Granted)
		a.Granted = &granted
	}
	if f.From != faultlog.NoNode {
		a.From = &f.From
	}
	if f.Taker != faultlog.NoNode {
		a.Taker, a.Took = &f.Taker, f.TakerAccess.String()
	}
	return a
}

func (w *Writer) complete(process, row int, x *wait) {
	duration := micros(x.to - x.from)
	w.emit(event{Phase: complete, Name: x.name, Category: string(x.category), Process: process, Thread: row, At: micros(x.from), Duration: &duration, Args: x.args})
}

// served writes what the daemon did that sent the page, and the arrows there and back. It is known
// that it did so between the fault and the grant; the event takes the middle half of that.
func (w *Writer) served(x *wait, process, row int, p *runstats.Piece) {
	granted := min(int64(x.fault.Granted), x.to-x.from)
	at := *x
	at.span = span{x.from + granted/4, x.from + granted*3/4}
	daemon := w.daemon(int(x.fault.From))
	there, ok := w.row(daemon, p.Node, fmt.Sprintf("pages for node %d", p.Node), at.span)
	if !ok {
		return
	}
	w.complete(daemon.id, there, &at)
	w.flows++
	arrow := event{Name: "page", Category: "page", Flow: w.flows}
	for _, end := range []struct {
		phase        string
		process, row int
		at           int64
	}{
		{flowStart, process, row, x.from},
		{flowStep, daemon.id, there, at.from},
		{flowEnd, process, row, min(x.from+granted, max(x.from, x.to-slack))},
	} {
		arrow.Phase, arrow.Process, arrow.Thread, arrow.At = end.phase, end.process, end.row, micros(end.at)
		if end.phase != flowStart {
			arrow.Binds = "e"
		}
		w.emit(arrow)
	}
}

// taken is the group of a daemon's row for departures.
const taken = -1

// departures writes which pages others have taken from a node, those that no other rank of the node
// has passed on.
func (w *Writer) departures(n *node, number int, log *faultlog.Batch) {
	for i := range log.Departures {
		d := &log.Departures[i]
		if d.Place < n.next {
			continue
		}
		at := w.span(n, d.At, 0)
		daemon := w.daemon(number)
		row, ok := w.row(daemon, taken, "pages taken from here", at)
		if !ok {
			continue
		}
		args := departureArgs{Page: d.Page, By: d.By}
		if d.Written != nil {
			changed := 0
			for _, word := range d.Written {
				changed += bits.OnesCount64(word)
			}
			args.Changed = &changed
		}
		w.emit(event{Phase: instant, Name: w.named(d.Access, d.Page), Category: "departure", Process: daemon.id, Thread: row, At: micros(at.from), Scope: "t", Args: args})
	}
	n.next = max(n.next, log.Next)
}
