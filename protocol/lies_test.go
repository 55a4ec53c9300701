package protocol

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"testing"
)

var liesSeed = flag.Uint64("lies.seed", 0, "run TestRandomLies with this seed alone")

// besiegedHost is an honest host with several pages, locks, barriers and names, whose peers lie at random. Siege visits every
// state of one object; this goes where several play together.
type besiegedHost struct {
	rng     *rand.Rand
	e       *Engine
	pages   map[ObjectID]Access
	ops     []Effect // under way: pages, or runs that are being forgotten
	armed   []ObjectID
	stash   map[ObjectID]bool
	backups map[ObjectID]bool
	open    map[Ticket]ClientID
	ticket  Ticket
	sent    []Message // by the engine, a few; honest answers to them are the best lies
	focus   uint64    // most of what happens is about one page and one lock, or their stories would be short
}

func newBesiegedHost(seed uint64, self NodeID, nodes int) *besiegedHost {
	cfg := Config{Self: self, Nodes: nodes, Pages: 12, HomeStripe: 2, Hold: 1, MaxHold: 4}
	if seed/8%2 == 0 { // barriers are trees
		cfg.TreeFrom, cfg.TreeArity = 2, 1+int(seed/16%2)
	}
	e := New(cfg)
	e.limits = limits{locks: 6, held: 5, pending: 8, arrivals: 5, names: 4, uses: 6}
	return &besiegedHost{rng: rand.New(rand.NewPCG(seed, uint64(self))), e: e, pages: map[ObjectID]Access{}, stash: map[ObjectID]bool{}, backups: map[ObjectID]bool{}, open: map[Ticket]ClientID{}, focus: seed / 8}
}

func (h *besiegedHost) one(n int) int { return h.rng.IntN(n) }

func (h *besiegedHost) object() ObjectID {
	switch h.one(16) {
	case 0, 1, 2, 3:
		return h.lock()
	case 4:
		return [...]ObjectID{11, 12, 13, 1 << 62, lockBit - 1}[h.one(5)]
	}
	return h.page()
}

func (h *besiegedHost) page() ObjectID {
	if h.one(4) > 0 {
		return PageObject(h.focus % 12)
	}
	return PageObject(h.rng.Uint64N(12))
}

func (h *besiegedHost) lock() ObjectID {
	if h.one(4) > 0 {
		return LockObject(h.focus % 10)
	}
	return LockObject(h.rng.Uint64N(10))
}

// node is mostly one of the cluster.
func (h *besiegedHost) node() NodeID {
	if h.one(30) == 0 {
		return [...]NodeID{NoNode, NodeID(h.e.cfg.Nodes), MaxNodes}[h.one(3)]
	}
	return NodeID(h.one(min(h.e.cfg.Nodes, 4)))
}

func (h *besiegedHost) payload() []byte {
	switch h.one(6) {
	case 0:
		return nil
	case 1:
		return make([]byte, [...]int{1, 15, 16, 17, MaxContribution, MaxContribution + 1, MaxPayload}[h.one(7)])
	case 2, 3:
		c := NameCall{Op: NameOp(h.one(5)), Client: ClientID(h.one(4)), Pages: h.rng.Uint64N(5), Name: string(rune('a' + h.one(6)))}
		if h.one(10) == 0 {
			c.Pages = 1<<64 - 1
		}
		return c.Append(nil)
	}
	first, count := h.rng.Uint64N(13), h.rng.Uint64N(5)
	if h.one(3) == 0 {
		return h.relayed()
	}
	if h.one(10) == 0 {
		first, count = h.rng.Uint64(), h.rng.Uint64()
	}
	return AppendRun(nil, first, count)
}

