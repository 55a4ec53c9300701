package dsm

import (
	"context"
	"fmt"

	"dsmd/internal/attach"
	"dsmd/internal/runstats"
)

// Commit waits until all that any program on this node has stored to Replicated memory before is
// where it survives the loss of nodes. An Unlock, a Barrier and a Reduce do the same first. Without
// Replicated memory it returns at once. Where memory is pinned with Write it waits for the end of
// the Pin, like everybody who wants such a page elsewhere.
//
// When ctx ends first, nobody knows whether it was done. Errors: ctx's, ErrClosed, ErrLost.
func (c *Cluster) Commit(ctx context.Context) error {
	if err := c.commit(ctx); err != nil {
		return failure("Commit", err)
	}
	return nil
}

func (c *Cluster) commit(ctx context.Context) error {
	if c.replicated.Load() == 0 {
		return nil
	}
	defer c.attendant.end(c.attendant.begin(&wait{item: item{runstats.Committing, "replicated memory"}, uncounted: true}))
	r, err := c.do(ctx, attach.Call{Op: attach.OpCommit})
	if err == nil && r.Status != attach.StatusOK {
		err = fmt.Errorf("the daemon answered with %v", r.Status)
	}
	return err
}
