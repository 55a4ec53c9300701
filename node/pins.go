package node

import (
	"fmt"
	"slices"
	"time"

	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/protocol"

	"go.uber.org/zap"
)

// maxPinned bounds the pages that one program has pinned: others wait for them.
const maxPinned = 1 << 14

// pinPatience is how long others wait for a pinned page before the pin is broken. It must have an
// end. A goroutine that stores to what its own program has pinned for reading waits for the pin; a
// garbage collection waits for that goroutine and lets no other run, so the one that would end the
// pin does not. A system call that takes longer while others want the page fails with EFAULT, as
// without Pin.
const pinPatience = attach.PinPatience

// pins are the pages that programs keep here, for system calls on them. To the engine a pinned page
// is one whose Downgrade or Revoke takes long: what takes a page away from a pin is delayed until
// the pin ends, and is then carried out as ever. Which order that brings the protocol has met in
// the explorer, where an operation ends at any later time.
type pins struct {
	drive    *driver
	meter    *meter
	log      *zap.Logger
	programs *programs

	pages    map[pagetable.Page]*pinned
	open     []*pin        // of calls that have not got all that they want
	breaks   timers        // pins that others have waited for long enough
	patience time.Duration // how long that is
}

// pinned is a page that is pinned.
type pinned struct {
	reads, writes int
	writable      bool // what the page is in the table, as long as it is pinned
	delayed       *protocol.Effect
	// mapping: the table settles a fault on the page, while delayed waits; more are in faults.
	mapping bool
	faults  []pagetable.ProcID
}

// pin is what a program's Pin call has pinned.
type pin struct {
	first, held, end pagetable.Page // [first, held) are pinned, up to end they are wanted
	access           protocol.Access
	// broken are pages that it pins no longer, because others had waited too long.
	broken map[pagetable.Page]bool
}

// grow pins the pages that a pin still wants, as far as they are here, and returns whether it has
// all.
func (x *pins) grow(held *pin) bool {
	for ; held.held < held.end; held.held = x.drive.partition.next(held.held + 1) {
		has := x.drive.engine.Access(protocol.PageObject(uint64(held.held)))
		if has < held.access {
			return false
		}
		at := x.pages[held.held]
		if at == nil {
			at = &pinned{}
			x.pages[held.held] = at
		}
		if at.delayed == nil { // else the engine believes already what is to come
			at.writable = has == protocol.Write
		}
		if held.access == protocol.Write {
			at.writes++
		} else {
			at.reads++
		}
	}
	return true
}

// wants is whether a page is pinned, or a Pin call that is open has fetched it, or will.
func (x *pins) wants(page pagetable.Page) bool {
	return x.pages[page] != nil || slices.ContainsFunc(x.open, func(h *pin) bool { return page >= h.first && page < h.end })
}

// answered takes a pin from those that are open: its call is answered, or given up.
func (x *pins) answered(held *pin) {
	x.open = slices.DeleteFunc(x.open, func(h *pin) bool { return h == held })
}

// unpin ends a program's Pin call, of the given ticket.
func (x *pins) unpin(p *program, ticket uint64) error {
	held, ok := p.pins[ticket]
	if !ok {
		return fmt.Errorf("%w: unpin of call %d, which pins nothing", attach.ErrMalformed, ticket)
	}
	delete(p.pins, ticket)
	x.end(p, held)
	return nil
}

// end ends a pin of a program, also one that has not got all that it wants.
func (x *pins) end(p *program, held *pin) {
	p.pinned -= x.drive.partition.pages(held.first, held.end)
	x.release(held)
}

func (x *pins) release(held *pin) {
	for page := held.first; page < min(held.held, held.end); page = x.drive.partition.next(page + 1) {
		if held.broken[page] {
			continue
		}
		at := x.pages[page]
		if held.access == protocol.Write {
			at.writes--
		} else {
			at.reads--
		}
		x.resume(page, at)
	}
}