// relayed is what relays put together, or almost.
func (h *besiegedHost) relayed() []byte {
	var b []byte
	if h.one(2) == 0 {
		for range 1 + h.one(3) {
			g := gathered{node: h.node(), object: h.lock(), ticket: Ticket(h.one(12)), parties: uint32(1 + h.one(3)), rank: uint32(h.one(3)), payload: make([]byte, h.one(3))}
			if h.one(4) == 0 {
				g = gathered{node: g.node, cancel: true, object: g.object, ticket: g.ticket}
			}
			b = g.append(b)
		}
		return b
	}
	var to []addressee
	for range 1 + h.one(3) {
		to = append(to, addressee{h.node(), Ticket(h.one(12))})
	}
	return appendSpread(b, to, make([]byte, h.one(4)))
}

// epoch is a view without a node, with one more, or in which others are homes.
func (h *besiegedHost) epoch() Event {
	members := slices.Clone(h.e.memberList())
	epoch, recovered := h.e.Epoch()
	ev := Event{Kind: EventEpoch, Epoch: epoch + 1}
	switch more := NodeID(h.one(h.e.cfg.Nodes)); {
	case recovered && !slices.Contains(members, more):
		members = append(members, more)
		slices.Sort(members)
	case recovered && h.one(2) == 0:
		leaving := h.one(len(members))
		ev.Homes = slices.Delete(slices.Clone(members), leaving, leaving+1)
	default:
		if i := h.one(len(members)); members[i] != h.e.cfg.Self {
			members = slices.Delete(members, i, i+1)
		}
	}
	ev.Members = members
	return ev
}

// hostTakes says whether the engine's host lets a message through: contents only where they belong.
func hostTakes(m *Message) bool {
	return m.Flags&FlagData == 0 || (m.Kind == Grant || m.Kind == Backup) && !m.Object.IsLock() && m.Flags&FlagZero == 0
}

// lie is any message at all, or one that fits what the engine has said.
func (h *besiegedHost) lie() Message {
	from := h.node()
	for from == h.e.cfg.Self {
		from = h.node()
	}
	m := Message{
		Kind: Kind(1 + h.one(int(kindEnd))), Access: Access(h.one(3)), From: from, Requester: h.node(), Object: h.object(),
		Ticket: Ticket(h.one(12)), Aux: uint32(h.one(5)), Rank: uint32(h.one(4)), Status: Status(h.one(int(statusEnd))),
	}
	if h.one(3) == 0 {
		m.Flags = Flags(h.one(int(flagsAll) + 1))
	}
	if h.one(3) == 0 {
		m.Acks = [...]uint16{1, 2, uint16(h.e.cfg.Nodes), MaxNodes}[h.one(4)]
	}
	if h.one(50) == 0 {
		m.Aux, m.Rank, m.Ticket = 1<<32-1, 1<<32-1, 1<<64-1
	}
	if m.Kind.hasPayload() {
		m.Payload = h.payload()
	}
	if len(h.sent) > 0 && h.one(4) > 0 {
		h.answer(&m, &h.sent[h.one(len(h.sent))])
	}
	if !hostTakes(&m) {
		m.Flags &^= FlagData // the host of the engine refuses those
	}
	return m
}

