// Package frame is three operators of data frames: to filter the rows of a table, to sum up groups
// of them, and to join them with another table.
//
// Tables are columns of 32-bit numbers, and each thread has a block of the rows, which it filled.
// On pages this means: rows stay where they are. For filter each thread needs from the others how
// many rows they keep, and rows on the edge of a block share a page. For group each thread adds up
// some groups, for which it reads what all threads have summed up of them. For join each process
// makes an index of the other table, of which it fetches every page once.
package frame

import (
	"dsmd/bench/kernel"
	"dsmd/dsm"
)

// The operators. The sizes' parameter is the number of rows; what is said of each is its output.
var (
	// Filter is the values of the rows that are kept, in order, and zeros for the others.
	Filter = operator("frame-filter", "rows of a table that fulfil a condition, one in four", func(f *frame) operation { return newFilter(f) })
	// Group is the sums of the groups.
	Group = operator("frame-group", "sums of a table's values by key", func(f *frame) operation { return newGroup(f) })
	// Join is the value of the other table for each row.
	Join = operator("frame-join", "values of another table, a sixteenth as long, with the same key", func(f *frame) operation { return newJoin(f) })
)

func operator(name, summary string, make func(*frame) operation) kernel.Kernel {
	return kernel.Kernel{
		Name: name, Summary: summary,
		Sizes:   kernel.Sizes{Parameter: "rows", Test: 1 << 14, Default: 1 << 22, Large: 1 << 24, Min: 16, Max: 1 << 30},
		Problem: func(n int) kernel.Problem { return problem{n, make} },
	}
}

type problem struct {
	rows int
	make func(*frame) operation
}

// An operation is what a thread does in the timed part, and the columns of the result.
type operation interface {
	compute(t *kernel.Thread)
	result() kernel.Words
}

// Verify compares bit for bit.
func (problem) Verify(sequential, got kernel.Result) error { return kernel.SameBits(sequential, got) }

// frame is the table, and what threads need to work on it together.
type frame struct {
	team         *kernel.Team
	keys, values []int32
	barrier      kernel.Barrier
}

// Prepare has each thread fill its rows.
func (p problem) Prepare(t *kernel.Team) (kernel.Program, error) {
	f := &frame{t, kernel.Share[int32](t, "frame/keys", p.rows), kernel.Share[int32](t, "frame/values", p.rows), t.Barrier("frame/barrier")}
	r := &run{f, p.make(f)}
	return r, t.Each(func(t *kernel.Thread) {
		lo, hi := t.Mine(p.rows)
		for row := lo; row < hi; row++ {
			f.keys[row], f.values[row] = int32(mix(row)), int32(mix(row+p.rows))
		}
		if j, is := r.operation.(*join); is {
			j.fill(t)
		}
	})
}

// mix is a number of 30 bits that looks random.
func mix(i int) uint32 {
	x := uint64(i+1) * 0x9e3779b97f4a7c15
	return uint32((x^x>>29)*0xbf58476d1ce4e5b9>>34) & (1<<30 - 1)
}

type run struct {
	frame     *frame
	operation operation
}

func (r *run) Compute(t *kernel.Thread) { r.operation.compute(t) }

func (r *run) Result() kernel.Result {
	output := r.operation.result()
	return kernel.Result{Output: output, Figures: map[string]any{"fnv": kernel.FNV(output), "operations": float64(len(r.frame.keys))}}
}

// column is an output of 32-bit numbers.
type column []int32

// Len returns the number of rows.
func (c column) Len() int { return len(c) }

// At returns row i.
func (c column) At(i int) uint64 { return uint64(uint32(c[i])) }

// sums is an output of 64-bit numbers.
type sums []int64

// Len returns the number of groups.
func (s sums) Len() int { return len(s) }

// At returns the sum of group i.
func (s sums) At(i int) uint64 { return uint64(s[i]) }

// filter keeps rows with small keys. counts is how many each thread keeps, on a page of its own.
type filter struct {
	*frame
	kept   []int32
	counts []int64
	stride int
}

const kept = 1 << 28 // of keys below 2^30

func newFilter(f *frame) *filter {
	stride := f.team.PageBytes() / 8
	return &filter{f, kernel.Share[int32](f.team, "frame/kept", len(f.keys)), kernel.Share[int64](f.team, "frame/counts", f.team.Total*stride), stride}
}

func (f *filter) compute(t *kernel.Thread) {
	lo, hi := t.Mine(len(f.keys))
	count := int64(0)
	for _, k := range f.keys[lo:hi] {
		if k < kept {
			count++
		}
	}
	f.counts[t.Index*f.stride] = count
	t.Wait(f.barrier, "when rows are counted")
	next := int64(0)
	for before := range t.Index {
		next += f.counts[before*f.stride]
	}
	for row := lo; row < hi; row++ {
		if f.keys[row] < kept {
			f.kept[next] = f.values[row]
			next++
		}
	}
	t.Done(1, 1)
}

func (f *filter) result() kernel.Words { return column(f.kept) }

// group sums up values by key. parts is what each thread has summed up of its rows.
type group struct {
	*frame
	parts, sums []int64
}

const groups = 1 << 10

func newGroup(f *frame) *group {
	return &group{f, kernel.Share[int64](f.team, "frame/parts", f.team.Total*groups), kernel.Share[int64](f.team, "frame/sums", groups)}
}

func (g *group) compute(t *kernel.Thread) {
	lo, hi := t.Mine(len(g.keys))
	var own [groups]int64
	for row := lo; row < hi; row++ {
		own[g.keys[row]%groups] += int64(g.values[row])
	}
	copy(g.parts[t.Index*groups:], own[:])
	t.Wait(g.barrier, "when rows are summed up")
	lo, hi = t.Mine(groups)
	for part := range t.Total {
		for i := lo; i < hi; i++ {
			g.sums[i] += g.parts[part*groups+i]
		}
	}
	t.Done(1, 1)
}

func (g *group) result() kernel.Words { return sums(g.sums) }

// join looks up each row's key, reduced to the length of the other table, in that table. Its own
// keys are in no order.
type join struct {
	*frame
	otherKeys, otherValues []int32
	index                  map[int32]int32 // from key to row; each process has one
	joined                 []int32
}

func newJoin(f *frame) *join {
	n := len(f.keys) / 16
	column := func(name string, n int) []int32 { return kernel.Share[int32](f.team, name, n) }
	return &join{frame: f, otherKeys: column("frame/other-keys", n), otherValues: column("frame/other-values", n), joined: column("frame/joined", len(f.keys))}
}

// fill fills this thread's rows of the other table.
func (j *join) fill(t *kernel.Thread) {
	n := len(j.otherKeys)
	lo, hi := t.Mine(n)
	for row := lo; row < hi; row++ {
		j.otherKeys[row], j.otherValues[row] = int32(n-1-row), int32(mix(-row))
	}
}

func (j *join) compute(t *kernel.Thread) {
	n := int32(len(j.otherKeys))
	if t.Index == t.First {
		kernel.Fetch(t, j.otherKeys, dsm.Read)
		kernel.Fetch(t, j.otherValues, dsm.Read)
		j.index = make(map[int32]int32, n)
		for row, key := range j.otherKeys {
			j.index[key] = int32(row)
		}
	}
	t.Wait(j.barrier, "when the index is there")
	lo, hi := t.Mine(len(j.keys))
	for row := lo; row < hi; row++ {
		j.joined[row] = j.otherValues[j.index[j.keys[row]%n]]
	}
	t.Done(1, 1)
}

func (j *join) result() kernel.Words { return column(j.joined) }
