package protocol

import (
	"cmp"
	"fmt"
	"slices"
)

// barrier gathers arrivals at its home. It exists from the first arrival to the release.
type barrier struct {
	id       ObjectID
	parties  uint32
	size     int // bytes of each payload
	arrivals []arrival
}

type arrival struct {
	node    NodeID
	ticket  Ticket
	rank    uint32
	payload []byte
}

// call is a ticket of a client of this node that waits for the answer of another node.
type call struct {
	client  ClientID
	ticket  Ticket
	object  ObjectID
	barrier bool   // else a name call
	to      NodeID // who answers; NoNode: it was not sent yet, because a recovery is under way
	payload []byte // what is sent

	op   NameOp // of a name call
	name string

	parties, rank uint32 // of an arrival
	cancelled     bool   // BarrierCancel was sent, or would have been
}

func (e *Engine) arrive(ev Event) {
	c := call{client: ev.Client, ticket: ev.Ticket, object: ev.Object, barrier: true, to: e.home(ev.Object),
		parties: ev.Parties, rank: ev.Rank, payload: slices.Clone(ev.Payload)}
	if e.view.phase != running {
		c.to = NoNode
	} else {
		e.sendArrival(&c)
	}
	e.calls = append(e.calls, c)
}

func (e *Engine) sendArrival(c *call) {
	e.sendToHome(c, &gathered{parties: c.parties, rank: c.rank, payload: c.payload})
}

func (e *Engine) findBarrier(id ObjectID) (int, bool) {
	return slices.BinarySearchFunc(e.barriers, id, func(b *barrier, id ObjectID) int { return cmp.Compare(b.id, id) })
}

func (e *Engine) onBarrierArrive(m *Message) {
	if e.home(m.Object) != e.cfg.Self || !m.Object.IsLock() {
		e.reject(m, "this node is not the barrier's home")
		return
	}
	if m.Aux == 0 || m.Aux > MaxParties || len(m.Payload) > MaxContribution {
		e.reject(m, "a barrier with impossible parties or payload")
		return
	}
	if e.arrived >= e.limits.arrivals {
		text := fmt.Sprintf("%d arrivals wait at the home of this barrier already", e.arrived)
		e.send(Message{Kind: BarrierRelease, To: m.From, Object: m.Object, Ticket: m.Ticket, Status: StatusNoSpace, Payload: []byte(text)})
		return
	}
	i, ok := e.findBarrier(m.Object)
	if !ok {
		e.barriers = slices.Insert(e.barriers, i, &barrier{id: m.Object})
	}
	b := e.barriers[i]
	if !ok {
		b.parties, b.size = m.Aux, len(m.Payload)
	}
	if b.parties != m.Aux || b.size != len(m.Payload) {
		text := fmt.Sprintf("rank %d came with %d parties and %d bytes, others with %d parties and %d bytes",
			m.Rank, m.Aux, len(m.Payload), b.parties, b.size)
		e.send(Message{Kind: BarrierRelease, To: m.From, Object: m.Object, Ticket: m.Ticket, Status: StatusMismatch, Payload: []byte(text)})
		return
	}
	// The payload is the transport's; it is kept until the release.
	b.arrivals = append(b.arrivals, arrival{node: m.From, ticket: m.Ticket, rank: m.Rank, payload: slices.Clone(m.Payload)})
	e.arrived++
	if len(b.arrivals) == int(b.parties) {
		e.releaseBarrier(b)
	}
}

// MaxParties bounds the parties of a barrier: every node may have this many for each of its ranks.
const MaxParties = 1 << 16

// releaseBarrier answers every arrival with all payloads in the order of ranks.
func (e *Engine) releaseBarrier(b *barrier) {
	in := b.arrivals
	slices.SortFunc(in, func(x, y arrival) int {
		return cmp.Or(cmp.Compare(x.rank, y.rank), cmp.Compare(x.node, y.node), cmp.Compare(x.ticket, y.ticket))
	})
	status, payload := StatusOK, []byte(nil)
	if len(in)*b.size > MaxResult {
		status = StatusNoSpace
	} else if b.size > 0 {
		payload = make([]byte, 0, len(in)*b.size)
		for i := range in {
			payload = append(payload, in[i].payload...)
		}
	}
	e.releaseArrivals(b.id, in, status, payload)
	e.arrived -= len(in)
	e.dropBarrier(b)
}

func (e *Engine) dropBarrier(b *barrier) {
	if i, ok := e.findBarrier(b.id); ok {
		e.barriers = slices.Delete(e.barriers, i, i+1)
	}
}

