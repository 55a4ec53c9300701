package barnes

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"dsmd/bench/kernel"
	"dsmd/bench/kernel/kerneltest"
)

func TestAgreesWithTheOriginal(t *testing.T) {
	p := Kernel.Problem(1024)
	if original[1024] == nil || original[16384] == nil {
		t.Fatal("the figures of the original program are missing")
	}
	r, err := kernel.Sequential(p)
	result := kerneltest.Solve(t, r, err)
	if err := p.Verify(result, result); err != nil {
		t.Error(err)
	}
	// The original's last body, too, of which the sums say little.
	want := vector{-1.03201203699833, 3.38337595419267, 4.70074213592579}
	for k := range want {
		if got := math.Float64frombits(result.Output.At(3*1023 + k)); math.Abs(got-want[k]) > 1e-9 {
			t.Errorf("coordinate %d of the last body is %v, want %v", k, got, want[k])
		}
	}
	result.Figures["KE"] = result.Figures["KE"].(float64) * (1 + 2*agreement)
	if err := p.Verify(result, result); err == nil || !strings.Contains(err.Error(), "KE") {
		t.Errorf("Verify with a wrong energy = %v, want an error that names KE", err)
	}
}

// TestAnyNumberOfThreads includes more threads than bodies.
func TestAnyNumberOfThreads(t *testing.T) {
	for _, n := range []int{2, 3, 11, 150, 1024} {
		kerneltest.AnyNumberOfThreads(t, fmt.Sprintf("%d bodies", n), Kernel.Problem(n), 1, 2, 3, 4, 13)
	}
}

// TestForcesAreNearTheExactOnes compares the tree's accelerations with the sums over all pairs.
// With this tolerance of opening cells a few per cent are what the method gives.
func TestForcesAreNearTheExactOnes(t *testing.T) {
	const n = 500
	built := build(t, n)
	var difference, size float64
	for i := range built.bodies {
		var exact vector
		for j := range built.bodies {
			if d := built.bodies[j].pos.Sub(built.bodies[i].pos); i != j {
				square := d.Dot(d) + softening*softening
				exact = exact.Add(d.Scaled(built.bodies[j].mass / (square * math.Sqrt(square))))
			}
		}
		d := built.pullOn(int32(i), built.side).acc.Sub(exact)
		difference += d.Dot(d)
		size += exact.Dot(exact)
	}
	if ratio := math.Sqrt(difference / size); ratio > 0.05 {
		t.Errorf("the accelerations differ from the exact ones by %.3f of their size", ratio)
	}
}

type builtTree struct {
	tree
	side float64
}

// build builds the tree of n bodies by one thread.
func build(t *testing.T, n int) builtTree {
	t.Helper()
	prepared, err := kernel.Goroutines(problem{n: n}, 1)
	if err != nil {
		t.Fatal(err)
	}
	r := prepared.Program.(*run)
	var w *worker
	if err := kernel.Spawn(t.Context(), 1, func(thread *kernel.Thread) {
		w = &worker{Thread: thread, run: r, builder: newBuilder(&r.tree, thread, len(r.cells))}
		for i := range n {
			w.mine = append(w.mine, int32(i))
		}
		w.builder.reset()
		w.builder.box = r.boundingBox()
		w.builder.build(w.mine)
		r.notes[0].deepest = int64(w.builder.deepest())
		w.weigh()
	}); err != nil {
		t.Fatal(err)
	}
	return builtTree{tree: r.tree, side: w.builder.box.side}
}

// TestSharesCoverAllBodiesOnce divides the work in many ways, also with bodies that have no cost.
func TestSharesCoverAllBodiesOnce(t *testing.T) {
	built := build(t, 300)
	work := built.cells[root].cost
	if work != 300 {
		t.Fatalf("300 bodies of cost 1 cost %d", work)
	}
	for _, parts := range []int64{1, 2, 7, 299, 300, 1000} {
		var all []int32
		for k := range parts {
			all = built.share(all, work*k/parts, work*(k+1)/parts)
		}
		slices.Sort(all)
		for i := range 300 {
			if len(all) != 300 || all[i] != int32(i) {
				t.Fatalf("%d parts: %v", parts, all)
			}
		}
	}
	if free := build(t, 2); len(free.share(nil, 0, math.MaxInt64)) != 2 {
		t.Error("the only share of two bodies is not both")
	}
}

