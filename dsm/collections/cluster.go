package collections

import (
	"context"
	"errors"
	"fmt"

	"dsmd/dsm"
)

// cluster is the cluster that a map or a queue has its memory from.
type cluster struct {
	*dsm.Cluster
	replicated bool // the memory is
}

func clusterFor(c *dsm.Cluster, opts []dsm.AllocOption) cluster {
	return cluster{c, dsm.Survives(opts...) > 0}
}

// wanting is an error of dsm about memory for what the caller wants. Where ranks disagree it says
// what that is: dsm knows only how the memory is laid out.
func wanting(what string, err error) error {
	if errors.Is(err, dsm.ErrMismatch) {
		return fmt.Errorf("%w: this rank wants %s, and the name stands for something else, or for that with other options", dsm.ErrMismatch, what)
	}
	return err
}

// Commit commits what was stored to the memory. That of dsm.Cluster is about all Replicated memory
// of the node. Who changes other memory does not wait for it, nor fail with it.
func (c cluster) Commit(ctx context.Context) error {
	if !c.replicated {
		return nil
	}
	return c.Cluster.Commit(ctx)
}
