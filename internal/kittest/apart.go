package kittest

import (
	"context"
	"sync"
	"testing"

	"dsmd/dsm"
)

// Apart calls f on all ranks while rank 0 waits in a reduction of that name, to which the others
// come when f has ended. So something of the kit with the same name must not meet there.
func Apart(t *testing.T, ctx context.Context, c *dsm.Cluster, name string, f func() error) {
	t.Helper()
	reduce := func() {
		if n, err := dsm.Reduce(ctx, c, name, 1, dsm.Sum); err != nil || n != c.Size() {
			t.Errorf("of %d ranks %d have met: %v", c.Size(), n, err)
		}
	}
	var waits sync.WaitGroup
	if c.Rank() == 0 {
		arrivals := func() uint64 { return Must[dsm.Stats](t)(c.Stats(ctx)).Sync.Barriers }
		before := arrivals()
		waits.Go(reduce)
		for arrivals() == before {
		}
	}
	if err := f(); err != nil {
		t.Error(err)
	}
	if c.Rank() != 0 {
		reduce()
	}
	waits.Wait()
}
