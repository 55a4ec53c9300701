package node

import (
	"fmt"
	"time"

	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/protocol"

	"go.uber.org/zap"
)

// maxPinned bounds the pages that one program has pinned: others wait for them.
const maxPinned = 1 << 14

// pinPatience is how long others wait for a pinned page before the pin is broken. It must have an end: a goroutine that stores to what its own
// program has pinned for reading waits for the pin, and a garbage collection waits for that goroutine and lets no other run, so
// the one that would end the pin does not. A system call that takes longer while others want the page fails with EFAULT, as without Pin.
const pinPatience = attach.PinPatience

// pins are the pages that programs hold here, for system calls on them. To the engine a pinned page is one whose Downgrade or
// Revoke takes long: what takes a page away from a pin is put off until the pin ends, and is then carried out as
// ever. Which order that brings the protocol has met in the explorer, where an operation ends at any later time.
type pins map[pagetable.Page]*pinned

// pinned is a page that is held.
type pinned struct {
	reads, writes int
	writable      bool // what the page is in the table, as long as it is held
	putOff        *protocol.Effect
	since         time.Duration // putOff: since when
	// mapping: the table settles a fault on the page, while putOff waits; more are in faults.
	mapping bool
	faults  []pagetable.ProcID
}

// pin is a program's answered Pin call.
type pin struct {
	first, end pagetable.Page
	access     protocol.Access
	broken     map[pagetable.Page]bool // pages that it holds no longer, because others had waited too long
}

// startPin fetches pages and holds them. It is a prefetch that at its end takes hold of the pages one after the other,
// ascending, and fetches again what was lost meanwhile. As all do it in that order, none waits for one that waits for it.
func (n *Node) startPin(p *program, c *attach.Call) {
	n.count.pins.Add(1)
	if c.Count > uint64(maxPinned-p.pinned) {
		n.answer(p, &attach.Reply{Ticket: c.Ticket, Status: attach.StatusNoSpace})
		return
	}
	n.startFetch(p, c)
	if f := p.fetches[c.Ticket]; f != nil {
		f.pin, f.held = true, f.next
		f.first = f.next
		p.pinned += int(c.Count)
	}
}

// hold pins the pages of a call that has fetched them, and says whether it got all.
func (n *Node) hold(f *fetch) bool {
	for ; f.held < f.end; f.held++ {
		has := n.engine.Access(protocol.PageObject(uint64(f.held)))
		if has < f.access {
			f.next = f.held
			n.fetching.goOn(f)
			return false
		}
		x := n.pins[f.held]
		if x == nil {
			x = &pinned{}
			n.pins[f.held] = x
		}
		if x.putOff == nil { // else the engine believes already what is to come
			x.writable = has == protocol.Write
		}
		if f.access == protocol.Write {
			x.writes++
		} else {
			x.reads++
		}
	}
	f.p.pins[f.ticket] = &pin{f.first, f.end, f.access, f.broken}
	return true
}

// unpin ends a program's Pin call, of the given ticket.
func (n *Node) unpin(p *program, ticket uint64) error {
	held, ok := p.pins[ticket]
	if !ok {
		return fmt.Errorf("%w: unpin of call %d, which holds nothing", attach.ErrMalformed, ticket)
	}
	delete(p.pins, ticket)
	p.pinned -= int(held.end - held.first)
	n.letGo(held)
	return nil
}

// abandonPin gives back what a Pin call that was not answered holds.
func (n *Node) abandonPin(f *fetch) {
	f.p.pinned -= int(f.end - f.first)
	n.letGo(&pin{f.first, f.held, f.access, f.broken})
}

// dropPins gives back everything that a program that has gone holds.
func (n *Node) dropPins(p *program) {
	for _, f := range p.fetches {
		if f.pin {
			n.abandonPin(f)
		}
	}
	for _, held := range p.pins {
		n.letGo(held)
	}
	p.pins = nil
}

func (n *Node) letGo(held *pin) {
	for page := held.first; page < held.end; page++ {
		if held.broken[page] {
			continue
		}
		x := n.pins[page]
		if held.access == protocol.Write {
			x.writes--
		} else {
			x.reads--
		}
		n.resume(page, x)
	}
}

