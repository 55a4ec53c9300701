package protocol

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// pages is all that a node knows of pages and locks, and the machines that move them. A node has
// three parts in an object, each a type of its own: it asks for access (requester), it has a copy
// (holder), and it is the home (directory).
//
// What happens to one object depends on no other object. So pages could be divided among several
// threads, by a hash of page / HomeStripe, each with a pages of its own. They would share the view,
// which changes only in a recovery; the bounds on what is remembered; which memory is being freed
// or is replicated; and when a program last synchronised. A group lease and a batch of commits
// would concern the pages of one thread; barriers, names and recovery would be one thread's. Each
// thread would need an ordered stream of messages to its like on every other node, because the
// order that package protocol asks for is between the messages about one object, and an
// EpochMarker.
type pages struct {
	*env
	objects      table
	pendings     []*pending
	freePendings []uint32
	wanted       int // pages with want

	requester  requester
	holder     holder
	dir        directory
	multicasts multicasts
	locks      locks
	pace       pacing
	commits    commits
	backups    backups
	reclaim    reclaim
	evac       evacuation
}

func newPages(in *env) *pages {
	c := &pages{env: in}
	c.requester.pages, c.holder.pages, c.dir.pages, c.locks.pages, c.pace.pages = c, c, c, c, c
	c.commits.pages, c.backups.pages, c.reclaim.pages, c.evac.pages, c.multicasts.pages = c, c, c, c, c
	if in.cfg.Outside {
		c.backups.lost = unknownLosses
	}
	return c
}

// pendingOf returns the object's pending, a new one if nothing was under way.
func (c *pages) pendingOf(o *object) *pending {
	if o.pending != 0 {
		return c.pendings[o.pending-1]
	}
	var i uint32
	if n := len(c.freePendings); n > 0 {
		i, c.freePendings = c.freePendings[n-1], c.freePendings[:n-1]
	} else {
		i = uint32(len(c.pendings))
		c.pendings = append(c.pendings, new(pending))
	}
	p := c.pendings[i]
	*p = pending{inUse: true, transaction: transaction{queue: p.queue[:0], readers: p.readers[:0]}}
	o.pending = i + 1
	return p
}

// peek returns the object's pending, or nil.
func (c *pages) peek(o *object) *pending {
	if o == nil || o.pending == 0 {
		return nil
	}
	return c.pendings[o.pending-1]
}

// settle gives the object's pending back when nothing is under way any more.
func (c *pages) settle(o *object) {
	p := c.peek(o)
	if p == nil || !p.idle() {
		return
	}
	p.inUse = false
	c.freePendings = append(c.freePendings, o.pending-1)
	o.pending = 0
	if len(c.reclaim.freed) > 0 {
		c.reclaim.dropDead()
	}
}

// eachPending calls f for everything that has something under way, in ascending order, and settles
// it.
func (c *pages) eachPending(f func(o *object, p *pending)) {
	var ids []ObjectID
	for _, id := range c.sortedIDs() {
		if c.objects.find(id).pending != 0 {
			ids = append(ids, id)
		}
	}
	for _, id := range ids {
		o := c.objects.find(id)
		if p := c.peek(o); p != nil {
			f(o, p)
			c.settle(o)
		}
	}
}

// sortedIDs lists all objects in ascending order.
func (c *pages) sortedIDs() []ObjectID {
	ids := c.objects.ids(0, 1<<64-1)
	slices.Sort(ids)
	return ids
}

// setWant notes what is asked for, or that nothing is any more, and keeps count of it: see Wanted.
func (c *pages) setWant(o *object, p *pending, access Access) {
	if !o.id.IsLock() {
		if p.want != None {
			c.wanted--
		}
		if access != None {
			c.wanted++
		}
	}
	p.want, p.served = access, p.served && access == Read
}

// knowsOrCan reports whether an object is known, or is a page, or can become known.
func (c *pages) knowsOrCan(id ObjectID) bool {
	return !id.IsLock() || c.objects.locks < c.limits.locks || c.objects.find(id) != nil
}

// granted reports whether a grant has come and not taken effect yet.
func (c *pages) granted(o *object) bool {
	p := c.peek(o)
	return p != nil && p.granted
}

