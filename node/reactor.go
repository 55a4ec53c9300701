package node

import (
	"fmt"
	"time"

	"dsmd/internal/agreement"
	"dsmd/internal/netio"
	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport"

	"go.uber.org/zap"
)

const (
	// framesPerTurn and faultsPerTurn (the length of Node.events) bound what is taken from one source
	// before the others are looked at and what was sent is flushed.
	framesPerTurn = 64
	// looksPerCheck is how often faults, frames and calls on control pages are looked for before epoll is asked about everything
	// else. What programs say through their sockets comes after a wake-up, or waits for nobody else; a microsecond more does not show there.
	looksPerCheck = 4
)

// react is the reactor. It deals with what is there; when nothing is, it polls on for a while, then sleeps.
//
// Nothing is looked at between the last event and the sleep that need not be: on a machine whose cores are all
// busy, the thread that was just woken, here or on a peer, waits for the core that the reactor is on.
func (n *Node) react() {
	idle := false           // the look before this one found nothing
	var since time.Duration // when what happened last had been dealt with
	for look := 1; n.broken == nil && !n.stopped; look++ {
		before := n.now
		n.now = n.clock()
		// Only the time from one vain look to the next is polling. A look that found something may have taken long, which
		// neither uses up the time for polling nor says that the core was taken away.
		if !idle {
			since = n.now
		} else if n.spin.looked(n.now, n.now-before, n.replyAwaited(), netio.Displaced) {
			n.changeCore()
		}
		if n.now-since >= n.spin.Until(n.now) && !n.timers.soon(n.now) && !n.canFetch() {
			n.sleep()
			idle, look = false, 0
			continue
		}
		if idle = !n.look(look%looksPerCheck == 0); idle || n.replied {
			// The thread that was just woken, or that looks for its reply, may wait for this very core, and the scheduler lets it wait
			// until this one's slice is over, some milliseconds.
			n.replied = false
			netio.Yield()
		}
	}
}

// changeCore moves the reactor's thread. Where that is forbidden, it stays where it is.
func (n *Node) changeCore() {
	if moved, err := n.moveCore(); err != nil {
		n.log.Debug("the reactor cannot choose its core", zap.Error(err))
	} else if moved {
		n.count.moves.Add(1)
	}
}

func (n *Node) clock() time.Duration { return time.Since(n.start) }

// look looks at calls on control pages, faults, frames and timers, with check also at everything else, deals with what is there, and
// says whether anything was.
func (n *Node) look(check bool) bool {
	busy := n.pollBoxes()
	busy = n.trapped > 0 && n.pollTable() || busy // without a program there are no faults
	busy = n.pollNet() || busy
	busy = n.fireTimers() || busy
	busy = n.tickAgreement() || busy
	busy = n.fetchMore() || busy
	if check {
		n.flush() // a peer that waits for a page need not wait for what epoll says as well
		busy = n.serveReady(n.poller.Check()) || busy
	}
	if !busy || check { // who has much to do must not keep others waiting for ever either
		n.urgent = n.unsent
	}
	n.flush()
	return busy
}

// flush sends what was queued, if somebody waits for it.
func (n *Node) flush() {
	if n.urgent {
		n.net.Flush()
		n.passedOn()
		n.urgent, n.unsent = false, false
	}
}

// sleep waits until a descriptor is ready or a timer is due, and deals with that.
func (n *Node) sleep() {
	n.urgent, n.unsent = false, false // Arm flushes
	armed := n.net.Arm()
	n.passedOn()
	if armed || !n.leaveBoxes() {
		n.watchBoxes()
		n.look(true)
		return
	}
	n.count.sleeps.Add(1)
	n.gauge()
	before := n.clock()
	ready := n.poller.Wait(sooner(sooner(n.farewellIn(before), n.tickIn(before)), sooner(n.timers.timeout(before), n.breaks.timeout(before))))
	n.now = n.clock()
	n.watchBoxes()
	n.spin.Slept(n.now - before)
	n.serveReady(ready)
	n.fireTimers()
	n.tickAgreement()
	n.sayFarewell()
	n.flush()
}

// gauge makes the gauges that are the engine's readable to others.
func (n *Node) gauge() {
	n.count.objects.Store(int64(n.engine.Objects()))
	n.count.pending.Store(int64(n.engine.Pending()))
}

func (n *Node) pollTable() bool {
	got, err := n.table.Poll(n.events)
	if err != nil {
		n.breakDown(fmt.Errorf("node: read faults: %w", err))
		return false
	}
	n.gather()
	for i := range n.events[:got] {
		n.tableEvent(&n.events[i])
	}
	n.settle()
	return got > 0
}

