package agreement

import (
	"errors"
	"fmt"
	"slices"
)

// ErrNonsense is wrapped by the errors of State.Message for a message that no node which keeps to
// the rules can have sent.
var ErrNonsense = errors.New("agreement: a message that makes no sense")

// OutputKind says what an Output is.
type OutputKind uint8

const (
	// Send asks the host to send Message to node To. The message may be lost, above all to a node
	// that is suspected.
	Send OutputKind = iota + 1
	// View tells the host that the view of Epoch was decided and has these Members, this node among
	// them. The outputs before this one send the decision to them. So a host whose messages to a
	// peer arrive in order may rely on this: the peer knows the decision before anything that is
	// sent later.
	View
	// NoQuorum tells it that the nodes that this node does not suspect are no quorum, so it must
	// not grant anything any more. It is not repeated.
	NoQuorum
	// Quorum takes NoQuorum back: others have decided a view in which this node can go on.
	Quorum
	// Stays tells it that the node To, which was to retire, is the last member that is not leaving.
	// It cannot leave, and its Retire is taken back.
	Stays
	// Excluded tells it that others have decided a view, of Epoch and with Members, that this node
	// is not in. It must end. This is the last output.
	Excluded
)

// Output is something that the host must do or know. The host may keep Message and Members.
type Output struct {
	Kind    OutputKind
	To      NodeID   // Send and Stays
	Message []byte   // Send
	Epoch   uint32   // View and Excluded
	Members []NodeID // View and Excluded; sorted
	Leaving []NodeID // View and Excluded: members that are to give away what they have; sorted
}

// State is one node's part in the agreement. Each method appends to out what the host must do, in
// that order, and returns it.
//
// Concurrency: none; all methods belong to one goroutine.
type State struct {
	self NodeID

	epoch uint32
	view  // of epoch; self is a member, unless it is outside. Never changed in place
	// since are the voters of the last view known to have been entered by all its members, and of
	// those after it that this node has been in, this one included. nil: this node has come since,
	// and does not know.
	since    [][]NodeID
	suspects []NodeID  // sorted; self is none. Some may have been left out already
	joins    []process // sorted: who is to come in
	leaves   []NodeID  // sorted: members that are to leave

	process uint64 // which process this node is: 0 if it was there from the start
	outside bool   // this node was in no view yet

	blocked  bool // NoQuorum was the last word
	excluded bool

	next decision // of epoch+1

	out []Output // of the call that runs
}

// New starts a node in epoch 0, which all its members have entered. Preconditions: members are 1 to
// MaxNodes, sorted, without repetitions, and self is one.
func New(self NodeID, members []NodeID) *State {
	m := message{kind: decided, epoch: 1, view: view{members: members}}
	if _, err := decodeMessage(appendMessage(nil, &m)); err != nil || !contains(members, self) {
		panic(fmt.Sprintf("agreement: node %d among %v: %v", self, members, err))
	}
	members = slices.Clone(members)
	return &State{self: self, view: view{members: members}, since: [][]NodeID{members}}
}

// NewOutside starts a node that is in no view until others decide one with it. It knows nothing,
// whatever it was before. process, which is not 0, tells it from every other process that comes, or
// came, as this node: a decision that lets in another is none about this one.
func NewOutside(self NodeID, process uint64) *State {
	if process == 0 {
		panic("agreement: a process that comes is called 0")
	}
	return &State{self: self, process: process, outside: true}
}

// Epoch is the number of the present view.
func (s *State) Epoch() uint32 { return s.epoch }

// Members returns a copy of the members of the present view, sorted.
func (s *State) Members() []NodeID { return slices.Clone(s.members) }

// ProcessOf is which process a member of the present view is (see NewOutside); 0 if it was there
// from the start.
func (s *State) ProcessOf(n NodeID) uint64 { return s.processOf(n) }

