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
	// Other is, of two nodes that were taken for one and differ, the way to the other. Neither way
	// ends in a violation. It is nil in all other findings.
	Other *model.Scenario
}

// Result is what Explore has seen of one configuration.
type Result struct {
	States      int // distinct states
	Transitions int // actions made to happen, over all states
	NodeStates  int // distinct states of single nodes
	Depth       int // the longest of the shortest ways to a state, in actions
	// Complete says that all reachable states were visited. It is false after a finding, and if
	// there are more than the limit.
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
	at          uint32                // the state that is expanded
	engines     map[string]*nodeState // by name and encoding of the engine: the first node with it
	twins       twins
	// watch, if there is one, sees each transition of a node when it runs first.
	watch func(before, after *model.Node, a *model.Action, out *model.Outcome)
	// encode is (*model.Node).AppendState, and encodeEngine is (*protocol.Engine).AppendState, but
	// in tests that take something out of them.
	encode       func(n *model.Node, b []byte) []byte
	encodeEngine func(e *protocol.Engine, b []byte) []byte
}

// Explore visits all states of a cluster, at most maxStates (0: 16 million, which take about 2 GB).
// On the way it compares nodes that have one encoding, see twins_test.go.
func Explore(config *model.Config, maxStates int) *Result {
	if maxStates == 0 {
		maxStates = 16 << 20
	}
	return newExplorer(config).explore(maxStates)
}

func newExplorer(config *model.Config) *explorer {
	return &explorer{
		config: config, pages: config.Objects(), engines: map[string]*nodeState{},
		encode: (*model.Node).AppendState, encodeEngine: (*protocol.Engine).AppendState,
	}
}

func (x *explorer) explore(maxStates int) *Result {
	begin := model.NewCluster(x.config)
	if v := begin.Begun; v != nil {
		return &Result{Finding: x.finding(noState, nil, v)}
	}
	x.reach(x.stateOf(begin), noState, 0)
	result := &Result{}
	depth := []uint32{0}
	for s := uint32(0); int(s) < x.states.len(); s++ {
		x.first = append(x.first, uint32(len(x.edges)))
		result.Depth = int(depth[s])
		x.at = s
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

// stateOf is the number of each part of a cluster: the ledger, the nodes, and the messages in
// ascending order.
func (x *explorer) stateOf(c *model.Cluster) []uint32 {
	state := []uint32{x.ledger(c.Ledger)}
	for _, n := range c.Nodes {
		state = append(state, x.node(n))
	}
	for i := range c.InFlight {
		state = append(state, x.flight(&c.InFlight[i]))
	}
	slices.Sort(state[1+len(c.Nodes):])
	return state
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
	if finding == nil {
		finding = x.twins.finding
	}
	if finding == nil && idle {
		if v := x.checkQuiescent(s); v != nil {
			finding = x.finding(s, nil, v)
		}
	}
	return finding
}

// successors calls visit for every action enabled in state s, in an order that is always the same,
// until visit returns false.
func (x *explorer) successors(s uint32, visit func(t *transition, next []uint32, v *model.Violation) bool) {
	state := slices.Clone(x.states.get(s))
	nodes, flights := state[1:1+x.config.Nodes], state[1+x.config.Nodes:]
	if x.config.Prompt {
		if i, t, arrived := x.prompt(nodes, flights); t != nil {
			next, v := x.apply(state, i, t, arrived)
			visit(t, next, v)
			return
		}
	}
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
		if j > 0 && flights[j-1] == f || !x.mayArrive(f, nodes, flights) {
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

// prompt is what happens before anything else, see model.Config.Prompt: on which node, the
// transition, and the position of the message that arrives, or -1. The transition is nil if there
// is nothing of that kind.
func (x *explorer) prompt(nodes, flights []uint32) (int, *transition, int) {
	members := x.modelNodes(nodes)
	for i, id := range nodes {
		for _, a := range model.Membership(members, i, nil) {
			if a.Kind == model.ActEpoch {
				return i, x.membership(id, a), -1
			}
		}
	}
	for j, f := range flights {
		if flight := x.flights.values[f]; flight.Recovers() && x.mayArrive(f, nodes, flights) {
			i := int(flight.Message.To)
			return i, x.delivery(nodes[i], f), j
		}
	}
	return 0, nil, 0
}

// mayArrive tells whether flight f need not wait for another one, nor for the node it goes to.
func (x *explorer) mayArrive(f uint32, nodes, flights []uint32) bool {
	return !x.mustWait(f, flights) && x.hears(nodes, f)
}

// mustWait reports whether flight f has to follow another one that is still on its way.
func (x *explorer) mustWait(f uint32, flights []uint32) bool {
	behind := x.flights.values[f]
	if !behind.Ordered() {
		return false
	}
	return slices.ContainsFunc(flights, func(g uint32) bool { return behind.MustFollow(x.flights.values[g]) })
}

// hears reports whether a message can arrive where it goes.
func (x *explorer) hears(nodes []uint32, f uint32) bool {
	flight := x.flights.values[f]
	return x.nodes.values[nodes[flight.Message.To]].node.Hears(flight)
}

// apply makes transition t of node i happen to a state, and takes the message at position arrived
// (-1: none) from the network. The result is valid until the next call.
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
	if t.action.Kind == model.ActReturn {
		flights := slices.DeleteFunc(next[head:], func(f uint32) bool { return t.action.Forgets(&x.flights.values[f].Message) })
		next = next[:head+len(flights)]
	}
	next = append(next, t.sent...)
	slices.Sort(next[head:])
	x.scratch = next
	if t.members && x.config.Replicas+uint8(len(x.config.Cut)) > 0 {
		l := x.ledgers.values[ledger].ledger.Clone()
		if v := l.NoteMembers(x.modelNodes(next[1:head])); v != nil {
			return nil, v
		}
		next[0] = x.ledger(l)
	}
	for _, o := range t.lost {
		if v := model.CheckLost(x.ledgers.values[next[0]].ledger, x.modelNodes(next[1:head]), o); v != nil {
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

// checkExclusive is model.CheckExclusive on numbers: it runs in every state whose page tables
// changed.
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

// actionsTo is a shortest way to a state; none to noState, for what goes wrong before the first.
func (x *explorer) actionsTo(s uint32) []string {
	var way []string
	for ; s != noState && x.parent[s] != noState; s = x.parent[s] {
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
