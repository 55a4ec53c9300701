package modelcheck

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

// Case is one configuration to explore.
type Case struct {
	// Family is what it has in common with others; results are summed up by it.
	Family string
	Config *model.Config
}

// Bound says how far to go.
type Bound int

const (
	// Short takes seconds: the same families as Fixed, with fewer repeated faults.
	Short Bound = iota
	// Fixed is what must pass before a change to the engine goes in: a minute or two on two cores.
	Fixed
	// Deep takes the better part of an hour and several GB.
	Deep
)

// base is a cluster with everything on that Bound allows.
func (b Bound) base(nodes int) model.Config {
	c := model.Config{Nodes: nodes, Pages: 16, HomeStripe: 1, Hold: 10, MaxHold: 100}
	if b >= Fixed {
		c.Duplicates = 1
	}
	return c
}

// threads puts one program on each of the first nodes, but for those whose program is empty.
func threads(c model.Config, programs ...string) *model.Config {
	for i, p := range programs {
		if p == "" {
			continue
		}
		c.Threads = append(c.Threads, model.ThreadSpec{Node: protocol.NodeID(i), Client: 1, Program: model.MustParseProgram(p)})
	}
	return &c
}

// accesses lists all programs of n accesses to the given pages.
func accesses(n int, pages ...uint64) []string {
	if n == 0 {
		return []string{""}
	}
	var all []string
	for _, head := range accesses(n-1, pages...) {
		for _, p := range pages {
			for _, verb := range []string{"read", "write"} {
				separator := ""
				if head != "" {
					separator = "; "
				}
				all = append(all, fmt.Sprintf("%s%s%s %d", head, separator, verb, p))
			}
		}
	}
	return all
}

// Suite lists all cases of a bound. None of them may have a finding.
func Suite(b Bound) []Case {
	var all []Case
	all = append(all, b.twoNodesTwoPages()...)
	all = append(all, b.threeNodesOnePage()...)
	all = append(all, b.twoThreads()...)
	all = append(all, b.locks()...)
	all = append(all, b.barriers()...)
	all = append(all, b.trees()...)
	all = append(all, b.prefetches()...)
	all = append(all, b.names()...)
	all = append(all, b.crashes()...)
	all = append(all, b.changes()...)
	all = append(all, b.replicas()...)
	return all
}

// twoNodesTwoPages is every pair of programs of two accesses each. Home placements: each node is home of one page, one
// node of both, or a third node of both.
func (b Bound) twoNodesTwoPages() []Case {
	var all []Case
	for _, place := range []struct {
		family string
		nodes  int
		pages  [2]uint64
		strays bool
		late   bool
		// alike are renamings under which the roles of nodes and pages are the same.
		alike []renaming
	}{
		{"2 nodes, 2 pages, 2 accesses each, a home each", 2, [2]uint64{0, 1}, true, false, []renaming{bothSwapped}},
		{"2 nodes, 2 pages, 2 accesses each, one home", 2, [2]uint64{0, 2}, false, false, []renaming{pagesSwapped}},
		{"2 nodes, 2 pages, 2 accesses each, a third is home", 3, [2]uint64{2, 5}, false, false, []renaming{nodesSwapped, pagesSwapped, bothSwapped}},
		{"2 nodes, 2 pages, 2 accesses each, holds already over", 2, [2]uint64{0, 1}, false, true, []renaming{bothSwapped}},
	} {
		c := b.base(place.nodes)
		c.Late = place.late
		c.Strays = c.Duplicates > 0 && place.strays
		for _, programs := range pairs(accesses(2, place.pages[0], place.pages[1]), place.pages, place.alike...) {
			all = append(all, Case{place.family, threads(c, programs[0], programs[1])})
		}
	}
	if b == Short {
		return all
	}
	c := b.base(2)
	c.Duplicates = 0
	if b == Deep {
		c.Duplicates = 1
	}
	for _, programs := range pairs(accesses(3, 0, 1), [2]uint64{0, 1}, bothSwapped) {
		all = append(all, Case{"2 nodes, 2 pages, 3 accesses each", threads(c, programs[0], programs[1])})
	}
	return all
}

