package cholesky

import (
	"context"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"dsmd/bench/kernel"
)

// solve runs one version and returns its result.
func solve(t *testing.T, r kernel.Run, err error) kernel.Result {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Compute(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	result, err := r.Result(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// denseFactor is the factor of the matrix in the same order, computed as plainly as possible.
func denseFactor(d *dissection) [][]float64 {
	n := len(d.point)
	l := make([][]float64, n)
	for i := range l {
		l[i] = make([]float64, n)
		l[i][i] = d.diagonal(i)
		d.neighbours(i, func(j int) { l[i][j] = -d.conductance(i, j) })
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

// TestIsTheFactor compares with the dense factor: what is stored is equal to rounding, and what is not is zero.
func TestIsTheFactor(t *testing.T) {
	for _, edge := range []int{1, 2, 3, 5, 6} {
		prepared, err := problem{n: edge}.Goroutines(2)
		solve(t, prepared, err)
		r := prepared.(*run)
		want := denseFactor(r.dissection)
		for i := range r.panels {
			p := &r.panels[i]
			for column := p.first; column < p.end; column++ {
				at := 0
				for row := column; row < len(want); row++ {
					got := 0.0
					for at < len(p.rows) && int(p.rows[at]) < row {
						at++
					}
					if at < len(p.rows) && int(p.rows[at]) == row {
						got = r.block(p)[at*p.width()+column-p.first]
					}
					if math.Abs(got-want[row][column]) > 1e-13 {
						t.Fatalf("edge %d: element (%d,%d) of the factor is %v, want %v", edge, row, column, got, want[row][column])
					}
				}
			}
		}
	}
}

// TestAnyNumberOfThreads includes more threads than panels.
func TestAnyNumberOfThreads(t *testing.T) {
	for _, n := range []int{1, 2, 4, 10, 13} {
		p := Kernel{}.Problem(n)
		r, err := p.Sequential()
		want := solve(t, r, err)
		for _, threads := range []int{1, 2, 3, 4, 7, 40} {
			r, err := p.Goroutines(threads)
			if err := p.Verify(want, solve(t, r, err)); err != nil {
				t.Errorf("edge %d, %d threads: %v", n, threads, err)
			}
		}
	}
}

func TestVerifyLooksAtTheError(t *testing.T) {
	p := Kernel{}.Problem(3)
	r, err := p.Sequential()
	result := solve(t, r, err)
	for _, wrong := range []any{1e-9, math.NaN(), nil} {
		result.Figures["error"] = wrong
		err := p.Verify(kernel.Result{Figures: result.Figures, Output: result.Output}, result)
		if err == nil || !strings.Contains(err.Error(), "error") {
			t.Errorf("Verify with an error of %v = %v, want an error", wrong, err)
		}
	}
}

// TestStructure: every column is in one panel, blocks do not overlap, and who changes whom is known on both sides.
func TestStructure(t *testing.T) {
	for _, edge := range []int{1, 5, 12} {
		for _, threads := range []int{1, 3, 8} {
			s := analyse(edge, threads)
			used := make([]bool, s.memory)
			column := 0
			for i := range s.panels {
				p := &s.panels[i]
				if p.first != column || p.width() < 1 || p.width() > panelWidth || p.owner < 0 || p.owner >= threads {
					t.Fatalf("edge %d, %d threads: panel %d is %d to %d, owner %d", edge, threads, i, p.first, p.end, p.owner)
				}
				column = p.end
				for k := range p.size() {
					if used[p.offset+k] {
						t.Fatalf("edge %d: blocks overlap at %d", edge, p.offset+k)
					}
					used[p.offset+k] = true
				}
				for k := 1; k < len(p.rows); k++ {
					if p.rows[k] <= p.rows[k-1] {
						t.Fatalf("edge %d: rows of panel %d are %v", edge, i, p.rows)
					}
				}
				last := int32(-1)
				for _, source := range p.sources {
					if source <= last || int(source) >= i {
						t.Fatalf("edge %d: panel %d is changed by %v", edge, i, p.sources)
					}
					last = source
				}
			}
			if column != edge*edge*edge {
				t.Errorf("edge %d: the panels have %d columns", edge, column)
			}
		}
	}
}

// TestOwnersHavePagesOfTheirOwn: no page of 4 KiB holds blocks of two owners.
func TestOwnersHavePagesOfTheirOwn(t *testing.T) {
	s := analyse(12, 4)
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
	if size := reflect.TypeFor[counter]().Size(); size != 4096 {
		t.Errorf("a counter has %d bytes, want a page", size)
	}
	if bytes := 4 * inboxRoom(s); bytes%4096 != 0 {
		t.Errorf("an inbox has %d bytes, which are no pages", bytes)
	}
}

// TestWorkIsShared: with four threads none has more than half of the numbers.
func TestWorkIsShared(t *testing.T) {
	s := analyse(16, 4)
	var has [4]int
	all := 0
	for i := range s.panels {
		has[s.panels[i].owner] += s.panels[i].size()
		all += s.panels[i].size()
	}
	for k, n := range has {
		if n < all/8 || n > all/2 {
			t.Errorf("thread %d has %d of %d numbers", k, n, all)
		}
	}
}

// TestIndefinite: a matrix without a factor must end in an error on every thread, although the others wait for panels.
func TestIndefinite(t *testing.T) {
	for _, pivot := range []float64{-1, 0, math.NaN()} {
		prepared, err := problem{n: 6}.Goroutines(3)
		if err != nil {
			t.Fatal(err)
		}
		r := prepared.(*run)
		r.block(&r.panels[0])[0] = pivot
		if err := r.Compute(t.Context(), nil); !errors.Is(err, ErrIndefinite) {
			t.Errorf("pivot %v: Compute = %v, want ErrIndefinite", pivot, err)
		}
	}
}

func TestCancelled(t *testing.T) {
	r, err := problem{n: 6}.Goroutines(2)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Compute(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Compute of a cancelled run = %v", err)
	}
}
