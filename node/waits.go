package node

import (
	"time"

	"dsmd/internal/faultlog"
	"dsmd/pagetable"
	"dsmd/protocol"
)

// wait is a page that threads of this node wait for, whatever for: until it may be asked for, until
// it comes, or, if it is here, until it is in memory and mapped. The latencies, the tolls and the
// log are told of it when it has ended.
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
	last  uint32        // who has come last, and is not counted again
}

// join adds a thread. It returns false if that has come before.
func (q *queue) join(ev *pagetable.Event, now time.Duration) bool {
	if q.threads == 0 {
		q.proc, q.first = ev.Proc, now
	} else if q.last == ev.Thread {
		return false // the same fault again
	}
	q.begin(now)
	q.last = ev.Thread
	return true
}

// asked notes that the node asks for the page of a fault now, or that it has before and is waited
// for from now on.
func (m *meter) asked(page pagetable.Page) {
	w := m.waits[page]
	w.missed, w.asked, w.grant = true, m.clock.now, 0
	m.waits[page] = w
}

// await notes that a thread waits for a page. The log is of what goes on between nodes, so it is
// not told of a page that is here.
func (m *meter) await(ev *pagetable.Event, has, access protocol.Access) {
	w := m.waits[ev.Page]
	if w.join(ev, m.clock.now) && has < access && m.log.isKept() {
		w.faults = m.log.fault(w.faults, ev, accessOf(has, access), m.clock.now)
	}
	m.waits[ev.Page] = w
}

// isAwaited is whether threads wait for a page.
func (m *meter) isAwaited(page pagetable.Page) bool {
	_, is := m.waits[page]
	return is
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

// forget notes that nobody waits for a page any more.
func (m *meter) forget(page pagetable.Page) { delete(m.waits, page) }

// granted notes that a node has granted a page that this one waits for, and whether its contents
// came with that.
func (m *meter) granted(page pagetable.Page, from protocol.NodeID, contents bool) {
	if w, ok := m.waits[page]; ok {
		w.grant, w.from, w.contents = m.clock.now, from, contents
		m.waits[page] = w
	}
}

// mapped notes that a page which was here is in memory, and mapped.
func (m *meter) mapped(page pagetable.Page) {
	if w, is := m.waits[page]; is && !w.missed {
		m.clock.tick()
		m.observe(page)
	}
}

// observe notes how long the page was waited for.
func (m *meter) observe(page pagetable.Page) {
	w, ok := m.waits[page]
	if !ok {
		return
	}
	delete(m.waits, page)
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
