package model

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"dsmd/protocol"
)

// Ledger is the observer of the whole cluster. It sees accesses, lock calls and barriers in the
// order in which they retire, and knows what each of them must have seen. Order of retirement is
// the one global order of sequential consistency: each thread's accesses are in it in program
// order, and each read returns the write before it.
type Ledger struct {
	config   *Config
	pages    []protocol.ObjectID
	versions []uint32 // beside pages: the writes so far
	lost     []bool   // beside pages: a thread was told that it is lost, and it has not begun anew
	begun    []bool   // beside pages: it has begun anew
	crashed  bool     // a node was lost: else nothing is
	// a node was to leave: from then on homes have pages that no program there has touched
	left     bool
	risked   []bool // beside pages: a node was lost that may have had the page
	replicas replicaLedger
	sides    sides
	locks    []lockState
	barriers []barrierState
	names    []nameState
}

// nameState is the clients that have bound a name.
type nameState struct {
	number uint64
	users  []holder // in the order in which they did; without access
}

type holder struct {
	node   protocol.NodeID
	client protocol.ClientID
	access protocol.Access
	alone  bool // obtained on a node that had gone on without those that are cut off
}

type lockState struct {
	number  uint64
	holders []holder // ascending
	// mark is 1 + the rank of a client that died holding the lock alone, until a writer that
	// repairs has been told. Until then nobody else gets the lock.
	mark uint32
	// crashes is how many nodes were lost, less the writers that were told that one of them may
	// have had the lock: as far as anybody can tell it may.
	crashes uint8
	// apart: who obtained it on one side was told that it may be held on the other, of those that
	// are cut off. From then on each side has it for itself.
	apart bool
	// repaired: a writer that is cut off was told of the mark before all others had gone on, so the
	// lock may still come to them from there, and then no longer tells of it.
	repaired bool
}

type barrierState struct {
	number  uint64
	parties []int
	// Invariant: passed[i] <= arrived[i] <= passed[i]+1, where i is a rank.
	arrived, passed []uint8
}

// NewLedger returns the ledger of a cluster in which nothing has happened.
func NewLedger(config *Config) *Ledger {
	l := &Ledger{config: config, pages: config.Objects()}
	l.versions, l.lost, l.risked, l.begun = make([]uint32, len(l.pages)), make([]bool, len(l.pages)), make([]bool, len(l.pages)), make([]bool, len(l.pages))
	if len(config.Cut) > 0 {
		l.sides.frozen, l.sides.theirs = make([]uint32, len(l.pages)), make([]bool, len(l.pages))
	}
	if config.Replicas > 0 {
		l.replicas.pages, l.replicas.staying = make([]replicaState, len(l.pages)), uint8(config.Nodes-len(config.Join))
		for i := range l.replicas.pages {
			l.replicas.pages[i].until = l.spare()
		}
	}
	for _, t := range config.Threads {
		for _, op := range t.Program {
			l.addOp(op)
		}
	}
	slices.SortFunc(l.locks, func(a, b lockState) int { return cmp.Compare(a.number, b.number) })
	slices.SortFunc(l.barriers, func(a, b barrierState) int { return cmp.Compare(a.number, b.number) })
	return l
}

func (l *Ledger) addOp(op Op) {
	switch op.Kind {
	case OpLock, OpRLock, OpIntact:
		if l.lock(op.Number) == nil {
			l.locks = append(l.locks, lockState{number: op.Number})
		}
	case OpBind:
		if l.name(op.Number) == nil {
			l.names = append(l.names, nameState{number: op.Number})
		}
	case OpBarrier:
		if l.barrier(op.Number) == nil {
			parties := l.config.parties(op.Number)
			l.barriers = append(l.barriers, barrierState{
				number: op.Number, parties: parties, arrived: make([]uint8, len(parties)), passed: make([]uint8, len(parties)),
			})
		}
	}
}

func (l *Ledger) lock(number uint64) *lockState {
	i := slices.IndexFunc(l.locks, func(s lockState) bool { return s.number == number })
	if i < 0 {
		return nil
	}
	return &l.locks[i]
}

func (l *Ledger) barrier(number uint64) *barrierState {
	i := slices.IndexFunc(l.barriers, func(s barrierState) bool { return s.number == number })
	if i < 0 {
		return nil
	}
	return &l.barriers[i]
}

