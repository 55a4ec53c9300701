package protocol

import (
	"cmp"
	"slices"
)

// When nodes are lost, leave or come, the nodes agree, outside this package, on who they are: a view, numbered by an epoch. Each
// engine is told by EventEpoch, at any time and in no order, and from there on they recover together:
//
//	quiet     no access is given up any more; operations under way end, and what they serve is sent, unless it is for a node that is lost
//	draining  an EpochMark behind the last message to each other member; until all of theirs have come, contents that still come are kept
//	          as read copies, and all other business of the directory is dropped
//	reporting each node has told each member what it holds of the objects whose home that now is; when all reports are
//	          in, the home makes its directory anew from them
//	ready     an EpochReady to all, when this node's own directory stands; when all have come, requests are sent again
//
// Homes move with the views. A home from which an object moves away keeps what it knows of it until the recovery is over, and tells the new one
// what no holder can tell: that a page is lost, say. A node that comes knows nothing, and is told what the others suspect (see suspect).
//
// This rests on one fact: as soon as no message is on its way, all copies of a page are equal, because a node stores only when it has the only
// one and gives it up before anybody else gets one. So nothing has to be known of transactions that were cut short.
//
// What no member holds, and somebody may have written, is lost (see directory.go, lost). The engine never takes it for untouched.
//
// If further nodes are lost meanwhile, a view with a greater epoch begins it all again. What was known of the directories is replaced
// only when all reports of one epoch are in, so it survives that.

// phase is how far a recovery is.
type phase uint8

const (
	running phase = iota
	quiet
	draining
	reporting
	ready
)

// view is who is in the cluster, and how far the recovery is that made it so.
type view struct {
	epoch   uint32
	members []NodeID // ascending; nil: all nodes, as it is at first
	homes   []NodeID // those that are not leaving; nil: all nodes
	phase   phase
	// before are the homes of the views since the last recovery that was completed.
	before [][]NodeID
	fresh  []NodeID // members that have come since then, and know nothing
	came   []uint32 // by node: in which epoch it came, 0 if it was there from the start. All members order all members alike by that; nil: all were
	losses bool     // nodes were lost, or have left, since then

	marked  []uint32 // by node: the greatest epoch for which its EpochMark has come
	readied nodeSet  // members whose EpochReady for this epoch has come
	reports []report // that have come for this epoch
	due     []uint32 // by node: how many reports it sends, 0 if that is not known yet
	applied bool     // this node's part of the directory was made anew
	pieces  [][]byte // of what memory was in use, so far
	bound   bool     // all pieces are here

	held []Message // barrier and name messages that wait until all is over
}

// clone returns an independent copy.
func (v *view) clone() view {
	c := *v
	c.before, c.fresh, c.came, c.marked, c.readied, c.due = slices.Clone(v.before), slices.Clone(v.fresh), slices.Clone(v.came), slices.Clone(v.marked), slices.Clone(v.readied), slices.Clone(v.due)
	c.reports, c.pieces, c.held = slices.Clone(v.reports), slices.Clone(v.pieces), slices.Clone(v.held)
	return c
}

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
	if v.marked == nil {
		v.marked = make([]uint32, e.cfg.Nodes)
	}
	if before := e.memberList(); len(before) > 0 {
		v.before = append(v.before, e.homeList())
		v.losses = v.losses || slices.ContainsFunc(before, func(n NodeID) bool { return !isIn(ev.Members, n) })
		v.fresh = slices.DeleteFunc(slices.Clone(ev.Members), func(n NodeID) bool { return isIn(before, n) && !slices.Contains(v.fresh, n) })
		for _, n := range ev.Members {
			if !isIn(before, n) {
				e.noteCome(n, ev.Epoch)
			}
		}
	}
	stayed := e.homeList()
	v.epoch, v.members, v.homes, v.phase = ev.Epoch, slices.Clone(ev.Members), slices.Clone(homes), quiet
	e.noteKeepers(stayed)
	v.readied, v.reports, v.due, v.applied, v.pieces, v.bound = nil, nil, nil, false, nil, false
	v.held = slices.DeleteFunc(v.held, func(m Message) bool { return !e.isMember(m.From) || m.Kind != NameRequest })
	e.rescue, e.replicas.asked = rescue{}, nil
	e.leaveTrees()
	if e.turn.active {
		e.endTurn() // what others asked for does not count any more
	}
	e.eachPending(e.salvage)
	e.eachPending(e.abandonCommit)
}

