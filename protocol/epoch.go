package protocol

import (
	"cmp"
	"slices"
)

// When nodes are lost, leave or come, the nodes agree, outside this package, on who they are: a
// view, numbered by an epoch. Each engine is told by EventEpoch, at any time and in no order, and
// from there on they recover together:
//
//	quiescing  no access is given up any more; operations under way end, and what they serve is
//	           sent, unless it is for a node that is lost
//	flushing   an EpochMarker behind the last message to each other member; until all of theirs
//	           have come, contents that still come are kept as read copies, and all other business
//	           of the directory is dropped
//	reporting  each node has told each member what it holds of the objects whose home that now is;
//	           when all reports are in, the home makes its directory anew from them
//	ready      an EpochReady to all, when this node's own directory stands; when all have come,
//	           requests are sent again
//
// Homes move with the views. A home from which an object moves away keeps what it knows of it until
// the recovery is over, and tells the new one what no holder can tell: that a page is lost, say. A
// node that comes knows nothing, and is told what the others suspect (see suspect).
//
// This rests on one fact: as soon as no message is on its way, all copies of a page are equal,
// because a node stores only when it has the only one and gives it up before anybody else gets one.
// So nothing has to be known of transactions that were cut short.
//
// What no member holds, and somebody may have written, is lost (see directory.go, lost). The engine
// never takes it for untouched.
//
// If further nodes are lost meanwhile, a view with a greater epoch begins it all again. What was
// known of the directories is replaced only when all reports of one epoch are in, so it survives
// that.

// newEpoch begins a recovery.
func (e *Engine) newEpoch(ev Event) {
	v := &e.view
	if ev.Epoch <= v.epoch || !slices.Contains(ev.Members, e.cfg.Self) || !slices.IsSorted(ev.Members) || int(ev.Members[len(ev.Members)-1]) >= e.cfg.Nodes {
		panic("protocol: the host begins an epoch that is not the next, or not this node's, or names no nodes")
	}
	homes := ev.Homes
	if homes == nil {
		homes = ev.Members
	}
	if len(homes) == 0 || !slices.IsSorted(homes) || slices.ContainsFunc(homes, func(n NodeID) bool { return !isIn(ev.Members, n) }) {
		panic("protocol: the host begins an epoch without homes, or with homes that are no members")
	}
	before := e.memberList()
	e.enter(ev.Epoch, ev.Members, homes)
	e.backups.noteKeepers(before, ev.Orderly)
	e.recovery.begin()
	e.evac.stop()
	e.backups.asked = nil
	e.reclaim.early = nil
	e.barriers.suspend()
	if e.pace.groupLease.active {
		e.pace.endGroupLease() // what others asked for does not count any more
	}
	e.eachPending(e.holder.forgetPassing)
	e.multicasts.list = nil
	e.eachPending(e.requester.forgetServed)
	e.eachPending(e.requester.salvage)
	e.eachPending(e.commits.abandonCommit)
}

// Epoch is the number of the view in force, 0 until a node was lost for the first time, and whether
// its recovery is over.
func (e *Engine) Epoch() (epoch uint32, recovered bool) { return e.view.epoch, e.view.phase == running }

// recovering deals with a message that has to be treated otherwise during a recovery. It returns
// false if it is none.
func (e *Engine) recovering(m *Message) bool {
	switch e.recovery.admission(m) {
	case deliver:
		return false
	case drop:
	case park:
		e.recovery.hold(m)
	case parkOnce:
		e.parkCombine(m)
	case salvage:
		e.onDrained(m)
	case refuse:
		e.reject(m, "its sender has said that it says no more in the epoch before")
	}
	return true
}