func (l *Ledger) name(number uint64) *nameState {
	i := slices.IndexFunc(l.names, func(s nameState) bool { return s.number == number })
	if i < 0 {
		return nil
	}
	return &l.names[i]
}

// Clone makes an independent copy.
func (l *Ledger) Clone() *Ledger {
	c := *l
	c.versions, c.lost, c.risked, c.begun = slices.Clone(l.versions), slices.Clone(l.lost), slices.Clone(l.risked), slices.Clone(l.begun)
	c.replicas, c.sides = l.replicas.clone(), l.sides.clone()
	c.locks = slices.Clone(l.locks)
	for i := range c.locks {
		c.locks[i].holders = slices.Clone(c.locks[i].holders)
	}
	c.names = slices.Clone(l.names)
	for i := range c.names {
		c.names[i].users = slices.Clone(c.names[i].users)
	}
	c.barriers = slices.Clone(l.barriers)
	for i := range c.barriers {
		c.barriers[i].arrived = slices.Clone(c.barriers[i].arrived)
		c.barriers[i].passed = slices.Clone(c.barriers[i].passed)
	}
	return &c
}

// AppendState appends a canonical encoding.
func (l *Ledger) AppendState(b []byte) []byte {
	for _, v := range l.versions {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	for i, lost := range l.lost {
		b = append(b, flag(lost)|flag(l.begun[i])<<1)
	}
	b = l.sides.appendState(b)
	if len(l.config.Crash)+len(l.config.Cut) > 0 {
		b = append(b, flag(l.crashed)|flag(l.left)<<1)
		for _, risked := range l.risked {
			b = append(b, flag(risked))
		}
	}
	b = l.replicas.appendState(b)
	for _, s := range l.locks {
		b = append(b, s.crashes, flag(s.apart)|flag(s.repaired)<<1)
		b = binary.LittleEndian.AppendUint32(b, s.mark)
		b = append(b, byte(len(s.holders)))
		for _, h := range s.holders {
			b = binary.LittleEndian.AppendUint16(b, uint16(h.node))
			b = binary.LittleEndian.AppendUint32(b, uint32(h.client))
			b = append(b, byte(h.access)|flag(h.alone)<<7)
		}
	}
	for _, s := range l.barriers {
		b = append(b, s.arrived...)
		b = append(b, s.passed...)
	}
	for _, s := range l.names {
		b = append(b, byte(len(s.users)))
		for _, h := range s.users {
			b = binary.LittleEndian.AppendUint16(b, uint16(h.node))
			b = binary.LittleEndian.AppendUint32(b, uint32(h.client))
		}
	}
	return b
}

// Version is how often a page has been written.
func (l *Ledger) Version(o protocol.ObjectID) uint32 {
	i, ok := slices.BinarySearch(l.pages, o)
	if !ok {
		return 0
	}
	return l.versions[i]
}

// Follow takes note of what an action has retired, and tells each retirement that is right. It
// returns what is wrong, with the action or with a retirement.
func (l *Ledger) Follow(out *Outcome, tell func(*Retirement)) *Violation {
	if out.Violation != nil {
		return out.Violation
	}
	for i := range out.Retired {
		if v := l.Apply(&out.Retired[i]); v != nil {
			return v
		}
		tell(&out.Retired[i])
	}
	return nil
}

// Apply takes note of a retirement, and says what is wrong with it.
func (l *Ledger) Apply(r *Retirement) *Violation {
	if r.Blocked && (r.Kind == RetireLock || r.Kind == RetirePass || r.Kind == RetireBind || r.Kind == RetireCommit) {
		return violated(RuleQuorum, "thread %d on node %d: %v is granted, and the node knows that it has no quorum", r.Thread, r.Node, r.Op)
	}
	switch r.Kind {
	case RetireAccess:
		return l.access(r)
	case RetireLock:
		return l.acquired(r)
	case RetireTurnedAway:
		return l.turnedAway(r)
	case RetireUnlock:
		return l.lock(r.Op.Number).drop(r)
	case RetireArrive:
		l.barrier(r.Op.Number).arrived[l.rank(r)]++
	case RetireWithdraw:
		l.barrier(r.Op.Number).arrived[l.rank(r)]--
	case RetirePass:
		return l.pass(r)
	case RetireBind:
		l.bind(r)
	case RetireUnbind:
		s := l.name(r.Op.Number)
		s.drop(func(h holder) bool { return h == holder{node: r.Node, client: r.Client} })
	case RetireDeath:
		l.death(r)
	case RetireLeave:
		l.left = true
	case RetireCrash:
		l.crash(r)
	case RetireCut:
		l.cutOff()
	case RetireEnd:
		l.ended(r)
	case RetireLost:
		i, _ := slices.BinarySearch(l.pages, r.Op.Object())
		if l.begun[i] {
			return nil // the thread may be told late
		}
		l.lost[i] = true
		return l.checkLoss(r, i)
	case RetireBegin:
		return beginPage(l, r)
	case RetireCommitting:
		l.committing(r)
	case RetireCommit:
		l.commit(r)
	}
	return nil
}

func (l *Ledger) access(r *Retirement) *Violation {
	i, _ := slices.BinarySearch(l.pages, r.Op.Object())
	if l.isApart(r.Node) {
		return l.accessApart(i, r)
	}
	if l.lost[i] {
		return violated(RuleLost, "thread %d on node %d: %v found version %d of a page that was lost", r.Thread, r.Node, r.Op, r.Contents)
	}
	if !l.explains(i, r.Contents) {
		return violated(RuleLastWrite, "thread %d on node %d: %v found version %d; the last write made version %d",
			r.Thread, r.Node, r.Op, r.Contents, l.versions[i])
	}
	if l.sides.cut {
		if v := l.accessBeside(i, r); v != nil {
			return v
		}
	}
	l.noteSeen(i, r)
	if r.Op.Kind == OpWrite {
		l.versions[i]++
	}
	return nil
}

func (l *Ledger) acquired(r *Retirement) *Violation {
	s := l.lock(r.Op.Number)
	for i := range s.holders {
		h := &s.holders[i]
		if across := l.isApart(h.node) != l.isApart(r.Node); across && !l.acrossSides(s, h, r) {
			continue
		}
		if h.access == protocol.Write || r.Op.Access() == protocol.Write {
			return violated(RuleLock, "thread %d on node %d got %v while client %d on node %d holds it for %v",
				r.Thread, r.Node, r.Op, h.client, h.node, h.access)
		}
	}
	me := holder{node: r.Node, client: r.Client, access: r.Op.Access(), alone: r.Alone}
	told := uint32(0)
	if r.Status == protocol.StatusOwnerDied {
		told = r.OwnerRank + 1
	}
	if l.isApart(r.Node) {
		s.repaired = s.repaired || told != 0 && told == s.mark && !l.sides.allOn
		s.hold(me)
		return nil
	}
	if told == 0 && s.repaired {
		s.mark, s.repaired = 0, false
	}
	byCrash := told != 0 && l.mayHaveHeld(s, r)
	if told != s.mark && !byCrash || told != 0 && r.Op.Kind != OpLock {
		return violated(RuleLock, "thread %d on node %d got %v with status %d, rank %d; 1 + the rank of an owner who died holding it is %d",
			r.Thread, r.Node, r.Op, r.Status, r.OwnerRank, s.mark)
	}
	s.apart = s.apart || byCrash && l.sides.cut && r.Alone
	if r.Op.Access() == protocol.Write {
		s.mark, s.repaired = 0, false
		if byCrash {
			s.crashes--
		}
	}
	s.hold(me)
	return nil
}

// mayHaveHeld is whether the death that was told is that of a lost node, with which the holder of
// the lock may have died.
func (l *Ledger) mayHaveHeld(s *lockState, r *Retirement) bool {
	with, node := protocol.LostNode(r.OwnerRank)
	return node && s.crashes > 0 && l.config.canBeLost(with)
}

// turnedAway checks that a thread which did not get a lock was told of a death that nobody has
// repaired.
func (l *Ledger) turnedAway(r *Retirement) *Violation {
	s := l.lock(r.Op.Number)
	if r.OwnerRank+1 != s.mark && !l.mayHaveHeld(s, r) && !l.isApart(r.Node) {
		return violated(RuleLock, "thread %d on node %d was turned away from %v, because of rank %d; 1 + the rank of an owner who died holding it is %d",
			r.Thread, r.Node, r.Op, r.OwnerRank, s.mark)
	}
	return nil
}

// markDeath notes that a client died holding the lock alone.
func (s *lockState) markDeath(rank uint32) { s.mark, s.repaired = rank+1, false }

func (s *lockState) hold(h holder) {
	s.holders = append(s.holders, h)
	slices.SortFunc(s.holders, compareHolders)
}

func compareHolders(a, b holder) int {
	return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.client, b.client), cmp.Compare(a.access, b.access))
}

