// Package radix is the integer sort of SPLASH-2: it sorts keys of 26 bits by digits of 10 bits,
// from the lowest.
//
// The original has every thread write each of its keys to its place in the whole array. These
// places are all over it, and so are everybody's: every page of it has all threads as writers, in
// an order that depends on the keys. That is the worst that can be done to pages, and those who
// tuned the program for them (Jiang, Shan and Singh, "Application restructuring and performance
// portability on shared virtual memory and hardware-coherent multiprocessors", PPoPP 1997) have a
// thread sort its keys into a buffer first, and move whole runs. So does this one, and the keys are
// moved by those who need them:
//
// In each of three passes every thread sorts the keys of its part by one digit, into pages that
// only it writes, and says where each digit's end. From that all know after a barrier which runs
// of keys, of whom, make up their part of the order, and read them in the next pass as they sort
// them by the next digit. After the last pass they copy them. What a thread needs of another one's
// keys is contiguous, since they are sorted by the digit by which the parts are divided. So a page
// goes to the one thread that needs it, or to two where parts meet.
//
// The keys are those of the original. In memory they take four bytes, where the original's take
// what a long does. A sort has one result, so it does not depend on the number of threads.
package radix

import (
	_ "embed"
	"errors"
	"fmt"

	"dsmd/bench/facts"
	"dsmd/bench/kernel"
	"dsmd/bench/kernels/random"
	"dsmd/dsm"
)

const (
	// seed is what the NAS benchmarks and the original start from.
	seed = 314159265
	// keyBits is the length of the keys; the original's default.
	keyBits = 26
	// digitBits is the length of the digits: radix 1024, the original's default.
	digitBits = 10
	digits    = 1 << digitBits
	passes    = (keyBits + digitBits - 1) / digitBits
)

//go:embed testdata/splash3.json
var splash3Text []byte

var splash3 = facts.Parse(splash3Text)

// Kernel is the benchmark "radix". Its output is the sorted keys; the sizes' parameter is their
// number.
var Kernel = kernel.Kernel{
	Name:    "radix",
	Summary: fmt.Sprintf("integer sort by %d digits of %d bits: every thread reads runs of all others", passes, digitBits),
	Sizes:   kernel.Sizes{Parameter: "keys", Test: 1 << 12, Default: 1 << 20, Large: 1 << 22, Min: 1, Max: 1 << 28},
	Problem: func(n int) kernel.Problem { return problem{n: n} },
}

type problem struct{ n int }

// Verify asks for sorted keys, compares them with the sequential version's, and with the original's
// figures.
func (p problem) Verify(sequential, got kernel.Result) error {
	for i := 1; i < got.Output.Len(); i++ {
		if int64(got.Output.At(i-1)) > int64(got.Output.At(i)) {
			return fmt.Errorf("key %d, which is %d, comes before key %d, which is %d", i-1, got.Output.At(i-1), i, got.Output.At(i))
		}
	}
	return errors.Join(kernel.SameBits(sequential, got), splash3.Check(p.n, got.Figures, 0))
}

// Prepare has each thread make its own keys and touch what it will write, so that pages start where
// they will be used.
func (p problem) Prepare(t *kernel.Team) (kernel.Program, error) {
	d := newDivision(p.n, t.Total, t.PageBytes())
	r := &run{
		division: d,
		keys:     kernel.Share[int32](t, "radix/keys", d.length()),
		barrier:  t.Barrier("radix/barrier"),
	}
	for pass := range r.sorted {
		r.sorted[pass] = sorted{
			division: d,
			keys:     kernel.Share[int32](t, fmt.Sprint("radix/sorted", pass), d.length()),
			ends:     kernel.Share[ends](t, fmt.Sprint("radix/ends", pass), t.Total),
		}
	}
	return r, t.Each(func(t *kernel.Thread) {
		lo, _ := t.Mine(p.n)
		random.Keys(r.part(r.keys, t.Index), seed, lo, keyBits)
		for _, s := range r.sorted {
			clear(s.part(s.keys, t.Index))
			s.ends[t.Index] = ends{}
		}
	})
}

type run struct {
	division
	keys    []int32        // the input, and then the result
	sorted  [passes]sorted // each in memory of its own, so that nobody writes what others have read
	barrier kernel.Barrier
}

func (r *run) Compute(t *kernel.Thread) {
	own := r.part(r.keys, t.Index)
	kernel.Fetch(t, own, dsm.Write)
	runs := [][]int32{own}
	for pass, s := range r.sorted {
		to := s.part(s.keys, t.Index)
		kernel.Fetch(t, to, dsm.Write)
		s.ends[t.Index] = distribute(to, runs, uint(pass*digitBits))
		t.Wait(r.barrier, "after a pass")
		runs = fetch(t, s)
		t.Done(pass+1, passes)
	}
	for _, run := range runs {
		own = own[copy(own, run):]
	}
}

// fetch returns the runs of keys that are the thread's when all are sorted by the digit of a pass.
func fetch(t *kernel.Thread, s sorted) [][]int32 {
	kernel.Fetch(t, s.ends, dsm.Read)
	runs, needed := s.runs(t.Mine(s.n))
	for k := range needed {
		// Not all threads fetch from the same one at the same time.
		kernel.Fetch(t, needed[(t.Index+1+k)%len(needed)], dsm.Read)
	}
	return runs
}

func (r *run) Result() kernel.Result {
	output := make(kernel.Uint64s, 0, r.n)
	for thread := range r.threads {
		for _, key := range r.part(r.keys, thread) {
			output = append(output, uint64(key))
		}
	}
	return kernel.Result{Figures: keyFigures(output), Output: output}
}

// keyFigures are the figures of the reference. Sums that a float64 may not hold are in decimal
// digits.
func keyFigures(keys kernel.Uint64s) map[string]any {
	var sum, xor, weighted uint64
	for i, key := range keys {
		sum += key
		xor ^= key
		weighted += key * uint64(i+1)
	}
	return map[string]any{
		"fnv": kernel.FNV(keys), "sum": fmt.Sprint(sum), "xor": float64(xor), "weighted": fmt.Sprint(weighted),
		"first": float64(keys[0]), "median": float64(keys[len(keys)/2]), "last": float64(keys[len(keys)-1]),
	}
}