// completed ends a local operation.
func (c *pages) completed(ev Event) {
	o := c.objects.find(ev.Object)
	p := c.peek(o)
	if p == nil || p.op != ev.Effect || p.op == 0 {
		panic("protocol: the host reports an operation as completed that was not under way on " + ev.Object.String())
	}
	p.op = 0
	switch ev.Effect {
	case EffectInstall, EffectMakeWritable:
		if o.protected() {
			c.commits.unprotected(o, p)
		} else {
			c.requester.gained(o, p)
		}
	case EffectLost:
		if ev.Anew {
			c.requester.beginAnew(o, p, ev.Access)
		}
	case EffectDowngrade, EffectRevoke:
		switch {
		case p.protecting:
			c.commits.seal(o, p)
		case p.evicting:
			p.evicting = false
		case c.isMember(p.serving.requester):
			c.holder.serve(o, p.serving)
		default:
			c.holder.keepForNobody(o, p, ev.Effect)
		}
	}
	switch {
	case !c.view.changes():
		c.requester.salvage(o, p)
	case p.granted && p.acks == 0:
		c.requester.gain(o, p)
	}
	c.requester.lookAgain(o, p)
	if o.replica&batchedFlag != 0 && !c.reclaim.isDead(o.id) {
		c.commits.beginCommit(o, p)
	}
	c.holder.retryRecall(o, p)
	c.settle(o)
	if len(c.commits.batch) > 0 {
		c.commits.continueBatch()
	}
}

// underWay is how many objects have something under way.
func (c *pages) underWay() int { return len(c.pendings) - len(c.freePendings) }

// clone returns an independent copy, in another environment.
func (c *pages) clone(in *env) *pages {
	k := newPages(in)
	k.objects, k.wanted, k.freePendings = c.objects.clone(), c.wanted, slices.Clone(c.freePendings)
	k.pendings = make([]*pending, len(c.pendings))
	for i, p := range c.pendings {
		q := *p
		q.queue, q.readers, q.unsaved, q.missing = slices.Clone(p.queue), slices.Clone(p.readers), slices.Clone(p.unsaved), slices.Clone(p.missing)
		k.pendings[i] = &q
	}
	k.dir.suspects, k.reclaim = slices.Clone(c.dir.suspects), c.reclaim.clone(k)
	k.locks, k.pace, k.commits = c.locks.clone(k), c.pace.clone(k), c.commits.clone(k)
	k.backups, k.evac, k.multicasts = c.backups.clone(k), c.evac.clone(k), c.multicasts.clone(k)
	return k
}

// access is what this node's copy of an object allows its programs.
func (c *pages) access(id ObjectID) Access {
	if o := c.objects.find(id); o != nil {
		return o.shown()
	}
	return None
}

// appendState appends an encoding: see Engine.AppendState.
func (c *pages) appendState(b []byte) []byte {
	for _, id := range c.sortedIDs() {
		b = c.appendObject(b, c.objects.find(id))
	}
	b = c.locks.appendState(c.multicasts.appendState(b))
	return c.backups.appendState(c.commits.appendState(c.reclaim.appendState(b)))
}

func (c *pages) appendObject(b []byte, o *object) []byte {
	b = binary.AppendUvarint(b, uint64(o.id))
	first := byte(o.access & (accessMask | exclusiveFlag | heldFlag | migrantMask))
	if o.replica != 0 {
		b = append(b, first|contestedFlag, o.replica)
	} else {
		b = append(b, first)
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(o.owner))
	b = binary.AppendUvarint(b, o.sharers.w[0])
	b = binary.AppendUvarint(b, o.sharers.w[1])
	p := c.peek(o)
	b = append(b, bits(p != nil, o.is(droppableFlag), o.is(markedFlag)))
	if p == nil {
		return b
	}
	now := p.current()
	p = &now
	b = append(b, byte(p.want), byte(p.again), bits(p.granted, p.owesDone, p.hasParked, p.holdArmed, p.protecting, p.backup, p.evicting, p.early), byte(p.source), byte(p.grant), byte(p.op), byte(p.mode), byte(p.granting))
	b = binary.AppendVarint(b, int64(p.acks))
	b = binary.AppendUvarint(b, uint64(p.requester))
	b = append(b, byte(len(p.readers)), bits(p.multicast, p.served, p.late))
	for _, n := range p.readers {
		b = binary.AppendUvarint(b, uint64(n))
	}
	b = binary.AppendUvarint(b, uint64(p.supplier))
	b = binary.AppendUvarint(b, uint64(p.invalidated))
	for _, n := range p.unsaved {
		b = append(b, 'u', byte(n), byte(n>>8))
	}
	if b = appendInts(b, p.missing); len(p.missing) > 0 {
		b = append(appendNumbers(b, uint64(p.to)), bits(p.asked))
	}
	b = p.parked.append(p.serving.append(b))
	b = append(b, byte(len(p.queue)))
	for _, r := range p.queue {
		b = binary.AppendUvarint(b, uint64(r.from))
		b = append(b, byte(r.access), bits(r.hasCopy, r.anew, r.moves))
	}
	return b
}

