package node

import (
	"fmt"
	"maps"
	"slices"

	"dsmd/internal/attach"
	"dsmd/pagetable"
)

// fallbacks are what lost pages begin anew with: what they had in the last checkpoint, of which
// programs tell all nodes (Contents.Fallback). The programs of a job agree: when one of them says
// that lost pages begin anew from here on (OpFallback), all of them have given that checkpoint and
// none has an earlier one any more. A node of which no program has the memory would not hear of
// that: it forgets the fallback with the last of the programs that have given it. So no two pages
// of an allocation ever go back to different checkpoints.
type fallbacks struct {
	of   *partition
	list []*origin // in ascending order, disjoint
	// asked are pages that were asked for to begin anew, with what they will. By the time that one
	// comes there may be another fallback, which is not ready yet.
	asked map[pagetable.Page]*origin
}

// begin has lost pages begin anew with the contents of an ID. The error is the program's.
func (b *fallbacks) begin(p *program, c *attach.Call) error {
	if len(c.Payload) != 16 {
		return fmt.Errorf("%w: %v of an ID of %d bytes", attach.ErrMalformed, c.Op, len(c.Payload))
	}
	id := [16]byte(c.Payload)
	b.setReady(id)
	gather(b.of, func(o *Node) struct{} {
		o.origins.fallbacks.setReady(id)
		return struct{}{}
	}, func([]struct{}) { p.answer(&attach.Reply{Ticket: c.Ticket}) })
	return nil
}

// setReady has lost pages begin anew with the contents of an ID.
func (b *fallbacks) setReady(id [16]byte) {
	for _, x := range b.list {
		x.ready = x.ready || slices.Contains(x.ids, id)
	}
}

// ask notes that a lost page is asked for to begin anew, if there is something to begin with.
func (b *fallbacks) ask(page pagetable.Page) bool {
	x := find(b.list, page)
	if x == nil || !x.ready {
		return false
	}
	if b.asked == nil {
		b.asked = map[pagetable.Page]*origin{}
	}
	b.asked[page] = x
	return true
}

// letGo forgets what only this program has given, of allocations that it does not have any more.
func (b *fallbacks) letGo(p *program, of func(*origin) bool) {
	b.list = slices.DeleteFunc(b.list, func(x *origin) bool {
		if of(x) {
			delete(x.givers, p)
		}
		return len(x.givers) == 0
	})
}

// dropProgram forgets what only this program has given, which has gone.
func (b *fallbacks) dropProgram(p *program) { b.letGo(p, func(*origin) bool { return true }) }

// take is the fallback of a page that was asked for to begin anew, and has come; nil: it was not.
func (b *fallbacks) take(page pagetable.Page) *origin {
	x := b.asked[page]
	delete(b.asked, page)
	return x
}

// drop forgets the fallback of an allocation that is freed.
func (b *fallbacks) drop(first pagetable.Page, count uint64) {
	maps.DeleteFunc(b.asked, func(p pagetable.Page, _ *origin) bool { return p >= first && uint64(p-first) < count })
	b.list = slices.DeleteFunc(b.list, func(x *origin) bool { return x.first == first })
}
