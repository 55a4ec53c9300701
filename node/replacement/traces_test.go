package replacement

import (
	"math"
	"math/rand/v2"
	"sort"
)

// access is a load from a page, or a store.
type access struct {
	page  int32 // from 0 on
	write bool
}

// trace is what the threads of a node do, page by page.
type trace struct {
	name  string
	pages int // that are touched
	list  []access
}

// tracer writes a trace down.
type tracer struct {
	random *rand.Rand
	list   []access
}

func (t *tracer) read(p int)  { t.list = append(t.list, access{page: int32(p)}) }
func (t *tracer) write(p int) { t.list = append(t.list, access{page: int32(p), write: true}) }

// update reads and writes a page.
func (t *tracer) update(p int) {
	t.read(p)
	t.write(p)
}

// touch reads a page, or updates it: one in four times.
func (t *tracer) touch(p int) {
	if t.random.IntN(4) == 0 {
		t.update(p)
	} else {
		t.read(p)
	}
}

// span touches pages of a block.
func span(first, count int, do func(p int)) {
	for p := range count {
		do(first + p)
	}
}

// programs are what parallel programs do with some 4,000 pages.
var programs = []struct {
	name string
	run  func(*tracer)
}{
	{"a sweep, once", func(t *tracer) { span(0, 6000, t.touch) }},
	{"a sweep, again and again", func(t *tracer) {
		for range 15 {
			span(0, 4000, t.touch)
		}
	}},
	{"a sweep forth and back", func(t *tracer) {
		for range 8 {
			span(0, 4000, t.touch)
			span(-3999, 4000, func(p int) { t.touch(-p) })
		}
	}},
	{"four threads, a sweep each", func(t *tracer) {
		var at [4]int
		for range 60000 {
			k := t.random.IntN(len(at))
			t.touch(k*1000 + at[k]%1000)
			at[k]++
		}
	}},
	{"a sweep beside a working set", func(t *tracer) {
		for range 12 {
			span(400, 3600, func(p int) {
				t.read(p)
				t.touch(t.random.IntN(400))
			})
		}
	}},
	{"a stream beside a working set", func(t *tracer) {
		span(1000, 15000, func(p int) {
			t.read(p)
			t.touch(t.random.IntN(1000))
			t.touch(t.random.IntN(1000))
		})
	}},
	{"at random, the ends more seldom", func(t *tracer) {
		span(0, 4000, t.write)
		for range 60000 {
			t.touch(t.random.IntN(3600))
		}
	}},
	{"a table (zipf)", func(t *tracer) {
		z := newZipf(t.random, 4000, 1)
		for range 100000 {
			t.touch(z.draw())
		}
	}},
	{"a table that changes", func(t *tracer) {
		for range 6 {
			z := newZipf(t.random, 4000, 0.9)
			for range 20000 {
				t.touch(z.draw())
			}
		}
	}},
	{"one set after the other", func(t *tracer) {
		for set := range 13 {
			for range 10 {
				span(set*300, 600, t.touch)
			}
		}
	}},
	{"edges and ranks of a graph", graph},
	{"join of two tables", join},
	{"sor", sor},
	{"matmul", matmul},
	{"lu", lu},
	{"fft", fft},
	{"radix", radix},
	{"tree (barnes)", tree},
}

// graph goes over edges in order, and from each to some ranks.
func graph(t *tracer) {
	z := newZipf(t.random, 1600, 0.8)
	for range 8 {
		span(1600, 2400, func(p int) {
			t.read(p)
			for range 3 {
				t.read(z.draw())
			}
			if p%3 == 0 {
				t.update(t.random.IntN(1600))
			}
		})
	}
}

// join builds a table from one sweep, and looks things up in it for another; then the next part.
func join(t *tracer) {
	for part := range 6 {
		table := part * 650
		span(table, 150, func(p int) {
			t.read(p)
			for range 8 {
				t.update(table + 150 + t.random.IntN(300))
			}
		})
		span(table+450, 200, func(p int) {
			t.read(p)
			for range 10 {
				t.read(table + 150 + t.random.IntN(300))
			}
		})
	}
}

