package protocol

import (
	"cmp"
	"slices"
)

// phase is how far a recovery is.
type phase uint8

const (
	running phase = iota
	quiescing
	flushing
	reporting
	ready
)

// view is who is in the cluster, who is home of what, and how far the recovery is that made it so.
type view struct {
	epoch   uint32
	members []NodeID // ascending; nil: all nodes, as it is at first
	homes   []NodeID // those that are not leaving; nil: all nodes
	phase   phase
	// before are the homes of the views since the last recovery that was completed.
	before [][]NodeID
	fresh  []NodeID // members that have come since then, and know nothing
	// came is by node the epoch in which it came, 0 if it was there from the start. All members
	// order all members alike by that; nil: all were.
	came   []uint32
	since  uint32 // what the allocator was asked in an epoch before this one it has forgotten
	losses bool   // nodes were lost, or have left, since the last recovery that was completed
	trees  bool   // barriers may have been trees until then, or since
}

// clone returns an independent copy.
func (v *view) clone() view {
	c := *v
	c.before, c.fresh, c.came = slices.Clone(v.before), slices.Clone(v.fresh), slices.Clone(v.came)
	return c
}

// appendState appends an encoding: see Engine.AppendState.
func (v *view) appendState(b []byte) []byte {
	b = append(appendNumbers(b, uint64(v.epoch), uint64(v.since)), byte(v.phase), bits(v.losses, v.trees))
	b = appendInts(appendInts(b, v.members), v.homes)
	return appendInts(appendInts(appendEach(b, v.before, appendInts[NodeID]), v.fresh), v.came)
}

// changes reports whether access may be asked for, given up and handed on as usual: at all times
// but from the beginning of a recovery until this node's directory stands again.
func (v *view) changes() bool { return v.phase == running || v.phase == ready }

// enter makes a view the one in force, in which a recovery begins.
func (e *env) enter(epoch uint32, members, homes []NodeID) {
	v := &e.view
	v.trees = v.trees || e.usesTrees()
	if before := e.memberList(); len(before) > 0 {
		v.before = append(v.before, e.homeList())
		v.losses = v.losses || slices.ContainsFunc(before, func(n NodeID) bool { return !isIn(members, n) })
		v.fresh = slices.DeleteFunc(slices.Clone(members), func(n NodeID) bool { return isIn(before, n) && !slices.Contains(v.fresh, n) })
		for _, n := range members {
			if !isIn(before, n) {
				e.noteCome(n, epoch)
			}
		}
	}
	v.epoch, v.members, v.homes, v.phase = epoch, slices.Clone(members), slices.Clone(homes), quiescing
}

// noteCome notes that a member came in an epoch. Members may differ in which it was, if some of
// them were told of the view after the next instead, but not in the order: the next ones come only
// when all have entered that view, or a later one.
func (e *env) noteCome(n NodeID, epoch uint32) {
	v := &e.view
	if v.came == nil {
		v.came = make([]uint32, e.cfg.Nodes)
	}
	v.came[n] = epoch
}

// seniors are those of these members that were there before the others.
func (e *env) seniors(nodes []NodeID) []NodeID {
	came := e.view.came
	if came == nil {
		return nodes
	}
	first := came[slices.MinFunc(nodes, func(a, b NodeID) int { return cmp.Compare(came[a], came[b]) })]
	return slices.DeleteFunc(slices.Clone(nodes), func(n NodeID) bool { return came[n] != first })
}

// memberList are all members, in ascending order.
func (e *env) memberList() []NodeID { return e.orAll(e.view.members) }

// homeList are the members that are homes, in ascending order.
func (e *env) homeList() []NodeID { return e.orAll(e.view.homes) }

func (e *env) orAll(list []NodeID) []NodeID {
	if list != nil {
		return list
	}
	all := make([]NodeID, e.cfg.Nodes)
	for n := range all {
		all[n] = NodeID(n)
	}
	return all
}

func (e *env) allMembers() nodeSet {
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

func (e *env) isMember(n NodeID) bool { return isIn(e.view.members, n) }

func (e *env) home(id ObjectID) NodeID { return e.cfg.homeAmong(id, e.view.homes) }

// homeAmong is the home of an object among these nodes (nil: all). It moves only when its node is
// lost or leaves, or to a node that comes, and what one node was home of is spread over all others:
// each object has an order of its own among the nodes, and the first that is there is its home.
// (Thaler and Ravishankar, "A name-based mapping scheme for rendezvous", 1996.)
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

// mix is a permutation of all numbers that leaves no pattern (the finaliser of Steele, Lea and
// Flood's SplitMix, 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// allocator is the node that keeps the names of allocations: the lowest home.
func (e *env) allocator() NodeID {
	if e.view.homes == nil {
		return 0
	}
	return e.view.homes[0]
}

// homeLost is a node that was an object's home in one of the views before and is none of those
// after; false if there is none.
func (c *Config) homeLost(id ObjectID, before [][]NodeID, after []NodeID) (NodeID, bool) {
	for _, members := range before {
		if h := c.homeAmong(id, members); !isIn(after, h) {
			return h, true
		}
	}
	return NoNode, false
}

// formerHome is a node with which the directory entry of an object was lost since the last recovery
// that was completed; false if there is none.
func (e *env) formerHome(id ObjectID) (NodeID, bool) {
	return e.cfg.homeLost(id, e.view.before, e.view.members)
}

// lostNode is a node that was lost since the last recovery that was completed, or without one, the
// node that is given.
func (e *env) lostNode(or NodeID) NodeID {
	for _, members := range e.view.before {
		for _, n := range members {
			if !e.isMember(n) {
				return n
			}
		}
	}
	return or
}

// order puts this node before all others, and those that are leaving behind them: the first who has
// an object is its owner.
func (e *env) order(n NodeID) int {
	switch {
	case n == e.cfg.Self:
		return -1
	case e.isLeaving(n):
		return MaxNodes + int(n)
	}
	return int(n)
}

// someLeave reports whether there are members that are leaving.
func (e *env) someLeave() bool { return len(e.view.homes) < len(e.view.members) }

// isLeaving reports whether a member is leaving.
func (e *env) isLeaving(n NodeID) bool {
	return e.someLeave() && isIn(e.view.members, n) && !isIn(e.view.homes, n)
}

// backupsOf are the nodes that keep the backups of a page: the first of its order, by seniority and
// then as in homeAmong, until one more than copies of them are not leaving, or all are there. A
// node that is among them stays among them while it is a member.
func (e *env) backupsOf(id ObjectID, copies int) []NodeID {
	left := slices.Clone(e.memberList())
	var out []NodeID
	for staying := 0; staying <= copies && len(left) > 0; {
		n := e.cfg.homeAmong(id, e.seniors(left))
		out = append(out, n)
		left = slices.DeleteFunc(left, func(m NodeID) bool { return m == n })
		if isIn(e.view.homes, n) {
			staying++
		}
	}
	return out
}

// Home is the node that keeps the directory entry of an object, as long as no node is lost.
func (c *Config) Home(id ObjectID) NodeID {
	if id.IsLock() {
		return NodeID(uint64(id&^lockBit) % uint64(c.Nodes))
	}
	return NodeID(id.Page() / c.HomeStripe % uint64(c.Nodes))
}
