package modelcheck

import (
	"fmt"

	"dsmd/internal/controlpage"
	"dsmd/protocol"
	"dsmd/protocol/model"
)

// words is locks that programs take by the words on their control pages: between nodes, beside
// goroutines and other programs of the same node, readers, and programs that die, with homes here
// and there, and with two locks in one place.
func (b Bound) words() []Case {
	var all cases
	base := func(nodes int) model.Config {
		c := b.base(nodes)
		c.Words, c.Duplicates = true, 0
		return c
	}
	for _, home := range []int{8, 9, 11} { // 8 on the first of two nodes and on the last of three
		once, shared := fmt.Sprintf("lock %d; unlock %[1]d", home), fmt.Sprintf("rlock %d; runlock %[1]d", home)
		twice, dies := once+"; "+once, fmt.Sprintf("lock %d; die", home)
		all.add("lock by its word, 2 nodes", base(2), twice, twice)
		all.add("lock by its word, 2 nodes", base(2), twice+"; "+once, fmt.Sprintf("lock %d; write 0; unlock %[1]d", home))
		all.add("lock by its word, and readers", base(2), twice, shared+"; "+shared)
		all.add("lock by its word, holder dies", base(2), once+"; "+dies, twice)
		all.add("lock by its word, its program dies", beside(base(2), 0, 1, "write 0; die"), twice, once)
		all.add("lock by its word, two goroutines", beside(base(2), 0, 1, twice), twice, once)
		all.add("lock by its word, two programs", beside(base(2), 0, 2, once), twice, once)
		all.add("lock by its word, two programs", beside(base(1), 0, 2, shared+"; "+once), twice+"; "+once)
		all.add("two locks in one place", base(2), fmt.Sprintf("%s; lock %d; %[1]s; unlock %[2]d", once, home+controlpage.Slots), once)
		all.add("two locks in one place", base(2), fmt.Sprintf("%s; lock %d; lock %d; unlock %[3]d; unlock %[2]d; %[1]s", once, home, home+controlpage.Slots), once)
		all.add("lock by its word, cancelled wait", base(2), twice, fmt.Sprintf("lock %d cancel 1; unlock %[1]d", home))
		all.add("lock by its word, 3 nodes", base(3), twice, once, once)
		for _, node := range []protocol.NodeID{0, 2} {
			moving := base(3)
			moving.Crash, moving.Pages = []protocol.NodeID{node}, 8
			all.add("lock by its word, one node lost", moving, once, twice, once)
			moving.Crash, moving.Leave = nil, []protocol.NodeID{node}
			all.add("lock by its word, one leaves", moving, once, once)
		}
		if b == Short {
			continue
		}
		all.add("lock by its word, two goroutines", beside(base(2), 0, 1, twice), twice, twice)
		all.add("lock by its word, 3 nodes", base(3), twice, twice, once)
		all.add("lock by its word, 3 nodes", base(3), twice, shared, once)
	}
	return all
}

