package lu

import (
	"errors"
	"math"
	"slices"
	"testing"

	"dsmd/bench/kernel"
	"dsmd/bench/kernel/kerneltest"
)

var both = []kernel.Kernel{Kernel, Plain}

// TestOriginalsFigures compares with the original program at all sizes of the reference.
func TestOriginalsFigures(t *testing.T) {
	for _, k := range both {
		for n := range splash3 {
			p := k.Problem(n)
			r, err := kernel.Sequential(p)
			got := kerneltest.Solve(t, r, err)
			if err := p.Verify(got, got); err != nil {
				t.Errorf("%s, n = %d: %v", k.Name, n, err)
			}
		}
	}
}

// TestAnyNumberOfThreads includes sizes that are no multiples of a block, and more threads than
// blocks.
func TestAnyNumberOfThreads(t *testing.T) {
	for _, n := range []int{1, 15, 16, 17, 64, 100} {
		r, err := kernel.Sequential(Kernel.Problem(n))
		want := kerneltest.Solve(t, r, err)
		for _, k := range both {
			for _, threads := range []int{1, 2, 3, 4, 6, 9} {
				p := k.Problem(n)
				r, err := kernel.Goroutines(p, threads)
				if err := p.Verify(want, kerneltest.Solve(t, r, err)); err != nil {
					t.Errorf("%s, n = %d, %d threads: %v", k.Name, n, threads, err)
				}
			}
		}
	}
}

// TestIsTheFactorisation multiplies the factors.
func TestIsTheFactorisation(t *testing.T) {
	const n = 37
	r, err := kernel.Sequential(Plain.Problem(n))
	if err != nil {
		t.Fatal(err)
	}
	input := append([]float64(nil), r.Program.(*run).elements...)
	got := kerneltest.Solve(t, r, nil).Output.(kernel.Float64s)
	for i := range n {
		for j := range n {
			sum := 0.0
			for k := range min(i, j) + 1 {
				upper := 1.0
				if k < j {
					upper = got[j*n+k]
				}
				sum += got[k*n+i] * upper
			}
			if want := input[j*n+i]; math.Abs(sum-want) > 1e-6 {
				t.Errorf("element (%d,%d) of the product is %v, want %v", i, j, sum, want)
			}
		}
	}
}

// TestVerifyNotices factors that solve nothing, a wrong figure and a wrong bit.
func TestVerifyNotices(t *testing.T) {
	p := Kernel.Problem(64)
	r, err := kernel.Sequential(p)
	right := kerneltest.Solve(t, r, err)
	for figure, value := range map[string]any{"max_diff": math.NaN(), "fnv": "0", "sumabs": 1e9, "a10": nil} {
		wrong := kernel.Result{Figures: map[string]any{}, Output: right.Output}
		for name, value := range right.Figures {
			wrong.Figures[name] = value
		}
		wrong.Figures[figure] = value
		if p.Verify(wrong, wrong) == nil {
			t.Errorf("%s = %v is verified", figure, value)
		}
	}
	output := append(kernel.Float64s(nil), right.Output.(kernel.Float64s)...)
	output[77] = math.Nextafter(output[77], 0)
	if p.Verify(right, kernel.Result{Figures: right.Figures, Output: output}) == nil {
		t.Error("a wrong bit is verified")
	}
}

func TestSizesAreBounded(t *testing.T) {
	for _, text := range []string{"0", "-16", "32769", "1.5"} {
		if _, err := Kernel.Sizes.Parse(text); !errors.Is(err, kernel.ErrSize) {
			t.Errorf("size %s: %v, want ErrSize", text, err)
		}
	}
}

