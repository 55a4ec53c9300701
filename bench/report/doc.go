// Package report turns many runs of the benchmark programs into something to read: a folder with
// every result as JSON, tables, plots, and a page of HTML that shows them.
//
// A Result is what one run measured, and also what `bench run --json` writes. A Sweep names the
// runs that a report is about, its Cases. How a case is run is the caller's business. What became
// of it, an Outcome, goes into a Folder at once, in a file of its own which is complete or not
// there: so a sweep that was interrupted goes on where it stopped, by asking the folder first. At
// the end, Write makes the tables, plots and the page from the outcomes of all cases:
//
//	DIR/index.html           the page
//	DIR/table.md             its tables as Markdown
//	DIR/results.json         all outcomes, in the order of the sweep
//	DIR/results/CASE.json    one outcome each
//	DIR/plots/NAME.png, .svg the plots
package report