// locks is locks, alone and around a page, with cancelled waits and with clients that die.
func (b Bound) locks() []Case {
	const increment = "lock 9; read 0; write 0; unlock 9"
	none := b.base(3)
	none.Duplicates = 0
	two := none
	two.Nodes = 2
	var all cases
	add := func(family string, c *model.Config) { all = append(all, Case{family, c}) }
	add("lock around a page", threads(two, increment, increment))
	add("lock around a page", threads(none, increment, increment))
	add("lock around a page", threads(none, increment, increment, "lock 9; write 0; unlock 9"))
	add("lock taken twice", threads(two, "lock 9; unlock 9; lock 9; unlock 9", "lock 9; unlock 9; lock 9; unlock 9"))
	add("lock taken twice", threads(none, "lock 9; unlock 9; lock 9; unlock 9", "lock 9; unlock 9; lock 9; unlock 9", "lock 9; unlock 9"))
	for _, home := range []int{9, 10, 11} { // on each of the three nodes
		for _, p := range []string{"lock %d; unlock %[1]d", "rlock %d; runlock %[1]d", "rlock %d; runlock %[1]d; lock %[1]d; unlock %[1]d"} {
			for _, q := range []string{"lock %d; unlock %[1]d", "rlock %d; runlock %[1]d"} {
				add("readers-writer lock", threads(none, fmt.Sprintf(p, home), fmt.Sprintf(q, home), fmt.Sprintf("rlock %d; runlock %[1]d; rlock %[1]d; runlock %[1]d", home)))
			}
		}
		add("lock with cancelled waits", threads(none, fmt.Sprintf("lock %d; unlock %[1]d", home), fmt.Sprintf("lock %d cancel 1; unlock %[1]d", home), fmt.Sprintf("rlock %d cancel 1; runlock %[1]d", home)))
		add("lock whose holder dies", threads(none, fmt.Sprintf("lock %d; die", home), fmt.Sprintf("lock %d; unlock %[1]d", home), fmt.Sprintf("lock %d; unlock %[1]d", home)))
		add("lock whose holder dies", threads(none, fmt.Sprintf("lock %d; die", home), fmt.Sprintf("rlock %d; die", home), fmt.Sprintf("lock %d; unlock %[1]d", home)))
	}
	for _, home := range []int{9, 10, 11} {
		// The dead holder's node gives the lock to readers there and elsewhere, whose waits may be
		// cancelled.
		for _, q := range []string{"rlock %d cancel 1; runlock %[1]d", "lock %d cancel 1; unlock %[1]d"} {
			for _, r := range []string{"rlock %d; runlock %[1]d", "lock %d; unlock %[1]d; rlock %[1]d; runlock %[1]d"} {
				c := threads(none, fmt.Sprintf("lock %d; die", home), fmt.Sprintf(q, home), fmt.Sprintf(r, home))
				c.Threads = append(c.Threads, model.ThreadSpec{Node: 0, Client: 2, Program: model.MustParseProgram(fmt.Sprintf(r, home))})
				add("lock whose holder dies", c)
			}
		}
	}
	for _, home := range []int{9, 10, 11} {
		// nobody repairs, or one does, before the others or after
		dies, intact, repairs := fmt.Sprintf("lock %d; die", home), fmt.Sprintf("intact %d cancel 1; unlock %[1]d", home), fmt.Sprintf("lock %d; unlock %[1]d", home)
		add("lock whose holder dies, and not all repair", threads(none, dies, intact, intact))
		add("lock whose holder dies, and not all repair", threads(none, dies, intact, repairs))
		add("lock whose holder dies, and not all repair", threads(none, dies, intact+"; "+intact, repairs+"; "+intact))
		c := threads(none, dies, fmt.Sprintf("rlock %d; runlock %[1]d", home), repairs)
		c.Threads = append(c.Threads, model.ThreadSpec{Node: 0, Client: 2, Program: model.MustParseProgram(intact)})
		add("lock whose holder dies, and not all repair", c)
	}
	c := threads(two, "lock 9; unlock 9", "lock 9; unlock 9; rlock 9; runlock 9")
	c.Threads = append(c.Threads, model.ThreadSpec{Node: 0, Client: 2, Program: model.MustParseProgram("lock 9; unlock 9; rlock 9; runlock 9")})
	add("lock shared by programs of a node", c)
	c = threads(two, "lock 9; unlock 9", "lock 9; unlock 9")
	// Client 2 dies while its other thread waits.
	c.Threads = append(c.Threads, model.ThreadSpec{Node: 0, Client: 2, Program: model.MustParseProgram("lock 9; unlock 9")})
	c.Threads = append(c.Threads, model.ThreadSpec{Node: 0, Client: 2, Program: model.MustParseProgram("die")})
	add("lock whose waiter dies", c)
	return all
}

func (b Bound) barriers() []Case {
	two, three := b.base(2), b.base(3)
	three.Duplicates = 0
	folded := three
	folded.Folded = true
	var all cases
	for _, home := range []int{8, 9, 10} {
		stop := fmt.Sprintf("barrier %d", home)
		all = append(all,
			Case{"barrier between accesses", threads(two, "write 0; "+stop+"; read 1", "write 1; "+stop+"; read 0")},
			Case{"barrier passed twice", threads(three, stop+"; "+stop, stop+"; "+stop, stop+"; "+stop)},
			Case{"barrier that adds up", threads(folded, stop+"; "+stop, stop+" cancel 1; "+stop)},
			Case{"barrier with a cancelled arrival", threads(two, stop+" cancel 2; "+stop, stop+" cancel 1; "+stop)},
			Case{"barrier with a cancelled arrival", threads(three, stop+"; "+stop, stop+" cancel 1; "+stop, stop+" cancel 1; "+stop)},
		)
	}
	// No program runs on the home that is lost, so none is missed. In the last the second of the
	// homes is lost, too.
	const once, twice, cancelled = "barrier 9", "barrier 9; barrier 9", "barrier 9 cancel 1; barrier 9"
	lost := func(nodes int, victims ...protocol.NodeID) model.Config {
		c := b.base(nodes)
		c.Crash, c.Pages, c.Duplicates = victims, 8, 0
		return c
	}
	all.add("barrier whose home is lost", lost(3, 0), "", twice, twice)
	all.add("barrier whose home is lost", lost(3, 0), "", twice, cancelled)
	if b == Short {
		return all
	}
	all.add("barrier whose home is lost", lost(3, 0), "", once+"; barrier 10; "+once, once+"; barrier 10; "+once)
	all.add("barrier whose home is lost", beside(lost(3, 0), 1, 2, once), "", once+" cancel 1", once)
	all.add("barrier whose home is lost", lost(4, 1), twice, "", twice, cancelled)
	all.add("barrier whose home is lost", lost(4, 1, 0), "", "", twice, cancelled)
	return all
}

