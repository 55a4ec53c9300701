package simulator

import (
	"bufio"
	"cmp"
	"container/heap"
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

// Options are one run. The same options give the same run.
type Options struct {
	Seed uint64
	// Config is the cluster and its programs; Generate makes one. Its Duplicates and Strays bound the faults that are
	// repeated.
	Config *model.Config
	// Start is the reading of the nodes' clocks at the beginning.
	Start protocol.Time
	// InjectUntil is when repeated faults and cancellations stop.
	InjectUntil Micros
	// Deadline is when all programs must have finished, and all messages must have arrived.
	Deadline Micros
	// Repeat is the probability, in percent, that something optional is tried after a step of a thread.
	Repeat int
	// Stall is the probability, in percent, that a thread loses the processor for up to StallMax before its next step.
	Stall    int
	StallMax Micros
	// Crashes are nodes that are lost, each at its time. They are in Config.Crash too.
	Crashes []Crash
	// Moves are nodes that come or leave, each as soon as it can from its time on. They are in Config.Join or Config.Leave too.
	Moves []Move
	// Trace gets a line for each action, and one for each effect; nil: nobody.
	Trace io.Writer
}

// Crash is the loss of a node. The others learn of it one by one, each in LearnWithin.
type Crash struct {
	Node protocol.NodeID
	At   Micros
}

// Move is the coming or the leaving of a node. The others learn of each step one by one, each in LearnWithin.
type Move struct {
	Node protocol.NodeID
	At   Micros
}

const (
	// moveEvery is how often it is looked whether a node can come, leave, or be gone.
	moveEvery Micros = 300
	// moveFor bounds for how long: it waits until its programs have finished, and others have recovered.
	moveFor Micros = 2_000_000
)

// LearnWithin bounds how long it takes a node to learn who is left.
const LearnWithin Micros = 3000

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
}

// ErrNotLive is wrapped when the deadline passes.
var ErrNotLive = errors.New("simulator: programs do not finish")

// event is something that will happen at a time.
type event struct {
	at     Micros
	number int // events of the same time happen in the order in which they were scheduled
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
	learn // who is in the cluster
	move
)

type eventQueue []*event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(q[i].at, q[j].at), cmp.Compare(q[i].number, q[j].number)) < 0
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(*event)) }
func (q *eventQueue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	*q = (*q)[:last]
	return e
}

// run is the state of one simulation.
type run struct {
	options  Options
	random   *rand.Rand
	now      Micros
	nodes    []*model.Node
	ledger   *model.Ledger
	queue    eventQueue
	number   int
	inFlight int
	turns    [][]uint32 // of each node's threads
	called   []int64    // of each thread in Config.Threads: when its current operation began
	threads  [][]int    // of each node's threads: their index in Config.Threads
	stamp    int64
	trace    *bufio.Writer
	outcome  model.Outcome
	actions  []model.Action
	report   Report
}

// Run simulates a cluster until everything has come to rest. The error is a *model.Violation, or wraps ErrNotLive, and the
// report tells how far it came.
func Run(o Options) (*Report, error) {
	r := &run{options: o, random: rand.New(rand.NewPCG(o.Seed, 0x5eed)), ledger: model.NewLedger(o.Config)}
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
	r.report.Ended = r.now
	return &r.report, err
}

// prepare makes the nodes, and every thread ready.
func (r *run) prepare() {
	c := r.options.Config
	r.called = make([]int64, len(c.Threads))
	r.threads = make([][]int, c.Nodes)
	for i, t := range c.Threads {
		r.threads[t.Node] = append(r.threads[t.Node], i)
	}
	for _, n := range model.NewNodes(c) {
		r.nodes = append(r.nodes, n)
		r.turns = append(r.turns, make([]uint32, n.Threads()))
		for t := range n.Threads() {
			r.scheduleThread(n.Self(), t)
		}
	}
	for _, x := range r.options.Moves {
		r.schedule(event{at: x.At, kind: move, node: x.Node, until: x.At + moveFor})
	}
	for _, x := range r.options.Crashes {
		r.schedule(event{at: x.At, kind: crash, node: x.Node})
	}
}