func (n *Node) pollNet() bool {
	n.gather()
	got, err := n.net.Poll(n, framesPerTurn)
	n.settle()
	if err != nil {
		n.breakDown(fmt.Errorf("node: receive: %w", err))
	}
	return got > 0
}

// fireTimers ends the holds and breaks the pins whose time has come, and says whether there were any.
func (n *Node) fireTimers() bool {
	if len(n.timers.list)+len(n.breaks.list) == 0 {
		return false
	}
	fired := false
	n.gather()
	for id, ok := n.timers.due(n.now); ok; id, ok = n.timers.due(n.now) {
		fired = true
		n.step(protocol.Event{Kind: protocol.EventHoldOver, Object: id})
	}
	for id, ok := n.breaks.due(n.now); ok; id, ok = n.breaks.due(n.now) {
		fired = true
		n.breakPin(pagetable.Page(id.Page()))
	}
	n.settle()
	return fired
}

// serveReady deals with the descriptors that the poller found ready, and says whether anything was there.
func (n *Node) serveReady(ready int) bool {
	busy := false
	for i := range ready {
		switch r := n.poller.At(i); r.Token {
		case tokenTable:
			// Also without a program: operations that began while there was one end here.
			busy = n.pollTable() || busy
		case tokenNet:
			busy = n.pollNet() || busy
		case tokenAccept:
			busy = n.acceptPrograms() || busy
		case tokenWake:
			n.woken()
		default:
			if p := n.programs[protocol.ClientID(r.Token)]; p != nil {
				n.serveProgram(p, r)
				busy = true
			}
		}
	}
	return busy
}

// step lets an event happen and carries out what follows. Within carrying out it only queues: what follows
// is then carried out after what was decided before.
func (n *Node) step(ev protocol.Event) {
	ev.Now = protocol.Time(n.now.Microseconds())
	n.effects = n.engine.Step(ev, n.effects)
	n.together(func() {})
}

// together lets several events happen and carries out what follows from all of them afterwards.
func (n *Node) together(events func()) {
	if n.carrying {
		events()
		return
	}
	n.carrying = true
	events()
	for n.done < len(n.effects) {
		f := n.effects[n.done] // a copy: the slice grows meanwhile
		n.done++
		n.carryOut(&f)
	}
	n.effects, n.done, n.carrying = n.effects[:0], 0, false
}

// tableEvent deals with a fault or the end of a page table operation.
func (n *Node) tableEvent(ev *pagetable.Event) {
	switch ev.Kind {
	case pagetable.Fault:
		n.passed(ev.Page, StageFault, noEffect)
		n.fault(ev)
	case pagetable.Completed:
		if ev.Err != nil {
			n.breakDown(fmt.Errorf("node: page %d: %w", ev.Page, ev.Err))
			return
		}
		if len(n.pins) > 0 && n.pinnedMapped(ev) {
			return
		}
		n.operationDone(ev.Page, effectOf[ev.Op])
	case pagetable.ProcGone:
		// If it has ended its socket ends too, and tells whether it left in order.
		id := protocol.ClientID(ev.Proc)
		n.untrap(id)
		if p := n.programs[id]; p != nil && ev.Err != nil {
			n.cutOff(p, ev.Err)
		}
	}
}

// effectOf names the effect that an operation carries out.
var effectOf = [...]protocol.EffectKind{
	pagetable.OpInstall: protocol.EffectInstall, pagetable.OpMakeWritable: protocol.EffectMakeWritable,
	pagetable.OpDowngrade: protocol.EffectDowngrade, pagetable.OpRevoke: protocol.EffectRevoke,
	pagetable.OpMap: protocol.EffectMap, pagetable.OpDrop: protocol.EffectForget, pagetable.OpLose: protocol.EffectLost,
}

func (n *Node) fault(ev *pagetable.Event) {
	if len(n.pins) > 0 && n.faultOnPinned(ev) || n.holdFault(ev) {
		return
	}
	id := protocol.PageObject(uint64(ev.Page))
	access := protocol.Read
	if ev.Write {
		access = protocol.Write
	}
	has := n.engine.Access(id)
	switch {
	case has >= access:
		n.count.maps.Add(1)
	case n.engine.Waiting(id):
		n.count.duplicates.Add(1)
	default:
		n.countMiss(has, access)
		n.waits[ev.Page] = wait{fault: n.now}
		n.ahead(ev, has, access)
	}
	if has == protocol.None {
		n.waiters.note(ev.Page, ev.Proc)
	}
	n.step(protocol.Event{Kind: protocol.EventFault, Object: id, Access: access, Client: protocol.ClientID(ev.Proc),
		Thread: ev.Thread, Offset: ev.Offset})
	if has < access && !n.engine.Waiting(id) {
		// It is here already, or is being freed: then nothing will come of it, and nobody is waited for.
		delete(n.waits, ev.Page)
		n.waiters.drop(ev.Page)
	}
}

