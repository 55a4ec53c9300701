package simulator

import (
	"math/rand/v2"
	"slices"

	"dsmd/protocol"
	"dsmd/protocol/model"
)

// Profile says what kind of cluster Generate makes. All counts are per run unless they say
// otherwise.
type Profile struct {
	Name    string
	Nodes   int // 0: 2 to 64, as the seed will have it
	Threads int // on each node
	Ops     int // of each thread, about
	Pages   uint64
	Writes  int // percent of the accesses
	// Hot is the percentage of accesses that go to the first page.
	Hot int
	// Sections, Prefetches are the percentages of operations that are lock sections, and
	// prefetches.
	Sections, Prefetches int
	Locks                int
	// Evictions is the percentage of operations after which the node has no room for a page.
	Evictions int
	Rounds    int // barriers that all threads pass, but for those of clients that die
	// Deaths is how many nodes have one more client, of two threads, that dies in the middle of its
	// work.
	Deaths int
	// Cancels bounds how often one wait may be cancelled.
	Cancels uint8
	// Losses is how many nodes are lost, none of them before the first 2 milliseconds are over.
	Losses int
	// Anew: lost pages begin anew on all nodes but each third.
	Anew bool
	// Leaves and Joins are how many nodes leave when their programs are done, which is soon, and
	// how many come.
	Leaves, Joins int
	// Cut is how many nodes are cut off, and live on.
	Cut int
	// Together: those that leave do so at the same time, after all losses, and some pages are
	// theirs alone.
	Together bool
	// Coarse: directories are as in clusters of more than 128 nodes.
	Coarse bool
	// Replicas is how many lost nodes all memory survives, and Commits the percentage of operations
	// that are commits; each lock section ends with one, too.
	Replicas uint8
	Commits  int
	// Trees: barriers are trees, with one node to three below each.
	Trees bool
	// Multicasts: with Trees, a page goes to all who wait after each new reader.
	Multicasts bool
	// Folded: what is brought to barriers is added up.
	Folded bool
	// Words: locks are published on control pages.
	Words bool
	// Names: programs bind names and give them up, in a region with room for one, and do nothing
	// else.
	Names bool
	// Spaces: programs of a node have page-table entries of their own, and access is taken away
	// step by step. Expelled is how many nodes have one more client, of two threads, that is
	// expelled in the middle of its work, and lives.
	Spaces   bool
	Expelled int
	// Light: nothing is repeated and no thread stalls, for clusters that are large enough without.
	Light bool
}

