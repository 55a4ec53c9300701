package agreement

import "slices"

const (
	// patience is after how many ticks an attempt counts as failed, and how many ticks lie between
	// the first attempts of different nodes.
	patience = 4
	// maxStagger bounds how many nodes wait for those before them. The others try together with the
	// last of these.
	maxStagger = 8
	// maxDoublings bounds how often the patience doubles when attempts fail, so that a node notices
	// when the network has healed.
	maxDoublings = 6
)

// decision is a node's part in deciding the next view.
//
// What must hold: promised only grows; voted <= promised; voted is 0 if and only if value is no
// view.
type decision struct {
	promised ballot // nothing below is accepted any more
	voted    ballot // at which value was accepted
	value    view   // none: nothing was accepted
	seen     uint64 // the highest round that anybody was heard of

	own    *attempt // what this node is trying
	failed int      // own attempts that came to nothing
	pause  int      // ticks until the next; 0: none is planned
	age    int      // ticks since the own attempt, or another's last message
}

// attempt is a ballot of this node's own.
type attempt struct {
	ballot   ballot
	promised []NodeID // who has
	best     ballot   // the highest at which one of them had accepted something
	value    view     // what that was; once proposed: what is
	proposed bool
	accepted []NodeID // who has
}

// consider does what the suspicions demand: nothing, block, or try to have a view decided that
// leaves the suspects out.
func (s *State) consider() {
	s.keepLast()
	rest := without(s.members, s.suspects)
	if possible := len(rest) == len(s.members) || s.canGoOn(rest); possible == s.blocked {
		s.blocked = !possible
		kind := Quorum
		if s.blocked {
			kind = NoQuorum
		}
		s.out = append(s.out, Output{Kind: kind})
	}
	if s.blocked || s.wanted().equal(s.view) {
		s.next.own, s.next.pause = nil, 0
		return
	}
	if s.next.own != nil || s.next.pause > 0 {
		return
	}
	// Nodes that suspect the same members start one after the other, the lowest number at once. A
	// node that has begun gets a chance.
	s.next.pause = min(slices.Index(rest, s.self), maxStagger) * patience
	if s.next.promised != 0 {
		s.next.pause += patience
	}
	if s.next.pause == 0 {
		s.try()
	}
}

// keepLast makes a member stay that was to leave, if no other member stays.
func (s *State) keepLast() {
	if last := s.voters(); len(last) == 1 && contains(s.leaves, last[0]) {
		s.leaves = without(s.leaves, last)
		s.out = append(s.out, Output{Kind: Stays, To: last[0]})
	}
}

// canGoOn reports whether these nodes are a quorum of each view that somebody may still work under.
func (s *State) canGoOn(rest []NodeID) bool {
	return s.since != nil && !slices.ContainsFunc(s.since, func(voters []NodeID) bool { return !isQuorum(rest, voters) })
}

// wanted is the next view that this node would propose. It leaves out the nodes that it suspects.
// If it suspects nobody, and the present view serves, it adds those that want to join, or else
// marks those that want to leave.
func (s *State) wanted() view {
	rest := without(s.members, s.suspects)
	processes := among(s.processes, rest, true)
	if len(rest) < len(s.members) || len(s.since) != 1 {
		return view{rest, without(s.leaving, s.suspects), processes}
	}
	if joins := among(s.joins, s.members, false); len(joins) > 0 {
		for _, p := range joins {
			rest, processes = insert(rest, p.node), insertProcess(processes, p)
		}
		return view{rest, s.leaving, processes}
	}
	leaving := s.leaving
	for _, n := range s.leaves {
		if contains(rest, n) && !contains(leaving, n) && len(leaving)+1 < len(rest) {
			leaving = insert(slices.Clone(leaving), n)
		}
	}
	return view{rest, leaving, processes}
}

// try starts a ballot.
func (s *State) try() {
	s.next.age = 0
	s.next.seen++
	own := &attempt{ballot: makeBallot(s.next.seen, s.self)}
	s.next.own = own
	m := message{kind: prepare, epoch: s.epoch + 1, ballot: own.ballot}
	s.broadcast(s.members, m)
	s.vote(s.self, &m)
}

// retreat gives up this node's attempt, and leaves others some time, which is different for each
// node and attempt.
func (s *State) retreat() {
	if s.next.own != nil {
		s.next.failed++
	}
	s.next.own, s.next.age = nil, 0
	spread := uint64(patience) << min(s.next.failed, maxDoublings)
	s.next.pause = patience + int(scatter(uint64(s.self)<<32|uint64(s.next.failed))%spread)
}

