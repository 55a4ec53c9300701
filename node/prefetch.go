package node

import (
	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/protocol"
)

// fetch is a program's open Prefetch call: a run of pages, of which a window is asked for at a time.
type fetch struct {
	p         *program
	ticket    uint64
	access    protocol.Access
	next, end pagetable.Page // not yet looked at
	missing   int            // asked for and not here yet
	over      bool           // answered, or its program is gone
	ready     bool           // fetching.ready has it

	// Of a Pin call only, see startPin.
	pin         bool
	freed       bool                    // one of its pages is being freed
	lost        string                  // why one of its pages will not come; "": nothing of the kind
	first, held pagetable.Page          // pages [first, held) are pinned
	broken      map[pagetable.Page]bool // of them, those whose pin was broken
}

// fetchWindow is how many pages of one call are on their way at a time: enough to fill the network's
// pipe (1 MiB), few enough that a thread's own fault does not wait long behind them.
const fetchWindow = 256

// fetchTurn is how many pages of a call are looked at before the reactor looks at other things. A call may name
// every page of the region, and pages that are here, or have their home here, fill no window.
const fetchTurn = 64

// fetching knows which open calls wait for a page, and which can go on.
type fetching struct {
	byPage map[pagetable.Page][]*fetch
	ready  []*fetch // in order of their turns; each once
}

// goOn puts a call in line.
func (g *fetching) goOn(f *fetch) {
	if !f.ready && !f.over {
		f.ready = true
		g.ready = append(g.ready, f)
	}
}

func newFetching() fetching { return fetching{byPage: map[pagetable.Page][]*fetch{}} }

func (n *Node) startFetch(p *program, c *attach.Call) {
	n.count.prefetches.Add(1)
	if c.Object >= n.table.Pages() || c.Count > n.table.Pages()-c.Object {
		n.answer(p, &attach.Reply{Ticket: c.Ticket, Status: attach.StatusUnknown})
		return
	}
	f := &fetch{p: p, ticket: c.Ticket, access: protocol.Access(c.Access),
		next: pagetable.Page(c.Object), end: pagetable.Page(c.Object + c.Count)}
	p.fetches[c.Ticket] = f
	n.fetching.goOn(f)
}

// canFetch says whether there is a call that can go on.
func (n *Node) canFetch() bool { return len(n.fetching.ready) > 0 && !n.survival.blocked }

// fetchMore lets one of the calls that can go on have its turn, and says whether there was one.
func (n *Node) fetchMore() bool {
	g := &n.fetching
	if !n.canFetch() {
		return false
	}
	f := g.ready[0]
	g.ready = append(g.ready[:0], g.ready[1:]...)
	f.ready = false
	n.gather()
	n.fill(f)
	n.settle()
	return true
}

// fill asks for the next pages as far as the window allows, and answers the call when all are here.
// Preconditions: step is not at work.
func (n *Node) fill(f *fetch) {
	for looked := 0; f.next < f.end && f.missing < fetchWindow; looked++ {
		if looked == fetchTurn {
			n.fetching.goOn(f)
			return
		}
		page := f.next
		f.next++
		id := protocol.PageObject(uint64(page))
		if n.engine.Access(id) >= f.access {
			continue
		}
		n.count.prefetchedPages.Add(1)
		f.missing++
		n.fetching.byPage[page] = append(n.fetching.byPage[page], f)
		if !n.fetchPage(page, f.access, pagetable.ProcID(f.p.id)) {
			f.freed = true
			n.fetched(page) // there is nothing to wait for
		}
	}
	switch {
	case f.next < f.end || f.missing > 0 || f.over:
	case f.lost != "":
		n.endFetch(f, attach.StatusNodeLost)
	case f.pin && f.freed:
		n.endFetch(f, attach.StatusUnknown)
	case !f.pin || n.hold(f):
		n.endFetch(f, attach.StatusOK)
	}
}

// fetchPage asks for a page that no thread has faulted on, to be mapped in proc. It returns false if the page is being freed: then
// it will not come.
func (n *Node) fetchPage(page pagetable.Page, access protocol.Access, proc pagetable.ProcID) bool {
	id := protocol.PageObject(uint64(page))
	if n.engine.Access(id) == protocol.None {
		n.waiters.note(page, proc)
	}
	n.step(protocol.Event{Kind: protocol.EventFault, Object: id, Access: access})
	if n.engine.Access(id) >= access || n.engine.Waiting(id) {
		return true
	}
	n.waiters.drop(page)
	return false
}

// fetched tells the calls that wait for a page that it has come. One that needs more access to it than that goes on
// waiting: the engine asks for more by itself.
func (n *Node) fetched(page pagetable.Page) {
	list, ok := n.fetching.byPage[page]
	if !ok {
		return
	}
	id := protocol.PageObject(uint64(page))
	has, more := n.engine.Access(id), n.engine.Waiting(id)
	kept := list[:0]
	for _, f := range list {
		switch {
		case f.over:
		case has < f.access && more:
			kept = append(kept, f)
		default:
			f.missing--
			n.fetching.goOn(f)
		}
	}
	if len(kept) > 0 {
		n.fetching.byPage[page] = kept
	} else {
		delete(n.fetching.byPage, page)
	}
}

// endFetch answers a call. Pages that are still on their way arrive for nothing.
func (n *Node) endFetch(f *fetch, status attach.Status) {
	f.over, f.next = true, f.end
	delete(f.p.fetches, f.ticket)
	if f.pin && status != attach.StatusOK {
		n.abandonPin(f)
	}
	r := attach.Reply{Ticket: f.ticket, Status: status}
	if status == attach.StatusNodeLost {
		r.Payload = []byte(f.lost)
	}
	n.answer(f.p, &r)
}

// dropProgram forgets the calls of a program that has gone.
func (g *fetching) dropProgram(p *program) {
	for _, f := range p.fetches {
		f.over, f.next = true, f.end
	}
	p.fetches = nil
}
