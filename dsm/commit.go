package dsm

import (
	"context"
	"fmt"

	"dsmd/internal/attach"
)

// Commit waits until what was stored to Replicated memory is where it survives the loss of nodes: all that any program on this node has stored before. Giving back a lock,
// a Barrier and a Reduce do the same first. Without Replicated memory it returns at once. Of memory that is pinned with Write
// it waits for the end of the Pin, as whoever wants such a page elsewhere.
//
// When ctx ends first, whether it was done is not known. Errors: ctx's, ErrClosed, ErrLost.
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
	r, err := c.do(ctx, attach.Call{Op: attach.OpCommit})
	if err == nil && r.Status != attach.StatusOK {
		err = fmt.Errorf("the daemon answered with %v", r.Status)
	}
	return err
}
