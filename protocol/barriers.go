package protocol

import (
	"cmp"
	"fmt"
	"slices"
)

// barriers is the machine of barriers. Whoever arrives sends that to the barrier's home, which
// releases all when all are there. On their ways arrivals are put together and releases divided:
// relay.go.
//
// In a recovery the homes forget all arrivals, and whoever still waits arrives anew (see resume).
type barriers struct {
	*env
	calls   []arrivalCall // of this node's programs that wait for a release; oldest first
	open    []*barrier    // those homed here; in ascending order of id
	arrived int           // arrivals in all of them

	relays      []*relay             // one for each home that hears from here; ascending
	forwarded   []forwardedRelease   // in ascending order of home and serial
	unconfirmed []unconfirmedRelease // in ascending order of serials
	openings    openings
	serial      Ticket // of the last release that this home has sent
	waiting     int    // tickets in unconfirmed
}

// arrivalCall is an arrival of a program of this node that has not been released yet.
type arrivalCall struct {
	client        ClientID
	ticket        Ticket
	object        ObjectID
	to            NodeID // the home; NoNode: nothing was sent yet, because a recovery is under way
	parties, rank uint32
	fold          Fold
	payload       []byte
	cancelled     bool // BarrierCancel was sent, or would have been
}

// barrier is what the home of a barrier has of it, from the first arrival to the release.
type barrier struct {
	id       ObjectID
	parties  uint32
	size     int // bytes of each payload
	fold     Fold
	arrivals []arrival
}

type arrival struct {
	node    NodeID
	ticket  Ticket
	rank    uint32
	payload []byte
}

func (b *barriers) deliver(m *Message) {
	switch m.Kind {
	case KindBarrierArrive:
		b.onArrive(m)
	case KindBarrierCancel:
		b.onCancel(m)
	case KindBarrierOpen:
		b.onOpen(m)
	case KindBarrierCombine:
		b.onCombine(m)
	case KindBarrierCombineAck:
		b.onCombineAck(m)
	case KindBarrierBroadcast:
		b.onBroadcast(m)
	case KindBarrierBroadcastAck:
		b.onBroadcastAck(m)
	}
}

func (b *barriers) arrive(ev Event) {
	c := arrivalCall{client: ev.Client, ticket: ev.Ticket, object: ev.Object, to: b.home(ev.Object),
		parties: ev.Parties, rank: ev.Rank, fold: ev.Fold, payload: slices.Clone(ev.Payload)}
	if b.view.phase != running {
		c.to = NoNode
	} else {
		b.sendArrival(&c)
	}
	b.calls = append(b.calls, c)
}

func (b *barriers) sendArrival(c *arrivalCall) {
	b.sendToHome(c, &relayed{parties: c.parties, rank: c.rank, fold: c.fold, payload: c.payload})
}

func (b *barriers) find(id ObjectID) (int, bool) {
	return slices.BinarySearchFunc(b.open, id, func(g *barrier, id ObjectID) int { return cmp.Compare(g.id, id) })
}

func (b *barriers) onArrive(m *Message) {
	if b.home(m.Object) != b.cfg.Self || !m.Object.IsLock() {
		b.reject(m, "this node is not the barrier's home")
		return
	}
	k := m.AsBarrierArrive()
	if k.Parties == 0 || k.Parties > MaxParties || len(k.Contribution) > MaxContribution {
		b.reject(m, "a barrier with impossible parties or payload")
		return
	}
	refuse := func(status Status, format string, args ...any) {
		b.send(BarrierRelease{status, k.Ticket, fmt.Appendf(nil, format, args...)}.To(m.From, m.Object))
	}
	if b.arrived >= b.limits.arrivals {
		refuse(StatusNoSpace, "%d arrivals wait at the home of this barrier already", b.arrived)
		return
	}
	i, ok := b.find(m.Object)
	if !ok {
		b.open = slices.Insert(b.open, i, &barrier{id: m.Object, parties: k.Parties, size: len(k.Contribution), fold: k.Fold})
	}
	g := b.open[i]
	// The contribution begins with what programs add to a value: only how much longer it is than
	// those of the others says something to their users.
	const likeOthers = "than others: all have to bring as many values of the same type"
	switch more := len(k.Contribution) - g.size; {
	case g.parties != k.Parties:
		refuse(StatusMismatch, "rank %d came with %d parties, others with %d parties: all have to give the same number", k.Rank, k.Parties, g.parties)
		return
	case more > 0:
		refuse(StatusMismatch, "rank %d brings %d bytes more %s", k.Rank, more, likeOthers)
		return
	case more < 0:
		refuse(StatusMismatch, "rank %d brings %d bytes less %s", k.Rank, -more, likeOthers)
		return
	case g.fold != k.Fold:
		refuse(StatusMismatch, "rank %d wants %v, others %v", k.Rank, k.Fold, g.fold)
		return
	}
	// The contribution is the transport's; it is kept until the release.
	g.arrivals = append(g.arrivals, arrival{node: m.From, ticket: k.Ticket, rank: k.Rank, payload: slices.Clone(k.Contribution)})
	b.arrived++
	if len(g.arrivals) == int(g.parties) {
		b.release(g)
	}
}

