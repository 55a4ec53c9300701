package trace

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
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
	line     string          // of the program; "": it is not known
	element  string          // that was accessed; "": it is not known
	fault    *faultlog.Fault // nil: it is a call
}

// waits writes what the threads of a rank have waited for.
func (w *Writer) waits(r *rank, n *node, p *runstats.Piece, log *faultlog.Batch) {
	list := make([]wait, 0, len(p.Calls)+len(log.Faults))
	for i := range p.Calls {
		c := &p.Calls[i]
		list = append(list, wait{
			span: w.span(n, c.Began, c.Waited), thread: c.Thread, category: c.Kind, name: fmt.Sprintf("%s %q", c.Kind, c.Name), line: c.At,
		})
	}
	for i := range log.Faults {
		f := &log.Faults[i]
		x := wait{
			span: w.span(n, f.Began, f.Waited), thread: int(f.Thread), category: runstats.Memory, name: w.named(f.Access, f.Page),
			line: r.lines[place{f.Page, f.Offset, f.Access != faultlog.Read}], fault: f,
		}
		if m := w.memory.Find(f.Page); m != nil {
			x.element = m.Element(f.Page, f.Offset)
		}
		list = append(list, x)
	}
	slices.SortStableFunc(list, byTime)
	shorten(list)
	who := w.process(ranks+p.Rank, fmt.Sprintf("rank %d on node %d", p.Rank, p.Node), 2*p.Node, fmt.Sprintf("process %d", p.PID))
	for i := range list {
		x := &list[i]
		row, ok := w.row(who, x.thread, threadTitle, x.span)
		if !ok {
			continue
		}
		w.complete(who.id, row, x)
		if x.fault != nil && x.fault.Granted > 0 && x.fault.From != faultlog.NoNode {
			w.served(x, who.id, row, p)
		}
	}
}

// threadTitle names the rows of a thread.
func threadTitle(number int) string {
	if number == 0 {
		return "some thread"
	}
	return fmt.Sprintf("thread %d", number)
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
		return access.String() + " " + strconv.Quote(a.Name)
	}
	return access.String()
}

func (w *Writer) complete(process, row int, x *wait) {
	e := event{phase: complete, name: x.name, category: string(x.category), process: process, thread: row, at: x.from, duration: x.to - x.from}
	if x.fault != nil || x.line != "" {
		e.args = x
	}
	w.emit(&e)
}

// served writes what the daemon did that sent the page, and the arrows there and back. It is known
// that it did so between the fault and the grant; the event takes the middle half of that.
func (w *Writer) served(x *wait, process, row int, p *runstats.Piece) {
	granted := min(int64(x.fault.Granted), x.to-x.from)
	at := *x
	at.span = span{x.from + granted/4, x.from + granted*3/4}
	daemon := w.daemon(int(x.fault.From))
	there, ok := w.row(daemon, p.Node, pagesTitle, at.span)
	if !ok {
		return
	}
	w.complete(daemon.id, there, &at)
	w.flows++
	arrow := event{name: "page", category: "page", flow: w.flows}
	for _, end := range []struct {
		phase        string
		process, row int
		at           int64
	}{
		{flowStart, process, row, x.from},
		{flowStep, daemon.id, there, at.from},
		{flowEnd, process, row, min(x.from+granted, max(x.from, x.to-slack))},
	} {
		arrow.phase, arrow.process, arrow.thread, arrow.at = end.phase, end.process, end.row, end.at
		if end.phase != flowStart {
			arrow.binds = "e"
		}
		w.emit(&arrow)
	}
}

// pagesTitle names a daemon's rows for the pages that it has sent to a node.
func pagesTitle(node int) string { return fmt.Sprintf("pages for node %d", node) }

// takenTitle names its rows for departures.
func takenTitle(int) string { return "pages taken from here" }

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
		row, ok := w.row(daemon, taken, takenTitle, at)
		if !ok {
			continue
		}
		w.emit(&event{
			phase: instant, name: w.named(d.Access, d.Page), category: "departure", process: daemon.id, thread: row, at: at.from, scope: "t", args: (*departure)(d),
		})
	}
	n.next = max(n.next, log.Next)
}

// changed is how many words are.
func changed(written []uint64) (n int) {
	for _, word := range written {
		n += bits.OnesCount64(word)
	}
	return n
}
