// Package is is the "integer sort" benchmark of NAS (Bailey et al., "The NAS Parallel Benchmarks",
// RNR-94-007, section 2.5): it ranks 2^L small integer keys ten times, with two keys changed before
// each.
//
// Ranking is counting: the rank of a key is the number of keys that are less. Each thread counts
// the keys of its block in a table of its own; after a barrier, each adds the tables of all threads
// for its part of the values; after another, each adds the totals of the parts before its own. So a
// table is written by one thread and read, in pieces, by all, and the pages of the tables change
// hands in every iteration. The keys themselves do not travel.
//
// The ranks do not depend on the number of threads. For its classes NAS publishes the ranks of five
// keys in each iteration.
package is

import (
	_ "embed"
	"errors"
	"fmt"
	"math/bits"

	"dsmd/bench/facts"
	"dsmd/bench/kernel"
	"dsmd/bench/kernels/random"
)

const (
	// seed is what NAS starts from.
	seed = 314159265
	// iterations is NAS's number of rankings.
	iterations = 10
)

// A probe is a key whose rank in each iteration NAS publishes: Rank + Slope*iteration. It is found
// in position Index.
type probe struct {
	Index int `json:"index"`
	Rank  int `json:"rank"`
	Slope int `json:"slope"`
}

//go:embed testdata/nas.json
var nasText []byte

// nas are the probes, by L.
var nas = facts.Read[map[int][]probe](nasText)

// Kernel is the benchmark "is". Its output is, for each value that a key may have, the number of
// keys below it. The sizes' parameter is L: 16 is NAS's class S, 20 is W, 23 is A and 25 is B.
var Kernel = kernel.Kernel{
	Name:    "is",
	Summary: fmt.Sprintf("NAS integer sort: %d rankings of small integers by counting, tables exchanged in each", iterations),
	Sizes:   kernel.Sizes{Parameter: "L, for 2^L keys", Test: 16, Default: 23, Large: 25, Min: 10, Max: 30},
	Problem: func(l int) kernel.Problem { return problem{l: l} },
}

type problem struct{ l int }

func (p problem) keys() int { return 1 << p.l }

// values is the number of values that a key may have: a 16th of the number of keys, but in class S
// a 32nd.
func (p problem) values() int {
	if p.l == 16 {
		return 1 << 11
	}
	return 1 << (p.l - 4)
}

func (p problem) keyBits() int { return bits.TrailingZeros(uint(p.values())) }

// Verify compares bit for bit with the sequential version. The ranks must sort the keys, and those
// that NAS publishes must be right in every iteration.
func (p problem) Verify(sequential, got kernel.Result) error {
	if err := kernel.SameBits(sequential, got); err != nil {
		return err
	}
	if got.Figures["sorted"] != true {
		return errors.New("keys moved to their ranks are not sorted")
	}
	if want := float64(iterations * len(nas[p.l])); got.Figures["published_ranks"] != want {
		return fmt.Errorf("%v ranks are as NAS publishes them, want %v", got.Figures["published_ranks"], want)
	}
	return nil
}

// Prepare has each thread make its own keys and touch what it will write, so that pages start where
// they will be used. NAS has a ranking that it does not time for that.
func (p problem) Prepare(t *kernel.Team) (kernel.Program, error) {
	r := &run{
		problem: p,
		stride:  pages(p.values(), t.PageBytes()),
		keys:    kernel.Share[int32](t, "is/keys", p.keys()),
		ranks:   kernel.Share[int32](t, "is/ranks", p.values()),
		totals:  kernel.Share[int32](t, "is/totals", t.Total),
		barrier: t.Barrier("is/barrier"),
	}
	r.tables = kernel.Share[int32](t, "is/tables", t.Total*r.stride)
	return r, t.Each(func(t *kernel.Thread) {
		lo, hi := t.Mine(len(r.keys))
		random.Keys(r.keys[lo:hi], seed, lo, p.keyBits())
		clear(r.table(t.Index))
		lo, hi = t.Mine(len(r.ranks))
		clear(r.ranks[lo:hi])
	})
}

