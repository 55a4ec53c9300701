package sim

import (
	"slices"
	"time"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

// machine is one node: an engine with its page table, its threads and its reactors, and a link.
type machine struct {
	node     *model.Node
	reactors []reactor
	// now is the latest time at which the engine has done something: reactors come to it in turns,
	// and it knows one clock.
	now time.Duration
	// egress and ingress are when the link will have sent, and received, all that it knows of.
	egress, ingress time.Duration
	// waits is since when each thread waits for a page, a lock or a barrier; notWaiting: it does
	// not.
	waits []time.Duration
}

const (
	notWaiting time.Duration = -1
	// actionsPerTurn bounds what a reactor takes before it sends, like the daemon's framesPerTurn.
	actionsPerTurn = 64
)

// reactor does what concerns some of a node's pages; the first one also everything that concerns no
// page.
type reactor struct {
	index int // on the node
	// work is what waits for the reactor, in order of arrival, and turn what is left of that with
	// which it deals in this turn. busy: it is at work.
	work, turn []model.Action
	busy       bool
	// clock is how far the reactor has come in time. While it is at work it is ahead of the
	// simulation's.
	clock time.Duration
	// ordered are pages with operations that the engine has ordered and the reactor has not carried
	// out yet.
	ordered []protocol.ObjectID
	// heard are the nodes of which it has read messages in this turn, and posted what it sends at
	// the end of it.
	heard  []protocol.NodeID
	posted []model.Flight
}

func newMachine(n *model.Node, threads, reactors int) *machine {
	m := &machine{node: n, reactors: make([]reactor, reactors), waits: make([]time.Duration, threads)}
	for i := range m.reactors {
		m.reactors[i].index = i
	}
	for i := range m.waits {
		m.waits[i] = notWaiting
	}
	return m
}

// reactorFor is who deals with an action.
func (m *machine) reactorFor(a *model.Action) *reactor {
	object, isPage := a.Object, false
	switch a.Kind {
	case model.ActFault:
		object, isPage = protocol.PageObject(a.Op.Number), true
	case model.ActHoldOver:
		isPage = !object.IsLock()
	case model.ActDeliver:
		object = a.Flight.Message.Object
		isPage = a.Flight.Message.Kind < protocol.KindBarrierArrive && !object.IsLock()
	}
	if !isPage {
		return &m.reactors[0]
	}
	return &m.reactors[object.Page()%uint64(len(m.reactors))]
}

// runThread lets a thread take its next step. An access that the page table allows retires at once;
// everything else goes to a reactor.
func (s *simulation) runThread(m *machine, thread int) error {
	s.actions = m.node.Thread(thread, s.actions[:0])
	if len(s.actions) == 0 {
		return nil // it has finished
	}
	a := s.actions[0]
	if a.Kind == model.ActAccess {
		return s.do(m, nil, a, s.agenda.Now())
	}
	if m.waits[thread] == notWaiting {
		m.waits[thread] = s.agenda.Now()
	}
	if a.Kind == model.ActFault {
		s.count().Faults++
	}
	s.agenda.Enter(s.agenda.Now(), event{kind: offer, node: m.node.Self(), action: a})
	return nil
}

// goOn lets a reactor take the next step of its turn, as the daemon's does: it deals with what
// waits for it when the turn begins, and with the operations that follow from that, one after the
// other, and then sends what is to be sent. A Multicast leaves at once.
func (s *simulation) goOn(m *machine, r *reactor) error {
	r.clock, r.busy = s.agenda.Now(), true
	multicasts := slices.ContainsFunc(r.posted, func(f model.Flight) bool { return f.Message.Kind == protocol.KindMulticast })
	switch {
	case len(r.turn) > 0 && !multicasts:
		a := r.turn[0]
		r.turn = r.turn[1:]
		if err := s.serve(m, r, &a); err != nil {
			return err
		}
	case len(r.posted) > 0:
		s.send(m, r)
	default:
		n := min(len(r.work), actionsPerTurn)
		r.turn, r.work, r.heard, r.busy = r.work[:n:n], r.work[n:], r.heard[:0], n > 0
		if n > 0 {
			return s.goOn(m, r)
		}
		return nil
	}
	s.count().worked(m.node.Self(), r.index, r.clock-s.agenda.Now())
	s.agenda.Enter(r.clock, event{kind: goOn, node: m.node.Self(), at: r.index})
	return nil
}

// serve deals with something, and with the operations that follow from it.
func (s *simulation) serve(m *machine, r *reactor, a *model.Action) error {
	if a.Kind == model.ActDeliver {
		s.inFlight--
		s.count().received(&a.Flight.Message)
	}
	r.clock += s.taking(r, a)
	r.ordered = r.ordered[:0]
	if err := s.do(m, r, *a, r.clock); err != nil {
		return err
	}
	for i := 0; i < len(r.ordered); i++ {
		op, _ := m.node.Operation(r.ordered[i]) // there is one: it was ordered
		r.clock += s.options.Costs.operation(op.Effect)
		if err := s.do(m, r, op, r.clock); err != nil {
			return err
		}
	}
	return nil
}

// taking is how long a reactor takes to learn of something.
func (s *simulation) taking(r *reactor, a *model.Action) time.Duration {
	costs := &s.options.Costs
	switch a.Kind {
	case model.ActDeliver:
		if from := a.Flight.Message.From; !slices.Contains(r.heard, from) {
			r.heard = append(r.heard, from)
			return costs.Receive
		}
		return costs.Further
	case model.ActFault:
		return costs.Trap
	case model.ActCall:
		return costs.Call
	default: // the end of a hold, of which it learns while it looks at the clock
		return 0
	}
}

// do makes an action happen at a time, and starts what follows from it. r is the reactor that does
// it, or nil: a thread gets through.
func (s *simulation) do(m *machine, r *reactor, a model.Action, at time.Duration) error {
	m.now = max(m.now, at)
	m.node.Do(a, micros(m.now), &s.outcome)
	out := &s.outcome
	if v := s.ledger.Follow(out, func(r *model.Retirement) { s.retired(m, r, at) }); v != nil {
		return v
	}
	for i := range out.Effects {
		if f := &out.Effects[i]; f.Kind == protocol.EffectRevoke && !f.Save && s.rules.Home(f.Object) != m.node.Self() {
			s.count().invalidated++
		}
	}
	for i := range out.Sent {
		if out.Sent[i].Message.Contents() == protocol.PageContents {
			r.clock += s.options.Costs.ReadPage
		}
		r.posted = append(r.posted, out.Sent[i])
	}
	if r != nil {
		r.ordered = append(r.ordered, out.Ordered...)
	}
	for _, h := range out.Holds {
		over := model.Action{Kind: model.ActHoldOver, Node: m.node.Self(), Object: h.Object}
		s.agenda.Enter(m.now+time.Duration(h.After)*time.Microsecond, event{kind: offer, node: m.node.Self(), action: over})
	}
	next := at
	if a.Kind == model.ActAccess {
		next += s.computing()
	}
	if s.passedGate(out) {
		next = max(next, s.phases[0]) + s.computing()
	}
	for _, thread := range out.Runnable {
		s.agenda.Enter(next, event{kind: runThread, node: m.node.Self(), at: thread})
	}
	return nil
}

// send puts what was posted in a turn on its way: one system call for all messages to a node, in
// the order in which the first of each was posted.
func (s *simulation) send(m *machine, r *reactor) {
	costs := &s.options.Costs
	for len(r.posted) > 0 {
		to, later := r.posted[0].Message.To, 0
		r.clock += costs.Send - costs.Further
		for i := range r.posted {
			if r.posted[i].Message.To == to {
				r.clock += costs.Further
			}
		}
		for _, f := range r.posted {
			if f.Message.To == to {
				s.travel(m, f, r.clock)
			} else {
				r.posted[later] = f
				later++
			}
		}
		r.posted = r.posted[:later]
	}
}

// travel puts a message on the link.
func (s *simulation) travel(m *machine, f model.Flight, at time.Duration) {
	costs, n := &s.options.Costs, s.wireBytes(&f.Message)
	s.count().sent(m.node.Self(), &f.Message, n)
	s.inFlight++
	begin := max(m.egress, at)
	m.egress = begin + costs.onLink(n)
	deliver := model.Action{Kind: model.ActDeliver, Node: f.Message.To, Flight: &f}
	s.agenda.Enter(begin+costs.Latency, event{kind: land, node: f.Message.To, action: deliver, bytes: n})
}

// wireBytes is how long a message is on the wire, with the page that goes with it.
func (s *simulation) wireBytes(m *protocol.Message) int {
	n := frameBytes + len(protocol.AppendMessage(nil, m))
	if m.Contents() == protocol.PageContents {
		n += pageBytes
	}
	return n + protocol.Contributed(m)/modelContribution*(s.what.contribution-modelContribution)
}

// retired notes what a thread has got through.
func (s *simulation) retired(m *machine, r *model.Retirement, at time.Duration) {
	c := s.count()
	switch r.Kind {
	case model.RetireAccess:
		c.Accesses++
	case model.RetireLock:
		c.Locks++
	case model.RetirePass:
		c.Barriers++
	case model.RetireBind:
	case model.RetireArrive:
		if r.Op.Number == gateBarrier {
			if s.arrived++; s.arrived == len(s.config.Threads) {
				s.phases = []time.Duration{at + gatePause}
			}
		}
		return
	default:
		return
	}
	since := &m.waits[r.Thread%len(m.waits)]
	if *since != notWaiting {
		c.waited = append(c.waited, wait{kind: r.Kind, began: *since, ended: at})
	}
	*since = notWaiting
	c.ended = max(c.ended, at)
}

// passedGate reports whether a thread has come through gateBarrier just now.
func (s *simulation) passedGate(out *model.Outcome) bool {
	for i := range out.Retired {
		if r := &out.Retired[i]; r.Kind == model.RetirePass && r.Op.Number == gateBarrier {
			return true
		}
	}
	return false
}
