package model

import (
	"cmp"
	"fmt"
	"slices"

	"dsmd/protocol"
)

// Do makes one action happen at time now and fills out. Preconditions: the action is one that Local
// lists, or the arrival of a message for this node. After a violation the node may be in any state.
// An engine that panics counts as a violation too.
func (n *Node) Do(a Action, now protocol.Time, out *Outcome) {
	out.reset()
	if a.Kind == ActReturn {
		n.down = false
		n.giveBirth()
		return
	}
	if n.down {
		return // whatever comes goes nowhere
	}
	defer func() {
		if r := recover(); r != nil {
			out.violate(RuleEngine, "node %d, %v: panic: %v", n.self, a, r)
		}
	}()
	switch a.Kind {
	case ActDeliver:
		if o := a.Flight.Message.Object; n.config.Late && !o.IsLock() && n.page(o).waiters == 0 {
			now = max(now, n.config.MaxHold)
		}
		wordHost{n, now, out}.recallFor(a.Flight)
		n.step(protocol.Event{Kind: protocol.EventMessage, Now: now, Object: a.Flight.Message.Object, Message: &a.Flight.Message}, a.Flight, out)
	case ActPerform:
		late := n.ops[n.firstOp(a.Object)].late
		n.perform(n.firstOp(a.Object), out)
		if i := n.firstOp(a.Object); n.config.Fused && !late && n.ops[i].performed {
			n.complete(i, now, out)
		}
	case ActComplete:
		n.complete(n.firstOp(a.Object), now, out)
	case ActHoldOver:
		n.holdOver(a.Object, now, out)
	case ActCrash:
		n.crash(out)
		return
	case ActDepart:
		n.left = n.handed
		n.depart(out)
		return
	case ActEnd:
		n.end(out)
		return
	case ActCut, ActBlock, ActHeal, ActLeave, ActJoin, ActEpoch:
		n.move(a, now, out)
	default:
		n.run(a, now, out)
	}
	if n.unchecked++; n.unchecked < n.config.CheckEvery {
		return
	}
	n.unchecked = 0
	if err := cmp.Or(n.engine.Check(), n.words.Check()); err != nil {
		out.violate(RuleEngine, "node %d: %v", n.self, err)
	}
}

// HoldOver is the action that ends the hold of a page, if a node has one whose time is over: one
// that was lost and has come back knows nothing of those that it had.
func HoldOver(n *Node, o protocol.ObjectID, now protocol.Time) (Action, bool) {
	is := slices.ContainsFunc(n.holds, func(h hold) bool { return h.object == o && int32(h.due-now) <= 0 })
	return Action{Kind: ActHoldOver, Node: n.self, Object: o}, is
}

// holdOver ends the first hold of a page.
func (n *Node) holdOver(o protocol.ObjectID, now protocol.Time, out *Outcome) {
	i := slices.IndexFunc(n.holds, func(h hold) bool { return h.object == o })
	// A host without a clock, such as the explorer, has the time pass here. Times wrap, so compare
	// the difference.
	if due := n.holds[i].due; int32(due-now) > 0 {
		now = due
	}
	n.holds = slices.Delete(n.holds, i, i+1)
	n.step(protocol.Event{Kind: protocol.EventHoldOver, Now: now, Object: o}, nil, out)
}

// move changes the node's place among the nodes, or has it enter a view.
func (n *Node) move(a Action, now protocol.Time, out *Outcome) {
	switch a.Kind {
	case ActCut:
		n.cut = true
		n.moves++
		out.Retired = append(out.Retired, Retirement{Kind: RetireCut, Node: n.self})
	case ActBlock:
		n.block(now, out)
	case ActHeal:
		n.heal(out)
	case ActLeave:
		n.leaving = true
		n.moves++
		out.Retired = append(out.Retired, Retirement{Kind: RetireLeave, Node: n.self})
	case ActJoin:
		n.outside = false
		n.moves++
	case ActEpoch:
		begins := !n.entered()
		n.alone = n.alone || a.Apart
		n.told = !slices.Contains(a.Homes, n.self)
		n.step(protocol.Event{Kind: protocol.EventEpoch, Now: now, Epoch: a.Epoch, Members: a.Left, Homes: a.Homes, Orderly: a.Orderly}, nil, out)
		if begins {
			n.begin(now, out)
		}
	}
}

