package protocol

import (
	"cmp"
	"fmt"
	"slices"
)

// locks knows who on this node holds or waits for a lock. A lock's access moves among nodes as a
// page's does.
type locks struct {
	*pages
	list    []*lock      // those that are held, waited for or marked here; in ascending order of id
	clients []lockClient // that hold locks or wait for them
}

// lockClient counts what a client holds or waits for.
type lockClient struct {
	client ClientID
	held   int
}

// lock is who on this node holds or waits for a lock. A node may hold the lock object's access
// without anybody here using it: that is the cached lock, and it has no lock struct.
type lock struct {
	id      ObjectID
	writer  ClientID   // 0: none
	readers []ClientID // one entry for each read lock held
	queue   []waiter   // in order of arrival
	// beforeTake is how many waiters at the head of the queue may still have the lock before it
	// goes to the node that it is wanted at.
	beforeTake int
	// died is 1 + the rank of a program that died holding the lock for writing, until somebody
	// repairs what the lock protects. A lock with this mark is given to no other.
	died uint32
}

type waiter struct {
	client ClientID
	ticket Ticket
	access Access
	repair bool // it takes a marked lock too
}

// maxLocalTurns bounds how many waiters of this node come before one of another node, although all
// of them were
// earlier: their messages were shorter, not their patience.
const maxLocalTurns = 16

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

// free reports whether access can be given beside the present holders.
func (l *lock) free(access Access) bool {
	return l.writer == 0 && (access == Read || len(l.readers) == 0)
}

func (l *lock) leaveQueue(i int) {
	l.queue = slices.Delete(l.queue, i, i+1)
	if i < l.beforeTake {
		l.beforeTake--
	}
}

func (ls *locks) findLock(id ObjectID) (int, bool) {
	return slices.BinarySearchFunc(ls.list, id, func(l *lock, id ObjectID) int {
		return cmp.Compare(l.id, id)
	})
}

// peekLock returns the lock, or nil.
func (ls *locks) peekLock(id ObjectID) *lock {
	if i, ok := ls.findLock(id); ok {
		return ls.list[i]
	}
	return nil
}

func (ls *locks) getLock(id ObjectID) *lock {
	i, ok := ls.findLock(id)
	if !ok {
		ls.list = slices.Insert(ls.list, i, &lock{id: id})
	}
	return ls.list[i]
}

// dropLock forgets the lock if nothing is left to remember.
func (ls *locks) dropLock(l *lock) {
	if l.writer != 0 || len(l.readers)+len(l.queue) > 0 || l.died != 0 {
		return
	}
	if i, ok := ls.findLock(l.id); ok {
		ls.list = slices.Delete(ls.list, i, i+1)
	}
}

func (ls *locks) acquire(ev Event) {
	if why := ls.noLock(ev.Object, ev.Client); why != "" {
		ls.emit(Effect{Kind: EffectComplete, Object: ev.Object, Client: ev.Client, Ticket: ev.Ticket, Status: StatusNoSpace, Payload: []byte(why)})
		return
	}
	ls.count(ev.Client, 1)
	l := ls.getLock(ev.Object)
	l.queue = append(l.queue, waiter{client: ev.Client, ticket: ev.Ticket, access: ev.Access, repair: ev.Repair && ev.Access == Write})
	ls.pump(ls.objects.get(ev.Object))
}

func (ls *locks) release(ev Event) {
	l := ls.peekLock(ev.Object)
	held := false
	if l != nil {
		held = l.drop(ev.Client, ev.Access)
	}
	if ev.Ticket != 0 {
		status := StatusOK
		if !held {
			status = StatusUnknown
		}
		ls.emit(Effect{Kind: EffectComplete, Object: ev.Object, Client: ev.Client, Ticket: ev.Ticket, Status: status})
	}
	if held {
		if ev.Unrepaired {
			l.died = ev.Rank + 1
		}
		ls.count(ev.Client, -1)
		ls.pump(ls.objects.get(ev.Object))
	}
}

