package protocol

import (
	"cmp"
	"fmt"
	"slices"
)

// multicasts sends a page to all who wait to read it, when they are many. The home has that done by
// the node that supplies the page, itself or the owner. It goes down the tree of that node
// (tree.go): every member passes it on to those below, and takes it if a thread here waits to read
// it. Acknowledgements come back up, and say who has taken it. A write begins only when all have
// come, so the home knows of all copies then.
//
// Who takes the page has asked the home for it. Requests that come during a multicast wait at the
// home. In the end those of takers are over, which the takers hear down the same tree
// (MulticastEnd). A taker's request may also have been answered before, or come after the end and
// be answered then. So each request ends once, and the requester hears how. Until then it has the
// page, asks for nothing else, and does not drop the page (served). If a multicast takes long,
// because a node is stopped, requests to read are answered meanwhile (late); only writes wait.
//
// A recovery forgets all multicasts: what was taken is reported, and who still waits asks anew.
type multicasts struct {
	*pages
	list []multicast // under way here, each of another page

	// readers counts by page the nodes that have begun to read it since a time, at its home; in
	// ascending order.
	readers []readers
	since   Time
	// none is begun within rest after restSince
	rest, restSince Time
}

// readers is how many nodes have begun to read a page.
type readers struct {
	of    ObjectID
	count int
}

// multicast is one that this node has passed on, or as home has begun.
type multicast struct {
	id   ObjectID
	root NodeID // whose tree it goes down
	to   NodeID // who hears the acknowledgement; this node itself, if it is the home
	// who has not acknowledged; this node itself, if it sends the page and can not yet
	missing []NodeID
	takers  []NodeID // of those that have, and of this node and below
}

const (
	// DefaultManyReaders is Config.ManyReaders when none is given, and readersWithin is the moment,
	// in microseconds: see docs/decisions/0049-pages-that-many-read.md.
	DefaultManyReaders = 8
	readersWithin      = 200
	// A multicast is vain that is taken by less than one of takersPart members.
	takersPart                = 2
	shortestRest, longestRest = 1_000, 1_000_000
	// longMulticast is after how many microseconds reads do not wait for its end any more.
	longMulticast = 2_000

	// MaxMulticasts bounds how many of one home are under way. A peer that passes more on is parted
	// with.
	MaxMulticasts = 16
	// maxCounted bounds the pages of which readers are counted.
	maxCounted = 1 << 10
)

// noteReader notes, at the home, that one more node asks to read an object of which it gets a copy.
// If many do within a moment, more will be waiting: it is sent to all who are.
func (c *multicasts) noteReader(o *object, p *pending) {
	// that it is lost may be on its way to somebody, although it has begun anew
	if o.replica&saidLostFlag != 0 || !c.usesTrees() || o.id.IsLock() {
		return
	}
	if c.now-c.since > readersWithin || len(c.readers) > maxCounted {
		c.since, c.readers = c.now, c.readers[:0]
	}
	i, known := slices.BinarySearchFunc(c.readers, o.id, func(r readers, id ObjectID) int { return cmp.Compare(r.of, id) })
	if !known {
		c.readers = slices.Insert(c.readers, i, readers{of: o.id})
	}
	if c.readers[i].count++; c.readers[i].count < c.cfg.ManyReaders || c.rests() {
		return
	}
	writes := func(r request) bool { return r.access == Write }
	root := c.dir.supplier(o)
	if p.multicast || slices.ContainsFunc(p.queue, writes) || c.of(c.cfg.Self) >= MaxMulticasts || c.reclaim.isDead(o.id) || c.isLeaving(root) {
		return
	}
	if p.multicast = true; p.mode == homeIdle {
		p.mode = homeBusyShared
	}
	if !p.holdArmed {
		p.holdArmed, p.armedFor = true, o.since-1 // for no lease
		c.emit(Effect{Kind: EffectHold, Object: o.id, After: longMulticast})
	}
	x := multicast{id: o.id, root: root, to: c.cfg.Self}
	if root == c.cfg.Self {
		c.pass(x, PageContents, SourcePage)
		return
	}
	x.missing = []NodeID{root}
	c.list = append(c.list, x)
	c.send(Multicast{Root: root}.To(root, o.id))
}

