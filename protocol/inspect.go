package protocol

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Objects is how many pages and locks this node knows.
func (e *Engine) Objects() int { return e.objects.count }

// Sealed says whether this node has an object alone, as with Write, and the page table lets programs only read.
func (e *Engine) Sealed(id ObjectID) bool {
	o := e.objects.find(id)
	return o != nil && o.sealed()
}

// Pending is how many of them have something under way.
func (e *Engine) Pending() int { return len(e.pendings) - len(e.freePendings) }

// sortedIDs lists all objects in ascending order.
func (e *Engine) sortedIDs() []ObjectID {
	ids := e.objects.ids(0, 1<<64-1)
	slices.Sort(ids)
	return ids
}

// Clone returns an independent copy, for exploring what else could happen.
func (e *Engine) Clone() *Engine {
	c := &Engine{cfg: e.cfg, now: e.now, limits: e.limits, arrived: e.arrived}
	c.objects = e.objects
	c.objects.index = slices.Clone(e.objects.index)
	c.objects.free = slices.Clone(e.objects.free)
	c.objects.slabs = make([][]object, len(e.objects.slabs))
	for i, s := range e.objects.slabs {
		// Only the part in use: explorers hold thousands of engines with two objects each.
		n := min(len(s), e.objects.used-i*slabObjects)
		c.objects.slabs[i] = append(make([]object, 0, n), s[:n]...)
	}
	c.pendings = make([]*pending, len(e.pendings))
	for i, p := range e.pendings {
		q := *p
		q.queue, q.reading, q.unsaved = slices.Clone(p.queue), slices.Clone(p.reading), slices.Clone(p.unsaved)
		c.pendings[i] = &q
	}
	c.freePendings = slices.Clone(e.freePendings)
	for _, l := range e.locks {
		k := *l
		k.readers, k.queue = slices.Clone(l.readers), slices.Clone(l.queue)
		c.locks = append(c.locks, &k)
	}
	for _, b := range e.barriers {
		k := *b
		k.arrivals = slices.Clone(b.arrivals)
		c.barriers = append(c.barriers, &k)
	}
	c.calls = slices.Clone(e.calls)
	c.dead = slices.Clone(e.dead)
	c.turn = e.turn
	c.turn.fought, c.turn.kept, c.turn.over = slices.Clone(e.turn.fought), slices.Clone(e.turn.kept), slices.Clone(e.turn.over)
	c.footsteps = slices.Clone(e.footsteps)
	c.holders = slices.Clone(e.holders)
	c.uses = slices.Clone(e.uses)
	c.view = e.view.clone()
	c.trees = e.trees.clone()
	c.replicas = e.replicas.clone()
	c.suspects = slices.Clone(e.suspects)
	c.rescue = e.rescue.clone()
	c.gone = slices.Clone(e.gone)
	c.names.here, c.names.since = e.names.here, e.names.since
	c.names.free = slices.Clone(e.names.free)
	c.names.uses = e.names.uses
	for _, f := range e.names.freeing {
		f.missing = slices.Clone(f.missing)
		c.names.freeing = append(c.names.freeing, f)
	}
	for _, b := range e.names.bound {
		k := *b
		k.users = slices.Clone(b.users)
		c.names.bound = append(c.names.bound, &k)
	}
	return c
}

