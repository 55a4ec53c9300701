package model

import (
	"cmp"
	"encoding/binary"
	"slices"

	"dsmd/protocol"
)

// pageTable is the pages of a node, in the address spaces of its threads, and what is to be done to
// them.
type pageTable struct {
	crew
	pages    []page      // ascending
	ops      []operation // in the order in which the engine gave them
	expelled uint64      // programs that were expelled
}

type page struct {
	object   protocol.ObjectID
	access   protocol.Access
	contents uint32 // how many writes the page has seen; 0 if access is None
	// Invariant: saved contents exist from a revoke to the next send, stashed ones from their
	// arrival to the install.
	saved, stashed bool
	save, stash    uint32
	backed         bool // the node has a backup
	asked          bool // AnewAnyway: the node has asked for it to begin anew
	backup         uint32
	// waiters are the threads that the last gain of access has woken, and that have not retired
	// since.
	waiters uint64
	// With Config.Spaces, the programs in which the page is mapped, and those in which it is
	// writable. Invariant: writable is part of mapped, and neither is more than access, unless the
	// page is just being taken away.
	mapped, writable uint64
	// whose thread has waited for the page last, when it was not here
	noted protocol.ClientID
}

type operation struct {
	effect    protocol.Effect
	contents  uint32 // EffectInstall; of EffectRevoke with Config.Spaces, what was read
	read      bool   // EffectRevoke with Config.Spaces: the contents were read
	performed bool
	late      bool // the completion was reported before, see AckBeforeRevoke
}

// Access is what the page table allows: what the page is, or what some program can do, if that is
// more.
func (n *pageTable) Access(o protocol.ObjectID) protocol.Access {
	if i, ok := n.search(o); ok {
		return max(n.pages[i].access, n.pages[i].reach())
	}
	return protocol.None
}

func (n *pageTable) search(o protocol.ObjectID) (int, bool) {
	return slices.BinarySearchFunc(n.pages, o, func(p page, o protocol.ObjectID) int { return cmp.Compare(p.object, o) })
}

func (n *pageTable) page(o protocol.ObjectID) *page {
	i, ok := n.search(o)
	if !ok {
		n.pages = slices.Insert(n.pages, i, page{object: o})
	}
	return &n.pages[i]
}

// appendPages appends a canonical encoding.
func (n *pageTable) appendPages(b []byte) []byte {
	for i := range n.pages {
		if p := &n.pages[i]; *p != (page{object: p.object}) {
			b = n.appendPage(b, p)
		}
	}
	// Only the order of operations on the same page matters.
	for _, o := range n.opObjects() {
		for i := range n.ops {
			op := &n.ops[i]
			if op.effect.Object != o {
				continue
			}
			b = append(b, 'o', byte(op.effect.Kind), byte(op.effect.Access), byte(op.effect.Source), flag(op.effect.Save), flag(op.performed)|flag(op.read)<<1, flag(op.late))
			b = binary.LittleEndian.AppendUint64(b, uint64(o))
			b = binary.LittleEndian.AppendUint32(b, uint32(op.effect.Client))
			b = binary.LittleEndian.AppendUint32(b, op.contents)
		}
	}
	return b
}

// appendPage appends what is known of a page.
func (n *pageTable) appendPage(b []byte, p *page) []byte {
	b = append(b, 'p')
	b = binary.LittleEndian.AppendUint64(b, uint64(p.object))
	b = append(b, byte(p.access), flag(p.saved), flag(p.stashed)|flag(p.backed)<<1|flag(p.asked)<<2)
	b = binary.LittleEndian.AppendUint32(b, p.contents)
	b = binary.LittleEndian.AppendUint32(b, p.save)
	b = binary.LittleEndian.AppendUint32(b, p.stash)
	b = binary.LittleEndian.AppendUint64(b, p.waiters)
	if p.backed {
		b = binary.LittleEndian.AppendUint32(b, p.backup)
	}
	if n.config.Spaces {
		b = binary.LittleEndian.AppendUint64(b, p.mapped)
		b = binary.LittleEndian.AppendUint64(b, p.writable)
		b = binary.LittleEndian.AppendUint32(b, uint32(p.noted))
	}
	return b
}

