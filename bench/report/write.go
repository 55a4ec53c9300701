package report

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"path/filepath"
	"strings"
	"time"
)

// About says how the figures of a report came about.
type About struct {
	Command string // the command line
	Commit  string // of the source, if it is known
	Machine string // processors and kernel
	Go      string // the version
}

// page is what the template of the page is given.
type page struct {
	About
	Measured string
	Summary  string
	Plots    []shownPlot
	Tables   []table
	Failures []failure
}

type shownPlot struct {
	Title, About, PNG, SVG string
	Width                  int
}

type failure struct{ Case, Reason string }

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New(pageName).Parse(pageText))

// Write makes the report from the outcomes of all cases of a sweep, of which there must be at least one.
func (f *Folder) Write(about About, outcomes []Outcome) error {
	text, err := json.MarshalIndent(outcomes, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the results: %w", err)
	}
	if err := replace(filepath.Join(f.path, allName), append(text, '\n')); err != nil {
		return err
	}
	p := newPage(about, outcomes)
	if err := replace(filepath.Join(f.path, tableName), []byte(p.markdown())); err != nil {
		return err
	}
	for _, d := range drawings(rows(outcomes)) {
		if err := f.draw(d); err != nil {
			return err
		}
		p.Plots = append(p.Plots, shownPlot{
			Title: d.title, About: d.about, Width: int(d.width),
			PNG: plotPath(d, formatPNG), SVG: plotPath(d, formatSVG),
		})
	}
	var html bytes.Buffer
	if err := pageTemplate.Execute(&html, p); err != nil {
		return fmt.Errorf("making the page: %w", err)
	}
	return replace(f.Page(), html.Bytes())
}

// plotPath is relative to the folder, and to the page, which lies in it.
func plotPath(d drawing, format string) string { return plotsName + "/" + d.name + "." + format }

func (f *Folder) draw(d drawing) error {
	for _, format := range []string{formatPNG, formatSVG} {
		var image bytes.Buffer
		if err := d.write(&image, format); err != nil {
			return err
		}
		if err := replace(filepath.Join(f.path, filepath.FromSlash(plotPath(d, format))), image.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

func newPage(about About, outcomes []Outcome) page {
	p := page{About: about, Tables: tables(rows(outcomes))}
	first, last := outcomes[0].Began, outcomes[0].Began
	low, high := outcomes[0].Load, outcomes[0].Load
	for _, o := range outcomes {
		if o.Began.Before(first) {
			first = o.Began
		}
		if o.Began.After(last) {
			last = o.Began
		}
		low, high = min(low, o.Load), max(high, o.Load)
		if o.Failure != "" {
			p.Failures = append(p.Failures, failure{fmt.Sprintf("%v (run %d)", o.Case, o.Case.Attempt), o.Failure})
		}
	}
	p.Measured = fmt.Sprintf("%s to %s, load average %.1f to %.1f", first.Format(time.DateTime), last.Format(time.DateTime), low, high)
	p.Summary = fmt.Sprintf("%s, %d verified, %d failed.", count(len(outcomes), "run"), len(outcomes)-len(p.Failures), len(p.Failures))
	return p
}

// markdown is the text of the page as Markdown, without the plots.
func (p page) markdown() string {
	var text strings.Builder
	fmt.Fprintf(&text, "# Benchmark report\n\n%s All nodes are processes of one machine. Medians; the least and the greatest in brackets.\n\n", p.Summary)
	for _, line := range [][2]string{{"Command", p.Command}, {"Commit", p.Commit}, {"Machine", p.Machine}, {"Go", p.Go}, {"Measured", p.Measured}} {
		fmt.Fprintf(&text, "- %s: %s\n", line[0], inline(line[1]))
	}
	text.WriteByte('\n')
	for _, t := range p.Tables {
		t.markdown(&text)
	}
	if len(p.Failures) > 0 {
		text.WriteString("## Failed runs\n\n")
		for _, f := range p.Failures {
			fmt.Fprintf(&text, "- %s: %s\n", f.Case, inline(f.Reason))
		}
	}
	return text.String()
}
