package nemesis

import (
	"fmt"
	"slices"
)

const (
	// replicas is the loss of how many hosts some memory is to survive.
	replicas = 1
	// replicaKind is the kind of words in that memory. Each operation there gives back a lock, so
	// when it has returned it is committed.
	replicaKind = "replica"
)

// shortage is a time in which so few hosts stayed in the cluster that they could not keep
// everything often enough.
type shortage struct{ from, to int64 }

// keeping is when replicated memory was kept as often as it should be, in a life of the cluster.
type keeping struct {
	shortages []shortage
	// ascending: when all had been handed over, to enough hosts: what was left then is kept as
	// often as before
	rests  []int64
	rested int // the epoch of the last
}

// rest notes whether all is handed over in the present epoch.
func (c *campaign) rest() {
	k, members := &c.past[c.life].keeping, c.members()
	if c.unsettled() || len(c.staying()) <= replicas || members[0].epoch == k.rested ||
		slices.ContainsFunc(members, func(h *host) bool { return h.handed != h.epoch }) {
		return
	}
	k.rests, k.rested = append(k.rests, now()), members[0].epoch
}

// ration notes whether there is a shortage now.
func (c *campaign) ration() {
	list := &c.past[c.life].keeping.shortages
	last := len(*list) - 1
	lasts := last >= 0 && (*list)[last].to == unknown
	switch few := len(c.staying()) <= replicas; {
	case few && !lasts:
		*list = append(*list, shortage{now(), unknown})
	case !few && lasts:
		(*list)[last].to = now()
	}
}

// outlived says why a page cannot be lost of which an operation says that it is, if it is one of
// replicated memory: somebody has written there, and between then, the rests since then, and the
// operation too few hosts were lost each time. uses are the operations on the same page.
// Preconditions: all were doubted.
func (d deaths) outlived(o Operation, uses []Operation, kept keeping) error {
	if !o.Lost || !slices.Contains([]string{replicaKind, mapKind, queueKind}, o.kind()) {
		return nil
	}
	for _, x := range uses {
		written := x.Do == write || x.Do == swap && x.Got == 1 || x.Do == add || x.Do == put && x.Place == o.Place
		if !written || !x.known() || x.Void || x.Lost || x.Return > o.Call {
			continue
		}
		if !d.mayEnd(x.Call, o.Return, kept) {
			return fmt.Errorf("%w: rank %d has written %s, and too few hosts were lost since, or since all was handed over", errUnjustified, x.client.Rank, x.Place)
		}
	}
	return nil
}

// mayEnd reports whether what was committed at one time, or later, may be lost until another.
func (d deaths) mayEnd(from, to int64, kept keeping) bool {
	for _, rest := range append(slices.Clone(kept.rests), to) {
		if rest <= from {
			continue
		}
		end, bearable := min(rest, to), replicas
		if slices.ContainsFunc(kept.shortages, func(s shortage) bool { return s.from <= end && from <= s.to }) {
			bearable = 0
		}
		for _, lost := range d {
			// Before all had gone on without a host it may have been taken for one that keeps what
			// was written.
			if !lost.inOrder && lost.settled > from && lost.at < end {
				bearable--
			}
		}
		if bearable < 0 {
			return true
		}
		from = end
	}
	return false
}
