package replacement

import (
	"fmt"
	"slices"
	"testing"

	"dsmd/pagetable"

	"pgregory.net/rapid"
)

// queueOf has the pages 0 to n-1, in a node that has room for as many. Pages get into the main
// queue with that chance, and nothing is learned.
func queueOf(n int, chance float64) *Queue {
	q := New(n)
	q.chances.of = [leftMain]float64{chance, chance}
	q.period = 1 << 30
	for p := range pagetable.Page(n) {
		q.Add(p)
	}
	return q
}

// part parts with so many pages.
func (q *Queue) part(n int) (gone []pagetable.Page) {
	for range n {
		p, _ := q.Oldest()
		q.Evicted(p)
		gone = append(gone, p)
	}
	return gone
}

// run is so many pages from the first on.
func run(first, count pagetable.Page) (all []pagetable.Page) {
	for p := range count {
		all = append(all, first+p)
	}
	return all
}

func wantPages(t *testing.T, what string, got, want []pagetable.Page) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// TestWithoutAChance: pages that never get into the main queue leave in the order in which they
// came, and what was there first stays.
func TestWithoutAChance(t *testing.T) {
	q := queueOf(100, 0)
	wantPages(t, "of 100 pages these leave first", q.part(50), run(50, 50))
	for p := range pagetable.Page(50) {
		q.Add(100 + p)
	}
	wantPages(t, "of those that came then", q.part(50), run(100, 50))
	if !q.Has(0) || q.Has(50) || q.Len() != 50 {
		t.Errorf("%d pages are there, the first: %v, one that left: %v", q.Len(), q.Has(0), q.Has(50))
	}
}

// TestWithCertainty: where all pages get into the main queue the one that came first leaves first.
func TestWithCertainty(t *testing.T) {
	q := queueOf(100, 1)
	for p := range pagetable.Page(200) {
		wantPages(t, "oldest", q.part(1), run(p, 1))
		q.Add(100 + p)
	}
}

// TestUsed: a page of the main queue that is used has one more turn. A young one, and one that is
// not there, is not noted.
func TestUsed(t *testing.T) {
	q := queueOf(10, 1)
	q.Add(2) // it is young
	wantPages(t, "oldest", q.part(2), run(0, 2))
	q.Add(3)
	q.Use(3)
	q.Use(4)
	q.Use(77)
	wantPages(t, "with 3 and 4 used", q.part(3), []pagetable.Page{2, 5, 6})
	left := q.part(5)
	slices.Sort(left)
	wantPages(t, "and then, in any order", left, []pagetable.Page{3, 4, 7, 8, 9})
	if p, ok := q.Oldest(); ok || q.Len() != 0 {
		t.Errorf("an empty queue has page %d, and %d of them", p, q.Len())
	}
}

// TestMemory: half as many pages as there is room for are remembered, those that left last. A page
// that comes back while it is remembered has the chances of those that have.
func TestMemory(t *testing.T) {
	q := queueOf(100, 0.5)
	gone := q.part(100)
	if q.ghosts.count != 50 {
		t.Errorf("%d pages are remembered, want 50", q.ghosts.count)
	}
	for i, p := range gone {
		if remembered := q.index[p] != 0; remembered != (i >= 50) {
			t.Errorf("page %d, the %dth to leave: remembered %v", p, i, remembered)
		}
		if q.Has(p) {
			t.Errorf("page %d has left and is there", p)
		}
	}
	q.chances.of = [leftMain]float64{newcomer: 0, returned: 1}
	q.Add(gone[49])
	q.Add(gone[50])
	if a, b := q.entries[q.index[gone[49]]], q.entries[q.index[gone[50]]]; a.fate != newcomer || a.stays || b.fate != returned || !b.stays {
		t.Errorf("a page that was forgotten comes as %+v, one that is remembered as %+v", a, b)
	}
	q.Remove(gone[51]) // it is not there
	q.Remove(gone[50])
	if q.index[gone[50]] != 0 || q.index[gone[51]] == 0 {
		t.Error("what others take is remembered, or what had left before is not")
	}
}

