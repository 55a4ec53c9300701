package membership

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// ErrRefused is wrapped by the errors of Form when this node cannot be part of the cluster that it
// found. Trying again does not help before something is changed.
var ErrRefused = errors.New("membership: refused")

// errAuthorLost ends a formation whose outcome cannot be known.
var errAuthorLost = errors.New("membership: the node that was about to form the cluster is gone")

// formation decides which nodes make up the cluster, as one of them. It is a state machine without
// I/O or clock: join, leave, receive and tick tell it what happens; after each, out has the
// messages to be sent, and table or err the outcome once there is one.
//
// What must hold: a node that has accepted a proposal accepts another one only after the first
// one's author has withdrawn it; an author never withdraws what it has committed. Hence of two
// tables that have a node in common at most one is ever committed.
type formation struct {
	self  member
	nodes int
	known map[string]member // by name; compatible, alive, self among them
	heard uint64            // how many members this node has heard of so far

	round   uint32 // of the last own proposal
	mine    *proposal
	bound   *promise
	unheard map[string]bool // after the own commit: who has not said that it heard it
	// conflict: ticks in a row at which an earlier node had this one's number or address.
	conflict int
	patience int // how many of them are too many

	out   []outgoing
	table *Table // not nil: decided
	err   error  // not nil: this node will not be part of a cluster
}

// proposal is what this node has proposed.
type proposal struct {
	table   *Table
	missing map[string]bool // who has not accepted yet
}

// promise is what this node has accepted from another.
type promise struct {
	author string
	round  uint32
	table  *Table
}

// outgoing is a message to be sent.
type outgoing struct {
	to      string
	message message
}

func newFormation(self member, nodes, patience int) *formation {
	f := &formation{self: self, nodes: nodes, known: map[string]member{self.name(): self}, patience: patience}
	f.advance()
	return f
}

func (f *formation) ended() bool { return f.table != nil || f.err != nil }

// settled reports whether the formation has ended and ticks repeat nothing any more.
func (f *formation) settled() bool { return f.ended() && len(f.unheard) == 0 }

// join notes that a node was found, or that what it says of itself has changed. Preconditions: it
// is compatible.
func (f *formation) join(m member) {
	if before, known := f.known[m.name()]; known {
		m.heard = before.heard
	} else {
		f.heard++
		m.heard = f.heard
	}
	f.known[m.name()] = m
	switch {
	case f.ended():
	case f.self.returns && m.sealed != (digest{}):
		f.send(m.name(), message{kind: ask})
	case m.sealed != (digest{}):
		f.sealed(&m)
	default:
		f.advance()
	}
}

// sealed handles a node that has started.
func (f *formation) sealed(m *member) {
	if f.bound != nil && f.bound.table.digest == m.sealed {
		f.table = f.bound.table // the commit has not come yet, or is lost; this says the same
		return
	}
	f.err = fmt.Errorf("%w (%w): the cluster %q is complete with %d nodes, of which the one at %s is one, and this node at %s is none; "+
		"one that takes the place of a former one is started with --rejoin, if the others survive losses; "+
		"else stop a node, or start all with a larger --nodes", ErrRefused, ErrComplete, f.self.cluster, f.nodes, m.data, f.self.data)
}

// leave tells that a node is gone.
func (f *formation) leave(name string) {
	delete(f.known, name)
	delete(f.unheard, name)
	if f.ended() {
		return
	}
	if f.bound != nil && f.bound.author == name {
		f.err = fmt.Errorf("%w: %s, and this node had accepted its plan; start this node again", errAuthorLost, name)
		return
	}
	f.advance()
}

// advance proposes or withdraws as what is known demands.
func (f *formation) advance() {
	if f.bound != nil || f.self.returns {
		return
	}
	chosen, _ := choose(f.known, f.nodes)
	if len(chosen) < f.nodes || chosen[0].name() != f.self.name() {
		f.withdraw()
		return
	}
	table := assign(f.self.cluster, chosen)
	if f.mine != nil && f.mine.table.digest == table.digest {
		return
	}
	f.withdraw()
	f.round++
	f.mine = &proposal{table: table, missing: f.others(table)}
	f.propose()
	f.commitIfAccepted()
}

