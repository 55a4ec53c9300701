package model

import (
	"encoding/binary"
	"fmt"
	"slices"

	"dsmd/protocol"
)

// Violation is a fact that must never be observed.
type Violation struct {
	// Rule is the invariant, in a few words that stay the same from one finding to the next.
	Rule string
	// Detail is what was observed.
	Detail string
}

func (v *Violation) Error() string { return v.Rule + ": " + v.Detail }

func violated(rule, format string, args ...any) *Violation {
	return &Violation{Rule: rule, Detail: fmt.Sprintf(format, args...)}
}

// Rules that a Violation may name.
const (
	RuleRejected    = "a message was rejected"
	RuleEngine      = "an engine's tables are inconsistent"
	RulePageState   = "an effect found the page in another state"
	RuleContents    = "contents were missing, or left over"
	RuleAnswer      = "an answer went to nobody"
	RuleLastWrite   = "an access did not see the last write"
	RuleExclusive   = "a writer was not alone"
	RuleLock        = "a lock did not exclude"
	RuleBarrier     = "a barrier did not gather"
	RuleStuck       = "a thread waits for ever"
	RuleQuiescence  = "work was left over"
	RuleHolders     = "the engine and the page table disagree"
	RuleNoProgress  = "nodes can go round in circles for ever"
	RuleLost        = "a page was lost, or was not"
	RuleReplica     = "what was committed did not survive"
	RuleUnsupported = "an effect that no program of the model asks for"
)

// threadState is where a thread is in its current operation.
type threadState uint8

const (
	threadReady   threadState = iota // may try its operation
	threadBlocked                    // has faulted, waits to be woken
	threadWaiting                    // has called, waits for an answer
	threadDead                       // its client is gone
)

type thread struct {
	spec       *ThreadSpec
	index      int // in Config.Threads
	rank       uint32
	pc         int
	state      threadState
	duplicates uint8 // faults that may still be reported too often
	strays     uint8 // the same, for the operation before
	attempt    uint8 // of the current call, counted from 0: it was cancelled so often
	cancelled  bool  // the current call was cancelled, and no answer came yet
}

func (t *thread) done() bool { return t.state == threadDead || t.pc == len(t.spec.Program) }

// op is the current operation; its Kind is 0 after the last.
func (t *thread) op() Op {
	if t.pc == len(t.spec.Program) {
		return Op{}
	}
	return t.spec.Program[t.pc]
}

// ticket is unique on the node for each call ever made.
func (t *thread) ticket() protocol.Ticket {
	return protocol.Ticket(t.index+1)<<32 | protocol.Ticket(t.pc)<<8 | protocol.Ticket(t.attempt)
}

type page struct {
	object   protocol.ObjectID
	access   protocol.Access
	contents uint32 // how many writes the page has seen; 0 if access is None
	// Invariant: saved contents exist from a revoke to the next send, stashed ones from their arrival to the install.
	saved, stashed bool
	save, stash    uint32
	backed         bool // the node has a backup
	backup         uint32
	// waiters are the threads that the last gain of access has woken, and that have not retired since.
	waiters uint64
}

type operation struct {
	effect    protocol.Effect
	contents  uint32 // EffectInstall
	performed bool
	late      bool // the completion was reported before, see AckBeforeRevoke
}

type hold struct {
	object protocol.ObjectID
	due    protocol.Time
}

// Node is one node of a modelled cluster. It is not safe for concurrent use.
type Node struct {
	config  *Config
	self    protocol.NodeID
	engine  *protocol.Engine
	pages   []page // ascending
	threads []thread
	ops     []operation // in the order in which the engine gave them
	holds   []hold      // in the order in which the engine gave them
	effects []protocol.Effect
	standing
	handed uint32 // the last epoch of which all that members alone had that were leaving was handed over to this node
}