// sor moves three rows along a grid.
func sor(t *tracer) {
	const rows, per = 500, 8
	for range 10 {
		for row := 1; row < rows-1; row++ {
			span(row*per, per, func(p int) {
				t.read(p - per)
				t.read(p)
				t.read(p + per)
				t.write(p)
			})
		}
	}
}

// matmul multiplies matrices, block by block.
func matmul(t *tracer) {
	const edge, per = 13, 8
	a, b, c := 0, edge*edge*per, 2*edge*edge*per
	for i := range edge {
		for j := range edge {
			for k := range edge {
				span(a+(i*edge+k)*per, per, t.read)
				span(b+(k*edge+j)*per, per, t.read)
				span(c+(i*edge+j)*per, per, t.update)
			}
		}
	}
}

// lu factors a matrix, block by block: what is left of it becomes smaller.
func lu(t *tracer) {
	const edge, per = 20, 10
	block := func(i, j int, do func(int)) { span((i*edge+j)*per, per, do) }
	for k := range edge {
		block(k, k, t.update)
		for i := k + 1; i < edge; i++ {
			block(i, k, t.update)
			block(k, i, t.update)
		}
		for i := k + 1; i < edge; i++ {
			for j := k + 1; j < edge; j++ {
				block(i, k, t.read)
				block(k, j, t.read)
				block(i, j, t.update)
			}
		}
	}
}

// fft goes over rows, and transposes the matrix from one array to the other, tile by tile.
func fft(t *tracer) {
	const rows, per = 128, 16
	const array = rows * per
	for pass := range 6 {
		from, to := pass%2*array, (1-pass%2)*array
		span(from, array, t.update)
		for column := range per {
			for row := range rows {
				for part := range rows / per {
					t.read(from + row*per + column)
					t.write(to + (column*(rows/per)+part)*per + row*per/rows)
				}
			}
		}
	}
}

// radix counts, and then writes what it reads in order to where it belongs, bucket by bucket.
func radix(t *tracer) {
	const array, buckets, perPage = 2048, 128, 16
	for pass := range 6 {
		from, to := pass%2*array, (1-pass%2)*array
		span(from, array, t.read)
		var filled [buckets]int
		span(from, array, func(p int) {
			t.read(p)
			for range perPage {
				b := t.random.IntN(buckets)
				at := min(filled[b]/perPage, array/buckets-1)
				filled[b]++
				t.write(to + b*(array/buckets) + at)
			}
		})
	}
}

// tree goes from the root to leaves that lie near each other.
func tree(t *tracer) {
	const fanOut, leaves = 4, 4096
	at := 0
	for range 16000 {
		at += t.random.IntN(7)
		leaf := (at + t.random.IntN(128)) % leaves
		for level, first := 1, 0; level <= leaves; first, level = first+level, level*fanOut {
			t.read(first + leaf*level/leaves)
		}
	}
}

// traces are all programs' traces, the same for the same seed.
func traces(seed uint64) (all []trace) {
	for i, program := range programs {
		t := tracer{random: rand.New(rand.NewPCG(seed, uint64(i)))}
		program.run(&t)
		numbers := map[int32]int32{}
		for k, a := range t.list {
			if _, known := numbers[a.page]; !known {
				numbers[a.page] = int32(len(numbers))
			}
			t.list[k].page = numbers[a.page]
		}
		all = append(all, trace{name: program.name, pages: len(numbers), list: t.list})
	}
	return all
}

// zipf draws numbers of which the k-th is drawn in proportion to 1/k^s, in an order by chance.
type zipf struct {
	random *rand.Rand
	upTo   []float64
	order  []int
}

func newZipf(random *rand.Rand, n int, s float64) *zipf {
	z := &zipf{random: random, order: random.Perm(n)}
	sum := 0.0
	for k := range n {
		sum += math.Pow(float64(k+1), -s)
		z.upTo = append(z.upTo, sum)
	}
	return z
}

func (z *zipf) draw() int {
	return z.order[sort.SearchFloat64s(z.upTo, z.random.Float64()*z.upTo[len(z.upTo)-1])]
}