// MaxParties bounds the parties of a barrier: every node may have this many for each of its ranks.
const MaxParties = 1 << 16

// release answers every arrival with all payloads in the order of ranks, or folded.
func (b *barriers) release(g *barrier) {
	in := g.arrivals
	slices.SortFunc(in, func(x, y arrival) int {
		return cmp.Or(cmp.Compare(x.rank, y.rank), cmp.Compare(x.node, y.node), cmp.Compare(x.ticket, y.ticket))
	})
	status, payload := StatusOK, []byte(nil)
	switch {
	case g.fold != NoFold:
		payload = slices.Clone(in[0].payload)
		for i := range in[1:] {
			g.fold.combine(payload, in[1+i].payload)
		}
	case len(in)*g.size > MaxResult:
		status = StatusNoSpace
	case g.size > 0:
		payload = make([]byte, 0, len(in)*g.size)
		for i := range in {
			payload = append(payload, in[i].payload...)
		}
	}
	b.releaseArrivals(g.id, in, status, payload)
	b.arrived -= len(in)
	b.drop(g)
}

func (b *barriers) drop(g *barrier) {
	if i, ok := b.find(g.id); ok {
		b.open = slices.Delete(b.open, i, i+1)
	}
}

// onCancel withdraws an arrival and says so. If it was released before, the release is on its way
// and answers the call instead: so whoever is told that its wait was cancelled has not been
// counted, and may come again.
//
// Preconditions: the BarrierCancel did not overtake its BarrierArrive, which the transport's order
// between two nodes ensures, or relays do.
func (b *barriers) onCancel(m *Message) {
	i, ok := b.find(m.Object)
	if !ok {
		return
	}
	g, ticket := b.open[i], m.AsBarrierCancel().Ticket
	j := slices.IndexFunc(g.arrivals, func(a arrival) bool { return a.node == m.From && a.ticket == ticket })
	if j < 0 {
		return
	}
	g.arrivals = slices.Delete(g.arrivals, j, j+1)
	b.arrived--
	b.send(BarrierRelease{Status: StatusCanceled, Ticket: ticket}.To(m.From, m.Object))
	if len(g.arrivals) == 0 {
		b.drop(g)
	}
}

// waitsFor tells whether a program of this node waits for an answer with this ticket.
func (b *barriers) waitsFor(id ObjectID, t Ticket) bool {
	return slices.ContainsFunc(b.calls, func(c arrivalCall) bool { return c.ticket == t && c.object == id })
}

// onRelease answers the program whose call was waiting, if it still waits.
func (b *barriers) onRelease(m *Message) {
	k := m.AsBarrierRelease()
	i := slices.IndexFunc(b.calls, func(c arrivalCall) bool { return c.ticket == k.Ticket && c.object == m.Object })
	if i < 0 {
		return // canceled meanwhile
	}
	c := b.calls[i]
	switch {
	case m.From != c.to:
		b.reject(m, "the call that it answers went to another node, or was another")
		return
	case k.Status == StatusOwnerDied || k.Status == StatusUnrepaired:
		b.reject(m, "no lock was asked for")
		return
	}
	b.calls = slices.Delete(b.calls, i, i+1)
	b.complete(&c, k.Status, k.Result)
}

func (b *barriers) complete(c *arrivalCall, status Status, result []byte) {
	b.emit(Effect{Kind: EffectComplete, Object: c.object, Client: c.client, Ticket: c.ticket, Status: status, Payload: result})
}

// cancel ends a program's wait at a barrier. It returns false if the ticket does not wait at one.
// Only the home knows whether the arrival has been counted, so the home answers.
func (b *barriers) cancel(c ClientID, t Ticket) bool {
	i := slices.IndexFunc(b.calls, func(x arrivalCall) bool { return x.client == c && x.ticket == t })
	if i < 0 {
		return false
	}
	b.calls[i].cancelled = true
	b.sendCancel(&b.calls[i])
	return true
}

// withdraw takes back all arrivals of a program that has ended.
func (b *barriers) withdraw(client ClientID) {
	for i := len(b.calls) - 1; i >= 0; i-- {
		if c := b.calls[i]; c.client == client {
			b.calls = slices.Delete(b.calls, i, i+1)
			b.sendCancel(&c)
		}
	}
}

// sendCancel takes back an arrival, unless a recovery does, which forgets all arrivals.
func (b *barriers) sendCancel(c *arrivalCall) {
	if b.view.phase == running {
		b.sendToHome(c, &relayed{cancel: true})
	}
}

// suspend ends all relaying at the beginning of a recovery. Releases that may have gone astray are
// said once more, to each itself. Who has heard them before waits for that ticket no longer, and
// never uses one twice.
func (b *barriers) suspend() {
	for _, u := range b.unconfirmed {
		for _, a := range u.to {
			if b.isMember(a.node) {
				b.releaseEach(u.object, []addressee{a}, u.status, u.result)
			}
		}
	}
	b.relays, b.forwarded, b.unconfirmed, b.serial, b.waiting = nil, nil, nil, 0, 0
	b.openings.repeat(b.env)
}

