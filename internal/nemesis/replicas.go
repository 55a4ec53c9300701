package nemesis

import (
	"fmt"
	"slices"
)

const (
	// replicas is the loss of how many hosts some memory is to survive.
	replicas = 1
	// replicaKind is the kind of words in that memory. Each operation there gives back a lock, so when it has returned it is committed.
	replicaKind = "replica"
)

// shortage is a time in which so few hosts stayed in the cluster that they could not keep everything often enough.
type shortage struct{ from, to int64 }

// ration notes whether there is one now.
func (c *campaign) ration() {
	list := &c.past[c.life].shortages
	last := len(*list) - 1
	lasts := last >= 0 && (*list)[last].to == unknown
	switch few := len(c.staying()) <= replicas; {
	case few && !lasts:
		*list = append(*list, shortage{now(), unknown})
	case !few && lasts:
		(*list)[last].to = now()
	}
}

// outlived says why a page cannot be lost of which an operation says that it is, if it is one of replicated memory: somebody has written there, since then too few hosts
// were lost, and there were always enough. uses are the operations on the same page. Preconditions: all were doubted.
func (d deaths) outlived(o Operation, uses []Operation, shortages []shortage) error {
	if !o.Lost || o.kind() != replicaKind {
		return nil
	}
	for _, x := range uses {
		written := x.Do == write || x.Do == swap && x.Got == 1
		if !written || !x.known() || x.Void || x.Lost || x.Return > o.Call {
			continue
		}
		if slices.ContainsFunc(shortages, func(s shortage) bool { return s.from <= o.Return && x.Call <= s.to }) {
			continue
		}
		losses := 0
		for _, lost := range d {
			// Before all had gone on without a host it may have been taken for one that keeps what was written.
			if !lost.inOrder && lost.settled > x.Call && lost.at < o.Return {
				losses++
			}
		}
		if losses <= replicas {
			return fmt.Errorf("%w: rank %d has written %s, and of the hosts %d were lost since", errUnjustified, x.client.Rank, x.Place, losses)
		}
	}
	return nil
}
