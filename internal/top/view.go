package top

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"text/tabwriter"

	"dsmd/internal/attach"
	"dsmd/internal/runstats"
)

// Order is by what programs are sorted, and with them what they wait for.
type Order string

// The orders, in which a key goes through them.
const (
	ByWaits      Order = "waits"
	ByPages      Order = "pages"
	ByLocks      Order = "locks"
	ByBarriers   Order = "barriers"
	ByReductions Order = "reductions"
	ByCommits    Order = "commits"
	ByComputing  Order = "computing"
	ByRank       Order = "rank"
)

// Orders are the names of all orders.
var Orders = []string{
	string(ByWaits), string(ByPages), string(ByLocks), string(ByBarriers),
	string(ByReductions), string(ByCommits), string(ByComputing), string(ByRank),
}

// kindFirst is the kind of waits that an order puts first, if it does.
func (o Order) kindFirst() (kind attach.WaitKind, is bool) {
	at := slices.Index([]Order{ByPages, ByLocks, ByBarriers, ByReductions, ByCommits}, o)
	return attach.WaitKind(max(at, 0)), at >= 0
}

// Choice is what of Rates is shown, and how.
type Choice struct {
	Order Order
	Job   *Job // nil: all
	Node  int  // negative: all
}

func (c *Choice) has(job Job, node uint32) bool {
	return (c.Job == nil || *c.Job == job) && (c.Node < 0 || c.Node == int(node))
}

// hasToll is whether the toll of a thing counts. What belongs to no job belongs to all.
func (c *Choice) hasToll(x *toll) bool {
	return (c.Job == nil || x.job == *c.Job || x.job == Job{Cluster: c.Job.Cluster}) && (c.Node < 0 || c.Node == int(x.node))
}

// tollsOf are what each thing has cost, on all nodes that are shown.
func (r *Rates) tollsOf(c Choice) []toll {
	sums := map[thing]*toll{}
	for i := range r.tolls {
		x := &r.tolls[i]
		if !c.hasToll(x) {
			continue
		}
		if sums[x.thing] == nil {
			sums[x.thing] = &toll{thing: x.thing}
		}
		sums[x.thing].add(x)
	}
	var list []toll
	for _, t := range sums {
		if t.share > 0 || t.taken > 0 {
			list = append(list, *t)
		}
	}
	return list
}

func (c *Choice) hasNode(x *node) bool {
	return (c.Job == nil || c.Job.Cluster == x.job.Cluster) && (c.Node < 0 || c.Node == int(x.node))
}

// Jobs are those that run, in order.
func (r *Rates) Jobs() []Job {
	all := map[Job]bool{}
	clusters := map[string]bool{}
	for _, x := range r.ranks {
		all[x.job], clusters[x.job.Cluster] = true, true
	}
	for _, x := range r.nodes {
		if !clusters[x.job.Cluster] {
			all[x.job] = true
		}
	}
	return slices.SortedFunc(maps.Keys(all), compareJobs)
}

func compareJobs(a, b Job) int {
	return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Name, b.Name))
}

// mostNode is the largest number of a node.
func (r *Rates) mostNode() int {
	most := -1
	for _, x := range r.nodes {
		most = max(most, int(x.node))
	}
	return most
}

// table is one of those that are shown.
type table struct {
	titles []string
	rows   [][]string
	jobs   bool // the first column is the job
}

// tables are what is shown: programs, what they wait for, and nodes.
func (r *Rates) tables(c Choice) []table {
	several := c.Job == nil && len(r.Jobs()) > 1
	list := []table{r.rankTable(c), r.thingTable(c), r.nodeTable(c)}
	for i := range list {
		list[i].jobs = several
	}
	return list
}

func (r *Rates) rankTable(c Choice) table {
	t := table{titles: []string{"JOB", "RANK", "NODE", "PID", "COMPUTING", "PAGES", "LOCKS", "BARRIERS", "REDUCTIONS"}}
	ranks := slices.DeleteFunc(slices.Clone(r.ranks), func(x rank) bool { return !c.has(x.job, x.node) })
	slices.SortFunc(ranks, func(a, b rank) int {
		by := 0
		kind, is := c.Order.kindFirst()
		switch {
		case is:
			by = cmp.Compare(b.waits[kind], a.waits[kind])
		case c.Order == ByComputing:
			by = cmp.Compare(b.computing, a.computing)
		case c.Order == ByWaits:
			by = cmp.Compare(b.cost(), a.cost())
		}
		return cmp.Or(by, compareJobs(a.job, b.job), cmp.Compare(a.rank, b.rank), cmp.Compare(a.pid, b.pid))
	})
	kinds := attach.WaitCommit // that are shown, in the order of the titles
	if slices.ContainsFunc(ranks, func(x rank) bool { return x.waits[attach.WaitCommit] > 0 }) {
		kinds++
		t.titles = append(t.titles, "COMMITS")
	}
	t.titles = append(t.titles, "PROGRAM")
	for _, x := range ranks {
		computing := "?"
		if x.computing >= 0 {
			computing = percent(x.computing)
		}
		row := []string{x.job.short(), fmt.Sprintf("%d/%d", x.rank, x.size), fmt.Sprint(x.node), fmt.Sprint(x.pid), computing}
		for _, waited := range x.waits[:kinds] {
			row = append(row, percent(waited))
		}
		t.rows = append(t.rows, append(row, x.program))
	}
	return t
}

