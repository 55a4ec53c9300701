// Package is is the "integer sort" benchmark of NAS (Bailey et al., "The NAS Parallel Benchmarks",
// RNR-94-007, section 2.5): it ranks 2^L small integer keys ten times, with two keys changed before
// each.
//
// Ranking is counting: the rank of a key is the number of keys that are less. Each thread counts
// the keys of its block in a table of its own, and those of each part of the values together; after
// a barrier, each ranks its part of the values, from the tables of all threads for that part and
// what they counted in the parts before it. So a table is written by one thread and read, in
// pieces, by all, and the pages of the tables change hands in every iteration, many at a time. The
// keys themselves do not travel.
//
// The ranks do not depend on the number of threads. For its classes NAS publishes the ranks of five
// keys in each iteration.
package is

import (
	_ "embed"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"dsmd/bench/facts"
	"dsmd/bench/kernel"
	"dsmd/bench/kernels/random"
	"dsmd/dsm"
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
		keys:    kernel.Share[int32](t, "is/keys", p.keys()),
		ranks:   kernel.Share[int32](t, "is/ranks", p.values()),
		tables:  newRows(t, "is/tables", p.values()),
		sums:    newRows(t, "is/sums", t.Total+1),
		barrier: t.Barrier("is/barrier"),
	}
	return r, t.Each(func(t *kernel.Thread) {
		lo, hi := t.Mine(len(r.keys))
		random.Keys(r.keys[lo:hi], seed, lo, p.keyBits())
		lo, hi = t.Mine(len(r.ranks))
		clear(r.ranks[lo:hi])
		clear(r.tables.of(t.Index))
		clear(r.sums.of(t.Index))
	})
}

// rows are numbers that each thread writes and the others read.
type rows struct {
	memory []int32
	length int // of a row
	stride int // from one row to the next: whole pages, so that threads share none
}

func newRows(t *kernel.Team, name string, length int) rows {
	page := max(1, t.PageBytes()/4)
	stride := (length + page - 1) / page * page
	return rows{memory: kernel.Share[int32](t, name, t.Total*stride), length: length, stride: stride}
}

func (r rows) of(thread int) []int32 { return r.memory[thread*r.stride:][:r.length] }

type run struct {
	problem
	keys   []int32
	ranks  []int32 // by value: the number of keys below it
	tables rows    // by value: the number of the thread's keys that have it
	// sums are by thread: the number of keys in the table that have a value of that thread's part.
	// The last is the number of ranks of the thread's own part that are as NAS publishes them.
	sums    rows
	barrier kernel.Barrier
}

func (r *run) Compute(t *kernel.Thread) {
	published := int32(0)
	for iteration := 1; iteration <= iterations; iteration++ {
		r.changeKeys(t, iteration)
		r.count(t)
		t.Wait(r.barrier, "after counting")
		r.rank(t)
		published += r.probe(t, iteration)
		// The next iteration changes keys and tables, which all have read.
		t.Wait(r.barrier, "after ranking")
		t.Done(iteration, iterations)
	}
	r.sums.of(t.Index)[t.Total] = published
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

// count counts the thread's keys by value, and then by part of the values.
func (r *run) count(t *kernel.Thread) {
	table, sums := r.tables.of(t.Index), r.sums.of(t.Index)
	kernel.Fetch(t, table, dsm.Write)
	kernel.Fetch(t, sums, dsm.Write)
	clear(table)
	lo, hi := t.Mine(len(r.keys))
	for _, key := range r.keys[lo:hi] {
		table[key]++
	}
	for part := range t.Total {
		lo, hi := t.Block(len(r.ranks), part)
		sums[part] = sum(table[lo:hi])
	}
}

func sum(numbers []int32) (total int32) {
	for _, n := range numbers {
		total += n
	}
	return total
}

// rank ranks the thread's part of the values.
func (r *run) rank(t *kernel.Thread) {
	lo, hi := t.Mine(len(r.ranks))
	part := r.ranks[lo:hi]
	clear(part)
	kernel.Fetch(t, r.sums.memory, dsm.Read)
	below := int32(0) // how many keys have values of the parts before
	for k := range t.Total {
		// Not all threads read the same table at the same time.
		other := (t.Index + k) % t.Total
		counts := r.tables.of(other)[lo:hi]
		kernel.Fetch(t, counts, dsm.Read)
		for i, n := range counts {
			part[i] += n
		}
		below += sum(r.sums.of(other)[:t.Index])
	}
	for i, n := range part {
		part[i] = below
		below += n
	}
}

// probe counts the ranks of the thread's part that are as NAS publishes them.
func (r *run) probe(t *kernel.Thread, iteration int) (published int32) {
	lo, hi := t.Mine(len(r.ranks))
	for _, p := range nas[r.l] {
		key := int(r.keys[p.Index])
		if lo <= key && key < hi && int(r.ranks[key]) == p.Rank+p.Slope*iteration {
			published++
		}
	}
	return published
}

// Result also sorts the keys by their ranks: NAS's full verification, which it does not time
// either.
func (r *run) Result() kernel.Result {
	output := make(kernel.Uint64s, len(r.ranks))
	for value, rank := range r.ranks {
		output[value] = uint64(rank)
	}
	published := int32(0)
	for last := r.sums.length - 1; last < len(r.sums.memory); last += r.sums.stride {
		published += r.sums.memory[last]
	}
	return kernel.Result{
		Figures: map[string]any{
			"fnv": kernel.FNV(output), "published_ranks": float64(published), "sorted": sorts(r.ranks, r.keys),
		},
		Output: output,
	}
}

// sorts reports whether keys that are moved to their ranks are sorted; equal keys take neighbouring
// places. ranks is not changed.
func sorts(ranks, keys []int32) bool {
	next := slices.Clone(ranks)
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
	return slices.IsSorted(sorted)
}
