package node

import (
	"iter"
	"time"

	"dsmd/internal/faultlog"
	"dsmd/pagetable"
	"dsmd/protocol"
)

// pageWaits are the pages that threads of this node wait for. Of one page some threads may wait for
// more access than the node has, and others until it is in their program as it is.
type pageWaits struct {
	away map[pagetable.Page]wait  // for access: until it may be asked for, and until it comes
	here map[pagetable.Page]queue // for what is here to be in memory, and mapped
}

func newPageWaits() *pageWaits {
	return &pageWaits{away: map[pagetable.Page]wait{}, here: map[pagetable.Page]queue{}}
}

// all are the threads that wait, by page; a page with two kinds of them comes twice.
func (w *pageWaits) all() iter.Seq2[pagetable.Page, queue] {
	return func(yield func(pagetable.Page, queue) bool) {
		for page, x := range w.away {
			if x.threads == 0 {
				continue // it is asked for, and the thread that needs it has yet to come again
			}
			if !yield(page, x.queue) {
				return
			}
		}
		for page, q := range w.here {
			if !yield(page, q) {
				return
			}
		}
	}
}

// are is whether threads wait for a page.
func (w *pageWaits) are(page pagetable.Page) bool {
	_, away := w.away[page]
	_, here := w.here[page]
	return away || here
}

// areFor is whether threads wait for more access to a page, or else until it is in their program.
func (w *pageWaits) areFor(page pagetable.Page, more bool) bool {
	if more {
		return w.away[page].threads > 0
	}
	return w.here[page].threads > 0
}

// some is whether any thread waits.
func (w *pageWaits) some() bool { return len(w.away)+len(w.here) > 0 }

// wait is a page to which threads wait for access. The latencies, the tolls and the log are told of
// it when it has ended.
type wait struct {
	missed   bool            // it was asked for because a thread has missed it
	asked    time.Duration   // missed: since when
	grant    time.Duration   // when it came; 0 until then
	from     protocol.NodeID // who sent the grant; meaningless until it has come
	contents bool            // came with the grant

	queue
	faults []faultlog.Fault // of the threads, while there is a log
}

// queue is the threads that wait for a page.
type queue struct {
	proc pagetable.ProcID // of the first of them, for which all are counted
	running
	first time.Duration // when the first of them came
	// who waits; the others are apart because there are mostly none
	one    comer
	others []comer
}

// comer is a thread that waits.
type comer struct {
	proc   pagetable.ProcID
	thread uint32
	seen   time.Duration // when it came last; a signal has it come again
}

// movedAfter tells threads from a goroutine that moves between them. Go interrupts a goroutine that
// has run for 10 ms, and waiting for a page is running. So a thread that waits comes again every 10
// to 20 ms, or its goroutine comes on another thread. Nobody tells us that the first one does not
// wait any more.
const movedAfter = 5 * time.Millisecond

// join adds a thread. It returns false if that has come before, or for one that has.
func (q *queue) join(ev *pagetable.Event, now time.Duration) bool {
	c := comer{ev.Proc, ev.Thread, now}
	if former := q.former(c); former != nil {
		*former = c
		return false
	}
	if q.threads == 0 {
		q.proc, q.first, q.one = ev.Proc, now, c
	} else {
		q.others = append(q.others, c)
	}
	q.begin(now)
	return true
}

// former is the thread that waits as this one does: itself, or else one of its program that has not
// come again for so long that its goroutine is taken to be here now. nil: there is none. So the
// count is a lower bound: threads that come again in turns, each long after the other, may be one.
func (q *queue) former(c comer) (former *comer) {
	for i := range q.threads {
		x := &q.one
		if i > 0 {
			x = &q.others[i-1]
		}
		switch {
		case x.proc == c.proc && x.thread == c.thread:
			return x
		case x.proc == c.proc && c.seen-x.seen >= movedAfter && (former == nil || x.seen < former.seen):
			former = x
		}
	}
	return former
}

// asked notes that the node asks for the page of a fault now, or that it has before and is waited
// for from now on.
func (m *meter) asked(page pagetable.Page) {
	w := m.waits.away[page]
	w.missed, w.asked, w.grant = true, m.clock.now, 0
	m.waits.away[page] = w
}

// await notes that a thread waits for a page. The log is of what goes on between nodes, so it is
// not told of a page that is here. Who has waited for one that has left meanwhile waits on for it
// to come.
func (m *meter) await(ev *pagetable.Event, has, access protocol.Access) {
	if has >= access {
		q := m.waits.here[ev.Page]
		q.join(ev, m.clock.now)
		m.waits.here[ev.Page] = q
		return
	}
	w := m.waits.away[ev.Page]
	q, left := m.waits.here[ev.Page]
	if left = left && has == protocol.None && w.threads == 0; left {
		w.queue = q
		delete(m.waits.here, ev.Page)
	}
	if w.join(ev, m.clock.now) || left {
		w.faults = m.log.fault(w.faults, ev, accessOf(has, access), m.clock.now)
	}
	m.waits.away[ev.Page] = w
}

// lockIs notes under which lock a fault has happened, unless its wait is over.
func (m *meter) lockIs(of *faultlog.Fault, lock uint64) {
	faults := m.waits.away[pagetable.Page(of.Page)].faults
	for i := range faults {
		if f := &faults[i]; f.Thread == of.Thread && f.PID == of.PID && f.Began == of.Began {
			f.Lock = lock
		}
	}
}

// accessOf is what a fault needs, as the log has it.
func accessOf(has, access protocol.Access) faultlog.Access {
	switch {
	case access == protocol.Read:
		return faultlog.Read
	case has == protocol.None:
		return faultlog.Write
	}
	return faultlog.Upgrade
}

// forget notes that nobody waits for access to a page any more.
func (m *meter) forget(page pagetable.Page) { delete(m.waits.away, page) }

// granted notes that a node has granted a page that this one waits for, and whether its contents
// came with that.
func (m *meter) granted(page pagetable.Page, from protocol.NodeID, contents bool) {
	if w, ok := m.waits.away[page]; ok {
		w.grant, w.from, w.contents = m.clock.now, from, contents
		m.waits.away[page] = w
	}
}

// mapped notes that a page which was here is in memory, and mapped.
func (m *meter) mapped(page pagetable.Page) {
	if q, is := m.waits.here[page]; is {
		m.clock.tick()
		delete(m.waits.here, page)
		m.tolls.pay(page, &q, m.clock.now)
	}
}

// settled notes that threads got a page as it is that had waited until it may be asked for.
func (m *meter) settled(page pagetable.Page) {
	if w, is := m.waits.away[page]; is && !w.missed {
		m.clock.tick()
		m.observe(page)
	}
}

// observe notes that a page has come, or more access to it, and how long that was waited for.
func (m *meter) observe(page pagetable.Page) {
	if q, is := m.waits.here[page]; is { // it came back in another way
		delete(m.waits.here, page)
		m.tolls.pay(page, &q, m.clock.now)
	}
	w, ok := m.waits.away[page]
	if !ok {
		return
	}
	delete(m.waits.away, page)
	m.tolls.pay(page, &w.queue, m.clock.now)
	m.log.ended(&w, m.clock.now)
	if !w.missed {
		return
	}
	total := m.clock.now - w.asked
	m.count.faultNanos.Add(uint64(total))
	m.latency.fault.Observe(total.Seconds())
	if w.grant != 0 {
		m.latency.remote.Observe((w.grant - w.asked).Seconds())
		m.latency.install.Observe((m.clock.now - w.grant).Seconds())
	}
}
