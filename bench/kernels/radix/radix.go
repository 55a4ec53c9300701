// Package radix is the integer sort of SPLASH-2: it sorts keys of 26 bits by digits of 10 bits,
// from the lowest.
//
// In each of three passes every thread counts the digits of its part of the keys; a tree adds the
// counts of all threads; from the sums each thread knows where its keys of each digit go, and
// writes them there. Its keys are spread by their digits over the whole destination array, and so
// are everybody's: every page of it has all threads as writers, in an order that depends on the
// keys. Woo et al. chose the program for that, and for a DSM it is as bad as it gets. Each thread
// writes a run of neighbouring keys for each digit, which is n/(1024*threads) keys long on average.
//
// The keys are those of the original. A sort has one result, so it does not depend on the number of
// threads.
package radix

import (
	_ "embed"
	"fmt"

	"dsmd/bench/facts"
	"dsmd/bench/kernel"
	"dsmd/bench/kernels/random"
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
	Summary: fmt.Sprintf("integer sort by %d digits of %d bits: every thread writes all over the destination", passes, digitBits),
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
	if err := kernel.SameBits(sequential, got); err != nil {
		return err
	}
	return splash3.Check(p.n, got.Figures, 0)
}

// Prepare has each thread make its own keys, so that pages start where they will be used.
func (p problem) Prepare(t *kernel.Team) (kernel.Program, error) {
	r := &run{
		keys:    [2][]int64{kernel.Share[int64](t, "radix/keys0", p.n), kernel.Share[int64](t, "radix/keys1", p.n)},
		tree:    newTree(t),
		barrier: t.Barrier("radix/barrier"),
	}
	return r, t.Each(func(t *kernel.Thread) {
		lo, hi := t.Mine(p.n)
		random.Keys(r.keys[0][lo:hi], seed, lo, keyBits)
	})
}

type run struct {
	keys    [2][]int64 // pass k sorts from keys[k%2] into the other
	tree    *tree
	barrier kernel.Barrier
}

func (r *run) Compute(t *kernel.Thread) {
	for pass := range passes {
		r.sort(t, pass)
		t.Done(pass+1, passes)
	}
}

// sort is one thread's part of a pass.
func (r *run) sort(t *kernel.Thread, pass int) {
	from, to := r.keys[pass%2], r.keys[1-pass%2]
	lo, hi := t.Mine(len(from))
	shift := pass * digitBits

	var own counts
	for _, key := range from[lo:hi] {
		own[key>>shift&(digits-1)]++
	}
	r.tree.add(t, &own)
	t.Wait(r.barrier, "after counting")
	next := r.tree.places(t.Index)
	for _, key := range from[lo:hi] {
		digit := key >> shift & (digits - 1)
		to[next[digit]] = key
		next[digit]++
	}
	// The next pass writes what this one reads, and the tree.
	t.Wait(r.barrier, "after moving the keys")
}

func (r *run) Result() kernel.Result {
	sorted := r.keys[passes%2]
	output := make(kernel.Uint64s, len(sorted))
	for i, key := range sorted {
		output[i] = uint64(key)
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
