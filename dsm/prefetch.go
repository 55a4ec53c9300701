package dsm

import (
	"context"
	"fmt"

	"dsmd/internal/attach"
)

// Access says what is going to happen to memory.
type Access uint8

const (
	Read  = Access(attach.Read)  // loads only; other ranks may have it for reading too
	Write = Access(attach.Write) // stores also; other ranks lose it
)

// Prefetch fetches the pages of s, which is part of a slice from Alloc, and returns when they are here. It is faster than
// touching them one by one: the daemon asks for all of them at once, and no thread and no P of this program waits in
// a fault meanwhile. It promises nothing: another rank may take a page away the next moment, and then touching it
// waits as usual.
//
// It is a message to the daemon. The kernel's own way, madvise with MADV_POPULATE_READ or _WRITE, fails with EFAULT for a user who may
// only trap faults in user mode; this works for everyone.
//
// Errors: ErrNotShared (s is not within one allocation), ctx's, ErrClosed, ErrLost. An empty s is not an error.
func Prefetch[T any](ctx context.Context, c *Cluster, s []T, access Access) error {
	if err := c.prefetch(ctx, extent(s), access); err != nil {
		return failure("Prefetch", err)
	}
	return nil
}

func (c *Cluster) prefetch(ctx context.Context, e memoryExtent, access Access) error {
	if err := c.err(); err != nil {
		return err
	}
	if access != Read && access != Write {
		return fmt.Errorf("access %d is neither Read nor Write", access)
	}
	if e.bytes == 0 {
		return nil
	}
	offset := c.region.offsetOf(e.start)
	m := c.memoryAt(offset)
	if m == nil || m.offset+m.bytes-offset < e.bytes {
		return fmt.Errorf("%w: %d bytes at %p; Prefetch takes part of a slice that Alloc returned", ErrNotShared, e.bytes, e.start)
	}
	page := uintptr(c.welcome.PageBytes)
	first, last := offset/page, (offset+e.bytes-1)/page
	r, err := c.do(ctx, attach.Call{Op: attach.OpPrefetch, Object: uint64(first), Count: uint64(last - first + 1), Access: attach.Access(access)})
	if err == nil && r.Status != attach.StatusOK {
		err = fmt.Errorf("the daemon answered with %v", r.Status)
	}
	if err == nil {
		c.trap.fetched(uintptr(c.region.at(first*page)), (last-first+1)*page)
	}
	return err
}

// Stats returns the counters of this node's daemon by name: faults by kind, messages, bytes and others, as
// `dsmd status` shows them. They count from the daemon's start, for all programs that are attached to it. Which
// there are may change between versions. Errors: ctx's, ErrClosed, ErrLost.
func (c *Cluster) Stats(ctx context.Context) (map[string]uint64, error) {
	r, err := c.do(ctx, attach.Call{Op: attach.OpStats})
	if err == nil && r.Status != attach.StatusOK {
		err = fmt.Errorf("the daemon answered with %v", r.Status)
	}
	var counters []attach.Counter
	if err == nil {
		counters, err = attach.DecodeCounters(r.Payload)
	}
	if err != nil {
		return nil, failure("Stats", err)
	}
	stats := make(map[string]uint64, len(counters))
	for _, x := range counters {
		stats[x.Name] = x.Value
	}
	return stats, nil
}
