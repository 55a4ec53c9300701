package node

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"dsmd/node/readahead"
	"dsmd/pagetable"
	"dsmd/protocol"
)

// intake asks for pages: those that threads fault on, and those that they will touch next.
type intake struct {
	drive  *driver
	meter  *meter
	quorum *quorum
	pins   *pins
	room   *room

	threads    readahead.Threads
	neighbours readahead.Neighbours
	extents    readahead.Extents
	predictor  predictor
	causes     readahead.Causes
	window     window
	waiters    waiters

	parked   []*pagetable.Event          // faults that wait until a page may be asked for, in order
	known    map[parker]*pagetable.Event // what is in parked: a thread that waits is reported again
	held     map[pagetable.Page]int      // how many of them are on a page, if any
	parkedBy map[pagetable.ProcID]int    // how many of them are a program's, if any

	// more is for which pages a thread needs more access than was asked for, and how much: the
	// engine asks for it when that is here.
	more map[pagetable.Page]protocol.Access
}

// parker is whose fault is parked. A thread waits for one page at a time: one that is
// parked for another has left the first. Where it is not known who has come, page and write tell.
type parker struct {
	proc   pagetable.ProcID
	thread uint32
	page   pagetable.Page
	write  bool
}

func parkerOf(ev *pagetable.Event) parker {
	if ev.Thread == 0 {
		return parker{ev.Proc, 0, ev.Page, ev.Write}
	}
	return parker{proc: ev.Proc, thread: ev.Thread}
}

// maxParked bounds the faults of a program that are parked, some 10 MB: under sigsegv a program can
// invent threads. A program in Go has at most 10,000 by default.
const maxParked = 1 << 16

var errManyThreads = fmt.Errorf("more than %d of its threads wait for pages that may not be asked for yet", maxParked)

var errForeignPage = errors.New("it has put a page under the trap of a reactor that does not serve it")

func newIntake(d *driver, p *pins, q *quorum, predict bool) *intake {
	t := &intake{drive: d, meter: d.exec.meter, quorum: q, pins: p,
		window: newWindow(d.exec.table.PageBytes()), waiters: newWaiters(), known: map[parker]*pagetable.Event{},
		held: map[pagetable.Page]int{}, parkedBy: map[pagetable.ProcID]int{}, more: map[pagetable.Page]protocol.Access{}}
	t.predictor.intake = t
	if predict {
		t.predictor.trail = readahead.NewTrail()
	}
	return t
}

// fault deals with a fault of a thread.
func (t *intake) fault(ev *pagetable.Event) { t.take(ev, false) }

// take deals with a fault, which may have been parked, and is noted then.
func (t *intake) take(ev *pagetable.Event, wasParked bool) {
	if !t.drive.partition.has(ev.Page) {
		if p := t.pins.programs.byID[protocol.ClientID(ev.Proc)]; p != nil {
			p.cutOff(errForeignPage)
		}
		return
	}
	t.predictor.follow() // cues that came before
	if t.pins.settles(ev) {
		if wasParked && !t.isParked(ev.Page) {
			t.abandon(ev.Page)
		}
		return
	}
	engine := t.drive.engine
	id := protocol.PageObject(uint64(ev.Page))
	access := protocol.Read
	if ev.Write {
		access = protocol.Write
	}
	has := engine.Access(id)
	if t.quorum.lost() {
		t.park(ev, has, access, wasParked)
		return
	}
	noted := wasParked && t.meter.waits.areFor(ev.Page, has < access)
	spilled := t.room.isSpilled(ev.Page)
	if (has < access || spilled) && !engine.Waiting(id) && !t.mayAsk() && (has == protocol.None || spilled || !t.withinWindow()) {
		if t.park(ev, has, access, wasParked) {
			t.meter.count.parkedFaults.Add(1)
		}
		return
	}
	asks := has < access && !engine.Waiting(id)
	miss, predicted := t.predictor.touched(ev, has, access)
	learned := predicted || asks && !engine.Protected(id)
	miss.Reach = t.request(ev, miss, has, predicted)
	if has == protocol.None {
		t.waiters.note(ev.Page, ev.Proc)
		t.drive.origins.wanted(ev.Page, access)
	}
	if has < access && !noted {
		t.meter.await(ev, has, access)
	}
	t.drive.step(protocol.Event{Kind: protocol.EventFault, Object: id, Access: access, Client: protocol.ClientID(ev.Proc),
		Thread: ev.Thread, Offset: ev.Offset})
	t.awaits(ev, has, access, noted)
	if asks {
		t.explain(ev.Page, has)
	}
	if learned {
		t.predictor.missed(miss, ev.Proc)
	}
}