// A renaming calls the first two nodes, the two pages, or both, by each other's names. What is reached by two programs
// differs from what is reached by them renamed in names alone, if the roles are the same; so one of the two is explored.
type renaming int

const (
	nodesSwapped renaming = iota
	pagesSwapped
	bothSwapped
)

// apply renames what the first two nodes do.
func (r renaming) apply(programs [2]string, pages [2]uint64) [2]string {
	if r != nodesSwapped {
		first, second := fmt.Sprint(pages[0]), fmt.Sprint(pages[1])
		swap := strings.NewReplacer(first, second, second, first)
		programs = [2]string{swap.Replace(programs[0]), swap.Replace(programs[1])}
	}
	if r != pagesSwapped {
		programs[0], programs[1] = programs[1], programs[0]
	}
	return programs
}

// pairs lists all pairs of programs, one of each set of those that are alike.
func pairs(programs []string, pages [2]uint64, alike ...renaming) [][2]string {
	var all [][2]string
	for _, p := range programs {
		for _, q := range programs {
			pair := [2]string{p, q}
			known := func(r renaming) bool { return slices.Contains(all, r.apply(pair, pages)) }
			if !slices.ContainsFunc(alike, known) {
				all = append(all, pair)
			}
		}
	}
	return all
}

// threeNodesOnePage is every triple of programs of two accesses each, with the home on one of the three nodes, or on a fourth.
func (b Bound) threeNodesOnePage() []Case {
	var all []Case
	for _, place := range []struct {
		family     string
		nodes      int
		page       uint64
		duplicates bool
		late       bool
	}{
		{"3 nodes, 1 page, 2 accesses each, home among them", 3, 0, true, false},
		{"3 nodes, 1 page, 2 accesses each, a fourth is home", 4, 3, b == Deep, false},
		{"3 nodes, 1 page, 2 accesses each, holds already over", 3, 0, false, true},
	} {
		c := b.base(place.nodes)
		c.Late = place.late
		if !place.duplicates {
			c.Duplicates = 0
		}
		programs := accesses(2, place.page)
		for i, p := range programs {
			for j, q := range programs {
				for k, r := range programs {
					// Nodes that are not home play the same role.
					if k < j || place.nodes == 4 && j < i {
						continue
					}
					all = append(all, Case{place.family, threads(c, p, q, r)})
				}
			}
		}
	}
	return all
}

