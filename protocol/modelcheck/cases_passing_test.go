package modelcheck

import (
	"dsmd/protocol"
	"dsmd/protocol/model"
)

// inTrees is a cluster that is large from two nodes on, as daemons' are from 32.
func (b Bound) inTrees(nodes, arity int, before ...int) model.Config {
	c := b.base(nodes)
	c.TreeFrom, c.TreeArity, c.Duplicates, c.Before = 2, arity, 0, before
	return c
}

// passings is invalidations that sharers pass on: of two copies and more, as of 32 in daemons. The
// page is at home in the first node. If that has a copy it grants others theirs, and what is passed
// on may overtake the Grant.
func (b Bound) passings() []Case {
	var all cases
	base := b.inTrees
	const writes, reads, twice, upgrade, evicts = "write 0", "read 0", "read 0; read 0", "read 0; write 0", "read 0; evict 0; read 0"
	const family = "copies invalidated through a tree"
	// a Grant of the home's is on its way, or comes later
	all.add(family, base(4, 1, 0), writes, upgrade, reads, reads)
	all.add(family, base(4, 2, 0), writes, upgrade, reads, reads)
	// the home writes, or has no copy
	all.add(family, base(4, 1, 0), "write 0; write 0", reads, reads, reads)
	all.add(family, base(4, 1), "", "write 0; write 0", reads, reads)
	// who has passed it on wants the page, too, or has dropped it
	all.add(family, base(4, 1, 0, 1, 2, 3), writes, upgrade, upgrade, reads)
	all.add(family, base(4, 1, 0, 1, 2, 3), writes, upgrade, twice, upgrade)
	all.add(family, base(4, 1, 0, 1, 2, 3), writes, upgrade, evicts, reads)
	all.add(family, base(4, 1, 0, 1, 2, 3), writes, upgrade, reads, evicts)
	coarse := func(c model.Config) model.Config {
		c.ExactNodes, c.Pointers, c.GroupNodes = 1, 1, c.Nodes
		return c
	}
	all.add("copies invalidated through a tree, coarse copysets", coarse(base(4, 1, 0)), writes, upgrade, reads)
	all.add("copies invalidated through a tree, coarse copysets", coarse(base(4, 1, 0)), "", upgrade, twice, reads)
	moving := func(leave, join, crash []protocol.NodeID, before ...int) model.Config {
		c := base(4, 1, before...)
		c.Leave, c.Join, c.Crash, c.Pages = leave, join, crash, 8
		return c
	}
	const lost, moves = "copies invalidated through a tree, one is lost", "copies invalidated through a tree, one leaves or comes"
	prompt := func(nodes int, c model.Config) model.Config {
		c.Nodes, c.Prompt = nodes, true
		return c
	}
	// the home, who writes, who passes it on, who hears of it last
	for _, n := range []protocol.NodeID{0, 1, 2, 3} {
		all.add(lost, moving(nil, nil, ids{n}, 0, 1, 2, 3), writes, upgrade, reads, reads)
		all.add(moves, prompt(4, moving(ids{n}, nil, nil, 0, 1, 2, 3)), writes, upgrade, reads, reads)
	}
	all.add(moves, prompt(4, moving(nil, ids{2}, nil, 0, 1)), writes, upgrade, reads, reads)
	// readers may have become owners: after a recovery they ask the home
	all.add(lost, prompt(5, moving(nil, nil, ids{4}, 0, 1, 2, 3)), writes, upgrade, reads, reads)
	all.add(moves, prompt(5, moving(ids{4}, nil, nil, 0, 1, 2, 3)), writes, upgrade, reads, reads)
	if b == Short {
		return all
	}
	for _, n := range []protocol.NodeID{0, 1, 2, 3} {
		all.add(lost, moving(nil, nil, ids{n}, 0, 1, 2), writes, upgrade, reads, reads)
	}
	all.add(lost, moving(nil, nil, ids{0}, 1), "", writes, reads, reads)
	all.add(lost, moving(nil, nil, ids{2}), reads, writes, reads, reads)
	for _, home := range []string{"", writes, reads} {
		for _, p := range []string{writes, upgrade} {
			for i, q := range []string{reads, twice, upgrade, evicts} {
				for _, r := range []string{reads, upgrade, evicts}[:3-i/2] {
					all.add(family, base(4, 1), home, p, q, r)
				}
			}
		}
	}
	// a part of two beside one of one, and a chain of three
	all.add(family, base(5, 2, 0, 1, 2), writes, upgrade, reads, reads, reads)
	all.add(family, base(5, 1, 0, 1, 2), writes, upgrade, reads, reads, reads)
	return all
}
