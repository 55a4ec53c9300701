package heap

import (
	"context"
	"errors"
	"testing"

	"dsmd/dsm"
	"dsmd/internal/kittest"
)

// before is an option that calls f whenever it is looked at, of the type of another one.
func before[O ~func(A), A any](_ O, f func()) O { return func(A) { f() } }

// TestRoomMeanwhile: a heap that was too large when a program tried it, and that another program
// has opened since, is the one that it opens, too.
func TestRoomMeanwhile(t *testing.T) {
	const region = 64 << 20
	kittest.RunEach(t, []int{1}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		inTheWay := kittest.Must[[]byte](t)(dsm.Alloc[byte](ctx, c, "in the way", 1))
		var other *Heap
		next := 4 * largest // Open looks at the options once before it tries the largest
		h, err := Open(ctx, c, "heap", 0, before(dsm.Keep(), func() {
			if next /= 2; next == region/2 && other == nil {
				if err := dsm.Free(ctx, c, inTheWay); err != nil {
					t.Error(err)
				}
				other = kittest.Must[*Heap](t)(Open(ctx, c, "heap", 0))
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
		if len(h.memory) != region/8 || len(other.memory) != region/8 {
			t.Errorf("heaps of %d and %d words", len(h.memory), len(other.memory))
		}
	}, "--region", "64M")
}

// TestOtherLayout: a heap that was laid out otherwise is refused.
func TestOtherLayout(t *testing.T) {
	kittest.RunEach(t, []int{1}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		memory := kittest.Must[[]uint64](t)(dsm.Alloc[uint64](ctx, c, "heap", 8<<20/8, dsm.StaysLost()))
		memory[0] = layout - 1
		if _, err := Open(ctx, c, "heap", 8<<20); !errors.Is(err, dsm.ErrMismatch) {
			t.Error(err)
		}
	})
}
