package protocol

import "encoding/binary"

// holder gives up this node's copies when others are to have them. It does so in an order: what was
// granted and has not taken effect takes effect first, then pacing is asked whether the page may
// go, and replicated memory is committed.
type holder struct{ *pages }

// recall is what the home wants of this node's copy: the object goes to the requester.
type recall struct {
	requester NodeID
	access    Access // Read: this node stays a reader; Write: it gives up the copy
	supply    bool   // the requester gets a Grant from here (Forward), else an InvalidateAck
	acks      uint16 // of the Grant
	passed    bool   // the InvalidateAck is one of those that passing collects
	moves     bool   // nobody there is known to want it: it was offered for want of room
}

// append appends an encoding: see Engine.AppendState.
func (r *recall) append(b []byte) []byte {
	b = append(b, byte(r.access), bits(r.supply, r.passed, r.moves))
	b = binary.LittleEndian.AppendUint16(b, uint16(r.requester))
	return binary.LittleEndian.AppendUint16(b, r.acks)
}

// onTake deals with a Forward or an Invalidate: somebody else gets the object.
func (h *holder) onTake(m *Message) {
	r := recall{requester: m.node, access: Write, moves: m.flags&flagMoves != 0}
	if m.Kind == KindInvalidate && (len(m.Payload) > 0 || m.From != h.home(m.Object)) {
		h.onPassed(m)
		return
	}
	if m.Kind == KindForward {
		k := m.AsForward()
		r.access, r.supply, r.acks = k.Access, true, k.Acks
		if k.Backup && !m.Object.IsLock() {
			h.onRestore(m, &k)
			return
		}
	}
	if why := h.noRecall(m, &r); why != "" {
		h.reject(m, why)
		return
	}
	if m.Kind == KindInvalidate && h.verified(m) {
		return
	}
	o := h.objects.find(m.Object)
	if o == nil || o.has() == None && !h.granted(o) {
		h.invalidateNone(m, &r, h.peek(o))
		return
	}
	p := h.pendingOf(o)
	defer h.settle(o)
	switch {
	case p.hasParked || p.op == EffectDowngrade && !p.protecting:
		h.reject(m, "the object is being taken already")
	case !r.supply && (o.has() == Write || p.granted && p.grant == Write):
		h.reject(m, "the owner is not invalidated, its page is forwarded")
	case r.access == Read && o.has() == Read && !p.granted:
		h.serve(o, r) // nobody loses anything
	default:
		p.parked, p.hasParked = r, true
		if o.id.IsLock() {
			h.locks.beforeTake(o)
		}
		h.retryRecall(o, p)
	}
}

// invalidateNone deals with a message that takes away what this node does not have. A home may take
// it for a sharer: copies for reading are dropped without a word (evict), and a coarse copyset
// names nodes that never had one.
func (h *holder) invalidateNone(m *Message, r *recall, p *pending) {
	switch {
	case r.supply, m.Object.IsLock() && !h.cfg.isLarge():
		h.reject(m, "this node has no copy")
	case p != nil && p.evicting: // it is just being dropped
		p.serving, p.evicting = *r, false
	default:
		h.send(InvalidateAck{}.To(r.requester, m.Object))
	}
}

// noRecall says why a message takes nothing from this node: "" if it may.
func (h *holder) noRecall(m *Message, r *recall) string {
	switch {
	case r.requester == h.cfg.Self || m.From != h.home(m.Object):
		return "only the home takes objects away, and for others"
	case r.access == None || !h.isMember(r.requester):
		return "a forward for no access, or an object taken for a node that is lost"
	}
	return ""
}

