package node

import (
	"fmt"
	"slices"

	"dsmd/internal/attach"
	"dsmd/internal/lockwords"
	"dsmd/pagetable"
	"dsmd/protocol"

	"go.uber.org/zap"
)

// calls are the calls of programs that the engine answers.
//
// Without a quorum nothing is granted: calls are parked, and what the engine still grants (a lock
// that a program gives back to another, or for which a message was on its way) nobody is told.
type calls struct {
	drive    *driver
	meter    *meter
	log      *zap.Logger
	quorum   *quorum
	intake   *intake
	programs *programs
	budgets  *budgets
	names    nodeNames
	survives bool // nodes may be lost, and others go on

	open  map[protocol.Ticket]openCall // by the engine's tickets
	last  protocol.Ticket              // of the engine's
	own   ownCall
	words lockwords.Words // locks that programs take without a call
	// unrepaired are locks that programs of this node have given back so, with the rank that died:
	// it was logged. At most maxUnrepaired.
	unrepaired map[protocol.ObjectID]uint32

	parked []protocol.Event // that wait for a quorum; at most maxCalls of each program
	// granted are those that no program was told, for lack of a quorum; at most one for each open
	// call.
	granted []grantedAnswer
}

// openCall is a call that the engine has not answered yet.
type openCall struct {
	p      *program
	ticket uint64 // the program's
	op     attach.Op
	access attach.Access // OpAcquire, OpRepair, OpTry
	name   string        // of memory, or of what is waited for, with its job; "": not known
	waits  bool          // for a lock, barrier or commit, as callWait has it
	callWait
	losses uint64 // OpArrive: how many ranks the program knows to be lost
	// replicas is of OpBind.
	replicas uint8
	// place tells what the program does after this call from what it does after others: the object,
	// and of a barrier also where in the program it waits; 0: of other calls.
	place uint64
	// inUse: the program is to be told that the lock is held, if nothing else has happened.
	inUse bool
	// ended: the program is to be told that a rank of its job is lost, if nothing else has
	// happened.
	ended bool
}

// ownCall is a call that the node makes of its engine in a program's name.
type ownCall struct {
	ticket   protocol.Ticket // 0: none is under way
	status   protocol.Status
	answered bool
}

// grantedAnswer is an answer that grants something and waits for a quorum.
type grantedAnswer struct {
	call   openCall
	effect protocol.Effect
}

// maxCalls bounds the open calls of one program: more than it can have goroutines that wait.
const maxCalls = protocol.MaxHeld

// maxUnrepaired bounds the locks of which it is known that they were not repaired.
const maxUnrepaired = 1024

// nameOps are the calls about names in the words of the allocator.
var nameOps = map[attach.Op]protocol.NameOp{
	attach.OpBind: protocol.Bind, attach.OpUnbind: protocol.Unbind, attach.OpKeep: protocol.Keep, attach.OpDiscard: protocol.Discard,
}

// ask puts a call to the engine, which answers it.
func (k *calls) ask(p *program, c *attach.Call) {
	ev := protocol.Event{Client: p.id, Rank: p.rank}
	open := false
	switch c.Op {
	case attach.OpAcquire, attach.OpRepair, attach.OpTry:
		k.synchronised()
		open = k.askLock(p, c, &ev)
	case attach.OpArrive:
		k.synchronised()
		open = k.askBarrier(p, c, &ev)
	case attach.OpCommit:
		if k.drive.partition.number == 0 {
			k.meter.count.commits.Add(1)
		}
		ev.Kind, open = protocol.EventCommit, k.survives
		if !open { // nobody would be left to look at backups
			p.answer(&attach.Reply{Ticket: c.Ticket})
		}
	case attach.OpBind, attach.OpUnbind, attach.OpKeep, attach.OpDiscard:
		k.meter.count.nameCalls.Add(1)
		if c.Op == attach.OpUnbind {
			k.drive.origins.unbound(p, c.Name)
			id, name := p.id, c.Name
			k.drive.partition.tellOthers(func(o *Node) { o.origins.unbound(o.programs.byID[id], name) })
		}
		ev.Kind = protocol.EventName
		var why string
		if ev.Payload, why, open = k.nameCall(p, c); !open {
			p.answer(&attach.Reply{Ticket: c.Ticket, Status: attach.StatusNoSpace, Payload: []byte(why)})
		}
	default:
		panic(fmt.Sprintf("node: the engine answers no %v", c.Op))
	}
	if !open {
		return
	}
	// Programs choose their tickets as they like; the engine's are never used twice on a node, so
	// that an answer that comes late, for a call that was cancelled or whose program is gone, is
	// nobody else's.
	ev.Ticket = k.next()
	p.waiting[c.Ticket] = ev.Ticket
	k.open[ev.Ticket] = k.begin(p, c)
	k.put(ev)
	if c.Op == attach.OpTry {
		k.endTry(&ev)
	}
}

