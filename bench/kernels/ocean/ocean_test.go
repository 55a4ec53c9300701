package ocean

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"dsmd/bench/kernel"
	"dsmd/bench/kernel/kerneltest"
)

// TestSequentialIsTheOriginal compares both layers bit for bit with the original program on one
// processor.
func TestSequentialIsTheOriginal(t *testing.T) {
	for n, want := range map[int][2]string{
		4:   {"9742af342a843059", "d40cccb0b899ec5b"},
		6:   {"d036dbbf883a8691", "b843ed8134f62385"},
		10:  {"74cdd328d388507c", "f1dc6bf315990291"},
		18:  {"46dbaee8df81b7c9", "3b0cc3c49a1b0ded"},
		34:  {"5adf406f7f2e3c5d", "0889ed8b2a8c8332"},
		66:  {"a53b292f6de4d977", "ed62d5e5e9773709"},
		130: {"fa28f74ee7613ba2", "9223c47ead4469c2"},
	} {
		r, err := kernel.Sequential(Kernel.Problem(n))
		got := kerneltest.Solve(t, r, err)
		for layer, fnv := range want {
			if is := got.Figures[fmt.Sprintf("psi[layer %d] fnv", layer)]; is != fnv {
				t.Errorf("edge %d, layer %d: fnv %v, want %v", n, layer, is, fnv)
			}
		}
	}
}

// TestReference lets Verify compare with the figures of the original, which include those of every
// solve.
func TestReference(t *testing.T) {
	for _, n := range []int{66, 258} {
		if len(original[n]) < 3*(1+2*steps) {
			t.Fatalf("edge %d: only %d reference figures", n, len(original[n]))
		}
		p := Kernel.Problem(n)
		r, err := kernel.Sequential(p)
		result := kerneltest.Solve(t, r, err)
		if err := p.Verify(result, result); err != nil {
			t.Errorf("edge %d: %v", n, err)
		}
	}
}

// TestAnyNumberOfThreads includes numbers that are not powers of 2, that divide rows and columns
// unevenly, and that are too many for the grid.
func TestAnyNumberOfThreads(t *testing.T) {
	for _, n := range []int{4, 18, 66} {
		p := Kernel.Problem(n)
		r, err := kernel.Sequential(p)
		want := kerneltest.Solve(t, r, err)
		for _, threads := range []int{1, 2, 3, 4, 6, 9, 13} {
			r, err := kernel.Goroutines(p, threads)
			first := kerneltest.Solve(t, r, err)
			if err := p.Verify(want, first); err != nil {
				t.Errorf("edge %d, %d threads: %v", n, threads, err)
			}
			r, err = kernel.Goroutines(p, threads)
			if err := kernel.SameBits(first, kerneltest.Solve(t, r, err)); err != nil {
				t.Errorf("edge %d, %d threads, a second time: %v", n, threads, err)
			}
		}
	}
}

// TestSolvesToTheSameBits: a solution has the same bits however the grid is divided, although
// threads compute some points of their neighbours themselves. The first solve comes before any sum.
func TestSolvesToTheSameBits(t *testing.T) {
	const edge = 130
	solve := func(threads int) (kernel.Float64s, solve) {
		prepared, err := kernel.Goroutines(Kernel.Problem(edge), threads)
		if err != nil {
			t.Fatal(err)
		}
		r := prepared.Program.(*run)
		if err := kernel.Spawn(t.Context(), threads, func(t *kernel.Thread) { newWorker(r, t).begin() }); err != nil {
			t.Fatal(err)
		}
		points := make(kernel.Float64s, edge*edge)
		for i := range r.basins {
			g := &r.basins[i].psib
			g.each(func(i int, row []float64) { copy(points[(g.row0+i)*edge:], row) })
		}
		return points, r.solves[0]
	}
	want, how := solve(1)
	for _, threads := range []int{2, 3, 4, 7, 16} {
		got, same := solve(threads)
		if err := kernel.SameBits(kernel.Result{Output: want}, kernel.Result{Output: got}); err != nil || same != how {
			t.Errorf("%d threads: %v, solved by %+v, want %+v", threads, err, same, how)
		}
	}
}

