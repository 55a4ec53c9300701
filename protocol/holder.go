package protocol

import "slices"

// fault deals with an access to a page that the page table did not let through.
func (e *Engine) fault(ev Event) {
	if e.isDead(ev.Object) {
		// The memory is being freed. Its users have unmapped it; whoever waits is woken and faults for good.
		e.wakeDead(ev)
		return
	}
	e.movedOn(ev)
	o := e.objects.get(ev.Object)
	p := e.pendingOf(o)
	defer e.settle(o)
	switch {
	case p.op != 0:
		// To be looked at when the operation is over: a thread that faulted just after it took effect would be
		// forgotten otherwise.
		p.refault = max(p.refault, ev.Access)
	case ev.Access == Write && o.sealed():
		if !e.unseal(o, p) {
			p.refault = Write
		}
	case o.has() >= ev.Access:
		if ev.Client != 0 {
			e.startMap(o, p, ev.Client)
		}
	case p.want >= ev.Access:
		// The grant will wake all threads.
	case p.want != None:
		// Less was asked for; ask again when it is here.
		p.refault = ev.Access
	default:
		e.noteProgress(o, ev)
		if ev.Client != 0 {
			e.demanded(o)
		}
		e.ask(o, p, ev.Access)
	}
}

// startMap lets a client (0: every client) see that the page is here.
func (e *Engine) startMap(o *object, p *pending, c ClientID) {
	p.op = EffectMap
	e.emit(Effect{Kind: EffectMap, Object: o.id, Access: o.shown(), Client: c})
}

// noteProgress counts how often the same access faulted on a page that was wanted elsewhere all
// along: it seems to have lost the page before it got through.
func (e *Engine) noteProgress(o *object, ev Event) {
	last := ev.which()
	if last == o.last && o.is(contestedFlag) {
		o.setStreak(o.streak() + 1)
	} else {
		o.setStreak(0)
	}
	o.last = last
	o.set(contestedFlag, false)
}

// which tells accesses apart, as far as 16 bits can: the thread and where in the page.
func (ev *Event) which() uint16 {
	h := ev.Thread*0x9e3779b1 ^ ev.Offset*0x85ebca6b
	return uint16(h ^ h>>16)
}

// footstep is where a thread faulted last.
type footstep struct {
	thread uint32
	which  uint16
	object ObjectID
}

// maxFootsteps bounds the threads whose last fault is remembered. Of others it is not noticed that they have moved on, and
// their pages are held for the whole time.
const maxFootsteps = 64

// movedOn ends the hold of the page that a thread faulted on before, when it faults elsewhere: the access for which that page
// came has got through, and to keep the page from others any longer would only make them wait.
//
// One instruction can need two pages at once, and then a fault on the second does not mean that it is through with the
// first. So a page on which the same access has failed before is kept for its time.
func (e *Engine) movedOn(ev Event) {
	if ev.Thread == 0 {
		return
	}
	i := 0
	for i < len(e.footsteps) && e.footsteps[i].thread != ev.Thread {
		i++
	}
	step := footstep{ev.Thread, ev.which(), ev.Object}
	switch {
	case i < len(e.footsteps):
		before := e.footsteps[i]
		e.footsteps[i] = step
		if before.object != step.object {
			e.gotThrough(before)
		}
	case i < maxFootsteps:
		e.footsteps = append(e.footsteps, step)
	default:
		e.footsteps[ev.Thread%maxFootsteps] = step
	}
}

// gotThrough ends the hold of a page if it was for that access.
func (e *Engine) gotThrough(f footstep) {
	o := e.objects.find(f.object)
	if o == nil || !o.is(heldFlag) || o.last != f.which || o.streak() > 0 {
		return
	}
	o.set(heldFlag, false)
	if p := e.peek(o); p != nil {
		e.retryDeferred(o, p)
		e.settle(o)
	}
}

// streakPerDoubling is how many times in a row an access must fail to get through before its page is
// held twice as long. More than 1, because a thread that spins on a contested word looks the same.
const streakPerDoubling = 4

// holdTime is how long the page is kept from others after it was gained.
func (e *Engine) holdTime(o *object) Time {
	t := e.cfg.Hold
	for range o.streak() / streakPerDoubling {
		if t *= 2; t >= e.cfg.MaxHold {
			return e.cfg.MaxHold
		}
	}
	return t
}

