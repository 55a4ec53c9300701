package modelcheck

import (
	"fmt"
	"slices"
	"strings"

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
	// Short takes seconds: a little of every family, without repeated faults.
	Short Bound = iota
	// Default is what go test explores: less than a minute on two cores. Plan says what of Full is
	// in it.
	Default
	// Full is what must pass before a change to the engine goes in.
	Full
	// Deep takes the better part of an hour and several GB.
	Deep
)

// ParseBound returns the bound of a name that String gives.
func ParseBound(name string) (Bound, error) {
	for b := Short; b <= Deep; b++ {
		if b.String() == name {
			return b, nil
		}
	}
	return 0, fmt.Errorf("no bound is called %q: use short, default, full or deep", name)
}

func (b Bound) String() string { return [...]string{"short", "default", "full", "deep"}[b] }

// base is a cluster with everything on that Bound allows.
func (b Bound) base(nodes int) model.Config {
	c := model.Config{Nodes: nodes, Pages: 16, HomeStripe: 1, Hold: 10, MaxHold: 100}
	if b >= Full {
		c.Duplicates = 1
	}
	return c
}

type ids = []protocol.NodeID

// cases are put together by a family.
type cases []Case

// add adds a case in which each of the first nodes has one program, but for those whose program is
// empty.
func (all *cases) add(family string, c model.Config, programs ...string) {
	*all = append(*all, Case{family, threads(c, programs...)})
}

// beside is a cluster with one more thread.
func beside(c model.Config, node protocol.NodeID, client protocol.ClientID, program string) model.Config {
	c.Threads = append(slices.Clone(c.Threads), model.ThreadSpec{Node: node, Client: client, Program: model.MustParseProgram(program)})
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
//
// A new family is a method here. It is called with Short, Full or Deep, never with Default: Plan
// makes that from Short and Full. So what is meant for the full bound only goes under "if b >=
// Full"; a family of one configuration of more than a million states is worth that.
func Suite(b Bound) []Case {
	var all cases
	all = append(all, b.twoNodesTwoPages()...)
	all = append(all, b.threeNodesOnePage()...)
	all = append(all, b.coarse()...)
	all = append(all, b.twoThreads()...)
	all = append(all, b.programs()...)
	all = append(all, b.locks()...)
	all = append(all, b.words()...)
	all = append(all, b.barriers()...)
	all = append(all, b.trees()...)
	all = append(all, b.prefetches()...)
	all = append(all, b.evictions()...)
	all = append(all, b.names()...)
	all = append(all, b.passings()...)
	all = append(all, b.multicasts()...)
	all = append(all, b.crashes()...)
	all = append(all, b.beginnings()...)
	all = append(all, b.minorities()...)
	all = append(all, b.changes()...)
	all = append(all, b.replicas()...)
	known := map[string]bool{} // what several loops come to is explored once
	return slices.DeleteFunc(all, func(c Case) bool {
		text := c.Config.String()
		twice := known[text]
		known[text] = true
		return twice
	})
}

// twoNodesTwoPages is every pair of programs of two accesses each. Home placements: each node is
// home of one page, one node of both, or a third node of both.
func (b Bound) twoNodesTwoPages() []Case {
	var all cases
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
			all.add(place.family, c, programs[0], programs[1])
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
		all.add("2 nodes, 2 pages, 3 accesses each", c, programs[0], programs[1])
	}
	return all
}

// A renaming calls the first two nodes, the two pages, or both, by each other's names. What is
// reached by two programs differs from what is reached by them renamed in names alone, if the roles
// are the same; so one of the two is explored.
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

// threeNodesOnePage is every triple of programs of two accesses each, with the home on one of the
// three nodes, or on a fourth.
func (b Bound) threeNodesOnePage() []Case {
	var all cases
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
					all.add(place.family, c, p, q, r)
				}
			}
		}
	}
	return all
}