// Suspects reports whether this node suspects n, whether or not n is still a member.
func (s *State) Suspects(n NodeID) bool { return contains(s.suspects, n) }

// Suspect notes that a node is lost, or seems to be. It cannot be taken back. A node that is
// wrongly suspected is left out, too, if the others agree on that before it has them left out.
func (s *State) Suspect(n NodeID, out []Output) []Output {
	if n == s.self || s.excluded || contains(s.suspects, n) {
		return out
	}
	s.out = out
	s.suspects = insert(s.suspects, n)
	s.consider()
	return s.out
}

// Admit notes that the process called id wants to join as node n, and knows nothing of the cluster
// (see NewOutside). A view with it is decided as soon as all members of the present view have
// entered that, and none of them is suspected. If it is a member, it is told so. If another process
// is the member, that one is no more, and is suspected.
func (s *State) Admit(n NodeID, id uint64, out []Output) []Output {
	if s.excluded || s.outside {
		return out
	}
	switch p := (process{n, id}); {
	case s.has(p):
		s.out = out
		s.send(n, message{kind: decided, epoch: s.epoch, view: s.view})
		return s.out
	case contains(s.members, n):
		return s.Suspect(n, out)
	default:
		s.out = out
		s.joins = insertProcess(s.joins, p)
		s.consider()
		return s.out
	}
}

// Dismiss takes Admit back, as far as it is not too late.
func (s *State) Dismiss(n NodeID) { s.joins = among(s.joins, []NodeID{n}, false) }

// Retire notes that a member is to leave. A view in which it is leaving is decided under the same
// conditions as one with a node that joins. When it has given away all that it has, Suspect leaves
// it out. The last member that is not leaving cannot retire: Stays says so, at once, or later if
// others begin to leave before it.
func (s *State) Retire(n NodeID, out []Output) []Output {
	if s.excluded || s.outside || !contains(s.members, n) || contains(s.leaving, n) {
		return out
	}
	s.out = out
	s.leaves = insert(s.leaves, n)
	s.consider()
	return s.out
}

// Leaving are the members that are leaving, sorted.
func (s *State) Leaving() []NodeID { return slices.Clone(s.leaving) }

// Outside says that this node was in no view yet.
func (s *State) Outside() bool { return s.outside }

// Resumed notes that each member of the view of this epoch has told this node that it has entered
// it, and hence left all older views. It means nothing when another view has been decided since.
func (s *State) Resumed(epoch uint32, out []Output) []Output {
	if epoch != s.epoch || s.excluded {
		return out
	}
	s.out = out
	s.since = [][]NodeID{s.voters()}
	s.consider()
	return s.out
}

// Message handles what a node's Send has brought. An error wraps ErrMalformed or ErrNonsense: the
// sender does not keep to the rules, and nothing has changed.
func (s *State) Message(from NodeID, b []byte, out []Output) ([]Output, error) {
	m, err := decodeMessage(b)
	if err != nil {
		return out, err
	}
	if err := s.sensible(from, &m); err != nil {
		return out, err
	}
	if s.excluded || s.outside && (m.kind != decided || !s.isIn(m.view)) {
		return out, nil
	}
	s.out = out
	switch {
	case m.kind == decided && m.epoch > s.epoch:
		s.learn(&m)
	case m.epoch <= s.epoch: // it is behind; or late
		if m.kind == prepare || m.kind == accept || m.kind == query {
			s.send(from, message{kind: decided, epoch: s.epoch, view: s.view})
		}
	case m.epoch > s.epoch+1:
		s.send(from, message{kind: query, epoch: s.epoch + 1})
	default:
		s.vote(from, &m)
	}
	return s.out, nil
}