// twoThreads is nodes with two threads each, of one program or of two, on one page.
func (b Bound) twoThreads() []Case {
	var all []Case
	base := b.base(2)
	base.Strays = base.Duplicates > 0
	for _, second := range []protocol.ClientID{1, 2} {
		for _, p := range accesses(2, 1) {
			for _, q := range accesses(1, 1) {
				for _, r := range accesses(1, 1) {
					c := threads(base, p)
					c.Threads = append(c.Threads, model.ThreadSpec{Node: 0, Client: second, Program: model.MustParseProgram(q)})
					c.Threads = append(c.Threads, model.ThreadSpec{Node: 1, Client: 1, Program: model.MustParseProgram(r)})
					all = append(all, Case{"2 nodes, 1 page, two threads on one of them", c})
				}
			}
		}
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
	var all []Case
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
		// The dead holder's node gives the lock to readers there and elsewhere, whose waits may be cancelled.
		for _, q := range []string{"rlock %d cancel 1; runlock %[1]d", "lock %d cancel 1; unlock %[1]d"} {
			for _, r := range []string{"rlock %d; runlock %[1]d", "lock %d; unlock %[1]d; rlock %[1]d; runlock %[1]d"} {
				c := threads(none, fmt.Sprintf("lock %d; die", home), fmt.Sprintf(q, home), fmt.Sprintf(r, home))
				c.Threads = append(c.Threads, model.ThreadSpec{Node: 0, Client: 2, Program: model.MustParseProgram(fmt.Sprintf(r, home))})
				add("lock whose holder dies", c)
			}
		}
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
	var all []Case
	for _, home := range []int{8, 9, 10} {
		stop := fmt.Sprintf("barrier %d", home)
		all = append(all,
			Case{"barrier between accesses", threads(two, "write 0; "+stop+"; read 1", "write 1; "+stop+"; read 0")},
			Case{"barrier passed twice", threads(three, stop+"; "+stop, stop+"; "+stop, stop+"; "+stop)},
			Case{"barrier with a cancelled arrival", threads(two, stop+" cancel 2; "+stop, stop+" cancel 1; "+stop)},
			Case{"barrier with a cancelled arrival", threads(three, stop+"; "+stop, stop+" cancel 1; "+stop, stop+" cancel 1; "+stop)},
		)
	}
	return all
}

// trees is barriers that are trees, in which one node at least only relays, at times: all arrive twice, some may be cancelled, and nodes are lost, leave or
// come at any point.
func (b Bound) trees() []Case {
	var all []Case
	const once, twice, cancelled = "barrier 9", "barrier 9; barrier 9", "barrier 9 cancel 1; barrier 9"
	add := func(family string, arity int, c model.Config, programs ...string) {
		c.TreeFrom, c.TreeArity, c.Duplicates = 2, arity, 0
		all = append(all, Case{family, threads(c, programs...)})
	}
	moving := func(nodes int, leave, join, crash []protocol.NodeID) model.Config {
		c := b.base(nodes)
		c.Leave, c.Join, c.Crash, c.Pages = leave, join, crash, 8
		return c
	}
	type ids = []protocol.NodeID
	three := b.base(3)
	add("barrier as a tree", 1, three, twice, twice, twice)
	add("barrier as a tree", 2, three, twice, twice, twice)
	add("barrier as a tree", 1, three, twice, cancelled, cancelled)
	add("barrier as a tree", 1, three, "barrier 9; barrier 10", "barrier 9; barrier 10", "barrier 9; barrier 10")
	add("barrier as a tree, a relay is lost", 1, moving(3, nil, nil, ids{1}), twice, "", twice)
	add("barrier as a tree, a relay is lost", 1, moving(3, nil, nil, ids{1}), twice, "", cancelled)
	add("barrier as a tree, one leaves or comes", 1, moving(3, ids{0}, nil, nil), "", twice, twice)
	add("barrier as a tree, one leaves or comes", 1, moving(3, ids{1}, nil, nil), twice, "", cancelled)
	add("barrier as a tree, one leaves or comes", 1, moving(3, nil, ids{1}, nil), twice, "", twice)
	if b == Short {
		return all
	}
	const four, fourTwice = "barrier 8", "barrier 8; barrier 8" // at home on the first of four nodes, too
	add("barrier as a tree", 1, b.base(4), fourTwice, fourTwice, fourTwice, fourTwice)
	add("barrier as a tree", 2, b.base(4), fourTwice, "barrier 8 cancel 1; barrier 8", fourTwice, fourTwice)
	add("barrier as a tree, a relay is lost", 1, moving(3, nil, nil, ids{1}), cancelled, "", cancelled)
	add("barrier as a tree, a relay is lost", 1, moving(4, nil, nil, ids{1}), fourTwice, "", "", "barrier 8 cancel 1; barrier 8")
	add("barrier as a tree, two relays are lost", 1, moving(4, nil, nil, ids{1, 2}), four, "", "", four)
	add("barrier as a tree, a relay is lost", 1, moving(4, nil, nil, ids{1}), four, "", four, four)
	add("barrier as a tree, a relay is lost", 2, moving(4, nil, nil, ids{1}), "", "", fourTwice, fourTwice)
	add("barrier as a tree, one leaves or comes", 1, moving(3, nil, ids{1}, nil), twice, "", cancelled)
	add("barrier as a tree, one leaves or comes", 1, moving(3, ids{1}, nil, ids{1}), twice, "", twice)
	lost := moving(4, nil, nil, ids{1}) // two programs of one node, so that a relay has several arrivals to put together
	lost.Threads = []model.ThreadSpec{{Node: 2, Client: 2, Program: model.MustParseProgram(four)}}
	add("barrier as a tree, a relay is lost", 1, lost, four, "", four, four)
	if b == Deep {
		add("barrier as a tree, two relays are lost", 1, moving(4, nil, nil, ids{1, 2}), fourTwice, "", "", fourTwice)
		add("barrier as a tree, a relay is lost", 1, moving(4, nil, nil, ids{2}), fourTwice, "", "", "barrier 8 cancel 1; barrier 8")
		add("barrier as a tree, two relays are lost", 1, moving(4, nil, nil, ids{1, 2}), fourTwice, "", "", "barrier 8 cancel 1; barrier 8")
	}
	return all
}

// prefetches is pages fetched on behalf of nobody, which holds must not make wait for ever.
func (b Bound) prefetches() []Case {
	var all []Case
	for _, p := range []string{"prefetch-read 0; read 0", "prefetch-write 0; write 0", "prefetch-read 0; prefetch-write 0; read 0", "prefetch-write 0"} {
		for _, q := range accesses(2, 0) {
			all = append(all,
				Case{"prefetch", threads(b.base(2), q, p)},
				Case{"prefetch", threads(b.base(3), q, p, "write 0")})
		}
	}
	return all
}

// names is memory that is bound, used, given up by all, and bound anew: nothing of its first life may be seen in the second. Page 0
// has its home where the names are kept, page 1 on the other node. Faults of the first life come late.
func (b Bound) names() []Case {
	base := b.base(2)
	base.Strays = base.Duplicates > 0
	var all []Case
	for _, p := range accesses(1, 0, 1) {
		for _, q := range accesses(1, 0, 1) {
			const again = "unbind 0; barrier 8; bind 0; "
			all = append(all,
				Case{"memory freed and bound anew", threads(base, "bind 0; barrier 7; "+p+"; "+again+q, "bind 0; barrier 7; "+q+"; "+again+p)},
				Case{"memory freed and bound anew", threads(base, "bind 0; barrier 7; write 0; write 1; "+again+q, "bind 0; barrier 7; prefetch-read 1; "+again+p)})
		}
	}
	return all
}

// crashes is a node that is lost at any point, and two of them.
func (b Bound) crashes() []Case {
	var all []Case
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
					all = append(all, Case{"3 nodes, 1 page, 2 accesses each, one node lost", threads(base(3, victim), p, q, r)})
				}
			}
		}
	}
	each := 1
	if b == Deep {
		each = 2
	}
	for _, p := range accesses(each, 2, 3) { // the home of page 2 has no program, page 3 is another's
		for _, q := range accesses(2, 2, 3) {
			all = append(all, Case{"2 nodes, 2 pages, one node lost", threads(base(3, 2), p, q)}, Case{"2 nodes, 2 pages, one node lost", threads(base(3, 0), p, q)})
		}
	}
	for _, victims := range [][]protocol.NodeID{{0, 1}, {0, 3}, {1, 2}} {
		for _, p := range accesses(1, 0) {
			for _, q := range accesses(1, 0) {
				all = append(all, Case{"4 nodes, 1 page, two of them lost", threads(base(4, victims...), p, q)})
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
				Case{"lock around a page, one node lost", threads(c, fmt.Sprintf("lock %d; write 0; unlock %[1]d", home), fmt.Sprintf("lock %d; write 0; unlock %[1]d", home), alone)})
		}
	}
	all = append(all, Case{"prefetch, one node lost", threads(base(3, 0), "prefetch-write 0; write 0", "prefetch-read 0; write 0", "read 0")},
		Case{"prefetch, one node lost", threads(base(3, 1), "prefetch-write 0; write 0", "prefetch-read 0; write 0", "read 0")})
	return all
}