// answer makes m what a peer might answer to a message of the engine's.
func (h *besiegedHost) answer(m, to *Message) {
	m.Object, m.Ticket, m.Access = to.Object, to.Ticket, to.Access
	m.From = to.To
	switch to.Kind {
	case Request:
		m.Kind = [...]Kind{Grant, Forward, Invalidate, InvalidateAck}[h.one(4)]
		if m.Kind == Grant {
			m.Flags = FlagZero
		}
	case Forward, Invalidate:
		switch {
		case to.Requester != h.e.cfg.Self:
			m.From, m.Kind = to.Requester, Done
		case to.Kind == Forward:
			m.Kind, m.Acks, m.Flags = Grant, to.Acks, FlagData
			if to.Object.IsLock() {
				m.Flags = FlagZero
			}
		default:
			m.Kind = InvalidateAck
		}
	case Grant:
		m.Kind = [...]Kind{Done, InvalidateAck, Forward, Request}[h.one(4)]
	case BarrierArrive, BarrierCancel:
		m.Kind = BarrierRelease
	case BarrierGather: // it came from another node's program, or this one's
		m.Kind, m.Requester, m.Payload = BarrierGatherAck, to.Requester, nil
		if all, _ := decodeGathered(to.Payload); h.one(2) == 0 && len(all) > 0 {
			g := &all[h.one(len(all))]
			m.Kind, m.Object, m.Ticket, m.Status = BarrierSpread, g.object, Ticket(h.one(4)), Status(h.one(3)*h.one(2)*4)
			m.Payload = appendSpread(nil, []addressee{{g.node, g.ticket}}, g.payload)
		}
	case BarrierGatherAck:
		m.Kind, m.Requester, m.Payload = BarrierGather, to.Requester, nil
		for range 1 + h.one(3) {
			g := gathered{node: to.To, object: h.lock(), ticket: Ticket(h.one(12)), parties: uint32(1 + h.one(3)), rank: uint32(h.one(3)), payload: make([]byte, h.one(2))}
			m.Payload = g.append(m.Payload)
		}
	case BarrierSpread:
		m.Kind, m.Requester = BarrierSpreadAck, to.Requester
	case BarrierSpreadAck:
		m.Kind, m.Requester, m.Payload = BarrierSpread, to.Requester, h.relayed()
	case NameRequest:
		m.Kind, m.Status = NameReply, StatusOK
	case Forget:
		m.Kind, m.Aux = ForgetAck, to.Aux
	case Backup:
		m.Kind, m.Aux, m.Flags = BackupAck, to.Aux, to.Flags&FlagBackup
	case BackupAck:
		m.Kind, m.Aux, m.Flags, m.Rank = Backup, to.Aux, FlagZero|to.Flags&FlagBackup, 1
		if to.Flags&FlagBackup != 0 && h.one(2) == 0 {
			m.Flags, m.Ticket = FlagBackup, Ticket(to.Aux)<<32
		}
	case ForgetAck:
		m.Kind, m.Aux, m.Payload = Forget, to.Aux+1, AppendRun(nil, uint64(to.Object), 1)
	case EpochMark, ReportHeld, ReportBound, EpochReady:
		m.Kind, m.Aux, m.Ticket, m.Payload = to.Kind, to.Aux, 1, nil
		switch {
		case h.one(3) == 0:
			m.Kind = EpochMark + Kind(h.one(4))
		case to.Kind == ReportBound || to.Kind == ReportHeld && h.one(8) == 0:
			m.Kind, m.Payload = ReportBound, AppendRun(nil, uint64(h.one(8)), uint64(1+h.one(4)))
		case to.Kind == ReportHeld:
			for range h.one(4) {
				m.Payload = AppendHolding(m.Payload, h.object(), Access(h.one(3)))
				if h.one(2) == 0 {
					m.Payload = AppendBackup(m.Payload, h.page(), uint32(h.one(3)), uint32(h.one(3)))
				}
			}
		}
	}
	if m.From == h.e.cfg.Self {
		m.From = NodeID((int(m.From) + 1) % h.e.cfg.Nodes)
	}
	if !m.Kind.hasPayload() {
		m.Payload = nil
	} else if m.Payload == nil {
		m.Payload = h.payload()
	}
}