// NewNode makes node self of the cluster.
func NewNode(config *Config, self protocol.NodeID) *Node {
	n := &Node{config: config, self: self, engine: protocol.New(config.Engine(self))}
	ranks := map[protocol.ClientID]uint32{}
	for i := range config.Threads {
		spec := &config.Threads[i]
		if spec.Node != self {
			continue
		}
		if _, ok := ranks[spec.Client]; !ok {
			ranks[spec.Client] = uint32(i)
		}
		n.threads = append(n.threads, thread{spec: spec, index: i, rank: ranks[spec.Client], duplicates: config.Duplicates})
	}
	return n
}

// Clone makes an independent copy.
func (n *Node) Clone() *Node {
	if n.down {
		return &Node{config: n.config, self: n.self, threads: slices.Clone(n.threads), standing: n.standing}
	}
	return &Node{
		config: n.config, self: n.self, engine: n.engine.Clone(), pages: slices.Clone(n.pages),
		threads: slices.Clone(n.threads), ops: slices.Clone(n.ops), holds: slices.Clone(n.holds), standing: n.standing, handed: n.handed,
	}
}

// Self is the node's name.
func (n *Node) Self() protocol.NodeID { return n.self }

// Done says whether all threads of the node have finished or died.
func (n *Node) Done() bool {
	for i := range n.threads {
		if !n.threads[i].done() {
			return false
		}
	}
	return true
}

// Access is what the page table allows.
func (n *Node) Access(o protocol.ObjectID) protocol.Access {
	if i, ok := n.search(o); ok {
		return n.pages[i].access
	}
	return protocol.None
}

