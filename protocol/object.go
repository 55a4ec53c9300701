package protocol

import "slices"

// object is what a node knows of a page or a lock, in both of its roles: as one who may hold
// a copy, and, on the object's home, as the directory entry. It costs 40 bytes plus at most 11
// in the table's index; everything needed only while something is under way is in its pending.
type object struct {
	id ObjectID

	// Directory entry, on the home only.
	// Invariant: owner == NoNode iff nobody has touched the object. The owner has a copy and is in
	// sharers. exclusive iff the owner is the only holder and may write.
	sharers copyset
	owner   NodeID
	replica uint8 // flags, mostly of replicated memory: see backups.go

	pending uint32 // 1 + index of the object's pending, 0 if nothing is under way
	since   Time   // when access was last gained, or lost if it was contested: see pacing.leaves
	access  uint16 // packed: see the accessors below
	last    uint16 // which access faulted last, to tell a thread that makes no progress
}

// object.access: bits 0-1 the Access this node has, then flags, then the retries in the high bits.
const (
	accessMask    = 3
	exclusiveFlag = 1 << 2 // home: see object.exclusive
	// access was gained and may not have been used yet: it can't be taken for a while
	heldFlag      = 1 << 3
	contestedFlag = 1 << 4 // access was wanted by others while it was held
	migrantShift  = 5      // home: three bits, see object.migrated
	migrantMask   = 7 << migrantShift
	// this node got the page for reading from its owner or home, and has not become its owner since
	droppableFlag = 1 << 8
	// home, of a lock: who got it last by a transaction has got the mark of a dead owner with it
	markedFlag   = 1 << 9
	retriesShift = 10
	retriesMax   = 63
)

func (o *object) has() Access { return Access(o.access & accessMask) }
func (o *object) setAccess(a Access) {
	o.access = o.access&^(accessMask|droppableFlag) | uint16(a)
}
func (o *object) is(flag uint16) bool { return o.access&flag != 0 }
func (o *object) set(flag uint16, on bool) {
	o.access &^= flag
	if on {
		o.access |= flag
	}
}
func (o *object) retries() int { return int(o.access >> retriesShift) }
func (o *object) setRetries(n int) {
	o.access = o.access&(1<<retriesShift-1) | uint16(min(n, retriesMax))<<retriesShift
}

// An object migrates if one node after another reads and then writes it. The home sees that in
// upgrades: a reader asks to write, and nobody else has a copy but the owner. Once it has seen it
// twice, it grants readers exclusiveness at once, which saves each of them the upgrade and the
// owner's invalidation. Whether they make use of it the home can't see. So after some of them it
// lets one read only, and goes on if that one writes again.
//
// migrant is 0 at first, 1 when an upgrade looked like a migration, and then 2 plus the number of
// readers that will be granted more than they ask for.
const mostMigrant = migrantMask >> migrantShift

func (o *object) migrant() int { return int(o.access & migrantMask >> migrantShift) }
func (o *object) setMigrant(m int) {
	o.access = o.access&^migrantMask | uint16(m)<<migrantShift
}

// upgraded notes an upgrade that looked like a migration, or not.
func (o *object) upgraded(migration bool) {
	switch {
	case !migration:
		o.setMigrant(0)
	case o.migrant() == 0:
		o.setMigrant(1)
	default:
		o.setMigrant(mostMigrant)
	}
}

// migrates reports whether to grant a reader exclusiveness, and counts that.
func (o *object) migrates() bool {
	if o.migrant() <= 2 {
		return false
	}
	o.setMigrant(o.migrant() - 1)
	return true
}

// homeMode says which kind of transaction the home has under way.
type homeMode uint8

const (
	homeIdle       homeMode = iota
	homeBusyShared          // reads of a shared object; any number may overlap
	// a write, a first touch, or a read that takes exclusiveness from the owner
	homeBusyExclusive
)

// request waits at the home for its turn.
type request struct {
	from          NodeID
	access        Access
	hasCopy, anew bool
	moves         bool
}

