// Package is is the "integer sort" benchmark of NAS (Bailey et al., "The NAS Parallel Benchmarks", RNR-94-007, section 2.5): it
// ranks 2^L small integer keys ten times, with two keys changed before each.
//
// Ranking is counting: the rank of a key is the number of keys that are less. Each thread counts the keys of its
// block in a table of its own; after a barrier, each adds the tables of all threads for its part of the values; after another, each
// adds the totals of the parts before its own. So a table is written by one thread and read, in pieces, by all, and the
// pages of the tables change hands in every iteration. The keys themselves do not travel.
//
// The ranks do not depend on the number of threads. For its classes NAS publishes the ranks of five keys in each iteration.
package is

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"

	"dsmd/bench/kernel"
	"dsmd/bench/nasrand"
	"dsmd/dsm"
)

const (
	// seed is what NAS starts from.
	seed = 314159265
	// iterations is NAS's number of rankings.
	iterations = 10
	// drawsPerKey random numbers are averaged for a key.
	drawsPerKey = 4
)

// A probe is a key whose rank in each iteration NAS publishes: Rank + Slope*iteration. It is found in position Index.
type probe struct {
	Index int `json:"index"`
	Rank  int `json:"rank"`
	Slope int `json:"slope"`
}

//go:embed testdata/nas.json
var nasText []byte

// nas are the probes, by L.
var nas = func() (probes map[int][]probe) {
	if err := json.Unmarshal(nasText, &probes); err != nil {
		panic(fmt.Sprintf("is: the embedded file is damaged: %v", err))
	}
	return probes
}()

// Kernel is the benchmark "is". Its output is, for each value that a key may have, the number of keys below it.
type Kernel struct{}

// Name returns "is".
func (Kernel) Name() string { return "is" }

// Summary describes the kernel in one line.
func (Kernel) Summary() string {
	return fmt.Sprintf("NAS integer sort: %d rankings of small integers by counting, tables exchanged in each", iterations)
}

// Sizes returns the sizes; the parameter is L. 16 is NAS's class S, 20 is W, 23 is A and 25 is B.
func (Kernel) Sizes() kernel.Sizes {
	return kernel.Sizes{Parameter: "L, for 2^L keys", Test: 16, Default: 23, Large: 25, Min: 10, Max: 30}
}

// Problem returns the ranking of 2^l keys.
func (Kernel) Problem(l int) kernel.Problem { return problem{l: l} }

type problem struct{ l int }

func (p problem) keys() int { return 1 << p.l }

// values is the number of values that a key may have: a 16th of the number of keys, but in class S a 32nd.
func (p problem) values() int {
	if p.l == 16 {
		return 1 << 11
	}
	return 1 << (p.l - 4)
}

// Verify compares bit for bit with the sequential version. The ranks must sort the keys, and those that NAS publishes must be
// right in every iteration.
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

// Sequential prepares the ranking by one thread, which waits for nobody at its barriers.
func (p problem) Sequential() (kernel.Run, error) { return p.Goroutines(1) }

// Goroutines prepares a run on ordinary slices.
func (p problem) Goroutines(threads int) (kernel.Run, error) {
	r := &run{
		problem: p,
		keys:    make([]int32, p.keys()),
		ranks:   make([]int32, p.values()),
		totals:  make([]int32, threads),
		tables:  make([]int32, threads*p.values()),
		stride:  p.values(),
		barrier: kernel.NewBarrier(threads),
		threads: threads,
		total:   threads,
	}
	return r, r.initialise()
}

// Cluster prepares a run on shared slices.
func (p problem) Cluster(ctx context.Context, c *dsm.Cluster, threads int) (kernel.Run, error) {
	total := threads * c.Size()
	r := &run{
		problem: p,
		stride:  pages(p.values(), c.PageBytes()),
		barrier: dsm.NewTeamBarrier(c, "is/barrier", c.Size(), threads),
		first:   threads * c.Rank(),
		threads: threads,
		total:   total,
	}
	if err := errors.Join(
		kernel.Share(ctx, &r.Memory, c, "is/keys", p.keys(), &r.keys),
		kernel.Share(ctx, &r.Memory, c, "is/ranks", p.values(), &r.ranks),
		kernel.Share(ctx, &r.Memory, c, "is/totals", total, &r.totals),
		kernel.Share(ctx, &r.Memory, c, "is/tables", total*r.stride, &r.tables)); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, r.initialise()
}

// pages rounds a number of int32 up to whole pages, so that threads' tables share none.
func pages(n, pageBytes int) int {
	perPage := max(1, pageBytes/4)
	return (n + perPage - 1) / perPage * perPage
}

// A run is this process's threads, which are first to first+threads-1 of total.
type run struct {
	kernel.Memory
	problem
	keys   []int32
	ranks  []int32 // by value: the number of keys below it
	totals []int32 // by thread: the number of keys that have a value of its part
	tables []int32 // thread t's, which counts its keys by value, starts at t*stride
	stride int

	barrier kernel.Barrier
	first   int
	threads int
	total   int

	published int // ranks that are as NAS publishes them; used by thread 0 of rank 0 only
}