// ask requests access from the home.
// Preconditions: nothing is asked for yet, and this node has less.
func (e *Engine) ask(o *object, p *pending, access Access) {
	p.want = access
	if e.view.phase != running {
		return // it is sent when the recovery is over
	}
	m := Message{Kind: Request, To: e.home(o.id), Requester: e.cfg.Self, Object: o.id, Access: access}
	if o.has() == Read {
		m.Flags = FlagHasCopy
	}
	e.send(m)
}

// onGrant notes what the supplier or the home grants; it takes effect when all acknowledgements are in.
func (e *Engine) onGrant(m *Message) {
	o := e.objects.find(m.Object)
	p := e.peek(o)
	switch {
	case p == nil || p.want == None || p.granted:
		e.reject(m, "nothing was asked for")
		return
	case m.Access < p.want:
		e.reject(m, "less is granted than was asked for")
		return
	case p.want == Read && m.Acks != 0 || int(m.Acks) >= e.cfg.Nodes:
		e.reject(m, "nobody has to give up as many copies for it")
		return
	case m.From != e.cfg.Self && e.home(o.id) == e.cfg.Self && !p.suppliedBy(m, e.cfg.Self, o.owner):
		e.reject(m, "this node, the object's home, has not asked for that")
		return
	case m.Flags&(FlagData|FlagZero) == 0 && o.has() != Read && !e.hasBackup(m):
		e.reject(m, "a grant without contents, and this node has no copy")
		return
	case m.Flags&FlagBackup != 0 && o.has() != None:
		e.reject(m, "a page from a backup, and this node has the page itself")
		return
	case m.Flags&FlagData != 0 && o.id.IsLock():
		e.reject(m, "a lock has no contents")
		return
	}
	if p.acks+int(m.Acks) < 0 {
		e.reject(&Message{Kind: InvalidateAck, From: p.acker, Object: o.id}, "more copies were given up than there were")
		return
	}
	p.granted, p.grant = true, m.Access
	p.data, p.zero, p.backup = m.Flags&FlagData != 0, m.Flags&FlagZero != 0, m.Flags&FlagBackup != 0
	p.owesDone = m.From != e.home(o.id)
	p.acks += int(m.Acks)
	e.inheritMark(m)
	if p.acks != 0 || p.op != 0 {
		if p.data && o.has() == None {
			e.emit(Effect{Kind: EffectStash, Object: o.id})
		}
		return
	}
	e.gain(o, p)
}

// suppliedBy says, at the home of an object, whether a Grant to the home itself is the one that its own transaction waits for. As
// long as the home has a copy to give up, for the transaction before, the supplier cannot have anything to give.
func (p *pending) suppliedBy(m *Message, self, owner NodeID) bool {
	if p.giving() {
		return false
	}
	if p.mode == homeReading {
		return m.From == owner && m.Access == Read && slices.Contains(p.reading, self)
	}
	return p.mode == homeSole && p.requester == self && m.From == p.supplier && m.Access == p.sole && m.Acks == p.invalidated
}

// onLost notes that the home has nothing to grant.
func (e *Engine) onLost(m *Message) {
	o := e.objects.find(m.Object)
	p := e.peek(o)
	if p == nil || p.want == None || p.granted || m.From != e.home(m.Object) || m.Object.IsLock() || o.has() != None || m.Rank >= uint32(e.cfg.Nodes) {
		e.reject(m, "nothing was asked for, or of another node, or it is here, or there is no such node")
		return
	}
	if p.op != 0 { // a thread was woken for nothing, and will fault again
		p.want, p.refault = None, max(p.want, p.refault)
		return
	}
	p.want, p.op = None, EffectLost
	e.emit(Effect{Kind: EffectLost, Object: o.id, Rank: m.Rank})
	e.settle(o)
}

func (e *Engine) onInvalidateAck(m *Message) {
	o := e.objects.find(m.Object)
	p := e.peek(o)
	switch {
	case p == nil || p.want != Write || p.granted && p.acks <= 0, e.view.phase != running: // requests are sent when the recovery is over
		e.reject(m, "no acknowledgement was expected")
		return
	case p.acks <= -e.cfg.Nodes:
		e.reject(m, "more acknowledgements than nodes")
		return
	}
	p.acks--
	p.acker = m.From
	e.inheritMark(m)
	if p.granted && p.acks == 0 && p.op == 0 {
		e.gain(o, p)
	}
}

