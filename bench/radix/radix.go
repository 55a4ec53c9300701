// Package radix is the integer sort of SPLASH-2: it sorts keys of 26 bits by digits of 10 bits, from the lowest.
//
// In each of three passes every thread counts the digits of its part of the keys; a tree adds the counts of all threads;
// from the sums each thread knows where its keys of each digit go, and writes them there. Its keys are spread by
// their digits over the whole destination array, and so are everybody's: every page of it has all threads as writers,
// in an order that depends on the keys. Woo et al. chose the program for that, and for a DSM it is as bad as it gets. Each
// thread writes a run of neighbouring keys for each digit, which is n/(1024*threads) keys long on average.
//
// The keys are those of the original. A sort has one result, so it does not depend on the number of threads.
package radix

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"dsmd/bench/facts"
	"dsmd/bench/kernel"
	"dsmd/bench/nasrand"
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
	// drawsPerKey random numbers are averaged for a key, which makes middle keys more likely.
	drawsPerKey = 4
)

//go:embed testdata/splash3.json
var splash3Text []byte

var splash3 = facts.Parse(splash3Text)

// Kernel is the benchmark "radix". Its output is the sorted keys.
type Kernel struct{}

// Name returns "radix".
func (Kernel) Name() string { return "radix" }

// Summary describes the kernel in one line.
func (Kernel) Summary() string {
	return fmt.Sprintf("integer sort by %d digits of %d bits: every thread writes all over the destination", passes, digitBits)
}

// Sizes returns the sizes; the parameter is the number of keys.
func (Kernel) Sizes() kernel.Sizes {
	return kernel.Sizes{Parameter: "keys", Test: 1 << 12, Default: 1 << 20, Large: 1 << 22, Min: 1, Max: 1 << 28}
}

// Problem returns the sorting of n keys.
func (Kernel) Problem(n int) kernel.Problem { return problem{n: n} }

type problem struct{ n int }

// Verify asks for sorted keys, compares them with the sequential version's, and with the original's figures.
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

// Sequential prepares the sort by one thread, which waits for nobody at its barriers.
func (p problem) Sequential() (kernel.Run, error) { return p.Goroutines(1) }

// Goroutines prepares a run on ordinary slices.
func (p problem) Goroutines(threads int) (kernel.Run, error) {
	r := &run{
		keys:    [2][]int64{make([]int64, p.n), make([]int64, p.n)},
		tree:    newTree(make([]sums, treeSize(threads)), threads, func(int) kernel.Barrier { return kernel.NewBarrier(2) }),
		barrier: kernel.NewBarrier(threads),
		threads: threads,
		total:   threads,
	}
	return r, r.initialise()
}

// Cluster prepares a run on shared slices: both arrays of keys, and the tree.
func (p problem) Cluster(ctx context.Context, c *dsm.Cluster, threads int) (kernel.Run, error) {
	total := threads * c.Size()
	r := &run{
		barrier: dsm.NewTeamBarrier(c, "radix/barrier", c.Size(), threads),
		first:   threads * c.Rank(),
		threads: threads,
		total:   total,
	}
	var nodes []sums
	if err := errors.Join(
		kernel.Share(ctx, &r.Memory, c, "radix/keys0", p.n, &r.keys[0]),
		kernel.Share(ctx, &r.Memory, c, "radix/keys1", p.n, &r.keys[1]),
		kernel.Share(ctx, &r.Memory, c, "radix/tree", treeSize(total), &nodes)); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	r.tree = newTree(nodes, total, func(node int) kernel.Barrier {
		return dsm.NewBarrier(c, fmt.Sprintf("radix/node%d", node), 2)
	})
	return r, r.initialise()
}

// A run is this process's threads, which are first to first+threads-1 of total.
type run struct {
	kernel.Memory
	keys    [2][]int64 // pass k sorts from keys[k%2] into the other
	tree    *tree
	barrier kernel.Barrier
	first   int
	threads int
	total   int
}

// initialise has each thread make its own keys, so that pages start where they will be used.
func (r *run) initialise() error {
	return kernel.Spawn(context.Background(), r.threads, func(_ context.Context, thread int) error {
		lo, hi := kernel.Block(len(r.keys[0]), r.total, r.first+thread)
		fill(r.keys[0][lo:hi], lo)
		return nil
	})
}

// fill makes the keys from number first on. A key is the mean of four random numbers from 0 to 1, times 2^26,
// rounded down; with integers this is exact, as it is in the original.
func fill(keys []int64, first int) {
	source := nasrand.New(seed)
	source.Skip(drawsPerKey * uint64(first))
	for i := range keys {
		sum := uint64(0)
		for range drawsPerKey {
			sum += source.Next()
		}
		keys[i] = int64(sum / drawsPerKey >> (nasrand.Bits - keyBits))
	}
}

func (r *run) Compute(ctx context.Context, progress kernel.Progress) error {
	return kernel.Spawn(ctx, r.threads, func(ctx context.Context, thread int) error {
		for pass := range passes {
			if err := r.sort(ctx, r.first+thread, pass); err != nil {
				return fmt.Errorf("pass %d: %w", pass, err)
			}
			if thread == 0 {
				progress.Report(pass+1, passes)
			}
		}
		return nil
	})
}

// sort is one thread's part of a pass.
func (r *run) sort(ctx context.Context, thread, pass int) error {
	from, to := r.keys[pass%2], r.keys[1-pass%2]
	lo, hi := kernel.Block(len(from), r.total, thread)
	shift := pass * digitBits

	var own counts
	for _, key := range from[lo:hi] {
		own[key>>shift&(digits-1)]++
	}
	if err := r.tree.add(ctx, thread, &own); err != nil {
		return fmt.Errorf("adding the counts: %w", err)
	}
	if err := r.barrier.Wait(ctx); err != nil {
		return fmt.Errorf("barrier after counting: %w", err)
	}
	next := r.tree.places(thread)
	for _, key := range from[lo:hi] {
		digit := key >> shift & (digits - 1)
		to[next[digit]] = key
		next[digit]++
	}
	// The next pass writes what this one reads, and the tree.
	if err := r.barrier.Wait(ctx); err != nil {
		return fmt.Errorf("barrier after moving the keys: %w", err)
	}
	return nil
}

func (r *run) Result(context.Context) (kernel.Result, error) {
	sorted := r.keys[passes%2]
	output := make(kernel.Uint64s, len(sorted))
	for i, key := range sorted {
		output[i] = uint64(key)
	}
	return kernel.Result{Figures: keyFigures(output), Output: output}, nil
}

// keyFigures are the figures of the reference. Sums that a float64 may not hold are in decimal digits.
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
