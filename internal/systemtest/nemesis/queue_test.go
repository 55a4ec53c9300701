package nemesis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"dsmd/dsm"
	"dsmd/dsm/collections"
)

const (
	// queueKind is the kind of lanes of queues: what one rank has put in an era.
	queueKind = "queue"
	// queueRoom is how many items of a rank a queue has room for.
	queueRoom = 16
	// laneBits are those of an item that do not say who has put it.
	laneBits = 56
)

// queueWorkload puts items into a queue that survives the loss of a host, another one in each era,
// and takes as many.
var queueWorkload = define(&Workload{Name: queueKind, Threads: 2, work: func(m *member) (job, error) {
	w := &queues{m: m}
	return job{w.step, w.finish}, nil
}})

type queues struct {
	m   *member
	mu  sync.Mutex
	era int                        // of the queue; guarded by mu
	now *collections.Queue[uint64] // nil: there was none; guarded by mu
}

// present is the queue of this era. It is nil if pages of it were lost when it was to be made.
func (w *queues) present(thread int) (q *collections.Queue[uint64], era int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if era = w.m.era(); w.now != nil && era == w.era {
		return w.now, era, nil
	}
	err = w.m.record.do(thread, Operation{Place: "other/queue", Do: step}, func() (result Result, err error) {
		q, err = collections.NewQueue[uint64](w.m.ctx, w.m.c, fmt.Sprintf("queue %d", era), queueRoom, dsm.Replicated(replicas), dsm.Keep())
		return result, err
	})
	w.now, w.era = q, era
	return q, era, err
}

// step puts an item and takes one, so that there is one for everybody.
func (w *queues) step(thread int, r *rand.Rand) error {
	q, era, err := w.present(thread)
	if err != nil || q == nil {
		return err
	}
	rank := w.m.c.Rank()
	o := Operation{Place: laneOf(era, rank), Do: put, New: uint64(rank)<<laneBits | 1 + r.Uint64()>>(64-laneBits)}
	if err := w.m.record.do(thread, o, func() (Result, error) { return Result{}, q.Put(w.m.ctx, o.New) }); err != nil {
		return err
	}
	return w.m.record.do(thread, Operation{Place: fmt.Sprintf("%s/%d", queueKind, era), Do: take}, func() (result Result, err error) {
		// Those of an era may be alone with it, or what they have put was lost.
		ctx, cancel := context.WithTimeout(w.m.ctx, patienceAtMost)
		defer cancel()
		if result.Got, err = q.Take(ctx); errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: %w", errVoid, err)
		}
		return result, err
	})
}

// finish does a last step: a lane that nobody has given back would be found now.
func (w *queues) finish() error {
	return w.step(lastThread, rand.New(rand.NewPCG(w.m.order.Seed, uint64(now()))))
}

// laneOf is the place of what a rank puts in an era.
func laneOf(era, rank int) string { return fmt.Sprintf("%s/%d/%d", queueKind, era, rank) }

// inLanes has those operations that took an item at the place of its lane. One of which nobody
// knows what it took may have been in each lane that has an item which nobody else has taken.
func inLanes(all []Operation) (placed []Operation) {
	taken := map[uint64]int64{} // until when somebody had taken the item
	for _, o := range all {
		if o.Do == take && o.known() && !o.Void && !o.Lost {
			taken[o.Got] = o.Return
		}
	}
	lanes := map[string][]string{} // by KIND/ERA
	for _, o := range all {
		if _, is := taken[o.New]; o.Do == put && !is && o.known() && !o.Lost && !slices.Contains(lanes[eraOf(o)], o.Place) {
			lanes[eraOf(o)] = append(lanes[eraOf(o)], o.Place)
		}
	}
	for _, o := range all {
		switch era := o.Place; {
		case o.Do == put:
			var until int64
			if until, o.taken = taken[o.New]; o.taken && !o.known() {
				o.Return = max(o.Call, min(o.Return, until))
			}
			placed = append(placed, o)
		case o.Do != take || o.Void || o.Lost:
			placed = append(placed, o)
		case o.known():
			o.Place = fmt.Sprintf("%s/%d", era, o.Got>>laneBits)
			placed = append(placed, o)
		default:
			for _, o.Place = range lanes[era] {
				placed = append(placed, o)
			}
		}
	}
	return placed
}

// eraOf is the place of a lane without the lane.
func eraOf(o Operation) string { return o.Place[:max(strings.LastIndexByte(o.Place, '/'), 0)] }

// idle reports whether the operation makes no difference: it is a put of which nobody knows whether
// it has happened, and nobody has taken the item. If somebody has, it has happened, as nobody else
// puts that item.
func (o Operation) idle() bool { return o.Do == put && !o.taken && (!o.known() || o.Lost) }

// lane is the items that a rank has put and nobody has taken. Each is eight bytes, and one that
// says whether somebody is known to take it.
type lane struct{ items string }

const itemBytes = 9

// stepLane is what becomes of a lane. All puts have happened, as none is idle.
func stepLane(state, input, _ any) (next []any) {
	l, o := state.(lane), input.(Operation)
	if o.Do == put {
		item := binary.BigEndian.AppendUint64(nil, o.New)
		if o.taken {
			return []any{lane{l.items + string(append(item, 1))}}
		}
		return []any{lane{l.items + string(append(item, 0))}}
	}
	if !o.known() || o.Lost {
		next = append(next, l)
	}
	if l.items == "" || o.Lost {
		return next
	}
	first, isTaken := binary.BigEndian.Uint64([]byte(l.items)), l.items[itemBytes-1] == 1
	if o.known() && first == o.Got || !o.known() && !isTaken {
		next = append(next, lane{l.items[itemBytes:]})
	}
	return next
}
