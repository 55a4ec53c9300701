package sor

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"dsmd/bench/kernel"
	"dsmd/bench/kernel/kerneltest"
)

// reference is the method written as plainly as possible, on a copy, without rows or blocks.
func reference(n int) []float64 {
	u := make([]float64, n*n)
	for i := range n {
		for j := range n {
			u[i*n+j] = float64((i*37+j*101)%1009) / 1009
		}
	}
	for range iterations {
		for colour := range 2 {
			for i := 1; i < n-1; i++ {
				for j := 1; j < n-1; j++ {
					if (i+j)%2 == colour {
						at := i*n + j
						mean := float64((u[at-n] + u[at+n] + u[at-1] + u[at+1]) * 0.25)
						u[at] += float64(omega * (mean - u[at]))
					}
				}
			}
		}
	}
	return u
}

func TestSequentialIsTheMethod(t *testing.T) {
	for _, n := range []int{3, 4, 5, 64, 127} {
		r, err := kernel.Sequential(Kernel.Problem(n))
		got := kerneltest.Solve(t, r, err)
		want := reference(n)
		for i, w := range want {
			if got.Output.At(i) != math.Float64bits(w) {
				t.Fatalf("edge %d: point %d is %x, want %x", n, i, got.Output.At(i), math.Float64bits(w))
			}
		}
	}
}

// TestAnyNumberOfThreads includes more threads than rows.
func TestAnyNumberOfThreads(t *testing.T) {
	for _, n := range []int{3, 17, 128} {
		kerneltest.AnyNumberOfThreads(t, fmt.Sprintf("edge %d", n), Kernel.Problem(n), 1, 2, 3, 8, 33)
	}
}

// TestNoPageHasBothColours: a page with points of both colours would be written by its owner and
// read by a neighbour in the same half iteration.
func TestNoPageHasBothColours(t *testing.T) {
	const pageBytes = 4096
	prepared, err := kernel.Goroutines(Kernel.Problem(256), 1)
	if err != nil {
		t.Fatal(err)
	}
	g := prepared.Program.(*run).grid
	colours := make(map[uintptr]int) // by page
	for i := range g.edge {
		for j := range g.edge {
			page, colour := reflect.ValueOf(g.point(i, j)).Pointer()/pageBytes, (i+j)&1
			if other, seen := colours[page]; seen && other != colour {
				t.Fatalf("point (%d,%d) lies on a page with points of the other colour", i, j)
			}
			colours[page] = colour
		}
	}
}

// TestNoPageHasTwoWriters takes edges whose rows no page divides.
func TestNoPageHasTwoWriters(t *testing.T) {
	const pageBytes = 4096
	for _, edge := range []int{3, 128, 1500} {
		for _, threads := range []int{1, 2, 7} {
			g := newGrid(edge, threads, pageBytes)
			writers := make(map[int]int) // by page
			for thread := range threads {
				lo, hi := g.written(threads, thread)
				for i := lo; i < hi; i++ {
					for at := g.starts[i]; at < g.starts[i]+rowLength(edge); at++ {
						page := at * 8 / pageBytes
						if other, seen := writers[page]; seen && other != thread {
							t.Fatalf("edge %d: threads %d and %d of %d write page %d", edge, other, thread, threads, page)
						}
						writers[page] = thread
					}
				}
			}
		}
	}
}

// TestConverges: the solution of Laplace's equation has no interior extremum, and the method
// approaches it.
func TestConverges(t *testing.T) {
	g := newGrid(18, 1, 1)
	g.colours = [2][]float64{make([]float64, g.length), make([]float64, g.length)}
	for i := range g.edge {
		g.fill(i)
	}
	for range 500 {
		g.relax(1, g.edge-1, red)
		g.relax(1, g.edge-1, black)
	}
	for i := 1; i < g.edge-1; i++ {
		for j := 1; j < g.edge-1; j++ {
			point, mean := *g.point(i, j), (*g.point(i-1, j)+*g.point(i+1, j)+*g.point(i, j-1)+*g.point(i, j+1))/4
			if math.Abs(point-mean) > 1e-12 {
				t.Fatalf("point (%d,%d) is %v, the mean of its neighbours %v", i, j, point, mean)
			}
		}
	}
}

func TestProgressCountsIterations(t *testing.T) {
	r, err := kernel.Goroutines(Kernel.Problem(8), 2)
	if err != nil {
		t.Fatal(err)
	}
	last := 0
	if err := r.Compute(t.Context(), func(done, total int) {
		if done != last+1 || total != iterations {
			t.Errorf("progress %d of %d after %d", done, total, last)
		}
		last = done
	}); err != nil {
		t.Fatal(err)
	}
	if last != iterations {
		t.Errorf("the last progress was %d, want %d", last, iterations)
	}
}
