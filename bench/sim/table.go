package sim

import (
	"dsmd/bench/chart"
	"dsmd/bench/table"
)

// A figure is what a table and a panel tell of some points.
type figure[P any] struct {
	title, note string
	of          func(P) float64
}

// curves has a curve for each name, over a number. Points whose figure is 0 are left out if they
// are those that there are not.
func curves[P any](points []P, at func(P) (name string, x int), of func(P) float64, zeros bool) []chart.Curve {
	var all []chart.Curve
	for _, p := range points {
		if y := of(p); y != 0 || zeros {
			name, x := at(p)
			all = chart.Put(all, name, float64(x), y)
		}
	}
	return all
}

// faultFigures are the tables about faults.
var faultFigures = []figure[FaultPoint]{
	{"Messages per fault", "Between nodes, about pages.", func(p FaultPoint) float64 { return p.MessagesPerFault }},
	{"Bytes per fault", "Of these messages, with headers and pages.", func(p FaultPoint) float64 { return p.BytesPerFault }},
	{"Time of a fault, median, µs", "", func(p FaultPoint) float64 { return p.P50 }},
	{"Time of a fault, 99th percentile, µs", "", func(p FaultPoint) float64 { return p.P99 }},
	{"Load of the busiest home over the mean", "Messages received as the home of a page. 1 is even; the number of nodes: one home has it all.",
		func(p FaultPoint) float64 { return p.HomeLoad }},
	{"Load of the busiest daemon over the mean", "Time at work. 1 is even.", func(p FaultPoint) float64 { return p.DaemonLoad }},
	{"Time at work of the busiest daemon, percent", "", func(p FaultPoint) float64 { return 100 * p.DaemonBusy }},
}

func (r *Result) faultCurves(of func(FaultPoint) float64) []chart.Curve {
	return curves(r.Faults, func(p FaultPoint) (string, int) { return string(p.Pattern), p.Nodes }, of, true)
}

// syncFigures are the tables about barriers, locks and allocations.
var syncFigures = []figure[SyncPoint]{
	{"Time of a barrier, lock or allocation, µs", "Of the contended lock from one holder to the next.", func(p SyncPoint) float64 { return p.Micros }},
	{"Messages of a barrier, lock or allocation", "", func(p SyncPoint) float64 { return p.Messages }},
	{"Bytes of a barrier, lock or allocation", "", func(p SyncPoint) float64 { return p.Bytes }},
	{"Time at work of the busiest daemon for one, µs", "", func(p SyncPoint) float64 { return p.Busiest }},
}

func (r *Result) syncCurves(of func(SyncPoint) float64) []chart.Curve {
	return curves(r.Sync, func(p SyncPoint) (string, int) { return p.Operation, p.Nodes }, of, false)
}

// hotFigures are the tables about the hot page.
var hotFigures = []figure[HotPoint]{
	{"Hot page: until all have read it, µs", "", func(p HotPoint) float64 { return p.ReadAll }},
	{"Hot page: messages until all have read it", "", func(p HotPoint) float64 { return float64(p.ReadMessages) }},
	{"Hot page: pages sent by the node that sent most", "", func(p HotPoint) float64 { return float64(p.Supplied) }},
	{"Hot page: time of the write, µs", "", func(p HotPoint) float64 { return p.Write }},
	{"Hot page: messages of the write", "", func(p HotPoint) float64 { return float64(p.WriteMessages) }},
	{"Hot page: invalidations of the write", "", func(p HotPoint) float64 { return float64(p.Invalidations) }},
	{"Hot page: of them, to nodes without a copy", "", func(p HotPoint) float64 { return float64(p.Needless) }},
}

func (r *Result) hotCurves(of func(HotPoint) float64) []chart.Curve {
	return curves(r.Hot, func(p HotPoint) (string, int) { return string(p.Way), p.Readers }, of, true)
}

// tables are those of all sections that were simulated.
func (r *Result) tables() []table.Table {
	all := tablesOf(faultFigures, "nodes", r.faultCurves)
	all = append(all, tablesOf(syncFigures, "nodes", r.syncCurves)...)
	all = append(all, tablesOf(hotFigures, "readers", r.hotCurves)...)
	all = append(all, r.wideTables()...)
	return table.Filled(all...)
}

// tablesOf makes a table of each figure: a row for each curve, and a column for each size.
func tablesOf[P any](figures []figure[P], corner string, curves func(func(P) float64) []chart.Curve) []table.Table {
	var all []table.Table
	for _, f := range figures {
		var cells []table.Cell
		for _, c := range curves(f.of) {
			for _, p := range c.Points {
				cells = append(cells, table.Cell{Row: c.Name, Column: int(p.X), Text: table.Significant(p.Y)})
			}
		}
		all = append(all, table.Grid(f.title, f.note, corner, cells))
	}
	return all
}

// Text is the result for a terminal.
func (r *Result) Text() string { return table.Text(r.tables()) }

// Markdown is the result for a document.
func (r *Result) Markdown() string { return table.Markdown(r.tables()) }

// WriteTo writes the result into a folder, which is made if there is none: sim.json, sim.md, and
// plots as sim-NAME.png and .svg. Files of these names are replaced. Errors name the file.
func (r *Result) WriteTo(dir string) error {
	return chart.WriteFolder(dir, "sim", r, r.Markdown(), r.Drawings())
}
