package dsm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/callsite"
	"dsmd/internal/controlpage"
	"dsmd/internal/runstats"
)

// holding is what this process holds of one lock.
type holding struct {
	writer  bool
	readers int
	site    callsite.Site // where it was taken
}

// holdings are the locks that this process has not taken on the control page, by hash.
type holdings struct {
	mu   sync.Mutex
	held map[uint64]*holding
}

// lock is a lock of the cluster, known everywhere by the hash of its name.
type lock struct {
	c    *Cluster
	name string
	hash uint64
}

func newLock(c *Cluster, name string) lock {
	return lock{c: c, name: name, hash: attach.NameHash(attach.NameLock, c.scoped(name))}
}

// Mutex is a lock that one goroutine of the whole cluster holds at a time. Mutexes of the same name
// are the same lock, in this and in all other programs; so is an RWMutex of that name. It may be
// copied, and used by any number of goroutines. What was stored before an Unlock is seen after the
// next Lock, wherever that is.
//
// A lock stays at the node where it was held last. As long as nobody else wants it, the program
// that held it last takes it again, and gives it back, by one atomic instruction.
//
// When a program dies holding the lock, what the lock protects may be half changed. From then on
// Lock and TryLock return an *OwnerDiedError to everybody, until somebody has repaired it: see
// LockRepair.
type Mutex struct{ l lock }

// NewMutex returns the mutex called name. It sends nothing and can not fail; any name will do.
func NewMutex(c *Cluster, name string) *Mutex { return &Mutex{newLock(c, name)} }

// Lock waits until the caller has the lock. The caller holds it if and only if the error is nil.
//
// When ctx ends after a second or more the error says who holds the lock, since when, and where it
// was taken. To find that out may take another second, if somebody does not answer.
//
// Errors: an *OwnerDiedError (it wraps ErrOwnerDied) if the program that held the lock last died
// holding it, and nobody has repaired what it protects; ctx's; ErrNoSpace (this program holds or
// waits for 262,144 locks, or the node knows 4,194,304); ErrNodeLost, ErrClosed, ErrLost.
func (m *Mutex) Lock(ctx context.Context) error { return m.l.acquire(ctx, "Lock", attach.Write) }

// LockRepair is Lock for a program that can repair what a dead owner has left. If there is nothing
// to repair, it is Lock. Otherwise it takes the lock and calls repair, which is told who died. If
// repair returns nil, the lock is as good as any other from then on, and the caller holds it. If
// repair returns an error, or panics, the lock passes on unrepaired, and the caller does not hold
// it.
//
// repair runs in the calling goroutine, with the lock held. It must neither unlock it nor lock it
// again. What the lock protects may also be on pages that are lost, so repair may need Guard. When
// the program dies in repair, the next one repairs.
//
// The caller holds the lock if and only if the error is nil. Errors: repair's, wrapped, and those
// of Lock but ErrOwnerDied.
func (m *Mutex) LockRepair(ctx context.Context, repair func(*OwnerDiedError) error) error {
	return m.l.acquireRepair(ctx, repair)
}

// TryLock takes the lock if nobody holds it. It returns true if the caller holds the lock now, and
// then the error is nil.
//
// It does not wait for those who hold the lock: if they are on this node, it returns false at once.
// If the lock was last held on another node, it asks there, and returns false after TryPatience. So
// a free lock is refused only where a message there and back takes longer than that; the lock then
// comes to this node all the same, and the next TryLock finds it.
//
// Errors: those of Lock.
func (m *Mutex) TryLock(ctx context.Context) (bool, error) {
	return m.l.try(ctx, "TryLock", attach.Write)
}

// Unlock gives the lock back. Any goroutine of the process that holds it may do so. It does not
// wait for others, with one exception: if this process has Replicated memory, it waits until what
// was stored there is at its backups, as Commit does.
//
// Errors: ErrNotHeld, ErrClosed, ErrLost.
func (m *Mutex) Unlock() error { return m.l.release("Unlock", attach.Write) }

// RWMutex is a lock that either one goroutine of the whole cluster holds for writing, or any number
// for reading. What Mutex says about names, copies, memory and dead owners is true of it too; only
// those who die holding it for writing leave something to repair.
//
// Waiting writers and readers come in the order in which they asked, but for a bounded number of
// turns that a node may take while it has the lock. So a goroutine must not RLock again what it
// holds for reading: a writer may be waiting in between.
type RWMutex struct{ l lock }

// NewRWMutex returns the reader-writer lock called name. It sends nothing and can not fail; any
// name will do.
func NewRWMutex(c *Cluster, name string) *RWMutex { return &RWMutex{newLock(c, name)} }

