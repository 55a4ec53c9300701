package protocol

import (
	"slices"
)

// directory is the home's part: for each object whose home this node is, who owns it and who has a
// copy, and the transaction under way. Nothing else writes an object's owner, sharers and
// exclusiveFlag.
type directory struct {
	*pages
	suspects []suspect // pages that may be lost although this home knows nothing of them
}

// Entry is a copy of what a home knows of an object when nothing is under way.
type Entry struct {
	Owner     NodeID // NoNode: nobody has touched the object
	Exclusive bool   // the owner is the only holder, and may write
	// Sharers are all holders, the owner among them, and unless Exact perhaps members that hold
	// nothing: in clusters too large for exact copysets.
	Sharers []NodeID
	Exact   bool
	// Lost: the page is lost, and the owner is the node with which it was. There are no sharers
	// then.
	Lost bool
	// Backed: nobody has the page, and the owner has a backup of it, which whoever asks for the
	// page gets. There are no sharers then.
	Backed bool
}

// lost says, at the home, whether nobody has the object although somebody has touched it: the owner
// is a node that was lost.
func (o *object) lost() bool { return o.owner != NoNode && o.sharers == (copyset{}) && !o.backed() }

// Entry returns the directory entry of an object; false if this node does not know the object or a
// transaction is under way. Preconditions: this node is the object's home.
func (e *Engine) Entry(id ObjectID) (Entry, bool) {
	o := e.objects.find(id)
	if o == nil || e.peek(o) != nil && e.peek(o).mode != homeIdle {
		return Entry{Owner: NoNode}, false
	}
	return Entry{Owner: o.owner, Exclusive: o.is(exclusiveFlag), Sharers: e.dir.sharersOf(o, nil), Exact: o.sharers.exact(&e.cfg), Lost: o.lost(), Backed: o.backed()}, true
}

// Lost reports whether a page is lost, and with which node.
// Preconditions: this node is the object's home.
func (e *Engine) Lost(id ObjectID) (NodeID, bool) {
	if o := e.objects.find(id); o != nil && o.owner != NoNode {
		return o.owner, o.lost()
	}
	return e.dir.lostHome(id)
}

// onRequest queues a request at the home and starts what can start.
func (d *directory) onRequest(m *Message) {
	if d.home(m.Object) != d.cfg.Self {
		d.reject(m, "this node is not the object's home")
		return
	}
	k := m.AsRequest()
	if k.Access == None || k.Anew && m.Object.IsLock() {
		d.reject(m, "a request for no access, or for a lock to begin anew")
		return
	}
	if d.isLeaving(m.From) {
		return // no program there waits for it, and with the node it would be lost
	}
	if why := d.noRequest(m); why != "" {
		d.reject(m, why)
		return
	}
	o := d.objects.get(m.Object)
	p := d.pendingOf(o)
	for _, r := range p.queue {
		if r.from == m.From {
			d.reject(m, "a second request while the first waits")
			return
		}
	}
	p.queue = append(p.queue, request{from: m.From, access: k.Access, hasCopy: k.HasCopy, anew: k.Anew, moves: k.Moves})
	if k.Access == Read && !o.sharers.has(m.From, &d.cfg) && o.givesCopies(p, d.cfg.Self) {
		d.multicasts.noteReader(o, p)
	}
	d.startQueued(o, p)
	d.settle(o)
}

// noRequest says why a home does not take a request from a peer: "" if it does.
func (d *directory) noRequest(m *Message) string {
	switch {
	case m.From == d.cfg.Self:
	case !d.knowsOrCan(m.Object):
		return "this node knows as many locks as it can"
	case d.underWay() >= d.limits.pending && d.peek(d.objects.find(m.Object)) == nil:
		return "as much is under way at this node as can be"
	case d.reclaim.isForgotten(m.Object):
		return "the page is being freed, and the requester has said that it asks for it no more"
	}
	return ""
}