// own lets something happen that the honest host brings about.
func (h *besiegedHost) own() Event {
	client := ClientID(1 + h.one(3))
	switch k := h.one(12); {
	case k < 3 && len(h.ops) > 0:
		i := h.one(len(h.ops))
		f := h.ops[i]
		h.ops = append(h.ops[:i], h.ops[i+1:]...)
		if f.Kind == EffectForget {
			return Event{Kind: EventForgotten, Object: f.Object}
		}
		return Event{Kind: EventCompleted, Effect: f.Kind, Object: f.Object}
	case k == 3 && len(h.armed) > 0:
		i := h.one(len(h.armed))
		id := h.armed[i]
		h.armed = append(h.armed[:i], h.armed[i+1:]...)
		return Event{Kind: EventHoldOver, Object: id}
	case k < 8:
		return Event{Kind: EventFault, Access: Access(1 + h.one(2)), Object: h.page(), Client: ClientID(h.one(4)), Thread: uint32(h.one(3))}
	case k == 8:
		return Event{Kind: EventRelease, Client: client, Object: h.lock(), Access: Access(1 + h.one(2))}
	case k == 9 && h.one(4) == 0:
		for t, c := range h.open { // a client that has gone waits for nothing
			if c == client {
				delete(h.open, t)
			}
		}
		return Event{Kind: EventClientGone, Client: client, Rank: uint32(client)}
	case k == 9 && h.one(8) == 0 && len(h.e.memberList()) > 1:
		return h.epoch()
	case k == 9:
		return Event{Kind: EventCancel, Client: client, Ticket: Ticket(h.rng.Uint64N(uint64(h.ticket) + 1))}
	}
	h.ticket++
	h.open[h.ticket] = client
	ev := Event{Client: client, Ticket: h.ticket, Object: h.lock(), Access: Access(1 + h.one(2))}
	switch h.one(4) {
	case 0:
		ev.Kind = EventAcquire
	case 3:
		ev.Kind = EventCommit
	case 1:
		ev.Kind, ev.Parties, ev.Rank, ev.Payload = EventArrive, uint32(1+h.one(3)), uint32(h.one(3)), make([]byte, h.one(3))
	default:
		call := NameCall{Op: Bind, Client: client, Pages: 1 + h.rng.Uint64N(4), Replicas: uint8(h.one(3)), Name: string(rune('a' + h.one(6)))}
		if h.one(2) == 0 {
			call = NameCall{Op: Unbind, Client: client, Name: call.Name}
		}
		ev.Kind, ev.Object, ev.Payload = EventName, 0, call.Append(nil)
	}
	return ev
}

// step lets an event happen and carries out its effects.
func (h *besiegedHost) step(ev Event) (rejected bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	ev.Now = Time(h.one(8))
	for _, f := range h.e.Step(ev, nil) {
		if f.Kind == EffectReject {
			if f.Message.From == h.e.cfg.Self {
				return false, fmt.Errorf("the node rejects its own %v: %s", f.Message.Kind, f.Reason)
			}
			rejected = ev.Kind == EventMessage && f.Message.Kind == ev.Message.Kind && f.Message.From == ev.Message.From
			continue
		}
		if err := h.carryOut(&f); err != nil {
			return rejected, err
		}
	}
	return rejected, h.check()
}

func (h *besiegedHost) carryOut(f *Effect) error {
	has, after := h.pages[f.Object], None
	possible := true
	switch f.Kind {
	case EffectInstall:
		delete(h.stash, f.Object)
		possible, after = has == None && (!f.Backup || h.backups[f.Object]), f.Access
	case EffectMap:
		after = has
	case EffectLost:
		possible, after = has == None, None
	case EffectResumed, EffectHandedOver:
		return nil
	case EffectMakeWritable:
		possible, after = has == Read, Write
	case EffectDowngrade:
		possible, after = has != None, Read
	case EffectRevoke:
		possible = has != None && int(f.Message.Requester) < h.e.cfg.Nodes && f.Message.Requester != h.e.cfg.Self
	case EffectForget:
		return h.forget(f)
	case EffectBackup:
		if f.Object.IsLock() || f.Object.Page() >= h.e.cfg.Pages || f.Message.Kind == 0 && has != Read {
			return fmt.Errorf("%v is backed up with access %v", f.Object, has)
		}
		h.backups[f.Object] = true
		return nil
	case EffectStash:
		if h.stash[f.Object] {
			return fmt.Errorf("%v is stashed twice", f.Object)
		}
		h.stash[f.Object] = true
		return nil
	case EffectHold:
		h.armed = append(h.armed, f.Object)
		return nil
	case EffectComplete:
		if h.open[f.Ticket] != f.Client {
			return fmt.Errorf("ticket %d of client %d is completed, it is open for %d", f.Ticket, f.Client, h.open[f.Ticket])
		}
		delete(h.open, f.Ticket)
		return nil
	case EffectSend:
		if int(f.Message.To) >= h.e.cfg.Nodes || f.Message.To == h.e.cfg.Self {
			return fmt.Errorf("a %v is sent to %d", f.Message.Kind, f.Message.To)
		}
		if f.Backup && !h.backups[f.Object] {
			return fmt.Errorf("%v is sent from a backup that there is not", f.Object)
		}
		if len(h.sent) == 20 {
			h.sent = h.sent[1:]
		}
		h.sent = append(h.sent, f.Message)
		return nil
	default:
		return fmt.Errorf("effect %d", f.Kind)
	}
	for _, op := range h.ops {
		if op.Kind != EffectForget && op.Object == f.Object || op.Kind == EffectForget && f.Kind != EffectMap && f.Object >= op.Object && uint64(f.Object-op.Object) < op.Count {
			possible = false
		}
	}
	if !possible || f.Object.IsLock() || f.Object.Page() >= h.e.cfg.Pages {
		return fmt.Errorf("effect %d on %v with access %v, while under way is %v", f.Kind, f.Object, has, h.ops)
	}
	h.pages[f.Object] = after
	h.ops = append(h.ops, *f)
	return nil
}

