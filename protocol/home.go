package protocol

import "slices"

// onRequest queues a request at the home and starts what can start.
func (e *Engine) onRequest(m *Message) {
	if e.home(m.Object) != e.cfg.Self {
		e.reject(m, "this node is not the object's home")
		return
	}
	if m.Access != Read && m.Access != Write {
		e.reject(m, "a request for no access")
		return
	}
	if why := e.noRequest(m); why != "" {
		e.reject(m, why)
		return
	}
	o := e.objects.get(m.Object)
	p := e.pendingOf(o)
	for _, r := range p.queue {
		if r.from == m.From {
			e.reject(m, "a second request while the first waits")
			return
		}
	}
	p.queue = append(p.queue, request{from: m.From, access: m.Access, hasCopy: m.Flags&FlagHasCopy != 0})
	e.startQueued(o, p)
	e.settle(o)
}

// noRequest says why a home does not take a request from a peer: "" if it does.
func (e *Engine) noRequest(m *Message) string {
	switch {
	case m.From == e.cfg.Self:
	case !e.knowsOrCan(m.Object):
		return "this node knows as many locks as it can"
	case e.Pending() >= e.limits.pending && e.peek(e.objects.find(m.Object)) == nil:
		return "as much is under way at this node as can be"
	case e.isForgotten(m.Object):
		return "the page is being freed, and the requester has said that it asks for it no more"
	}
	return ""
}

// startQueued starts requests from the head of the queue for as long as they are compatible with what
// is under way: one sole transaction, or any number of reads of a shared object.
func (e *Engine) startQueued(o *object, p *pending) {
	if !e.view.changes() {
		return
	}
	started := 0
	for started < len(p.queue) {
		r := p.queue[started]
		shared := r.access == Read && o.owner != NoNode && !o.lost() && !o.backed() && !o.is(exclusiveFlag)
		if p.mode == homeSole || p.mode == homeReading && !shared {
			break
		}
		started++
		if o.owner == NoNode {
			e.lookForLoss(o)
		}
		switch {
		case o.lost():
			e.send(Message{Kind: Lost, To: r.from, Requester: r.from, Object: o.id, Rank: uint32(o.owner)})
		case o.backed():
			e.startRestore(o, p, r)
		case o.owner == r.from && (o.is(exclusiveFlag) || r.access == Read), shared && slices.Contains(p.reading, r.from):
			e.reject(&Message{Kind: Request, From: r.from, Access: r.access, Object: o.id}, "the requester has that access already")
		case o.owner == NoNode:
			e.startFirstTouch(o, p, r)
		case shared:
			e.startSharedRead(o, p, r)
		case r.access == Read && !o.migrates():
			e.startSoleRead(o, p, r)
		default:
			e.startWrite(o, p, r)
		}
	}
	p.queue = append(p.queue[:0], p.queue[started:]...)
}

// lookForLoss notes, of an object that this home takes for untouched, if it may have been in use and what was known of it was lost.
func (e *Engine) lookForLoss(o *object) {
	switch node, lost := e.lostHome(o.id); {
	case !lost:
	case !o.id.IsLock():
		o.owner = node // with an empty copyset: see lost
	default:
		if l := e.getLock(o.id); l.died == 0 {
			l.died = LostRank(node) + 1
		}
	}
}

func (p *pending) beginSole(r request, access Access, supplier NodeID) {
	p.mode, p.requester, p.sole, p.supplier, p.invalidated = homeSole, r.from, access, supplier, 0
}

// startFirstTouch gives an object that nobody has touched to whoever touches it first, for writing
// even if it only wants to read: what is untouched is mostly about to be initialised.
func (e *Engine) startFirstTouch(o *object, p *pending, r request) {
	p.beginSole(r, Write, e.cfg.Self)
	m := Message{Kind: Grant, To: r.from, Requester: r.from, Object: o.id, Access: Write, Flags: FlagZero}
	e.passMark(o, &m) // of a node that is lost, which had it last
	e.send(m)
	e.end(o, p)
}