func (s *lockState) drop(r *Retirement) *Violation {
	i := slices.IndexFunc(s.holders, func(h holder) bool { return h.node == r.Node && h.client == r.Client && h.access == r.Op.Access() })
	if i < 0 {
		return violated(RuleLock, "thread %d on node %d: %v, which it does not hold", r.Thread, r.Node, r.Op)
	}
	s.holders = slices.Delete(s.holders, i, i+1)
	return nil
}

// rank is the rank of a thread at a barrier.
func (l *Ledger) rank(r *Retirement) int {
	return slices.Index(l.barrier(r.Op.Number).parties, r.Thread)
}

// pass checks that everybody has arrived, and that the payload is everybody's.
func (l *Ledger) pass(r *Retirement) *Violation {
	s := l.barrier(r.Op.Number)
	rank := l.rank(r)
	s.passed[rank]++
	var want []byte
	for i, thread := range s.parties {
		if s.arrived[i] < s.passed[rank] {
			return violated(RuleBarrier, "thread %d on node %d passed %v the %dth time, and thread %d arrived there %d times only",
				r.Thread, r.Node, r.Op, s.passed[rank], thread, s.arrived[i])
		}
		brought := barrierPayload(uint32(i), l.position(thread, r.Op.Number, s.passed[rank]))
		if i == 0 || !l.config.Folded {
			want = append(want, brought...)
			continue
		}
		for j := range want {
			want[j] += brought[j]
		}
	}
	if !bytes.Equal(r.Payload, want) {
		return violated(RuleBarrier, "thread %d on node %d passed %v with payload %x, want %x", r.Thread, r.Node, r.Op, r.Payload, want)
	}
	return nil
}