func (h *besiegedHost) forget(f *Effect) error {
	if f.Object.IsLock() || f.Count == 0 || f.Object.Page()+f.Count > h.e.cfg.Pages {
		return fmt.Errorf("pages %v+%d are forgotten", f.Object, f.Count)
	}
	for _, op := range h.ops {
		if op.Object < f.Object+ObjectID(f.Count) && f.Object < op.Object+ObjectID(max(op.Count, 1)) {
			return fmt.Errorf("pages %v+%d are forgotten while effect %d is under way on %v+%d", f.Object, f.Count, op.Kind, op.Object, op.Count)
		}
	}
	for i := range f.Count {
		h.pages[f.Object+ObjectID(i)] = None
		delete(h.backups, f.Object+ObjectID(i))
	}
	h.ops = append(h.ops, *f)
	return nil
}

// check says what contradicts itself or is more than it may be.
func (h *besiegedHost) check() error {
	e, l := h.e, &h.e.limits
	arrivals, uses := 0, 0
	for _, b := range e.barriers {
		arrivals += len(b.arrivals)
	}
	for _, b := range e.names.bound {
		uses += len(b.users)
	}
	held := map[ClientID]int{}
	for _, k := range e.locks {
		for _, w := range k.queue {
			held[w.client]++
		}
		for _, c := range k.readers {
			held[c]++
		}
		if k.writer != 0 {
			held[k.writer]++
		}
	}
	for _, c := range e.holders {
		if held[c.client] != c.held || c.held > l.held {
			return fmt.Errorf("client %d is counted to hold %d, it holds %d of %d", c.client, c.held, held[c.client], l.held)
		}
		delete(held, c.client)
	}
	switch {
	case len(held) > 0:
		return fmt.Errorf("not counted are the locks of %v", held)
	case arrivals != e.arrived || arrivals > l.arrivals:
		return fmt.Errorf("%d arrivals, %d counted, %d possible", arrivals, e.arrived, l.arrivals)
	case len(e.trees.passed) > l.arrivals || e.trees.waiting > l.arrivals || len(e.trees.relays) > e.cfg.Nodes:
		return fmt.Errorf("%d relays, %d releases that were passed on, %d tickets to be confirmed, of %d", len(e.trees.relays), len(e.trees.passed), e.trees.waiting, l.arrivals)
	case uses != e.names.uses || uses > l.uses || len(e.names.bound)+len(e.names.freeing) > l.names || len(e.dead) > l.names:
		return fmt.Errorf("%d uses, %d counted, %d names, %d runs being freed", uses, e.names.uses, len(e.names.bound), len(e.dead))
	case e.objects.locks > l.locks || e.objects.count-e.objects.locks > int(e.cfg.Pages):
		return fmt.Errorf("%d objects, of them %d locks", e.objects.count, e.objects.locks)
	case len(e.replicas.store) > len(h.backups) || len(e.replicas.written) > int(e.cfg.Pages) || len(e.replicas.calls)+len(e.replicas.later) > len(h.open):
		return fmt.Errorf("%d backups of %d, %d pages to commit for %d and %d calls", len(e.replicas.store), len(h.backups), len(e.replicas.written), len(e.replicas.calls), len(e.replicas.later))
	case len(e.calls) > len(h.open):
		return fmt.Errorf("%d calls wait of %d", len(e.calls), len(h.open))
	}
	return e.Check()
}

