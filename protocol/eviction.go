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
		h.send(Offer{Frees: h.reclaim.frees, Copies: uint32(h.backups.copies(o.id))}.To(ev.Node, o.id))
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
	case r.isLeaving(r.cfg.Self) || r.isVoid(m):
		r.send(Decline{}.To(m.From, m.Object))
	case o != nil && o.has() == Write:
		// it has come already
	default:
		r.emit(Effect{Kind: EffectOffered, Object: m.Object, Heir: m.From})
	}
}

// isVoid reports whether an offer must not be taken: the memory is being freed, or was freed since,
// or it is replicated and this node has not been told so, which it is when a program binds it.
func (r *requester) isVoid(m *Message) bool {
	k := m.AsOffer()
	return r.reclaim.isDead(m.Object) || int32(k.Frees-r.reclaim.frees) < 0 || k.Copies > 0 && r.backups.copies(m.Object) == 0
}
