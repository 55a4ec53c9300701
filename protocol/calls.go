package protocol

// answer gives a BarrierRelease or a NameReply to the machine whose call it answers. Often nobody
// waits any more.
func (e *Engine) answer(m *Message) {
	arrival, name := e.barriers.waitsFor(m.Object, m.ticket), e.names.waitsFor(m.Object, m.ticket)
	switch {
	case arrival && m.Kind == KindBarrierRelease:
		e.barriers.onRelease(m)
	case name && m.Kind == KindNameReply:
		if c := e.names.onReply(m); c != nil {
			first, count, _ := DecodeRun(m.AsNameReply().Answer)
			call, _ := DecodeNameCall(c.payload) // which this node has made
			e.noteBound(run{first, count}, call.Replicas)
		}
	case arrival || name:
		e.reject(m, "the call that it answers went to another node, or was another")
	}
}

// noteBound notes which memory a Bind has brought, and whether that is replicated.
func (e *Engine) noteBound(x run, replicas uint8) {
	e.reclaim.noteBound(x)
	e.backups.replicate(x, int(replicas))
}

// cancel ends a program's wait, whatever it waits for.
func (e *Engine) cancel(ev Event) {
	if e.locks.cancelLockWait(ev.Client, ev.Ticket) {
		return
	}
	if e.commits.endCommits(func(c commitCall) bool { return c.client == ev.Client && c.ticket == ev.Ticket }) > 0 {
		e.emit(Effect{Kind: EffectComplete, Client: ev.Client, Ticket: ev.Ticket, Status: StatusCanceled})
		return
	}
	if !e.barriers.cancel(ev.Client, ev.Ticket) {
		e.names.cancel(ev.Client, ev.Ticket)
	}
}

// clientGone cleans up after a program that has ended, in whatever way.
func (e *Engine) clientGone(ev Event) {
	e.locks.releaseAll(ev.Client, ev.Rank)
	e.commits.endCommits(func(c commitCall) bool { return c.client == ev.Client })
	e.barriers.withdraw(ev.Client)
	e.names.leave(ev.Client)
}
