package node

import (
	"fmt"
	"time"

	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/protocol"
)

// openCall is a call that the engine has not answered yet.
type openCall struct {
	p      *program
	ticket uint64 // the program's
	op     attach.Op
	name   string // OpBind: of the memory
	since  time.Duration
	losses uint64 // OpArrive: how many ranks the program knows to be lost
	ended  bool   // the program is to be told that a rank of its job is lost, if nothing else has happened
}

// maxCalls bounds the open calls of one program: more than it can have goroutines that wait.
const maxCalls = protocol.MaxHeld

// call lets a program's call happen.
func (n *Node) call(p *program, c *attach.Call) error {
	if len(p.waiting)+len(p.fetches) >= maxCalls {
		return fmt.Errorf("%w: more than %d calls are open", attach.ErrMalformed, maxCalls)
	}
	if _, open := p.waiting[c.Ticket]; (open || p.fetches[c.Ticket] != nil || p.pins[c.Ticket] != nil) && c.Op != attach.OpCancel {
		return fmt.Errorf("%w: ticket %d is open already", attach.ErrMalformed, c.Ticket)
	}
	switch c.Op {
	case attach.OpRelease:
		n.releaseCall(p, c)
	case attach.OpPrefetch:
		n.startFetch(p, c)
	case attach.OpPin:
		n.startPin(p, c)
	case attach.OpUnpin:
		return n.unpin(p, c.Object)
	case attach.OpCancel:
		n.cancelCall(p, c.Ticket)
	case attach.OpStats:
		n.gauge()
		n.answer(p, &attach.Reply{Ticket: c.Ticket, Payload: attach.AppendCounters(nil, append(n.counterList(), n.foughtIn()...))})
	case attach.OpLostPage:
		n.answerLostPage(p, c)
	case attach.OpLostRanks:
		n.answerLostRanks(p, c)
	case attach.OpDrain:
		n.startDrain(p, c)
	default:
		n.ask(p, c)
	}
	return nil
}

// ask puts a call to the engine, which answers it.
func (n *Node) ask(p *program, c *attach.Call) {
	ev := protocol.Event{Client: p.id, Rank: p.rank}
	switch c.Op {
	case attach.OpAcquire:
		n.count.lockCalls.Add(1)
		if n.takeWord(p, c) {
			n.answer(p, &attach.Reply{Ticket: c.Ticket, Status: attach.StatusByWord})
			return
		}
		n.recall(protocol.LockObject(c.Object))
		ev.Kind, ev.Object, ev.Access = protocol.EventAcquire, protocol.LockObject(c.Object), protocol.Access(c.Access)
	case attach.OpArrive:
		n.count.barrierCalls.Add(1)
		if c.Parties > protocol.MaxParties {
			text := fmt.Sprintf("a barrier of %d parties; at most %d are possible", c.Parties, protocol.MaxParties)
			n.answer(p, &attach.Reply{Ticket: c.Ticket, Status: attach.StatusMismatch, Payload: []byte(text)})
			return
		}
		if n.arrivesInVain(p, c) {
			return
		}
		ev.Kind, ev.Object, ev.Parties, ev.Payload = protocol.EventArrive, protocol.LockObject(c.Object), c.Parties, append([]byte(nil), c.Payload...)
	case attach.OpCommit:
		n.count.commits.Add(1)
		if !n.survives() { // nobody would be left to look at backups
			n.answer(p, &attach.Reply{Ticket: c.Ticket})
			return
		}
		n.gather() // what was written is sealed, and read, in runs
		defer n.settle()
		ev.Kind = protocol.EventCommit
	case attach.OpBind, attach.OpUnbind, attach.OpKeep, attach.OpDiscard:
		n.count.nameCalls.Add(1)
		payload, ok := n.nameCall(p, c)
		if !ok {
			n.answer(p, &attach.Reply{Ticket: c.Ticket, Status: attach.StatusNoSpace})
			return
		}
		ev.Kind, ev.Payload = protocol.EventName, payload
	default:
		panic(fmt.Sprintf("node: the engine answers no %v", c.Op))
	}
	// Programs choose their tickets as they like; the engine's are never used twice on a node, so that an answer
	// that comes late, for a call that was cancelled or whose program is gone, is nobody else's.
	n.lastTicket++
	ev.Ticket = n.lastTicket
	p.waiting[c.Ticket] = ev.Ticket
	n.calls[ev.Ticket] = openCall{p: p, ticket: c.Ticket, op: c.Op, name: c.Name, losses: c.Count, since: n.now}
	n.putCall(ev)
}

func (n *Node) cancelCall(p *program, ticket uint64) {
	if f := p.fetches[ticket]; f != nil {
		n.endFetch(f, attach.StatusCanceled)
		return
	}
	if t, ok := p.waiting[ticket]; ok && !n.cancelHeld(t) {
		n.step(protocol.Event{Kind: protocol.EventCancel, Client: p.id, Ticket: t})
	}
}

// nameOps are the calls about names in the words of the directory.
var nameOps = map[attach.Op]protocol.NameOp{
	attach.OpBind: protocol.Bind, attach.OpUnbind: protocol.Unbind, attach.OpKeep: protocol.Keep, attach.OpDiscard: protocol.Discard,
}

// nameCall encodes a call about an allocation for the directory of names. It returns false if no region could hold it.
func (n *Node) nameCall(p *program, c *attach.Call) (payload []byte, ok bool) {
	call := protocol.NameCall{Op: nameOps[c.Op], Client: p.id, Name: c.Name}
	if c.Op == attach.OpBind {
		pages, ok := c.Pages(uint32(n.table.PageBytes()))
		if !ok || pages > n.table.Pages() {
			return nil, false
		}
		call.Pages, call.Signature = pages, c.Identity()
		if n.survives() {
			call.Replicas = c.Replicas
		}
	}
	return call.Append(nil), true
}

// reply answers the call whose ticket the engine completed, if its program is still there.
func (n *Node) reply(f *protocol.Effect) {
	c, ok := n.calls[f.Ticket]
	if !ok {
		return
	}
	delete(n.calls, f.Ticket)
	delete(c.p.waiting, c.ticket)
	switch waited := uint64(n.clock() - c.since); c.op {
	case attach.OpAcquire:
		n.count.lockNanos.Add(waited)
	case attach.OpArrive:
		n.count.barrierNanos.Add(waited)
	case attach.OpBind:
		n.noteExtent(f, c.name)
	}
	r := attach.Reply{Ticket: c.ticket, Status: attach.Status(f.Status), Rank: f.Rank, Payload: f.Payload}
	if c.ended && f.Status == protocol.StatusCanceled || f.Status == protocol.StatusNodeLost {
		r.Status, r.Payload = attach.StatusNodeLost, []byte(n.whoIsLost(c.p))
	}
	n.answer(c.p, &r)
}

// noteExtent remembers where an allocation lies.
func (n *Node) noteExtent(f *protocol.Effect, name string) {
	if f.Status != protocol.StatusOK {
		return
	}
	if first, count, err := protocol.DecodeRun(f.Payload); err == nil { // else the program finds out
		n.extents.add(pagetable.Page(first), count, name)
	}
}

// answer sends a reply, by the control page if the program looks there for it.
func (n *Node) answer(p *program, r *attach.Reply) {
	frame := attach.AppendReply(nil, r)
	if p.page != nil && p.page.Replies().Put(frame) {
		n.replied = true
		return
	}
	n.write(p, frame, -1)
}