// retryRecall lets go of the object if it is wanted elsewhere and nothing speaks against it. What
// was granted and has not taken effect yet takes effect first: the home has moved on, and takes
// away what it has just given.
func (h *holder) retryRecall(o *object, p *pending) {
	if !p.hasParked || p.op != 0 || p.granted || !h.view.changes() {
		return
	}
	if o.id.IsLock() {
		h.locks.pump(o)
		return
	}
	if !h.pace.mayTake(o, p) {
		return
	}
	if h.commits.dirty(o) { // whoever gets it may show others what is in it
		if h.commits.beginCommit(o, p); p.op != 0 || h.commits.dirty(o) {
			return
		}
	}
	contended := h.pace.leaves(o, &p.parked)
	p.serving, p.hasParked = p.parked, false
	p.parked = recall{}
	if p.serving.access == Read {
		o.setAccess(Read)
		if o.protected() {
			h.commits.giveProtected(o, p)
			return
		}
		p.op = EffectDowngrade
		h.emit(Effect{Kind: EffectDowngrade, Object: o.id, Heir: p.serving.requester})
		return
	}
	o.setAccess(None)
	o.replica &^= protectedFlag | committedFlag
	p.op = EffectRevoke
	h.emit(Effect{Kind: EffectRevoke, Object: o.id, Save: p.serving.supply, Contended: contended, Moves: p.serving.moves, Heir: p.serving.requester})
}

// serve answers a recall after the local copy has been given up as far as it demands. If this node
// is the home, its Grant ends the transaction.
func (h *holder) serve(o *object, r recall) {
	h.supply(o, r)
	if p := h.peek(o); r.supply && h.home(o.id) == h.cfg.Self && p != nil && p.mode == homeBusyExclusive && h.view.changes() {
		h.dir.end(o, p)
		h.dir.startQueued(o, p)
	}
}

// supply sends what answers a recall.
func (h *holder) supply(o *object, r recall) {
	died := h.locks.passMark(o)
	switch {
	case r.passed:
		h.acknowledged(o, h.peek(o), h.cfg.Self)
	case !r.supply:
		h.send(InvalidateAck{died}.To(r.requester, o.id))
	case o.id.IsLock():
		h.send(Grant{Access: r.access, Contents: ZeroContents, Acks: r.acks, Died: died}.To(r.requester, o.id))
	default:
		from := SourcePage
		if o.has() == None {
			from = SourceSaved
		}
		h.sendPage(Grant{Access: r.access, Contents: PageContents, Acks: r.acks}.To(r.requester, o.id), from)
		if r.access == Read {
			h.multicasts.supplied(o)
		}
	}
}

// keepForNobody deals with the end of an operation that served a node which is lost meanwhile.
// Contents that would have gone there come back.
func (h *holder) keepForNobody(o *object, p *pending, served EffectKind) {
	if served == EffectRevoke && p.serving.supply {
		p.op = EffectInstall
		p.grant = Read
		h.emit(Effect{Kind: EffectInstall, Object: o.id, Access: Read, Source: SourceSaved})
	}
}

func (h *holder) holdOver(id ObjectID) {
	o := h.objects.find(id)
	p := h.peek(o)
	if p == nil || !p.holdArmed {
		panic("protocol: the host reports the end of a hold that was not armed on " + id.String())
	}
	p.holdArmed = false
	if o.since == p.armedFor { // else the page has gone and come again since, and is held anew
		o.set(heldFlag, false)
	}
	h.retryRecall(o, p)
	if p.multicast { // somebody does not acknowledge it: others need not wait for that
		p.late = true
		h.dir.startQueued(o, p)
	}
	h.settle(o)
	h.pace.lookAtGroupLease(id)
}

// onRestore supplies a page of which there is nothing but the backup here.
func (h *holder) onRestore(m *Message, k *Forward) {
	o := h.objects.find(m.Object)
	_, has := h.backups.store[m.Object]
	why := h.noRecall(m, &recall{requester: k.Requester, access: k.Access})
	if why == "" && (!has || k.Access != Write || k.Acks != 0 || o != nil && (o.has() != None || h.granted(o))) {
		why = "this node has no backup of the page, or has the page itself"
	}
	if why != "" {
		h.reject(m, why)
		return
	}
	h.backups.sendBackup(k.Requester, m.Object)
}
