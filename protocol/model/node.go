package model

import (
	"cmp"
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
	RuleKeepers     = "nodes disagree on who keeps backups"
	RuleRefused     = "memory was refused that is free, or will be"
	RuleStranger    = "memory begins where no program has bound it"
	RuleNames       = "a name stays bound for a program that does not know of it"
	RuleQuorum      = "something was granted without a quorum"
	RuleSides       = "two sides were not apart"
	RuleUnsupported = "an effect that no program of the model asks for"
)

type hold struct {
	object protocol.ObjectID
	due    protocol.Time
}

// Node is one node of a modelled cluster. It is not safe for concurrent use.
type Node struct {
	controlPages
	engine  *protocol.Engine
	holds   []hold           // in the order in which the engine gave them
	own     *protocol.Status // the answer to a call of the node's own
	granted []grantHeld      // without a quorum, to clients that were not told
	effects []protocol.Effect
	// the last epoch of which all that members alone had that were leaving was handed over to this
	// node
	handed uint32
	binds  bool // some program binds memory
	// actions since the engine has checked itself
	unchecked int
}

// NewNode makes node self of the cluster.
func NewNode(config *Config, self protocol.NodeID) *Node {
	n := &Node{engine: protocol.New(config.Engine(self)), binds: config.binds()}
	n.config, n.self = config, self
	ranks, spaces := map[protocol.ClientID]uint32{}, map[protocol.ClientID]uint8{}
	for i := range config.Threads {
		spec := &config.Threads[i]
		if spec.Node != self {
			continue
		}
		if _, ok := ranks[spec.Client]; !ok {
			ranks[spec.Client], spaces[spec.Client] = uint32(i), uint8(len(spaces))
		}
		n.threads = append(n.threads, thread{spec: spec, index: i, rank: ranks[spec.Client], space: spaces[spec.Client], duplicates: config.Duplicates})
	}
	return n
}

// Clone makes an independent copy.
func (n *Node) Clone() *Node {
	c := &Node{handed: n.handed, binds: n.binds, unchecked: n.unchecked}
	c.site, c.threads = n.site, slices.Clone(n.threads)
	if n.down {
		return c
	}
	c.engine, c.holds, c.granted = n.engine.Clone(), slices.Clone(n.holds), slices.Clone(n.granted)
	c.pages, c.ops, c.expelled = slices.Clone(n.pages), slices.Clone(n.ops), n.expelled
	c.words, c.cells = n.words.Clone(), slices.Clone(n.cells)
	return c
}

// Self is the node's name.
func (n *Node) Self() protocol.NodeID { return n.self }

// States is in which states the engine's parts are for an object; the zero States if the node has
// crashed.
func (n *Node) States(o protocol.ObjectID) (s protocol.States) {
	if !n.down {
		s = protocol.StatesOf(n.engine, o)
	}
	return s
}

// EngineOf is the engine of a node; nil if the node has crashed. It is there to be looked at.
func EngineOf(n *Node) *protocol.Engine { return n.engine }

// AppendState appends a canonical encoding of the node: nodes that behave alike in all eternity are
// meant to encode alike, and nodes that encode alike do behave alike. The programs are not in it.
func (n *Node) AppendState(b []byte) []byte {
	if n.config.Changes() {
		b = append(b, 's', flag(n.outside)|flag(n.cut)<<1|flag(n.blocked)<<2|flag(n.alone)<<3|flag(n.returned)<<4|flag(n.healed)<<5, flag(n.leaving)|flag(n.told)<<1, flag(n.down), flag(n.binding), byte(n.moves), byte(n.handed), byte(n.left))
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
	if n.config.Words {
		b = n.appendWords(b)
	}
	for _, g := range n.granted {
		b = binary.LittleEndian.AppendUint32(append(b, 'g'), uint32(g.client))
		b = binary.LittleEndian.AppendUint64(b, uint64(g.ticket))
		b = binary.LittleEndian.AppendUint32(append(b, byte(g.status)), g.rank)
		b = append(append(b, byte(len(g.payload))), g.payload...)
	}
	if n.config.Spaces {
		b = binary.LittleEndian.AppendUint64(b, n.expelled)
	}
	b = n.appendPages(b)
	for _, h := range sortedHolds(n.holds) {
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

func sortedHolds(holds []hold) []hold {
	all := slices.Clone(holds)
	slices.SortFunc(all, func(a, b hold) int {
		return cmp.Or(cmp.Compare(a.object, b.object), cmp.Compare(a.due, b.due))
	})
	return all
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
		if first && n.page(h.object).waiters == 0 {
			out = append(out, Action{Kind: ActHoldOver, Node: n.self, Object: h.object})
		}
	}
	return out
}

// Thread appends the actions that thread i of this node can take now. At most one of them is not
// optional. Preconditions: 0 <= i < Threads().
func (n *Node) Thread(i int, out []Action) []Action {
	if !n.entered() {
		return out
	}
	return n.threadActions(i, out)
}

func (n *Node) threadActions(i int, out []Action) []Action {
	if n.binding {
		return out
	}
	t := &n.threads[i]
	add := func(kind ActionKind, op Op) {
		if a := (Action{Kind: kind, Node: n.self, Thread: i, Op: op}); !n.blocked || goesOn(&a) {
			out = append(out, a)
		}
	}
	if t.state == threadDead {
		return out
	}
	if t.expelled {
		if op := t.op(); op.touchesPage() && t.state == threadReady && n.allows(t, op) {
			add(ActAccess, op)
		}
		return out // or it waits for ever
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
	case op.touchesPage() && n.allows(t, op):
		add(ActAccess, op)
		if t.duplicates > 0 {
			add(ActSpurious, op)
		}
	case op.touchesPage():
		add(ActFault, op)
	case op.Kind == OpDie || op.Kind == OpExpel:
		add(ActDie, op)
	case t.state == threadReady && n.mayTake(t):
		add(ActTake, op)
		add(ActAsk, op)
	case t.state == threadReady:
		add(ActCall, op)
	case t.attempt < op.Cancels && !t.cancelled:
		add(ActCancel, op)
	}
	return out
}
