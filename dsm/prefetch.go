package dsm

import (
	"context"
	"fmt"

	"dsmd/internal/attach"
	"dsmd/internal/runstats"
)

// Access says what is going to happen to memory.
type Access uint8

const (
	Read  = Access(attach.Read)  // loads only; other ranks may have it for reading too
	Write = Access(attach.Write) // stores also; other ranks lose it
)

// Prefetch fetches the pages of s, which is part of a slice from Alloc, and returns when they are
// here. It is faster than touching them one by one: the daemon asks for all of them at once, and no
// thread and no P of this program waits in a fault meanwhile. It promises nothing: another rank may
// take a page away the next moment, and then touching it waits as usual.
//
// It is a message to the daemon, but not if all pages are here already and faults are trapped by
// userfaultfd: then it takes 1 µs and 30 ns for each page. The kernel's own way of fetching,
// madvise with MADV_POPULATE_READ or _WRITE, fails with EFAULT for a user who may only trap faults
// in user mode; this works for everyone.
//
// Errors: ErrNotShared (s is not within one allocation), ctx's, ErrClosed, ErrLost. An empty s is
// not an error.
func Prefetch[T any](ctx context.Context, c *Cluster, s []T, access Access) error {
	if err := c.prefetch(ctx, extent(s), access); err != nil {
		return failure("Prefetch", err)
	}
	return nil
}

func (c *Cluster) prefetch(ctx context.Context, e memoryExtent, access Access) error {
	run, err := c.pagesOf(e, access)
	if err != nil || run.count == 0 {
		return err
	}
	page := uintptr(c.welcome.PageBytes)
	if c.trap.here(uintptr(c.region.at(run.first*page)), run.count*page, access == Write) {
		return ctx.Err()
	}
	defer c.attendant.end(c.attendant.begin(&wait{item: item{runstats.Prefetch, run.of.name}}))
	_, err = c.fetch(ctx, attach.OpPrefetch, run, access)
	return err
}

// pageRun is a run of pages of the region.
type pageRun struct {
	first, count uintptr
	of           *allocation // which they are part of; nil if there are none
}

// pagesOf is the pages that a stretch of memory lies on.
func (c *Cluster) pagesOf(e memoryExtent, access Access) (pageRun, error) {
	if err := c.err(); err != nil {
		return pageRun{}, err
	}
	if access != Read && access != Write {
		return pageRun{}, fmt.Errorf("access %d is neither Read nor Write", access)
	}
	if e.bytes == 0 {
		return pageRun{}, nil
	}
	offset := c.region.offsetOf(e.start)
	m := c.memoryAt(offset)
	if m == nil || m.offset+m.bytes-offset < e.bytes {
		return pageRun{}, fmt.Errorf("%w: %d bytes at %p; what is wanted is part of a slice that Alloc returned", ErrNotShared, e.bytes, e.start)
	}
	if m.readOnly && access == Write {
		return pageRun{}, fmt.Errorf("%w: map %q with Private or WriteBack", ErrReadOnly, m.name)
	}
	page := uintptr(c.welcome.PageBytes)
	first, last := offset/page, (offset+e.bytes-1)/page
	return pageRun{first, last - first + 1, m}, nil
}

// fetch asks the daemon for pages, and returns the ticket of the call.
func (c *Cluster) fetch(ctx context.Context, op attach.Op, run pageRun, access Access) (uint64, error) {
	r, err := c.do(ctx, attach.Call{Op: op, Object: uint64(run.first), Count: uint64(run.count), Access: attach.Access(access)})
	switch {
	case err != nil:
		return 0, err
	case r.Status == attach.StatusNoSpace:
		return 0, fmt.Errorf("%w: this program would hold more pages than a daemon lets one hold; pin less at a time, and unpin what is done with", ErrNoSpace)
	case r.Status != attach.StatusOK:
		return 0, fmt.Errorf("the daemon answered with %v", r.Status)
	}
	page := uintptr(c.welcome.PageBytes)
	c.trap.fetched(uintptr(c.region.at(run.first*page)), run.count*page)
	return r.Ticket, nil
}
