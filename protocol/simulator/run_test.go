package simulator

import (
	"bufio"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

// Micros is a time or a duration of the simulation, in microseconds from its beginning.
type Micros uint64

const (
	// moveEvery is how often it is looked whether a node can come, leave, or be gone.
	moveEvery Micros = 300
	// moveFor bounds for how long: it waits until its programs have finished, and others have
	// recovered.
	moveFor Micros = 2_000_000
)

// LearnWithin bounds how long it takes a node to learn who is left.
const LearnWithin Micros = 3000

// BlockWithin bounds how long it takes a node that is cut off to learn that it has no quorum. Half
// of them learn it in a tenth of that.
const BlockWithin Micros = 6000

// Report is what a run that found nothing wrong has seen.
type Report struct {
	Steps     int
	Accesses  int    // reads and writes that retired
	Faults    int    // as reported to engines, repeated ones included
	Messages  int    // that arrived
	Lost      int    // pages that a node was told to be lost, each time
	Ended     Micros // when the last action happened
	TraceHash uint64 // FNV-1a of the trace
	// History is every retired access, for the linearizability checker.
	History []Access
}

// Access is one retired read or write.
type Access struct {
	Page   protocol.ObjectID
	Thread int
	Write  bool
	// Version is what was read, or what was written.
	Version uint32
	// Call and Return order the access among all others: each is unique in its run.
	Call, Return int64
	Begun        int // how often the page has begun: each time it is another one
}

// ErrNotLive is wrapped when the deadline passes.
var ErrNotLive = errors.New("simulator: programs do not finish")

// event is something that will happen at a time.
type event struct {
	kind   eventKind
	node   protocol.NodeID
	thread int
	turn   uint32 // runThread: void if the thread has been scheduled again since
	until  Micros // move: when to give it up
	object protocol.ObjectID
	flight *model.Flight
}

type eventKind uint8

const (
	runThread  eventKind = iota // a thread takes its next step
	tryOptions                  // a thread does something optional, if it can
	operate                     // an ordered operation happens, or its completion is reported
	endHold
	deliver
	crash
	cut
	block
	end
	back
	learn // who is in the cluster
	move
)

// run is the state of one simulation.
type run struct {
	options  Options
	random   *rand.Rand
	nodes    []*model.Node
	ledger   *model.Ledger
	agenda   model.Agenda[Micros, event]
	inFlight int
	cut      bool
	between  map[pair][]*model.Flight // those messages, in the order in which they were sent
	// of each node: messages of a view that it has not entered yet
	early [][]event
	turns [][]uint32 // of each node's threads
	// of each thread in Config.Threads: when its current operation began
	called  []int64
	begun   map[protocol.ObjectID]int // as in Access
	threads [][]int                   // of each node's threads: their index in Config.Threads
	stamp   int64
	trace   *bufio.Writer
	outcome model.Outcome
	actions []model.Action
	report  Report
}

// pair is who sends and who receives.
type pair struct{ from, to protocol.NodeID }

func pairOf(f *model.Flight) pair { return pair{f.Message.From, f.Message.To} }

// Run simulates a cluster until everything has come to rest. The error is a *model.Violation, or
// wraps ErrNotLive, and the report tells how far it came.
func Run(o Options) (*Report, error) {
	begin := model.NewCluster(o.Config)
	if begin.Begun != nil {
		return &Report{}, begin.Begun
	}
	r := &run{options: o, random: rand.New(rand.NewPCG(o.Seed, 0x5eed)), ledger: begin.Ledger, nodes: begin.Nodes}
	sum := fnv.New64a()
	r.trace = bufio.NewWriter(sum)
	if o.Trace != nil {
		r.trace = bufio.NewWriter(io.MultiWriter(sum, o.Trace))
	}
	r.prepare()
	err := r.loop()
	if err != nil {
		fmt.Fprintf(r.trace, "= %v\n", err)
	}
	if flushed := r.trace.Flush(); flushed != nil && err == nil {
		err = fmt.Errorf("simulator: write the trace: %w", flushed)
	}
	r.report.TraceHash = sum.Sum64()
	r.report.Ended = r.agenda.Now()
	return &r.report, err
}

// prepare makes the nodes, and every thread ready.
func (r *run) prepare() {
	c := r.options.Config
	r.called, r.begun = make([]int64, len(c.Threads)), map[protocol.ObjectID]int{}
	r.threads = make([][]int, c.Nodes)
	r.between, r.early = map[pair][]*model.Flight{}, make([][]event, c.Nodes)
	for i, t := range c.Threads {
		r.threads[t.Node] = append(r.threads[t.Node], i)
	}
	for _, n := range r.nodes {
		r.turns = append(r.turns, make([]uint32, n.Threads()))
		for t := range n.Threads() {
			r.scheduleThread(n.Self(), t)
		}
	}
	for _, x := range r.options.Moves {
		r.agenda.Enter(x.At, event{kind: move, node: x.Node, until: x.At + moveFor})
	}
	if len(c.Cut) > 0 {
		r.agenda.Enter(r.options.Cut, event{kind: cut, node: c.Cut[0]})
	}
	for _, x := range r.options.Crashes {
		r.agenda.Enter(x.At, event{kind: crash, node: x.Node})
	}
}

func (r *run) loop() error {
	for e, more := r.agenda.Next(); more; e, more = r.agenda.Next() {
		if r.agenda.Now() > r.options.Deadline {
			return fmt.Errorf("%w: %d events are left at %d µs: %w", ErrNotLive, r.agenda.Len(), r.agenda.Now(), r.firstUnfinished())
		}
		a, ok := r.choose(&e)
		if !ok {
			continue
		}
		if err := r.step(a); err != nil {
			return err
		}
	}
	if v := model.CheckQuiescent(r.options.Config, r.nodes, r.ledger, r.inFlight); v != nil {
		return v
	}
	return nil
}

// firstUnfinished is a thread that has not finished, as an error that names it.
func (r *run) firstUnfinished() error {
	if v := model.CheckQuiescent(r.options.Config, r.nodes, r.ledger, 0); v != nil {
		return v
	}
	return errors.New("only messages are left")
}

// moves are by events the actions by which a node's place among the nodes changes, or by which it
// learns who they are.
var moves = map[eventKind][]model.ActionKind{
	cut: {model.ActCut}, block: {model.ActBlock}, end: {model.ActEnd}, learn: {model.ActEpoch}, back: {model.ActReturn},
	move: {model.ActJoin, model.ActLeave, model.ActDepart},
}

// chooseMove is the first such action that is possible.
func (r *run) chooseMove(e *event) (model.Action, bool) {
	var a model.Action
	r.actions = model.Membership(r.nodes, int(e.node), r.actions[:0])
	i := slices.IndexFunc(r.actions, func(a model.Action) bool { return slices.Contains(moves[e.kind], a.Kind) })
	if i >= 0 {
		a = r.actions[i]
	}
	if again := r.agenda.Now() + moveEvery; e.kind == move && again < e.until && a.Kind != model.ActDepart {
		r.agenda.Enter(again, event{kind: move, node: e.node, until: e.until})
	}
	return a, i >= 0
}

// choose is the action that an event stands for, if it is still possible.
func (r *run) choose(e *event) (model.Action, bool) {
	n := r.nodes[e.node]
	if e.kind == back { // who is down
		return r.chooseMove(e)
	}
	if n.Down() {
		if e.kind == deliver {
			r.arrived(e.flight)
		}
		return model.Action{}, false
	}
	switch e.kind {
	case crash:
		return model.Action{Kind: model.ActCrash, Node: e.node}, true
	case cut, block, end, learn, move:
		return r.chooseMove(e)
	case runThread:
		if r.turns[e.node][e.thread] != e.turn {
			return model.Action{}, false
		}
		r.actions = n.Thread(e.thread, r.actions[:0])
		for _, a := range r.actions {
			if !a.Kind.Optional() {
				return a, true
			}
		}
		return model.Action{}, false
	case tryOptions:
		r.actions = slices.DeleteFunc(n.Thread(e.thread, r.actions[:0]), func(a model.Action) bool { return !a.Kind.Optional() })
		if len(r.actions) == 0 || r.agenda.Now() >= r.options.InjectUntil {
			return model.Action{}, false
		}
		return r.actions[r.random.IntN(len(r.actions))], true
	case operate:
		return n.Operation(e.object)
	case endHold:
		return model.HoldOver(n, e.object, r.options.Start+protocol.Time(r.agenda.Now()))
	default:
		if !n.Hears(e.flight) {
			r.early[e.node] = append(r.early[e.node], *e)
			return model.Action{}, false
		}
		if r.mustWait(e.flight) {
			r.agenda.Enter(r.agenda.Now()+1, event{kind: deliver, node: e.node, flight: e.flight})
			return model.Action{}, false
		}
		r.arrived(e.flight)
		r.report.Messages++
		return model.Action{Kind: model.ActDeliver, Node: e.node, Flight: e.flight}, true
	}
}

// mustWait reports whether a message has to follow one that is still on its way.
func (r *run) mustWait(f *model.Flight) bool {
	return f.Ordered() && slices.ContainsFunc(r.between[pairOf(f)], f.MustFollow)
}

// arrived notes that a message is not on its way any more.
func (r *run) arrived(f *model.Flight) {
	r.inFlight--
	others := r.between[pairOf(f)]
	r.between[pairOf(f)] = slices.Delete(others, slices.Index(others, f), slices.Index(others, f)+1)
}

// hearEarly has the messages arrive that have come before their view, if the node has entered that
// now. At a node that is down they go nowhere.
func (r *run) hearEarly(n *model.Node) {
	r.early[n.Self()] = slices.DeleteFunc(r.early[n.Self()], func(e event) bool {
		heard := n.Down() || n.Hears(e.flight)
		if heard {
			r.agenda.Enter(r.agenda.Now()+1, e)
		}
		return heard
	})
}

// step makes an action happen, checks everything, and schedules what follows from it.
func (r *run) step(a model.Action) error {
	r.report.Steps++
	fmt.Fprintf(r.trace, "%d %v\n", r.agenda.Now(), a)
	r.nodes[a.Node].Do(a, r.options.Start+protocol.Time(r.agenda.Now()), &r.outcome)
	for i := range r.outcome.Effects {
		fmt.Fprintf(r.trace, "  %s\n", model.FormatEffect(&r.outcome.Effects[i]))
	}
	for i := range r.outcome.Retired {
		fmt.Fprintf(r.trace, "  %v\n", &r.outcome.Retired[i])
	}
	r.report.Lost += len(r.outcome.Lost)
	if v := model.CheckOutcome(r.ledger, r.nodes, &r.outcome, r.record); v != nil {
		return v
	}
	r.follow(a)
	return nil
}

// record adds an access to the history.
func (r *run) record(t *model.Retirement) {
	if t.Kind == model.RetireBegin {
		r.begun[t.Op.Object()]++
	}
	if t.Kind != model.RetireAccess {
		return
	}
	r.report.Accesses++
	if r.cut && t.Op.Kind == model.OpRead && slices.Contains(r.options.Config.Cut, t.Node) {
		return // it reads what was the last when it was cut off; the ledger knows which that is
	}
	h := Access{
		Page: t.Op.Object(), Begun: r.begun[t.Op.Object()], Thread: t.Thread, Write: t.Op.Kind == model.OpWrite, Version: t.Contents,
		Call: r.called[t.Thread], Return: r.tick(),
	}
	if r.options.Config.Replicas > 0 {
		r.dropUndone(&h)
	}
	if h.Write {
		h.Version++
	}
	r.report.History = append(r.report.History, h)
}

// dropUndone takes out of the history what a node has done to a page after the version that an
// access has found: the node is lost, and nobody else has seen it, or the ledger would have
// objected.
func (r *run) dropUndone(now *Access) {
	r.report.History = slices.DeleteFunc(r.report.History, func(a Access) bool {
		return a.Page == now.Page && a.Begun == now.Begun && a.Version > now.Version
	})
}

// tick returns a unique instant that is not before now and after all earlier instants.
func (r *run) tick() int64 {
	r.stamp = max(r.stamp+1, int64(r.agenda.Now())*1000)
	return r.stamp
}

// follow schedules what follows from the last action.
func (r *run) follow(a model.Action) {
	r.hearEarly(r.nodes[a.Node])
	switch a.Kind {
	case model.ActFault, model.ActAgain, model.ActSpurious, model.ActStray:
		r.report.Faults++
	case model.ActCrash, model.ActJoin, model.ActLeave, model.ActDepart, model.ActCut:
		for _, n := range r.nodes {
			r.agenda.Enter(r.agenda.Now()+50+r.upTo(LearnWithin), event{kind: learn, node: n.Self()})
		}
	case model.ActBlock:
		if r.random.IntN(2) == 0 {
			r.agenda.Enter(r.agenda.Now()+r.upTo(BlockWithin), event{kind: end, node: a.Node})
		}
	case model.ActEnd:
		if r.options.Config.Return {
			r.agenda.Enter(r.agenda.Now()+r.upTo(BlockWithin), event{kind: back, node: a.Node})
		}
	case model.ActReturn:
		r.forget(&a)
		r.agenda.Enter(r.agenda.Now()+r.upTo(BlockWithin), event{kind: move, node: a.Node, until: r.agenda.Now() + moveFor})
	case model.ActPerform:
		r.agenda.Enter(r.agenda.Now()+r.upTo(8), event{kind: operate, node: a.Node, object: a.Object})
	}
	if a.Kind == model.ActCut {
		r.cut = true
		for _, n := range r.options.Config.Cut {
			wait := r.upTo(BlockWithin)
			if r.random.IntN(2) == 0 {
				wait /= 10
			}
			r.agenda.Enter(r.agenda.Now()+50+wait, event{kind: block, node: n})
		}
	}
	for i := range r.outcome.Sent {
		f := r.outcome.Sent[i]
		r.inFlight++
		r.between[pairOf(&f)] = append(r.between[pairOf(&f)], &f)
		r.agenda.Enter(r.agenda.Now()+r.latency(), event{kind: deliver, node: f.Message.To, flight: &f})
	}
	for _, o := range r.outcome.Ordered {
		r.agenda.Enter(r.agenda.Now()+r.upTo(15), event{kind: operate, node: a.Node, object: o})
	}
	for _, h := range r.outcome.Holds {
		r.agenda.Enter(r.agenda.Now()+Micros(h.After)+r.upTo(5), event{kind: endHold, node: a.Node, object: h.Object})
	}
	for _, t := range r.outcome.Runnable {
		r.called[r.threads[a.Node][t]] = r.tick()
		r.scheduleThread(a.Node, t)
	}
	if (a.Kind <= model.ActCancel || a.Kind == model.ActTake) && r.random.IntN(100) < r.options.Repeat {
		r.agenda.Enter(r.agenda.Now()+r.upTo(200), event{kind: tryOptions, node: a.Node, thread: a.Thread})
	}
}

// forget takes out of the network what a node does not get, nor others from it.
func (r *run) forget(a *model.Action) {
	forgotten := func(e *event) bool { return e.kind == deliver && a.Forgets(&e.flight.Message) }
	r.inFlight -= r.agenda.Delete(forgotten)
	for i := range r.early {
		before := len(r.early[i])
		r.early[i] = slices.DeleteFunc(r.early[i], func(e event) bool { return forgotten(&e) })
		r.inFlight -= before - len(r.early[i])
	}
	for p := range r.between {
		r.between[p] = slices.DeleteFunc(r.between[p], func(f *model.Flight) bool { return a.Forgets(&f.Message) })
	}
}

// scheduleThread lets a thread take its next step soon.
func (r *run) scheduleThread(n protocol.NodeID, t int) {
	wait := 1 + r.upTo(10)
	if r.random.IntN(100) < r.options.Stall {
		wait += r.upTo(r.options.StallMax)
	}
	r.turns[n][t]++
	r.agenda.Enter(r.agenda.Now()+wait, event{kind: runThread, node: n, thread: t, turn: r.turns[n][t]})
}

func (r *run) upTo(n Micros) Micros { return Micros(r.random.Uint64N(uint64(n) + 1)) }

// latency is the time that a message takes: mostly little, sometimes so much that others overtake
// it.
func (r *run) latency() Micros {
	if r.random.IntN(20) == 0 {
		return 5 + r.upTo(500)
	}
	return 5 + r.upTo(25)
}