// scatter turns numbers that are close into numbers that are not (the finalizer of MurmurHash3).
func scatter(x uint64) uint64 {
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// vote handles a message about the next epoch, of a member or of this node itself.
func (s *State) vote(from NodeID, m *message) {
	s.next.seen = max(s.next.seen, m.ballot.round())
	switch m.kind {
	case prepare:
		s.onPrepare(from, m)
	case promise:
		s.onPromise(from, m)
	case accept:
		s.onAccept(from, m)
	case accepted:
		s.onAccepted(from, m)
	case refuse:
		if own := s.next.own; own != nil && own.ballot < m.ballot {
			s.retreat()
		}
	}
}

// answer sends to another node, or handles at once what this node tells itself.
func (s *State) answer(to NodeID, m message) {
	if to == s.self {
		s.vote(s.self, &m)
		return
	}
	s.send(to, m)
}

// follow notes that another node's ballot is under way, and gives it a chance.
func (s *State) follow(from NodeID) {
	s.next.age = 0
	if from != s.self && (s.next.own != nil || s.next.pause > 0) {
		s.retreat()
	}
}

func (s *State) onPrepare(from NodeID, m *message) {
	if m.ballot < s.next.promised {
		s.answer(from, message{kind: refuse, epoch: m.epoch, ballot: s.next.promised})
		return
	}
	if m.ballot > s.next.promised {
		s.next.promised = m.ballot
		s.follow(from)
	}
	if m.ballot == s.next.voted {
		return // it came twice; the attempt is beyond promises
	}
	s.answer(from, message{kind: promise, epoch: m.epoch, ballot: m.ballot, voted: s.next.voted, view: s.next.value})
}

func (s *State) onPromise(from NodeID, m *message) {
	own := s.next.own
	if own == nil || own.ballot != m.ballot || own.proposed {
		return
	}
	own.promised = insert(own.promised, from)
	if m.voted > own.best {
		own.best, own.value = m.voted, m.view
	}
	if isQuorum(own.promised, s.voters()) {
		s.propose(own)
	}
}

// propose asks to accept what was perhaps decided already, or else what this node wants. consider
// has made sure that the members it wants can go on.
func (s *State) propose(own *attempt) {
	if own.value.members == nil {
		if own.value = s.wanted(); own.value.equal(s.view) {
			s.next.own = nil // it was taken back meanwhile
			return
		}
	}
	own.proposed = true
	m := message{kind: accept, epoch: s.epoch + 1, ballot: own.ballot, view: own.value}
	s.broadcast(s.members, m)
	s.vote(s.self, &m)
}

func (s *State) onAccept(from NodeID, m *message) {
	if m.ballot < s.next.promised {
		s.answer(from, message{kind: refuse, epoch: m.epoch, ballot: s.next.promised})
		return
	}
	if m.ballot > s.next.promised {
		s.follow(from)
	}
	s.next.promised, s.next.voted, s.next.value, s.next.age = m.ballot, m.ballot, m.view, 0
	s.answer(from, message{kind: accepted, epoch: m.epoch, ballot: m.ballot})
}

func (s *State) onAccepted(from NodeID, m *message) {
	own := s.next.own
	if own == nil || own.ballot != m.ballot || !own.proposed {
		return
	}
	own.accepted = insert(own.accepted, from)
	if isQuorum(own.accepted, s.voters()) {
		s.announce(message{kind: decided, epoch: m.epoch, view: own.value})
		s.enter(m.epoch, own.value)
	}
}

// announce sends a decision to all members of the view, and to those that it leaves out.
func (s *State) announce(m message) {
	all := slices.Clone(m.members)
	for _, n := range s.members {
		all = insert(all, n)
	}
	s.broadcast(all, m)
}

// learn handles a decision of an epoch that is to come. It passes the decision on before it enters
// the view (see View), because this node may reach nodes that the deciding node does not, above all
// those that the decision leaves out.
func (s *State) learn(m *message) {
	if s.isIn(m.view) {
		s.announce(*m)
	}
	s.enter(m.epoch, m.view)
}

// enter goes on in a view that was decided, or ends this node's part. A node that joins is another
// process than the one that was suspected.
func (s *State) enter(epoch uint32, next view) {
	out := next.clone()
	if !s.isIn(next) {
		s.excluded, s.next = true, decision{}
		s.out = append(s.out, Output{Kind: Excluded, Epoch: epoch, Members: out.members, Leaving: out.leaving})
		return
	}
	s.suspects = without(s.suspects, without(next.members, s.members))
	s.joins, s.leaves = among(s.joins, next.members, false), without(s.leaves, next.leaving)
	s.leaves = without(s.leaves, without(s.leaves, next.members))
	if !s.outside && s.since != nil {
		s.since = append(slices.Clone(s.since), next.voters())
	}
	s.outside = false
	s.epoch, s.view, s.next = epoch, next.clone(), decision{}
	s.out = append(s.out, Output{Kind: View, Epoch: epoch, Members: out.members, Leaving: out.leaving})
	s.consider()
}