// onDrained deals with a message about an object that comes while nothing may change.
func (e *Engine) onDrained(m *Message) {
	o := e.objects.find(m.Object)
	p := e.peek(o)
	switch {
	case p == nil || p.want == None:
	case m.Kind == KindInvalidateAck && o.id.IsLock() && p.want == Write && m.AsInvalidateAck().Died != 0:
		// The mark of a dead owner goes with a copy: whoever has the one has the other.
		e.locks.inheritMark(o.id, m.AsInvalidateAck().Died)
		o.setAccess(max(o.has(), Read))
	case m.Kind == KindGrant && !p.granted && !m.AsGrant().Backup:
		e.requester.onLateGrant(m, o, p)
	}
	// Whoever wants something asks again.
}

// advance goes on with a recovery as far as it can.
func (e *Engine) advance() {
	v := &e.view
	if v.phase == quiescing && !e.givesUp() {
		v.phase = flushing
		e.recovery.marked[e.cfg.Self] = v.epoch
		for _, n := range v.members {
			if n != e.cfg.Self {
				e.send(EpochMarker{v.epoch}.To(n))
			}
		}
	}
	if v.phase == flushing && e.flushed() {
		v.phase = reporting
		e.sendReports()
	}
	if v.phase == reporting && !e.recovery.applied && e.recovery.reported() {
		e.applyReports()
	}
	if v.phase == reporting && e.recovery.applied && e.recovery.bound {
		v.phase, v.since = ready, e.recovery.since
		e.dir.addSuspects(e.recovery.pieces)
		// it has been told
		v.fresh = slices.DeleteFunc(v.fresh, func(n NodeID) bool { return n == e.cfg.Self })
		for _, n := range v.members {
			e.send(EpochReady{v.epoch}.To(n))
		}
		e.reclaim.ready()
	}
	if v.phase == ready && e.recovery.allReady() {
		e.resume()
	}
}

// givesUp reports whether a copy is being given up, or freed memory dropped.
func (c *pages) givesUp() bool {
	return slices.ContainsFunc(c.pendings, func(p *pending) bool {
		return p.inUse && p.givesUp()
	}) || slices.ContainsFunc(c.reclaim.freed, func(d freedExtent) bool { return d.dropping })
}

// flushed: nothing of the epoch before can come any more, from others or from the page table.
func (e *Engine) flushed() bool {
	return e.recovery.allMarked() && !slices.ContainsFunc(e.pendings, func(p *pending) bool {
		return p.inUse && (p.granted || p.op == EffectInstall || p.op == EffectMakeWritable)
	})
}

// parkCombine keeps a BarrierCombine that has come before this node's recovery was over. There can
// be one from each node and for each home.
func (e *Engine) parkCombine(m *Message) {
	_, why := e.barriers.readCombine(m)
	if slices.ContainsFunc(e.recovery.held, func(h Message) bool {
		return h.Kind == KindBarrierCombine && h.From == m.From && h.AsBarrierCombine().Root == m.AsBarrierCombine().Root
	}) {
		why = "its sender was not told to go on"
	}
	if why != "" {
		e.reject(m, why)
		return
	}
	e.recovery.hold(m)
}

// resume ends a recovery: what waited goes on.
func (e *Engine) resume() {
	v := &e.view
	e.dir.leave()
	e.registry.leave()
	e.names.resume()
	e.barriers.resume()
	v.phase, v.before, v.fresh, v.losses, v.trees, e.recovery.pieces = running, nil, nil, false, false, nil
	e.eachPending(func(o *object, p *pending) {
		if p.want != None {
			e.requester.ask(o, p, p.want)
		}
	})
	e.registry.resume()
	e.commits.resumeCommits()
	held := e.recovery.held
	e.recovery.held, e.recovery.parked = nil, nil
	for i := range held {
		// what asks for a name and is not for this node is sent to the new allocator
		if held[i].Kind != KindNameRequest || e.registry.here {
			e.deliver(&held[i])
		}
	}
	for _, l := range slices.Clone(e.locks.list) {
		e.locks.pump(e.objects.get(l.id))
	}
	e.emit(Effect{Kind: EffectResumed, Count: uint64(v.epoch)})
	e.evac.start()
}

// Home is the node that keeps the directory entry of an object, in the view in force.
func (e *Engine) Home(id ObjectID) NodeID { return e.home(id) }

