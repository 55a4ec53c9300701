package node

import (
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/faultlog"
	"dsmd/pagetable"
	"dsmd/protocol"
)

const (
	// logEntries is how many entries the log has, in about 4 MiB: what a busy node adds in some
	// tenths of a second, while its readers come every tenth.
	logEntries = 1 << 15
	// logKept is for how long the log is kept after its last reader.
	logKept = 10 * time.Second
	// maxDeparted bounds the pages whose last departure is remembered.
	maxDeparted = 1 << 16
	// comparedAfter is how often a page has left for another node before it is compared, and
	// maxCompared how many are at a time.
	comparedAfter = 2
	maxCompared   = 256
)

// A batch is the payload of a reply.
const _ = uint(attach.MaxPayload - faultlog.MaxBytes)

// faultLog is the log of the last faults and departures, while somebody reads it.
type faultLog struct {
	pageBytes int
	pidOf     func(pagetable.ProcID) uint32
	lockOf    func(*faultlog.Fault, pagetable.ProcID) uint64 // Fault.Lock, or it comes later

	ring   *faultlog.Ring  // nil: nobody reads it
	detail faultlog.Detail // that one of its readers wants
	// next is the number of the next entry, while there is no ring. Faults have numbers then, too:
	// by them a reader that was away for long learns how many it has missed.
	next  uint64
	until time.Duration // how long it is kept if nobody reads it until then
	began int64         // when the node's clock was 0, in nanoseconds since 1970

	departed map[pagetable.Page]departed
	leaving  map[pagetable.Page]faultlog.Departure // until they have left
	// sealed are pages that were made read-only for their backups, and of which nobody has a copy
	// since then; at most maxDeparted.
	sealed map[pagetable.Page]bool
	// before is what some pages had when this node could last write them for the first time.
	before map[pagetable.Page][]byte
	spare  [][]byte // of before; both together at most maxCompared
}

// departed is why a page was last taken from this node, and how often that has happened.
type departed struct {
	by     protocol.NodeID
	access faultlog.Access
	times  int
}

// isKept is whether there is a log.
func (l *faultLog) isKept() bool { return l.ring != nil }

// batch answers a reader, and keeps the log for its next visit.
func (l *faultLog) batch(call *attach.Call, c *clock, maySee func(*faultlog.Fault) bool) []byte {
	if l.ring == nil {
		l.ring = faultlog.NewRing(logEntries, l.next)
		l.began = c.zero()
		l.departed = map[pagetable.Page]departed{}
		l.sealed = map[pagetable.Page]bool{}
		l.leaving, l.before = map[pagetable.Page]faultlog.Departure{}, map[pagetable.Page][]byte{}
	}
	l.until, l.detail = c.now+logKept, max(l.detail, faultlog.Detail(call.Count))
	return l.ring.Append(nil, call.Object, maySee)
}

// tick ends the log if nobody has read it for long.
func (l *faultLog) tick(now time.Duration) {
	if l.ring != nil && now >= l.until {
		*l = faultLog{pageBytes: l.pageBytes, pidOf: l.pidOf, lockOf: l.lockOf, next: l.ring.Next()}
	}
}

// tickIn is after how long tick has something to do; negative: never.
func (l *faultLog) tickIn(now time.Duration) time.Duration {
	if l.ring == nil {
		return -1
	}
	return max(l.until-now, 0)
}

// fault adds to those that wait for a page the fault of a thread, unless it is there already.
// Without a log it counts the fault.
func (l *faultLog) fault(waiting []faultlog.Fault, ev *pagetable.Event, access faultlog.Access, now time.Duration) []faultlog.Fault {
	if l.ring == nil {
		l.next++
		return waiting
	}
	f := faultlog.Fault{
		Page: uint64(ev.Page), Offset: ev.Offset, Access: access, PID: l.pidOf(ev.Proc), Thread: ev.Thread,
		Began: l.began + int64(now), Taker: faultlog.NoNode,
	}
	same := func(x faultlog.Fault) bool { return x.Thread == f.Thread && x.PID == f.PID }
	if slices.ContainsFunc(waiting, same) {
		return waiting
	}
	f.Lock = l.lockOf(&f, ev.Proc)
	if d, is := l.departed[ev.Page]; is {
		f.Taker, f.TakerAccess = uint32(d.by), d.access
	}
	return append(waiting, f)
}

