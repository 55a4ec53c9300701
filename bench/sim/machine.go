package sim

import (
	"time"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

// machine is one node: an engine with its page table and its thread, a reactor, and a link.
type machine struct {
	node *model.Node
	// work is what waits for the reactor, in order of arrival. busy: it is at work.
	work []model.Action
	busy bool
	// clock is how far the reactor has come in time. While it is at work it is ahead of the
	// simulation's.
	clock time.Duration
	// ordered are pages with operations that the engine has ordered and the reactor has not carried
	// out yet.
	ordered []protocol.ObjectID
	// egress and ingress are when the link will have sent, and received, all that it knows of.
	egress, ingress time.Duration
	// waits is since when the thread waits for a page, a lock or a barrier; notWaiting: it does
	// not.
	waits time.Duration
}

const notWaiting time.Duration = -1

// runThread lets a thread take its next step. An access that the page table allows retires at once;
// everything else goes to the reactor.
func (s *simulation) runThread(m *machine) error {
	s.actions = m.node.Thread(0, s.actions[:0])
	if len(s.actions) == 0 {
		return nil // it has finished
	}
	a := s.actions[0]
	if a.Kind == model.ActAccess {
		return s.do(m, a, s.agenda.Now())
	}
	if m.waits == notWaiting {
		m.waits = s.agenda.Now()
	}
	if a.Kind == model.ActFault {
		s.count().Faults++
	}
	s.agenda.Enter(s.agenda.Now(), event{kind: offer, node: m.node.Self(), action: a})
	return nil
}

// serve lets the reactor deal with the first thing that waits for it and with the operations that
// follow from it, as the daemon's does: in one go.
func (s *simulation) serve(m *machine) error {
	a := m.work[0]
	m.work = m.work[1:]
	if a.Kind == model.ActDeliver {
		s.inFlight--
		s.count().received(&a.Flight.Message)
	}
	m.busy, m.clock, m.ordered = true, s.agenda.Now()+s.taking(a.Kind), m.ordered[:0]
	if err := s.do(m, a, m.clock); err != nil {
		return err
	}
	for i := 0; i < len(m.ordered); i++ {
		op, _ := m.node.Operation(m.ordered[i]) // there is one: it was ordered
		m.clock += s.options.Costs.operation(op.Effect)
		if err := s.do(m, op, m.clock); err != nil {
			return err
		}
	}
	s.count().busy[m.node.Self()] += m.clock - s.agenda.Now()
	s.agenda.Enter(m.clock, event{kind: goOn, node: m.node.Self()})
	return nil
}

// taking is how long the reactor takes to learn of something.
func (s *simulation) taking(kind model.ActionKind) time.Duration {
	switch kind {
	case model.ActDeliver:
		return s.options.Costs.Receive
	case model.ActFault:
		return s.options.Costs.Trap
	case model.ActCall:
		return s.options.Costs.Call
	default: // the end of a hold, of which it learns while it looks at the clock
		return 0
	}
}

// do makes an action happen at a time, and starts what follows from it.
func (s *simulation) do(m *machine, a model.Action, at time.Duration) error {
	m.node.Do(a, micros(at), &s.outcome)
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
		s.send(m, out.Sent[i])
	}
	m.ordered = append(m.ordered, out.Ordered...)
	for _, h := range out.Holds {
		over := model.Action{Kind: model.ActHoldOver, Node: m.node.Self(), Object: h.Object}
		s.agenda.Enter(m.clock+time.Duration(h.After)*time.Microsecond, event{kind: offer, node: m.node.Self(), action: over})
	}
	next := at
	if a.Kind == model.ActAccess {
		next += s.computing()
	}
	if s.passedGate(out) {
		next = max(next, s.phases[0]) + s.computing()
	}
	for range out.Runnable { // it is the one thread
		s.agenda.Enter(next, event{kind: runThread, node: m.node.Self()})
	}
	return nil
}

// send takes the reactor's time, and puts a message on its way.
func (s *simulation) send(m *machine, f model.Flight) {
	costs := &s.options.Costs
	m.clock += costs.Send
	n := s.wireBytes(&f.Message)
	if f.Message.Contents() == protocol.PageContents {
		m.clock += costs.ReadPage
	}
	s.count().sent(m.node.Self(), &f.Message, n)
	s.inFlight++
	begin := max(m.egress, m.clock)
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
			if s.arrived++; s.arrived == len(s.machines) {
				s.phases = []time.Duration{at + gatePause}
			}
		}
		return
	default:
		return
	}
	if m.waits != notWaiting {
		c.waited = append(c.waited, wait{kind: r.Kind, began: m.waits, ended: at})
	}
	m.waits = notWaiting
	c.ended = max(c.ended, at)
}

// passedGate reports whether the thread has come through gateBarrier just now.
func (s *simulation) passedGate(out *model.Outcome) bool {
	for i := range out.Retired {
		if r := &out.Retired[i]; r.Kind == model.RetirePass && r.Op.Number == gateBarrier {
			return true
		}
	}
	return false
}
