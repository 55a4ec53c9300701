package sharing

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"dsmd/internal/faultlog"
	"dsmd/internal/runstats"
)

const pageBytes = 4096

// story makes the pieces of a run in which each rank has a node of its own.
type story struct {
	c      *Collector
	now    int64
	places map[int]uint64 // in each node's log
	had    map[[2]uint64]bool
}

func newStory(memory ...runstats.Allocation) *story {
	s := &story{c: NewCollector(), places: map[int]uint64{}, had: map[[2]uint64]bool{}}
	s.c.Add(runstats.Piece{Memory: memory})
	return s
}

// array is an allocation of words from page 100 on.
func array(name string, pages uint64) runstats.Allocation {
	return runstats.Allocation{Name: name, First: 100, Pages: pages, PageBytes: pageBytes, ElemBytes: 8, Type: "uint64"}
}

// turn has a rank fault at a byte of a page, store to some words, and lose the page.
func (s *story) turn(rank int, page uint64, access faultlog.Access, offset uint32, words ...int) {
	s.now += 1000
	taker := uint32(faultlog.NoNode)
	if had := [2]uint64{uint64(rank), page}; s.had[had] {
		taker = uint32(rank+1) % 2
	} else {
		s.had[had] = true
	}
	first := s.places[rank]
	b := faultlog.Batch{First: first, Next: first + 1, Faults: []faultlog.Fault{{
		Page: page, Offset: offset, Access: access, Thread: uint32(rank + 1), Began: s.now, Waited: time.Millisecond,
		From: faultlog.NoNode, Taker: taker, TakerAccess: faultlog.Write,
	}}}
	if taker == faultlog.NoNode {
		b.Faults[0].TakerAccess = 0
	}
	if words != nil {
		s.now += 1000
		d := faultlog.Departure{Place: first + 1, Page: page, At: s.now, By: uint32(rank+1) % 2, Access: faultlog.Write, Written: make([]uint64, pageBytes/8/64)}
		for _, w := range words {
			d.Written[w/64] |= 1 << (w % 64)
		}
		b.Departures, b.Next = append(b.Departures, d), b.Next+1
	}
	s.places[rank] = b.Next
	p := runstats.Piece{Rank: rank, Node: rank, Log: faultlog.Append(nil, &b)}
	p.Sites = []runstats.Site{{Page: page, Offset: offset, Write: access != faultlog.Read, At: fmt.Sprintf("main.go:%d", 10+rank), Count: 1}}
	s.c.Add(p)
}

// locks has a rank take a lock, for which it waited.
func (s *story) locks(rank int, name string) {
	s.now += 1000
	s.c.Add(runstats.Piece{Rank: rank, Node: rank, Calls: []runstats.Call{{Kind: runstats.Lock, Name: name, Began: s.now - 500, Waited: 400, Thread: rank + 1}}})
}

// words are consecutive words.
func words(from, to int) (list []int) {
	for w := from; w < to; w++ {
		list = append(list, w)
	}
	return list
}

