package stages

import "slices"

// A Record is what a daemon has noted, as it writes it.
type Record struct {
	Nanos int64  `json:"ns"`
	Page  uint64 `json:"page"`
	Stage string `json:"stage"`
	What  string `json:"what"`
}

// An Access is a load or store that a program has timed, in nanoseconds of CLOCK_MONOTONIC.
type Access struct{ Start, End int64 }

// A path is when a fault has passed each point: points[i] lies before stage i, and one more behind
// the last.
type path [len(steps) + 1]int64

// step is a stage, and how the point is found that ends it.
type step struct {
	name, where string
	owner       bool // the daemon that answers has noted it, not the one that asks
	stage       string
	what        []string // any of these; nil: anything
	last        bool     // it is the end of the access
}

// Where a stage passes, as the chart and the tables say it.
const (
	inProgram = "program"
	asking    = "daemon that asks"
	network   = "network"
	answering = "daemon that answers"
)

// steps are the stages of a fault that one other node answers.
var steps = [...]step{
	{name: "trap, until the daemon has read it", where: inProgram, stage: "fault"},
	{name: "decided what to ask", where: asking, stage: "posted", what: []string{"Request", "Forward", "Invalidate"}},
	{name: "sent, carried, found", where: network, owner: true, stage: "received", what: []string{"Request", "Forward", "Invalidate"}},
	{name: "decided; access cut off", where: answering, owner: true, stage: "done", what: []string{"downgrade", "revoke"}},
	{name: "page read, answer made", where: answering, owner: true, stage: "posted", what: []string{"Grant", "InvalidateAck"}},
	{name: "sent, carried, found", where: network, stage: "received", what: []string{"Grant", "InvalidateAck"}},
	{name: "decided; page installed", where: asking, stage: "done", what: []string{"install", "make writable"}},
	{name: "thread goes on", where: inProgram, last: true},
}

// match finds the paths of accesses through the records of the daemon that asks and the one that
// answers, each in the order of time. It leaves out accesses that took another way: those that did
// not fault, or that a third node had a part in.
//
// A thread may go on before the call that has woken it returns to the daemon. Then the last stage
// has no time.
func match(accesses []Access, asks, answers []Record) (paths []path, leftOut int) {
	for _, a := range accesses {
		if p, ok := follow(a, asks, answers); ok {
			paths = append(paths, p)
		} else {
			leftOut++
		}
	}
	return paths, leftOut
}

func follow(a Access, asks, answers []Record) (p path, ok bool) {
	p[0] = a.Start
	var page *uint64
	for i, s := range steps {
		if s.last {
			p[i+1] = a.End
			break
		}
		log := asks
		if s.owner {
			log = answers
		}
		r := find(log, p[i], s, page)
		if r == nil || i == 0 && r.Nanos > a.End {
			return p, false
		}
		page = &r.Page
		p[i+1] = min(r.Nanos, a.End)
	}
	return p, slices.IsSorted(p[:])
}

// find is the first record from a time on that ends a step, of a page if it is known; nil if there
// is none.
func find(log []Record, from int64, s step, page *uint64) *Record {
	first, _ := slices.BinarySearchFunc(log, from, func(r Record, at int64) int {
		if r.Nanos < at {
			return -1
		}
		return 1
	})
	for i := range log[first:] {
		r := &log[first+i]
		if r.Nanos > from+longest {
			return nil
		}
		if r.Stage == s.stage && (page == nil || r.Page == *page) && (s.what == nil || slices.Contains(s.what, r.What)) {
			return r
		}
	}
	return nil
}

// longest bounds a stage, in nanoseconds: what comes later belongs to another fault.
const longest = 1e9
