// Package table has the tables of all reports, as text for a terminal and as Markdown.
package table

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// None is shown for a figure that there is not.
const None = "–"

// A Table is text in rows and columns. The first Leading columns, at least one, are left-aligned,
// and the others right-aligned.
type Table struct {
	Title, Note string
	Heads       []string
	Rows        [][]string
	Leading     int
}

// Add appends a row. A float64 is written as Significant writes it, everything else as fmt.Sprint.
func (t *Table) Add(cells ...any) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		if x, ok := cell.(float64); ok {
			row[i] = Significant(x)
		} else {
			row[i] = fmt.Sprint(cell)
		}
	}
	t.Rows = append(t.Rows, row)
}

// Significant writes three digits, without an exponent; whole numbers from 100 on in full.
func Significant(x float64) string {
	switch {
	case x == 0 || x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	case x >= 0.1:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.5f", x)
}

// A Cell belongs to a row by its name and to a column by its number.
type Cell struct {
	Row    string
	Column int
	Text   string
}

// Grid makes a table that has a row for each name, in the order of the first cells, and a column
// for each number. corner is the head of the names.
func Grid(title, note, corner string, cells []Cell) Table {
	t := Table{Title: title, Note: note, Heads: []string{corner}}
	var columns []int
	for _, c := range cells {
		columns = append(columns, c.Column)
	}
	slices.Sort(columns)
	columns = slices.Compact(columns)
	for _, c := range columns {
		t.Heads = append(t.Heads, fmt.Sprint(c))
	}
	for _, c := range cells {
		i := slices.IndexFunc(t.Rows, func(row []string) bool { return row[0] == c.Row })
		if i < 0 {
			i = len(t.Rows)
			t.Rows = append(t.Rows, append([]string{c.Row}, slices.Repeat([]string{None}, len(columns))...))
		}
		t.Rows[i][1+slices.Index(columns, c.Column)] = c.Text
	}
	return t
}

// Filled are those of the tables that have rows.
func Filled(all ...Table) []Table {
	return slices.DeleteFunc(all, func(t Table) bool { return len(t.Rows) == 0 })
}

// Text is the table for a terminal, with title and note if it has some.
func (t *Table) Text() string {
	widths := make([]int, len(t.Heads))
	lines := append([][]string{t.Heads}, t.Rows...)
	for _, cells := range lines {
		for i, cell := range cells {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var text strings.Builder
	for _, line := range []string{t.Title, t.Note} {
		if line != "" {
			text.WriteString(line + "\n")
		}
	}
	for _, cells := range lines {
		line := ""
		for i, cell := range cells {
			if i < max(t.Leading, 1) {
				line += fmt.Sprintf("%-*s  ", widths[i], cell)
			} else {
				line += fmt.Sprintf("%*s  ", widths[i], cell)
			}
		}
		text.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return text.String()
}

var escapes = strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ")

// Inline escapes what would end a cell of Markdown, or begin HTML.
func Inline(s string) string { return escapes.Replace(s) }

// Markdown is the table as GitHub's Markdown has it, under its title.
func (t *Table) Markdown() string {
	var text strings.Builder
	if t.Title != "" {
		fmt.Fprintf(&text, "## %s\n\n", t.Title)
	}
	if t.Note != "" {
		fmt.Fprintf(&text, "%s\n\n", t.Note)
	}
	rule := slices.Repeat([]string{"---:"}, len(t.Heads))
	for i := range max(t.Leading, 1) {
		rule[i] = "---"
	}
	for _, cells := range append([][]string{t.Heads, rule}, t.Rows...) {
		text.WriteByte('|')
		for _, cell := range cells {
			fmt.Fprintf(&text, " %s |", Inline(cell))
		}
		text.WriteByte('\n')
	}
	text.WriteByte('\n')
	return text.String()
}

// Text is all tables for a terminal.
func Text(all []Table) string { return join(all, func(t *Table) string { return t.Text() + "\n" }) }

// Markdown is all tables as Markdown.
func Markdown(all []Table) string { return join(all, (*Table).Markdown) }

func join(all []Table, write func(*Table) string) string {
	text := ""
	for i := range all {
		text += write(&all[i])
	}
	return text
}

// An Origin says how a result came about.
type Origin struct {
	Command string    `json:"command"` // the command line
	Commit  string    `json:"commit"`  // of the source, if it is known
	Machine string    `json:"machine"` // processors and kernel
	Go      string    `json:"go"`      // the version
	Began   time.Time `json:"began"`
}

// Markdown is a list of the origin, and of what else there is to say.
func (o *Origin) Markdown(more ...[2]string) string {
	text := ""
	for _, line := range append([][2]string{{"Command", o.Command}, {"Commit", o.Commit}, {"Machine", o.Machine}, {"Go", o.Go}}, more...) {
		text += fmt.Sprintf("- %s: %s\n", line[0], Inline(cmp.Or(line[1], None)))
	}
	return text
}