// beforeTake notes, when the lock is wanted elsewhere, who here was earlier.
func (ls *locks) beforeTake(o *object) {
	if l := ls.peekLock(o.id); l != nil {
		l.beforeTake = min(len(l.queue), maxLocalTurns)
	}
}

// pump gives the lock to those who wait on this node, in order, asks the home if this node has too
// little access, and lets the lock go if it is wanted elsewhere.
func (ls *locks) pump(o *object) {
	p := ls.pendingOf(o)
	if l := ls.peekLock(o.id); l != nil {
		ls.serveWaiters(o, p, l)
	}
	if p.hasParked && !p.granted && ls.view.changes() && ls.mayLetGo(o, p) {
		r := p.parked
		p.parked, p.hasParked = recall{}, false
		if r.access == Read {
			o.setAccess(Read)
		} else {
			o.setAccess(None)
		}
		ls.holder.serve(o, r)
		if l := ls.peekLock(o.id); l != nil {
			ls.serveWaiters(o, p, l)
		}
	}
	if l := ls.peekLock(o.id); l != nil {
		ls.dropLock(l)
	}
	ls.settle(o)
}

func (ls *locks) serveWaiters(o *object, p *pending, l *lock) {
	for len(l.queue) > 0 {
		w := l.queue[0]
		if l.died != 0 && !w.repair {
			ls.turnAway(l)
			continue
		}
		if p.hasParked && l.beforeTake == 0 {
			return
		}
		if o.has() < w.access {
			if p.want == None {
				ls.requester.ask(o, p, w.access)
			}
			return
		}
		if !l.free(w.access) {
			return
		}
		l.leaveQueue(0)
		if w.access == Write {
			l.writer = w.client
		} else {
			l.readers = append(l.readers, w.client)
		}
		f := Effect{Kind: EffectComplete, Object: o.id, Client: w.client, Ticket: w.ticket, Status: StatusOK}
		if l.died != 0 {
			f.Status, f.Rank, l.died = StatusOwnerDied, l.died-1, 0
		}
		ls.emit(f)
	}
}

// turnAway tells the first waiter of a marked lock that it does not get the lock. The mark stays
// for who repairs.
func (ls *locks) turnAway(l *lock) {
	w := l.queue[0]
	l.leaveQueue(0)
	ls.count(w.client, -1)
	ls.emit(Effect{Kind: EffectComplete, Object: l.id, Client: w.client, Ticket: w.ticket, Status: StatusUnrepaired, Rank: l.died - 1})
}

// mayLetGo reports whether the lock can be given to the node that it is wanted at: nobody here
// holds it in a way that excludes that, and nobody who was earlier can still be served with the
// access that is here.
func (ls *locks) mayLetGo(o *object, p *pending) bool {
	l := ls.peekLock(o.id)
	if l == nil {
		return true
	}
	if !l.free(p.parked.access) {
		return false
	}
	return l.beforeTake == 0 || len(l.queue) == 0 || o.has() < l.queue[0].access
}

// passMark takes along the mark of a dead owner when the lock goes to another node: 0 if there is
// none. A node that shares the lock keeps the mark too, because programs of either may ask for the
// lock next. The writer who repairs collects all copies of the mark.
func (ls *locks) passMark(o *object) (died uint32) {
	died = ls.markOf(o.id)
	if died != 0 && o.has() == None {
		l := ls.getLock(o.id)
		l.died = 0
		ls.dropLock(l)
	}
	return died
}

// markOf is the mark of a dead owner that a lock has here: 0 if there is none.
func (ls *locks) markOf(id ObjectID) (died uint32) {
	if !id.IsLock() {
		return 0
	}
	if l := ls.peekLock(id); l != nil {
		died = l.died
	}
	return died
}

// inheritMark takes over the mark of a dead owner.
func (ls *locks) inheritMark(id ObjectID, died uint32) {
	if died != 0 && id.IsLock() {
		ls.getLock(id).died = died
	}
}