func (r *run) loop() error {
	for len(r.queue) > 0 {
		e := heap.Pop(&r.queue).(*event)
		r.now = e.at
		if r.now > r.options.Deadline {
			return fmt.Errorf("%w: %d events are left at %d µs: %w", ErrNotLive, len(r.queue), r.now, r.firstUnfinished())
		}
		a, ok := r.choose(e)
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

// choose is the action that an event stands for, if it is still possible.
func (r *run) choose(e *event) (model.Action, bool) {
	n := r.nodes[e.node]
	if n.Down() {
		if e.kind == deliver {
			r.inFlight--
		}
		return model.Action{}, false
	}
	switch e.kind {
	case crash:
		return model.Action{Kind: model.ActCrash, Node: e.node}, true
	case learn:
		return r.membership(e, func(k model.ActionKind) bool { return k == model.ActEpoch })
	case move:
		a, ok := r.membership(e, func(k model.ActionKind) bool { return k != model.ActEpoch })
		if again := r.now + moveEvery; again < e.until && a.Kind != model.ActDepart {
			r.schedule(event{at: again, kind: move, node: e.node, until: e.until})
		}
		return a, ok
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
		if len(r.actions) == 0 || r.now >= r.options.InjectUntil {
			return model.Action{}, false
		}
		return r.actions[r.random.IntN(len(r.actions))], true
	case operate:
		return n.Operation(e.object)
	case endHold:
		return model.Action{Kind: model.ActHoldOver, Node: e.node, Object: e.object}, true
	default:
		if r.mustWait(e.flight) {
			r.schedule(event{at: r.now + 1, kind: deliver, node: e.node, flight: e.flight})
			return model.Action{}, false
		}
		r.inFlight--
		r.report.Messages++
		return model.Action{Kind: model.ActDeliver, Node: e.node, Flight: e.flight}, true
	}
}

// membership is the action of those kinds by which the place of a node among the nodes changes, or by which it learns who they are.
func (r *run) membership(e *event, wanted func(model.ActionKind) bool) (model.Action, bool) {
	r.actions = model.Membership(r.nodes, int(e.node), r.actions[:0])
	i := slices.IndexFunc(r.actions, func(a model.Action) bool { return wanted(a.Kind) })
	if i < 0 {
		return model.Action{}, false
	}
	return r.actions[i], true
}

// mustWait says whether a message has to follow one that is still on its way.
func (r *run) mustWait(f *model.Flight) bool {
	if !f.Ordered() {
		return false
	}
	if !r.nodes[f.Message.To].Hears(f) {
		return true
	}
	return slices.ContainsFunc(r.queue, func(e *event) bool { return e.kind == deliver && f.MustFollow(e.flight) })
}

// step makes an action happen, checks everything, and schedules what follows from it.
func (r *run) step(a model.Action) error {
	r.report.Steps++
	fmt.Fprintf(r.trace, "%d %v\n", r.now, a)
	r.nodes[a.Node].Do(a, r.options.Start+protocol.Time(r.now), &r.outcome)
	for i := range r.outcome.Effects {
		fmt.Fprintf(r.trace, "  %s\n", model.FormatEffect(&r.outcome.Effects[i]))
	}
	for i := range r.outcome.Retired {
		fmt.Fprintf(r.trace, "  %v\n", &r.outcome.Retired[i])
	}
	if v := r.check(); v != nil {
		return v
	}
	r.follow(a)
	return nil
}

func (r *run) check() *model.Violation {
	if r.outcome.Violation != nil {
		return r.outcome.Violation
	}
	for i := range r.outcome.Retired {
		if v := r.ledger.Apply(&r.outcome.Retired[i]); v != nil {
			return v
		}
		r.record(&r.outcome.Retired[i])
	}
	if v := r.ledger.NoteMembers(r.nodes); v != nil {
		return v
	}
	for _, o := range r.outcome.Lost {
		r.report.Lost++
		if v := model.CheckLost(r.nodes, o); v != nil {
			return v
		}
	}
	for _, o := range r.outcome.Changed {
		if v := model.CheckExclusive(r.nodes, o); v != nil {
			return v
		}
	}
	return nil
}

// record adds an access to the history.
func (r *run) record(t *model.Retirement) {
	if t.Kind != model.RetireAccess {
		return
	}
	r.report.Accesses++
	h := Access{
		Page: t.Op.Object(), Thread: t.Thread, Write: t.Op.Kind == model.OpWrite, Version: t.Contents,
		Call: r.called[t.Thread], Return: r.tick(),
	}
	if r.options.Config.Replicas > 0 {
		r.dropUndone(h.Page, h.Version)
	}
	if h.Write {
		h.Version++
	}
	r.report.History = append(r.report.History, h)
}

// dropUndone takes out of the history what a node has done to a page after the version that is found now: the node is lost, and nobody
// else has seen it, or the ledger would have objected.
func (r *run) dropUndone(page protocol.ObjectID, found uint32) {
	r.report.History = slices.DeleteFunc(r.report.History, func(a Access) bool { return a.Page == page && a.Version > found })
}

// tick returns a unique instant that is not before now and after all earlier instants.
func (r *run) tick() int64 {
	r.stamp = max(r.stamp+1, int64(r.now)*1000)
	return r.stamp
}

// follow schedules what follows from the last action.
func (r *run) follow(a model.Action) {
	switch a.Kind {
	case model.ActFault, model.ActAgain, model.ActSpurious, model.ActStray:
		r.report.Faults++
	case model.ActCrash, model.ActJoin, model.ActLeave, model.ActDepart:
		for _, n := range r.nodes {
			r.schedule(event{at: r.now + 50 + r.upTo(LearnWithin), kind: learn, node: n.Self()})
		}
	case model.ActPerform:
		r.schedule(event{at: r.now + r.upTo(8), kind: operate, node: a.Node, object: a.Object})
	}
	for i := range r.outcome.Sent {
		f := r.outcome.Sent[i]
		r.inFlight++
		r.schedule(event{at: r.now + r.latency(), kind: deliver, node: f.Message.To, flight: &f})
	}
	for _, o := range r.outcome.Ordered {
		r.schedule(event{at: r.now + r.upTo(15), kind: operate, node: a.Node, object: o})
	}
	for _, h := range r.outcome.Holds {
		r.schedule(event{at: r.now + Micros(h.After) + r.upTo(5), kind: endHold, node: a.Node, object: h.Object})
	}
	for _, t := range r.outcome.Runnable {
		r.called[r.threads[a.Node][t]] = r.tick()
		r.scheduleThread(a.Node, t)
	}
	if a.Kind <= model.ActCancel && r.random.IntN(100) < r.options.Repeat {
		r.schedule(event{at: r.now + r.upTo(200), kind: tryOptions, node: a.Node, thread: a.Thread})
	}
}

// scheduleThread lets a thread take its next step soon.
func (r *run) scheduleThread(n protocol.NodeID, t int) {
	wait := 1 + r.upTo(10)
	if r.random.IntN(100) < r.options.Stall {
		wait += r.upTo(r.options.StallMax)
	}
	r.turns[n][t]++
	r.schedule(event{at: r.now + wait, kind: runThread, node: n, thread: t, turn: r.turns[n][t]})
}

func (r *run) schedule(e event) {
	r.number++
	e.number = r.number
	heap.Push(&r.queue, &e)
}

func (r *run) upTo(n Micros) Micros { return Micros(r.random.Uint64N(uint64(n) + 1)) }

// latency is the time that a message takes: mostly little, sometimes so much that others overtake it.
func (r *run) latency() Micros {
	if r.random.IntN(20) == 0 {
		return 5 + r.upTo(500)
	}
	return 5 + r.upTo(25)
}
