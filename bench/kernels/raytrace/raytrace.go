// Package raytrace is the ray tracing benchmark, after the program of that name in SPLASH-2 (Woo et
// al., ISCA 1995).
//
// It shows a scene of spheres and polygons with shadows, reflection and refraction. To find what a
// ray hits, the scene is put into a uniform grid of cells, and crowded cells into grids of their
// own. The picture is divided into blocks, dealt out to the processes as bundles of pixels. Who has
// computed its own takes bundles from others.
//
// On pages this means: the scene and its grids are in shared memory, written by one node and read
// by all, who fetch each page that their rays pass once. So spheres, which are nearly all there is,
// lie apart from polygons and have no room for what only these need. What bundles a process has
// left is a word on a page of its own, which stays there until somebody takes of them. The picture
// lies block by block, so that a page of it has one writer but for stolen bundles, and these lie
// together.
//
// Every pixel is computed by the same operations whoever does it, so that the picture does not
// depend on the number of threads.
package raytrace

import (
	"crypto/md5" // #nosec: a checksum, since that is what is known of the original's pictures
	"fmt"
	"sync"

	"dsmd/bench/kernel"
)

// Kernel is the benchmark "raytrace". Its output is the picture, row by row, three numbers a pixel;
// the sizes' parameter is the picture's edge.
var Kernel = kernel.Kernel{
	Name:    "raytrace",
	Summary: "ray tracing of 7,381 balls through hierarchical grids in shared memory, a loop with stealing",
	Sizes:   kernel.Sizes{Parameter: "picture edge in pixels", Test: 64, Default: 128, Large: 1024, Min: blocksAcross, Max: 1 << 13},
	Problem: func(n int) kernel.Problem { return problem{n: n, scene: ballsScene} },
}

type problem struct {
	n     int
	scene func() *scene
}

// Verify compares with the sequential version, bit for bit.
func (problem) Verify(sequential, got kernel.Result) error { return kernel.SameBits(sequential, got) }

// Prepare stores the scene and its grids. Every rank builds the grids, so that all know how much
// memory they take; the first thread stores them. Each thread makes blocks of the picture that are
// its in turn black, as the original does with all of it. So their pages start where they will be
// used.
func (p problem) Prepare(t *kernel.Team) (kernel.Program, error) {
	shown := p.scene()
	l := newLayout(p.n)
	built := newHierarchy(&shown.primitives)
	r := &run{
		layout: l,
		view: view{
			scene: shown, camera: newCamera(shown, p.n),
			primitives: primitives{
				polygons: kernel.Share[polygon](t, "raytrace/polygons", len(shown.polygons)),
				spheres:  kernel.Share[sphere](t, "raytrace/spheres", len(shown.spheres)),
			},
			hierarchy: hierarchy{
				grids: kernel.Share[grid](t, "raytrace/grids", len(built.grids)),
				cells: kernel.Share[int32](t, "raytrace/cells", len(built.cells)),
				lists: kernel.Share[int32](t, "raytrace/lists", len(built.lists)),
			},
		},
		pixels: kernel.Share[vector](t, "raytrace/pixels", l.size()),
		loop:   t.Loop("raytrace/loop"),
	}
	for process := range t.Total / t.Threads {
		for block := range l.blocks() {
			if block%t.Total/t.Threads == process {
				r.bundles = l.bundles(r.bundles, block)
			}
		}
	}
	return r, t.Each(func(t *kernel.Thread) {
		if t.Index == 0 {
			copy(r.view.polygons, shown.polygons)
			copy(r.view.spheres, shown.spheres)
			copy(r.view.grids, built.grids)
			copy(r.view.cells, built.cells)
			copy(r.view.lists, built.lists)
		}
		for block := t.Index; block < l.blocks(); block += t.Total {
			clear(r.pixels[block*l.blockSize:][:l.blockSize])
		}
	})
}

type run struct {
	layout  layout
	view    view
	pixels  []vector
	bundles []bundle // one process's after the other
	loop    *kernel.Loop
}

func (r *run) Compute(t *kernel.Thread) {
	tracers := sync.Pool{New: func() any { return &tracer{view: &r.view} }}
	r.loop.Run(t, len(r.bundles), func(i int) {
		tracer := tracers.Get().(*tracer)
		r.show(tracer, r.bundles[i])
		tracers.Put(tracer)
	})
}

// show computes the pixels of a bundle. They are stored when all are known, so that the page is
// written in one go.
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

// Result returns the picture, and as a figure the MD5 sum of the file that the original program
// would write.
func (r *run) Result() kernel.Result {
	output := make(kernel.Float64s, 0, 3*r.layout.edge*r.layout.edge)
	for y := range r.layout.edge {
		for x := range r.layout.edge {
			output = append(output, r.pixels[r.layout.index(x, y)][:]...)
		}
	}
	return kernel.Result{
		Figures: map[string]any{"md5": fmt.Sprintf("%x", md5.Sum(r.layout.encode(r.pixels))), "fnv": kernel.FNV(output)},
		Output:  output,
	}
}
