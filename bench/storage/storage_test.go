package storage

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWrongSum: what is not read, read twice or at a wrong place is noticed.
func TestWrongSum(t *testing.T) {
	words := make([]uint64, 4*pageWords)
	for i := range words {
		words[i] = uint64(i)*0x9e3779b97f4a7c15 + 1
	}
	c := &Contents{}
	for i := 0; i < len(words); i += pageWords {
		c.sums = append(c.sums, sum(words[i:i+pageWords]))
	}
	inOrder := Order{Pages: c.Pages(), Threads: 1}
	if err := c.Check(inOrder, Reading{Sum: sumFrom(0, words)}); err != nil {
		t.Error(err)
	}
	page := func(n int) []uint64 { return words[n*pageWords : (n+1)*pageWords] }
	random := Order{Pages: c.Pages(), Random: 2, Threads: 2, Seed: 3}
	right := uint64(0)
	for _, n := range random.pages() {
		right += sumFrom(n, page(n))
	}
	if err := c.Check(random, Reading{Sum: right}); err != nil {
		t.Error(err)
	}
	changed := slices.Clone(words)
	changed[7]++
	for what, wrong := range map[string]struct {
		order Order
		sum   uint64
	}{
		"nothing":       {inOrder, 0},
		"a part":        {inOrder, sumFrom(0, words[:3*pageWords])},
		"a word":        {inOrder, sumFrom(0, changed)},
		"pages swapped": {inOrder, sumFrom(0, slices.Concat(page(1), page(0), page(2), page(3)))},
		"other pages":   {random, right + sumFrom(0, page(0))},
		"all pages":     {random, sumFrom(0, words)},
	} {
		if err := c.Check(wrong.order, Reading{Sum: wrong.sum}); !errors.Is(err, ErrWrongSum) {
			t.Errorf("%s: the error is %v", what, err)
		}
	}
}

// TestOrder: each page is read once, by any number of threads.
func TestOrder(t *testing.T) {
	o := Order{Pages: 1000, Random: 300, Threads: 8, Seed: 5}
	pages := o.pages()
	sorted := slices.Sorted(slices.Values(pages))
	if len(pages) != 300 || len(slices.Compact(sorted)) != 300 || sorted[0] < 0 || sorted[299] >= 1000 || slices.IsSorted(pages) {
		t.Errorf("the pages are %v", pages)
	}
	if !slices.Equal(pages, o.pages()) {
		t.Error("another order the second time")
	}
	var readers []func(int) (uint64, error)
	for range o.Threads {
		readers = append(readers, func(page int) (uint64, error) { return uint64(page), nil })
	}
	want := uint64(0)
	for _, p := range pages {
		want += uint64(p)
	}
	if got, err := together(len(pages), pages, readers); got != want || err != nil {
		t.Errorf("together = %d, %v, want %d", got, err, want)
	}
	if got, err := together(10, nil, readers); got != 45 || err != nil {
		t.Errorf("together = %d, %v, want 45", got, err)
	}
	readers[0] = func(int) (uint64, error) { return 0, os.ErrClosed }
	if _, err := together(len(pages), pages, readers[:1]); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the error of a thread is %v", err)
	}
}

// TestRate counts passes over arrays in two windows, by interpolation.
func TestRate(t *testing.T) {
	p := &Passes{Ends: []int64{0, 1e9, 3e9, 4e9}, Processor: []int64{0, 1e9, 2e9, 3e9}}
	// half a pass in half a second, with a core of its own; then half a pass in a second, with half
	rate, share, err := p.Rate([]Reading{{Begin: 5e8, End: 1e9}, {Begin: 1e9, End: 2e9}})
	if want := triadBytes / 1.5; err != nil || math.Abs(rate-want) > 1 || math.Abs(share-1/1.5) > 1e-9 {
		t.Errorf("rate %v, want %v; share %v; %v", rate, want, share, err)
	}
	if rate, share, err = p.Rate(p.Whole()); err != nil || math.Abs(rate-0.75*triadBytes) > 1 || share != 0.75 {
		t.Errorf("of the whole: rate %v, share %v, %v", rate, share, err)
	}
	for _, outside := range []Reading{{Begin: -1, End: 1e9}, {Begin: 1e9, End: 5e9}} {
		if _, _, err := p.Rate([]Reading{outside}); err == nil {
			t.Errorf("%v to %v has a rate", outside.Begin, outside.End)
		}
	}
	d, err := NewDisturbance(Direct, []Reading{{Begin: 0, End: 3e9, Seconds: 3}}, 1e9, p, 2*triadBytes)
	if err != nil || math.Abs(d.Relative-1.0/3) > 1e-9 || math.Abs(d.LostSeconds-2) > 1e-9 || d.Bytes != 1e9 {
		t.Errorf("the disturbance is %+v, %v", d, err)
	}
}

// TestProcessorTime: the clock of this process goes while it computes, and that of none is an
// error.
func TestProcessorTime(t *testing.T) {
	before, err := processorTime([]int{os.Getpid()})
	if err != nil || before <= 0 {
		t.Fatalf("processor time %d, %v", before, err)
	}
	x := uint64(1)
	for range 10_000_000 {
		x = x*0x9e3779b97f4a7c15 + 1
	}
	after, err := processorTime([]int{os.Getpid()})
	if err != nil || after < before+1e6 || x == 0 {
		t.Errorf("processor time %d after %d, %v", after, before, err)
	}
	if _, err := processorTime([]int{math.MaxInt32 >> 4}); err == nil {
		t.Error("a process that is not has a clock")
	}
}

// TestCores: each core goes to one side, unless there is only one.
func TestCores(t *testing.T) {
	storage, reader, all, ok, err := Cores()
	if err != nil {
		t.Fatal(err)
	}
	if storage.Count()+reader.Count() != all.Count() || ok != (storage.Count() > 0) {
		t.Errorf("%d and %d of %d cores, parted: %v", storage.Count(), reader.Count(), all.Count(), ok)
	}
	for cpu := range 1024 {
		if storage.IsSet(cpu) && reader.IsSet(cpu) {
			t.Errorf("both sides have core %d", cpu)
		}
	}
	if !ok {
		storage = all
	}
	if err := Bind([]int{os.Getpid()}, &storage); err != nil {
		t.Fatal(err)
	}
	var now unix.CPUSet
	if err := unix.SchedGetaffinity(0, &now); err != nil || now != storage {
		t.Errorf("bound to %v, want %v; %v", now, storage, err)
	}
	if err := Bind([]int{os.Getpid()}, &all); err != nil {
		t.Error(err)
	}
}

// TestFill: in memory there is nothing to measure, and a file is not overwritten.
func TestFill(t *testing.T) {
	if _, err := Fill(t.Context(), "/dev/shm/dsm-bench-test-fill", 1); !errors.Is(err, ErrNoDisk) {
		t.Errorf("in memory the error is %v", err)
	}
	if _, err := Fill(t.Context(), filepath.Join(t.TempDir(), "none", "file"), 1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a directory the error is %v", err)
	}
}

// TestFloorEnds: the floor is measured no longer than the command may take, and leaves no file.
func TestFloorEnds(t *testing.T) {
	why, dir := errors.New("interrupted"), t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, _, err := Floor(ctx, dir, 8<<20, 2); !errors.Is(err, why) {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Error(left, err)
	}
}
