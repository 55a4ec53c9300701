package model

import (
	"bytes"
	"fmt"
	"slices"

	"dsmd/protocol"
)

// RetireKind says what a Retirement is.
type RetireKind uint8

const (
	// RetireAccess: a page was read or written; Contents are what was read, or what was there before the write.
	RetireAccess RetireKind = iota + 1
	// RetireLock: a lock was obtained, with Status and OwnerRank.
	RetireLock
	// RetireUnlock: a lock was given back.
	RetireUnlock
	// RetireArrive: a thread reached a barrier.
	RetireArrive
	// RetireWithdraw: the cancelled arrival at a barrier never was.
	RetireWithdraw
	// RetirePass: a thread left a barrier, with Payload.
	RetirePass
	// RetireBind: a client has bound a name, or (RetireUnbind) given it up.
	RetireBind
	RetireUnbind
	// RetireDeath: a client ended.
	RetireDeath
	// RetireCrash: a node was lost.
	RetireCrash
	// RetireLost: a thread was told that the page it wanted is lost.
	RetireLost
	// RetireCommitting: a thread asks for what was written on its node to be committed.
	RetireCommitting
	// RetireCommit: what a thread wrote is at its backups.
	RetireCommit
)

// Retirement is something that one node did and that makes sense only beside what other nodes do: see Ledger.
type Retirement struct {
	Kind      RetireKind
	Node      protocol.NodeID
	Client    protocol.ClientID
	Thread    int // in Config.Threads
	Op        Op
	Contents  uint32
	Status    protocol.Status
	OwnerRank uint32
	Rank      uint32
	Payload   []byte
}

// HoldOrder says that ActHoldOver on Object is due After microseconds from now.
type HoldOrder struct {
	Object protocol.ObjectID
	After  protocol.Time
}

// Outcome is what one action led to. Do resets and fills it.
type Outcome struct {
	Effects  []protocol.Effect   // all that the engine wanted done
	Sent     []Flight            // what is on its way now
	Ordered  []protocol.ObjectID // pages with a new operation
	Holds    []HoldOrder
	Runnable []int               // threads (indexes on the node) that have become ready
	Changed  []protocol.ObjectID // pages whose access in the page table may have changed
	Lost     []protocol.ObjectID // pages of which threads were told that they are lost
	Retired  []Retirement
	// Violation is the first thing that the node itself found wrong, or nil.
	Violation *Violation
}

func (out *Outcome) reset() {
	*out = Outcome{
		Effects: out.Effects[:0], Sent: out.Sent[:0], Ordered: out.Ordered[:0], Holds: out.Holds[:0],
		Runnable: out.Runnable[:0], Changed: out.Changed[:0], Lost: out.Lost[:0], Retired: out.Retired[:0],
	}
}

func (out *Outcome) violate(rule, format string, args ...any) {
	if out.Violation == nil {
		out.Violation = violated(rule, format, args...)
	}
}

// Do makes one action happen at time now and fills out.
// Preconditions: the action is one that Local lists, or the arrival of a message for this node. After a
// violation the node may be in any state. An engine that panics counts as a violation too.
func (n *Node) Do(a Action, now protocol.Time, out *Outcome) {
	out.reset()
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
		n.step(protocol.Event{Kind: protocol.EventMessage, Now: now, Object: a.Flight.Message.Object, Message: &a.Flight.Message}, a.Flight, out)
	case ActPerform:
		late := n.ops[n.firstOp(a.Object)].late
		n.perform(n.firstOp(a.Object), out)
		if n.config.Fused && !late {
			n.complete(n.firstOp(a.Object), now, out)
		}
	case ActComplete:
		n.complete(n.firstOp(a.Object), now, out)
	case ActHoldOver:
		i := slices.IndexFunc(n.holds, func(h hold) bool { return h.object == a.Object })
		// A host without a clock, such as the explorer, has the time pass here. Times wrap, so compare the difference.
		if due := n.holds[i].due; int32(due-now) > 0 {
			now = due
		}
		n.holds = slices.Delete(n.holds, i, i+1)
		n.step(protocol.Event{Kind: protocol.EventHoldOver, Now: now, Object: a.Object}, nil, out)
	case ActCrash:
		n.crash(out)
		return
	case ActDepart:
		n.depart(out)
		return
	case ActLeave:
		n.leaving = true
		n.moves++
	case ActJoin:
		n.outside = false
		n.moves++
	case ActEpoch:
		begins := !n.entered()
		n.step(protocol.Event{Kind: protocol.EventEpoch, Now: now, Epoch: a.Epoch, Members: a.Left, Homes: a.Homes}, nil, out)
		if begins {
			n.begin(now, out)
		}
	default:
		n.run(a, now, out)
	}
	if err := n.engine.Check(); err != nil {
		out.violate(RuleEngine, "node %d: %v", n.self, err)
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
	case ActCall:
		n.call(t, now, out)
	case ActCancel:
		t.cancelled = true
		n.step(protocol.Event{Kind: protocol.EventCancel, Now: now, Client: t.spec.Client, Object: a.Op.Object(), Ticket: t.ticket()}, nil, out)
	case ActDie:
		n.die(t.spec.Client, t.rank, now, out)
	default:
		panic(fmt.Sprintf("model: action %v is of no known kind", a.Kind))
	}
}