// resume carries out what was delayed, if nothing speaks against it any more.
func (x *pins) resume(page pagetable.Page, at *pinned) {
	f := at.delayed
	if at.mapping || f != nil && at.forbids(f.Kind) {
		return
	}
	if f != nil {
		x.breaks.remove(f.Object)
	}
	at.delayed, at.faults = nil, nil // its end wakes who waits
	if at.reads+at.writes == 0 {
		delete(x.pages, page)
	}
	if f != nil {
		x.drive.carryOut(f)
	}
}

func (at *pinned) forbids(kind protocol.EffectKind) bool {
	return at.writes > 0 || kind == protocol.EffectRevoke && at.reads > 0
}

// delay keeps an effect that must wait for the end of a pin, and returns whether it is one.
func (x *pins) delay(page pagetable.Page, f *protocol.Effect) bool {
	at := x.pages[page]
	if at == nil {
		return false
	}
	switch f.Kind {
	case protocol.EffectInstall:
		// The memory was freed although it was pinned, and is somebody else's now.
		at.writable = f.Access == protocol.Write
	case protocol.EffectMakeWritable:
		at.writable = true
	case protocol.EffectDowngrade, protocol.EffectRevoke:
		if at.forbids(f.Kind) {
			x.meter.count.pinWaits.Add(1)
			x.drive.goes(page, f) // to the engine it has gone, and threads may want it back
			later := *f
			at.delayed = &later
			x.breaks.add(x.drive.clock.now+x.patience, f.Object)
			return true
		}
		at.writable = false
	}
	return false
}

// expire ends all pins of a page that somebody has waited for long enough.
func (x *pins) expire(page pagetable.Page) {
	at := x.pages[page]
	if at == nil || at.delayed == nil {
		return
	}
	x.meter.count.pinBreaks.Add(1)
	x.log.Warn("a pin was broken because others had waited for its page too long", zap.Uint64("page", uint64(page)), zap.Duration("waited", x.patience))
	for _, p := range x.programs.byID {
		for _, held := range p.pins {
			held.breakAt(page)
		}
		for _, f := range p.fetches {
			if f.pin != nil {
				f.pin.breakAt(page)
			}
		}
	}
	at.reads, at.writes = 0, 0
	x.resume(page, at)
}

// breakAt notes that a pin does not pin this page any longer.
func (h *pin) breakAt(page pagetable.Page) {
	if page < h.first || page >= h.held {
		return
	}
	if h.broken == nil {
		h.broken = map[pagetable.Page]bool{}
	}
	h.broken[page] = true
}

// settles settles a fault on a page that the engine believes to be on its way out and that is still
// here: without that, a program could wait for the end of its own pin. It returns whether it did.
func (x *pins) settles(ev *pagetable.Event) bool {
	if len(x.pages) == 0 {
		return false
	}
	at := x.pages[ev.Page]
	if at == nil || at.delayed == nil || ev.Write && !at.writable {
		return false
	}
	at.faults = append(at.faults, ev.Proc)
	if !at.mapping {
		x.mapNext(ev.Page, at)
	}
	return true
}

func (x *pins) mapNext(page pagetable.Page, at *pinned) {
	exec := x.drive.exec
	for len(at.faults) > 0 {
		proc := at.faults[0]
		at.faults = at.faults[1:]
		out, err := exec.table.Map(page, at.writable, proc)
		if err != nil {
			exec.end.breakDown(fmt.Errorf("node: page %d: %w", page, err))
			return
		}
		if out == pagetable.Pending {
			at.mapping = true
			return
		}
	}
}

// mapped goes on with the next fault when a Map has completed, if it was one of mapNext's.
func (x *pins) mapped(ev *pagetable.Event) bool {
	if len(x.pages) == 0 {
		return false
	}
	at := x.pages[ev.Page]
	if at == nil || !at.mapping || ev.Op != pagetable.OpMap {
		return false
	}
	at.mapping = false
	x.mapNext(ev.Page, at)
	x.resume(ev.Page, at)
	return true
}