// take is the contents that an effect needs, from where it says that they are.
func (p *page) take(e *protocol.Effect, incoming *Flight) (contents uint32, there bool) {
	switch e.Source {
	case protocol.SourceZeros, protocol.SourceFirst:
		return 0, true
	case protocol.SourceMessage:
		if !incoming.bringsPage(e.Object) {
			return 0, false
		}
		return incoming.Contents, true
	case protocol.SourceStash:
		contents, there = p.stash, p.stashed
		p.stashed, p.stash = false, 0
	case protocol.SourceSaved:
		contents, there = p.save, p.saved
		p.saved, p.save = false, 0
	case protocol.SourceBackup:
		return p.backup, p.backed
	case protocol.SourcePage:
		return p.contents, p.access == protocol.Read
	}
	return contents, there
}

// takeContents is what an effect needs of the contents of a page. That they are not there is a
// violation.
func (n *pageTable) takeContents(e *protocol.Effect, incoming *Flight, out *Outcome) uint32 {
	p := n.page(e.Object)
	if e.Source == protocol.SourcePage && p.writable != 0 {
		out.violate(RuleExclusive, "node %d: %s, to which a program there can still store", n.self, FormatEffect(e))
	}
	contents, there := p.take(e, incoming)
	if !there {
		out.violate(RuleContents, "node %d: %s, and the contents are not there; it has heard %v", n.self, FormatEffect(e), incoming)
	}
	return contents
}

// keep keeps a backup.
func (n *pageTable) keep(e *protocol.Effect, incoming *Flight, out *Outcome) {
	p := n.page(e.Object)
	p.backup, p.backed = n.takeContents(e, incoming, out), true
}

// order queues an operation on the page table.
func (n *pageTable) order(e *protocol.Effect, incoming *Flight, out *Outcome) {
	op := operation{effect: *e}
	p := n.page(e.Object)
	if e.Kind == protocol.EffectInstall {
		op.contents = n.takeContents(e, incoming, out)
		if (e.Source == protocol.SourceZeros || e.Source == protocol.SourceFirst) && n.config.Plant == ForgottenZero {
			op.contents = 1
		}
		if p.asked {
			p.asked, op.contents = false, 0
		}
	}
	if e.Kind == protocol.EffectRevoke && n.config.Plant == AckBeforeRevoke {
		// What the late revoke would save is saved now, or the bug would show as missing contents.
		if e.Save {
			p.saved, p.save = true, p.contents
		}
		op.performed = true
	}
	if e.Kind == protocol.EffectLost && n.begins() {
		op.performed = true // nobody is told
		p.asked = n.config.Plant == AnewAnyway
	}
	n.ops = append(n.ops, op)
	out.Ordered = append(out.Ordered, e.Object)
}

// begins reports whether pages that are lost begin anew on this node.
func (n *pageTable) begins() bool { return slices.Contains(n.config.Anew, n.self) }