// Lock waits until the caller has the lock for writing, as Mutex.Lock does.
func (m *RWMutex) Lock(ctx context.Context) error { return m.l.acquire(ctx, "Lock", attach.Write) }

// LockRepair is Lock for a program that can repair what a dead owner has left: see
// Mutex.LockRepair.
func (m *RWMutex) LockRepair(ctx context.Context, repair func(*OwnerDiedError) error) error {
	return m.l.acquireRepair(ctx, repair)
}

// TryLock takes the lock for writing if nobody holds it: see Mutex.TryLock.
func (m *RWMutex) TryLock(ctx context.Context) (bool, error) {
	return m.l.try(ctx, "TryLock", attach.Write)
}

// Unlock gives back the lock held for writing, as Mutex.Unlock does.
func (m *RWMutex) Unlock() error { return m.l.release("Unlock", attach.Write) }

// RLock waits until the caller has the lock for reading. Its errors are those of Mutex.Lock; a
// reader can't repair.
func (m *RWMutex) RLock(ctx context.Context) error { return m.l.acquire(ctx, "RLock", attach.Read) }

// TryRLock takes the lock for reading if nobody holds it for writing, or was earlier: see
// Mutex.TryLock.
func (m *RWMutex) TryRLock(ctx context.Context) (bool, error) {
	return m.l.try(ctx, "TryRLock", attach.Read)
}

// RUnlock gives back the lock held for reading. Its errors are those of Mutex.Unlock.
func (m *RWMutex) RUnlock() error { return m.l.release("RUnlock", attach.Read) }

// TryPatience is for how long TryLock and TryRLock wait for an answer of another node: many times
// as long as one takes.
const TryPatience = 10 * time.Millisecond

// takeByWord takes the lock on the control page, if it is published there and free.
func (l lock) takeByWord(ctx context.Context, access attach.Access) bool {
	return access == attach.Write && ctx.Err() == nil && l.c.page.Take(l.hash)
}

// wait waits for the lock by a call.
func (l lock) wait(ctx context.Context, op attach.Op, access attach.Access) (attach.Reply, error) {
	if err := l.c.introduce(ctx, l.hash, l.name); err != nil {
		return attach.Reply{}, err
	}
	w := l.c.attendant.begin(&wait{item: item{runstats.Lock, l.name}, object: l.hash})
	defer l.c.attendant.end(w)
	return l.c.doWaiting(ctx, attach.Call{Op: op, Object: l.hash, Access: access}, w)
}

// acquire takes the lock, and has a frame of its own, as callsite.Note wants it.
//
//go:noinline
func (l lock) acquire(ctx context.Context, what string, access attach.Access) error {
	a := l.c.attendant
	if l.takeByWord(ctx, access) {
		callsite.Note(a.word(l.hash), a.now(), callsite.Near)
		return nil
	}
	r, err := l.wait(ctx, attach.OpAcquire, access)
	if err == nil {
		var site *callsite.Site
		if site, err = l.granted(access, &r); err == nil {
			callsite.Note(site, a.now(), callsite.Near)
		}
	}
	return l.failed(what, err)
}

//go:noinline
func (l lock) acquireRepair(ctx context.Context, repair func(*OwnerDiedError) error) error {
	const what = "LockRepair"
	a := l.c.attendant
	if l.takeByWord(ctx, attach.Write) {
		callsite.Note(a.word(l.hash), a.now(), callsite.Near)
		return nil
	}
	r, err := l.wait(ctx, attach.OpRepair, attach.Write)
	if err == nil {
		var site *callsite.Site
		if site, err = l.granted(attach.Write, &r); err == nil {
			callsite.Note(site, a.now(), callsite.Near)
		}
	}
	if err != nil || r.Status != attach.StatusOwnerDied {
		return l.failed(what, err)
	}
	repaired := false
	defer func() {
		if !repaired { // the error is ErrClosed or ErrLost: nobody has the lock then
			_ = l.releaseAs("", attach.Call{Access: attach.Write, Count: uint64(r.Rank) + 1})
		}
	}()
	if err := repair(l.died(&r)); err != nil {
		return l.failed(what, fmt.Errorf("repair: %w", err))
	}
	repaired = true
	return nil
}

