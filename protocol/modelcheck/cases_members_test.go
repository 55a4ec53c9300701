package modelcheck

import (
	"fmt"
	"slices"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

// crashes is a node that is lost at any point, and two of them.
func (b Bound) crashes() []Case {
	var all cases
	base := func(nodes int, victims ...protocol.NodeID) model.Config {
		c := b.base(nodes)
		c.Crash, c.Pages = victims, 8
		if b < Deep {
			c.Duplicates = 0
		}
		return c
	}
	programs := accesses(2, 0)
	if b == Short {
		programs = accesses(1, 0)
	}
	for _, victim := range []protocol.NodeID{0, 1} { // the home, another
		for _, p := range programs {
			for _, q := range programs {
				for j, r := range programs {
					if victim == 0 && slices.Index(programs, q) > j {
						continue // the two that remain play the same role
					}
					all.add("3 nodes, 1 page, 2 accesses each, one node lost", base(3, victim), p, q, r)
				}
			}
		}
	}
	each := 1
	if b == Deep {
		each = 2
	}
	for _, p := range accesses(each, 2, 3) {
		// the home of page 2 has no program, page 3 is another's
		for _, q := range accesses(2, 2, 3) {
			all.add("2 nodes, 2 pages, one node lost", base(3, 2), p, q)
			all.add("2 nodes, 2 pages, one node lost", base(3, 0), p, q)
		}
	}
	for _, victims := range [][]protocol.NodeID{{0, 1}, {0, 3}, {1, 2}} {
		for _, p := range accesses(1, 0) {
			for _, q := range accesses(1, 0) {
				all.add("4 nodes, 1 page, two of them lost", base(4, victims...), p, q)
			}
		}
	}
	for _, victim := range []protocol.NodeID{0, 1, 2} {
		c := base(3, victim)
		for _, home := range []int{9, 10} {
			alone, shared := fmt.Sprintf("lock %d; unlock %[1]d", home), fmt.Sprintf("rlock %d; runlock %[1]d", home)
			all = append(all,
				Case{"lock, one node lost", threads(c, alone, alone, alone)},
				Case{"lock, one node lost", threads(c, alone, shared, shared)},
				Case{"lock, one node lost", threads(c, alone+"; "+shared, alone, shared)},
				Case{"lock whose holder dies, one node lost", threads(c, fmt.Sprintf("lock %d; die", home), shared, alone)},
				Case{"lock whose holder dies, one node lost", threads(c, fmt.Sprintf("lock %d; die", home), fmt.Sprintf("intact %d; unlock %[1]d", home), alone)},
				Case{"lock around a page, one node lost", threads(c, fmt.Sprintf("lock %d; write 0; unlock %[1]d", home), fmt.Sprintf("lock %d; write 0; unlock %[1]d", home), alone)})
		}
	}
	all = append(all, Case{"prefetch, one node lost", threads(base(3, 0), "prefetch-write 0; write 0", "prefetch-read 0; write 0", "read 0")},
		Case{"prefetch, one node lost", threads(base(3, 1), "prefetch-write 0; write 0", "prefetch-read 0; write 0", "read 0")})
	return all
}

// beginnings is pages that are lost with a node, at any point, and begin anew.
func (b Bound) beginnings() []Case {
	var all cases
	base := func(nodes int, anew, victims ids) model.Config {
		c := b.base(nodes)
		c.Anew, c.Crash, c.Pages = anew, victims, 8
		if b < Deep {
			c.Duplicates = 0
		}
		return c
	}
	everywhere := ids{0, 1, 2}
	for _, p := range accesses(1, 0) {
		for _, q := range accesses(2, 0) {
			for _, r := range accesses(1, 0) {
				// The home is lost, or another; or what begins anew is lost with it again.
				all.add("3 nodes, 1 page, one node lost, pages begin anew", base(3, everywhere, ids{0}), p, q, r)
				all.add("3 nodes, 1 page, one node lost, pages begin anew", base(3, everywhere, ids{1}), q, p, r)
				all.add("3 nodes, 1 page, one node lost, pages begin anew on one", base(3, ids{2}, ids{1}), r, p, q)
			}
			all.add("prefetch, one node lost, pages begin anew", base(3, everywhere, ids{1}), "prefetch-write 0; "+p, "write 0", "prefetch-read 0; "+p)
		}
		copies := base(3, everywhere, ids{0, 1})
		copies.Replicas = 1
		all.add("3 nodes, 1 replicated page, two of them lost, pages begin anew", copies, "write 0; commit", p, "read 0")
		leaves, comes := base(3, everywhere, ids{1}), base(3, everywhere, ids{1})
		leaves.Leave, comes.Join = ids{0}, ids{2}
		all.add("3 nodes, 1 page, one leaves or comes, one is lost, pages begin anew", leaves, p, "write 0", "")
		all.add("3 nodes, 1 page, one leaves or comes, one is lost, pages begin anew", comes, p, "write 0", "read 0")
	}
	two := base(4, ids{2, 3}, ids{0, 1})
	two.Prompt = true
	all.add("4 nodes, 1 page, two of them lost, pages begin anew", two, "", "write 0", "read 0", "write 0")
	return all
}

// minorities is nodes that the others take for lost at any point, and that live on.
func (b Bound) minorities() []Case {
	var all cases
	base := func(nodes int, words bool, cut ...protocol.NodeID) model.Config {
		c := b.base(nodes)
		c.Cut, c.Pages, c.Duplicates, c.Words = cut, 8, 0, words
		return c
	}
	for i, theirs := range accesses(2, 0) {
		for _, ours := range accesses(1, 0) {
			for _, other := range accesses(1, 0) {
				all.add("3 nodes, 1 page, one cut off", base(3, false, 2), ours, other, theirs)
				if b >= Full || i == 3 { // the home is cut off
					all.add("3 nodes, 1 page, the home cut off", base(3, false, 0), theirs, ours, other)
				}
			}
			if b >= Full && ours == "write 0" {
				all.add("4 nodes, 1 page, two cut off together", base(4, false, 2, 3), ours, "", theirs, "read 0")
				all.add("4 nodes, 1 page, two cut off together", base(4, false, 0, 3), theirs, ours, "", "write 0")
			}
		}
	}
	all = append(all, b.lockMinorities(base)...)
	return append(all, b.returns(base)...)
}

type minorityBase = func(nodes int, words bool, cut ...protocol.NodeID) model.Config

// lockMinorities is locks that nodes have which are cut off, or want.
func (b Bound) lockMinorities(base minorityBase) (all cases) {
	for _, words := range []bool{false, true} {
		for _, home := range []int{9, 10, 11} {
			once, shared := fmt.Sprintf("lock %d; unlock %[1]d", home), fmt.Sprintf("rlock %d; runlock %[1]d", home)
			twice := once + "; " + once
			around := fmt.Sprintf("lock %d; write 0; unlock %[1]d", home)
			all.add("lock, one node cut off", base(3, words, 2), once, once, twice)
			all.add("lock, one node cut off", base(3, words, 2), once, shared, shared+"; "+shared)
			all.add("lock, one node cut off", base(3, words, 2), shared, once, shared+"; "+once)
			all.add("lock, two programs of a node that is cut off", beside(base(3, words, 2), 2, 2, twice), once, "", once)
			all.add("lock, two programs of a node that is cut off", beside(base(3, words, 2), 2, 2, shared), once, "", fmt.Sprintf("lock %d; unlock %[1]d; lock %[1]d cancel 1; unlock %[1]d", home))
			all.add("lock around a page, one node cut off", base(3, words, 2), around, "", around+"; "+around)
			if b >= Full {
				all.add("lock, two cut off together", base(4, words, 2, 3), once, "", once, once)
			}
		}
	}
	return all
}

// returns is nodes that come back after they were cut off, or find a quorum again.
func (b Bound) returns(base minorityBase) (all cases) {
	for _, q := range accesses(1, 0) {
		for _, cut := range []protocol.NodeID{0, 1} { // the home, another
			back := base(3, false, cut)
			back.Return = true
			mine := []string{q, "write 0", ""}
			if cut == 1 {
				mine = []string{"write 0", q, ""}
			}
			all.add("3 nodes, 1 page, one cut off and back", back, mine...)
		}
	}
	back := base(3, true, 0)
	back.Return = true
	all.add("lock, one node cut off and back", back, "lock 9; unlock 9", "lock 9; unlock 9", "")
	for _, words := range []bool{false, true} {
		for _, home := range []int{9, 10} {
			const family = "lock, one node without a quorum for a while"
			heals := base(2, words, 1)
			heals.Heal = true
			once, dies := fmt.Sprintf("lock %d; unlock %[1]d", home), fmt.Sprintf("lock %d; die", home)
			for _, waits := range []string{fmt.Sprintf("lock %d cancel 1; unlock %[1]d", home), fmt.Sprintf("rlock %d cancel 1; runlock %[1]d", home)} {
				all.add(family, beside(heals, 1, 2, dies), once, waits)
				all.add(family, heals, dies, waits)
				all.add("barrier, one node without a quorum for a while", heals, waits+"; barrier 9", "barrier 9 cancel 1; "+once)
			}
		}
	}
	all.add("barrier, one node cut off", beside(base(2, false, 1), 1, 2, "barrier 9"), "write 0", "barrier 9")
	return all
}

// changes is nodes that leave when they are done and nodes that come, at any point, also beside one
// that is lost.
func (b Bound) changes() []Case {
	var all cases
	base := func(nodes int, leave, join, crash []protocol.NodeID) model.Config {
		c := b.base(nodes)
		c.Leave, c.Join, c.Crash, c.Pages = leave, join, crash, 8
		if b < Deep {
			c.Duplicates = 0
		}
		return c
	}
	two := accesses(2, 0)
	if b == Short {
		two = accesses(1, 0)
	}
	for _, p := range accesses(1, 0) {
		for _, q := range two {
			all.add("2 nodes, 1 page, one leaves", base(2, ids{0}, nil, nil), p, q)
			all.add("2 nodes, 1 page, one leaves", base(2, ids{1}, nil, nil), q, p)
		}
		for _, q := range accesses(1, 0) {
			for _, r := range accesses(1, 1) { // page 1 has its home where the node that comes is
				all.add("3 nodes, 2 pages, one comes", base(3, nil, ids{1}, nil), p+"; "+r, r, q)
				all.add("2 nodes, 2 pages, one comes and is lost", base(2, nil, ids{1}, ids{1}), p+"; "+r, r+"; "+q)
				all.add("3 nodes, 2 pages, one comes, one is lost", base(3, nil, ids{1}, ids{2}), p, r, r)
			}
			all.add("3 nodes, 1 page, one leaves", base(3, ids{0}, nil, nil), p, q, p)
			all.add("3 nodes, 1 page, one leaves", base(3, ids{1}, nil, nil), p, q, p)
			all.add("3 nodes, 1 page, one leaves, one is lost", base(3, ids{0}, nil, ids{2}), p, q, q)
			all.add("3 nodes, 1 page, one leaves, one comes", base(3, ids{0}, ids{2}, nil), p, "", q)
		}
	}
	// Two leave, together or one after another, before or after the first is gone; what is
	// prefetched may come when nobody wants it any more.
	all.add("3 nodes, 1 page, two leave", base(3, ids{0, 1}, nil, nil), "write 0", "read 0", "")
	all.add("prefetch, one leaves", base(3, ids{0}, nil, nil), "prefetch-write 1", "write 1", "")
	for _, p := range accesses(1, 2) { // at home where nobody leaves
		all.add("3 nodes, 1 page, two leave", base(3, ids{0, 1}, nil, nil), p, "read 2", "")
		if b >= Full {
			all.add("3 nodes, 1 page, two leave", base(3, ids{0, 1}, nil, nil), p, "write 2", "")
		}
		if b == Deep {
			all.add("3 nodes, 1 page, two leave", base(3, ids{0, 1}, nil, nil), p, "read 2", "write 2")
			all.add("4 nodes, 1 page, two leave", base(4, ids{0, 1}, nil, nil), p, "read 2", "")
			all.add("4 nodes, 1 page, two leave", base(4, ids{0, 1}, nil, nil), p, "", "", "read 2")
			all.add("prefetch, one leaves", base(3, ids{0}, nil, nil), "prefetch-write 1", "write 1", p)
		}
	}
	return append(all, b.lockChanges(base)...)
}

// lockChanges is locks, barriers and names while nodes leave and come.
func (b Bound) lockChanges(base func(nodes int, leave, join, crash []protocol.NodeID) model.Config) (all cases) {
	for _, home := range []int{9, 10} {
		alone, shared := fmt.Sprintf("lock %d; unlock %[1]d", home), fmt.Sprintf("rlock %d; runlock %[1]d", home)
		dies := fmt.Sprintf("lock %d; die", home)
		for _, c := range []model.Config{base(3, ids{0}, nil, nil), base(3, ids{1}, nil, nil), base(3, nil, ids{1}, nil)} {
			all.add("lock, one leaves or comes", c, alone, alone, shared)
			all.add("lock, one leaves or comes", c, shared, alone, shared)
			all.add("lock whose holder dies, one leaves or comes", c, dies, shared, alone)
			all.add("lock whose holder dies, one leaves or comes", c, dies, fmt.Sprintf("intact %d; unlock %[1]d", home), alone)
			all.add("lock around a page, one leaves or comes", c, fmt.Sprintf("lock %d; write 0; unlock %[1]d", home), alone, fmt.Sprintf("lock %d; write 0; unlock %[1]d", home))
		}
		stop := fmt.Sprintf("barrier %d", home)
		all.add("barrier, one leaves or comes", base(3, ids{0}, nil, nil), "", stop+"; "+stop, stop+"; "+stop)
		all.add("barrier, one leaves or comes", base(3, nil, ids{1}, nil), stop+"; "+stop, "", stop+"; "+stop)
		all.add("barrier with a cancelled arrival, one leaves or comes", base(3, ids{0}, nil, nil), "", stop+" cancel 1", stop+" cancel 1")
		all.add("barrier with a cancelled arrival, one leaves or comes", base(3, nil, ids{1}, nil), stop+" cancel 1", "", stop+" cancel 1")
	}
	// its home is the node that comes; before it is that which is lost, and the other between the
	// two
	const own = "lock 11; unlock 11"
	all.add("lock, one is lost, one comes", base(3, nil, ids{2}, ids{0}), own, own+"; "+own, own)
	const again = "unbind 0; barrier 8; bind 0; "
	all.add("memory freed and bound anew, one leaves", base(3, ids{0}, nil, nil), "", "bind 0; barrier 7; write 0; "+again+"read 0", "bind 0; barrier 7; read 1; "+again+"read 0")
	all.add("memory freed and bound anew, one leaves", base(3, ids{2}, nil, nil), "", "bind 0; barrier 7; write 0; "+again+"read 0", "bind 0; barrier 7; read 1; unbind 0; barrier 8")
	return all
}

// replicas is replicated memory, and a node that is lost at any point.
func (b Bound) replicas() []Case {
	var all cases
	base := func(nodes int, copies uint8, victims ...protocol.NodeID) model.Config {
		c := b.base(nodes)
		c.Crash, c.Pages, c.Replicas = victims, 8, copies
		if b < Deep {
			c.Duplicates = 0
		}
		return c
	}
	for _, victim := range []protocol.NodeID{0, 1, 2} {
		// the home, another, and whose commits are not looked at
		for _, p := range []string{"write 0; commit", "write 0; commit; write 0", "read 0; write 0; commit", "write 0; commit; write 0; commit"} {
			for _, q := range []string{"read 0", "write 0", "write 0; commit"} {
				if b == Short && q != "read 0" {
					continue
				}
				for _, r := range accesses(1, 0) {
					all = append(all, Case{"3 nodes, 1 replicated page, one node lost", threads(base(3, 1, victim), p, q, r)},
						Case{"3 nodes, 1 replicated page, one node lost", threads(base(3, 1, victim), r, p, q)})
				}
			}
		}
		c := threads(base(3, 1, victim), "write 0; commit", "read 0")
		c.Threads = append(c.Threads, model.ThreadSpec{Node: 0, Client: 2, Program: model.MustParseProgram("write 0; commit")})
		all = append(all, Case{"3 nodes, 1 replicated page, two threads on one of them", c},
			Case{"lock around a replicated page, one node lost", threads(base(3, 1, victim), "lock 9; write 0; commit; unlock 9", "lock 9; write 0; commit; unlock 9", "read 0")},
			Case{"3 nodes, 2 replicated pages, one node lost", threads(base(3, 1, victim), "write 0; write 1; commit", "read 1; read 0")})
	}
	all = append(all, b.movingReplicas(base)...)
	two := base(4, 1, 0, 1)
	all.add("4 nodes, 1 replicated page, two of them lost", two, "write 0; commit", "read 0")
	all.add("4 nodes, 1 replicated page, two of them lost", two, "read 0", "write 0; commit")
	if b < Deep {
		return all
	}
	for _, copies := range []uint8{1, 2} {
		for _, victims := range [][]protocol.NodeID{{0, 1}, {1, 2}} {
			for _, q := range accesses(1, 0) {
				all = append(all, Case{"4 nodes, 1 replicated page, two of them lost", threads(base(4, copies, victims...), "write 0; commit", q)},
					Case{"4 nodes, 1 replicated page, two of them lost", threads(base(4, copies, victims...), q, "write 0; commit")})
			}
		}
	}
	return all
}

// movingReplicas is replicated memory while one node leaves or comes, and another is lost.
func (b Bound) movingReplicas(base func(nodes int, copies uint8, victims ...protocol.NodeID) model.Config) (all cases) {
	moving := func(nodes int, leave, join []protocol.NodeID, victim protocol.NodeID) model.Config {
		c := base(nodes, 1, victim)
		c.Leave, c.Join = leave, join
		return c
	}
	for i, q := range accesses(1, 0) {
		all.add("3 nodes, 1 replicated page, the one that leaves is lost", moving(3, ids{0}, nil, 0), "write 0; commit", q)
		for _, victim := range []protocol.NodeID{1, 2} {
			// who keeps a backup from then on, and who does not, or did
			all.add("3 nodes, 1 replicated page, one leaves, one is lost", moving(3, ids{0}, nil, victim), "write 0; commit", q)
			all.add("3 nodes, 1 replicated page, one leaves, one is lost", moving(3, ids{0}, nil, victim), "write 0", q)
			if b == Deep || b == Full && i == 0 {
				all.add("3 nodes, 1 replicated page, one leaves, one is lost", moving(3, ids{0}, nil, victim), "", q, "write 0; commit")
			}
		}
	}
	for i, q := range accesses(1, 1) {
		for _, victim := range []protocol.NodeID{0, 2} {
			c := moving(3, nil, ids{1}, victim) // page 1 has its home where the node comes
			all.add("3 nodes, 1 replicated page, one comes, one is lost", c, "write 1; commit", q)
			all.add("3 nodes, 1 replicated page, one comes, one is lost", c, "", "write 1; commit", q)
			if b == Deep || b == Full && i == 0 {
				all.add("3 nodes, 1 replicated page, one comes, one is lost", c, q, "", "write 1; commit")
			}
		}
	}
	// A page is offered to one that comes, and may be there before it knows that it is replicated.
	all.add("3 nodes, 1 replicated page, offered to one that comes, and is lost", moving(3, nil, ids{1}, 1), "write 1; evict 1", "write 1; commit", "read 1")
	// Two come one after the other. Backups that the first lacks are on their way, or have come,
	// when the second does.
	for _, victim := range []protocol.NodeID{0, 1} {
		c := threads(moving(3, nil, ids{1, 2}, victim), "write 0; commit")
		c.Before = []int{0, 0}
		all.add("3 nodes, 1 replicated page, two come, one is lost", *c)
	}
	for _, q := range accesses(1, 0) {
		all.add("2 nodes, 1 replicated page, one comes, the other is lost", moving(2, nil, ids{1}, 0), "write 0; commit", q)
		if b == Deep {
			all.add("3 nodes, 1 replicated page, one leaves, one comes, the other is lost", moving(3, ids{0}, ids{2}, 1), "write 0; commit", "", q)
		}
	}
	return all
}