// TestLearning: chances follow from who comes back.
func TestLearning(t *testing.T) {
	periods := func(q *Queue, n int) {
		for range n {
			q.chances.learn()
		}
	}
	q := New(1000)
	q.chances.gone = [fates]float64{100, 100, 100}
	q.chances.early = [fates]float64{newcomer: 20, returned: 5, leftMain: 10}
	periods(q, 1)
	if c := q.chances.of; c != [leftMain]float64{firstNew * chanceStep, firstReturned / chanceStep} {
		t.Errorf("chances %v: those of new pages should grow, those of others shrink", c)
	}
	periods(q, 100)
	if c := q.chances.of; c != [leftMain]float64{1 - leastChance, leastChance} {
		t.Errorf("chances %v, want the greatest and the least", c)
	}
	q = New(1000)
	periods(q, 100)
	if c := q.chances.of; c != [leftMain]float64{firstNew, firstReturned} {
		t.Errorf("chances %v without evidence, want the first", c)
	}
}

// TestSoonerCountsMore: what a page that comes back counts, by how many have left since it did.
func TestSoonerCountsMore(t *testing.T) {
	for since, want := range map[int]float64{0: 1, 25: 0.5, 49: 0.02} {
		q := queueOf(100, 0)
		p := q.part(1 + since)[0]
		q.Add(p)
		if got := q.chances.early[newcomer]; got < want-1e-9 || got > want+1e-9 {
			t.Errorf("a page that comes back after %d others have left counts %v, want %v", since, got, want)
		}
		if q.chances.gone[newcomer] != float64(1+since) {
			t.Errorf("%v pages have left, want %d", q.chances.gone, 1+since)
		}
	}
}

// TestSmallerThanItsRoom: a node that parts with pages long before it is full does as well.
func TestSmallerThanItsRoom(t *testing.T) {
	q := New(10000)
	q.chances.of = [leftMain]float64{}
	for p := range pagetable.Page(2000) {
		q.Add(p)
	}
	wantPages(t, "of 2,000 pages these leave first", q.part(10), run(1800, 10))
}

// TestKeep: pages with which the node cannot part do not keep it from others, and when it can after
// all they have left as they would have at once.
func TestKeep(t *testing.T) {
	q := queueOf(1000, 0)
	var kept []pagetable.Page
	for range 20 {
		p, _ := q.Oldest()
		q.Keep(p)
		kept = append(kept, p)
	}
	q.Keep(5000) // it is not there
	others := q.part(20)
	if kept[0]+20 != others[0] || others[19] != kept[0]+39 || q.Len() != 980 {
		t.Errorf("pages %v leave after %v were kept, and %d are there", others, kept, q.Len())
	}
	q.Evicted(kept[0])
	q.Remove(kept[1])
	for _, p := range kept[:2] {
		if e := q.entries[q.index[p]]; e.in != inGhosts || e.fate != newcomer {
			t.Errorf("a page that was kept, and then dropped or taken by others, is %+v", e)
		}
	}
}

// TestKeepForAPeriod: then a page is again where it was.
func TestKeepForAPeriod(t *testing.T) {
	q := queueOf(1000, 0)
	q.period = 50
	q.part(1) // now the main queue has its pages
	young, old := q.entries[q.small.oldest].page, q.entries[q.main.oldest].page
	for _, p := range []pagetable.Page{young, old, old + 1} {
		q.Keep(p)
	}
	place := func(p pagetable.Page) place { return q.entries[q.index[p]].in }
	for left := range 51 {
		want := [3]bool{left >= 50, left >= 50, left >= 51}
		if got := [3]bool{place(young) == inSmall, place(old) == inMain, place(old+1) == inMain}; got != want {
			t.Fatalf("when %d others have left these are back: %v, want %v", left, got, want)
		}
		p, _ := q.Oldest()
		q.Evicted(p)
		q.Add(5000 + p)
	}
	if newest := [2]uint32{q.main.newest, q.index[old+1]}; place(old+1) != inMain || newest[0] != newest[1] {
		t.Errorf("page %d is in list %d", old+1, place(old+1))
	}
}