// AppendState appends an encoding of all that decides what the engine will do, the same for engines that will do
// the same. Left out is what only decides how long pages are held: when access was gained, how often it was in vain,
// which thread has moved on, and whether the node has its turn. To an explorer a hold may end at any time after the access has got through.
func (e *Engine) AppendState(b []byte) []byte {
	for _, id := range e.sortedIDs() {
		b = e.appendObject(b, e.objects.find(id))
	}
	b = append(b, 'L')
	for _, l := range e.locks {
		b = fmt.Appendf(b, "%x %d %v %v %d %d;", uint64(l.id), l.writer, l.readers, l.queue, l.beforeTake, l.died)
	}
	for _, x := range e.barriers {
		b = fmt.Appendf(b, "B%v;", *x)
	}
	b = fmt.Appendf(b, "C%v D%v F%v G%v", e.calls, e.dead, e.names.free, e.names.freeing)
	for _, x := range e.names.bound {
		b = fmt.Appendf(b, "N%v;", *x)
	}
	b = e.trees.appendState(e.replicas.appendState(b))
	if e.view.marked != nil {
		b = fmt.Appendf(b, "E%v S%v U%v X%v R%v H%t%d", e.view, e.suspects, e.uses, e.gone, e.rescue, e.names.here, e.names.since)
	}
	return b
}

// appendState appends an encoding, of nothing where nothing is relayed.
func (t *trees) appendState(b []byte) []byte {
	for _, r := range t.relays {
		b = fmt.Appendf(b, "T%v;", *r)
	}
	if len(t.passed) > 0 || t.serial > 0 {
		b = fmt.Appendf(b, "P%v%v%d;", t.passed, t.unheard, t.serial)
	}
	return b
}

// appendState appends an encoding, of nothing where nothing is replicated.
func (r *replicas) appendState(b []byte) []byte {
	if len(r.runs) == 0 && len(r.store) == 0 && len(r.calls)+len(r.later) == 0 {
		return b
	}
	b = fmt.Appendf(b, "R%v %v %v %d %v %v %v;", r.runs, r.written, r.batch, r.next, r.calls, r.later, r.asked)
	for _, id := range slices.Sorted(slices.Values(r.kept)) {
		b = fmt.Appendf(b, "%d %v;", id, r.store[id])
	}
	return b
}