// rests reports whether multicasts were vain of late.
func (c *multicasts) rests() bool {
	return c.rest > 0 && c.now-c.restSince < c.rest && c.cfg.ManyReaders > 1
}

// noteTakers has multicasts rest after one that few have taken, ever longer.
func (c *multicasts) noteTakers(n int) {
	if n*takersPart >= c.memberCount() {
		c.rest = 0
		return
	}
	c.rest, c.restSince = min(max(2*c.rest, shortestRest), longestRest), c.now
}

// of counts those under way of one home.
func (c *multicasts) of(home NodeID) int {
	n := 0
	for i := range c.list {
		if c.home(c.list[i].id) == home {
			n++
		}
	}
	return n
}

// treeOf is the tree in which a multicast goes down: all members but the home, unless that sends
// the page. Requests that need no answer any more keep it busy for longest, and it wants no page
// itself.
func (c *multicasts) treeOf(id ObjectID, root NodeID) tree {
	t := c.tree(root)
	if home := c.home(id); home != root {
		t.without = home
	}
	return t
}

// pass sends a page to those directly below this node, or acknowledges it if nobody is.
func (c *multicasts) pass(x multicast, contents Contents, from Source) {
	x.missing = c.treeOf(x.id, x.root).children()
	for _, n := range x.missing {
		if m := (Multicast{x.root, contents}).To(n, x.id); contents == PageContents {
			c.sendPage(m, from)
		} else {
			c.send(m)
		}
	}
	if len(x.missing) == 0 {
		c.end(&x)
		return
	}
	c.list = append(c.list, x)
}

// onMulticast passes a page on, and takes it if it is wanted here; or begins with one of this node.
func (c *multicasts) onMulticast(m *Message) {
	k, home := m.AsMulticast(), c.home(m.Object)
	begins := k.Root == c.cfg.Self // at the home's wish
	above := c.aboveIn(c.treeOf(m.Object, k.Root), home)
	switch {
	case m.Object.IsLock() || !c.usesTrees() || m.From != above || begins != (k.Contents == NoContents):
		c.reject(m, "its sender is not above this node in the tree of the one that sends the page")
		return
	case c.find(m.Object) >= 0 || c.of(home) >= MaxMulticasts:
		c.reject(m, "the page was sent already, or as many are as can be")
		return
	}
	o, x := c.objects.find(m.Object), multicast{id: m.Object, root: k.Root, to: m.From}
	switch {
	case begins && (o == nil || !c.holder.canSend(o)):
		x.missing = []NodeID{c.cfg.Self}
		c.list = append(c.list, x)
	case begins:
		c.pass(x, PageContents, SourcePage)
	case c.requester.wantsEarly(o):
		x.takers = []NodeID{c.cfg.Self}
		c.pass(x, k.Contents, SourceMessage)
		c.requester.takeEarly(o, k.Contents)
	default:
		c.pass(x, k.Contents, SourceMessage)
	}
}

func (c *multicasts) find(id ObjectID) int {
	return slices.IndexFunc(c.list, func(x multicast) bool { return x.id == id })
}

// canSend reports whether this node has a copy of a page for reading, and neither gives it up nor
// gets more.
func (h *holder) canSend(o *object) bool {
	p := h.peek(o)
	return o.has() == Read && (p == nil || (p.op == 0 || p.op == EffectMap) && !p.granted && !p.hasParked)
}

// supplied begins with a page that the owner had to give up for writing first, if the home wishes.
func (c *multicasts) supplied(o *object) {
	i := c.find(o.id)
	if i < 0 || c.list[i].missing[0] != c.cfg.Self {
		return
	}
	x := c.list[i]
	c.list = slices.Delete(c.list, i, i+1)
	c.pass(x, PageContents, SourcePage)
}

