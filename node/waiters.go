package node

import (
	"maps"
	"slices"

	"dsmd/pagetable"
)

// waiters remembers whose thread waits for an absent page, so that the page is mapped there at
// once. With one program on the node there is nothing to remember.
type waiters struct {
	procs []pagetable.ProcID
	// byPage has pages that were asked for and are not installed yet.
	byPage map[pagetable.Page]pagetable.ProcID
}

func newWaiters() waiters { return waiters{byPage: map[pagetable.Page]pagetable.ProcID{}} }

func (w *waiters) attached(id pagetable.ProcID) { w.procs = append(w.procs, id) }

func (w *waiters) detached(id pagetable.ProcID) {
	w.procs = slices.DeleteFunc(w.procs, func(p pagetable.ProcID) bool { return p == id })
	maps.DeleteFunc(w.byPage, func(_ pagetable.Page, p pagetable.ProcID) bool { return p == id })
}

func (w *waiters) note(page pagetable.Page, id pagetable.ProcID) {
	if len(w.procs) > 1 {
		w.byPage[page] = id
	}
}

// take returns the program whose thread waits for a page, or AllProcs if none is known.
func (w *waiters) take(page pagetable.Page) pagetable.ProcID {
	id := w.byPage[page] // AllProcs if there is none
	w.drop(page)
	if len(w.procs) == 1 {
		return w.procs[0]
	}
	return id
}

// drop forgets who waits for a page.
func (w *waiters) drop(page pagetable.Page) {
	if len(w.byPage) > 0 {
		delete(w.byPage, page)
	}
}