// TestKeepAll: a node that can part with no page sees all of them, again and again, each once.
func TestKeepAll(t *testing.T) {
	for _, n := range []int{1, 2, 3, 10, 300, 2000} {
		q := queueOf(n, 0.5)
		for round := range 3 {
			seen := map[pagetable.Page]bool{}
			for range n {
				p, ok := q.Oldest()
				if !ok {
					t.Fatalf("%d pages, and none of them is the oldest", n)
				}
				seen[p] = true
				q.Keep(p)
			}
			if len(seen) != n {
				t.Errorf("round %d: %d of %d pages were seen", round, len(seen), n)
			}
			q.Add(pagetable.Page(n))
			n++
		}
	}
}

// TestRemoveAll: short runs, and runs that are longer than what there is.
func TestRemoveAll(t *testing.T) {
	for _, count := range []uint64{0, 1, 15, 1 << 40} {
		q := queueOf(30, 0.5)
		gone := q.part(10)
		want := 0
		for p := pagetable.Page(5); p < 30; p++ {
			if q.Has(p) && uint64(p) < 5+count {
				want++
			}
		}
		if got := q.RemoveAll(5, count); got != want || q.Len() != 20-want {
			t.Errorf("%d pages removed from the fifth: %d were there, want %d; %d are left", count, got, want, q.Len())
		}
		for _, p := range gone {
			if inRun := p >= 5 && uint64(p) < 5+count; (q.index[p] == 0) != inRun {
				t.Errorf("%d pages removed from the fifth: page %d, which had left, is remembered: %v", count, p, !inRun)
			}
		}
		check(t, q)
	}
}

// fataler is a test, of either package.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// check compares the parts of a Queue with each other.
func check(t fataler, q *Queue) {
	t.Helper()
	known := 0
	for in := inSmall; in <= inGhosts; in++ {
		l, newer, n := q.list(in), uint32(0), 0
		for i := l.newest; i != 0; newer, i = i, q.entries[i].next {
			e := q.entries[i]
			if e.in != in || e.prev != newer || q.index[e.page] != i {
				t.Fatalf("entry %d of list %d is %+v, behind %d; the index says %d", i, in, e, newer, q.index[e.page])
			}
			if in == inSmall && e.fate == leftMain || in == inMain && e.fate != leftMain {
				t.Fatalf("page %d of list %d would leave as %d", e.page, in, e.fate)
			}
			n++
		}
		if n != l.count || l.oldest != newer {
			t.Fatalf("list %d has %d entries, counts %d, and ends with %d, not %d", in, n, l.count, newer, l.oldest)
		}
		known += n
	}
	free := 0
	for i := q.free; i != 0; i = q.entries[i].next {
		free++
	}
	if known != len(q.index) || 1+known+free != len(q.entries) || q.ghosts.count > q.ghostMost {
		t.Fatalf("%d pages known, %d in the index, %d of %d entries free; %d ghosts, at most %d", known, len(q.index), free, len(q.entries), q.ghosts.count, q.ghostMost)
	}
	for f, c := range q.chances.of {
		if c < leastChance || c > 1-leastChance || q.chances.early[f] < 0 || q.chances.gone[f] < 0 {
			t.Fatalf("chances %+v", q.chances)
		}
	}
}

// model is what a Queue has and remembers.
type model struct {
	here   map[pagetable.Page]bool
	ghosts []pagetable.Page
	most   int // that were here and remembered together
}

func (m *model) forget(p pagetable.Page) {
	m.ghosts = slices.DeleteFunc(m.ghosts, func(g pagetable.Page) bool { return g == p })
}