// startQueued starts requests from the head of the queue for as long as they are compatible with
// what is under way: one transaction that excludes others, or any number of reads of a shared
// object.
func (d *directory) startQueued(o *object, p *pending) {
	if !d.view.changes() {
		return
	}
	started := 0
	for started < len(p.queue) {
		r := p.queue[started]
		shared := r.access == Read && o.isShared()
		if p.mode == homeBusyExclusive || p.mode == homeBusyShared && (!shared || p.multicast && !p.late || slices.Contains(p.readers, r.from)) {
			break // who has dropped its copy and asks again may be heard before its Done
		}
		started++
		if o.owner == NoNode {
			d.lookForLoss(o)
		}
		if r.anew && o.lost() {
			o.owner = NoNode // as if nobody had touched it
		}
		switch {
		case o.lost():
			o.replica |= saidLostFlag
			d.send(Lost{o.owner}.To(r.from, o.id))
		case o.backed():
			d.startRestore(o, p, r)
		case o.owner == r.from && (o.is(exclusiveFlag) || r.access == Read):
			d.reject(new(Request{Access: r.access}.To(0, o.id).SentBy(r.from)), "the requester has that access already")
		case o.owner == NoNode:
			d.startFirstTouch(o, p, r)
		case shared:
			d.startSharedRead(o, p, r)
		case r.access == Read && !o.migrates():
			d.startSoleRead(o, p, r)
		default:
			d.startWrite(o, p, r)
		}
	}
	p.queue = append(p.queue[:0], p.queue[started:]...)
}

// isShared reports, at the home, whether any number of nodes can read an object.
func (o *object) isShared() bool {
	return o.owner != NoNode && !o.lost() && !o.backed() && !o.is(exclusiveFlag)
}

// givesCopies reports, at the home, whether nodes that ask to read a page get copies: it is shared,
// or another node is giving up exclusiveness for a reader.
func (o *object) givesCopies(p *pending, home NodeID) bool {
	if p.mode == homeBusyExclusive {
		return p.granting == Read && p.supplier != home
	}
	return o.isShared()
}

// startFirstTouch gives an object that nobody has touched to whoever touches it first, for writing
// even if it only wants to read: what is untouched is mostly about to be initialised.
func (d *directory) startFirstTouch(o *object, p *pending, r request) {
	p.beginSole(r, Write, d.cfg.Self)
	contents := FirstContents
	if o.id.IsLock() {
		contents = ZeroContents
	}
	died := d.locks.passMark(o) // of a node that is lost, which had it last
	d.send(Grant{Access: Write, Contents: contents, Died: died}.To(r.from, o.id))
	d.end(o, p)
}

// startSharedRead adds a reader to a shared object. Nothing changes for the others, so any number
// of these overlap. The home supplies the page itself if it has it, which saves a hop and the Done.
func (d *directory) startSharedRead(o *object, p *pending, r request) {
	supplier := d.supplier(o)
	o.sharers.add(r.from, &d.cfg)
	if supplier == d.cfg.Self {
		d.holder.supply(o, recall{requester: r.from, access: Read, supply: true})
	} else {
		p.mode = homeBusyShared
		p.readers = append(p.readers, r.from)
		d.send(Forward{Requester: r.from, Access: Read}.To(supplier, o.id))
	}
}

// startSoleRead makes an exclusive owner share its page.
func (d *directory) startSoleRead(o *object, p *pending, r request) {
	p.beginSole(r, Read, o.owner)
	d.send(Forward{Requester: r.from, Access: Read}.To(o.owner, o.id))
}

// startWrite takes the object from everybody else and gives it to r. If r keeps its read copy no
// contents travel. A coarse copyset can't say whether r, if it is not the home, still has its copy:
// r may have lost it to a write that was ahead of it in the queue. Then contents travel.
func (d *directory) startWrite(o *object, p *pending, r request) {
	supplier := d.supplier(o)
	p.beginSole(r, Write, supplier)
	upgrade := r.hasCopy && o.sharers.certain(r.from, &d.cfg)
	if r.from == o.owner {
		upgrade = true
	}
	var scratch [16]NodeID
	others := slices.DeleteFunc(d.sharersOf(o, scratch[:0]), func(n NodeID) bool {
		return n == r.from || !upgrade && n == supplier
	})
	invalidated := uint16(d.invalidate(o, &r, others))
	if upgrade {
		o.upgraded(r.from != o.owner && len(others) == 1 && !o.id.IsLock())
		d.send(Grant{Access: Write, Acks: invalidated}.To(r.from, o.id))
		d.end(o, p)
		return
	}
	p.invalidated = invalidated
	d.send(Forward{Requester: r.from, Access: Write, Acks: invalidated, Moves: r.moves}.To(supplier, o.id))
}

// supplier is the node to send the object from: the home if it has a copy, else the owner, who
// always has. The home's copy counts only if the directory names it: it may be on its way out, for
// a writer that is waiting for it.
func (d *directory) supplier(o *object) NodeID {
	if o.has() != None && o.sharers.certain(d.cfg.Self, &d.cfg) {
		return d.cfg.Self
	}
	return o.owner
}

