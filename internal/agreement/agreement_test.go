package agreement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// world runs nodes against each other over links that lose, repeat and reorder, and that may be cut
// for good; nodes crash. Everything is decided by one seed.
type world struct {
	t       *testing.T
	seed    uint64
	rng     *rand.Rand
	nodes   []*simulated
	mail    []letter
	news    []news
	views   map[uint32]*decidedView
	stay    int    // how often a node could not leave
	started uint64 // processes that have come
	calm    bool   // nothing is lost and nobody crashes any more
}

// simulated is one node and what its host knows.
type simulated struct {
	state    *State
	crashed  bool
	blocked  bool
	excluded bool
	process  uint64          // as which process it has come
	isNew    bool            // it has entered no view yet
	serving  uint32          // the last view that it has served under
	cut      map[NodeID]bool // links that are gone
	// refused: of the links that are gone, those to nodes that still take the process before this
	// one for a member
	refused map[NodeID]bool
}

// decidedView is one that somebody has entered.
type decidedView struct {
	view
	entered map[NodeID]bool
}

type letter struct {
	from, to NodeID
	bytes    []byte
}

// news are a loss that a node has not heard of yet.
type news struct{ to, about NodeID }

func newWorld(t *testing.T, seed uint64, count int) *world {
	w := &world{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 7)), views: map[uint32]*decidedView{}}
	var all []NodeID
	for i := range count {
		all = append(all, NodeID(i))
	}
	first := &decidedView{view: view{members: all}, entered: map[NodeID]bool{}}
	for _, id := range all {
		w.nodes = append(w.nodes, &simulated{state: New(id, all), cut: map[NodeID]bool{}})
		first.entered[id] = true
	}
	w.views[0] = first
	return w
}

func (w *world) failf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("seed %d, %d nodes: %s", w.seed, len(w.nodes), fmt.Sprintf(format, args...))
}

func (n *simulated) alive() bool { return !n.crashed && !n.excluded }

// cutLink ends a link. Both ends hear of it, at different times; what is under way may be lost.
func (w *world) cutLink(a, b NodeID) {
	if w.nodes[a].cut[b] {
		return
	}
	w.nodes[a].cut[b], w.nodes[b].cut[a] = true, true
	w.mail = slices.DeleteFunc(w.mail, func(l letter) bool {
		return (l.from == a && l.to == b || l.from == b && l.to == a) && w.rng.IntN(2) == 0
	})
	w.news = append(w.news, news{a, b}, news{b, a})
}

// isolate is the crash of a node, or its end.
func (w *world) isolate(id NodeID) {
	for other := range w.nodes {
		if NodeID(other) != id {
			w.cutLink(id, NodeID(other))
		}
	}
}

// carryOut does what a node wants done, and checks what it has come to.
func (w *world) carryOut(id NodeID, out []Output) {
	n := w.nodes[id]
	for _, o := range out {
		if n.excluded {
			w.failf("node %d has more to say than that it is excluded: %+v", id, o)
		}
		switch o.Kind {
		case Send:
			if !n.cut[o.To] {
				w.mail = append(w.mail, letter{id, o.To, o.Message})
			}
		case View:
			w.enter(id, o)
		case NoQuorum:
			n.blocked = true
		case Quorum:
			n.blocked = false
		case Stays:
			if v := n.state.voters(); !slices.Equal(v, []NodeID{o.To}) {
				w.failf("node %d is told that node %d cannot leave, and those that do not are %v", id, o.To, v)
			}
			w.stay++
		case Excluded:
			w.decided(o)
			if contains(o.Members, id) {
				w.failf("node %d is excluded from %v", id, o.Members)
			}
			n.excluded = true
			w.isolate(id)
		}
	}
}

// decided checks that a view is the only one of its epoch.
func (w *world) decided(o Output) *decidedView {
	v := w.views[o.Epoch]
	if v == nil {
		v = &decidedView{view: view{members: o.Members, leaving: o.Leaving}, entered: map[NodeID]bool{}}
		w.views[o.Epoch] = v
	}
	if !slices.Equal(v.members, o.Members) || !slices.Equal(v.leaving, o.Leaving) {
		w.failf("two views of epoch %d: %v and %v, leaving %v and %v", o.Epoch, v.members, o.Members, v.leaving, o.Leaving)
	}
	return v
}