func (n *Node) fault(t *thread, op Op, now protocol.Time, out *Outcome) {
	n.step(protocol.Event{
		Kind: protocol.EventFault, Now: now, Access: op.Access(), Thread: uint32(t.index + 1),
		Client: t.spec.Client, Object: op.Object(),
	}, nil, out)
}

// access retires a read or a write. A write depends on the contents too: a store changes some bytes of the page.
func (n *Node) access(t *thread, out *Outcome) {
	op := t.op()
	p := n.page(op.Object())
	out.Retired = append(out.Retired, n.retirement(RetireAccess, t, Retirement{Contents: p.contents}))
	if op.Kind == OpWrite {
		p.contents++
	}
	p.waiters &^= 1 << n.local(t)
	n.advance(t, out)
}

// local is the index of t on this node.
func (n *Node) local(t *thread) int {
	return slices.IndexFunc(n.threads, func(u thread) bool { return u.index == t.index })
}

func (n *Node) retirement(kind RetireKind, t *thread, r Retirement) Retirement {
	r.Kind, r.Node, r.Client, r.Thread, r.Op, r.Rank = kind, n.self, t.spec.Client, t.index, t.op(), t.rank
	return r
}

// advance moves a thread to its next operation.
func (n *Node) advance(t *thread, out *Outcome) {
	t.strays = 0
	if n.config.Strays && t.op().touchesPage() {
		t.strays = t.duplicates
	}
	t.pc++
	t.state, t.duplicates, t.attempt, t.cancelled = threadReady, n.config.Duplicates, 0, false
	if op := t.op(); !op.touchesPage() {
		t.duplicates = 0 // only faults can be duplicated; a canonical state has no unused budget
	}
	out.Runnable = append(out.Runnable, n.local(t))
}

