package report

import (
	"fmt"
	"strings"
)

// A table is made of text, for Markdown and HTML. The first columns, which say what was run, are left-aligned, and the
// others right-aligned.
type table struct {
	Title   string
	Note    string
	Heads   []string
	Cells   [][]string
	Failed  []bool // by row
	Leading int    // number of left-aligned columns
}

// none is shown for a figure that there is not.
const none = "–"

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
	{"speed-up", func(r *Result) float64 { return r.Speedup }, significant},
	{"overhead", func(r *Result) float64 { return r.Overhead }, significant},
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

// significant writes three digits, without an exponent.
func significant(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	case x >= 0.1:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.5f", x)
}

// cell is the median, with the least and the greatest if they read differently.
func (c column) cell(r row) string {
	s, ok := r.spread(c.figure)
	if !ok {
		return none
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

func tables(all []row) []table {
	return []table{
		newTable("Times", "Seconds from the barrier before the computing to the barrier after it. Speed-up is over the sequential version; "+
			"overhead is the time divided by that of as many goroutines on ordinary memory.", all, timeColumns),
		newTable("Faults, messages and lost time", "Of all nodes together, in the timed part. The last columns say which part of the time the average thread waited for "+
			"pages, for locks and at barriers.", all, trafficColumns),
	}
}

func newTable(title, note string, all []row, columns []column) table {
	t := table{Title: title, Note: note, Leading: len(leadingHeads) + 1, Heads: append(append([]string(nil), leadingHeads...), "verified")}
	for _, c := range columns {
		t.Heads = append(t.Heads, c.head)
	}
	for _, r := range all {
		cells := append(r.leading(), r.verdict())
		for _, c := range columns {
			cells = append(cells, c.cell(r))
		}
		t.Cells, t.Failed = append(t.Cells, cells), append(t.Failed, len(r.good()) < len(r.outcomes))
	}
	return t
}

// markdown writes the table as Markdown has it on GitHub.
func (t table) markdown(text *strings.Builder) {
	fmt.Fprintf(text, "## %s\n\n%s\n\n", t.Title, t.Note)
	rule := make([]string, len(t.Heads))
	for i := range rule {
		rule[i] = "---:"
		if i < t.Leading {
			rule[i] = "---"
		}
	}
	for _, cells := range append([][]string{t.Heads, rule}, t.Cells...) {
		text.WriteByte('|')
		for _, cell := range cells {
			fmt.Fprintf(text, " %s |", inline(cell))
		}
		text.WriteByte('\n')
	}
	text.WriteByte('\n')
}

var inlineEscapes = strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ")

// inline escapes what would end a cell, or begin HTML.
func inline(s string) string { return inlineEscapes.Replace(s) }