// changes is nodes that leave when they are done and nodes that come, at any point, also beside one that is lost.
func (b Bound) changes() []Case {
	var all []Case
	base := func(nodes int, leave, join, crash []protocol.NodeID) model.Config {
		c := b.base(nodes)
		c.Leave, c.Join, c.Crash, c.Pages = leave, join, crash, 8
		if b < Deep {
			c.Duplicates = 0
		}
		return c
	}
	add := func(family string, c model.Config, programs ...string) {
		all = append(all, Case{family, threads(c, programs...)})
	}
	type ids = []protocol.NodeID
	two := accesses(2, 0)
	if b == Short {
		two = accesses(1, 0)
	}
	for _, p := range accesses(1, 0) {
		for _, q := range two {
			add("2 nodes, 1 page, one leaves", base(2, ids{0}, nil, nil), p, q)
			add("2 nodes, 1 page, one leaves", base(2, ids{1}, nil, nil), q, p)
		}
		for _, q := range accesses(1, 0) {
			for _, r := range accesses(1, 1) { // page 1 has its home where the node that comes is
				add("3 nodes, 2 pages, one comes", base(3, nil, ids{1}, nil), p+"; "+r, r, q)
				add("2 nodes, 2 pages, one comes and is lost", base(2, nil, ids{1}, ids{1}), p+"; "+r, r+"; "+q)
				add("3 nodes, 2 pages, one comes, one is lost", base(3, nil, ids{1}, ids{2}), p, r, r)
			}
			add("3 nodes, 1 page, one leaves", base(3, ids{0}, nil, nil), p, q, p)
			add("3 nodes, 1 page, one leaves", base(3, ids{1}, nil, nil), p, q, p)
			add("3 nodes, 1 page, one leaves, one is lost", base(3, ids{0}, nil, ids{2}), p, q, q)
			add("3 nodes, 1 page, one leaves, one comes", base(3, ids{0}, ids{2}, nil), p, "", q)
		}
	}
	for _, home := range []int{9, 10} {
		alone, shared := fmt.Sprintf("lock %d; unlock %[1]d", home), fmt.Sprintf("rlock %d; runlock %[1]d", home)
		dies := fmt.Sprintf("lock %d; die", home)
		for _, c := range []model.Config{base(3, ids{0}, nil, nil), base(3, ids{1}, nil, nil), base(3, nil, ids{1}, nil)} {
			add("lock, one leaves or comes", c, alone, alone, shared)
			add("lock, one leaves or comes", c, shared, alone, shared)
			add("lock whose holder dies, one leaves or comes", c, dies, shared, alone)
			add("lock around a page, one leaves or comes", c, fmt.Sprintf("lock %d; write 0; unlock %[1]d", home), alone, fmt.Sprintf("lock %d; write 0; unlock %[1]d", home))
		}
		stop := fmt.Sprintf("barrier %d", home)
		add("barrier, one leaves or comes", base(3, ids{0}, nil, nil), "", stop+"; "+stop, stop+"; "+stop)
		add("barrier, one leaves or comes", base(3, nil, ids{1}, nil), stop+"; "+stop, "", stop+"; "+stop)
		add("barrier with a cancelled arrival, one leaves or comes", base(3, ids{0}, nil, nil), "", stop+" cancel 1", stop+" cancel 1")
		add("barrier with a cancelled arrival, one leaves or comes", base(3, nil, ids{1}, nil), stop+" cancel 1", "", stop+" cancel 1")
	}
	const own = "lock 11; unlock 11" // its home is the node that comes; before it is that which is lost, and the other between the two
	add("lock, one is lost, one comes", base(3, nil, ids{2}, ids{0}), own, own+"; "+own, own)
	const again = "unbind 0; barrier 8; bind 0; "
	add("memory freed and bound anew, one leaves", base(3, ids{0}, nil, nil), "", "bind 0; barrier 7; write 0; "+again+"read 0", "bind 0; barrier 7; read 1; "+again+"read 0")
	add("memory freed and bound anew, one leaves", base(3, ids{2}, nil, nil), "", "bind 0; barrier 7; write 0; "+again+"read 0", "bind 0; barrier 7; read 1; unbind 0; barrier 8")
	return all
}

