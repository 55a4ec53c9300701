package protocol

import "slices"

// requester asks for access that threads of this node want, and lets it take effect when it is
// granted.
type requester struct{ *pages }

// fault deals with an access to a page that the page table did not let through.
func (r *requester) fault(ev Event) {
	if r.reclaim.isDead(ev.Object) {
		// The memory is being freed. Its users have unmapped it; whoever waits is woken and faults
		// for good.
		r.wakeDead(ev)
		return
	}
	r.pace.movedOn(ev)
	o := r.objects.get(ev.Object)
	p := r.pendingOf(o)
	defer r.settle(o)
	if ev.Client != 0 && ev.Access > o.has() { // else the host has only guessed
		r.pace.demanded(p, ev.Access)
	}
	switch {
	case p.op != 0:
		// To be looked at when the operation is over: a thread that faulted just after it took
		// effect would be forgotten otherwise.
		p.again = max(p.again, ev.Access)
	case ev.Access == Write && o.protected():
		if !r.commits.unseal(o, p) {
			p.again = Write
		}
	case o.has() >= ev.Access:
		if ev.Client != 0 {
			r.startMap(o, p, ev.Client)
		}
	case p.want >= ev.Access:
		// The grant will wake all threads.
	case p.want != None:
		// Less was asked for; ask again when it is here.
		p.again = ev.Access
	default:
		r.pace.noteProgress(o, ev)
		r.request(o, p, Request{Access: ev.Access, Moves: ev.Kind == EventAccept})
	}
}

// startMap lets a client (0: every client) see that the page is here.
func (r *requester) startMap(o *object, p *pending, c ClientID) {
	p.op = EffectMap
	r.emit(Effect{Kind: EffectMap, Object: o.id, Access: o.shown(), Client: c})
}

// wakeDead wakes a program that faulted on memory that is being freed.
func (r *requester) wakeDead(ev Event) {
	if ev.Client == 0 {
		return
	}
	o := r.objects.get(ev.Object)
	switch p := r.pendingOf(o); {
	case p.op != 0:
		p.again = max(p.again, ev.Access)
	case p.want == None:
		r.startMap(o, p, 0)
	}
}

// ask requests access from the home. A node that is leaving asks for nothing: it would take along
// what only it has then. Preconditions: nothing is asked for yet, and this node has less.
func (r *requester) ask(o *object, p *pending, access Access) {
	r.request(o, p, Request{Access: access})
}

// request is ask for a request in particular.
func (r *requester) request(o *object, p *pending, what Request) {
	r.setWant(o, p, what.Access)
	if r.view.phase != running || r.isLeaving(r.cfg.Self) {
		return // in a recovery: it is sent when that is over
	}
	what.HasCopy = o.has() == Read
	r.send(what.To(r.home(o.id), o.id))
}

// onGrant notes what the supplier or the home grants; it takes effect when all acknowledgements are
// in.
func (r *requester) onGrant(m *Message) {
	o, k := r.objects.find(m.Object), m.AsGrant()
	p := r.peek(o)
	if p.isServed(o) && k.Access == Read && k.Acks == 0 {
		r.answered(o, p, m.From != r.home(o.id))
		return
	}
	if why := r.noGrant(m, &k, o, p); why != "" {
		r.reject(m, why)
		return
	}
	if p.acks+int(k.Acks) < 0 {
		r.reject(new(InvalidateAck{}.To(0, o.id).SentBy(p.acker)), "more copies were given up than there were")
		return
	}
	r.take(o, p, &k)
	p.grant = k.Access
	p.backup = k.Backup
	p.owesDone = m.From != r.home(o.id)
	p.acks += int(k.Acks)
	if p.acks != 0 || p.op != 0 {
		r.stash(o, p)
		return
	}
	r.gain(o, p)
}

