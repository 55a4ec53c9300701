package node

import (
	"fmt"
	"time"

	"dsmd/internal/netio"
	"dsmd/pagetable"
	"dsmd/protocol"

	"go.uber.org/zap"
)

const (
	// framesPerTurn and faultsPerTurn bound what is taken from one source before the others are
	// looked at and what was sent is flushed.
	framesPerTurn = 64
	faultsPerTurn = 64
	// acceptsPerTurn is how many programs are let in, or sent away, before the others are looked
	// at. Anybody on the machine may connect again and again, and each takes some 20 µs.
	acceptsPerTurn = 4
	// looksPerCheck is how often faults, frames and calls on control pages are looked for before
	// epoll is asked about everything else. What programs say through their sockets comes after a
	// wake-up, or waits for nobody else; a microsecond more does not show there.
	looksPerCheck = 4
)

// Tokens of the reactor's descriptors in epoll. Programs have theirs, from 1.
const (
	tokenTable = -1 - iota
	tokenNet
	tokenAccept
	tokenWake
	tokenDisk
	tokenStorage
	tokenLine // and below: a program's second socket
)

// loop is the reactor. It deals with what is there; when nothing is, it polls on for a while, then
// sleeps.
type loop struct {
	log   *zap.Logger
	clock *clock
	meter *meter
	end   *ending
	table pagetable.Table

	in       *inbox
	out      *outbox
	drive    *driver
	intake   *intake
	fetcher  *fetcher
	pins     *pins
	room     *room
	usage    *usage
	saver    *checkpointer
	programs *programs
	members  *members
	news     *news

	poller   *netio.Poller
	spin     spinner
	priority priority
	events   []pagetable.Event
	spare    bool                 // the last look did what nobody waits for
	moveCore func() (bool, error) // netio.ChangeCore: a seam for tests
}

// run runs until the node ends.
//
// Nothing is looked at between the last event and the sleep that need not be: on a machine whose
// cores are all busy, the thread that was just woken, here or on a peer, waits for the core that
// the reactor is on.
func (l *loop) run() {
	idle := false           // the look before this one found nothing
	var since time.Duration // when what happened last had been dealt with
	for look := 1; l.end.goesOn(); look++ {
		before := l.clock.now
		l.clock.tick()
		now := l.clock.now
		l.priority.worked(now)
		// Only the time from one vain look to the next is polling. A look that found something may
		// have taken long, which neither uses up the time for polling nor says that the core was
		// taken away.
		if !idle {
			since = now
		} else if l.spin.looked(now, now-before, l.programs.replyAwaited(), netio.Displaced) {
			l.changeCore()
		}
		if now-since >= l.spin.Until(now) && !l.isDue(now) {
			l.sleep()
			idle, look = false, 0
			continue
		}
		if idle {
			l.priority.polls(now)
		}
		if idle = !l.look(look%looksPerCheck == 0); idle || l.programs.replies.put || l.spare {
			// The thread that was just woken, or that looks for its reply, may wait for this very
			// core, and the scheduler lets it wait until this one's slice is over, some
			// milliseconds.
			l.programs.replies.put, l.spare = false, false
			netio.Yield()
		}
	}
}

// isDue is whether there is something to do, or soon, for which no descriptor calls.
func (l *loop) isDue(now time.Duration) bool {
	return l.news.some.Load() || l.drive.leases.soon(now) || l.fetcher.canGoOn() || l.intake.canLetIn() || l.intake.predictor.isDue() || l.room.isDue() ||
		l.usage.isDue() || l.saver.isDue() || l.saver.table.Due()
}

// changeCore moves the reactor's thread. Where that is forbidden, it stays where it is.
func (l *loop) changeCore() {
	if moved, err := l.moveCore(); err != nil {
		l.log.Debug("the reactor cannot choose its core", zap.Error(err))
	} else if moved {
		l.meter.count.moves.Add(1)
	}
}

// look looks at calls on control pages, faults, frames and timers, with check also at everything
// else, and deals with what is there. It returns whether anything was.
func (l *loop) look(check bool) bool {
	busy := l.obey() // first: what another reactor knows may be about what comes next
	busy = l.programs.pollBoxes() || busy
	if l.programs.trapped > 0 || l.saver.table.Due() { // without a program there are no faults
		busy = l.pollTable() || busy
	}
	busy = l.pollNet() || busy
	busy = l.drive.storage.heard() || busy
	busy = l.fireTimers() || busy
	busy = l.members.tick() || busy
	busy = l.programs.inquiries.tick() || busy
	busy = l.room.make() || busy
	busy = l.intake.letIn() || busy
	busy = l.intake.predictor.follow() || busy
	busy = l.fetcher.more() || busy
	busy = l.usage.more() || busy
	l.spare = l.saver.more()
	busy = l.spare || busy
	if check {
		l.meter.log.tick(l.clock.now)
		l.programs.door.tick(l.clock.now, l.log)
		l.out.flush() // a peer that waits for a page need not wait for what epoll says as well
		busy = l.serveReady(l.poller.Check()) || busy
	}
	if !busy || check { // who has much to do must not keep others waiting for ever either
		l.out.hurry()
	}
	l.out.flush()
	if l.drive.partition.number > 0 {
		l.drive.noteLease()
	}
	return busy
}

