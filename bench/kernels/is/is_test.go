package is

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"testing"

	"dsmd/bench/kernel"
	"dsmd/bench/kernel/kerneltest"
	"dsmd/bench/kernels/random"
)

// TestPublishedRanks computes NAS's classes S and W.
func TestPublishedRanks(t *testing.T) {
	for _, l := range []int{16, 20} {
		p := Kernel.Problem(l)
		r, err := kernel.Sequential(p)
		got := kerneltest.Solve(t, r, err)
		if err := p.Verify(got, got); err != nil {
			t.Errorf("L = %d: %v", l, err)
		}
		if len(nas[l]) != 5 {
			t.Errorf("L = %d: %d ranks are published, want 5", l, len(nas[l]))
		}
	}
}

// TestAnyNumberOfThreads includes numbers that divide nothing, and more threads than values.
func TestAnyNumberOfThreads(t *testing.T) {
	for _, l := range []int{10, 16} {
		kerneltest.AnyNumberOfThreads(t, fmt.Sprintf("L = %d", l), Kernel.Problem(l), 1, 2, 3, 4, 7, 70)
	}
}

// TestRanksCountLowerKeys compares with positions in a sorted copy of the keys.
func TestRanksCountLowerKeys(t *testing.T) {
	for _, l := range []int{10, 13} {
		r, err := kernel.Sequential(Kernel.Problem(l))
		got := kerneltest.Solve(t, r, err)
		keys := slices.Clone(r.Program.(*run).keys)
		slices.Sort(keys)
		for value := range r.Program.(*run).ranks {
			want := sort.Search(len(keys), func(i int) bool { return int(keys[i]) >= value })
			if got.Output.At(value) != uint64(want) {
				t.Errorf("L = %d: %d keys are below %d, want %d", l, got.Output.At(value), value, want)
			}
		}
	}
}

func TestPartsOfTheInputFit(t *testing.T) {
	p := problem{l: 12}
	all, part := make([]int32, 4096), make([]int32, 96)
	random.Keys(all, seed, 0, p.keyBits())
	random.Keys(part, seed, 4000, p.keyBits())
	if !slices.Equal(part, all[4000:]) {
		t.Error("a part of the input, made alone, differs")
	}
	if low, high := slices.Min(all), slices.Max(all); low < 0 || int(high) >= p.values() || int(high-low) < p.values()/2 {
		t.Errorf("keys are from %d to %d, with %d values", low, high, p.values())
	}
}

// TestVerifyNotices a wrong rank, a missed published rank, and ranks that do not sort.
func TestVerifyNotices(t *testing.T) {
	p := Kernel.Problem(16)
	r, err := kernel.Sequential(p)
	right := kerneltest.Solve(t, r, err)
	output := slices.Clone(right.Output.(kernel.Uint64s))
	output[500]++
	if p.Verify(right, kernel.Result{Figures: right.Figures, Output: output}) == nil {
		t.Error("a wrong rank is verified")
	}
	for figure, value := range map[string]any{"published_ranks": 49.0, "sorted": false} {
		wrong := kernel.Result{Figures: map[string]any{}, Output: right.Output}
		for name, value := range right.Figures {
			wrong.Figures[name] = value
		}
		wrong.Figures[figure] = value
		if p.Verify(wrong, wrong) == nil {
			t.Errorf("%s = %v is verified", figure, value)
		}
	}
}

func TestSorts(t *testing.T) {
	keys := []int32{2, 0, 2, 1}
	for _, tc := range []struct {
		ranks []int32
		sorts bool
	}{
		{[]int32{0, 1, 2}, true},
		{[]int32{1, 0, 2}, false},  // in a wrong order
		{[]int32{0, 0, 2}, false},  // two keys in one place
		{[]int32{0, 1, 3}, false},  // behind the end
		{[]int32{-1, 1, 2}, false}, // before the beginning
	} {
		if got := sorts(tc.ranks, keys); got != tc.sorts {
			t.Errorf("ranks %v sort %v: %v, want %v", tc.ranks, keys, got, tc.sorts)
		}
	}
}

func TestSizesAreBounded(t *testing.T) {
	for _, text := range []string{"9", "31", "S"} {
		if _, err := Kernel.Sizes.Parse(text); !errors.Is(err, kernel.ErrSize) {
			t.Errorf("size %s: %v, want ErrSize", text, err)
		}
	}
}

// TestNoPageHasTwoWriters looks at rows that fill no pages.
func TestNoPageHasTwoWriters(t *testing.T) {
	team := &kernel.Team{Threads: 3, Total: 3}
	for _, length := range []int{1, 1024, 1025, 3000} {
		r := newRows(team, "rows", length)
		for i := range r.memory {
			r.memory[i] = int32(i)
		}
		for thread := 1; thread < team.Total; thread++ {
			before, row := r.of(thread-1), r.of(thread)
			if len(row) != length || before[length-1]/1024 == row[0]/1024 {
				t.Errorf("rows of %d: those of threads %d and %d meet on a page", length, thread-1, thread)
			}
		}
	}
}
