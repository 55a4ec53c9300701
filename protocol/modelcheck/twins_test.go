package modelcheck

import (
	"fmt"
	"slices"

	"dsmd/protocol/model"
)

// The explorer takes nodes of equal encodings for one, and goes on with the first of them alone.
// Where the encoding lacks a field that decides something, it would miss what follows from the
// others, and nothing would show that. fields_test.go looks into their engines; that rests on a
// list of fields that decide nothing, and leaves out what the model has beside the engine. So some
// of the others are kept, each as the twin of the node that it was taken for. Whatever is tried on
// a node is tried on its twin, too, and what others see of it must be the same: what is sent, what
// retires, what becomes of the pages. Their next states may differ: what decides how long pages are
// held is left out of encodings, and it decides when a hold is over.

// twinShare is how many transitions there are for each that a twin repeats, at least. It is a
// sample, the same each time: twins are kept whenever the share allows it.
const twinShare = 4

// What a finding names where they differ.
const (
	ruleTwins  = "two nodes of equal encodings behave differently"
	ruleFields = "two engines of equal encodings are in different states"
)

// origin is how a node was reached: by a transition out of a state. It is nil in the first state.
type origin struct {
	state uint32
	by    *transition
}

type twin struct {
	origin
	node *model.Node
}

// twins is the explorer's account of them.
type twins struct {
	runs    uint32 // transitions that were repeated
	met     uint32 // nodes that were reached and had the encoding of another
	outcome model.Outcome
	finding *Finding // the first
}

// meet notes that node n, reached by t, has the encoding of ns.
func (x *explorer) meet(ns *nodeState, n *model.Node, t *transition) {
	met := &twin{origin{x.at, t}, n}
	x.compareFields(ns, met)
	if x.twins.runs > x.transitions/twinShare {
		return
	}
	ns.twin = met
	if mine, other := sorted(ns.local), sorted(n.Local(nil)); !slices.Equal(mine, other) {
		x.differ(ns, met, ruleTwins, "after %v one of them can do %q, the other %q", t.action, other, mine)
	}
	for _, known := range ns.tried {
		x.compareTwin(ns, known)
	}
}

// sorted are the texts of actions: their order may depend on that of holds, which decides nothing.
func sorted(actions []model.Action) []string {
	texts := make([]string, len(actions))
	for i := range actions {
		texts[i] = actions[i].String()
	}
	slices.Sort(texts)
	return texts
}

// compareTwin has the twin of a node, if there is one, do what led to t on the node.
func (x *explorer) compareTwin(ns *nodeState, t *transition) {
	if ns.twin == nil || x.twins.finding != nil {
		return
	}
	w := &x.twins
	w.runs++
	n := ns.twin.node.Clone()
	n.Do(t.action, 0, &w.outcome)
	if what := x.difference(ns, t, n); what != "" {
		x.differ(ns, ns.twin, ruleTwins, "after %v they differ in %s", t.action, what)
	}
}

// difference names something in which t and what has come of it on a twin, which is n now, differ.
func (x *explorer) difference(ns *nodeState, t *transition, n *model.Node) string {
	out := &x.twins.outcome
	if t.violation != nil || out.Violation != nil {
		if t.violation != nil && out.Violation != nil && *t.violation == *out.Violation {
			return ""
		}
		return fmt.Sprintf("what is violated: %v and %v", t.violation, out.Violation)
	}
	var sent []uint32
	for i := range out.Sent {
		sent = append(sent, x.flight(&out.Sent[i]))
	}
	switch {
	case !slices.Equal(slices.Sorted(slices.Values(t.sent)), slices.Sorted(slices.Values(sent))):
		return "what they send"
	case fmt.Sprint(t.retired) != fmt.Sprint(out.Retired):
		return fmt.Sprintf("what retires: %v and %v", t.retired, out.Retired)
	case !slices.Equal(t.lost, out.Lost), t.changed != (len(out.Changed) > 0):
		return "what becomes of their pages"
	case t.members != n.MembersNote(ns.twin.node):
		return "their places among the nodes"
	}
	return ""
}

// differ makes a finding of a node and another of the same encoding.
func (x *explorer) differ(ns *nodeState, other *twin, rule, format string, args ...any) {
	if x.twins.finding != nil {
		return
	}
	f := x.finding(other.state, other.by, &model.Violation{
		Rule:   rule,
		Detail: fmt.Sprintf("node %d: %s", ns.node.Self(), fmt.Sprintf(format, args...)),
	})
	f.Other = x.finding(ns.state, ns.by, f.Violation).Scenario
	x.twins.finding = f
}