// onDone ends a transaction and starts the next ones.
func (d *directory) onDone(m *Message) {
	k, o := m.AsDone(), d.objects.find(m.Object)
	p, gained := d.peek(o), k.Access
	switch {
	case k.Died != 0 && !m.Object.IsLock():
		d.reject(m, "a page has no owner who died")
		return
	case p == nil || p.mode == homeIdle:
		d.reject(m, "no transaction is under way")
		return
	case p.mode == homeBusyExclusive && (m.From != p.requester || gained != p.granting):
		d.reject(m, "the transaction under way is another")
		return
	case p.mode == homeBusyExclusive && (p.supplier == d.cfg.Self || p.leaves()):
		d.reject(m, "this node itself has not yet given up what the requester says it has")
		return
	case p.mode == homeBusyShared && (gained != Read || !slices.Contains(p.readers, m.From)):
		d.reject(m, "no such read is under way")
		return
	}
	if k.Died != 0 || p.mode == homeBusyExclusive { // those who share a lock share its mark
		o.set(markedFlag, k.Died != 0)
	}
	if p.mode == homeBusyShared {
		i := slices.Index(p.readers, m.From)
		p.readers = slices.Delete(p.readers, i, i+1)
		p.endReading()
		// this node waits for what the owner sends it: see suppliedBy
		if !slices.Contains(p.readers, d.cfg.Self) {
			d.passOn(o, m.From)
		}
	} else {
		d.end(o, p)
	}
	d.startQueued(o, p)
	d.settle(o)
}

// end notes in the directory what the exclusive transaction under way has changed.
//
// It is called when the requester says Done; or, if the Grant is the home's own, when that is sent:
// whatever the home sends the requester about the object from then on arrives behind the Grant, and
// the requester lets it wait until the grant has taken effect.
func (d *directory) end(o *object, p *pending) {
	if p.granting == Read {
		o.set(exclusiveFlag, false)
		o.sharers.add(p.requester, &d.cfg)
		d.passOn(o, p.requester)
	} else {
		o.owner = p.requester
		o.sharers.only(p.requester, &d.cfg)
		o.set(exclusiveFlag, true)
		o.replica &^= backedFlag
	}
	p.mode = homeBusyShared
	p.endReading()
}

// sharersOf appends, at the home, the members that may have an object. A coarse set names groups,
// and some of a group may be gone.
func (d *directory) sharersOf(o *object, out []NodeID) []NodeID {
	out = o.sharers.appendTo(out, &d.cfg)
	if o.sharers.exact(&d.cfg) {
		return out
	}
	return slices.DeleteFunc(out, func(n NodeID) bool { return !d.isMember(n) })
}

// passOn makes a member the owner that stays and has a copy now, in place of one that is leaving.
// That one is not asked for the object any more.
func (d *directory) passOn(o *object, to NodeID) {
	if d.isLeaving(o.owner) && !d.isLeaving(to) {
		o.owner = to
	}
}

// onlyLeaving says, at the home, whether nobody has an object for certain but leaving members. Of
// one that nobody has the backups are copied.
func (d *directory) onlyLeaving(o *object) bool {
	return o != nil && d.isLeaving(o.owner) && !o.lost() && !o.backed() && !d.reclaim.isDead(o.id)
}

// startRestore gives a page of which there is only a backup to whoever asks for it first.
func (d *directory) startRestore(o *object, p *pending, r request) {
	p.beginSole(r, Write, o.owner)
	grant := Grant{Access: Write, Backup: true}.To(r.from, o.id)
	switch {
	case r.from == o.owner:
		d.send(grant)
		d.end(o, p)
	case o.owner == d.cfg.Self:
		d.backups.sendBackup(r.from, o.id)
		d.end(o, p)
	default:
		d.send(Forward{Requester: r.from, Access: Write, Backup: true}.To(o.owner, o.id))
	}
}

// applyHoldings enters who has what, and then what former homes know of the rest. It adds to known
// what those know to be lost.
func (d *directory) applyHoldings(said reports, known map[ObjectID]bool) {
	if slices.Contains(d.view.fresh, d.cfg.Self) {
		said.each(func(_ NodeID, x *entry) {
			switch x.tag {
			case tagBefore:
				d.view.before = append(d.view.before, x.before)
			case tagSuspect:
				d.suspects = append(d.suspects, suspect{x.run, [][]NodeID{x.before}, x.after, unknownLosses})
			case tagCame:
				d.noteCome(x.owner, x.since)
			}
		})
	}
	said.each(func(from NodeID, x *entry) {
		if x.tag == tagObject {
			d.applyHolder(from, x)
		}
	})
	said.each(func(_ NodeID, x *entry) {
		if x.tag == tagEntry && d.knowsOrCan(x.id) && d.applyEntry(x) {
			known[x.id] = true
		}
	})
	best := map[ObjectID]version{}
	said.each(func(from NodeID, x *entry) {
		if x.tag == tagBackup {
			d.applyBackup(from, x, best)
		}
	})
}

