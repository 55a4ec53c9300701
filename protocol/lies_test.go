package protocol

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"testing"
)

var (
	liesSeed = flag.Uint64("lies.seed", 0, "run TestRandomLies with this seed alone")
	liesRuns = flag.Uint64("lies.runs", 500, "how many seeds TestRandomLies runs")
)

// besiegedHost is an honest host with several pages, locks, barriers and names, whose peers lie at
// random. Siege visits every state of one object; this goes where several play together.
type besiegedHost struct {
	rng     *rand.Rand
	e       *Engine
	pages   map[ObjectID]Access
	ops     []Effect // under way: pages, or runs that are being forgotten
	armed   []ObjectID
	offers  []Effect // of pages that others have no room for
	stash   map[ObjectID]bool
	backups map[ObjectID]bool
	open    map[Ticket]ClientID
	ticket  Ticket
	sent    []Message // by the engine, a few; honest answers to them are the best lies
	// most of what happens is about one page and one lock, or their stories would be short
	focus uint64
}

func newBesiegedHost(seed uint64, self NodeID, nodes int) *besiegedHost {
	cfg := Config{Self: self, Nodes: nodes, Pages: 12, HomeStripe: 2, Hold: 1, MaxHold: 4}
	if seed/8%2 == 0 { // barriers are trees
		cfg.TreeFrom, cfg.TreeArity = 2, 1+int(seed/16%2)
		cfg.ManyReaders = 1 + int(seed/32%2)*7
	}
	e := New(cfg)
	e.limits = limits{locks: 6, held: 5, pending: 8, arrivals: 5, names: 4, uses: 6, past: 4 << 10}
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
	if h.one(4) == 0 {
		return appendNodes(nil, []NodeID{h.node(), h.node()}[h.one(3)/2:])
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
			g := relayed{node: h.node(), object: h.lock(), ticket: Ticket(h.one(12)), parties: uint32(1 + h.one(3)), rank: uint32(h.one(3)), payload: make([]byte, h.one(3))}
			if h.one(4) == 0 {
				g = relayed{node: g.node, cancel: true, object: g.object, ticket: g.ticket}
			}
			b = g.append(b)
		}
		return b
	}
	var to []addressee
	for range 1 + h.one(3) {
		to = append(to, addressee{h.node(), Ticket(h.one(12))})
	}
	return appendBroadcast(b, to, make([]byte, h.one(4)))
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

// often is how often something is said: mostly as often as usual, and sometimes so often that it
// should not be listened to.
func (h *besiegedHost) often(usual int) int {
	if h.one(10) == 0 {
		return 3000
	}
	return usual
}

// hostTakes reports whether the engine's host lets a message through: contents only where they
// belong.
func hostTakes(m *Message) bool {
	return m.contents != PageContents || !m.Object.IsLock()
}

// lie is any message at all, or one that fits what the engine has said.
func (h *besiegedHost) lie() Message {
	from := h.node()
	for from == h.e.cfg.Self {
		from = h.node()
	}
	m := Message{
		Kind: Kind(1 + h.one(int(kindEnd)-1)), access: Access(h.one(3)), From: from, node: h.node(), Object: h.object(),
		ticket: Ticket(h.one(12)), word: uint32(h.one(5)), rank: uint32(h.one(4)), status: Status(h.one(int(statusEnd))),
	}
	if h.one(3) == 0 {
		m.flags, m.contents = flags(h.one(int(2*flagBackup))), Contents(h.one(4))
	}
	if h.one(3) == 0 {
		m.acks = [...]uint16{1, 2, uint16(h.e.cfg.Nodes), MaxNodes}[h.one(4)]
	}
	if h.one(50) == 0 {
		m.word, m.rank, m.ticket = 1<<32-1, 1<<32-1, 1<<64-1
	}
	if m.uses(slotPayload) {
		m.Payload = h.payload()
	}
	if len(h.sent) > 0 && h.one(4) > 0 {
		h.answer(&m, &h.sent[h.one(len(h.sent))])
	}
	if p := h.e.view.phase; (p == flushing || p == reporting) && h.one(6) == 0 {
		h.answer(&m, &Message{Kind: [...]Kind{KindReportHeld, KindReportBound}[h.one(2)], To: m.From, word: h.e.view.epoch})
	}
	m.sayable()
	return m
}

