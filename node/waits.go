package node

import (
	"time"

	"dsmd/internal/faultlog"
	"dsmd/pagetable"
	"dsmd/protocol"
)

// wait is a page that threads of this node wait for. The latencies, the tolls and the log are told
// of it when it has ended.
type wait struct {
	missed   bool            // a thread has missed the page, and not only joined who asked for it
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

// missed notes that the node waits from here on for the page of a fault.
func (m *meter) missed(ev *pagetable.Event, has, access protocol.Access) {
	m.countMiss(has, access)
	w := m.waits[ev.Page]
	w.missed, w.asked, w.grant = true, m.clock.now, 0
	m.await(&w, ev, has, access)
}

// joined notes a fault on a page that the node waits for already.
func (m *meter) joined(ev *pagetable.Event, has, access protocol.Access) {
	m.count.duplicates.Add(1)
	w := m.waits[ev.Page]
	m.await(&w, ev, has, access)
}

// await notes that a thread waits for a page.
func (m *meter) await(w *wait, ev *pagetable.Event, has, access protocol.Access) {
	if w.join(ev, m.clock.now) && m.log.isKept() {
		w.faults = m.log.fault(w.faults, ev, accessOf(has, access), m.clock.now)
	}
	m.waits[ev.Page] = *w
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
