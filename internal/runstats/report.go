package runstats

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// mostCostly is how many allocations, locks and barriers a report names.
const mostCostly = 10

// Report is a text about a run of so many ranks: a table by rank, then what has cost most, each
// with a piece of advice where one follows from the figures. Lines have no newline at their end.
// Ranks without a record are named.
func Report(records []Record, ranks int) (lines []string) {
	records = slices.SortedFunc(slices.Values(records), func(a, b Record) int { return cmp.Compare(a.Rank, b.Rank) })
	if len(records) > 0 {
		lines = append(byRank(records), costliest(records)...)
	}
	var partial []string
	for i := range records {
		if r := &records[i]; r.Partial {
			partial = append(partial, fmt.Sprintf("rank %d", r.Rank))
		}
	}
	if len(partial) > 0 {
		lines = append(lines, "--stats knows nothing of the last seconds of those who have not left the cluster by Close: "+some(partial))
	}
	if missing := without(records, ranks); missing != "" {
		lines = append(lines, "--stats knows nothing of those who have not left the cluster by Close: "+missing)
	}
	return lines
}

// share is how the time of a rank is divided: each part of all of its threads' time. They sum to 1.
type share struct {
	threads                                       int
	computing, pages, locks, barriers, reductions float64
	prefetch, processor                           float64
	other                                         float64 // nothing that was measured
}

// divide divides a rank's time. How many threads it has, nobody knows: Go moves goroutines between
// them. It is as many as were busy, or waited, at a time. Where a little more was measured than
// they can have had, because something was counted twice, all parts are a little smaller.
func divide(r *Record) (s share) {
	by := map[Kind]time.Duration{}
	for _, x := range r.Waits {
		by[x.Kind] += x.Time
	}
	all := (r.CPU + r.FaultWait + by[Lock] + by[Barrier] + by[Reduction] + by[Prefetch] + r.Queue).Seconds()
	wall := r.Wall.Seconds()
	if wall <= 0 {
		return share{threads: 1, other: 1}
	}
	s.threads = max(1, int(all/wall+0.5))
	total := max(all, wall*float64(s.threads))
	of := func(d time.Duration) float64 { return d.Seconds() / total }
	s.computing, s.pages, s.locks = of(r.CPU), of(r.FaultWait), of(by[Lock])
	s.barriers, s.reductions = of(by[Barrier]), of(by[Reduction])
	s.prefetch, s.processor = of(by[Prefetch]), of(r.Queue)
	s.other = max(0, 1-all/total)
	return s
}

// byRank is a row for each rank.
func byRank(records []Record) []string {
	return table(func(row func(cells ...any)) {
		row("RANK", "NODE", "SECONDS", "THREADS", "COMPUTING", "PAGES", "LOCKS", "BARRIERS", "REDUCTIONS", "PREFETCH", "NO CPU", "OTHER", "READ", "WRITE", "UPGRADE", "SENT", "RECEIVED")
		for i := range records {
			r := &records[i]
			s := divide(r)
			row(r.Rank, r.Node, fmt.Sprintf("%.2f", r.Wall.Seconds()), s.threads, percent(s.computing), percent(s.pages), percent(s.locks),
				percent(s.barriers), percent(s.reductions), percent(s.prefetch), percent(s.processor), percent(s.other), r.Read, r.Write, r.Upgrade, mebibytes(r.Sent), mebibytes(r.Received))
		}
	})
}

// cost is what a run has paid for one thing.
type cost struct {
	Item
	least, most time.Duration // of the ranks, or nodes
	early, late int           // those with the most and the least of it
	parts       int
}

// byNode has the record of each node that tells most of what belongs to the node.
func byNode(records []Record) map[int]*Record {
	nodes := map[int]*Record{}
	for i := range records {
		r := &records[i]
		if last := nodes[r.Node]; last == nil || last.Wall < r.Wall {
			nodes[r.Node] = r
		}
	}
	return nodes
}

// costs are what all ranks have paid, the most first. What belongs to a node is the same for all of
// its ranks, but for those that have left earlier.
func costs(records []Record) []cost {
	nodes := byNode(records)
	var all []Item
	for i := range records {
		all = append(append(all, records[i].Waits...), records[i].Memory...)
	}
	large := families(all)
	sums := map[family]*cost{} // by kind and name
	for i := range records {
		for _, x := range group(records[i].Waits, large) {
			addCost(sums, &x, records[i].Rank)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		for _, x := range group(nodes[node].Memory, large) {
			addCost(sums, &x, node)
		}
	}
	list := make([]cost, 0, len(sums))
	for _, c := range sums {
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b cost) int { return compare(a.Item, b.Item) })
	return list
}

// addCost adds what one rank, or node, has paid.
func addCost(sums map[family]*cost, x *Item, who int) {
	k := family{x.Kind, x.Name}
	c := sums[k]
	if c == nil {
		c = &cost{Item: Item{Kind: x.Kind, Name: x.Name}, least: x.Time, late: who}
		sums[k] = c
	}
	c.Count, c.Time, c.Taken, c.parts = c.Count+x.Count, c.Time+x.Time, c.Taken+x.Taken, c.parts+1
	c.Of = max(c.Of, x.Of) // ranks wait for the same things
	if x.Time > c.most {
		c.most, c.early = x.Time, who
	}
	if x.Time < c.least {
		c.least, c.late = x.Time, who
	}
}