// noteCome notes that a member came in an epoch. Members may differ in which it was, if some of them were told of the view after the next instead, but
// not in the order: the next ones come only when all have entered that view, or a later one.
func (e *Engine) noteCome(n NodeID, epoch uint32) {
	v := &e.view
	if v.came == nil {
		v.came = make([]uint32, e.cfg.Nodes)
	}
	v.came[n] = epoch
}

// seniors are those of these members that were there before the others.
func (e *Engine) seniors(nodes []NodeID) []NodeID {
	came := e.view.came
	if came == nil {
		return nodes
	}
	first := came[slices.MinFunc(nodes, func(a, b NodeID) int { return cmp.Compare(came[a], came[b]) })]
	return slices.DeleteFunc(slices.Clone(nodes), func(n NodeID) bool { return came[n] != first })
}

// memberList are all members, in ascending order.
func (e *Engine) memberList() []NodeID { return e.orAll(e.view.members) }

// homeList are the members that are homes, in ascending order.
func (e *Engine) homeList() []NodeID { return e.orAll(e.view.homes) }

func (e *Engine) orAll(list []NodeID) []NodeID {
	if list != nil {
		return list
	}
	all := make([]NodeID, e.cfg.Nodes)
	for n := range all {
		all[n] = NodeID(n)
	}
	return all
}

func (e *Engine) allMembers() nodeSet {
	all := allNodes(e.cfg.Nodes)
	for n := range e.cfg.Nodes {
		if !e.isMember(NodeID(n)) {
			all.remove(NodeID(n))
		}
	}
	return all
}

func isIn(members []NodeID, n NodeID) bool {
	_, ok := slices.BinarySearch(members, n)
	return ok || members == nil
}

func (e *Engine) isMember(n NodeID) bool { return isIn(e.view.members, n) }

// isLost says whether a node is one, and no member.
func (e *Engine) isLost(n NodeID) bool { return n != NoNode && !e.isMember(n) }

// Epoch is the number of the view in force, 0 until a node was lost for the first time, and whether its recovery is over.
func (e *Engine) Epoch() (epoch uint32, recovered bool) { return e.view.epoch, e.view.phase == running }

// changes says whether access may be asked for, given up and handed on as usual: at all times but from the beginning of a recovery until this node's
// directory stands again.
func (v *view) changes() bool { return v.phase == running || v.phase == ready }

// eachPending calls f for everything that has something under way, in ascending order, and settles it.
func (e *Engine) eachPending(f func(o *object, p *pending)) {
	var ids []ObjectID
	for _, id := range e.sortedIDs() {
		if e.objects.find(id).pending != 0 {
			ids = append(ids, id)
		}
	}
	for _, id := range ids {
		o := e.objects.find(id)
		if p := e.peek(o); p != nil {
			f(o, p)
			e.settle(o)
		}
	}
}

// salvage keeps what a grant has brought that has not taken effect. Whatever it grants, its contents are as good as any other copy, so it is
// installed for reading: then it does not matter which acknowledgements are still missing.
func (e *Engine) salvage(o *object, p *pending) {
	if !p.granted || p.op != 0 {
		return
	}
	switch {
	case o.id.IsLock():
		o.setAccess(max(o.has(), Read))
		p.forgetGrant(Read)
	case o.has() != None:
		p.forgetGrant(o.has())
	case p.backup:
		e.gain(o, p) // nobody else has it, and other backups may be older: it is this node's alone until it has committed it
	default:
		p.grant, p.acks = Read, 0
		p.op = EffectInstall
		e.emit(Effect{Kind: EffectInstall, Object: o.id, Access: Read, Zero: p.zero})
	}
}

// forgetGrant ends a request that has brought this access, if it is all that was wanted.
func (p *pending) forgetGrant(got Access) {
	if p.want <= got {
		p.want = None
	}
	p.grant, p.granted, p.data, p.zero, p.backup, p.acks, p.owesDone = None, false, false, false, false, 0, false
}

// keepForNobody deals with the end of an operation that served a node which is lost meanwhile. Contents that would have gone there come back.
func (e *Engine) keepForNobody(o *object, p *pending, served EffectKind) {
	if served == EffectRevoke && p.serving.Kind == Forward {
		p.op = EffectInstall
		p.grant = Read
		e.emit(Effect{Kind: EffectInstall, Object: o.id, Access: Read, Save: true})
	}
}

