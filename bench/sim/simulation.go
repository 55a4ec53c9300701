package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

// An experiment is a cluster with as many threads on each node.
type experiment struct {
	programs []model.Program // by thread: those of the first node, then those of the second
	pages    uint64          // in the region
	// threads and reactors are how many each node has; 0: one.
	threads, reactors int
	// start is when each node's thread begins; nil: all at once.
	start []time.Duration
	// phases are times at which counting begins anew, in ascending order. In programs that pass
	// gateBarrier there are none: what they do before is preparation, and counting begins anew when
	// all are through with it and begin at once.
	phases []time.Duration
	// pause is how long threads compute between two accesses; 0: about Options.Compute.
	pause time.Duration
	// flat: barriers are no trees, however many nodes there are.
	flat bool
	// contribution is how many bytes each rank brings to a barrier. The model's ranks bring three,
	// by which it is checked that a barrier gathers everybody; they count as this many on the wire.
	contribution int
	// folded: the home of a barrier combines what ranks bring.
	folded bool
}

const (
	// gateBarrier is the number of the barrier behind which counting begins.
	gateBarrier = 1 << 40
	// gatePause is from the last arrival at gateBarrier to the beginning: enough to release a
	// thousand nodes one after the other, so that none begins before another.
	gatePause = 10 * time.Millisecond
)

// modelContribution is how many bytes the model's ranks bring to a barrier.
const modelContribution = 3

// event is something that will happen.
type event struct {
	kind   eventKind
	node   protocol.NodeID
	at     int          // runThread: the thread; goOn: the reactor
	action model.Action // offer
	bytes  int          // land
}

type eventKind uint8

const (
	runThread eventKind = iota // a thread takes its next step
	land                       // a message has come to the receiver's link
	offer                      // something waits for a reactor
	goOn                       // a reactor takes its next step
)

// simulation is the state of one experiment.
type simulation struct {
	options  *Options
	what     *experiment
	phases   []time.Duration // those of what, and the gate
	config   *model.Config
	rules    protocol.Config // the engines'
	random   *rand.Rand
	ledger   *model.Ledger
	machines []*machine
	agenda   model.Agenda[time.Duration, event]
	inFlight int
	arrived  int       // threads that have arrived at gateBarrier
	counts   []*counts // of each phase; the last is the present one
	outcome  model.Outcome
	actions  []model.Action
}

// simulate runs an experiment until nothing more happens, and returns what was counted in each
// phase. The error is a violation of the protocol.
func simulate(o *Options, what *experiment) ([]*counts, error) {
	threads, reactors := max(1, what.threads), max(1, what.reactors)
	config := &model.Config{
		Nodes: len(what.programs) / threads, Pages: what.pages, HomeStripe: o.HomeStripe, Fused: true,
		Hold: micros(o.Hold), MaxHold: micros(o.MaxHold), TreeFrom: o.TreeFrom, TreeArity: o.TreeArity, ManyReaders: o.ManyReaders,
		Sync: model.Sync{Folded: what.folded},
	}
	if threads > 1 { // what a node knows would be checked for longer than the simulation takes
		config.CheckEvery = 100 * threads
	}
	if what.flat {
		config.TreeFrom = protocol.MaxNodes + 1
	}
	for i, p := range what.programs {
		spec := model.ThreadSpec{Node: protocol.NodeID(i / threads), Client: protocol.ClientID(i%threads + 1), Program: p}
		config.Threads = append(config.Threads, spec)
	}
	s := &simulation{options: o, what: what, phases: what.phases, config: config, rules: config.Engine(0), random: o.random(), ledger: model.NewLedger(config)}
	for i := range config.Nodes {
		s.machines = append(s.machines, newMachine(model.NewNode(config, protocol.NodeID(i)), threads, reactors))
	}
	for i, t := range config.Threads {
		start := time.Duration(0)
		if what.start != nil {
			start = what.start[i]
		}
		s.agenda.Enter(start, event{kind: runThread, node: t.Node, at: i % threads})
	}
	s.beginPhase()
	if err := s.run(); err != nil {
		return nil, fmt.Errorf("sim: %d nodes, at %v: %w", config.Nodes, s.agenda.Now(), err)
	}
	return s.counts, nil
}

func (s *simulation) run() error {
	for e, ok := s.agenda.Next(); ok; e, ok = s.agenda.Next() {
		for i := len(s.counts) - 1; i < len(s.phases) && s.agenda.Now() >= s.phases[i]; i++ {
			s.beginPhase()
		}
		if err := s.happen(&e); err != nil {
			return err
		}
	}
	nodes := make([]*model.Node, len(s.machines))
	for i, m := range s.machines {
		nodes[i] = m.node
	}
	if v := model.CheckQuiescent(s.config, nodes, s.ledger, s.inFlight); v != nil {
		return v
	}
	return nil
}

func (s *simulation) happen(e *event) error {
	m := s.machines[e.node]
	switch e.kind {
	case runThread:
		return s.runThread(m, e.at)
	case land:
		m.ingress = max(m.ingress, s.agenda.Now()) + s.options.Costs.onLink(e.bytes)
		s.agenda.Enter(m.ingress, event{kind: offer, node: e.node, action: e.action})
		return nil
	case offer:
		r := m.reactorFor(&e.action)
		r.work = append(r.work, e.action)
		if r.busy {
			return nil
		}
		return s.goOn(m, r)
	default:
		return s.goOn(m, &m.reactors[e.at])
	}
}

// beginPhase counts anew.
func (s *simulation) beginPhase() {
	s.counts = append(s.counts, newCounts(len(s.machines), len(s.machines[0].reactors), s.agenda.Now()))
}

func (s *simulation) count() *counts { return s.counts[len(s.counts)-1] }

// computing is how long a thread computes before its next access. It is not always the same, or
// threads would go in step.
func (s *simulation) computing() time.Duration {
	if s.what.pause > 0 {
		return s.what.pause
	}
	c := int64(s.options.Compute)
	return time.Duration(c/2 + s.random.Int64N(c+1))
}

// micros is a time as engines know it.
func micros(t time.Duration) protocol.Time { return protocol.Time(t / time.Microsecond) }
