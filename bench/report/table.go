package report

import (
	"fmt"
	"slices"

	"dsmd/bench/table"
)

// A shownTable is a table whose first columns say what was run.
type shownTable struct {
	table.Table
	Failed []bool // by row
}

var leadingHeads = []string{"kernel", "size", "nodes", "threads", "trap", "transport"}

func (r row) leading() []string {
	size, trap, transport := r.Size, r.Trap, r.Transport
	if good := r.good(); len(good) > 0 {
		trap, transport = chosen(trap, good[0].Trap), chosen(transport, good[0].Transport)
		if n := fmt.Sprint(good[0].N); n != size {
			size += " (" + n + ")"
		}
	}
	return []string{r.Kernel, size, fmt.Sprint(r.Nodes), fmt.Sprint(r.Threads), trap, transport}
}

// chosen adds to what was asked for what it stood for.
func chosen(asked, used string) string {
	if asked == used {
		return asked
	}
	return asked + " (" + used + ")"
}

// A column is a figure of a result, and how it is written.
type column struct {
	head   string
	figure func(*Result) float64
	write  func(float64) string
}

func fault(kind string) func(*Result) float64 {
	return func(r *Result) float64 { return float64(r.Faults[kind]) }
}

func seconds(r *Result) float64 { return r.Seconds }

var timeColumns = []column{
	{"seconds", seconds, writeSeconds},
	{"serial s", func(r *Result) float64 { return r.SecondsSerial }, writeSeconds},
	{"goroutines s", func(r *Result) float64 { return r.SecondsGoroutines }, writeSeconds},
	{"speed-up", func(r *Result) float64 { return r.Speedup }, table.Significant},
	{"overhead", func(r *Result) float64 { return r.Overhead }, table.Significant},
}

var trafficColumns = []column{
	{"read faults", fault("read"), whole},
	{"write faults", fault("write"), whole},
	{"upgrades", fault("upgrade"), whole},
	{"MB moved", func(r *Result) float64 { return float64(r.BytesMoved) / 1e6 }, func(x float64) string { return fmt.Sprintf("%.2f", x) }},
	{"messages", func(r *Result) float64 { return float64(r.Messages) }, whole},
	{"locks", func(r *Result) float64 { return float64(r.Locks) }, whole},
	{"barriers", func(r *Result) float64 { return float64(r.Barriers) }, whole},
	{"% in faults", func(r *Result) float64 { return 100 * r.Shares().Faults }, whole},
	{"% in locks", func(r *Result) float64 { return 100 * r.Shares().Locks }, whole},
	{"% at barriers", func(r *Result) float64 { return 100 * r.Shares().Barriers }, whole},
}

func whole(x float64) string { return fmt.Sprintf("%.0f", x) }

func writeSeconds(x float64) string {
	if x < 0.01 {
		return fmt.Sprintf("%.6f", x)
	}
	return fmt.Sprintf("%.4f", x)
}

// cell is the median, with the least and the greatest if they read differently.
func (c column) cell(r row) string {
	s, ok := r.spread(c.figure)
	if !ok {
		return table.None
	}
	median, least, greatest := c.write(s.median), c.write(s.least), c.write(s.greatest)
	if least == greatest {
		return median
	}
	return fmt.Sprintf("%s (%s–%s)", median, least, greatest)
}

// verdict says how many of the runs succeeded, if not all.
func (r row) verdict() string {
	switch good := len(r.good()); good {
	case len(r.outcomes):
		return "yes"
	case 0:
		return "FAILED"
	default:
		return fmt.Sprintf("%d of %d", good, len(r.outcomes))
	}
}

func tables(all []row) []shownTable {
	return []shownTable{
		newTable("Times", "Seconds from the barrier before the computing to the barrier after it. Speed-up is over the sequential version; "+
			"overhead is the time divided by that of as many goroutines on ordinary memory.", all, timeColumns),
		newTable("Faults, messages and lost time", "Of all nodes together, in the timed part. The last columns say which part of the time the average thread waited for "+
			"pages, for locks and at barriers.", all, trafficColumns),
	}
}

func newTable(title, note string, all []row, columns []column) shownTable {
	t := shownTable{Table: table.Table{Title: title, Note: note, Leading: len(leadingHeads) + 1, Heads: append(slices.Clone(leadingHeads), "verified")}}
	for _, c := range columns {
		t.Heads = append(t.Heads, c.head)
	}
	for _, r := range all {
		cells := append(r.leading(), r.verdict())
		for _, c := range columns {
			cells = append(cells, c.cell(r))
		}
		t.Rows, t.Failed = append(t.Rows, cells), append(t.Failed, len(r.good()) < len(r.outcomes))
	}
	return t
}
