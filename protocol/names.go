package protocol

import (
	"encoding/binary"
	"slices"
)

// names is what a node knows of the names that its own programs use: it asks the allocator
// (registry) for them, and remembers what it got, for when the allocator is lost.
type names struct {
	*env
	calls  []nameCall // that the allocator has not answered; oldest first
	uses   []use      // names that programs of this node use
	gone   []ClientID // programs with names that have ended in this recovery
	undone []nameCall // Binds that were cancelled in this recovery
}

// nameCall is a call of a program of this node that waits for the allocator.
type nameCall struct {
	client  ClientID
	ticket  Ticket
	to      NodeID // who answers; NoNode: it was not sent yet, because a recovery is under way
	sent    uint32 // in this epoch
	op      NameOp
	name    string
	payload []byte // what is sent
	// late: an Unbind or Discard of what had the name before, because a later Bind was answered
	// before it. Memory is freed in phases, and the name is free at once.
	late bool
}

// use is a name that a program of this node has bound.
type use struct {
	client ClientID
	run
	kept bool
	name string
	call []byte // the NameCall by which the client, or another of this node, has bound it
}

// ask sends the allocator a call of a program.
func (n *names) ask(ev Event) {
	c, err := DecodeNameCall(ev.Payload)
	if err != nil {
		panic("protocol: the host sends what is no name call: " + err.Error())
	}
	to := n.allocator()
	if n.view.phase != running {
		to = NoNode
	} else {
		n.send(NameRequest{Ticket: ev.Ticket, Call: ev.Payload}.To(to))
	}
	n.calls = append(n.calls, nameCall{client: ev.Client, ticket: ev.Ticket, to: to, sent: n.view.epoch, op: c.Op, name: c.Name, payload: slices.Clone(ev.Payload)})
}

// undo gives back the name that a cancelled Bind has asked for, wherever it has got to: in line at
// the allocator, bound there, or on its way. Otherwise the memory would stay bound until its
// program ends, which does not know of it. What a program uses by another call stays. The answer,
// which has the ticket of the Bind, goes to nobody.
func (n *names) undo(c nameCall) {
	if c.op != Bind || c.to == NoNode ||
		slices.ContainsFunc(n.uses, func(u use) bool { return u.client == c.client && u.name == c.name }) && !n.givesUp(&c) ||
		slices.ContainsFunc(n.calls, func(d nameCall) bool { return d.op == Bind && d.client == c.client && d.name == c.name }) {
		return
	}
	c.payload = (&NameCall{Op: Unbind, Client: c.client, Name: c.name}).Append(nil)
	n.undone = append(n.undone, c)
	if n.view.phase == running { // else when the recovery is over
		n.sendUndone()
	}
}

// givesUp reports whether an Unbind of a call's name, by the same program, waits for its answer.
func (n *names) givesUp(c *nameCall) bool {
	return slices.ContainsFunc(n.calls, func(d nameCall) bool { return d.op == Unbind && !d.late && d.client == c.client && d.name == c.name })
}

// sendUndone tells the allocator what is undone.
func (n *names) sendUndone() {
	undone := n.undone
	n.undone = nil
	for _, c := range undone {
		n.send(NameRequest{Ticket: c.ticket, Call: c.payload}.To(n.allocator()))
	}
}

// noteUse keeps account of the names that programs of this node use, and tells whether this is one
// more. older are the calls that were made before and are not answered.
func (n *names) noteUse(c *nameCall, status Status, answer []byte, older []nameCall) (isNew bool) {
	i := slices.IndexFunc(n.uses, func(u use) bool { return u.client == c.client && u.name == c.name })
	switch {
	case c.op == Bind && status == StatusOK:
		first, count, err := DecodeRun(answer)
		isNew = err == nil && count > 0 && (i < 0 || n.uses[i].run != run{first, count})
		endLate(c, older, isNew)
		if isNew {
			if i >= 0 {
				n.uses = slices.Delete(n.uses, i, i+1)
			}
			u := use{client: c.client, run: run{first, count}, name: c.name, call: c.payload}
			if j := slices.IndexFunc(n.uses, func(x use) bool { return x.name == u.name && x.run == u.run }); j >= 0 {
				u.call = n.uses[j].call // once in memory, because it may be long
			}
			n.uses = append(n.uses, u)
		}
	case i < 0 || c.late:
	case c.op == Unbind && (status == StatusOK || status == StatusUnknown):
		n.uses = slices.Delete(n.uses, i, i+1)
	case status != StatusOK:
	case c.op == Keep:
		n.uses[i].kept = true
	case c.op == Discard:
		n.uses[i].kept = false
	}
	return isNew
}

