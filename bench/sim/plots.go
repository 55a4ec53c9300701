package sim

import (
	"fmt"
	"slices"

	"dsmd/bench/chart"
)

// Drawings are the plots of the sections that were simulated.
func (r *Result) Drawings() []chart.Drawing {
	var all []chart.Drawing
	add := func(name, title, about string, panels ...chart.Panel) {
		if slices.ContainsFunc(panels[0].Curves, func(c chart.Curve) bool { return len(c.Points) > 0 }) {
			all = append(all, chart.Side(name, title, about, panels))
		}
	}
	faults := func(i int) []chart.Curve { return r.faultCurves(faultFigures[i].of) }
	panel := func(title string, curves []chart.Curve) chart.Panel {
		return chart.Panel{Title: title, X: "nodes", Curves: curves}
	}
	linear := func(p chart.Panel) chart.Panel { p.Linear = true; return p }
	took := func(p SyncPoint) float64 { return p.Micros }
	add("faults", "What a fault costs, by the way in which pages are shared",
		"Level curves mean that a fault costs the same in a large cluster as in a small one.",
		linear(panel("messages per fault", faults(0))), linear(panel("bytes per fault", faults(1))))
	add("latency", "Time from a fault until the access gets through",
		"Both axes are logarithmic. A curve that rises in proportion to the nodes belongs to pages that all of them want at once.",
		panel("median, µs", faults(2)), panel("99th percentile, µs", faults(3)))
	add("balance", "How evenly work is spread: the busiest node over the mean of all (1: evenly)",
		"Both axes are logarithmic. Where a curve is the number of nodes, one node does everything.",
		panel("messages received as home: busiest / mean", faults(4)), panel("working time of the daemon: busiest / mean", faults(5)))
	add("barriers", "Barriers and reductions of all nodes", "Both axes are logarithmic. Without a tree the home speaks to each node itself.",
		panel("µs per barrier", r.syncOf(took, OpBarrier, OpReduction, OpSum, OpFlatBarrier, OpFlatReduction)),
		panel("bytes sent per barrier", r.syncOf(func(p SyncPoint) float64 { return p.Bytes }, OpBarrier, OpReduction, OpSum, OpFlatBarrier, OpFlatReduction)))
	add("locks", "A lock that is free at another node, and one that all nodes want", "Level curves mean that a lock costs the same in a large cluster as in a small one.",
		linear(panel("µs per turn", r.syncOf(took, OpFreeLock, OpContendedLock))),
		linear(panel("messages per turn", r.syncOf(func(p SyncPoint) float64 { return p.Messages }, OpFreeLock, OpContendedLock))))
	hot := func(title string, i int) chart.Panel {
		return chart.Panel{Title: title, X: "readers", Curves: r.hotCurves(hotFigures[i].of)}
	}
	if len(r.Hot) > 0 {
		add("hot", fmt.Sprintf("One page of a cluster of %d nodes that many read at once, and that one of them then writes", r.Hot[0].Nodes),
			"Both axes are logarithmic. Readers are anywhere in the cluster, or neighbours in the order of nodes; or anywhere, with a copy at the page's home before.",
			hot("until all have read, µs", 0), hot("the write, µs", 3), hot("invalidations of the write", 5))
	}
	if len(r.Wide) > 0 {
		add("wide", "Nodes with many threads, whose daemons have one or more reactors",
			"Both axes are logarithmic. Where a curve leaves the first line its reactors are the limit, and more of them lift it, up to the line of the link.",
			r.widePanels()...)
	}
	return all
}

// syncOf are the curves of some operations.
func (r *Result) syncOf(figure func(SyncPoint) float64, operations ...string) []chart.Curve {
	return slices.DeleteFunc(r.syncCurves(figure), func(c chart.Curve) bool { return !slices.Contains(operations, c.Name) })
}