func (n *pageTable) opObjects() []protocol.ObjectID {
	all := make([]protocol.ObjectID, 0, len(n.ops))
	for i := range n.ops {
		all = append(all, n.ops[i].effect.Object)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (n *pageTable) firstOp(o protocol.ObjectID) int {
	return slices.IndexFunc(n.ops, func(op operation) bool { return op.effect.Object == o })
}

// Operation is the next action on the operations ordered on a page; false if there is none.
func (n *pageTable) Operation(o protocol.ObjectID) (Action, bool) {
	i := n.firstOp(o)
	if i < 0 {
		return Action{}, false
	}
	kind := ActPerform
	if n.ops[i].performed {
		kind = ActComplete
	}
	return Action{Kind: kind, Node: n.self, Effect: n.ops[i].effect.Kind, Object: o}, true
}

// perform makes the page table change.
func (n *pageTable) perform(i int, out *Outcome) {
	op := &n.ops[i]
	if op.effect.Kind == protocol.EffectFree {
		n.forget(op, out)
		return
	}
	p := n.page(op.effect.Object)
	if op.effect.Kind == protocol.EffectLost {
		n.lose(op, p, out)
		return
	}
	want, gain := protocol.None, false
	switch op.effect.Kind {
	case protocol.EffectMap:
		want, gain = op.effect.Access, true
		if want == protocol.None {
			want = p.access // memory that is being freed: whoever waits is only woken
		}
	case protocol.EffectMakeWritable:
		want, gain = protocol.Read, true
	case protocol.EffectDowngrade:
		want = protocol.Write
	case protocol.EffectRevoke:
		want = p.access
		if want == protocol.None {
			want = protocol.Read
		}
	case protocol.EffectInstall:
		gain = true
		if p.saved {
			out.violate(RuleContents, "node %d installs %v while contents saved from it wait to be sent", n.self, p.object)
		}
	}
	if p.access != want {
		out.violate(RulePageState, "node %d: %s on a page with access %v", n.self, FormatEffect(&op.effect), p.access)
	}
	out.Changed = append(out.Changed, p.object)
	if n.takeStep(op, p) {
		return
	}
	n.change(op, p)
	if op.effect.Source == protocol.SourceFirst && len(n.config.Anew) > 0 {
		out.Retired = append(out.Retired, Retirement{Kind: RetireBegin, Node: n.self, Op: Op{Kind: OpRead, Number: p.object.Page()}})
	}
	if gain && n.config.Plant != LostWake {
		n.wake(p, op.effect.Client, out)
	}
	op.performed = true
	if op.late {
		n.ops = slices.Delete(n.ops, i, i+1)
	}
}

// forget drops a run of pages with everything kept of them.
func (n *pageTable) forget(op *operation, out *Outcome) {
	for o := op.effect.Object; uint64(o-op.effect.Object) < op.effect.Count; o++ {
		i, ok := n.search(o)
		if !ok {
			continue
		}
		if n.pages[i].saved || n.pages[i].stashed {
			out.violate(RuleContents, "node %d forgets %v while contents of it are kept", n.self, o)
		}
		n.pages[i] = page{object: o}
		out.Changed = append(out.Changed, o)
	}
	op.performed = true
}

// lose tells all threads that wait for a page that it is lost: whatever they wanted to do with it,
// they go on without.
func (n *pageTable) lose(op *operation, p *page, out *Outcome) {
	if p.access != protocol.None || p.saved || p.stashed {
		out.violate(RuleLost, "node %d is told that %v is lost, and has it", n.self, p.object)
	}
	if with := protocol.NodeID(op.effect.Rank); !n.config.canBeLost(with) {
		out.violate(RuleLost, "node %d is told that %v is lost with node %d, which cannot be lost", n.self, p.object, with)
	}
	out.Lost = append(out.Lost, p.object)
	for i := range n.threads {
		t := &n.threads[i]
		if t.state != threadBlocked || t.expelled || t.op().Object() != p.object {
			continue
		}
		out.Retired = append(out.Retired, n.retirement(RetireLost, t, Retirement{}))
		n.advance(t, out)
	}
	op.performed = true
}

// change does to the page table what an operation says.
func (n *pageTable) change(op *operation, p *page) {
	switch op.effect.Kind {
	case protocol.EffectInstall:
		p.access, p.contents = op.effect.Access, op.contents
	case protocol.EffectMakeWritable:
		p.access = protocol.Write
	case protocol.EffectDowngrade:
		if n.config.Plant != DowngradeNotDone {
			p.access = protocol.Read
		}
	case protocol.EffectRevoke:
		if op.effect.Save {
			p.saved, p.save = true, p.contents
			if op.read {
				p.save = op.contents
			}
			if n.config.Plant == StaleSave && p.save > 0 {
				p.save--
			}
		}
		p.access, p.contents, p.waiters = protocol.None, 0, 0
	}
	if n.config.Spaces {
		n.changeSpaces(op, p)
	}
}

// wake makes the threads of a client (0: of all) that wait for a page ready. Those that can now
// retire are the ones for whose sake the page is held.
func (n *pageTable) wake(p *page, c protocol.ClientID, out *Outcome) {
	for i := range n.threads {
		t := &n.threads[i]
		if t.state != threadBlocked || t.expelled || c != 0 && t.spec.Client != c || t.op().Object() != p.object {
			continue
		}
		t.state = threadReady
		out.Runnable = append(out.Runnable, i)
		if n.allows(t, t.op()) {
			p.waiters |= 1 << i
		}
	}
}

// access retires a read or a write. A write depends on the contents too: a store changes some bytes
// of the page.
func (n *pageTable) access(t *thread, out *Outcome) {
	op := t.op()
	p := n.page(op.Object())
	out.Retired = append(out.Retired, n.retirement(RetireAccess, t, Retirement{Contents: p.contents}))
	if op.Kind == OpWrite {
		p.contents++
	}
	p.waiters &^= 1 << n.local(t)
	n.advance(t, out)
}

// bringsPage reports whether a message has come with the contents of a page.
func (f *Flight) bringsPage(o protocol.ObjectID) bool {
	return f != nil && f.Message.Object == o && f.Message.Contents() == protocol.PageContents
}
