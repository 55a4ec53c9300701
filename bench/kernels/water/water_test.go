package water

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"strings"
	"testing"

	"dsmd/bench/kernel"
	"dsmd/bench/kernel/kerneltest"
)

// TestReference lets Verify compare with what the original prints.
func TestReference(t *testing.T) {
	for _, n := range []int{64, 512} {
		if len(original[n]) != 7*steps {
			t.Fatalf("%d molecules: %d reference figures, want %d", n, len(original[n]), 7*steps)
		}
		p := Kernel.Problem(n)
		r, err := kernel.Sequential(p)
		result := kerneltest.Solve(t, r, err)
		if err := p.Verify(result, result); err != nil {
			t.Errorf("%d molecules: %v", n, err)
		}
	}
}

// TestOriginalAtOtherSizes: figures that a copy of the original with more decimals prints. With 8
// molecules the cutoff is longer than half the box; 1000 are more than there are momenta for.
func TestOriginalAtOtherSizes(t *testing.T) {
	for n, want := range map[int]map[string]float64{
		8: {
			"step 3 TEN": 1.36196462155578, "step 3 POTA": 0.0325614309676972, "step 3 POTR": -43.6737385746586,
			"step 3 POTRF": 13.267575130002, "step 3 temperature": 277.697887969478, "step 3 virial": 25.8927214899623,
		},
		27: {
			"step 3 TEN": 1.49709372989441, "step 3 POTA": 0.0408310450242881, "step 3 POTR": 11.350884664965,
			"step 3 POTRF": -3.73742245602501, "step 3 temperature": 295.729132785806, "step 3 virial": -21.5064939674911,
		},
		343: {
			"step 3 TEN": 1.59436825157435, "step 3 POTA": 0.0388003002638261, "step 3 POTR": 10.5499509670569,
			"step 3 POTRF": -2.15791082715546, "step 3 temperature": 307.911962909739, "step 3 virial": -19.4951920091278,
		},
		1000: {
			"step 5 TEN": 1.68695536095857, "step 5 POTA": 0.147468825363543, "step 5 POTR": 10.320114370867,
			"step 5 POTRF": -2.1292060751765, "step 5 temperature": 314.170051376003, "step 5 virial": -20.1718553143715,
		},
	} {
		if n == 1000 && testing.Short() {
			continue
		}
		r, err := kernel.Goroutines(Kernel.Problem(n), 2)
		got := kerneltest.Solve(t, r, err)
		for name, x := range want {
			if is := got.Figures[name].(float64); math.Abs(is-x) > 1e-11*max(1, math.Abs(x)) {
				t.Errorf("%d molecules: %s is %.15g, want %.15g", n, name, is, x)
			}
		}
	}
}

// TestAnyNumberOfThreads includes more threads than molecules, and numbers that are even and odd.
func TestAnyNumberOfThreads(t *testing.T) {
	for _, n := range []int{8, 27, 64} {
		kerneltest.AnyNumberOfThreads(t, fmt.Sprintf("%d molecules", n), Kernel.Problem(n), 1, 2, 3, 4, 7, 33)
	}
}

// TestEveryPairOnce: every two molecules make exactly one pair, and what a thread's pairs touch is
// within its reach.
func TestEveryPairOnce(t *testing.T) {
	for _, n := range []int{8, 27, 64} {
		for _, threads := range []int{1, 3, 4, 70} {
			pairs := make(map[[2]int]int)
			for index := range threads {
				w := newWorker(&run{system: &system{n: n}, forces: make([]forces, threads)}, &kernel.Thread{Team: &kernel.Team{Total: threads}, Index: index})
				for a := w.lo; a < w.hi; a++ {
					for next := a + 1; next <= a+partners(n, a); next++ {
						b := next % n
						pairs[[2]int{min(a, b), max(a, b)}]++
						if (b-w.lo+n)%n >= w.reach() {
							t.Fatalf("%d molecules, thread %d of %d: molecule %d is beyond its reach", n, index, threads, b)
						}
					}
				}
			}
			if len(pairs) != n*(n-1)/2 {
				t.Errorf("%d molecules, %d threads: %d pairs, want %d", n, threads, len(pairs), n*(n-1)/2)
			}
			for pair, times := range pairs {
				if times != 1 {
					t.Errorf("%d molecules, %d threads: pair %v is computed %d times", n, threads, pair, times)
				}
			}
		}
	}
}

// TestForcesOfALockAreAPage: what a lock guards, and what an owner sets without one, shares no page
// with other forces.
func TestForcesOfALockAreAPage(t *testing.T) {
	if size := reflect.TypeFor[sheet]().Size(); size != pageBytes {
		t.Errorf("a sheet has %d bytes, want %d", size, pageBytes)
	}
	for _, threads := range []int{1, 2, 5} {
		prepared, err := kernel.Goroutines(problem{n: 512}, threads)
		if err != nil {
			t.Fatal(err)
		}
		owners := make(map[kernel.Mutex]int)
		for thread, f := range prepared.Program.(*run).forces {
			lo, hi := kernel.Block(512, threads, thread)
			for mol := lo; mol < hi; mol++ {
				lock := f.lock(mol)
				if other, seen := owners[lock]; seen && other != thread {
					t.Fatalf("%d threads: a lock guards molecules of threads %d and %d", threads, other, thread)
				}
				owners[lock] = thread
				f.on(mol)[0][0]++
			}
			for mol := lo; mol < hi; mol++ {
				if x := f.on(mol)[0][0]; x != 1 {
					t.Fatalf("%d threads: the forces on molecule %d are those on %v molecules", threads, mol, x)
				}
			}
		}
	}
}