// request counts a fault on a page to which this node has some access, and asks for what the thread
// will touch after it. It returns what that was.
func (t *intake) request(ev *pagetable.Event, m readahead.Miss, has protocol.Access, predicted bool) (reach readahead.Reach) {
	engine, id := t.drive.engine, protocol.PageObject(uint64(ev.Page))
	switch {
	case has >= m.Access && !t.room.isSpilled(ev.Page):
		t.meter.count.maps.Add(1)
		// Else a run of pages would seem to end here.
		if predicted && t.threads.Expected(ev.Thread, t.drive.partition.index(ev.Page), m.Access) {
			reach = t.ahead(ev, m.Has, m.Access)
		}
	case has < m.Access && protocol.Awaits(engine, id) && t.causes.Waited(ev.Page):
		t.meter.count.remote[readahead.Late].Add(1)
		t.meter.asked(ev.Page)
		if protocol.Requested(engine, id) < m.Access {
			t.more[ev.Page] = m.Access
		}
	case has < m.Access && engine.Waiting(id) && protocol.Requested(engine, id) < m.Access:
		t.more[ev.Page] = m.Access // it is counted then
	case engine.Waiting(id):
		t.meter.count.duplicates.Add(1)
	case has >= m.Access:
		t.meter.count.maps.Add(1)
		reach = t.ahead(ev, protocol.None, m.Access)
	default:
		t.meter.countMiss(has, m.Access)
		t.meter.asked(ev.Page)
		reach = t.ahead(ev, has, m.Access)
	}
	return reach
}

// askedForMore counts what the engine has asked for after less has come, if a thread needs it: the
// thread may come again for it later, or never.
func (t *intake) askedForMore(page pagetable.Page) {
	access, is := t.more[page]
	if !is {
		return
	}
	engine, id := t.drive.engine, protocol.PageObject(uint64(page))
	switch has := engine.Access(id); {
	case protocol.Wanted(engine, id) >= access:
		t.meter.countMiss(has, access)
		t.meter.asked(page)
		t.explain(page, has)
	case has < access && engine.Waiting(id):
		return // not yet
	}
	delete(t.more, page)
}

// explain counts a miss for which this node has asked, by why other nodes have to do with it, if
// they have.
func (t *intake) explain(page pagetable.Page, had protocol.Access) {
	t.causes.Waited(page)
	if !protocol.Awaits(t.drive.engine, protocol.PageObject(uint64(page))) {
		t.meter.count.alone.Add(1)
		return
	}
	t.meter.count.remote[t.causes.Of(page, had)].Add(1)
}

// freed forgets pages whose memory is free.
func (t *intake) freed(first pagetable.Page, count uint64) {
	maps.DeleteFunc(t.more, func(page pagetable.Page, _ protocol.Access) bool { return page >= first && uint64(page-first) < count })
}

// awaits notes for what a thread waits now, or that it does not.
func (t *intake) awaits(ev *pagetable.Event, has, access protocol.Access, noted bool) {
	switch {
	case has < access && !t.drive.engine.Waiting(protocol.PageObject(uint64(ev.Page))):
		t.forget(ev.Page) // it is here already, or is being freed: nothing will come of it
	case has >= access && !noted && protocol.Operation(t.drive.engine, protocol.PageObject(uint64(ev.Page))) != 0:
		t.meter.await(ev, has, access) // for a disk, for instance
	}
}

// isParked is whether a fault on a page is parked.
func (t *intake) isParked(page pagetable.Page) bool { return t.held[page] > 0 }

// abandon forgets who waits for a page if nothing will end that any more. Preconditions: no fault
// on it is parked.
func (t *intake) abandon(page pagetable.Page) {
	if !t.isUnderWay(page) {
		t.meter.forget(page)
		delete(t.meter.waits.here, page)
	}
}

// isUnderWay is whether something will come of a page: it was asked for, or the page table has
// something to do with it.
func (t *intake) isUnderWay(page pagetable.Page) bool {
	id := protocol.PageObject(uint64(page))
	return t.drive.engine.Waiting(id) || protocol.Operation(t.drive.engine, id) != 0
}

