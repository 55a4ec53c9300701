package model

import (
	"math/bits"
	"slices"

	"dsmd/protocol"
)

// With Config.Spaces each program of a node has an address space of its own, as it has in package
// pagetable: a page that is here is mapped in some of them, read-only or writable, and an access
// goes by what is mapped. An operation that takes access away goes step by step: stores are cut off
// in one program after the other, then the contents are read, then the page is removed everywhere.
// Between the steps threads go on. A program that is expelled (OpExpel) counts as dead, and lives:
// it keeps what is mapped in it until that is taken away, and gets nothing any more.
//
// What gives access is done at once, as there: faults that come meanwhile are looked at later.

// gains reports whether an effect gives access.
func gains(k protocol.EffectKind) bool {
	return k == protocol.EffectInstall || k == protocol.EffectMap || k == protocol.EffectMakeWritable
}

// giveAccess carries out what was ordered and gives access, and what follows from it.
func (n *Node) giveAccess(now protocol.Time, out *Outcome) {
	for n.config.Spaces && out.Violation == nil {
		i := slices.IndexFunc(n.ops, func(op operation) bool { return gains(op.effect.Kind) && !op.performed })
		if i < 0 {
			return
		}
		n.perform(i, out)
		n.complete(i, now, out)
	}
}

// noteWaiter notes whose thread waits for a page that is not here: it is installed there.
func (n *Node) noteWaiter(t *thread, o protocol.ObjectID) {
	if n.config.Spaces && n.engine.Access(o) == protocol.None {
		n.page(o).noted = t.spec.Client
	}
}

// takeWaiter is the client in whose address space a page is installed that has come; 0 if nobody is
// known to wait. With one program there is nothing to know.
func (n *crew) takeWaiter(p *page) protocol.ClientID {
	c, only := p.noted, protocol.ClientID(0)
	p.noted = 0
	for i := range n.threads {
		switch t := &n.threads[i]; {
		case t.state == threadDead || t.expelled || t.spec.Client == only:
		case only != 0:
			return c
		default:
			only = t.spec.Client
		}
	}
	return only
}

// spaceOf is the bit of a client's address space; 0 if it has none, or none in which anything is to
// be mapped.
func (n *crew) spaceOf(c protocol.ClientID) uint64 {
	for i := range n.threads {
		if t := &n.threads[i]; t.spec.Client == c {
			if t.state == threadDead || t.expelled {
				return 0
			}
			return 1 << t.space
		}
	}
	return 0
}

// allows reports whether an access of a thread goes through.
func (n *pageTable) allows(t *thread, op Op) bool {
	i, ok := n.search(op.Object())
	switch {
	case !ok:
		return false
	case !n.config.Spaces:
		return n.pages[i].access >= op.Access()
	case op.Access() == protocol.Write:
		return n.pages[i].writable&(1<<t.space) != 0
	}
	return n.pages[i].mapped&(1<<t.space) != 0
}

// reach is the most that any program can do with a page now.
func (p *page) reach() protocol.Access {
	switch {
	case p.writable != 0:
		return protocol.Write
	case p.mapped != 0:
		return protocol.Read
	}
	return protocol.None
}

// takeStep does the next step of an operation that takes access to a page away, and says whether
// there was one before the last.
func (n *pageTable) takeStep(op *operation, p *page) bool {
	reads := op.effect.Kind == protocol.EffectRevoke && op.effect.Save
	if !n.config.Spaces || !reads && op.effect.Kind != protocol.EffectDowngrade {
		return false // what is removed unread is removed at once, everywhere
	}
	stores := p.writable
	if n.config.Plant == SkippedProgram {
		stores &^= n.expelled
	}
	if n.config.Plant == ReadBeforeProtected && reads && !op.read {
		stores = 0
	}
	switch {
	case stores != 0:
		p.writable &^= 1 << bits.TrailingZeros64(stores)
	case reads && !op.read:
		op.read, op.contents = true, p.contents
	default:
		return false
	}
	return true
}

// changeSpaces does to what is mapped what an operation says, in its last step. It is called when
// the page's access has changed.
func (n *pageTable) changeSpaces(op *operation, p *page) {
	client := op.effect.Client
	if op.effect.Kind == protocol.EffectInstall {
		client = n.takeWaiter(p)
	}
	space := n.spaceOf(client)
	switch op.effect.Kind {
	case protocol.EffectInstall, protocol.EffectMap:
		if p.access == protocol.None {
			return
		}
		p.mapped |= space
		if p.writable &^= space; p.access == protocol.Write {
			p.writable |= space
		}
	case protocol.EffectMakeWritable:
		p.writable = p.mapped &^ n.expelled
	case protocol.EffectRevoke:
		p.mapped, p.writable = 0, 0
	}
}

// expel parts with a client whose threads live on.
func (n *Node) expel(t *thread, now protocol.Time, out *Outcome) {
	c, rank := t.spec.Client, t.rank
	n.expelled |= 1 << t.space
	t.pc++
	for i := range n.threads {
		if t := &n.threads[i]; t.spec.Client == c {
			t.expelled, t.duplicates, t.strays = true, 0, 0
			for j := range n.pages {
				n.pages[j].waiters &^= 1 << i
			}
		}
	}
	n.gone(c, rank, now, out)
}