// resume carries out what was put off, if nothing speaks against it any more.
func (n *Node) resume(page pagetable.Page, x *pinned) {
	f := x.putOff
	if x.mapping || f != nil && x.forbids(f.Kind) {
		return
	}
	x.putOff, x.faults = nil, nil // its end wakes who waits
	if x.reads+x.writes == 0 {
		delete(n.pins, page)
	}
	if f != nil {
		n.carryOut(f)
	}
}

func (x *pinned) forbids(kind protocol.EffectKind) bool {
	return x.writes > 0 || kind == protocol.EffectRevoke && x.reads > 0
}

// putOff says whether an effect must wait for the end of a pin, and keeps it.
func (n *Node) putOff(page pagetable.Page, f *protocol.Effect) bool {
	x := n.pins[page]
	if x == nil {
		return false
	}
	switch f.Kind {
	case protocol.EffectInstall: // the memory was freed although it was pinned, and is somebody else's now
		x.writable = f.Access == protocol.Write
	case protocol.EffectMakeWritable:
		x.writable = true
	case protocol.EffectDowngrade, protocol.EffectRevoke:
		if x.forbids(f.Kind) {
			n.count.pinWaits.Add(1)
			later := *f
			x.putOff, x.since = &later, n.now
			n.breaks.add(n.now+n.patience, f.Object)
			return true
		}
		x.writable = false
	}
	return false
}

// breakPin ends all pins of a page that somebody has waited for long enough.
func (n *Node) breakPin(page pagetable.Page) {
	x := n.pins[page]
	if x == nil || x.putOff == nil || n.now < x.since+n.patience {
		return // it has ended by itself; if it is wanted again, there is another timer
	}
	n.count.pinBreaks.Add(1)
	n.log.Warn("a pin was broken because others had waited for its page too long", zap.Uint64("page", uint64(page)), zap.Duration("waited", n.patience))
	for _, p := range n.programs {
		for _, held := range p.pins {
			held.lose(page, held.end)
		}
		for _, f := range p.fetches {
			if f.pin {
				held := pin{first: f.first, broken: f.broken}
				held.lose(page, f.held)
				f.broken = held.broken
			}
		}
	}
	x.reads, x.writes = 0, 0
	n.resume(page, x)
}

// lose notes that a pin, which has hold of the pages up to end, does not hold this one any longer.
func (h *pin) lose(page, end pagetable.Page) {
	if page < h.first || page >= end {
		return
	}
	if h.broken == nil {
		h.broken = map[pagetable.Page]bool{}
	}
	h.broken[page] = true
}

// faultOnPinned settles a fault on a page that the engine believes to be on its way out and that is still here: without that,
// a program could wait for the end of its own pin. It says whether it did.
func (n *Node) faultOnPinned(ev *pagetable.Event) bool {
	x := n.pins[ev.Page]
	if x == nil || x.putOff == nil || ev.Write && !x.writable {
		return false
	}
	x.faults = append(x.faults, ev.Proc)
	if !x.mapping {
		n.mapPinned(ev.Page, x)
	}
	return true
}

func (n *Node) mapPinned(page pagetable.Page, x *pinned) {
	for len(x.faults) > 0 {
		proc := x.faults[0]
		x.faults = x.faults[1:]
		out, err := n.table.Map(page, x.writable, proc)
		if err != nil {
			n.breakDown(fmt.Errorf("node: page %d: %w", page, err))
			return
		}
		if out == pagetable.Pending {
			x.mapping = true
			return
		}
	}
}

// pinnedMapped says whether a Map that has completed was one of mapPinned's, and goes on with the next.
func (n *Node) pinnedMapped(ev *pagetable.Event) bool {
	x := n.pins[ev.Page]
	if x == nil || !x.mapping || ev.Op != pagetable.OpMap {
		return false
	}
	x.mapping = false
	n.mapPinned(ev.Page, x)
	n.resume(ev.Page, x)
	return true
}