// noGrant says why a node takes no such grant: "" if it does.
func (r *requester) noGrant(m *Message, k *Grant, o *object, p *pending) string {
	switch {
	case p == nil || p.want == None || p.granted:
		return "nothing was asked for"
	case p.isServed(o):
		return "more is granted than the reader has asked for that a multicast has served"
	case k.Access < p.want:
		return "less is granted than was asked for"
	case p.want == Read && k.Acks != 0 || int(k.Acks) >= r.cfg.Nodes:
		return "nobody has to give up as many copies for it"
	case m.From != r.cfg.Self && r.home(o.id) == r.cfg.Self && !p.suppliedBy(m, r.cfg.Self, o.owner):
		return "this node, the object's home, has not asked for that"
	case k.Contents == NoContents && o.has() != Read && !r.hasBackup(m, k):
		return "a grant without contents, and this node has no copy"
	case k.Backup && o.has() != None:
		return "a page from a backup, and this node has the page itself"
	case (k.Contents == PageContents || k.Contents == FirstContents) && o.id.IsLock():
		return "a lock has no contents"
	}
	return ""
}

// hasBackup reports whether a Grant tells this node to install its own backup, and it can.
func (r *requester) hasBackup(m *Message, k *Grant) bool {
	_, has := r.backups.store[m.Object]
	return k.Backup && has && m.From == r.home(m.Object)
}

// take notes what a grant brings: where the contents are, if this node needs them, and the mark of
// a dead owner.
func (r *requester) take(o *object, p *pending, k *Grant) {
	p.granted, p.served, p.source = true, false, SourceNone
	if o.has() == None {
		p.source = arriving(k.Contents)
		if k.Contents == NoContents && k.Backup {
			p.source = SourceBackup
		}
	}
	r.locks.inheritMark(o.id, k.Died)
}

// stash keeps the contents that came with this event's message until the grant takes effect.
func (r *requester) stash(o *object, p *pending) {
	if p.source == SourceMessage {
		p.source = SourceStash
		r.emit(Effect{Kind: EffectStash, Object: o.id})
	}
}

// onLost notes that the home has nothing to grant.
func (r *requester) onLost(m *Message) {
	o := r.objects.find(m.Object)
	p := r.peek(o)
	if p == nil || p.want == None || p.granted || m.From != r.home(m.Object) || m.Object.IsLock() || o.has() != None {
		r.reject(m, "nothing was asked for, or of another node, or it is here")
		return
	}
	if p.op != 0 { // a thread was woken for nothing, and will fault again
		p.again = max(p.want, p.again)
		r.setWant(o, p, None)
		return
	}
	want := p.want
	r.setWant(o, p, None)
	p.demand = None
	p.op = EffectLost
	r.emit(Effect{Kind: EffectLost, Object: o.id, Access: want, Rank: uint32(m.AsLost().Node)})
	r.settle(o)
}

// beginAnew asks for a page that is lost once more: the host has something that it can begin with.
// If a recovery comes between, this node hears again that the page is lost, and the host decides
// again.
func (r *requester) beginAnew(o *object, p *pending, access Access) {
	if r.reclaim.isDead(o.id) {
		p.again = max(p.again, access) // only to wake who waits: see wakeDead
		return
	}
	access, p.again = max(p.again, access), None
	r.pace.demanded(p, access)
	r.request(o, p, Request{Access: access, Anew: true})
}

func (r *requester) onInvalidateAck(m *Message) {
	o := r.objects.find(m.Object)
	p := r.peek(o)
	switch {
	case p != nil && slices.Contains(p.missing, m.From):
		r.holder.acknowledged(o, p, m.From)
		r.settle(o)
		return
	// requests are sent when the recovery is over
	case p == nil || p.want != Write || p.granted && p.acks <= 0, r.view.phase != running:
		r.reject(m, "no acknowledgement was expected")
		return
	case p.acks <= -r.cfg.Nodes:
		r.reject(m, "more acknowledgements than nodes")
		return
	}
	p.acks--
	p.acker = m.From
	r.locks.inheritMark(o.id, m.AsInvalidateAck().Died)
	if p.granted && p.acks == 0 && p.op == 0 {
		r.gain(o, p)
	}
}