// pages rounds a number of int32 up to whole pages, so that threads' tables share none.
func pages(n, pageBytes int) int {
	perPage := max(1, pageBytes/4)
	return (n + perPage - 1) / perPage * perPage
}

type run struct {
	problem
	keys   []int32
	ranks  []int32 // by value: the number of keys below it
	totals []int32 // by thread: the number of keys that have a value of its part
	tables []int32 // thread t's, which counts its keys by value, starts at t*stride
	stride int

	barrier   kernel.Barrier
	published int // ranks that are as NAS publishes them; used by thread 0 only
}

func (r *run) table(thread int) []int32 {
	return r.tables[thread*r.stride : thread*r.stride+len(r.ranks)]
}

func (r *run) Compute(t *kernel.Thread) {
	for iteration := 1; iteration <= iterations; iteration++ {
		r.changeKeys(t, iteration)
		r.count(t)
		t.Wait(r.barrier, "after counting")
		r.add(t)
		t.Wait(r.barrier, "after adding")
		r.shift(t)
		t.Wait(r.barrier, "after ranking")
		// The others go on to count, which changes nothing that is read here, and then wait for
		// this thread.
		if t.Index == 0 {
			r.probe(iteration)
		}
		t.Done(iteration, iterations)
	}
}

// changeKeys makes two keys extreme, by the threads in whose blocks they lie.
func (r *run) changeKeys(t *kernel.Thread, iteration int) {
	lo, hi := t.Mine(len(r.keys))
	if at := iteration; lo <= at && at < hi {
		r.keys[at] = int32(iteration)
	}
	if at := iteration + iterations; lo <= at && at < hi {
		r.keys[at] = int32(r.values() - iteration)
	}
}

func (r *run) count(t *kernel.Thread) {
	lo, hi := t.Mine(len(r.keys))
	table := r.table(t.Index)
	clear(table)
	for _, key := range r.keys[lo:hi] {
		table[key]++
	}
}

// add ranks the thread's part of the values, as if there were no lower values.
func (r *run) add(t *kernel.Thread) {
	lo, hi := t.Mine(len(r.ranks))
	part := r.ranks[lo:hi]
	clear(part)
	for other := range t.Total {
		// Not all threads read the same table at the same time.
		table := r.table((t.Index + other) % t.Total)[lo:hi]
		for i, n := range table {
			part[i] += n
		}
	}
	below := int32(0)
	for i, n := range part {
		part[i] = below
		below += n
	}
	r.totals[t.Index] = below
}

// shift adds to the ranks of the thread's part the number of keys that have lower values.
func (r *run) shift(t *kernel.Thread) {
	below := int32(0)
	for _, n := range r.totals[:t.Index] {
		below += n
	}
	lo, hi := t.Mine(len(r.ranks))
	for i := lo; i < hi; i++ {
		r.ranks[i] += below
	}
}

// probe counts the ranks that are as NAS publishes them.
func (r *run) probe(iteration int) {
	for _, p := range nas[r.l] {
		if int(r.ranks[r.keys[p.Index]]) == p.Rank+p.Slope*iteration {
			r.published++
		}
	}
}

// Result also sorts the keys by their ranks: NAS's full verification, which it does not time
// either.
func (r *run) Result() kernel.Result {
	output := make(kernel.Uint64s, len(r.ranks))
	for value, rank := range r.ranks {
		output[value] = uint64(rank)
	}
	return kernel.Result{
		Figures: map[string]any{
			"fnv": kernel.FNV(output), "published_ranks": float64(r.published), "sorted": sorts(r.ranks, r.keys),
		},
		Output: output,
	}
}

// sorts reports whether keys that are moved to their ranks are sorted; equal keys take neighbouring
// places. ranks is not changed.
func sorts(ranks, keys []int32) bool {
	next := append([]int32(nil), ranks...)
	sorted := make([]int32, len(keys))
	taken := make([]bool, len(keys))
	for _, key := range keys {
		at := next[key]
		next[key]++
		if at < 0 || int(at) >= len(keys) || taken[at] {
			return false
		}
		sorted[at], taken[at] = key, true
	}
	for i := 1; i < len(sorted); i++ {
		if sorted[i-1] > sorted[i] {
			return false
		}
	}
	return true
}
