package fabric

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"dsmd/bench/chart"
	"dsmd/bench/table"
)

// tables lists those of all sections that were measured.
func (r Result) tables() []table.Table {
	latency := table.Grid("Latency in µs, by message size",
		"Medians, of the run with the least: half a round trip.", "bytes",
		r.bySize(Latencies, func(p Point) string { return table.Significant(p.P50) }))
	bandwidth := table.Grid("Bandwidth in MB/s, by message size", "In the best run.", "bytes",
		r.bySize(Bandwidths, func(p Point) string { return table.Significant(p.MBPerSecond) }))
	queues := table.Table{Title: "Bandwidth over many connections", Heads: []string{"operation", "bytes", "connections", "MB/s", "operations/s"}}
	for _, p := range r.of(Queues) {
		queues.Add(p.name(), p.Bytes, p.Connections, p.MBPerSecond, p.PerSecond)
	}
	return table.Filled(latency, bandwidth, queues, r.registrationTable(), r.designTable(), r.fetchTable())
}

func (r Result) of(section Section) []Point {
	return slices.DeleteFunc(slices.Clone(r.Points), func(p Point) bool { return p.Section != section })
}

// name is the row of a point.
func (p Point) name() string { return string(p.Kind) + " " + string(p.Operation) }

// bySize are the cells of a table with a row for each operation and a column for each size.
func (r Result) bySize(section Section, write func(Point) string) []table.Cell {
	var cells []table.Cell
	for _, p := range r.of(section) {
		cells = append(cells, table.Cell{Row: p.name(), Column: p.Bytes, Text: write(p)})
	}
	return cells
}

func (r Result) registrationTable() table.Table {
	t := table.Table{Title: "Registration in µs, by size", Note: "Medians, of memory that has been touched.", Heads: []string{"bytes", "pages of", "register", "deregister", "register, per 4 KiB"}}
	for _, g := range r.Registrations {
		pages := "4 KiB"
		if g.Huge {
			pages = "2 MiB"
		}
		t.Add(g.Bytes, pages, g.Register, g.Deregister, g.Register/float64(g.Bytes>>12))
	}
	return t
}

func (r Result) designTable() table.Table {
	t := table.Table{Title: "Designs of registered memory: µs for each page fetch", Note: "Pages at random from a working set at each end. Registrations are those of both ends.",
		Heads: []string{"design", "bytes", "working set", "p50", "p99", "mean", "registrations per fetch"}}
	for _, p := range r.of(Designs) {
		t.Add(p.Operation, p.Bytes, fmt.Sprintf("%d pages", p.Pages), p.P50, p.P99, p.Mean, fmt.Sprintf("%.2f", p.Registrations))
	}
	return t
}

func (r Result) fetchTable() table.Table {
	t := table.Table{Title: "Page fetches in µs, and what they are made of", Note: "Medians of the medians of the runs, and the least and the greatest of these; and medians of the ratios that each run has.",
		Heads: []string{"operation", "p50", "(of runs)", "p99", "over the sum", "least, over the sum of the leasts"}}
	for _, f := range r.Fetches {
		ratio, least := table.None, table.None
		if f.Ratio > 0 {
			ratio, least = fmt.Sprintf("%.2f", f.Ratio), fmt.Sprintf("%.2f", f.Least)
		}
		t.Add(f.Fabric+": "+f.Name, f.P50, table.Significant(f.Low)+"–"+table.Significant(f.High), f.P99, ratio, least)
	}
	return t
}

// Text is the result for a terminal.
func (r Result) Text() string {
	text := table.Text(r.tables())
	for _, note := range r.Notes {
		text += "note: " + note + "\n"
	}
	return text
}

// Markdown is the result as Markdown has it on GitHub.
func (r Result) Markdown() string {
	var more [][2]string
	for _, d := range r.Devices {
		more = append(more, [2]string{"Device", d.Name + ", " + cmp.Or(d.Firmware, "no firmware version")})
	}
	for _, note := range r.Notes {
		more = append(more, [2]string{"Note", note})
	}
	return strings.Join([]string{"# The fabric", r.Origin.Markdown(more...), table.Markdown(r.tables())}, "\n\n")
}

// WriteTo writes the result into a folder, which is made if there is none: fabric.json, fabric.md,
// and plots as fabric-NAME.png and .svg. Files of these names are replaced.
func (r Result) WriteTo(dir string) error {
	return chart.WriteFolder(dir, "fabric", r, r.Markdown(), r.drawings())
}