// crooked is a molecule that is not at rest, near the given point.
func crooked(x, y, z float64) place {
	p := place{atoms: vectors{{x + 0.6, x, x + 0.55}, {y + 0.8, y, y - 0.72}, {z + 0.1, z, z - 0.05}}}
	p.locate()
	return p
}

// gradient is minus the change of an energy with a coordinate.
func gradient(p *place, dir, atom int, energy func() float64) float64 {
	const step = 1e-5
	at := func(offset float64) float64 {
		old := *p
		p.atoms[dir][atom] += offset
		p.locate()
		e := energy()
		*p = old
		return e
	}
	return (at(-step) - at(step)) / (2 * step)
}

func TestInnerForcesAreTheEnergysGradient(t *testing.T) {
	p := crooked(1, 2, 3)
	f := p.innerForces()
	for dir := range 3 {
		for atom := range 3 {
			if want := gradient(&p, dir, atom, p.innerEnergy); math.Abs(f[dir][atom]-want) > 1e-8 {
				t.Errorf("direction %d, atom %d: the force is %v, the gradient %v", dir, atom, f[dir][atom], want)
			}
		}
	}
}

// TestPairForcesAreTheEnergysGradient takes a pair across the box's border, and both molecules of
// it.
func TestPairForcesAreTheEnergysGradient(t *testing.T) {
	s := newSystem(512)
	a, b := crooked(0.5, 3, 4), crooked(s.box-1.7, 4.5, 3.1)
	energy := func() float64 {
		var p pair
		p.measure(s, &a, &b)
		potential, field := p.energies()
		return potential + field
	}
	var p pair
	if !p.measure(s, &a, &b) || !p.near() {
		t.Fatal("the pair is not near")
	}
	f, _ := p.strengths()
	var onA, onB vectors
	p.push(&f, &onA, &onB)
	for dir := range 3 {
		for atom := range 3 {
			if want := gradient(&a, dir, atom, energy); math.Abs(onA[dir][atom]-want) > 1e-8 {
				t.Errorf("direction %d, atom %d: the force on a is %v, the gradient %v", dir, atom, onA[dir][atom], want)
			}
			if want := gradient(&b, dir, atom, energy); math.Abs(onB[dir][atom]-want) > 1e-8 {
				t.Errorf("direction %d, atom %d: the force on b is %v, the gradient %v", dir, atom, onB[dir][atom], want)
			}
		}
	}
}

func TestVerifyFindsErrors(t *testing.T) {
	p := Kernel.Problem(64)
	r, err := kernel.Sequential(p)
	want := kerneltest.Solve(t, r, err)
	for name, tc := range map[string]struct {
		spoil func(f map[string]any, places kernel.Float64s)
		says  string
	}{
		"printed":   {func(f map[string]any, _ kernel.Float64s) { f["step 5 POTR"] = 10.46906 }, "the original's is 10.46905"},
		"last bits": {func(f map[string]any, _ kernel.Float64s) { f["step 1 TEN"] = f["step 1 TEN"].(float64) + 1e-8 }, "the sequential version's is 1.4893"},
		"missing":   {func(f map[string]any, _ kernel.Float64s) { delete(f, "step 2 virial") }, `"step 2 virial" is missing`},
		"no number": {func(f map[string]any, _ kernel.Float64s) { f["step 2 virial"] = math.NaN() }, `"step 2 virial" is NaN`},
		"a place":   {func(_ map[string]any, places kernel.Float64s) { places[9*5+4] += 1e-9 }, "molecule 5: the y coordinate of atom 1"},
		"nowhere":   {func(_ map[string]any, places kernel.Float64s) { places[0] = math.NaN() }, "molecule 0: the x coordinate of atom 0"},
	} {
		t.Run(name, func(t *testing.T) {
			got := kernel.Result{Figures: maps.Clone(want.Figures), Output: append(kernel.Float64s(nil), want.Output.(kernel.Float64s)...)}
			tc.spoil(got.Figures, got.Output.(kernel.Float64s))
			if err := p.Verify(want, got); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Verify = %v, want an error with %q", err, tc.says)
			}
		})
	}
	if err := p.Verify(want, kernel.Result{Figures: want.Figures, Output: kernel.Float64s{1}}); err == nil {
		t.Error("an output of one word verifies")
	}
}

func TestMomentaRunOut(t *testing.T) {
	few, err := momenta(8)
	if err != nil {
		t.Fatal(err)
	}
	all, err := momenta(1000)
	if err != nil {
		t.Fatal(err)
	}
	for i := range few {
		if few[i] != all[i] {
			t.Errorf("molecule %d: %v of 8 molecules, %v of 1000", i, few[i], all[i])
		}
	}
	if last := all[588]; last[2][oxygen] == 0 || last[0][hydrogen2] != 0 {
		t.Errorf("molecule 588 has %v, want momenta for two atoms", last)
	}
	if all[999] != (vectors{}) {
		t.Errorf("molecule 999 has %v, want none", all[999])
	}
}

func TestSizes(t *testing.T) {
	sizes := Kernel.Sizes
	for text, want := range map[string]int{"test": 64, "default": 512, "large": 4096, "8": 8, "1331": 1331, "32768": 32768} {
		if n, err := sizes.Parse(text); err != nil || n != want {
			t.Errorf("Parse(%q) = %d, %v, want %d", text, n, err, want)
		}
	}
	for _, text := range []string{"0", "1", "9", "63", "65", "35937", "-8"} {
		if n, err := sizes.Parse(text); err == nil {
			t.Errorf("Parse(%q) = %d", text, n)
		}
	}
}
