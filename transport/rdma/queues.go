package rdma

import (
	"fmt"

	"dsmd/internal/verbs"
	"dsmd/transport/chassis"
)

// queues are the device: its queues, and the memory that is registered there.
type queues struct {
	gate      chassis.Gate
	fabric    fabric
	device    string // its name, which any goroutine may read
	sizes     Sizes
	pageBytes int
	log       func(line string)
	counts    counters // may be read by any goroutine

	sendBlocks, recvBlocks, recvSlots region
	pool                              pagePool // the reactor's goroutine's, also after Close

	completions [pollBatch]verbs.Completion
	next, end   int                 // completions[next:end] are to be dealt with
	completed   uint64              // how many completions were dealt with
	spent       []verbs.RecvRequest // receives to post again
	armed       bool                // the device will make its descriptor readable, or has done so

	// links are the queue pairs by number, those that have failed and drain included.
	links    map[uint32]*link
	draining int // how many of links have failed

	broken error       // why the device is no longer used
	failed func(error) // is told that
}

// allocate makes the registered memory, all that there will ever be, and offers the receive blocks
// to the device.
func (q *queues) allocate() error {
	s := q.sizes
	for _, r := range []struct {
		to     *region
		bytes  int
		remote bool
	}{
		{&q.recvBlocks, s.RecvBlocks * blockBytes, false},
		{&q.sendBlocks, s.SendBlocks * blockBytes, false},
		{&q.pool.slots, s.QueuePairs * (s.Slots + 1) * s.SlotBytes, false},
		{&q.recvSlots, s.QueuePairs * s.Slots * s.SlotBytes, true},
	} {
		var err error
		if *r.to, err = q.fabric.allocate(max(r.bytes, 1), r.remote); err != nil {
			return err
		}
	}
	if err := q.fabric.open(s); err != nil {
		return err
	}
	for block := range s.RecvBlocks {
		q.spend(uint64(block))
	}
	q.repost(0)
	return q.broken
}

// fail stops using the device.
func (q *queues) fail(err error) {
	if q.broken != nil {
		return
	}
	q.broken = err
	q.log(fmt.Sprintf("rdma: device %s is no longer used: %v", q.device, err))
	q.failed(err)
}

// recvSlot is where in the region a peer's slot begins.
func (q *queues) recvSlot(p *peer, slot int) int {
	return (p.index*q.sizes.Slots + slot) * q.sizes.SlotBytes
}

func (q *queues) blockOffset(p *peer, index int) int {
	return (p.index*(q.sizes.Window+ackReserve) + index) * blockBytes
}

func (q *queues) block(p *peer, index int) []byte {
	at := q.blockOffset(p, index)
	return q.sendBlocks.bytes[at : at+blockBytes]
}

// spend notes a receive block whose contents are no longer needed.
func (q *queues) spend(block uint64) {
	q.spent = append(q.spent, verbs.RecvRequest{
		ID: recvMark | block, SGE: q.recvBlocks.sge(int(block)*blockBytes, blockBytes), SGEs: 1,
	})
}

// repost offers spent blocks to the device again, if there are more than spare of them. It returns
// false if the device does not take them; then the device is no longer used.
func (q *queues) repost(spare int) bool {
	if len(q.spent) <= spare {
		return true
	}
	return q.postSpent()
}

// postSpent is what repost does if there are that many.
func (q *queues) postSpent() bool {
	if q.broken != nil {
		return true
	}
	err := q.fabric.postRecv(q.spent)
	q.spent = q.spent[:0]
	if err != nil {
		q.fail(err)
	}
	return err == nil
}

// refill takes completions from the device, if none are left, and returns whether there are any.
func (q *queues) refill() bool { return q.next < q.end || q.pollDevice() }

// pollDevice is what refill does if none are left.
func (q *queues) pollDevice() bool {
	if q.broken != nil {
		return false
	}
	n, err := q.fabric.poll(q.completions[:])
	if err != nil {
		q.fail(err)
		return false
	}
	q.next, q.end = 0, n
	if q.draining > 0 {
		q.reap()
	}
	if n == 0 {
		return false
	}
	q.counts.ReceiveCalls.Add(uint64(n))
	return true
}

// idle reports whether all that had completed at some time was dealt with: nothing is left, or as
// much was dealt with since then as the queue holds. A peer that floods this node would keep it
// from the first for ever.
func (q *queues) idle(since uint64) bool {
	return q.next == q.end || q.completed-since >= uint64(q.sizes.Completions+pollBatch)
}

// drained notes that nothing of a queue pair completes any more.
func (q *queues) drained(l *link) {
	if !l.drained {
		l.drained, l.since = true, q.completed
	}
}

// reap gives queue pairs back that have failed, when none of their completions is left: some
// devices drop those with the queue pair, and with them the receives that they are about.
func (q *queues) reap() {
	for number, l := range q.links {
		if !l.drained || !q.idle(l.since) {
			continue
		}
		delete(q.links, number)
		q.draining--
		if err := l.end.close(); err != nil {
			q.log(err.Error())
		}
	}
}

// armDevice makes the device wake the caller, and returns true if there is something already.
func (q *queues) armDevice() bool {
	if q.broken != nil {
		return false
	}
	if !q.armed {
		if err := q.fabric.arm(); err != nil {
			q.fail(err)
			return true
		}
		// If the event comes for a completion that is found at once, the next sleep ends at once,
		// and takes it.
		q.armed = true
	}
	return q.refill()
}
