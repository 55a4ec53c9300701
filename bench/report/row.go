package report

import (
	"slices"

	"dsmd/bench/table"
)

// A row is one combination of a sweep, with the outcomes of all its runs.
type row struct {
	Case
	outcomes []Outcome
}

// rows gathers outcomes by combination, in the order of their first.
func rows(outcomes []Outcome) []row {
	var all []row
	for _, o := range outcomes {
		c := o.Case
		c.Attempt = 0
		i := slices.IndexFunc(all, func(r row) bool { return r.Case == c })
		if i < 0 {
			i = len(all)
			all = append(all, row{Case: c})
		}
		all[i].outcomes = append(all[i].outcomes, o)
	}
	return all
}

// good are the results of the runs that succeeded. Figures of wrong results are not shown.
func (r row) good() []*Result {
	var results []*Result
	for _, o := range r.outcomes {
		if o.Failure == "" && o.Result != nil {
			results = append(results, o.Result)
		}
	}
	return results
}

// spread is a figure over several runs.
type spread struct{ median, least, greatest float64 }

// spread returns a figure of the runs that succeeded; ok is false if none has.
func (r row) spread(figure func(*Result) float64) (s spread, ok bool) {
	var values []float64
	for _, result := range r.good() {
		values = append(values, figure(result))
	}
	if len(values) == 0 {
		return s, false
	}
	return spread{table.Median(values), slices.Min(values), slices.Max(values)}, true
}

// median is the median of a figure, or 0 and false if no run has succeeded.
func (r row) median(figure func(*Result) float64) (float64, bool) {
	s, ok := r.spread(figure)
	return s.median, ok
}

// A setup is how the cluster of a row traps and talks. Each has its own lines and plots.
type setup struct{ trap, transport string }

func (r row) setup() setup { return setup{r.Trap, r.Transport} }

func (s setup) String() string { return s.trap + ", " + s.transport }

// distinct lists what key says of the rows, in order, each once.
func distinct[K comparable](all []row, key func(row) K) []K {
	var keys []K
	for _, r := range all {
		if k := key(r); !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys
}

// where picks the rows that ok accepts.
func where(all []row, ok func(row) bool) []row {
	return slices.DeleteFunc(slices.Clone(all), func(r row) bool { return !ok(r) })
}
