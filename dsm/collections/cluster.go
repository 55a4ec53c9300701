package collections

import (
	"context"

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

// Commit commits what was stored to the memory. That of dsm.Cluster is about all Replicated memory
// of the node. Who changes other memory does not wait for it, nor fail with it.
func (c cluster) Commit(ctx context.Context) error {
	if !c.replicated {
		return nil
	}
	return c.Cluster.Commit(ctx)
}
