package protocol

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

// startQueued starts requests from the head of the queue for as long as they are compatible with what
// is under way: one sole transaction, or any number of reads of a shared object.
func (e *Engine) startQueued(o *object, p *pending) {
	started := 0
	for started < len(p.queue) {
		r := p.queue[started]
		shared := r.access == Read && o.owner != NoNode && !o.is(exclusiveFlag)
		if p.mode == homeSole || p.mode == homeReading && !shared {
			break
		}
		started++
		switch {
		case o.owner == r.from && (o.is(exclusiveFlag) || r.access == Read):
			e.reject(&Message{Kind: Request, From: r.from, Access: r.access, Object: o.id}, "the requester has that access already")
		case o.owner == NoNode:
			e.startFirstTouch(o, p, r)
		case shared:
			e.startSharedRead(o, p, r)
		case r.access == Read:
			e.startSoleRead(o, p, r)
		default:
			e.startWrite(o, p, r)
		}
	}
	p.queue = append(p.queue[:0], p.queue[started:]...)
}

func (p *pending) beginSole(r request, access Access) {
	p.mode, p.requester, p.sole = homeSole, r.from, access
}

// startFirstTouch gives an object that nobody has touched to whoever touches it first, for writing
// even if it only wants to read: what is untouched is mostly about to be initialised.
func (e *Engine) startFirstTouch(o *object, p *pending, r request) {
	p.beginSole(r, Write)
	e.send(Message{Kind: Grant, To: r.from, Requester: r.from, Object: o.id, Access: Write, Flags: FlagZero})
}

// startSharedRead adds a reader to a shared object. Any number of these overlap: nothing changes for the
// others. The home supplies the page itself if it has it, which saves a hop.
func (e *Engine) startSharedRead(o *object, p *pending, r request) {
	p.mode = homeReading
	p.readers++
	o.sharers.add(r.from, e.cfg.Nodes)
	e.send(Message{Kind: Forward, To: e.supplier(o), Requester: r.from, Object: o.id, Access: Read})
}

// startSoleRead makes an exclusive owner share its page.
func (e *Engine) startSoleRead(o *object, p *pending, r request) {
	p.beginSole(r, Read)
	e.send(Message{Kind: Forward, To: o.owner, Requester: r.from, Object: o.id, Access: Read})
}

// startWrite takes the object from everybody else and gives it to r. If r keeps its read copy no
// contents travel. A coarse copyset can't say whether r still has its copy: r may have
// lost it to a write that was ahead of it in the queue. Then contents travel.
func (e *Engine) startWrite(o *object, p *pending, r request) {
	p.beginSole(r, Write)
	supplier := e.supplier(o)
	upgrade := r.hasCopy && o.sharers.exact(e.cfg.Nodes) && o.sharers.has(r.from, e.cfg.Nodes)
	if r.from == o.owner {
		upgrade = true
	}
	var scratch [16]NodeID
	invalidated := uint16(0)
	for _, n := range o.sharers.appendTo(scratch[:0], e.cfg.Nodes) {
		if n == r.from || !upgrade && n == supplier {
			continue
		}
		invalidated++
		e.send(Message{Kind: Invalidate, To: n, Requester: r.from, Object: o.id})
	}
	if upgrade {
		e.send(Message{Kind: Grant, To: r.from, Requester: r.from, Object: o.id, Access: Write, Acks: invalidated})
		return
	}
	e.send(Message{Kind: Forward, To: supplier, Requester: r.from, Object: o.id, Access: Write, Acks: invalidated})
}

// supplier is the node to send the object from: the home if it has a copy, else the owner, who always has.
func (e *Engine) supplier(o *object) NodeID {
	if o.has() != None {
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
	case p.mode == homeReading && m.Access != Read:
		e.reject(m, "only reads are under way")
		return
	}
	switch {
	case p.mode == homeReading:
		if p.readers--; p.readers == 0 {
			p.mode = homeIdle
		}
	case p.sole == Read:
		o.set(exclusiveFlag, false)
		o.sharers.add(p.requester, e.cfg.Nodes)
		p.mode = homeIdle
	default:
		o.owner = p.requester
		o.sharers.only(p.requester, e.cfg.Nodes)
		o.set(exclusiveFlag, true)
		p.mode = homeIdle
	}
	e.startQueued(o, p)
	e.settle(o)
}