// applyHolder enters in the directory what one member has of an object.
func (d *directory) applyHolder(from NodeID, x *entry) {
	if !d.knowsOrCan(x.id) {
		d.contradicts(from, x.id, "this node knows as many locks as it can")
		return
	}
	o := d.objects.get(x.id)
	switch {
	case x.access != None && o.owner != NoNode && !o.lost() && (o.is(exclusiveFlag) || x.access == Write):
		d.contradicts(from, x.id, "it has a copy beside somebody who has the only one")
	case x.access == None:
		// Somebody had it once. If it turns out that nobody has it now, it is lost, unless this
		// node has known better since an epoch whose end the reporter has not seen.
		if home, lost := d.formerHome(x.id); lost && o.owner == NoNode {
			o.owner = home
			o.set(exclusiveFlag, true)
		}
	case o.lost() || o.owner == NoNode:
		o.owner = from
		o.sharers.add(from, &d.cfg)
		o.set(exclusiveFlag, x.access == Write)
	default:
		o.sharers.add(from, &d.cfg)
	}
}

// applyEntry enters what a former home knows, and reports whether it is that a page was lost
// before.
func (d *directory) applyEntry(x *entry) (lost bool) {
	o := d.objects.get(x.id)
	switch {
	case x.died == 0 || !x.id.IsLock():
	case o.owner != NoNode && !o.lost(): // who has the lock has the mark, too
		o.set(markedFlag, true)
	case d.locks.getLock(x.id).died == 0:
		d.locks.getLock(x.id).died = x.died
	}
	if o.owner != NoNode || x.owner == NoNode {
		return false
	}
	o.owner = x.owner
	o.set(exclusiveFlag, x.written)
	return x.lost && !x.id.IsLock()
}

// applyBackup enters in the directory who has a backup, if nobody has the page.
func (d *directory) applyBackup(from NodeID, x *entry, best map[ObjectID]version) {
	o := d.objects.get(x.id)
	if o.owner != NoNode && !o.lost() && !o.backed() || o.backed() && x.version.compare(best[x.id]) <= 0 {
		return
	}
	best[x.id] = x.version
	o.owner = from
	o.set(exclusiveFlag, false)
	o.replica |= backedFlag
}

// reportEntry tells an object's new home what this node, which has been it, knows of the object and
// no holder can tell.
func (d *directory) reportEntry(p *parcel, o *object) {
	if p.to == d.cfg.Self {
		return
	}
	died := uint32(0)
	if l := d.locks.peekLock(o.id); l != nil && o.has() == None {
		died = l.died
	}
	owner, written := o.owner, o.is(exclusiveFlag|markedFlag)
	if q := d.peek(o); q != nil && q.mode == homeBusyExclusive && q.requester != NoNode && !d.isMember(q.requester) {
		owner, written = q.requester, written || q.granting == Write // see lose
	}
	if died == 0 && (owner == NoNode || !o.lost() && !d.view.losses) {
		return // if somebody has touched it, somebody has it
	}
	b := p.room(entryBytes)
	*b = appendEntry(*b, o.id, owner, bits(owner != NoNode && o.lost(), written), died)
}

// endReading notes that a read of a shared object is over, or that a multicast is.
func (p *pending) endReading() {
	if len(p.readers) == 0 && !p.multicast {
		p.mode = homeIdle
	}
}

func (p *pending) beginSole(r request, access Access, supplier NodeID) {
	p.mode, p.requester, p.granting, p.supplier, p.invalidated = homeBusyExclusive, r.from, access, supplier, 0
}

// leave forgets what this node knew of objects whose home it is no longer.
func (d *directory) leave() {
	for _, id := range d.sortedIDs() {
		o := d.objects.find(id)
		if d.home(id) == d.cfg.Self || o.owner == NoNode {
			continue
		}
		o.owner, o.sharers = NoNode, copyset{}
		o.set(exclusiveFlag|markedFlag, false)
		o.replica &^= backedFlag | saidLostFlag
		if !id.IsLock() && o.has() == None && o.pending == 0 && o.replica == 0 {
			d.objects.remove(id)
		}
	}
	for _, l := range slices.Clone(d.locks.list) {
		// The mark of a dead owner that was here because the directory was is at the new home (see
		// reportEntry); one that came with access stays with that.
		if d.home(l.id) != d.cfg.Self && d.objects.get(l.id).has() == None {
			l.died = 0
			d.locks.dropLock(l)
		}
	}
}