// forgetArrivals forgets who has come to the barriers homed here. Those who still wait come again:
// see resume.
func (b *barriers) forgetArrivals() { b.open, b.arrived = nil, 0 }

// resume has all who still wait arrive anew when a recovery ends. They were not released before it,
// because a release would have come before the mark of its sender, also if it went through a tree
// and astray there (see suspend), or its sender is lost (see openings.go).
func (b *barriers) resume() {
	b.openings = nil
	calls := b.calls
	b.calls = nil
	for _, c := range calls {
		switch _, lost := b.formerHome(c.object); {
		case lost && c.to != NoNode && !b.isNamed(int(c.parties)):
			b.complete(&c, StatusNodeLost, nil) // who has passed it nobody knows
		case c.cancelled:
			b.complete(&c, StatusCanceled, nil)
		default:
			c.to = b.home(c.object)
			b.calls = append(b.calls, c)
			b.sendArrival(&c)
		}
	}
}

// clone returns an independent copy, in another environment.
func (b *barriers) clone(in *env) barriers {
	c := *b
	c.env = in
	c.calls, c.forwarded, c.unconfirmed = slices.Clone(b.calls), slices.Clone(b.forwarded), slices.Clone(b.unconfirmed)
	c.openings = slices.Clone(b.openings)
	c.open, c.relays = nil, nil
	for _, g := range b.open {
		k := *g
		k.arrivals = slices.Clone(g.arrivals)
		c.open = append(c.open, &k)
	}
	for _, r := range b.relays {
		k := *r
		k.pieces, k.stalled = slices.Clone(r.pieces), slices.Clone(r.stalled)
		for i := range k.pieces {
			k.pieces[i] = slices.Clone(k.pieces[i])
		}
		c.relays = append(c.relays, &k)
	}
	return c
}

// appendState appends an encoding: see Engine.AppendState.
func (b *barriers) appendState(to []byte) []byte {
	to = appendEach(to, b.open, func(to []byte, g *barrier) []byte {
		return appendEach(appendNumbers(to, uint64(g.id), uint64(g.parties), uint64(g.size), uint64(g.fold)), g.arrivals, func(to []byte, a arrival) []byte {
			return appendText(appendNumbers(to, uint64(a.node), uint64(a.ticket), uint64(a.rank)), a.payload)
		})
	})
	to = appendEach(to, b.calls, func(to []byte, c arrivalCall) []byte {
		to = appendNumbers(to, uint64(c.client), uint64(c.ticket), uint64(c.object), uint64(c.to), uint64(c.parties), uint64(c.rank), uint64(c.fold))
		return appendText(append(to, bits(c.cancelled)), c.payload)
	})
	to = appendEach(to, b.relays, func(to []byte, r *relay) []byte {
		to = append(appendNumbers(to, uint64(r.root), uint64(r.to)), bits(r.open))
		return appendInts(appendEach(to, r.pieces, appendText[[]byte]), r.stalled)
	})
	to = appendEach(to, b.forwarded, func(to []byte, f forwardedRelease) []byte {
		return appendNumbers(to, uint64(f.root), uint64(f.serial), f.missing)
	})
	to = appendEach(to, b.unconfirmed, func(to []byte, u unconfirmedRelease) []byte {
		to = appendNumbers(to, uint64(u.serial), uint64(u.child), uint64(u.object), uint64(u.status))
		to = appendEach(to, u.to, func(to []byte, a addressee) []byte { return appendNumbers(to, uint64(a.node), uint64(a.ticket)) })
		return appendText(to, u.result)
	})
	to = appendEach(to, b.openings, func(to []byte, o opening) []byte {
		return appendText(appendNumbers(to, uint64(o.home), uint64(o.object), uint64(o.status)), o.releases)
	})
	return appendNumbers(to, uint64(b.serial))
}

// check tells what contradicts itself: what is kept for a tree that nothing will move on, or what
// is counted wrongly.
func (b *barriers) check() error {
	if !b.usesTrees() && len(b.relays)+len(b.forwarded)+len(b.unconfirmed) > 0 {
		return fmt.Errorf("%d relays, %d forwarded and %d unconfirmed releases without trees", len(b.relays), len(b.forwarded), len(b.unconfirmed))
	}
	for _, r := range b.relays {
		if !r.open || len(r.stalled) > 0 && !r.full() || r.to != b.tree(r.root).above() {
			return fmt.Errorf("the relay to %d has sent nothing to %d, and %v wait", r.root, r.to, r.stalled)
		}
	}
	waiting, arrived := 0, 0
	for _, u := range b.unconfirmed {
		waiting += len(u.to)
	}
	for _, g := range b.open {
		arrived += len(g.arrivals)
		if len(g.arrivals) == 0 || len(g.arrivals) >= int(g.parties) {
			return fmt.Errorf("%d of %d wait at barrier %v", len(g.arrivals), g.parties, g.id)
		}
	}
	if waiting != b.waiting || arrived != b.arrived {
		return fmt.Errorf("%d tickets wait to be confirmed and %d arrivals, %d and %d are counted", waiting, arrived, b.waiting, b.arrived)
	}
	return nil
}