// AppendState appends a canonical encoding of the node: nodes that behave alike in all eternity are meant to
// encode alike, and nodes that encode alike do behave alike. The programs are not in it.
func (n *Node) AppendState(b []byte) []byte {
	if n.config.Changes() {
		b = append(b, 's', flag(n.outside), flag(n.leaving), flag(n.down), flag(n.binding), byte(n.moves), byte(n.handed))
	}
	if n.down {
		return b
	}
	mark := len(b)
	b = append(b, 0, 0, 0, 0)
	b = n.engine.AppendState(b)
	binary.LittleEndian.PutUint32(b[mark:], uint32(len(b)-mark))
	for i := range n.threads {
		t := &n.threads[i]
		b = append(b, byte(t.pc), byte(t.state), t.duplicates, t.strays, t.attempt, flag(t.cancelled))
	}
	for i := range n.pages {
		p := &n.pages[i]
		if *p == (page{object: p.object}) {
			continue
		}
		b = append(b, 'p')
		b = binary.LittleEndian.AppendUint64(b, uint64(p.object))
		b = append(b, byte(p.access), flag(p.saved), flag(p.stashed)|flag(p.backed)<<1)
		b = binary.LittleEndian.AppendUint32(b, p.contents)
		b = binary.LittleEndian.AppendUint32(b, p.save)
		b = binary.LittleEndian.AppendUint32(b, p.stash)
		b = binary.LittleEndian.AppendUint64(b, p.waiters)
		if p.backed {
			b = binary.LittleEndian.AppendUint32(b, p.backup)
		}
	}
	// Only the order of operations on the same page matters.
	for _, o := range n.opObjects() {
		for i := range n.ops {
			op := &n.ops[i]
			if op.effect.Object != o {
				continue
			}
			b = append(b, 'o', byte(op.effect.Kind), byte(op.effect.Access), flag(op.effect.Zero), flag(op.effect.Save)|flag(op.effect.Backup)<<1, flag(op.performed), flag(op.late))
			b = binary.LittleEndian.AppendUint64(b, uint64(o))
			b = binary.LittleEndian.AppendUint32(b, uint32(op.effect.Client))
			b = binary.LittleEndian.AppendUint32(b, op.contents)
		}
	}
	for _, h := range n.sortedHolds() {
		b = append(b, 'h')
		b = binary.LittleEndian.AppendUint64(b, uint64(h.object))
		b = binary.LittleEndian.AppendUint32(b, uint32(h.due))
	}
	return b
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func (n *Node) opObjects() []protocol.ObjectID {
	all := make([]protocol.ObjectID, 0, len(n.ops))
	for i := range n.ops {
		all = append(all, n.ops[i].effect.Object)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (n *Node) sortedHolds() []hold {
	all := slices.Clone(n.holds)
	slices.SortFunc(all, func(a, b hold) int {
		if a.object != b.object {
			return compare(a.object, b.object)
		}
		return compare(a.due, b.due)
	})
	return all
}

func compare[T ~uint32 | ~uint64](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (n *Node) search(o protocol.ObjectID) (int, bool) {
	return slices.BinarySearchFunc(n.pages, o, func(p page, o protocol.ObjectID) int { return compare(p.object, o) })
}

func (n *Node) page(o protocol.ObjectID) *page {
	i, ok := n.search(o)
	if !ok {
		n.pages = slices.Insert(n.pages, i, page{object: o})
	}
	return &n.pages[i]
}

// Local appends the actions that can happen at this node now, other than the arrival of messages.
func (n *Node) Local(out []Action) []Action {
	if !n.entered() {
		return out
	}
	for i := range n.threads {
		out = n.threadActions(i, out)
	}
	for _, o := range n.opObjects() {
		a, _ := n.Operation(o)
		out = append(out, a)
	}
	for i, h := range n.holds {
		first := slices.IndexFunc(n.holds, func(g hold) bool { return g.object == h.object }) == i
		if first && (n.config.Early || n.page(h.object).waiters == 0) {
			out = append(out, Action{Kind: ActHoldOver, Node: n.self, Object: h.object})
		}
	}
	return out
}

// Thread appends the actions that thread i of this node can take now. At most one of them is not optional.
// Preconditions: 0 <= i < Threads().
func (n *Node) Thread(i int, out []Action) []Action {
	if !n.entered() {
		return out
	}
	return n.threadActions(i, out)
}

// Threads is how many threads the node has, dead ones included.
func (n *Node) Threads() int { return len(n.threads) }

// Operation is the next action on the operations ordered on a page; false if there is none.
func (n *Node) Operation(o protocol.ObjectID) (Action, bool) {
	i := n.firstOp(o)
	if i < 0 {
		return Action{}, false
	}
	kind := ActPerform
	if n.ops[i].performed {
		kind = ActComplete
	}
	return Action{Kind: kind, Node: n.self, Effect: n.ops[i].effect.Kind, Object: o}, true
}

func (n *Node) firstOp(o protocol.ObjectID) int {
	return slices.IndexFunc(n.ops, func(op operation) bool { return op.effect.Object == o })
}

func (n *Node) threadActions(i int, out []Action) []Action {
	if n.binding {
		return out
	}
	t := &n.threads[i]
	add := func(kind ActionKind, op Op) {
		out = append(out, Action{Kind: kind, Node: n.self, Thread: i, Op: op})
	}
	if t.state == threadDead {
		return out
	}
	if t.strays > 0 {
		add(ActStray, t.spec.Program[t.pc-1])
	}
	op := t.op()
	switch {
	case op.Kind == 0:
	case op.touchesPage() && t.state == threadBlocked:
		if t.duplicates > 0 {
			add(ActAgain, op)
		}
	case op.touchesPage() && n.Access(op.Object()) >= op.Access():
		add(ActAccess, op)
		if t.duplicates > 0 {
			add(ActSpurious, op)
		}
	case op.touchesPage():
		add(ActFault, op)
	case op.Kind == OpDie:
		add(ActDie, op)
	case t.state == threadReady:
		add(ActCall, op)
	case op.Kind != OpBind && op.Kind != OpUnbind && t.attempt < op.Cancels && !t.cancelled:
		add(ActCancel, op)
	}
	return out
}
