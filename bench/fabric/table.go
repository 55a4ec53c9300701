package fabric

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

// A table is a part of the result for people. The first column is left-aligned.
type table struct {
	title, note string
	heads       []string
	cells       [][]string
}

// none is shown for a figure that there is not.
const none = "–"

// tables lists those of all sections that were measured.
func (r Result) tables() []table {
	var all []table
	add := func(t table) {
		if len(t.cells) > 0 {
			all = append(all, t)
		}
	}
	add(r.bySize(Latencies, "Latency in µs, by message size", "Medians, of the run with the least. Of writes and sends half a round trip, of reads and atomics all of it.",
		func(p Point) string { return significant(p.P50) }))
	add(r.bySize(Bandwidths, "Bandwidth in MB/s, by message size", "Of messages that arrived, in the best run; in brackets which part did not.", func(p Point) string {
		if p.Lost >= 0.001 {
			return fmt.Sprintf("%s (-%.1f%%)", significant(p.MBPerSecond), 100*p.Lost)
		}
		return significant(p.MBPerSecond)
	}))
	add(r.byConnections())
	add(r.registrationTable())
	add(r.designTable())
	add(r.fetchTable())
	return all
}

func (r Result) of(section Section) []Point {
	var some []Point
	for _, p := range r.Points {
		if p.Section == section {
			some = append(some, p)
		}
	}
	return some
}

// name is the row of a point.
func (p Point) name() string { return string(p.Kind) + " " + string(p.Operation) }

// bySize has a row for each operation and a column for each size.
func (r Result) bySize(section Section, title, note string, write func(Point) string) table {
	t := table{title: title, note: note, heads: []string{"bytes"}}
	some := r.of(section)
	var sizes []int
	for _, p := range some {
		if !slices.Contains(sizes, p.Bytes) {
			sizes = append(sizes, p.Bytes)
		}
	}
	slices.Sort(sizes)
	for _, size := range sizes {
		t.heads = append(t.heads, fmt.Sprint(size))
	}
	for _, p := range some {
		if len(t.cells) == 0 || t.cells[len(t.cells)-1][0] != p.name() {
			t.cells = append(t.cells, append([]string{p.name()}, slices.Repeat([]string{none}, len(sizes))...))
		}
		t.cells[len(t.cells)-1][1+slices.Index(sizes, p.Bytes)] = write(p)
	}
	return t
}

func (r Result) byConnections() table {
	t := table{title: "Bandwidth over many connections", heads: []string{"operation", "bytes", "connections", "MB/s", "operations/s"}}
	for _, p := range r.of(Queues) {
		t.cells = append(t.cells, []string{p.name(), fmt.Sprint(p.Bytes), fmt.Sprint(p.Connections), significant(p.MBPerSecond), significant(p.PerSecond)})
	}
	return t
}

func (r Result) registrationTable() table {
	t := table{title: "Registration in µs, by size", note: "Medians, of memory that has been touched.", heads: []string{"bytes", "pages of", "register", "deregister", "register, per 4 KiB"}}
	for _, g := range r.Registrations {
		pages := "4 KiB"
		if g.Huge {
			pages = "2 MiB"
		}
		t.cells = append(t.cells, []string{fmt.Sprint(g.Bytes), pages, significant(g.Register), significant(g.Deregister), significant(g.Register / float64(g.Bytes>>12))})
	}
	return t
}

func (r Result) designTable() table {
	t := table{title: "Designs of registered memory: µs for each page fetch", note: "Pages at random from a working set at each end. Registrations are those of both ends.",
		heads: []string{"design", "bytes", "working set", "p50", "p99", "mean", "registrations per fetch"}}
	for _, p := range r.of(Designs) {
		t.cells = append(t.cells, []string{string(p.Operation), fmt.Sprint(p.Bytes), fmt.Sprintf("%d pages", p.Pages), significant(p.P50), significant(p.P99), significant(p.Mean),
			fmt.Sprintf("%.2f", p.Registrations)})
	}
	return t
}

func (r Result) fetchTable() table {
	t := table{title: "Page fetches in µs, and what they are made of", note: "Medians of the medians of the runs, and the least and the greatest of these; and medians of the ratios that each run has.",
		heads: []string{"operation", "p50", "(of runs)", "p99", "over the sum", "least, over the sum of the leasts"}}
	for _, f := range r.Fetches {
		ratio, least := none, none
		if f.Ratio > 0 {
			ratio, least = fmt.Sprintf("%.2f", f.Ratio), fmt.Sprintf("%.2f", f.Least)
		}
		t.cells = append(t.cells, []string{f.Fabric + ": " + f.Name, significant(f.P50), significant(f.Low) + "–" + significant(f.High), significant(f.P99), ratio, least})
	}
	return t
}

// significant writes three digits, without an exponent.
func significant(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

// Text is the result for a terminal.
func (r Result) Text() string {
	var text strings.Builder
	for _, t := range r.tables() {
		fmt.Fprintf(&text, "%s\n", t.title)
		if t.note != "" {
			fmt.Fprintf(&text, "%s\n", t.note)
		}
		w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
		width := 0
		for _, cells := range append([][]string{t.heads}, t.cells...) {
			width = max(width, len([]rune(cells[0])))
		}
		for _, cells := range append([][]string{t.heads}, t.cells...) {
			fmt.Fprintf(w, "%-*s\t%s\t\n", width, cells[0], strings.Join(cells[1:], "\t"))
		}
		w.Flush()
		text.WriteByte('\n')
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&text, "note: %s\n", note)
	}
	return text.String()
}

// Markdown is the result as Markdown has it on GitHub.
func (r Result) Markdown() string {
	var text strings.Builder
	text.WriteString("# The fabric\n\n")
	for _, line := range [][2]string{{"Command", r.Origin.Command}, {"Commit", r.Origin.Commit}, {"Machine", r.Origin.Machine}, {"Go", r.Origin.Go}} {
		fmt.Fprintf(&text, "- %s: %s\n", line[0], cmp.Or(line[1], none))
	}
	for _, d := range r.Devices {
		fmt.Fprintf(&text, "- Device: %s, %s\n", d.Name, cmp.Or(d.Firmware, "no firmware version"))
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&text, "- Note: %s\n", note)
	}
	for _, t := range r.tables() {
		fmt.Fprintf(&text, "\n## %s\n\n", t.title)
		if t.note != "" {
			fmt.Fprintf(&text, "%s\n\n", t.note)
		}
		rule := append([]string{"---"}, slices.Repeat([]string{"---:"}, len(t.heads)-1)...)
		for _, cells := range append([][]string{t.heads, rule}, t.cells...) {
			fmt.Fprintf(&text, "| %s |\n", strings.Join(cells, " | "))
		}
	}
	return text.String()
}