// recovering deals with a message that has to be treated otherwise during a recovery, and says whether it was one.
func (e *Engine) recovering(m *Message) bool {
	switch {
	case (m.Kind == BarrierArrive || m.Kind == BarrierCancel || m.Kind == BarrierGather) && e.view.marked[m.From] < e.view.epoch:
		// Whoever waits at a barrier comes there again, see resendCalls.
	case m.Kind == BarrierGather:
		e.holdGather(m)
	case m.Kind == BarrierGatherAck || m.Kind == BarrierSpread || m.Kind == BarrierSpreadAck:
		// Nobody relays in a recovery, see relay.go.
	case m.Kind == BarrierArrive || m.Kind == BarrierCancel || m.Kind == NameRequest:
		e.hold(m)
	case e.view.changes():
		return false
	case m.Kind <= Done || m.Kind == Lost:
		e.onDrained(m)
	case m.Kind == Forget || m.Kind == ForgetAck:
		// What is being freed is freed anew afterwards.
	case (m.Kind == Backup || m.Kind == BackupAck) && e.view.phase <= draining:
		// What is being committed is committed anew.
	default:
		return false
	}
	return true
}

// onDrained deals with a message about an object that comes while nothing may change.
func (e *Engine) onDrained(m *Message) {
	if e.view.phase > draining {
		e.reject(m, "its sender has said that it says no more in the epoch before")
		return
	}
	o := e.objects.find(m.Object)
	p := e.peek(o)
	if m.Kind == InvalidateAck && m.Flags&FlagOwnerDied != 0 && m.Object.IsLock() && p != nil && p.want == Write {
		// The mark of a dead owner goes with a copy: whoever has the one has the other.
		e.inheritMark(m)
		o.setAccess(max(o.has(), Read))
		return
	}
	if m.Kind != Grant || p == nil || p.want == None || p.granted || m.Flags&FlagBackup != 0 {
		return // whoever wants something asks again
	}
	if m.Flags&(FlagData|FlagZero) == 0 && o.has() == None || m.Flags&FlagData != 0 && o.id.IsLock() {
		e.reject(m, "a grant without contents, or of a lock with contents")
		return
	}
	e.inheritMark(m)
	p.granted, p.grant = true, Read
	p.data, p.zero = m.Flags&FlagData != 0, m.Flags&FlagZero != 0
	if p.data && o.has() == None && p.op != 0 {
		e.emit(Effect{Kind: EffectStash, Object: o.id})
	}
	e.salvage(o, p)
	e.settle(o)
}

// advance goes on with a recovery as far as it can.
func (e *Engine) advance() {
	v := &e.view
	if v.phase == quiet && !e.givesUp() {
		v.phase = draining
		v.marked[e.cfg.Self] = v.epoch
		for _, n := range v.members {
			if n != e.cfg.Self {
				e.send(Message{Kind: EpochMark, To: n, Requester: e.cfg.Self, Aux: v.epoch})
			}
		}
	}
	if v.phase == draining && e.drained() {
		v.phase = reporting
		e.sendReports()
	}
	if v.phase == reporting && !v.applied && e.reported() {
		e.applyReports()
	}
	if v.phase == reporting && v.applied && v.bound {
		v.phase = ready
		e.addSuspects()
		v.fresh = slices.DeleteFunc(v.fresh, func(n NodeID) bool { return n == e.cfg.Self }) // it has been told
		for _, n := range v.members {
			e.send(Message{Kind: EpochReady, To: n, Requester: e.cfg.Self, Aux: v.epoch})
		}
	}
	if v.phase == ready && v.readied != nil && v.readied.empty() {
		e.resume()
	}
}

// givesUp says whether a copy is being given up, or freed memory dropped.
func (e *Engine) givesUp() bool {
	return slices.ContainsFunc(e.pendings, func(p *pending) bool {
		return p.inUse && p.givesUp()
	}) || slices.ContainsFunc(e.dead, func(d deadRun) bool { return d.dropping })
}

// drained says whether nothing of the epoch before can come any more, from others or from the page table.
func (e *Engine) drained() bool {
	return !slices.ContainsFunc(e.view.members, func(n NodeID) bool { return e.view.marked[n] < e.view.epoch }) &&
		!slices.ContainsFunc(e.pendings, func(p *pending) bool {
			return p.inUse && (p.granted || p.op == EffectInstall || p.op == EffectMakeWritable)
		})
}