// ended notes that a wait is over.
func (l *faultLog) ended(w *wait, now time.Duration) {
	if l.ring == nil {
		l.next += uint64(len(w.faults))
		return
	}
	for i := range w.faults {
		f := &w.faults[i]
		f.Waited = max(time.Duration(l.began+int64(now)-f.Began), 0)
		if f.From = faultlog.NoNode; w.grant != 0 {
			f.From, f.Contents = uint32(w.from), w.contents
			f.Granted = min(max(time.Duration(l.began+int64(w.grant)-f.Began), 0), f.Waited)
		}
		l.ring.AddFault(f)
	}
}

// leaves notes that a page is about to leave for node by, or to be for reading only because that
// reads it. NoNode: its backups are made, or it leaves to make room, whoever has it then.
func (l *faultLog) leaves(page pagetable.Page, kind protocol.EffectKind, by protocol.NodeID) {
	if l.ring == nil {
		return
	}
	delete(l.sealed, page)
	access := faultlog.Write
	if kind == protocol.EffectDowngrade {
		access = faultlog.Read
	}
	switch {
	case by != protocol.NoNode:
		l.leaving[page] = faultlog.Departure{Page: uint64(page), By: uint32(by), Access: access}
	case access == faultlog.Write:
		delete(l.departed, page)
		l.drop(page)
	case len(l.sealed) < maxDeparted:
		l.sealed[page] = true
	}
}

// opened notes that a page is about to be for writing again.
func (l *faultLog) opened(page pagetable.Page) { delete(l.sealed, page) }

// gives notes that a node gets a copy of a page, and reports whether that makes a difference: the
// page is not this node's alone any more. No page table has to do anything for that.
func (l *faultLog) gives(page pagetable.Page, to protocol.NodeID) bool {
	if !l.sealed[page] {
		return false
	}
	l.leaves(page, protocol.EffectDowngrade, to)
	return true
}

// left notes that a page has left, or is for reading only. contents is what it had then, nil if
// that is not known.
func (l *faultLog) left(page pagetable.Page, contents []byte, now time.Duration) {
	d, is := l.leaving[page]
	if !is {
		return
	}
	delete(l.leaving, page)
	d.At = l.began + int64(now)
	if before := l.before[page]; before != nil && contents != nil {
		d.Written = changedWords(before, contents)
	}
	l.drop(page)
	if l.detail >= faultlog.OfDepartures {
		l.ring.AddDeparture(&d)
	}
	last, known := l.departed[page]
	if !known && len(l.departed) >= maxDeparted {
		for any := range l.departed {
			delete(l.departed, any)
			break
		}
	}
	l.departed[page] = departed{protocol.NodeID(d.By), d.Access, last.times + 1}
}

// changedWords are the words of 8 bytes in which two pages differ.
func changedWords(before, after []byte) []uint64 {
	changed := make([]uint64, (len(before)/8+63)/64)
	for i := 0; i+8 <= len(before); i += 8 {
		if binary.NativeEndian.Uint64(before[i:]) != binary.NativeEndian.Uint64(after[i:]) {
			changed[i/8/64] |= 1 << (i / 8 % 64)
		}
	}
	return changed
}

// compares is whether what a page has is to be kept when this node gets it for writing.
func (l *faultLog) compares(page pagetable.Page) bool {
	return l.ring != nil && l.detail >= faultlog.OfWords && l.departed[page].times >= comparedAfter && l.before[page] == nil
}

// keep is where the contents go that a page has before it is written here. If there are too many
// already, another one is given up, whichever it is: so each page has its turn.
func (l *faultLog) keep(page pagetable.Page) []byte {
	if len(l.before) >= maxCompared {
		for any := range l.before {
			l.drop(any)
			break
		}
	}
	var buf []byte
	if last := len(l.spare) - 1; last >= 0 {
		buf, l.spare = l.spare[last], l.spare[:last]
	} else {
		buf = make([]byte, l.pageBytes)
	}
	l.before[page] = buf
	return buf
}

// drop gives up what a page had.
func (l *faultLog) drop(page pagetable.Page) {
	if buf := l.before[page]; buf != nil {
		delete(l.before, page)
		l.spare = append(l.spare, buf)
	}
}

// freed forgets pages whose memory is free.
func (l *faultLog) freed(first pagetable.Page, count uint64) {
	if l.ring == nil {
		return
	}
	within := func(page pagetable.Page) bool { return page >= first && uint64(page-first) < count }
	maps.DeleteFunc(l.departed, func(page pagetable.Page, _ departed) bool { return within(page) })
	maps.DeleteFunc(l.sealed, func(page pagetable.Page, _ bool) bool { return within(page) })
	for page := range l.before {
		if within(page) {
			l.drop(page)
		}
	}
}