func (w *world) enter(id NodeID, o Output) {
	v := w.decided(o)
	if !contains(v.members, id) || v.entered[id] {
		w.failf("node %d enters %v, and did so before: %v", id, v.members, v.entered[id])
	}
	if w.nodes[id].state.Epoch() < o.Epoch { // it may be in the next one already
		w.failf("node %d is in epoch %d after entering %d", id, w.nodes[id].state.Epoch(), o.Epoch)
	}
	if n := w.nodes[id]; n.isNew && n.state.processOf(id) != n.process {
		w.failf("node %d comes in by the view of epoch %d, in which the process before it is meant", id, o.Epoch)
	}
	w.nodes[id].isNew = false
	w.readmit(id, v)
	v.entered[id] = true
	for _, other := range v.members {
		if w.nodes[id].cut[other] {
			// it has come, and was lost before anybody could lose it as a member
			w.news = append(w.news, news{id, other})
		}
	}
	for other := range w.nodes {
		if !contains(v.members, NodeID(other)) && !w.nodes[other].state.Outside() {
			w.cutLink(id, NodeID(other))
		}
	}
}

// resume lets a node serve under its view, if all members have entered it.
func (w *world) resume(id NodeID) {
	n := w.nodes[id]
	epoch := n.state.Epoch()
	v := w.views[epoch]
	if !n.alive() || n.serving == epoch || len(v.entered) < len(v.members) {
		return
	}
	n.serving = epoch
	w.carryOut(id, n.state.Resumed(epoch, nil))
	w.oneServes()
}

// oneServes checks that at most one view has a quorum that serves under it. Also nodes that are
// blocked count: they do not know yet.
func (w *world) oneServes() {
	w.t.Helper()
	serving := map[uint32][]NodeID{}
	for id, n := range w.nodes {
		if n.state.Epoch() == n.serving && !n.state.Outside() {
			serving[n.serving] = append(serving[n.serving], NodeID(id))
		}
	}
	var with []uint32
	for epoch, by := range serving {
		if isQuorum(by, w.views[epoch].voters()) {
			with = append(with, epoch)
		}
	}
	if len(with) > 1 {
		w.failf("the views of epochs %v serve at once: %v", with, serving)
	}
}

// deliver lets a letter arrive, in any order.
func (w *world) deliver() {
	i := w.rng.IntN(len(w.mail))
	l := w.mail[i]
	if w.calm || w.rng.IntN(5) > 0 { // else it comes again
		w.mail = slices.Delete(w.mail, i, i+1)
	}
	if !w.calm && w.rng.IntN(5) == 0 || w.nodes[l.to].crashed {
		return // lost
	}
	out, err := w.nodes[l.to].state.Message(l.from, l.bytes, nil)
	if err != nil {
		w.failf("node %d: %v", l.to, err)
	}
	w.carryOut(l.to, out)
}

// hear lets a node hear of a loss. What has come over the link before may still be under way.
func (w *world) hear() {
	i := w.rng.IntN(len(w.news))
	n := w.news[i]
	w.news = slices.Delete(w.news, i, i+1)
	if !w.nodes[n.to].crashed {
		w.carryOut(n.to, w.nodes[n.to].state.Suspect(n.about, nil))
	}
}

// step lets one thing happen.
func (w *world) step(mails int) {
	id := NodeID(w.rng.IntN(len(w.nodes)))
	switch what := w.rng.IntN(20); {
	case what < mails && len(w.mail) > 0:
		w.deliver()
	case what < mails+3 && len(w.news) > 0:
		w.hear()
	case what < mails+6:
		w.resume(id)
	case w.nodes[id].state.Outside():
		if by := NodeID(w.rng.IntN(len(w.nodes))); w.nodes[by].alive() && !w.nodes[by].cut[id] && by != id && (!w.calm || contains(w.nodes[by].state.Members(), id)) {
			w.carryOut(by, w.nodes[by].state.Admit(id, w.nodes[id].process, nil)) // it asks again
		}
	case !w.nodes[id].crashed:
		w.carryOut(id, w.nodes[id].state.Tick(nil))
	}
}