func (e *Engine) onEpochMark(m *Message) {
	if e.view.marked == nil {
		e.view.marked = make([]uint32, e.cfg.Nodes)
	}
	e.view.marked[m.From] = max(e.view.marked[m.From], m.Aux)
}

// isStale says whether a message of a recovery is of an earlier one. One of a later one cannot come: its sender would have needed this node's mark.
func (e *Engine) isStale(m *Message) bool {
	if m.Aux > e.view.epoch || m.Aux == e.view.epoch && e.view.phase < draining {
		e.reject(m, "no such recovery is under way")
		return true
	}
	return m.Aux < e.view.epoch
}

func (e *Engine) onEpochReady(m *Message) {
	if e.isStale(m) {
		return
	}
	v := &e.view
	if v.readied == nil {
		v.readied = e.allMembers()
	} else if !v.readied.has(m.From) {
		e.reject(m, "it was ready already")
		return
	}
	v.readied.remove(m.From)
}

// hold keeps a message of barriers or names until the recovery is over.
func (e *Engine) hold(m *Message) {
	if len(e.view.held) >= e.limits.arrivals && m.From != e.cfg.Self { // this node's own programs have bounds of their own
		e.reject(m, "as much waits for the end of a recovery as can")
		return
	}
	h := *m
	h.Payload = slices.Clone(m.Payload)
	e.view.held = append(e.view.held, h)
}

// resume ends a recovery: what waited goes on.
func (e *Engine) resume() {
	v := &e.view
	e.leaveDirectory()
	e.resendCalls()
	v.phase, v.before, v.fresh, v.losses, v.pieces = running, nil, nil, false, nil
	e.eachPending(func(o *object, p *pending) {
		if p.want != None {
			e.ask(o, p, p.want)
		}
	})
	e.restartFreeing()
	e.resumeCommits()
	held := v.held
	v.held = nil
	for i := range held {
		if held[i].Kind != NameRequest || e.names.here { // else it is sent to the new directory
			e.deliver(&held[i])
		}
	}
	for _, l := range slices.Clone(e.locks) {
		e.pump(e.objects.get(l.id))
	}
	e.emit(Effect{Kind: EffectResumed, Count: uint64(v.epoch)})
	e.startRescue()
}

// resendCalls repeats calls that nobody has heard, or that nobody remembers, or ends them. Homes have forgotten all arrivals at barriers: whoever
// still waits was not released before the recovery, because a release would have come before the mark of its sender, also if it went through a tree and
// astray there: see leaveTrees.
func (e *Engine) resendCalls() {
	calls := e.calls
	e.calls = nil
	for _, c := range calls {
		if c.barrier {
			e.resendArrival(c)
			continue
		}
		to := e.directory()
		switch {
		case c.to == to:
			e.calls = append(e.calls, c)
		case c.op == Unbind && e.isLost(c.to):
			// A name whose user gave it up is not bound any more: see reportNames.
			e.emit(Effect{Kind: EffectComplete, Object: c.object, Client: c.client, Ticket: c.ticket, Status: StatusOK})
		default:
			c.to = to
			e.calls = append(e.calls, c)
			e.send(Message{Kind: NameRequest, To: to, Requester: e.cfg.Self, Ticket: c.ticket, Payload: c.payload})
		}
	}
	for _, c := range e.gone {
		e.unbindAll(c)
	}
	e.gone = nil
}

// resendArrival comes to a barrier anew, unless who has passed it nobody knows, because its home was lost.
func (e *Engine) resendArrival(c call) {
	status := StatusCanceled
	if _, lost := e.formerHome(c.object); lost && c.to != NoNode {
		status = StatusNodeLost
	} else if !c.cancelled {
		c.to = e.home(c.object)
		e.calls = append(e.calls, c)
		e.sendArrival(&c)
		return
	}
	e.emit(Effect{Kind: EffectComplete, Object: c.object, Client: c.client, Ticket: c.ticket, Status: status})
}

