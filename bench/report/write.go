package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"dsmd/bench/chart"
	"dsmd/bench/table"
)

// page is what the template of the page is given.
type page struct {
	table.Origin
	Measured string
	Summary  string
	Plots    []shownPlot
	Tables   []shownTable
	Failures []failure
}

type shownPlot struct {
	Title, About, PNG, SVG string
	Width                  int
}

// A failure is a reason, and the cases that failed for it.
type failure struct {
	Reason string
	Cases  []string
}

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New(pageName).Parse(pageText))

// Write makes the report from the outcomes of all cases of a sweep, of which there must be at least
// one.
func (f *Folder) Write(origin table.Origin, outcomes []Outcome) error {
	if err := encode(filepath.Join(f.path, allName), outcomes); err != nil {
		return err
	}
	p := newPage(origin, outcomes)
	if err := replace(filepath.Join(f.path, tableName), []byte(p.markdown())); err != nil {
		return err
	}
	for _, d := range drawings(rows(outcomes)) {
		if err := f.draw(d); err != nil {
			return err
		}
		p.Plots = append(p.Plots, shownPlot{
			Title: d.Title, About: d.About, Width: int(d.Width),
			PNG: plotPath(d, chart.PNG), SVG: plotPath(d, chart.SVG),
		})
	}
	var html bytes.Buffer
	if err := pageTemplate.Execute(&html, p); err != nil {
		return fmt.Errorf("making the page: %w", err)
	}
	return replace(f.Page(), html.Bytes())
}

// plotPath is relative to the folder, and to the page, which lies in it.
func plotPath(d chart.Drawing, format string) string { return plotsName + "/" + d.Name + "." + format }

func (f *Folder) draw(d chart.Drawing) error {
	for _, format := range chart.Formats() {
		image, err := d.Encode(format)
		if err != nil {
			return err
		}
		if err := replace(filepath.Join(f.path, filepath.FromSlash(plotPath(d, format))), image); err != nil {
			return err
		}
	}
	return nil
}

func newPage(origin table.Origin, outcomes []Outcome) page {
	p := page{Origin: origin, Tables: tables(rows(outcomes))}
	began := func(a, b Outcome) int { return a.Began.Compare(b.Began) }
	first, last := slices.MinFunc(outcomes, began).Began, slices.MaxFunc(outcomes, began).Began
	low, high, failed := outcomes[0].Load, outcomes[0].Load, 0
	for _, o := range outcomes {
		low, high = min(low, o.Load), max(high, o.Load)
		if o.Failure != "" {
			failed++
			p.fail(o)
		}
	}
	p.Measured = fmt.Sprintf("%s to %s, load average %.1f to %.1f", first.Format(time.DateTime), last.Format(time.DateTime), low, high)
	p.Summary = fmt.Sprintf("%s, %d verified, %d failed.", count(len(outcomes), "run"), len(outcomes)-failed, failed)
	return p
}

// fail adds a failed case. What fails for one reason, such as a trap that this machine does not
// have, often fails in many cases.
func (p *page) fail(o Outcome) {
	i := slices.IndexFunc(p.Failures, func(f failure) bool { return f.Reason == o.Failure })
	if i < 0 {
		i = len(p.Failures)
		p.Failures = append(p.Failures, failure{Reason: o.Failure})
	}
	p.Failures[i].Cases = append(p.Failures[i].Cases, fmt.Sprintf("%v (run %d)", o.Case, o.Case.Attempt))
}

// markdown is the text of the page as Markdown, without the plots.
func (p page) markdown() string {
	var text strings.Builder
	fmt.Fprintf(&text, "# Benchmark report\n\n%s All nodes are processes of one machine. Medians; the least and the greatest in brackets.\n\n", p.Summary)
	text.WriteString(p.Origin.Markdown([2]string{"Measured", p.Measured}) + "\n")
	for _, t := range p.Tables {
		text.WriteString(t.Markdown())
	}
	if len(p.Failures) > 0 {
		text.WriteString("## Failed runs\n\n")
		for _, f := range p.Failures {
			fmt.Fprintf(&text, "%s:\n\n", table.Inline(f.Reason))
			for _, c := range f.Cases {
				fmt.Fprintf(&text, "- %s\n", c)
			}
			text.WriteByte('\n')
		}
	}
	return text.String()
}
