package heap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"dsmd/dsm"
)

// Leak is values of one type, allocated at one line, that nobody has freed.
type Leak struct {
	Type   string // of the value, or of the elements of a Slice; "": not known
	Line   string // "file:line" that has called New, NewSlice or NewString; "": not known
	Values int
	Bytes  int // that they take
}

func (l Leak) String() string {
	return fmt.Sprintf("%d values of type %s from %s (%d bytes)", l.Values, cmp.Or(l.Type, "unknown"), cmp.Or(l.Line, "an unknown line"), l.Bytes)
}

// Track has this program note the type of each value that it allocates from here on, and the line,
// for Leaks. It makes New several times slower.
func (h *Heap) Track() { h.tracking.Store(true) }

// Leaks returns the values that are allocated in this program's arena, the largest part first. All
// of the group call it, while nobody allocates or frees; it is a barrier among them. A test checks
// that no rank has any. Errors are those of Flush and Barrier.
func (h *Heap) Leaks(ctx context.Context, among dsm.Group) (leaks []Leak, err error) {
	err = h.Flush()
	met := among.Barrier(ctx)
	if met == nil {
		if err == nil {
			h.drain()
			err = errors.Join(dsm.Guard(func() { leaks = h.leaks() }), h.err())
		}
		met = among.Barrier(ctx) // who has failed, too: the others wait there
	}
	if err = errors.Join(err, met); err != nil {
		return nil, fmt.Errorf("heap: Leaks: %w", err)
	}
	return leaks, nil
}

func (h *Heap) leaks() (leaks []Leak) {
	h.blocks.Range(func(_, v any) bool {
		switch b := v.(*block); {
		case b.class == nil:
			leaks = h.add(leaks, b.start, b.blocks*int(h.blockBytes))
		case b.kind != h.parcelKind():
			for n := range b.class.slots {
				if b.marks[n/64]&(1<<(n%64)) != 0 {
					leaks = h.add(leaks, b.start+b.class.offset(n), int(b.class.bytes))
				}
			}
		}
		return true
	})
	slices.SortFunc(leaks, func(a, b Leak) int { return cmp.Or(b.Bytes-a.Bytes, cmp.Compare(a.Line, b.Line)) })
	return leaks
}

// note notes who has called the caller's caller.
func (h *Heap) note(addr uintptr, what fmt.Stringer) {
	_, file, line, _ := runtime.Caller(3)
	h.origins.Store(addr, Leak{Type: what.String(), Line: fmt.Sprintf("%s:%d", file, line)})
}

// add adds a value to those that come from the same line.
func (h *Heap) add(leaks []Leak, addr uintptr, bytes int) []Leak {
	from, _ := h.origins.Load(addr)
	l, _ := from.(Leak) // or nothing is known
	i := slices.IndexFunc(leaks, func(x Leak) bool { return x.Type == l.Type && x.Line == l.Line })
	if i < 0 {
		i, leaks = len(leaks), append(leaks, l)
	}
	leaks[i].Values++
	leaks[i].Bytes += bytes
	return leaks
}