// coarse is directories as in clusters of more than 128 nodes: of more than one copy a home knows
// only the group, and in the group are nodes without a copy, and some that are lost, have left or
// have not come yet.
func (b Bound) coarse() []Case {
	var all cases
	base := func(nodes, group int, leave, join, crash []protocol.NodeID) model.Config {
		c := b.base(nodes)
		c.ExactNodes, c.Pointers, c.GroupNodes = 1, 1, group
		c.Leave, c.Join, c.Crash, c.Pages = leave, join, crash, 8
		c.Duplicates = 0
		if b == Deep {
			c.Duplicates = 1
		}
		return c
	}
	programs := accesses(2, 3) // at home in the first of three nodes, in the last of four
	for i, p := range programs {
		for j, q := range programs[:i+1] {
			for _, r := range programs[:j+1] {
				all.add("3 nodes, 1 page, coarse copysets", base(3, 3, nil, nil, nil), p, q, r)
				all.add("4 nodes, 1 page, coarse copysets", base(4, 2, nil, nil, nil), p, q, r)
			}
		}
	}
	for _, p := range []string{"read 2", "read 2; write 2"} {
		for _, q := range []string{"read 2", "write 2"} {
			all.add("3 nodes, 1 page, coarse copysets, one is lost", base(3, 2, nil, nil, ids{1}), p, "", "read 2; write 2")
			all.add("3 nodes, 1 page, coarse copysets, one is lost", base(3, 2, nil, nil, ids{1}), p, q, "read 2; write 2")
			all.add("3 nodes, 1 page, coarse copysets, one leaves", base(3, 2, ids{1}, nil, nil), p, q, "read 2")
			all.add("3 nodes, 1 page, coarse copysets, one comes", base(3, 2, nil, ids{1}, nil), p, q, "read 2")
			all.add("3 nodes, 1 page, coarse copysets, one comes", base(3, 3, nil, ids{1}, nil), p, "", "read 2; write 2")
		}
	}
	// Those who leave have copies, and one who has none stays in a group with one of them. The page
	// is at home at the fourth, in a group with the other.
	for _, home := range []string{"", "read 3", "write 3"} {
		for _, mate := range []string{"", "read 3", "write 3"} {
			if b < Full && home != "" && mate != "" {
				continue
			}
			c := threads(base(4, 2, ids{0, 2}, nil, nil), "write 3", "", "read 3")
			c.Before, c.Prompt = []int{0, 1}, true
			all.add("4 nodes, 1 page, coarse copysets, two leave", *c, "", mate, "", home)
		}
	}
	return all
}