func (r *Rates) thingTable(c Choice) table {
	t := table{titles: []string{"JOB", "TIME", "WAITS/s", "EACH", "TAKEN/s", "WAITED FOR"}}
	tolls := r.tollsOf(c)
	first, is := c.Order.kindFirst()
	slices.SortFunc(tolls, func(a, b toll) int {
		if is && (a.kind == first) != (b.kind == first) {
			if a.kind == first {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.share, a.share), compareJobs(a.job, b.job), cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
	})
	for _, x := range tolls {
		name := fmt.Sprintf("%q", x.name) // makes it printable, too
		if x.other {
			name = "(other)"
		}
		each := "?" // of waits that are not over
		if d := x.each(); d > 0 {
			each = runstats.Rounded(d).String()
		}
		taken := ""
		if x.kind == attach.WaitMemory {
			taken = rate(x.taken)
		}
		t.rows = append(t.rows, []string{x.job.short(), percent(x.share), rate(x.waits), each, taken, fmt.Sprintf("%-9s  %s", x.kind, name)})
	}
	return t
}

func (r *Rates) nodeTable(c Choice) table {
	t := table{titles: []string{"JOB", "NODE", "READ/s", "WRITE/s", "UPGRADE/s", "IN/s", "OUT/s", "MEMORY"}}
	nodes := slices.DeleteFunc(slices.Clone(r.nodes), func(x node) bool { return !c.hasNode(&x) })
	slices.SortFunc(nodes, func(a, b node) int {
		by := 0
		if c.Order != ByRank {
			by = cmp.Compare(b.in+b.out, a.in+a.out)
		}
		return cmp.Or(by, compareJobs(a.job, b.job), cmp.Compare(a.node, b.node))
	})
	for _, x := range nodes {
		memory := "no limit"
		if x.limit > 0 {
			memory = fmt.Sprintf("%s of %s", size(float64(x.used)), size(float64(x.limit)))
		}
		t.rows = append(t.rows, []string{x.job.short(), fmt.Sprintf("%d/%d", x.node, x.nodes), rate(x.read), rate(x.write), rate(x.upgrade), size(x.in), size(x.out), memory})
	}
	return t
}

// notes are what no table shows: nodes at which nothing goes on.
func (r *Rates) notes(c Choice) (list []string) {
	for _, x := range r.nodes {
		if x.noQuorum && c.hasNode(&x) {
			list = append(list, fmt.Sprintf("no quorum: node %d of %s: too few nodes are left or can be reached, and its programs wait", x.node, x.job))
		}
	}
	return list
}

// lines are a table as text, the titles first, with at most so many rows; more says how many there
// are besides.
func (t *table) lines(most int) []string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	write := func(row []string) {
		if !t.jobs {
			row = row[1:]
		}
		last := len(row) - 1
		fmt.Fprintf(w, "%s\t  %s\n", strings.Join(row[:last], "\t"), row[last]) // aligned left
	}
	write(t.titles)
	for _, row := range t.rows[:min(len(t.rows), most)] {
		write(row)
	}
	_ = w.Flush() // into memory
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if more := len(t.rows) - most; more > 0 {
		lines[len(lines)-1] = fmt.Sprintf("  and %d more", more+1)
	}
	return lines
}

// Text is all that a choice has, for a file or pipe.
func (r *Rates) Text(c Choice) string {
	var parts []string
	for _, t := range r.tables(c) {
		if len(t.rows) > 0 {
			parts = append(parts, strings.Join(t.lines(len(t.rows)), "\n")+"\n")
		}
	}
	if notes := r.notes(c); len(notes) > 0 {
		parts = append(parts, strings.Join(notes, "\n")+"\n")
	}
	return strings.Join(parts, "\n")
}

// percent is a share for people.
func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }

// rate is a number of things a second, with three digits if it is small.
func rate(x float64) string {
	switch {
	case x == 0:
		return "0"
	case x < 9.95:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// size is a number of bytes with one decimal and the largest unit of which it has one.
func size(n float64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%.0fB", n)
	}
	unit := (bits.Len64(uint64(n)) - 1) / 10
	return fmt.Sprintf("%.1f%ciB", n/float64(uint64(1)<<(10*unit)), "KMGTPE"[unit-1])
}