// startSharedRead adds a reader to a shared object. Nothing changes for the others, so any number of these
// overlap. The home supplies the page itself if it has it, which saves a hop and the Done.
func (e *Engine) startSharedRead(o *object, p *pending, r request) {
	supplier := e.supplier(o)
	o.sharers.add(r.from, &e.cfg)
	if supplier == e.cfg.Self {
		e.supply(o, Message{Kind: Forward, Requester: r.from, Access: Read})
		return
	}
	p.mode = homeReading
	p.reading = append(p.reading, r.from)
	e.send(Message{Kind: Forward, To: supplier, Requester: r.from, Object: o.id, Access: Read})
}

// startSoleRead makes an exclusive owner share its page.
func (e *Engine) startSoleRead(o *object, p *pending, r request) {
	p.beginSole(r, Read, o.owner)
	e.send(Message{Kind: Forward, To: o.owner, Requester: r.from, Object: o.id, Access: Read})
}

// startWrite takes the object from everybody else and gives it to r. If r keeps its read copy no
// contents travel. A coarse copyset can't say whether r, if it is not the home, still has its copy: r may have
// lost it to a write that was ahead of it in the queue. Then contents travel.
func (e *Engine) startWrite(o *object, p *pending, r request) {
	supplier := e.supplier(o)
	p.beginSole(r, Write, supplier)
	upgrade := r.hasCopy && o.sharers.certain(r.from, &e.cfg)
	if r.from == o.owner {
		upgrade = true
	}
	var scratch [16]NodeID
	invalidated := uint16(0)
	for _, n := range o.sharers.appendTo(scratch[:0], &e.cfg) {
		if n == r.from || !upgrade && n == supplier {
			continue
		}
		invalidated++
		e.send(Message{Kind: Invalidate, To: n, Requester: r.from, Object: o.id})
	}
	if upgrade {
		o.upgraded(r.from != o.owner && invalidated == 1 && !o.id.IsLock())
		e.send(Message{Kind: Grant, To: r.from, Requester: r.from, Object: o.id, Access: Write, Acks: invalidated})
		e.end(o, p)
		return
	}
	p.invalidated = invalidated
	e.send(Message{Kind: Forward, To: supplier, Requester: r.from, Object: o.id, Access: Write, Acks: invalidated})
}

// supplier is the node to send the object from: the home if it has a copy, else the owner, who always has.
// The home's copy counts only if the directory names it: it may be on its way out, for a writer that is waiting for it.
func (e *Engine) supplier(o *object) NodeID {
	if o.has() != None && o.sharers.certain(e.cfg.Self, &e.cfg) {
		return e.cfg.Self
	}
	return o.owner
}

// onDone ends a transaction and starts the next ones.
func (e *Engine) onDone(m *Message) {
	o := e.objects.find(m.Object)
	p := e.peek(o)
	switch {
	case p == nil || p.mode == homeIdle:
		e.reject(m, "no transaction is under way")
		return
	case p.mode == homeSole && (m.From != p.requester || m.Access != p.sole):
		e.reject(m, "the transaction under way is another")
		return
	case p.mode == homeSole && (p.supplier == e.cfg.Self || p.giving()):
		e.reject(m, "this node itself has not yet given up what the requester says it has")
		return
	case p.mode == homeReading && (m.Access != Read || !slices.Contains(p.reading, m.From)):
		e.reject(m, "no such read is under way")
		return
	}
	if p.mode == homeReading {
		i := slices.Index(p.reading, m.From)
		p.reading = slices.Delete(p.reading, i, i+1)
		if len(p.reading) == 0 {
			p.mode = homeIdle
		}
	} else {
		e.end(o, p)
	}
	e.startQueued(o, p)
	e.settle(o)
}

// end notes in the directory what the sole transaction under way has changed.
//
// It is called when the requester says Done; or, if the Grant is the home's own, when that is sent: whatever the home sends the
// requester about the object from then on arrives behind the Grant, and the requester lets it wait until the grant has taken effect.
func (e *Engine) end(o *object, p *pending) {
	if p.sole == Read {
		o.set(exclusiveFlag, false)
		o.sharers.add(p.requester, &e.cfg)
	} else {
		o.owner = p.requester
		o.sharers.only(p.requester, &e.cfg)
		o.set(exclusiveFlag, true)
		o.replica &^= backedFlag
	}
	p.mode = homeIdle
}