// Profiles are the clusters that the tests run.
func Profiles() []Profile {
	return []Profile{
		{Name: "pair", Nodes: 2, Threads: 2, Ops: 150, Pages: 3, Writes: 50},
		{Name: "mixed", Nodes: 8, Threads: 2, Ops: 60, Pages: 12, Writes: 40, Hot: 20, Sections: 10, Prefetches: 10, Locks: 3, Rounds: 3, Cancels: 1},
		{Name: "hot page, many readers", Nodes: 24, Threads: 2, Ops: 40, Pages: 4, Writes: 5, Hot: 80},
		{Name: "hot page, many writers", Nodes: 12, Threads: 2, Ops: 25, Pages: 2, Writes: 80, Hot: 90},
		{Name: "locks and deaths", Nodes: 8, Threads: 2, Ops: 40, Pages: 4, Writes: 40, Sections: 50, Locks: 2, Deaths: 6, Cancels: 2},
		{Name: "locks by words", Nodes: 4, Threads: 3, Ops: 60, Pages: 6, Writes: 50, Sections: 70, Locks: 6, Deaths: 3, Cancels: 1, Words: true},
		{Name: "locks by words, losses", Nodes: 6, Threads: 2, Ops: 60, Pages: 6, Writes: 50, Sections: 60, Locks: 4, Deaths: 3, Cancels: 1, Losses: 2, Leaves: 1, Joins: 1, Words: true},
		{Name: "cut off", Nodes: 6, Threads: 2, Ops: 120, Pages: 10, Writes: 40, Hot: 20, Sections: 25, Prefetches: 10, Locks: 4, Cancels: 1, Cut: 2},
		{Name: "cut off, words", Nodes: 2, Threads: 3, Ops: 300, Pages: 3, Writes: 20, Sections: 95, Locks: 8, Cancels: 1, Cut: 1, Words: true},
		{Name: "cut off, words, losses", Nodes: 9, Threads: 3, Ops: 80, Pages: 12, Writes: 40, Sections: 50, Locks: 12, Cancels: 1, Cut: 3, Losses: 1, Leaves: 1, Joins: 1, Words: true},
		{Name: "several programs", Nodes: 4, Threads: 4, Ops: 60, Pages: 6, Writes: 50, Hot: 30, Sections: 10, Prefetches: 10, Locks: 3, Deaths: 3, Expelled: 6, Spaces: true},
		{Name: "several programs, losses", Nodes: 6, Threads: 3, Ops: 60, Pages: 8, Writes: 50, Hot: 30, Sections: 15, Prefetches: 5, Locks: 3, Deaths: 3, Expelled: 6, Losses: 2, Leaves: 1, Joins: 1, Spaces: true},
		{Name: "several programs, replicas", Nodes: 5, Threads: 3, Ops: 60, Pages: 6, Writes: 50, Hot: 20, Sections: 15, Prefetches: 5, Locks: 3, Deaths: 2, Expelled: 5, Losses: 1, Replicas: 1, Commits: 15, Spaces: true},
		{Name: "barriers", Nodes: 6, Threads: 2, Ops: 40, Pages: 8, Writes: 40, Rounds: 8, Cancels: 2},
		{Name: "barriers that add up", Nodes: 6, Threads: 2, Ops: 40, Pages: 8, Writes: 40, Rounds: 8, Cancels: 2, Folded: true},
		{Name: "barriers, leaves, joins and losses", Nodes: 8, Threads: 2, Ops: 120, Pages: 6, Writes: 30, Rounds: 40, Cancels: 2, Losses: 4, Leaves: 1, Joins: 1, Folded: true},
		{Name: "64 nodes", Nodes: 64, Threads: 1, Ops: 25, Pages: 32, Writes: 30, Hot: 20, Sections: 5, Prefetches: 5, Locks: 4, Rounds: 2, Cancels: 1, Deaths: 8},
		{Name: "1024 nodes", Nodes: 1024, Threads: 1, Ops: 3, Pages: 4, Writes: 10, Rounds: 1, Light: true},
		{Name: "losses", Nodes: 6, Threads: 2, Ops: 80, Pages: 10, Writes: 40, Hot: 20, Sections: 25, Prefetches: 10, Locks: 3, Cancels: 1, Losses: 3},
		{Name: "losses and deaths", Nodes: 12, Threads: 2, Ops: 50, Pages: 6, Writes: 50, Hot: 40, Sections: 40, Locks: 2, Deaths: 8, Losses: 2},
		{Name: "many losses", Nodes: 32, Threads: 1, Ops: 60, Pages: 24, Writes: 40, Sections: 15, Locks: 4, Losses: 12},
		{Name: "losses, pages begin anew", Nodes: 8, Threads: 2, Ops: 80, Pages: 10, Writes: 40, Hot: 20, Sections: 15, Prefetches: 10, Locks: 3, Cancels: 1, Losses: 4, Anew: true},
		{Name: "no room, replicas, leaves, joins and losses, pages begin anew", Nodes: 10, Threads: 2, Ops: 80, Pages: 10, Writes: 50, Sections: 15, Prefetches: 5, Locks: 3, Deaths: 3, Losses: 4, Leaves: 2, Joins: 2, Replicas: 1, Commits: 10, Evictions: 15, Spaces: true, Anew: true},
		{Name: "leaves and joins", Nodes: 8, Threads: 2, Ops: 80, Pages: 10, Writes: 40, Hot: 20, Sections: 25, Prefetches: 10, Locks: 3, Cancels: 1, Leaves: 3, Joins: 2},
		{Name: "leaves, joins and barriers", Nodes: 6, Threads: 1, Ops: 80, Pages: 6, Writes: 50, Sections: 10, Locks: 2, Rounds: 12, Cancels: 2, Leaves: 1, Joins: 2},
		{Name: "leaves, joins and losses", Nodes: 12, Threads: 2, Ops: 60, Pages: 12, Writes: 40, Sections: 25, Locks: 3, Deaths: 3, Losses: 3, Leaves: 3, Joins: 4},
		{Name: "replicas", Nodes: 6, Threads: 2, Ops: 80, Pages: 8, Writes: 50, Hot: 20, Sections: 25, Prefetches: 5, Locks: 3, Losses: 2, Replicas: 2, Commits: 15},
		{Name: "too few replicas", Nodes: 8, Threads: 2, Ops: 60, Pages: 10, Writes: 50, Sections: 15, Locks: 3, Losses: 4, Replicas: 1, Commits: 10},
		{Name: "replicas, leaves and joins", Nodes: 8, Threads: 2, Ops: 80, Pages: 8, Writes: 50, Hot: 20, Sections: 25, Locks: 3, Losses: 2, Leaves: 3, Joins: 2, Replicas: 2, Commits: 15},
		{Name: "trees", Nodes: 12, Threads: 2, Ops: 30, Pages: 6, Writes: 30, Rounds: 8, Cancels: 3, Trees: true},
		{Name: "trees and losses", Nodes: 12, Threads: 2, Ops: 120, Pages: 6, Writes: 30, Rounds: 24, Cancels: 1, Losses: 4, Trees: true, Folded: true},
		{Name: "trees, leaves, joins and losses", Nodes: 14, Threads: 1, Ops: 120, Pages: 6, Writes: 30, Rounds: 24, Cancels: 2, Losses: 2, Leaves: 2, Joins: 3, Trees: true},
		{Name: "copies through trees", Nodes: 16, Threads: 1, Ops: 60, Pages: 3, Writes: 6, Hot: 70, Prefetches: 5, Evictions: 10, Trees: true},
		{Name: "pages and copies through trees", Nodes: 16, Threads: 1, Ops: 60, Pages: 3, Writes: 12, Hot: 70, Prefetches: 5, Evictions: 10, Trees: true, Multicasts: true},
		{Name: "copies through trees, leaves, joins and losses", Nodes: 14, Threads: 1, Ops: 150, Pages: 4, Writes: 8, Hot: 50, Prefetches: 5, Losses: 2, Leaves: 2, Joins: 2, Evictions: 10, Trees: true, Coarse: true},
		{Name: "pages and copies through trees, leaves, joins and losses", Nodes: 14, Threads: 1, Ops: 150, Pages: 4, Writes: 12, Hot: 50, Prefetches: 5, Losses: 3, Leaves: 2, Joins: 2, Evictions: 10, Trees: true, Coarse: true, Anew: true, Multicasts: true},
		{Name: "names", Nodes: 4, Threads: 2, Ops: 20, Locks: 1, Deaths: 6, Cancels: 1, Names: true},
		{Name: "names, leaves, joins and losses", Nodes: 6, Threads: 2, Ops: 60, Locks: 1, Deaths: 6, Cancels: 1, Losses: 1, Leaves: 1, Joins: 2, Names: true},
		{Name: "coarse copysets, leaves, joins and losses", Nodes: 8, Threads: 2, Ops: 60, Pages: 8, Writes: 20, Hot: 20, Sections: 10, Locks: 2, Losses: 2, Leaves: 2, Joins: 2, Coarse: true},
		{Name: "several leave together", Nodes: 9, Threads: 2, Ops: 60, Pages: 8, Writes: 30, Sections: 10, Prefetches: 10, Locks: 2, Losses: 1, Leaves: 4, Joins: 1, Together: true, Coarse: true},
		{Name: "replicas, several leave together", Nodes: 9, Threads: 2, Ops: 60, Pages: 8, Writes: 50, Sections: 15, Locks: 2, Losses: 2, Leaves: 3, Joins: 1, Replicas: 2, Commits: 15, Together: true, Coarse: true},
		{Name: "nearly all leave", Nodes: 8, Threads: 2, Ops: 60, Pages: 8, Writes: 50, Sections: 15, Prefetches: 10, Locks: 2, Deaths: 4, Leaves: 7, Together: true},
		{Name: "130 nodes, losses", Nodes: 130, Threads: 1, Ops: 12, Pages: 4, Writes: 15, Hot: 40, Losses: 3, Light: true},
		{Name: "135 nodes, leaves, joins and losses", Nodes: 135, Threads: 1, Ops: 12, Pages: 4, Writes: 15, Hot: 40, Losses: 1, Leaves: 20, Joins: 1, Together: true, Light: true},
		{Name: "no room", Nodes: 6, Threads: 2, Ops: 100, Pages: 12, Writes: 30, Hot: 20, Sections: 10, Prefetches: 10, Locks: 3, Rounds: 3, Cancels: 1, Evictions: 30},
		{Name: "no room, leaves, joins and losses", Nodes: 10, Threads: 2, Ops: 80, Pages: 12, Writes: 30, Sections: 10, Prefetches: 5, Locks: 3, Deaths: 3, Losses: 2, Leaves: 2, Joins: 2, Evictions: 30},
		{Name: "no room, replicas, losses", Nodes: 6, Threads: 2, Ops: 80, Pages: 8, Writes: 50, Hot: 20, Sections: 15, Locks: 3, Losses: 2, Leaves: 1, Replicas: 2, Commits: 15, Evictions: 25},
		{Name: "no room, cut off, coarse copysets", Nodes: 7, Threads: 2, Ops: 100, Pages: 10, Writes: 25, Hot: 20, Sections: 10, Locks: 3, Cut: 2, Coarse: true, Evictions: 30},
		{Name: "no room, several programs", Nodes: 5, Threads: 4, Ops: 60, Pages: 8, Writes: 40, Hot: 30, Sections: 10, Locks: 3, Deaths: 3, Expelled: 5, Spaces: true, Evictions: 25},
		{Name: "any size", Threads: 2, Ops: 30, Pages: 10, Writes: 40, Hot: 30, Sections: 10, Prefetches: 10, Locks: 3, Rounds: 2, Deaths: 4, Cancels: 1},
	}
}