// TestKinds: what is found out of each planted case, and what is said of it.
func TestKinds(t *testing.T) {
	pair := array("pairs", 1)
	pair.ElemBytes, pair.Type = 16, "main.pair"
	pair.Fields = []runstats.Field{{Name: "a", Bytes: 8}, {Name: "b", Offset: 8, Bytes: 8}}
	small := array("small", 1)
	small.ElemBytes, small.Type = 4, "uint32"
	for name, test := range map[string]struct {
		memory runstats.Allocation
		tell   func(s *story)
		want   []string // lines that begin so
	}{
		"counters side by side": {array("counts", 1), func(s *story) {
			s.turn(0, 100, faultlog.Write, 0, words(0, 512)...)
			for range 50 {
				for rank := range 3 {
					s.turn(rank, 100, faultlog.Write, uint32(8*rank), rank)
				}
			}
		}, []string{
			`false sharing: page 0 of "counts" ([]uint64): nodes write different words; 151 faults, which waited for 151ms, 100% of all waits for pages`,
			"  rank 0 writes counts[0] (main.go:10)", "  rank 1 writes counts[1] (main.go:11)", "  rank 2 writes counts[2] (main.go:12)",
			"  cost: rank 0: 0 read, 51 write, 0 upgrade faults, 51ms", "  cost: rank 1: 0 read, 50 write, 0 upgrade faults, 50ms", "  cost: rank 2: ",
			"  advice: give each rank a page of its own: pad",
		}},
		"two in a word": {small, func(s *story) {
			for range 50 {
				s.turn(0, 100, faultlog.Upgrade, 0, 0)
				s.turn(1, 100, faultlog.Upgrade, 4, 0)
			}
		}, []string{"false sharing: ", "  rank 0 writes small[0] ", "  rank 1 writes small[1] ", "  cost: ", "  cost: ", "  advice: give each rank a page"}},
		"two in a word, which are read first": {small, func(s *story) {
			for range 50 {
				for rank := range 2 {
					s.turn(rank, 100, faultlog.Read, uint32(4*rank))
					s.turn(rank, 100, faultlog.Upgrade, uint32(4*rank), 0)
				}
			}
		}, []string{"false sharing: ", "  rank 0 writes small[0] ", "  rank 1 writes small[1] ", "  cost: ", "  cost: ", "  advice: give each rank a page"}},
		"one counter": {array("total", 1), func(s *story) {
			for range 50 {
				s.turn(0, 100, faultlog.Write, 24, 3)
				s.turn(1, 100, faultlog.Write, 24, 3)
			}
		}, []string{`true sharing: page 0 of "total" ([]uint64): nodes write the same words`, "  rank 0 writes total[3] (main.go:10)", "  rank 1 writes total[3] (main.go:11)", "  cost: ", "  cost: ", "  advice: combine first"}},
		"a counter that is read first, and words beside it": {array("total", 1), func(s *story) {
			for i := range 50 {
				for rank := range 2 {
					s.turn(rank, 100, faultlog.Read, 24)
					s.turn(rank, 100, faultlog.Upgrade, 24, 3, 10+2*i%100+rank)
				}
			}
		}, []string{"true sharing: ", "  rank 0 writes total[3", "  rank 1 writes total[3", "  cost: ", "  cost: ", "  advice: combine first"}},
		"two locks": {array("books", 1), func(s *story) {
			for i := range 100 {
				rank, lock := i%2, i/2%2
				s.locks(rank, []string{"in", "out"}[lock])
				s.turn(rank, 100, faultlog.Write, uint32(80*lock), 10*lock)
			}
		}, []string{
			`false sharing: page 0 of "books" ([]uint64): different locks guard different words`, "  rank 0 writes books[0, 10] (main.go:10)", "  rank 1 writes books[0, 10] (main.go:11)",
			`  lock "in" guards books[0]`, `  lock "out" guards books[10]`, "  cost: ", "  cost: ", "  advice: put what each lock guards on pages of its own",
		}},
		"one lock": {array("books", 1), func(s *story) {
			for i := range 100 {
				s.locks(i%2, "in")
				s.turn(i%2, 100, faultlog.Write, 0, 0)
			}
		}, []string{"true sharing: ", "  rank 0 ", "  rank 1 ", "  cost: ", "  cost: ", "  advice: combine first"}},
		"producer and consumer": {array("queue", 1), func(s *story) {
			for range 50 {
				s.turn(0, 100, faultlog.Upgrade, 8, words(1, 9)...)
				s.turn(1, 100, faultlog.Read, 8)
			}
		}, []string{`communication: page 0 of "queue" ([]uint64): one node writes what others read`, "  rank 0 writes queue[1..8] (main.go:10)", "  rank 1 reads queue[1] (main.go:11)", "  cost: ", "  cost: ", "  advice: none"}},
		"question and answer": {array("box", 1), func(s *story) {
			for range 50 {
				s.turn(0, 100, faultlog.Read, 72)
				s.turn(0, 100, faultlog.Upgrade, 8, 1)
				s.turn(1, 100, faultlog.Read, 8)
				s.turn(1, 100, faultlog.Upgrade, 72, 9)
			}
		}, []string{"communication: ", "  rank 0 writes box[1] (main.go:10), reads box[9] (main.go:10)", "  rank 1 writes box[9] ", "  cost: ", "  cost: ", "  advice: none"}},
		"a reader of something else": {array("state", 1), func(s *story) {
			for range 50 {
				s.turn(0, 100, faultlog.Upgrade, 800, 100)
				s.turn(1, 100, faultlog.Read, 0)
			}
		}, []string{`false sharing: page 0 of "state" ([]uint64): one node writes, and others read other words`, "  rank 0 writes state[100] (main.go:10)", "  rank 1 reads state[0] (main.go:11)", "  cost: ", "  cost: ", "  advice: keep what is written apart"}},
		"fields": {pair, func(s *story) {
			for range 50 {
				s.turn(0, 100, faultlog.Write, 0, 0, 2, 4, 6)
				s.turn(1, 100, faultlog.Write, 8, 1, 3, 5, 7)
			}
		}, []string{"false sharing: ", "  rank 0 writes pairs[0..3].a ", "  rank 1 writes pairs[0..3].b ", "  cost: ", "  cost: ", "  advice: divide the struct"}},
		"every other element": {array("x", 4), func(s *story) {
			for range 50 {
				for page := range uint64(4) {
					s.turn(0, 100+page, faultlog.Write, 0, 0, 2, 4, 6, 8)
					s.turn(1, 100+page, faultlog.Write, 8, 1, 3, 5, 7, 9)
				}
			}
		}, []string{`false sharing: 4 pages of "x" ([]uint64)`, "  rank 0 writes x[0, 2..8] ", "  rank 1 writes x[1, 3..9] ", "  cost: ", "  cost: ", "  advice: give each rank one contiguous block"}},
		"blocks that meet": {array("x", 4), func(s *story) {
			for range 50 {
				s.turn(0, 101, faultlog.Write, 0, words(0, 100)...)
				s.turn(1, 101, faultlog.Write, 4088, words(100, 512)...)
			}
		}, []string{`false sharing: page 1 of "x"`, "  rank 0 writes x[512..611] ", "  rank 1 writes x[612..1023] ", "  cost: ", "  cost: ", "  advice: let each rank's block begin on a page: round the division to multiples of 512 elements"}},
		"a consumer that goes through all": {array("log", 3), func(s *story) {
			for range 50 {
				for page := range uint64(3) {
					s.turn(0, 100+page, faultlog.Upgrade, 800, 100)
					s.turn(1, 100+page, faultlog.Read, 0)
				}
			}
		}, []string{`communication: 3 pages of "log"`, "  rank 0 writes log[100] ", "  rank 1 reads log[0] ", "  cost: ", "  cost: ", "  advice: none"}},
		"a halo that is copied": {array("grid", 1), func(s *story) {
			for range 50 { // a copy begins with the last word
				s.turn(0, 100, faultlog.Upgrade, 8, words(1, 511)...)
				s.turn(1, 100, faultlog.Read, 4088)
			}
		}, []string{"communication: ", "  rank 0 writes grid[1..510] ", "  rank 1 reads grid[511] ", "  cost: ", "  cost: ", "  advice: none"}},
		"a header": {array("block", 1), func(s *story) {
			for range 50 {
				s.turn(0, 100, faultlog.Upgrade, 64, words(8, 512)...)
				s.turn(1, 100, faultlog.Read, 0)
			}
		}, []string{"false sharing: ", "  rank 0 writes block[8..511] ", "  rank 1 reads block[0] ", "  cost: ", "  cost: ", "  advice: keep what is written apart"}},
		"a halo of which little is known yet": {array("grid", 1), func(s *story) {
			for range 3 {
				s.turn(0, 100, faultlog.Upgrade, 8)
				s.turn(1, 100, faultlog.Read, 4088)
			}
		}, []string{"no page went to and fro between nodes so often that it is known why: 6 faults"}},
		"a halo that its reader has filled in": {array("grid", 1), func(s *story) {
			s.turn(1, 100, faultlog.Write, 0)
			for range 5 {
				s.turn(0, 100, faultlog.Read, 0)
				s.turn(0, 100, faultlog.Read, 4088)
				s.turn(0, 100, faultlog.Upgrade, 8, words(1, 511)...)
				s.turn(1, 100, faultlog.Read, 8)
			}
		}, []string{`communication: page 0 of "grid" ([]uint64): one node writes what others read`, "  rank 0 writes grid[1..510] (main.go:10), reads grid[0, 511] ", "  rank 1 reads grid[1] ", "  cost: ", "  cost: ", "  advice: none"}},
		"innocents": {array("mine", 8), func(s *story) {
			for page := range uint64(8) {
				s.turn(0, 100+page, faultlog.Write, 0, words(0, 512)...)
			}
			for i := range 50 {
				for rank := range 2 {
					if i == 0 {
						s.turn(rank, 100, faultlog.Read, 0)
						s.turn(rank, 102+uint64(rank), faultlog.Write, 0)
					}
				}
			}
		}, []string{"no page went to and fro between nodes so often that it is known why: 12 faults, which waited for 12ms"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(test.memory)
			test.tell(s)
			got := s.c.Result().Text()
			if !slices.EqualFunc(got, test.want, strings.HasPrefix) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

// TestNodesOfSeveralRanks: ranks of a node pass on the same departures, which count once.
func TestNodesOfSeveralRanks(t *testing.T) {
	c := NewCollector()
	memory := []runstats.Allocation{array("x", 1)}
	written := make([]uint64, 8)
	written[0] = 1
	for i := range uint64(10) {
		b := faultlog.Batch{First: 2 * i, Next: 2*i + 4}
		for k := range uint64(4) {
			b.Departures = append(b.Departures, faultlog.Departure{Place: 2*i + k, Page: 100, Access: faultlog.Write, Written: written})
		}
		c.Add(runstats.Piece{Rank: int(i % 3), Node: 7, Memory: memory, Log: faultlog.Append(nil, &b)})
	}
	p := c.page(100)
	if len(p.users) != 1 || p.users[0].written[0] != 22 {
		t.Errorf("%d nodes, word 0 written %d times, want 22", len(p.users), p.users[0].written[0])
	}
	if got := (&Party{Node: 7, Ranks: []int{0, 1, 2}, Writes: "x[0]"}).text(); got != "node 7 (ranks 0, 1, 2) writes x[0]" {
		t.Error(got)
	}
}

// TestBounds: however much there is, a collector keeps little, and what costs most.
func TestBounds(t *testing.T) {
	s := newStory(array("x", 1<<20))
	for i := range uint64(3 * maxPages) {
		if i%100 == 0 {
			s.turn(0, 100, faultlog.Write, 0, 0)
			s.turn(1, 100, faultlog.Write, 8, 1)
		}
		s.turn(int(i%200), 200+i, faultlog.Write, 0, 0)
		s.turn(int(i%200), 101, faultlog.Write, uint32(i%pageBytes), int(i%512))
		s.locks(0, fmt.Sprint(i))
		s.c.Add(runstats.Piece{Sites: []runstats.Site{{Page: 101, At: fmt.Sprint(i)}}})
	}
	r := s.c.Result()
	if len(s.c.pages) > maxPages || r.Forgotten == 0 || len(r.Groups) == 0 || len(s.c.ranks[0].calls) > maxCalls {
		t.Errorf("%d pages are kept, %d forgotten, %d groups", len(s.c.pages), r.Forgotten, len(r.Groups))
	}
	p := s.c.page(101)
	if len(p.users) != maxUsers || len(p.costs) != maxPayers || len(p.users[0].lines) > maxLines || len(p.users[0].stores.at) > maxOffsets || len(p.guards) > maxGuards {
		t.Errorf("of a page: %d nodes, %d costs, %d lines, %d places, %d locks", len(p.users), len(p.costs), len(p.users[0].lines), len(p.users[0].stores.at), len(p.guards))
	}
	sum := 0
	for k := range s.c.pages {
		for _, u := range s.c.pages[k].users {
			sum += 2 * len(u.written)
		}
	}
	if sum != s.c.wordBytes {
		t.Errorf("%d bytes of counts of words are accounted for, but there are %d", s.c.wordBytes, sum)
	}
}

// TestMany: of many ranks, those that have paid most are shown.
func TestMany(t *testing.T) {
	s := newStory(array("counts", 1))
	for i := range 50 {
		for rank := range 12 {
			if rank < 11 || i < 45 {
				s.turn(rank, 100, faultlog.Write, uint32(8*rank), rank)
			}
		}
	}
	text := strings.Join(s.c.Result().Text(), "\n")
	for _, want := range []string{"\n  rank 7 writes counts[7] (main.go:17)\n  and 4 others\n", "\n  cost: others: 0 read, 245 write, 0 upgrade faults, 245ms\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s\nwant%s", text, want)
		}
	}
}

// BenchmarkResult is of as much as a collector keeps.
func BenchmarkResult(b *testing.B) {
	s := newStory(array("x", 1<<20))
	for page := range uint64(maxPages) {
		for i := range 12 {
			s.turn(i%4, 100+page, faultlog.Write, uint32(8*i), words(0, 512)...)
		}
	}
	for b.Loop() {
		s.c.Result()
	}
}

// TestFreed: pages that are allocated again are others.
func TestFreed(t *testing.T) {
	s := newStory(array("old", 4))
	for range 10 {
		s.turn(0, 101, faultlog.Write, 0, 0)
		s.turn(1, 101, faultlog.Write, 8, 1)
	}
	fresh := array("new", 1)
	fresh.First = 101
	s.c.Add(runstats.Piece{Memory: []runstats.Allocation{fresh}})
	for range 10 {
		s.turn(0, 101, faultlog.Write, 0, 0)
		s.turn(1, 101, faultlog.Write, 0, 0)
	}
	got := map[string]Kind{}
	for _, g := range s.c.Result().Groups {
		got[g.Memory] = g.Kind
	}
	if want := map[string]Kind{"old": False, "new": True}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestLockOf: which lock a fault belongs to.
func TestLockOf(t *testing.T) {
	lock := func(name string, began, waited int64, thread int) runstats.Call {
		return runstats.Call{Kind: runstats.Lock, Name: name, Began: began, Waited: time.Duration(waited), Thread: thread}
	}
	for name, test := range map[string]struct {
		calls []runstats.Call
		began int64
		want  string
	}{
		"none":                 {nil, 10, ""},
		"before":               {[]runstats.Call{lock("a", 20, 5, 1)}, 24, ""},
		"the last":             {[]runstats.Call{lock("b", 15, 1, 2), lock("a", 5, 5, 1)}, 24, "b"},
		"after a barrier":      {[]runstats.Call{lock("a", 5, 5, 1), {Kind: runstats.Barrier, Name: "a", Began: 11}}, 24, ""},
		"after a reduction":    {[]runstats.Call{lock("a", 5, 5, 1), {Kind: runstats.Reduction, Name: "a", Began: 11}}, 24, ""},
		"of several at a time": {[]runstats.Call{lock("a", 5, 5, 1), lock("b", 6, 5, 2)}, 24, "a"},
		"fetching ahead":       {[]runstats.Call{lock("a", 5, 5, 1), {Kind: runstats.Prefetch, Name: "x", Began: 11}}, 24, "a"},
	} {
		var r rank
		r.called(test.calls)
		if got := r.lockAt(&faultlog.Fault{Thread: 1, Began: test.began}, nil); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
		held := faultlog.Fault{Thread: 1, Began: test.began, Lock: 7}
		if got := r.lockAt(&held, map[uint64]string{7: "word"}); got != "word" {
			t.Errorf("%s, with a word: %q", name, got)
		}
	}
}

// TestElements: how elements are written.
func TestElements(t *testing.T) {
	m := &runstats.Allocation{Name: "p", First: 0, Pages: 1, PageBytes: pageBytes, ElemBytes: 24, Fields: []runstats.Field{{Name: "x", Bytes: 8}, {Name: "y", Offset: 8, Bytes: 8}, {Name: "v.z", Offset: 16, Bytes: 8}}}
	for want, bytes := range map[string][]extent{
		"p[0]":              {{0, 24}},
		"p[0..2].x":         {{0, 8}, {24, 32}, {48, 56}},
		"p[1].{x, y}":       {{24, 40}},
		"p[0, 2..8].v.z":    {{16, 24}, {64, 72}, {112, 120}, {160, 168}, {208, 216}},
		"p[0].x, p[1].y":    {{0, 8}, {32, 40}},
		"p[0, 3, 5, …].x":   {{0, 8}, {72, 80}, {120, 128}, {192, 200}},
		"p[0..1].x":         {{7, 8}, {31, 32 - 0}},
		"p[0..1, 4..5].v.z": {{16, 24}, {40, 48}, {112, 120}, {136, 144}},
	} {
		if got := used(m, bytes).String(); got != want {
			t.Errorf("%v: %s, want %s", bytes, got, want)
		}
	}
}

// FuzzAdd: whatever a program says, there is a result.
func FuzzAdd(f *testing.F) {
	f.Add(uint64(100), uint64(1), uint64(8), uint64(4096), uint32(8), uint8(1), []byte{1, 2, 3})
	f.Add(uint64(1<<64-1), uint64(1), uint64(0), uint64(1), uint32(1<<32-1), uint8(3), []byte{255})
	f.Fuzz(func(t *testing.T, first, pages, elem, bytes uint64, offset uint32, access uint8, log []byte) {
		c := NewCollector()
		memory := runstats.Allocation{Name: "x", First: first, Pages: pages, PageBytes: bytes, ElemBytes: elem, Fields: []runstats.Field{{Name: "f", Offset: elem, Bytes: pages}, {Name: "g", Bytes: 1}}}
		c.Add(runstats.Piece{Memory: []runstats.Allocation{memory}, Log: log})
		written := []uint64{first, pages}
		for i := range 20 {
			b := faultlog.Batch{Faults: []faultlog.Fault{{Page: first, Offset: offset, Access: faultlog.Access(access), Waited: 1}}, Departures: []faultlog.Departure{{Page: first, At: int64(i), Written: written}}}
			c.add(&runstats.Piece{Rank: i % 2, Node: i % 2}, &b)
		}
		c.Result().Text()
	})
}

// TestNothingShared: who has looked and found nothing says so: an empty list, and not none.
func TestNothingShared(t *testing.T) {
	text, err := json.Marshal(NewCollector().Result())
	if err != nil || !strings.Contains(string(text), `"groups":[]`) {
		t.Errorf("%s, %v", text, err)
	}
}

// TestLostOnce: two ranks of a node read one log, and what both came too late for is missing once.
func TestLostOnce(t *testing.T) {
	c := NewCollector()
	missed := faultlog.Append(nil, &faultlog.Batch{First: 100, Next: 100, Lost: 40})
	for rank, node := range []int{0, 0, 1} {
		c.Add(runstats.Piece{Rank: rank, Node: node, Log: missed})
	}
	if s := c.Result(); s.Lost != 80 {
		t.Errorf("%d entries are missing, want 40 of each node's log", s.Lost)
	}
	if text := c.Result().Text(); !strings.HasPrefix(text[len(text)-1], "80 faults and departures of pages are missing above: ") {
		t.Errorf("the report does not say how much it lacks:\n%s", strings.Join(text, "\n"))
	}
}
