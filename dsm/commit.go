package dsm

import (
	"context"
	"fmt"

	"dsmd/internal/attach"
	"dsmd/internal/runstats"
)

// MaxReplicas bounds the nodes whose loss memory can be asked to survive.
const MaxReplicas = attach.MaxReplicas

// Replicated makes what is written to the memory before a release survive the loss of any k nodes.
// It is at k+1 nodes before the lock is given back, before the rank arrives at the barrier or
// reduction, or before Commit returns. What another node has read survives as well. Of what a rank
// on a lost node wrote after its last release, and nobody else has seen, some may be there and some
// not. Memory that nobody has stored to is there as well, as long as no more than k nodes have been
// lost in all. All programs must agree on k.
//
// It costs a copy of each page that was written, to k or k+1 nodes, before another node gets the
// page, and at each release that follows, which waits for the copies. Where the daemons do not
// survive lost nodes (--survive) it does nothing. It panics if k is not from 1 to MaxReplicas.
func Replicated(k int) AllocOption {
	if k < 1 || k > MaxReplicas {
		panic(fmt.Sprintf("dsm: Replicated(%d): memory survives the loss of 1 to %d nodes", k, MaxReplicas))
	}
	return func(a *allocating) { a.copies = uint8(k) }
}

// Survives returns the loss of how many nodes memory with these options is to survive, the k of
// Replicated, and 0 without. It is for packages that lay out memory for their callers.
func Survives(opts ...AllocOption) (k int) {
	var a allocating
	for _, opt := range opts {
		opt(&a)
	}
	return int(a.copies)
}

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