// position is where in its program a thread comes to a barrier the nth time.
func (l *Ledger) position(thread int, number uint64, nth uint8) int {
	for pc, op := range l.config.Threads[thread].Program {
		if op.Kind == OpBarrier && op.Number == number {
			if nth--; nth == 0 {
				return pc
			}
		}
	}
	return -1
}

// bind makes the pages of a name new if nobody had it.
func (l *Ledger) bind(r *Retirement) {
	s := l.name(r.Op.Number)
	if s.users = append(s.users, holder{node: r.Node, client: r.Client}); len(s.users) > 1 {
		return
	}
	for i, o := range l.pages {
		if o.Page() >= s.number && o.Page() < s.number+boundPages {
			l.versions[i] = 0
		}
	}
}

// uses reports whether a client was told that it has bound a name.
func (l *Ledger) uses(name string, u protocol.NameUser) bool {
	return slices.ContainsFunc(l.names, func(s nameState) bool {
		return fmt.Sprint(s.number) == name && slices.Contains(s.users, holder{node: u.Node, client: u.Client})
	})
}

// drop takes out who uses a name no longer.
func (s *nameState) drop(gone func(holder) bool) { s.users = slices.DeleteFunc(s.users, gone) }

func (l *Ledger) death(r *Retirement) {
	for i := range l.names {
		l.names[i].drop(func(h holder) bool { return h == holder{node: r.Node, client: r.Client} })
	}
	for i := range l.locks {
		s := &l.locks[i]
		s.holders = slices.DeleteFunc(s.holders, func(h holder) bool {
			mine := h.node == r.Node && h.client == r.Client
			if mine && h.access == protocol.Write {
				s.markDeath(r.Rank)
			}
			return mine
		})
	}
}

// crash loses a node with its programs. Whoever may have held a lock there did, as far as anybody
// can tell.
func (l *Ledger) crash(r *Retirement) {
	l.crashed = true
	for i, o := range l.pages {
		l.risked[i] = l.risked[i] || l.left || l.config.evicts() || l.config.touches(r.Node, o)
	}
	l.tear(r.Node)
	for i := range l.names {
		l.names[i].drop(func(h holder) bool { return h.node == r.Node })
	}
	for i := range l.locks {
		s := &l.locks[i]
		s.crashes++
		s.holders = slices.DeleteFunc(s.holders, func(h holder) bool {
			if h.node == r.Node && h.access == protocol.Write {
				s.markDeath(protocol.LostRank(r.Node))
			}
			return h.node == r.Node
		})
	}
}