// onAck notes that one to whom a page was sent, and all below it, have heard of it.
func (c *multicasts) onAck(m *Message) {
	i := c.find(m.Object)
	if i < 0 || !slices.Contains(c.list[i].missing, m.From) {
		c.reject(m, "nothing was sent that it acknowledges")
		return
	}
	x := &c.list[i]
	takers, why := c.readTakers(m, x)
	if why != "" {
		c.reject(m, why)
		return
	}
	x.takers = append(x.takers, takers...)
	x.missing = slices.DeleteFunc(x.missing, func(n NodeID) bool { return n == m.From })
	if len(x.missing) > 0 {
		return
	}
	done := *x
	c.list = slices.Delete(c.list, i, i+1)
	c.end(&done)
}

// readTakers reads who has taken a page, or says why that can not be.
func (c *multicasts) readTakers(m *Message, x *multicast) (takers []NodeID, why string) {
	t := c.treeOf(x.id, x.root)
	branch := t.childOf(m.From)
	takers, why = t.readIn(m.AsMulticastAck().Takers)
	if why == "" && m.From != x.root && slices.ContainsFunc(takers, func(n NodeID) bool { return t.branch(n) != branch }) {
		why = "a node has taken it that is not below its sender"
	}
	return takers, why
}

// readIn reads a list of nodes of a tree, or says why it is none.
func (t tree) readIn(b []byte) (nodes []NodeID, why string) {
	nodes, why = readNodes(b)
	if slices.ContainsFunc(nodes, func(n NodeID) bool { return t.position(n) < 0 }) {
		why = "a node that is not in the tree"
	}
	return nodes, why
}

// end tells who has taken the page: those above, or at the home the directory.
func (c *multicasts) end(x *multicast) {
	if x.to != c.cfg.Self {
		slices.Sort(x.takers)
		c.send(MulticastAck{appendNodes(nil, x.takers)}.To(x.to, x.id))
		return
	}
	o := c.objects.find(x.id)
	p := c.peek(o)
	c.noteTakers(len(x.takers))
	slices.Sort(x.takers)
	var served []NodeID
	p.queue = slices.DeleteFunc(p.queue, func(r request) bool {
		_, took := slices.BinarySearch(x.takers, r.from)
		// else what has served the taker was answered, and this is another request
		first := !o.sharers.has(r.from, &c.cfg) && (p.mode != homeBusyExclusive || p.requester != r.from)
		if took = took && first; took {
			served = append(served, r.from)
		}
		return took
	})
	for _, n := range x.takers {
		o.sharers.add(n, &c.cfg)
	}
	slices.Sort(served)
	if x.root == c.cfg.Self {
		c.passEnd(x.id, x.root, served)
	} else if len(served) > 0 {
		c.send(MulticastEnd{x.root, appendNodes(nil, served)}.To(x.root, x.id))
	}
	if p.multicast, p.late = false, false; p.mode == homeBusyShared {
		p.endReading()
		c.dir.startQueued(o, p)
	}
	c.settle(o)
}

// passEnd tells those below whose requests are over, each branch of its own.
func (c *multicasts) passEnd(id ObjectID, root NodeID, served []NodeID) {
	t := c.treeOf(id, root)
	parts := make([][]byte, c.cfg.TreeArity)
	for _, n := range served {
		if b := t.branch(n); b >= 0 {
			parts[b] = appendNodes(parts[b], []NodeID{n})
		}
	}
	for b, part := range parts {
		if len(part) > 0 {
			c.send(MulticastEnd{root, part}.To(t.below(b), id))
		}
	}
}