// compare orders items, those that took longest first.
func compare(a, b Item) int {
	return cmp.Or(cmp.Compare(b.Time, a.Time), strings.Compare(string(a.Kind), string(b.Kind)), strings.Compare(a.Name, b.Name))
}

// costliest is what has cost most.
func costliest(records []Record) []string {
	list := costs(records)
	var wall time.Duration
	for i := range records {
		wall += time.Duration(divide(&records[i]).threads) * records[i].Wall
	}
	if len(list) == 0 || wall <= 0 {
		return nil
	}
	short := shortage(records, list)
	list = list[:min(len(list), mostCostly)]
	lines := table(func(row func(cells ...any)) {
		row("WAITED FOR", "NAME", "SECONDS", "OF ALL", "TIMES", "EACH")
		for _, c := range list {
			row(string(c.Kind), c.title(), fmt.Sprintf("%.3f", c.Time.Seconds()), percent(c.Time.Seconds()/wall.Seconds()), c.Count, each(&c))
		}
	})
	for _, c := range list {
		if c.Time.Seconds() < worthAdvice*wall.Seconds() {
			break
		}
		if c.Kind == Memory && short != "" {
			continue // most of these waits are for the disk, and not for other nodes
		}
		if text := advice(&c); text != "" {
			lines = append(lines, fmt.Sprintf("%s %s: %s", c.Kind, c.title(), text))
		}
	}
	if short != "" {
		lines = append(lines, short)
	}
	return append([]string{""}, lines...)
}

// shortage says that nodes have too little memory, if threads wait for pages that come back from
// the disk mostly: "" if not. Where no page went there, what comes is from mapped files, or from a
// checkpoint, and comes once.
func shortage(records []Record, list []cost) string {
	var writes, reads, waits uint64
	for _, r := range byNode(records) {
		writes, reads = writes+r.SpillWrites, reads+r.SpillReads
	}
	for i := range list {
		if list[i].Kind == Memory {
			waits += list[i].Count
		}
	}
	if writes == 0 || 2*reads < waits {
		return ""
	}
	return fmt.Sprintf("memory is short: %d pages went to the disk for want of room (--spill), %d came from there, and threads waited %d times for pages: "+
		"give nodes more memory (--memory), have more nodes, or use less at a time", writes, reads, waits)
}

// worthAdvice is the part of all time that something takes about which advice is given.
const worthAdvice = 0.03

// longLease is how long a wait for a page is, in the mean, when nodes keep many pages that they
// take from each other (group leases).
const longLease = 2 * time.Millisecond

// advice is what to do about a cost, "" if the figures do not say.
func advice(c *cost) string {
	mean := c.Time / time.Duration(max(c.Count, 1))
	switch {
	case c.Name == "" && c.Of > 0:
		return "" // they have nothing in common
	case c.Kind == Lock && c.Of > 0:
		return "each time one of these locks is taken elsewhere it travels: collect what belongs to each rank first, and combine it at the end"
	case c.Kind == Memory && c.FalselyShared() && mean >= longLease:
		return "nodes write to the same of its pages, and keep them for milliseconds in turns, so that each gets on: add up locally first, or give each rank whole pages (pad, or dsm.Isolate)"
	case c.Kind == Memory && c.FalselyShared():
		return "others write to its pages while they are in use here: give each rank whole pages (pad, or dsm.Isolate), or add up locally first"
	case c.Kind == Memory:
		return "its pages travel: divide the work so that each rank stays with its part, or dsm.Prefetch what a rank needs next"
	case c.Kind == Lock && mean > 100*time.Microsecond:
		return "many want it at a time: hold it for less long, combine what is done under it, or have several locks"
	case c.Kind == Lock:
		return "it is asked for often: combine what is done under it, and take it once"
	case (c.Kind == Barrier || c.Kind == Reduction) && c.parts > 1 && 2*c.least < c.most:
		return fmt.Sprintf("rank %d comes last (it waited %v there, rank %d %v): give it less to do", c.late, Rounded(c.least), c.early, Rounded(c.most))
	}
	return ""
}

// without names the ranks that have no record.
func without(records []Record, ranks int) string {
	there := map[int]bool{}
	for i := range records {
		there[records[i].Rank] = true
	}
	var missing []string
	for rank := range ranks {
		if !there[rank] {
			missing = append(missing, fmt.Sprintf("rank %d", rank))
		}
	}
	return some(missing)
}

// some names the first of many.
func some(names []string) string {
	if len(names) > mostCostly {
		names = append(names[:mostCostly:mostCostly], fmt.Sprintf("%d others", len(names)-mostCostly))
	}
	return strings.Join(names, ", ")
}

// table lays rows of cells out in columns.
func table(fill func(row func(cells ...any))) []string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fill(func(cells ...any) {
		for i, cell := range cells {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, cell)
		}
		fmt.Fprintln(w)
	})
	w.Flush() // a Builder takes everything
	return strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
}

func percent(part float64) string { return fmt.Sprintf("%.1f%%", 100*part) }

func mebibytes(bytes uint64) string { return fmt.Sprintf("%.1fMiB", float64(bytes)/(1<<20)) }

func each(c *cost) time.Duration { return Rounded(c.Time / time.Duration(max(c.Count, 1))) }

// Rounded has three digits or so.
func Rounded(d time.Duration) time.Duration {
	for unit := time.Duration(1); ; unit *= 10 {
		if d/1000 < unit {
			return d.Round(unit)
		}
	}
}