// woken ends the waits for a page that was mapped as it is, or lost. Who is parked, to get more
// access to it, waits on.
func (t *intake) woken(page pagetable.Page, by pagetable.Op) {
	if by == pagetable.OpMap {
		if t.isParked(page) {
			return
		}
		t.meter.settled(page)
	}
	t.forget(page)
}

// mappedIn is the program in which a page is to be mapped that is about to be present.
func (t *intake) mappedIn(page pagetable.Page) pagetable.ProcID {
	proc := t.waiters.take(page)
	if t.predictor.isUntouched(page) {
		return pagetable.AllProcs
	}
	return proc
}

// forget forgets that somebody waits for a page.
func (t *intake) forget(page pagetable.Page) {
	t.meter.forget(page)
	t.waiters.drop(page)
}

// ahead asks for the pages that a thread will touch after the one that it has missed. The caller
// asks for the missed page itself afterwards: it then arrives last, and the thread does not fault
// on those that are still on their way.
//
// With several reactors a thread that has come to the end of a stripe will come to the next one of
// this reactor, after those of the others: they follow each other here.
//
// missed is the access that this node has to that page. Where a thread stores to pages that are
// here for reading, the window ends with them: the next page is in use elsewhere, and would be
// taken away for nothing.
func (t *intake) ahead(ev *pagetable.Event, missed, access protocol.Access) (reach readahead.Reach) {
	if ev.Thread == 0 {
		return reach // the kernel does not say whose fault it is
	}
	engine, own := t.drive.engine, t.drive.partition
	s := t.threads.Missed(ev.Thread, own.index(ev.Page), access)
	if s.Window == 0 && access == protocol.Write {
		t.askNeighbours(ev)
	}
	first, end := own.indexes(t.extents.Of(ev.Page))
	window := s.Window
	reach.Stride, reach.Access = int16(s.Stride()), access
	if t.drive.origins.find(ev.Page) != nil {
		window *= fromFiles
	}
	for range window {
		next := s.Next()
		if next < first || next >= end || !t.mayGuess() {
			return reach
		}
		s.Skip()
		page := own.at(next)
		id := protocol.PageObject(uint64(page))
		has := engine.Access(id)
		switch {
		case has >= access || engine.Waiting(id):
			if has > protocol.None && t.room.isSpilled(page) {
				t.drive.step(protocol.Event{Kind: protocol.EventFault, Object: id, Access: protocol.Read, Client: protocol.ClientID(ev.Proc)})
			}
			reach.Pages++
			continue
		case has < missed:
			return reach
		}
		reach.Pages++
		t.meter.count.aheadPages.Add(1)
		t.fetch(page, access, ev.Proc)
	}
	return reach
}

// fromFiles is how many times as many pages are asked for ahead where they may have to come from a
// disk, which takes longer, and has more of them at a time.
const fromFiles = 4

// askNeighbours asks for the neighbours of a page that a thread has missed, if this node has its
// group lease. The caller asks for that page itself.
func (t *intake) askNeighbours(ev *pagetable.Event) {
	engine := t.drive.engine
	lease := engine.GroupLease()
	if lease == 0 {
		return
	}
	first, end, fresh := t.neighbours.Missed(ev.Page, lease, func(page pagetable.Page) bool {
		return page != ev.Page && engine.Waiting(protocol.PageObject(uint64(page)))
	})
	if fresh {
		t.meter.count.groupLeases.Add(1)
	}
	x, own := t.extents.Of(ev.Page), t.drive.partition
	for page := max(first, x.First); page < min(end, x.End); page++ {
		id := protocol.PageObject(uint64(page))
		if page == ev.Page || !own.has(page) || engine.Access(id) == protocol.Write || engine.Waiting(id) || !t.mayGuess() {
			continue
		}
		t.meter.count.neighbourPages.Add(1)
		t.fetch(page, protocol.Write, ev.Proc)
	}
}