// Generate makes a run from a profile and a seed.
func Generate(p Profile, seed uint64) Options {
	g := generator{Profile: p, random: rand.New(rand.NewPCG(seed, 0x9e0e7a7e))}
	if g.Nodes == 0 {
		g.Nodes = 2 + g.random.IntN(63)
	}
	c := &model.Config{
		// turns: as in daemons, which few of these programs bring to take any, or soon
		ContentionThreshold: int(seed % 4),
		Nodes:               g.Nodes, Pages: 4 * max(p.Pages, 1), HomeStripe: 1 + g.random.Uint64N(2), Hold: 50, MaxHold: 20_000,
		Duplicates: 2, Strays: true, Replicas: p.Replicas, Sync: model.Sync{Words: p.Words, Folded: p.Folded}, Spaces: p.Spaces,
	}
	o := Options{Seed: seed, Config: c, Deadline: 20_000_000, Repeat: 20, Stall: 10, StallMax: 1000}
	o.InjectUntil = 5000 + Micros(g.random.Uint64N(20_000)) // most runs last longer
	g.shape(&o)
	g.strike(&o)
	g.move(&o)
	if g.random.IntN(2) == 0 {
		o.Start = ^protocol.Time(0) - 20_000 // the nodes' clocks wrap 20 ms later
	}
	g.populate(c)
	return o
}

