package faultlog

// Gaps counts what is missing of one node's log in batches that several programs of the node have
// read, each for itself: what more than one of them came too late for counts once. It knows the
// last gap only, which is enough for programs that read the log as it goes on.
type Gaps struct{ from, to uint64 }

// Add takes a batch, and returns how many entries are missing before it that were not counted yet.
func (g *Gaps) Add(b *Batch) (fresh uint64) {
	from, to := b.First-min(b.Lost, b.First), b.First
	switch {
	case from == to:
		return 0
	case from >= g.to:
		*g = Gaps{from, to}
		return to - from
	case to <= g.from: // it comes late, or is of another daemon that took the place of the first
		return to - from
	}
	if from < g.from {
		fresh = g.from - from
	}
	if to > g.to {
		fresh += to - g.to
	}
	*g = Gaps{min(from, g.from), max(to, g.to)}
	return fresh
}