// begin is a call from now on.
func (k *calls) begin(p *program, c *attach.Call) openCall {
	o := openCall{p: p, ticket: c.Ticket, op: c.Op, access: c.Access, name: c.Name, losses: c.Count}
	if k.survives {
		o.replicas = c.Replicas
	}
	// a commit waits at all reactors, and is counted once
	o.waits = c.Op.TakesLock() || c.Op == attach.OpArrive || c.Op == attach.OpCommit && k.drive.partition.number == 0
	if !o.waits {
		return o
	}
	o.place = c.Object ^ c.Site
	o.callWait = callWait{proc: pagetable.ProcID(p.id), kind: attach.WaitLock, since: k.drive.clock.now}
	name, told := p.called[c.Object]
	switch {
	case c.Op == attach.OpCommit:
		o.kind, name, told = attach.WaitCommit, committed, true
	case c.Op == attach.OpArrive && len(c.Payload) > 0:
		o.kind = attach.WaitReduction
	case c.Op == attach.OpArrive:
		o.kind = attach.WaitBarrier
	}
	if told {
		o.name = name
		o.entry = k.meter.tolls.ledger.entry(awaited{o.kind, name})
	}
	k.meter.tolls.beginCall(o.callWait)
	return o
}

// committed is what a commit is called among what is waited for: there is one of all memory.
const committed = "replicated memory"

// end notes that a call does not wait any more.
func (k *calls) end(c *openCall) {
	if !c.waits {
		return
	}
	waited := max(k.drive.clock.read()-c.since, 0)
	switch c.kind {
	case attach.WaitLock:
		k.meter.count.lockNanos.Add(uint64(waited))
	case attach.WaitBarrier, attach.WaitReduction:
		k.meter.count.barrierNanos.Add(uint64(waited))
	}
	k.meter.tolls.endCall(c.callWait, waited)
}

// endTry ends an OpTry that was not answered although this node has the access that it needs:
// somebody here holds the lock, or was earlier. If the node has to ask another one, the program
// decides how long it waits.
func (k *calls) endTry(ev *protocol.Event) {
	c, open := k.open[ev.Ticket]
	if !open || k.quorum.lost() || k.drive.engine.Access(ev.Object) < ev.Access {
		return
	}
	c.inUse = true
	k.open[ev.Ticket] = c
	k.drive.put(protocol.Event{Kind: protocol.EventCancel, Client: ev.Client, Ticket: ev.Ticket})
}

// next is an engine's ticket that was not used before.
func (k *calls) next() protocol.Ticket {
	k.last++
	return k.last
}

// put puts a call to the engine, or parks it until there is a quorum.
func (k *calls) put(ev protocol.Event) {
	if k.quorum.lost() {
		k.parked = append(k.parked, ev)
		return
	}
	k.drive.put(ev)
}

// askLock prepares the acquisition of a lock. It returns false if the program has its answer.
func (k *calls) askLock(p *program, c *attach.Call, ev *protocol.Event) bool {
	k.meter.count.lockCalls.Add(1)
	if k.words.Take(wordHost{k}, p.id, c.Object, protocol.Access(c.Access)) {
		p.answer(&attach.Reply{Ticket: c.Ticket, Status: attach.StatusByWord})
		return false
	}
	id := protocol.LockObject(c.Object)
	k.recall(id)
	ev.Kind, ev.Object, ev.Access = protocol.EventAcquire, id, protocol.Access(c.Access)
	ev.Repair = c.Op == attach.OpRepair
	return true
}

// askBarrier prepares the arrival at a barrier. It returns false if the program has its answer:
// among others, if it may wait there for a rank that is lost.
func (k *calls) askBarrier(p *program, c *attach.Call, ev *protocol.Event) bool {
	k.meter.count.barrierCalls.Add(1)
	switch {
	case c.Parties > protocol.MaxParties:
		text := fmt.Sprintf("a barrier of %d parties; at most %d are possible", c.Parties, protocol.MaxParties)
		p.answer(&attach.Reply{Ticket: c.Ticket, Status: attach.StatusMismatch, Payload: []byte(text)})
		return false
	case !protocol.Fold(c.Fold).Fits(len(c.Payload)):
		text := fmt.Sprintf("%d bytes, of which there can be no %v", len(c.Payload), protocol.Fold(c.Fold))
		p.answer(&attach.Reply{Ticket: c.Ticket, Status: attach.StatusMismatch, Payload: []byte(text)})
		return false
	case c.Count < uint64(len(p.lost)):
		p.answer(&attach.Reply{Ticket: c.Ticket, Status: attach.StatusNodeLost, Payload: []byte(k.names.whoIsLost(p))})
		return false
	}
	ev.Kind, ev.Object = protocol.EventArrive, protocol.LockObject(c.Object)
	ev.Parties, ev.Fold, ev.Payload = c.Parties, protocol.Fold(c.Fold), slices.Clone(c.Payload)
	return true
}