func TestVerifyFindsErrors(t *testing.T) {
	p := Kernel.Problem(66)
	r, err := kernel.Sequential(p)
	want := kerneltest.Solve(t, r, err)
	for name, tc := range map[string]struct {
		spoil func(f map[string]any, psi kernel.Float64s)
		says  string
	}{
		"iterations": {func(f map[string]any, _ kernel.Float64s) { f["solve 03 iter"] = 19.0 }, `"solve 03 iter" is 19`},
		"residual":   {func(f map[string]any, _ kernel.Float64s) { f["solve 12 residual norm"] = 9.77326e-08 }, `"solve 12 residual norm"`},
		"missing":    {func(f map[string]any, _ kernel.Float64s) { delete(f, "psibi") }, `"psibi" is missing`},
		"no number":  {func(f map[string]any, _ kernel.Float64s) { f["psiai"] = math.NaN() }, `"psiai" is NaN`},
		"a point":    {func(_ map[string]any, psi kernel.Float64s) { psi[66*66+5*66+7] += 1e-9 }, "layer 1: the point at row 5, column 7"},
		"NaN":        {func(_ map[string]any, psi kernel.Float64s) { psi[9] = math.NaN() }, "layer 0: the point at row 0, column 9"},
	} {
		t.Run(name, func(t *testing.T) {
			got := kernel.Result{Figures: map[string]any{}, Output: append(kernel.Float64s(nil), want.Output.(kernel.Float64s)...)}
			for name, figure := range want.Figures {
				got.Figures[name] = figure
			}
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

// TestDivisionCoversEverythingOnce: at every level each point of the grid has exactly one owner.
func TestDivisionCoversEverythingOnce(t *testing.T) {
	for _, edge := range []int{4, 6, 34, 130} {
		for threads := 1; threads <= 12; threads++ {
			d := divide(edge, threads)
			for level := range d.levels {
				interior := d.coarsest << level
				owners := make([]int, (interior+2)*(interior+2))
				for thread := range threads {
					a := d.area(thread, level)
					for i := a.top; i <= a.bottom; i++ {
						for j := range a.cols + 2 {
							owners[(a.row0+i)*(interior+2)+j]++
						}
					}
				}
				for at, owned := range owners {
					if owned != 1 {
						t.Fatalf("edge %d, %d threads, level %d: the point at (%d,%d) has %d owners",
							edge, threads, level, at/(interior+2), at%(interior+2), owned)
					}
				}
			}
			if top := d.coarsest << (d.levels - 1); top != edge-2 {
				t.Errorf("edge %d, %d threads: the finest level has %d interior points along an edge", edge, threads, top)
			}
		}
	}
}

// TestLayoutSharesNoPages: points and frames of all threads start on pages, do not overlap, and
// fill the slice.
func TestLayoutSharesNoPages(t *testing.T) {
	const pageWords = 512
	for _, threads := range []int{1, 3, 4, 40} {
		d := divide(66, threads)
		l := d.layout(pageWords)
		words := make([]float64, l.words)
		for thread, b := range d.basins(l, words) {
			for _, at := range append(l.frames[thread][:], l.points[thread]) {
				if at%pageWords != 0 {
					t.Errorf("%d threads: a part of thread %d starts at word %d", threads, thread, at)
				}
			}
			mark := func(words []float64) {
				for i := range words {
					words[i]++
				}
			}
			for _, g := range []*grid{&b.psi[0], &b.tauz, &b.q[0], &b.rhs[d.levels-1], &b.residual[0]} {
				mark(g.points)
				for _, s := range g.frame {
					for _, row := range s.rows {
						mark(row)
					}
					for _, points := range s.black {
						mark(points)
					}
				}
			}
		}
		for i, marks := range words {
			if marks > 1 {
				t.Fatalf("%d threads: word %d belongs to %v grids", threads, i, marks)
			}
		}
	}
}

// TestCopiesInTurnShareNoPage: a page with both copies of black points would be read by the
// neighbours while its owner publishes the other copy. What is published of the finest solution is
// half a page for each neighbour here, and lies on one page.
func TestCopiesInTurnShareNoPage(t *testing.T) {
	const pageWords = 512
	for _, threads := range []int{2, 4} {
		d := divide(258, threads)
		l := d.layout(pageWords)
		words := make([]float64, l.words)
		page := func(x *float64) int {
			return int(reflect.ValueOf(x).Pointer()-reflect.ValueOf(words).Pointer()) / 8 / pageWords
		}
		for thread, b := range d.basins(l, words) {
			copies := make(map[int]int) // by page
			for level := range b.q {
				for _, s := range b.q[level].frame {
					for copied, points := range s.black {
						for i := range points {
							at := page(&points[i])
							if other, seen := copies[at]; seen && other != copied {
								t.Fatalf("%d threads: page %d of thread %d has points of both copies", threads, at, thread)
							}
							copies[at] = copied
						}
					}
				}
			}
			finest := make(map[int]bool)
			for _, s := range b.q[d.levels-1].frame {
				for i := range s.black[0] {
					finest[page(&s.black[0][i])] = true
				}
			}
			if len(finest) != 1 {
				t.Errorf("%d threads: what thread %d publishes of its finest solution lies on %d pages, want one", threads, thread, len(finest))
			}
		}
	}
}

func TestSizes(t *testing.T) {
	sizes := Kernel.Sizes
	for text, want := range map[string]int{"test": 66, "default": 258, "large": 1026, "4": 4, "8194": 8194} {
		if n, err := sizes.Parse(text); err != nil || n != want {
			t.Errorf("Parse(%q) = %d, %v, want %d", text, n, err, want)
		}
	}
	for _, text := range []string{"3", "5", "64", "100", "16386", "-2"} {
		if n, err := sizes.Parse(text); err == nil {
			t.Errorf("Parse(%q) = %d", text, n)
		}
	}
}