// sensible returns what is certainly wrong with a message, if anything.
func (s *State) sensible(from NodeID, m *message) error {
	wrong := ""
	switch {
	case from == s.self:
		wrong = "it comes from this node"
	case s.outside:
		return nil
	case m.epoch == s.epoch && m.kind == decided && !m.view.equal(s.view):
		wrong = fmt.Sprintf("another view was decided, with %v", s.members)
	case m.epoch <= s.epoch:
		return nil
	case m.epoch-s.epoch > mostAhead:
		wrong = fmt.Sprintf("epoch %d is under way", s.epoch)
	case m.epoch > s.epoch+1 || m.kind == query:
		return nil
	case m.kind != decided && !contains(s.members, from):
		wrong = fmt.Sprintf("the node is not in the view of epoch %d, %v", s.epoch, s.members)
	case m.kind != decided && !s.isBallot(from, m):
		wrong = fmt.Sprintf("round %d of node %d is not its to name, or far beyond round %d", m.ballot.round(), m.ballot.node(), s.next.seen)
	case m.members != nil && (m.view.equal(s.view) || !isQuorum(m.members, s.voters()) || !isSubset(m.members, s.members) && !isSubset(s.members, m.members) || !s.follows(m.view)):
		wrong = fmt.Sprintf("they cannot follow the view of epoch %d, %v", s.epoch, s.members)
	}
	if wrong == "" {
		return nil
	}
	return fmt.Errorf("%w: node %d says %v for epoch %d with members %v; %s", ErrNonsense, from, m.kind, m.epoch, m.members, wrong)
}

// mostAhead is by how many rounds, or epochs, a message may be ahead of what this node has heard.
// Nodes would have to try for days to get that far. Without a bound one lie could name the highest
// ballot that there is, and none could follow it.
const mostAhead = 1 << 16

// isBallot reports whether a message may name its ballot. Who asks for something names a ballot of
// its own, who answers names this node's, and who refuses names any that it has promised.
func (s *State) isBallot(from NodeID, m *message) bool {
	by := s.self
	switch m.kind {
	case prepare, accept:
		by = from
	case refuse:
		by = m.ballot.node()
	}
	return m.ballot.node() == by && m.ballot.round() <= s.next.seen+mostAhead
}

// isIn reports whether a view has this process as a member.
func (s *State) isIn(v view) bool { return v.has(process{s.self, s.process}) }

// follows reports whether the members that a view has in common with the present one are the same
// processes in both.
func (s *State) follows(next view) bool {
	return !slices.ContainsFunc(next.members, func(n NodeID) bool {
		return contains(s.members, n) && next.processOf(n) != s.processOf(n)
	})
}

// Idle says that nothing depends on Tick at present.
func (s *State) Idle() bool {
	return s.excluded || s.next.own == nil && s.next.pause == 0 && s.next.promised == 0 && !s.entering()
}

// entering reports whether some member of the view may not know of it yet.
func (s *State) entering() bool { return len(s.since) != 1 && len(s.members) > 1 }

// Tick notes that time has passed, at least as much as messages usually take there and back. It
// repeats what may have been lost.
func (s *State) Tick(out []Output) []Output {
	if s.Idle() {
		return out
	}
	s.out = out
	s.next.age++
	switch {
	case s.next.own != nil:
		if s.next.age >= patience<<min(s.next.failed, maxDoublings) {
			s.retreat()
		}
	case s.next.pause > 0:
		if s.next.pause--; s.next.pause == 0 {
			s.try()
		}
	case s.next.age >= 2*patience:
		s.next.age = 0
		if s.next.promised != 0 {
			s.broadcast(s.members, message{kind: query, epoch: s.epoch + 1})
		}
		if s.entering() {
			s.broadcast(s.members, message{kind: decided, epoch: s.epoch, view: s.view})
		}
	}
	return s.out
}

// send asks for a message to be sent.
func (s *State) send(to NodeID, m message) {
	s.out = append(s.out, Output{Kind: Send, To: to, Message: appendMessage(nil, &m)})
}

func (s *State) broadcast(to []NodeID, m message) {
	for _, n := range to {
		if n != s.self {
			s.send(n, m)
		}
	}
}