// endLate notes which older calls say nothing of the use that a Bind has begun, or begun again.
// isNew: it has got other memory.
func endLate(bind *nameCall, older []nameCall, isNew bool) {
	for i := range older {
		if c := &older[i]; (c.op == Unbind || c.op == Discard && isNew) && c.client == bind.client && c.name == bind.name {
			c.late = true
		}
	}
}

// hasLapsed reports whether the allocator has forgotten a call: it has made its names anew in an
// epoch after that in which the call was sent.
func (n *names) hasLapsed(c *nameCall) bool { return c.to != NoNode && c.sent < n.view.since }

// report says which names programs of this node use, each once and then who uses it, and that there
// is something below page top. Those that they are giving up are not: perhaps their pages are in
// use again already. An allocator that makes its own anew has forgotten what it was asked.
func (n *names) report(p *parcel, top uint64) {
	said := map[string]bool{}
	for i := range n.uses {
		u := &n.uses[i]
		if slices.ContainsFunc(n.calls, func(c nameCall) bool {
			return c.op == Unbind && !c.late && c.to != NoNode && c.client == u.client && c.name == u.name
		}) {
			continue
		}
		if !said[u.name] {
			said[u.name] = true
			b := p.room(1 + runBytes + 2 + len(u.call))
			*b = AppendRun(append(*b, tagName), u.first, u.count)
			*b = binary.LittleEndian.AppendUint16(*b, uint16(len(u.call)))
			*b = append(*b, u.call...)
		}
		b := p.room(useBytes)
		*b = append(AppendRun(append(*b, tagUse), u.first, u.count), bits(u.kept))
		*b = binary.LittleEndian.AppendUint32(*b, uint32(u.client))
	}
	b := p.room(9)
	*b = append(*b, tagTop)
	*b = binary.LittleEndian.AppendUint64(*b, top)
}

// waitsFor tells whether a program of this node waits for an answer with this ticket.
func (n *names) waitsFor(id ObjectID, t Ticket) bool {
	return id == 0 && slices.ContainsFunc(n.calls, func(c nameCall) bool { return c.ticket == t })
}

// onReply answers the program whose call was waiting. If it has bound a name, that is what onReply
// returns.
func (n *names) onReply(m *Message) (bound *nameCall) {
	k := m.AsNameReply()
	i := slices.IndexFunc(n.calls, func(c nameCall) bool { return c.ticket == k.Ticket })
	c := n.calls[i]
	if why := n.noReply(&c, m.From, &k); why != "" {
		n.reject(m, why)
		return nil
	}
	if k.Status != StatusOK && (c.op == AwaitFree || c.op == Unbind && n.hasLapsed(&c)) {
		return nil // from an allocator that has forgotten the use; another answer follows
	}
	isNew := n.noteUse(&c, k.Status, k.Answer, n.calls[:i])
	n.calls = slices.Delete(n.calls, i, i+1)
	n.complete(&c, k.Status, k.Answer)
	if !isNew {
		return nil
	}
	return &c
}

// noReply says why a reply cannot answer a call: "" if it can.
func (n *names) noReply(c *nameCall, from NodeID, k *NameReply) string {
	switch {
	case from != c.to:
		return "the call that it answers went to another node, or was another"
	case k.Status == StatusOwnerDied || k.Status == StatusUnrepaired:
		return "no lock was asked for"
	case k.Status != StatusOK || len(k.Answer) == 0:
		return ""
	}
	// Programs map what they are told.
	if first, count, err := DecodeRun(k.Answer); err != nil || count > n.cfg.Pages || first > n.cfg.Pages-count {
		return "not a run of pages of the region"
	}
	return ""
}