// shape sets what makes the cluster of a profile special, and does not depend on chance.
func (g *generator) shape(o *Options) {
	c, seed := o.Config, o.Seed
	if g.Names {
		c.Pages, c.HomeStripe = boundPages, 1
	}
	if g.Trees {
		c.TreeFrom, c.TreeArity = 2, 1+int(seed%3)
	}
	if g.Multicasts {
		c.ManyReaders = 1
	}
	if g.Coarse {
		c.ExactNodes, c.Pointers, c.GroupNodes = 2, 1+int(seed%2), 2+int(seed%3)
	}
	if g.Light {
		c.Duplicates, c.Strays, o.Repeat, o.Stall = 0, false, 0, 0
		o.Deadline *= 10
	}
}

// strike chooses which nodes are lost and cut off, and when.
func (g *generator) strike(o *Options) {
	c := o.Config
	if g.Losses > 0 {
		for _, n := range g.mortals()[:g.Losses] {
			c.Crash = append(c.Crash, protocol.NodeID(n))
			o.Crashes = append(o.Crashes, Crash{protocol.NodeID(n), 2000 + Micros(g.random.Uint64N(20_000))})
		}
	}
	for n := 0; g.Anew && n < g.Nodes; n++ {
		if (uint64(n)+o.Seed)%3 != 0 {
			c.Anew = append(c.Anew, protocol.NodeID(n))
		}
	}
	if g.Cut > 0 {
		alive := slices.DeleteFunc(g.mortals(), func(n int) bool { return slices.Contains(c.Crash, protocol.NodeID(n)) })
		for _, n := range alive[:g.Cut] {
			c.Cut = append(c.Cut, protocol.NodeID(n))
		}
		c.Return = o.Seed%2 == 0
		o.Cut = 2000 + Micros(g.random.Uint64N(15_000))
	}
}

