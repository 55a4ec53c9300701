package protocol

import "slices"

// lock is who on this node holds or waits for a lock. A node may hold the lock object's access without
// anybody here using it: that is the cached lock, and it has no lock struct.
type lock struct {
	id      ObjectID
	writer  ClientID   // 0: none
	readers []ClientID // one entry for each read lock held
	queue   []waiter   // in order of arrival
	// beforeTake is how many waiters at the head of the queue may still have the lock before it goes to the
	// node that it is wanted at.
	beforeTake int
	// died is 1 + the rank of a program that died holding the lock for writing, until somebody has been told.
	died uint32
}

type waiter struct {
	client ClientID
	ticket Ticket
	access Access
}

// maxLocalTurns bounds how many waiters of this node come before one of another node, although all of them were
// earlier: their messages were shorter, not their patience.
const maxLocalTurns = 16

func (e *Engine) findLock(id ObjectID) (int, bool) {
	return slices.BinarySearchFunc(e.locks, id, func(l *lock, id ObjectID) int {
		switch {
		case l.id < id:
			return -1
		case l.id > id:
			return 1
		}
		return 0
	})
}

// peekLock returns the lock, or nil.
func (e *Engine) peekLock(id ObjectID) *lock {
	if i, ok := e.findLock(id); ok {
		return e.locks[i]
	}
	return nil
}

func (e *Engine) getLock(id ObjectID) *lock {
	i, ok := e.findLock(id)
	if !ok {
		e.locks = slices.Insert(e.locks, i, &lock{id: id})
	}
	return e.locks[i]
}

// dropLock forgets the lock if nothing is left to remember.
func (e *Engine) dropLock(l *lock) {
	if l.writer != 0 || len(l.readers)+len(l.queue) > 0 || l.died != 0 {
		return
	}
	if i, ok := e.findLock(l.id); ok {
		e.locks = slices.Delete(e.locks, i, i+1)
	}
}

func (e *Engine) acquire(ev Event) {
	if why := e.noLock(ev.Object, ev.Client); why != "" {
		e.emit(Effect{Kind: EffectComplete, Object: ev.Object, Client: ev.Client, Ticket: ev.Ticket, Status: StatusNoSpace, Payload: []byte(why)})
		return
	}
	e.count(ev.Client, 1)
	l := e.getLock(ev.Object)
	l.queue = append(l.queue, waiter{client: ev.Client, ticket: ev.Ticket, access: ev.Access})
	e.pump(e.objects.get(ev.Object))
}

func (e *Engine) release(ev Event) {
	l := e.peekLock(ev.Object)
	held := false
	if l != nil {
		held = l.drop(ev.Client, ev.Access)
	}
	if ev.Ticket != 0 {
		status := StatusOK
		if !held {
			status = StatusUnknown
		}
		e.emit(Effect{Kind: EffectComplete, Object: ev.Object, Client: ev.Client, Ticket: ev.Ticket, Status: status})
	}
	if held {
		e.count(ev.Client, -1)
		e.pump(e.objects.get(ev.Object))
	}
}

// drop gives back one lock that c holds and says whether it held it.
func (l *lock) drop(c ClientID, a Access) bool {
	if a == Write {
		if l.writer != c || c == 0 {
			return false
		}
		l.writer = 0
		return true
	}
	i := slices.Index(l.readers, c)
	if i < 0 {
		return false
	}
	l.readers = slices.Delete(l.readers, i, i+1)
	return true
}

// free says whether access can be given beside the present holders.
func (l *lock) free(access Access) bool {
	return l.writer == 0 && (access == Read || len(l.readers) == 0)
}

// beforeTake notes, when the lock is wanted elsewhere, who here was earlier.
func (e *Engine) beforeTake(o *object) {
	if l := e.peekLock(o.id); l != nil {
		l.beforeTake = min(len(l.queue), maxLocalTurns)
	}
}

// pump gives the lock to those who wait on this node, in order, asks the home if this node has too little access,
// and lets the lock go if it is wanted elsewhere.
func (e *Engine) pump(o *object) {
	p := e.pendingOf(o)
	if l := e.peekLock(o.id); l != nil {
		e.serveWaiters(o, p, l)
	}
	if p.hasDeferred && !p.granted && e.view.changes() && e.mayLetGo(o, p) {
		m := p.deferred
		p.deferred, p.hasDeferred = Message{}, false
		if m.Kind == Forward && m.Access == Read {
			o.setAccess(Read)
		} else {
			o.setAccess(None)
		}
		e.serve(o, m)
		if l := e.peekLock(o.id); l != nil {
			e.serveWaiters(o, p, l)
		}
	}
	if l := e.peekLock(o.id); l != nil {
		e.dropLock(l)
	}
	e.settle(o)
}

