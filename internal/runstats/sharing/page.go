package sharing

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"time"

	"dsmd/internal/faultlog"
	"dsmd/internal/runstats"
)

// What is kept of a page is bounded. What comes later than these many is only counted.
const (
	maxUsers   = 16 // nodes
	maxOffsets = 16 // places on the page that have faulted, of each node and lock
	maxLines   = 8  // of each node
	maxGuards  = 8  // locks
	maxPayers  = 64 // ranks whose cost is told apart
)

// wordBytes is the unit in which nodes compare pages.
const wordBytes = 8

// page is what is known of a page of an allocation.
type page struct {
	memory *runstats.Allocation // nil: not known
	number uint64               // in the region

	faults  uint64
	waited  time.Duration
	returns uint64 // faults of nodes that had the page, and lost it to another node
	users   []*user
	guards  []guard
	costs   []Cost
}

// user is what a node does with a page.
type user struct {
	node int
	// written counts for each word how often it had changed when the page left; nil: it never has.
	written       []uint16
	left          uint64 // how often it left changed
	stores, loads places // that have faulted
	lines         []line
}

// guard is what has faulted when a lock was the last that was taken.
type guard struct {
	lock string
	uses places
}

// places are places of a page, by their offsets in bytes, with how often they have faulted.
type places struct {
	faults uint64 // at all places, also those that are not kept
	at     []place
}

type place struct {
	offset, count uint32
}

// words are how often each word has faulted.
func (p *places) words() map[uint32]uint64 {
	words := map[uint32]uint64{}
	for _, x := range p.at {
		words[x.offset/wordBytes] += uint64(x.count)
	}
	return words
}

func (p *places) add(offset uint32) {
	p.faults++
	i := slices.IndexFunc(p.at, func(x place) bool { return x.offset == offset })
	switch {
	case i >= 0:
		p.at[i].count++
	case len(p.at) < maxOffsets:
		p.at = append(p.at, place{offset, 1})
	}
}

// line is a line of the program.
type line struct {
	at     string
	offset uint32 // of the first access there
	write  bool
	count  uint64
}

// by returns what is known of a node's use of the page: nil if there are too many nodes.
func (p *page) by(node int) *user {
	i := slices.IndexFunc(p.users, func(u *user) bool { return u.node == node })
	if i >= 0 {
		return p.users[i]
	}
	if len(p.users) == maxUsers {
		return nil
	}
	u := &user{node: node}
	p.users = append(p.users, u)
	return u
}

// fault takes a fault of a rank on this page. lock is the one that the rank had taken last.
func (p *page) fault(f *faultlog.Fault, rank, node int, lock string) {
	p.faults++
	p.waited += f.Waited
	if f.Taker != faultlog.NoNode {
		p.returns++
	}
	p.pay(f, rank)
	if uint64(f.Offset) >= p.bytes() {
		return
	}
	if u := p.by(node); u != nil {
		switch {
		case f.Access == faultlog.Read:
			u.loads.add(f.Offset)
		case f.Taker != faultlog.NoNode:
			u.stores.add(f.Offset)
		default: // that a node fills a page in is not why it comes back, wherever it begins
			u.stores.faults++
		}
	}
	if lock == "" {
		return
	}
	i := slices.IndexFunc(p.guards, func(g guard) bool { return g.lock == lock })
	if i < 0 {
		if len(p.guards) == maxGuards {
			return
		}
		i = len(p.guards)
		p.guards = append(p.guards, guard{lock: lock})
	}
	p.guards[i].uses.add(f.Offset)
}

func (p *page) bytes() uint64 {
	if p.memory == nil {
		return maxPageBytes
	}
	return p.memory.PageBytes
}

// pay adds a fault to what the page has cost a rank.
func (p *page) pay(f *faultlog.Fault, rank int) {
	i := slices.IndexFunc(p.costs, func(c Cost) bool { return c.Rank == rank })
	switch {
	case i >= 0:
	case len(p.costs) < maxPayers-1 || rank == others:
		p.costs, i = append(p.costs, Cost{Rank: rank}), len(p.costs)
	default:
		p.pay(f, others)
		return
	}
	p.costs[i].add(f)
}

// others is the rank of a Cost of ranks that are not told apart.
const others = -1

func (c *Cost) add(f *faultlog.Fault) {
	switch f.Access {
	case faultlog.Read:
		c.Read++
	case faultlog.Write:
		c.Write++
	case faultlog.Upgrade:
		c.Upgrade++
	}
	c.Waited += f.Waited
}

// plus is the cost and another one, of the same rank.
func (c Cost) plus(x Cost) Cost {
	return Cost{c.Rank, c.Read + x.Read, c.Write + x.Write, c.Upgrade + x.Upgrade, c.Waited + x.Waited}
}

// changed counts the words that had changed when the page left, and returns how many bytes it has
// needed to keep that.
func (u *user) changed(written []uint64, words int) (bytes int) {
	if u.written == nil {
		u.written = make([]uint16, words)
		bytes = 2 * words
	}
	u.left++
	for i, set := range written {
		for ; set != 0; set &= set - 1 {
			w := 64*i + bits.TrailingZeros64(set)
			if w >= len(u.written) {
				return bytes
			}
			if u.written[w] == math.MaxUint16 { // what matters is their relation
				for k := range u.written {
					u.written[k] /= 2
				}
			}
			u.written[w]++
		}
	}
	return bytes
}

// seen takes a line at which the node accesses the page.
func (u *user) seen(s *runstats.Site) {
	if s.At == "" {
		return // it was in the runtime, as when it copies
	}
	i := slices.IndexFunc(u.lines, func(l line) bool { return l.at == runstats.Short(s.At) && l.write == s.Write })
	switch {
	case i >= 0:
		u.lines[i].count += s.Count
	case len(u.lines) < maxLines:
		u.lines = append(u.lines, line{runstats.Short(s.At), s.Offset, s.Write, s.Count})
	}
}

// lineList are lines as texts, those that fault most first.
func lineList(lines []line) (list []string) {
	lines = slices.SortedFunc(slices.Values(lines), func(a, b line) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.at, b.at))
	})
	for _, l := range lines {
		if !slices.Contains(list, l.at) {
			list = append(list, l.at)
		}
	}
	return list[:min(len(list), shownLines)]
}

// shownLines is how many lines of a party are shown.
const shownLines = 3