// leaveDirectory forgets what this node knew of objects and names whose home it is no longer.
func (e *Engine) leaveDirectory() {
	for _, id := range e.sortedIDs() {
		o := e.objects.find(id)
		if e.home(id) == e.cfg.Self || o.owner == NoNode {
			continue
		}
		o.owner, o.sharers = NoNode, copyset{}
		o.set(exclusiveFlag, false)
		o.replica &^= backedFlag
		if !id.IsLock() && o.has() == None && o.pending == 0 && o.replica == 0 {
			e.objects.remove(id)
		}
	}
	for _, l := range slices.Clone(e.locks) {
		// The mark of a dead owner that was here because the directory was is at the new home (see reportEntry); one that came with access stays with that.
		if e.home(l.id) != e.cfg.Self && e.objects.get(l.id).has() == None {
			l.died = 0
			e.dropLock(l)
		}
	}
	if e.directory() != e.cfg.Self {
		e.names = newNames(e.cfg.Pages, false)
	}
}

// Home is the node that keeps the directory entry of an object, in the view in force.
func (e *Engine) Home(id ObjectID) NodeID { return e.home(id) }

func (e *Engine) home(id ObjectID) NodeID { return e.cfg.homeAmong(id, e.view.homes) }

// homeAmong is the home of an object among these nodes (nil: all). It moves only when its node is lost or leaves, or to a node that comes, and what one
// node was home of is spread over all others: each object has an order of its own among the nodes, and the first that is there is its home. (Thaler and
// Ravishankar, "A name-based mapping scheme for rendezvous", 1996.)
func (c *Config) homeAmong(id ObjectID, members []NodeID) NodeID {
	h := c.Home(id)
	if isIn(members, h) {
		return h
	}
	key := uint64(id)
	if !id.IsLock() {
		key = id.Page() / c.HomeStripe
	}
	best, weight := members[0], uint64(0)
	for _, n := range members {
		if w := mix(key ^ mix(uint64(n)+1)); w > weight {
			best, weight = n, w
		}
	}
	return best
}

// mix is a permutation of all numbers that leaves no pattern (the finaliser of Steele, Lea and Flood's SplitMix, 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// directory is the node that keeps the names of allocations: the lowest home.
func (e *Engine) directory() NodeID {
	if e.view.homes == nil {
		return 0
	}
	return e.view.homes[0]
}

// suspect is a run of pages that were in use when nodes were lost: pages of it whose homes were lost too, and that no member has reported, may
// have been written by nodes that are no more. An empty run stands for all locks: those that no member has reported may have been held.
type suspect struct {
	run
	before [][]NodeID // the views in which they had their homes
	after  []NodeID
}

// lostHome is the node with which the directory entry of an object was lost that nobody has reported; false if there is none. Only a home asks
// this, of an object of which it knows nothing.
func (e *Engine) lostHome(id ObjectID) (NodeID, bool) {
	for _, s := range e.suspects {
		if id.IsLock() != (s.count == 0) || !id.IsLock() && (id.Page() < s.first || id.Page() >= s.first+s.count) {
			continue
		}
		if home, lost := e.cfg.homeLost(id, s.before, s.after); lost {
			return home, true
		}
	}
	return NoNode, false
}

// homeLost is a node that was an object's home in one of the views before and is none of those after; false if there is none.
func (c *Config) homeLost(id ObjectID, before [][]NodeID, after []NodeID) (NodeID, bool) {
	for _, members := range before {
		if h := c.homeAmong(id, members); !isIn(after, h) {
			return h, true
		}
	}
	return NoNode, false
}

// clearSuspects forgets what was suspected of pages that are freed.
func (e *Engine) clearSuspects(first, count uint64) {
	var out []suspect
	for _, s := range e.suspects {
		end := s.first + s.count
		if s.count == 0 || first >= end || first+count <= s.first {
			out = append(out, s)
			continue
		}
		if s.first < first {
			out = append(out, suspect{run{s.first, first - s.first}, s.before, s.after})
		}
		if first+count < end {
			out = append(out, suspect{run{first + count, end - first - count}, s.before, s.after})
		}
	}
	e.suspects = out
}

// sortRuns sorts runs and joins those that touch.
func sortRuns(runs []run) []run {
	slices.SortFunc(runs, func(a, b run) int { return cmp.Compare(a.first, b.first) })
	var out []run
	for _, r := range runs {
		if n := len(out); n > 0 && out[n-1].first+out[n-1].count >= r.first {
			out[n-1].count = max(out[n-1].first+out[n-1].count, r.first+r.count) - out[n-1].first
			continue
		}
		out = append(out, r)
	}
	return out
}
