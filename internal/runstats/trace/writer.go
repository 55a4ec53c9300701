package trace

import (
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"dsmd/internal/faultlog"
	"dsmd/internal/runstats"
)

// bufferBytes is how much is written at once.
const bufferBytes = 64 << 10

// saidShift is from which difference on a clock is said to be wrong.
const saidShift = 10 * time.Millisecond

// Writer writes a trace. It belongs to one goroutine.
type Writer struct {
	out    io.Writer
	zip    *gzip.Writer // out, if the trace is compressed
	text   object       // that has not been written yet
	events uint64
	err    error // of the first write that has failed

	began     int64 // when the job did, in nanoseconds since 1970
	memory    runstats.Allocations[*runstats.Allocation]
	ranks     map[int]*rank
	nodes     map[int]*node
	processes map[int]*process
	rows      int
	flows     uint64

	rowless uint64 // events that were left away because there are too many rows
	bad     uint64 // pieces whose log makes no sense
}

// node is what is known of a node.
type node struct {
	clock
	next uint64 // the departures before this place have been written
}

// rank is what is known of a rank.
type rank struct {
	lines map[place]string // of the program, by what they access
	lost  uint64           // entries of the log, and calls and lines
}

// place is a byte of a page, and whether it is stored to.
type place struct {
	page   uint64
	offset uint32
	write  bool
}

// maxLines bounds the places that are remembered of a rank.
const maxLines = 1 << 14

// NewWriter begins a trace of a job that begins now, compressed if zip. It names no unit for the
// display: some versions of Perfetto take that for the unit of all times, which is a microsecond.
func NewWriter(to io.Writer, zip bool, now time.Time) *Writer {
	w := &Writer{
		out: to, text: append(make(object, 0, bufferBytes+bufferBytes/8), `{"traceEvents":[`+"\n"...),
		began: now.UnixNano(), ranks: map[int]*rank{}, nodes: map[int]*node{}, processes: map[int]*process{},
	}
	if zip {
		// It is done while the job computes, in a third of the time that the default level takes.
		w.zip, _ = gzip.NewWriterLevel(to, gzip.BestSpeed)
		w.out = w.zip
	}
	return w
}

// emit writes an event. After an error nothing is written any more.
func (w *Writer) emit(e *event) {
	if w.err != nil {
		return
	}
	if w.events > 0 {
		w.text = append(w.text, ",\n"...)
	}
	w.events++
	w.text = append(w.text, '{')
	e.appendTo(&w.text)
	w.text.end()
	if len(w.text) >= bufferBytes {
		w.flush()
	}
}

// flush writes the text that there is.
func (w *Writer) flush() {
	if w.err == nil {
		_, w.err = w.out.Write(w.text)
	}
	w.text = w.text[:0]
}

// Add writes what is in a piece, which came now. An error of the file is told by Close.
func (w *Writer) Add(p *runstats.Piece, now time.Time) {
	log, err := faultlog.Decode(p.Log)
	if err != nil && len(p.Log) > 0 || p.Rank < 0 || p.Node < 0 || p.Rank >= maxNode || p.Node >= maxNode {
		w.bad++
		return
	}
	for i := range p.Memory {
		w.memory.Add(&p.Memory[i])
	}
	n, r := w.nodes[p.Node], w.ranks[p.Rank]
	if n == nil {
		n = &node{}
		w.nodes[p.Node] = n
	}
	if r == nil {
		r = &rank{lines: map[place]string{}}
		w.ranks[p.Rank] = r
	}
	r.lost += log.Lost + p.Lost
	r.learn(p.Sites)
	n.align(p, &log, w.began, now.UnixNano())
	w.waits(r, n, p, &log)
	w.departures(n, p.Node, &log)
}

// learn remembers which lines of the program access what.
func (r *rank) learn(sites []runstats.Site) {
	for i := range sites {
		if len(r.lines) >= maxLines {
			clear(r.lines)
		}
		r.lines[place{sites[i].Page, sites[i].Offset, sites[i].Write}] = sites[i].At
	}
}

// Close ends the trace, so that it can be read, and says what it lacks. The error is that of the
// first write that has failed.
func (w *Writer) Close() (notes []string, err error) {
	w.text = append(w.text, "\n]}\n"...)
	w.flush()
	if w.err == nil && w.zip != nil {
		w.err = w.zip.Close()
	}
	for _, i := range slices.Sorted(maps.Keys(w.ranks)) {
		if lost := w.ranks[i].lost; lost > 0 {
			notes = append(notes, fmt.Sprintf("%d events are missing that rank %d came too late for: faults of its node, and what was more than it could tell", lost, i))
		}
	}
	for _, i := range slices.Sorted(maps.Keys(w.nodes)) {
		if shift := time.Duration(w.nodes[i].shift); max(shift, -shift) >= saidShift {
			notes = append(notes, fmt.Sprintf("the clock of node %d is wrong by %v or more; its times were shifted", i, -shift.Round(time.Millisecond)))
		}
	}
	for _, lack := range []struct {
		count uint64
		text  string
	}{
		{w.rowless, fmt.Sprintf("events have no room: a thread has at most %d rows, and all together %d", maxBeside, maxRows)},
		{w.bad, "pieces of the log of ranks make no sense"},
	} {
		if lack.count > 0 {
			notes = append(notes, fmt.Sprintf("%d %s", lack.count, lack.text))
		}
	}
	return notes, w.err
}

// byTime sorts so that what encloses comes before what is within it.
func byTime(a, b wait) int {
	return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to))
}
