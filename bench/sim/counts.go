package sim

import (
	"slices"
	"time"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

// counts are what happens in one phase of an experiment.
type counts struct {
	Accesses, Faults, Locks, Barriers int

	// messages are sent to other nodes, by kind; those about locks apart
	messages  [protocol.KindFreeAck + 1]int
	onLocks   int
	bytes     int // of the messages about pages
	lockBytes int // of those about locks
	syncBytes int // and about barriers

	// copies that went because of an Invalidate, but for those at their homes, to which none is
	// sent
	invalidated int
	supplied    []int // pages that each node has sent
	// atHome is how many messages each node has received as the home of a page, and busy how long
	// its reactors were at work, one after the other.
	atHome []int
	busy   []time.Duration
	// egress is how many bytes each node has sent, about whatever.
	egress []int

	waited       []wait
	began, ended time.Duration // ended: the last thing that a thread got through
}

// wait is how long a thread waited, and for what.
type wait struct {
	kind         model.RetireKind
	began, ended time.Duration
}

func newCounts(nodes, reactors int, now time.Duration) *counts {
	return &counts{
		supplied: make([]int, nodes), atHome: make([]int, nodes), busy: make([]time.Duration, nodes*reactors), egress: make([]int, nodes),
		began: now, ended: now,
	}
}

// worked notes that a reactor of a node was at work.
func (c *counts) worked(n protocol.NodeID, reactor int, t time.Duration) {
	reactors := len(c.busy) / len(c.atHome)
	c.busy[int(n)*reactors+reactor] += t
}

// sent notes a message of n bytes that leaves a node.
func (c *counts) sent(from protocol.NodeID, m *protocol.Message, n int) {
	c.egress[from] += n
	if m.Contents() == protocol.PageContents {
		c.supplied[from]++
	}
	switch {
	case m.Kind >= protocol.KindBarrierArrive:
		c.messages[m.Kind]++
		c.syncBytes += n
	case m.Object.IsLock():
		c.onLocks++
		c.lockBytes += n
	default:
		c.messages[m.Kind]++
		c.bytes += n
	}
}

// received notes whose directory a message is for.
func (c *counts) received(m *protocol.Message) {
	if !m.Object.IsLock() && (m.Kind == protocol.KindRequest || m.Kind == protocol.KindDone) {
		c.atHome[m.To]++
	}
}

// onPages is how many messages were about pages.
func (c *counts) onPages() int { return sum(c.messages[protocol.KindRequest:protocol.KindOffer]) }

// onBarriers is how many messages were about barriers.
func (c *counts) onBarriers() int {
	return sum(c.messages[protocol.KindBarrierArrive : protocol.KindBarrierBroadcastAck+1])
}

func sum[T int | time.Duration](all []T) (total T) {
	for _, x := range all {
		total += x
	}
	return total
}

// latency is a percentile of how long threads waited for something, in µs; 0 if nobody waited.
func (c *counts) latency(kind model.RetireKind, percent int) float64 {
	var all []time.Duration
	for _, w := range c.waited {
		if w.kind == kind {
			all = append(all, w.ended-w.began)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return inMicros(all[(len(all)-1)*percent/100])
}

// imbalance is the greatest of some amounts over their mean; 0 if all are 0. 1 is an even load.
func imbalance[T int | time.Duration](all []T) float64 {
	total := sum(all)
	if total == 0 {
		return 0
	}
	return float64(slices.Max(all)) * float64(len(all)) / float64(total)
}

func inMicros(t time.Duration) float64 { return float64(t) / float64(time.Microsecond) }

// per is a ratio, and 0 if there is nothing to divide by.
func per(amount, of int) float64 {
	if of == 0 {
		return 0
	}
	return float64(amount) / float64(of)
}

// share is how much of the phase something took, from 0 to 1.
func (c *counts) share(took time.Duration) float64 {
	if c.ended <= c.began {
		return 0
	}
	return min(1, float64(took)/float64(c.ended-c.began))
}
