package stages

import (
	"errors"
	"fmt"
	"slices"

	"dsmd/bench/chart"
	"dsmd/bench/micro"
	"dsmd/bench/table"
)

// A Stage is what lies between two points that a fault passes. Times are in microseconds.
type Stage struct {
	Name  string  `json:"name"`
	Where string  `json:"where"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	// Slowest is the mean over the slowest hundredth of the accesses: where their time goes.
	Slowest float64 `json:"slowest"`
}

// An Operation is a microbenchmark, stage by stage. The medians of the stages need not add up to
// the median of the whole.
type Operation struct {
	Name    string  `json:"name"`
	Summary string  `json:"summary"`
	Samples int     `json:"samples"`
	LeftOut int     `json:"left_out"` // accesses that took another way
	P50     float64 `json:"p50"`
	P99     float64 `json:"p99"`
	Slowest float64 `json:"slowest"`
	Stages  []Stage `json:"stages"`
}

// A Result is what `bench stages` reports.
type Result struct {
	Operations []Operation `json:"operations"`
}

// ErrNoPath is returned when no access has left its stages in the daemons' records.
var ErrNoPath = errors.New("no access has passed all stages in the records of the daemons")

// Summarise makes an Operation of accesses and of what the daemon that asked and the one that
// answered have noted meanwhile, in the order of time.
func Summarise(m micro.Micro, accesses []Access, asks, answers []Record) (Operation, error) {
	paths, leftOut := match(accesses, asks, answers)
	if len(paths) == 0 {
		return Operation{}, fmt.Errorf("%s: %w", m.Name, ErrNoPath)
	}
	slices.SortStableFunc(paths, func(a, b path) int { return int(a.between(0, len(steps)) - b.between(0, len(steps))) })
	o := Operation{Name: m.Name, Summary: m.Summary, Samples: len(paths), LeftOut: leftOut}
	o.P50, o.P99, o.Slowest = figures(paths, 0, len(steps))
	for i, s := range steps {
		stage := Stage{Name: s.name, Where: s.where}
		stage.P50, stage.P99, stage.Slowest = figures(paths, i, i+1)
		o.Stages = append(o.Stages, stage)
	}
	return o, nil
}

// between is the time from one point to another.
func (p path) between(from, to int) int64 { return p[to] - p[from] }

// figures are median, 99th percentile and mean of the slowest of what paths, sorted by their
// length, have between two points, in microseconds.
func figures(paths []path, from, to int) (p50, p99, slowest float64) {
	times := make([]float64, len(paths))
	for i, p := range paths {
		times[i] = float64(p.between(from, to)) / 1e3
	}
	slow := times[len(times)-max(len(times)/100, 1):]
	for _, t := range slow {
		slowest += t / float64(len(slow))
	}
	return micro.Percentile(times, 50), micro.Percentile(times, 99), slowest
}

// tables has one for each operation.
func (r *Result) tables() []table.Table {
	var all []table.Table
	for _, o := range r.Operations {
		t := table.Table{
			Title: o.Name, Note: fmt.Sprintf("%s; %d accesses, %d that took another way are left out", o.Summary, o.Samples, o.LeftOut),
			Heads: []string{"where", "stage", "p50, µs", "p99, µs", "slowest 1 %, µs"}, Leading: 2,
		}
		for _, s := range append(slices.Clone(o.Stages), Stage{Name: "together", P50: o.P50, P99: o.P99, Slowest: o.Slowest}) {
			t.Add(s.Where, s.Name, fmt.Sprintf("%.1f", s.P50), fmt.Sprintf("%.1f", s.P99), fmt.Sprintf("%.1f", s.Slowest))
		}
		all = append(all, t)
	}
	return all
}

// Text is the result for people.
func (r *Result) Text() string { return table.Text(r.tables()) }

// Markdown is the same for a document.
func (r *Result) Markdown() string { return table.Markdown(r.tables()) }

// WriteTo writes the result into a folder, which is made if there is none: stages.json, stages.md,
// and the chart as stages-faults.png and .svg. Files of these names are replaced. Errors name the
// file.
func (r *Result) WriteTo(dir string) error {
	return chart.WriteFolder(dir, "stages", r, r.Markdown(), []chart.Drawing{r.drawing()})
}
