package heap

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
	"dsmd/internal/kittest"
)

// Left waits until a rank is lost, and returns those that are left, when they all know. It is for
// loss_test.go, too.
func Left(t *testing.T, ctx context.Context, c *dsm.Cluster) (left *dsm.Survivors) {
	t.Helper()
	err := c.Barrier(ctx)
	if !errors.Is(err, dsm.ErrNodeLost) {
		t.Fatal(err)
	}
	for errors.Is(err, dsm.ErrNodeLost) {
		left = kittest.Must[*dsm.Survivors](t)(c.Survivors(ctx))
		err = left.Barrier(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// lossy runs body on a heap of 14 blocks that three ranks have open. lose has rank 2 take the pages
// at these addresses, and lose them with its node; rank 0 says which. Others may go with them that
// are near.
func lossy(t *testing.T, body func(t *testing.T, ctx context.Context, h *Heap, refs []uintptr, lose func(...uintptr) *dsm.Survivors)) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		h := kittest.Must[*Heap](t)(Open(ctx, c, "lossy", 8<<20))
		refs := kittest.Must[[]uintptr](t)(dsm.Alloc[uintptr](ctx, c, "refs", 8))
		pages := kittest.Must[[]uintptr](t)(dsm.Alloc[uintptr](ctx, c, "pages", 8))
		var left *dsm.Survivors
		body(t, ctx, h, refs, func(addrs ...uintptr) *dsm.Survivors {
			if c.Rank() == 0 {
				copy(pages, addrs)
			}
			kittest.Barrier(t, ctx, c)
			if c.Rank() == 2 {
				for _, at := range pages {
					if at != 0 {
						Ref[atomic.Uint64]{at}.Get().Or(0)
					}
				}
				dsmtest.LoseNode(t, c)
			}
			left = Left(t, ctx, c)
			return left
		})
		if err := left.Barrier(ctx); err != nil {
			t.Error(err)
		}
	}, "--survive")
}

// value is the address of a new value of some bytes.
func value(t *testing.T, h *Heap, bytes int) uintptr {
	t.Helper()
	return kittest.Must[Slice[byte]](t)(NewSlice[byte](h, bytes)).addr
}

// free frees what is at some addresses.
func free(t *testing.T, h *Heap, addrs ...uintptr) {
	t.Helper()
	for _, addr := range addrs {
		if err := Free(h, Ref[byte]{addr}); err != nil {
			t.Error(err)
		}
	}
}

// blockOf is the block of a value of this program's.
func blockOf(h *Heap, addr uintptr) *block { return h.block(int((addr - h.start) / h.blockBytes)) }

// TestParcelIsLost: what is freed goes home, also if free memory for parcels is lost.
func TestParcelIsLost(t *testing.T) {
	lossy(t, func(t *testing.T, ctx context.Context, h *Heap, refs []uintptr, lose func(...uintptr) *dsm.Survivors) {
		if h.c.Rank() == 1 {
			refs[0], refs[1] = value(t, h, 100), value(t, h, 100)
		}
		kittest.Barrier(t, ctx, h.c)
		var slots []uintptr
		if h.c.Rank() == 0 {
			free(t, h, refs[0])
			if err := h.Flush(); err != nil {
				t.Error(err)
			}
			h.blocks.Range(func(_, v any) bool {
				for n := range 4 { // the first one is under way
					slots = append(slots, v.(*block).start+v.(*block).class.offset(1+n))
				}
				return true
			})
		}
		left := lose(slots...)
		if h.c.Rank() == 0 {
			free(t, h, refs[1])
		}
		if leaks := kittest.Must[[]Leak](t)(h.Leaks(ctx, left)); len(leaks) > 0 {
			t.Errorf("leaked: %v", leaks)
		}
	})
}

// TestMailboxIsLost: Flush does what it can, whatever is lost.
func TestMailboxIsLost(t *testing.T) {
	lossy(t, func(t *testing.T, ctx context.Context, h *Heap, refs []uintptr, lose func(...uintptr) *dsm.Survivors) {
		refs[h.c.Rank()] = value(t, h, 100)
		kittest.Barrier(t, ctx, h.c)
		switch h.c.Rank() {
		case 0:
			free(t, h, refs[1])
			if err := h.Flush(); err != nil {
				t.Error(err)
			}
		case 1:
			free(t, h, refs[0], refs[2])
			h.head(2).Or(0) // is here now
		}
		lose(h.mailbox(0))
		if h.c.Rank() != 1 {
			return
		}
		if err := h.Flush(); !errors.Is(err, dsm.ErrPageLost) {
			t.Errorf("Flush with a lost mailbox: %v", err)
		}
		if h.head(2).Load() == 0 {
			t.Error("what was freed of rank 2's is still here")
		}
		if h.head(1).Load() != 0 || blockOf(h, refs[1]) != nil {
			t.Error("what has come home is not free for all")
		}
	})
}

