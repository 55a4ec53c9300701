package protocol

import "fmt"

// Objects is how many pages and locks this node knows.
func (e *Engine) Objects() int { return e.objects.count }

// Protected reports whether this node has an object alone, as with Write, and the page table lets
// programs only read.
func (e *Engine) Protected(id ObjectID) bool {
	o := e.objects.find(id)
	return o != nil && o.protected()
}

// Operation is the effect on an object that an engine's node carries out now; 0: none. Who faults
// meanwhile is dealt with when it is over.
func Operation(e *Engine, id ObjectID) EffectKind {
	if p := e.peek(e.objects.find(id)); p != nil {
		return p.op
	}
	return 0
}

// Copies looks at some of the pages and locks that an engine knows, at most so many, from a place
// on, and calls here for each page that its node has. A droppable one is a copy that EventEvict
// drops: the node is not the owner. After a recovery no copy is known to be droppable but at its
// home, until it is fetched again. The first place is 0, and the result is the next, or 0 if there
// is none. The engine may take events between two calls; then a page that stays is told once, and
// one that comes or goes may be told or not. As Step, it is not safe for concurrent use.
func Copies(e *Engine, place, most int, here func(page uint64, droppable bool)) (next int) {
	next = min(place+most, e.objects.used)
	for slot := place; slot < next; slot++ {
		// A slot that is free says that its object is not here.
		if o := e.objects.at(uint32(slot)); o.has() != None && !o.id.IsLock() {
			here(o.id.Page(), e.holder.mayDrop(o))
		}
	}
	if next == e.objects.used {
		return 0
	}
	return next
}

// Owns reports whether an engine's node has a page that it may be the owner of: the home of a page
// knows, and after a recovery others that have a copy take themselves for it.
func Owns(e *Engine, id ObjectID) bool {
	o := e.objects.find(id)
	return o != nil && o.has() != None && !e.holder.mayDrop(o)
}

// Untouched reports whether an engine's node is the home of a page that nobody has ever touched, as
// far as it knows.
func Untouched(e *Engine, id ObjectID) bool {
	if e.home(id) != e.cfg.Self || e.view.phase != running {
		return false
	}
	if o := e.objects.find(id); o != nil && (o.owner != NoNode || o.pending != 0) {
		return false
	}
	_, lost := e.dir.lostHome(id)
	return !lost
}

// Requested is the most access that an engine's node has asked for of an object and not got yet, or
// will ask for when what is under way is over.
func Requested(e *Engine, id ObjectID) Access {
	if p := e.peek(e.objects.find(id)); p != nil {
		return max(p.want, p.again)
	}
	return None
}

// Wanted is what of that it has asked for.
func Wanted(e *Engine, id ObjectID) Access {
	if p := e.peek(e.objects.find(id)); p != nil {
		return p.want
	}
	return None
}

// Awaits reports whether other nodes have something to do, or to say, before this node has what it
// has asked for of an object.
func Awaits(e *Engine, id ObjectID) bool {
	p := e.peek(e.objects.find(id))
	switch {
	case p == nil:
		return false
	case p.want == None:
		return p.again != None // to be asked for when the operation under way is over
	}
	return !p.granted || p.acks != 0
}

// Asked is whom an engine's node has asked for an object that it waits for: the home, or, where
// that is this node, the one that the object comes from, or goes to first. It is this node itself
// if none of that is known: others have to give up their copies, or nobody was asked.
func Asked(e *Engine, id ObjectID) NodeID {
	home := e.home(id)
	o := e.objects.find(id)
	p := e.peek(o)
	switch {
	case home != e.cfg.Self || p == nil || p.want == None || p.granted:
		return home
	case p.mode == homeBusyShared:
		return o.owner
	case p.mode == homeBusyExclusive && p.requester == home:
		return p.supplier
	case p.mode == homeBusyExclusive:
		return p.requester
	}
	return home
}

// Pending is how many of them have something under way.
func (e *Engine) Pending() int { return e.underWay() }