// harm cuts a link, several, or crashes a node.
func (w *world) harm() {
	a, b := NodeID(w.rng.IntN(len(w.nodes))), NodeID(w.rng.IntN(len(w.nodes)))
	switch w.rng.IntN(6) {
	case 0:
		w.nodes[a].crashed = true
		w.isolate(a)
	case 1: // a partition
		side := w.rng.Uint64()
		for i := range w.nodes {
			for j := range i {
				if side>>i&1 != side>>j&1 {
					w.cutLink(NodeID(i), NodeID(j))
				}
			}
		}
	default:
		if a != b {
			w.cutLink(a, b)
		}
	}
}

// replace crashes a node and starts another process in its place, before anybody has heard of it.
func (w *world) replace() {
	id := NodeID(w.rng.IntN(len(w.nodes)))
	w.nodes[id].crashed = true
	w.isolate(id)
	w.restart(id)
}

// change has a node come or leave that can, asked for at any other.
func (w *world) change() {
	id, asked := NodeID(w.rng.IntN(len(w.nodes))), NodeID(w.rng.IntN(len(w.nodes)))
	n, by := w.nodes[id], w.nodes[asked]
	if id == asked || !by.alive() || by.state.Outside() {
		return
	}
	switch {
	case n.alive() && !n.state.Outside() && contains(by.state.Leaving(), id):
		w.isolate(id) // if it is not time yet, that is a crash
	case n.alive() && !n.state.Outside():
		w.carryOut(asked, by.state.Retire(id, nil))
	case n.state.Outside():
		w.carryOut(asked, by.state.Admit(id, w.nodes[id].process, nil))
	case !n.alive():
		w.restart(id)
		if !by.cut[id] {
			w.carryOut(asked, by.state.Admit(id, w.nodes[id].process, nil))
		}
	}
}

// readmit has a node that has entered a view hear of new processes that it has refused until now,
// in the place of nodes that the view does not have.
func (w *world) readmit(id NodeID, v *decidedView) {
	for other, n := range w.nodes {
		if n.refused[id] && !contains(v.members, NodeID(other)) {
			delete(n.refused, id)
			delete(n.cut, id)
			delete(w.nodes[id].cut, NodeID(other))
		}
	}
}

// restart replaces a node by a process that knows nothing. Nobody has met it, and who takes the
// former one for a member refuses it, and hears that the former one is lost.
func (w *world) restart(id NodeID) {
	w.started++
	fresh := &simulated{state: NewOutside(id, w.started), process: w.started, cut: map[NodeID]bool{}, refused: map[NodeID]bool{}, isNew: true}
	w.nodes[id] = fresh
	w.mail = slices.DeleteFunc(w.mail, func(l letter) bool { return l.from == id || l.to == id })
	w.news = slices.DeleteFunc(w.news, func(n news) bool { return n.to == id || n.about == id })
	for i, n := range w.nodes {
		other := NodeID(i)
		delete(n.cut, id)
		delete(n.refused, id)
		switch {
		case other == id:
		case !n.alive():
			n.cut[id], fresh.cut[other] = true, true
		case contains(n.state.Members(), id):
			n.cut[id], fresh.cut[other], fresh.refused[other] = true, true, true
			w.news = append(w.news, news{other, id})
		}
	}
}

// settle leaves the nodes in peace, and then nobody must be left who could go on and does not: a
// node is crashed, excluded or blocked, or it serves under the last view, of which it suspects
// nobody, and no member waits until it may leave.
func (w *world) settle() {
	w.t.Helper()
	w.calm = true
	for range 300 {
		for range 20 * len(w.nodes) {
			w.step(10)
		}
		if w.settled() {
			return
		}
	}
	for id, n := range w.nodes {
		w.t.Logf("node %d: crashed %v, excluded %v, blocked %v, serving %d, %+v", id, n.crashed, n.excluded, n.blocked, n.serving, n.state)
	}
	w.failf("no decision, with %d letters and %d news left", len(w.mail), len(w.news))
}

