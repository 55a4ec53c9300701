package micro

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestNames: scripts read the names in the JSON output.
func TestNames(t *testing.T) {
	want := []string{"read_miss", "write_miss", "upgrade", "invalidate", "read_miss_spaced", "read_miss_busy", "scan",
		"first_touch", "lock_local", "lock_handoff", "barrier"}
	got := Names()
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the names are %v, want %v", got, want)
	}
}

func TestChoose(t *testing.T) {
	if all, err := Choose(nil); err != nil || len(all) != len(All()) {
		t.Errorf("Choose() = %d microbenchmarks, %v, want all %d", len(all), err, len(All()))
	}
	two, err := Choose([]string{"scan", "read_miss"})
	if err != nil || len(two) != 2 || two[0].Name != "read_miss" || two[1].Name != "scan" {
		t.Errorf("Choose(scan, read_miss) = %v, %v", two, err)
	}
	for _, g := range Groups() {
		group, err := Choose([]string{g.Name, "scan"})
		if err != nil || len(group) != 1+len(g.Micros) || group[0].Name != "scan" || group[1].Name != g.Micros[0].Name {
			t.Errorf("Choose(%s, scan) = %v, %v, want scan and all of the group", g.Name, group, err)
		}
	}
	if one, err := Choose([]string{"overlap_8"}); err != nil || len(one) != 1 || one[0].Name != "overlap_8" {
		t.Errorf("Choose(overlap_8) = %v, %v", one, err)
	}
	if _, err := Choose([]string{"scan", "teleport"}); !errors.Is(err, ErrUnknown) {
		t.Errorf("Choose(scan, teleport) = %v, want ErrUnknown", err)
	}
}

func TestPercentileIsNearestRank(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := rapid.SliceOfN(rapid.Float64Range(0, 1e6), 1, 200).Draw(t, "samples")
		percent := float64(rapid.IntRange(1, 100).Draw(t, "percent"))
		before := slices.Clone(samples)
		p := Percentile(samples, percent)
		if !slices.Equal(samples, before) {
			t.Fatal("the samples were changed")
		}
		notOver, under := 0, 0
		for _, s := range samples {
			if s <= p {
				notOver++
			}
			if s < p {
				under++
			}
		}
		need := percent / 100 * float64(len(samples))
		const rounding = 1e-9
		if float64(notOver) < need-rounding || float64(under) >= need+rounding || !slices.Contains(samples, p) {
			t.Fatalf("p%v is %v: %d samples do not exceed it, %d are smaller, of %d", percent, p, notOver, under, len(samples))
		}
	})
}

func TestSummariseTakesTheBetterFloor(t *testing.T) {
	m := All()[0]
	s := Samples{
		Ours:     [][]float64{{30, 32, 34}, {40, 42, 44}},
		Blocking: [][]float64{{20, 20, 20}, {22, 22, 22}},
		Spinning: [][]float64{{19, 10, 19}, {30, 30, 18}},
	}
	line, err := Summarise(m, 4, s)
	if err != nil {
		t.Fatal(err)
	}
	if line.FloorWaits != "spinning" || line.FloorP50 != 19 || line.FloorP50Min != 19 || line.FloorP50Max != 30 {
		t.Errorf("floor: %+v", line)
	}
	if line.P50 != 34 || line.P99 != 44 || line.P50Min != 32 || line.P50Max != 42 || math.Abs(line.Ratio-34.0/19) > 1e-12 {
		t.Errorf("ours: %+v", line)
	}
	s.Spinning = [][]float64{{25}, {25}}
	if line, err = Summarise(m, 4, s); err != nil || line.FloorWaits != "blocking" || line.FloorP50 != 20 {
		t.Errorf("the better floor is blocking, but: %+v, %v", line, err)
	}
	s.Ours = [][]float64{{1}, {}}
	if _, err := Summarise(m, 4, s); !errors.Is(err, ErrNoSamples) {
		t.Errorf("a run without samples gave %v, want ErrNoSamples", err)
	}
}
