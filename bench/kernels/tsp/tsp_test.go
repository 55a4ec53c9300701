package tsp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"

	"dsmd/bench/kernel"
	"dsmd/bench/kernel/kerneltest"
	"pgregory.net/rapid"
)

// shortest is the length of the shortest round trip by dynamic programming over sets (Held and
// Karp), which has nothing in common with branch and bound.
func shortest(m *cityMap) int32 {
	const far = math.MaxInt32 / 2
	sets := 1 << m.n
	// ways[s*n+c] is the shortest way from city 0 through the cities of s that ends in c.
	ways := slices.Repeat([]int32{far}, sets*m.n)
	ways[1*m.n] = 0
	for s := 1; s < sets; s += 2 {
		for last := range m.n {
			if way := ways[s*m.n+last]; way < far {
				for next := range m.n {
					if !set(s).has(next) {
						to := &ways[int(set(s).with(next))*m.n+next]
						*to = min(*to, way+m.distance[last][next])
					}
				}
			}
		}
	}
	best := int32(far)
	for last := 1; last < m.n; last++ {
		best = min(best, ways[(sets-1)*m.n+last]+m.distance[last][0])
	}
	return best
}

func TestFindsTheShortest(t *testing.T) {
	for n := 3; n <= 14; n++ {
		r, err := kernel.Sequential(Kernel.Problem(n))
		got := kerneltest.Solve(t, r, err)
		m := newMap(n)
		if want := float64(shortest(m)); got.Figures["length"] != want {
			t.Errorf("%d cities: length %v, want %v", n, got.Figures["length"], want)
		}
		var length int32
		var visited set
		for i := range n {
			from, to := int(got.Output.At(i)), int(got.Output.At((i+1)%n))
			length += m.distance[from][to]
			visited = visited.with(from)
		}
		if float64(length) != got.Figures["length"] || visited != m.all() {
			t.Errorf("%d cities: the round trip has length %d and visits %b", n, length, visited)
		}
	}
}

func TestAnyNumberOfThreads(t *testing.T) {
	for _, n := range []int{3, 4, 5, 14, 16} {
		kerneltest.AnyNumberOfThreads(t, fmt.Sprintf("%d cities", n), Kernel.Problem(n), 1, 2, 3, 4, 9)
	}
}

// TestTiesHaveOneWinner puts the cities on a grid, where many round trips are shortest.
func TestTiesHaveOneWinner(t *testing.T) {
	onGrid := func(threads int) kernel.Result {
		prepared, err := kernel.Goroutines(problem{n: 12}, threads)
		if err != nil {
			t.Fatal(err)
		}
		r := prepared.Program.(*run)
		m := &cityMap{n: 12}
		for i := range m.n {
			for j := range m.n {
				dx, dy := float64(i%4-j%4), float64(i/4-j/4)
				m.distance[i][j] = int32(100 * math.Sqrt(dx*dx+dy*dy))
			}
		}
		for i := range m.n {
			m.nearest[i] = m.byDistance(i)
		}
		r.cities = m
		return kerneltest.Solve(t, prepared, kernel.Spawn(t.Context(), 1, r.begin))
	}
	want := onGrid(1)
	if want.Figures["length"] != 1200.0 {
		t.Errorf("the shortest round trip on the grid has length %v, want 1200", want.Figures["length"])
	}
	for _, threads := range []int{2, 5} {
		if err := kernel.SameBits(want, onGrid(threads)); err != nil {
			t.Errorf("%d threads: %v", threads, err)
		}
	}
}

// TestBoundIsOne: no way home is shorter than the bound says.
func TestBoundIsOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMap(rapid.IntRange(3, 9).Draw(t, "n"))
		order := []int{}
		for i := 1; i < m.n; i++ {
			order = append(order, i)
		}
		order = rapid.Permutation(order).Draw(t, "order")
		left := m.all().without(0).without(order[0])
		way, last := int32(0), order[0]
		for _, city := range order[1:] {
			way += m.distance[last][city]
			last = city
		}
		way += m.distance[last][0]
		if bound := m.remaining(order[0], left); bound > way {
			t.Fatalf("the bound is %d, a way of %d exists: %v", bound, way, order)
		}
	})
}

func TestQueueOrders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bounds := rapid.SliceOfN(rapid.Int32Range(0, 20), 0, 40).Draw(t, "bounds")
		q := queue{heap: new(heap), room: len(bounds)}
		for _, bound := range bounds {
			if err := q.push(tour{bound: bound}); err != nil {
				t.Fatal(err)
			}
		}
		if err := q.push(tour{}); !errors.Is(err, ErrFull) {
			t.Fatalf("push into a full queue = %v, want ErrFull", err)
		}
		slices.Sort(bounds)
		for _, want := range bounds {
			if got, ok := q.pop(); !ok || got.bound != want {
				t.Fatalf("pop = %d, %v, want %d", got.bound, ok, want)
			}
		}
		if _, ok := q.pop(); ok {
			t.Fatal("pop from an empty queue gave a tour")
		}
	})
}

// TestQueueBeginsOnOnePage: the count and the upper eight levels of the heap, which every pop goes
// through, travel together.
func TestQueueBeginsOnOnePage(t *testing.T) {
	const pageBytes, levels = 4096, 8
	var h heap
	first, last := reflect.ValueOf(&h.count).Pointer(), reflect.ValueOf(&h.queued[1<<levels-1]).Pointer()
	if bytes := last - first; bytes > pageBytes {
		t.Errorf("%d levels of the heap and the count take %d bytes, more than a page", levels, bytes)
	}
}

// TestCapacityIsEnough pushes every tour that can be in the queue.
func TestCapacityIsEnough(t *testing.T) {
	for n, want := range map[int]int{3: 1 + 2 + 2 + 2, 4: 1 + 3 + 6 + 6, 32: 1 + 31 + 31*30 + 31*30*29} {
		if got := capacity(n); got != want {
			t.Errorf("capacity(%d) = %d, want %d", n, got, want)
		}
	}
	if most := capacity(maxCities); most != mostQueued {
		t.Errorf("capacity(%d) = %d, but there is room for %d", maxCities, most, mostQueued)
	}
}

func TestCancelled(t *testing.T) {
	if err := kerneltest.Cancelled(t, problem{n: 10}); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Compute of a cancelled run = %v", err)
	}
}

func (s set) with(city int) set { return s | 1<<city }