// Wanted is how many pages this node has asked for and not got yet. Its host bounds that: a node
// owes another at most one page for each.
func (e *Engine) Wanted() int { return e.wanted }

// BoundName is a name of which this node, the allocator, knows that memory is bound to it.
type BoundName struct {
	Name         string
	First, Count uint64 // pages
	Users        []NameUser
}

// NameUser is a program that uses a name.
type NameUser struct {
	Node   NodeID
	Client ClientID
}

// IsAllocator reports whether this node keeps the names of allocations.
func (e *Engine) IsAllocator() bool { return e.registry.here }

// BoundNames lists them in ascending order of pages; nothing if this node is not the directory.
func (e *Engine) BoundNames() []BoundName {
	var all []BoundName
	for _, b := range e.registry.bound {
		x := BoundName{Name: b.name, First: b.first, Count: b.count}
		for _, u := range b.users {
			x.Users = append(x.Users, NameUser{u.node, u.client})
		}
		all = append(all, x)
	}
	return all
}

// Unfinished says what is under way on this node that others have a part in: "" if nothing is. Who
// waits at a barrier does not count.
func (e *Engine) Unfinished() string {
	n, t, r := &e.registry, &e.barriers, &e.commits
	objects := e.Pending()
	if e.isLeaving(e.cfg.Self) {
		objects = 0 // it asks for nothing any more: see ask
	}
	for _, x := range []struct {
		what string
		many int
	}{
		{"objects", objects}, {"relays", len(t.relays)}, {"releases to be passed on", len(t.forwarded)}, {"releases to be confirmed", len(t.unconfirmed)},
		{"names to be freed", len(n.freeing)}, {"names to be bound", len(n.waiting)}, {"runs of pages to be dropped", len(e.reclaim.freed)},
		{"commits", len(r.calls) + len(r.later)}, {"copies of backups to be confirmed", len(e.evac.unsaved)}, {"messages kept for later", len(e.recovery.held)},
		{"objects to be fetched, and backups to be copied", len(e.evac.left) + len(e.evac.fetching) + len(e.evac.reReplicate)},
	} {
		if x.many > 0 {
			return fmt.Sprintf("%d %s", x.many, x.what)
		}
	}
	return ""
}

// Keepers are the nodes that keep the backups of a page which is to survive the loss of so many
// nodes. All members agree on them.
func (e *Engine) Keepers(id ObjectID, copies int) []NodeID { return e.backupsOf(id, copies) }

// IsMember reports whether a node is one of the view in force.
func IsMember(e *Engine, n NodeID) bool { return e.isMember(n) }

// Clone returns an independent copy, for exploring what else could happen.
func (e *Engine) Clone() *Engine {
	in := e.env.clone()
	c := &Engine{pages: e.pages.clone(in), barriers: e.barriers.clone(in), names: e.names.clone(in), registry: e.registry.clone(in), recovery: e.recovery.clone(in)}
	return c
}

// AppendState appends an encoding of all that decides what the engine will do, the same for engines
// that will do the same. Left out is what only decides how long pages are held: when access was
// gained, how often it was in vain, which thread has moved on, and whether the node has a group
// lease. To an explorer a hold may end at any time after the access has got through.
func (e *Engine) AppendState(b []byte) []byte {
	b = e.registry.appendState(e.names.appendState(e.barriers.appendState(e.pages.appendState(b))))
	if e.recovery.marked != nil { // else all of it is as it was at first
		b = e.evac.appendState(e.recovery.appendState(e.view.appendState(b)))
		b = appendEach(b, e.dir.suspects, func(b []byte, s suspect) []byte {
			return appendNumbers(appendInts(appendEach(s.run.append(b), s.before, appendInts[NodeID]), s.after), uint64(s.lost))
		})
	}
	return b
}

// Check says what in the engine contradicts itself. It looks at everything: it is for tests.
func (e *Engine) Check() error {
	for _, check := range []func() error{e.pages.check, e.barriers.check, e.registry.check, e.recovery.check} {
		if err := check(); err != nil {
			return fmt.Errorf("protocol: node %d, %w", e.cfg.Self, err)
		}
	}
	return nil
}