// others are the names of a table's other nodes.
func (f *formation) others(t *Table) map[string]bool {
	names := map[string]bool{}
	for _, n := range t.Nodes {
		names[n.name] = true
	}
	delete(names, f.self.name())
	return names
}

func (f *formation) propose() {
	for _, name := range slices.Sorted(maps.Keys(f.mine.missing)) {
		f.send(name, message{kind: propose, round: f.round, digest: f.mine.table.digest, nodes: f.mine.table.Nodes})
	}
}

func (f *formation) withdraw() {
	if f.mine == nil {
		return
	}
	for _, n := range f.mine.table.Nodes {
		if _, alive := f.known[n.name]; alive && n.name != f.self.name() {
			f.send(n.name, message{kind: withdraw, round: f.round})
		}
	}
	f.mine = nil
}

func (f *formation) commitIfAccepted() {
	if len(f.mine.missing) > 0 {
		return
	}
	f.table = f.mine.table
	f.unheard = f.others(f.table)
	f.announce()
}

func (f *formation) announce() {
	for _, name := range slices.Sorted(maps.Keys(f.unheard)) {
		f.send(name, message{kind: commit, round: f.round, digest: f.table.digest})
	}
}

func (f *formation) send(to string, m message) {
	m.from = f.self.name()
	f.out = append(f.out, outgoing{to, m})
}

// receive handles a message of a node. Messages of nodes that are not known are too early or too
// late, and come again if they matter.
func (f *formation) receive(m *message) {
	from, ok := f.known[m.from]
	if !ok || m.from == f.self.name() || f.err != nil {
		return
	}
	switch m.kind {
	case propose:
		f.onPropose(&from, m)
	case accept:
		f.onAccept(m)
	case withdraw:
		if f.table == nil && f.bound != nil && f.bound.author == m.from && f.bound.round <= m.round {
			f.bound = nil
			f.advance()
		}
	case commit:
		f.onCommit(m)
	case done:
		if f.table != nil && f.table.digest == m.digest {
			delete(f.unheard, m.from)
		}
	case ask:
		if f.table != nil {
			f.send(m.from, message{kind: tell, round: m.round, digest: f.table.digest, nodes: f.table.Nodes})
		}
	case tell:
		f.onTell(&from, m)
	}
}

// onTell handles the table of a cluster that is complete, to which this node comes back.
func (f *formation) onTell(from *member, m *message) {
	t := newTable(f.self.cluster, m.nodes)
	if !f.self.returns || f.table != nil || len(t.Nodes) != f.nodes || t.digest != m.digest || from.sealed != m.digest {
		return
	}
	switch own := t.at(f.self.data); {
	case own == nil:
		f.err = fmt.Errorf("%w: no node of the cluster %q was at %s, where this one takes data: a node comes back at the address that it had", ErrRefused, f.self.cluster, f.self.data)
	case f.self.id != Auto && f.self.id != own.ID:
		f.err = fmt.Errorf("%w: the node at %s is number %d of the cluster %q, and this one is to be %d", ErrRefused, f.self.data, own.ID, f.self.cluster, f.self.id)
	default:
		f.table = t
	}
}

// askAgain asks one of the nodes that can know for the table, in turn.
func (f *formation) askAgain() {
	var know []string
	for name, m := range f.known {
		if m.sealed != (digest{}) {
			know = append(know, name)
		}
	}
	if len(know) > 0 {
		slices.Sort(know)
		f.round++
		f.send(know[int(f.round)%len(know)], message{kind: ask, round: f.round})
	}
}

// metAt reports whether a node that takes data at an address is known.
func (f *formation) metAt(data string) bool {
	for _, m := range f.known {
		if m.data == data {
			return true
		}
	}
	return false
}