// sleep waits until a descriptor is ready or a timer is due, and deals with that.
func (l *loop) sleep() {
	armed := l.out.net.Arm()
	l.out.left() // Arm flushes
	if armed || !l.programs.leaveBoxes() {
		l.programs.watchBoxes()
		l.look(true)
		return
	}
	l.meter.count.sleeps.Add(1)
	l.drive.gauge()
	if protocol.Invariants {
		l.drive.verifyIdle()
	}
	before := l.clock.read()
	l.priority.sleeps(before)
	ready := l.priority.wait(l.poller, l.dueIn(before))
	l.clock.tick()
	l.priority.wakes(l.clock.now)
	l.programs.watchBoxes()
	l.spin.Slept(l.clock.now - before)
	l.obey()
	l.serveReady(ready)
	l.fireTimers()
	l.members.tick()
	l.programs.inquiries.tick()
	l.end.tick()
	l.meter.log.tick(l.clock.now)
	l.programs.door.tick(l.clock.now, l.log)
	l.out.flush()
}

// dueIn is after how long something is to be done by itself; negative: nothing is.
func (l *loop) dueIn(now time.Duration) time.Duration {
	in := sooner(l.end.tickIn(now), l.members.tickIn(now))
	in = sooner(in, sooner(l.drive.leases.timeout(now), l.pins.breaks.timeout(now)))
	in = sooner(in, l.meter.log.tickIn(now))
	in = sooner(in, l.programs.inquiries.tickIn(now))
	in = sooner(in, l.programs.door.tickIn(now))
	return sooner(in, l.room.tickIn(now))
}

func (l *loop) pollTable() bool {
	got, err := l.table.Poll(l.events)
	if err != nil {
		l.end.breakDown(fmt.Errorf("node: read faults: %w", err))
		return false
	}
	for i := range l.events[:got] {
		l.tableEvent(&l.events[i])
	}
	l.drive.end()
	return got > 0
}

// tableEvent deals with a fault or the end of a page table operation.
func (l *loop) tableEvent(ev *pagetable.Event) {
	switch ev.Kind {
	case pagetable.Fault:
		l.meter.passed(ev.Page, StageFault, noOp)
		l.intake.fault(ev)
	case pagetable.Completed:
		if ev.Err != nil {
			l.end.breakDown(fmt.Errorf("node: page %d: %w", ev.Page, ev.Err))
			return
		}
		if !l.pins.mapped(ev) {
			l.drive.exec.finish(ev.Op, ev.Page)
			l.drive.drain()
		}
	case pagetable.ProcGone:
		l.programs.gone(protocol.ClientID(ev.Proc), ev.Err)
	}
}

func (l *loop) pollNet() bool {
	got, err := l.out.net.Poll(l.in, framesPerTurn)
	l.drive.end()
	if err != nil {
		l.end.breakDown(fmt.Errorf("node: receive: %w", err))
	}
	return got > 0
}

// fireTimers ends the leases and breaks the pins whose time has come.
func (l *loop) fireTimers() (fired bool) {
	leases, breaks := &l.drive.leases, &l.pins.breaks
	if len(leases.list)+len(breaks.list) == 0 {
		return false
	}
	for id, ok := leases.due(l.clock.now); ok; id, ok = leases.due(l.clock.now) {
		fired = true
		l.drive.step(protocol.Event{Kind: protocol.EventHoldOver, Object: id})
	}
	for id, ok := breaks.due(l.clock.now); ok; id, ok = breaks.due(l.clock.now) {
		fired = true
		l.pins.expire(pagetable.Page(id.Page()))
	}
	l.drive.end()
	return fired
}

// serveReady deals with the descriptors that the poller found ready. It returns whether anything
// was there.
func (l *loop) serveReady(ready int) (busy bool) {
	for i := range ready {
		switch r := l.poller.At(i); r.Token {
		case tokenTable:
			// Also without a program: operations that began while there was one end here.
			busy = l.pollTable() || busy
		case tokenNet:
			busy = l.pollNet() || busy
		case tokenAccept:
			busy = l.programs.accept() || busy
		case tokenWake:
			l.hear()
			busy = l.obey() || busy // the descriptor will not tell of these again
		case tokenDisk:
			l.saver.heard()
			busy = true
		case tokenStorage:
			busy = l.drive.storage.heard() || busy
		default:
			if r.Token <= tokenLine {
				if p := l.programs.byID[lineOf(r.Token)]; p != nil && p.line != nil {
					l.programs.serveLine(p, r)
					busy = true
				}
			} else if p := l.programs.byID[protocol.ClientID(r.Token)]; p != nil {
				l.programs.serve(p, r)
				busy = true
			}
		}
	}
	return busy
}

// obey does what the daemon's other reactors want, and returns whether that was anything.
func (l *loop) obey() bool {
	if !l.news.some.Load() {
		return false
	}
	for _, f := range l.news.told() {
		f()
	}
	l.drive.end()
	return true
}

// hear deals with what other goroutines have to tell.
func (l *loop) hear() {
	peers, ranks, memory, stopped := l.news.take()
	l.end.stopped = l.end.stopped || stopped
	if memory > 0 {
		l.room.resize(memory)
	}
	l.members.roster.died(ranks)
	for _, f := range peers {
		// The transport reports the loss, with this reason, unless it has done so before.
		l.out.net.Disconnect(f.peer, f.err)
	}
}
