package protocol

import (
	"encoding/binary"
	"slices"
)

// lookForLoss notes, of an object that this home takes for untouched, if it may have been in use
// and what was known of it was lost.
func (d *directory) lookForLoss(o *object) {
	switch node, lost := d.lostHome(o.id); {
	case !lost:
	case !o.id.IsLock():
		o.owner = node // with an empty copyset: see lost
	default:
		if l := d.locks.getLock(o.id); l.died == 0 {
			l.died = LostRank(node) + 1
		}
	}
}

// lose deals with an object that somebody has touched and no member has. A page is lost from here
// on: its owner is a node that is no member, and its copyset is empty. A lock can be taken, and if
// a lost node may have held it, whoever takes it is told.
func (d *directory) lose(o *object) {
	if d.backups.neverCommitted(o.id, d.backups.lost) {
		o.owner = NoNode
		o.set(exclusiveFlag, false)
		return
	}
	p, written := d.peek(o), o.is(exclusiveFlag|markedFlag)
	switch {
	case p != nil && p.mode == homeBusyExclusive && p.requester != NoNode:
		// It was on its way there, or was there already.
		o.owner, written = p.requester, written || p.granting == Write
	case d.isMember(o.owner):
		// It gave it away, to whom the home has not heard.
		o.owner, written = d.lostNode(o.owner), true
	}
	if !o.id.IsLock() {
		o.set(exclusiveFlag, false)
		return
	}
	if l := d.locks.getLock(o.id); written && l.died == 0 {
		l.died = LostRank(o.owner) + 1
	} else {
		d.locks.dropLock(l)
	}
	o.owner = NoNode
	o.set(exclusiveFlag|markedFlag, false)
}

// lostHome is the node with which the directory entry of an object was lost that nobody has
// reported; false if there is none. Only a home asks this, of an object of which it knows nothing.
func (d *directory) lostHome(id ObjectID) (NodeID, bool) {
	for _, s := range d.suspects {
		if id.IsLock() != (s.count == 0) || !id.IsLock() && (id.Page() < s.first || id.Page() >= s.first+s.count) {
			continue
		}
		if home, lost := d.cfg.homeLost(id, s.before, s.after); lost && !d.backups.neverCommitted(id, s.lost) {
			return home, true
		}
	}
	return NoNode, false
}

// clearSuspects forgets what was suspected of pages that are freed.
func (d *directory) clearSuspects(first, count uint64) {
	var out []suspect
	for _, s := range d.suspects {
		for _, left := range s.minus(run{first, count}) {
			out = append(out, suspect{left, s.before, s.after, s.lost})
		}
	}
	d.suspects = out
}

// addSuspects notes which memory was in use when nodes were lost. If it was before when the same
// nodes were lost, it is suspected already; those of its pages that survive fewer losses than there
// were since then are suspected now.
func (d *directory) addSuspects(inUse [][]byte) {
	v := &d.view
	if !slices.ContainsFunc(v.before, func(homes []NodeID) bool {
		return slices.ContainsFunc(homes, func(n NodeID) bool { return !d.isMember(n) })
	}) {
		return
	}
	known := map[run]int{}
	for i, s := range d.suspects {
		if slices.Equal(s.after, v.members) && slices.EqualFunc(s.before, v.before, slices.Equal) {
			known[s.run] = i
		}
	}
	add := func(r run) {
		if i, is := known[r]; is {
			d.suspects[i].lost = d.backups.lost
			return
		}
		d.suspects = append(d.suspects, suspect{r, slices.Clone(v.before), v.members, d.backups.lost})
	}
	add(run{})
	for _, b := range inUse {
		for ; len(b) > 0; b = b[16:] {
			first, count, _ := DecodeRun(b[:16])
			add(run{first, count})
		}
	}
}

// reportPast tells a node that has come what may be lost, and when others came.
func (d *directory) reportPast(p *parcel) {
	for n, came := range d.view.came {
		if came > 0 && d.isMember(NodeID(n)) {
			b := p.room(cameBytes)
			*b = binary.LittleEndian.AppendUint16(append(*b, tagCame), uint16(n))
			*b = binary.LittleEndian.AppendUint32(*b, came)
		}
	}
	for _, homes := range d.view.before {
		b := p.room(1 + listBytes(homes))
		*b = appendList(append(*b, tagBefore), homes)
	}
	for _, s := range d.suspects {
		for _, homes := range s.before {
			b := p.room(1 + 16 + listBytes(homes) + listBytes(s.after))
			*b = appendList(appendList(AppendRun(append(*b, tagSuspect), s.first, s.count), homes), s.after)
		}
	}
}

// suspect is a run of pages that were in use when nodes were lost: pages of it whose homes were
// lost too, and that no member has reported, may have been written by nodes that are no more. An
// empty run stands for all locks: those that no member has reported may have been held.
type suspect struct {
	run
	before [][]NodeID // the views in which they had their homes
	after  []NodeID
	lost   int // how many nodes by then, as in backups
}