// onBarrierCancel withdraws an arrival and says so. If it was released before, the release is on its way and answers the
// call instead: so whoever is told that its wait was cancelled has not been counted, and may come again.
//
// Preconditions: the BarrierCancel did not overtake its BarrierArrive, which the transport's order between two
// nodes ensures, or relays do.
func (e *Engine) onBarrierCancel(m *Message) {
	i, ok := e.findBarrier(m.Object)
	if !ok {
		return
	}
	b := e.barriers[i]
	j := slices.IndexFunc(b.arrivals, func(a arrival) bool { return a.node == m.From && a.ticket == m.Ticket })
	if j < 0 {
		return
	}
	b.arrivals = slices.Delete(b.arrivals, j, j+1)
	e.arrived--
	e.send(Message{Kind: BarrierRelease, To: m.From, Object: m.Object, Ticket: m.Ticket, Status: StatusCanceled})
	if len(b.arrivals) == 0 {
		e.dropBarrier(b)
	}
}

// onReply answers the client whose call was waiting, if it still waits.
func (e *Engine) onReply(m *Message) {
	i := slices.IndexFunc(e.calls, func(c call) bool { return c.ticket == m.Ticket && c.object == m.Object })
	if i < 0 {
		return // canceled meanwhile
	}
	c := e.calls[i]
	if why := e.noReply(&c, m); why != "" {
		e.reject(m, why)
		return
	}
	e.calls = slices.Delete(e.calls, i, i+1)
	if !c.barrier {
		e.noteUse(&c, m)
	}
	e.emit(Effect{Kind: EffectComplete, Object: c.object, Client: c.client, Ticket: c.ticket, Status: m.Status, Payload: m.Payload})
}

// noReply says why a message cannot answer a call: "" if it can.
func (e *Engine) noReply(c *call, m *Message) string {
	switch {
	case m.From != c.to || c.barrier != (m.Kind == BarrierRelease):
		return "the call that it answers went to another node, or was another"
	case m.Status == StatusOwnerDied:
		return "no lock was asked for"
	case c.barrier || m.Status != StatusOK || len(m.Payload) == 0:
		return ""
	}
	// Programs map what they are told.
	if first, count, err := DecodeRun(m.Payload); err != nil || count > e.cfg.Pages || first > e.cfg.Pages-count {
		return "not a run of pages of the region"
	}
	return ""
}

// cancel ends a client's wait, whatever it waits for.
func (e *Engine) cancel(ev Event) {
	if e.cancelLockWait(ev.Client, ev.Ticket) {
		return
	}
	if e.endCommits(func(c commitCall) bool { return c.client == ev.Client && c.ticket == ev.Ticket }) > 0 {
		e.emit(Effect{Kind: EffectComplete, Client: ev.Client, Ticket: ev.Ticket, Status: StatusCanceled})
		return
	}
	i := slices.IndexFunc(e.calls, func(c call) bool { return c.client == ev.Client && c.ticket == ev.Ticket })
	if i < 0 {
		return // completed before
	}
	if c := &e.calls[i]; c.barrier {
		// Only the home knows whether the arrival has been counted.
		c.cancelled = true
		e.sendBarrierCancel(c)
		return
	}
	c := e.calls[i]
	e.calls = slices.Delete(e.calls, i, i+1)
	e.emit(Effect{Kind: EffectComplete, Object: c.object, Client: c.client, Ticket: c.ticket, Status: StatusCanceled})
}

// withdraw forgets call i and takes back an arrival.
func (e *Engine) withdraw(i int) {
	c := e.calls[i]
	e.calls = slices.Delete(e.calls, i, i+1)
	if c.barrier {
		e.sendBarrierCancel(&c)
	}
}

// sendBarrierCancel takes back an arrival, unless a recovery does, which forgets all arrivals.
func (e *Engine) sendBarrierCancel(c *call) {
	if e.view.phase != running {
		return
	}
	e.sendToHome(c, &gathered{cancel: true})
}

// clientGone cleans up after a program that has ended, in whatever way.
func (e *Engine) clientGone(ev Event) {
	e.releaseAll(ev.Client, ev.Rank)
	named := slices.ContainsFunc(e.uses, func(u use) bool { return u.client == ev.Client })
	e.endCommits(func(c commitCall) bool { return c.client == ev.Client })
	for i := len(e.calls) - 1; i >= 0; i-- {
		if c := &e.calls[i]; c.client == ev.Client {
			named = named || !c.barrier
			e.withdraw(i)
		}
	}
	e.uses = slices.DeleteFunc(e.uses, func(u use) bool { return u.client == ev.Client })
	switch {
	case e.view.phase == running:
		e.unbindAll(ev.Client)
	case named:
		e.gone = append(e.gone, ev.Client)
	}
}

// unbindAll tells the directory of names that a program uses none any more.
func (e *Engine) unbindAll(c ClientID) {
	e.send(Message{Kind: NameRequest, To: e.directory(), Requester: e.cfg.Self,
		Payload: (&NameCall{Op: UnbindAll, Client: c}).Append(nil)})
}