// gain makes a complete grant take effect. Preconditions: no local operation is under way. A map
// can be, when the grant of more access arrives; the grant then takes effect when it is completed.
func (r *requester) gain(o *object, p *pending) {
	if p.grant == Write {
		r.commits.list(o)
	}
	switch {
	case o.id.IsLock():
		r.gained(o, p)
		r.locks.pump(o)
	case o.has() != None:
		p.op = EffectMakeWritable
		r.emit(Effect{Kind: EffectMakeWritable, Object: o.id})
	default:
		p.op = EffectInstall
		r.emit(Effect{Kind: EffectInstall, Object: o.id, Access: p.grant, Source: p.source})
	}
}

// gained records the new access and ends the transaction.
func (r *requester) gained(o *object, p *pending) {
	o.setAccess(p.grant)
	o.set(droppableFlag, r.droppable(o))
	o.since = r.now
	o.set(heldFlag, r.cfg.Hold > 0 && !o.id.IsLock())
	if p.owesDone && r.view.changes() {
		r.send(Done{p.grant, r.locks.markOf(o.id)}.To(r.home(o.id), o.id))
	}
	r.forgetGrant(o, p, p.grant)
	r.pace.takeGroupLease(o, p)
}

// lookAgain deals with the strongest access that faulted during an operation or a request for less.
func (r *requester) lookAgain(o *object, p *pending) {
	f := p.again
	switch {
	case f == None || p.op != 0:
		// nothing, or not yet: the grant that waited for a map has begun an operation of its own
		return
	case f == Write && o.protected():
		if !r.commits.unseal(o, p) {
			return
		}
	case o.has() >= f, r.reclaim.isDead(o.id) && p.want == None:
		r.startMap(o, p, 0) // on memory that is being freed nothing is asked for: see wakeDead
		p.demand = None
	case p.want == None:
		r.ask(o, p, f)
	case p.want < f:
		return // and look again when that request is over
	}
	p.again = None
}

// salvage keeps what a grant has brought that has not taken effect. Whatever it grants, its
// contents are as good as any other copy, so it is installed for reading: then it does not matter
// which acknowledgements are still missing.
func (r *requester) salvage(o *object, p *pending) {
	if !p.granted || p.op != 0 {
		return
	}
	switch {
	case o.id.IsLock():
		o.setAccess(max(o.has(), Read))
		r.forgetGrant(o, p, Read)
	case o.has() != None:
		r.forgetGrant(o, p, o.has())
	case p.backup:
		// nobody else has it, and other backups may be older: it is this node's alone until it has
		// committed it
		r.gain(o, p)
	default:
		p.grant, p.acks = Read, 0
		p.op = EffectInstall
		r.emit(Effect{Kind: EffectInstall, Object: o.id, Access: Read, Source: p.source})
	}
}

// onLateGrant keeps the contents that a grant brings while nothing may change, for reading.
func (r *requester) onLateGrant(m *Message, o *object, p *pending) {
	k := m.AsGrant()
	if k.Contents == NoContents && o.has() == None || (k.Contents == PageContents || k.Contents == FirstContents) && o.id.IsLock() {
		r.reject(m, "a grant without contents, or of a lock with contents")
		return
	}
	r.take(o, p, &k)
	p.grant = Read
	if p.op != 0 {
		r.stash(o, p)
	}
	r.salvage(o, p)
	r.settle(o)
}

// forgetGrant ends a request that has brought this access, if it is all that was wanted.
func (r *requester) forgetGrant(o *object, p *pending, got Access) {
	if p.want <= got && !p.early {
		r.setWant(o, p, None)
	}
	p.early, p.served = false, p.early
	p.grant, p.granted, p.source, p.backup, p.acks, p.owesDone = None, false, SourceNone, false, 0, false
}

// suppliedBy says, at the home of an object, whether a Grant to the home itself is the one that its
// own transaction waits for. As long as the home has a copy to give up, for the transaction before,
// the supplier cannot have anything to give.
func (p *pending) suppliedBy(m *Message, self, owner NodeID) bool {
	if p.leaves() {
		return false
	}
	k := m.AsGrant()
	if p.mode == homeBusyShared {
		return m.From == owner && k.Access == Read && slices.Contains(p.readers, self)
	}
	return p.mode == homeBusyExclusive && p.requester == self && m.From == p.supplier && k.Access == p.granting && k.Acks == p.invalidated
}