func bits(flags ...bool) (b byte) {
	for i, f := range flags {
		if f {
			b |= 1 << i
		}
	}
	return b
}

// check tells what contradicts itself.
func (c *pages) check() error {
	wanted := 0
	for _, id := range c.sortedIDs() {
		o := c.objects.find(id)
		if p := c.peek(o); p != nil && p.want != None && !id.IsLock() {
			wanted++
		}
		if err := c.checkObject(o, c.peek(o)); err != nil {
			return fmt.Errorf("%v: %w", id, err)
		}
	}
	if wanted != c.wanted {
		return fmt.Errorf("%d pages are wanted, and %d are counted", wanted, c.wanted)
	}
	for _, check := range []func() error{c.pace.check, c.locks.check, c.commits.check, c.backups.check, c.reclaim.check, c.evac.check, c.multicasts.check} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *pages) checkObject(o *object, p *pending) error {
	switch {
	case c.view.phase == running && c.home(o.id) != c.cfg.Self && (o.owner != NoNode || o.backed() || p != nil && p.mode != homeIdle):
		return fmt.Errorf("a directory entry away from home")
	case o.owner != NoNode && !o.sharers.has(o.owner, &c.cfg) && !o.lost() && !o.backed():
		return fmt.Errorf("owner %d is not in its copyset", o.owner)
	case o.protected() && o.has() != Write, o.replica&committedFlag != 0 && !o.protected():
		return fmt.Errorf("sealed or committed with access %v", o.has())
	case o.backed() && (o.owner == NoNode || o.sharers != (copyset{})):
		return fmt.Errorf("backed by %d, with copies", o.owner)
	case o.is(exclusiveFlag) && o.owner == NoNode:
		return fmt.Errorf("exclusive without an owner")
	case o.is(droppableFlag) && (o.has() != Read || o.id.IsLock()):
		return fmt.Errorf("droppable, with access %v", o.has())
	case p == nil:
		return nil
	case p.idle():
		return fmt.Errorf("something is pending, but nothing is")
	case (p.mode == homeBusyShared) != (len(p.readers) > 0 || p.multicast && p.mode != homeBusyExclusive), p.multicast && p.mode == homeBusyExclusive && p.granting != Read, p.late && !p.multicast:
		return fmt.Errorf("%d readers under way in mode %d, multicast %t", len(p.readers), p.mode, p.multicast)
	case p.early && p.op != EffectInstall, (p.early || p.served) && p.want != Read, p.want == Read && o.has() == Read && !p.served:
		return fmt.Errorf("%v is wanted, came early %t or was served %t, with operation %d", p.want, p.early, p.served, p.op)
	case p.mode == homeIdle && len(p.queue) > 0:
		return fmt.Errorf("%d requests wait for nothing", len(p.queue))
	case p.evicting && p.op != EffectRevoke:
		return fmt.Errorf("evicted by operation %d", p.op)
	case c.view.changes() && (p.asked || p.hasParked && p.parked.passed) && !slices.Contains(p.missing, c.cfg.Self):
		return fmt.Errorf("the copy here is to go, and %v are missing", p.missing)
	case p.demand != None && p.want == None && p.again == None:
		return fmt.Errorf("a thread waits for access %v, and nothing is asked for", p.demand)
	case p.granted && p.want == None:
		return fmt.Errorf("granted, but nothing was asked for")
	case p.protecting && p.op != EffectDowngrade, (len(p.unsaved) > 0) != (p.op == EffectBackup):
		return fmt.Errorf("operation %d, commit %t, %d acknowledgements missing", p.op, p.protecting, len(p.unsaved))
	case p.op == EffectMakeWritable && o.has() != Read && !o.protected():
		return fmt.Errorf("made writable with access %v", o.has())
	case !p.granted && p.op != EffectInstall && (p.grant != None || p.source != SourceNone || p.backup):
		return fmt.Errorf("%v is granted, with contents from %d, of a backup %t, and no grant has come", p.grant, p.source, p.backup)
	case p.op == EffectInstall && o.has() != None:
		return fmt.Errorf("installed with access %v", o.has())
	}
	return nil
}