// onEnd passes on whose requests are over, and ends that of this node if it is one.
func (c *multicasts) onEnd(m *Message) {
	k, home := m.AsMulticastEnd(), c.home(m.Object)
	t := c.treeOf(m.Object, k.Root)
	served, why := t.readIn(k.Served)
	o := c.objects.find(m.Object)
	p := c.peek(o)
	switch {
	case m.Object.IsLock() || !c.usesTrees() || len(served) == 0 || m.From != c.aboveIn(t, home):
		why = "its sender is not above this node in the tree of the one that has sent the page"
	case slices.Contains(served, c.cfg.Self) && (p == nil || !p.early && !p.served):
		why = "no multicast has served a request of this node"
	}
	if why != "" {
		c.reject(m, why)
		return
	}
	c.passEnd(m.Object, k.Root, served)
	if slices.Contains(served, c.cfg.Self) {
		c.requester.answered(o, p, false)
	}
}

// aboveIn is from whom this node hears of a multicast, NoNode if from nobody. Who is to send a page
// hears that from its home.
func (c *multicasts) aboveIn(t tree, home NodeID) NodeID {
	switch {
	case home == c.cfg.Self:
		return NoNode
	case t.root == c.cfg.Self:
		return home
	case t.position(c.cfg.Self) > 0:
		return t.above()
	}
	return NoNode
}

// wantsEarly reports whether a thread here waits to read a page, and nothing of it has come, nor
// has come and gone (served): the request may be over then. A home that waits for the owner has
// begun a read itself.
func (r *requester) wantsEarly(o *object) bool {
	p := r.peek(o)
	return p != nil && p.want == Read && o.has() == None && !p.granted && !p.served && p.op == 0 && r.home(o.id) != r.cfg.Self &&
		r.view.phase == running && !r.isLeaving(r.cfg.Self)
}

// takeEarly takes a page from a multicast. Preconditions: wantsEarly.
func (r *requester) takeEarly(o *object, contents Contents) {
	p := r.peek(o)
	r.take(o, p, &Grant{Access: Read, Contents: contents})
	p.grant, p.early = Read, true
	r.gain(o, p)
}

// isServed reports whether this node has an object by a multicast, or is about to, and the answer
// to its request is still to come. If it has lost the object since, the answer counts as any other.
func (p *pending) isServed(o *object) bool {
	return p != nil && (p.early || p.served && o.has() != None)
}

// answered notes that a request that a multicast has served is over. owesDone: the home waits to be
// told so.
func (r *requester) answered(o *object, p *pending, owesDone bool) {
	if p.early {
		p.early, p.owesDone = false, owesDone
		return
	}
	r.setWant(o, p, None)
	if owesDone {
		r.send(Done{Access: Read}.To(r.home(o.id), o.id))
	}
	if o.has() == None && p.demand != None {
		p.again = max(p.again, Read) // it is gone meanwhile, and a thread waits for it
	}
	r.lookAgain(o, p)
	r.settle(o)
}

// forgetServed waits no longer for the answer to a request that a multicast has served: a recovery
// begins.
func (r *requester) forgetServed(o *object, p *pending) {
	if p.early = false; p.served {
		r.answered(o, p, false)
	}
}

// clone returns an independent copy, of other pages.
func (c *multicasts) clone(of *pages) multicasts {
	k := *c
	k.pages, k.list, k.readers = of, slices.Clone(c.list), slices.Clone(c.readers)
	for i := range k.list {
		k.list[i].missing, k.list[i].takers = slices.Clone(k.list[i].missing), slices.Clone(k.list[i].takers)
	}
	return k
}

// appendState appends an encoding: see Engine.AppendState.
func (c *multicasts) appendState(b []byte) []byte {
	return appendEach(b, c.list, func(b []byte, x multicast) []byte {
		return appendInts(appendInts(appendNumbers(b, uint64(x.id), uint64(x.root), uint64(x.to)), x.missing), x.takers)
	})
}

// check tells what contradicts itself.
func (c *multicasts) check() error {
	for i, x := range c.list {
		p := c.peek(c.objects.find(x.id))
		if len(x.missing) == 0 || c.find(x.id) != i || (x.to == c.cfg.Self) != (p != nil && p.multicast) {
			return fmt.Errorf("a multicast of %v to %d waits for %v", x.id, x.to, x.missing)
		}
	}
	return nil
}
