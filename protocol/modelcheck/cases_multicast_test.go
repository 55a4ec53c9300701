package modelcheck

import (
	"dsmd/protocol"
	"dsmd/protocol/model"
)

// multicasts is pages that go to all who wait to read them, after each new reader, as after eight
// in daemons. The page is at home in the first node.
func (b Bound) multicasts() []Case {
	var all cases
	base := func(nodes, arity int, before ...int) model.Config {
		c := b.inTrees(nodes, arity, before...)
		c.ManyReaders = 1
		return c
	}
	const reads, stores, upgrade, evicts = "read 0", "write 0", "read 0; write 0", "read 0; evict 0; read 0"
	const family = "a page sent to all who wait"
	// one node below the other, and beside the other; the first reader makes nobody the only owner
	all.add(family, base(3, 1, 0, 1), stores, reads, upgrade)
	all.add(family, base(3, 2, 0), "write 0; write 0", upgrade, upgrade)
	all.add(family, base(4, 1, 0, 1), stores, upgrade, reads, reads)
	all.add(family, base(4, 1, 0, 1), stores, reads, reads, upgrade)
	all.add(family, base(4, 2, 0, 1), stores, reads, evicts, reads)
	// the home has no copy, and the owner sends the page
	all.add(family, base(4, 1, 1), "", stores, reads, upgrade)
	all.add(family, base(4, 2, 1, 2), "", upgrade, reads, reads)
	coarse := func(c model.Config) model.Config {
		c.ExactNodes, c.Pointers, c.GroupNodes = 1, 2, c.Nodes
		return c
	}
	all.add("a page sent to all who wait, coarse copysets", coarse(base(3, 1, 0, 1)), stores, reads, upgrade)
	all.add("a page sent to all who wait, coarse copysets", coarse(base(4, 1, 0, 1)), stores, reads, reads, reads)
	moving := func(leave, join, crash []protocol.NodeID, before ...int) model.Config {
		c := base(4, 1, before...)
		c.Leave, c.Join, c.Crash, c.Pages, c.Prompt = leave, join, crash, 8, true
		return c
	}
	const lost, moves = "a page sent to all who wait, one is lost", "a page sent to all who wait, one leaves or comes"
	for _, n := range []protocol.NodeID{0, 1, 2, 3} {
		all.add(lost, moving(nil, nil, ids{n}, 0, 1), stores, reads, upgrade, reads)
		all.add(moves, moving(ids{n}, nil, nil, 0, 1), stores, reads, upgrade, reads)
	}
	all.add(moves, moving(nil, ids{2}, nil, 0, 1), stores, reads, reads, reads)
	if b == Short {
		return all
	}
	for _, home := range []string{stores, "write 0; write 0"} {
		for _, p := range []string{reads, stores, upgrade, evicts} {
			for _, q := range []string{reads, stores, upgrade, evicts} {
				all.add(family, base(3, 1, 0, 1), home, p, q)
				all.add(family, base(3, 2, 0), home, p, q)
			}
			all.add(family, base(4, 1, 0, 1), home, reads, p, reads)
			all.add(family, base(4, 2, 0, 1), home, reads, reads, p)
		}
	}
	// the end of one multicast is heard after the next, which could serve the same node
	all.add(family, base(4, 1, 0, 1), "write 0; read 0", upgrade, "read 0; write 0", "read 0; read 0")
	// who has made the owner share it asks again before that is over
	all.add(family, base(4, 1, 1), "", stores, evicts, reads)
	all.add(family, base(4, 1, 1), "", stores, evicts, evicts)
	all.add(family, base(5, 1, 0, 1), stores, reads, reads, reads, reads)
	all.add(family, base(5, 2, 0, 1), stores, reads, reads, reads, upgrade)
	return all
}