// twoThreads is nodes with two threads each, of one program or of two, on one page.
func (b Bound) twoThreads() []Case {
	var all cases
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

// programs is several programs on one node, each with page-table entries of its own, whose access
// is taken away step by step; one of them may die, or be expelled and live.
func (b Bound) programs() []Case {
	var all cases
	lost := func(node protocol.NodeID) func(*model.Config) {
		return func(c *model.Config) { c.Crash, c.Pages = []protocol.NodeID{node}, 8 }
	}
	add := func(family string, nodes int, change func(*model.Config), others []string, first ...string) {
		c := b.base(nodes)
		c.Spaces, c.Duplicates = true, 0
		if change != nil {
			change(&c)
		}
		if b == Deep {
			c.Duplicates = 1
		}
		for i, p := range first {
			// the programs of node 0; after a slash, what another thread of the same program does
			for p := range strings.SplitSeq(p, " / ") {
				c.Threads = append(c.Threads, model.ThreadSpec{Node: 0, Client: protocol.ClientID(i + 1), Program: model.MustParseProgram(p)})
			}
		}
		for i, p := range others {
			c.Threads = append(c.Threads, model.ThreadSpec{Node: protocol.NodeID(i + 1), Client: 1, Program: model.MustParseProgram(p)})
		}
		all = append(all, Case{family, &c})
	}
	for _, page := range []uint64{0, 1} { // at home on the node with the programs, and on the other
		for _, far := range accesses(2, page) {
			for _, near := range accesses(1, page) {
				write := fmt.Sprintf("write %d", page)
				add("2 nodes, 1 page, two programs on one of them", 2, nil, []string{far}, write, near)
				add("2 nodes, 1 page, a program dies", 2, nil, []string{far}, write+" / die", near)
				add("2 nodes, 1 page, a program is expelled", 2, nil, []string{far}, write+"; "+write+" / expel", near)
			}
			if b >= Full {
				for _, near := range accesses(2, page) {
					add("2 nodes, 1 page, two programs on one of them", 2, nil, []string{far}, fmt.Sprintf("write %d; write %[1]d", page), near)
				}
			}
		}
	}
	for _, node := range []protocol.NodeID{1, 2} {
		add("3 nodes, 1 page, a program is expelled, one node lost", 3, lost(node), []string{"write 0", "read 0"}, "write 0; write 0 / expel")
	}
	if b >= Full {
		for _, node := range []protocol.NodeID{1, 2} {
			add("3 nodes, 1 page, a program is expelled, one node lost", 3, lost(node), []string{"write 0; read 0", "write 0"}, "write 0; write 0 / expel")
			if b == Deep {
				add("3 nodes, 1 page, a program is expelled, one node lost", 3, lost(node), []string{"write 0; read 0", "write 0"}, "write 0; write 0 / expel", "read 0")
			}
		}
		add("3 nodes, 1 page, a program is expelled", 3, nil, []string{"write 1", "read 1"}, "write 1; write 1 / expel", "read 1")
		add("2 nodes, 2 pages, a program is expelled", 2, nil, []string{"write 0; write 1"}, "write 1; write 0 / expel", "read 1")
	}
	return all
}

// prefetches is pages fetched on behalf of nobody, which holds must not make wait for ever.
func (b Bound) prefetches() []Case {
	var all cases
	for _, p := range []string{"prefetch-read 0; read 0", "prefetch-write 0; write 0", "prefetch-read 0; prefetch-write 0; read 0", "prefetch-write 0"} {
		for _, q := range accesses(2, 0) {
			all = append(all,
				Case{"prefetch", threads(b.base(2), q, p)},
				Case{"prefetch", threads(b.base(3), q, p, "write 0")})
		}
	}
	return all
}

// tightNames is a region with room for one name: who asks for it while it is being freed waits, and
// who asks while somebody uses it is refused. Programs end with what they have, give it back, or
// give up waiting, also while others come and go.
func (b Bound) tightNames() []Case {
	var all cases
	tight := func(nodes int, leave, join, crash []protocol.NodeID) model.Config {
		c := b.base(nodes)
		c.Pages, c.Duplicates, c.Leave, c.Join, c.Crash = 2, 0, leave, join, crash
		return c
	}
	add := func(family string, c model.Config, dying []protocol.NodeID, programs ...string) {
		config := threads(c, programs...)
		for _, n := range dying { // the client of the node's first thread ends at any time
			config.Threads = append(config.Threads, model.ThreadSpec{Node: n, Client: 1, Program: model.MustParseProgram("die")})
		}
		all = append(all, Case{family, config})
	}
	const dies, one, two = "bind 0; die", "bind 0; unbind 0", "bind 2; unbind 2"
	const perhaps, again = "bind 2 cancel 1; unbind 2", "bind 2 cancel 2; unbind 2"
	for _, p := range []string{dies, one, "bind 0; unbind 0; bind 0"} {
		for _, q := range []string{one, two, again} {
			add("memory asked for while it is freed", tight(2, nil, nil, nil), nil, p, q)
			add("memory asked for while it is freed", tight(2, nil, nil, nil), nil, q, p)
			add("memory asked for while it is freed", tight(3, nil, nil, nil), nil, p, q, two)
		}
	}
	for _, n := range []protocol.NodeID{0, 1} {
		add("memory asked for while it is freed", tight(2, nil, nil, nil), ids{n}, perhaps, "bind 0 cancel 1; unbind 0")
	}
	if b == Short {
		return all
	}
	const moving = "memory asked for while it is freed, one leaves, comes or is lost"
	add(moving, tight(3, ids{2}, nil, nil), ids{1}, one, perhaps)
	add(moving, tight(3, nil, ids{2}, nil), ids{1}, one, perhaps)
	add(moving, tight(3, nil, nil, ids{2}), ids{1}, one, perhaps)
	add(moving, tight(3, ids{0}, nil, nil), ids{1}, "", perhaps, dies)
	add(moving, tight(3, nil, nil, ids{2}), nil, dies, two, "bind 0")
	// and the program lives on
	add(moving, tight(3, nil, nil, ids{2}), nil, "bind 0; unbind 0", perhaps)
	add(moving, tight(3, ids{0}, nil, nil), nil, "", perhaps)
	return all
}

// evictions is nodes without room for a page: copies that nobody is told are gone, and pages that
// are offered to others, which take or decline them.
func (b Bound) evictions() []Case {
	var all cases
	one := []string{"read 1; evict 1", "write 1; evict 1", "read 1; evict 1; read 1", "write 1; evict 1; read 1"}
	if b >= Full {
		one = append(one, "read 1; evict 1; write 1", "write 1; evict 1; write 1", "read 1; evict 1; read 1; evict 1")
	}
	two := b.base(2)
	for i, p := range one {
		for _, q := range slices.Concat(accesses(2, 1), one[:i+1]) { // at home in node 1
			all.add("2 nodes, 1 page, evicted", two, p, q)
			all.add("2 nodes, 1 page, evicted", two, q, p)
		}
	}
	three := b.base(3)
	three.Duplicates = 0
	for _, p := range one {
		for _, q := range []string{"read 1", "write 1", "read 1; evict 1; read 1"} {
			for _, r := range []string{"read 1", "write 1; evict 1"} {
				all.add("3 nodes, 1 page, evicted", three, q, r, p)
			}
			// the home declines
			declined := strings.ReplaceAll(p+"|"+q, " 1", " 2")
			first, second, _ := strings.Cut(declined, "|")
			all.add("3 nodes, 1 page, evicted, no room at home", three, first, second, "read 2")
		}
	}
	// asked for again and again, of an owner that is not the home
	all.add("3 nodes, 1 page, evicted, no room at home", three, "write 2", "read 2; evict 2; read 2; evict 2; read 2", "")
	// the owner leaves, and who reads meanwhile becomes the owner
	for _, home := range []string{"", "read 1"} {
		c := three
		c.Pages, c.Leave, c.Before = 8, ids{1}, []int{1}
		all.add("3 nodes, 1 page, evicted, the owner leaves", c, "read 1; evict 1", "write 1", home)
	}
	for _, change := range []struct {
		family string
		set    func(*model.Config)
	}{
		{"3 nodes, 1 page, evicted, one is lost", func(c *model.Config) { c.Crash = ids{2} }},
		{"3 nodes, 1 page, evicted, one leaves", func(c *model.Config) { c.Leave = ids{1} }},
		{"3 nodes, 1 page, evicted, one comes", func(c *model.Config) { c.Join = ids{1} }},
	} {
		c := three
		c.Pages = 8
		change.set(&c)
		for _, p := range one[:2] {
			all.add(change.family, c, p, "", "read 1; evict 1; read 1")
			all.add(change.family, c, p, "", "write 1; evict 1")
			if b == Deep {
				all.add(change.family, c, p, "read 1; evict 1", "write 1")
			}
		}
	}
	coarse := b.base(3)
	coarse.Duplicates, coarse.ExactNodes, coarse.Pointers, coarse.GroupNodes = 0, 1, 1, 2
	for _, p := range one {
		all.add("3 nodes, 1 page, evicted, coarse copysets", coarse, p, "read 1; evict 1", "read 1")
		all.add("3 nodes, 1 page, evicted, coarse copysets", coarse, p, "write 1", "read 1; evict 1; read 1")
	}
	return all
}
