package dsm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"dsmd/internal/runstats"
)

// Free gives back memory that Alloc returned; s must be the whole slice. From here on this process
// must not touch it: a load or store raises SIGSEGV. Other programs may use theirs until they free
// it too; the last Free anywhere makes the memory and the name free for others, unless it is to be
// kept (see Keep). Every rank frees a mapping with WriteBack, together: Free does what Sync does
// before.
//
// It waits until the node that keeps the names has heard of it; and before, if a checkpoint that is
// under way has the memory (BeginCheckpoint), until this node has written it. When ctx ends first,
// the memory is freed all the same, unless that checkpoint had it, or other goroutines were
// allocating or freeing, all the time; so it must not be touched.
//
// Errors: ErrNotShared (s is not the whole of an allocation, or was freed), ErrInUse (a part of it
// is pinned, see Pin, or it is a mapping with WriteBack while a checkpoint is under way; nothing is
// freed then), ctx's, ErrClosed, ErrLost. An empty s that Alloc has not returned is not an error.
func Free[T any](ctx context.Context, c *Cluster, s []T) error {
	if err := c.err(); err != nil {
		return failure("Free", err)
	}
	e := extent(s)
	m := e.allocation(c)
	if e.bytes == 0 && m == nil {
		return nil
	}
	call, name := "Free", ""
	if m != nil {
		call, name = fmt.Sprintf("Free %q", m.name), m.name
		if m.isWrittenBack() {
			if err := Sync(ctx, c); err != nil {
				return failure(call, err)
			}
		}
	}
	defer c.attendant.end(c.attendant.begin(&wait{item: item{runstats.Allocating, name}, uncounted: true}))
	if err := e.free(ctx, c); err != nil {
		return failure(call, err)
	}
	return nil
}

// FreeIsolated is Free for a value that Isolate returned.
func FreeIsolated[T any](ctx context.Context, c *Cluster, p *T) error {
	if p == nil {
		return failure("FreeIsolated", fmt.Errorf("%w: the pointer is nil", ErrNotShared))
	}
	return Free(ctx, c, single(p))
}

// extent is the memory of an allocation, without the rest of its last page.
func (m *allocation) extent(c *Cluster) memoryExtent {
	return memoryExtent{c.region.at(m.offset), uintptr(m.count) * m.what.size}
}

// allocation is what was allocated there, with these bytes and no others, or nil.
func (e memoryExtent) allocation(c *Cluster) *allocation {
	if m := c.memoryAt(c.region.offsetOf(e.start)); m != nil && m.extent(c) == e {
		return m
	}
	return nil
}

// free gives up one use of an allocation, and the memory with the last one. It waits as long as
// something holds that.
func (e memoryExtent) free(ctx context.Context, c *Cluster) error {
	for {
		held, err := e.freeNow(ctx, c)
		if held == nil {
			return err
		}
		select {
		case <-held:
		case <-c.done:
			return c.err()
		case <-ctx.Done():
			return fmt.Errorf("%w, while a checkpoint, or Sync, had the memory", ctx.Err())
		}
	}
}

// freeNow is free, but does nothing if something holds the memory.
func (e memoryExtent) freeNow(ctx context.Context, c *Cluster) (held <-chan struct{}, err error) {
	if err := c.allocating.take(ctx, c.calls); err != nil {
		return nil, err
	}
	defer c.allocating.give()
	m := e.allocation(c)
	if m == nil {
		return nil, fmt.Errorf("%w: %d bytes at %p; Free takes a slice exactly as Alloc returned it", ErrNotShared, e.bytes, e.start)
	}
	if m.uses > 1 {
		m.uses--
		return nil, nil
	}
	if held, err := c.forget(m); held != nil || err != nil {
		return held, err
	}
	err = m.leave(ctx, c)
	if m.file != nil {
		err = errors.Join(err, m.file.close())
	}
	return nil, err
}

// forget takes an allocation off the list, so that no new Pin finds it; but not while one is under
// way, which is an error, or something holds it.
func (c *Cluster) forget(m *allocation) (held <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case m.pins > 0:
		return nil, fmt.Errorf("%w: a part of it is pinned; call what Pin returned first", ErrInUse)
	case m.held != nil:
		return m.held, nil
	}
	c.memory = slices.DeleteFunc(c.memory, func(x *allocation) bool { return x == m })
	if m.copies > 0 {
		c.replicated.Add(-1)
	}
	return nil, nil
}

// leave unmaps an allocation and then tells the cluster, so that nobody else gets pages which this
// process can still reach.
func (m *allocation) leave(ctx context.Context, c *Cluster) error {
	if err := c.trap.unregister(uintptr(c.region.at(m.offset)), m.bytes); err != nil {
		return err
	}
	if err := c.region.unmapRun(m.offset, m.bytes); err != nil {
		return err
	}
	return m.unbind(ctx, c)
}

// hold returns the allocations of which is says so, by name. They are not freed until release is
// called, once. Only one checkpoint, or Sync, at a time holds any.
func hold(c *Cluster, is func(*allocation) bool) (list []*allocation, release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	over := make(chan struct{})
	for _, m := range c.memory {
		if is(m) {
			m.held = over
			list = append(list, m)
		}
	}
	slices.SortFunc(list, func(a, b *allocation) int { return strings.Compare(a.name, b.name) })
	return list, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, m := range list {
			m.held = nil
		}
		close(over)
	}
}