// run lets a thread do something.
func (n *Node) run(a Action, now protocol.Time, out *Outcome) {
	t := &n.threads[a.Thread]
	switch a.Kind {
	case ActAccess:
		n.access(t, out)
	case ActFault:
		t.state = threadBlocked
		n.fault(t, a.Op, now, out)
	case ActSpurious, ActAgain:
		t.duplicates--
		t.state = threadBlocked
		// The page is not held for a thread that needs another wake-up before it can use it.
		n.page(a.Op.Object()).waiters &^= 1 << a.Thread
		n.fault(t, a.Op, now, out)
	case ActStray:
		t.strays--
		n.fault(t, a.Op, now, out)
	case ActCall, ActAsk:
		n.call(t, now, out)
	case ActTake:
		n.take(t, out)
	case ActCancel:
		if n.cancelGranted(t, now, out) {
			return
		}
		t.cancelled = true
		n.step(protocol.Event{Kind: protocol.EventCancel, Now: now, Client: t.spec.Client, Object: a.Op.Object(), Ticket: t.ticket()}, nil, out)
	case ActDie:
		if a.Op.Kind == OpExpel {
			n.expel(t, now, out)
			return
		}
		n.die(t.spec.Client, t.rank, now, out)
	default:
		panic(fmt.Sprintf("model: action %v is of no known kind", a.Kind))
	}
}

func (n *Node) fault(t *thread, op Op, now protocol.Time, out *Outcome) {
	n.noteWaiter(t, op.Object())
	n.step(protocol.Event{
		Kind: protocol.EventFault, Now: now, Access: op.Access(), Thread: uint32(t.index + 1),
		Client: t.spec.Client, Object: op.Object(),
	}, nil, out)
}

// call makes a prefetch, has a page evicted, takes or gives back a lock, or arrives at a barrier.
func (n *Node) call(t *thread, now protocol.Time, out *Outcome) {
	op := t.op()
	switch words := n.config.Words; {
	case words && (op.Kind == OpUnlock || op.Kind == OpRUnlock):
		wordHost{n, now, out}.giveBack(t)
		return
	case words && op.takesLock() && (wordHost{n, now, out}).askForLock(t):
		return
	}
	ev := protocol.Event{Now: now, Access: op.Access(), Client: t.spec.Client, Object: op.Object(), Ticket: t.ticket(), Rank: t.rank}
	switch op.Kind {
	case OpPrefetchRead, OpPrefetchWrite:
		ev.Kind, ev.Client, ev.Ticket = protocol.EventFault, 0, 0
		n.advance(t, out)
	case OpEvict:
		ev = protocol.Event{Kind: protocol.EventEvict, Now: now, Object: op.Object(), Node: heir(n, op.Object())}
		n.advance(t, out)
	case OpUnlock, OpRUnlock:
		ev.Kind, ev.Ticket = protocol.EventRelease, 0
		out.Retired = append(out.Retired, n.retirement(RetireUnlock, t, Retirement{}))
		n.advance(t, out)
	case OpLock, OpRLock, OpIntact:
		ev.Kind, ev.Repair = protocol.EventAcquire, op.Kind == OpLock
		t.state = threadWaiting
	case OpCommit:
		ev.Kind, ev.Object = protocol.EventCommit, 0
		out.Retired = append(out.Retired, n.retirement(RetireCommitting, t, Retirement{}))
		t.state = threadWaiting
	case OpBind, OpUnbind:
		ev.Kind, ev.Payload = protocol.EventName, nameCall(op, t.spec.Client)
		t.state = threadWaiting
	case OpBarrier:
		ev.Kind = protocol.EventArrive
		parties := n.config.parties(op.Number)
		ev.Parties, ev.Rank = uint32(len(parties)), uint32(slices.Index(parties, t.index))
		ev.Payload = barrierPayload(ev.Rank, t.pc)
		if n.config.Folded {
			ev.Fold = protocol.FoldOf(protocol.FoldSum, protocol.NumberUint8)
		}
		out.Retired = append(out.Retired, n.retirement(RetireArrive, t, Retirement{}))
		t.state = threadWaiting
	}
	n.step(ev, nil, out)
}

