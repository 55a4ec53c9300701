package nemesis

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// death is the loss of a host: its daemon was killed, or the others have gone on without it. It may
// come back, as one that knows nothing.
type death struct {
	host  int
	stay  int // of the host
	since int // the epoch with which that began
	// at is the time from which nothing that happens on the host need reach anybody else. If the
	// host left in order, that is when it began to leave: from then on what it had may be on
	// others, and on no others than one that is lost.
	at int64
	// settled is when all hosts that are left had gone on without it: nothing that was done there
	// can reach anybody from then on. It is unknown at first.
	settled int64
	// inOrder says that it is none: the host has left, and the others have what it had.
	inOrder bool

	noted    time.Time // when the harness did
	daemon   *process
	programs []*resident // that have not ended yet
	ranks    []bool      // of which workloads there was a program when the host was lost
	patience *patience   // since then
	ended    *patience   // since the harness has seen the end of the daemon
}

// deaths are the hosts that were lost in a life of the cluster.
type deaths []*death

// of is how the stay of a host has ended on which a client was; nil if it has not.
func (d deaths) of(who client) *death {
	for _, x := range d {
		if x.host == who.Rank && x.stay == who.Stay {
			return x
		}
	}
	return nil
}

// node reports whether a host was ever lost.
func (d deaths) node(host int) bool {
	return slices.ContainsFunc(d, func(x *death) bool { return x.host == host && !x.inOrder })
}

// last is the latest. Preconditions: there is one.
func (p past) last() *death { return p.deaths[len(p.deaths)-1] }

// doubt returns the operations as the hosts that are left may see them. What was done on a host
// that was lost already may never have happened, whatever its programs have found: the programs of
// a host that is cut off go on with the pages that they have. When all have gone on without the
// host, nothing happens there any more.
func (d deaths) doubt(all []Operation) []Operation {
	doubted := make([]Operation, 0, len(all))
	for _, o := range all {
		if x := d.of(o.client); x != nil && !x.inOrder && o.Return > x.at {
			if o.Call > x.settled {
				continue
			}
			o.Result, o.Return, o.doubtful = Result{}, min(o.Return, x.settled), true
		}
		o.lost = d.before(o.Return)
		doubted = append(doubted, o)
	}
	return doubted
}

// before are the hosts that were lost until then, and those that had left, or begun to leave,
// before one of them was lost: what these had they may have handed over to that one.
func (d deaths) before(when int64) (lost deaths) {
	last := int64(math.MinInt64)
	for _, x := range d {
		if !x.inOrder && x.at < when {
			last = max(last, x.at)
		}
	}
	for _, x := range d {
		if x.at <= last {
			lost = append(lost, x)
		}
	}
	return lost
}

// errUnjustified is wrapped where a client was told of a loss that cannot have been.
var errUnjustified = errors.New("it cannot be lost")

// unjustified finds operations that were told without reason that a page is lost, or that a lock
// was at a lost node. There is a reason only if some lost host may have used the thing after every
// host that is left: a host that is left has what it used last. There is one, too, if a host used
// the thing that had left before the loss. Preconditions: all were doubted.
func (d deaths) unjustified(all []Operation, kept keeping) (violations []violation) {
	things := map[thing][]Operation{}
	// Nodes read the heap ahead, and ask for neighbours of a page that is missed: a host may have
	// come to have any page of it by what it did at another. And it may have come to have a page
	// again that it had used before by anything that it did later: nodes ask for what was missed
	// after the same step before.
	heap, anything := lastUses{}, lastUses{}
	for _, o := range all {
		anything.add(o)
		if t, is := thingOf(o); is {
			things[t] = append(things[t], o)
		}
		if o.kind() == heapKind {
			heap.add(o)
		}
	}
	for t, uses := range things {
		last := lastUses{}
		for _, o := range uses {
			last.add(o)
		}
		switch {
		case t.name == heapKind:
			last = heap
		case t.page >= 0:
			for at := range last {
				last[at] = anything[at]
			}
		}
		for _, o := range uses {
			if !o.tellsOfLoss() {
				continue
			}
			if err := errors.Join(d.justify(o, uses, last), d.outlived(o, uses, kept)); err != nil {
				same := slices.DeleteFunc(slices.Clone(uses), func(x Operation) bool { return x.Void || x.Place != o.Place })
				violations = append(violations, violation{o.Place, same, fmt.Errorf("%s, %s: %w", o.Place, describe(o, nil), err)})
			}
		}
	}
	return violations
}

// tellsOfLoss reports whether the client was told that something was lost with a node.
func (o Operation) tellsOfLoss() bool {
	return o.known() && !o.Void && (o.Lost || o.Do == acquire && o.Got == fromLost)
}

// stay is one time for which a host belonged to the cluster.
type stay struct{ host, number int }

// lastUses are when each stay of a host has used something last.
type lastUses map[stay]int64

func (l lastUses) add(o Operation) {
	at := stay{o.client.Rank, o.client.Stay}
	if last, used := l[at]; !used || last < o.Return {
		l[at] = o.Return
	}
}

// by returns the end of all that lost hosts have used.
func (l lastUses) by(lost deaths) int64 {
	end := int64(math.MinInt64)
	for _, d := range lost {
		if last, used := l[stay{d.host, d.stay}]; used {
			end = max(end, min(last, d.settled))
		}
	}
	return end
}

// justify returns why the loss that an operation tells of cannot have been. uses are the operations
// on the same thing, and last the last of those by which a host may have come to have it.
func (d deaths) justify(o Operation, uses []Operation, last lastUses) error {
	if !o.lost.node(o.Dead) {
		return fmt.Errorf("%w: node %d was not lost", errUnjustified, o.Dead)
	}
	if o.kind() == queueKind {
		return nil // a lane is several pages, and outlived looks at it
	}
	end := last.by(o.lost)
	for _, x := range uses {
		// A release is the end of a use that began when it was acquired.
		left := o.lost.of(x.client) == nil
		if left && x.known() && !x.Void && !x.Lost && x.Do != release && x.Return <= o.Call && x.Call > end && !o.lost.overtaken(x, uses) {
			return fmt.Errorf("%w: rank %d has done a %s at %s after the last thing that any lost host did", errUnjustified, x.client.Rank, x.Do, x.Place)
		}
	}
	return nil
}

// overtaken reports whether another use was under way, on a host that is left, when a host was
// lost: it may have taken from all others what they had, and waited for what the lost host was to
// send it.
func (d deaths) overtaken(x Operation, uses []Operation) bool {
	for _, y := range uses {
		if y.Place == x.Place && y.Call == x.Call && y.client == x.client || d.of(y.client) != nil {
			continue
		}
		if slices.ContainsFunc(d, func(l *death) bool {
			return !l.inOrder && x.Call < l.settled && y.Call < l.settled && y.Return > max(x.Return, l.at)
		}) {
			return true
		}
	}
	return false
}

// thing is what is lost as a whole: a page of some memory, or a lock.
type thing struct {
	name string // of the memory, or of the lock
	page int    // -1: it is a lock
}

// thingOf is what an operation uses: KIND/…/ERA/I is a word of the memory KIND/….
func thingOf(o Operation) (t thing, is bool) {
	if o.kind() == "lock" {
		return thing{o.Place, -1}, true
	}
	parts := strings.Split(o.Place, "/")
	if len(parts) < 3 {
		return t, false
	}
	last := len(parts) - 1
	i, err := strconv.Atoi(parts[last])
	era, err2 := strconv.Atoi(parts[last-1])
	return thing{strings.Join(parts[:last-1], "/"), pageOf(era, i)}, err == nil && err2 == nil
}