func (r *run) table(thread int) []int32 {
	return r.tables[thread*r.stride : thread*r.stride+len(r.ranks)]
}

// initialise has each thread make its own keys and touch what it will write, so that pages start where they will
// be used. NAS has a ranking that it does not time for that.
func (r *run) initialise() error {
	return kernel.Spawn(context.Background(), r.threads, func(_ context.Context, thread int) error {
		thread += r.first
		lo, hi := kernel.Block(len(r.keys), r.total, thread)
		r.fill(r.keys[lo:hi], lo)
		clear(r.table(thread))
		lo, hi = kernel.Block(len(r.ranks), r.total, thread)
		clear(r.ranks[lo:hi])
		return nil
	})
}

// fill makes the keys from number first on. A key is the mean of four random numbers from 0 to 1, times the number of values,
// rounded down; with integers this is exact, as it is with NAS's floating-point numbers.
func (p problem) fill(keys []int32, first int) {
	source := nasrand.New(seed)
	source.Skip(drawsPerKey * uint64(first))
	shift := nasrand.Bits - bits.TrailingZeros(uint(p.values()))
	for i := range keys {
		sum := uint64(0)
		for range drawsPerKey {
			sum += source.Next()
		}
		keys[i] = int32(sum / drawsPerKey >> shift)
	}
}

func (r *run) Compute(ctx context.Context, progress kernel.Progress) error {
	return kernel.Spawn(ctx, r.threads, func(ctx context.Context, thread int) error {
		for iteration := 1; iteration <= iterations; iteration++ {
			if err := r.rank(ctx, r.first+thread, iteration); err != nil {
				return fmt.Errorf("iteration %d: %w", iteration, err)
			}
			if thread == 0 {
				progress.Report(iteration, iterations)
			}
		}
		return nil
	})
}

// rank is one thread's part of an iteration.
func (r *run) rank(ctx context.Context, thread, iteration int) error {
	r.changeKeys(thread, iteration)
	r.count(thread)
	if err := r.barrier.Wait(ctx); err != nil {
		return fmt.Errorf("barrier after counting: %w", err)
	}
	r.add(thread)
	if err := r.barrier.Wait(ctx); err != nil {
		return fmt.Errorf("barrier after adding: %w", err)
	}
	r.shift(thread)
	if err := r.barrier.Wait(ctx); err != nil {
		return fmt.Errorf("barrier after ranking: %w", err)
	}
	// The others go on to count, which changes nothing that is read here, and then wait for this thread.
	if thread == 0 {
		r.probe(iteration)
	}
	return nil
}

// changeKeys makes two keys extreme, by the threads in whose blocks they lie.
func (r *run) changeKeys(thread, iteration int) {
	lo, hi := kernel.Block(len(r.keys), r.total, thread)
	if at := iteration; lo <= at && at < hi {
		r.keys[at] = int32(iteration)
	}
	if at := iteration + iterations; lo <= at && at < hi {
		r.keys[at] = int32(r.values() - iteration)
	}
}

func (r *run) count(thread int) {
	lo, hi := kernel.Block(len(r.keys), r.total, thread)
	table := r.table(thread)
	clear(table)
	for _, key := range r.keys[lo:hi] {
		table[key]++
	}
}

// add ranks the thread's part of the values, as if there were no lower values.
func (r *run) add(thread int) {
	lo, hi := kernel.Block(len(r.ranks), r.total, thread)
	part := r.ranks[lo:hi]
	clear(part)
	for other := range r.total {
		// Not all threads read the same table at the same time.
		table := r.table((thread + other) % r.total)[lo:hi]
		for i, n := range table {
			part[i] += n
		}
	}
	below := int32(0)
	for i, n := range part {
		part[i] = below
		below += n
	}
	r.totals[thread] = below
}

// shift adds to the ranks of the thread's part the number of keys that have lower values.
func (r *run) shift(thread int) {
	below := int32(0)
	for _, n := range r.totals[:thread] {
		below += n
	}
	lo, hi := kernel.Block(len(r.ranks), r.total, thread)
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

// Result also sorts the keys by their ranks: NAS's full verification, which it does not time either.
func (r *run) Result(context.Context) (kernel.Result, error) {
	output := make(kernel.Uint64s, len(r.ranks))
	for value, rank := range r.ranks {
		output[value] = uint64(rank)
	}
	return kernel.Result{
		Figures: map[string]any{
			"fnv": kernel.FNV(output), "published_ranks": float64(r.published), "sorted": sorts(r.ranks, r.keys),
		},
		Output: output,
	}, nil
}

// sorts says whether keys that are moved to their ranks are sorted; equal keys take neighbouring places. ranks is not changed.
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