// TestEntryIsLost: New finds free memory, also if there is other that is free and lost.
func TestEntryIsLost(t *testing.T) {
	lossy(t, func(t *testing.T, ctx context.Context, h *Heap, refs []uintptr, lose func(...uintptr) *dsm.Survivors) {
		var lost uintptr
		if h.c.Rank() == 0 {
			refs[0], refs[1] = value(t, h, 100), value(t, h, 1000)
			for range h.total - 2 {
				value(t, h, int(h.blockBytes))
			}
			free(t, h, refs[0], refs[1]) // and the blocks stay this program's
			number := blockOf(h, refs[0]).number
			lost = h.mailbox(maxArenas) + uintptr(number/h.perPage)*h.page
		}
		lose(lost)
		if h.c.Rank() == 0 {
			value(t, h, 2000)
		}
	})
}

// TestMarksAreLost: a program goes on that is sent a value twice of which it can't tell any more
// whether it is allocated.
func TestMarksAreLost(t *testing.T) {
	lossy(t, func(t *testing.T, ctx context.Context, h *Heap, refs []uintptr, lose func(...uintptr) *dsm.Survivors) {
		if h.c.Rank() == 0 {
			for range blockPages - 1 {
				refs[0] = value(t, h, int(h.page)) // the last is far from the marks
			}
			for range h.total - 1 {
				value(t, h, int(h.blockBytes)) // there is no room for parcels
			}
		}
		kittest.Barrier(t, ctx, h.c)
		for range 2 {
			if h.c.Rank() == 1 {
				free(t, h, refs[0])
				if err := h.Flush(); err != nil {
					t.Error(err)
				}
			}
		}
		lose((refs[0]-h.start)/h.blockBytes*h.blockBytes + h.start)
		if h.c.Rank() != 0 {
			return
		}
		value := Ref[uint64]{refs[0]}
		if next := *value.Get(); next != uint64(refs[0]) {
			t.Errorf("the list goes on at %#x, and is no circle", next)
		}
		if err := h.Flush(); err != nil {
			t.Error(err)
		}
	})
}

// TestValueIsLost: in a full heap, in which values are sent without parcels, one that is lost keeps
// no other from going home.
func TestValueIsLost(t *testing.T) {
	lossy(t, func(t *testing.T, ctx context.Context, h *Heap, refs []uintptr, lose func(...uintptr) *dsm.Survivors) {
		if h.c.Rank() == 0 {
			refs[0] = value(t, h, 100)
			for range h.total - 2 {
				value(t, h, int(h.blockBytes))
			}
			refs[1] = value(t, h, 1000) // far from the other
		}
		kittest.Barrier(t, ctx, h.c)
		if h.c.Rank() == 1 {
			free(t, h, refs[0], refs[1])
		}
		lose(refs[0])
		if h.c.Rank() != 1 {
			return
		}
		if err := h.Flush(); !errors.Is(err, dsm.ErrPageLost) {
			t.Errorf("Flush of a lost value: %v", err)
		}
		if first := h.head(0).Load(); first != uint64(refs[1]) {
			t.Errorf("at %#x begins what has gone home, want %#x", first, refs[1])
		}
	})
}

// TestStringIsLost: what was allocated for a string of which a page is lost is free again.
func TestStringIsLost(t *testing.T) {
	lossy(t, func(t *testing.T, ctx context.Context, h *Heap, refs []uintptr, lose func(...uintptr) *dsm.Survivors) {
		text := strings.Repeat("x", 4*int(h.page))
		var last uintptr
		if h.c.Rank() == 0 {
			first := value(t, h, len(text))
			next := first + uintptr(len(text))
			Ref[atomic.Uint64]{next}.Get().Or(0) // its first page is here, which nobody has used
			last = next + 3*h.page
			refs[0] = first
		}
		left := lose(last)
		if h.c.Rank() == 0 {
			if s, err := NewString(h, text); !errors.Is(err, dsm.ErrPageLost) {
				t.Errorf("a string of four pages, of which one is lost, is at %#x, and the error %v", s.addr, err)
			}
			free(t, h, refs[0])
		}
		if leaks := kittest.Must[[]Leak](t)(h.Leaks(ctx, left)); len(leaks) > 0 {
			t.Errorf("leaked: %v", leaks)
		}
	})
}