// TestRandomLies: whatever peers say to a node with pages, locks, barriers and names, it neither panics nor contradicts itself, grows
// beyond its limits, or wants something done that its host could not do; and what it rejects changes nothing.
func TestRandomLies(t *testing.T) {
	seeds, steps := uint64(1500), 400
	if testing.Short() {
		seeds = 100
	}
	first := rand.Uint64()
	if *liesSeed != 0 {
		first, seeds = *liesSeed, 1
	}
	accepted, said := 0, 0
	for seed := first; seed != first+seeds; seed++ {
		nodes := [...]int{2, 3, 4, 200}[seed%4]
		h := newBesiegedHost(seed, NodeID(seed/4%2), nodes)
		for step := range steps {
			if h.one(3) > 0 {
				if _, err := h.step(h.own()); err != nil {
					t.Fatalf("-lies.seed %d, step %d: %v", seed, step, err)
				}
				continue
			}
			m := h.lie()
			before := string(h.e.AppendState(nil))
			rejected, err := h.step(Event{Kind: EventMessage, Message: &m})
			// That reports contradict each other shows only when they are put together.
			if err == nil && rejected && m.Kind != ReportHeld && string(h.e.AppendState(nil)) != before {
				err = errors.New("it was rejected, and has changed something")
			}
			if err != nil {
				t.Fatalf("-lies.seed %d, step %d: %+v: %v", seed, step, m, err)
			}
			if said++; !rejected {
				accepted++
			}
		}
	}
	t.Logf("seeds from %d: %d lies, of which %d were believed", first, said, accepted)
	if *liesSeed == 0 && accepted < said/50 {
		t.Errorf("only %d of %d lies were believed: they are too simple", accepted, said)
	}
}

// TestMutatedConversation: honest nodes talk to each other and to one whose messages are honest, but now and then changed in a field, said
// twice, or left out. The honest nodes bear it as they bear lies.
func TestMutatedConversation(t *testing.T) {
	seeds, steps := uint64(400), 500
	if testing.Short() {
		seeds = 60
	}
	first := rand.Uint64()
	if *liesSeed != 0 {
		first, seeds = *liesSeed, 1
	}
	delivered, mutated := 0, 0
	for seed := first; seed != first+seeds; seed++ {
		const nodes = 3
		liar := NodeID(seed % nodes)
		rng := rand.New(rand.NewPCG(seed, 77))
		var hosts []*besiegedHost
		for n := range NodeID(nodes) {
			hosts = append(hosts, newBesiegedHost(seed, n, nodes))
			hosts[n].e.limits = allLimits
		}
		var onWay []Message // messages between two nodes stay in order
		step := func(h *besiegedHost, ev Event) {
			h.sent = h.sent[:0]
			if _, err := h.step(ev); err != nil {
				if h.e.cfg.Self != liar {
					t.Fatalf("-lies.seed %d: node %d: %v", seed, h.e.cfg.Self, err)
				}
			}
			onWay = append(onWay, h.sent...)
		}
		for range steps {
			if len(onWay) == 0 || rng.IntN(3) == 0 {
				if h := hosts[rng.IntN(nodes)]; h.e.cfg.Self != liar || rng.IntN(2) == 0 {
					step(h, h.own())
				}
				continue
			}
			m := onWay[0]
			onWay = onWay[1:]
			delivered++
			if m.To == liar { // it hears only what is true, so that it has something true to distort
				step(hosts[liar], Event{Kind: EventMessage, Message: &m})
				continue
			}
			if m.From == liar && rng.IntN(12) == 0 {
				mutated++
				switch rng.IntN(6) {
				case 0:
					continue
				case 1:
					step(hosts[m.To], Event{Kind: EventMessage, Message: &m})
				default:
					hosts[m.To].mutate(&m)
				}
			}
			step(hosts[m.To], Event{Kind: EventMessage, Message: &m})
		}
	}
	t.Logf("seeds from %d: %d messages, %d of them mutated", first, delivered, mutated)
	if mutated < int(seeds)/4 {
		t.Errorf("only %d messages were mutated", mutated)
	}
}