// populate gives every node its threads, and some nodes programs that end.
func (g *generator) populate(c *model.Config) {
	for n := range g.Nodes {
		for i := range g.Threads {
			program := g.program()
			leaves := slices.Contains(c.Leave, protocol.NodeID(n))
			if leaves || g.Rounds > 0 && slices.Contains(c.Crash, protocol.NodeID(n)) {
				program = g.short()
			}
			if leaves && g.Together {
				program = g.own(program, c.Leave[0] == protocol.NodeID(n))
			}
			client := protocol.ClientID(1 + g.random.IntN(2))
			if g.Names { // a program binds a name once
				client = protocol.ClientID(1 + i)
			}
			c.Threads = append(c.Threads, model.ThreadSpec{Node: protocol.NodeID(n), Client: client, Program: program})
		}
	}
	for i := range g.Deaths {
		node := protocol.NodeID(i % g.Nodes)
		worker, killer := g.mortal()
		client := protocol.ClientID(3 + i)
		c.Threads = append(c.Threads,
			model.ThreadSpec{Node: node, Client: client, Program: worker},
			model.ThreadSpec{Node: node, Client: client, Program: killer})
	}
	for i := range g.Expelled {
		node, client := protocol.NodeID(i%g.Nodes), protocol.ClientID(1000+i)
		worker, expeller := g.revenant()
		c.Threads = append(c.Threads,
			model.ThreadSpec{Node: node, Client: client, Program: worker},
			model.ThreadSpec{Node: node, Client: client, Program: expeller})
	}
}

// mortals are the nodes that may be lost, in any order: not the home of a barrier that is a tree,
// with which it would be lost who has passed; and where programs do nothing but bind names not the
// allocator, with which it would be lost what is free.
func (g *generator) mortals() []int {
	return slices.DeleteFunc(g.random.Perm(g.Nodes), func(n int) bool { return g.isRoot(n) || g.Names && n == 0 })
}

// isRoot is whether a node is the home of a barrier that is a tree.
func (g *generator) isRoot(n int) bool { return g.Trees && g.Rounds > 0 && n == barrierNumber%g.Nodes }

// move chooses who comes and who leaves: among those that are not lost, and never node 0, so that
// somebody is there.
func (g *generator) move(o *Options) {
	c := o.Config
	if g.Leaves+g.Joins == 0 {
		return
	}
	together := Micros(afterLosses)
	for _, n := range g.random.Perm(g.Nodes) {
		id := protocol.NodeID(n)
		switch {
		case n == 0 || slices.Contains(c.Crash, id), slices.Contains(c.Cut, id), g.Losses > 0 && g.isRoot(n):
			continue
		case len(c.Join) < g.Joins:
			c.Join = append(c.Join, id)
		case len(c.Leave) < g.Leaves:
			c.Leave = append(c.Leave, id)
		default:
			continue
		}
		at := 1000 + Micros(g.random.Uint64N(20_000))
		if g.Together && slices.Contains(c.Leave, id) {
			at = together
		}
		o.Moves = append(o.Moves, Move{id, at})
	}
	for _, x := range o.Crashes { // some are lost while they leave
		if g.Leaves > 0 && !g.Together && g.random.IntN(2) == 0 {
			c.Leave = append(c.Leave, x.Node)
			o.Moves = append(o.Moves, Move{x.Node, max(1000, x.At-Micros(g.random.Uint64N(min(6000, uint64(x.At)))))})
		}
	}
}

// afterLosses is when the last node is lost, and the others know.
const afterLosses = 22_000 + LearnWithin

// own puts behind a program pages that only those touch who leave together. One of them writes to
// the pages, and all share them.
func (g *generator) own(p model.Program, writes bool) model.Program {
	for i := range uint64(3) {
		kind := model.OpRead
		if writes {
			kind = model.OpWrite
		}
		p = append(p, model.Op{Kind: kind, Number: g.Pages + i})
	}
	return p
}

// short is the program of a node that leaves before the others are done, and waits for nobody.
func (g *generator) short() model.Program {
	var p model.Program
	for range g.Ops / 8 {
		p = g.work(p)
	}
	return p
}

type generator struct {
	Profile
	random *rand.Rand
}