// cancelLockWait ends a wait for a lock. It returns false if the ticket does not wait for one.
func (ls *locks) cancelLockWait(c ClientID, t Ticket) bool {
	for _, l := range ls.list {
		i := slices.IndexFunc(l.queue, func(w waiter) bool { return w.client == c && w.ticket == t })
		if i < 0 {
			continue
		}
		l.leaveQueue(i)
		ls.count(c, -1)
		ls.emit(Effect{Kind: EffectComplete, Object: l.id, Client: c, Ticket: t, Status: StatusCanceled})
		ls.pump(ls.objects.get(l.id))
		return true
	}
	return false
}

// releaseAll gives back every lock of a program that has ended, and marks those it held for
// writing.
func (ls *locks) releaseAll(c ClientID, rank uint32) {
	for _, l := range slices.Clone(ls.list) {
		for i := len(l.queue) - 1; i >= 0; i-- {
			if l.queue[i].client == c {
				l.leaveQueue(i)
				ls.count(c, -1)
			}
		}
		if l.drop(c, Write) {
			l.died = rank + 1
			ls.count(c, -1)
		}
		for l.drop(c, Read) {
			ls.count(c, -1)
		}
		ls.pump(ls.objects.get(l.id))
	}
}

// count adds d to what a client holds, and returns the sum.
func (ls *locks) count(c ClientID, d int) int {
	for i := range ls.clients {
		if h := &ls.clients[i]; h.client == c {
			if h.held += d; h.held == 0 {
				ls.clients[i] = ls.clients[len(ls.clients)-1]
				ls.clients = ls.clients[:len(ls.clients)-1]
				return 0
			}
			return h.held
		}
	}
	if d == 0 {
		return 0
	}
	ls.clients = append(ls.clients, lockClient{c, d})
	return d
}

// noLock says why a client cannot have one more lock: "" if it can.
func (ls *locks) noLock(id ObjectID, c ClientID) string {
	switch {
	case ls.count(c, 0) >= ls.limits.held:
		return fmt.Sprintf("this program holds or waits for %d locks already; give some back", ls.limits.held)
	case !ls.knowsOrCan(id):
		return fmt.Sprintf("this node knows %d locks already; use fewer names", ls.limits.locks)
	}
	return ""
}

// check says if a lock is held in two ways or without access, if nothing is known of one, or if
// the mark of a dead owner is where nobody passes it on: it goes with a copy, or waits at the home.
func (ls *locks) check() error {
	for _, l := range ls.list {
		has := ls.access(l.id)
		p := ls.peek(ls.objects.find(l.id))
		switch {
		case !l.id.IsLock() || l.writer == 0 && len(l.readers)+len(l.queue) == 0 && l.died == 0:
			return fmt.Errorf("%v is no lock, or nobody holds it or waits for it", l.id)
		case l.writer != 0 && len(l.readers) > 0:
			return fmt.Errorf("%v is held by writer %d and readers %v", l.id, l.writer, l.readers)
		case l.writer != 0 && has != Write || len(l.readers) > 0 && has == None:
			return fmt.Errorf("%v is held, with only access %v to it", l.id, has)
		case l.died != 0 && has == None && ls.view.phase == running && ls.home(l.id) != ls.cfg.Self && (p == nil || p.want == None):
			return fmt.Errorf("%v is marked with the death of %d, and is neither here nor at home here", l.id, l.died-1)
		}
	}
	return nil
}

// clone returns an independent copy, of other pages.
func (ls *locks) clone(of *pages) locks {
	c := locks{pages: of, clients: slices.Clone(ls.clients)}
	for _, l := range ls.list {
		k := *l
		k.readers, k.queue = slices.Clone(l.readers), slices.Clone(l.queue)
		c.list = append(c.list, &k)
	}
	return c
}

// appendState appends an encoding: see Engine.AppendState.
func (ls *locks) appendState(b []byte) []byte {
	return appendEach(append(b, 'L'), ls.list, func(b []byte, l *lock) []byte {
		b = appendNumbers(b, uint64(l.id), uint64(l.writer), uint64(l.beforeTake), uint64(l.died))
		return appendEach(appendInts(b, l.readers), l.queue, func(b []byte, w waiter) []byte {
			return append(appendNumbers(b, uint64(w.client), uint64(w.ticket)), byte(w.access), bits(w.repair))
		})
	})
}