// fetch asks for a page that no thread has faulted on, to be mapped in proc. It returns false if
// the page is being freed: then it will not come.
func (t *intake) fetch(page pagetable.Page, access protocol.Access, proc pagetable.ProcID) bool {
	engine := t.drive.engine
	id := protocol.PageObject(uint64(page))
	if engine.Access(id) == protocol.None {
		t.waiters.note(page, proc)
		t.drive.origins.wanted(page, access)
	}
	if !engine.Waiting(id) {
		t.causes.Guessed(page)
	}
	ev := protocol.Event{Kind: protocol.EventFault, Object: id, Access: access}
	if t.room.isSpilled(page) { // else nobody would bring it back that is not asked for more access
		ev.Client = protocol.ClientID(proc)
	}
	t.drive.step(ev)
	if engine.Access(id) >= access || engine.Waiting(id) {
		return true
	}
	t.waiters.drop(page)
	return false
}

// mayAsk is whether another page may be asked for that somebody waits for, and that is not here.
func (t *intake) mayAsk() bool { return t.withinWindow() && t.room.has() }

// withinWindow is whether more may be asked for.
func (t *intake) withinWindow() bool { return t.drive.engine.Wanted() < t.window.most }

// mayGuess is whether another page may be asked for that a thread will want, as it seems. Pages
// that come back from files count, too: another node may have to read them.
func (t *intake) mayGuess() bool {
	asked := t.drive.engine.Wanted() + t.drive.exec.store.Loading()
	return asked < min(2*t.window.ahead, t.window.most) && t.room.hasMuch()
}

// park keeps a fault until a page may be asked for. Its thread waits from here on, and for nothing
// else. One that was parked, and let in too early, is the first again. It returns whether the fault
// is new.
func (t *intake) park(ev *pagetable.Event, has, access protocol.Access, wasParked bool) (fresh bool) {
	as := parkerOf(ev)
	at := t.known[as]
	if at == nil && t.parkedBy[ev.Proc] >= maxParked {
		if p := t.pins.programs.byID[protocol.ClientID(ev.Proc)]; p != nil {
			p.cutOff(errManyThreads)
		}
		return false
	}
	fresh = !wasParked && (at == nil || at.Page != ev.Page || at.Write != ev.Write)
	if !wasParked || !t.meter.waits.areFor(ev.Page, has < access) {
		t.meter.await(ev, has, access) // also of one that is known: it has come again
	}
	if at != nil {
		left := at.Page
		*at = *ev
		t.held[ev.Page]++
		t.left(left)
		return fresh
	}
	at = new(*ev)
	if wasParked {
		t.parked = slices.Insert(t.parked, 0, at)
	} else {
		t.parked = append(t.parked, at)
	}
	t.known[as] = at
	t.held[ev.Page]++
	t.parkedBy[ev.Proc]++
	return fresh
}

// left notes that a thread whose fault is parked does not wait for a page any more.
func (t *intake) left(page pagetable.Page) {
	drop(t.held, page)
	if !t.isParked(page) && !t.isUnderWay(page) {
		t.meter.settled(page)
		t.abandon(page)
	}
}

// unpark forgets that a fault is parked. The caller takes it from the list.
func (t *intake) unpark(ev *pagetable.Event) {
	delete(t.known, parkerOf(ev))
	drop(t.held, ev.Page)
	drop(t.parkedBy, ev.Proc)
}

// canLetIn is whether a parked fault can go on.
func (t *intake) canLetIn() bool { return len(t.parked) > 0 && !t.quorum.lost() && t.mayAsk() }

// letIn goes on with parked faults, in the order in which they came.
func (t *intake) letIn() (any bool) {
	for ; t.canLetIn(); any = true {
		t.retry()
	}
	if any {
		t.drive.end()
	}
	return any
}

// retry goes on with the first fault that is parked. Preconditions: there is one.
func (t *intake) retry() {
	ev := t.parked[0]
	t.parked[0] = nil
	t.parked = t.parked[1:]
	t.unpark(ev)
	t.take(ev, true)
}

// dropProgram forgets the faults of a program that has gone.
func (t *intake) dropProgram(id protocol.ClientID) {
	var pages []pagetable.Page
	t.parked = slices.DeleteFunc(t.parked, func(ev *pagetable.Event) bool {
		mine := protocol.ClientID(ev.Proc) == id
		if mine {
			t.unpark(ev)
			pages = append(pages, ev.Page)
		}
		return mine
	})
	for _, page := range pages {
		if !t.isParked(page) {
			t.abandon(page)
		}
	}
}

// drop counts one down, and forgets what is at none.
func drop[K comparable](counts map[K]int, of K) {
	if counts[of]--; counts[of] == 0 {
		delete(counts, of)
	}
}