// boundPages is how many pages a name of the model has.
const boundPages = 2

// barrierNumber is apart from the numbers of locks, which are small.
const barrierNumber = 1000

// program is rounds of work with a barrier behind each.
func (g *generator) program() model.Program {
	var p model.Program
	for range max(g.Rounds, 1) {
		for range g.Ops / max(g.Rounds, 1) {
			p = g.work(p)
		}
		if g.Rounds > 0 {
			p = append(p, model.Op{Kind: model.OpBarrier, Number: barrierNumber, Cancels: g.cancels()})
		}
	}
	return p
}

// work appends one access, prefetch, or lock section.
func (g *generator) work(p model.Program) model.Program {
	if g.Names {
		name := boundPages * g.random.Uint64N(3)
		return append(p, model.Op{Kind: model.OpBind, Number: name, Cancels: 2 * g.cancels()}, model.Op{Kind: model.OpUnbind, Number: name})
	}
	switch dice := g.random.IntN(100); {
	case dice < g.Sections:
		return g.section(p)
	case dice >= 100-g.Commits:
		return append(p, model.Op{Kind: model.OpCommit})
	case dice >= 100-g.Commits-g.Evictions:
		return append(p, model.Op{Kind: model.OpEvict, Number: g.page()})
	case dice < g.Sections+g.Prefetches:
		kind := model.OpPrefetchRead
		if g.random.IntN(2) == 0 {
			kind = model.OpPrefetchWrite
		}
		return append(p, model.Op{Kind: kind, Number: g.page()})
	default:
		return g.access(p, g.page())
	}
}

func (g *generator) access(p model.Program, page uint64) model.Program {
	kind := model.OpRead
	if g.random.IntN(100) < g.Writes {
		kind = model.OpWrite
	}
	return append(p, model.Op{Kind: kind, Number: page})
}

// section appends accesses under a lock.
func (g *generator) section(p model.Program) model.Program {
	lock, unlock := model.OpLock, model.OpUnlock
	if g.random.IntN(3) == 0 {
		lock, unlock = model.OpRLock, model.OpRUnlock
	}
	if g.Deaths > 0 && lock == model.OpLock && g.random.IntN(3) == 0 {
		lock = model.OpIntact
	}
	number := g.random.Uint64N(uint64(g.Locks))
	p = append(p, model.Op{Kind: lock, Number: number, Cancels: g.cancels()})
	for range g.random.IntN(3) {
		p = g.access(p, g.page())
	}
	if g.Replicas > 0 {
		p = append(p, model.Op{Kind: model.OpCommit})
	}
	return append(p, model.Op{Kind: unlock, Number: number})
}

func (g *generator) cancels() uint8 {
	if g.Cancels == 0 || g.random.IntN(4) != 0 {
		return 0
	}
	return g.Cancels
}

func (g *generator) page() uint64 {
	if g.random.IntN(100) < g.Hot {
		return 0
	}
	return g.random.Uint64N(g.Pages)
}

// revenant is the two threads of a client that is expelled: one works until nothing it does goes
// through any more.
func (g *generator) revenant() (worker, expeller model.Program) {
	for range 60 {
		worker = g.access(worker, g.page())
	}
	for range 1 + g.random.IntN(10) {
		expeller = g.access(expeller, g.page())
	}
	return worker, append(expeller, model.Op{Kind: model.OpExpel})
}

// mortal is the two threads of a client that dies: one works for longer than the other lets it.
func (g *generator) mortal() (worker, killer model.Program) {
	if g.Names {
		for range g.Ops {
			worker = g.work(worker)
		}
		for range 2 * (1 + g.random.IntN(40)) {
			killer = append(killer, model.Op{Kind: model.OpLock, Number: 0}, model.Op{Kind: model.OpUnlock, Number: 0})
		}
		return worker, append(killer, model.Op{Kind: model.OpDie})
	}
	for range 1 + g.random.IntN(20) {
		number := g.random.Uint64N(uint64(g.Locks))
		worker = append(worker, model.Op{Kind: model.OpLock, Number: number})
		for range 4 {
			worker = g.access(worker, g.page())
		}
		worker = g.section(append(worker, model.Op{Kind: model.OpUnlock, Number: number}))
	}
	for range 1 + g.random.IntN(15) {
		killer = g.access(killer, g.page())
	}
	return worker, append(killer, model.Op{Kind: model.OpDie})
}
