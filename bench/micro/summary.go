package micro

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// A Line is the result of one microbenchmark. Times are in Unit.
type Line struct {
	Name string  `json:"name"`
	Unit string  `json:"unit"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	Mean float64 `json:"mean"`
	// FloorP50 is the better of the two ways of waiting.
	FloorP50 float64 `json:"floor_p50"`
	// Ratio is P50 / FloorP50: how many times as long as the floor it takes.
	Ratio float64 `json:"ratio"`

	FloorP99 float64 `json:"floor_p99"`
	// FloorWaits is how the processes of the better floor wait: "blocking" or "spinning".
	FloorWaits string `json:"floor_waits"`
	// P50Min and P50Max are the least and the greatest of the runs' own medians, and the same of
	// the floor's: how far a ratio can be trusted.
	P50Min      float64 `json:"p50_min"`
	P50Max      float64 `json:"p50_max"`
	FloorP50Min float64 `json:"floor_p50_min"`
	FloorP50Max float64 `json:"floor_p50_max"`
	Runs        int     `json:"runs"`
	Nodes       int     `json:"nodes"`
}

// Samples are the times of one microbenchmark and its floor, one slice per run.
type Samples struct {
	Ours, Blocking, Spinning [][]float64
}

// ErrNoSamples is returned when there is nothing to summarise.
var ErrNoSamples = errors.New("no samples were taken")

// Summarise makes one line of all samples. Percentiles are over the samples of all runs together.
func Summarise(m Micro, nodes int, s Samples) (Line, error) {
	for _, runs := range [][][]float64{s.Ours, s.Blocking, s.Spinning} {
		if len(runs) == 0 || slices.ContainsFunc(runs, func(run []float64) bool { return len(run) == 0 }) {
			return Line{}, fmt.Errorf("%s: %w", m.Name, ErrNoSamples)
		}
	}
	floorRuns, waits := s.Blocking, "blocking"
	if Percentile(slices.Concat(s.Spinning...), 50) < Percentile(slices.Concat(s.Blocking...), 50) {
		floorRuns, waits = s.Spinning, "spinning"
	}
	ours, floor := slices.Concat(s.Ours...), slices.Concat(floorRuns...)
	line := Line{
		Name: m.Name, Unit: m.Unit, Runs: len(s.Ours), Nodes: nodes, FloorWaits: waits,
		P50: Percentile(ours, 50), P99: Percentile(ours, 99), Mean: mean(ours),
		FloorP50: Percentile(floor, 50), FloorP99: Percentile(floor, 99),
	}
	line.Ratio = line.P50 / line.FloorP50
	line.P50Min, line.P50Max = medians(s.Ours)
	line.FloorP50Min, line.FloorP50Max = medians(floorRuns)
	return line, nil
}

func medians(runs [][]float64) (least, greatest float64) {
	least, greatest = math.Inf(1), math.Inf(-1)
	for _, run := range runs {
		m := Percentile(run, 50)
		least, greatest = min(least, m), max(greatest, m)
	}
	return least, greatest
}

// mean is that of samples, of which there is one at least.
func mean(samples []float64) float64 {
	sum := 0.0
	for _, x := range samples {
		sum += x
	}
	return sum / float64(len(samples))
}

// Percentile returns the smallest sample that at least percent per cent of the samples do not
// exceed (the nearest-rank definition, which never invents a value between two). samples is not
// empty and is left as it is; percent is over 0 and at most 100.
func Percentile(samples []float64, percent float64) float64 {
	sorted := slices.Clone(samples)
	slices.Sort(sorted)
	rank := int(math.Ceil(percent / 100 * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}