func (m *model) check(t *rapid.T, q *Queue) {
	check(t, q)
	m.most = max(m.most, len(m.here)+len(m.ghosts))
	if q.Len() != len(m.here) || len(q.entries) > m.most+2 {
		// One entry stands for no page, and one page leaves when another has come.
		t.Fatalf("%d pages are here, want %d; %d entries for at most %d pages", q.Len(), len(m.here), len(q.entries), m.most)
	}
	for p := range pagetable.Page(80) {
		if q.Has(p) != m.here[p] {
			t.Fatalf("page %d is here: %v", p, q.Has(p))
		}
	}
	var ghosts []pagetable.Page
	for i := q.ghosts.oldest; i != 0; i = q.entries[i].prev {
		ghosts = append(ghosts, q.entries[i].page)
	}
	if !slices.Equal(ghosts, m.ghosts) {
		t.Fatalf("remembered are %v, want %v", ghosts, m.ghosts)
	}
	p, ok := q.Oldest()
	if again, _ := q.Oldest(); ok != (len(m.here) > 0) || ok && !m.here[p] || again != p {
		t.Fatalf("the oldest page is %d (%v), and then %d", p, ok, again)
	}
}

// TestModel compares a Queue with a set of pages and a list of those that have left.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := New(rapid.IntRange(0, 40).Draw(t, "capacity"))
		m := &model{here: map[pagetable.Page]bool{}}
		page := func(t *rapid.T) pagetable.Page { return pagetable.Page(rapid.IntRange(0, 79).Draw(t, "page")) }
		left := func(p pagetable.Page) {
			if m.here[p] {
				delete(m.here, p)
				m.ghosts = append(m.ghosts, p)
				m.ghosts = m.ghosts[max(0, len(m.ghosts)-q.ghostMost):]
			}
		}
		evict := func(p pagetable.Page) {
			q.Evicted(p)
			left(p)
		}
		add := func(p pagetable.Page) {
			q.Add(p)
			m.here[p] = true
			m.forget(p)
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) { add(page(t)) },
			"addRun": func(t *rapid.T) {
				first := page(t)
				for p := range pagetable.Page(rapid.IntRange(0, 40).Draw(t, "count")) {
					add(min(first+p, 79))
				}
			},
			"use": func(t *rapid.T) { q.Use(page(t)) },
			"remove": func(t *rapid.T) {
				p := page(t)
				if q.entries[q.index[p]].in == inAside {
					left(p)
				}
				q.Remove(p)
				delete(m.here, p)
			},
			"part": func(t *rapid.T) {
				for range rapid.IntRange(1, 30).Draw(t, "pages") {
					if p, ok := q.Oldest(); ok {
						evict(p)
					}
				}
			},
			"evict": func(t *rapid.T) { evict(page(t)) },
			"keep": func(t *rapid.T) {
				if p, ok := q.Oldest(); ok && rapid.Bool().Draw(t, "oldest") {
					q.Keep(p)
				} else {
					q.Keep(page(t))
				}
			},
			"removeAll": func(t *rapid.T) {
				first, count, here := page(t), rapid.Uint64Range(0, 100).Draw(t, "count"), 0
				for p := range pagetable.Page(80) {
					if p >= first && uint64(p-first) < count {
						if m.here[p] {
							here++
						}
						delete(m.here, p)
						m.forget(p)
					}
				}
				if got := q.RemoveAll(first, count); got != here {
					t.Fatalf("%d pages from %d on: %d were here, want %d", count, first, got, here)
				}
			},
			"": func(t *rapid.T) { m.check(t, q) },
		})
	})
}

// BenchmarkPage is what a page costs that comes, and another that leaves for it.
func BenchmarkPage(b *testing.B) {
	for _, capacity := range []int{1 << 14, 1 << 20} {
		b.Run(fmt.Sprint(capacity), func(b *testing.B) {
			q := queueOf(capacity, firstNew)
			q.period = New(capacity).period
			next := pagetable.Page(0)
			b.ReportAllocs()
			for b.Loop() {
				p, _ := q.Oldest()
				q.Evicted(p)
				q.Add(next % pagetable.Page(2*capacity))
				next++
			}
		})
	}
}