// uses reports whether messages of this kind use the slots.
func (m *Message) uses(s slots) bool { return kindTable[m.Kind].uses&s == s }

// sayable empties the slots of which the decoder, or the host of the engine, refuses what is in
// them.
func (m *Message) sayable() {
	k := *m
	*m = Message{Kind: k.Kind, From: k.From, To: k.To}
	for slot, keep := range map[slots]func(){
		slotObject: func() { m.Object = k.Object }, slotAccess: func() { m.access = k.access },
		slotHasCopy: func() { m.flags |= k.flags & flagHasCopy }, slotBackup: func() { m.flags |= k.flags & flagBackup },
		slotContents: func() { m.contents = k.contents }, slotStatus: func() { m.status = k.status },
		slotNode: func() { m.node = k.node }, slotAcks: func() { m.acks = k.acks }, slotWord: func() { m.word = k.word },
		slotRank: func() { m.rank = k.rank }, slotTicket: func() { m.ticket = k.ticket }, slotPayload: func() { m.Payload = k.Payload },
	} {
		if m.uses(slot) {
			keep()
		}
	}
	if !hostTakes(m) {
		m.contents = NoContents
	}
}

// answer makes m what a peer might answer to a message of the engine's.
func (h *besiegedHost) answer(m, to *Message) {
	m.Object, m.ticket, m.access = to.Object, to.ticket, to.access
	m.From = to.To
	switch to.Kind {
	case KindRequest:
		m.Kind = [...]Kind{KindGrant, KindForward, KindInvalidate, KindInvalidateAck, KindMulticast, KindMulticastEnd}[h.one(6)]
		if m.Kind == KindGrant || m.Kind == KindMulticast {
			m.contents = ZeroContents
		}
		if m.Kind == KindMulticastEnd {
			m.Payload = appendNodes(nil, []NodeID{h.e.cfg.Self})
		}
	case KindMulticast:
		m.Kind, m.Payload = KindMulticastAck, appendNodes(nil, []NodeID{to.To}[h.one(2):])
	case KindMulticastAck:
		m.Kind, m.node, m.Payload = KindMulticastEnd, to.To, appendNodes(nil, []NodeID{h.e.cfg.Self})
	case KindVerify: // the home says so, or another
		m.Kind, m.node, m.Payload = KindInvalidate, to.node, appendNodes(nil, []NodeID{2}[h.one(2):])
	case KindForward, KindInvalidate:
		switch {
		case to.node != h.e.cfg.Self:
			m.From, m.Kind = to.node, KindDone
		case to.Kind == KindForward:
			m.Kind, m.acks, m.flags, m.contents = KindGrant, to.acks, 0, PageContents
			if to.Object.IsLock() {
				m.contents = ZeroContents
			}
		default:
			m.Kind = KindInvalidateAck
		}
	case KindGrant:
		m.Kind = [...]Kind{KindDone, KindInvalidateAck, KindForward, KindRequest, KindVerify}[h.one(5)]
	case KindBarrierArrive, KindBarrierCancel:
		m.Kind = KindBarrierRelease
		if h.one(2) == 0 {
			m.Kind, m.status, m.Payload = KindBarrierOpen, Status(h.one(3)*h.one(2)*4), appendBroadcast(nil, []addressee{{to.From, to.ticket}}, to.Payload)
			m.ticket, m.word, m.rank, m.fold = 0, 0, 0, 0
		}
	case KindBarrierCombine: // it came from another node's program, or this one's
		m.Kind, m.node, m.Payload = KindBarrierCombineAck, to.node, nil
		if all, _ := decodeRelayed(to.Payload); h.one(2) == 0 && len(all) > 0 {
			g := &all[h.one(len(all))]
			m.Kind, m.Object, m.ticket, m.status = KindBarrierBroadcast, g.object, Ticket(h.one(4)), Status(h.one(3)*h.one(2)*4)
			m.Payload = appendBroadcast(nil, []addressee{{g.node, g.ticket}}, g.payload)
		}
	case KindBarrierCombineAck:
		m.Kind, m.node, m.Payload = KindBarrierCombine, to.node, nil
		for range 1 + h.one(3) {
			g := relayed{node: to.To, object: h.lock(), ticket: Ticket(h.one(12)), parties: uint32(1 + h.one(3)), rank: uint32(h.one(3)), payload: make([]byte, h.one(2))}
			m.Payload = g.append(m.Payload)
		}
	case KindBarrierBroadcast:
		m.Kind, m.node = KindBarrierBroadcastAck, to.node
	case KindBarrierBroadcastAck:
		m.Kind, m.node, m.Payload = KindBarrierBroadcast, to.node, h.relayed()
	case KindNameRequest:
		m.Kind, m.status = KindNameReply, StatusOK
	case KindFree:
		m.Kind, m.word = KindFreeAck, to.word
	case KindBackup:
		m.Kind, m.word = KindBackupAck, to.word
	case KindBackupCopy:
		m.Kind, m.word = KindBackupCopyAck, to.word
	case KindBackupAck:
		m.Kind, m.word, m.contents, m.rank = KindBackup, to.word, ZeroContents, 1
	case KindBackupCopyAck:
		m.Kind, m.word, m.contents, m.rank = KindBackupCopy, to.word, ZeroContents, 1
		if h.one(2) == 0 {
			m.contents, m.ticket = NoContents, Ticket(to.word)<<32
		}
	case KindFreeAck:
		m.Kind, m.word, m.Payload = KindFree, to.word+1, AppendRun(nil, uint64(to.Object), 1)
	case KindEpochMarker, KindReportHeld, KindReportBound, KindEpochReady:
		m.Kind, m.word, m.rank, m.Payload = to.Kind, to.word, 1, nil
		if h.one(4) == 0 {
			// in several messages, of which not all may come
			m.rank = [...]uint32{2, 3, 1 << 20}[h.one(3)]
		}
		switch {
		case h.one(3) == 0:
			m.Kind = KindEpochMarker + Kind(h.one(4))
		case to.Kind == KindReportBound || to.Kind == KindReportHeld && h.one(8) == 0:
			m.Kind = KindReportBound
			many := h.often(1)
			if many > 1 {
				m.rank = 1 << 20
			}
			for range many {
				m.Payload = AppendRun(m.Payload, uint64(h.one(8)), uint64(1+h.one(4)))
			}
		case to.Kind == KindReportHeld:
			if many := h.often(0); many > 0 {
				m.rank = 1 << 20
				id := h.object()
				for range many {
					m.Payload = AppendHolding(m.Payload, id, None)
				}
			}
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
	if !m.uses(slotPayload) {
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
		if f.Kind == EffectFree {
			return Event{Kind: EventFreed, Object: f.Object}
		}
		return Event{Kind: EventCompleted, Effect: f.Kind, Object: f.Object}
	case k == 3 && len(h.armed) > 0:
		i := h.one(len(h.armed))
		id := h.armed[i]
		h.armed = append(h.armed[:i], h.armed[i+1:]...)
		return Event{Kind: EventHoldOver, Object: id}
	case k == 4 && len(h.offers) > 0:
		f := h.offers[0]
		h.offers = h.offers[1:]
		return [...]Event{{Kind: EventDecline, Object: f.Object, Node: f.Heir}, {Kind: EventAccept, Object: f.Object}}[h.one(2)]
	case k == 5 && h.one(2) == 0:
		return Event{Kind: EventEvict, Object: h.page(), Node: NodeID(h.one(h.e.cfg.Nodes))}
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
		if fold := FoldOf(FoldOp(h.one(4)), NumberUint8); fold.Fits(len(ev.Payload)) {
			ev.Fold = fold
		}
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
		possible, after = has == None && (f.Source != SourceBackup || h.backups[f.Object]), f.Access
	case EffectMap:
		after = has
	case EffectLost:
		possible, after = has == None, None
	case EffectResumed, EffectHandedOver:
		return nil
	case EffectOffered, EffectDeclined:
		if int(f.Heir) >= h.e.cfg.Nodes || f.Heir == h.e.cfg.Self {
			return fmt.Errorf("effect %d on %v, from node %d", f.Kind, f.Object, f.Heir)
		}
		if f.Kind == EffectOffered && len(h.offers) < 20 {
			h.offers = append(h.offers, *f)
		}
		return nil
	case EffectMakeWritable:
		possible, after = has == Read, Write
	case EffectDowngrade:
		possible, after = has != None && (int(f.Heir) < h.e.cfg.Nodes && f.Heir != h.e.cfg.Self || f.Heir == NoNode), Read
	case EffectRevoke:
		possible = has != None && (int(f.Heir) < h.e.cfg.Nodes && f.Heir != h.e.cfg.Self || f.Heir == NoNode && !f.Save && has == Read)
	case EffectFree:
		return h.forget(f)
	case EffectBackup:
		if f.Object.IsLock() || f.Object.Page() >= h.e.cfg.Pages || f.Source == SourcePage && has != Read {
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
		if f.Source == SourceBackup && !h.backups[f.Object] {
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
		if op.Kind != EffectFree && op.Object == f.Object || op.Kind == EffectFree && f.Kind != EffectMap && f.Object >= op.Object && uint64(f.Object-op.Object) < op.Count {
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
	for _, b := range e.barriers.open {
		arrivals += len(b.arrivals)
	}
	for _, b := range e.registry.bound {
		uses += len(b.users)
	}
	held := map[ClientID]int{}
	for _, k := range e.locks.list {
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
	for _, c := range e.locks.clients {
		if held[c.client] != c.held || c.held > l.held {
			return fmt.Errorf("client %d is counted to hold %d, it holds %d of %d", c.client, c.held, held[c.client], l.held)
		}
		delete(held, c.client)
	}
	switch {
	case len(held) > 0:
		return fmt.Errorf("not counted are the locks of %v", held)
	case arrivals != e.barriers.arrived || arrivals > l.arrivals:
		return fmt.Errorf("%d arrivals, %d counted, %d possible", arrivals, e.barriers.arrived, l.arrivals)
	case len(e.barriers.forwarded) > l.arrivals || e.barriers.waiting > l.arrivals || len(e.barriers.relays) > e.cfg.Nodes:
		return fmt.Errorf("%d relays, %d releases that were passed on, %d tickets to be confirmed, of %d", len(e.barriers.relays), len(e.barriers.forwarded), e.barriers.waiting, l.arrivals)
	case uses != e.registry.uses || uses > l.uses || len(e.registry.bound) > l.names || len(e.registry.bound)+len(e.registry.freeing) > l.runs() || len(e.reclaim.freed) > l.runs():
		return fmt.Errorf("%d uses, %d counted, %d names, %d runs being freed", uses, e.registry.uses, len(e.registry.bound), len(e.reclaim.freed))
	case e.objects.locks > l.locks || e.objects.count-e.objects.locks > int(e.cfg.Pages):
		return fmt.Errorf("%d objects, of them %d locks", e.objects.count, e.objects.locks)
	case len(e.backups.store) > len(h.backups) || len(e.commits.written) > int(e.cfg.Pages) || len(e.commits.calls)+len(e.commits.later) > len(h.open):
		return fmt.Errorf("%d backups of %d, %d pages to commit for %d and %d calls", len(e.backups.store), len(h.backups), len(e.commits.written), len(e.commits.calls), len(e.commits.later))
	case h.kept() > keptBytes*e.cfg.Nodes:
		return fmt.Errorf("%d bytes are kept of what peers have said in a recovery, with %d nodes", h.kept(), e.cfg.Nodes)
	case len(e.barriers.calls)+len(e.names.calls) > len(h.open):
		return fmt.Errorf("%d calls wait of %d", len(e.barriers.calls)+len(e.names.calls), len(h.open))
	}
	return e.Check()
}

// keptBytes is more than an honest peer of a besieged host could have to say in one recovery: of 12
// pages, 6 locks, and 4 names with 6 uses, and of what was before.
const keptBytes = 32 << 10

// kept is how many bytes of messages a recovery keeps that is under way.
func (h *besiegedHost) kept() int {
	v, sum := &h.e.recovery, 0
	for i := range v.reports {
		sum += len(v.reports[i].payload) + 64
	}
	for _, b := range v.pieces {
		sum += len(b) + 64
	}
	for i := range v.held {
		sum += len(v.held[i].Payload) + 64
	}
	return sum
}

// TestRandomLies: whatever peers say to a node with pages, locks, barriers and names, it neither
// panics nor contradicts itself, grows beyond its limits, or wants something done that its host
// could not do; and what it rejects changes nothing.
func TestRandomLies(t *testing.T) {
	seeds, steps := *liesRuns, 400
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
			if err == nil && rejected && m.Kind != KindReportHeld && string(h.e.AppendState(nil)) != before {
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

// TestMutatedConversation: honest nodes talk to each other and to one whose messages are honest,
// but now and then changed in a field, said twice, or left out. The honest nodes bear it as they
// bear lies.
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
			// it hears only what is true, so that it has something true to distort
			if m.To == liar {
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
		m.access = other.access
	case 2:
		m.flags ^= flagHasCopy << h.one(2)
		m.contents = other.contents
	case 3:
		m.node = other.node
	case 4:
		m.acks = other.acks + 1
	case 5:
		m.Object = other.Object
	case 6:
		m.ticket = other.ticket
	case 7:
		m.word, m.rank = other.word+1, other.rank
	case 8:
		m.status = other.status
		m.Payload = h.payload()
	}
	m.sayable()
}

// TestLiesAboutFreeing: an acknowledgement said twice does not stand for another node's, and no
// page is freed twice at a time. Random lies come upon these seldom.
func TestLiesAboutFreeing(t *testing.T) {
	rejects := func(e *Engine, m Message) bool {
		out := e.Step(Event{Kind: EventMessage, Message: &m}, nil)
		return len(out) == 1 && out[0].Kind == EffectReject
	}
	cfg := Config{Nodes: 3, Pages: 8, HomeStripe: 1}
	directory := New(cfg)
	directory.Step(Event{Kind: EventName, Client: 1, Ticket: 1, Payload: (&NameCall{Op: Bind, Client: 1, Pages: 2, Name: "a"}).Append(nil)}, nil)
	// being installed: this node's own acknowledgement waits
	directory.Step(Event{Kind: EventFault, Client: 1, Object: PageObject(0), Access: Write, Thread: 1}, nil)
	directory.Step(Event{Kind: EventName, Client: 1, Ticket: 2, Payload: (&NameCall{Op: Unbind, Client: 1, Name: "a"}).Append(nil)}, nil)
	ack := FreeAck{Phase: 1}.To(0, PageObject(0)).SentBy(1)
	if rejects(directory, ack) {
		t.Error("the first acknowledgement is rejected")
	}
	if !rejects(directory, ack) {
		t.Error("a second acknowledgement counts")
	}
	cfg.Self = 1
	e := New(cfg)
	if rejects(e, Free{Phase: 1, Run: AppendRun(nil, 0, 2)}.To(0, PageObject(0))) {
		t.Error("the freeing of pages is rejected")
	}
	for _, run := range [][2]uint64{{1, 1}, {0, 2}, {1, 7}, {8, 0}, {3, 0}, {7, 2}} {
		if !rejects(e, Free{Phase: 1, Run: AppendRun(nil, run[0], run[1])}.To(0, PageObject(run[0]))) {
			t.Errorf("pages %d+%d are freed, although they are being freed or are none", run[0], run[1])
		}
	}
}

// TestLiesInARecovery: whatever a member says in a recovery, and however often, what is kept of it
// is bounded, and it is parted with when it says more than there can be. Random lies come upon that
// seldom.
func TestLiesInARecovery(t *testing.T) {
	holding := func(h *besiegedHost, id ObjectID, times int) (b []byte) {
		for range times {
			b = AppendHolding(b, id, None)
		}
		return b
	}
	for what, lie := range map[string]func(h *besiegedHost, i int) Message{
		"a report in many pieces": func(h *besiegedHost, _ int) Message { return ReportHeld{Pieces: 1 << 20}.To(0) },
		"ever more pieces":        func(h *besiegedHost, i int) Message { return ReportHeld{Pieces: uint32(i + 2)}.To(0) },
		"one object again and again": func(h *besiegedHost, i int) Message {
			return ReportHeld{Pieces: 1 << 20, Records: holding(h, PageObject(0), 3000)}.To(0)
		},
		"which memory was in use, many times": func(h *besiegedHost, i int) Message {
			return ReportBound{Pieces: 1 << 20, Runs: AppendRun(nil, 0, 1)}.To(0)
		},
		"much of which memory was in use": func(h *besiegedHost, i int) Message {
			return ReportBound{Pieces: uint32(i + 1), Runs: bytes.Repeat(AppendRun(nil, 0, 1), 5000)}.To(0)
		},
		"long names": func(h *besiegedHost, i int) Message {
			return NameRequest{Ticket: 1, Call: make([]byte, MaxPayload)}.To(0)
		},
		"names, many times": func(h *besiegedHost, i int) Message {
			h.e.limits.names = 5
			call := NameCall{Op: Bind, Name: fmt.Sprint(i), Pages: 1}
			return NameRequest{Ticket: Ticket(i + 1), Call: call.Append(nil)}.To(0)
		},
		"arrivals, many times": func(h *besiegedHost, i int) Message {
			return BarrierArrive{Ticket: Ticket(i + 1), Parties: 2}.To(0, LockObject(1))
		},
		"contributions that are too long": func(h *besiegedHost, i int) Message {
			return BarrierArrive{Parties: 2, Contribution: make([]byte, MaxPayload)}.To(0, LockObject(1))
		},
	} {
		t.Run(what, func(t *testing.T) {
			h := newBesiegedHost(1, 1, 3)
			h.e.limits.arrivals = 5
			h.e.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{0, 1, 2}, Homes: []NodeID{1}}, nil)
			for _, from := range []NodeID{0, 2} {
				h.e.Step(Event{Kind: EventMessage, Message: new(EpochMarker{Epoch: 1}.To(0).SentBy(from))}, nil)
			}
			rejected := false
			for i := 0; i < 1000 && !rejected; i++ {
				m := lie(h, i)
				if m.From = 0; m.Kind == KindReportBound {
					h.e.view.homes = []NodeID{0, 1} // the allocator is the liar
				}
				if m.Kind == KindReportHeld || m.Kind == KindReportBound {
					m.word = 1
				}
				var err error
				if rejected, err = h.step(Event{Kind: EventMessage, Message: &m}); err != nil {
					t.Fatalf("said %d times: %v", i+1, err)
				}
			}
			if !rejected {
				t.Error("it may be said without end")
			}
		})
	}
}
