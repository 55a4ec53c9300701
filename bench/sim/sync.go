package sim

import (
	"slices"
	"time"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

// Operations that SyncPoint may name.
const (
	// OpBarrier is a barrier of all nodes without contributions, OpReduction one to which each
	// brings eight bytes, which all get (dsm.Reduce), and OpSum one at whose home these are added
	// up (dsm.AllReduce).
	OpBarrier, OpReduction, OpSum = "barrier", "reduction", "sum"
	// OpFlatBarrier and OpFlatReduction are the same without trees: what they would cost if the
	// home spoke to each node itself, as it does in small clusters.
	OpFlatBarrier, OpFlatReduction = "barrier without a tree", "reduction without a tree"
	// OpFreeLock takes a lock that is free and was held last at another node.
	OpFreeLock = "free lock"
	// OpContendedLock takes a lock that all nodes want at once: the time is that from one holder to
	// the next.
	OpContendedLock = "contended lock"
	// OpAllocation allocates memory by one name, on all nodes at once.
	OpAllocation = "allocation"
)

// SyncPoint is what one operation costs on one number of nodes.
type SyncPoint struct {
	Operation string  `json:"operation"`
	Nodes     int     `json:"nodes"`
	Micros    float64 `json:"us"`
	// Messages and Bytes of one operation: of one barrier, of one turn at a lock, of the allocation
	// by all nodes.
	Messages float64 `json:"messages"`
	Bytes    float64 `json:"bytes"`
	// Busiest is how long the busiest reactor works for one operation, in µs.
	Busiest float64 `json:"busiest_us"`
}

const (
	// barrierRounds is how many barriers are timed, one after the other.
	barrierRounds = 5
	// reductionBytes is what each rank brings to a reduction: a number.
	reductionBytes = 8
	// lockTurns is how often each node takes the contended lock.
	lockTurns = 4
	// lockSpacing is between two nodes' turns at a free lock: far more than one takes.
	lockSpacing = time.Millisecond
)

func (r *Result) barrierSteps() []step {
	var steps []step
	for _, x := range []struct {
		operation    string
		contribution int
		folded, flat bool
	}{
		{OpBarrier, 0, false, false}, {OpReduction, reductionBytes, false, false}, {OpSum, reductionBytes, true, false},
		{OpFlatBarrier, 0, false, true}, {OpFlatReduction, reductionBytes, false, true},
	} {
		steps = append(steps, r.Options.steps(x.operation, func(nodes int) error {
			e := &experiment{programs: make([]model.Program, nodes), pages: uint64(nodes), contribution: x.contribution, folded: x.folded, flat: x.flat}
			return r.barriers(x.operation, e)
		})...)
	}
	return steps
}

func (r *Result) barriers(operation string, e *experiment) error {
	for node := range e.programs {
		for range barrierRounds {
			e.programs[node] = append(e.programs[node], model.Op{Kind: model.OpBarrier, Number: turnBarrier})
		}
	}
	phases, err := simulate(&r.Options, e)
	if err != nil {
		return err
	}
	c := phases[0]
	r.Sync = append(r.Sync, SyncPoint{
		Operation: operation, Nodes: len(e.programs), Micros: inMicros(c.ended-c.began) / barrierRounds,
		Messages: per(c.onBarriers(), barrierRounds), Bytes: per(c.syncBytes, barrierRounds),
		Busiest: inMicros(slices.Max(c.busy)) / barrierRounds,
	})
	return nil
}

func (r *Result) lockSteps() []step {
	return slices.Concat(
		r.Options.steps(OpFreeLock, func(nodes int) error { return r.locks(OpFreeLock, 1, lockSpacing, nodes) }),
		r.Options.steps(OpContendedLock, func(nodes int) error { return r.locks(OpContendedLock, lockTurns, 0, nodes) }))
}

func (r *Result) nameSteps() []step { return r.Options.steps(OpAllocation, r.allocation) }

func (r *Result) allocation(nodes int) error {
	e := &experiment{programs: make([]model.Program, nodes), pages: uint64(nodes)}
	for node := range e.programs {
		e.programs[node] = model.Program{{Kind: model.OpBind}}
	}
	phases, err := simulate(&r.Options, e)
	if err != nil {
		return err
	}
	c := phases[0]
	r.Sync = append(r.Sync, SyncPoint{
		Operation: OpAllocation, Nodes: nodes, Micros: inMicros(c.ended - c.began),
		Messages: float64(c.messages[protocol.KindNameRequest] + c.messages[protocol.KindNameReply]),
		Bytes:    float64(c.syncBytes), Busiest: inMicros(slices.Max(c.busy)),
	})
	return nil
}

// locks lets all nodes take one lock some times, each beginning a while after the one before. Its
// home is the last node.
func (r *Result) locks(operation string, turns int, spacing time.Duration, nodes int) error {
	e := &experiment{programs: make([]model.Program, nodes), pages: uint64(nodes), start: make([]time.Duration, nodes)}
	for node := range e.programs {
		e.start[node] = time.Duration(node) * spacing
		for range turns {
			e.programs[node] = append(e.programs[node],
				model.Op{Kind: model.OpLock, Number: uint64(nodes - 1)}, model.Op{Kind: model.OpUnlock, Number: uint64(nodes - 1)})
		}
	}
	phases, err := simulate(&r.Options, e)
	if err != nil {
		return err
	}
	c := phases[0]
	point := SyncPoint{
		Operation: operation, Nodes: nodes, Micros: c.latency(model.RetireLock, 50),
		Messages: per(c.onLocks, c.Locks), Bytes: per(c.lockBytes, c.Locks), Busiest: inMicros(slices.Max(c.busy)) / float64(c.Locks),
	}
	if operation == OpContendedLock {
		point.Micros = inMicros(c.ended-c.began) / float64(c.Locks)
	}
	r.Sync = append(r.Sync, point)
	return nil
}
