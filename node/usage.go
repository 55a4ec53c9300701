package node

import (
	"cmp"
	"fmt"
	"slices"

	"dsmd/internal/attach"
	"dsmd/node/readahead"
	"dsmd/pagetable"
	"dsmd/protocol"
)

// usageTurn is how many pages, or allocations, a count looks at before the reactor looks at other
// things. It holds up others for about 10 µs, and for ten times as long where each page is of
// another of as many allocations as there can be (BenchmarkUsageTurn).
const usageTurn = 1024

// usage counts how many pages of each allocation are here, for programs that ask (OpUsage). A node
// may know millions of pages, so it counts some of them in each turn. Nothing is counted while
// nobody asks, and a fault costs nothing more.
type usage struct {
	drive   *driver
	extents *readahead.Extents
	room    *room

	calls []usageCall // at most one of each program
	count *usageCount // under way; nil: none
}

// usageCall is an open call.
type usageCall struct {
	p       *program
	ticket  uint64
	counted bool // by the count under way; else it came after that began, and waits for the next
}

// usageCount is a count that is under way. It goes on to its end when nobody waits for it any more,
// because it leaves its sums in the extents until they are listed.
type usageCount struct {
	place  int            // where it goes on among the engine's pages
	summed bool           // all pages are counted
	next   pagetable.Page // from where it goes on to list allocations
	listed bool           // all allocations are listed
	found  attach.Usage

	foreign readahead.Extent // has no pages: the sums of all that are in no extent
}

// isDue is whether there is something to count.
func (u *usage) isDue() bool { return u.count != nil || len(u.calls) > 0 }

// more counts on, if there is something to count, and returns whether there was.
func (u *usage) more() bool {
	if !u.isDue() {
		return false
	}
	if u.count == nil {
		u.count = &usageCount{}
		for i := range u.calls {
			u.calls[i].counted = true
		}
	}
	switch c := u.count; {
	case !c.summed:
		u.sum(c)
	case !c.listed:
		u.list(c)
	default:
		u.count = nil
		u.answer(c)
	}
	return true
}

// sum counts some pages.
func (u *usage) sum(c *usageCount) {
	in := &c.foreign // the last page's
	c.place = protocol.Copies(u.drive.engine, c.place, usageTurn, func(number uint64, droppable bool) {
		page := pagetable.Page(number)
		if page < in.First || page >= in.End {
			if in = u.extents.Find(page); in == nil {
				in = &c.foreign
			}
		}
		if droppable {
			in.Copies++
		} else {
			in.Owned++
		}
		if u.room.isSpilled(page) {
			in.Spilled++
		}
	})
	if c.summed = c.place == 0; c.summed {
		c.found.Foreign = heldOf(&c.foreign)
		c.found.Foreign.Pages = c.foreign.Owned + c.foreign.Copies
	}
}

// list lists some allocations, and leaves their sums as the next count needs them.
func (u *usage) list(c *usageCount) {
	some := u.extents.From(c.next)
	c.listed = len(some) <= usageTurn
	for i := range some[:min(len(some), usageTurn)] {
		c.found.Largest = append(c.found.Largest, usageOf(&some[i]))
		if len(c.found.Largest) == 2*attach.MaxAllocations {
			c.keepLargest()
		}
		c.next = some[i].End
		some[i].Owned, some[i].Copies, some[i].Spilled = 0, 0, 0
	}
}

// usageOf is what a program is told about an allocation whose pages are counted.
func usageOf(x *readahead.Extent) attach.AllocationUsage {
	job, name := divide(x.Name)
	return attach.AllocationUsage{Job: job, Name: name, First: uint64(x.First), Held: heldOf(x)}
}

func heldOf(x *readahead.Extent) attach.Held {
	return attach.Held{Pages: uint64(x.End - x.First), Owned: x.Owned, Copies: x.Copies, Spilled: x.Spilled}
}

// keepLargest sums up all allocations but the largest.
func (c *usageCount) keepLargest() {
	all := c.found.Largest
	slices.SortFunc(all, func(a, b attach.AllocationUsage) int {
		return cmp.Or(cmp.Compare(b.Pages, a.Pages), cmp.Compare(a.First, b.First))
	})
	keep := min(len(all), attach.MaxAllocations)
	for i := range all[keep:] {
		c.found.Add(&all[keep+i])
	}
	c.found.Largest = all[:keep]
}

// answer tells the programs that have asked before the count began.
func (u *usage) answer(c *usageCount) {
	c.keepLargest()
	payload := attach.AppendUsage(nil, &c.found)
	for _, call := range u.calls {
		if call.counted {
			call.p.answer(&attach.Reply{Ticket: call.ticket, Payload: payload})
		}
	}
	u.calls = slices.DeleteFunc(u.calls, func(call usageCall) bool { return call.counted })
}

// ask has the pages counted for a program. The error is the program's.
func (u *usage) ask(p *program, c *attach.Call) error {
	if u.ticketOf(p) != 0 {
		return fmt.Errorf("%w: %v while another is open", attach.ErrMalformed, c.Op)
	}
	u.calls = append(u.calls, usageCall{p: p, ticket: c.Ticket})
	return nil
}

// ticketOf is that of a program's open call; 0: it has none.
func (u *usage) ticketOf(p *program) uint64 {
	for _, call := range u.calls {
		if call.p == p {
			return call.ticket
		}
	}
	return 0
}

// cancel ends a call of a program, if it is open.
func (u *usage) cancel(p *program, ticket uint64) bool {
	if u.ticketOf(p) != ticket {
		return false
	}
	u.dropProgram(p)
	p.answer(&attach.Reply{Ticket: ticket, Status: attach.StatusCanceled})
	return true
}

// dropProgram forgets the call of a program that has gone.
func (u *usage) dropProgram(p *program) {
	u.calls = slices.DeleteFunc(u.calls, func(call usageCall) bool { return call.p == p })
}
