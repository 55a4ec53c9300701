package sim

import (
	"fmt"
	"slices"

	"dsmd/bench/chart"
	"dsmd/bench/table"
	"dsmd/protocol/model"
)

// WidePoint is how many faults nodes with many threads get through, if their daemons have several
// reactors. Each thread reads pages anywhere, which other threads have written before.
type WidePoint struct {
	Nodes    int `json:"nodes"`
	Threads  int `json:"threads"`  // of each node
	Reactors int `json:"reactors"` // of each daemon
	// PerSecond is how many faults one node gets through in a second.
	PerSecond float64 `json:"faults_per_second_and_node"`
	// P50 and P99 are how long accesses that faulted took until they got through, in µs.
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
	// Reactor and Link are how much of the time the busiest reactor was at work, and the busiest
	// link sent, from 0 to 1.
	Reactor float64 `json:"reactor"`
	Link    float64 `json:"link"`
	// Limit says what keeps the nodes from getting through more.
	Limit Limit `json:"limit"`
}

// A Limit is what keeps nodes from getting through more faults.
type Limit string

const (
	// LimitReactor: the busiest reactor has hardly a pause. More of them help.
	LimitReactor Limit = "reactor"
	// LimitLink: the busiest link has hardly a pause. A faster network helps.
	LimitLink Limit = "link"
	// LimitWaiting: all have pauses; threads wait for what takes its time. More threads help.
	LimitWaiting Limit = "waiting"
)

// saturated is the share of the time from which on something counts as having hardly a pause.
const saturated = 0.8

const (
	// wideReads is how many accesses each thread makes.
	wideReads = 24
	// mostWide is the largest number of nodes, and mostThreads that of threads of all nodes: more
	// take minutes.
	mostWide, mostThreads = 128, 1 << 11
)

// wideThreads and wideReactors are the numbers of threads of a node, and of reactors of a daemon.
var wideThreads, wideReactors = []int{1, 4, 16, 64}, []int{1, 2, 4, 8}

func (r *Result) wideSteps() []step {
	var steps []step
	for nodes := 2; nodes <= min(r.Options.MaxNodes, mostWide); nodes *= 4 {
		for _, threads := range wideThreads {
			for _, reactors := range wideReactors {
				if nodes*threads <= mostThreads {
					name := fmt.Sprintf("%d nodes, %d threads, %d reactors", nodes, threads, reactors)
					steps = append(steps, step{name, func() error { return r.wide(nodes, threads, reactors) }})
				}
			}
		}
	}
	return steps
}

func (r *Result) wide(nodes, threads, reactors int) error {
	a := &author{random: r.Options.random(), programs: make([]model.Program, nodes*threads), blocks: r.Options.random().Perm(nodes * threads)}
	a.accessRandomly(wideReads, 0)
	e := &experiment{programs: a.programs, pages: uint64(len(a.programs) * blockPages), threads: threads, reactors: reactors}
	phases, err := simulate(&r.Options, e)
	if err != nil {
		return err
	}
	c := phases[len(phases)-1]
	p := WidePoint{
		Nodes: nodes, Threads: threads, Reactors: reactors,
		PerSecond: float64(c.Faults) / float64(nodes) / (c.ended - c.began).Seconds(),
		P50:       c.latency(model.RetireAccess, 50), P99: c.latency(model.RetireAccess, 99),
		Reactor: c.share(slices.Max(c.busy)), Link: c.share(r.Options.Costs.onLink(slices.Max(c.egress))), Limit: LimitWaiting,
	}
	switch {
	case p.Reactor >= saturated && p.Reactor >= p.Link:
		p.Limit = LimitReactor
	case p.Link >= saturated:
		p.Limit = LimitLink
	}
	r.Wide = append(r.Wide, p)
	return nil
}

// wideTables have a row for each number of nodes and reactors, and a column for each of threads.
func (r *Result) wideTables() []table.Table {
	var all []table.Table
	for _, f := range []struct {
		title, note string
		of          func(WidePoint) string
	}{
		{"Wide nodes: faults of one node in a second", "Threads read pages anywhere.", func(p WidePoint) string { return table.Significant(p.PerSecond) }},
		{"Wide nodes: time of a fault, median, µs", "", func(p WidePoint) string { return table.Significant(p.P50) }},
		{"Wide nodes: time of a fault, 99th percentile, µs", "", func(p WidePoint) string { return table.Significant(p.P99) }},
		{"Wide nodes: what keeps them from more", "In parentheses, how much of the time the busiest reactor and the busiest link were at work, in percent.",
			func(p WidePoint) string { return fmt.Sprintf("%s (%.0f, %.0f)", p.Limit, 100*p.Reactor, 100*p.Link) }},
	} {
		var cells []table.Cell
		for _, p := range r.Wide {
			cells = append(cells, table.Cell{Row: fmt.Sprintf("%d nodes, %s", p.Nodes, reactors(p.Reactors)), Column: p.Threads, Text: f.of(p)})
		}
		all = append(all, table.Grid(f.title, f.note, "threads of a node", cells))
	}
	return all
}

func reactors(n int) string {
	if n == 1 {
		return "1 reactor"
	}
	return fmt.Sprintf("%d reactors", n)
}

// widePanels have, for each number of nodes, a curve for each number of reactors. Two more are what
// a node would get through if no thread ever waited for what another one has its node do, and if
// all waited for nothing but the link.
func (r *Result) widePanels() []chart.Panel {
	var all []chart.Panel
	for _, p := range r.Wide {
		title := fmt.Sprintf("%d nodes: 1,000 faults of one in a second", p.Nodes)
		i := slices.IndexFunc(all, func(q chart.Panel) bool { return q.Title == title })
		if i < 0 {
			i, all = len(all), append(all, chart.Panel{Title: title, X: "threads of a node"})
		}
		put := func(name string, perSecond float64) {
			all[i].Curves = chart.Put(all[i].Curves, name, float64(p.Threads), perSecond/1000)
		}
		put(reactors(p.Reactors), p.PerSecond)
		if p.Reactors == wideReactors[len(wideReactors)-1] {
			put("no thread waits for another", r.alone(p)*float64(p.Threads))
			put("the link is full", r.Options.Costs.Bandwidth/pageBytes)
		}
	}
	return all
}

// alone is how many faults in a second a node gets through whose one thread has as many reactors.
func (r *Result) alone(p WidePoint) float64 {
	i := slices.IndexFunc(r.Wide, func(q WidePoint) bool { return q.Nodes == p.Nodes && q.Reactors == p.Reactors && q.Threads == 1 })
	return r.Wide[i].PerSecond
}