// call makes a prefetch, takes or gives back a lock, or arrives at a barrier.
func (n *Node) call(t *thread, now protocol.Time, out *Outcome) {
	op := t.op()
	ev := protocol.Event{Now: now, Access: op.Access(), Client: t.spec.Client, Object: op.Object(), Ticket: t.ticket(), Rank: t.rank}
	switch op.Kind {
	case OpPrefetchRead, OpPrefetchWrite:
		ev.Kind, ev.Client, ev.Ticket = protocol.EventFault, 0, 0
		n.advance(t, out)
	case OpUnlock, OpRUnlock:
		ev.Kind, ev.Ticket = protocol.EventRelease, 0
		out.Retired = append(out.Retired, n.retirement(RetireUnlock, t, Retirement{}))
		n.advance(t, out)
	case OpLock, OpRLock:
		ev.Kind = protocol.EventAcquire
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
		out.Retired = append(out.Retired, n.retirement(RetireArrive, t, Retirement{}))
		t.state = threadWaiting
	}
	n.step(ev, nil, out)
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

func (n *Node) runAll(out *Outcome) {
	for i := range n.threads {
		out.Runnable = append(out.Runnable, i)
	}
}

func nameCall(op Op, c protocol.ClientID) []byte {
	call := protocol.NameCall{Op: protocol.Bind, Client: c, Pages: boundPages, Name: fmt.Sprint(op.Number), Signature: "model"}
	if op.Kind == OpUnbind {
		call.Op = protocol.Unbind
	}
	return call.Append(nil)
}

// barrierPayload is what the thread with this rank brings to the barrier in its operation number pc.
func barrierPayload(rank uint32, pc int) []byte { return []byte{byte(rank), byte(rank >> 8), byte(pc)} }

// die ends a client with all its threads.
func (n *Node) die(c protocol.ClientID, rank uint32, now protocol.Time, out *Outcome) {
	for i := range n.threads {
		t := &n.threads[i]
		if t.spec.Client != c {
			continue
		}
		*t = thread{spec: t.spec, index: t.index, rank: t.rank, pc: t.pc, state: threadDead}
		for j := range n.pages {
			n.pages[j].waiters &^= 1 << i
		}
	}
	out.Retired = append(out.Retired, Retirement{Kind: RetireDeath, Node: n.self, Client: c, Rank: rank})
	n.step(protocol.Event{Kind: protocol.EventClientGone, Now: now, Client: c, Rank: rank}, nil, out)
}

// step lets the engine have an event, and does what it wants.
func (n *Node) step(ev protocol.Event, incoming *Flight, out *Outcome) {
	n.effects = n.engine.Step(ev, n.effects[:0])
	out.Effects = append(out.Effects, n.effects...)
	for i := range n.effects {
		n.carryOut(&n.effects[i], &ev, incoming, out)
	}
}

func (n *Node) carryOut(e *protocol.Effect, ev *protocol.Event, incoming *Flight, out *Outcome) {
	switch e.Kind {
	case protocol.EffectSend:
		n.send(e, out)
	case protocol.EffectStash:
		p := n.page(e.Object)
		if p.stashed || incoming == nil || incoming.Message.Flags&protocol.FlagData == 0 {
			out.violate(RuleContents, "node %d is to stash %v: already stashed %t, arriving %v", n.self, e.Object, p.stashed, incoming)
			return
		}
		p.stashed, p.stash = true, incoming.Contents
	case protocol.EffectInstall, protocol.EffectMap, protocol.EffectMakeWritable, protocol.EffectDowngrade, protocol.EffectRevoke, protocol.EffectForget, protocol.EffectLost:
		n.order(e, incoming, out)
	case protocol.EffectHold:
		n.holds = append(n.holds, hold{object: e.Object, due: ev.Now + e.After})
		out.Holds = append(out.Holds, HoldOrder{Object: e.Object, After: e.After})
	case protocol.EffectComplete:
		n.answer(e, out)
	case protocol.EffectResumed:
	case protocol.EffectHandedOver:
		n.handed = uint32(e.Count)
	case protocol.EffectBackup:
		n.keep(e, incoming, out)
	case protocol.EffectReject:
		out.violate(RuleRejected, "node %d rejects %v: %s", n.self, incoming, e.Reason)
	default:
		out.violate(RuleUnsupported, "node %d: %s", n.self, FormatEffect(e))
	}
}

// send hands a message to the network, with the contents it asks for.
func (n *Node) send(e *protocol.Effect, out *Outcome) {
	f := Flight{Message: e.Message}
	f.Message.Payload = bytes.Clone(e.Message.Payload)
	if f.Message.Flags&protocol.FlagData != 0 {
		p := n.page(e.Message.Object)
		switch {
		case e.Backup:
			if !p.backed {
				out.violate(RuleContents, "node %d is to send its backup of %v, and has none", n.self, e.Message.Object)
			}
			f.Contents = p.backup
		case p.saved:
			f.Contents, p.save, p.saved = p.save, 0, false
		case p.access != protocol.None:
			f.Contents = p.contents
		default:
			out.violate(RuleContents, "node %d is to send %v, which it does not have", n.self, &f)
		}
		if f.Contents == 0 {
			f.Message.Flags = f.Message.Flags&^protocol.FlagData | protocol.FlagZero
		}
	}
	out.Sent = n.config.Plant.post(f, out.Sent)
}

// keep keeps a backup.
func (n *Node) keep(e *protocol.Effect, incoming *Flight, out *Outcome) {
	p := n.page(e.Object)
	switch {
	case e.Zero:
		p.backup = 0
	case e.Message.Kind == protocol.Backup && incoming != nil && incoming.Message.Flags&protocol.FlagData != 0:
		p.backup = incoming.Contents
	case e.Message.Kind == 0 && p.access == protocol.Read:
		p.backup = p.contents
	default:
		out.violate(RuleContents, "node %d is to keep a backup of %v, which has access %v, from %v", n.self, e.Object, p.access, incoming)
	}
	p.backed = true
}

// order queues an operation on the page table.
func (n *Node) order(e *protocol.Effect, incoming *Flight, out *Outcome) {
	op := operation{effect: *e}
	p := n.page(e.Object)
	switch {
	case e.Kind != protocol.EffectInstall:
	case e.Save:
		if !p.saved {
			out.violate(RuleContents, "node %d is to take %v back, of which nothing is saved", n.self, e.Object)
		}
		op.contents, p.saved, p.save = p.save, false, 0
	case e.Backup:
		if !p.backed {
			out.violate(RuleContents, "node %d is to install its backup of %v, and has none", n.self, e.Object)
		}
		op.contents = p.backup
	case e.Zero:
		if n.config.Plant == ForgottenZero {
			op.contents = 1
		}
	case incoming != nil && incoming.Message.Object == e.Object && incoming.Message.Flags&protocol.FlagData != 0:
		op.contents = incoming.Contents
	case p.stashed:
		op.contents = p.stash
		p.stashed, p.stash = false, 0
	default:
		out.violate(RuleContents, "node %d is to install %v, whose contents never came", n.self, e.Object)
	}
	if e.Kind == protocol.EffectRevoke && n.config.Plant == AckBeforeRevoke {
		// What the late revoke would save is saved now, or the bug would show as missing contents.
		if e.Save {
			p.saved, p.save = true, p.contents
		}
		op.performed = true
	}
	n.ops = append(n.ops, op)
	out.Ordered = append(out.Ordered, e.Object)
}

// perform makes the page table change.
func (n *Node) perform(i int, out *Outcome) {
	op := &n.ops[i]
	if op.effect.Kind == protocol.EffectForget {
		n.forget(op, out)
		return
	}
	p := n.page(op.effect.Object)
	if op.effect.Kind == protocol.EffectLost {
		n.lose(op, p, out)
		return
	}
	want, gain := protocol.None, false
	switch op.effect.Kind {
	case protocol.EffectMap:
		want, gain = op.effect.Access, true
		if want == protocol.None {
			want = p.access // memory that is being freed: whoever waits is only woken
		}
	case protocol.EffectMakeWritable:
		want, gain = protocol.Read, true
	case protocol.EffectDowngrade:
		want = protocol.Write
	case protocol.EffectRevoke:
		want = p.access
		if want == protocol.None {
			want = protocol.Read
		}
	case protocol.EffectInstall:
		gain = true
		if p.saved {
			out.violate(RuleContents, "node %d installs %v while contents saved from it wait to be sent", n.self, p.object)
		}
	}
	if p.access != want {
		out.violate(RulePageState, "node %d: %s on a page with access %v", n.self, FormatEffect(&op.effect), p.access)
	}
	n.change(op, p)
	out.Changed = append(out.Changed, p.object)
	if gain && n.config.Plant != LostWake {
		n.wake(p, op.effect.Client, out)
	}
	op.performed = true
	if op.late {
		n.ops = slices.Delete(n.ops, i, i+1)
	}
}

// forget drops a run of pages with everything kept of them.
func (n *Node) forget(op *operation, out *Outcome) {
	for o := op.effect.Object; uint64(o-op.effect.Object) < op.effect.Count; o++ {
		i, ok := n.search(o)
		if !ok {
			continue
		}
		if n.pages[i].saved || n.pages[i].stashed {
			out.violate(RuleContents, "node %d forgets %v while contents of it are kept", n.self, o)
		}
		n.pages[i] = page{object: o}
		out.Changed = append(out.Changed, o)
	}
	op.performed = true
}

// change does to the page table what an operation says.
func (n *Node) change(op *operation, p *page) {
	switch op.effect.Kind {
	case protocol.EffectInstall:
		p.access, p.contents = op.effect.Access, op.contents
	case protocol.EffectMakeWritable:
		p.access = protocol.Write
	case protocol.EffectDowngrade:
		if n.config.Plant != DowngradeNotDone {
			p.access = protocol.Read
		}
	case protocol.EffectRevoke:
		if op.effect.Save {
			p.saved, p.save = true, p.contents
			if n.config.Plant == StaleSave && p.contents > 0 {
				p.save--
			}
		}
		p.access, p.contents, p.waiters = protocol.None, 0, 0
	}
}

// wake makes the threads of a client (0: of all) that wait for a page ready. Those that can now retire
// are the ones for whose sake the page is held.
func (n *Node) wake(p *page, c protocol.ClientID, out *Outcome) {
	for i := range n.threads {
		t := &n.threads[i]
		if t.state != threadBlocked || c != 0 && t.spec.Client != c || t.op().Object() != p.object {
			continue
		}
		t.state = threadReady
		out.Runnable = append(out.Runnable, i)
		if p.access >= t.op().Access() {
			p.waiters |= 1 << i
		}
	}
}

// complete tells the engine that an operation has happened.
func (n *Node) complete(i int, now protocol.Time, out *Outcome) {
	op := n.ops[i]
	if n.config.Plant == AckBeforeRevoke && op.effect.Kind == protocol.EffectRevoke {
		n.ops[i].performed, n.ops[i].late, n.ops[i].effect.Save = false, true, false
	} else {
		n.ops = slices.Delete(n.ops, i, i+1)
	}
	if op.effect.Kind == protocol.EffectForget {
		n.step(protocol.Event{Kind: protocol.EventForgotten, Now: now, Object: op.effect.Object}, nil, out)
		return
	}
	n.step(protocol.Event{Kind: protocol.EventCompleted, Now: now, Effect: op.effect.Kind, Access: op.effect.Access, Object: op.effect.Object}, nil, out)
}

// answer lets a waiting thread go on.
func (n *Node) answer(e *protocol.Effect, out *Outcome) {
	if n.binding && e.Client == bystander && e.Status == protocol.StatusOK {
		n.binding = false
		n.runAll(out)
		return
	}
	i := slices.IndexFunc(n.threads, func(t thread) bool {
		return t.spec.Client == e.Client && t.state == threadWaiting && t.ticket() == e.Ticket
	})
	if i < 0 {
		out.violate(RuleAnswer, "node %d: %s", n.self, FormatEffect(e))
		return
	}
	t := &n.threads[i]
	barrier := t.op().Kind == OpBarrier
	switch {
	case t.op().Kind == OpCommit && e.Status == protocol.StatusOK:
		out.Retired = append(out.Retired, n.retirement(RetireCommit, t, Retirement{}))
		n.advance(t, out)
	case t.op().Kind == OpBind || t.op().Kind == OpUnbind:
		n.answerName(t, e, out)
	case e.Status == protocol.StatusCanceled && t.cancelled:
		if barrier {
			out.Retired = append(out.Retired, n.retirement(RetireWithdraw, t, Retirement{}))
		}
		t.state, t.cancelled = threadReady, false
		t.attempt++
		out.Runnable = append(out.Runnable, i)
	case e.Status == protocol.StatusOK, e.Status == protocol.StatusOwnerDied && !barrier:
		kind := RetireLock
		if barrier {
			kind = RetirePass
		}
		out.Retired = append(out.Retired, n.retirement(kind, t, Retirement{
			Status: e.Status, OwnerRank: e.Rank, Payload: bytes.Clone(e.Payload),
		}))
		n.advance(t, out)
	default:
		out.violate(RuleAnswer, "node %d: %s, to a call of %v", n.self, FormatEffect(e), t.op())
	}
}

// answerName ends a bind or an unbind.
func (n *Node) answerName(t *thread, e *protocol.Effect, out *Outcome) {
	op, kind := t.op(), RetireUnbind
	if op.Kind == OpBind {
		kind = RetireBind
		first, pages, err := protocol.DecodeRun(e.Payload)
		if err != nil || first != op.Number || pages != boundPages {
			out.violate(RuleAnswer, "node %d: %v gives page %d and %d in all, error %v", n.self, op, first, pages, err)
		}
	}
	if e.Status != protocol.StatusOK {
		out.violate(RuleAnswer, "node %d: %s, to a call of %v", n.self, FormatEffect(e), op)
	}
	out.Retired = append(out.Retired, n.retirement(kind, t, Retirement{}))
	n.advance(t, out)
}
