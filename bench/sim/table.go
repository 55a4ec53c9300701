package sim

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

// A table has a row for each way of sharing, or operation, and a column for each size. The first column is left-aligned.
type table struct {
	title, note string
	heads       []string
	cells       [][]string
}

// none is shown for a figure that there is not.
const none = "–"

// tables are those of all sections that were simulated.
func (r *Result) tables() []table {
	var all []table
	add := func(title, note, corner string, rows []row) {
		if len(rows) > 0 {
			all = append(all, newTable(title, note, corner, rows))
		}
	}
	for _, f := range faultFigures {
		add(f.title, f.note, "nodes", r.faultRows(f.figure))
	}
	for _, f := range syncFigures {
		add(f.title, f.note, "nodes", r.syncRows(f.figure))
	}
	for _, f := range hotFigures {
		add(f.title, f.note, "readers", r.hotRows(f.figure))
	}
	return all
}

// A row is a line of a table and a curve of a plot.
type row struct {
	name   string
	x      []int
	amount []float64
}

// put adds a point to the row of that name, a new one if need be.
func put(rows []row, name string, x int, amount float64) []row {
	i := slices.IndexFunc(rows, func(r row) bool { return r.name == name })
	if i < 0 {
		i, rows = len(rows), append(rows, row{name: name})
	}
	rows[i].x, rows[i].amount = append(rows[i].x, x), append(rows[i].amount, amount)
	return rows
}

// faultFigures are the tables about faults.
var faultFigures = []struct {
	title, note string
	figure      func(FaultPoint) float64
}{
	{"Messages per fault", "Between nodes, about pages.", func(p FaultPoint) float64 { return p.MessagesPerFault }},
	{"Bytes per fault", "Of these messages, with headers and pages.", func(p FaultPoint) float64 { return p.BytesPerFault }},
	{"Time of a fault, median, µs", "", func(p FaultPoint) float64 { return p.P50 }},
	{"Time of a fault, 99th percentile, µs", "", func(p FaultPoint) float64 { return p.P99 }},
	{"Load of the busiest home over the mean", "Messages received as the home of a page. 1 is even; the number of nodes: one home has it all.",
		func(p FaultPoint) float64 { return p.HomeLoad }},
	{"Load of the busiest daemon over the mean", "Time at work. 1 is even.", func(p FaultPoint) float64 { return p.DaemonLoad }},
	{"Time at work of the busiest daemon, percent", "", func(p FaultPoint) float64 { return 100 * p.DaemonBusy }},
}

func (r *Result) faultRows(figure func(FaultPoint) float64) []row {
	var rows []row
	for _, p := range r.Faults {
		rows = put(rows, string(p.Pattern), p.Nodes, figure(p))
	}
	return rows
}

// syncFigures are the tables about barriers and locks.
var syncFigures = []struct {
	title, note string
	figure      func(SyncPoint) float64
}{
	{"Time of a barrier or lock, µs", "Of the contended lock from one holder to the next.", func(p SyncPoint) float64 { return p.Micros }},
	{"Messages of a barrier or lock", "", func(p SyncPoint) float64 { return p.Messages }},
	{"Bytes of a barrier or lock", "", func(p SyncPoint) float64 { return p.Bytes }},
	{"Time at work of the busiest daemon for one, µs", "", func(p SyncPoint) float64 { return p.Busiest }},
}

// syncRows leaves out points whose figure is 0: those that there are not.
func (r *Result) syncRows(figure func(SyncPoint) float64) []row {
	var rows []row
	for _, p := range r.Sync {
		if y := figure(p); y != 0 {
			rows = put(rows, p.Operation, p.Nodes, y)
		}
	}
	return rows
}

// hotFigures are the tables about the hot page.
var hotFigures = []struct {
	title, note string
	figure      func(HotPoint) float64
}{
	{"Hot page: until all have read it, µs", "", func(p HotPoint) float64 { return p.ReadAll }},
	{"Hot page: messages until all have read it", "", func(p HotPoint) float64 { return float64(p.ReadMessages) }},
	{"Hot page: pages sent by the node that sent most", "", func(p HotPoint) float64 { return float64(p.Supplied) }},
	{"Hot page: time of the write, µs", "", func(p HotPoint) float64 { return p.Write }},
	{"Hot page: messages of the write", "", func(p HotPoint) float64 { return float64(p.WriteMessages) }},
	{"Hot page: invalidations of the write", "", func(p HotPoint) float64 { return float64(p.Invalidations) }},
	{"Hot page: of them, to nodes without a copy", "", func(p HotPoint) float64 { return float64(p.Needless) }},
}

func (r *Result) hotRows(figure func(HotPoint) float64) []row {
	var rows []row
	for _, p := range r.Hot {
		rows = put(rows, string(p.Way), p.Readers, figure(p))
	}
	return rows
}

func newTable(title, note, corner string, rows []row) table {
	t := table{title: title, note: note, heads: []string{corner}}
	var columns []int
	for _, r := range rows {
		columns = append(columns, r.x...)
	}
	slices.Sort(columns)
	columns = slices.Compact(columns)
	for _, x := range columns {
		t.heads = append(t.heads, fmt.Sprint(x))
	}
	for _, r := range rows {
		cells := append([]string{r.name}, slices.Repeat([]string{none}, len(columns))...)
		for i, x := range r.x {
			cells[1+slices.Index(columns, x)] = significant(r.amount[i])
		}
		t.cells = append(t.cells, cells)
	}
	return t
}

// significant writes a figure with three digits, and whole numbers in full.
func significant(x float64) string {
	switch {
	case x == 0 || x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

// Text is the result for a terminal.
func (r *Result) Text() string {
	var b strings.Builder
	for _, t := range r.tables() {
		fmt.Fprintf(&b, "%s\n", t.title)
		if t.note != "" {
			fmt.Fprintf(&b, "%s\n", t.note)
		}
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, strings.Join(t.heads, "\t"))
		for _, cells := range t.cells {
			fmt.Fprintln(w, strings.Join(cells, "\t"))
		}
		w.Flush()
		b.WriteByte('\n')
	}
	return b.String()
}

// Markdown is the result for a document.
func (r *Result) Markdown() string {
	var b strings.Builder
	for _, t := range r.tables() {
		fmt.Fprintf(&b, "## %s\n\n", t.title)
		if t.note != "" {
			fmt.Fprintf(&b, "%s\n\n", t.note)
		}
		fmt.Fprintf(&b, "| %s |\n|---%s|\n", strings.Join(t.heads, " | "), strings.Repeat("|---:", len(t.heads)-1))
		for _, cells := range t.cells {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
		}
		b.WriteByte('\n')
	}
	return b.String()
}
