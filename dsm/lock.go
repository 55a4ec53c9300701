package dsm

import (
	"context"
	"fmt"

	"dsmd/internal/attach"
	"dsmd/internal/controlpage"
)

// holding is what this process holds of one lock.
type holding struct {
	writer  bool
	readers int
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

// Mutex is a lock that one goroutine of the whole cluster holds at a time. Mutexes of the same name are the same lock, in
// this and in all other programs; so is an RWMutex of that name. It may be copied. What was
// stored before an Unlock is seen after the next Lock, wherever that is.
//
// A lock stays at the node where it was held last. As long as nobody else wants it, the program that held it last takes it again, and gives it
// back, by one atomic instruction.
type Mutex struct{ l lock }

// NewMutex returns the mutex called name. It sends nothing and can not fail; any name will do.
func NewMutex(c *Cluster, name string) *Mutex { return &Mutex{newLock(c, name)} }

// Lock waits until the caller has the lock. The caller holds it if the error is nil, and also if it is an
// *OwnerDiedError (which wraps ErrOwnerDied). When ctx ends first, the error wraps ctx.Err() and the lock is not held.
// Other errors: ErrClosed, ErrLost.
func (m *Mutex) Lock(ctx context.Context) error { return m.l.acquire(ctx, "Lock", attach.Write) }

// Unlock gives the lock back. Any goroutine of the process that holds it may do so. Errors: ErrNotHeld,
// ErrClosed, ErrLost.
func (m *Mutex) Unlock() error { return m.l.release("Unlock", attach.Write) }

// RWMutex is a lock that either one goroutine of the whole cluster holds for writing, or any number for reading.
// What Mutex says about names, copies and memory is true of it too. Waiting writers and readers come in the order in which they asked, but for a
// bounded number of turns that a node may take while it has the lock. So a goroutine must not
// RLock again what it holds for reading: a writer may be waiting in between.
type RWMutex struct{ l lock }

// NewRWMutex returns the reader-writer lock called name. It sends nothing and can not fail; any name will do.
func NewRWMutex(c *Cluster, name string) *RWMutex { return &RWMutex{newLock(c, name)} }

// Lock waits until the caller has the lock for writing. Its errors are those of Mutex.Lock.
func (m *RWMutex) Lock(ctx context.Context) error { return m.l.acquire(ctx, "Lock", attach.Write) }

// Unlock gives back the lock held for writing. Its errors are those of Mutex.Unlock.
func (m *RWMutex) Unlock() error { return m.l.release("Unlock", attach.Write) }

// RLock waits until the caller has the lock for reading. Its errors are those of Mutex.Lock.
func (m *RWMutex) RLock(ctx context.Context) error { return m.l.acquire(ctx, "RLock", attach.Read) }

// RUnlock gives back the lock held for reading. Its errors are those of Mutex.Unlock.
func (m *RWMutex) RUnlock() error { return m.l.release("RUnlock", attach.Read) }

func (l lock) acquire(ctx context.Context, what string, access attach.Access) error {
	if access == attach.Write && ctx.Err() == nil && l.c.page.Take(l.hash) {
		return nil
	}
	r, err := l.c.do(ctx, attach.Call{Op: attach.OpAcquire, Object: l.hash, Access: access})
	if err != nil {
		return l.failed(what, err)
	}
	if r.Status == attach.StatusByWord && access == attach.Write {
		l.c.page.Acquired(l.hash)
		return nil
	}
	if r.Status == attach.StatusNoSpace {
		return l.failed(what, fmt.Errorf("%w: %s", ErrNoSpace, r.Payload))
	}
	if r.Status != attach.StatusOK && r.Status != attach.StatusOwnerDied {
		return l.failed(what, fmt.Errorf("the daemon answered with %v", r.Status))
	}
	l.c.take(l.hash, access)
	l.c.page.Acquired(l.hash)
	if r.Status == attach.StatusOwnerDied {
		if node, lost := attach.OwnerNode(r.Rank); lost {
			return &OwnerDiedError{Lock: l.name, Rank: -1, Node: node}
		}
		return &OwnerDiedError{Lock: l.name, Rank: int(r.Rank), Node: -1}
	}
	return nil
}

// release is one atomic instruction if the lock was taken by one and nobody else wants it, and else one message without an answer: nobody
// here waits for what others do with the lock.
func (l lock) release(what string, access attach.Access) error {
	if err := l.c.commit(context.Background()); err != nil {
		return l.failed(what, err)
	}
	if access == attach.Write {
		switch l.c.page.GiveBack(l.hash) {
		case controlpage.Freed:
			return nil
		case controlpage.Recalled:
			return l.tellRelease(what, access)
		}
	} else {
		l.c.page.Releasing(l.hash)
	}
	if err := l.c.err(); err != nil {
		return l.failed(what, err)
	}
	if !l.c.drop(l.hash, access) {
		return l.failed(what, ErrNotHeld)
	}
	return l.tellRelease(what, access)
}

func (l lock) tellRelease(what string, access attach.Access) error {
	if err := l.c.send(attach.Call{Op: attach.OpRelease, Object: l.hash, Access: access}); err != nil {
		return l.failed(what, err)
	}
	return nil
}

func (l lock) failed(what string, err error) error {
	return failure(fmt.Sprintf("%s %q", what, l.name), err)
}

// take notes that this process holds a lock which it has not taken on the control page.
func (c *Cluster) take(hash uint64, access attach.Access) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.held[hash]
	if h == nil {
		h = new(holding)
		c.held[hash] = h
	}
	if access == attach.Write {
		h.writer = true
	} else {
		h.readers++
	}
}

// drop notes that this process gives a lock back, and says whether it held it. The note comes before the message, so a
// goroutine that gets the lock right after cannot be mistaken for the one that gives it back.
func (c *Cluster) drop(hash uint64, access attach.Access) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.held[hash]
	switch {
	case h == nil, access == attach.Write && !h.writer, access == attach.Read && h.readers == 0:
		return false
	case access == attach.Write:
		h.writer = false
	default:
		h.readers--
	}
	if *h == (holding{}) {
		delete(c.held, hash)
	}
	return true
}
