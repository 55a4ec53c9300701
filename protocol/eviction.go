package protocol

// A node without room for more pages parts with some, which its host chooses (EventEvict).
//
// A copy for reading is dropped, and nobody is told: its home goes on taking this node for a
// sharer, as it does with nodes that a coarse copyset names, and this node acknowledges an
// Invalidate of what it does not have. Nobody is ever supplied by it, if the copy came for reading
// (droppableFlag): it is the home, if that has a copy, or the owner who supplies. Two things make
// an owner of a reader, and the flag is not set where they do: a recovery, and that members leave.
//
// A page that this node owns may be here alone. It is offered to another node, which asks for it as
// if it were about to write, if it has room. So it is moved by a transaction like any other, and
// whoever wants the page meanwhile gets it. An offer binds nobody.
//
// The request says that the page only moves, and so do the messages that follow from it: nodes that
// give up their copies have lost them to no writer, and take no group lease because of that.

// evict has a page leave this node, if nothing is under way about it.
func (h *holder) evict(ev Event) {
	o := h.objects.find(ev.Object)
	switch {
	case o == nil || o.has() == None || o.pending != 0 || o.id.IsLock() || h.view.phase != running || h.reclaim.isDead(o.id):
	case h.mayDrop(o):
		p := h.pendingOf(o)
		o.setAccess(None)
		p.op, p.evicting = EffectRevoke, true
		h.emit(Effect{Kind: EffectRevoke, Object: o.id, Heir: NoNode})
	case h.canTake(ev.Node):
		offer := Offer{Frees: h.reclaim.frees}
		if x := h.backups.find(o.id); x != nil {
			offer.Copies, offer.Run = uint32(x.copies), AppendRun(nil, x.first, x.count)
		}
		h.send(offer.To(ev.Node, o.id))
	}
}

// mayDrop reports whether another node than this one, which has a copy, is certain to have one too,
// and to supply it to others.
func (h *holder) mayDrop(o *object) bool {
	if h.home(o.id) != h.cfg.Self {
		return o.is(droppableFlag)
	}
	return o.has() == Read && o.owner != h.cfg.Self
}

// droppable reports whether a page that this node has just gained can be dropped later: see
// droppableFlag.
func (r *requester) droppable(o *object) bool {
	return o.has() == Read && !o.id.IsLock() && r.view.phase == running && !r.someLeave() && r.home(o.id) != r.cfg.Self
}

// canTake reports whether a page can be offered to a node.
func (h *holder) canTake(n NodeID) bool {
	return n != NoNode && n != h.cfg.Self && h.isMember(n) && !h.isLeaving(n)
}

// onOffer has the host asked whether there is room for a page, or told that there is none
// elsewhere.
func (r *requester) onOffer(m *Message) {
	o := r.objects.find(m.Object)
	switch {
	case m.Kind == KindDecline:
		r.emit(Effect{Kind: EffectDeclined, Object: m.Object, Heir: m.From})
	case m.Object.IsLock():
		r.reject(m, "locks take no room")
	case !r.learnReplicas(m):
		r.reject(m, "not the run of replicated memory that the page is of")
	case r.isLeaving(r.cfg.Self) || r.isVoid(m):
		r.send(Decline{}.To(m.From, m.Object))
	case o != nil && o.has() == Write:
		// it has come already
	default:
		r.emit(Effect{Kind: EffectOffered, Object: m.Object, Heir: m.From})
	}
}

// isVoid reports whether an offer must not be taken: the memory is being freed, or was since, or it
// is replicated, and there is no room to note that.
func (r *requester) isVoid(m *Message) bool {
	return !r.isNew(m) || m.AsOffer().Copies > 0 && r.backups.find(m.Object) == nil
}

// isNew reports whether the memory of an offer is neither being freed nor free since.
func (r *requester) isNew(m *Message) bool {
	return !r.reclaim.isDead(m.Object) && int32(m.AsOffer().Frees-r.reclaim.frees) >= 0
}

// learnReplicas notes which memory is replicated, as an offer says, before the page comes. It
// returns false if that cannot be so.
func (r *requester) learnReplicas(m *Message) bool {
	k := m.AsOffer()
	if k.Copies == 0 {
		return len(k.Run) == 0
	}
	first, count, err := DecodeRun(k.Run)
	page := m.Object.Page()
	if err != nil || k.Copies > MaxReplicas || page < first || page-first >= count || count > r.cfg.Pages || first > r.cfg.Pages-count {
		return false
	}
	if r.backups.find(m.Object) == nil && len(r.backups.runs) < r.limits.names && r.isNew(m) {
		r.backups.replicate(run{first, count}, int(k.Copies))
	}
	return true
}