func (n *names) complete(c *nameCall, status Status, payload []byte) {
	n.emit(Effect{Kind: EffectComplete, Client: c.client, Ticket: c.ticket, Status: status, Payload: payload})
}

// cancel ends a program's wait for the allocator, if the ticket waits for it.
func (n *names) cancel(client ClientID, t Ticket) {
	i := slices.IndexFunc(n.calls, func(c nameCall) bool { return c.client == client && c.ticket == t })
	if i < 0 {
		return // completed before
	}
	c := n.calls[i]
	n.calls = slices.Delete(n.calls, i, i+1)
	n.complete(&c, StatusCanceled, nil)
	if c.op == Unbind && c.to != NoNode {
		n.noteUse(&c, StatusOK, nil, nil) // the allocator will hear of it, or nobody of the use
	}
	n.undo(c)
}

// leave tells the allocator that a program has ended.
func (n *names) leave(client ClientID) {
	n.calls = slices.DeleteFunc(n.calls, func(c nameCall) bool { return c.client == client })
	n.uses = slices.DeleteFunc(n.uses, func(u use) bool { return u.client == client })
	n.undone = slices.DeleteFunc(n.undone, func(c nameCall) bool { return c.client == client })
	if n.view.phase == running {
		n.unbindAll(client)
	} else {
		// Also if it uses no name as far as this node knows: the allocator may have bound one for a
		// call that was cancelled.
		n.gone = append(n.gone, client)
	}
}

// unbindAll tells the allocator that a program uses none any more.
func (n *names) unbindAll(c ClientID) {
	n.send(NameRequest{Call: (&NameCall{Op: UnbindAll, Client: c}).Append(nil)}.To(n.allocator()))
}

// resume repeats calls that nobody has heard, or that nobody remembers, or ends them, when a
// recovery ends.
func (n *names) resume() {
	calls := n.calls
	n.calls = nil
	n.sendUndone() // before the same program asks for the same name again
	for _, c := range calls {
		lapsed := n.hasLapsed(&c)
		switch {
		case c.to != NoNode && !lapsed:
			n.calls = append(n.calls, c)
		case c.late: // it is about memory that has the name no longer
			n.complete(&c, StatusOK, nil)
		default:
			if lapsed && c.op == Unbind {
				n.haveGivenUp(&c)
			}
			c.to, c.sent = n.allocator(), n.view.epoch
			n.calls = append(n.calls, c)
			n.send(NameRequest{Ticket: c.ticket, Call: c.payload}.To(c.to))
		}
	}
	for _, c := range n.gone {
		n.unbindAll(c)
	}
	n.gone = nil
}

// haveGivenUp makes of an Unbind one that waits until the memory is free: no allocator knows of the
// use any more, see report.
func (n *names) haveGivenUp(c *nameCall) {
	i := slices.IndexFunc(n.uses, func(u use) bool { return u.client == c.client && u.name == c.name })
	if i < 0 {
		return
	}
	c.op, c.payload = AwaitFree, (&NameCall{Op: AwaitFree, Client: c.client, Pages: n.uses[i].first, Name: c.name}).Append(nil)
	n.uses = slices.Delete(n.uses, i, i+1)
}

// clone returns an independent copy, in another environment.
func (n *names) clone(in *env) names {
	return names{in, slices.Clone(n.calls), slices.Clone(n.uses), slices.Clone(n.gone), slices.Clone(n.undone)}
}

// appendState appends an encoding: see Engine.AppendState.
func (n *names) appendState(b []byte) []byte {
	call := func(b []byte, c nameCall) []byte {
		b = append(appendNumbers(b, uint64(c.client), uint64(c.ticket), uint64(c.to), uint64(c.sent), uint64(c.op)), bits(c.late))
		return appendText(appendText(b, c.name), c.payload)
	}
	b = appendEach(appendEach(b, n.calls, call), n.undone, call)
	b = appendEach(b, n.uses, func(b []byte, u use) []byte {
		b = append(u.run.append(appendNumbers(b, uint64(u.client))), bits(u.kept))
		return appendText(appendText(b, u.name), u.call)
	})
	return appendInts(b, n.gone)
}
