package model

import (
	"bytes"
	"encoding/binary"
	"slices"

	"dsmd/protocol"
)

// Ledger is the observer of the whole cluster. It sees accesses, lock calls and barriers in the order in which they retire, and
// knows what each of them must have seen. Order of retirement is the one global order of sequential consistency:
// each thread's accesses are in it in program order, and each read returns the write before it.
type Ledger struct {
	config   *Config
	pages    []protocol.ObjectID
	versions []uint32 // beside pages: the writes so far
	lost     []bool   // beside pages: a thread was told that it is lost
	replicas replicaLedger
	locks    []lockState
	barriers []barrierState
	names    []nameState
}

// nameState counts the clients that have bound a name.
type nameState struct {
	number uint64
	users  uint8
}

type holder struct {
	node   protocol.NodeID
	client protocol.ClientID
	access protocol.Access
}

type lockState struct {
	number  uint64
	holders []holder // ascending
	// died is 1 + the rank of a client that died holding the lock alone, until a holder has been told, and
	// mark is the same, until a writer has been told: readers may be told more than once.
	// Invariant: died is 0 or mark.
	died, mark uint32
	// crashes is how many nodes were lost, less the writers that were told that one of them may have had the lock: as far as anybody can tell it may.
	crashes uint8
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
	l.versions, l.lost = make([]uint32, len(l.pages)), make([]bool, len(l.pages))
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
	slices.SortFunc(l.locks, func(a, b lockState) int { return compare(a.number, b.number) })
	slices.SortFunc(l.barriers, func(a, b barrierState) int { return compare(a.number, b.number) })
	return l
}

