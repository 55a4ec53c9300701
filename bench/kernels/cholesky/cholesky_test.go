package cholesky

import (
	"context"
	"errors"
	"flag"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"dsmd/bench/kernel"
	"dsmd/bench/kernel/kerneltest"
	"dsmd/bench/kernels/random"
)

// dense is the matrix with elements everywhere.
func dense(n int) *matrix {
	starts, rows := []int32{0}, []int32(nil)
	for column := range n {
		for row := column + 1; row < n; row++ {
			rows = append(rows, int32(row))
		}
		starts = append(starts, int32(len(rows)))
	}
	return newMatrix(starts, rows)
}

// scattered is a matrix with elements in places drawn by lot, on average one below the diagonal of
// each column, and many more of them in neighbouring columns. It falls into parts of all sizes, and
// its order is none that keeps the factor sparse.
func scattered(n int, seed uint32) *matrix {
	lot := random.Rand48(seed)
	starts, rows := []int32{0}, []int32(nil)
	for column := range n {
		first := len(rows)
		if column+1 < n && lot.Float64() < 0.6 {
			rows = append(rows, int32(column+1))
		}
		if room := n - column - 1; room > 0 && lot.Float64() < 0.4 {
			rows = append(rows, int32(column+1+int(lot.Float64()*float64(room))))
		}
		rows = rows[:first+len(slices.Compact(rows[first:]))]
		starts = append(starts, int32(len(rows)))
	}
	return newMatrix(starts, rows)
}

// plainFactor is the factor of a matrix in its own order, computed as plainly as possible.
func plainFactor(m *matrix) [][]float64 {
	n := m.size()
	l := make([][]float64, n)
	for i := range l {
		l[i] = make([]float64, n)
		l[i][i] = m.diagonal
		for _, j := range m.neighbours(i) {
			l[i][j] = -1
		}
	}
	for j := range n {
		for k := range j {
			l[j][j] -= l[j][k] * l[j][k]
		}
		l[j][j] = math.Sqrt(l[j][j])
		for i := j + 1; i < n; i++ {
			for k := range j {
				l[i][j] -= l[i][k] * l[j][k]
			}
			l[i][j] /= l[j][j]
		}
	}
	return l
}

// TestIsTheFactor compares with the plain factor: what is stored is equal to rounding, and what is
// not is zero. The order of elimination may differ from the matrix's, but not the factor.
func TestIsTheFactor(t *testing.T) {
	for name, m := range map[string]*matrix{
		"grid 1": grid(1), "grid 2": grid(2), "grid 3": grid(3), "grid 6": grid(6),
		"dense": dense(100), "scattered": scattered(250, 3), "more scattered": scattered(250, 4),
	} {
		prepared, err := kernel.Goroutines(problem{m}, 2)
		kerneltest.Solve(t, prepared, err)
		want := plainFactor(m)
		prepared.Program.(*run).each(func(row, column int, x float64) {
			// Above the diagonal is zero: elements there are stored without need, as the original
			// does.
			if above := row < column; above && x != 0 || !above && math.Abs(x-want[row][column]) > 1e-12 {
				t.Fatalf("%s: element (%d,%d) of the factor is %v", name, row, column, x)
			}
			if row > column {
				want[row][column] = 0 // seen
			}
		})
		for row := range want {
			for column := range row {
				if want[row][column] != 0 {
					t.Fatalf("%s: element (%d,%d) of the factor is not there, want %v", name, row, column, want[row][column])
				}
			}
		}
	}
}

// inputs is where TestAgreesWithTheOriginal puts its matrices; testdata/README.md says what for.
var inputs = flag.String("inputs", "", "write the matrices that the original was run on into this folder")

// compared are the matrices on which the original was run and which the tests have.
func compared() map[string]*matrix {
	return map[string]*matrix{
		"grid-2": grid(2), "grid-5": grid(5), "grid-10": grid(10), "grid-24": grid(24), "grid-36": grid(36),
		"dense-64": dense(64), "d750": dense(750),
		"scattered-1000": scattered(1000, 1), "scattered-5000": scattered(5000, 2),
	}
}