// nameCall encodes a call about an allocation for the allocator. It returns false, and perhaps why,
// if the region, or the nodes together, can never have as much.
func (k *calls) nameCall(p *program, c *attach.Call) (payload []byte, why string, ok bool) {
	call := protocol.NameCall{Op: nameOps[c.Op], Client: p.id, Name: c.Name}
	if c.Op == attach.OpBind {
		table := k.drive.exec.table
		pages, ok := c.Pages(uint32(table.PageBytes()))
		if !ok || pages > table.Pages() {
			return nil, "", false
		}
		if why := k.budgets.refuse(pages); why != "" && c.Access != attach.Read {
			return nil, why, false
		}
		call.Pages, call.Signature = pages, c.Identity()
		if k.survives {
			call.Replicas = c.Replicas
		}
	}
	return call.Append(nil), "", true
}

// complete deals with the engine's answer to a call: the node's own, or that of a program, if it is
// still there.
func (k *calls) complete(f *protocol.Effect) {
	if k.own.ticket != 0 && f.Ticket == k.own.ticket {
		k.own.status, k.own.answered = f.Status, true
		return
	}
	c, ok := k.open[f.Ticket]
	if f.Status == protocol.StatusOwnerDied || f.Status == protocol.StatusUnrepaired {
		k.logDied(f, c.name)
	}
	switch {
	case !ok:
	case c.op == attach.OpBind && f.Status == protocol.StatusOK:
		told := *f
		told.Payload = slices.Clone(f.Payload) // it may be of a frame
		spread{k.programs}.tellBound(told.Payload, c.name, c.replicas, func() {
			if _, open := k.open[told.Ticket]; open {
				k.answerOrKeep(&c, &told)
			}
		})
	default:
		k.answerOrKeep(&c, f)
	}
}

// answerOrKeep tells a program how its call has ended, now or, if it was granted something, when
// there is a quorum.
func (k *calls) answerOrKeep(c *openCall, f *protocol.Effect) {
	if k.quorum.lost() && (f.Status == protocol.StatusOK || f.Status == protocol.StatusOwnerDied) {
		held := grantedAnswer{*c, *f}
		held.effect.Payload = slices.Clone(f.Payload) // it may be of a frame
		k.granted = append(k.granted, held)
		return
	}
	k.answer(c, f)
}

// logDied says that a call was answered with the death of a lock's holder. name is the lock's, with
// its job; "": it is not known.
func (k *calls) logDied(f *protocol.Effect, name string) {
	lock := zap.Stringer("lock", f.Object)
	if name != "" {
		lock = zap.String("lock", plainName(name))
	}
	if f.Status == protocol.StatusUnrepaired {
		k.log.Debug("a program does not get a lock whose holder died, as it does not repair", lock)
		return
	}
	k.meter.count.ownerDied.Add(1)
	// Who repairs in vain may try again for ever.
	if died, known := k.unrepaired[f.Object]; known && died == f.Rank {
		return
	}
	if id, lost := protocol.LostNode(f.Rank); lost {
		k.log.Warn("a lock passes on that was at a node which is lost", lock, zap.Uint16("peer", uint16(id)))
	} else {
		k.log.Warn("a lock passes on whose holder died", lock, zap.Uint32("rank", f.Rank))
	}
}

// answer tells a program how its call has ended.
func (k *calls) answer(c *openCall, f *protocol.Effect) {
	delete(k.open, f.Ticket)
	delete(c.p.waiting, c.ticket)
	k.end(c)
	r := attach.Reply{Ticket: c.ticket, Status: attach.Status(f.Status), Rank: f.Rank, Payload: f.Payload}
	if c.ended && f.Status == protocol.StatusCanceled || f.Status == protocol.StatusNodeLost {
		r.Status, r.Payload = attach.StatusNodeLost, []byte(k.names.whoIsLost(c.p))
	}
	if c.inUse && f.Status == protocol.StatusCanceled {
		r.Status = attach.StatusHeld
	}
	c.p.answer(&r)
	if f.Status == protocol.StatusOK && c.place != 0 {
		k.intake.goesOn(c.p.id, c.place)
	}
}

// cancel ends an open call of a program, by its ticket.
func (k *calls) cancel(p *program, ticket uint64) {
	if t, ok := p.waiting[ticket]; ok && !k.cancelParked(t) {
		k.drive.put(protocol.Event{Kind: protocol.EventCancel, Client: p.id, Ticket: t})
	}
}