// hasSuccessor reports whether a later incarnation of a node is known: one that says that it was
// started later, or that was heard of later. Clocks may go back between two starts.
func (f *formation) hasSuccessor(m *member) bool {
	for _, other := range f.known {
		if other.data == m.data && other.incarnation != m.incarnation && (m.earlier(&other) || m.heard < other.heard) {
			return true
		}
	}
	return false
}

func (f *formation) onPropose(from *member, m *message) {
	switch {
	case f.table != nil:
		return // it learns from what this node says of itself that the cluster is complete
	case f.bound != nil && (f.bound.author != m.from || f.bound.round > m.round):
		return // it asks again
	case f.mine != nil && f.self.earlier(from):
		return // this node's goes before; the other will see that and withdraw
	}
	table := newTable(f.self.cluster, m.nodes)
	if !f.sensible(table, m) || !f.met(table) {
		return // if it has not met all, it is asked again
	}
	f.withdraw()
	f.bound = &promise{author: m.from, round: m.round, table: table}
	f.send(m.from, message{kind: accept, round: m.round, digest: table.digest})
}

// met reports whether all of a table are known. A node accepts only others that it has met: when it
// has started, and the author has ended, nobody else may be there who knows where they gossip.
func (f *formation) met(t *Table) bool {
	for _, n := range t.Nodes {
		if _, known := f.known[n.name]; !known {
			return false
		}
	}
	return true
}

// sensible reports whether a proposed table can be that of this node's cluster.
func (f *formation) sensible(t *Table, m *message) bool {
	names := map[string]bool{}
	for _, n := range t.Nodes {
		names[n.name] = true
	}
	own := t.find(f.self.name())
	return len(t.Nodes) == f.nodes && len(names) == f.nodes && names[m.from] && t.digest == m.digest &&
		own != nil && own.Data == f.self.data && (f.self.id == Auto || f.self.id == own.ID)
}

func (f *formation) onAccept(m *message) {
	switch {
	case f.table != nil && f.table.digest == m.digest:
		f.send(m.from, message{kind: commit, round: m.round, digest: m.digest})
	case f.mine != nil && f.round == m.round && f.mine.table.digest == m.digest:
		delete(f.mine.missing, m.from)
		f.commitIfAccepted()
	case f.table == nil:
		// It has accepted what was withdrawn meanwhile, and would be bound to it for ever.
		f.send(m.from, message{kind: withdraw, round: m.round})
	}
}

func (f *formation) onCommit(m *message) {
	if f.table == nil && f.bound != nil && f.bound.author == m.from && f.bound.table.digest == m.digest {
		f.table = f.bound.table
	}
	if f.table != nil && f.table.digest == m.digest {
		f.send(m.from, message{kind: done, round: m.round, digest: m.digest})
	}
}

// tick repeats what may have been lost, and ends the wait for a place that another node has.
func (f *formation) tick() {
	switch {
	case f.err != nil:
		return
	case f.table != nil:
		f.announce()
		return
	case f.self.returns:
		f.askAgain()
		return
	case f.mine != nil:
		f.propose()
	case f.bound != nil:
		f.send(f.bound.author, message{kind: accept, round: f.bound.round, digest: f.bound.table.digest})
	}
	_, turnedDown := choose(f.known, f.nodes)
	why, turned := turnedDown[f.self.name()]
	if !turned {
		f.conflict = 0
	} else if f.conflict++; f.conflict > f.patience {
		f.err = fmt.Errorf("%w: %s", ErrRefused, why)
	}
}

// status says for people how far the formation is.
func (f *formation) status() string {
	if f.self.returns {
		return fmt.Sprintf("%d of %d nodes are known, and none has said who makes up the cluster that this one comes back to (--rejoin); one that is not complete yet is formed without that", len(f.known), f.nodes)
	}
	text := fmt.Sprintf("%d of %d nodes are known", len(f.known), f.nodes)
	if f.bound != nil || f.mine != nil {
		text += ", and they are about to start"
	}
	_, turnedDown := choose(f.known, f.nodes)
	for _, name := range slices.Sorted(maps.Keys(turnedDown)) {
		text += "; one of them cannot be used: " + turnedDown[name]
	}
	return text
}