// TestAgreesWithTheOriginal: Verify compares with what the C program computed, and that is known of
// these matrices. The larger ones are left to `bench run`.
func TestAgreesWithTheOriginal(t *testing.T) {
	for name, m := range compared() {
		if *inputs != "" {
			if err := os.WriteFile(filepath.Join(*inputs, name+".O"), []byte(written(t, m)), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if splash3[m.fingerprint()] == nil {
			t.Errorf("%s (matrix %s): nothing is known of what the original computes", name, m.fingerprint())
		}
		if m.size() > 2000 {
			continue
		}
		p := problem{m}
		r, err := kernel.Sequential(p)
		want := kerneltest.Solve(t, r, err)
		if err := p.Verify(want, want); err != nil || want.Figures["original_known"] != true {
			t.Errorf("%s: %v, figures %v", name, err, want.Figures)
		}
		for _, threads := range []int{2, 3} {
			r, err := kernel.Goroutines(p, threads)
			if err := p.Verify(want, kerneltest.Solve(t, r, err)); err != nil {
				t.Errorf("%s, %d threads: %v", name, threads, err)
			}
		}
	}
}

// TestVerifyNotices every figure of the original.
func TestVerifyNotices(t *testing.T) {
	p := problem{grid(10)}
	known := splash3[p.fingerprint()]
	for _, name := range []string{"supernodes", "supernodes_before", "operations", "operations_before", "nonzeros", "sum", "sum_abs", "sum_squares", "sum_positions"} {
		if _, ok := known[name].(float64); !ok {
			t.Errorf("the original's figure %q is not known", name)
		}
	}
	r, err := kernel.Sequential(p)
	right := kerneltest.Solve(t, r, err)
	notices := func(name string, wrong any) {
		figures := maps.Clone(right.Figures)
		figures[name] = wrong
		wronged := kernel.Result{Figures: figures, Output: right.Output}
		if err := p.Verify(wronged, wronged); err == nil || !strings.Contains(err.Error(), name) && name != "error" {
			t.Errorf("Verify with %s = %v: %v", name, wrong, err)
		}
	}
	for name, value := range known {
		notices(name, value.(float64)*(1+1e-9))
		notices(name, nil)
	}
	for _, wrong := range []any{1e-9, math.NaN(), nil} {
		notices("error", wrong)
	}
}

// TestAnyNumberOfThreads includes more threads than panels.
func TestAnyNumberOfThreads(t *testing.T) {
	for name, m := range map[string]*matrix{
		"grid 1": grid(1), "grid 2": grid(2), "grid 4": grid(4), "grid 10": grid(10), "dense": dense(200), "scattered": scattered(500, 1),
	} {
		kerneltest.AnyNumberOfThreads(t, name, problem{m}, 1, 2, 3, 4, 7, 40)
	}
}

// TestFill: a matrix that fills in beyond measure is refused before memory is taken for its factor.
func TestFill(t *testing.T) {
	m := scattered(500, 1)
	if _, err := m.columnCounts(m.eliminationTree(), 2000); !errors.Is(err, ErrFill) {
		t.Errorf("columnCounts = %v, want ErrFill", err)
	}
}

// analysed is analyse of a matrix that does not fill in too much.
func analysed(t *testing.T, m *matrix, threads int) *structure {
	t.Helper()
	s, err := analyse(m, threads)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestStructure: every column is in one panel, blocks do not overlap, and who changes whom is known
// on both sides.
func TestStructure(t *testing.T) {
	for name, m := range map[string]*matrix{"grid 1": grid(1), "grid 5": grid(5), "grid 12": grid(12), "dense": dense(100), "scattered": scattered(500, 1)} {
		for _, threads := range []int{1, 3, 8} {
			s := analysed(t, m, threads)
			used := make([]bool, s.memory)
			column := 0
			for i := range s.panels {
				p := &s.panels[i]
				if p.first != column || p.width() < 1 || p.width() > panelWidth || p.owner < 0 || p.owner >= threads {
					t.Fatalf("%s, %d threads: panel %d is %d to %d, owner %d", name, threads, i, p.first, p.end, p.owner)
				}
				column = p.end
				for k := range p.size() {
					if used[p.offset+k] {
						t.Fatalf("%s: blocks overlap at %d", name, p.offset+k)
					}
					used[p.offset+k] = true
				}
				for k := 1; k < len(p.rows); k++ {
					if p.rows[k] <= p.rows[k-1] {
						t.Fatalf("%s: rows of panel %d are %v", name, i, p.rows)
					}
				}
				last := int32(-1)
				for _, source := range p.sources {
					if source <= last || int(source) >= i {
						t.Fatalf("%s: panel %d is changed by %v", name, i, p.sources)
					}
					last = source
				}
			}
			if column != m.size() {
				t.Errorf("%s: the panels have %d columns", name, column)
			}
		}
	}
}

// TestOwnersHavePagesOfTheirOwn: no page of 4 KiB holds blocks of two owners.
func TestOwnersHavePagesOfTheirOwn(t *testing.T) {
	s := analysed(t, grid(12), 4)
	owners := make(map[int]int)
	for i := range s.panels {
		p := &s.panels[i]
		for page := p.offset / pageNumbers; page <= (p.offset+p.size()-1)/pageNumbers; page++ {
			if owner, known := owners[page]; known && owner != p.owner {
				t.Fatalf("page %d belongs to threads %d and %d", page, owner, p.owner)
			}
			owners[page] = p.owner
		}
	}
}

// TestWorkIsShared: with four threads none has more than half of the numbers.
func TestWorkIsShared(t *testing.T) {
	for name, m := range map[string]*matrix{"grid": grid(16), "dense": dense(750)} {
		s := analysed(t, m, 4)
		var has [4]int
		all := 0
		for i := range s.panels {
			has[s.panels[i].owner] += s.panels[i].size()
			all += s.panels[i].size()
		}
		for k, n := range has {
			if n < all/8 || n > all/2 {
				t.Errorf("%s: thread %d has %d of %d numbers", name, k, n, all)
			}
		}
	}
}

// TestIndefinite: a matrix without a factor must end in an error on every thread, although the
// others wait for panels.
func TestIndefinite(t *testing.T) {
	for _, pivot := range []float64{-1, 0, math.NaN()} {
		prepared, err := kernel.Goroutines(problem{grid(6)}, 3)
		if err != nil {
			t.Fatal(err)
		}
		r := prepared.Program.(*run)
		r.block(&r.panels[0])[0] = pivot
		if err := prepared.Compute(t.Context(), nil); !errors.Is(err, ErrIndefinite) {
			t.Errorf("pivot %v: Compute = %v, want ErrIndefinite", pivot, err)
		}
	}
}

func TestCancelled(t *testing.T) {
	if err := kerneltest.Cancelled(t, problem{grid(6)}); !errors.Is(err, context.Canceled) {
		t.Errorf("Compute of a cancelled run = %v", err)
	}
}