func (w *world) settled() bool {
	last := uint32(0)
	for epoch := range w.views {
		last = max(last, epoch)
	}
	if len(w.news) > 0 {
		return false
	}
	for _, n := range w.nodes {
		s := n.state
		fine := s.Epoch() == last && n.serving == last && len(without(s.members, s.suspects)) == len(s.members) && len(without(s.leaves, s.leaving)) == 0
		if n.alive() && !n.state.Outside() && !n.blocked && !fine {
			return false
		}
	}
	return true
}

// TestAgreement runs many clusters in which everything goes wrong.
func TestAgreement(t *testing.T) {
	seeds := uint64(3000)
	if testing.Short() {
		seeds = 1000
	}
	outcomes := map[string]int{}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, seed, 1+rng.IntN(7))
		mails := 2 + rng.IntN(12)
		w.resume(0)
		often := 5
		if seed%3 == 2 {
			often = 20
		}
		for range 1 + rng.IntN(often) {
			switch what := rng.IntN(3); {
			case what == 0:
				w.change()
			case what == 1 && often == 5:
				w.harm()
			default:
				w.replace()
			}
			for range rng.IntN(60 * len(w.nodes)) {
				w.step(mails)
				w.oneServes()
			}
		}
		w.settle()
		w.tally(outcomes)
	}
	t.Log(outcomes)
	for _, what := range []string{"goes on in epoch 0", "goes on in epoch 1", "goes on in epoch 2", "goes on in epoch 3", "excluded", "blocked", "leaves", "stays", "comes"} {
		if outcomes[what] == 0 {
			t.Errorf("no node %s in any run: the test does not test what it should", what)
		}
	}
}

func (w *world) tally(outcomes map[string]int) {
	outcomes["stays"] += w.stay
	for id, v := range w.views {
		if id > 0 && len(v.leaving) > 0 {
			outcomes["leaves"]++
		}
		if before := w.views[id-1]; id > 0 && before != nil && !isSubset(v.members, before.members) {
			outcomes["comes"]++
		}
	}
	for _, n := range w.nodes {
		switch {
		case n.state.Outside():
			outcomes["outside"]++
		case n.crashed:
			outcomes["crashed"]++
		case n.excluded:
			outcomes["excluded"]++
		case n.blocked:
			outcomes["blocked"]++
		default:
			outcomes[fmt.Sprintf("goes on in epoch %d", min(n.state.Epoch(), 3))]++
		}
	}
}

// TestMajorityGoesOn: after a partition in one blow, the side with the quorum goes on without a
// loss, and the other does not.
func TestMajorityGoesOn(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 2))
		w := newWorld(t, seed, 2+rng.IntN(6))
		var sides [2][]NodeID
		for id := range w.nodes {
			side := rng.IntN(2)
			sides[side] = append(sides[side], NodeID(id))
		}
		for _, a := range sides[0] {
			for _, b := range sides[1] {
				w.cutLink(a, b)
			}
		}
		w.settle()
		all := w.views[0].members
		if len(sides[0]) == 0 || len(sides[1]) == 0 {
			continue
		}
		for i, side := range sides {
			if !isQuorum(side, all) {
				if isQuorum(sides[1-i], all) == false {
					w.failf("neither %v nor %v is a quorum", side, sides[1-i])
				}
				continue
			}
			if got := w.nodes[side[0]].state.Members(); !slices.Equal(got, side) {
				w.failf("the side %v goes on as %v", side, got)
			}
			for _, id := range sides[1-i] {
				if n := w.nodes[id]; !n.blocked && !n.excluded {
					w.failf("node %d goes on beside %v", id, side)
				}
			}
		}
	}
}

// TestQuorumsMeet: for each set of up to eight members, no two sides that have no node in common
// are both quorums, and one of two sides that have all nodes between them is one.
func TestQuorumsMeet(t *testing.T) {
	for members := 1; members < 1<<8; members++ {
		view := subset(members)
		for part := members; ; part = (part - 1) & members {
			one, other := isQuorum(subset(part), view), isQuorum(subset(members&^part), view)
			if one == other {
				t.Fatalf("of %v, %v is a quorum: %v, and so is the rest", view, subset(part), one)
			}
			if part == 0 {
				break
			}
		}
	}
}

func subset(bits int) (list []NodeID) {
	for n := NodeID(0); bits>>n != 0; n++ {
		if bits>>n&1 != 0 {
			list = append(list, n)
		}
	}
	return list
}
