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
	over      bool
	filling   bool
}

// fetchWindow is how many pages of one call are on their way at a time: enough to fill the network's
// pipe (1 MiB), few enough that a thread's own fault does not wait long behind them.
const fetchWindow = 256

// fetching knows which open calls wait for a page.
type fetching struct {
	byPage map[pagetable.Page][]*fetch
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
	n.fill(f)
}

// fill asks for pages until the window is full, and answers the call when all are here.
func (n *Node) fill(f *fetch) {
	if f.filling {
		return // a page arrived while it was being asked for: the loop below goes on
	}
	f.filling = true
	for f.next < f.end && f.missing < fetchWindow {
		page := f.next
		f.next++
		id := protocol.PageObject(uint64(page))
		if n.engine.Access(id) >= f.access {
			continue
		}
		n.count.prefetchedPages.Add(1)
		f.missing++
		n.fetching.byPage[page] = append(n.fetching.byPage[page], f)
		n.step(protocol.Event{Kind: protocol.EventFault, Object: id, Access: f.access})
		if n.engine.Access(id) < f.access && !n.engine.Waiting(id) {
			n.fetched(page) // it is being freed: there is nothing to wait for
		}
	}
	f.filling = false
	if f.next == f.end && f.missing == 0 && !f.over {
		n.endFetch(f, attach.StatusOK)
	}
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
	var served []*fetch
	for _, f := range list {
		if has < f.access && more {
			kept = append(kept, f)
		} else {
			served = append(served, f)
		}
	}
	if len(kept) > 0 {
		n.fetching.byPage[page] = kept
	} else {
		delete(n.fetching.byPage, page)
	}
	for _, f := range served {
		f.missing--
		if !f.over {
			n.fill(f)
		}
	}
}

// endFetch answers a call. Pages that are still on their way arrive for nothing.
func (n *Node) endFetch(f *fetch, status attach.Status) {
	f.over, f.next = true, f.end
	delete(f.p.fetches, f.ticket)
	n.answer(f.p, &attach.Reply{Ticket: f.ticket, Status: status})
}

// dropProgram forgets the calls of a program that has gone.
func (g *fetching) dropProgram(p *program) {
	for _, f := range p.fetches {
		f.over, f.next = true, f.end
	}
	p.fetches = nil
}