// TestPagesOfBodiesHaveOneWriter: where the shares of threads meet a page may have bodies of two.
func TestPagesOfBodiesHaveOneWriter(t *testing.T) {
	const n, parts, pageBytes = 4096, 4, 4096
	built := build(t, n)
	work := built.cells[root].cost
	perPage := pageBytes / int(reflect.TypeFor[body]().Size())
	writers := make([]map[int64]bool, n/perPage+1)
	for k := range int64(parts) {
		for _, i := range built.share(nil, work*k/parts, work*(k+1)/parts) {
			page := &writers[int(i)/perPage]
			if *page == nil {
				*page = make(map[int64]bool)
			}
			(*page)[k] = true
		}
	}
	shared := 0
	for _, all := range writers {
		if len(all) > 1 {
			shared++
		}
	}
	if shared >= parts {
		t.Errorf("%d of %d pages have bodies of several threads, with %d threads", shared, len(writers), parts)
	}
}

// TestTreeSplitsOnlyFullLeaves walks a tree: each body is in one leaf, in the octants that its
// position says, and every cell but the root has more bodies than fit into a leaf.
func TestTreeSplitsOnlyFullLeaves(t *testing.T) {
	built := build(t, 2000)
	seen := make([]int, 2000)
	var walk func(r ref) int
	walk = func(r ref) int {
		if r < 0 {
			l := built.leaves[r.leaf()]
			for _, number := range l.bodies[:l.count] {
				seen[number]++
			}
			return int(l.count)
		}
		count := 0
		for k := range built.cells[r.cell()].sub {
			if child := built.cells[r.cell()].child(k); child != 0 {
				count += walk(child)
			}
		}
		if r != cellRef(root) && count <= leafBodies {
			t.Errorf("cell %d has only %d bodies", r.cell(), count)
		}
		return count
	}
	if count := walk(cellRef(root)); count != 2000 {
		t.Errorf("the tree has %d bodies", count)
	}
	if slices.Max(seen) != 1 || slices.Min(seen) != 1 {
		t.Error("a body is missing, or in several leaves")
	}
}

// TestNodesFillPages: arenas must be whole pages, else threads share the pages where they meet.
func TestNodesFillPages(t *testing.T) {
	for _, node := range []any{cell{}, leaf{}} {
		if size := reflect.TypeOf(node).Size(); size != nodeBytes {
			t.Errorf("a %T has %d bytes, want %d", node, size, nodeBytes)
		}
	}
	if size := reflect.TypeFor[note]().Size(); size != noteBytes {
		t.Errorf("a note has %d bytes, want %d", size, noteBytes)
	}
	if arenaNodes(12345)*nodeBytes%(1<<16) != 0 {
		t.Errorf("an arena of %d nodes is no whole number of pages of 64 KiB", arenaNodes(12345))
	}
}

// TestImpossibleBodies: bodies that no tree can hold must end in an error.
func TestImpossibleBodies(t *testing.T) {
	for name, place := range map[string]func(i int) vector{
		"all at one point":    func(int) vector { return vector{1, 2, 3} },
		"too many at a point": func(i int) vector { return vector{float64(i / 12), 0, 0} },
		"not a number":        func(i int) vector { return vector{float64(i), math.NaN(), 0} },
	} {
		prepared, err := kernel.Goroutines(problem{n: 24}, 2)
		if err != nil {
			t.Fatal(err)
		}
		r := prepared.Program.(*run)
		for i := range r.bodies {
			r.bodies[i].pos = place(i)
		}
		if err := prepared.Compute(t.Context(), nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestArenaIsBounded(t *testing.T) {
	built := build(t, 100)
	for what, use := range map[string]func(b *builder){
		"cells":  func(b *builder) { b.nextCell = b.end; b.newCell(1) },
		"leaves": func(b *builder) { b.nextLeaf = b.end; b.newLeaf() },
	} {
		err := kernel.Spawn(t.Context(), 1, func(thread *kernel.Thread) {
			b := newBuilder(&built.tree, thread, arenaGranule)
			b.reset()
			use(b)
		})
		if !errors.Is(err, ErrArena) {
			t.Errorf("a full arena of %s gives %v, want ErrArena", what, err)
		}
	}
}

func TestCancelled(t *testing.T) {
	if err := kerneltest.Cancelled(t, problem{n: 64}); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Compute of a cancelled run = %v", err)
	}
}