func (e *Engine) serveWaiters(o *object, p *pending, l *lock) {
	for len(l.queue) > 0 {
		w := l.queue[0]
		if p.hasDeferred && l.beforeTake == 0 {
			return
		}
		if o.has() < w.access {
			if p.want == None {
				e.ask(o, p, w.access)
			}
			return
		}
		if !l.free(w.access) {
			return
		}
		l.queue = slices.Delete(l.queue, 0, 1)
		l.beforeTake = max(l.beforeTake-1, 0)
		if w.access == Write {
			l.writer = w.client
		} else {
			l.readers = append(l.readers, w.client)
		}
		f := Effect{Kind: EffectComplete, Object: o.id, Client: w.client, Ticket: w.ticket, Status: StatusOK}
		if l.died != 0 {
			f.Status, f.Rank, l.died = StatusOwnerDied, l.died-1, 0
		}
		e.emit(f)
	}
}

// mayLetGo says whether the lock can be given to the node that it is wanted at: nobody here holds it in a
// way that excludes that, and nobody who was earlier can still be served with the access that is here.
func (e *Engine) mayLetGo(o *object, p *pending) bool {
	l := e.peekLock(o.id)
	if l == nil {
		return true
	}
	if !l.free(p.deferred.lockAccess()) {
		return false
	}
	return l.beforeTake == 0 || len(l.queue) == 0 || o.has() < l.queue[0].access
}

// lockAccess is what a Forward or an Invalidate takes the lock for.
func (m *Message) lockAccess() Access {
	if m.Kind == Forward {
		return m.Access
	}
	return Write
}

// passMark makes the mark of a dead owner travel with the lock. Who shares the lock with a reader keeps the mark too: either of them
// may be the first to give the lock to somebody. So several readers may be told of the death; after the first writer,
// who collects all copies of the mark, nobody is.
func (e *Engine) passMark(o *object, m *Message) {
	if !o.id.IsLock() {
		return
	}
	l := e.peekLock(o.id)
	if l == nil || l.died == 0 {
		return
	}
	m.Flags |= FlagOwnerDied
	m.Aux = l.died - 1
	if o.has() == None {
		l.died = 0
	}
}

// inheritMark takes over the mark of a dead owner.
func (e *Engine) inheritMark(m *Message) {
	if m.Flags&FlagOwnerDied != 0 && m.Object.IsLock() && m.Aux < 1<<32-1 {
		e.getLock(m.Object).died = m.Aux + 1
	}
}

// cancelLockWait ends a wait for a lock. It returns false if the ticket does not wait for one.
func (e *Engine) cancelLockWait(c ClientID, t Ticket) bool {
	for _, l := range e.locks {
		i := slices.IndexFunc(l.queue, func(w waiter) bool { return w.client == c && w.ticket == t })
		if i < 0 {
			continue
		}
		l.leaveQueue(i)
		e.count(c, -1)
		e.emit(Effect{Kind: EffectComplete, Object: l.id, Client: c, Ticket: t, Status: StatusCanceled})
		e.pump(e.objects.get(l.id))
		return true
	}
	return false
}

func (l *lock) leaveQueue(i int) {
	l.queue = slices.Delete(l.queue, i, i+1)
	if i < l.beforeTake {
		l.beforeTake--
	}
}

// releaseAll gives back every lock of a program that has ended, and marks those it held for writing.
func (e *Engine) releaseAll(c ClientID, rank uint32) {
	for _, l := range slices.Clone(e.locks) {
		for i := len(l.queue) - 1; i >= 0; i-- {
			if l.queue[i].client == c {
				l.leaveQueue(i)
				e.count(c, -1)
			}
		}
		if l.drop(c, Write) {
			l.died = rank + 1
			e.count(c, -1)
		}
		for l.drop(c, Read) {
			e.count(c, -1)
		}
		e.pump(e.objects.get(l.id))
	}
}
