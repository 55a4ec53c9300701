package dsm

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"dsmd/internal/attach"
	"dsmd/internal/runstats"
)

// PinPatience is how long others wait for a pinned page before the pin is broken; see Pin.
const PinPatience = attach.PinPatience

// Pin fetches the pages of s, which is part of a slice from Alloc, and keeps them here until unpin
// is called. Meanwhile system calls can be given s whatever the trap is: with Read, calls that read
// from it, such as file.Write(s); with Write, also calls that write to it, such as
// io.ReadFull(conn, s). Without Pin such calls fail with EFAULT where the trap can't catch faults
// inside system calls, if a page is not here; see the package comment, "System calls".
//
// Ranks on other nodes that want the pages wait until unpin; with Read only those wait that want to
// store. On this node a store to what is pinned for reading goes through if the node may write to
// the page, and else waits, too. They wait for at most PinPatience: then the pin of that page is
// broken, and system calls may fail with EFAULT as without Pin. So pin for short, and do not wait
// for another rank meanwhile: it may wait for the pages. When the program ends its pins do. What is
// pinned can't be freed.
//
// unpin may be called from any goroutine; a second call does nothing.
//
// Errors: ErrNotShared (s is not within one allocation), ErrNoSpace (a program can hold 16,384
// pages at a time), ctx's, ErrClosed, ErrLost. With an error nothing is pinned and unpin is nil. An
// empty s is not an error.
func Pin[T any](ctx context.Context, c *Cluster, s []T, access Access) (unpin func() error, err error) {
	run, err := c.pagesOf(extent(s), access)
	if err != nil {
		return nil, failure("Pin", err)
	}
	if run.count == 0 {
		return func() error { return nil }, nil
	}
	if !run.of.keep(c) {
		return nil, failure("Pin", fmt.Errorf("%w: it was freed just now", ErrNotShared))
	}
	w := c.attendant.begin(&wait{item: item{runstats.Prefetch, run.of.name}})
	ticket, err := c.fetch(ctx, attach.OpPin, run, access)
	c.attendant.end(w)
	if err != nil {
		run.of.letGo(c)
		return nil, failure("Pin", err)
	}
	// What another program of this node has brought here need not be mapped in this one. It can't
	// go away any more.
	page := uintptr(c.welcome.PageBytes)
	if err := Guard(func() { c.region.touch(run.first*page, run.count*page, page, access == Write) }); err != nil {
		_ = c.send(attach.Call{Op: attach.OpUnpin, Object: ticket}) // or the cluster has ended
		run.of.letGo(c)
		return nil, failure("Pin", err)
	}
	return sync.OnceValue(func() error {
		defer run.of.letGo(c) // after the daemon was told, which must not learn of a Free first
		if err := c.send(attach.Call{Op: attach.OpUnpin, Object: ticket}); err != nil {
			return failure("unpin", err)
		}
		return nil
	}), nil
}

// keep notes that an allocation is pinned once more, and reports whether it is still there.
func (m *allocation) keep(c *Cluster) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.memory, m) {
		return false
	}
	m.pins++
	return true
}

// letGo notes that a Pin is over.
func (m *allocation) letGo(c *Cluster) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m.pins--
}