// gain makes a complete grant take effect.
// Preconditions: no local operation is under way. A map can be, when the grant of more access arrives; the grant
// then takes effect when it is completed.
func (e *Engine) gain(o *object, p *pending) {
	if p.grant == Write {
		e.list(o)
	}
	switch {
	case o.id.IsLock():
		e.gained(o, p)
		e.pump(o)
	case o.has() != None:
		p.op = EffectMakeWritable
		e.emit(Effect{Kind: EffectMakeWritable, Object: o.id})
	default:
		p.op = EffectInstall
		e.emit(Effect{Kind: EffectInstall, Object: o.id, Access: p.grant, Zero: p.zero, Backup: p.backup && !p.data && !p.zero})
	}
}

// gained records the new access and ends the transaction.
func (e *Engine) gained(o *object, p *pending) {
	o.setAccess(p.grant)
	o.since = e.now
	o.set(heldFlag, e.cfg.Hold > 0 && !o.id.IsLock())
	if p.owesDone && e.view.changes() {
		e.send(Message{Kind: Done, To: e.home(o.id), Object: o.id, Access: p.grant})
	}
	p.forgetGrant(p.grant)
	e.takesTurn(o)
}

// completed ends a local operation.
func (e *Engine) completed(ev Event) {
	o := e.objects.find(ev.Object)
	p := e.peek(o)
	if p == nil || p.op != ev.Effect || p.op == 0 {
		panic("protocol: the host reports an operation as completed that was not under way on " + ev.Object.String())
	}
	p.op = 0
	switch ev.Effect {
	case EffectInstall, EffectMakeWritable:
		if o.sealed() {
			e.unsealed(o, p)
		} else {
			e.gained(o, p)
		}
	case EffectDowngrade, EffectRevoke:
		if p.sealing {
			e.seal(o, p)
		} else if e.isMember(p.serving.Requester) {
			e.serve(o, p.serving)
		} else {
			e.keepForNobody(o, p, ev.Effect)
		}
	}
	switch {
	case !e.view.changes():
		e.salvage(o, p)
	case p.granted && p.acks == 0:
		e.gain(o, p)
	}
	e.lookAgain(o, p)
	if o.replica&batchedFlag != 0 && !e.isDead(o.id) {
		e.beginCommit(o, p)
	}
	e.retryDeferred(o, p)
	e.settle(o)
	if len(e.replicas.batch) > 0 {
		e.continueBatch()
	}
}

// lookAgain deals with the strongest access that faulted during an operation or a request for less.
func (e *Engine) lookAgain(o *object, p *pending) {
	f := p.refault
	switch {
	case f == None || p.op != 0:
		return // nothing, or not yet: the grant that waited for a map has begun an operation of its own
	case f == Write && o.sealed():
		if !e.unseal(o, p) {
			return
		}
	case o.has() >= f, e.isDead(o.id) && p.want == None:
		e.startMap(o, p, 0) // on memory that is being freed nothing is asked for: see wakeDead
	case p.want == None:
		e.ask(o, p, f)
	case p.want < f:
		return // and look again when that request is over
	}
	p.refault = None
}

// onTake deals with a Forward or an Invalidate: somebody else gets the object.
func (e *Engine) onTake(m *Message) {
	if m.Requester == e.cfg.Self || m.From != e.home(m.Object) {
		e.reject(m, "only the home takes objects away, and for others")
		return
	}
	if m.Kind == Forward && m.Access == None || !e.isMember(m.Requester) {
		e.reject(m, "a forward for no access, or an object taken for a node that is lost")
		return
	}
	if m.Kind == Forward && m.Flags&FlagBackup != 0 && !m.Object.IsLock() {
		e.onRestore(m)
		return
	}
	o := e.objects.find(m.Object)
	if o == nil || o.has() == None && !e.granted(o) {
		if m.Kind == Invalidate && e.cfg.Nodes > exactNodes {
			// A coarse copyset names nodes that have no copy.
			e.send(Message{Kind: InvalidateAck, To: m.Requester, Object: m.Object})
			return
		}
		e.reject(m, "this node has no copy")
		return
	}
	p := e.pendingOf(o)
	defer e.settle(o)
	switch {
	case p.hasDeferred || p.op == EffectDowngrade && !p.sealing:
		e.reject(m, "the object is being taken already")
	case m.Kind == Invalidate && (o.has() == Write || p.granted && p.grant == Write):
		e.reject(m, "the owner is not invalidated, its page is forwarded")
	case m.Kind == Forward && m.Access == Read && o.has() == Read && !p.granted:
		e.serve(o, *m) // nobody loses anything
	default:
		p.deferred, p.hasDeferred = *m, true
		if o.id.IsLock() {
			e.beforeTake(o)
		}
		e.retryDeferred(o, p)
	}
}

