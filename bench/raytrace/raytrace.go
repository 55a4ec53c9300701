// Package raytrace is the ray tracing benchmark, after the program of that name in SPLASH-2 (Woo et al., ISCA
// 1995).
//
// It shows a scene of spheres and polygons with shadows, reflection and refraction. To find what a ray hits, the scene is put into a
// uniform grid of cells, and crowded cells into grids of their own. The picture is divided into blocks, dealt
// out to the threads' work queues as bundles of pixels. A thread whose own queue is empty takes bundles out of the
// others'.
//
// On pages this means: the scene and its grids are in shared memory, written by one node and read by all, who fetch each page that
// their rays pass once. A queue stays with its thread until it is stolen from. The picture lies block by block, so
// that a page of it has one writer but for stolen bundles.
//
// Every pixel is computed by the same operations whoever does it, so that the picture does not depend on the number of threads.
package raytrace

import (
	"context"
	"crypto/md5" // #nosec: a checksum, since that is what is known of the original's pictures
	_ "embed"    // for the scene
	"errors"
	"fmt"
	"sync/atomic"

	"dsmd/bench/kernel"
	"dsmd/dsm"
)

//go:embed scenes/balls.txt
var ballsText []byte

// Kernel is the benchmark "raytrace". Its output is the picture, row by row, three numbers a pixel.
type Kernel struct{}

// Name returns "raytrace".
func (Kernel) Name() string { return "raytrace" }

// Summary describes the kernel in one line.
func (Kernel) Summary() string {
	return "ray tracing of 7,381 balls through hierarchical grids in shared memory, work queues with stealing"
}

// Sizes returns the sizes; the parameter is the picture's edge.
func (Kernel) Sizes() kernel.Sizes {
	return kernel.Sizes{Parameter: "picture edge in pixels", Test: 64, Default: 128, Large: 1024, Min: blocksAcross, Max: 1 << 13}
}

// Problem returns the problem with a picture of n by n pixels.
func (Kernel) Problem(n int) kernel.Problem { return problem{n: n, text: ballsText} }

type problem struct {
	n    int
	text []byte // of the scene
}

// Verify compares with the sequential version, bit for bit.
func (problem) Verify(sequential, got kernel.Result) error { return kernel.SameBits(sequential, got) }

// Sequential prepares a run by one thread.
func (p problem) Sequential() (kernel.Run, error) { return p.Goroutines(1) }

// Goroutines prepares a run on ordinary memory.
func (p problem) Goroutines(threads int) (kernel.Run, error) {
	shown, err := parseScene(p.text)
	if err != nil {
		return nil, err
	}
	l := newLayout(p.n)
	r := &run{
		layout: l,
		view: view{
			hierarchy: *newHierarchy(shown.primitives), primitives: shown.primitives,
			scene: shown, camera: newCamera(shown, p.n),
		},
		pixels:  make([]vector, l.size()),
		waiting: make([]counter, threads),
		bundles: make([]bundle, threads*queueRoom(l, threads)),
		threads: threads,
		total:   threads,
	}
	for range threads {
		r.locks = append(r.locks, kernel.NewMutex())
	}
	return r, r.initialise()
}

// Cluster prepares a run on shared memory. Every rank builds the grids, so that all know how much memory they take; rank 0 stores
// them.
func (p problem) Cluster(ctx context.Context, c *dsm.Cluster, threads int) (kernel.Run, error) {
	shown, err := parseScene(p.text)
	if err != nil {
		return nil, err
	}
	l := newLayout(p.n)
	built := newHierarchy(shown.primitives)
	total := threads * c.Size()
	r := &run{
		layout: l,
		view:   view{scene: shown, camera: newCamera(shown, p.n)},
		first:  threads * c.Rank(), threads: threads, total: total,
	}
	if err := errors.Join(
		kernel.Share(ctx, &r.Memory, c, "raytrace/primitives", len(shown.primitives), &r.view.primitives),
		kernel.Share(ctx, &r.Memory, c, "raytrace/grids", len(built.grids), &r.view.grids),
		kernel.Share(ctx, &r.Memory, c, "raytrace/cells", len(built.cells), &r.view.cells),
		kernel.Share(ctx, &r.Memory, c, "raytrace/lists", len(built.lists), &r.view.lists),
		kernel.Share(ctx, &r.Memory, c, "raytrace/pixels", l.size(), &r.pixels),
		kernel.Share(ctx, &r.Memory, c, "raytrace/waiting", total, &r.waiting),
		kernel.Share(ctx, &r.Memory, c, "raytrace/bundles", total*queueRoom(l, total), &r.bundles)); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if c.Rank() == 0 {
		copy(r.view.primitives, shown.primitives)
		copy(r.view.grids, built.grids)
		copy(r.view.cells, built.cells)
		copy(r.view.lists, built.lists)
	}
	for k := range total {
		r.locks = append(r.locks, dsm.NewMutex(c, fmt.Sprintf("raytrace/queue/%d", k)))
	}
	return r, r.initialise()
}