//go:noinline
func (l lock) try(ctx context.Context, what string, access attach.Access) (bool, error) {
	a := l.c.attendant
	if l.takeByWord(ctx, access) {
		callsite.Note(a.word(l.hash), a.now(), callsite.Near)
		return true, nil
	}
	if err := ctx.Err(); err != nil {
		return false, l.failed(what, err)
	}
	if l.c.page.Held(l.hash) {
		return false, nil
	}
	if err := l.c.introduce(ctx, l.hash, l.name); err != nil {
		return false, l.failed(what, err)
	}
	patient, cancel := context.WithTimeout(ctx, TryPatience)
	defer cancel()
	r, err := l.c.ask(patient, attach.Call{Op: attach.OpTry, Object: l.hash, Access: access})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil || err == nil && r.Status == attach.StatusHeld {
		return false, nil
	}
	if err == nil {
		var site *callsite.Site
		if site, err = l.granted(access, &r); err == nil {
			callsite.Note(site, a.now(), callsite.Near)
		}
	}
	return err == nil, l.failed(what, err)
}

// granted notes what a reply grants, and returns where it is to be noted who has it. It returns an
// error if and only if that is nothing.
func (l lock) granted(access attach.Access, r *attach.Reply) (site *callsite.Site, err error) {
	switch r.Status {
	case attach.StatusOK, attach.StatusOwnerDied:
		site = l.c.holdings.take(l.hash, access)
	case attach.StatusByWord:
		site = l.c.attendant.word(l.hash)
	case attach.StatusUnrepaired:
		return nil, l.died(r)
	case attach.StatusNoSpace:
		return nil, fmt.Errorf("%w: %s", ErrNoSpace, r.Payload)
	default:
		return nil, fmt.Errorf("the daemon answered with %v", r.Status)
	}
	l.c.page.Acquired(l.hash)
	return site, nil
}

// died is the death that a reply tells.
func (l lock) died(r *attach.Reply) *OwnerDiedError {
	if node, lost := attach.OwnerNode(r.Rank); lost {
		return &OwnerDiedError{Lock: l.name, Rank: -1, Node: node}
	}
	return &OwnerDiedError{Lock: l.name, Rank: int(r.Rank), Node: -1}
}

// release is one atomic instruction if the lock was taken by one and nobody else wants it, and else
// one message without an answer: nobody here waits for what others do with the lock.
func (l lock) release(what string, access attach.Access) error {
	if err := l.c.commit(context.Background()); err != nil {
		return l.failed(what, err)
	}
	if access == attach.Write {
		switch l.c.page.GiveBack(l.hash) {
		case controlpage.Freed:
			return nil
		case controlpage.Recalled:
			return l.tellRelease(what, attach.Call{Access: access})
		}
	} else {
		l.c.page.Releasing(l.hash)
	}
	return l.releaseAs(what, attach.Call{Access: access})
}

// releaseAs gives back a lock that was obtained by a call.
func (l lock) releaseAs(what string, call attach.Call) error {
	if err := l.c.err(); err != nil {
		return l.failed(what, err)
	}
	if !l.c.holdings.drop(l.hash, call.Access) {
		return l.failed(what, ErrNotHeld)
	}
	return l.tellRelease(what, call)
}

func (l lock) tellRelease(what string, call attach.Call) error {
	call.Op, call.Object = attach.OpRelease, l.hash
	return l.failed(what, l.c.send(call))
}

// failed says of an error which lock it is about. An *OwnerDiedError says so itself.
func (l lock) failed(what string, err error) error {
	if _, died := err.(*OwnerDiedError); err == nil || died {
		return err
	}
	return failure(fmt.Sprintf("%s %q", what, l.name), err)
}

// each calls f for the locks that this process holds. f must not take or give back any.
func (o *holdings) each(f func(hash uint64, h *holding)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for hash, h := range o.held {
		f(hash, h)
	}
}

// take notes that this process holds a lock, and returns where its site is noted.
func (o *holdings) take(hash uint64, access attach.Access) *callsite.Site {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.held[hash]
	if h == nil {
		h = new(holding)
		o.held[hash] = h
	}
	if access == attach.Write {
		h.writer = true
	} else {
		h.readers++
	}
	return &h.site
}

// drop notes that this process gives a lock back, and reports whether it held it. The note comes
// before the message, so a goroutine that gets the lock right after cannot be mistaken for the one
// that gives it back.
func (o *holdings) drop(hash uint64, access attach.Access) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.held[hash]
	switch {
	case h == nil, access == attach.Write && !h.writer, access == attach.Read && h.readers == 0:
		return false
	case access == attach.Write:
		h.writer = false
	default:
		h.readers--
	}
	if !h.writer && h.readers == 0 {
		delete(o.held, hash)
	}
	return true
}