// heir is the node to which a page is offered.
func heir(n *Node, o protocol.ObjectID) protocol.NodeID {
	if home := n.engine.Home(o); home != n.self {
		return home
	}
	return (n.self + 1) % protocol.NodeID(n.config.Nodes)
}

// consider is the node's answer to the offer of a page: there is room for all but every third.
func consider(e *protocol.Effect, now protocol.Time) protocol.Event {
	if e.Object.Page()%3 == 2 {
		return protocol.Event{Kind: protocol.EventDecline, Now: now, Object: e.Object, Node: e.Heir}
	}
	return protocol.Event{Kind: protocol.EventAccept, Now: now, Object: e.Object}
}

// boundPages is how many pages a name of the model has.
const boundPages = 2

// begin has the threads of a node that has come begin, when it knows which memory is replicated.
func (n *Node) begin(now protocol.Time, out *Outcome) {
	if n.config.Replicas == 0 {
		n.runAll(out)
		return
	}
	n.binding = true
	n.step(bind(n.config), nil, out)
}

func nameCall(op Op, c protocol.ClientID) []byte {
	call := protocol.NameCall{Op: protocol.Bind, Client: c, Pages: boundPages, Name: fmt.Sprint(op.Number), Signature: "model"}
	if op.Kind == OpUnbind {
		call.Op = protocol.Unbind
	}
	return call.Append(nil)
}

// barrierPayload is what the thread with this rank brings to the barrier in its operation number
// pc.
func barrierPayload(rank uint32, pc int) []byte { return []byte{byte(rank), byte(rank >> 8), byte(pc)} }

// die ends a client with all its threads.
func (n *Node) die(c protocol.ClientID, rank uint32, now protocol.Time, out *Outcome) {
	for i := range n.threads {
		if t := &n.threads[i]; t.spec.Client == c && t.state == threadWaiting {
			n.cancelGranted(t, now, out) // it does not die with a lock that it never had
		}
	}
	for i := range n.threads {
		t := &n.threads[i]
		if t.spec.Client != c {
			continue
		}
		*t = thread{spec: t.spec, index: t.index, rank: t.rank, space: t.space, pc: t.pc, state: threadDead}
		for j := range n.pages {
			p := &n.pages[j]
			p.waiters &^= 1 << i
			p.mapped, p.writable = p.mapped&^(1<<t.space), p.writable&^(1<<t.space)
		}
	}
	n.gone(c, rank, now, out)
}

// gone tells the engine that a client is gone.
func (n *Node) gone(c protocol.ClientID, rank uint32, now protocol.Time, out *Outcome) {
	out.Retired = append(out.Retired, Retirement{Kind: RetireDeath, Node: n.self, Client: c, Rank: rank})
	wordHost{n, now, out}.withdraw(c)
	n.step(protocol.Event{Kind: protocol.EventClientGone, Now: now, Client: c, Rank: rank}, nil, out)
}

// step lets the engine have an event, and does what it wants.
func (n *Node) step(ev protocol.Event, incoming *Flight, out *Outcome) {
	gap := hasGap(n)
	n.effects = n.engine.Step(ev, n.effects[:0])
	if gap {
		checkRefusals(n, n.effects, out)
	}
	out.Effects = append(out.Effects, n.effects...)
	var offered []protocol.Event
	for i := range n.effects {
		if e := &n.effects[i]; e.Kind == protocol.EffectOffered {
			offered = append(offered, consider(e, ev.Now))
			continue
		}
		n.carryOut(&n.effects[i], &ev, incoming, out)
	}
	n.giveAccess(ev.Now, out)
	for _, ev := range offered {
		n.step(ev, nil, out)
	}
}