// replicas is replicated memory, and a node that is lost at any point.
func (b Bound) replicas() []Case {
	var all []Case
	base := func(nodes int, copies uint8, victims ...protocol.NodeID) model.Config {
		c := b.base(nodes)
		c.Crash, c.Pages, c.Replicas = victims, 8, copies
		if b < Deep {
			c.Duplicates = 0
		}
		return c
	}
	for _, victim := range []protocol.NodeID{0, 1, 2} { // the home, another, and whose commits are not looked at
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
	moving := func(nodes int, leave, join []protocol.NodeID, victim protocol.NodeID) model.Config {
		c := base(nodes, 1, victim)
		c.Leave, c.Join = leave, join
		return c
	}
	type ids = []protocol.NodeID
	add := func(family string, c model.Config, programs ...string) {
		all = append(all, Case{family, threads(c, programs...)})
	}
	for i, q := range accesses(1, 0) {
		for _, victim := range []protocol.NodeID{1, 2} { // who keeps a backup from then on, and who does not, or did
			add("3 nodes, 1 replicated page, one leaves, one is lost", moving(3, ids{0}, nil, victim), "write 0; commit", q)
			add("3 nodes, 1 replicated page, one leaves, one is lost", moving(3, ids{0}, nil, victim), "write 0", q)
			if b == Deep || b == Fixed && i == 0 {
				add("3 nodes, 1 replicated page, one leaves, one is lost", moving(3, ids{0}, nil, victim), "", q, "write 0; commit")
			}
		}
	}
	for i, q := range accesses(1, 1) {
		for _, victim := range []protocol.NodeID{0, 2} {
			c := moving(3, nil, ids{1}, victim) // page 1 has its home where the node comes
			add("3 nodes, 1 replicated page, one comes, one is lost", c, "write 1; commit", q)
			add("3 nodes, 1 replicated page, one comes, one is lost", c, "", "write 1; commit", q)
			if b == Deep || b == Fixed && i == 0 {
				add("3 nodes, 1 replicated page, one comes, one is lost", c, q, "", "write 1; commit")
			}
		}
	}
	for _, q := range accesses(1, 0) {
		add("2 nodes, 1 replicated page, one comes, the other is lost", moving(2, nil, ids{1}, 0), "write 0; commit", q)
		if b == Deep {
			add("3 nodes, 1 replicated page, one leaves, one comes, the other is lost", moving(3, ids{0}, ids{2}, 1), "write 0; commit", "", q)
		}
	}
	two := base(4, 1, 0, 1)
	all = append(all, Case{"4 nodes, 1 replicated page, two of them lost", threads(two, "write 0; commit", "read 0")})
	all = append(all, Case{"4 nodes, 1 replicated page, two of them lost", threads(two, "read 0", "write 0; commit")})
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

// Run explores cases on several goroutines, and calls report for each as it is done, one call at a time and in any order.
// maxStates is that of Explore.
func Run(cases []Case, workers, maxStates int, report func(Case, *Result)) {
	queue := make(chan Case)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for c := range queue {
				r := Explore(c.Config, maxStates)
				mu.Lock()
				report(c, r)
				mu.Unlock()
			}
		})
	}
	for _, c := range cases {
		queue <- c
	}
	close(queue)
	wg.Wait()
}
