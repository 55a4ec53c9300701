package node

import (
	"sync/atomic"

	"dsmd/internal/attach"
	"dsmd/node/readahead"
	"dsmd/pagetable"
	"dsmd/protocol"
)

// fetch is a program's open Prefetch or Pin call: a run of pages, of which a window is asked for at
// a time.
type fetch struct {
	p         *program
	ticket    uint64
	access    protocol.Access
	next, end pagetable.Page // not yet looked at
	missing   int            // asked for and not here yet
	over      bool           // answered, or its program is gone
	ready     bool           // fetcher.ready has it
	freed     bool           // one of its pages is being freed
	lost      string         // why one of its pages will not come; "": nothing of the kind
	pin       *pin           // of a Pin call: what it has pinned so far
}

// fetchWindow is how many pages of one call are on their way at a time: enough to fill the
// network's pipe (1 MiB), few enough that a thread's own fault does not wait long behind them. All
// calls together have a window, too: see window.
const fetchWindow = readahead.MaxWindow

// fetchTurn is how many pages of a call are looked at before the reactor looks at other things. A
// call may name every page of the region, and pages that are here, or have their home here, fill no
// window.
const fetchTurn = 64

// fetcher works on the open Prefetch and Pin calls.
type fetcher struct {
	drive  *driver
	intake *intake
	pins   *pins
	meter  *meter

	byPage map[pagetable.Page][]*fetch // that wait for a page
	ready  []*fetch                    // that can go on, in order of their turns; each once
}

func newFetcher(t *intake) *fetcher {
	return &fetcher{drive: t.drive, intake: t, pins: t.pins, meter: t.meter, byPage: map[pagetable.Page][]*fetch{}}
}

// start begins a Prefetch call.
func (g *fetcher) start(p *program, c *attach.Call) {
	g.count(p, &g.meter.count.prefetches)
	g.begin(p, c)
}

// startPin begins a Pin call. It is a prefetch that at its end pins the pages one after the other,
// ascending, and fetches again what was lost meanwhile. As all do it in that order, none waits for
// one that waits for it.
func (g *fetcher) startPin(p *program, c *attach.Call) {
	g.count(p, &g.meter.count.pins)
	// It may have more pinned than it could now, for a bound can be lowered.
	pages, ok := g.pagesOf(c)
	if !ok { // begin says so, unless they are too many in any case
		pages = int(min(c.Count, maxPinned+1))
	}
	if pages > max(g.intake.room.pinnable()-p.pinned, 0) {
		p.answer(&attach.Reply{Ticket: c.Ticket, Status: attach.StatusNoSpace})
		return
	}
	g.count(p, &g.meter.count.prefetches)
	if f := g.begin(p, c); f != nil {
		f.pin = &pin{first: f.next, held: f.next, end: f.end, access: f.access}
		p.pinned += pages
		g.pins.open = append(g.pins.open, f.pin)
	}
}

// count counts a call, once where several reactors have a part in it.
func (g *fetcher) count(p *program, calls *atomic.Uint64) {
	if p.relay == nil {
		calls.Add(1)
	}
}

// pagesOf is how many of the pages of a call this reactor serves; false: not all are of the region.
func (g *fetcher) pagesOf(c *attach.Call) (pages int, ok bool) {
	if all := g.drive.exec.table.Pages(); c.Object >= all || c.Count > all-c.Object {
		return 0, false
	}
	return g.drive.partition.pages(pagetable.Page(c.Object), pagetable.Page(c.Object+c.Count)), true
}

func (g *fetcher) begin(p *program, c *attach.Call) *fetch {
	if _, ok := g.pagesOf(c); !ok {
		p.answer(&attach.Reply{Ticket: c.Ticket, Status: attach.StatusUnknown})
		return nil
	}
	partition := g.drive.partition
	f := &fetch{p: p, ticket: c.Ticket, access: protocol.Access(c.Access),
		next: partition.next(pagetable.Page(c.Object)), end: pagetable.Page(c.Object + c.Count)}
	p.fetches[c.Ticket] = f
	g.goOn(f)
	return f
}

// goOn puts a call in line.
func (g *fetcher) goOn(f *fetch) {
	if !f.ready && !f.over {
		f.ready = true
		g.ready = append(g.ready, f)
	}
}

// canGoOn is whether there is a call that can go on.
func (g *fetcher) canGoOn() bool {
	return len(g.ready) > 0 && !g.intake.quorum.lost() && g.intake.mayAsk()
}

