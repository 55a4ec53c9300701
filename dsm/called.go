package dsm

import (
	"context"
	"fmt"
	"sync"

	"dsmd/internal/attach"
)

// called are the names of the locks and barriers for which this rank has called its daemon, by
// hash. The daemon knows them by their hashes, and is told each name once, so that it can say what
// is waited for.
type called struct {
	mu sync.Mutex // nothing else is taken, sent or awaited under it
	by map[uint64]string
}

func newCalled() called { return called{by: map[uint64]string{}} }

// isNew reports whether the daemon does not know a name and would keep it.
func (n *called) isNew(hash uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, told := n.by[hash]
	return !told && len(n.by) < attach.MaxNames
}

func (n *called) add(hash uint64, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.by[hash] = name
}

// of is a name by its hash; "": it was not told.
func (n *called) of(hash uint64) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.by[hash]
}

// introduce tells the daemon what a lock or barrier is called, before the first call for it. The
// daemon answers first, because calls may overtake each other.
func (c *Cluster) introduce(ctx context.Context, hash uint64, name string) error {
	if !c.called.isNew(hash) {
		return nil
	}
	r, err := c.do(ctx, attach.Call{Op: attach.OpName, Object: hash, Name: name[:min(len(name), attach.MaxCalled)]})
	if err == nil && r.Status != attach.StatusOK {
		err = fmt.Errorf("the daemon answered with %v", r.Status)
	}
	if err == nil {
		c.called.add(hash, name)
	}
	return err
}