// granted says whether a grant has come and not taken effect yet.
func (e *Engine) granted(o *object) bool {
	p := e.peek(o)
	return p != nil && p.granted
}

// retryDeferred lets go of the object if it is wanted elsewhere and nothing speaks against it. What was granted and has not
// taken effect yet takes effect first: the home has moved on, and takes away what it has just given.
func (e *Engine) retryDeferred(o *object, p *pending) {
	if !p.hasDeferred || p.op != 0 || p.granted || !e.view.changes() {
		return
	}
	if o.id.IsLock() {
		e.pump(o)
		return
	}
	if o.is(heldFlag) {
		if p.holdArmed {
			return
		}
		hold := e.holdTime(o)
		if elapsed := e.now - o.since; elapsed < hold {
			o.set(contestedFlag, true)
			e.armHold(o, p, hold-elapsed)
			return
		}
		o.set(heldFlag, false)
	}
	if after := e.keeps(o, p); after > 0 {
		e.keep(o, p, after)
		return
	}
	p.kept = false
	if e.uncommitted(o) { // whoever gets it may show others what is in it
		if e.beginCommit(o, p); p.op != 0 || e.uncommitted(o) {
			return
		}
	}
	fought := p.deferred.takes() && e.losesTo(o)
	p.serving, p.hasDeferred = p.deferred, false
	p.deferred = Message{}
	if p.serving.Kind == Forward && p.serving.Access == Read {
		o.setAccess(Read)
		if o.sealed() {
			e.giveSealed(o, p)
			return
		}
		p.op = EffectDowngrade
		e.emit(Effect{Kind: EffectDowngrade, Object: o.id})
		return
	}
	o.setAccess(None)
	o.replica &^= sealedFlag | committedFlag
	p.op = EffectRevoke
	e.emit(Effect{Kind: EffectRevoke, Object: o.id, Save: p.serving.Kind == Forward, Fought: fought, Message: p.serving})
}

// takes says whether a Forward or an Invalidate takes the whole copy away, for a writer.
func (m *Message) takes() bool { return m.Kind == Invalidate || m.Access == Write }

// armHold has the page looked at again after a while.
func (e *Engine) armHold(o *object, p *pending, after Time) {
	p.holdArmed, p.armedFor = true, o.since
	e.emit(Effect{Kind: EffectHold, Object: o.id, After: after})
}

func (e *Engine) holdOver(id ObjectID) {
	o := e.objects.find(id)
	p := e.peek(o)
	if p == nil || !p.holdArmed {
		panic("protocol: the host reports the end of a hold that was not armed on " + id.String())
	}
	p.holdArmed = false
	if o.since == p.armedFor { // else the page has gone and come again since, and is held anew
		o.set(heldFlag, false)
	}
	e.retryDeferred(o, p)
	e.settle(o)
	e.looksAtTurn(id)
}

// serve answers the Forward or Invalidate m after the local copy has been given up as far as it demands. If this node is the
// home, its Grant ends the transaction.
func (e *Engine) serve(o *object, m Message) {
	e.supply(o, m)
	if p := e.peek(o); m.Kind == Forward && m.From == e.cfg.Self && p != nil && p.mode == homeSole && e.view.changes() {
		e.end(o, p)
		e.startQueued(o, p)
	}
}

// supply sends what answers a Forward or an Invalidate.
func (e *Engine) supply(o *object, m Message) {
	reply := Message{Kind: InvalidateAck, To: m.Requester, Requester: m.Requester, Object: o.id}
	if m.Kind == Forward {
		reply.Kind, reply.Access, reply.Acks = Grant, m.Access, m.Acks
		reply.Flags = FlagData
		if o.id.IsLock() {
			reply.Flags = FlagZero
		}
	}
	e.passMark(o, &reply)
	e.send(reply)
}