// pending is what an object needs only while something is under way, in each role.
type pending struct {
	inUse bool
	asking
	giving
	transaction
}

// asking is the requester's part of a pending.
type asking struct {
	want Access // asked of the home, not yet gained
	// faulted meanwhile, to be looked at again when the operation or the request is over
	again Access
	// what a thread waits for, if it is not here yet, and since when the first of them does
	demand     Access
	demandedAt Time
	granted    bool   // the Grant has come
	grant      Access // what it grants
	source     Source // of its contents
	// the contents are those of a backup, this node's own unless they came with the Grant
	backup bool
	// owesDone: the home waits to be told that the grant has taken effect. It does unless the Grant
	// is its own.
	owesDone bool
	// early: what was granted came by a Multicast. served: it has taken effect, and the answer to
	// the request is still to come.
	early, served bool
	acks          int    // InvalidateAcks still to come; negative when they overtake the Grant
	acker         NodeID // who sent the last of them, to name somebody if there are too many
}

// giving is the holder's part.
type giving struct {
	op         EffectKind // local operation under way, or 0
	serving    recall     // what op serves
	parked     recall     // has to wait
	hasParked  bool
	kept       bool     // in groupLease.kept
	holdArmed  bool     // EffectHold was issued, EventHoldOver has not come
	evicting   bool     // op is a Revoke that serves nobody: there is no room for the page
	protecting bool     // op is a Downgrade that serves nobody: the page is to be committed
	armedFor   Time     // holdArmed: when the access was gained that it protects
	unsaved    []NodeID // op is EffectBackup: who has not acknowledged
	passing
}

// transaction is the home's part.
type transaction struct {
	mode      homeMode
	requester NodeID // homeBusyExclusive: whose transaction it is
	granting  Access // homeBusyExclusive: what it will have
	// supplier and invalidated are those of the Forward of a homeBusyExclusive. If the home is the
	// supplier itself, no Done comes.
	supplier    NodeID
	invalidated uint16
	readers     []NodeID  // homeBusyShared: who will say Done, each once
	multicast   bool      // it is being sent to all who wait
	late        bool      // that takes long, and reads are answered meanwhile
	queue       []request // in order of arrival; at most one for each node
}

// leaves: this node's own copy is being given up, or will be.
func (p *pending) leaves() bool {
	return p.hasParked || p.givesUp()
}

// givesUp: it is being given up now.
func (p *pending) givesUp() bool {
	return p.op == EffectDowngrade && !p.protecting || p.op == EffectRevoke
}

func (p *pending) idle() bool {
	return p.want == None && p.op == 0 && !p.hasParked && !p.holdArmed && p.mode == homeIdle && len(p.queue) == 0 && len(p.missing) == 0
}

// table holds a node's objects: a dense slab that never moves an object, and an open-addressing
// index of slots into it. Go's own maps would cost more than the 64 bytes an object may cost,
// and would be tempting to iterate over.
type table struct {
	index []uint32 // 1 + slot, 0 if free; length a power of two
	slabs [][]object
	used  int      // slots handed out so far
	free  []uint32 // slots given back
	count int
	locks int // of count; locks are never removed
	last  int // the slot of what was found last
}

const slabObjects = 256

// noPending is the pending of an object that was removed.
const noPending = ^uint32(0)

func hashID(id ObjectID) uint64 {
	h := uint64(id) * 0x9e3779b97f4a7c15
	return h ^ h>>29
}

func (t *table) at(slot uint32) *object { return &t.slabs[slot/slabObjects][slot%slabObjects] }

// find returns the object, or nil. It looks first where the last one was found, and behind that:
// what is touched in one order is mostly gone through in the same, and places in the index are far
// apart.
func (t *table) find(id ObjectID) *object {
	for slot := t.last; slot < min(t.last+2, t.used); slot++ {
		if o := t.at(uint32(slot)); o.id == id && o.pending != noPending {
			t.last = slot
			return o
		}
	}
	if len(t.index) == 0 {
		return nil
	}
	mask := uint64(len(t.index) - 1)
	for i := hashID(id) & mask; ; i = (i + 1) & mask {
		s := t.index[i]
		if s == 0 {
			return nil
		}
		if o := t.at(s - 1); o.id == id {
			t.last = int(s - 1)
			return o
		}
	}
}