func (l *Ledger) addOp(op Op) {
	switch op.Kind {
	case OpLock, OpRLock:
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
	c.versions, c.lost = slices.Clone(l.versions), slices.Clone(l.lost)
	c.replicas = l.replicas.clone()
	c.locks = slices.Clone(l.locks)
	for i := range c.locks {
		c.locks[i].holders = slices.Clone(c.locks[i].holders)
	}
	c.names = slices.Clone(l.names)
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
	for _, lost := range l.lost {
		b = append(b, flag(lost))
	}
	b = l.replicas.appendState(b)
	for _, s := range l.locks {
		b = append(b, s.crashes)
		b = binary.LittleEndian.AppendUint32(b, s.died)
		b = binary.LittleEndian.AppendUint32(b, s.mark)
		b = append(b, byte(len(s.holders)))
		for _, h := range s.holders {
			b = binary.LittleEndian.AppendUint16(b, uint16(h.node))
			b = binary.LittleEndian.AppendUint32(b, uint32(h.client))
			b = append(b, byte(h.access))
		}
	}
	for _, s := range l.barriers {
		b = append(b, s.arrived...)
		b = append(b, s.passed...)
	}
	for _, s := range l.names {
		b = append(b, s.users)
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

// Apply takes note of a retirement, and says what is wrong with it.
func (l *Ledger) Apply(r *Retirement) *Violation {
	switch r.Kind {
	case RetireAccess:
		return l.access(r)
	case RetireLock:
		return l.acquired(r)
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
		l.name(r.Op.Number).users--
	case RetireDeath:
		l.death(r)
	case RetireCrash:
		l.crash(r)
	case RetireLost:
		i, _ := slices.BinarySearch(l.pages, r.Op.Object())
		l.lost[i] = true
		return l.checkLoss(r, i)
	case RetireCommitting:
		l.committing(r)
	case RetireCommit:
		l.commit(r)
	}
	return nil
}

func (l *Ledger) access(r *Retirement) *Violation {
	i, _ := slices.BinarySearch(l.pages, r.Op.Object())
	if l.lost[i] {
		return violated(RuleLost, "thread %d on node %d: %v found version %d of a page that was lost", r.Thread, r.Node, r.Op, r.Contents)
	}
	if !l.explains(i, r.Contents) {
		return violated(RuleLastWrite, "thread %d on node %d: %v found version %d; the last write made version %d",
			r.Thread, r.Node, r.Op, r.Contents, l.versions[i])
	}
	l.noteSeen(i, r)
	if r.Op.Kind == OpWrite {
		l.versions[i]++
	}
	return nil
}

func (l *Ledger) acquired(r *Retirement) *Violation {
	s := l.lock(r.Op.Number)
	for _, h := range s.holders {
		if h.access == protocol.Write || r.Op.Access() == protocol.Write {
			return violated(RuleLock, "thread %d on node %d got %v while client %d on node %d holds it for %v",
				r.Thread, r.Node, r.Op, h.client, h.node, h.access)
		}
	}
	told := uint32(0)
	if r.Status == protocol.StatusOwnerDied {
		told = r.OwnerRank + 1
	}
	_, node := protocol.LostNode(r.OwnerRank)
	byCrash := told != 0 && node && s.crashes > 0
	if told != s.mark && !byCrash && (told != 0 || s.died != 0) {
		return violated(RuleLock, "thread %d on node %d got %v with status %d, rank %d; 1 + the rank of an owner who died holding it is %d",
			r.Thread, r.Node, r.Op, r.Status, r.OwnerRank, s.mark)
	}
	s.died = 0
	if r.Op.Access() == protocol.Write {
		s.mark = 0
		if byCrash {
			s.crashes--
		}
	}
	s.holders = append(s.holders, holder{node: r.Node, client: r.Client, access: r.Op.Access()})
	slices.SortFunc(s.holders, compareHolders)
	return nil
}

func compareHolders(a, b holder) int {
	if a.node != b.node {
		return int(a.node) - int(b.node)
	}
	if a.client != b.client {
		return compare(a.client, b.client)
	}
	return int(a.access) - int(b.access)
}

func (s *lockState) drop(r *Retirement) *Violation {
	i := slices.Index(s.holders, holder{node: r.Node, client: r.Client, access: r.Op.Access()})
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
		want = append(want, barrierPayload(uint32(i), l.position(thread, r.Op.Number, s.passed[rank]))...)
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
	if s.users++; s.users > 1 {
		return
	}
	for i, o := range l.pages {
		if o.Page() >= s.number && o.Page() < s.number+boundPages {
			l.versions[i] = 0
		}
	}
}

func (l *Ledger) death(r *Retirement) {
	for i := range l.locks {
		s := &l.locks[i]
		s.holders = slices.DeleteFunc(s.holders, func(h holder) bool {
			mine := h.node == r.Node && h.client == r.Client
			if mine && h.access == protocol.Write {
				s.died, s.mark = r.Rank+1, r.Rank+1
			}
			return mine
		})
	}
}

// crash loses a node with its programs. Whoever may have held a lock there did, as far as anybody can tell.
func (l *Ledger) crash(r *Retirement) {
	l.tear(r.Node)
	for i := range l.locks {
		s := &l.locks[i]
		s.crashes++
		s.holders = slices.DeleteFunc(s.holders, func(h holder) bool {
			if h.node == r.Node && h.access == protocol.Write {
				s.died = protocol.LostRank(r.Node) + 1
				s.mark = s.died
			}
			return h.node == r.Node
		})
	}
}

// CheckExclusive checks one page in the page tables of all nodes: one writer and nobody else, or any number of readers.
func CheckExclusive(nodes []*Node, o protocol.ObjectID) *Violation {
	writer, reader := -1, -1
	for i, n := range nodes {
		a := n.Access(o)
		if a == protocol.None {
			continue
		}
		if writer >= 0 || a == protocol.Write && reader >= 0 {
			return exclusiveViolation(o, max(writer, reader), i)
		}
		if a == protocol.Write {
			writer = i
		} else {
			reader = i
		}
	}
	return nil
}

func exclusiveViolation(o protocol.ObjectID, a, b int) *Violation {
	return violated(RuleExclusive, "%v is present on node %d and on node %d, on one of them writable", o, a, b)
}

// CheckQuiescent checks what must hold when nothing more happens by itself. inFlight is how many messages are on
// their way.
func CheckQuiescent(config *Config, nodes []*Node, ledger *Ledger, inFlight int) *Violation {
	if inFlight > 0 {
		return violated(RuleQuiescence, "%d messages have not arrived", inFlight)
	}
	left := alive(nodes)
	if len(left) == 0 {
		return nil // who was to come has nobody to come to
	}
	for _, n := range left {
		if v := n.checkQuiescent(nodes, ledger); v != nil {
			return v
		}
	}
	for _, o := range config.allObjects() {
		if v := checkHolders(config, nodes, ledger, o); v != nil {
			return v
		}
	}
	return nil
}

// checkQuiescent checks one node.
func (n *Node) checkQuiescent(nodes []*Node, ledger *Ledger) *Violation {
	for i := range n.threads {
		if t := &n.threads[i]; !t.done() {
			return violated(RuleStuck, "thread %d on node %d does not get through %v", t.index, n.self, t.op())
		}
	}
	if epoch, recovered := n.engine.Epoch(); !recovered || n.leaving && !allHandedOver(nodes, epoch) {
		return violated(RuleStuck, "node %d is in epoch %d, recovered: %v; it leaves: %v, and not all is handed over", n.self, epoch, recovered, n.leaving)
	}
	if len(n.ops) > 0 || len(n.holds) > 0 {
		return violated(RuleQuiescence, "node %d has %d operations and %d holds under way", n.self, len(n.ops), len(n.holds))
	}
	for i := range n.pages {
		p := &n.pages[i]
		switch {
		case p.saved || p.stashed:
			return violated(RuleContents, "node %d keeps contents of %v that nobody will ask for", n.self, p.object)
		case p.access != n.engine.Access(p.object):
			return violated(RuleHolders, "on node %d %v is %v in the page table and %v in the engine", n.self, p.object, p.access, n.engine.Access(p.object))
		case p.access != protocol.None && !ledger.mayHold(p.object, p.contents):
			return violated(RuleLastWrite, "node %d holds version %d of %v; the last write made version %d", n.self, p.contents, p.object, ledger.Version(p.object))
		}
	}
	return nil
}

// checkHolders checks the directory entry of a page or lock against what all nodes hold.
func checkHolders(config *Config, nodes []*Node, ledger *Ledger, o protocol.ObjectID) *Violation {
	left := alive(nodes)
	home := nodes[left[0].engine.Home(o)]
	entry, ok := home.engine.Entry(o)
	var holders []protocol.NodeID
	writers := 0
	for _, n := range left {
		if a := n.engine.Access(o); a != protocol.None {
			holders = append(holders, n.self)
			if a == protocol.Write || n.engine.Sealed(o) {
				writers++
			}
		}
	}
	if len(holders) == 0 && (!ok || entry.Lost || entry.Backed || entry.Owner == protocol.NoNode && o.IsLock()) {
		return checkForgotten(nodes, home, ledger, o) // never touched, or lost
	}
	wantWriters := 0
	if entry.Exclusive {
		wantWriters = 1
	}
	switch {
	case !ok || (entry.Owner == protocol.NoNode) != (len(holders) == 0), writers != wantWriters, writers > 0 && len(holders) > 1,
		len(holders) > 0 && !slices.Contains(holders, entry.Owner), !contains(entry.Sharers, holders),
		config.Nodes <= exactNodes && len(holders) != len(entry.Sharers):
		return violated(RuleHolders, "the directory says of %v: %+v; %d writers among holders %v", o, entry, writers, holders)
	}
	return nil
}

// exactNodes is the size of the largest cluster whose directories promise to list holders and nobody else.
const exactNodes = 128

func contains(all, some []protocol.NodeID) bool {
	return !slices.ContainsFunc(some, func(n protocol.NodeID) bool { return !slices.Contains(all, n) })
}