func (e *Engine) appendObject(b []byte, o *object) []byte {
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
	p := e.peek(o)
	if p == nil {
		return append(b, 0)
	}
	b = append(b, 1, byte(p.want), byte(p.refault), bits(p.granted, p.data, p.zero, p.owesDone, p.hasDeferred, p.holdArmed, p.sealing, p.backup), byte(p.grant), byte(p.op), byte(p.mode), byte(p.sole))
	b = binary.AppendVarint(b, int64(p.acks))
	b = binary.AppendUvarint(b, uint64(p.requester))
	b = append(b, byte(len(p.reading)))
	for _, n := range p.reading {
		b = binary.AppendUvarint(b, uint64(n))
	}
	if p.mode == homeSole {
		b = binary.AppendUvarint(b, uint64(p.supplier))
		b = binary.AppendUvarint(b, uint64(p.invalidated))
	}
	for _, n := range p.unsaved {
		b = append(b, 'u', byte(n), byte(n>>8))
	}
	if p.givesUp() {
		b = AppendMessage(b, &p.serving)
	}
	if p.hasDeferred {
		b = AppendMessage(b, &p.deferred)
	}
	b = append(b, byte(len(p.queue)))
	for _, r := range p.queue {
		b = binary.AppendUvarint(b, uint64(r.from))
		b = append(b, byte(r.access), bits(r.hasCopy))
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

// Check says what in the engine contradicts itself. It looks at everything: it is for tests.
func (e *Engine) Check() error {
	for _, id := range e.sortedIDs() {
		o := e.objects.find(id)
		if err := e.checkObject(o, e.peek(o)); err != nil {
			return fmt.Errorf("protocol: node %d, %v: %w", e.cfg.Self, id, err)
		}
	}
	if err := e.checkTurn(); err != nil {
		return err
	}
	if err := e.checkTrees(); err != nil {
		return fmt.Errorf("protocol: node %d: %w", e.cfg.Self, err)
	}
	for _, l := range e.locks {
		if l.writer != 0 && len(l.readers) > 0 {
			return fmt.Errorf("protocol: node %d, %v is held by writer %d and readers %v", e.cfg.Self, l.id, l.writer, l.readers)
		}
		has := e.Access(l.id)
		if l.writer != 0 && has != Write || len(l.readers) > 0 && has == None {
			return fmt.Errorf("protocol: node %d holds %v, but has only access %v to it", e.cfg.Self, l.id, has)
		}
	}
	return nil
}

// checkTurn says if a page is kept and nothing will end that: neither a hold, nor an operation after which it is looked at again.
func (e *Engine) checkTurn() error {
	t := &e.turn
	if p := e.peek(e.objects.find(t.timer)); t.timed && (p == nil || !p.holdArmed) {
		return fmt.Errorf("protocol: node %d waits in its turn for the end of a hold of %v that is not under way", e.cfg.Self, t.timer)
	}
	if !t.active || t.timed || !e.view.changes() {
		return nil
	}
	for _, id := range t.kept {
		if p := e.peek(e.objects.find(id)); p != nil && p.kept && p.hasDeferred && p.op == 0 && !p.granted {
			return fmt.Errorf("protocol: node %d keeps %v in its turn, and nothing ends that", e.cfg.Self, id)
		}
	}
	return nil
}

// checkTrees says if something is kept for a tree that nothing will move on, or that is not counted.
func (e *Engine) checkTrees() error {
	t := &e.trees
	if !e.usesTrees() && len(t.relays)+len(t.passed)+len(t.unheard) > 0 {
		return fmt.Errorf("%d relays, %d passed and %d unheard releases without trees", len(t.relays), len(t.passed), len(t.unheard))
	}
	for _, r := range t.relays {
		if !r.open || len(r.stalled) > 0 && !r.full() || r.to != e.above(r.root) {
			return fmt.Errorf("the relay to %d has sent nothing to %d, and %v wait", r.root, r.to, r.stalled)
		}
	}
	waiting := 0
	for _, u := range t.unheard {
		waiting += len(u.to)
	}
	if waiting != t.waiting {
		return fmt.Errorf("%d tickets wait to be confirmed, %d are counted", waiting, t.waiting)
	}
	return nil
}

func (e *Engine) checkObject(o *object, p *pending) error {
	switch {
	case e.view.phase == running && e.home(o.id) != e.cfg.Self && (o.owner != NoNode || o.backed() || p != nil && p.mode != homeIdle):
		return fmt.Errorf("a directory entry away from home")
	case o.owner != NoNode && !o.sharers.has(o.owner, &e.cfg) && !o.lost() && !o.backed():
		return fmt.Errorf("owner %d is not in its copyset", o.owner)
	case o.sealed() && o.has() != Write, o.replica&committedFlag != 0 && !o.sealed():
		return fmt.Errorf("sealed or committed with access %v", o.has())
	case o.backed() && (o.owner == NoNode || o.sharers != (copyset{})):
		return fmt.Errorf("backed by %d, with copies", o.owner)
	case o.is(exclusiveFlag) && o.owner == NoNode:
		return fmt.Errorf("exclusive without an owner")
	case p == nil:
		return nil
	case p.idle():
		return fmt.Errorf("something is pending, but nothing is")
	case (p.mode == homeReading) != (len(p.reading) > 0):
		return fmt.Errorf("%d readers under way in mode %d", len(p.reading), p.mode)
	case p.mode == homeIdle && len(p.queue) > 0:
		return fmt.Errorf("%d requests wait for nothing", len(p.queue))
	case p.granted && p.want == None:
		return fmt.Errorf("granted, but nothing was asked for")
	case p.sealing && p.op != EffectDowngrade, (len(p.unsaved) > 0) != (p.op == EffectBackup):
		return fmt.Errorf("operation %d, commit %t, %d acknowledgements missing", p.op, p.sealing, len(p.unsaved))
	case p.op == EffectMakeWritable && o.has() != Read && !o.sealed():
		return fmt.Errorf("made writable with access %v", o.has())
	case p.op == EffectInstall && o.has() != None:
		return fmt.Errorf("installed with access %v", o.has())
	}
	return nil
}