// sendReports tells each member what this node has of the objects whose home that is.
func (e *Engine) sendReports() {
	members := e.memberList()
	parcels := make([]parcel, len(members))
	for i, n := range members {
		parcels[i].to = n
	}
	parcelFor := func(n NodeID) *parcel {
		i, _ := slices.BinarySearch(members, n)
		return &parcels[i]
	}
	top := uint64(0)
	for _, id := range e.sortedIDs() {
		if !id.IsLock() {
			top = id.Page() + 1
		}
		o := e.objects.find(id)
		o.set(droppableFlag, false) // a report may make its sender the owner
		to := parcelFor(e.home(id))
		e.dir.reportEntry(to, o)
		if o.has() == None {
			if _, lost := e.formerHome(id); !lost {
				continue
			}
		}
		b := to.room(objectBytes)
		*b = AppendHolding(*b, id, o.has())
		if died := e.locks.markOf(id); died != 0 && o.has() != None {
			b = to.room(entryBytes)
			*b = appendEntry(*b, id, e.cfg.Self, 0, died)
		}
	}
	for _, id := range e.backups.kept {
		top = max(top, id.Page()+1)
	}
	if e.cfg.Partitions > 1 {
		top = e.cfg.Pages // this one does not know what the others know
	}
	e.backups.reportBackups(parcelFor)
	e.names.report(parcelFor(e.allocator()), max(top, e.reclaim.top()))
	e.registry.report(parcelFor(e.allocator()))
	if known := slices.IndexFunc(members, func(n NodeID) bool { return !slices.Contains(e.view.fresh, n) }); known >= 0 && members[known] == e.cfg.Self {
		for _, n := range e.view.fresh {
			e.dir.reportPast(parcelFor(n))
		}
	}
	for i := range parcels {
		e.dispatch(&parcels[i], func(pieces uint32, piece []byte) Message {
			return ReportHeld{pieces, e.view.epoch, piece}.To(parcels[i].to)
		})
	}
}

// applyReports makes this node's part of the directory anew.
func (e *Engine) applyReports() {
	e.recovery.applied = true
	e.eachPending(func(_ *object, p *pending) {
		p.serving, p.parked, p.hasParked, p.acks = recall{}, recall{}, false, 0
		p.readers, p.queue, p.multicast, p.late = p.readers[:0], p.queue[:0], false, false
		if p.mode == homeBusyExclusive && e.isMember(p.requester) {
			p.requester = NoNode // see lose
		}
	})
	// This node believes itself first. If others contradict it, or each other, they lie.
	slices.SortStableFunc(e.recovery.reports, func(a, b report) int {
		return cmp.Compare(e.order(a.from), e.order(b.from))
	})
	known := map[ObjectID]bool{} // pages that are known to be lost
	for _, id := range e.sortedIDs() {
		o := e.objects.find(id)
		if e.home(id) != e.cfg.Self {
			continue // see leaveDirectory
		}
		if o.lost() && !id.IsLock() {
			known[id] = true
		}
		o.sharers = copyset{}
		o.replica &^= backedFlag | saidLostFlag
		o.setMigrant(0)
	}
	e.dir.applyHoldings(e.recovery.reports, known)
	for _, id := range e.sortedIDs() {
		o := e.objects.find(id)
		if e.home(id) == e.cfg.Self && o.owner != NoNode && o.lost() && !known[id] {
			e.dir.lose(o)
		}
	}
	e.eachPending(func(_ *object, p *pending) { p.mode = homeIdle })
	e.reclaim.freed, e.reclaim.frees = nil, 0
	e.barriers.forgetArrivals()
	e.registry.restartPhases()
	if e.allocator() == e.cfg.Self && e.cfg.Partition == 0 {
		if !e.registry.stays() {
			e.recovery.forgetCalls()
		}
		e.registry.rebuild(e.recovery.reports)
		e.registry.sendBound()
	}
	e.recovery.reports = nil
}