// cancelParked ends a call that waits for a quorum, and returns whether there was one.
func (k *calls) cancelParked(ticket protocol.Ticket) bool {
	if k.cancelGranted(ticket) {
		return true
	}
	i := slices.IndexFunc(k.parked, func(ev protocol.Event) bool { return ev.Ticket == ticket })
	if i < 0 {
		return false
	}
	k.parked = slices.Delete(k.parked, i, i+1)
	k.complete(&protocol.Effect{Kind: protocol.EffectComplete, Ticket: ticket, Status: protocol.StatusCanceled})
	return true
}

// cancelGranted ends a call that was granted and whose program was not told, and returns whether
// there was one. A lock and memory are given back, a commit promises nothing. An arrival at a
// barrier has counted, so nobody can take it back, and nobody passes without a quorum: it waits on,
// as one that has not been answered does when its home cannot be reached. Anything else has
// happened.
func (k *calls) cancelGranted(ticket protocol.Ticket) bool {
	i := slices.IndexFunc(k.granted, func(a grantedAnswer) bool { return a.effect.Ticket == ticket })
	if i < 0 {
		return false
	}
	a := k.granted[i]
	if a.call.op == attach.OpArrive {
		return true
	}
	k.granted = slices.Delete(k.granted, i, i+1)
	told := a.effect
	switch a.call.op {
	case attach.OpAcquire, attach.OpRepair, attach.OpTry, attach.OpBind, attach.OpCommit:
		told.Status, told.Rank, told.Payload = protocol.StatusCanceled, 0, nil
	}
	k.answer(&a.call, &told)
	k.returnLock(&a)
	if a.call.op == attach.OpBind {
		k.returnMemory(&a)
	}
	return true
}

// returnMemory gives up what a program has bound that was not told, when there is a quorum. Nobody
// waits for the answer.
func (k *calls) returnMemory(a *grantedAnswer) {
	unbind := protocol.NameCall{Op: protocol.Unbind, Client: a.call.p.id, Name: a.call.name}
	k.put(protocol.Event{Kind: protocol.EventName, Client: a.call.p.id, Ticket: k.next(), Payload: unbind.Append(nil)})
}

// returnLock gives back a lock that was granted to a program which was not told. If the program was
// to repair it, it is as unrepaired as before.
func (k *calls) returnLock(a *grantedAnswer) {
	if a.call.op.TakesLock() {
		k.drive.put(protocol.Event{Kind: protocol.EventRelease, Client: a.call.p.id, Object: a.effect.Object, Access: protocol.Access(a.call.access),
			Rank: a.effect.Rank, Unrepaired: a.effect.Status == protocol.StatusOwnerDied})
	}
}

// block stops granting, because there is no quorum any more. What a program could have taken
// without a call, a lock by its word, it has to ask for from now on.
func (k *calls) block() { k.words.Block(wordHost{k}) }

// unblock goes on with what was parked, because there is a quorum.
func (k *calls) unblock() {
	k.words.Unblock()
	granted, parked := k.granted, k.parked
	k.granted, k.parked = nil, nil
	for i := range granted {
		k.answer(&granted[i].call, &granted[i].effect)
	}
	for i := range parked {
		k.drive.put(parked[i])
	}
}

// endBarriers ends the waits of programs that did not know yet which ranks of their job are lost.
// Where the barrier has its home it is known whether the arrival was counted; if it was, the call
// ends as if nothing had happened.
func (k *calls) endBarriers() {
	var tickets []protocol.Ticket
	for ticket, c := range k.open {
		if c.op == attach.OpArrive && c.losses < uint64(len(c.p.lost)) {
			c.ended = true
			k.open[ticket] = c
			tickets = append(tickets, ticket)
		}
	}
	slices.Sort(tickets)
	for _, ticket := range tickets {
		if !k.cancelParked(ticket) {
			k.drive.put(protocol.Event{Kind: protocol.EventCancel, Client: k.open[ticket].p.id, Ticket: ticket})
		}
	}
}

// forget forgets the open calls of a program that has gone.
func (k *calls) forget(p *program) {
	for _, ticket := range p.waiting {
		if c, open := k.open[ticket]; open {
			k.end(&c)
			delete(k.open, ticket)
		}
	}
	k.words.Gone(wordHost{k}, p.id)
}

// dropProgram drops what a program waits for that has gone.
func (k *calls) dropProgram(p *program) {
	k.parked = slices.DeleteFunc(k.parked, func(ev protocol.Event) bool { return ev.Client == p.id })
	var granted []grantedAnswer
	k.granted = slices.DeleteFunc(k.granted, func(a grantedAnswer) bool {
		if a.call.p == p {
			granted = append(granted, a)
		}
		return a.call.p == p
	})
	for i := range granted {
		k.returnLock(&granted[i]) // it did not die with a lock that it never had
	}
}