// get returns the object, new if need be. Pointers stay valid until the object is removed.
func (t *table) get(id ObjectID) *object {
	if o := t.find(id); o != nil {
		return o
	}
	if (t.count+1)*4 > len(t.index)*3 {
		t.grow()
	}
	var slot uint32
	if n := len(t.free); n > 0 {
		slot, t.free = t.free[n-1], t.free[:n-1]
	} else {
		slot = uint32(t.used)
		t.used++
		if int(slot/slabObjects) == len(t.slabs) {
			t.slabs = append(t.slabs, make([]object, slabObjects))
		}
		// A clone's last slab ends with its last object (see Engine.Clone). It grows here, before
		// anybody points into it: no caller keeps one object while it gets another.
		if s := &t.slabs[slot/slabObjects]; int(slot%slabObjects) == len(*s) {
			*s = append(*s, object{})
		}
	}
	o := t.at(slot)
	*o = object{id: id, owner: NoNode}
	t.insert(id, slot)
	t.count++
	if id.IsLock() {
		t.locks++
	}
	return o
}

func (t *table) insert(id ObjectID, slot uint32) {
	mask := uint64(len(t.index) - 1)
	i := hashID(id) & mask
	for t.index[i] != 0 {
		i = (i + 1) & mask
	}
	t.index[i] = slot + 1
}

func (t *table) grow() {
	old := t.index
	t.index = make([]uint32, max(16, 2*len(old)))
	for _, s := range old {
		if s != 0 {
			t.insert(t.at(s-1).id, s-1)
		}
	}
}

// remove forgets an object, which is a page. It closes the gap in the probe sequence behind it (no
// tombstones).
func (t *table) remove(id ObjectID) {
	mask := uint64(len(t.index) - 1)
	i := hashID(id) & mask
	for t.at(t.index[i]-1).id != id {
		i = (i + 1) & mask
	}
	slot := t.index[i] - 1
	for j := i; ; {
		t.index[i] = 0
		for {
			j = (j + 1) & mask
			if t.index[j] == 0 {
				*t.at(slot) = object{pending: noPending}
				t.free = append(t.free, slot)
				t.count--
				return
			}
			// The object at j may move to i unless its own place lies in (i, j].
			if k := hashID(t.at(t.index[j]-1).id) & mask; (j-k)&mask >= (j-i)&mask {
				break
			}
		}
		t.index[i] = t.index[j]
		i = j
	}
}

// ids lists the pages in [first, first+count) that the table knows, in ascending order of slots or
// numbers; which one depends on the table's history only.
func (t *table) ids(first ObjectID, count uint64) []ObjectID {
	var out []ObjectID
	if count <= uint64(t.count) {
		for id := first; uint64(id-first) < count; id++ {
			if t.find(id) != nil {
				out = append(out, id)
			}
		}
		return out
	}
	live := make([]bool, t.used)
	for _, s := range t.index {
		if s != 0 {
			live[s-1] = true
		}
	}
	for slot := range t.used {
		if o := t.at(uint32(slot)); live[slot] && o.id >= first && uint64(o.id-first) < count {
			out = append(out, o.id)
		}
	}
	return out
}

// clone returns an independent copy, with only the part of the slabs that is in use: explorers hold
// thousands of engines with two objects each.
func (t *table) clone() table {
	c := *t
	c.index, c.free = slices.Clone(t.index), slices.Clone(t.free)
	c.slabs = make([][]object, len(t.slabs))
	for i, s := range t.slabs {
		n := min(len(s), t.used-i*slabObjects)
		c.slabs[i] = append(make([]object, 0, n), s[:n]...)
	}
	return c
}
