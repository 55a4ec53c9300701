package model

import (
	"slices"

	"dsmd/protocol"
)

// CheckExclusive checks one page in the page tables of all nodes: one writer and nobody else, or
// any number of readers. Beside a writer on a node that has gone on without others these may have
// copies, as they were when they were cut off; beside a writer that is cut off nobody may.
func CheckExclusive(nodes []*Node, o protocol.ObjectID) *Violation {
	if cutOff(nodes) && slices.ContainsFunc(nodes, func(n *Node) bool { return n.Access(o) == protocol.Write && n.alone && !apart(nodes, n) }) {
		nodes = slices.DeleteFunc(slices.Clone(nodes), func(n *Node) bool { return apart(nodes, n) && n.Access(o) == protocol.Read })
	}
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

// CheckQuiescent checks what must hold when nothing more happens by itself. inFlight is how many
// messages are on their way.
func CheckQuiescent(config *Config, nodes []*Node, ledger *Ledger, inFlight int) *Violation {
	if inFlight > 0 {
		return violated(RuleQuiescence, "%d messages have not arrived", inFlight)
	}
	left := alive(nodes)
	if len(left) == 0 {
		return nil // who was to come has nobody to come to
	}
	for _, n := range left {
		if v := checkNode(n, nodes, ledger); v != nil {
			return v
		}
	}
	if v := checkKeepers(config, left); v != nil {
		return v
	}
	for _, n := range left {
		if v := checkNames(n, nodes, ledger); v != nil {
			return v
		}
	}
	for _, n := range left {
		if what := n.engine.Unfinished(); what != "" {
			return violated(RuleQuiescence, "node %d has %s under way", n.self, what)
		}
	}
	for _, o := range config.allObjects() {
		if v := checkHolders(config, nodes, ledger, o); v != nil {
			return v
		}
	}
	return nil
}

// checkKeepers checks that all agree on who keeps the backups of each page.
func checkKeepers(config *Config, left []*Node) *Violation {
	if config.Replicas == 0 {
		return nil
	}
	for _, o := range config.Objects() {
		want := left[0].engine.Keepers(o, int(config.Replicas))
		for _, n := range left[1:] {
			if got := n.engine.Keepers(o, int(config.Replicas)); !slices.Equal(got, want) {
				return violated(RuleKeepers, "node %d has backups of %v kept by %v, and node %d by %v", n.self, o, got, left[0].self, want)
			}
		}
	}
	return nil
}

// checkNames checks, at the allocator n, that nobody uses a name who is not there any more,
// or was not told that it does: its call was cancelled.
func checkNames(n *Node, nodes []*Node, ledger *Ledger) *Violation {
	for _, b := range n.engine.BoundNames() {
		for _, u := range b.Users {
			m := nodes[u.Node]
			if m.down || slices.ContainsFunc(m.threads, func(t thread) bool { return t.spec.Client == u.Client && t.state == threadDead }) {
				return violated(RuleNames, "name %q, of client %d on node %d, which has ended", b.Name, u.Client, u.Node)
			}
			if n.config.binds() && u.Client != bystander && !ledger.uses(b.Name, u) {
				return violated(RuleNames, "name %q, of client %d on node %d, which was not told", b.Name, u.Client, u.Node)
			}
		}
	}
	return nil
}

// hasGap reports whether a node is the allocator and there is memory to bind a name to,
// or will be: what is being freed is not bound any more.
func hasGap(n *Node) bool {
	if !n.engine.IsAllocator() || !n.binds {
		return false
	}
	end := uint64(0)
	for _, b := range append(n.engine.BoundNames(), protocol.BoundName{First: n.config.Pages}) {
		if b.First >= end+boundPages {
			return true
		}
		end = b.First + b.Count
	}
	return false
}

// checkRefusals checks, at the allocator n, that a step before which there was memory has
// refused none, unless there is none behind it. A step that ends a recovery answers all that has
// waited for it: what is refused behind a name that was given may have been refused for that one.
func checkRefusals(n *Node, effects []protocol.Effect, out *Outcome) {
	for i := range effects {
		e := &effects[i]
		status := e.Status
		switch {
		case e.Kind == protocol.EffectComplete:
		case e.Kind == protocol.EffectSend && e.Message.Kind == protocol.KindNameReply:
			status = e.Message.AsNameReply().Status
		default:
			continue
		}
		if status == protocol.StatusOK {
			return
		}
		if status == protocol.StatusNoSpace && hasGap(n) {
			out.violate(RuleRefused, "%s, in a region of %d pages in which %v are bound", FormatEffect(e), n.config.Pages, n.engine.BoundNames())
		}
	}
}

// checkNode checks one node of a quiescent cluster.
func checkNode(n *Node, nodes []*Node, ledger *Ledger) *Violation {
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
			if a == protocol.Write || n.engine.Protected(o) {
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
		entry.Exact && len(holders) != len(entry.Sharers) && !config.evicts():
		return violated(RuleHolders, "the directory says of %v: %+v; %d writers among holders %v", o, entry, writers, holders)
	}
	return nil
}

func contains(all, some []protocol.NodeID) bool {
	return !slices.ContainsFunc(some, func(n protocol.NodeID) bool { return !slices.Contains(all, n) })
}

// CheckOutcome has the ledger follow what one action led to, and checks all invariants but those of
// quiescence. It returns the first violation.
func CheckOutcome(l *Ledger, nodes []*Node, out *Outcome, tell func(*Retirement)) *Violation {
	if v := l.Follow(out, tell); v != nil {
		return v
	}
	if v := l.NoteMembers(nodes); v != nil {
		return v
	}
	for _, o := range out.Lost {
		if v := CheckLost(l, nodes, o); v != nil {
			return v
		}
	}
	for _, o := range out.Changed {
		if v := CheckExclusive(nodes, o); v != nil {
			return v
		}
	}
	return nil
}