// queueGranule is the number of bundles of which a queue's memory is a multiple: 4 KiB.
const queueGranule = 256

// queueRoom is how many bundles a queue can hold when the blocks are dealt out to so many threads.
func queueRoom(l layout, threads int) int {
	across := (l.block + bundleEdge - 1) / bundleEdge
	most := (l.blocks() + threads - 1) / threads * across * across
	return (most + queueGranule - 1) / queueGranule * queueGranule
}

// A counter is how many bundles wait in a queue, on a page of its own (of up to 4 KiB). It is changed under the
// queue's lock and only falls, so that reading it without the lock is enough to see that a queue is empty.
type counter struct {
	n int64
	_ [4096 - 8]byte
}

// A run is this process's threads, which are first to first+threads-1 of total.
type run struct {
	kernel.Memory
	layout  layout
	view    view
	pixels  []vector
	waiting []counter // by thread
	bundles []bundle  // the queues of all threads, one after another, each queueRoom long
	locks   []kernel.Mutex
	first   int
	threads int
	total   int
}

// initialise has each thread fill its queue with the blocks that are its in turn, and make these blocks of the picture black, as the original
// does with all of it. So their pages start where they will be used.
func (r *run) initialise() error {
	return kernel.Spawn(context.Background(), r.threads, func(_ context.Context, thread int) error {
		k := r.first + thread
		queue := r.queue(k)[:0]
		for block := k; block < r.layout.blocks(); block += r.total {
			queue = r.layout.bundles(queue, block)
			clear(r.pixels[block*r.layout.blockSize:][:r.layout.blockSize])
		}
		atomic.StoreInt64(&r.waiting[k].n, int64(len(queue)))
		return nil
	})
}

// queue is the memory of thread k's queue.
func (r *run) queue(k int) []bundle {
	room := len(r.bundles) / r.total
	return r.bundles[k*room : (k+1)*room : (k+1)*room]
}

func (r *run) Compute(ctx context.Context, progress kernel.Progress) error {
	return kernel.Spawn(ctx, r.threads, func(ctx context.Context, thread int) error {
		k := r.first + thread
		own := int(atomic.LoadInt64(&r.waiting[k].n))
		t := &tracer{view: &r.view}
		for ctx.Err() == nil {
			b, from, err := r.take(ctx, k)
			if err != nil {
				return fmt.Errorf("taking work: %w", err)
			}
			if from < 0 {
				return nil
			}
			r.show(t, b)
			if thread == 0 && from == k {
				progress.Report(own-int(atomic.LoadInt64(&r.waiting[k].n)), own)
			}
		}
		return context.Cause(ctx)
	})
}

// take takes the last bundle out of thread k's queue, or out of the next one's that has any. It says whose it
// was, or -1 if all work is done or being done.
func (r *run) take(ctx context.Context, k int) (bundle, int, error) {
	for i := range r.total {
		from := (k + i) % r.total
		if atomic.LoadInt64(&r.waiting[from].n) == 0 {
			continue
		}
		b, ok, err := r.takeFrom(ctx, from)
		if err != nil {
			return bundle{}, -1, err
		}
		if ok {
			return b, from, nil
		}
	}
	return bundle{}, -1, nil
}

func (r *run) takeFrom(ctx context.Context, k int) (b bundle, ok bool, err error) {
	if err := r.locks[k].Lock(ctx); err != nil {
		return bundle{}, false, fmt.Errorf("locking queue %d: %w", k, err)
	}
	defer func() { err = errors.Join(err, r.locks[k].Unlock()) }()
	n := atomic.LoadInt64(&r.waiting[k].n)
	if n == 0 {
		return bundle{}, false, nil
	}
	b = r.queue(k)[n-1]
	atomic.StoreInt64(&r.waiting[k].n, n-1)
	return b, true, nil
}

// show computes the pixels of a bundle. They are stored when all are known, so that the page is written in one go.
func (r *run) show(t *tracer, b bundle) {
	var colours [bundleEdge][bundleEdge]vector
	for y := b.y; y < b.bottom; y++ {
		for x := b.x; x < b.right; x++ {
			colours[y-b.y][x-b.x] = t.colour(int(x), int(y))
		}
	}
	for y := b.y; y < b.bottom; y++ {
		copy(r.pixels[r.layout.index(int(b.x), int(y)):], colours[y-b.y][:b.right-b.x])
	}
}

// Result returns the picture, and as a figure the MD5 sum of the file that the original program would write.
func (r *run) Result(context.Context) (kernel.Result, error) {
	output := make(kernel.Float64s, 0, 3*r.layout.edge*r.layout.edge)
	for y := range r.layout.edge {
		for x := range r.layout.edge {
			output = append(output, r.pixels[r.layout.index(x, y)][:]...)
		}
	}
	return kernel.Result{
		Figures: map[string]any{"md5": fmt.Sprintf("%x", md5.Sum(r.layout.encode(r.pixels))), "fnv": kernel.FNV(output)},
		Output:  output,
	}, nil
}
