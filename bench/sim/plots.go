package sim

import (
	"fmt"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"dsmd/bench/chart"
)

// Drawings are the plots of the sections that were simulated.
func (r *Result) Drawings() []chart.Drawing {
	var all []chart.Drawing
	add := func(name, title, about string, panels ...chart.Panel) {
		if len(panels[0].Curves) > 0 {
			all = append(all, chart.Drawing{Name: name, Title: title, About: about, Width: 80 + 330*vg.Length(len(panels)), Height: 340,
				Draw: func(c draw.Canvas) error { return chart.DrawPanels(c, title, panels) }})
		}
	}
	faults := func(i int) []chart.Curve { return curves(r.faultRows(faultFigures[i].figure)) }
	const nodes = "nodes"
	add("faults", "Messages and bytes that a fault costs, by the way in which pages are shared",
		"Level curves mean that a fault costs the same in a large cluster as in a small one.",
		chart.Panel{X: nodes, Y: "messages per fault", Linear: true, Curves: faults(0)},
		chart.Panel{X: nodes, Y: "bytes per fault", Linear: true, Curves: faults(1)})
	add("latency", "Time from a fault until the access gets through",
		"Both axes are logarithmic. A curve that rises in proportion to the nodes belongs to pages that all of them want at once.",
		chart.Panel{Title: "median", X: nodes, Y: "µs", Curves: faults(2)},
		chart.Panel{Title: "99th percentile", X: nodes, Y: "µs", Curves: faults(3)})
	add("balance", "How evenly work is spread: the busiest node over the mean of all (1: evenly)",
		"Both axes are logarithmic. Where a curve is the number of nodes, one node does everything.",
		chart.Panel{Title: "messages received as home", X: nodes, Y: "busiest home / mean", Curves: faults(4)},
		chart.Panel{Title: "working time of daemons", X: nodes, Y: "busiest daemon / mean", Curves: faults(5)})
	add("barriers", "Barriers and reductions of all nodes", "Both axes are logarithmic. The tree is computed with the same costs, not simulated.",
		chart.Panel{Title: "time", X: nodes, Y: "µs per barrier", Curves: append(r.syncCurves(func(p SyncPoint) float64 { return p.Micros }, OpBarrier, OpReduction),
			r.treeCurve())},
		chart.Panel{Title: "bytes sent", X: nodes, Y: "bytes per barrier", Curves: r.syncCurves(func(p SyncPoint) float64 { return p.Bytes }, OpBarrier, OpReduction)})
	add("locks", "A lock that is free at another node, and one that all nodes want", "Level curves mean that a lock costs the same in a large cluster as in a small one.",
		chart.Panel{Title: "time", X: nodes, Y: "µs per turn", Linear: true, Curves: r.syncCurves(func(p SyncPoint) float64 { return p.Micros }, OpFreeLock, OpContendedLock)},
		chart.Panel{Title: "messages", X: nodes, Y: "messages per turn", Linear: true, Curves: r.syncCurves(func(p SyncPoint) float64 { return p.Messages }, OpFreeLock, OpContendedLock)})
	if len(r.Hot) > 0 {
		hot := func(i int) []chart.Curve { return curves(r.hotRows(hotFigures[i].figure)) }
		readers := fmt.Sprintf("readers, of %d nodes", r.Hot[0].Nodes)
		add("hot", "One page that many nodes read at once, and that one of them then writes",
			"Both axes are logarithmic. Readers are anywhere in the cluster, or neighbours in the order of nodes.",
			chart.Panel{Title: "until all have read", X: readers, Y: "µs", Curves: hot(0)},
			chart.Panel{Title: "the write", X: readers, Y: "µs", Curves: hot(3)},
			chart.Panel{Title: "the write", X: readers, Y: "invalidations", Curves: hot(5)})
	}
	return all
}

func curves(rows []row) []chart.Curve {
	var all []chart.Curve
	for _, r := range rows {
		c := chart.Curve{Name: r.name}
		for i, x := range r.x {
			c.Points = append(c.Points, plotter.XY{X: float64(x), Y: r.amount[i]})
		}
		all = append(all, c)
	}
	return all
}

// syncCurves are those of some operations.
func (r *Result) syncCurves(figure func(SyncPoint) float64, operations ...string) []chart.Curve {
	var all []chart.Curve
	for _, c := range curves(r.syncRows(figure)) {
		for _, name := range operations {
			if c.Name == name {
				all = append(all, c)
			}
		}
	}
	return all
}

// treeCurve is what the barrier would take as a tree.
func (r *Result) treeCurve() chart.Curve {
	c := chart.Curve{Name: fmt.Sprintf("barrier as a tree of %d children (computed)", treeArity)}
	for _, p := range r.Sync {
		if p.Operation == OpBarrier {
			c.Points = append(c.Points, plotter.XY{X: float64(p.Nodes), Y: p.Tree})
		}
	}
	return c
}