// mutate changes one field of a message to the host, as far as its host would let it through.
func (h *besiegedHost) mutate(m *Message) {
	other := h.lie()
	switch h.one(9) {
	case 0:
		m.Kind = other.Kind
	case 1:
		m.Access = other.Access
	case 2:
		m.Flags ^= FlagHasCopy << h.one(4)
	case 3:
		m.Requester = other.Requester
	case 4:
		m.Acks = other.Acks + 1
	case 5:
		m.Object = other.Object
	case 6:
		m.Ticket = other.Ticket
	case 7:
		m.Aux, m.Rank = other.Aux+1, other.Rank
	case 8:
		m.Status = other.Status
		if m.Kind.hasPayload() {
			m.Payload = h.payload()
		}
	}
	if !m.Kind.hasPayload() {
		m.Payload = nil
	}
	if !hostTakes(m) {
		m.Flags &^= FlagData
	}
}

// TestLiesAboutFreeing: an acknowledgement said twice does not stand for another node's, and no page is freed twice at a time. Random lies
// come upon these seldom.
func TestLiesAboutFreeing(t *testing.T) {
	rejects := func(e *Engine, m Message) bool {
		out := e.Step(Event{Kind: EventMessage, Message: &m}, nil)
		return len(out) == 1 && out[0].Kind == EffectReject
	}
	cfg := Config{Nodes: 3, Pages: 8, HomeStripe: 1}
	directory := New(cfg)
	directory.Step(Event{Kind: EventName, Client: 1, Ticket: 1, Payload: (&NameCall{Op: Bind, Client: 1, Pages: 2, Name: "a"}).Append(nil)}, nil)
	directory.Step(Event{Kind: EventFault, Client: 1, Object: PageObject(0), Access: Write, Thread: 1}, nil) // being installed: this node's own acknowledgement waits
	directory.Step(Event{Kind: EventName, Client: 1, Ticket: 2, Payload: (&NameCall{Op: Unbind, Client: 1, Name: "a"}).Append(nil)}, nil)
	ack := Message{Kind: ForgetAck, From: 1, Object: PageObject(0), Aux: 1}
	if rejects(directory, ack) {
		t.Error("the first acknowledgement is rejected")
	}
	if !rejects(directory, ack) {
		t.Error("a second acknowledgement counts")
	}
	cfg.Self = 1
	e := New(cfg)
	if rejects(e, Message{Kind: Forget, Object: PageObject(0), Aux: 1, Payload: AppendRun(nil, 0, 2)}) {
		t.Error("the freeing of pages is rejected")
	}
	for _, run := range [][2]uint64{{1, 1}, {0, 2}, {1, 7}, {8, 0}, {3, 0}, {7, 2}} {
		if !rejects(e, Message{Kind: Forget, Object: PageObject(run[0]), Aux: 1, Payload: AppendRun(nil, run[0], run[1])}) {
			t.Errorf("pages %d+%d are freed, although they are being freed or are none", run[0], run[1])
		}
	}
}
