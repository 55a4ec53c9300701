package modelcheck

import (
	"slices"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

// interner numbers values by their canonical encoding.
type interner[T any] struct {
	ids    map[string]uint32
	values []T
}

func (in *interner[T]) find(key []byte) (uint32, bool) {
	id, ok := in.ids[string(key)]
	return id, ok
}

func (in *interner[T]) add(key []byte, v T) uint32 {
	if in.ids == nil {
		in.ids = map[string]uint32{}
	}
	id := uint32(len(in.values))
	in.ids[string(key)] = id
	in.values = append(in.values, v)
	return id
}

// nodeState is one state of one node, and what can follow from it.
type nodeState struct {
	origin
	node      *model.Node
	local     []model.Action
	after     []*transition // beside local; nil: not tried yet
	delivered map[uint32]*transition
	moves     []*transition // of model.Membership
	tried     []*transition // all of them, in the order in which they ran
	twin      *twin         // nil: none
	// idle says that all local actions are optional.
	idle bool
	// access is what the page table allows, beside explorer.pages.
	access []protocol.Access
}

// transition is what an action leads to on its node, and what it means for the others.
type transition struct {
	number    uint32 // all transitions are numbered, as keys of ledgerState.after
	action    model.Action
	next      uint32
	sent      []uint32
	retired   []model.Retirement
	changed   bool // the page table changed
	members   bool // so did the place of the node among the others, or it has handed over
	lost      []protocol.ObjectID
	violation *model.Violation
}

type ledgerState struct {
	ledger *model.Ledger
	after  map[uint32]ledgerStep
}

type ledgerStep struct {
	next      uint32
	violation *model.Violation
}

func (x *explorer) node(n *model.Node) uint32 {
	x.encoded = x.key(x.encoded[:0], n)
	if id, ok := x.nodes.find(x.encoded); ok {
		return id
	}
	ns := &nodeState{node: n, local: n.Local(nil), delivered: map[uint32]*transition{}, idle: true}
	ns.after = make([]*transition, len(ns.local))
	for _, a := range ns.local {
		ns.idle = ns.idle && a.Kind.Optional()
	}
	for _, o := range x.pages {
		ns.access = append(ns.access, n.Access(o))
	}
	return x.nodes.add(x.encoded, ns)
}

// key appends what tells nodes apart. Two in the same state are still two: their names and programs
// are not in the encoding.
func (x *explorer) key(b []byte, n *model.Node) []byte {
	return x.encode(n, append(b, byte(n.Self())))
}

func (x *explorer) flight(f *model.Flight) uint32 {
	x.encoded = f.Append(x.encoded[:0])
	if id, ok := x.flights.find(x.encoded); ok {
		return id
	}
	c := *f
	return x.flights.add(x.encoded, &c)
}

func (x *explorer) ledger(l *model.Ledger) uint32 {
	x.encoded = l.AppendState(x.encoded[:0])
	if id, ok := x.ledgers.find(x.encoded); ok {
		return id
	}
	return x.ledgers.add(x.encoded, &ledgerState{ledger: l, after: map[uint32]ledgerStep{}})
}

func (x *explorer) localTransition(node uint32, k int) *transition {
	ns := x.nodes.values[node]
	if ns.after[k] == nil {
		ns.after[k] = x.run(ns, ns.local[k])
	}
	return ns.after[k]
}

func (x *explorer) delivery(node, flight uint32) *transition {
	ns := x.nodes.values[node]
	t := ns.delivered[flight]
	if t == nil {
		f := x.flights.values[flight]
		t = x.run(ns, model.Action{Kind: model.ActDeliver, Node: f.Message.To, Flight: f})
		ns.delivered[flight] = t
	}
	return t
}

// membership is the transition of a node whose place among the nodes changes, or that learns who
// they are.
func (x *explorer) membership(node uint32, a model.Action) *transition {
	ns := x.nodes.values[node]
	for _, t := range ns.moves {
		if b := &t.action; a.Kind == b.Kind && a.Epoch == b.Epoch && a.Apart == b.Apart &&
			slices.Equal(a.Left, b.Left) && slices.Equal(a.Homes, b.Homes) {
			return t
		}
	}
	t := x.run(ns, a)
	ns.moves = append(ns.moves, t)
	return t
}

// run lets the engine have an action that it has not met in this state before.
func (x *explorer) run(ns *nodeState, a model.Action) *transition {
	x.transitions++
	n := ns.node.Clone()
	n.Do(a, 0, &x.outcome)
	if x.watch != nil {
		x.watch(ns.node, n, &a, &x.outcome)
	}
	t := &transition{
		number: x.transitions, action: a, violation: x.outcome.Violation,
		retired: slices.Clone(x.outcome.Retired), lost: slices.Clone(x.outcome.Lost), changed: len(x.outcome.Changed) > 0,
		members: n.MembersNote(ns.node),
	}
	known := len(x.nodes.values)
	if t.violation == nil {
		t.next = x.node(n)
		for i := range x.outcome.Sent {
			t.sent = append(t.sent, x.flight(&x.outcome.Sent[i]))
		}
	}
	ns.tried = append(ns.tried, t)
	x.compareTwin(ns, t)
	switch {
	case t.violation != nil:
	case int(t.next) < known:
		x.meet(x.nodes.values[t.next], n, t)
	default:
		x.nodes.values[t.next].origin = origin{x.at, t}
		x.meetEngine(x.nodes.values[t.next])
	}
	return t
}

func (x *explorer) retire(ledger uint32, t *transition) ledgerStep {
	ls := x.ledgers.values[ledger]
	step, ok := ls.after[t.number]
	if !ok {
		l := ls.ledger.Clone()
		for i := range t.retired {
			if v := l.Apply(&t.retired[i]); v != nil && step.violation == nil {
				step.violation = v
			}
		}
		if step.violation == nil {
			step.next = x.ledger(l)
		}
		ls.after[t.number] = step
	}
	return step
}