// more lets one of the calls that can go on have its turn, if there is one.
func (g *fetcher) more() bool {
	if !g.canGoOn() {
		return false
	}
	f := g.ready[0]
	g.ready = append(g.ready[:0], g.ready[1:]...)
	f.ready = false
	g.fill(f)
	g.drive.end()
	return true
}

// mayAsk is whether a call may ask for another page. One that waits for none may in any case: what
// others wait for may be with a node that is slow or stopped, or pinned until this very call is
// answered.
func (g *fetcher) mayAsk(f *fetch) bool {
	return (f.missing == 0 || len(g.byPage) < g.intake.window.ahead) && g.intake.mayAsk()
}

// fill asks for the next pages as far as the window allows, and answers the call when all are here.
func (g *fetcher) fill(f *fetch) {
	for looked := 0; f.next < f.end && f.missing < fetchWindow; looked++ {
		switch may := g.mayAsk(f); {
		case !may && f.missing > 0:
			return // it goes on when one of its pages has come
		case !may, looked == fetchTurn:
			g.goOn(f)
			return
		}
		page := f.next
		f.next = g.drive.partition.next(page + 1)
		if g.drive.engine.Access(protocol.PageObject(uint64(page))) >= f.access && !g.intake.room.isSpilled(page) {
			g.intake.room.used(page) // room for the others is not made at its cost
			continue
		}
		g.meter.count.prefetchedPages.Add(1)
		f.missing++
		g.byPage[page] = append(g.byPage[page], f)
		if !g.intake.fetch(page, f.access, pagetable.ProcID(f.p.id)) {
			f.freed = true
			g.came(page) // there is nothing to wait for
		}
	}
	switch {
	case f.next < f.end || f.missing > 0 || f.over:
	case f.lost != "":
		g.end(f, attach.StatusNodeLost)
	case f.pin == nil:
		g.end(f, attach.StatusOK)
	case f.freed:
		g.end(f, attach.StatusUnknown)
	default:
		g.pin(f)
	}
}

// pin pins the pages of a call that has fetched them. It goes on fetching if one was lost
// meanwhile.
func (g *fetcher) pin(f *fetch) {
	if !g.pins.grow(f.pin) {
		f.next = f.pin.held
		g.goOn(f)
		return
	}
	f.p.pins[f.ticket] = f.pin
	g.end(f, attach.StatusOK)
}

// came tells the calls that wait for a page that it has come. One that needs more access to it than
// that goes on waiting: the engine asks for more by itself.
func (g *fetcher) came(page pagetable.Page) {
	list, ok := g.byPage[page]
	if !ok {
		return
	}
	engine, id := g.drive.engine, protocol.PageObject(uint64(page))
	has, more := engine.Access(id), engine.Waiting(id)
	kept := list[:0]
	for _, f := range list {
		switch {
		case f.over:
		case has < f.access && more:
			kept = append(kept, f)
		default:
			// A Pin must not ask again later: when the page is free, it would come as new memory.
			f.freed = f.freed || has < f.access && engine.Freeing(id)
			f.missing--
			g.goOn(f)
		}
	}
	if len(kept) > 0 {
		g.byPage[page] = kept
	} else {
		delete(g.byPage, page)
	}
}

// cancel ends a call of a program, if it is open.
func (g *fetcher) cancel(p *program, ticket uint64) bool {
	f := p.fetches[ticket]
	if f != nil {
		g.end(f, attach.StatusCanceled)
	}
	return f != nil
}

// end answers a call. Pages that are still on their way arrive for nothing.
func (g *fetcher) end(f *fetch, status attach.Status) {
	f.over, f.next = true, f.end
	delete(f.p.fetches, f.ticket)
	if f.pin != nil {
		g.pins.answered(f.pin)
		if status != attach.StatusOK {
			g.pins.end(f.p, f.pin)
		}
	}
	r := attach.Reply{Ticket: f.ticket, Status: status}
	if status == attach.StatusNodeLost {
		r.Payload = []byte(f.lost)
	}
	f.p.answer(&r)
}

// dropProgram forgets the calls of a program that has gone, and all that it has pinned.
func (g *fetcher) dropProgram(p *program) {
	for _, f := range p.fetches {
		f.over, f.next = true, f.end
		if f.pin != nil {
			g.pins.answered(f.pin)
			g.pins.release(f.pin)
		}
	}
	for _, held := range p.pins {
		g.pins.release(held)
	}
	p.fetches, p.pins = nil, nil
}
