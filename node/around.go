package node

import (
	"dsmd/pagetable"
	"dsmd/protocol"
)

// Asking for pages around. In a turn (see protocol/turn.go) a node keeps what it gains for writing for some milliseconds, and its threads write to
// pages in any order, which no run foretells. So with the page that a thread misses its neighbours are asked for, within the allocation; with each miss of the same turn twice as
// many. The thread that finds them here needs no turn at all for the rest.

// leastAround and mostAround are how many pages, the missed one among them, are asked for at the first miss of a turn and at most. The first is what a
// home has in a row by default; the second fills the network's pipe, as fetchWindow does.
const leastAround, mostAround = 16, fetchWindow

// around is how far the pages lie that are asked for together in the present turn.
type around struct {
	turn  uint32
	pages pagetable.Page
}

// grow returns how many pages to ask for together, at a miss in a turn.
func (a *around) grow(turn uint32) pagetable.Page {
	if a.turn != turn {
		a.turn, a.pages = turn, leastAround
	} else {
		a.pages = min(2*a.pages, mostAround)
	}
	return a.pages
}

// askAround asks for the neighbours of a page that a thread has missed, if this node has its turn. The caller asks for that page itself.
func (n *Node) askAround(ev *pagetable.Event) {
	turn := n.engine.Turn()
	if turn == 0 {
		return
	}
	if n.around.turn != turn {
		n.count.turns.Add(1)
	}
	count := n.around.grow(turn)
	x := n.extents.of(ev.Page)
	first := ev.Page / count * count
	for page := max(first, x.first); page < min(first+count, x.end); page++ {
		id := protocol.PageObject(uint64(page))
		if page == ev.Page || n.engine.Access(id) == protocol.Write || n.engine.Waiting(id) {
			continue
		}
		n.count.aroundPages.Add(1)
		n.fetchPage(page, protocol.Write, ev.Proc)
	}
}
