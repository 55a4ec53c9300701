package dsm_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
	"dsmd/internal/kittest"
)

// TestFreeWhileSaving: memory that a checkpoint has may be freed before the checkpoint is over, and
// its name is free for other memory then. What the checkpoint has is what was there.
func TestFreeWhileSaving(t *testing.T) {
	const words = 1 << 20
	dsmtest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		dir := os.Getenv("DSM_CHECKPOINT")
		kept := kittest.Must[[]int](t)(dsm.Alloc[int](ctx, c, "kept", words))
		saved := kittest.Must[[]int](t)(dsm.Alloc[int](ctx, c, "saved", words))
		for i := c.Rank(); i < words; i += c.Size() * 512 {
			kept[i], saved[i] = -i, i
		}
		saving := kittest.Must[*dsm.Saving](t)(c.BeginCheckpoint(ctx, dir))
		if err := dsm.Free(ctx, c, saved); err != nil {
			t.Error(err)
		}
		kittest.Barrier(t, ctx, c)
		other := kittest.Must[[]int](t)(dsm.Alloc[int](ctx, c, "saved", words+1))
		for i := c.Rank(); i < words; i += c.Size() * 512 {
			kept[i], other[i] = 7, 7
		}
		if err := errors.Join(saving.Wait(ctx), dsm.Free(ctx, c, other), dsm.Free(ctx, c, kept)); err != nil {
			t.Error(err)
		}
		kittest.Barrier(t, ctx, c)
		if _, err := c.Restore(ctx, dir); err != nil {
			t.Fatal(err)
		}
		kept = kittest.Must[[]int](t)(dsm.Alloc[int](ctx, c, "kept", words))
		saved = kittest.Must[[]int](t)(dsm.Alloc[int](ctx, c, "saved", words))
		for i := c.Rank(); i < words; i += c.Size() * 512 {
			if kept[i] != -i || saved[i] != i {
				t.Fatalf("word %d is %d and %d", i, kept[i], saved[i])
			}
		}
	}, "--survive", "--lost", "checkpoint", "--checkpoint", t.TempDir())
}