// writers returns which threads write each page.
func writers(l layout) []map[int]bool {
	const page = 4096 / 8
	pages := make([]map[int]bool, (l.length()+page-1)/page)
	places := make([]float64, l.length())
	for i := range places {
		places[i] = float64(i)
	}
	for j := range l.blocks() {
		for i := range l.blocks() {
			b := l.block(places, i, j)
			for c := range b.cols {
				for _, at := range b.column(c) {
					p := int(at) / page
					if pages[p] == nil {
						pages[p] = map[int]bool{}
					}
					pages[p][l.owner(i, j)] = true
				}
			}
		}
	}
	return pages
}

// TestSharingOfPages is the difference between the kernels.
func TestSharingOfPages(t *testing.T) {
	for _, threads := range []int{1, 2, 3, 4, 8} {
		for p, writers := range writers(newContiguous(200, threads, 4096)) {
			if len(writers) > 1 {
				t.Errorf("lu: page %d has %d writers", p, len(writers))
			}
		}
		for p, writers := range writers(newPlain(512, threads)) {
			if len(writers) < min(threads, 2) {
				t.Errorf("lu-nc: page %d has %d of %d threads as writers", p, len(writers), threads)
			}
		}
	}
}

// TestPerimeterIsWhatIsRead: a thread has fetched those blocks of the perimeter which it will read
// and another has written, and nothing else.
func TestPerimeterIsWhatIsRead(t *testing.T) {
	const n = 150 // ten blocks, the last of them smaller
	for _, threads := range []int{1, 2, 3, 4, 6, 9} {
		l := newContiguous(n, threads, 4096)
		for thread := range threads {
			for k := range l.blocks() {
				below, right := l.perimeter(marked(l), k, thread)
				got := slices.Concat(below, right)
				slices.Sort(got)
				if want := readBlocks(l, k, thread); !slices.Equal(got, want) {
					t.Errorf("%d threads: at step %d thread %d fetches elements of blocks %v, want %v",
						threads, k, thread, slices.Compact(got), slices.Compact(want))
				}
			}
		}
	}
}

// marked is a matrix whose elements say in which block they are; 0 is in none.
func marked(l layout) []float64 {
	elements := make([]float64, l.length())
	for j := range l.blocks() {
		for i := range l.blocks() {
			for k := range l.block(elements, i, j).columns {
				l.block(elements, i, j).columns[k] = float64(1 + i*100 + j)
			}
		}
	}
	return elements
}

// readBlocks are the marks of what a thread reads of others' blocks in the perimeter. A thread
// without a block behind the diagonal's column or below its row has none to modify, and fetches
// those of its rows and columns in vain.
func readBlocks(l layout, k, thread int) (marks []float64) {
	elements := marked(l)
	rows, columns := map[int]bool{}, map[int]bool{}
	for j := range l.blocks() {
		for i := range l.blocks() {
			if l.owner(i, j) == thread {
				rows[i], columns[j] = true, true
			}
		}
	}
	for m := k + 1; m < l.blocks(); m++ {
		if rows[m] && l.owner(m, k) != thread {
			marks = append(marks, l.block(elements, m, k).columns...)
		}
		if columns[m] && l.owner(k, m) != thread {
			marks = append(marks, l.block(elements, k, m).columns...)
		}
	}
	slices.Sort(marks)
	return marks
}

// TestDiagonalIsAlone: others read a diagonal block while its owner writes blocks of its step.
func TestDiagonalIsAlone(t *testing.T) {
	const page = 4096 / 8
	for _, threads := range []int{1, 2, 3, 4, 6} {
		l := newContiguous(150, threads, 4096)
		blocks := make([]map[float64]bool, (l.length()+page-1)/page)
		for i, mark := range marked(l) {
			if blocks[i/page] == nil {
				blocks[i/page] = map[float64]bool{}
			}
			if mark != 0 {
				blocks[i/page][mark] = true
			}
		}
		for p, marks := range blocks {
			for k := range l.blocks() {
				if marks[float64(1+k*101)] && len(marks) > 1 {
					t.Errorf("%d threads: page %d has diagonal block %d and others", threads, p, k)
				}
			}
		}
	}
}