// trees is barriers that are trees, in which one node at least only relays, at times: all arrive
// twice, some may be cancelled, and nodes are lost, leave or come at any point.
func (b Bound) trees() []Case {
	var all cases
	const once, twice, cancelled = "barrier 9", "barrier 9; barrier 9", "barrier 9 cancel 1; barrier 9"
	add := func(family string, arity int, c model.Config, programs ...string) {
		c.TreeFrom, c.TreeArity, c.Duplicates = 2, arity, 0
		all.add(family, c, programs...)
	}
	moving := func(nodes int, leave, join, crash []protocol.NodeID) model.Config {
		c := b.base(nodes)
		c.Leave, c.Join, c.Crash, c.Pages = leave, join, crash, 8
		return c
	}
	three := b.base(3)
	folded := three
	folded.Folded = true
	add("barrier as a tree", 1, three, twice, twice, twice)
	add("barrier as a tree", 2, three, twice, twice, twice)
	add("barrier as a tree", 1, three, twice, cancelled, cancelled)
	add("barrier as a tree that adds up", 1, folded, twice, cancelled, twice)
	add("barrier as a tree", 1, three, "barrier 9; barrier 10", "barrier 9; barrier 10", "barrier 9; barrier 10")
	add("barrier as a tree, a relay is lost", 1, moving(3, nil, nil, ids{1}), twice, "", twice)
	add("barrier as a tree, a relay is lost", 1, moving(3, nil, nil, ids{1}), twice, "", cancelled)
	add("barrier as a tree, one leaves or comes", 1, moving(3, ids{0}, nil, nil), "", twice, twice)
	add("barrier as a tree, one leaves or comes", 1, moving(3, ids{1}, nil, nil), twice, "", cancelled)
	add("barrier as a tree, one leaves or comes", 1, moving(3, nil, ids{1}, nil), twice, "", twice)
	if b == Short {
		return all
	}
	// at home on the first of four nodes, too
	const four, fourTwice = "barrier 8", "barrier 8; barrier 8"
	add("barrier as a tree", 1, b.base(4), fourTwice, fourTwice, fourTwice, fourTwice)
	add("barrier as a tree", 2, b.base(4), fourTwice, "barrier 8 cancel 1; barrier 8", fourTwice, fourTwice)
	add("barrier as a tree, a relay is lost", 1, moving(3, nil, nil, ids{1}), cancelled, "", cancelled)
	add("barrier as a tree, a relay is lost", 1, moving(4, nil, nil, ids{1}), fourTwice, "", "", "barrier 8 cancel 1; barrier 8")
	add("barrier as a tree, two relays are lost", 1, moving(4, nil, nil, ids{1, 2}), four, "", "", four)
	add("barrier as a tree, a relay is lost", 1, moving(4, nil, nil, ids{1}), four, "", four, four)
	add("barrier as a tree, a relay is lost", 2, moving(4, nil, nil, ids{1}), "", "", fourTwice, fourTwice)
	add("barrier as a tree, one leaves or comes", 1, moving(3, nil, ids{1}, nil), twice, "", cancelled)
	add("barrier as a tree, one leaves or comes", 1, moving(3, ids{1}, nil, ids{1}), twice, "", twice)
	// two programs of one node, so that a relay has several arrivals to put together
	lost := moving(4, nil, nil, ids{1})
	lost.Threads = []model.ThreadSpec{{Node: 2, Client: 2, Program: model.MustParseProgram(four)}}
	add("barrier as a tree, a relay is lost", 1, lost, four, "", four, four)
	if b == Deep {
		add("barrier as a tree, two relays are lost", 1, moving(4, nil, nil, ids{1, 2}), fourTwice, "", "", fourTwice)
		add("barrier as a tree, a relay is lost", 1, moving(4, nil, nil, ids{2}), fourTwice, "", "", "barrier 8 cancel 1; barrier 8")
		add("barrier as a tree, two relays are lost", 1, moving(4, nil, nil, ids{1, 2}), fourTwice, "", "", "barrier 8 cancel 1; barrier 8")
	}
	return all
}

// names is memory that is bound, used, given up by all, and bound anew: nothing of its first life
// may be seen in the second. Page 0 has its home where the names are kept, page 1 on the other
// node. Faults of the first life come late.
func (b Bound) names() []Case {
	base := b.base(2)
	base.Strays = base.Duplicates > 0
	var all cases
	for _, p := range accesses(1, 0, 1) {
		for _, q := range accesses(1, 0, 1) {
			const again = "unbind 0; barrier 8; bind 0; "
			all = append(all,
				Case{"memory freed and bound anew", threads(base, "bind 0; barrier 7; "+p+"; "+again+q, "bind 0; barrier 7; "+q+"; "+again+p)},
				Case{"memory freed and bound anew", threads(base, "bind 0; barrier 7; write 0; write 1; "+again+q, "bind 0; barrier 7; prefetch-read 1; "+again+p)})
		}
	}
	// a page of the first life is offered to a node that has bound neither
	all.add("memory freed and bound anew, a page is offered", base, "bind 0; write 1; evict 1; unbind 0; bind 0; read 1; evict 1; read 1")
	return append(all, b.tightNames()...)
}
