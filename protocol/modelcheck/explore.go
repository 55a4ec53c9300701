package modelcheck

import (
	"fmt"
	"slices"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

// Finding is a violation and a shortest way to it.
type Finding struct {
	Violation *model.Violation
	Scenario  *model.Scenario
}

// Result is what Explore has seen of one configuration.
type Result struct {
	States      int // distinct states
	Transitions int // actions made to happen, over all states
	NodeStates  int // distinct states of single nodes
	Depth       int // the longest of the shortest ways to a state, in actions
	// Complete says that all reachable states were visited. It is false after a finding, and if there are more than the limit.
	Complete bool
	Finding  *Finding // nil: none
}

// noState is the parent of the first state.
const noState = ^uint32(0)

// explorer holds the numbers of everything seen.
type explorer struct {
	config      *model.Config
	pages       []protocol.ObjectID
	nodes       interner[*nodeState]
	flights     interner[*model.Flight]
	ledgers     interner[*ledgerState]
	states      stateTable
	parent      []uint32 // of each state: the state before it on a shortest way
	via         []uint32 // of each state: which of the parent's successors it is
	first       []uint32 // of each expanded state: where its successors begin in edges
	edges       []uint32
	scratch     []uint32
	transitions uint32 // how many ran
	encoded     []byte
	outcome     model.Outcome
}

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
	node      *model.Node
	local     []model.Action
	after     []*transition // beside local; nil: not tried yet
	delivered map[uint32]*transition
	epochs    map[string]*transition // by model.Membership
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

// Explore visits all states of a cluster, at most maxStates (0: 16 million, which take about 2 GB).
func Explore(config *model.Config, maxStates int) *Result {
	if maxStates == 0 {
		maxStates = 16 << 20
	}
	x := &explorer{config: config, pages: config.Objects()}
	start := []uint32{x.ledger(model.NewLedger(config))}
	for _, n := range model.NewNodes(config) {
		start = append(start, x.node(n))
	}
	x.reach(start, noState, 0)
	result := &Result{}
	depth := []uint32{0}
	for s := uint32(0); int(s) < x.states.len(); s++ {
		x.first = append(x.first, uint32(len(x.edges)))
		result.Depth = int(depth[s])
		if result.Finding = x.expand(s); result.Finding != nil {
			break
		}
		for len(depth) < x.states.len() {
			depth = append(depth, depth[s]+1)
		}
		if x.states.len() > maxStates {
			break
		}
	}
	result.Complete = len(x.first) == x.states.len() && result.Finding == nil
	if result.Complete {
		x.first = append(x.first, uint32(len(x.edges)))
		result.Finding = x.findLoop()
	}
	result.States, result.Transitions, result.NodeStates = x.states.len(), len(x.edges), len(x.nodes.values)
	return result
}

// expand makes every enabled action of state s happen.
func (x *explorer) expand(s uint32) *Finding {
	idle := true
	branch := uint32(0)
	var finding *Finding
	x.successors(s, func(t *transition, next []uint32, v *model.Violation) bool {
		idle = idle && t.action.Kind.Optional()
		if v != nil {
			finding = x.finding(s, t, v)
			return false
		}
		x.edges = append(x.edges, x.reach(next, s, branch))
		branch++
		return true
	})
	if finding == nil && idle {
		if v := x.checkQuiescent(s); v != nil {
			finding = x.finding(s, nil, v)
		}
	}
	return finding
}

// successors calls visit for every action enabled in state s, in an order that is always the same, until
// visit returns false.
func (x *explorer) successors(s uint32, visit func(t *transition, next []uint32, v *model.Violation) bool) {
	state := slices.Clone(x.states.get(s))
	nodes, flights := state[1:1+x.config.Nodes], state[1+x.config.Nodes:]
	for i, id := range nodes {
		for k := range x.nodes.values[id].local {
			t := x.localTransition(id, k)
			next, v := x.apply(state, i, t, -1)
			if !visit(t, next, v) {
				return
			}
		}
	}
	if x.config.Changes() {
		members := x.modelNodes(nodes)
		for i, id := range nodes {
			for _, a := range model.Membership(members, i, nil) {
				t := x.membership(id, a)
				next, v := x.apply(state, i, t, -1)
				if !visit(t, next, v) {
					return
				}
			}
		}
	}
	for j, f := range flights {
		if j > 0 && flights[j-1] == f || x.mustWait(f, flights) || !x.hears(nodes, f) {
			continue
		}
		i := int(x.flights.values[f].Message.To)
		t := x.delivery(nodes[i], f)
		next, v := x.apply(state, i, t, j)
		if !visit(t, next, v) {
			return
		}
	}
}

// mustWait says whether flight f has to follow another one that is still on its way.
func (x *explorer) mustWait(f uint32, flights []uint32) bool {
	behind := x.flights.values[f]
	if !behind.Ordered() {
		return false
	}
	return slices.ContainsFunc(flights, func(g uint32) bool { return behind.MustFollow(x.flights.values[g]) })
}

// hears says whether a message can arrive where it goes.
func (x *explorer) hears(nodes []uint32, f uint32) bool {
	flight := x.flights.values[f]
	return x.nodes.values[nodes[flight.Message.To]].node.Hears(flight)
}

// apply makes transition t of node i happen to a state, and takes the message at position arrived (-1: none)
// from the network. The result is valid until the next call.
func (x *explorer) apply(state []uint32, i int, t *transition, arrived int) ([]uint32, *model.Violation) {
	if t.violation != nil {
		return nil, t.violation
	}
	ledger := state[0]
	if len(t.retired) > 0 {
		step := x.retire(ledger, t)
		if step.violation != nil {
			return nil, step.violation
		}
		ledger = step.next
	}
	head := 1 + x.config.Nodes
	next := append(append(x.scratch[:0], ledger), state[1:head]...)
	next[1+i] = t.next
	if arrived < 0 {
		next = append(next, state[head:]...)
	} else {
		next = append(append(next, state[head:head+arrived]...), state[head+arrived+1:]...)
	}
	next = append(next, t.sent...)
	slices.Sort(next[head:])
	x.scratch = next
	if t.members && x.config.Replicas > 0 {
		l := x.ledgers.values[ledger].ledger.Clone()
		if v := l.NoteMembers(x.modelNodes(next[1:head])); v != nil {
			return nil, v
		}
		next[0] = x.ledger(l)
	}
	for _, o := range t.lost {
		if v := model.CheckLost(x.modelNodes(next[1:head]), o); v != nil {
			return nil, v
		}
	}
	if t.changed {
		if v := x.checkExclusive(next[1:head]); v != nil {
			return nil, v
		}
	}
	return next, nil
}

// reach returns the number of a state, and notes how it was reached first.
func (x *explorer) reach(state []uint32, from, branch uint32) uint32 {
	id, fresh := x.states.add(state)
	if fresh {
		x.parent = append(x.parent, from)
		x.via = append(x.via, branch)
	}
	return id
}

func (x *explorer) node(n *model.Node) uint32 {
	// Two nodes in the same state are still two: their names and programs are not in the encoding.
	x.encoded = n.AppendState(append(x.encoded[:0], byte(n.Self())))
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

// membership is the transition of a node whose place among the nodes changes, or that learns who they are.
func (x *explorer) membership(node uint32, a model.Action) *transition {
	ns := x.nodes.values[node]
	if ns.epochs == nil {
		ns.epochs = map[string]*transition{}
	}
	key := a.String()
	if ns.epochs[key] == nil {
		ns.epochs[key] = x.run(ns, a)
	}
	return ns.epochs[key]
}

// run lets the engine have an action that it has not met in this state before.
func (x *explorer) run(ns *nodeState, a model.Action) *transition {
	x.transitions++
	n := ns.node.Clone()
	n.Do(a, 0, &x.outcome)
	t := &transition{
		number: x.transitions, action: a, violation: x.outcome.Violation,
		retired: slices.Clone(x.outcome.Retired), lost: slices.Clone(x.outcome.Lost), changed: len(x.outcome.Changed) > 0,
		members: n.MembersNote(ns.node),
	}
	if t.violation == nil {
		t.next = x.node(n)
		for i := range x.outcome.Sent {
			t.sent = append(t.sent, x.flight(&x.outcome.Sent[i]))
		}
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

// checkExclusive is model.CheckExclusive on numbers: it runs in every state whose page tables changed.
func (x *explorer) checkExclusive(nodes []uint32) *model.Violation {
	for p := range x.pages {
		present, writable := 0, false
		for _, id := range nodes {
			a := x.nodes.values[id].access[p]
			if a != protocol.None {
				present++
			}
			writable = writable || a == protocol.Write
		}
		if writable && present > 1 {
			return model.CheckExclusive(x.modelNodes(nodes), x.pages[p])
		}
	}
	return nil
}

func (x *explorer) modelNodes(ids []uint32) []*model.Node {
	var nodes []*model.Node
	for _, id := range ids {
		nodes = append(nodes, x.nodes.values[id].node)
	}
	return nodes
}

func (x *explorer) checkQuiescent(s uint32) *model.Violation {
	state := x.states.get(s)
	head := 1 + x.config.Nodes
	return model.CheckQuiescent(x.config, x.modelNodes(state[1:head]), x.ledgers.values[state[0]].ledger, len(state)-head)
}

// actionsTo is a shortest way to a state.
func (x *explorer) actionsTo(s uint32) []string {
	var way []string
	for ; x.parent[s] != noState; s = x.parent[s] {
		way = append(way, x.actionAt(x.parent[s], x.via[s]).String())
	}
	slices.Reverse(way)
	return way
}

// actionAt is the action that leads to the given successor of a state.
func (x *explorer) actionAt(s, branch uint32) model.Action {
	var found model.Action
	k := uint32(0)
	x.successors(s, func(t *transition, _ []uint32, _ *model.Violation) bool {
		found = t.action
		k++
		return k <= branch
	})
	return found
}

// finding describes violation v, met on the way of t (nil: none) out of state s.
func (x *explorer) finding(s uint32, t *transition, v *model.Violation) *Finding {
	sc := &model.Scenario{Config: x.config, Actions: x.actionsTo(s)}
	if t != nil {
		sc.Actions = append(sc.Actions, t.action.String())
	}
	sc.Comment = fmt.Sprintf("# A shortest counterexample, %d actions: %s.\n", len(sc.Actions), v.Rule)
	return &Finding{Violation: v, Scenario: sc}
}