func (n *Node) countMiss(has, access protocol.Access) {
	switch {
	case access == protocol.Read:
		n.count.readMisses.Add(1)
	case has == protocol.None:
		n.count.writeMisses.Add(1)
	default:
		n.count.upgrades.Add(1)
	}
}

// Frame implements transport.Handler.
func (n *Node) Frame(from transport.NodeID, control []byte, payload transport.Payload) {
	if n.broken != nil {
		return // a peer that broke the protocol may have more to say
	}
	if control[0]&agreement.Mark != 0 {
		n.survivalFrame(from, control, payload)
		return
	}
	if n.leftOut(from) {
		return
	}
	m, err := protocol.DecodeMessage(control)
	switch {
	case err != nil:
		n.part(from, fmt.Errorf("node: from node %d: %w", from, err))
		return
	case m.From != protocol.NodeID(from):
		n.part(from, fmt.Errorf("node: node %d sent a message in the name of node %d", from, m.From))
		return
	case (payload != nil) != (m.Flags&protocol.FlagData != 0):
		n.part(from, fmt.Errorf("node: node %d sent a %v whose flags %#x do not say whether a page came with it", from, m.Kind, m.Flags))
		return
	case payload != nil && (m.Kind != protocol.Grant && m.Kind != protocol.Backup || m.Object.IsLock() || m.Flags&protocol.FlagZero != 0):
		n.part(from, fmt.Errorf("node: node %d sent a page with a %v for %v with flags %#x, where none belongs", from, m.Kind, m.Object, m.Flags))
		return
	}
	m.To = protocol.NodeID(n.cfg.Self)
	n.passedBy(&m, StageReceived)
	if (m.Kind == protocol.Grant || m.Kind == protocol.Backup) && !m.Object.IsLock() {
		n.noteGrant(&m, payload)
	}
	if m.Object.IsLock() {
		n.recall(m.Object) // every message about a lock that can be taken here says that another node wants it
	}
	n.message = m
	n.step(protocol.Event{Kind: protocol.EventMessage, Message: &n.message})
	n.message.Payload = nil // it dies with the frame
	n.arrived = arrived{}
}

func (n *Node) noteGrant(m *protocol.Message, payload transport.Payload) {
	page := pagetable.Page(m.Object.Page())
	if payload != nil {
		n.count.pagesReceived.Add(1)
		n.arrived = arrived{page, payload}
	}
	if w, ok := n.waits[page]; ok && m.Kind == protocol.Grant {
		w.grant = n.now
		n.waits[page] = w
	}
}

// sooner is the shorter of two timeouts, either of which may be netio.Forever.
func sooner(a, b time.Duration) time.Duration {
	if a < 0 || b >= 0 && b < a {
		return b
	}
	return a
}

// timers are the holds that are running, or the pins that somebody waits for. There are few: one for each page that was just gained, or is
// pinned, and is wanted elsewhere.
type timers struct {
	list []timer
	next time.Duration // when the first is due; meaningless if there are none
}

type timer struct {
	at time.Duration
	id protocol.ObjectID
}

// spinForTimer is how close a timer must be to be polled for; sleeping is not exact to less.
const spinForTimer = 60 * time.Microsecond

func (t *timers) add(at time.Duration, id protocol.ObjectID) {
	if len(t.list) == 0 || at < t.next {
		t.next = at
	}
	t.list = append(t.list, timer{at, id})
}

// due takes out a timer whose time has come.
func (t *timers) due(now time.Duration) (protocol.ObjectID, bool) {
	if len(t.list) == 0 || now < t.next {
		return 0, false
	}
	first := 0
	for i := range t.list {
		if t.list[i].at < t.list[first].at {
			first = i
		}
	}
	if t.next = t.list[first].at; now < t.next {
		return 0, false
	}
	id := t.list[first].id
	t.list[first] = t.list[len(t.list)-1]
	t.list = t.list[:len(t.list)-1]
	return id, true
}

func (t *timers) soon(now time.Duration) bool { return len(t.list) > 0 && t.next-now < spinForTimer }

// timeout is how long the reactor may sleep.
func (t *timers) timeout(now time.Duration) time.Duration {
	if len(t.list) == 0 {
		return netio.Forever
	}
	return max(t.next-now-spinForTimer/2, 0)
}
